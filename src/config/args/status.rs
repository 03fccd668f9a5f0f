//! Arguments of `status` and `explain`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{AgentArgs, DocumentOutput};
use mirrorlet_core::labels::LabelSelector;

/// Arguments of `status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Pods to show, by name, namespace/name, UID, or UID of the mirror pod, or all pods of a
    /// workload, as deployment/web [default: all].
    #[arg(value_name = "POD")]
    pub pods: Vec<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = StatusOutput::Table)]
    pub output: StatusOutput,
    /// Show only the pods with these labels, for example app=web,tier!=test.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    pub selector: Option<LabelSelector>,
    /// Show only the pods of this namespace.
    #[arg(short, long, value_name = "NAME", conflicts_with = "pods")]
    pub namespace: Option<String>,
    /// Show the pods of all namespaces, which is the default.
    #[arg(short = 'A', long, conflicts_with_all = ["pods", "namespace"])]
    pub all_namespaces: bool,
    /// Order of the pods.
    #[arg(long, value_enum, default_value_t = StatusOrder::Name)]
    pub sort_by: StatusOrder,
    /// Watch for changes until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Exit with code 1 unless the Engine is reachable, the API server, if there is one, accepts
    /// the credentials, every pod shown is ready, has succeeded or was stopped with mirrorlet
    /// stop, every pod runs the version of its manifest or is in a rollout, no Job shown has
    /// failed, and no manifest has errors.
    #[arg(long, conflicts_with = "watch")]
    pub exit_code: bool,
}

/// Output formats of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOutput {
    /// A table of pods, and problems.
    Table,
    /// The table with IPs, ports, UIDs, workloads, sources, images and messages, all sources, and
    /// the disk usage that image garbage collection uses.
    Wide,
    /// The name of each pod as namespace/name, as other commands take it.
    Name,
    /// One JSON document; with --watch one per line.
    Json,
    /// One YAML document; with --watch one per change.
    Yaml,
}

/// Orders of the pods that `status` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOrder {
    /// By namespace and name.
    Name,
    /// Newest first.
    Age,
    /// Most restarts first.
    Restarts,
    /// By status, in alphabetical order.
    Status,
}

/// Arguments of `explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The pod, by name, namespace/name, UID, or UID of its mirror pod. It may have been removed.
    /// Or a workload, by its name or as deployment/NAME or deployment/NAMESPACE/NAME, for its
    /// problems and the state of its pods.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
    /// Show the Engine calls of each sync, too.
    #[arg(short, long)]
    pub verbose: bool,
    /// Number of newest entries to show [default: all].
    #[arg(long, value_name = "N")]
    pub tail: Option<usize>,
    /// Show only entries newer than a relative duration, for example 5m.
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration::parse)]
    pub since: Option<Duration>,
    /// Show new entries as they come, until interrupted.
    #[arg(short, long)]
    pub follow: bool,
    /// Don't start a pager on a terminal.
    #[arg(long)]
    pub no_pager: bool,
}
