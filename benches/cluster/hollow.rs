//! Many agents on one API server: whole agents of this process, each on an Engine in memory, each
//! a Node of its own with one static pod.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use mirrorlet::app::Agent;
use mirrorlet::config::{ApiAccess, Resolved};
use mirrorlet_testing::FakeEngine;
use mirrorlet_testing::fake_engine::FakeImage;
use tokio_util::sync::CancellationToken;

use crate::Settings;
use crate::common::cluster::Cluster;
use crate::common::{Bed, IMAGE, sleeper};
use crate::report::Figure;

/// Prefix of the names of these Nodes.
const PREFIX: &str = "hollow-";
/// Pause between the starts of two agents: a thousand nodes are not switched on together.
const STAGGER: Duration = Duration::from_millis(25);
/// How often Leases are looked at.
const LOOK: Duration = Duration::from_secs(20);
/// Longest wait for all mirrors.
const PATIENCE: Duration = Duration::from_mins(5);
/// Each agent watches its manifest directory; a kernel allows few users that many by default.
const INOTIFY_INSTANCES: &str = "/proc/sys/fs/inotify/max_user_instances";

/// A limit of the kernel's that is raised while it lives.
struct Raised {
    before: String,
}

impl Raised {
    fn to(instances: usize) -> anyhow::Result<Self> {
        let before = std::fs::read_to_string(INOTIFY_INSTANCES)?;
        if before.trim().parse::<usize>()? < instances {
            std::fs::write(INOTIFY_INSTANCES, instances.to_string())?;
        }
        Ok(Self { before })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        let _ = std::fs::write(INOTIFY_INSTANCES, &self.before);
    }
}

struct Hollow {
    agent: Agent,
    _bed: Bed,
}

fn resolved(cluster: &Cluster, bed: &Bed, node: &str) -> Resolved {
    let mut resolved = bed.resolved();
    resolved.config.node_name = node.into();
    resolved.config.kubeconfig = ApiAccess::Kubeconfig(cluster.node_kubeconfig(node));
    resolved
}

/// Measures; nothing when no agents are wanted.
pub async fn measure(settings: &Settings, cluster: &Cluster) -> anyhow::Result<Vec<Figure>> {
    if settings.agents == 0 {
        return Ok(Vec::new());
    }
    let _raised = Raised::to(settings.agents + 1024)?;
    let cancel = CancellationToken::new();
    let mut agents = Vec::new();
    for number in 0..settings.agents {
        let bed = Bed::new();
        bed.write("web.yaml", &sleeper("web"));
        let engine = FakeEngine::new();
        engine.add_image(IMAGE, FakeImage::default());
        let resolved = resolved(cluster, &bed, &format!("{PREFIX}{number}"));
        let agent = Agent::start(resolved, Arc::new(engine), &cancel).await?;
        agents.push(Hollow { agent, _bed: bed });
        tokio::time::sleep(STAGGER).await;
    }
    let client = cluster.admin().await;
    let pods: Api<Pod> = Api::all(client.clone());
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let running = ListParams::default().fields("status.phase=Running");
    let waiting = tokio::time::Instant::now();
    while mirrors(&pods, &running).await? < settings.agents {
        anyhow::ensure!(
            waiting.elapsed() < PATIENCE,
            "the agents don't all run after {PATIENCE:?}; BENCH_AGENTS sets how many there are"
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let began = Timestamp::now();
    let mut oldest = 0.0_f64;
    while Timestamp::now().duration_since(began).as_secs() < i64::try_from(settings.agents_seconds)?
    {
        tokio::time::sleep(LOOK).await;
        oldest = oldest.max(oldest_lease(&leases).await?);
    }
    let ended = Timestamp::now();
    let right = mirrors(&pods, &running).await?;
    let ready = ready_nodes(&Api::all(client)).await?;
    let mut asked = cluster.audit_all();
    let by_us = format!("system:node:{PREFIX}");
    asked.retain(|entry| {
        let counts = entry.verb != "watch" || entry.stage == "ResponseStarted";
        counts && entry.user.starts_with(&by_us) && entry.at >= began && entry.at < ended
    });
    cancel.cancel();
    for hollow in &mut agents {
        hollow.agent.drain().await;
    }
    let seconds = ended.duration_since(began).as_secs_f64();
    let each = asked.len() as f64 / seconds / settings.agents as f64;
    let all_right = right == settings.agents && ready >= settings.agents;
    Ok(vec![
        Figure {
            name: "many agents: requests of each",
            value: each,
            unit: "/s",
            floor: None,
            target: "at most 0.2, every mirror right",
            limit: if all_right { 0.2 } else { 0.0 },
            note: format!(
                "{} agents, {seconds:.0} s: {right} mirrors Running, {ready} Nodes Ready",
                settings.agents
            ),
        },
        Figure {
            name: "many agents: oldest Lease",
            value: oldest,
            unit: "s",
            floor: None,
            target: "renewed every 10 s, believed for 40 s",
            limit: 20.0,
            note: "oldest of all looks".to_owned(),
        },
    ])
}

/// Mirrors of these agents that the list shows.
async fn mirrors(pods: &Api<Pod>, running: &ListParams) -> anyhow::Result<usize> {
    let listed = pods.list(running).await?;
    let is_ours = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
        node.is_some_and(|node| node.starts_with(PREFIX))
    };
    Ok(listed.items.iter().filter(|pod| is_ours(pod)).count())
}

/// Age in seconds of the Lease of these agents that was not renewed longest.
async fn oldest_lease(leases: &Api<Lease>) -> anyhow::Result<f64> {
    let listed = leases.list(&ListParams::default()).await?;
    let now = Timestamp::now();
    let ages = listed.items.iter().filter_map(|lease| {
        lease.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
        let renewed = lease.spec.as_ref()?.renew_time.as_ref()?;
        Some(now.duration_since(renewed.0).as_secs_f64())
    });
    Ok(ages.fold(0.0, f64::max))
}

/// Nodes of these agents that are Ready.
async fn ready_nodes(nodes: &Api<Node>) -> anyhow::Result<usize> {
    let listed = nodes.list(&ListParams::default()).await?;
    let is_ready = |node: &Node| {
        let conditions = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten());
        let named = node.metadata.name.as_deref().unwrap_or_default();
        named.starts_with(PREFIX)
            && conditions
                .filter(|c| c.type_ == "Ready")
                .any(|c| c.status == "True")
    };
    Ok(listed.items.iter().filter(|node| is_ready(node)).count())
}
