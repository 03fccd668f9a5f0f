//! The report of `mirrorlet volumes`.

use serde::{Deserialize, Serialize};

/// The volumes of claims.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumesReport {
    /// By the namespaces and names of their claims.
    pub volumes: Vec<VolumeReport>,
}

/// The volume of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeReport {
    /// Its name on the Engine, or that of the `PersistentVolume`.
    pub name: String,
    /// Namespace of its claim.
    pub namespace: String,
    /// Name of its claim.
    pub claim: String,
    /// Whether the claim has a document.
    pub state: VolumeState,
    /// Its driver on the Engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Its path on the host, for a `PersistentVolume` with a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether this agent created it on the Engine. Only such a volume is removed with its data.
    pub created: bool,
    /// The pods that use its claim, as `namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// The workloads that use its claim and currently have no pod that does, as
    /// `cronjob/namespace/name`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
}

impl VolumeReport {
    /// Whatever uses its claim.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        let users = self.pods.iter().chain(&self.workloads);
        users.map(String::as_str)
    }
}

/// The state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum VolumeState {
    /// A manifest defines its claim.
    Bound,
    /// No manifest defines its claim any more.
    Released,
    /// A manifest defines its claim, but the Engine no longer has the volume.
    Lost,
}
