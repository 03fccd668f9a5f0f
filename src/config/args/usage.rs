//! Arguments of `top` and `images`.

use clap::{Args, ValueEnum};

use super::{AgentArgs, DocumentOutput};
use mirrorlet_core::labels::LabelSelector;

/// Arguments of `top`.
#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Pods to show, by name, namespace/name, UID, or UID of the mirror pod, or all pods of a
    /// workload, as deployment/web [default: all].
    #[arg(value_name = "POD")]
    pub pods: Vec<String>,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
    /// Show only the pods with these labels, for example app=web,tier!=test.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "pods")]
    pub selector: Option<LabelSelector>,
    /// Show the containers of each pod, too.
    #[arg(long)]
    pub containers: bool,
    /// Order of the pods.
    #[arg(long, value_enum, default_value_t = TopOrder::Name)]
    pub sort_by: TopOrder,
    /// Show new readings every two seconds, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// Orders of the pods that `top` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TopOrder {
    /// By namespace and name.
    Name,
    /// Most CPU first.
    Cpu,
    /// Most memory first.
    Memory,
}

/// Arguments of `images`.
#[derive(Debug, Clone, Args)]
pub struct ImagesArgs {
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = DocumentOutput::Text)]
    pub output: DocumentOutput,
    /// Show only images that no pod and no workload uses.
    #[arg(long)]
    pub unused: bool,
}
