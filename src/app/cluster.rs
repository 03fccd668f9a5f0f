//! Wires the parts that talk to the API server.
//!
//! ```text
//!  ClusterClient ──► NodeTask ──► observed Node ──► Lease, admission, mirrors
//!        │                                             ▲
//!        ├──► ApiSource ──► ordinary pods ──► merge    │
//!        │        └──► all objects ──► mirrors, statuses ◄── Board, merged
//!        └──► objects that pods refer to
//! ```
//!
//! [`ClusterTasks`] has the tasks themselves, over any client; this module has the client, and the
//! facts about this machine.

mod tasks;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::tasks::{ClusterInputs, ClusterLinks, ClusterTasks, Feeds};
use super::view::ClusterView;
use super::{Parts, images, readings, spawn_until};
use crate::certificate;
use crate::cluster::{
    ClusterClient, CredentialsProblem, IdentityState, NodeIdentity, NodeRegistration,
};
use crate::config::{ApiAccess, Config};
use crate::store::cell::{Reader, Writer, cell};
use crate::store::pods::ApiPodsWriter;
use mirrorlet_core::admit::AdmitNode;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::node::NodeFacts;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_docker::ImagePuller;
use mirrorlet_host::telemetry::Telemetry;

/// The state of the identity that the API server is called as.
struct Identity {
    standing: Reader<IdentityState>,
    /// The problem with the credentials on disk or the credential plug-in.
    problem: Reader<Option<CredentialsProblem>>,
}

/// The cluster side's state, for the other components.
pub(super) struct Cluster {
    identity: Identity,
    /// Why the API server can't call the node API; none if it isn't served.
    pub(super) node_api: Option<Reader<Option<String>>>,
    /// Its tasks.
    pub(super) tasks: ClusterTasks,
    feeds: Feeds,
}

/// The inputs of the cluster side.
pub(super) struct Links {
    /// Whether the Engine answers.
    pub(super) reach: watch::Receiver<RuntimeReach>,
    /// The Engine.
    pub(super) engine: watch::Receiver<EngineReport>,
    /// Knows the Engine's images.
    pub(super) images: Arc<ImagePuller>,
    /// The pressures that the node is under.
    pub(super) pressures: Reader<Pressures>,
    /// The addresses of the machine, primary first.
    pub(super) addresses: Reader<Vec<IpAddr>>,
    /// The state of the agent that the tasks read.
    pub(super) tasks: ClusterLinks,
}

impl Cluster {
    /// Opens the client and starts the parts that depend on no other; none if no API server is
    /// configured. If the Engine is new, having never answered before, the Node waits for it.
    pub(super) fn start(
        config: &Config,
        engine_is_new: bool,
        facts: NodeFacts,
        api_pods: ApiPodsWriter,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let Some((client, identity)) = open(config, telemetry, parts, cancel)? else {
            return Ok(None);
        };
        let inputs = ClusterInputs {
            client,
            facts,
            root: config.root.clone(),
            engine_is_new,
        };
        let (tasks, feeds) = ClusterTasks::start(inputs, api_pods, telemetry, parts, cancel);
        Ok(Some(Self {
            identity,
            node_api: None,
            tasks,
            feeds,
        }))
    }

    /// Starts the parts that depend on others, and returns the readers for the status report.
    pub(super) fn link(
        self,
        links: Links,
        telemetry: &Telemetry,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> ClusterView {
        let (images_writer, images_reader) = cell(Vec::new());
        let listing = images::keep(links.images, images_writer);
        spawn_until(parts, cancel, "images", listing);
        let Self {
            identity,
            node_api,
            tasks,
            feeds,
        } = self;
        let keeping = readings::keep(
            feeds.facts,
            feeds.readings,
            links.reach,
            links.engine,
            images_reader.clone(),
            links.pressures,
            links.addresses,
        );
        spawn_until(parts, cancel, "node readings", keeping);
        ClusterView {
            reach: tasks.client.reach(),
            client: tasks.client.clone(),
            identity: identity.standing,
            credentials: identity.problem,
            node_api: node_api.unwrap_or_else(|| cell(None).1),
            node: tasks.node.clone(),
            standing: tasks.standing.clone(),
            lease: tasks.lease.clone(),
            mirrors: tasks.link(links.tasks, telemetry, parts, cancel),
            images: images_reader,
        }
    }
}

/// Opens the client and starts the task for its credentials; none if no API server is configured.
fn open(
    config: &Config,
    telemetry: &Telemetry,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<Option<(ClusterClient, Identity)>> {
    let (client, credentials, standing) = match &config.kubeconfig {
        ApiAccess::None => return Ok(None),
        access @ ApiAccess::InCluster => {
            let Some((client, credentials)) =
                ClusterClient::open(access, telemetry.metrics.clone())?
            else {
                return Ok(None);
            };
            // The API server's own: the cluster replaces its token.
            (client, credentials, cell(IdentityState::Given).1)
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
            spawn_until(parts, cancel, "client certificate", keeping.run());
            (client, credentials, standing)
        }
    };
    let problem = credentials.problem();
    spawn_until(parts, cancel, "credentials", credentials.run());
    Ok(Some((client, Identity { standing, problem })))
}

/// Maintains admission's view of our Node, its registration, and its pressures. While the Node is gone,
/// the last view applies, or `known` if there never was one.
pub(super) async fn keep_admit_node(
    mut known: AdmitNode,
    node: Option<Reader<Option<Arc<Node>>>>,
    standing: Option<Reader<NodeRegistration>>,
    mut pressures: Reader<Pressures>,
    mut admit: Writer<AdmitNode>,
) {
    let mut node = node.unwrap_or_else(|| cell(None).1);
    let mut standing = standing.unwrap_or_else(|| cell(NodeRegistration::Waiting).1);
    let (mut is_kept, mut stands) = (true, true);
    let app_armor = !known.app_armor_disabled;
    loop {
        if let Some(node) = &*node.get() {
            known = AdmitNode::of(node).on_host(app_armor);
        }
        known.is_anothers = standing.get().is_anothers();
        let pressed = Pressures::clone(&pressures.get());
        admit.publish(known.clone().under(pressed));
        tokio::select! {
            changed = node.changed(), if is_kept => is_kept = changed.is_ok(),
            changed = standing.changed(), if stands => stands = changed.is_ok(),
            changed = pressures.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn admission_is_told_whether_the_node_is_anothers() {
        let (_node, node) = cell(None);
        let (mut stands, standing) = cell(NodeRegistration::Waiting);
        let (_pressures, pressures) = cell(Pressures::new());
        let (admit, mut admitted) = cell(AdmitNode::default());
        let known = AdmitNode::default();
        let keeping = keep_admit_node(known, Some(node), Some(standing), pressures, admit);
        let taking = async {
            for is_anothers in [true, false] {
                stands.publish(NodeRegistration::Refused {
                    cause: String::new(),
                    since: mirrorlet_core::api::Timestamp::now(),
                    is_anothers,
                });
                while admitted.get().is_anothers != is_anothers {
                    admitted.changed().await.unwrap();
                }
            }
        };
        tokio::select! {
            () = keeping => unreachable!("its inputs are there"),
            // node 6l
            () = taking => assert!(!admitted.get().is_anothers),
        }
    }
}
