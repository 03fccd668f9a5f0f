//! Graces that a person gave pods of manifests with their deletion: less than their specs say.
//!
//! A pod's manifest is gone by then, so the grace can't be read from it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mirrorlet_core::api::PodUid;

/// The graces, by pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Graces(Arc<Mutex<HashMap<PodUid, Duration>>>);

impl Graces {
    fn all(&self) -> MutexGuard<'_, HashMap<PodUid, Duration>> {
        // A map is whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a pod that is about to be stopped at most that long.
    pub fn shorten(&self, uid: PodUid, grace: Duration) {
        self.all().insert(uid, grace);
    }

    /// The grace that a pod was given, if it was given one.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<Duration> {
        self.all().get(uid).copied()
    }

    /// Forgets a pod that has ended.
    pub fn forget(&self, uid: &PodUid) {
        self.all().remove(uid);
    }
}
