//! `FakeRuntime`: a scriptable, recording runtime in memory.
//!
//! It records what it is asked, answers from canned values where it was given some, and otherwise
//! is a little live runtime: plans change its pods, tests let containers exit and sandboxes die,
//! watchers are notified. Its clock is the wall clock at its making plus tokio's elapsed time, so that
//! it follows a paused one.
//!
//! Upstream: `pkg/kubelet/container/testing/fake_runtime.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use mirrorlet_core::api::{ContainerId, PodUid, Timestamp};
use mirrorlet_core::observed::{PodStatus, Pods};
use mirrorlet_runtime::{
    CommandOutput, NETWORK_READY, PodEvent, PodEventKind, RUNTIME_READY, Result, RuntimeCondition,
    RuntimeError, RuntimeStatus, SyncError, Version,
};

mod calls;
mod model;
mod script;
#[cfg(test)]
mod tests;

use model::Model;
pub use script::Hold;
use script::HoldRule;

/// A scriptable, recording runtime in memory. Clones share everything.
#[derive(Debug, Clone)]
pub struct FakeRuntime {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Counts changes, for those who wait for a value.
    changes: watch::Sender<u64>,
    /// Changes when something that pods refer to does.
    references: watch::Sender<u64>,
    epoch: Timestamp,
    start: Instant,
}

#[derive(Debug, Default)]
struct State {
    called_functions: Vec<String>,
    started_pods: Vec<PodUid>,
    killed_pods: Vec<PodUid>,
    started_containers: Vec<String>,
    killed_containers: Vec<String>,

    pod_list: Option<Pods>,
    all_pod_list: Option<Pods>,
    pod_statuses: BTreeMap<PodUid, PodStatus>,
    version: Option<Version>,
    status: Option<RuntimeStatus>,
    logs: BTreeMap<ContainerId, String>,
    orphans: BTreeSet<PodUid>,
    commands: Vec<(ContainerId, Vec<String>)>,
    command_results: BTreeMap<Vec<String>, Result<CommandOutput>>,

    err: Option<RuntimeError>,
    refusals: Vec<Refusal>,
    start_faults: Vec<StartFault>,
    preparation_faults: BTreeMap<PodUid, SyncError>,
    holds: Vec<HoldRule>,
    stop_takes: Duration,
    latency: Duration,
    events_to_lose: usize,
    refresh_after: Option<Duration>,

    model: Model,
    watchers: Vec<mpsc::UnboundedSender<PodEvent>>,
}

/// The next calls that are refused.
#[derive(Debug)]
struct Refusal {
    call: String,
    left: usize,
    error: RuntimeError,
}

/// The next starts of a container that fail.
#[derive(Debug)]
struct StartFault {
    container: String,
    left: usize,
    error: SyncError,
}

impl Default for FakeRuntime {
    fn default() -> Self {
        Self::new()
    }
}

/// Making one, and scripting it.
impl FakeRuntime {
    /// A healthy runtime without pods.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changes: watch::Sender::new(0),
                references: watch::Sender::new(0),
                epoch: Timestamp::now(),
                start: Instant::now(),
            }),
        }
    }

    /// The time by its clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared
            .epoch
            .checked_add(self.shared.start.elapsed())
            .unwrap_or(self.shared.epoch)
    }

    /// Tells all pods that something they refer to has changed.
    pub fn change_references(&self) {
        self.shared.references.send_modify(|count| *count += 1);
    }

    /// From now on `refresh_volumes` says that it is to be called again after that time.
    pub fn set_refresh_after(&self, after: Option<Duration>) {
        self.change(|s| s.refresh_after = after);
    }

    /// From now on `get_pods(false)` answers that.
    pub fn set_pod_list(&self, pods: Pods) {
        self.change(|s| s.pod_list = Some(pods));
    }

    /// From now on `get_pods(true)` answers that.
    pub fn set_all_pod_list(&self, pods: Pods) {
        self.change(|s| s.all_pod_list = Some(pods));
    }

    /// From now on `get_pod_status` answers that for its UID.
    pub fn set_pod_status(&self, status: PodStatus) {
        self.change(|s| {
            s.pod_statuses.insert(status.uid.clone(), status);
        });
    }

    /// Puts a pod into the live model, as if it had been there before.
    pub fn adopt(&self, status: PodStatus) {
        self.change(|s| {
            s.model.pods.insert(status.uid.clone(), status);
        });
    }

    /// From now on both versions are that.
    pub fn set_version(&self, version: &str) {
        self.change(|s| s.version = Some(Version::new(version)));
    }

    /// From now on the runtime's health is that.
    pub fn set_status(&self, status: RuntimeStatus) {
        self.change(|s| s.status = Some(status));
    }

    /// Sets the standard output of a container.
    pub fn set_logs(&self, id: &ContainerId, text: &str) {
        self.change(|s| {
            s.logs.insert(id.clone(), text.to_owned());
        });
    }

    /// Something on disk is left of that pod, and no container.
    pub fn leave_orphan(&self, uid: &PodUid) {
        self.change(|s| s.orphans.insert(uid.clone()));
    }

    /// Sets the result of a command in any container. Without this it succeeds with no output; for
    /// one that hangs, [`block`](Self::block) `run_in_container`.
    pub fn set_command_result(&self, command: &[&str], result: Result<CommandOutput>) {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        self.change(|s| {
            s.command_results.insert(command, result);
        });
    }

    /// Every call fails with that, until `None`.
    pub fn set_err(&self, err: Option<RuntimeError>) {
        self.change(|s| s.err = err);
    }

    /// The next `count` calls of that name (`"sync_pod"`) are refused.
    pub fn refuse_next(&self, call: &str, count: usize, error: RuntimeError) {
        let call = call.to_owned();
        self.change(|s| {
            s.refusals.push(Refusal {
                call,
                left: count,
                error,
            });
        });
    }

    /// The next `count` starts of a container of that name fail. With `RunContainerError` the
    /// dead instance stays behind, else none is made.
    pub fn fail_next_starts(&self, container: &str, count: usize, error: SyncError) {
        let container = container.to_owned();
        self.change(|s| {
            s.start_faults.push(StartFault {
                container,
                left: count,
                error,
            });
        });
    }

    /// A pod can't be prepared, for that reason; with none, it can.
    pub fn set_preparation_fault(&self, uid: &PodUid, error: Option<SyncError>) {
        self.change(|s| match error {
            Some(error) => {
                s.preparation_faults.insert(uid.clone(), error);
            }
            None => {
                s.preparation_faults.remove(uid);
            }
        });
    }

    /// Calls of that name, for that pod or for any, hang until the hold is released.
    pub fn block(&self, call: &str, uid: Option<&PodUid>) -> Hold {
        let (rule, hold) = HoldRule::new(call, uid);
        self.change(|s| {
            s.holds.retain(|h| !h.is_over());
            s.holds.push(rule);
        });
        hold
    }

    /// Stopping a container takes that long, or its grace if that is shorter.
    pub fn set_stop_takes(&self, time: Duration) {
        self.change(|s| s.stop_takes = time);
    }

    /// Every call takes that long before it has its effect. On paused time one that takes none
    /// makes what was seen before an action as new as what is seen after it.
    pub fn set_latency(&self, time: Duration) {
        self.change(|s| s.latency = time);
    }

    /// The next `count` events reach nobody.
    pub fn lose_events(&self, count: usize) {
        self.change(|s| s.events_to_lose = count);
    }

    /// Ends every watch stream.
    pub fn break_watches(&self) {
        self.change(|s| s.watchers.clear());
    }
}

/// The live model: looking at it and interfering.
impl FakeRuntime {
    /// A pod as the model has it.
    #[must_use]
    pub fn pod(&self, uid: &PodUid) -> PodStatus {
        let model = |s: &State| s.model.pods.get(uid).cloned();
        model(&self.state()).unwrap_or_else(|| PodStatus::empty(uid.clone()))
    }

    /// Lets the running instance of a container exit.
    ///
    /// # Panics
    /// There is none.
    #[track_caller]
    pub fn exit_container(&self, uid: &PodUid, name: &str, exit_code: i32) {
        let now = self.now();
        let ended = self.change(|s| {
            let id = s.model.pods.get(uid).and_then(|pod| {
                pod.running_containers()
                    .find(|c| &*c.name == name)
                    .map(|c| c.id.clone())
            });
            let ended = id.is_some_and(|id| s.model.end(uid, &id, exit_code, now));
            if ended {
                s.tell(uid, PodEventKind::ContainerDied);
            }
            ended
        });
        assert!(ended, "no container {name} of pod {uid} runs");
    }

    /// Lets a pod's sandbox die; its containers go on.
    ///
    /// # Panics
    /// None runs.
    #[track_caller]
    pub fn lose_sandbox(&self, uid: &PodUid) {
        let lost = self.change(|s| {
            let lost = s.model.lose_sandbox(uid);
            if lost {
                s.tell(uid, PodEventKind::ContainerDied);
            }
            lost
        });
        assert!(lost, "no sandbox of pod {uid} runs");
    }

    /// Sends an event to every watcher.
    pub fn send(&self, event: &PodEvent) {
        self.change(|s| s.send(event));
    }

    /// Waits until something holds of this runtime. It is asked again after every change.
    pub async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !holds(self) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// The recorded calls.
impl FakeRuntime {
    /// Names of the functions called, in order.
    #[must_use]
    pub fn called_functions(&self) -> Vec<String> {
        self.state().called_functions.clone()
    }

    /// How often a function was called.
    #[must_use]
    pub fn call_count(&self, call: &str) -> usize {
        let state = self.state();
        state.called_functions.iter().filter(|c| *c == call).count()
    }

    /// Pods a plan with a sandbox or a start was carried out for, in order.
    #[must_use]
    pub fn started_pods(&self) -> Vec<PodUid> {
        self.state().started_pods.clone()
    }

    /// Pods `kill_pod` was called for, in order.
    #[must_use]
    pub fn killed_pods(&self) -> Vec<PodUid> {
        self.state().killed_pods.clone()
    }

    /// Names of the containers started, in order.
    #[must_use]
    pub fn started_containers(&self) -> Vec<String> {
        self.state().started_containers.clone()
    }

    /// Names of the containers killed, in order.
    #[must_use]
    pub fn killed_containers(&self) -> Vec<String> {
        self.state().killed_containers.clone()
    }

    /// Commands run in containers, in order.
    #[must_use]
    pub fn commands(&self) -> Vec<(ContainerId, Vec<String>)> {
        self.state().commands.clone()
    }

    /// Forgets what was recorded; the pods stay.
    pub fn clear_calls(&self) {
        self.change(|s| {
            s.called_functions.clear();
            s.started_pods.clear();
            s.killed_pods.clear();
            s.started_containers.clear();
            s.killed_containers.clear();
            s.commands.clear();
        });
    }

    /// Checks all calls and their order.
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_calls(&self, calls: &[&str]) {
        assert_eq!(self.called_functions(), calls, "calls");
    }

    /// Checks how often a function was called.
    ///
    /// # Panics
    /// It is another number.
    #[track_caller]
    pub fn assert_call_counts(&self, call: &str, count: usize) {
        assert_eq!(self.call_count(call), count, "calls of {call}");
    }

    /// Checks [`started_pods`](Self::started_pods).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_started_pods(&self, uids: &[&str]) {
        let started = self.started_pods();
        let started: Vec<&str> = started.iter().map(PodUid::as_str).collect();
        assert_eq!(started, uids, "started pods");
    }

    /// Checks [`killed_pods`](Self::killed_pods).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_killed_pods(&self, uids: &[&str]) {
        let killed = self.killed_pods();
        let killed: Vec<&str> = killed.iter().map(PodUid::as_str).collect();
        assert_eq!(killed, uids, "killed pods");
    }

    /// Checks [`started_containers`](Self::started_containers).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_started_containers(&self, names: &[&str]) {
        assert_eq!(self.started_containers(), names, "started containers");
    }

    /// Checks [`killed_containers`](Self::killed_containers).
    ///
    /// # Panics
    /// They are others.
    #[track_caller]
    pub fn assert_killed_containers(&self, names: &[&str]) {
        assert_eq!(self.killed_containers(), names, "killed containers");
    }

    /// Checks that nobody asked for what must never be: two running instances of a container, two
    /// running sandboxes of a pod, the removal of something running.
    ///
    /// # Panics
    /// Somebody did.
    #[track_caller]
    pub fn assert_no_violations(&self) {
        let violations = self.state().model.violations.clone();
        assert!(violations.is_empty(), "{violations:#?}");
    }
}

impl FakeRuntime {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes those who wait for a value.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state());
        self.shared.changes.send_modify(|count| *count += 1);
        result
    }

    /// Every call begins here: it is recorded, held back, refused.
    async fn enter(&self, call: &str, uid: Option<&PodUid>) -> Result<()> {
        let holds: Vec<HoldRule> = self.change(|s| {
            s.called_functions.push(call.to_owned());
            let concerned = s.holds.iter().filter(|h| h.concerns(call, uid));
            concerned.cloned().collect()
        });
        for hold in holds {
            hold.pass().await;
        }
        let latency = self.state().latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        self.change(|s| s.refuse(call))
    }
}

impl State {
    fn refuse(&mut self, call: &str) -> Result<()> {
        let refusal = self
            .refusals
            .iter_mut()
            .find(|r| r.call == call && r.left > 0);
        if let Some(refusal) = refusal {
            refusal.left -= 1;
            return Err(refusal.error.clone());
        }
        self.err.clone().map_or(Ok(()), Err)
    }

    fn start_fault(&mut self, container: &str) -> Option<SyncError> {
        let fault = self
            .start_faults
            .iter_mut()
            .find(|f| f.container == container && f.left > 0)?;
        fault.left -= 1;
        Some(fault.error.clone())
    }

    fn tell(&mut self, uid: &PodUid, what: PodEventKind) {
        self.send(&PodEvent::Changed {
            uid: uid.clone(),
            what,
        });
    }

    fn send(&mut self, event: &PodEvent) {
        if self.events_to_lose > 0 {
            self.events_to_lose -= 1;
            return;
        }
        self.watchers.retain(|w| w.send(event.clone()).is_ok());
    }
}

/// The health of a runtime without a fault.
fn healthy() -> RuntimeStatus {
    let condition = |kind| RuntimeCondition {
        kind,
        status: true,
        reason: "",
        message: String::new(),
    };
    RuntimeStatus {
        conditions: vec![condition(RUNTIME_READY), condition(NETWORK_READY)],
    }
}
