//! Costs of an agent while nothing happens.

use std::time::{Duration, Instant};

use crate::Settings;
use crate::agent::Agent;
use crate::process::{cpu_seconds, engine_pids, memory_mib, threads};
use crate::report::Figure;

/// How long the Engine is left to finish what was asked of it before.
const CALM_DOWN: Duration = Duration::from_secs(5);

/// Costs of an agent in an idle window.
pub struct Idle {
    /// Engine calls a minute.
    pub calls: f64,
    /// Processor time of the agent, in percent of a core.
    pub cpu_percent: f64,
    /// Resident memory at the end, in MiB.
    pub rss_mib: f64,
}

/// Watches an idle window; what was asked of the Engine before is finished first.
pub async fn window(settings: &Settings, agent: &Agent) -> anyhow::Result<Idle> {
    let before = agent.quiet().await?.values().sum::<u64>();
    tokio::time::sleep(CALM_DOWN).await;
    let (pid, length) = (agent.pid()?, Duration::from_secs(settings.idle_seconds));
    let cpu = cpu_seconds(pid);
    tokio::time::sleep(length).await;
    let seconds = length.as_secs_f64();
    let cpu_percent = (cpu_seconds(pid) - cpu) / seconds * 100.0;
    let calls = agent.engine_calls().await?.values().sum::<u64>() - before;
    Ok(Idle {
        calls: f64::from(u32::try_from(calls)?) / seconds * 60.0,
        cpu_percent,
        rss_mib: memory_mib(pid, "VmRSS"),
    })
}

/// Measures an idle window with the agent, then one of the same length without.
pub async fn measure(settings: &Settings, agent: Agent) -> anyhow::Result<Vec<Figure>> {
    let length = Duration::from_secs(settings.idle_seconds);
    let engine_pids = engine_pids(&settings.docker).await?;
    let engine_cpu = || engine_pids.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
    let pid = agent.pid()?;

    agent.quiet().await?;
    tokio::time::sleep(CALM_DOWN).await;
    let (engine_before, began) = (engine_cpu(), Instant::now());
    let idle = window(settings, &agent).await?;
    let engine_with = (engine_cpu() - engine_before) / began.elapsed().as_secs_f64() * 100.0;
    let anonymous = memory_mib(pid, "RssAnon");
    let threads = threads(pid);
    agent.stop()?;

    tokio::time::sleep(CALM_DOWN).await;
    let engine_before = engine_cpu();
    tokio::time::sleep(length).await;
    let engine_without = (engine_cpu() - engine_before) / length.as_secs_f64() * 100.0;

    let figure = Figure::new;
    Ok(vec![
        figure(
            "idle: Engine calls",
            idle.calls,
            "1/min",
            "at most 1 a minute",
            1.0,
            format!("{} pods, {} s", settings.pods, settings.idle_seconds),
        ),
        figure(
            "idle: CPU of the agent",
            idle.cpu_percent,
            "%",
            "below 0.3 % of a core",
            0.3,
            String::new(),
        ),
        figure(
            "idle: CPU of dockerd + containerd caused",
            engine_with - engine_without,
            "%",
            "below 0.2 % of a core",
            0.2,
            format!("{engine_with:.2} with, {engine_without:.2} without the agent"),
        ),
        figure(
            "idle: RSS",
            idle.rss_mib,
            "MiB",
            "below 25 MiB",
            25.0,
            format!("{anonymous:.1} MiB of it anonymous, {threads} threads"),
        ),
    ])
}
