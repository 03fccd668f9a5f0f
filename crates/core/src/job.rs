//! Jobs of manifests: which pods of a Job must exist now, and when it has ended.
//!
//! A Job's document describes pods that run one after the other, and the next ones depend on the
//! outcome of earlier ones. A [`JobRecord`] has everything that must be known about those: [`decide`]
//! computes the next record from it, the document and the observed state, and [`pods`] the pods that it
//! describes. If the record is stored before these pods are started or removed, each success counts
//! once.
//!
//! Upstream: `pkg/controller/job/job_controller.go`.

mod decide;
mod indexes;
mod plan;
mod pod;
mod record;
mod report;
mod rules;
mod seen;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::{Pod, keys};
use crate::spec::annotation;

pub(crate) use pod::{name_after, numbers};

pub use decide::{Decision, Input, Note, decide};
pub use indexes::{IndexSet, NotIndexes};
pub use plan::{Known, plan};
pub use pod::{full_name, is_pod_of, pod_name, pods};
pub use record::{End, JobRecord, KEPT_MAX, Leaving, Over, Wait};
pub use report::report;
pub use rules::{
    BACKOFF_LIMIT_DEFAULT, FailureAction, FailureRule, FailureWhen, INDEXED, NON_INDEXED, Rules,
    SuccessRule,
};
pub use seen::Seen;

/// Identifies a Job. Displays as `default/backup`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl JobName {
    /// The name of a Job in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

crate::display!(JobName, "{}/{}", namespace, name);

/// A Job, as its document describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    /// Its name.
    pub name: JobName,
    /// The hash of the part of the document that identifies the run: if it changes, the Job runs again.
    pub content: String,
    /// The rules for its pods together.
    pub rules: Rules,
    /// Its pod of index 0, as a static pod.
    #[serde(deserialize_with = "crate::api::shared")]
    pub template: Arc<Pod>,
}

impl Job {
    /// The CronJob that it is a run of, if any.
    pub fn cron_job(&self) -> Option<&str> {
        annotation(&self.template.metadata, keys::CRON_JOB)
    }
}

#[cfg(test)]
mod tests;
