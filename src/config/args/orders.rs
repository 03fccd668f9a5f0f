//! Arguments of `restart`, `pull`, `stop`, `start`, `run-job` and `wait`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::AgentArgs;
use crate::config::duration;

/// Arguments of `pull`, `stop` and `start`.
#[derive(Debug, Clone, Args)]
pub struct OrderArgs {
    /// The pods, by name, namespace/name, UID, or UID of their mirror pods; or workloads, as
    /// deployment/NAME or deployment/NAMESPACE/NAME, for all pods of each.
    #[arg(value_name = "POD", required = true)]
    pub pods: Vec<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Arguments of `restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArgs {
    /// The pods.
    #[command(flatten)]
    pub pods: OrderArgs,
    /// The only container to restart [default: all but init containers].
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pull the images first. If that fails, nothing is restarted.
    #[arg(long)]
    pub pull: bool,
}

/// Arguments of `run-job`.
#[derive(Debug, Clone, Args)]
pub struct RunJobArgs {
    /// The CronJobs, by name or namespace/name.
    #[arg(value_name = "CRONJOB", required = true)]
    pub cron_jobs: Vec<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Arguments of `wait`.
#[derive(Debug, Clone, Args)]
pub struct WaitArgs {
    /// The pods, by name, namespace/name, UID, or UID of their mirror pods; or workloads and Jobs, as
    /// NAME, deployment/NAME or job/NAME.
    #[arg(value_name = "POD", required = true)]
    pub pods: Vec<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// State to wait for.
    #[arg(long = "for", value_enum, value_name = "STATE", default_value_t = WaitFor::Ready)]
    pub state: WaitFor,
    /// Maximum time to wait, for example 30s; 0 for no limit.
    #[arg(long, value_name = "DURATION", default_value = "30s",
        value_parser = timeout)]
    pub timeout: Duration,
}

/// Parses a duration, or 0 without a unit.
pub(super) fn timeout(text: &str) -> Result<Duration, duration::InvalidDuration> {
    match text {
        "0" => Ok(Duration::ZERO),
        text => duration::parse(text),
    }
}

/// A state to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WaitFor {
    /// Every container is ready.
    #[value(aliases = ["condition=Ready", "condition=ready"])]
    Ready,
    /// Ready, and the rollout of the newest version has succeeded.
    Healthy,
    /// Stopped with mirrorlet stop, and none of its containers run.
    Stopped,
    /// The Job has completed, or the pod has succeeded.
    #[value(aliases = ["condition=Complete", "condition=complete"])]
    Complete,
    /// The pod is gone.
    #[value(alias = "delete")]
    Deleted,
}
