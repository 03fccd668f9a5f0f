//! `PodManager`: the desired pods and mirrors, shared.
//!
//! Pure in-memory state behind one lock; every method is atomic, and nothing is done under the lock
//! but looking up. It is the truth about what is *wanted*; the workers are the truth about what
//! *is*. Written by the loop that takes in source updates, read by everybody.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use mirrorlet_core::api::{FullName, Pod, PodUid, ResolvedPodUid};
use mirrorlet_core::manager::{self, PodAndMirror, PodTable, PodsAndMirrors, UidTranslations};

/// The shared [`PodTable`]; see there for what each method means.
#[derive(Debug, Default)]
pub struct PodManager {
    table: RwLock<PodTable>,
}

impl PodManager {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A reader that panicked leaves the table whole, so a poisoned lock is still good.
    fn read(&self) -> RwLockReadGuard<'_, PodTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, PodTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`PodTable::set_pods`].
    pub fn set_pods(&self, pods: impl IntoIterator<Item = Arc<Pod>>) {
        let mut table = PodTable::default();
        table.set_pods(pods);
        *self.write() = table;
    }

    /// See [`PodTable::add_pod`].
    pub fn add_pod(&self, pod: Arc<Pod>) {
        self.write().add_pod(pod);
    }

    /// See [`PodTable::update_pod`].
    pub fn update_pod(&self, pod: Arc<Pod>) {
        self.write().update_pod(pod);
    }

    /// See [`PodTable::remove_pod`].
    pub fn remove_pod(&self, pod: &Pod) {
        self.write().remove_pod(pod);
    }

    /// See [`PodTable::get_pods`].
    #[must_use]
    pub fn get_pods(&self) -> Vec<Arc<Pod>> {
        self.read().get_pods()
    }

    /// See [`PodTable::get_pod_by_full_name`].
    #[must_use]
    pub fn get_pod_by_full_name(&self, name: &FullName) -> Option<Arc<Pod>> {
        self.read().get_pod_by_full_name(name)
    }

    /// See [`PodTable::get_pod_by_name`].
    #[must_use]
    pub fn get_pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.read().get_pod_by_name(namespace, name)
    }

    /// See [`PodTable::get_pod_by_uid`].
    #[must_use]
    pub fn get_pod_by_uid(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.read().get_pod_by_uid(uid)
    }

    /// See [`PodTable::get_pod_by_mirror_pod`].
    #[must_use]
    pub fn get_pod_by_mirror_pod(&self, mirror: &Pod) -> Option<Arc<Pod>> {
        self.read().get_pod_by_mirror_pod(mirror)
    }

    /// See [`PodTable::get_mirror_pod_by_pod`].
    #[must_use]
    pub fn get_mirror_pod_by_pod(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.read().get_mirror_pod_by_pod(pod)
    }

    /// See [`PodTable::get_pods_and_mirror_pods`].
    #[must_use]
    pub fn get_pods_and_mirror_pods(&self) -> PodsAndMirrors {
        self.read().get_pods_and_mirror_pods()
    }

    /// See [`PodTable::get_orphaned_mirror_pod_names`].
    #[must_use]
    pub fn get_orphaned_mirror_pod_names(&self) -> Vec<FullName> {
        self.read().get_orphaned_mirror_pod_names()
    }

    /// See [`PodTable::get_pod_and_mirror_pod`].
    #[must_use]
    pub fn get_pod_and_mirror_pod(&self, pod: &Arc<Pod>) -> PodAndMirror {
        self.read().get_pod_and_mirror_pod(pod)
    }

    /// See [`PodTable::get_static_pod_to_mirror_pod_map`].
    #[must_use]
    pub fn get_static_pod_to_mirror_pod_map(&self) -> Vec<(Arc<Pod>, Option<Arc<Pod>>)> {
        self.read().get_static_pod_to_mirror_pod_map()
    }

    /// See [`PodTable::translate_pod_uid`].
    #[must_use]
    pub fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        self.read().translate_pod_uid(uid)
    }

    /// See [`PodTable::get_uid_translations`].
    #[must_use]
    pub fn get_uid_translations(&self) -> UidTranslations {
        self.read().get_uid_translations()
    }

    /// See [`manager::is_mirror_pod_of`].
    #[must_use]
    pub fn is_mirror_pod_of(&self, mirror: &Pod, pod: &Pod) -> bool {
        manager::is_mirror_pod_of(mirror, pod)
    }
}
