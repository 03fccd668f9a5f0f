//! Rollouts of static pods: between the sources' pods and those that workers run.
//!
//! [`Rollouts::apply`] replaces each newest revision that doesn't run yet, or no longer runs, by the
//! one that runs in its place. Readers of the merged set see the running pods; the pod's `held` and its
//! problems show that it isn't the newest one, as for a manifest that can't be read.
//! [`mirrorlet_core::rollout`] decides; this module prepares revisions, stores histories on disk and
//! reports changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::store::board::{Phase as WorkerPhase, PodView};
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::{Diagnostic, FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::clock::LOOK_MAX;
use mirrorlet_core::desired::{PodSource, SourcePod};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::node::NodeEdits;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::{
    Change, Decision, HAND_OVER_FAILED, History, Phase, Revision, RolloutStrategy, Settings, View,
    not_handed_over,
};
use mirrorlet_core::status::is_ready;
use mirrorlet_core::status::trouble::Trouble;
use mirrorlet_host::telemetry::journal::Journal;
use mirrorlet_host::telemetry::occurrences;
use mirrorlet_runtime::{ServingPods, SyncError, SyncErrorReason};

mod clock;
mod commands;
mod decide;
mod delays;
mod engine;
mod gone;
mod groups;
mod handle;
mod kept;
mod options;
mod order;
mod plan;
mod ports;
mod prepare;
mod reporter;
mod turns;
mod versions;

use clock::LastLook;
use decide::Facts;
use delays::Delays;
use engine::{Engine, Return};
use handle::{Answering, Request};
pub use handle::{CommandError, Histories, RolloutHandle, RolloutTarget};
use kept::HistoryStore;
use mirrorlet_core::small::SmallCollect;
pub use options::RolloutOptions;
use ports::{Ports, waits_for_port};
use prepare::Preparations;
use turns::Queues;

/// Minimum time between two checks of the pods that are judged: their status changes several times
/// while they start.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How often the admission of a refused revision is retried.
const ADMIT_PERIOD: Duration = Duration::from_secs(10);
/// Pause after host ports could not be handed over to the version that serves. It doesn't grow: clients
/// reach another version until then.
const SERVE_RETRY: Duration = Duration::from_secs(5);
/// Pause after histories could not be written. It doesn't grow: an attempt writes only what the disk
/// doesn't have.
const KEEP_RETRY: Duration = Duration::from_secs(30);
/// Why a new pod waits on a cordoned Node.
///
/// Upstream: the scheduler's plugin `NodeUnschedulable`.
const UNSCHEDULABLE: &str = "0/1 nodes are available: 1 node(s) were unschedulable.";

/// The rollouts of all static pods.
pub struct Rollouts {
    options: Arc<RolloutOptions>,
    store: HistoryStore,
    histories: Histories,
    published: Writer<Histories>,
    requests: mpsc::Receiver<Request>,
    /// Commands that were obeyed or refused; answered once the disk was written.
    answers: Vec<Answering>,
    unkept: Writer<Option<Diagnostic>>,
    phases: BTreeMap<FullName, Phase>,
    preparations: Preparations,
    changed: watch::Receiver<u64>,
    node_edits: watch::Receiver<Arc<NodeEdits>>,
    /// The node as admission sees it. Kept between waits, so that each change ends one wait: a clone
    /// made for a wait would see an old change again.
    node: Reader<AdmitNode>,
    look_at: Option<Instant>,
    engine: Engine,
    /// The time of the last decision.
    last_look: LastLook,
    /// The delays that progress deadlines leave out.
    delays: Delays,
    /// Whether other versions of a pod run from now on, and that isn't on disk yet.
    switched: bool,
    /// Why host ports were last not handed over, if they weren't.
    not_served: Option<String>,
    /// The pods of `StatefulSet`s that wait for their turn.
    queues: Queues,
    /// The versions that are held for host ports, and the pods that have those.
    ports: Ports,
}

impl Rollouts {
    /// Returns the rollouts, which continue from the data below `root`, and their handle. Blocks.
    pub fn load(root: &Path, options: RolloutOptions) -> (Self, RolloutHandle) {
        let (store, histories) = HistoryStore::load(root);
        let (published, reader) = cell(histories.clone());
        let options = Arc::new(options);
        let (unkept, problem) = cell(None);
        let (handle, requests) = RolloutHandle::new(reader, problem, Arc::clone(&options));
        let rollouts = Self {
            store,
            histories,
            published,
            requests,
            answers: Vec::new(),
            unkept,
            phases: BTreeMap::new(),
            preparations: Preparations::new(Arc::clone(&options.runtime)),
            changed: options.board.changed(),
            node_edits: options.node_edits.subscribe(),
            node: options.node.clone(),
            engine: Engine::new(watch::channel(RuntimeReach::Up).1),
            last_look: LastLook::default(),
            delays: Delays::default(),
            look_at: None,
            switched: false,
            not_served: None,
            queues: Queues::default(),
            ports: Ports::default(),
            options,
        };
        (rollouts, handle)
    }

    /// Returns the rollouts with a reader of the runtime's reach: nothing is judged while it is away.
    #[must_use]
    pub fn following(self, reach: watch::Receiver<RuntimeReach>) -> Self {
        Self {
            engine: Engine::new(reach),
            ..self
        }
    }

    fn look_at_clock(&mut self, now: Timestamp) {
        if self.last_look.was_set_forward(now, Instant::now()) {
            self.delays.begin(now);
            let histories = self.histories.values_mut();
            histories.for_each(|history| history.clock_is_ahead(now));
        }
    }

    fn look_at_engine(&mut self, now: Timestamp) {
        match self.engine.look() {
            // There was no agent to start anything, or this one couldn't.
            Some(Return::First) => self.delays.begin(now),
            Some(Return::Again) => self
                .histories
                .values_mut()
                .for_each(|history| history.engine_is_back(now)),
            None => {}
        }
    }

    /// Replaces each static pod by the revision of it that should run. `before` is the previous set,
    /// `listed` the runtime's last list.
    pub async fn apply(&mut self, merged: &mut Merged, before: &Merged, listed: &Pods) {
        let now = (self.options.clock)();
        self.changed.mark_unchanged();
        self.look_at = None;
        let cordoned = self.node_edits.borrow_and_update().unschedulable;
        if !cordoned {
            self.histories
                .values_mut()
                .for_each(|history| history.uncordon(now));
        }
        self.look_at_clock(now);
        self.look_at_engine(now);
        self.delays.look(&self.options.board, now);
        let may_be_free = self.ports.may_be_free(&self.phases, &self.options.board);
        if may_be_free || merged.objects != before.objects {
            self.preparations.try_again();
        }
        self.keep_awaited(merged);
        self.take_turns(merged, listed, now);
        let is_static = |pod: &&SourcePod| !pod.is_api() && pod.runs.is_none();
        let wanted: BTreeMap<FullName, SourcePod> = merged
            .pods
            .values()
            .filter(is_static)
            .map(|pod| (pod.full_name(), pod.clone()))
            .collect_map();
        if merged.delivered.manifests {
            self.forget_missing(&wanted, listed, now);
        }
        let turns = self.turns(&wanted, listed, now);
        let facts = Facts {
            wanted: &wanted,
            turns: &turns,
            before,
            listed,
            now,
        };
        let mut decisions = self.decide_all(facts);
        let mut has_switched = false;
        for (name, newest) in wanted {
            let turn = turns.get(&name);
            let is_new = self.is_new(&name, &newest, listed);
            let Some(mut decision) = decisions.remove(&name) else {
                continue;
            };
            if cordoned && is_new && newest.origin.source == PodSource::Embedded {
                self.hold_back(&name, &mut decision);
            }
            if decision.change == Some(Change::HandedOver) {
                decision = self.hand_over(&name, decision).await;
            }
            has_switched |= decision
                .change
                .is_some_and(|change| change != Change::Succeeded);
            // It may be another pod's turn.
            if turn.is_some() && decision.change.is_some() {
                self.look_in(Duration::ZERO);
            }
            self.take(name, &newest, decision, merged);
        }
        self.switched |= has_switched;
        if self.ports.have_news(has_switched, &self.phases) {
            self.look_in(Duration::ZERO);
        }
        self.publish_needed_images();
        self.serve(before).await;
        // Published before the merged set: a reader of both finds the history no older.
        self.published.publish(self.histories.clone());
    }

    /// Replaces the newest version by the one to run.
    fn take(
        &mut self,
        name: FullName,
        newest: &SourcePod,
        decision: Decision,
        merged: &mut Merged,
    ) {
        let pod = decision.pod(newest);
        self.report(&name, newest, &decision);
        if let Some(beside) = decision.beside(newest) {
            merged.beside.insert(beside.uid(), beside);
        }
        if let Some(wait) = decision.look_again {
            self.look_in(wait);
        }
        // Its restore may wait for another pod's, which has failed, too.
        let failed = |phase: &Phase| matches!(phase, Phase::Failed(_));
        if failed(&decision.phase) && !self.phases.get(&name).is_some_and(failed) {
            self.look_in(Duration::ZERO);
        }
        self.histories.insert(name.clone(), decision.history);
        self.phases.insert(name, decision.phase);
        merged.pods.remove(&newest.uid());
        merged.pods.insert(pod.uid(), pod);
    }

    fn publish_needed_images(&self) {
        let needed = self.histories.values().flat_map(History::needed_images);
        let needed: BTreeSet<String> = needed.collect_set();
        self.options.needed_images.send_if_modified(|known| {
            let changed = *known != needed;
            *known = needed;
            changed
        });
    }

    /// Leads the host ports of a pod to the version that was judged beside another. Where that
    /// fails, the other stays in its place, and it is tried again until the deadline.
    async fn hand_over(&mut self, name: &FullName, decision: Decision) -> Decision {
        let mut pods = self.serving();
        let current = decision.history.current();
        if let Some(revision) = current {
            pods.beside.remove(&revision.uid());
            pods.serving.insert(name.clone(), Arc::clone(&revision.pod));
        }
        let uid = current.map(Revision::uid);
        let Err(error) = self.options.serve(pods).await else {
            return decision;
        };
        let before = self.histories.get(name).cloned().unwrap_or_default();
        if let Some(uid) = &uid {
            self.report_not_served(name, uid, &error);
        }
        // An Engine that doesn't answer doesn't mean anything for a version.
        if error.passing || error.reason == SyncErrorReason::RuntimeUnavailable {
            return Decision {
                history: before,
                phase: Phase::Judging,
                change: None,
                look_again: Some(SERVE_RETRY),
            };
        }
        let view = uid.and_then(|uid| self.options.board.get(&uid));
        let status = view.as_ref().and_then(|view| view.status.as_deref());
        let now = (self.options.clock)();
        not_handed_over(&before, status, &error.message, now, SERVE_RETRY)
    }

    /// Forwards host ports to the versions that serve, also after changes that this agent didn't see.
    async fn serve(&mut self, before: &Merged) {
        let Err(error) = self.options.serve(self.serving()).await else {
            // While a version runs beside another, its hand-over may fail again.
            if self
                .histories
                .values()
                .all(|history| history.beside.is_none())
            {
                self.not_served = None;
            }
            return;
        };
        self.look_in(SERVE_RETRY);
        let beside = before.beside.values().next();
        if let Some(pod) = beside.or_else(|| before.pods.values().find(|pod| !pod.is_api())) {
            self.report_not_served(&pod.full_name(), &pod.uid(), &error);
        }
    }

    fn report_not_served(&mut self, name: &FullName, uid: &PodUid, error: &SyncError) {
        let message = error.to_string();
        if self.not_served.as_ref() != Some(&message) {
            let telemetry = &self.options.telemetry;
            occurrences::note(telemetry.pod(name, uid), HAND_OVER_FAILED, &message);
            self.not_served = Some(message);
        }
    }

    /// The versions that serve now, and those beside them.
    fn serving(&self) -> ServingPods {
        let mut pods = ServingPods::default();
        for (name, history) in &self.histories {
            let current = history.current();
            pods.serving
                .extend(current.map(|revision| (name.clone(), Arc::clone(&revision.pod))));
            if history.has_taken_over() {
                pods.successors.insert(name.clone());
            }
            pods.beside
                .extend(history.beside.as_ref().map(|(uid, _)| uid.clone()));
        }
        pods
    }

    /// Whether nothing of a pod was ever started, as far as anybody knows.
    fn is_new(&self, name: &FullName, newest: &SourcePod, listed: &Pods) -> bool {
        let known = self.histories.get(name);
        known.is_none_or(|history| history.current.is_none()) && !listed.has(&newest.uid())
    }

    /// Has a new pod wait until the Node is uncordoned, as the scheduler would.
    fn hold_back(&self, name: &FullName, decision: &mut Decision) {
        decision.history.hold_back();
        if let Some((uid, _)) = &decision.history.current {
            let telemetry = &self.options.telemetry;
            occurrences::note(telemetry.pod(name, uid), "FailedScheduling", UNSCHEDULABLE);
        }
    }

    fn look_in(&mut self, wait: Duration) {
        let at = Instant::now() + wait.min(LOOK_MAX);
        self.look_at = Some(self.look_at.map_or(at, |known| known.min(at)));
    }

    /// Completes when the decision may have to be made again.
    pub async fn changed(&mut self) {
        let open = |phase: &Phase| {
            matches!(
                phase,
                Phase::Judging
                    | Phase::Preparing
                    | Phase::Waiting(_)
                    | Phase::Failed(_)
                    | Phase::FirstFailed(_)
            ) || waits_for_port(phase)
        };
        let watched = self.phases.values().any(open)
            || self.histories.values().any(History::is_open)
            || self.queues.any();
        let waits = self
            .phases
            .values()
            .any(|phase| matches!(phase, Phase::Held(_)));
        let look_at = self.look_at;
        tokio::select! {
            changed = self.changed.changed(), if watched => match changed {
                Ok(()) => tokio::time::sleep(LOOK_PAUSE).await,
                Err(_) => std::future::pending().await,
            },
            Ok(_) = self.node.changed(), if waits => {}
            Ok(()) = self.node_edits.changed() => {}
            () = self.engine.changed() => {}
            () = self.preparations.changed() => {}
            Some(request) = self.requests.recv() => self.obey(request),
            () = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {}
        }
    }

    /// Updates the disk before another version is started: after a kill in between, the next agent must
    /// not start the old one again.
    pub async fn keep_switches(&mut self) {
        if std::mem::take(&mut self.switched) {
            self.write().await;
        }
    }

    /// Writes the decisions to disk, then answers commands: the merge that executes them is published
    /// by then. A failed write is retried, and costs history, never a pod.
    pub async fn keep(&mut self) {
        self.write().await;
        self.answer();
    }

    async fn write(&mut self) {
        if !self.store.keep(&self.histories).await {
            self.look_in(KEEP_RETRY);
        }
        let unkept = self.unkept();
        self.unkept.publish(unkept);
    }

    /// Returns why histories can't be written to disk, from the last attempt.
    pub fn unkept(&self) -> Option<Diagnostic> {
        self.store.problem()
    }

    /// Ends all preparations, and awaits them.
    pub async fn shut_down(mut self) {
        self.preparations.retain(|_| false);
        self.preparations.ended().await;
    }
}

/// Whether a version is to be started before the one that it replaces is stopped.
fn starts_first(pod: &Pod) -> bool {
    Settings::of(pod).strategy == RolloutStrategy::StartFirst
}

/// Whether a version isn't being stopped. One that is wanted again is started once it has stopped, and
/// the status of its earlier life says nothing about that.
fn lives(view: &PodView) -> bool {
    !matches!(
        view.phase,
        WorkerPhase::Terminating | WorkerPhase::Terminated
    )
}

/// The failed probes and hooks of a version that isn't ready.
fn troubles(journal: &Journal, view: Option<&PodView>) -> Vec<Trouble> {
    let unready = view.filter(|view| view.status.as_deref().is_some_and(|s| !is_ready(s)));
    unready.map_or_else(Vec::new, |view| {
        journal.troubles(&view.full_name, &view.uid)
    })
}

/// The board's view of a version, whose deadline starts then at the earliest.
fn seen<'a>(
    view: Option<&'a PodView>,
    troubles: &'a [Trouble],
    counts_from: Timestamp,
) -> View<'a> {
    View {
        troubles,
        status: view.and_then(|view| view.status.as_deref()),
        failed_probe: view.and_then(|view| view.failed_probe.as_deref()),
        counts_from,
    }
}
