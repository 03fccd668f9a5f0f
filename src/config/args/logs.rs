//! Arguments of `logs`.

use std::time::Duration;

use clap::{ArgGroup, Args};

use super::AgentArgs;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::labels::LabelSelector;

/// Most containers that can be followed at a time. The agent takes a few more.
pub const LOG_REQUESTS_MAX: u16 = 60;

/// Arguments of `logs`.
#[expect(clippy::struct_excessive_bools, reason = "one a flag")]
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["pods", "selector", "all_pods"]))]
pub struct LogsArgs {
    /// The pods, by name, namespace/name, UID, or UID of their mirror pods, or all pods of a
    /// workload, as deployment/web.
    #[arg(value_name = "POD")]
    pub pods: Vec<String>,
    /// Print the logs of the pods with these labels, for example app=web,tier!=test.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    pub selector: Option<LabelSelector>,
    /// Print the logs of all pods; implies --prefix.
    #[arg(long, conflicts_with_all = ["pods", "selector"])]
    pub all_pods: bool,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container. For one pod, it is required if the pod has several containers and no default
    /// one. For several pods, the default is all containers.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Print the logs of all containers, in the manifest's order, or interleaved with --follow.
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Prefix each line with its pod and container.
    #[arg(long)]
    pub prefix: bool,
    /// Stream new lines. For one pod, continue with the next instance when a container restarts,
    /// until the pod has finished, is stopped or is replaced. For several named pods, stop when
    /// their containers end. With --selector or --all-pods, include containers and pods that start
    /// later, until interrupted.
    #[arg(short, long)]
    pub follow: bool,
    /// Number of most recent lines to print of each container; -1 for all [default: -1; with
    /// --selector: 10].
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..))]
    pub tail: Option<i64>,
    /// Print the logs of the previous instance of the container.
    #[arg(short, long)]
    pub previous: bool,
    /// Prefix each line with its timestamp.
    #[arg(long)]
    pub timestamps: bool,
    /// Print only lines newer than a relative duration, for example 5m.
    #[arg(long, value_name = "DURATION", value_parser = crate::config::duration::parse)]
    pub since: Option<Duration>,
    /// Print only lines written at or after a time (RFC 3339).
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    pub since_time: Option<Timestamp>,
    /// Maximum number of bytes to print of each container.
    #[arg(long, value_name = "N")]
    pub limit_bytes: Option<u64>,
    /// Maximum number of containers to follow at a time, at most 60.
    #[arg(long, value_name = "N", default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(LOG_REQUESTS_MAX)))]
    pub max_log_requests: u16,
}
