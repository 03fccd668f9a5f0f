//! Arguments of `events`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{AgentArgs, DocumentOutput};

/// Arguments of `events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArgs {
    /// The pod, by name, namespace/name, UID, or UID of its mirror pod; it may have been removed. Or a
    /// workload, by its name or as deployment/web [default: all pods, workloads and the node].
    #[arg(value_name = "POD")]
    pub pod: Option<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
    /// Show only the Events of pods and workloads of this namespace.
    #[arg(short, long, value_name = "NAME", conflicts_with = "pod")]
    pub namespace: Option<String>,
    /// Show only Events of these types.
    #[arg(long, value_enum, value_delimiter = ',', ignore_case = true)]
    pub types: Vec<EventKind>,
    /// Number of newest Events to show [default: all].
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Show only Events newer than a relative duration, for example 5m.
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration::parse)]
    pub since: Option<Duration>,
    /// Show new Events as they come, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// Types of Events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EventKind {
    /// Informational.
    #[value(name = "Normal")]
    Normal,
    /// A problem.
    #[value(name = "Warning")]
    Warning,
}
