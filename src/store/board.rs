//! The workers' views of their pods: read by the status report and the metrics.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use mirrorlet_core::api::{FullName, Pod, PodUid, core};
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::small::SmallSort;

/// The phase of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Another pod has not finished yet: one with the same full name, one with a host port that this
    /// pod needs, or one that was preempted for it.
    WaitingToStart,
    /// The pod is being converged.
    Syncing,
    /// The pod's containers are being stopped.
    Terminating,
    /// The pod's containers are stopped; its remains are being removed.
    Terminated,
    /// The pod has ended for good and nothing of it runs. Its worker only waits until the pod is no
    /// longer wanted: for an API pod, until its object is gone.
    Finished,
}

/// A worker's published state of its pod.
#[derive(Debug, Clone)]
pub struct PodView {
    /// UID of the pod.
    pub uid: PodUid,
    /// Full name of the pod.
    pub full_name: FullName,
    /// The desired pod; none for one that is only known from the runtime.
    pub pod: Option<Arc<Pod>>,
    /// The phase of its worker.
    pub phase: Phase,
    /// Its API status, once computed.
    pub status: Option<Arc<core::PodStatus>>,
    /// The last observed status.
    pub observed: Arc<PodStatus>,
    /// The error of the last sync; empty if it succeeded.
    pub error: Arc<str>,
    /// Why its liveness or startup probe last stopped a container, if it did.
    pub failed_probe: Option<Arc<str>>,
    /// The preempted pods that it waits for before it starts.
    pub awaits: Arc<[PodUid]>,
}

#[derive(Debug)]
struct Inner {
    views: RwLock<HashMap<PodUid, PodView>>,
    version: watch::Sender<u64>,
}

/// Creates an empty board: the end for workers to write, and the end for all readers.
pub fn board() -> (BoardWriter, Board) {
    let inner = Arc::new(Inner {
        views: RwLock::default(),
        version: watch::Sender::new(0),
    });
    (BoardWriter(Arc::clone(&inner)), Board(inner))
}

/// The workers' end of the board: each writes only its own entry.
#[derive(Debug)]
pub struct BoardWriter(Arc<Inner>);

/// The end of the board that is read.
#[derive(Debug, Clone)]
pub struct Board(Arc<Inner>);

impl BoardWriter {
    /// Replaces the entry of a pod.
    pub fn publish(&self, view: PodView) {
        self.0.views.write().insert(view.uid.clone(), view);
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Takes the entry of a pod off.
    pub fn remove(&self, uid: &PodUid) {
        self.0.views.write().remove(uid);
        self.0.version.send_modify(|version| *version += 1);
    }
}

impl Board {
    /// The entry of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<PodView> {
        self.0.views.read().get(uid).cloned()
    }

    /// All entries, by full name and UID.
    pub fn all(&self) -> Vec<PodView> {
        let views = self.0.views.read();
        let mut ordered: Vec<&PodView> = views.values().collect();
        ordered.small_sort_by(|a, b| (&a.full_name, &a.uid).cmp(&(&b.full_name, &b.uid)));
        ordered.into_iter().cloned().collect()
    }

    /// A receiver that changes with every entry.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }
}
