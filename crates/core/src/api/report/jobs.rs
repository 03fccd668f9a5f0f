//! The state of Jobs.

use serde::{Deserialize, Serialize};

use super::PodReport;
use crate::api::Timestamp;

/// Reason of a Job with `parallelism` 0: no pod of it runs, though upstream's condition `Suspended`
/// doesn't hold.
pub const NO_PARALLELISM: &str = "ParallelismZero";
/// Reason of a Job that waits for its stopping pods before it runs another one.
pub const PODS_TERMINATING: &str = "PodsTerminating";

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
    /// The CronJob that it is a run of, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron_job: Option<String>,
    /// The number of pods that have to succeed; none if the first success completes the Job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completions: Option<u32>,
    /// The number of its pods that should run now.
    pub active: u32,
    /// The number that have succeeded.
    pub succeeded: u32,
    /// The number that have failed.
    pub failed: u32,
    /// The indexes that have succeeded, as `0,2-4`, if its pods are indexed.
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
    /// When this run of it was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Timestamp>,
    /// Since when its pods may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
}

/// A CronJob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronJobReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The file or URL of its document.
    pub source: String,
    /// Its schedule, as it is written.
    pub schedule: String,
    /// The time zone of the schedule.
    pub time_zone: String,
    /// Whether nothing is started.
    pub suspended: bool,
    /// The number of its Jobs that run.
    pub active: u32,
    /// The last due time for which a Job was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule: Option<Timestamp>,
    /// The next time that is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_schedule: Option<Timestamp>,
}

impl JobReport {
    /// Whether a pod is its.
    pub fn has(&self, pod: &PodReport) -> bool {
        let owner = pod.workload.as_deref();
        let name = owner.and_then(|owner| owner.strip_prefix("Job/"));
        name == Some(self.name.as_str()) && pod.namespace == self.namespace
    }

    /// Whether it has failed.
    pub fn has_failed(&self) -> bool {
        self.condition == "Failed"
    }
}
