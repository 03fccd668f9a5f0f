//! The pods that go before others of their names.

use std::collections::BTreeMap;

use crate::api::{FullName, PodUid};
use crate::cron::Runs;
use crate::desired::{Origin, SourcePod};
use crate::small::SmallCollect;
use crate::workload::WorkloadKey;

/// A pod of a manifest that was wanted so far, or runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Incumbent {
    /// The UID of its manifest.
    pub uid: PodUid,
    /// Its document as last known; none if that was not kept.
    pub origin: Option<Origin>,
}

/// The pods, Jobs and CronJobs that keep their names in a merge.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Incumbents {
    /// The pods of manifests, and those that stand for Jobs and CronJobs.
    pub pods: BTreeMap<FullName, Incumbent>,
    /// The documents that had the names of workloads last.
    pub workloads: BTreeMap<WorkloadKey, Origin>,
    /// The contents of Jobs that were begun, also of a CronJob's last run, where nothing is known of
    /// their documents.
    pub begun: BTreeMap<WorkloadKey, String>,
}

impl Incumbents {
    /// The rank of a pod among others of its name; lower wins. What was wanted already is first. An edit
    /// of it, which has another UID, is before what other files and URLs have.
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

/// Each of these pods as the incumbent of its name.
pub(super) fn of_pods<'a>(
    pods: impl Iterator<Item = &'a SourcePod>,
) -> BTreeMap<FullName, Incumbent> {
    let known = |pod: &SourcePod| Incumbent {
        uid: pod.manifest_uid(),
        origin: Some(pod.origin.clone()),
    };
    pods.map(|pod| (pod.full_name(), known(pod))).collect_map()
}
