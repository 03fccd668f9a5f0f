//! The parts that talk to the API server, wired.
//!
//! ```text
//!  ClusterClient ──► NodeTask ──► observed Node ──► Lease, admission, mirrors
//!        │                                             ▲
//!        ├──► ApiSource ──► ordinary pods ──► merge    │
//!        │        └──► all objects ──► mirrors, statuses ◄── Board, merged
//!        └──► objects that pods refer to
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::view::ClusterView;
use super::{Parts, images, readings, spawn};
use crate::certificate;
use crate::cluster::lease::LeaseTask;
use crate::cluster::node::{NodeInputs, NodeStanding, NodeTask};
use crate::cluster::{
    ApiReach, ClusterClient, ClusterObjects, EventTask, IdentityStanding, MirrorInputs, MirrorTask,
    NodeIdentity, StatusInputs, StatusTask,
};
use crate::config::{ApiAccess, Config};
use crate::observe::Reach;
use crate::source::apiserver::{ApiOptions, ApiSource};
use crate::source::{SourceReader, source};
use crate::store::board::Board;
use crate::store::cell::{Reader, Writer, cell};
use crate::store::pods::{ApiPodsWriter, PodManager};
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::api::{FullName, Timestamp};
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::mirror::{MirrorState, problem_lines};
use mirrorlet_core::node::{NodeFacts, PodProblems, Readings};
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout;
use mirrorlet_docker::ImagePuller;
use mirrorlet_host::telemetry::Telemetry;

/// The cluster side's state, for the other components.
pub(super) struct Cluster {
    /// The client that all share.
    pub(super) client: ClusterClient,
    /// How we stand with the identity that it calls as.
    pub(super) identity: Reader<IdentityStanding>,
    /// The pods of the API server, as a source.
    pub(super) pods: SourceReader,
    /// Our Node, as the API server has it.
    pub(super) node: Reader<Option<Arc<Node>>>,
    /// How we stand with it.
    pub(super) standing: Reader<NodeStanding>,
    /// The objects that pods refer to.
    pub(super) objects: Arc<ClusterObjects>,
    /// When its Lease was renewed last.
    pub(super) lease: Reader<Option<Timestamp>>,
    feeds: Feeds,
}

/// The inputs of the cluster side.
pub(super) struct Links {
    /// Whether the Engine answers.
    pub(super) reach: watch::Receiver<Reach>,
    /// The Engine.
    pub(super) engine: watch::Receiver<EngineReport>,
    /// Knows the Engine's images.
    pub(super) images: Arc<ImagePuller>,
    /// The desired pods.
    pub(super) merged: Reader<Merged>,
    /// The workers' views of their pods.
    pub(super) board: Board,
    /// The pods of the runtime's most recent list.
    pub(super) listed: watch::Receiver<Option<Arc<Pods>>>,
    /// The wanted pods and the mirrors.
    pub(super) manager: PodManager,
    /// The pressures that the node is under.
    pub(super) pressures: Reader<Pressures>,
}

/// The ends that the Node is fed through.
struct Feeds {
    facts: Writer<NodeFacts>,
    readings: Writer<Readings>,
    problems: Writer<PodProblems>,
}

impl Cluster {
    /// Opens the client and starts what needs nothing of the other parts; none when no API server
    /// is configured.
    pub(super) fn start(
        config: &Config,
        facts: NodeFacts,
        api_pods: ApiPodsWriter,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let Some((client, identity)) = open(config, telemetry, parts, cancel)? else {
            return Ok(None);
        };

        let (facts, facts_reader) = cell(facts);
        let (readings, readings_reader) = cell(Readings::default());
        let (problems, problems_reader) = cell(PodProblems::default());
        let inputs = NodeInputs {
            facts: facts_reader,
            readings: readings_reader,
            problems: problems_reader,
        };
        let (task, node, standing) = NodeTask::new(client.clone(), inputs, telemetry.clone());
        spawn(parts, "node", task.run(cancel.clone()));
        let lease = LeaseTask::new(client.clone(), config.node_name.clone(), node.clone());
        let renewed = lease.renewed();
        spawn(parts, "lease", lease.run(cancel.clone()));

        let (source_writer, pods) = source(ApiSource::name());
        let api = ApiSource::new(ApiOptions {
            client: client.client(),
            node_name: config.node_name.clone(),
            root: config.root.clone(),
            registered: registered(node.clone()).boxed(),
            back: Box::new({
                let reach = client.reach();
                move || back(reach.clone()).boxed()
            }),
        });
        let running = api.run(source_writer, api_pods, cancel.clone());
        spawn(parts, "API source", running);

        let (objects, watching) = ClusterObjects::new(client.clone(), node.clone());
        spawn(parts, "objects of pods", watching.run(cancel.clone()));
        let events = EventTask::new(client.clone(), telemetry.clone(), config.node_name.clone());
        spawn(parts, "events", events.run(cancel.clone()));

        Ok(Some(Self {
            client,
            identity,
            pods,
            node,
            standing,
            objects: Arc::new(objects),
            lease: renewed,
            feeds: Feeds {
                facts,
                readings,
                problems,
            },
        }))
    }

    /// Starts what needs the other parts, and returns the readers for the status report.
    pub(super) fn link(
        self,
        config: &Config,
        links: Links,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> ClusterView {
        let Feeds {
            facts,
            readings,
            problems,
        } = self.feeds;
        let (images_writer, images_reader) = cell(Vec::new());
        let listing = images::keep(links.images, images_writer, cancel.clone());
        spawn(parts, "images", listing);
        let keeping = readings::keep(
            facts,
            readings,
            links.reach,
            links.engine,
            images_reader.clone(),
            links.pressures,
            cancel.clone(),
        );
        spawn(parts, "node readings", keeping);

        let merged = links.merged.clone();
        let inputs = MirrorInputs {
            node_name: config.node_name.clone(),
            node: self.node.clone(),
            merged: links.merged,
            manager: links.manager.clone(),
            board: links.board.clone(),
            listed: links.listed,
        };
        let (task, mirrors) = MirrorTask::new(self.client.clone(), inputs, telemetry.clone());
        spawn(parts, "mirrors", task.run(cancel.clone()));
        let telling = tell_problems(mirrors.clone(), merged, problems, cancel.clone());
        spawn(parts, "problems of pods", telling);

        let inputs = StatusInputs {
            board: links.board,
            manager: links.manager,
        };
        let task = StatusTask::new(self.client.clone(), inputs, telemetry.clone());
        spawn(parts, "statuses", task.run(cancel.clone()));
        ClusterView {
            server: self.client.server().to_owned(),
            reach: self.client.reach(),
            identity: self.identity,
            node: self.node,
            standing: self.standing,
            lease: self.lease,
            mirrors,
            images: images_reader,
        }
    }
}

/// Opens the client and starts what keeps its identity; none when no API server is configured.
fn open(
    config: &Config,
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<Option<(ClusterClient, Reader<IdentityStanding>)>> {
    let (client, credentials, identity) = match &config.kubeconfig {
        ApiAccess::None => return Ok(None),
        access @ ApiAccess::InCluster => {
            let Some((client, credentials)) =
                ClusterClient::open(access, telemetry.metrics.clone())?
            else {
                return Ok(None);
            };
            // The API server's own: the cluster replaces its token.
            (client, credentials, cell(IdentityStanding::Given).1)
        }
        ApiAccess::Kubeconfig(path) => {
            let options = NodeIdentity {
                kubeconfig: path.clone(),
                bootstrap: config.bootstrap_kubeconfig.clone(),
                directory: config.root.join(certificate::DIRECTORY),
                node: config.node_name.clone(),
            };
            let (client, credentials, keeping) = ClusterClient::open_node(options, telemetry)?;
            let standing = keeping.standing();
            spawn(parts, "client certificate", keeping.run(cancel.clone()));
            (client, credentials, standing)
        }
    };
    spawn(parts, "credentials", credentials.run(cancel.clone()));
    Ok(Some((client, identity)))
}

/// Done once our Node is registered.
async fn registered(mut node: Reader<Option<Arc<Node>>>) {
    if node.wait_for(Option::is_some).await.is_err() {
        // The agent ends.
        std::future::pending::<()>().await;
    }
}

/// Done when the API server, being away now, answers again; never, while it isn't away.
async fn back(mut reach: Reader<ApiReach>) {
    let away = matches!(*reach.get(), ApiReach::Down { .. });
    if !away || reach.wait_for(ApiReach::is_up).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Keeps what admission knows of our Node and what it is short of. While the Node is gone, its last
/// word stands; `known` where there never was one.
pub(super) async fn keep_admit_node(
    mut known: AdmitNode,
    node: Option<Reader<Option<Arc<Node>>>>,
    mut pressures: Reader<Pressures>,
    mut admit: Writer<AdmitNode>,
    cancel: CancellationToken,
) {
    let mut node = node.unwrap_or_else(|| cell(None).1);
    let (app_armor, mut is_kept) = (!known.app_armor_disabled, true);
    loop {
        if let Some(node) = &*node.get() {
            known = AdmitNode::of(node).on_host(app_armor);
        }
        let pressed = Pressures::clone(&pressures.get());
        admit.publish(known.clone().under(pressed));
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = node.changed(), if is_kept => is_kept = changed.is_ok(),
            changed = pressures.changed() => if changed.is_err() { return },
        }
    }
}

/// Keeps the Node's conditions about its static pods current.
async fn tell_problems(
    mut mirrors: Reader<BTreeMap<FullName, MirrorState>>,
    mut merged: Reader<Merged>,
    mut problems: Writer<PodProblems>,
    cancel: CancellationToken,
) {
    loop {
        problems.publish(PodProblems {
            mirrors: problem_lines(&mirrors.get()),
            rollouts: rollout::problem_lines(merged.get().pods.values()),
        });
        let changed = tokio::select! {
            () = cancel.cancelled() => return,
            changed = mirrors.changed() => changed.is_ok(),
            changed = merged.changed() => changed.is_ok(),
        };
        if !changed {
            return;
        }
    }
}
