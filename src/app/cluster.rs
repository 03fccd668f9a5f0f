//! The parts that talk to the API server, wired.
//!
//! ```text
//!  ClusterClient ──► NodeTask ──► observed Node ──► Lease, admission, mirrors
//!        │                                             ▲
//!        ├──► ApiSource ──► ordinary pods ──► merge    │
//!        │        └──► all objects ──► mirrors, statuses ◄── Board, merged
//!        └──► objects that pods refer to
//! ```

use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Parts, readings, spawn};
use crate::api::core::Node;
use crate::api::report::EngineReport;
use crate::cluster::lease::LeaseTask;
use crate::cluster::node::{NodeInputs, NodeStanding, NodeTask};
use crate::cluster::{ApiReach, ClusterClient};
use crate::config::Config;
use crate::observe::Reach;
use crate::pod::admit::AdmitNode;
use crate::pod::desired::ApiPodsState;
use crate::pod::node::{NodeFacts, Readings};
use crate::source::apiserver::{ApiOptions, ApiSource};
use crate::source::{SourceReader, source};
use crate::store::cell::{Reader, Writer, cell};
use crate::telemetry::Telemetry;

/// What the other parts read of the cluster's.
pub(super) struct Cluster {
    /// The client that all share.
    pub(super) client: ClusterClient,
    /// The pods of the API server, as a source.
    pub(super) pods: SourceReader,
    /// Our Node, as the API server has it.
    pub(super) node: Reader<Option<Arc<Node>>>,
    /// How we stand with it.
    pub(super) standing: Reader<NodeStanding>,
    /// All objects bound to our Node.
    pub(super) objects: Reader<ApiPodsState>,
    /// Our Node, as admission sees it.
    pub(super) admit: Reader<AdmitNode>,
    feeds: Feeds,
}

/// What the other parts feed the cluster's with.
pub(super) struct Links {
    /// Whether the Engine answers.
    pub(super) reach: watch::Receiver<Reach>,
    /// Which Engine it is.
    pub(super) engine: watch::Receiver<EngineReport>,
}

/// The ends that the Node is fed through.
struct Feeds {
    facts: Writer<NodeFacts>,
    readings: Writer<Readings>,
    mirror_problems: Writer<Vec<String>>,
}

impl Cluster {
    /// Opens the client and starts what needs nothing of the other parts; none when no API server
    /// is configured.
    pub(super) fn start(
        config: &Config,
        owner: &str,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let opened = ClusterClient::open(&config.kubeconfig, telemetry.metrics.clone())?;
        let Some((client, credentials)) = opened else {
            return Ok(None);
        };
        spawn(parts, "credentials", credentials.run(cancel.clone()));

        let (facts, facts_reader) = cell(readings::node_facts(config, owner));
        let (readings, readings_reader) = cell(Readings::default());
        let (mirror_problems, problems_reader) = cell(Vec::new());
        let inputs = NodeInputs {
            facts: facts_reader,
            readings: readings_reader,
            mirror_problems: problems_reader,
        };
        let (task, node, standing) = NodeTask::new(client.clone(), inputs, telemetry.clone());
        spawn(parts, "node", task.run(cancel.clone()));
        let lease = LeaseTask::new(client.clone(), config.node_name.clone(), node.clone());
        spawn(parts, "lease", lease.run(cancel.clone()));

        let (source_writer, pods) = source(ApiSource::name());
        let (objects_writer, objects) = cell(None);
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
        let running = api.run(source_writer, objects_writer, cancel.clone());
        spawn(parts, "API source", running);

        let (admit_writer, admit) = cell(AdmitNode::default());
        let admitting = keep_admit_node(node.clone(), admit_writer, cancel.clone());
        spawn(parts, "admission facts", admitting);
        Ok(Some(Self {
            client,
            pods,
            node,
            standing,
            objects,
            admit,
            feeds: Feeds {
                facts,
                readings,
                mirror_problems,
            },
        }))
    }

    /// Starts what needs the other parts.
    pub(super) fn link(
        self,
        config: &Config,
        links: Links,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) {
        let Feeds {
            facts, readings, ..
        } = self.feeds;
        let keeping = readings::keep(
            config.root.clone(),
            facts,
            readings,
            links.reach,
            links.engine,
            cancel.clone(),
        );
        spawn(parts, "node readings", keeping);
    }
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

/// Keeps what admission knows of our Node. While the Node is gone its last word stands.
async fn keep_admit_node(
    mut node: Reader<Option<Arc<Node>>>,
    mut admit: Writer<AdmitNode>,
    cancel: CancellationToken,
) {
    loop {
        if let Some(node) = &*node.get() {
            admit.publish(AdmitNode::of(node));
        }
        tokio::select! {
            () = cancel.cancelled() => return,
            changed = node.changed() => if changed.is_err() { return },
        }
    }
}
