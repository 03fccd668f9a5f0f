//! The end of a pod: stopped, perhaps kept for its logs, removed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Command;
use super::release::RELEASE_RETRY;
use super::state::{State, Volumes};
use super::task::{Shutdown, Worker};
use crate::store::settled::Left;
use mirrorlet_core::admit::FailureCause;
use mirrorlet_core::api::{Pod, core};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::ending::{self, Ending, ending};
use mirrorlet_core::gc::PodLife;
use mirrorlet_core::observed::RunningPod;
use mirrorlet_core::status::merge::{MergeInput, StatusAction, deed};
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::PodSyncResult;

/// Minimum and maximum pause between two attempts to stop a pod or remove its remains.
pub(super) const STOP_RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(500), Duration::from_secs(10));

/// How long the API server has to receive a pod's end before the pod's containers are removed: a later
/// agent could not determine how they ended. During an outage of the API server, the wait is not
/// extended.
const REPORT_WAIT_MAX: Duration = Duration::from_secs(10);

/// Why a pod that has ended rests no longer.
pub(super) enum Rested {
    /// Its remains are to be removed.
    Remove,
    /// It is admitted now: a new worker starts it.
    TryAgain,
    /// Nothing remains to be done until the next order.
    UntilOrdered,
}

impl Worker {
    /// Stops whatever runs of the pod, until nothing does.
    pub(super) async fn terminate(&mut self, cancel: &CancellationToken) -> Result<(), Shutdown> {
        if self.state.stopping_since().is_none() {
            self.error = "".into();
        }
        let since = self.since();
        self.state = State::Terminating { since };
        self.take_newest();
        let failed = self.failed.as_ref();
        if failed.is_some_and(|failed| failed.failure.cause == FailureCause::Refused) {
            // No observation is needed for that.
            self.publish(&Arc::clone(&self.observed));
        }
        let mut backoff = STOP_RETRY;
        // Held so that what a look finds stays in the cache until it was read here.
        let _seen = self.context.cache.subscribe(&self.uid);
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        let mut is_unseen = false;
        loop {
            let entry = tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                entry = self.context.cache.get_newer_than(&self.uid, self.newer_than) => entry,
            };
            if entry.error.is_none() && !entry.status.anything_running() {
                self.publish(&entry.status);
                return Ok(());
            }
            let had_failed = std::mem::replace(&mut is_unseen, entry.error.is_some());
            if had_failed && !is_unseen {
                // Whether it can be stopped is seen next.
                self.fails_to_stop("".into());
            }
            self.publish_entry(&entry);
            if let Some(error) = &entry.error {
                self.fails_to_stop(error.to_string().into());
            } else {
                let began = Instant::now();
                let running = entry.status.to_running_pod();
                let Some(result) = self.kill(&running, cancel).await? else {
                    continue;
                };
                occurrences::sync_done(
                    self.telemetry(),
                    result.sync_results.len(),
                    &result,
                    began.elapsed(),
                );
                self.newer_than = Instant::now();
                self.context.looks.look(&self.uid).await;
                let Some(error) = result.error() else {
                    continue;
                };
                self.fails_to_stop(error.into());
            }
            self.publish_entry(&entry);
            pause_for(backoff.pause(), cancel).await?;
            self.newer_than = Instant::now();
            self.context.looks.look(&self.uid).await;
        }
    }

    /// Has its report, and those of the pods that wait for it, say why it can't be stopped.
    fn fails_to_stop(&mut self, error: Arc<str>) {
        self.error = error;
        self.locks.stop_failed(&self.uid, &self.error);
    }

    /// Stops the pod once. None when its grace became less meanwhile: the next attempt goes by
    /// that.
    async fn kill(
        &mut self,
        running: &RunningPod,
        cancel: &CancellationToken,
    ) -> Result<Option<PodSyncResult>, Shutdown> {
        self.take_newest();
        let mut shortened = self.context.graces.subscribe();
        let grace = self.grace();
        let (runtime, pod) = (Arc::clone(&self.context.runtime), self.pod.clone());
        let mut probed = self.context.probes.subscribe(&self.uid);
        let mut killing = runtime.kill_pod(pod.as_ref(), running, grace);
        loop {
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = &mut killing => return Ok(Some(result)),
                // Clients have to learn that the pod takes no more requests.
                _ = probed.changed() => self.publish(&Arc::clone(&self.observed)),
                result = self.commands.changed() => {
                    if result.is_err() { return Err(Shutdown) }
                    self.take_newest();
                }
                // The pod's own context has a sender: this doesn't end.
                _ = shortened.changed() => {}
            }
            let now = self.grace();
            if now.is_some_and(|now| grace.is_none_or(|before| now < before)) {
                return Ok(None);
            }
        }
    }

    /// The grace period of an API pod, which may become shorter while it is being stopped; a manifest's
    /// is in its spec or on its containers, unless its deletion set one. An evicted pod has the one of
    /// its eviction.
    fn grace(&mut self) -> Option<Duration> {
        let failure = self.failed.as_ref().map(|failed| failed.failure.cause);
        if let Some(FailureCause::Evicted { grace, .. }) = failure {
            self.grace = Some(self.grace.map_or(grace, |known| known.min(grace)));
        }
        let asked = self.context.graces.get(&self.uid);
        if let (Some(asked), Some(pod)) = (asked, &self.pod) {
            let asked = ending::grace(Some(asked), pod);
            self.grace = Some(self.grace.map_or(asked, |known| known.min(asked)));
            return self.grace;
        }
        if self.grace.is_some() && !self.is_api {
            return self.grace;
        }
        let pod = self.pod.as_ref().filter(|_| self.is_api)?;
        self.grace = Some(ending::grace(self.grace, pod));
        self.grace
    }

    /// Waits, with nothing running, while the pod's remains must stay: until it is deleted or no longer
    /// wanted, or, if it was refused, is tried again.
    pub(super) async fn rest(&mut self, cancel: &CancellationToken) -> Result<Rested, Shutdown> {
        self.finished();
        self.context.probes.leave(&self.uid);
        // The eviction task measures the disk after the end of an evicted pod: the end is reported once
        // the files are removed, or could not be.
        let mut frees_first = self.frees_files();
        loop {
            self.take_newest();
            // A manifest's pod may have been edited, and refused for another reason.
            self.report_refusal();
            match &*self.commands.borrow_and_update() {
                Command::Stop { .. } => return Ok(Rested::Remove),
                Command::Run(pod) if ending(pod) == Some(Ending::Deleted) => {
                    return Ok(Rested::Remove);
                }
                Command::Fail(pod, _) if pod.metadata.deletion_timestamp.is_some() => {
                    return Ok(Rested::Remove);
                }
                Command::Run(_) if !self.is_api => return Ok(Rested::TryAgain),
                Command::Run(_) | Command::Fail(..) => {}
            }
            // Only what the API server has is remembered by the next agent: without it, and
            // without its containers, the pod would look like one that never ran.
            if self.pod.as_deref().and_then(ending) == Some(Ending::Over) {
                self.locks.lives.set(&self.uid, PodLife::Over);
                self.replace_status(ending::status_remains);
            }
            if !frees_first {
                self.publish_view();
            }
            let released = tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                released = self.release() => released,
            };
            if std::mem::take(&mut frees_first) {
                self.publish_view();
            }
            if released {
                self.settle();
                return Ok(Rested::UntilOrdered);
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = self.commands.changed() => if result.is_err() { return Err(Shutdown) },
                () = tokio::time::sleep(RELEASE_RETRY) => {}
            }
        }
    }

    /// Reports what is left here of an ended API pod: if nothing is left, or only its containers and
    /// the object shows how they ended, its source no longer wants it, and this worker ends. The object
    /// must also show the end of an evicted pod, whose containers were removed. For refused pods it
    /// need not: they had none, and there may be any number of them.
    fn settle(&self) {
        let pod = self.pod.as_deref().filter(|_| self.is_api);
        let Some(pod) = pod.filter(|pod| ending::is_settled(pod)) else {
            return;
        };
        let is_empty = self.context.cache.get(&self.uid).status.is_empty();
        let left = if (!is_empty || self.is_evicted()) && !self.is_reported(pod) {
            Left::Unreported
        } else if is_empty {
            Left::Nothing
        } else {
            Left::Containers
        };
        self.context.settled.settle(&self.uid, left);
    }

    /// Whether the API server has the pod's last status.
    fn is_reported(&self, pod: &Pod) -> bool {
        self.status.as_deref().is_some_and(|status| {
            let input = MergeInput {
                api: pod,
                pod,
                computed: status,
                may_run: false,
                now: self.context.clock.now(),
            };
            deed(&input, true) == StatusAction::Nothing
        })
    }

    /// Releases the resources of a stopped pod: its volumes; for an evicted one, also its containers,
    /// whose files may be the cause of the shortage.
    ///
    /// Upstream: `cleanUpContainersInPod` of `pkg/kubelet/kubelet.go`.
    async fn release(&mut self) -> bool {
        if self.frees_files() {
            // A volume that can't be removed now goes with the pod, or is collected.
            let _ = self.context.runtime.delete_pod(&self.uid).await;
        }
        self.release_volumes().await
    }

    /// Whether the files of the pod are still to be removed because it was evicted.
    fn frees_files(&self) -> bool {
        self.is_evicted() && self.volumes != Volumes::Released
    }

    fn is_evicted(&self) -> bool {
        let failed = self.failed.as_ref();
        failed.is_some_and(|failed| failed.failure.is_eviction())
    }

    /// Waits until the object of a pod that is being deleted shows how it ended, which only its
    /// containers record.
    pub(super) async fn wait_until_reported(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<(), Shutdown> {
        if !self.is_api || self.status.is_none() {
            return Ok(());
        }
        self.end_status();
        self.publish_view();
        let until = Instant::now() + REPORT_WAIT_MAX;
        loop {
            self.take_newest();
            let status = self.pod.as_deref().and_then(|pod| pod.status.as_ref());
            if self.stop_requested() || ending::is_over(status) {
                return Ok(());
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = self.commands.changed() => if result.is_err() { return Err(Shutdown) },
                () = tokio::time::sleep_until(until) => return Ok(()),
            }
        }
    }

    /// Waits, with nothing left of the pod, until its object is gone, or kept by finalizers only: then
    /// its source no longer wants it, and this worker ends.
    pub(super) async fn wait_until_unwanted(
        &mut self,
        cancel: &CancellationToken,
    ) -> Result<(), Shutdown> {
        self.finished();
        while !self.stop_requested() {
            self.take_newest();
            self.publish_view();
            if self.pod.as_deref().is_some_and(ending::is_released) {
                self.context.settled.settle(&self.uid, Left::Nothing);
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                result = self.commands.changed() => if result.is_err() { return Err(Shutdown) },
            }
        }
        Ok(())
    }

    /// When the pod began to be stopped; now, if it didn't.
    fn since(&self) -> Instant {
        self.state.stopping_since().unwrap_or_else(Instant::now)
    }

    /// Nothing of the pod runs, and nothing will.
    fn finished(&mut self) {
        let since = self.since();
        self.state = State::Finished { since };
        self.end_status();
        self.locks.ended(&self.uid, &self.active);
    }

    /// Makes the status of a pod of the API server its last one.
    fn end_status(&mut self) {
        self.replace_status(ending::last_status);
    }

    /// Replaces the status of a pod of the API server, if that makes a difference.
    fn replace_status(&mut self, made: impl FnOnce(core::PodStatus) -> core::PodStatus) {
        if let Some(status) = self.status.as_deref().filter(|_| self.is_api) {
            let made = made(status.clone());
            if made != *status {
                self.status = Some(Arc::new(made));
            }
        }
    }

    /// Removes the pod's remains, unless the same UID is wanted again, and returns whether that is
    /// complete. Something may be left, and may even run: a start that was in progress when the pod was
    /// stopped, by this process or an earlier one, can take effect late. It is checked again after a
    /// pause.
    pub(super) async fn remove(&mut self, cancel: &CancellationToken) -> Result<bool, Shutdown> {
        let since = self.since();
        let before = std::mem::replace(&mut self.state, State::Terminated { since });
        // Waiting for a stop doesn't include the remains, which a disk may keep forever; waiting for
        // the end of an evicted pod does.
        if matches!(before, State::Finished { .. }) || !self.frees_files() {
            self.publish_view();
        }
        let _seen = self.context.cache.subscribe(&self.uid);
        if matches!(
            *self.commands.borrow_and_update(),
            Command::Stop { restart: true }
        ) {
            return Ok(true);
        }
        let removed = tokio::select! {
            () = cancel.cancelled() => return Err(Shutdown),
            removed = self.context.runtime.delete_pod(&self.uid) => removed,
        };
        match removed {
            Ok(()) => {
                // The pod must be read once more before it counts as ended: an earlier agent's create
                // may take effect only now, and the pod would not be read again.
                self.newer_than = Instant::now();
                self.context.looks.look(&self.uid).await;
                let seen = tokio::select! {
                    () = cancel.cancelled() => return Err(Shutdown),
                    seen = self.context.cache.get_newer_than(&self.uid, self.newer_than) => seen,
                };
                if seen.error.is_none() && seen.status.is_empty() {
                    return Ok(true);
                }
            }
            Err(error) => {
                self.error = error.to_string().into();
                self.publish_entry(&self.context.cache.get(&self.uid));
                occurrences::remove_failed(self.telemetry(), &error.to_string());
                self.leave_name(cancel).await?;
            }
        }
        pause_for(self.remove_backoff.pause(), cancel).await?;
        Ok(false)
    }

    /// Releases the full name though the pod's remains still exist, which may never be removed. Nothing
    /// of it runs, and its volumes are released, so they don't affect its successor.
    async fn leave_name(&mut self, cancel: &CancellationToken) -> Result<(), Shutdown> {
        let (name, uid) = (&self.full_name, &self.uid);
        if !self.locks.with(|locks| locks.holds(name, uid)) {
            return Ok(());
        }
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        let seen = tokio::select! {
            () = cancel.cancelled() => return Err(Shutdown),
            seen = self.context.cache.get_newer_than(&self.uid, self.newer_than) => seen,
        };
        if seen.error.is_some() || seen.status.anything_running() {
            return Ok(());
        }
        let released = tokio::select! {
            () = cancel.cancelled() => return Err(Shutdown),
            released = self.release_volumes() => released,
        };
        if released {
            self.locks.leave(&self.full_name, &self.uid);
        }
        Ok(())
    }
}

async fn pause_for(pause: Duration, cancel: &CancellationToken) -> Result<(), Shutdown> {
    tokio::select! {
        () = cancel.cancelled() => Err(Shutdown),
        () = tokio::time::sleep(pause) => Ok(()),
    }
}
