//! Wire, supervise, shut down.

pub mod lock;
pub mod owner;

/// Runs the agent until it is told to stop.
///
/// # Errors
/// The agent can't start, or a part of it that it can't live without failed.
pub async fn run(resolved: crate::config::Resolved) -> anyhow::Result<()> {
    let _lock = lock::RootLock::acquire(&resolved.config.root)?;
    anyhow::bail!("the agent's parts are not wired together in this build")
}
