//! `PodManager`: the wanted pods and the mirrors, in one place.
//!
//! It is authoritative for the *wanted* pods; the workers, on the [`board`](super::board), are for the
//! *existing* ones. It finds pods by name, static pods of mirrors, and owners of UIDs. Each kind of pod
//! has one writer: the merge for wanted pods, the API source for mirrors.

use std::sync::Arc;

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::{ApiPods, ApiPodsState};
use mirrorlet_core::manager::{PodTable, is_mirror_pod, is_static_pod};
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::cell::{Reader, Writer, cell};

/// Creates an empty manager: the end for wanted pods, the end for the API server's pods, and the end
/// for all readers.
pub fn pod_manager() -> (PodWriter, ApiPodsWriter, PodManager) {
    let (objects, reader) = cell(None);
    let manager = PodManager {
        table: Arc::default(),
        api_pods: reader,
        outdated: Arc::default(),
    };
    let api = ApiPodsWriter {
        objects,
        manager: manager.clone(),
    };
    (PodWriter(manager.clone()), api, manager)
}

/// The shared [`PodTable`]; clones share it.
#[derive(Debug, Clone)]
pub struct PodManager {
    table: Arc<RwLock<Arc<PodTable>>>,
    api_pods: Reader<ApiPodsState>,
    outdated: Arc<Notify>,
}

impl PodManager {
    /// The current pods and mirrors, as an immutable snapshot.
    pub fn get(&self) -> Arc<PodTable> {
        let table = self.table.read();
        Arc::clone(&table)
    }

    /// All pods of our Node in the API server, including mirrors. When a reader wakes, the mirrors are
    /// in the table.
    pub fn api_pods(&self) -> Reader<ApiPodsState> {
        self.api_pods.clone()
    }

    /// Requests a new list of the API server's pods: [`api_pods`](Self::api_pods) shows one that
    /// doesn't exist, and the watch doesn't correct it.
    pub fn list_again(&self) {
        self.outdated.notify_one();
    }

    fn change(&self, change: impl FnOnce(&mut PodTable)) {
        let mut table = self.table.write();
        change(Arc::make_mut(&mut table));
    }
}

/// The end for wanted pods.
#[derive(Debug)]
pub struct PodWriter(PodManager);

impl PodWriter {
    /// Makes these the wanted pods.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = Arc<Pod>>) {
        self.0.change(|table| table.set_pods(pods));
    }

    /// Whether a pod is no longer wanted because it has settled.
    pub fn is_settled(&self, uid: &PodUid) -> bool {
        let api_pods = self.0.api_pods.get();
        (*api_pods)
            .as_ref()
            .is_some_and(|pods| pods.settled.contains_key(uid))
    }
}

/// The end for the API server's pods of our Node.
#[derive(Debug)]
pub struct ApiPodsWriter {
    objects: Writer<ApiPodsState>,
    manager: PodManager,
}

impl ApiPodsWriter {
    /// Whether a static pod that is wanted has that name.
    pub fn is_static_pod(&self, name: &FullName) -> bool {
        let pod = self.manager.get().get_pod_by_full_name(name);
        pod.is_some_and(|pod| is_static_pod(&pod))
    }

    /// Waits until the pods must be listed again.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn outdated(&self) {
        self.manager.outdated.notified().await;
    }

    /// Replaces the API server's pods: first the mirrors among them, then all objects.
    pub fn publish(&mut self, pods: Arc<ApiPods>) {
        let mirrors = pods.pods.values().filter(|pod| is_mirror_pod(pod)).cloned();
        self.manager.change(|table| table.set_mirror_pods(mirrors));
        self.objects.publish(Some(pods));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::keys;

    fn pod(uid: &str, annotation: &str) -> Arc<Pod> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.uid = Some(uid.into());
        pod.metadata.annotations = Some([(annotation.into(), "h".into())].into());
        Arc::new(pod)
    }

    #[tokio::test]
    async fn who_wakes_for_the_api_servers_pods_finds_the_mirrors() {
        let (mut pods, mut api, manager) = pod_manager();
        pods.set_pods([pod("s", keys::CONFIG_HASH)]);
        let before = manager.get();
        let (mirror, other) = (pod("m", keys::CONFIG_MIRROR), pod("o", keys::CONFIG_SEEN));
        let mut woken = manager.api_pods();
        let all = [&mirror, &other].map(|pod| (PodUid::of(pod), Arc::clone(pod)));
        api.publish(Arc::new(ApiPods {
            pods: all.into(),
            ..ApiPods::default()
        }));
        assert_eq!(
            woken
                .changed()
                .await
                .unwrap()
                .iter()
                .flat_map(|told| &told.pods)
                .count(),
            2
        );
        let now = manager.get();
        assert_eq!(
            now.get_mirror_pod_by_pod(&pod("s", keys::CONFIG_HASH)),
            Some(mirror)
        );
        assert_eq!(now.translate_pod_uid(&"m".into()), "s".into());
        assert_eq!(now.get_pods().len(), 1);
        // Snapshots that were handed out before don't change.
        assert_eq!(before.translate_pod_uid(&"m".into()), "m".into());
    }
}
