//! The report of `mirrorlet images`.

use serde::{Deserialize, Serialize};

use crate::api::Timestamp;

/// The images on the Engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImagesReport {
    /// By their first names.
    pub images: Vec<ImageReport>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageReport {
    /// The Engine's id of it, `sha256:…`.
    pub id: String,
    /// Its names with a tag, or with a digest if it has no tag.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Its size in bytes; layers that images share count with each.
    pub size_bytes: u64,
    /// When the agent last pulled it; none if it was pulled, built or loaded by others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pulled_at: Option<Timestamp>,
    /// The pods that use it, as namespace/name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<String>,
    /// The workloads that refer to it and have no pod that uses it, as `cronjob/default/dump`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workloads: Vec<String>,
}

impl ImageReport {
    /// Whatever uses it.
    pub fn users(&self) -> impl Iterator<Item = &str> {
        let users = self.pods.iter().chain(&self.workloads);
        users.map(String::as_str)
    }
}
