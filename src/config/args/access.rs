//! Arguments of the commands that enter containers. Their flags are kubectl's.

use std::path::PathBuf;

use clap::Args;

use super::AgentArgs;

/// Arguments of `exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// The pod, by name, namespace/name, UID, or UID of its mirror pod; or a workload, as
    /// deployment/web or deployment/shop/web, to use one of its pods, preferably a ready one.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; required if the pod has several containers and no default one.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input to the command.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Allocate a TTY for the command.
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments, after --. It is not run in a shell.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `attach`.
#[derive(Debug, Clone, Args)]
pub struct AttachArgs {
    /// The pod, by name, namespace/name, UID, or UID of its mirror pod; or a workload, as
    /// deployment/web or deployment/shop/web, to use one of its pods, preferably a ready one.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; required if the pod has several containers and no default one.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Pass standard input to the container, which must have stdin: true.
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// Attach a TTY; the container must have tty: true.
    #[arg(short, long)]
    pub tty: bool,
}

/// Arguments of `port-forward`.
#[derive(Debug, Clone, Args)]
pub struct PortForwardArgs {
    /// The pod, by name, namespace/name, UID, or UID of its mirror pod; or a workload, as
    /// deployment/web or deployment/shop/web, to use one of its pods, preferably a ready one.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Ports, each as REMOTE or LOCAL:REMOTE; :REMOTE listens on any free local port.
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    pub ports: Vec<String>,
    /// Addresses to listen on; localhost is both the IPv4 and the IPv6 loopback address.
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
    /// Source: a local path, or [NAMESPACE/]POD:PATH; - for a tar archive from standard input.
    #[arg(value_name = "SOURCE", value_hint = clap::ValueHint::AnyPath)]
    pub source: PathBuf,
    /// Destination: a local path, or [NAMESPACE/]POD:PATH; - for a tar archive to standard output.
    #[arg(value_name = "DESTINATION", value_hint = clap::ValueHint::AnyPath)]
    pub destination: PathBuf,
    /// The agent to connect to.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; required if the pod has several containers and no default one.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// Keep the set-user-ID, set-group-ID and sticky bits of what is copied out.
    #[arg(short, long)]
    pub preserve: bool,
}
