//! Costs of an agent while nothing happens.

use std::time::Duration;

use crate::Settings;
use crate::agent::Agent;
use crate::process::{cpu_seconds, engine_pids, memory_mib, threads};
use crate::report::Figure;

/// How long the Engine is left to finish what was asked of it before.
const CALM_DOWN: Duration = Duration::from_secs(5);

/// Measures an idle window with the agent, then one of the same length without.
pub async fn measure(settings: &Settings, agent: Agent) -> anyhow::Result<Vec<Figure>> {
    let window = Duration::from_secs(settings.idle_seconds);
    let seconds = window.as_secs_f64();
    let engine_pids = engine_pids(&settings.docker).await?;
    let engine_cpu = || engine_pids.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
    let pid = agent.pid()?;

    let before = agent.quiet().await?.values().sum::<u64>();
    tokio::time::sleep(CALM_DOWN).await;
    let (agent_before, engine_before) = (cpu_seconds(pid), engine_cpu());
    tokio::time::sleep(window).await;
    let agent_percent = (cpu_seconds(pid) - agent_before) / seconds * 100.0;
    let engine_with = (engine_cpu() - engine_before) / seconds * 100.0;
    let calls = agent.engine_calls().await?.values().sum::<u64>() - before;
    let memory = (memory_mib(pid, "VmRSS"), memory_mib(pid, "RssAnon"));
    let threads = threads(pid);
    agent.stop()?;

    tokio::time::sleep(CALM_DOWN).await;
    let engine_before = engine_cpu();
    tokio::time::sleep(window).await;
    let engine_without = (engine_cpu() - engine_before) / seconds * 100.0;

    let figure = Figure::new;
    let per_minute = f64::from(u32::try_from(calls)?) / seconds * 60.0;
    Ok(vec![
        figure(
            "idle: Engine calls",
            per_minute,
            "1/min",
            "at most 1 a minute",
            1.0,
            format!("{} pods, {seconds} s", settings.pods),
        ),
        figure(
            "idle: CPU of the agent",
            agent_percent,
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
            memory.0,
            "MiB",
            "below 25 MiB",
            25.0,
            format!("{:.1} MiB of it anonymous, {threads} threads", memory.1),
        ),
    ])
}
