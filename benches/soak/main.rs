//! Hours of churn on two agents: whatever they hold at rest must not grow.
//!
//! Starts etcd and kube-apiserver of its own and the program as a child process on the real Engine,
//! then edits, removes and crashes pods, runs commands in them, follows their logs, forwards their
//! ports, and stops and starts the API server. A second agent runs without a cluster: clients of its
//! embedded API change objects and watch them. At rest after the first minute and at rest in the end it
//! reads resident memory, descriptors and threads of the agents, and the Engine's goroutines,
//! descriptors and event listeners. Ends with 1 if anything has grown by more than its limit, or if a
//! client had to list its objects again.
//!
//! `make soak` runs it for an hour; `SOAK_SECONDS` is another time.
#![allow(unreachable_pub, reason = "a program's own modules")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "it shares the tests' bed and cluster, which fail loudly"
)]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

mod churn;
mod clients;
#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../cluster/node.rs"]
#[expect(dead_code, reason = "shared with a bench that needs more")]
mod node;
#[path = "../agent/process.rs"]
#[expect(dead_code, reason = "shared with a bench that needs more")]
mod process;
#[path = "../common/settings.rs"]
mod settings;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use churn::Churn;
use clients::Clients;
use common::Bed;
use common::cluster::Options;
use node::Agent;
use settings::{binary, number};

/// The time of churn before the first look.
const FIRST: Duration = Duration::from_mins(1);
/// Time without churn before a look: what waits for streams, watches and connections to end is over.
const REST: Duration = Duration::from_secs(30);
/// Looks of which the least counts: another program's call may be under way at one of them.
const LOOKS: usize = 5;
/// Time between them.
const BETWEEN: Duration = Duration::from_secs(2);

/// The settings of a run.
pub struct Settings {
    /// The program.
    pub binary: PathBuf,
}

/// The memory, descriptors and threads that are held at rest.
#[derive(Debug, Clone, Copy)]
struct Held {
    rss_mib: f64,
    /// Without pages of the program's file, which are read as they are first run.
    anonymous_mib: f64,
    descriptors: f64,
    threads: f64,
    engine_goroutines: f64,
    engine_descriptors: f64,
    engine_listeners: f64,
}

/// A figure by its name: how it is read, and by how much it may grow.
struct Figure {
    name: &'static str,
    of: fn(&Held) -> f64,
    growth_max: f64,
}

/// Those of an agent, and then those of the Engine.
const FIGURES: [Figure; 7] = [
    Figure {
        name: "agent: resident memory [MiB]",
        of: |held| held.rss_mib,
        growth_max: 2.0,
    },
    Figure {
        name: "agent: … anonymous [MiB]",
        of: |held| held.anonymous_mib,
        growth_max: 2.0,
    },
    Figure {
        name: "agent: descriptors",
        of: |held| held.descriptors,
        growth_max: 3.0,
    },
    // Those of the pool for blocking work come and go.
    Figure {
        name: "agent: threads",
        of: |held| held.threads,
        growth_max: 4.0,
    },
    Figure {
        name: "Engine: goroutines",
        of: |held| held.engine_goroutines,
        growth_max: 10.0,
    },
    Figure {
        name: "Engine: descriptors",
        of: |held| held.engine_descriptors,
        growth_max: 10.0,
    },
    Figure {
        name: "Engine: event listeners",
        of: |held| held.engine_listeners,
        growth_max: 0.0,
    },
];
/// The number of figures of an agent.
const OF_AGENT: usize = 4;

/// The resources that both agents and the Engine hold; the figures of the Engine are in `node`.
struct Both {
    node: Held,
    alone: Held,
}

impl Both {
    fn look(agent: &Agent, clients: &Clients) -> anyhow::Result<Self> {
        Ok(Self {
            node: Held::look(agent.pid(), &agent.bed)?,
            alone: Held::look(clients.pid(), &clients.bed)?,
        })
    }

    /// Reads it a few times, at rest.
    async fn at_rest(agent: &Agent, clients: &Clients) -> anyhow::Result<Self> {
        tokio::time::sleep(REST).await;
        let mut least = Self::look(agent, clients)?;
        for _ in 1..LOOKS {
            tokio::time::sleep(BETWEEN).await;
            let now = Self::look(agent, clients)?;
            least = Self {
                node: least.node.least(&now.node),
                alone: least.alone.least(&now.alone),
            };
        }
        Ok(least)
    }
}

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for figure in &FIGURES {
            write!(f, "{} {:.1}; ", figure.name, (figure.of)(&self.node))?;
        }
        write!(f, "without a cluster: ")?;
        for figure in &FIGURES[..OF_AGENT] {
            write!(f, "{} {:.1}; ", figure.name, (figure.of)(&self.alone))?;
        }
        Ok(())
    }
}

impl Held {
    /// Reads all of it once.
    fn look(pid: i32, bed: &Bed) -> anyhow::Result<Self> {
        let format = "{{.NGoroutines}} {{.NFd}} {{.NEventsListener}}";
        let info = bed.docker(&["info", "--format", format]);
        let numbers: Result<Vec<f64>, _> = info.split_whitespace().map(str::parse).collect();
        let [goroutines, descriptors, listeners] = numbers?[..] else {
            anyhow::bail!("the Engine says {info:?}");
        };
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).context("the agent ended")?;
        Ok(Self {
            rss_mib: process::memory_mib(pid, "VmRSS"),
            anonymous_mib: process::memory_mib(pid, "RssAnon"),
            descriptors: count(entries.count()),
            threads: count(process::threads(pid)),
            engine_goroutines: goroutines,
            engine_descriptors: descriptors,
            engine_listeners: listeners,
        })
    }

    fn least(&self, other: &Self) -> Self {
        Self {
            rss_mib: self.rss_mib.min(other.rss_mib),
            anonymous_mib: self.anonymous_mib.min(other.anonymous_mib),
            descriptors: self.descriptors.min(other.descriptors),
            threads: self.threads.min(other.threads),
            engine_goroutines: self.engine_goroutines.min(other.engine_goroutines),
            engine_descriptors: self.engine_descriptors.min(other.engine_descriptors),
            engine_listeners: self.engine_listeners.min(other.engine_listeners),
        }
    }
}

/// Numbers of descriptors and threads are small.
fn count(number: usize) -> f64 {
    u32::try_from(number).map_or(f64::INFINITY, f64::from)
}

fn main() -> anyhow::Result<ExitCode> {
    // `cargo test --all-targets` runs bench programs too, without this flag.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(ExitCode::SUCCESS);
    }
    let settings = Settings { binary: binary() };
    let seconds = number("SOAK_SECONDS", 3600)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(soak(&settings, Duration::from_secs(seconds)))
}

async fn soak(settings: &Settings, whole: Duration) -> anyhow::Result<ExitCode> {
    let cluster = Options::default().without_scheduler().start().await;
    let (agent, _) = Agent::serving(settings, &cluster, "soak").await?;
    let mut clients = Clients::begin(&settings.binary).await?;
    let began = Instant::now();
    let mut churn = Churn::begin(&agent, &cluster).await?;
    let end = began + FIRST.min(whole);
    tokio::try_join!(churn.until(end), clients.until(end))?;
    tokio::try_join!(churn.rest(), clients.rest())?;
    let first = Both::at_rest(&agent, &clients).await?;
    println!(
        "after the first minute, {}; {}: {first}",
        churn.done(),
        clients.done()
    );
    let mut next = FIRST;
    while began.elapsed() < whole {
        next += FIRST;
        let end = began + next.min(whole);
        tokio::try_join!(churn.until(end), clients.until(end))?;
        clients.check()?;
        let both = Both::look(&agent, &clients)?;
        println!("{:>5} s: {both}", began.elapsed().as_secs());
    }
    tokio::try_join!(churn.rest(), clients.rest())?;
    let last = Both::at_rest(&agent, &clients).await?;
    let seconds = began.elapsed().as_secs();
    println!("after {seconds} s: {}; {}", churn.done(), clients.done());
    clients.check()?;
    println!("no client of the embedded API has listed its objects again");
    let node_grew = grew("a Node of a cluster", &FIGURES, &first.node, &last.node);
    let of_agent = &FIGURES[..OF_AGENT];
    let alone_grew = grew("without a cluster", of_agent, &first.alone, &last.alone);
    Ok(if node_grew || alone_grew {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Prints both. Returns whether something has grown by more than its limit.
fn grew(agent: &str, figures: &[Figure], first: &Held, last: &Held) -> bool {
    println!(
        "\n{:<32} {:>10} {:>10} {:>8} {:>6}",
        format!("{agent}, at rest"),
        "1st minute",
        "end",
        "growth",
        "limit"
    );
    let mut has_grown = false;
    for figure in figures {
        let (before, after) = ((figure.of)(first), (figure.of)(last));
        let growth = after - before;
        let verdict = if growth > figure.growth_max {
            "FAIL"
        } else {
            "ok"
        };
        has_grown |= growth > figure.growth_max;
        println!(
            "{:<32} {before:>10.1} {after:>10.1} {growth:>8.1} {:>6.1}  {verdict}",
            figure.name, figure.growth_max
        );
    }
    has_grown
}
