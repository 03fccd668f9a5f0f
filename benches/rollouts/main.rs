//! Edits as clients of a host port see them: failed requests, and the time without an answer. The same
//! edits of Docker Compose are measured beside.
//!
//! Every request is a connection of its own, begun whether the ones before were answered or not.
//! `make bench` runs it. Settings are environment variables, see `benches/README.md`.
#![allow(unreachable_pub, reason = "a program's own modules")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "it shares the tests' registry, which fails loudly"
)]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

#[allow(dead_code, reason = "shared with another bench, which needs more")]
#[path = "../agent/agent.rs"]
mod agent;
#[allow(dead_code, reason = "shared with another bench, which needs more")]
#[path = "../agent/bed.rs"]
mod bed;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../common/report.rs"]
mod report;
#[path = "../common/settings.rs"]
mod settings;
mod traffic;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use agent::Agent;
use bed::Bed;
use common::registry::Registry;
use report::{Figure, Report, median};
use settings::{binary, number};
use traffic::{Seen, Traffic, ask};

/// The program that is measured, and its Engine.
pub struct Settings {
    /// The program to measure.
    pub binary: PathBuf,
    /// Address of the Engine.
    pub docker: String,
    /// Edits of each kind.
    edits: u64,
    /// Compose, if it is there.
    compose: Option<PathBuf>,
}

/// Requests a second.
const RATE: u32 = 200;
/// Seconds until a client's kernel sends its first packet again. A wait is that much longer than the stop
/// and the start.
const RESEND_SECONDS: f64 = 1.1;
/// Share of Compose's time without an answer.
const COMPOSE_SHARE: f64 = 0.7;
/// Most of the time without an answer of an edit whose image is pulled, as a multiple of that of one
/// whose image is there: the same, but for what two series differ by.
const PULLED_SHARE: f64 = 1.1;
/// Engine calls of an edit but for the stops, the creates and the starts.
const MORE_CALLS: f64 = 3.0;
/// Longest wait for an edit to come to its end.
const PATIENCE: Duration = Duration::from_mins(1);
/// How long traffic goes on before an edit and after it.
const CALM: Duration = Duration::from_millis(1500);
/// Source of the server.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/rollouts/web.rs");
/// The script of a container: the server answers with the edition of its image, and `END` runs on SIGTERM.
const SCRIPT: &str = "trap 'END' TERM; /server/web & wait";
/// It ends at once, as Compose's does.
const AT_ONCE: &str = "exit 0";
/// It finishes what it has begun.
const IN_PEACE: &str = "sleep 1";

fn main() -> anyhow::Result<()> {
    // `cargo test --all-targets` runs bench programs too, without this flag.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let settings = Settings {
        binary: binary(),
        docker: std::env::var("DOCKER_HOST")
            .unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()),
        edits: number("BENCH_EDITS", 20)?,
        compose: std::env::var_os("BENCH_COMPOSE").map(PathBuf::from),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let bed = Bed::new(&settings.docker)?;
    let with = serde_json::json!({"edits": settings.edits, "rate": RATE});
    let mut report = Report::begin("rollouts", with);
    let measured = runtime.block_on(measure(&settings, &bed, &mut report));
    clean_up(&settings, &bed)?;
    measured?;
    report.finish()
}

/// Removes what the agent left, however the measurement ended: rules for host ports outlive it.
fn clean_up(settings: &Settings, bed: &Bed) -> anyhow::Result<()> {
    let mut command = Command::new(&settings.binary);
    command.args(["cleanup", "--yes", "--docker", &settings.docker]);
    let cleaned = command.arg("--root").arg(bed.root()).output()?;
    let said = String::from_utf8_lossy(&cleaned.stderr);
    anyhow::ensure!(cleaned.status.success(), "failed to clean up: {said}");
    Ok(())
}

async fn measure(settings: &Settings, bed: &Bed, report: &mut Report) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let server = directory.path();
    compile_server(server)?;
    let agent = Agent::start(settings, bed).await?;
    let composed = match &settings.compose {
        Some(program) => Some(compose_edits(settings, program, bed.root(), server)?),
        None => None,
    };
    let here = Editions::here();
    let of = |rollout, editions| edits(settings, bed, &agent, rollout, editions, server);
    let (recreated, calls) = of("Recreate", &here).await?;
    report.found(recreate_figures(composed.as_deref(), &recreated, &calls));
    let registry = Registry::open().await;
    let away = Editions::away(&registry);
    let (pulled, _) = of("Recreate", &away).await?;
    report.found([pulled_figure(&recreated, &pulled)]);
    let (first, first_calls) = of("StartFirst", &here).await?;
    report.found(start_first_figures(&first, &first_calls));
    bed.remove("web")?;
    agent.quiet().await?;
    agent.stop()?;
    Ok(())
}

/// Compiles the server into a static program of this directory.
fn compile_server(directory: &Path) -> anyhow::Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition=2024", "-O", "-Ctarget-feature=+crt-static", "-o"]);
    let output = rustc.arg(directory.join("web")).arg(SERVER).output();
    let output = output.context("can't run rustc")?;
    let words = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "rustc: {words}");
    Ok(())
}

fn silent(seen: &[Seen]) -> f64 {
    median(&seen.iter().map(|s| s.silent).collect::<Vec<_>>())
}

fn failed(seen: &[Seen]) -> f64 {
    seen.iter().map(|s| f64::from(s.failed)).sum()
}

fn longest(seen: &[Seen]) -> f64 {
    seen.iter().map(|s| s.longest).fold(0.0, f64::max)
}

fn recreate_figures(
    composed: Option<&[Seen]>,
    recreated: &[Seen],
    calls: &BTreeMap<String, f64>,
) -> Vec<Figure> {
    let of_compose = composed.map(silent);
    let gap = silent(recreated);
    let edits = recreated.len();
    vec![
        Figure {
            floor: of_compose,
            ..Figure::new(
                "Recreate: without an answer, median",
                gap,
                "s",
                "0.7 x Compose's, the floor",
                of_compose.map_or(f64::INFINITY, |floor| floor * COMPOSE_SHARE),
                format!("{edits} edits"),
            )
        },
        Figure {
            floor: composed.map(failed),
            ..Figure::new(
                "Recreate: requests failed",
                failed(recreated),
                "",
                "0",
                0.0,
                causes(recreated),
            )
        },
        Figure::new(
            "Recreate: longest wait",
            longest(recreated),
            "s",
            "the stop + one start + 1.1 s",
            recreated.iter().map(|s| s.silent).fold(0.0, f64::max) + RESEND_SECONDS,
            String::new(),
        ),
        Figure::new(
            "Recreate: Engine calls beyond stop and start",
            beyond(calls),
            "",
            "3",
            MORE_CALLS,
            format!("{calls:?}"),
        ),
    ]
}

/// An edit whose image is not there, beside one whose image is.
fn pulled_figure(there: &[Seen], pulled: &[Seen]) -> Figure {
    let floor = silent(there);
    Figure {
        floor: Some(floor),
        ..Figure::new(
            "Recreate, image not there: without an answer",
            silent(pulled),
            "s",
            "as with the image there, to a tenth",
            floor * PULLED_SHARE,
            format!("{} edits, pulled from loopback", pulled.len()),
        )
    }
}

fn start_first_figures(first: &[Seen], calls: &BTreeMap<String, f64>) -> Vec<Figure> {
    let edits = first.len();
    vec![
        Figure::new(
            "StartFirst: requests failed",
            failed(first),
            "",
            "0",
            0.0,
            format!("{edits} edits, {RATE} requests/s {}", causes(first)),
        ),
        Figure::new(
            "StartFirst: without an answer, median",
            silent(first),
            "s",
            "none: a tenth of a second",
            0.1,
            String::new(),
        ),
        Figure::new(
            "StartFirst: Engine calls beyond stop and start",
            beyond(calls),
            "",
            "3",
            MORE_CALLS,
            format!("{calls:?}"),
        ),
    ]
}

/// The failures of all edits, by their words.
fn causes(seen: &[Seen]) -> String {
    let mut causes = BTreeMap::new();
    for cause in seen.iter().flat_map(|seen| &seen.causes) {
        *causes.entry(cause.as_str()).or_insert(0) += 1;
    }
    format!("{causes:?}")
}

/// The calls of one edit that are neither a stop, nor a create, nor a start, nor a removal of what
/// was stopped.
fn beyond(calls: &BTreeMap<String, f64>) -> f64 {
    let needed = |name: &str| {
        ["create", "start", "stop", "remove"]
            .iter()
            .any(|verb| name.starts_with(verb))
    };
    let more = calls.iter().filter(|(name, _)| !needed(name));
    more.map(|(_, count)| count).sum()
}

/// A port that nobody has at the moment.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
        .local_addr()?
        .port())
}

/// Waits until the server at `at` answers `says`.
fn until_says(at: SocketAddr, says: &str) -> anyhow::Result<()> {
    let end = Instant::now() + PATIENCE;
    while ask(at).ok().as_deref() != Some(says) {
        anyhow::ensure!(Instant::now() < end, "{at} does not say {says}");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The images of the two versions that edits change to and fro.
struct Editions {
    images: [String; 2],
    /// Whether the Engine has to pull them for every edit.
    are_away: bool,
}

impl Editions {
    /// Those that the Engine has.
    fn here() -> Self {
        Self {
            images: [1, 2].map(|edition| format!("mirrorlet.test/busybox:{edition}")),
            are_away: false,
        }
    }

    /// Those of a registry, with a layer of several megabytes each.
    fn away(registry: &Registry) -> Self {
        Self {
            images: ["web:1", "web:2"].map(|name| registry.push_large(name)),
            are_away: true,
        }
    }

    /// The image of an edition, counted from 1.
    fn image(&self, edition: u64) -> &str {
        &self.images[usize::from(edition == 2)]
    }

    /// Removes an image that has to be pulled, if the Engine has it.
    fn take_away(&self, settings: &Settings, edition: u64) -> anyhow::Result<()> {
        if self.are_away {
            let mut command = Command::new("docker");
            command.args(["-H", &settings.docker, "rmi", "--force"]);
            let output = command.arg(self.image(edition)).output()?;
            let words = String::from_utf8_lossy(&output.stderr);
            let is_gone = output.status.success() || words.contains("No such image");
            anyhow::ensure!(is_gone, "docker rmi: {words}");
        }
        Ok(())
    }
}

/// Edits the image of a pod to and fro; what clients saw, and the Engine calls of one edit.
async fn edits(
    settings: &Settings,
    bed: &Bed,
    agent: &Agent,
    rollout: &str,
    editions: &Editions,
    server: &Path,
) -> anyhow::Result<(Vec<Seen>, BTreeMap<String, f64>)> {
    let port = free_port()?;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    // Without a probe it is ready before it listens.
    let (end, min_ready) = match rollout {
        "StartFirst" => (IN_PEACE, 2),
        _ => (AT_ONCE, 0),
    };
    let script = SCRIPT.replace("END", end);
    let manifest = |edition: u64| {
        format!(
            r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations: {{mirrorlet.dev/rollout: {rollout}, mirrorlet.dev/min-ready-seconds: "{min_ready}"}}
spec:
  containers:
  - name: web
    image: "{image}"
    command: ["sh", "-c", "{script}"]
    env: [{{name: EDITION, value: "{edition}"}}]
    ports: [{{containerPort: 8080, hostPort: {port}}}]
    volumeMounts: [{{name: server, mountPath: /server, readOnly: true}}]
  volumes: [{{name: server, hostPath: {{path: "{server}"}}}}]
"#,
            image = editions.image(edition),
            server = server.display()
        )
    };
    let edit = |edition: u64| -> anyhow::Result<()> {
        bed.prepare_as("web", &manifest(edition))?;
        Ok(bed.save("web")?)
    };
    edit(1)?;
    until_says(at, "1")?;
    let mut seen = Vec::new();
    let mut total: BTreeMap<String, u64> = BTreeMap::new();
    for number in 0..settings.edits {
        let before = agent.quiet().await?;
        let edition = 2 - number % 2;
        editions.take_away(settings, edition)?;
        let traffic = Traffic::to(at, RATE);
        tokio::time::sleep(CALM).await;
        edit(edition)?;
        until_says(at, &edition.to_string())?;
        tokio::time::sleep(CALM).await;
        seen.push(traffic.end());
        for (name, count) in agent.quiet().await? {
            let more = count - before.get(&name).copied().unwrap_or_default();
            if more > 0 {
                *total.entry(name).or_default() += more;
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let mean = |count: u64| count as f64 / settings.edits as f64;
    let calls = total.into_iter().map(|(name, n)| (name, mean(n)));
    Ok((seen, calls.collect()))
}

/// The same edits made by Compose.
fn compose_edits(
    settings: &Settings,
    program: &Path,
    dir: &Path,
    server: &Path,
) -> anyhow::Result<Vec<Seen>> {
    let port = free_port()?;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    let file = dir.join("compose.yaml");
    let project = format!("mirrorlet-bench-{}", std::process::id());
    let compose = |args: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new(program);
        command.env("DOCKER_HOST", &settings.docker);
        command.args(["-p", &project, "-f"]).arg(&file).args(args);
        let output = command.output().context("can't run Compose")?;
        let words = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "compose {args:?}: {words}");
        Ok(())
    };
    let up = |edition: u64| -> anyhow::Result<()> {
        let script = SCRIPT.replace("END", AT_ONCE).replace('$', "$$");
        let text = format!(
            r#"services:
  web:
    image: mirrorlet.test/busybox:{edition}
    pull_policy: never
    command: ["sh", "-c", "{script}"]
    ports: ["{port}:8080"]
    volumes: ["{server}:/server:ro"]
"#,
            server = server.display()
        );
        std::fs::write(&file, text)?;
        compose(&["up", "-d"])
    };
    let measured = || -> anyhow::Result<Vec<Seen>> {
        up(1)?;
        until_says(at, "1")?;
        let mut seen = Vec::new();
        for number in 0..settings.edits {
            let edition = 2 - number % 2;
            let traffic = Traffic::to(at, RATE);
            std::thread::sleep(CALM);
            up(edition)?;
            until_says(at, &edition.to_string())?;
            std::thread::sleep(CALM);
            seen.push(traffic.end());
        }
        Ok(seen)
    };
    let seen = measured();
    compose(&["down", "-t", "1"])?;
    seen
}
