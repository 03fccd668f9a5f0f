//! One worker: the life of one pod from its first start to its last trace.
//!
//! ```text
//!             name free                told to stop              nothing runs
//! WaitingToStart ────────► Syncing ────────────► Terminating ────────────► Terminated ──► gone
//!       │ told to stop: no runtime call was ever made                          ▲
//!       └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Every round reads the pod's status anew, newer than the round before ended, asks the pure
//! planner, and has the runtime walk the plan. Nothing is remembered that a restart of the agent
//! would lose, but for crash counters and the reasons of the last failures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Command, Context, Phase, PodView, SharedLocks};
use crate::api::{FullName, Pod, PodUid, core};
use crate::pod::backoff::Backoff;
use crate::pod::observed::{ContainerState, PodStatus};
use crate::pod::plan::{Plan, PlanInput, Step, Waiting, compute_pod_actions};
use crate::pod::spec;
use crate::pod::status::{StatusInput, compute_pod_status};
use crate::runtime::{PodSyncResult, SyncAction, SyncErrorReason};
use crate::telemetry::occurrences;

/// Pause after a failed round, stretched by up to half at random (upstream `backOffPeriod`).
const RETRY: Duration = Duration::from_secs(10);
/// First and longest pause between two attempts to stop or remove what is left.
const STOP_RETRY_MIN: Duration = Duration::from_millis(500);
const STOP_RETRY_MAX: Duration = Duration::from_secs(10);
/// First delay of a crash loop (upstream `MaxContainerBackOff` is its bound).
const BACKOFF_INITIAL: Duration = Duration::from_secs(10);

/// Why a phase of a worker's life is over.
enum Next {
    /// Go on to the next phase.
    Proceed,
    /// The agent is shutting down: leave everything as it is.
    Shutdown,
}

/// A plan that failed.
struct Held {
    plan: Plan,
    /// Until when the same is not tried again.
    until: Instant,
    /// When it failed, if only for want of the runtime: its return ends the hold.
    away_since: Option<Instant>,
}

/// What came of removing what is left of a pod.
enum Removed {
    /// Nothing is left, or what is left shall stay.
    Done,
    /// Something is left, and may even run: a start that was under way when the pod was stopped,
    /// of this process or of one before it, can take effect late.
    StillThere,
    /// The agent is shutting down: leave everything as it is.
    Shutdown,
}

/// One pod's worker.
pub(super) struct Worker {
    uid: PodUid,
    full_name: FullName,
    pod: Option<Arc<Pod>>,
    context: Arc<Context>,
    locks: Arc<SharedLocks>,
    commands: watch::Receiver<Command>,
    backoff: Backoff,
    /// Why containers that should run don't, from the last attempts to start them.
    failures: BTreeMap<Arc<str>, Waiting>,
    held: Option<Held>,
    /// Containers whose back-off was told, with their restart count.
    told_backoff: BTreeMap<Arc<str>, u32>,
    status: Option<Arc<core::PodStatus>>,
    error: Arc<str>,
    phase: Phase,
    /// When the pod began to be stopped.
    stopping_since: Option<Instant>,
    /// What is acted on must have been looked at after this.
    newer_than: Instant,
    /// Pause after the next failure to remove what is left.
    remove_pause: Duration,
}

impl Worker {
    pub(super) fn new(
        uid: PodUid,
        full_name: FullName,
        pod: Option<Arc<Pod>>,
        context: Arc<Context>,
        locks: Arc<SharedLocks>,
        commands: watch::Receiver<Command>,
    ) -> Self {
        let backoff = Backoff::new(
            BACKOFF_INITIAL.min(context.backoff_max),
            context.backoff_max,
        );
        Self {
            uid,
            full_name,
            pod,
            context,
            locks,
            commands,
            backoff,
            failures: BTreeMap::new(),
            held: None,
            told_backoff: BTreeMap::new(),
            status: None,
            error: "".into(),
            phase: Phase::WaitingToStart,
            stopping_since: None,
            newer_than: Instant::now(),
            remove_pause: STOP_RETRY_MIN,
        }
    }

    /// Lives until the pod is gone, or the agent shuts down.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        if self.pod.is_some() {
            if matches!(self.wait_for_name(&cancel).await, Next::Shutdown) {
                return;
            }
            if self.told_to_stop() && self.phase == Phase::WaitingToStart {
                self.finish();
                return;
            }
            if matches!(self.sync_until_stopped(&cancel).await, Next::Shutdown) {
                return;
            }
        }
        loop {
            if matches!(self.terminate(&cancel).await, Next::Shutdown) {
                return;
            }
            match self.remove(&cancel).await {
                Removed::Shutdown => return,
                Removed::Done => break,
                Removed::StillThere => {}
            }
        }
        self.finish();
    }

    fn finish(&self) {
        self.context.board.remove(&self.uid);
        if let Some(since) = self.stopping_since {
            occurrences::pod_gone(
                &self.context.telemetry,
                &self.full_name,
                &self.uid,
                since.elapsed(),
            );
        }
        self.locks.leave(&self.full_name, &self.uid);
    }

    fn told_to_stop(&self) -> bool {
        matches!(*self.commands.borrow(), Command::Stop { .. })
    }

    /// Waits for the full name to be free. A pod told to stop meanwhile never starts.
    async fn wait_for_name(&mut self, cancel: &CancellationToken) -> Next {
        let mut changed = self.locks.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if self
                .locks
                .with(|locks| locks.try_start(&self.full_name, &self.uid))
            {
                self.phase = Phase::Syncing;
                return Next::Proceed;
            }
            if self.told_to_stop() {
                return Next::Proceed;
            }
            self.publish(&PodStatus::empty(self.uid.clone()));
            tokio::select! {
                () = cancel.cancelled() => return Next::Shutdown,
                _ = changed.changed() => {}
                told = self.commands.changed() => if told.is_err() { return Next::Shutdown },
            }
        }
    }

    /// Converges the pod, round after round, until told to stop.
    async fn sync_until_stopped(&mut self, cancel: &CancellationToken) -> Next {
        let mut seen = self.context.cache.subscribe(&self.uid);
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        loop {
            let pod = match &*self.commands.borrow_and_update() {
                Command::Run(pod) => Arc::clone(pod),
                Command::Stop { .. } => return Next::Proceed,
            };
            self.pod = Some(Arc::clone(&pod));
            seen.mark_unchanged();
            let cache = self.context.cache.clone();
            let entry = tokio::select! {
                () = cancel.cancelled() => return Next::Shutdown,
                told = self.commands.changed() => {
                    if told.is_err() { return Next::Shutdown }
                    continue;
                }
                entry = cache.get_newer_than(&self.uid, self.newer_than) => entry,
            };
            let look_again = if let Some(error) = entry.error {
                // What can't be seen is left alone. The observer looks again by itself.
                self.error = error.to_string().into();
                self.publish(&entry.status);
                None
            } else {
                self.round(&pod, &entry.status, cancel).await
            };
            let timer = tokio::time::sleep(look_again.unwrap_or(Duration::MAX));
            let away_since = self.held.as_ref().and_then(|held| held.away_since);
            let back = cache.wait_until_known(away_since.unwrap_or(self.newer_than));
            tokio::select! {
                () = cancel.cancelled() => return Next::Shutdown,
                told = self.commands.changed() => if told.is_err() { return Next::Shutdown },
                changed = seen.changed() => if changed.is_err() {
                    seen = self.context.cache.subscribe(&self.uid);
                },
                () = timer, if look_again.is_some() => {}
                () = back, if away_since.is_some() => {}
            }
        }
    }

    /// One round: plan, walk, remember. Returns when to look again though nothing happens.
    async fn round(
        &mut self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        cancel: &CancellationToken,
    ) -> Option<Duration> {
        let now = self.context.clock.now();
        let planned = self.with_start_time(pod);
        let plan = compute_pod_actions(&PlanInput {
            pod: &planned,
            status,
            backoff: &self.backoff,
            now,
        });
        self.forget_mended(status);
        self.note_waiting(status, &plan);
        if let Some(left) = self.held_for(&plan) {
            self.publish(status);
            return Some(
                plan.look_again
                    .map_or(left, |look_again| look_again.min(left)),
            );
        }
        self.held = None;
        if plan.is_empty() {
            self.error = "".into();
            self.publish(status);
            return plan.look_again;
        }
        self.publish(status);
        let began = Instant::now();
        let result = self.walk(pod, status, &plan, cancel).await;
        occurrences::sync_done(
            &self.context.telemetry,
            &self.full_name,
            &self.uid,
            plan.steps.len(),
            &result,
            began.elapsed(),
        );
        self.newer_than = Instant::now();
        self.context.looks.look(&self.uid).await;
        self.remember(pod, status, &plan, &result);
        self.publish(status);
        let retry = retry_after(&result, &self.uid);
        if let Some(retry) = retry {
            let away = result
                .errors()
                .all(|e| e.reason == SyncErrorReason::RuntimeUnavailable);
            self.held = Some(Held {
                plan: plan.clone(),
                until: Instant::now() + retry,
                away_since: away.then(Instant::now),
            });
        }
        match (retry, plan.look_again) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The pod with the start time that its status has, which its deadline counts from; the
    /// oldest sandbox that is left may be younger.
    fn with_start_time(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let start_time = self.status.as_ref().and_then(|s| s.start_time.clone());
        if spec::spec(pod).active_deadline_seconds.is_none() || start_time.is_none() {
            return Arc::clone(pod);
        }
        let mut started = Pod::clone(pod);
        started
            .status
            .get_or_insert_with(core::PodStatus::default)
            .start_time = start_time;
        Arc::new(started)
    }

    /// How long that plan, having failed, is not tried again.
    fn held_for(&self, plan: &Plan) -> Option<Duration> {
        let held = self
            .held
            .as_ref()
            .filter(|held| same_work(&held.plan, plan))?;
        let back = held
            .away_since
            .zip(self.context.cache.known_until())
            .is_some_and(|(away, known)| known >= away);
        let left = held.until.saturating_duration_since(Instant::now());
        (!back && !left.is_zero()).then_some(left)
    }

    /// Keeps, and tells once each, which containers are in back-off.
    fn note_waiting(&mut self, status: &PodStatus, plan: &Plan) {
        for (name, waiting) in &plan.waiting {
            self.failures.insert(Arc::clone(name), waiting.clone());
            let newest = status.find_container_status_by_name(name);
            let attempt = newest.map_or(0, |c| c.restart_count);
            if self.told_backoff.insert(Arc::clone(name), attempt) != Some(attempt) {
                occurrences::backoff(
                    &self.context.telemetry,
                    &self.full_name,
                    &self.uid,
                    name,
                    attempt,
                    plan.look_again.unwrap_or_default(),
                );
            }
        }
    }

    /// Has the runtime walk the plan. Being told to stop cuts it short between two steps.
    async fn walk(
        &mut self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        let token = cancel.child_token();
        let runtime = Arc::clone(&self.context.runtime);
        let mut walking = runtime.sync_pod(pod, status, plan, &token);
        loop {
            tokio::select! {
                result = &mut walking => return result,
                told = self.commands.changed() => {
                    if told.is_err() || self.told_to_stop() {
                        token.cancel();
                        return walking.await;
                    }
                }
            }
        }
    }

    /// Keeps what the planner and the status need to know of a round: back-off steps of the
    /// containers restarted, and the reasons of those that could not be started.
    fn remember(&mut self, pod: &Pod, status: &PodStatus, plan: &Plan, result: &PodSyncResult) {
        plan.record_backoff(pod, status, &mut self.backoff, self.context.clock.now());
        self.error = result.error().unwrap_or_default().into();
        for r in &result.sync_results {
            let starts = matches!(
                r.action,
                SyncAction::StartContainer | SyncAction::InitContainer
            );
            if let (true, Some(error)) = (starts, &r.error) {
                let waiting = Waiting {
                    reason: error.reason.to_string().into(),
                    message: error.message.as_str().into(),
                };
                self.failures.insert(r.target.as_str().into(), waiting);
            } else if starts {
                self.failures.remove(r.target.as_str());
            }
        }
    }

    /// Drops the failures of containers that run by now.
    fn forget_mended(&mut self, status: &PodStatus) {
        self.failures.retain(|name, _| {
            status
                .find_container_status_by_name(name)
                .is_none_or(|c| c.state != ContainerState::Running)
        });
    }

    /// Stops whatever runs of the pod, until nothing does.
    async fn terminate(&mut self, cancel: &CancellationToken) -> Next {
        self.phase = Phase::Terminating;
        if self.stopping_since.is_none() {
            self.stopping_since = Some(Instant::now());
            self.error = "".into();
        }
        let mut pause = STOP_RETRY_MIN;
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
                let running = entry.status.to_running_pod();
                let result = tokio::select! {
                    () = cancel.cancelled() => return Next::Shutdown,
                    result = self.context.runtime.kill_pod(self.pod.as_ref(), &running, None) => result,
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
            if matches!(pause_for(&mut pause, cancel).await, Next::Shutdown) {
                return Next::Shutdown;
            }
            self.newer_than = Instant::now();
            self.context.looks.look(&self.uid).await;
        }
    }

    /// Removes what is left of the pod, unless the same UID is wanted again. What can't be removed
    /// is looked at anew after a pause.
    async fn remove(&mut self, cancel: &CancellationToken) -> Removed {
        self.phase = Phase::Terminated;
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
        let Err(error) = removed else {
            // Not over before it is seen to be: what the cache holds of a finished pod would look
            // like one that runs unwanted.
            self.newer_than = Instant::now();
            self.context.looks.look(&self.uid).await;
            return tokio::select! {
                () = cancel.cancelled() => Removed::Shutdown,
                _ = self.context.cache.get_newer_than(&self.uid, self.newer_than) => Removed::Done,
            };
        };
        self.error = error.to_string().into();
        self.publish(&self.context.cache.get(&self.uid).status);
        occurrences::remove_failed(
            &self.context.telemetry,
            &self.full_name,
            &self.uid,
            &error.to_string(),
        );
        let pause = self.remove_pause;
        self.remove_pause = (pause * 2).min(STOP_RETRY_MAX);
        tokio::select! {
            () = cancel.cancelled() => Removed::Shutdown,
            () = tokio::time::sleep(pause) => Removed::StillThere,
        }
    }

    /// Tells the board where the pod is.
    fn publish(&mut self, observed: &PodStatus) {
        if let Some(pod) = &self.pod {
            let status = compute_pod_status(&StatusInput {
                pod,
                observed,
                previous: self.status.as_deref(),
                waiting: &self.failures,
                host_ips: &self.context.node_ips,
                terminating: matches!(self.phase, Phase::Terminating | Phase::Terminated),
                is_static: true,
                now: self.context.clock.now(),
            });
            if self.status.as_deref() != Some(&status) {
                self.status = Some(Arc::new(status));
            }
        }
        self.context.board.publish(PodView {
            uid: self.uid.clone(),
            full_name: self.full_name.clone(),
            pod: self.pod.clone(),
            phase: self.phase,
            status: self.status.clone(),
            observed: Arc::new(observed.clone()),
            error: Arc::clone(&self.error),
        });
    }
}

/// Whether two plans do the same but for the sandbox's number: one that can't be started must
/// not be tried at once under the next number, for ever.
fn same_work(a: &Plan, b: &Plan) -> bool {
    let same = |a: &Step, b: &Step| {
        if let (Step::CreateSandbox { reason: a, .. }, Step::CreateSandbox { reason: b, .. }) =
            (a, b)
        {
            a == b
        } else {
            a == b
        }
    };
    a.steps.len() == b.steps.len() && a.steps.iter().zip(&b.steps).all(|(a, b)| same(a, b))
}

/// Sleeps for `pause`, which doubles for the next time.
async fn pause_for(pause: &mut Duration, cancel: &CancellationToken) -> Next {
    let now = std::mem::replace(pause, (*pause * 2).min(STOP_RETRY_MAX));
    tokio::select! {
        () = cancel.cancelled() => Next::Shutdown,
        () = tokio::time::sleep(now) => Next::Proceed,
    }
}

/// When to try again after a round: never by itself after one without failure, or while the
/// runtime is away, whose return wakes everybody.
fn retry_after(result: &PodSyncResult, uid: &PodUid) -> Option<Duration> {
    let mut advised: Option<Duration> = None;
    let mut failed = false;
    for error in result.errors() {
        failed = true;
        if let Some(retry) = error.retry_after {
            advised = Some(advised.map_or(retry, |known| known.min(retry)));
        } else if error.reason != SyncErrorReason::RuntimeUnavailable {
            let usual = RETRY + jitter(uid, RETRY / 2);
            advised = Some(advised.map_or(usual, |known| known.min(usual)));
        }
    }
    failed.then(|| advised.unwrap_or(RETRY))
}

/// A share of `spread` that differs from pod to pod, so that pods that fail together don't come
/// back together.
fn jitter(uid: &PodUid, spread: Duration) -> Duration {
    let sum: u32 = uid.as_str().bytes().fold(17, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    });
    spread * (sum % 100) / 100
}
