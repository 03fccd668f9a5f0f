//! Grace periods that users gave in deletions of static pods: shorter than those in the specs.
//!
//! A pod's manifest is gone by then, so the grace can't be read from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::PodUid;
use tokio::sync::watch;

/// The graces, by pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Graces(Arc<watch::Sender<HashMap<PodUid, Duration>>>);

impl Graces {
    /// Gives a pod that is stopped, or is about to be, at most that long.
    pub fn shorten(&self, uid: PodUid, grace: Duration) {
        self.0.send_modify(|all| {
            all.insert(uid, grace);
        });
    }

    /// The grace that a pod was given, if it was given one.
    pub fn get(&self, uid: &PodUid) -> Option<Duration> {
        self.0.borrow().get(uid).copied()
    }

    /// Forgets a pod that has ended, or goes on.
    pub fn forget(&self, uid: &PodUid) {
        self.0.send_if_modified(|all| {
            all.remove(uid);
            // Nobody waits for that.
            false
        });
    }

    /// Wakes its holder when a pod is given a grace.
    pub fn subscribe(&self) -> watch::Receiver<HashMap<PodUid, Duration>> {
        self.0.subscribe()
    }
}
