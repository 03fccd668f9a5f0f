//! Requests to the observer: a look at one pod, from its worker, who has just changed it; or a word
//! from the runtime itself, from whoever waits for an answer for too long.

use tokio::sync::mpsc;

use mirrorlet_core::api::PodUid;

/// Requests that may wait. A worker that finds the queue full waits its turn.
const REQUESTS_MAX: usize = 1024;

/// A request to the observer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// A look at this pod.
    Look(PodUid),
    /// That nobody asks any more for what is observed of this pod.
    Forget(PodUid),
    /// Whether the runtime still answers at all.
    Doubt,
}

/// Asks for looks.
#[derive(Debug, Clone)]
pub struct LookRequests(mpsc::Sender<Request>);

/// A queue of requests and the end that asks.
pub fn look_requests() -> (LookRequests, mpsc::Receiver<Request>) {
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    (LookRequests(sender), receiver)
}

impl LookRequests {
    /// Asks for a look at `uid`; what it finds arrives in the cache.
    pub async fn look(&self, uid: &PodUid) {
        // The observer is gone only while the agent shuts down, and then nobody waits for a look.
        let _ = self.0.send(Request::Look(uid.clone())).await;
    }

    /// Tells that nobody asks any more for what is observed of `uid`, which is not looked at without need
    /// from now on. Never waits: with a full queue it is kept until the next list.
    pub fn forget(&self, uid: &PodUid) {
        let _ = self.0.try_send(Request::Forget(uid.clone()));
    }

    /// Asks whether the runtime still answers at all. Never waits: whoever doubts is waiting for
    /// something already, and doubts again.
    pub fn doubt(&self) {
        let _ = self.0.try_send(Request::Doubt);
    }
}
