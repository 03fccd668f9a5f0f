//! Our Node: registered, updated, and registered again when it was deleted.
//!
//! ```text
//!  facts, readings, mirror problems ──► look ──► pod::node (pure) ──► patch ──► API server
//!                                        ▲                              │          │
//!                        every 10 s ─────┘                              ▼          │
//!                                                     observed Node ◄── watch ◄────┘
//! ```
//!
//! Upstream: `pkg/kubelet/kubelet_node_status.go`.

mod register;
mod standing;
#[cfg(test)]
mod tests;

pub use standing::NodeRegistration;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, Event};
use tokio::time::{Instant, MissedTickBehavior};

use super::client::ClusterClient;
use super::error::ApiError;
use crate::store::cell::{Reader, Writer, cell};
use mirrorlet_core::api::core::{Node, NodeStatus};
use mirrorlet_core::api::{Timestamp, Watched};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::node::{
    Claim, LeaseWatch, NodeEvent, NodeFacts, PodProblems, Readings, RuntimeReach,
    believed_conditions, compute_node_status, decide_write, still_claimed, transitions,
};
use mirrorlet_host::random::spread;
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// How often the status is computed though nothing woke us: upstream's
/// `nodeStatusUpdateFrequency`.
const LOOK_PERIOD: Duration = Duration::from_secs(10);
/// Deadline of one call about the Node: it must end before the next look.
const NODE_DEADLINE: Duration = Duration::from_secs(8);
/// Shortest time between two writes of the status: a reading that flaps must not become a load.
/// The first change after a quiet while is written at once.
const WRITE_GAP: Duration = Duration::from_secs(1);
/// Pauses after writes that failed; by the longest the next look comes anyway.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(5));
/// How long a watch may last, in seconds, before the server ends it. Long, since each costs a
/// request; TCP keep-alive finds dead connections.
const WATCH_SECONDS: u32 = 600;
/// How long the answer to a request of ours counts for more than an older Node of the watch, which lags by
/// half a minute at most. Versions that stay behind are those of an API server that was restored from a
/// backup.
const ANSWER_COUNTS: Duration = Duration::from_secs(30);
/// Longest wait at the start for the first word of the Engine and its version, so that the Node
/// isn't registered as not ready only to be ready a moment later.
const ENGINE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Namespace of the Leases of Nodes.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";

/// The inputs of the Node.
#[derive(Debug, Clone)]
pub struct NodeInputs {
    /// The machine and the configuration. The name must not change.
    pub facts: Reader<NodeFacts>,
    /// The latest readings of the machine.
    pub readings: Reader<Readings>,
    /// Static pods without their mirror pod, one line each.
    pub problems: Reader<PodProblems>,
    /// Whether no Engine has answered this agent or an earlier one yet: the host may have none.
    pub engine_is_new: bool,
}

/// The task that owns our Node.
pub struct NodeTask {
    client: ClusterClient,
    nodes: Api<Watched<Node>>,
    leases: Api<Lease>,
    name: String,
    inputs: NodeInputs,
    telemetry: Telemetry,
    observed: Writer<Option<Arc<Node>>>,
    standing: Writer<NodeRegistration>,
    /// The status that was computed last, written or not.
    computed: NodeStatus,
    /// When a status was written last.
    written: Option<Timestamp>,
    /// When the Node came with an answer last, and not by the watch.
    answered: Option<Instant>,
    /// Whether the Node was ours once, and so has the event that the agent started.
    has_begun: bool,
    /// Set from an outage of the API server until the Node was read again: the last reported read
    /// failure, if any.
    unread: Option<String>,
    /// When that began last.
    doubted: Option<Instant>,
    /// The earliest time to read the Node then.
    read_after: Instant,
    /// Pauses before that.
    doubts: ExponentialBackoff,
    /// The Lease of our name, while the Node isn't ours.
    lease_seen: LeaseWatch,
    /// When the task began.
    began: Instant,
}

/// Why a Node isn't kept true any more.
enum Left {
    /// It is deleted, or another one has its name.
    Gone,
    /// It is another's, in these words.
    Taken(String),
}

/// The watch of our Node.
struct Watch {
    events: BoxStream<'static, watcher::Result<Event<Watched<Node>>>>,
    /// Whether the list that began last has shown the Node.
    has_seen: bool,
    is_broken: bool,
}

/// Pauses after failures of the watch, random in part, so that agents that lost the API server together
/// don't come back together. They grow until two minutes have passed without a failure, both of which
/// [`DefaultBackoff`] sees to by itself. By kube's stream they would begin again with each event, of which a
/// list has some before it is asked for: the watch after it may be refused each time.
#[derive(Default)]
struct WatchPauses(DefaultBackoff);

impl Iterator for WatchPauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for WatchPauses {
    fn reset(&mut self) {}
}

/// The meaning of a watch event.
enum News {
    None,
    /// The stream has ended.
    Ended,
    Gone,
    Node(Box<Node>),
}

impl Watch {
    fn news(
        &mut self,
        event: Option<watcher::Result<Event<Watched<Node>>>>,
        client: &ClusterClient,
    ) -> News {
        match event {
            None => return News::Ended,
            // The client reports a server that is away, for all callers.
            Some(Err(error)) => {
                let was_broken = std::mem::replace(&mut self.is_broken, true);
                if !was_broken && client.reach().get().is_up() {
                    occurrences::watch_failed("nodes", &ApiError::from(error).to_string());
                }
            }
            Some(Ok(Event::Init)) => self.has_seen = false,
            Some(Ok(Event::InitDone)) if self.has_seen => self.is_broken = false,
            Some(Ok(Event::InitDone | Event::Delete(_))) => return News::Gone,
            Some(Ok(Event::InitApply(Watched(node)) | Event::Apply(Watched(node)))) => {
                (self.has_seen, self.is_broken) = (true, false);
                return News::Node(Box::new(node));
            }
        }
        News::None
    }
}

/// The result of a check.
enum Looked {
    /// All is written.
    Fine,
    /// The status couldn't be written.
    Failed,
    /// The Node is gone.
    Gone,
    /// The Node is another's, in these words.
    Taken(String),
}

impl NodeTask {
    /// Returns a task that owns the Node of these inputs, with readers of the last observed Node (none
    /// while it doesn't exist) and of its registration.
    pub fn new(
        client: ClusterClient,
        inputs: NodeInputs,
        telemetry: Telemetry,
    ) -> (Self, Reader<Option<Arc<Node>>>, Reader<NodeRegistration>) {
        let (observed, observed_reader) = cell(None);
        let (standing, standing_reader) = cell(NodeRegistration::Waiting);
        let task = Self {
            nodes: Api::all(client.client()),
            leases: Api::namespaced(client.client(), LEASE_NAMESPACE),
            name: inputs.facts.get().name.to_string(),
            client,
            inputs,
            telemetry,
            observed,
            standing,
            computed: NodeStatus::default(),
            written: None,
            answered: None,
            has_begun: false,
            unread: None,
            doubted: None,
            read_after: Instant::now(),
            doubts: RETRY,
            lease_seen: LeaseWatch::default(),
            began: Instant::now(),
        };
        (task, observed_reader, standing_reader)
    }

    /// Runs until cancelled. The Node stays: the expiry of its Lease shows that the agent is gone.
    pub async fn run(mut self) {
        if self.inputs.engine_is_new {
            engine_is_up(&mut self.inputs).await;
        }
        let first_word = first_word(&mut self.inputs);
        let _ = tokio::time::timeout(ENGINE_WAIT_MAX, first_word).await;
        loop {
            let registered = self.register().await;
            match self.follow(registered).await {
                Left::Gone => {
                    self.standing.publish(NodeRegistration::Waiting);
                    occurrences::node_gone(&self.name);
                }
                // Reported before the Node is published: it must not look like one that is registered
                // again.
                Left::Taken(cause) => {
                    occurrences::node_taken(&self.name, &cause);
                    let since = Timestamp::now();
                    self.standing.publish(NodeRegistration::Refused {
                        cause,
                        since,
                        is_anothers: true,
                    });
                }
            }
            self.observed.publish(None);
        }
    }

    /// Keeps a registered Node true until it is gone, or another's.
    async fn follow(&mut self, mut node: Node) -> Left {
        self.unread = None;
        self.take(&node);
        let mut reach = self.client.reach();
        let mut ticks = tokio::time::interval(LOOK_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut backoff = RETRY;
        // When the next look is due, and the earliest time it may be taken.
        let (mut due, mut earliest) = (Some(Instant::now()), Instant::now());
        let mut watch = self.watch();
        loop {
            if let Claim::Foreign(cause) = still_claimed(&node, &self.inputs.facts.get()) {
                return Left::Taken(cause);
            }
            // Every arm may be dropped: readers mark nothing as seen then, and an event that
            // was not taken yet stays in its stream.
            let is_time = tokio::select! {
                () = until(due, earliest) => true,
                _ = ticks.tick() => false,
                Ok(_) = self.inputs.facts.changed() => false,
                Ok(_) = self.inputs.readings.changed() => false,
                Ok(_) = self.inputs.problems.changed() => false,
                Ok(now) = reach.changed() => {
                    if now.is_up() && watch.is_broken {
                        // The server is back: no need to wait for the watch's own pause.
                        watch = self.watch();
                    }
                    if let Some(at) = self.read_at(&now) {
                        backoff.reset();
                        (due, earliest) = (Some(at), at);
                    }
                    false
                }
                event = watch.events.next() => match watch.news(event, &self.client) {
                    News::None => continue,
                    // A watch never ends by itself.
                    News::Ended => { watch = self.watch(); continue }
                    News::Gone => return Left::Gone,
                    News::Node(news) if news.metadata.uid != node.metadata.uid => {
                        return Left::Gone;
                    }
                    News::Node(news) if self.is_behind(&news, &node) => continue,
                    News::Node(news) => {
                        self.report_schedulable(&node, &news);
                        node = *news;
                        self.take(&node);
                        false
                    }
                },
            };
            if !is_time {
                due.get_or_insert_with(Instant::now);
                continue;
            }
            let before = self.written;
            due = match self.look(&mut node).await {
                Looked::Gone => return Left::Gone,
                Looked::Taken(cause) => return Left::Taken(cause),
                Looked::Failed => Some(Instant::now() + spread(backoff.pause())),
                Looked::Fine => {
                    backoff.reset();
                    if self.written != before {
                        earliest = Instant::now() + WRITE_GAP;
                    }
                    None
                }
            };
        }
    }

    fn watch(&self) -> Watch {
        let config = watcher::Config::default()
            .fields(&format!("metadata.name={}", self.name))
            .timeout(WATCH_SECONDS);
        let events = watcher::watcher(Api::all(self.client.client()), config);
        Watch {
            events: events.backoff(WatchPauses::default()).boxed(),
            has_seen: false,
            is_broken: false,
        }
    }

    /// Whether the watch shows an older Node than the answer to a request of ours, which counts still.
    fn is_behind(&self, news: &Node, known: &Node) -> bool {
        let answered = self.answered;
        answered.is_some_and(|at| at.elapsed() < ANSWER_COUNTS) && !is_newer(news, known)
    }

    /// Publishes the Node as it was seen.
    fn take(&mut self, node: &Node) {
        let mut seen = node.clone();
        seen.metadata.managed_fields = None;
        self.observed.publish(Some(Arc::new(seen)));
        self.standing.publish(NodeRegistration::Registered {
            uid: node.metadata.uid.clone().unwrap_or_default(),
            is_certain: self.unread.is_none(),
        });
    }

    fn report_schedulable(&self, before: &Node, after: &Node) {
        let is_off = |node: &Node| {
            let spec = node.spec.as_ref();
            spec.and_then(|spec| spec.unschedulable).unwrap_or(false)
        };
        let reason = match (is_off(before), is_off(after)) {
            (false, true) => "NodeNotSchedulable",
            (true, false) => "NodeSchedulable",
            (true, true) | (false, false) => return,
        };
        let message = format!("Node {} status is now: {reason}", self.name);
        occurrences::node_event(&self.telemetry, &NodeEvent::normal(reason, message));
    }

    /// Reports events of the Node, which is ours; first of all that we start.
    fn report(&mut self, events: &[NodeEvent]) {
        if !std::mem::replace(&mut self.has_begun, true) {
            occurrences::node_starting(&self.telemetry);
        }
        for event in events {
            occurrences::node_event(&self.telemetry, event);
        }
    }

    /// Computes the status that our Node should have now from its present one, and the events of the
    /// changes.
    fn compute(&mut self, base: &NodeStatus, now: Timestamp) -> (NodeStatus, Vec<NodeEvent>) {
        let facts = self.inputs.facts.get();
        let readings = self.inputs.readings.get();
        let before = NodeStatus {
            conditions: Some(believed_conditions(
                self.computed.conditions.as_deref().unwrap_or_default(),
                base.conditions.as_deref().unwrap_or_default(),
            )),
            node_info: self.computed.node_info.clone().or(base.node_info.clone()),
            ..NodeStatus::default()
        };
        let desired = compute_node_status(
            &facts,
            &readings,
            &self.inputs.problems.get(),
            before.conditions.as_deref().unwrap_or_default(),
            now,
        );
        let events = transitions(&self.name, &before, &desired);
        self.computed = desired.clone();
        (desired, events)
    }

    /// Computes the status, and writes it if it is due.
    async fn look(&mut self, node: &mut Node) -> Looked {
        if self.unread.is_some()
            && let Some(looked) = self.read_again(node).await
        {
            return looked;
        }
        let now = Timestamp::now();
        let base = node.status.clone().unwrap_or_default();
        let (desired, events) = self.compute(&base, now);
        self.report(&events);
        let uid = node.metadata.uid.clone().unwrap_or_default();
        let Some(patch) = decide_write(&uid, &base, &desired, self.written, now) else {
            return Looked::Fine;
        };
        let patch = Patch::Strategic(patch);
        let params = PatchParams::default();
        let call = self.nodes.patch_status(&self.name, &params, &patch);
        match self.client.heartbeat(NODE_DEADLINE, call).await {
            Ok(Watched(written)) => {
                self.written = Some(now);
                self.answered = Some(Instant::now());
                *node = written;
                self.take(node);
                Looked::Fine
            }
            Err(ApiError::NotFound(_)) => Looked::Gone,
            Err(error) => {
                // The patch names the UID, so this may be another Node of our name.
                if matches!(error, ApiError::Conflict(_)) && self.is_replaced(&uid).await {
                    return Looked::Gone;
                }
                if !error.is_away() {
                    occurrences::node_status_failed(&error.to_string());
                }
                Looked::Failed
            }
        }
    }

    async fn is_replaced(&self, uid: &str) -> bool {
        let call = self.nodes.get_opt(&self.name);
        match self.client.read(NODE_DEADLINE, call).await {
            Ok(node) => node.and_then(|node| node.0.metadata.uid).as_deref() != Some(uid),
            Err(_) => false,
        }
    }
}

/// Waits until the Engine answers.
async fn engine_is_up(inputs: &mut NodeInputs) {
    let is_up = |readings: &Readings| readings.engine == RuntimeReach::Up;
    // There is no publisher any more: the agent ends.
    let _ = inputs.readings.wait_for(is_up).await;
}

/// Waits until the Engine was heard of, and if it answers, until its version is known.
async fn first_word(inputs: &mut NodeInputs) {
    let heard = |readings: &Readings| readings.engine != RuntimeReach::Unknown;
    let Ok(readings) = inputs.readings.wait_for(heard).await else {
        return;
    };
    if readings.engine == RuntimeReach::Up {
        let known = |facts: &NodeFacts| facts.engine_version.is_some();
        // There is no publisher any more: the agent ends.
        let _ = inputs.facts.wait_for(known).await;
    }
}

/// Waits for the later of both; forever without `due`.
async fn until(due: Option<Instant>, earliest: Instant) {
    match due {
        Some(due) => tokio::time::sleep_until(due.max(earliest)).await,
        None => std::future::pending().await,
    }
}

/// Whether `news` is a later version than `known`. Versions of one object are numbers that grow;
/// what isn't a number counts as later.
fn is_newer(news: &Node, known: &Node) -> bool {
    let version = |node: &Node| {
        let version = node.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse::<u64>().ok())
    };
    match (version(news), version(known)) {
        (Some(news), Some(known)) => news > known,
        (_, _) => true,
    }
}
