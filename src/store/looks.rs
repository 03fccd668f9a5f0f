//! Requests for a look at one pod: from workers, who have just changed it, to the observer.

use tokio::sync::mpsc;

use crate::api::PodUid;

/// Requests that may wait. A worker that finds the queue full waits its turn.
const REQUESTS_MAX: usize = 1024;

/// Asks for looks.
#[derive(Debug, Clone)]
pub struct LookRequests(mpsc::Sender<PodUid>);

/// A queue of requests and the end that asks.
#[must_use]
pub fn look_requests() -> (LookRequests, mpsc::Receiver<PodUid>) {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    (LookRequests(sender), receiver)
}

impl LookRequests {
    /// Asks for a look at `uid`; what it finds arrives in the cache.
    pub async fn look(&self, uid: &PodUid) {
        // The observer is gone only while the agent shuts down, and then nobody waits for a look.
        let _ = self.0.send(uid.clone()).await;
    }
}
