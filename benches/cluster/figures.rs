//! The run: every figure in turn.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::Settings;
use crate::common::cluster::audit::AuditEntry;
use crate::common::cluster::{Cluster, Options};
use crate::common::sleeper;
use crate::finished;
use crate::hollow;
use crate::node::{Agent, Watching, now_nanos};
use crate::report::{Figure, Report, median};
use crate::streams;

/// How long nothing may be asked of the API server for the agent to have finished.
const QUIET: Duration = Duration::from_secs(3);

/// Measures everything.
pub async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let cluster = Options::default().without_scheduler().start().await;
    report.found(mirrors(settings, &cluster).await?);
    report.found([burst(settings, &cluster).await?]);
    report.found(idle(settings, &cluster).await?);
    report.found(finished::measure(settings, &cluster).await?);
    streams::measure(settings, &cluster, report).await?;
    report.found(hollow::measure(settings, &cluster).await?);
    Ok(())
}

fn millis(from: i64, to: i64) -> f64 {
    (to - from) as f64 / 1e6
}

/// How soon mirrors show what runs, and come back.
async fn mirrors(settings: &Settings, cluster: &Cluster) -> anyhow::Result<Vec<Figure>> {
    let (agent, engine) = Agent::start(settings, cluster, "bench-mirrors").await?;
    let watching = Watching::start(cluster, &agent.node).await;
    let (mut lags, mut starts, mut returns) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..settings.rounds {
        let (pod, mirror) = (format!("r{round}"), format!("r{round}-{}", agent.node));
        let saved = now_nanos();
        agent.bed.write(&format!("{pod}.yaml"), &sleeper(&pod));
        let ran = engine.until("start", &format!("k8s_{pod}_")).await;
        let told = watching
            .until(&format!("{mirror} to run"), |told| {
                told.name == mirror && told.runs
            })
            .await;
        let ran = i64::try_from(ran.at)?;
        starts.push(millis(saved, ran));
        lags.push(millis(ran, told.at));
        returns.push(deleted(cluster, &watching, &mirror, &told.uid).await);
        agent.bed.remove(&format!("{pod}.yaml"));
    }
    Ok(vec![
        Figure {
            name: "container running → mirror Running",
            value: median(&lags),
            unit: "ms",
            floor: None,
            target: "at most 300 ms",
            limit: 300.0,
            note: format!(
                "median of {}; manifest saved → container running {:.0} ms",
                settings.rounds,
                median(&starts)
            ),
        },
        Figure::new(
            "mirror force-deleted → back",
            median(&returns),
            "ms",
            "at most 200 ms",
            200.0,
            format!("median of {}", settings.rounds),
        ),
    ])
}

/// Force-deletes a mirror; milliseconds until its successor is told of.
async fn deleted(cluster: &Cluster, watching: &Watching, mirror: &str, uid: &str) -> f64 {
    let api: kube::Api<k8s_openapi::api::core::v1::Pod> =
        kube::Api::namespaced(cluster.admin().await, "default");
    let now = kube::api::DeleteParams {
        grace_period_seconds: Some(0),
        ..Default::default()
    };
    let began = now_nanos();
    api.delete(mirror, &now).await.unwrap();
    let back = watching
        .until(&format!("{mirror} to be back"), |told| {
            told.name == mirror && told.uid != uid
        })
        .await;
    millis(began, back.at)
}

/// Requests of a node since then.
fn requests(cluster: &Cluster, node: &str, since: usize) -> Vec<AuditEntry> {
    let mut entries = cluster.audit_of(&format!("system:node:{node}"));
    // A watch is told when it begins and when it ends: it is one request.
    entries.retain(|entry| entry.verb != "watch" || entry.stage == "ResponseStarted");
    entries.split_off(since.min(entries.len()))
}

/// Waits until the node asks for nothing but its Lease.
async fn quiet(cluster: &Cluster, node: &str) -> usize {
    let busy = |entries: &[AuditEntry]| entries.iter().filter(|e| e.resource != "leases").count();
    loop {
        let before = busy(&requests(cluster, node, 0));
        tokio::time::sleep(QUIET).await;
        let now = requests(cluster, node, 0);
        if busy(&now) == before {
            return now.len();
        }
    }
}

fn by_kind(entries: &[AuditEntry]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in entries {
        *kinds.entry(entry.what()).or_default() += 1;
    }
    let kinds = kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

/// Measures the requests to the API server for many static pods that start at once.
async fn burst(settings: &Settings, cluster: &Cluster) -> anyhow::Result<Figure> {
    let (agent, _engine) = Agent::start(settings, cluster, "bench-burst").await?;
    let watching = Watching::start(cluster, &agent.node).await;
    let before = quiet(cluster, &agent.node).await;
    all_running(&agent, &watching, settings.burst).await;
    quiet(cluster, &agent.node).await;
    let mut writes = requests(cluster, &agent.node, before);
    writes.retain(|e| e.writes() && e.resource == "pods");
    Ok(Figure::new(
        "API writes per static pod, many at once",
        writes.len() as f64 / settings.burst as f64,
        "writes",
        "at most 5",
        5.0,
        format!("{} pods: {}", settings.burst, by_kind(&writes)),
    ))
}

async fn all_running(agent: &Agent, watching: &Watching, pods: usize) {
    for number in 0..pods {
        let pod = format!("p{number}");
        agent.bed.write(&format!("{pod}.yaml"), &sleeper(&pod));
    }
    // A start takes a third of a second on two cores, and they are many.
    while watching.running() < pods {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Measures a node on which nothing happens.
async fn idle(settings: &Settings, cluster: &Cluster) -> anyhow::Result<Vec<Figure>> {
    let (agent, _engine) = Agent::start(settings, cluster, "bench-idle").await?;
    let watching = Watching::start(cluster, &agent.node).await;
    all_running(&agent, &watching, settings.pods).await;
    let before = quiet(cluster, &agent.node).await;
    tokio::time::sleep(Duration::from_secs(settings.idle_seconds)).await;
    let made = requests(cluster, &agent.node, before);
    let a_minute = made.len() as f64 * 60.0 / settings.idle_seconds as f64;
    let rss = agent.rss_mib()?;
    Ok(vec![
        Figure {
            name: "idle: API requests",
            value: a_minute,
            unit: "/min",
            floor: None,
            target: "at most 7 a minute (6 Leases and 1)",
            limit: 7.0,
            note: format!(
                "{} static pods, {} s: {}",
                settings.pods,
                settings.idle_seconds,
                by_kind(&made)
            ),
        },
        Figure::new(
            "idle: RSS with an API server",
            rss,
            "MiB",
            "below 30 MiB",
            30.0,
            format!("{} static pods", settings.pods),
        ),
    ])
}
