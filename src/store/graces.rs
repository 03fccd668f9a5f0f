//! Grace periods that users gave in deletions of static pods: shorter than those in the specs.
//!
//! A pod's manifest is removed by then, so the grace period can't be read from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::PodUid;
use tokio::sync::watch;

/// The graces, by pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Graces(Arc<watch::Sender<HashMap<PodUid, Duration>>>);

impl Graces {
    /// Limits the grace period of a pod that is stopped, or is about to be.
    pub fn shorten(&self, uid: PodUid, grace: Duration) {
        self.0.send_modify(|all| {
            all.insert(uid, grace);
        });
    }

    /// The grace period that was set for a pod, if any.
    pub fn get(&self, uid: &PodUid) -> Option<Duration> {
        self.0.borrow().get(uid).copied()
    }

    /// Forgets a pod that has ended, or continues to run.
    pub fn forget(&self, uid: &PodUid) {
        self.0.send_if_modified(|all| {
            all.remove(uid);
            // No subscriber needs to be woken.
            false
        });
    }

    /// A receiver that changes when a grace period is set.
    pub fn subscribe(&self) -> watch::Receiver<HashMap<PodUid, Duration>> {
        self.0.subscribe()
    }
}
