//! Jobs whose documents are others than those that their records are of, and that wait to be begun anew.

use std::collections::BTreeSet;

use super::problems::awaited;
use super::{At, Jobs};
use mirrorlet_core::api::PodUid;
use mirrorlet_core::desired::{PodSource, SourcePod};
use mirrorlet_core::job::{Job, JobName, JobRecord};
use mirrorlet_core::merge::Merged;

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

    /// The pods that are not to be stopped, though they are not among those that are wanted: an earlier
    /// agent started them for a document that is not known any more, and the record of the newest one
    /// is not on disk.
    pub fn spared(&self) -> &BTreeSet<PodUid> {
        &self.spared
    }
}

/// The pods of a record that are to run.
pub(super) fn running(name: &JobName, record: &JobRecord) -> impl Iterator<Item = PodUid> {
    let active = record.active.iter();
    active.map(|(index, attempt)| record.uid(name, *index, *attempt))
}

/// Has a document wait. It is no incumbent: the one that is awaited goes before it.
pub(super) fn hold(job: &Job, pod: &SourcePod, merged: &mut Merged) {
    merged.conflicts.push(awaited(&job.name, &pod.origin));
    merged.runs.remove(&pod.full_name());
}
