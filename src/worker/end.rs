//! The end of a pod: stopped, perhaps kept for its logs, removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Command;
use super::release::RELEASE_RETRY;
use super::state::State;
use super::task::{Next, Worker};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::ending::{self, Ending, ending};
use mirrorlet_core::gc::PodLife;
use mirrorlet_core::observed::RunningPod;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::PodSyncResult;

/// First and longest pause between two attempts to stop or remove what is left.
pub(super) const STOP_RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// What came of removing what is left of a pod.
pub(super) enum Removed {
    /// Nothing is left, or what is left shall stay.
    Done,
    /// Something is left, and may even run: a start that was under way when the pod was stopped,
    /// of this process or of one before it, can take effect late.
    StillThere,
    /// The agent is shutting down: leave everything as it is.
    Shutdown,
}

/// What came of an attempt to stop a pod.
enum Killed {
    /// It ran to its end.
    Tried(PodSyncResult),
    /// The pod has less grace now: the next attempt goes by that.
    LessGrace,
    /// The agent is shutting down.
    Shutdown,
}

/// Why a pod that has ended rests no longer.
pub(super) enum Rested {
    /// What is left of it is to be removed.
    Remove,
    /// It is admitted now: a new worker starts it.
    TryAgain,
    /// The agent is shutting down.
    Shutdown,
}

impl Worker {
    /// Stops whatever runs of the pod, until nothing does.
    pub(super) async fn terminate(&mut self, cancel: &CancellationToken) -> Next {
        if self.state.stopping_since().is_none() {
            self.error = "".into();
        }
        let since = self.since();
        self.state = State::Terminating { since };
        self.take_newest();
        let failed = self.failed.as_ref();
        if failed.is_some_and(|failed| !failed.failure.preempted) {
            // Nothing has to be seen for that.
            self.publish(&Arc::clone(&self.observed));
        }
        let mut backoff = STOP_RETRY;
        // Held so that what a look finds stays in the cache until it was read here.
        let _seen = self.context.cache.subscribe(&self.uid);
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        loop {
            let entry = tokio::select! {
                () = cancel.cancelled() => return Next::Shutdown,
                entry = self.context.cache.get_newer_than(&self.uid, self.newer_than) => entry,
            };
            if entry.error.is_none() && !entry.status.anything_running() {
                self.publish(&entry.status);
                return Next::Proceed;
            }
            self.publish(&entry.status);
            if let Some(error) = &entry.error {
                self.error = error.to_string().into();
            } else {
                let began = Instant::now();
                let result = match self.kill(&entry.status.to_running_pod(), cancel).await {
                    Killed::Tried(result) => result,
                    Killed::LessGrace => continue,
                    Killed::Shutdown => return Next::Shutdown,
                };
                occurrences::sync_done(
                    &self.context.telemetry,
                    &self.full_name,
                    &self.uid,
                    result.sync_results.len(),
                    &result,
                    began.elapsed(),
                );
                self.newer_than = Instant::now();
                self.context.looks.look(&self.uid).await;
                let Some(error) = result.error() else {
                    continue;
                };
                self.error = error.into();
            }
            self.publish(&entry.status);
            if matches!(pause_for(backoff.pause(), cancel).await, Next::Shutdown) {
                return Next::Shutdown;
            }
            self.newer_than = Instant::now();
            self.context.looks.look(&self.uid).await;
        }
    }

    /// Stops the pod once. A grace that becomes less meanwhile cuts the attempt short.
    async fn kill(&mut self, running: &RunningPod, cancel: &CancellationToken) -> Killed {
        self.take_newest();
        let grace = self.grace();
        let (runtime, pod) = (Arc::clone(&self.context.runtime), self.pod.clone());
        let mut probed = self.context.probes.subscribe(&self.uid);
        let mut killing = runtime.kill_pod(pod.as_ref(), running, grace);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Killed::Shutdown,
                result = &mut killing => return Killed::Tried(result),
                // Whoever sends requests wants to know that it takes none any more.
                _ = probed.changed() => self.publish(&Arc::clone(&self.observed)),
                told = self.commands.changed() => {
                    if told.is_err() { return Killed::Shutdown }
                    self.take_newest();
                    if self.grace() < grace {
                        return Killed::LessGrace;
                    }
                }
            }
        }
    }

    /// The grace of a pod of the API server, which may become less while it is being stopped; a
    /// manifest's is in its spec or on its containers.
    fn grace(&mut self) -> Option<Duration> {
        let pod = self.pod.as_ref().filter(|_| self.is_api)?;
        self.grace = Some(ending::grace(self.grace, pod));
        self.grace
    }

    /// Stays, with nothing running, as long as what is left of the pod shall: until it is deleted
    /// or no longer wanted, or, having been refused, is to be tried again.
    pub(super) async fn rest(&mut self, cancel: &CancellationToken) -> Rested {
        self.finished();
        loop {
            self.take_newest();
            match &*self.commands.borrow_and_update() {
                Command::Stop { .. } => return Rested::Remove,
                Command::Run(pod) if ending(pod) == Some(Ending::Deleted) => {
                    return Rested::Remove;
                }
                Command::Fail(pod, _) if pod.metadata.deletion_timestamp.is_some() => {
                    return Rested::Remove;
                }
                Command::Run(_) if !self.is_api => return Rested::TryAgain,
                Command::Run(_) | Command::Fail(..) => {}
            }
            // Only what the API server has is remembered by the next agent: without it, and
            // without its containers, the pod would look like one that never ran.
            if self.pod.as_deref().and_then(ending) == Some(Ending::Over) {
                self.locks.lives.set(&self.uid, PodLife::Over);
            }
            self.tell();
            let released = tokio::select! {
                () = cancel.cancelled() => return Rested::Shutdown,
                released = self.release_volumes() => released,
            };
            tokio::select! {
                () = cancel.cancelled() => return Rested::Shutdown,
                told = self.commands.changed() => if told.is_err() { return Rested::Shutdown },
                () = tokio::time::sleep(RELEASE_RETRY), if !released => {}
            }
        }
    }

    /// Waits, with nothing left of the pod, for its object to go.
    pub(super) async fn wait_until_unwanted(&mut self, cancel: &CancellationToken) -> Next {
        self.finished();
        while !self.told_to_stop() {
            self.take_newest();
            self.tell();
            tokio::select! {
                () = cancel.cancelled() => return Next::Shutdown,
                told = self.commands.changed() => if told.is_err() { return Next::Shutdown },
            }
        }
        Next::Proceed
    }

    /// When the pod began to be stopped; now, if it didn't.
    fn since(&self) -> Instant {
        self.state.stopping_since().unwrap_or_else(Instant::now)
    }

    /// Nothing of the pod runs, and nothing will.
    fn finished(&mut self) {
        let since = self.since();
        self.state = State::Finished { since };
        if let Some(status) = self.status.as_deref().filter(|_| self.is_api) {
            self.status = Some(Arc::new(ending::last_status(status.clone())));
        }
        self.locks.ended(&self.active);
    }

    /// Removes what is left of the pod, unless the same UID is wanted again. What can't be removed
    /// is looked at anew after a pause.
    pub(super) async fn remove(&mut self, cancel: &CancellationToken) -> Removed {
        let since = self.since();
        let before = std::mem::replace(&mut self.state, State::Terminated { since });
        if matches!(before, State::Finished { .. }) {
            // Not until the remains are removed, too.
            self.tell();
        }
        let _seen = self.context.cache.subscribe(&self.uid);
        if matches!(
            *self.commands.borrow_and_update(),
            Command::Stop { restart: true }
        ) {
            return Removed::Done;
        }
        let removed = tokio::select! {
            () = cancel.cancelled() => return Removed::Shutdown,
            removed = self.context.runtime.delete_pod(&self.uid) => removed,
        };
        match removed {
            Ok(()) => {
                // Not over before it is seen to be: a create of an agent before this one may take
                // effect only now, and nobody would look at the pod again.
                self.newer_than = Instant::now();
                self.context.looks.look(&self.uid).await;
                let seen = tokio::select! {
                    () = cancel.cancelled() => return Removed::Shutdown,
                    seen = self.context.cache.get_newer_than(&self.uid, self.newer_than) => seen,
                };
                if seen.error.is_none() && seen.status.is_empty() {
                    return Removed::Done;
                }
            }
            Err(error) => {
                self.error = error.to_string().into();
                self.publish(&self.context.cache.get(&self.uid).status);
                occurrences::remove_failed(
                    &self.context.telemetry,
                    &self.full_name,
                    &self.uid,
                    &error.to_string(),
                );
            }
        }
        match pause_for(self.remove_backoff.pause(), cancel).await {
            Next::Shutdown => Removed::Shutdown,
            Next::Proceed => Removed::StillThere,
        }
    }
}

async fn pause_for(pause: Duration, cancel: &CancellationToken) -> Next {
    tokio::select! {
        () = cancel.cancelled() => Next::Shutdown,
        () = tokio::time::sleep(pause) => Next::Proceed,
    }
}
