//! `PersistentVolume`s.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

use super::{BLOCK, Place, size};
use crate::api::core::{
    HostPathVolumeSource, LocalVolumeSource, ObjectReference, PersistentVolumeClaimSpec,
    VolumeNodeAffinity,
};
use crate::api::meta::ObjectMeta;

/// Type of the path of a `local` volume: it must exist, as upstream.
const LOCAL_TYPE: &str = "Directory";
/// Type of a hostPath volume whose path is a device.
pub(crate) const DEVICE_TYPE: &str = "BlockDevice";

/// A `PersistentVolume`, with the supported fields, including only the sources on this machine.
///
/// Kubernetes' own type would add a decoder for each of 20 unsupported storage types.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolume {
    /// Always `v1`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// Its spec.
    pub spec: PersistentVolumeSpec,
    /// Its status, in manifests that were copied from an API server.
    #[serde(skip_serializing)]
    pub status: Option<serde_json::Value>,
}

/// The spec of a [`PersistentVolume`].
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PersistentVolumeSpec {
    /// Its access modes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub access_modes: Vec<String>,
    /// Its size, as declared.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub capacity: BTreeMap<String, ApiQuantity>,
    /// The claim that it is reserved for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ObjectReference>,
    /// A path of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<HostPathVolumeSource>,
    /// An existing directory of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalVolumeSource>,
    /// Options of its mount.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// The Nodes that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// The policy for its files when its claim is deleted, upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_reclaim_policy: Option<String>,
    /// The class that a claim must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// The class of its attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attributes_class_name: Option<String>,
    /// `Filesystem` or `Block`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

impl PersistentVolume {
    /// The class that a claim must have.
    pub(super) fn class(&self) -> &str {
        let class = self.spec.storage_class_name.as_deref();
        class.unwrap_or_default()
    }

    /// Whether it has all access modes that a claim requests.
    pub(super) fn has_modes(&self, claim: &PersistentVolumeClaimSpec) -> bool {
        let mut wanted = claim.access_modes.iter().flatten();
        wanted.all(|mode| self.spec.access_modes.contains(mode))
    }

    /// Whether it is a device instead of files.
    pub fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some(BLOCK)
    }

    /// Its size in bytes.
    pub(super) fn capacity(&self) -> i64 {
        size(self.spec.capacity.get("storage"))
    }

    /// The location of its files, or its device; `name` is its name.
    pub(super) fn place(&self, name: String) -> Result<Place, String> {
        let (path, kind) = match (&self.spec.host_path, &self.spec.local) {
            (Some(source), _) => (&source.path, source.type_.as_deref().unwrap_or_default()),
            (None, Some(source)) => (&source.path, LOCAL_TYPE),
            (None, None) => {
                return Err(format!(
                    "PersistentVolume {name} is of a type that is not supported"
                ));
            }
        };
        if self.is_block() {
            if self.spec.host_path.is_some() && !["", DEVICE_TYPE].contains(&kind) {
                return Err(format!(
                    "PersistentVolume {name} has volumeMode Block, but its hostPath is of type {kind}"
                ));
            }
            return Ok(Place::Device {
                path: path.clone(),
                volume: name,
            });
        }
        Ok(Place::Host {
            path: path.clone(),
            kind: kind.to_owned(),
            volume: name,
        })
    }
}
