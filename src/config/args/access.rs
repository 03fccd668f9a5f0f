//! Arguments of the commands that enter containers. Their flags are kubectl's.

use std::path::PathBuf;

use clap::Args;

use super::AgentArgs;

/// Arguments of `exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// The pod: name, namespace/name or UID, its own or its mirror's.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; needed when the pod has several and names no default.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input on.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Give the command a terminal.
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments, after --. No shell is involved.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `attach`.
#[derive(Debug, Clone, Args)]
pub struct AttachArgs {
    /// The pod: name, namespace/name or UID, its own or its mirror's.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; needed when the pod has several and names no default.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input on; the manifest has to say stdin: true.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Be its terminal; the manifest has to say tty: true.
    #[arg(short, long)]
    pub tty: bool,
}

/// Arguments of `port-forward`.
#[derive(Debug, Clone, Args)]
pub struct PortForwardArgs {
    /// The pod: name, namespace/name or UID, its own or its mirror's.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Ports of the pod, each with the local one if that is another; with nothing before the
    /// colon any free one.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub ports: Vec<String>,
    /// Addresses to listen on, or localhost for both of its own.
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "localhost"
    )]
    pub address: Vec<String>,
}

/// Arguments of `cp`.
#[derive(Debug, Clone, Args)]
pub struct CpArgs {
    /// What to copy: a path here, or [NAMESPACE/]POD:PATH.
    #[arg(value_name = "SOURCE", value_hint = clap::ValueHint::AnyPath)]
    pub source: PathBuf,
    /// Where to: a path here, or [NAMESPACE/]POD:PATH.
    #[arg(value_name = "DESTINATION", value_hint = clap::ValueHint::AnyPath)]
    pub destination: PathBuf,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; needed when the pod has several and names no default.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Keep the set-user-ID, set-group-ID and sticky bits of what is copied out.
    #[arg(short, long)]
    pub preserve: bool,
}
