//! The state of workloads whose pods stay.

use serde::{Deserialize, Serialize};

use super::PodReport;

/// A Deployment, `StatefulSet` or `DaemonSet`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadReport {
    /// Its namespace.
    pub namespace: String,
    /// Its kind and name, in the form of its pods' annotation: `Deployment/web`.
    pub owner: String,
    /// The file or URL of its document.
    pub source: String,
    /// The number of pods that it wants.
    pub wanted: u32,
    /// The number of existing pods, without those that are being stopped and those that wait for their
    /// turn to start.
    #[serde(default)]
    pub pods: u32,
    /// The number that are Ready.
    pub ready: u32,
    /// The number that run the version of the document.
    pub updated: u32,
    /// The number that serve: Ready for long enough.
    pub available: u32,
    /// Its progress, in one word: for a Deployment the reason of `Progressing`, for the others
    /// `Complete`, `Scaling`, `Updating`, `Partitioned`, `NotReady`, `Paused` or `Failed`.
    #[serde(default)]
    pub progress: String,
    /// The condition that it waits for, or the reason why the version of its document doesn't run;
    /// empty if nothing remains to be done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Of a `StatefulSet`: the versions that its pods run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revisions: Option<SetRevisions>,
    /// For a Deployment: `Available` and `Progressing`, as set by upstream's controller.
    pub conditions: Vec<WorkloadCondition>,
}

/// The versions that the pods of a `StatefulSet` run, with the names that upstream's controller uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SetRevisions {
    /// The version that is being replaced; the document's version once all pods run it.
    pub current: String,
    /// The version of the document.
    pub update: String,
    /// The number of pods that run the current version.
    pub current_pods: u32,
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
    pub fn has(&self, pod: &PodReport) -> bool {
        pod.namespace == self.namespace && pod.workload.as_ref() == Some(&self.owner)
    }
}
