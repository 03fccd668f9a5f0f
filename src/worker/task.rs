//! One worker: the life of one pod from its first start to the removal of its remains.
//!
//! ```text
//!  name, ports, room free            comes to its end          nothing runs
//! WaitingToStart ────────► Syncing ────────────► Terminating ────────────► Terminated ──► gone
//!       │ asked to stop: no runtime call was ever made     │                   ▲    │
//!       └──────────────────────────────────────────────────┼───────────────────┘    │
//!                       stays for its logs, or as refused  ▼                        │
//!                                                       Finished ◄──────────────────┘
//!                                        waits for the API server's object to go
//! ```
//!
//! An API pod that is being deleted is `Terminating` until its object shows how it ended (ten seconds
//! at most): its containers are removed next, and only they record it.
//!
//! Every round reads the pod's status again, newer than the end of the previous round, calls the pure
//! planner, and has the runtime execute the plan ([`super::sync`]). No state is kept that a restart of
//! the agent would lose, except for crash counters, the reasons of the last failures, and that a
//! manifest's pod had ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{Id as TaskId, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::end::{Rested, STOP_RETRY};
use super::hold::Held;
use super::panics::urgent_order;
use super::state::{Failed, State, Volumes};
use super::stopping::{StartWait, room_wait};
use super::{Command, Context, PodView, SharedLocks};
use crate::store::cache::Entry;
use mirrorlet_core::admit::{FailureCause, failed_status};
use mirrorlet_core::api::{FullName, Pod, PodUid, core};
use mirrorlet_core::backoff::{Backoff, ExponentialBackoff};
use mirrorlet_core::ending::{ending, is_api_pod, is_over};
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::plan::{Waiting, sandbox_key};
use mirrorlet_core::spec;
use mirrorlet_core::status::{StatusInput, compute_pod_status};
use mirrorlet_host::telemetry::{PodTelemetry, occurrences};

/// Reason of the note that a preempted pod takes too long to stop.
const EXCEEDED_GRACE_PERIOD: &str = "ExceededGracePeriod";

/// The agent is shutting down: everything is left as it is.
pub(super) struct Shutdown;

/// How a worker's task has ended.
enum Life {
    /// Nothing is left of the pod, or a new worker starts it.
    Over,
    /// The pod has ended, and its containers stay for their logs until the next order.
    Resting,
}

/// One pod's worker.
pub(super) struct Worker {
    pub(super) uid: PodUid,
    pub(super) full_name: FullName,
    pub(super) pod: Option<Arc<Pod>>,
    /// Whether it comes from the API server: then its name is independent of others, and it has more
    /// ways to end.
    pub(super) is_api: bool,
    pub(super) context: Arc<Context>,
    pub(super) locks: Arc<SharedLocks>,
    pub(super) commands: watch::Receiver<Command>,
    /// Why the pod ends as failed, if so.
    pub(super) failed: Option<Failed>,
    /// The grace that it is being stopped with.
    pub(super) grace: Option<Duration>,
    /// Shared with the set of workers: whether anything of the pod may still run.
    pub(super) active: Arc<AtomicBool>,
    pub(super) backoff: Backoff,
    /// Why containers that should run don't, from the last attempts to start them.
    pub(super) failures: BTreeMap<Arc<str>, Waiting>,
    pub(super) held: Option<Held>,
    /// Containers whose back-off was reported, with their restart count.
    pub(super) reported_backoff: BTreeMap<Arc<str>, u32>,
    pub(super) status: Option<Arc<core::PodStatus>>,
    /// The last observed status of the pod.
    pub(super) observed: Arc<PodStatus>,
    pub(super) error: Arc<str>,
    /// Why its liveness or startup probe last stopped a container, if it did.
    pub(super) failed_probe: Option<Arc<str>>,
    /// The preempted pods that it waits for before it starts.
    awaits: Arc<[PodUid]>,
    pub(super) state: State,
    /// Observations must be newer than this to be acted on.
    pub(super) newer_than: Instant,
    /// Pause after the next failure to remove remains.
    pub(super) remove_backoff: ExponentialBackoff,
    pub(super) volumes: Volumes,
}

impl Worker {
    pub(super) fn new(
        uid: PodUid,
        full_name: FullName,
        pod: Option<Arc<Pod>>,
        context: Arc<Context>,
        locks: Arc<SharedLocks>,
        commands: watch::Receiver<Command>,
        active: Arc<AtomicBool>,
    ) -> Self {
        let backoff = Backoff::of_containers(context.backoff_max);
        // A pod that runs unwanted only has to be stopped.
        let is_unwanted = matches!(*commands.borrow(), Command::Stop { .. });
        let since = Instant::now();
        let state = if is_unwanted {
            State::Terminating { since }
        } else {
            State::WaitingToStart
        };
        let observed = PodStatus::empty(uid.clone());
        Self {
            uid,
            full_name,
            is_api: pod.as_deref().is_some_and(is_api_pod),
            pod,
            context,
            locks,
            commands,
            failed: None,
            grace: None,
            active,
            backoff,
            failures: BTreeMap::new(),
            held: None,
            reported_backoff: BTreeMap::new(),
            status: None,
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
            state,
            newer_than: Instant::now(),
            remove_backoff: STOP_RETRY,
            volumes: Volumes::Held,
        }
    }

    /// Runs until the pod is gone, the agent shuts down, or there is nothing to do before the next
    /// order: then it is returned, and must be run again once there is one.
    pub(super) async fn run(mut self: Box<Self>, cancel: &CancellationToken) -> Option<Box<Self>> {
        match self.live(cancel).await {
            Ok(Life::Over) => self.finish(),
            Ok(Life::Resting) => return Some(self),
            Err(Shutdown) => {}
        }
        None
    }

    /// Whether there is an order that it has not seen.
    pub(super) fn has_order(&self) -> bool {
        // An error is the end of the agent.
        self.commands.has_changed().unwrap_or_default()
    }

    async fn live(&mut self, cancel: &CancellationToken) -> Result<Life, Shutdown> {
        let mut rested = matches!(self.state, State::Finished { .. });
        if matches!(self.state, State::WaitingToStart) {
            Box::pin(self.wait_to_start(cancel)).await?;
            if self.stop_requested() && matches!(self.state, State::WaitingToStart) {
                return Ok(Life::Over);
            }
            // Boxed while it runs: there are many ended pods with idle workers.
            Box::pin(self.sync_until_stopped(cancel)).await?;
        }
        loop {
            if !std::mem::take(&mut rested) {
                Box::pin(self.terminate(cancel)).await?;
                self.locks.pod_stopped(&self.uid);
            }
            if self.stays() {
                match Box::pin(self.rest(cancel)).await? {
                    Rested::Remove => {}
                    Rested::TryAgain => {
                        self.state = State::WaitingToStart;
                        return Ok(Life::Over);
                    }
                    Rested::UntilOrdered => return Ok(Life::Resting),
                }
            }
            Box::pin(self.wait_until_reported(cancel)).await?;
            if Box::pin(self.remove(cancel)).await? {
                break;
            }
        }
        if self.is_api {
            Box::pin(self.wait_until_unwanted(cancel)).await?;
        }
        Ok(Life::Over)
    }

    /// Where occurrences of the pod are recorded.
    pub(super) fn telemetry(&self) -> PodTelemetry<'_> {
        self.context.telemetry.pod(&self.full_name, &self.uid)
    }

    fn finish(&self) {
        self.context.board.remove(&self.uid);
        self.context.graces.forget(&self.uid);
        if let Some(since) = self.state.stopping_since() {
            occurrences::pod_gone(self.telemetry(), since.elapsed());
        }
        self.locks.leave(&self.full_name, &self.uid);
        self.locks.ended(&self.uid, &self.active);
    }

    pub(super) fn stop_requested(&self) -> bool {
        matches!(*self.commands.borrow(), Command::Stop { .. })
    }

    /// Whether the pod must end: it is no longer wanted, has to be removed, or has ended.
    pub(super) fn must_end(&self) -> bool {
        match &*self.commands.borrow() {
            Command::Stop { .. } | Command::Fail(..) => true,
            Command::Run(pod) => ending(pod).is_some(),
        }
    }

    /// Whether the pod's remains stay once nothing of it runs: for its logs, and because its object
    /// still exists.
    fn stays(&self) -> bool {
        match &*self.commands.borrow() {
            Command::Stop { .. } => false,
            Command::Run(pod) | Command::Fail(pod, _) => pod.metadata.deletion_timestamp.is_none(),
        }
    }

    /// Applies the newest order.
    pub(super) fn take_newest(&mut self) {
        match &*self.commands.borrow_and_update() {
            Command::Run(pod) => {
                let before = self.pod.replace(Arc::clone(pod));
                let Some(before) = before.filter(|before| !Arc::ptr_eq(before, pod)) else {
                    return;
                };
                let is_ordered = spec::orders(&before) != spec::orders(pod);
                let is_edited = before.spec != pod.spec;
                if is_ordered || is_edited {
                    // The failures were of another pod's start, or a user asks for another attempt.
                    self.held = None;
                    self.failures.clear();
                    self.backoff.reset(&sandbox_key());
                }
                if is_ordered || (is_edited && !self.is_api) {
                    // A user's order or edit starts an ended pod again, too.
                    if matches!(self.state, State::Over) {
                        self.state = State::Syncing;
                    }
                    self.status = self
                        .status
                        .take()
                        .filter(|status| !is_over(Some(&**status)));
                }
            }
            Command::Fail(pod, failure) => {
                self.pod = Some(Arc::clone(pod));
                let known = self.failed.as_ref().map(|failed| failed.at);
                self.failed = Some(Failed {
                    failure: failure.clone(),
                    at: known.unwrap_or_else(|| self.context.clock.now()),
                });
            }
            Command::Stop { .. } => {}
        }
    }

    /// Waits for the full name and the host ports to be free, and for the pods that were preempted to stop,
    /// for these not longer than they may take. A pod that is stopped while it waits never starts.
    async fn wait_to_start(&mut self, cancel: &CancellationToken) -> Result<(), Shutdown> {
        let mut changed = self.locks.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let wait = self.start_wait();
            let awaits = wait.as_ref().map(|wait| Arc::clone(&wait.awaits));
            self.awaits = awaits.unwrap_or_default();
            if self.may_start(wait.as_ref()) {
                self.error = "".into();
                self.state = State::Syncing;
                return Ok(());
            }
            if self.stop_requested() {
                return Ok(());
            }
            let until = wait.as_ref().and_then(|wait| wait.until);
            let stuck = wait.as_ref().and_then(|wait| wait.stuck);
            let message = wait.map(|wait| wait.message).unwrap_or_default();
            if let Some(reason) = stuck.filter(|_| self.error != message) {
                occurrences::note(self.telemetry(), reason, &message);
            }
            self.error = message;
            if self.is_api {
                // Parts of it that were not observed may exist here.
                self.publish_view();
            } else {
                self.publish(&Arc::new(PodStatus::empty(self.uid.clone())));
            }
            tokio::select! {
                () = cancel.cancelled() => return Err(Shutdown),
                _ = changed.changed() => {}
                result = self.commands.changed() => if result.is_err() { return Err(Shutdown) },
                () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                    self.end_room_waits();
                }
            }
        }
    }

    /// Has no pod wait any longer for preempted pods that take too long to stop.
    ///
    /// Upstream: `killPodNow` of `pkg/kubelet/pod_workers.go`.
    fn end_room_waits(&self) {
        for pod in self.locks.end_room_waits() {
            let message = format!(
                "the pod has not stopped {} seconds after it was preempted; pods that need its room start \
                 beside it",
                room_wait(&pod).as_secs()
            );
            let telemetry = &self.context.telemetry;
            telemetry.about(&pod, |of| {
                occurrences::note(of, EXCEEDED_GRACE_PERIOD, &message);
            });
        }
    }

    fn may_start(&self, wait: Option<&StartWait>) -> bool {
        if wait.is_some() {
            return false;
        }
        if self.is_api || matches!(*self.commands.borrow(), Command::Fail(..)) {
            return true;
        }
        let (name, uid) = (&self.full_name, &self.uid);
        self.locks.with(|locks| locks.try_start(name, uid))
    }

    /// The reason why the pod has to wait. One that starts nothing doesn't wait; nor does a running one
    /// wait for its host ports.
    fn start_wait(&self) -> Option<StartWait> {
        let (name, uid) = (&self.full_name, &self.uid);
        let binds = !self.is_api && !self.locks.with(|locks| locks.holds(name, uid));
        match &*self.commands.borrow() {
            Command::Run(pod) if ending(pod).is_none() => self.locks.start_wait(pod, binds),
            Command::Run(_) | Command::Fail(..) | Command::Stop { .. } => None,
        }
    }

    /// Publishes the pod's state, and the status computed from the observed one, on the board.
    pub(super) fn publish(&mut self, observed: &Arc<PodStatus>) {
        let hides = self.report_refusal() || self.was_gone(observed);
        if let Some(pod) = self.pod.as_ref().filter(|_| !hides) {
            let mut status = compute_pod_status(&StatusInput {
                pod,
                observed,
                previous: self.status.as_deref(),
                waiting: &self.failures,
                probes: &self.context.probes.get(&self.uid),
                host_ips: &self.context.node_ips.get(),
                terminating: self.is_ending(),
                is_static: !self.is_api,
                now: self.context.clock.now(),
            });
            if let Some(Failed { failure, at }) = &self.failed {
                status = failed_status(pod, Some(&status), failure, *at);
            }
            if self.status.as_deref() != Some(&status) {
                self.status = Some(Arc::new(status));
            }
        }
        self.observed = Arc::clone(observed);
        self.publish_view();
    }

    /// Sets the reason in the status of a refused pod. The pod never ran here: there is nothing else to
    /// report. Returns whether the pod is refused.
    pub(super) fn report_refusal(&mut self) -> bool {
        let (Some(pod), Some(Failed { failure, at })) = (&self.pod, &self.failed) else {
            return false;
        };
        if failure.cause != FailureCause::Refused {
            return false;
        }
        let status = failed_status(pod, None, failure, *at);
        let known = self.status.as_deref();
        let known = known.map(|known| (&known.reason, &known.message));
        if known != Some((&status.reason, &status.message)) {
            self.status = Some(Arc::new(status));
        }
        true
    }

    /// As [`publish`](Self::publish), from the cache's entry. If no read has succeeded, nothing is
    /// known about the pod, and its last report stays.
    pub(super) fn publish_entry(&mut self, entry: &Entry) {
        if entry.error.is_some() && entry.status.is_empty() {
            self.publish_view();
        } else {
            self.publish(&entry.status);
        }
    }

    /// Whether the pod is being stopped, or was.
    fn is_ending(&self) -> bool {
        matches!(
            self.state,
            State::Terminating { .. } | State::Terminated { .. }
        )
    }

    /// Whether a static pod that must be stopped was gone before this agent saw anything of it: an
    /// earlier agent stopped it. The report of that agent stays.
    fn was_gone(&self, observed: &PodStatus) -> bool {
        !self.is_api && self.status.is_none() && observed.is_empty() && self.is_ending()
    }

    /// Publishes the pod's state on the board, from known data.
    pub(super) fn publish_view(&self) {
        self.context.board.publish(PodView {
            uid: self.uid.clone(),
            full_name: self.full_name.clone(),
            pod: self.pod.clone(),
            phase: self.state.phase(),
            status: self.status.clone(),
            observed: Arc::clone(&self.observed),
            error: Arc::clone(&self.error),
            failed_probe: self.failed_probe.clone(),
            awaits: Arc::clone(&self.awaits),
        });
    }
}

/// Runs a worker in a task of its own, after that pause, which an order to end the pod ends.
pub(super) fn spawn(
    tasks: &mut JoinSet<Option<Box<Worker>>>,
    worker: Box<Worker>,
    pause: Duration,
    cancel: &CancellationToken,
) -> TaskId {
    let (cancel, urgent) = (cancel.clone(), urgent_order(worker.commands.clone()));
    let task = tasks.spawn(async move {
        tokio::select! {
            () = cancel.cancelled() => return None,
            () = urgent, if !pause.is_zero() => {}
            () = tokio::time::sleep(pause), if !pause.is_zero() => {}
            () = std::future::ready(()), if pause.is_zero() => {}
        }
        worker.run(&cancel).await
    });
    task.id()
}
