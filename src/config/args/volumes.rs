//! Arguments of `volumes`.

use clap::{ArgGroup, Args, Subcommand};

use super::{AgentArgs, DocumentOutput, EXIT_CODES};

/// Arguments of `volumes`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct VolumesArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Option<VolumesCommand>,
    /// The list.
    #[command(flatten)]
    pub list: ListArgs,
}

/// Arguments of `volumes` without a subcommand.
#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
}

/// Subcommands of `volumes`.
#[derive(Debug, Clone, Subcommand)]
pub enum VolumesCommand {
    /// Remove volumes and their data. Volumes that the agent didn't create keep their data and lose
    /// only their claim.
    #[command(after_help = EXIT_CODES)]
    Rm(RemoveArgs),
}

/// Arguments of `volumes rm`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["names", "released"]))]
pub struct RemoveArgs {
    /// The volumes, by name.
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Remove all released volumes: those whose claims no manifest defines any more.
    #[arg(long, conflicts_with = "names")]
    pub released: bool,
    /// Don't ask for confirmation.
    #[arg(short, long)]
    pub yes: bool,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
}
