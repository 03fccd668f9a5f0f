//! Requests to process changes immediately, so that a user who saves a file and then asks about its pod
//! gets an answer about the new file.

use tokio::sync::{mpsc, oneshot};

/// Most requests that wait. More wait for a place.
const REQUESTS_MAX: usize = 16;

/// Requests that a task processes its changes.
#[derive(Debug, Clone)]
pub struct RefreshHandle(mpsc::Sender<oneshot::Sender<()>>);

impl RefreshHandle {
    /// Returns once the task has processed all changes from before the call, or has ended.
    pub async fn refresh(&self) {
        let (done, refreshed) = oneshot::channel();
        if self.0.send(done).await.is_ok() {
            // A task that has ended processes nothing more.
            let _ = refreshed.await;
        }
    }
}

/// The receiving end of a [`RefreshHandle`].
#[derive(Debug)]
pub struct Refreshes {
    requests: mpsc::Receiver<oneshot::Sender<()>>,
    taken: Vec<oneshot::Sender<()>>,
}

impl Refreshes {
    /// Waits for a request, and keeps it until [`done`](Self::done). Waits forever once there are no
    /// more handles.
    ///
    /// # Cancel safety
    /// No request is lost when the future is dropped before it is ready.
    pub async fn requested(&mut self) {
        match self.requests.recv().await {
            Some(request) => self.taken.push(request),
            None => std::future::pending().await,
        }
    }

    /// Answers the received requests: all changes from before them are processed.
    pub fn done(&mut self) {
        for request in self.taken.drain(..) {
            // The receiver may be gone.
            let _ = request.send(());
        }
    }
}

/// A handle, and its receiving end.
pub fn refreshes() -> (RefreshHandle, Refreshes) {
    let (sender, requests) = mpsc::channel(REQUESTS_MAX);
    let taken = Vec::new();
    (RefreshHandle(sender), Refreshes { requests, taken })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_answered_once_it_is_done_or_its_task_has_ended() {
        let (handle, mut refreshes) = refreshes();
        let asking = tokio::spawn({
            let handle = handle.clone();
            async move { handle.refresh().await }
        });
        refreshes.requested().await;
        assert!(!asking.is_finished());
        refreshes.done();
        asking.await.unwrap();
        drop(refreshes);
        handle.refresh().await;
    }
}
