//! Prepares newest revisions: one task per pod, which tries until it succeeds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::rollout::{Cause, Preparation};
use mirrorlet_runtime::{Runtime, SyncError, SyncErrorReason};

/// Pause after a failure without a retry time. It doesn't grow: a user corrects the cause and waits for
/// the rollout, and pulls have a back-off of their own.
const RETRY: Duration = Duration::from_secs(10);
/// Shortest pause, whatever a failure says.
const RETRY_MIN: Duration = Duration::from_secs(1);

/// The preparations in progress and completed, by pod.
pub(super) struct Preparations {
    runtime: Arc<dyn Runtime>,
    pods: BTreeMap<FullName, OnePod>,
    tasks: JoinSet<()>,
    /// Changes with every outcome.
    version: watch::Sender<u64>,
    seen: watch::Receiver<u64>,
    /// Changes when what failed may succeed now.
    again: watch::Sender<u64>,
}

struct OnePod {
    /// Of the revision, and of the pods that will have stopped when it starts.
    uids: Vec<PodUid>,
    outcome: watch::Receiver<Preparation>,
    cancel: CancellationToken,
}

impl Drop for OnePod {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl Preparations {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> Self {
        let (version, seen) = watch::channel(0);
        Self {
            runtime,
            pods: BTreeMap::new(),
            tasks: JoinSet::new(),
            version,
            seen,
            again: watch::channel(0).0,
        }
    }

    /// Retries failed preparations immediately: objects that they may refer to have changed.
    pub(super) fn try_again(&self) {
        self.again.send_modify(|count| *count += 1);
    }

    /// The preparation of a revision; the first call starts it. `stops` are the pods that will have
    /// stopped when it starts. A preparation of an older edit, or with other pods, is cancelled.
    pub(super) fn of(
        &mut self,
        name: &FullName,
        pod: &Arc<Pod>,
        stops: Vec<Arc<Pod>>,
    ) -> Preparation {
        let of_stops = stops.iter().map(|pod| PodUid::of(pod));
        let uids = [PodUid::of(pod)].into_iter().chain(of_stops).collect();
        if let Some(known) = self.pods.get(name).filter(|known| known.uids == uids) {
            return known.outcome.borrow().clone();
        }
        let (sender, outcome) = watch::channel(Preparation::UnderWay);
        let cancel = CancellationToken::new();
        let task = Task {
            runtime: Arc::clone(&self.runtime),
            pod: Arc::clone(pod),
            stops,
            outcome: sender,
            version: self.version.clone(),
            again: self.again.subscribe(),
        };
        let token = cancel.clone();
        self.tasks.spawn(async move {
            // A call that is on its way hears of the cancellation by its own token.
            task.run(&token).await;
        });
        let one = OnePod {
            uids,
            outcome,
            cancel,
        };
        self.pods.insert(name.clone(), one);
        Preparation::UnderWay
    }

    /// Ends the preparation of a pod, if there is one.
    pub(super) fn end(&mut self, name: &FullName) {
        self.pods.remove(name);
    }

    /// Ends the preparations of all other pods.
    pub(super) fn retain(&mut self, keep: impl Fn(&FullName) -> bool) {
        self.pods.retain(|name, _| keep(name));
    }

    /// Ends with the next outcome.
    pub(super) async fn changed(&mut self) {
        // Tasks that have ended are taken out of the set meanwhile.
        while self.tasks.try_join_next().is_some() {}
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends when every task has.
    pub(super) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

struct Task {
    runtime: Arc<dyn Runtime>,
    pod: Arc<Pod>,
    stops: Vec<Arc<Pod>>,
    outcome: watch::Sender<Preparation>,
    version: watch::Sender<u64>,
    again: watch::Receiver<u64>,
}

impl Task {
    async fn run(mut self, cancel: &CancellationToken) {
        loop {
            self.again.mark_unchanged();
            let prepared = self
                .runtime
                .prepare_pod(&self.pod, &self.stops, cancel)
                .await;
            if cancel.is_cancelled() {
                return;
            }
            let (outcome, retry) = outcome(prepared);
            self.outcome.send_replace(outcome);
            self.version.send_modify(|version| *version += 1);
            let Some(pause) = retry else {
                return;
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                // Of senders that have gone there is no pause to be waited for.
                _ = self.again.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The result of a call, and when to retry. An unavailable or slow runtime says nothing about the pod.
fn outcome(prepared: Result<(), SyncError>) -> (Preparation, Option<Duration>) {
    match prepared {
        Ok(()) => (Preparation::Done, None),
        Err(error) => {
            let retry = error.retry_after.unwrap_or(RETRY).max(RETRY_MIN);
            let passes = error.passing || error.reason == SyncErrorReason::RuntimeUnavailable;
            let outcome = if passes {
                Preparation::UnderWay
            } else {
                let cause = Cause::new(error.reason.to_string(), error.message);
                Preparation::Failed(cause.of_field(error.field))
            };
            (outcome, Some(retry))
        }
    }
}
