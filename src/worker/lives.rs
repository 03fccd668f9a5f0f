//! The states of pods, for garbage collection.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Wanted;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::gc::PodLife;
use mirrorlet_runtime::gc::PodStateProvider;

/// The pods with a worker. A pod is known from before its worker starts until it has ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Lives(Arc<Mutex<BTreeMap<PodUid, PodLife>>>);

impl Lives {
    /// Sets the state of a pod.
    pub(super) fn set(&self, uid: &PodUid, life: PodLife) {
        let mut lives = self.0.lock();
        match life {
            PodLife::Known | PodLife::Over => lives.insert(uid.clone(), life),
            PodLife::Gone => lives.remove(uid),
        };
    }

    fn get(&self, uid: &PodUid) -> PodLife {
        let lives = self.0.lock();
        lives.get(uid).copied().unwrap_or(PodLife::Gone)
    }
}

/// The workers' answers about pods. A wanted pod is known before it has a worker, and an ended one
/// after that.
pub(super) struct PodStates {
    pub(super) lives: Lives,
    pub(super) wanted: watch::Receiver<Arc<Wanted>>,
}

impl PodStateProvider for PodStates {
    fn life(&self, uid: &PodUid) -> PodLife {
        match self.lives.get(uid) {
            PodLife::Gone => {
                let wanted = self.wanted.borrow();
                if wanted.pods.contains_key(uid) || wanted.spared.contains(uid) {
                    PodLife::Known
                } else if wanted.finished.contains(uid) {
                    PodLife::Over
                } else {
                    PodLife::Gone
                }
            }
            life => life,
        }
    }

    fn all_sources_ready(&self) -> bool {
        self.wanted.borrow().delivered.all()
    }
}
