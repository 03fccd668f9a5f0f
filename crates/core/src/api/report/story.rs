//! The histories of pods, and the events of pods and the node.

use serde::{Deserialize, Serialize};

use super::PodReport;
use crate::api::{Diagnostic, PodUid, Timestamp};

/// The history of one pod: the data behind `mirrorlet explain`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExplainReport {
    /// Name with the node's suffix.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// The pod in its current state; none if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReport>,
    /// Why its manifest is rejected; only for a pod that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Diagnostic>,
    /// When its source was last read with success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_read: Option<Timestamp>,
    /// Whether older entries were forgotten.
    pub truncated: bool,
    /// Number that the next entry of the journal gets.
    #[serde(default)]
    pub next: u64,
    /// The history of this pod and of earlier pods with the same name; oldest first. Limited to this
    /// run of the agent.
    pub story: Vec<JournalReport>,
}

/// One entry of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JournalReport {
    /// When.
    pub at: Timestamp,
    /// `Normal` or `Warning` for entries that are events, otherwise `Trace`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Why, in one word.
    pub reason: String,
    /// Name of the container concerned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// One sentence.
    pub message: String,
    /// UID of the pod; before an edit it differs from the current one. For the node and for workloads,
    /// the name.
    pub uid: PodUid,
}

/// An entry about a pod, the node or a workload: the data behind `mirrorlet events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventReport {
    /// Position in the journal; later entries have higher numbers.
    pub number: u64,
    /// Kind of the workload, for example `Deployment`; none for a pod and the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Namespace of the pod or workload; none for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name of the pod with the node's suffix, of the node, or of the workload.
    pub name: String,
    /// The entry.
    #[serde(flatten)]
    pub entry: JournalReport,
}
