//! Orders to evict a pod: from the eviction task to the workers.

use tokio::sync::mpsc;

use mirrorlet_core::admit::Failure;
use mirrorlet_core::api::PodUid;

/// Maximum number of waiting orders: they come one by one, each after the previous pod is stopped.
const ORDERS_MAX: usize = 16;

/// An order to evict a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evict {
    /// Its UID.
    pub uid: PodUid,
    /// How it ends.
    pub failure: Failure,
    /// The signal of the eviction, as metrics name it.
    pub signal: &'static str,
}

/// Creates a queue of orders: its sender and receiver.
pub fn evictions() -> (mpsc::Sender<Evict>, mpsc::Receiver<Evict>) {
    mpsc::channel(ORDERS_MAX)
}
