//! The workers' input.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::desired::{Delivered, is_same};
use mirrorlet_core::finished::FinishedPods;

/// The wanted pods, as the workers see them.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Pods that shall run.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Ended pods whose containers stay without a worker.
    pub finished: FinishedPods,
    /// The sources that have delivered. Pods that are in no source may be stopped only then.
    pub delivered: Delivered,
    /// Pods that are left as they are, though no source has them in that form.
    pub spared: BTreeSet<PodUid>,
}

impl PartialEq for Wanted {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.pods.iter().zip(&other.pods);
        self.delivered == other.delivered
            && self.pods.len() == other.pods.len()
            && self.finished == other.finished
            && self.spared == other.spared
            && pairs.all(|((uid, pod), (of, known))| uid == of && is_same(pod, known))
    }
}

impl Wanted {
    /// Whether the containers of a pod shall stay.
    pub fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid) || self.finished.contains(uid)
    }

    /// Whether a pod that is none of them may be stopped.
    pub(super) fn may_stop(&self, uid: &PodUid) -> bool {
        self.delivered.may_stop(uid) && !self.spared.contains(uid)
    }
}
