//! Costs of the embedded API: beside an agent without it, and beside a real API server.
//!
//! Runs the program as a child process on the real Engine, and etcd and kube-apiserver for the floor.
//! Agent and floor alternate.
//!
//! `make bench` runs it. Settings are environment variables, see `benches/README.md`.
#![allow(unreachable_pub, reason = "a program's own modules")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "it shares the tests' bed and cluster, which fail loudly"
)]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(
    clippy::cast_precision_loss,
    reason = "figures are small and printed rounded"
)]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../agent/process.rs"]
#[expect(dead_code, reason = "the agent's figures need more of it")]
mod process;
#[path = "../common/report.rs"]
mod report;
#[path = "../common/settings.rs"]
mod settings;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use common::alone::Alone;
use common::cluster::{Options, programs};
use common::writes::{Kills, Load, watch_changes, write_and_kill};
use common::{Bed, eventually, sleeper};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use report::{Figure, Report, median};
use settings::{binary, number};

/// Watches that are open while memory is measured.
const WATCHES: usize = 10;
/// How long the agent is left alone before its memory is read.
const CALM_DOWN: Duration = Duration::from_secs(5);

/// The settings of a run.
struct Settings {
    binary: PathBuf,
    rounds: usize,
    pods: usize,
    idle_seconds: u64,
    kills: usize,
    watch_seconds: u64,
}

fn main() -> anyhow::Result<()> {
    // `cargo test --all-targets` runs bench programs too, without this flag.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let settings = Settings {
        binary: binary(),
        rounds: usize::try_from(number("BENCH_ROUNDS", 15)?)?,
        pods: usize::try_from(number("BENCH_PODS", 50)?)?,
        idle_seconds: number("BENCH_IDLE", 60)?,
        kills: usize::try_from(number("BENCH_KILLS", 50)?)?,
        watch_seconds: number("BENCH_WATCH", 60)?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let with = serde_json::json!({
        "rounds": settings.rounds, "pods": settings.pods, "idleSeconds": settings.idle_seconds,
        "kills": settings.kills, "watchSeconds": settings.watch_seconds,
    });
    let mut report = Report::begin("embedded", with);
    runtime.block_on(measure(&settings, &mut report))?;
    report.finish()
}

/// Processor time in percent of a core, and resident memory, after nobody asked for a while.
async fn idle(agent: &Alone, seconds: u64) -> (f64, f64) {
    tokio::time::sleep(CALM_DOWN).await;
    let before = process::cpu_seconds(agent.pid());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = process::cpu_seconds(agent.pid()) - before;
    let rss = process::memory_mib(agent.pid(), "VmRSS");
    (used / seconds as f64 * 100.0, rss)
}

async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let bed = Bed::new();
    for number in 0..settings.pods {
        let name = format!("p{number}");
        bed.write(&format!("{name}.yaml"), &sleeper(&name));
    }
    let agent = Alone::serve(&settings.binary, &bed);
    let pods: Api<Pod> = Api::namespaced(agent.client().await, "default");
    let all = settings.pods;
    until_running(&pods, all).await?;

    report.found([latency(settings, &bed, &pods).await?]);
    report.found(beside_a_cluster(settings, &agent, &pods).await?);
    drop(agent);
    report.found(memory(settings, &bed).await?);
    report.found(under_load(settings).await);
    Ok(())
}

async fn until_running(pods: &Api<Pod>, number: usize) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_mins(5);
    loop {
        let listed = pods.list(&ListParams::default()).await?;
        let phase = |pod: &Pod| pod.status.as_ref()?.phase.clone();
        let running = listed
            .items
            .iter()
            .filter(|pod| phase(pod).as_deref() == Some("Running"));
        if running.count() >= number {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < end, "the pods do not run");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// From the Engine's own time of a start to the watch that shows the pod running.
async fn latency(settings: &Settings, bed: &Bed, pods: &Api<Pod>) -> anyhow::Result<Figure> {
    let engine = bed.record();
    let from = pods
        .list(&ListParams::default())
        .await?
        .metadata
        .resource_version;
    let stream = pods
        .watch(&WatchParams::default(), &from.unwrap_or_default())
        .await?;
    let mut stream = std::pin::pin!(stream);
    let mut lags = Vec::new();
    for round in 0..settings.rounds {
        let name = format!("l{round}");
        bed.write(&format!("{name}.yaml"), &sleeper(&name));
        let seen = loop {
            let event = stream.try_next().await?.context("the watch ended")?;
            let (WatchEvent::Added(pod) | WatchEvent::Modified(pod)) = event else {
                continue;
            };
            let phase = pod.status.and_then(|status| status.phase);
            let is_it = pod
                .metadata
                .name
                .is_some_and(|known| known == format!("{name}-bench"));
            if is_it && phase.as_deref() == Some("Running") {
                break now_nanos();
            }
        };
        let ran = engine.until("start", &format!("k8s_{name}_")).await;
        lags.push((seen - i64::try_from(ran.at)?) as f64 / 1e6);
        bed.remove(&format!("{name}.yaml"));
    }
    Ok(Figure::new(
        "event on the Engine → seen by a watch",
        median(&lags),
        "ms",
        "at most 50 ms",
        50.0,
        format!("median of {}", settings.rounds),
    ))
}

/// Lists here and at a real API server with as many pods.
async fn beside_a_cluster(
    settings: &Settings,
    agent: &Alone,
    pods: &Api<Pod>,
) -> anyhow::Result<Vec<Figure>> {
    let cluster = Options::default().without_scheduler().start().await;
    let theirs: Api<Pod> = Api::namespaced(cluster.admin().await, "default");
    // Without it no pod can be made.
    eventually("the ServiceAccount of pods", || {
        let found = cluster.try_kubectl(&["get", "serviceaccount", "default"]);
        found.ok()
    })
    .await;
    // As many objects of the same size; nothing runs there.
    for mut pod in pods.list(&ListParams::default()).await?.items {
        let status = pod.status.take();
        pod.metadata = kube::api::ObjectMeta {
            name: pod.metadata.name,
            labels: pod.metadata.labels,
            ..kube::api::ObjectMeta::default()
        };
        if let Some(spec) = &mut pod.spec {
            spec.node_name = None;
        }
        let name = pod.metadata.name.clone().unwrap_or_default();
        theirs.create(&PostParams::default(), &pod).await?;
        let patch = serde_json::json!({"status": status});
        let merge = kube::api::Patch::Merge(patch);
        theirs
            .patch_status(&name, &kube::api::PatchParams::default(), &merge)
            .await?;
    }
    let (mut kubectl, mut client) = (<[Vec<f64>; 2]>::default(), <[Vec<f64>; 2]>::default());
    let cache = tempfile::tempdir()?;
    for _ in 0..settings.rounds {
        kubectl[0].push(get_pods(&agent.kubeconfig(), cache.path(), settings.pods)?);
        kubectl[1].push(get_pods(
            &cluster.admin_kubeconfig(),
            cache.path(),
            settings.pods,
        )?);
        for (api, times) in [pods, &theirs].into_iter().zip(&mut client) {
            let began = Instant::now();
            let listed = api.list(&ListParams::default()).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            anyhow::ensure!(listed.items.len() >= settings.pods, "pods are missing");
        }
    }
    let note = format!("{} pods, median of {}", settings.pods, settings.rounds);
    let figure = |name, times: &[Vec<f64>; 2]| Figure {
        floor: Some(median(&times[1])),
        ..Figure::new(
            name,
            median(&times[0]),
            "ms",
            "at most that of a real API server",
            median(&times[1]),
            note.clone(),
        )
    };
    Ok(vec![
        figure("kubectl get pods", &kubectl),
        figure("a list of pods by kube-rs", &client),
    ])
}

/// Milliseconds of one `kubectl get pods`.
fn get_pods(
    kubeconfig: &std::path::Path,
    cache: &std::path::Path,
    pods: usize,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let output = Command::new(programs::embedded_kubectl())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--cache-dir")
        .arg(cache)
        .args(["get", "pods", "--no-headers"])
        .env_remove("KUBECONFIG")
        .output()?;
    let took = began.elapsed().as_secs_f64() * 1e3;
    let rows = String::from_utf8_lossy(&output.stdout).lines().count();
    anyhow::ensure!(rows >= pods, "kubectl printed {rows} rows");
    Ok(took)
}

/// Memory and idle time without the API, with it, and with watches.
async fn memory(settings: &Settings, bed: &Bed) -> anyhow::Result<Vec<Figure>> {
    let window = settings.idle_seconds;
    let agent = Alone::start(&settings.binary, bed, "none");
    let without = idle(&agent, window).await;
    drop(agent);
    let agent = Alone::serve(&settings.binary, bed);
    let alone = idle(&agent, window).await;
    let pods: Api<Pod> = Api::namespaced(agent.client().await, "default");
    until_running(&pods, settings.pods).await?;
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let mut stream = Box::pin(pods.watch(&WatchParams::default(), "0").await?);
        for _ in 0..settings.pods {
            stream.try_next().await?.context("the watch ended")?;
        }
        watches.push(stream);
    }
    let busy = idle(&agent, window).await;
    drop(watches);
    let note = |rss: f64| format!("{rss:.1} MiB, {:.1} without the API", without.1);
    Ok(vec![
        Figure::new(
            "RSS above the agent without it, 10 watches",
            busy.1 - without.1,
            "MiB",
            "at most 10 MiB",
            10.0,
            note(busy.1),
        ),
        Figure::new(
            "… with no client",
            alone.1 - without.1,
            "MiB",
            "at most 1 MiB",
            1.0,
            note(alone.1),
        ),
        Figure {
            floor: Some(without.0),
            ..Figure::new(
                "idle with it, no client: CPU",
                alone.0,
                "%",
                "as without it, to 0.05 % of a core",
                without.0 + 0.05,
                format!("{window} s"),
            )
        },
    ])
}

/// Counts acknowledged writes that are lost when the agent is killed, and changes that watches miss.
async fn under_load(settings: &Settings) -> [Figure; 3] {
    let bed = Bed::new();
    let agent = Alone::serve(&settings.binary, &bed);
    let load = Load {
        watches: 100,
        changes: 100 * settings.watch_seconds,
        pause: Duration::from_millis(10),
    };
    let seen = watch_changes(agent.client().await, load).await;
    drop(agent);
    let bed = Bed::new();
    let kills = Kills {
        kills: settings.kills,
        writes: 200,
    };
    let outcome = write_and_kill(&settings.binary, &bed, kills).await;
    if outcome.faults() > 0 {
        println!("{outcome:#?}");
    }
    let took = seen.took.as_secs_f64();
    [
        Figure::new(
            "100 watches: changes lost, misplaced, doubled",
            (seen.lost + seen.out_of_order + seen.doubled) as f64,
            "",
            "0",
            0.0,
            format!("{} changes in {took:.1} s", load.changes),
        ),
        Figure::new(
            "… time of a change",
            took * 1e3 / load.changes as f64,
            "ms",
            "100 changes a second, to a twentieth",
            1.05 * load.pause.as_secs_f64() * 1e3,
            "four clients write in turn".to_owned(),
        ),
        Figure::new(
            "killed while it writes: lost, half-written",
            outcome.faults() as f64,
            "",
            "0",
            0.0,
            format!(
                "{} acknowledged writes, killed {} times",
                outcome.acknowledged, settings.kills
            ),
        ),
    ]
}

/// Nanoseconds since 1970 by this machine's clock, which is the Engine's too.
fn now_nanos() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
