//! Jobs of manifests: which pods of a Job are to exist now, and when it is over.
//!
//! A Job's document stands for pods that come one after the other, and which ones depends on what
//! became of those before. All that has to be known of those is in a [`JobRecord`]: [`decide`] makes
//! the next one of it, of the document and of what is seen, and [`pods`] the pods that it stands for.
//! If the record is stored before these pods are started or removed, each success counts once.
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
    /// The hash of the part of the document that makes it another Job: with another one, it runs
    /// again.
    pub content: String,
    /// The rules for its pods together.
    pub rules: Rules,
    /// Its pod of index 0, as a static pod.
    #[serde(deserialize_with = "crate::api::shared")]
    pub template: Arc<Pod>,
}

impl Job {
    /// The CronJob that it is a run of, if it is one.
    pub fn cron_job(&self) -> Option<&str> {
        annotation(&self.template.metadata, keys::CRON_JOB)
    }
}

#[cfg(test)]
mod tests;
