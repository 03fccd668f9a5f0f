//! Costs of the agent, beside the same Engine calls made raw in the same run.
//!
//! Runs the program itself as a child process against the real Engine. Every timed figure has a
//! *floor*: the calls that a user without the agent would make, with the bodies that the agent sent,
//! made by this process. Agent and floor alternate, so that a busy machine affects both.
//!
//! `make bench` runs it. Settings are environment variables, see `benches/README.md`.
#![allow(unreachable_pub, reason = "a program's own modules")]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod access;
mod agent;
mod bed;
mod events;
mod figures;
mod floor;
mod idle;
mod objects;
mod probes;
mod process;
#[path = "../common/raw.rs"]
mod raw;
#[path = "../common/report.rs"]
mod report;
#[path = "../common/settings.rs"]
mod settings;
mod stats;

use std::path::PathBuf;

use report::Report;
use settings::{binary, number};

/// The settings of a run.
pub struct Settings {
    /// The program to measure.
    pub binary: PathBuf,
    /// Address of the Engine.
    pub docker: String,
    /// Rounds of the figures that are medians.
    pub rounds: usize,
    /// Pods of the figures about many.
    pub pods: usize,
    /// Length of the idle window, in seconds.
    pub idle_seconds: u64,
    /// Length of the large transfers, in millions of bytes.
    pub stream_mb: u64,
}

impl Settings {
    fn from_env() -> anyhow::Result<Self> {
        Ok(Self {
            binary: binary(),
            docker: std::env::var("DOCKER_HOST")
                .unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned()),
            rounds: usize::try_from(number("BENCH_ROUNDS", 15)?)?,
            pods: usize::try_from(number("BENCH_PODS", 50)?)?,
            idle_seconds: number("BENCH_IDLE", 60)?,
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
        "rounds": settings.rounds, "pods": settings.pods,
        "idleSeconds": settings.idle_seconds, "streamMb": settings.stream_mb,
    });
    let mut report = Report::begin("agent", with);
    runtime.block_on(figures::measure(&settings, &mut report))?;
    report.finish()
}
