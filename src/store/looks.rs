//! Requests to the observer: to read one pod, from its worker, which has just changed it; or to check
//! the runtime itself, from a caller that waits too long for an answer.

use tokio::sync::mpsc;

use mirrorlet_core::api::PodUid;

/// Requests that may wait. A worker that finds the queue full waits its turn.
const REQUESTS_MAX: usize = 1024;

/// A request to the observer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Read this pod.
    Look(PodUid),
    /// The observed state of this pod is no longer needed.
    Forget(PodUid),
    /// Whether the runtime still answers at all.
    Doubt,
}

/// Sends requests to the observer.
#[derive(Debug, Clone)]
pub struct LookRequests(mpsc::Sender<Request>);

/// A queue of requests and the end that asks.
pub fn look_requests() -> (LookRequests, mpsc::Receiver<Request>) {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    (LookRequests(sender), receiver)
}

impl LookRequests {
    /// Requests a read of `uid`; its result arrives in the cache.
    pub async fn look(&self, uid: &PodUid) {
        // The observer only ends while the agent shuts down, and then no caller waits for a read.
        let _ = self.0.send(Request::Look(uid.clone())).await;
    }

    /// Reports that the observed state of `uid` is no longer needed, so that it is not read
    /// unnecessarily. Never waits: with a full queue it is kept until the next list.
    pub fn forget(&self, uid: &PodUid) {
        let _ = self.0.try_send(Request::Forget(uid.clone()));
    }

    /// Requests a check whether the runtime still answers at all. Never waits: the caller is already
    /// waiting for something, and repeats the request.
    pub fn doubt(&self) {
        let _ = self.0.try_send(Request::Doubt);
    }
}
