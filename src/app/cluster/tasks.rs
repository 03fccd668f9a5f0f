//! The tasks that talk to the API server, over a client of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::{Parts, spawn, spawn_until};
use crate::cluster::lease::LeaseTask;
use crate::cluster::node::{NodeInputs, NodeRegistration, NodeTask};
use crate::cluster::{
    ApiReach, ClusterClient, ClusterObjects, EventTask, MirrorInputs, MirrorTask, StatusInputs,
    StatusTask,
};
use crate::source::apiserver::{ApiOptions, ApiSource};
use crate::source::{SourceReader, source};
use crate::store::board::Board;
use crate::store::cell::{Reader, Writer, cell};
use crate::store::pods::{ApiPodsWriter, PodManager};
use crate::store::settled::SettledPods;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::{FullName, NodeName, Timestamp};
use mirrorlet_core::merge::Merged;
use mirrorlet_core::mirror::{MirrorState, problem_lines};
use mirrorlet_core::node::{NodeFacts, PodProblems, Readings};
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout;
use mirrorlet_host::telemetry::Telemetry;

/// The client, and the facts about this machine at the start.
pub struct ClusterInputs {
    /// The client that all share.
    pub client: ClusterClient,
    /// The machine and the configuration, including the Node's name.
    pub facts: NodeFacts,
    /// Root directory of the agent.
    pub root: PathBuf,
    /// Whether no Engine has answered this agent or an earlier one yet.
    pub engine_is_new: bool,
}

/// The parts of the agent that the tasks read.
pub struct ClusterLinks {
    /// The desired pods.
    pub merged: Reader<Merged>,
    /// The workers' views of their pods.
    pub board: Board,
    /// The pods of the runtime's most recent list.
    pub listed: watch::Receiver<Option<Arc<Pods>>>,
    /// The wanted pods and the mirrors.
    pub manager: PodManager,
}

/// The running tasks, for the other components.
pub struct ClusterTasks {
    /// The client that all share.
    pub client: ClusterClient,
    /// The pods of the API server, as a source.
    pub pods: SourceReader,
    /// The workers' reports about settled pods.
    pub settled: SettledPods,
    /// Our Node, as the API server has it.
    pub node: Reader<Option<Arc<Node>>>,
    /// How we stand with it.
    pub standing: Reader<NodeRegistration>,
    /// The objects that pods refer to.
    pub objects: Arc<ClusterObjects>,
    /// When its Lease was renewed last.
    pub lease: Reader<Option<Timestamp>>,
    problems: Writer<PodProblems>,
    node_name: NodeName,
}

/// The channels through which the Node gets data about the machine.
pub struct Feeds {
    /// The machine and the configuration.
    pub facts: Writer<NodeFacts>,
    /// The latest readings of the machine.
    pub readings: Writer<Readings>,
}

impl ClusterTasks {
    /// Starts the tasks that depend on no other part. The Node is registered after the first reading,
    /// or after a few seconds; with a new Engine, once that answers.
    pub fn start(
        inputs: ClusterInputs,
        api_pods: ApiPodsWriter,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> (Self, Feeds) {
        let ClusterInputs {
            client,
            facts,
            root,
            engine_is_new,
        } = inputs;
        let (node_name, pods_max) = (facts.name.clone(), facts.max_pods);
        let (facts, facts_reader) = cell(facts);
        let (readings, readings_reader) = cell(Readings::default());
        let (problems, problems_reader) = cell(PodProblems::default());
        let inputs = NodeInputs {
            facts: facts_reader,
            readings: readings_reader,
            problems: problems_reader,
            engine_is_new,
        };
        let (task, node, standing) = NodeTask::new(client.clone(), inputs, telemetry.clone());
        spawn_until(parts, cancel, "node", task.run());
        let lease = LeaseTask::new(
            client.clone(),
            node_name.clone(),
            node.clone(),
            standing.clone(),
        );
        let renewed = lease.renewed();
        spawn_until(parts, cancel, "lease", lease.run());

        let settled = SettledPods::default();
        let (source_writer, pods) = source(ApiSource::name());
        let api = ApiSource::new(ApiOptions {
            client: client.client(),
            node_name: node_name.clone(),
            root,
            registered: registered(node.clone()).boxed(),
            back: Box::new({
                let reach = client.reach();
                move || back(reach.clone()).boxed()
            }),
            pods_max,
            settled: settled.clone(),
        });
        let running = api.run(source_writer, api_pods);
        spawn_until(parts, cancel, "API source", running);

        let (objects, watching) = ClusterObjects::new(client.clone(), node.clone());
        spawn_until(parts, cancel, "objects of pods", watching.run());
        let events = EventTask::new(client.clone(), telemetry.clone(), node_name.clone());
        spawn_until(parts, cancel, "events", events.run());

        let tasks = Self {
            client,
            pods,
            settled,
            node,
            standing,
            objects: Arc::new(objects),
            lease: renewed,
            problems,
            node_name,
        };
        (tasks, Feeds { facts, readings })
    }

    /// Starts the tasks that depend on other parts. Returns the state of each static pod's mirror.
    pub fn link(
        self,
        links: ClusterLinks,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Reader<BTreeMap<FullName, MirrorState>> {
        let merged = links.merged.clone();
        let inputs = MirrorInputs {
            node_name: self.node_name,
            node: self.node,
            standing: self.standing.clone(),
            merged: links.merged,
            manager: links.manager.clone(),
            board: links.board.clone(),
            listed: links.listed,
        };
        let (task, mirrors) = MirrorTask::new(self.client.clone(), inputs, telemetry.clone());
        spawn(parts, "mirrors", task.run(cancel.clone()));
        let publishing = publish_problems(mirrors.clone(), merged, self.problems);
        spawn_until(parts, cancel, "problems of pods", publishing);

        let inputs = StatusInputs {
            board: links.board,
            manager: links.manager,
            standing: self.standing,
        };
        let task = StatusTask::new(self.client, inputs, telemetry.clone());
        spawn(parts, "statuses", task.run(cancel.clone()));
        mirrors
    }
}

/// Done once our Node is registered.
async fn registered(mut node: Reader<Option<Arc<Node>>>) {
    if node.wait_for(Option::is_some).await.is_err() {
        // The agent ends.
        std::future::pending::<()>().await;
    }
}

/// Done when the API server, being away or rejecting the credentials now, serves again; never, while
/// it serves.
async fn back(mut reach: Reader<ApiReach>) {
    let away = matches!(
        *reach.get(),
        ApiReach::Down { .. } | ApiReach::Rejected { .. }
    );
    if !away || reach.wait_for(ApiReach::is_up).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Keeps the Node's conditions about its static pods current.
async fn publish_problems(
    mut mirrors: Reader<BTreeMap<FullName, MirrorState>>,
    mut merged: Reader<Merged>,
    mut problems: Writer<PodProblems>,
) {
    loop {
        problems.publish(PodProblems {
            mirrors: problem_lines(&mirrors.get()),
            rollouts: rollout::problem_lines(merged.get().pods.values()),
        });
        let changed = tokio::select! {
            changed = mirrors.changed() => changed.is_ok(),
            changed = merged.changed() => changed.is_ok(),
        };
        if !changed {
            return;
        }
    }
}
