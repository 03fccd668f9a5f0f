//! One worker task per pod UID: converges its pod, and finally stops and removes it.
//!
//! [`PodWorkers`] converts the desired set to workers: one is created with its pod, is asked to stop
//! when the pod is removed, and is reaped when it has finished. Unwanted pods in the runtime get a
//! worker too, which only stops them, but never before every source has delivered once. The worker of
//! an ended pod that only stays for its logs has no task until its next order.
//!
//! Upstream: `pkg/kubelet/pod_workers.go`, and the housekeeping of `pkg/kubelet/kubelet_pods.go`.

mod admission;
mod clock;
mod early;
mod end;
mod evicted;
mod finished;
mod hold;
mod lives;
mod locks;
mod panics;
mod refresh;
mod refused;
mod release;
mod state;
mod stopping;
mod sync;
mod task;
#[cfg(test)]
mod tests;
mod tidy;
mod wanted;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{Id as TaskId, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub use clock::Clock;
pub use wanted::Wanted;

use crate::store::board::{BoardWriter, Phase, PodView};
use crate::store::cache::CacheReader;
use crate::store::cell::Reader;
use crate::store::evictions::{Evict, evictions};
use crate::store::graces::Graces;
use crate::store::looks::LookRequests;
use crate::store::probes::ProbeReader;
use crate::store::settled::SettledPods;
use early::Early;
use evicted::Evicted;
use finished::Finished;
use lives::{Lives, PodStates};
use locks::NameLocks;
use mirrorlet_core::admit::{AdmitNode, Failure};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::{Delivered, is_same};
use mirrorlet_core::gc::{ContainerGcPolicy, PodLife};
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::is_beside;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::Runtime;
use mirrorlet_runtime::cache::RuntimeCache;
use mirrorlet_runtime::gc::PodStateProvider;
use panics::Panics;
use stopping::StoppingPods;
use task::{Worker, spawn};
use tidy::Tidy;

/// Finds the version of a pod that no source wants any more.
pub type KnownVersions = Arc<dyn Fn(&FullName, &PodUid) -> Option<Arc<Pod>> + Send + Sync>;

/// State that all workers share.
pub struct Context {
    /// The runtime of the pods.
    pub runtime: Arc<dyn Runtime>,
    /// Their observed state.
    pub cache: CacheReader,
    /// Requests a read of one of them.
    pub looks: LookRequests,
    /// Results of their probes.
    pub probes: ProbeReader,
    /// The board on which workers publish their pods.
    pub board: BoardWriter,
    /// The metrics.
    pub telemetry: Telemetry,
    /// Addresses of the node, primary first.
    pub node_ips: Reader<Vec<IpAddr>>,
    /// Longest crash-loop back-off.
    pub backoff_max: Duration,
    /// How many dead instances of a container are kept.
    pub gc: ContainerGcPolicy,
    /// The clock.
    pub clock: Clock,
    /// Grace periods that were set in deletions of static pods.
    pub graces: Graces,
    /// Receives the API pods of which nothing is left here.
    pub settled: SettledPods,
    /// The node as admission sees it.
    pub node: Reader<AdmitNode>,
    /// Returns the unsupported fields of an API pod.
    pub unsupported: fn(&Pod) -> Vec<String>,
    /// The versions of static pods, including those that an earlier agent ran.
    pub versions: KnownVersions,
}

/// The order to a worker. The newest one counts, and `Stop` is never revoked.
#[derive(Debug, Clone)]
enum Command {
    /// Converge to this.
    Run(Arc<Pod>),
    /// End this as failed: the node refuses it, it is preempted, or it is evicted.
    Fail(Arc<Pod>, Failure),
    /// Stop the pod. With `restart` the same UID is wanted again: its remains stay, so that its restart
    /// count continues.
    Stop { restart: bool },
}

/// State that all workers of one set share: the full-name locks, and notices of ends.
#[derive(Default)]
struct SharedLocks {
    locks: Mutex<NameLocks>,
    stopping: Mutex<StoppingPods>,
    /// A full name, a host port or the room of a preempted pod may be free.
    changed: watch::Sender<()>,
    /// A pod has ended: there may be room for one that was refused.
    ended: Notify,
    /// The pods whose remains must not be collected.
    lives: Lives,
}

impl SharedLocks {
    fn with<T>(&self, f: impl FnOnce(&mut NameLocks) -> T) -> T {
        f(&mut self.locks.lock())
    }

    fn leave(&self, name: &FullName, uid: &PodUid) {
        self.with(|locks| locks.leave(name, uid));
        self.await_room(uid, Vec::new());
        self.pod_stopped(uid);
        self.changed.send_replace(());
    }
}

/// The set of workers.
pub struct PodWorkers {
    context: Arc<Context>,
    locks: Arc<SharedLocks>,
    wanted: watch::Receiver<Arc<Wanted>>,
    listed: watch::Receiver<Option<Arc<Pods>>>,
    workers: HashMap<PodUid, Handle>,
    /// A worker that rests is what its task ends with.
    tasks: JoinSet<Option<Box<Worker>>>,
    /// Pods that run unwanted and hold their full names without a worker, until every source
    /// has delivered.
    adopted: BTreeMap<PodUid, FullName>,
    /// Pods that were found to be gone since the newest list, which still has them.
    gone: HashSet<PodUid>,
    /// The remains of unknown pods on disk.
    tidy: Tidy,
    /// The pods that run.
    running: Arc<RuntimeCache>,
    /// Orders to evict pods.
    evictions: mpsc::Receiver<Evict>,
    /// Pods of manifests that were evicted.
    evicted: Evicted,
    /// Ended pods without a worker.
    finished: Finished,
    /// The new pods that wait after the agent's start.
    early: Early,
    /// The pods whose workers panicked.
    panics: Panics,
}

/// A worker as the set of workers knows it.
struct Handle {
    commands: watch::Sender<Command>,
    /// The task that it runs in.
    task: TaskId,
    /// The worker itself while it has nothing to do before its next order: there are many ended pods,
    /// and a task takes more memory than everything else of their workers.
    rests: Option<Box<Worker>>,
    full_name: FullName,
    /// Whether anything of the pod may run.
    active: Arc<AtomicBool>,
}

impl PodWorkers {
    /// Returns the workers for the pods of `wanted`; `listed` are the running pods.
    pub fn new(
        context: Arc<Context>,
        wanted: watch::Receiver<Arc<Wanted>>,
        listed: watch::Receiver<Option<Arc<Pods>>>,
    ) -> Self {
        Self {
            tidy: Tidy::default(),
            running: Arc::new(RuntimeCache::new(Arc::clone(&context.runtime))),
            context,
            locks: Arc::default(),
            wanted,
            listed,
            workers: HashMap::new(),
            tasks: JoinSet::new(),
            adopted: BTreeMap::new(),
            gone: HashSet::new(),
            evictions: evictions().1,
            evicted: Evicted::default(),
            finished: Finished::default(),
            early: Early::default(),
            panics: Panics::default(),
        }
    }

    /// The same, which also obey these orders.
    #[must_use]
    pub fn evicting(mut self, orders: mpsc::Receiver<Evict>) -> Self {
        self.evictions = orders;
        self
    }

    /// Returns the workers' states of pods, for garbage collection.
    pub fn pod_states(&self) -> Arc<dyn PodStateProvider> {
        Arc::new(PodStates {
            lives: self.locks.lives.clone(),
            wanted: self.wanted.clone(),
        })
    }

    /// Runs the workers until cancelled. Containers keep running then.
    pub async fn run(mut self, cancel: CancellationToken) {
        // Until everything was listed once, a pod that waits for nothing could collide with one
        // of its name that runs already.
        tokio::select! {
            () = cancel.cancelled() => return,
            listed = self.listed.wait_for(Option::is_some) => if listed.is_err() { return },
        }
        let held = self.held().into_keys();
        self.context.settled.start_with(held);
        let mut members = self.context.cache.members();
        let (mut node, mut node_has_writer) = (self.context.node.clone(), true);
        self.early.begin();
        self.adopt_and_stop_unwanted(&cancel);
        self.apply(&cancel);
        self.tidy_once();
        loop {
            let (back, early) = (self.evicted.next(), self.early.left());
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.wanted.changed() => {
                    if changed.is_err() { break }
                    self.apply(&cancel);
                    self.adopt_and_stop_unwanted(&cancel);
                    self.tidy_once();
                }
                _ = self.listed.changed() => {
                    self.gone.clear();
                    self.adopt_and_stop_unwanted(&cancel);
                }
                _ = members.changed() => self.adopt_and_stop_unwanted(&cancel),
                () = self.locks.ended.notified() => self.admit_refused(),
                Some(order) = self.evictions.recv() => self.evict(&order),
                () = tokio::time::sleep(back.unwrap_or_default()), if back.is_some() => {
                    self.admit_refused();
                }
                () = tokio::time::sleep(early.unwrap_or_default()), if early.is_some() => {
                    self.start_waiting(&cancel);
                }
                step = self.tidy.step() => self.tidy(step, &cancel),
                // There is no publisher of the node any more: it stays as it is.
                changed = node.changed(), if node_has_writer => match changed {
                    Ok(_) => self.node_changed(&cancel),
                    Err(_) => node_has_writer = false,
                },
                Some(finished) = self.tasks.join_next_with_id() => match finished {
                    Ok((_, Some(worker))) => self.lay_to_rest(worker),
                    Ok((id, None)) => self.reap(&Ok(id), &cancel),
                    Err(error) => self.reap(&Err(error), &cancel),
                },
            }
            self.wake_ordered(&cancel);
        }
        self.tidy.end().await;
        while self.tasks.join_next().await.is_some() {}
    }

    /// Brings workers in step with what is wanted: stops first, so that a successor of the same
    /// full name queues behind its predecessor.
    fn apply(&mut self, cancel: &CancellationToken) {
        let wanted = self.wanted.borrow_and_update().clone();
        for (uid, handle) in &self.workers {
            let Handle {
                commands,
                full_name,
                ..
            } = handle;
            if !wanted.pods.get(uid).is_some_and(|pod| is_beside(pod)) {
                self.locks.with(|locks| locks.settle(full_name, uid));
            }
            if !wanted.has(uid) {
                commands.send_if_modified(|command| match command {
                    Command::Run(pod) | Command::Fail(pod, _) => {
                        self.locks.pod_stops(pod, &handle.active);
                        *command = Command::Stop { restart: false };
                        true
                    }
                    Command::Stop { restart } => std::mem::take(restart),
                });
            }
        }
        let (edited, waiting) = (self.edited_failed(&wanted), self.edited_waiting(&wanted));
        for (uid, pod) in &wanted.pods {
            if let Some(Handle { commands, .. }) = self.workers.get(uid) {
                commands.send_if_modified(|command| match command {
                    Command::Run(known) | Command::Fail(known, _) if is_same(known, pod) => false,
                    Command::Run(_) if admission::is_cut(pod) => false,
                    Command::Run(known) | Command::Fail(known, _) => {
                        *known = Arc::clone(pod);
                        true
                    }
                    Command::Stop { restart } => !std::mem::replace(restart, true),
                });
            }
        }
        self.ask_waiting(&waiting);
        self.set_finished(&wanted);
        if !edited.is_empty() {
            self.ask_refused(&edited);
        }
        self.start_new(&wanted, cancel);
    }

    /// Gives the full names of pods that run unwanted to them, and stops them once every source
    /// has delivered.
    fn adopt_and_stop_unwanted(&mut self, cancel: &CancellationToken) {
        // What is known then is no longer kept up to date, and nothing would be stopped.
        if cancel.is_cancelled() {
            return;
        }
        let wanted = self.wanted.borrow().clone();
        let mut unwanted = self.held();
        unwanted.retain(|uid, _| !self.workers.contains_key(uid) && !wanted.has(uid));
        // One that went by itself must not keep its name.
        for (uid, full_name) in std::mem::take(&mut self.adopted) {
            let has_worker = self.workers.contains_key(&uid) || wanted.has(&uid);
            if !has_worker && !unwanted.contains_key(&uid) {
                self.locks.leave(&full_name, &uid);
            }
        }
        for (uid, full_name) in unwanted {
            // What can only be the API server's holds no name against a manifest's pod.
            if wanted.delivered.all() || Delivered::MANIFESTS.may_stop(&uid) {
                self.locks.with(|locks| locks.adopt(&full_name, &uid));
            }
            let pod = (self.context.versions)(&full_name, &uid);
            if let Some(pod) = &pod {
                // Those that may still be wanted don't wait, but others may have to wait for them.
                self.locks.pod_stops(pod, &AtomicBool::new(true));
            }
            if wanted.may_stop(&uid) && !self.tidy.removes(&uid) {
                occurrences::pod_removed(
                    self.context.telemetry.pod(&full_name, &uid),
                    "no source wants it",
                );
                let command = Command::Stop { restart: false };
                self.start_worker(uid, full_name, command, pod, cancel);
            } else {
                self.adopted.insert(uid, full_name);
            }
        }
    }

    /// Pods in the runtime, from the newest list and later reads.
    fn held(&mut self) -> BTreeMap<PodUid, FullName> {
        let mut held: BTreeMap<PodUid, FullName> = BTreeMap::new();
        if self.listed.has_changed().unwrap_or_default() {
            self.gone.clear();
        }
        if let Some(listed) = self.listed.borrow_and_update().as_ref() {
            held.extend(
                listed
                    .0
                    .iter()
                    .filter(|pod| !self.gone.contains(&pod.uid))
                    .map(|pod| (pod.uid.clone(), pod.full_name.clone())),
            );
        }
        for entry in self.context.cache.all() {
            if !entry.status.is_empty() {
                held.insert(entry.status.uid.clone(), entry.status.full_name.clone());
            } else if entry.modified.is_some() && !entry.is_unknown() {
                held.remove(&entry.status.uid);
            }
        }
        held.extend(self.finished.left());
        held
    }

    fn start_worker(
        &mut self,
        uid: PodUid,
        full_name: FullName,
        command: Command,
        pod: Option<Arc<Pod>>,
        cancel: &CancellationToken,
    ) {
        let pause = self.panics.left(&uid);
        self.locks.lives.set(&uid, PodLife::Known);
        self.finished.has_worker(&uid);
        let (commands, receiver) = watch::channel(command);
        let active = Arc::new(AtomicBool::new(true));
        let worker = Worker::new(
            uid.clone(),
            full_name.clone(),
            pod,
            Arc::clone(&self.context),
            Arc::clone(&self.locks),
            receiver,
            Arc::clone(&active),
        );
        let handle = Handle {
            commands,
            task: spawn(&mut self.tasks, Box::new(worker), pause, cancel),
            rests: None,
            full_name,
            active,
        };
        self.workers.insert(uid, handle);
    }

    /// Keeps a worker that has nothing to do before its next order.
    fn lay_to_rest(&mut self, worker: Box<Worker>) {
        let uid = worker.uid.clone();
        if let Some(handle) = self.workers.get_mut(&uid) {
            handle.rests = Some(worker);
            self.part_with(&uid);
        }
    }

    /// Runs the resting workers that have an order.
    fn wake_ordered(&mut self, cancel: &CancellationToken) {
        for handle in self.workers.values_mut() {
            if let Some(worker) = handle.rests.take_if(|worker| worker.has_order()) {
                handle.task = spawn(&mut self.tasks, worker, Duration::ZERO, cancel);
            }
        }
    }

    /// A worker has finished. If its pod is wanted again meanwhile, it gets a new one; so does the
    /// pod of a worker that panicked, after a pause. The panic hook has logged this defect.
    fn reap(&mut self, finished: &Result<TaskId, JoinError>, cancel: &CancellationToken) {
        let id = finished.as_ref().map_or_else(JoinError::id, |id| *id);
        let of_task = |(uid, handle): (&PodUid, &Handle)| {
            (handle.task == id && handle.rests.is_none()).then(|| uid.clone())
        };
        let Some(uid) = self.workers.iter().find_map(of_task) else {
            return;
        };
        let Some(handle) = self.workers.remove(&uid) else {
            return;
        };
        self.evicted.forget(&uid);
        self.locks.lives.set(&uid, PodLife::Gone);
        self.context.cache.release(&uid);
        let panicked = finished.is_err();
        if panicked {
            self.panics.note(&uid);
        } else {
            self.panics.forget(&uid);
            // Before it is admitted again: the list may be from when it ran.
            self.gone.insert(uid.clone());
        }
        let wanted = self.wanted.borrow().clone();
        if let Some(pod) = wanted.pods.get(&uid) {
            self.admit_and_start(pod, cancel);
            return;
        }
        if panicked {
            self.context.board.remove(&uid);
            self.locks.leave(&handle.full_name, &uid);
        }
        // What a worker that panicked leaves running, and what came into being since a finished
        // one looked last, is nobody's: it was passed over as long as there was a worker.
        self.adopt_and_stop_unwanted(cancel);
    }
}
