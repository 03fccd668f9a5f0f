//! Cost of an answer about all pods.

use std::time::Duration;

use crate::Settings;
use crate::agent::Agent;
use crate::process::cpu_seconds;
use crate::report::Figure;

/// Answers that are measured together: the kernel tells processor time by the hundredth of a
/// second.
const ROUNDS: u32 = 10;
/// Pause between two: what was read a moment ago would be told again.
const PAUSE: Duration = Duration::from_millis(5_200);
/// The pods that the target is for, and what an answer about them may cost.
const TARGET_PODS: f64 = 110.0;
const TARGET_MILLIS: f64 = 15.0;

/// Asks for `/stats/summary` again and again, each time for a whole look.
pub async fn measure(settings: &Settings, agent: &Agent) -> anyhow::Result<Figure> {
    let pid = agent.pid()?;
    // The first finds all cgroups, and has disks measured.
    let first = agent.get("/stats/summary").await?;
    anyhow::ensure!(first.contains(" 200 "), "no summary: {first}");
    tokio::time::sleep(PAUSE).await;
    let before = cpu_seconds(pid);
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        bytes = agent.get("/stats/summary").await?.len();
        tokio::time::sleep(PAUSE).await;
    }
    let pods = f64::from(u32::try_from(settings.pods)?);
    Ok(Figure::new(
        "/stats/summary: CPU of the agent",
        (cpu_seconds(pid) - before) * 1000.0 / f64::from(ROUNDS),
        "ms",
        "at most 15 ms at 110 pods",
        TARGET_MILLIS * pods / TARGET_PODS,
        format!("{pods} pods, {} KiB", bytes / 1024),
    ))
}
