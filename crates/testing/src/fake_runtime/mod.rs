//! `FakeRuntime`: a scriptable, recording runtime in memory.
//!
//! It records its calls, returns scripted answers if there are some, and otherwise models a runtime:
//! plans change its pods, tests let containers exit and sandboxes die, watchers are notified. Its clock
//! is the wall clock at its creation plus tokio's elapsed time, so that it follows a paused one.
//!
//! Upstream: `pkg/kubelet/container/testing/fake_runtime.go`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use mirrorlet_core::api::{ContainerId, Pod, PodUid, Timestamp};
use mirrorlet_core::observed::{PodStatus, Pods};
use mirrorlet_runtime::{
    CommandOutput, PodEvent, PodEventKind, Result, RuntimeError, ServingPods, SyncError, Version,
};

mod calls;
mod faults;
mod model;
mod recorded;
mod script;
mod steps;
#[cfg(test)]
mod tests;

use model::Model;
pub use script::{CallFault, EventFate, Hold};
use script::{CallRule, HoldRule};

/// A scriptable, recording runtime in memory. Clones share everything.
#[derive(Debug, Clone)]
pub struct FakeRuntime {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Counts changes, for tests that wait for a value.
    changes: watch::Sender<u64>,
    /// Changes when something that pods refer to does.
    references: watch::Sender<u64>,
    /// Changes when images do.
    images: watch::Sender<u64>,
    epoch: Timestamp,
    start: Instant,
    /// By how many seconds its clock was set forward, in all.
    clock_jumps: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    called_functions: Vec<String>,
    started_pods: Vec<PodUid>,
    /// The pods as their last starts had them.
    started_as: BTreeMap<PodUid, Arc<Pod>>,
    killed_pods: Vec<PodUid>,
    started_containers: Vec<String>,
    killed_containers: Vec<String>,
    named_pods: Vec<Vec<PodUid>>,

    pod_list: Option<Pods>,
    all_pod_list: Option<Pods>,
    pod_statuses: BTreeMap<PodUid, PodStatus>,
    version: Option<Version>,
    logs: BTreeMap<ContainerId, String>,
    orphans: BTreeSet<PodUid>,
    commands: Vec<(ContainerId, Vec<String>)>,
    command_results: BTreeMap<Vec<String>, Result<CommandOutput>>,

    err: Option<RuntimeError>,
    call_rules: Vec<CallRule>,
    crashes: BTreeMap<PodUid, Crash>,
    start_faults: Vec<StartFault>,
    /// The next plans that fail as a whole.
    plan_faults: Vec<SyncError>,
    preparation_faults: BTreeMap<PodUid, SyncError>,
    holds: Vec<HoldRule>,
    stop_takes: Duration,
    latency: Duration,
    step_takes: Duration,
    calls_outlive_callers: bool,
    /// Whether no plan can remove a container.
    removals_fail: bool,
    event_fates: VecDeque<EventFate>,
    refresh_after: Option<Duration>,

    serving: ServingPods,
    witness: Witness,
    model: Model,
    watchers: Vec<mpsc::UnboundedSender<PodEvent>>,
}

/// Receives each action on pods.
#[derive(Clone, Default)]
struct Witness(Option<Arc<WitnessFn>>);

type WitnessFn = dyn Fn(&str) + Send + Sync;

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Witness").field(&self.0.is_some()).finish()
    }
}

/// How the containers of a pod crash.
#[derive(Debug, Clone)]
struct Crash {
    container: String,
    after: Duration,
    exit_code: i32,
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
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changes: watch::Sender::new(0),
                references: watch::Sender::new(0),
                images: watch::Sender::new(0),
                epoch: Timestamp::now(),
                start: Instant::now(),
                clock_jumps: AtomicI64::new(0),
            }),
        }
    }

    /// The time by its clock.
    pub fn now(&self) -> Timestamp {
        let jumps = self.shared.clock_jumps.load(Ordering::Relaxed);
        let by = Duration::from_secs(jumps.unsigned_abs());
        let now = self.shared.epoch.checked_add(self.shared.start.elapsed());
        let jumped = |now: Timestamp| {
            if jumps < 0 {
                now.checked_sub(by)
            } else {
                now.checked_add(by)
            }
        };
        now.and_then(jumped).unwrap_or(self.shared.epoch)
    }

    /// Notifies all pods that an object that they refer to has changed.
    pub fn change_references(&self) {
        self.shared.references.send_modify(|count| *count += 1);
    }

    /// Notifies all pods that images were added or removed.
    pub fn change_images(&self) {
        self.shared.images.send_modify(|count| *count += 1);
    }

    /// Makes `refresh_volumes` request its next call after that time.
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

    /// Adds a pod to the model, as if it had existed before.
    pub fn adopt(&self, status: PodStatus) {
        self.change(|s| {
            s.model.pods.insert(status.uid.clone(), status);
        });
    }

    /// From now on both versions are that.
    pub fn set_version(&self, version: &str) {
        self.change(|s| s.version = Some(Version::new(version)));
    }

    /// Sets the standard output of a container.
    pub fn set_logs(&self, id: &ContainerId, text: &str) {
        self.change(|s| {
            s.logs.insert(id.clone(), text.to_owned());
        });
    }

    /// Leaves remains of that pod on disk, without a container.
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

    /// Makes the next `count` calls of that name (`"sync_pod"`) fail.
    pub fn refuse_next(&self, call: &str, count: usize, error: RuntimeError) {
        self.fail_next_calls(call, count, CallFault::Refused(error));
    }

    /// Makes the next `count` starts of a container of that name fail. With a `RunContainerError` that
    /// isn't passing the dead instance stays behind, otherwise there is none.
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

    /// Makes the next `count` plans fail as a whole, before their first step, as a failed volume does.
    pub fn fail_next_plans(&self, count: usize, error: SyncError) {
        self.change(|s| s.plan_faults.extend(std::iter::repeat_n(error, count)));
    }

    /// Sets the error of a pod's preparation; with none, it succeeds.
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

    /// Blocks calls of that name, for that pod or for any, until the hold is released.
    pub fn block(&self, call: &str, uid: Option<&PodUid>) -> Hold {
        let (rule, hold) = HoldRule::new(call, uid);
        self.change(|s| {
            s.holds.retain(|h| !h.is_over());
            s.holds.push(rule);
        });
        hold
    }

    /// Sets how long stopping a container takes, unless its grace period is shorter.
    pub fn set_stop_takes(&self, time: Duration) {
        self.change(|s| s.stop_takes = time);
    }

    /// Delays the effect of every call by that time. On paused time, a call without latency makes an
    /// observation before an action as new as one after it.
    pub fn set_latency(&self, time: Duration) {
        self.change(|s| s.latency = time);
    }

    /// Drops the next `count` events.
    pub fn lose_events(&self, count: usize) {
        self.script_events(std::iter::repeat_n(EventFate::Lost, count));
    }

    /// Ends every watch stream.
    pub fn break_watches(&self) {
        self.change(|s| s.watchers.clear());
    }
}

/// The live model: looking at it and interfering.
impl FakeRuntime {
    /// A pod as the model has it.
    pub fn pod(&self, uid: &PodUid) -> PodStatus {
        let model = |s: &State| s.model.pods.get(uid).cloned();
        model(&self.shared.state.lock()).unwrap_or_else(|| PodStatus::empty(uid.clone()))
    }

    /// The versions that host ports are forwarded to, as last set.
    pub fn serving(&self) -> ServingPods {
        self.shared.state.lock().serving.clone()
    }

    /// Lets the running instance of a container exit.
    ///
    /// # Panics
    /// The container has no running instance.
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
                s.emit(uid, PodEventKind::ContainerDied);
            }
            ended
        });
        assert!(ended, "no container {name} of pod {uid} runs");
    }

    /// Lets a pod's sandbox die; its containers continue.
    ///
    /// # Panics
    /// No sandbox runs.
    #[track_caller]
    pub fn lose_sandbox(&self, uid: &PodUid) {
        let lost = self.change(|s| {
            let lost = s.model.lose_sandbox(uid);
            if lost {
                s.emit(uid, PodEventKind::ContainerDied);
            }
            lost
        });
        assert!(lost, "no sandbox of pod {uid} runs");
    }

    /// Sends an event to every watcher.
    pub fn send(&self, event: &PodEvent) {
        self.change(|s| s.send(event));
    }

    /// Waits until a condition of this runtime holds. It is checked after every change.
    pub async fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let mut changes = self.shared.changes.subscribe();
        while !holds(self) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

impl FakeRuntime {
    /// Changes the state and wakes tests that wait for a value.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.state.lock());
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
        let latency = self.shared.state.lock().latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        self.refuse(call).await
    }
}

impl State {
    fn start_fault(&mut self, container: &str) -> Option<SyncError> {
        let fault = self
            .start_faults
            .iter_mut()
            .find(|f| f.container == container && f.left > 0)?;
        fault.left -= 1;
        Some(fault.error.clone())
    }

    /// Reports something that was done to a pod.
    fn witness(&self, line: &str) {
        if let Some(witness) = &self.witness.0 {
            witness(line);
        }
    }

    fn emit(&mut self, uid: &PodUid, what: PodEventKind) {
        self.send(&PodEvent::Changed {
            uid: uid.clone(),
            what,
        });
    }
}
