//! The state of workloads whose pods stay.

use serde::{Deserialize, Serialize};

use super::PodReport;

/// A Deployment or `DaemonSet`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    /// Its namespace.
    pub namespace: String,
    /// Its kind and name, as its pods have them: `Deployment/web`.
    pub owner: String,
    /// The file or URL of its document.
    pub source: String,
    /// The number of pods that it wants.
    pub wanted: u32,
    /// The number that are Ready.
    pub ready: u32,
    /// The number that run the version of the document.
    pub updated: u32,
    /// The number that serve: Ready for long enough.
    pub available: u32,
    /// `Available` and `Progressing`, as upstream's controller sets them.
    pub conditions: Vec<WorkloadCondition>,
}

/// A condition of a workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadCondition {
    /// `Available` or `Progressing`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    pub reason: String,
    /// Why, in a sentence.
    pub message: String,
}

impl WorkloadReport {
    /// Whether a pod is one of its.
    #[must_use]
    pub fn has(&self, pod: &PodReport) -> bool {
        pod.namespace == self.namespace && pod.workload.as_ref() == Some(&self.owner)
    }
}
