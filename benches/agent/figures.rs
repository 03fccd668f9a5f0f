//! The run: every figure in turn.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use mirrorlet_docker::BollardEngine;

use crate::Settings;
use crate::access;
use crate::agent::Agent;
use crate::bed::Bed;
use crate::events::Events;
use crate::floor::{Floor, kill, millis, pid_of};
use crate::idle;
use crate::objects;
use crate::probes;
use crate::report::{Figure, Report, median};
use crate::stats;

/// Most time that the agent may add to a replacement: from the event to its answer.
const NEWS_MILLIS: f64 = 30.0;
/// Numbers of raw pod starts at a time that are tried for the best.
const AT_ONCE: [usize; 5] = [2, 4, 8, 16, 32];
/// Rounds of the figure about many pods, agent and floor alternating.
const MANY_ROUNDS: usize = 3;
/// Containers of a large pod, and the share of the raw calls' time it may take: creates overlap
/// the sandbox's start, and starts one another.
const LARGE: usize = 5;
const LARGE_SHARE: f64 = 0.75;
/// A release binary of more is a defect.
const BINARY_MB: f64 = 20.0;

/// Nanoseconds since 1970 by this machine's clock, which is the Engine's too.
pub fn now_nanos() -> anyhow::Result<i64> {
    Ok(i64::try_from(
        SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos(),
    )?)
}

/// Measures everything.
pub async fn measure(settings: &Settings, report: &mut Report) -> anyhow::Result<()> {
    let engine = Arc::new(BollardEngine::connect(&settings.docker)?);
    let bed = Bed::new(&settings.docker)?;
    let agent = Agent::start(settings, &bed).await?;
    let events = Events::of(&engine, &bed.owner()?).await?;
    let run = Run {
        settings,
        engine,
        bed,
        agent,
        events,
    };

    let (floor, calls) = run.warm_up().await?;
    report.found([calls]);
    let measured = run.all(&floor, report).await;
    floor.sweep(&settings.docker);
    measured?;
    // The bed stays until the end: its sweep removes the pods of the idle window.
    let Run { bed, agent, .. } = run;
    report.found([stats::measure(settings, &agent).await?]);
    report.found(idle::measure(settings, agent).await?);
    drop(bed);
    report.found(probes::idle(settings).await?);
    objects::measure(settings, report).await?;
    access::measure(settings, report).await?;
    report.found([binary(settings)?]);
    Ok(())
}

struct Run<'a> {
    settings: &'a Settings,
    engine: Arc<BollardEngine>,
    bed: Bed,
    agent: Agent,
    events: Events,
}

impl Run<'_> {
    /// Starts two pods: the first warms the agent up and lends the floor its bodies, the second
    /// is counted.
    async fn warm_up(&self) -> anyhow::Result<(Arc<Floor>, Figure)> {
        self.start("warm").await?;
        let sandbox = self.events.one("start", "k8s_POD_warm-").await?;
        let app = self.events.one("start", "k8s_app_warm-").await?;
        let floor = Floor::like(Arc::clone(&self.engine), &sandbox.id, &app.id).await?;
        let before = self.agent.quiet().await?;
        self.start("counted").await?;
        let after = self.agent.quiet().await?;
        let by_operation: Vec<String> = after
            .iter()
            .map(|(operation, count)| (operation, count - before.get(operation).unwrap_or(&0)))
            .filter(|(_, count)| *count > 0)
            .map(|(operation, count)| format!("{count} {operation}"))
            .collect();
        let calls = after.values().sum::<u64>() - before.values().sum::<u64>();
        let figure = Figure {
            name: "Engine calls to start a one-container pod",
            value: f64::from(u32::try_from(calls)?),
            unit: "calls",
            floor: Some(5.0),
            target: "5",
            limit: 5.0,
            note: by_operation.join(", "),
        };
        self.stop("counted").await?;
        // The warm pod stays: its files are mounted into the floor's containers.
        Ok((Arc::new(floor), figure))
    }

    async fn all(&self, floor: &Arc<Floor>, report: &mut Report) -> anyhow::Result<()> {
        report.found(self.starts_and_replacements(floor).await?);
        report.found([self.large_pod(floor).await?]);
        report.found([self.many(floor).await?]);
        report.found([probes::restarts(self.settings, floor).await?]);
        Ok(())
    }

    /// A pod of several containers, beside the raw calls one after the other.
    async fn large_pod(&self, floor: &Arc<Floor>) -> anyhow::Result<Figure> {
        let (mut starts, mut floors) = (Vec::new(), Vec::new());
        for round in 0..self.settings.rounds {
            let pod = format!("large{round:02}");
            self.bed.prepare_of(&pod, LARGE)?;
            let began = now_nanos()?;
            self.bed.save(&pod)?;
            let ran = self.events.last_of(LARGE, "start of a container", |h| {
                h.action == "start"
                    && h.name.starts_with("k8s_app")
                    && h.name.contains(&format!("_{pod}-"))
            });
            starts.push(millis(began, &ran.await?));
            self.agent.quiet().await?;
            self.bed.remove(&pod)?;
            let gone = self
                .events
                .last_of(LARGE + 1, "removal of a container", |h| {
                    h.action == "destroy" && h.name.contains(&format!("_{pod}-"))
                });
            gone.await?;
            self.agent.quiet().await?;
            floors.push(floor.timed_start_of(LARGE).await?);
            floor.sweep(&self.settings.docker);
        }
        let floor = median(&floors);
        Ok(Figure {
            name: "manifest of five containers saved → all running",
            value: median(&starts),
            unit: "ms",
            floor: Some(floor),
            target: "0.75 × the raw calls in sequence",
            limit: LARGE_SHARE * floor,
            note: format!("all: {starts:.0?} {floors:.0?}"),
        })
    }

    /// Saves a manifest; milliseconds until its container ran.
    async fn start(&self, pod: &str) -> anyhow::Result<f64> {
        self.bed.prepare(pod)?;
        let began = now_nanos()?;
        self.bed.save(pod)?;
        let ran = self.events.one("start", &format!("k8s_app_{pod}-")).await?;
        Ok(millis(began, &ran))
    }

    /// Removes a manifest and waits until its pod is gone.
    async fn stop(&self, pod: &str) -> anyhow::Result<()> {
        self.bed.remove(pod)?;
        self.events
            .one("destroy", &format!("k8s_POD_{pod}-"))
            .await?;
        self.events
            .one("destroy", &format!("k8s_app_{pod}-"))
            .await?;
        Ok(())
    }

    /// Kills a pod's container; milliseconds until its replacement ran.
    async fn replace(&self, pod: &str) -> anyhow::Result<f64> {
        let first = self.events.one("start", &format!("k8s_app_{pod}-")).await?;
        let pid = pid_of(&self.engine, &first.id).await?;
        let began = now_nanos()?;
        kill(pid)?;
        let second = self.events.last_of(2, "start of a replacement", |h| {
            h.action == "start" && h.name.starts_with(&format!("k8s_app_{pod}-"))
        });
        Ok(millis(began, &second.await?))
    }

    async fn starts_and_replacements(&self, floor: &Arc<Floor>) -> anyhow::Result<Vec<Figure>> {
        let (mut starts, mut floor_starts) = (Vec::new(), Vec::new());
        let (mut replaced, mut floor_replaced) = (Vec::new(), Vec::new());
        for round in 0..self.settings.rounds {
            let pod = format!("single{round:02}");
            starts.push(self.start(&pod).await?);
            self.agent.quiet().await?;
            replaced.push(self.replace(&pod).await?);
            self.agent.quiet().await?;
            self.bed.remove(&pod)?;
            self.events
                .one("destroy", &format!("k8s_POD_{pod}-"))
                .await?;
            self.agent.quiet().await?;
            let (raw, took) = floor.timed_start().await?;
            floor_starts.push(took);
            floor_replaced.push(floor.timed_replace(&raw).await?);
            floor.sweep(&self.settings.docker);
        }
        let note = |values: &[f64]| {
            let text: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
            format!("all: {}", text.join(" "))
        };
        let (start_floor, replace_floor) = (median(&floor_starts), median(&floor_replaced));
        Ok(vec![
            Figure {
                name: "manifest renamed in → container running",
                value: median(&starts),
                unit: "ms",
                floor: Some(start_floor),
                target: "1.0 × floor",
                limit: start_floor,
                note: note(&starts),
            },
            Figure {
                name: "container killed → replacement running",
                value: median(&replaced),
                unit: "ms",
                floor: Some(replace_floor),
                target: "1.1 × floor + 30 ms",
                limit: 1.1 * replace_floor + NEWS_MILLIS,
                note: note(&replaced),
            },
        ])
    }

    async fn many(&self, floor: &Arc<Floor>) -> anyhow::Result<Figure> {
        let (docker, pods) = (&self.settings.docker, self.settings.pods);
        let mut tried = Vec::new();
        for at_once in AT_ONCE {
            tried.push((at_once, floor.timed_many(pods, at_once).await?));
            floor.sweep(docker);
        }
        let best = tried
            .iter()
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .context("none tried")?
            .0;
        let (mut agents, mut floors) = (Vec::new(), Vec::new());
        for round in 0..MANY_ROUNDS {
            floors.push(floor.timed_many(pods, best).await?);
            floor.sweep(docker);
            agents.push(self.many_once(round).await?);
            self.agent.quiet().await?;
            // The last ones stay, for the idle window.
            if round + 1 < MANY_ROUNDS {
                self.remove_many(round).await?;
            }
        }
        let tried: Vec<String> = tried
            .iter()
            .map(|(n, took)| format!("{n}: {took:.0}"))
            .collect();
        let floor = median(&floors);
        Ok(Figure {
            name: "many manifests at once → all running",
            value: median(&agents),
            unit: "ms",
            floor: Some(floor),
            target: "1.1 × raw calls at their best concurrency",
            limit: 1.1 * floor,
            note: format!(
                "{pods} pods; {best} at once is the best of {}; all: {agents:.0?} {floors:.0?}",
                tried.join(", ")
            ),
        })
    }

    async fn many_once(&self, round: usize) -> anyhow::Result<f64> {
        let pods = self.settings.pods;
        let names: Vec<String> = (0..pods)
            .map(|pod| format!("many{round}x{pod:02}"))
            .collect();
        for name in &names {
            self.bed.prepare(name)?;
        }
        let began = now_nanos()?;
        for name in &names {
            self.bed.save(name)?;
        }
        let ran = self.events.last_of(pods, "start of a container", |h| {
            h.action == "start" && h.name.starts_with(&format!("k8s_app_many{round}x"))
        });
        Ok(millis(began, &ran.await?))
    }

    async fn remove_many(&self, round: usize) -> anyhow::Result<()> {
        for pod in 0..self.settings.pods {
            self.bed.remove(&format!("many{round}x{pod:02}"))?;
        }
        let gone = self
            .events
            .last_of(2 * self.settings.pods, "removal of a container", |h| {
                h.action == "destroy" && h.name.contains(&format!("_many{round}x"))
            });
        gone.await?;
        self.agent.quiet().await?;
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a file of some megabytes")]
fn binary(settings: &Settings) -> anyhow::Result<Figure> {
    let bytes = std::fs::metadata(&settings.binary)?.len() as f64;
    let content = std::fs::read(&settings.binary)?;
    // A dynamic program names its loader.
    let loader = b"/ld-linux";
    let dynamic = content.windows(loader.len()).any(|window| window == loader);
    Ok(Figure {
        name: "size of the binary",
        value: bytes / 1e6,
        unit: "MB",
        floor: None,
        target: "at most 20 MB, static",
        limit: if dynamic { 0.0 } else { BINARY_MB },
        note: format!(
            "{bytes} bytes, {}",
            if dynamic { "dynamic" } else { "static" }
        ),
    })
}
