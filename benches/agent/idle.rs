//! Costs of an agent while nothing happens.

use std::time::Duration;

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
    /// Processor time of the Engine, in percent of a core.
    pub engine_percent: f64,
    /// Resident memory at the end, in MiB.
    pub rss_mib: f64,
}

/// Watches an idle window; what was asked of the Engine before is finished first.
pub async fn window(settings: &Settings, agent: &Agent) -> anyhow::Result<Idle> {
    let before = agent.quiet().await?.values().sum::<u64>();
    let pid = agent.pid()?;
    let sets = [vec![pid], engine_pids(&settings.docker).await?];
    let [cpu_percent, engine_percent] = cpu_percents(settings, sets).await;
    let calls = agent.engine_calls().await?.values().sum::<u64>() - before;
    Ok(Idle {
        calls: f64::from(u32::try_from(calls)?)
            / Duration::from_secs(settings.idle_seconds).as_secs_f64()
            * 60.0,
        cpu_percent,
        engine_percent,
        rss_mib: memory_mib(pid, "VmRSS"),
    })
}

/// Lets things calm down, then measures the processor time of each set of processes in a window, in
/// percent of a core.
async fn cpu_percents<const N: usize>(settings: &Settings, sets: [Vec<i32>; N]) -> [f64; N] {
    let used = |set: &Vec<i32>| set.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
    tokio::time::sleep(CALM_DOWN).await;
    let before = sets.each_ref().map(used);
    let length = Duration::from_secs(settings.idle_seconds);
    tokio::time::sleep(length).await;
    let after = sets.each_ref().map(used);
    std::array::from_fn(|n| (after[n] - before[n]) / length.as_secs_f64() * 100.0)
}

/// Measures an idle window with the agent, then one of the same length without.
pub async fn measure(settings: &Settings, agent: Agent) -> anyhow::Result<Vec<Figure>> {
    let pid = agent.pid()?;
    let idle = window(settings, &agent).await?;
    let engine_with = idle.engine_percent;
    let anonymous = memory_mib(pid, "RssAnon");
    let threads = threads(pid);
    agent.stop()?;

    let engine_pids = engine_pids(&settings.docker).await?;
    let [engine_without] = cpu_percents(settings, [engine_pids]).await;

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
