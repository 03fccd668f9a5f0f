//! The parts of the agent: each is a task that runs until the agent stops.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use mirrorlet_host::telemetry::occurrences;

/// How long the parts may take to end once the agent is stopping. They only release their resources:
/// containers stay, and every interrupted call is noticed at the next start.
const DRAIN_MAX: Duration = Duration::from_millis(500);

/// A part of the agent that runs until the agent stops.
pub type Parts = JoinSet<&'static str>;

/// Waits for a signal, or for a part that ended unexpectedly, which is an error.
pub(super) async fn until_stopped(parts: &mut Parts) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let failed = tokio::select! {
        _ = terminate.recv() => { occurrences::agent_stopping("SIGTERM"); None }
        _ = interrupt.recv() => { occurrences::agent_stopping("SIGINT"); None }
        _ = hangup.recv() => { occurrences::agent_stopping("SIGHUP"); None }
        Some(ended) = parts.join_next() => Some(ended),
    };
    match failed {
        None => Ok(()),
        Some(Ok(part)) => anyhow::bail!("the agent's {part} ended unexpectedly"),
        Some(Err(error)) => Err(error).context("a component of the agent failed"),
    }
}

/// Waits, with a time limit, for all parts to end after they were cancelled.
pub(super) async fn drain(parts: &mut Parts) {
    let all = async { while parts.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, all).await.is_err() {
        parts.shutdown().await;
    }
}

/// Spawns a part that ends by itself when the agent stops, after its last work.
pub(super) fn spawn(
    parts: &mut Parts,
    name: &'static str,
    part: impl Future<Output = ()> + Send + 'static,
) {
    parts.spawn(async move {
        part.await;
        name
    });
}

/// Spawns a part without work to finish when the agent stops: it ends wherever it waits.
pub(super) fn spawn_until(
    parts: &mut Parts,
    cancel: &CancellationToken,
    name: &'static str,
    part: impl Future<Output = ()> + Send + 'static,
) {
    let cancel = cancel.clone();
    spawn(parts, name, async move {
        cancel.run_until_cancelled(part).await;
    });
}
