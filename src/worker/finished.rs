//! Ended API pods without a worker: their containers stay for their logs.

use std::collections::BTreeMap;

use super::{PodWorkers, Wanted};
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::finished::FinishedPods;
use mirrorlet_core::gc::PodLife;

/// The pods without a worker.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pods: FinishedPods,
    /// Former ones that are no longer wanted: their containers must be removed.
    left: BTreeMap<PodUid, FullName>,
}

impl Finished {
    /// The pods with containers that may be missing in both the newest list and the cache.
    pub(super) fn left(&self) -> impl Iterator<Item = (PodUid, FullName)> {
        let left = self.left.iter();
        left.map(|(uid, name)| (uid.clone(), name.clone()))
    }

    /// A pod has a worker.
    pub(super) fn has_worker(&mut self, uid: &PodUid) {
        self.left.remove(uid);
    }
}

impl PodWorkers {
    /// Updates the set of pods without a worker. Called before workers are started, so that a pod's
    /// observed state is up to date again before its worker reads it.
    pub(super) fn set_finished(&mut self, wanted: &Wanted) {
        self.finished
            .left
            .retain(|uid, _| !wanted.has(uid) && !self.workers.contains_key(uid));
        if self.finished.pods.is(&wanted.finished) {
            return;
        }
        let before = std::mem::replace(&mut self.finished.pods, wanted.finished.clone());
        for (uid, pod) in before.iter() {
            if wanted.finished.contains(uid) {
                continue;
            }
            self.context.settled.wake(uid);
            if !wanted.pods.contains_key(uid) && !self.workers.contains_key(uid) {
                let left = &mut self.finished.left;
                left.insert(uid.clone(), pod.name().clone());
            }
        }
        let rests = |uid: &&PodUid| {
            let handle = self.workers.get(*uid);
            handle.is_some_and(|handle| handle.rests.is_some())
        };
        let finished = wanted.finished.iter().map(|(uid, _)| uid);
        let resting: Vec<PodUid> = finished.filter(rests).cloned().collect();
        for uid in &resting {
            self.part_with(uid);
        }
    }

    /// Ends an idle worker, if its pod is kept without one.
    pub(super) fn part_with(&mut self, uid: &PodUid) {
        let Some(uid) = self.finished.pods.uid(uid) else {
            return;
        };
        let Some(handle) = self.workers.remove(uid) else {
            return;
        };
        self.evicted.forget(uid);
        self.locks.lives.set(uid, PodLife::Gone);
        self.context.board.remove(uid);
        self.context.graces.forget(uid);
        self.context.telemetry.journal.clear_refs(uid);
        self.locks.leave(&handle.full_name, uid);
        self.context.settled.rest(uid);
        self.context.looks.forget(uid);
    }
}
