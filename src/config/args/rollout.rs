//! Arguments of `rollout`, `plan` and `diff`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{AgentArgs, DocumentOutput, EXIT_CODES};

/// Arguments of `rollout`.
#[derive(Debug, Clone, Args)]
pub struct RolloutArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: RolloutCommand,
}

/// Subcommands of `rollout`.
#[derive(Debug, Clone, Subcommand)]
pub enum RolloutCommand {
    /// Follow a rollout to its end. Fails if the new version failed, was undone, or can't be started
    /// within its progress deadline.
    #[command(after_help = EXIT_CODES)]
    Status(RolloutStatusArgs),
    /// List the versions of a pod.
    #[command(after_help = EXIT_CODES)]
    History(RolloutHistoryArgs),
    /// Run an earlier version until the manifest changes.
    #[command(after_help = EXIT_CODES)]
    Undo {
        /// The pod.
        #[command(flatten)]
        pod: PodArgs,
        /// Revision to run, by its number in rollout history [default: the last healthy revision
        /// before the newest; after an undo, the newest].
        #[arg(long, value_name = "N")]
        to_revision: Option<u64>,
    },
    /// Retry a version that failed or can't be started.
    #[command(after_help = EXIT_CODES)]
    Retry {
        /// The pod.
        #[command(flatten)]
        pod: PodArgs,
    },
    /// Pause rollouts: keep the running version until they are resumed, even if the manifest changes.
    #[command(after_help = EXIT_CODES)]
    Pause {
        /// The pod.
        #[command(flatten)]
        pod: PodArgs,
    },
    /// Resume the rollouts of a paused pod.
    #[command(after_help = EXIT_CODES)]
    Resume {
        /// The pod.
        #[command(flatten)]
        pod: PodArgs,
    },
}

/// A static pod or a workload, and the agent that runs it.
#[derive(Debug, Clone, Args)]
pub struct PodArgs {
    /// The static pod, by name, namespace/name, UID, or UID of its mirror pod; or a workload, by its
    /// name or as deployment/NAME or deployment/NAMESPACE/NAME.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Arguments of `rollout status`.
#[derive(Debug, Clone, Args)]
pub struct RolloutStatusArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArgs,
    /// Follow the rollout to its end.
    // With an equals sign alone, as of `-w web` the name is the pod's.
    #[arg(short, long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub watch: bool,
    /// Maximum time to follow, for example 5m; 0 for no limit.
    #[arg(long, value_name = "DURATION", default_value = "0s",
        value_parser = super::orders::timeout)]
    pub timeout: Duration,
}

/// Arguments of `rollout history`.
#[derive(Debug, Clone, Args)]
pub struct RolloutHistoryArgs {
    /// The pod.
    #[command(flatten)]
    pub pod: PodArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
}

/// Manifests that might be in place.
#[derive(Debug, Clone, Args)]
pub struct ManifestArgs {
    /// Manifest files, each replacing the file of the same name in the manifest directory; or a
    /// directory that replaces the whole manifest directory [default: the current manifests].
    #[arg(value_name = "FILE|DIR", value_hint = clap::ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
}

/// Arguments of `plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// The manifests.
    #[command(flatten)]
    pub manifests: ManifestArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
}

/// Arguments of `diff`.
#[derive(Debug, Clone, Args)]
pub struct DiffArgs {
    /// The manifests.
    #[command(flatten)]
    pub manifests: ManifestArgs,
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::config::args::{Cli, Cmd};

    #[test]
    fn a_rollout_is_followed_as_kubectl_has_it_typed() {
        for (typed, watch, seconds) in [
            ("web", true, 0),
            ("-w web", true, 0),
            ("web -w", true, 0),
            ("--watch web", true, 0),
            ("--watch=false web", false, 0),
            ("-w=false web", false, 0),
            ("web --timeout 0", true, 0),
            ("web --timeout 5m", true, 300),
        ] {
            let line = format!("mirrorlet rollout status {typed}");
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Cmd::Rollout(RolloutArgs {
                command: RolloutCommand::Status(args),
            }) = cli.command
            else {
                panic!("{line}")
            };
            let found = (args.pod.pod.as_str(), args.watch, args.timeout.as_secs());
            assert_eq!(found, ("web", watch, seconds), "{line}");
        }
    }
}
