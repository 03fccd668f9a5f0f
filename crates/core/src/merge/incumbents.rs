//! The pods that go before others of their names.

use std::collections::BTreeMap;

use crate::api::{FullName, PodUid};
use crate::cron::Runs;
use crate::desired::{Origin, SourcePod};
use crate::small::SmallCollect;
use crate::workload::WorkloadKey;

/// A pod of a manifest that was wanted before, or runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Incumbent {
    /// The UID of its manifest.
    pub uid: PodUid,
    /// Its last known document; none if it was not stored.
    pub origin: Option<Origin>,
}

/// The pods, Jobs and CronJobs that keep their names in a merge.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Incumbents {
    /// The pods of manifests, and those that represent Jobs and CronJobs.
    pub pods: BTreeMap<FullName, Incumbent>,
    /// The documents that had the names of workloads last.
    pub workloads: BTreeMap<WorkloadKey, Origin>,
    /// The contents of Jobs that were begun, including a CronJob's last run, for which no document is
    /// known.
    pub begun: BTreeMap<WorkloadKey, String>,
}

impl Incumbents {
    /// The rank of a pod among others with its name; lower takes precedence. A pod that was wanted
    /// before is first. An edit of it, which has another UID, precedes those of other files and URLs.
    pub(super) fn rank(&self, name: &FullName, uid: &PodUid, pod: &SourcePod) -> (bool, bool) {
        let known = self.pods.get(name);
        let origin = known.and_then(|known| known.origin.as_ref());
        let is_known = known.is_some_and(|known| known.uid == *uid)
            || (origin.is_none() && self.has_begun(pod));
        let is_edit = origin.is_some_and(|origin| origin.is_same_place(&pod.origin));
        (!is_known, !is_edit)
    }

    fn has_begun(&self, pod: &SourcePod) -> bool {
        let Some(runs) = pod.runs.as_deref().filter(|_| !self.begun.is_empty()) else {
            return false;
        };
        let content = match runs {
            Runs::Job(job) => &job.content,
            Runs::CronJob(cron) => &cron.job.content,
        };
        let key = WorkloadKey::of(&pod.pod);
        key.is_some_and(|key| self.begun.get(&key) == Some(content))
    }
}

/// Returns each of these pods as the incumbent of its name.
pub(super) fn of_pods<'a>(
    pods: impl Iterator<Item = &'a SourcePod>,
) -> BTreeMap<FullName, Incumbent> {
    let known = |pod: &SourcePod| Incumbent {
        uid: pod.manifest_uid(),
        origin: Some(pod.origin.clone()),
    };
    pods.map(|pod| (pod.full_name(), known(pod))).collect_map()
}
