//! Jobs whose documents are others than those that their records are of, and that wait to be begun anew.

use std::collections::BTreeSet;

use super::problems::awaited;
use super::{At, Jobs};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::desired::{PodSource, SourcePod};
use mirrorlet_core::job::{Job, JobName, JobRecord};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::workload::WorkloadKey;

impl Jobs {
    /// Whether a Job was begun by a document that this agent has not seen and that a source may have of
    /// which nothing is known yet: another one must not do its work again.
    pub(super) fn is_awaited(&self, job: &Job, at: &At<'_>) -> bool {
        let record = self.store.get(&job.name);
        let mut sources = at.states.iter();
        record.is_some_and(|record| record.content != job.content)
            && !self.begun.contains_key(&job.name)
            && sources.any(|(name, state)| name.source != PodSource::Api && state.set().is_none())
    }

    /// Whether a Job that is awaited may have a pod that runs. Such a pod can't be stopped before every
    /// source was heard, and its work must not be done by two at once, whoever orders it.
    pub(super) fn may_run(&self, job: &Job) -> bool {
        let record = self.store.get(&job.name);
        record.is_some_and(|record| !record.active.is_empty())
    }

    /// The pods that are not to be stopped, though they are not among those that are wanted: an earlier
    /// agent started them for a document that is not known any more, and the record of the newest one
    /// is not on disk.
    pub fn spared(&self) -> &BTreeSet<PodUid> {
        &self.spared
    }
}

/// The pods of a record: those that are to run, and those that are over and stay for their logs.
pub(super) fn pods_of(name: &JobName, record: &JobRecord) -> impl Iterator<Item = PodUid> {
    let active = record
        .active
        .iter()
        .map(|(index, attempt)| (*index, *attempt));
    let over = record.over.iter().map(|over| (over.index, over.attempt));
    let all = active.chain(over);
    all.map(|(index, attempt)| record.uid(name, index, attempt))
}

/// Has a document wait. It is no incumbent: the one that is awaited goes before it.
pub(super) fn hold(job: &Job, pod: &SourcePod, may_run: bool, merged: &mut Merged) {
    let problem = awaited(&job.name, &pod.origin, may_run);
    merged.conflicts.push(problem);
    merged.runs.remove(&pod.full_name());
    if let Some(key) = WorkloadKey::of(&pod.pod) {
        merged.workloads.remove(&key);
    }
}
