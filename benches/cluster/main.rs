//! Costs of a Node of a cluster, measured at a real API server.
//!
//! Starts etcd, kube-apiserver and controller-manager of its own and the program itself as a
//! child process on the real Engine. Requests are counted in the API server's audit log. The last
//! figure runs many agents of this process, each on an Engine in memory.
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
#![expect(clippy::too_many_lines, reason = "a bench is one story")]
#![expect(
    clippy::cast_precision_loss,
    reason = "figures are small and printed rounded"
)]

#[path = "../../tests/common/mod.rs"]
mod common;
mod figures;
mod finished;
mod hollow;
mod node;
#[path = "../common/raw.rs"]
mod raw;
#[path = "../common/report.rs"]
mod report;
#[path = "../common/settings.rs"]
mod settings;
mod streams;

use std::num::NonZero;
use std::path::PathBuf;

use settings::{binary, number};

/// The settings of a run.
pub struct Settings {
    /// The program to measure.
    pub binary: PathBuf,
    /// Rounds of the figures that are medians.
    pub rounds: usize,
    /// Static pods of the idle node.
    pub pods: usize,
    /// Static pods that are started at once.
    pub burst: usize,
    /// Length of the idle window, in seconds.
    pub idle_seconds: u64,
    /// Agents in memory on one API server.
    pub agents: usize,
    /// How long they are watched, in seconds.
    pub agents_seconds: u64,
    /// Pods that are over.
    pub finished: usize,
    /// Length of the large transfers, in millions of bytes.
    pub stream_mb: u64,
}

/// The agents in memory on one API server: as many as the cores let start and renew their Leases in
/// time. With more the API server alone is measured.
fn agents_max() -> u64 {
    const OF_A_CORE: u64 = 150;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    (OF_A_CORE * u64::try_from(cores).unwrap_or(1)).min(1000)
}

impl Settings {
    fn from_env() -> anyhow::Result<Self> {
        Ok(Self {
            binary: binary(),
            rounds: usize::try_from(number("BENCH_ROUNDS", 15)?)?,
            pods: usize::try_from(number("BENCH_PODS", 50)?)?,
            burst: usize::try_from(number("BENCH_BURST", 100)?)?,
            idle_seconds: number("BENCH_IDLE", 60)?,
            agents: usize::try_from(number("BENCH_AGENTS", agents_max())?)?,
            agents_seconds: number("BENCH_AGENTS_SECONDS", 300)?,
            finished: usize::try_from(number("BENCH_FINISHED", 2000)?)?,
            stream_mb: number("BENCH_STREAM_MB", 1000)?,
        })
    }
}

fn main() -> anyhow::Result<()> {
    // `cargo test --all-targets` runs bench programs too, without this flag.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let settings = Settings::from_env()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let with = serde_json::json!({
        "rounds": settings.rounds, "pods": settings.pods, "burst": settings.burst,
        "idleSeconds": settings.idle_seconds, "agents": settings.agents,
        "agentsSeconds": settings.agents_seconds, "streamMb": settings.stream_mb,
        "finished": settings.finished,
    });
    let mut report = report::Report::begin("cluster", with);
    runtime.block_on(figures::measure(&settings, &mut report))?;
    report.finish()
}
