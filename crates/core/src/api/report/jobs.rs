//! The state of Jobs.

use serde::{Deserialize, Serialize};

use super::PodReport;
use crate::api::Timestamp;

/// A Job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The file or URL of its document.
    pub source: String,
    /// How many pods have to succeed; none where the first one says that all is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completions: Option<u32>,
    /// How many of its pods are to run now.
    pub active: u32,
    /// How many have succeeded.
    pub succeeded: u32,
    /// How many have failed.
    pub failed: u32,
    /// The indexes that have succeeded, as `0,2-4`, where its pods have any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub completed_indexes: String,
    /// The indexes that have failed for good.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failed_indexes: String,
    /// `Complete`, `Failed`, `Suspended` or `Running`.
    pub condition: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when its pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

impl JobReport {
    /// Whether a text names it: `job/backup`, or with its namespace.
    #[must_use]
    pub fn is_named(&self, text: &str) -> bool {
        let kinds = ["job/", "jobs/", "job.batch/"];
        let named = kinds.iter().find_map(|kind| text.strip_prefix(kind));
        named.is_some_and(|named| match named.split_once('/') {
            Some((namespace, name)) => self.namespace == namespace && self.name == name,
            None => self.name == named,
        })
    }

    /// Whether a pod is its.
    #[must_use]
    pub fn has(&self, pod: &PodReport) -> bool {
        let owner = pod.workload.as_deref();
        let name = owner.and_then(|owner| owner.strip_prefix("Job/"));
        name == Some(self.name.as_str()) && pod.namespace == self.namespace
    }

    /// Whether it has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.condition == "Failed"
    }
}
