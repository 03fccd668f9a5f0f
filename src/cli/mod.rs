//! The commands: their arguments, output and exit codes.
//!
//! `run` calls `app`; `status`, `explain`, `events`, `plan`, `diff`, `rollout`, `restart`, `pull`,
//! `stop`, `start`, `run-job`, `wait`, `volumes`, `top`, `images`, `logs`, `exec`, `attach`, `cp` and
//! `port-forward` call a running agent through its socket; the others need no agent. Nothing here makes
//! decisions about pods.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, Parser};

use crate::app::approve::{self, ApproveOptions};
use crate::cluster::ConnectError;
use crate::config::args::{
    ApproveArgs, CONFIG_ENV, Cli, Cmd, DocumentOutput, ImportCommand, SettingArgs, ValidateArgs,
};
use crate::config::file::{self, LocatedFile};
use crate::config::resolve::{resolve_node_name, resolve_root};
use crate::config::{Ambient, ConfigFaults, Resolved, resolve};
use mirrorlet_core::certificate::approval::Approver;
use mirrorlet_core::small::SmallCollect;

mod channels;
pub mod cleanup;
pub mod client;
pub mod complete;
pub mod config;
pub mod cp;
pub mod dns;
pub mod events;
pub mod exec;
pub mod explain;
pub mod images;
pub mod import;
pub mod logs;
pub mod orders;
mod pager;
pub mod plan;
pub mod port_forward;
pub mod rollout;
pub mod status;
mod stdio;
pub mod table;
mod terminal;
pub mod top;
pub mod validate;
pub mod version;
pub mod volumes;
pub mod wait;

/// How a command failed; decides the exit code.
#[derive(Debug)]
pub enum Failure {
    /// It failed. Exit code 1.
    Failed(anyhow::Error),
    /// It found problems, and has printed them. Exit code 1.
    Problems,
    /// The command line or the configuration is wrong. Exit code 2.
    Usage(anyhow::Error),
    /// The command line is wrong, and the error was printed. Exit code 2.
    UsagePrinted,
    /// No agent answers. Exit code 3.
    NoAgent(anyhow::Error),
    /// A remote command ended with that exit code and has printed its own errors.
    Exit(u8),
}

impl Failure {
    /// The exit code, as documented in `--help`.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) | Self::Problems => 1,
            Self::Usage(_) | Self::UsagePrinted => 2,
            Self::NoAgent(_) => 3,
            Self::Exit(code) => *code,
        }
    }

    fn error(&self) -> Option<&anyhow::Error> {
        match self {
            Self::Failed(error) | Self::Usage(error) | Self::NoAgent(error) => Some(error),
            Self::Problems | Self::UsagePrinted | Self::Exit(_) => None,
        }
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// The result of a command.
pub type Outcome = Result<(), Failure>;

/// Writes to standard output; styles only where they are seen.
fn print(text: &str) -> Outcome {
    let mut stdout = anstream::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Prints a warning.
fn warn(words: &str) {
    // If standard error is closed, the warning is not read.
    let _ = writeln!(anstream::stderr(), "mirrorlet: warning: {words}");
}

/// Prints a report as text, JSON or YAML.
fn print_document<T: serde::Serialize>(
    output: DocumentOutput,
    report: &T,
    render: impl FnOnce(&T) -> String,
) -> Outcome {
    print(&match output {
        DocumentOutput::Text => render(report),
        DocumentOutput::Json => serde_json::to_string_pretty(report)? + "\n",
        DocumentOutput::Yaml => serde_saphyr::to_string(report)?,
    })
}

/// Prints one of many documents: JSON on a line of its own, YAML after a separator.
fn print_one(output: DocumentOutput, document: &impl serde::Serialize) -> Outcome {
    print(&match output {
        DocumentOutput::Yaml => format!("---\n{}", serde_saphyr::to_string(document)?),
        DocumentOutput::Json | DocumentOutput::Text => serde_json::to_string(document)? + "\n",
    })
}

/// The whole program: parses the command line, executes the command, prints an error once.
pub fn main() -> ExitCode {
    match complete::answer() {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => error.exit(),
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| explained(error).exit());
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output is gone, as `head` does: the rest is not read.
        Err(Failure::Failed(error)) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(error) = failure.error() {
                let mut stderr = anstream::stderr().lock();
                // Standard error gone as well: the exit code must do.
                let _ = stderr.write_all(error_text(error).as_bytes());
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

/// An error as it is printed. Several faults of the configuration are several errors.
fn error_text(error: &anyhow::Error) -> String {
    match error.downcast_ref::<ConfigFaults>() {
        Some(ConfigFaults(faults)) => {
            let line = |fault: &String| format!("mirrorlet: {fault}\n");
            faults.iter().map(line).collect()
        }
        None => format!("mirrorlet: {error:#}\n"),
    }
}

/// Messages about unexpected arguments: for `exec` without `--` before its command in kubectl's words,
/// for `run` for users who expect Docker's.
const UNEXPECTED_WORDS: [(&str, &str); 2] = [
    (
        "exec",
        "exec POD COMMAND is not supported. Use exec POD -- COMMAND instead",
    ),
    (
        "run",
        "run starts the agent and takes only flags. To run a command in a pod, use exec POD -- COMMAND; to run one on its own, write a Job and use restart job/NAME to run it again",
    ),
];

/// Converts an error of the command line, with our own message for common mistakes.
fn explained(error: clap::Error) -> clap::Error {
    let typed = std::env::args_os().nth(1);
    let is_typed = |(name, _): &&(&str, &str)| typed.as_ref().is_some_and(|arg| *arg == **name);
    let is_word = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        _ => false,
    };
    let known = UNEXPECTED_WORDS.iter().find(is_typed);
    let is_unknown = is_word && error.kind() == ErrorKind::UnknownArgument;
    let Some((name, message)) = known.filter(|_| is_unknown) else {
        return error;
    };
    let mut program = Cli::command();
    program.build();
    match program.find_subcommand_mut(name) {
        Some(command) => command.error(ErrorKind::UnknownArgument, message),
        None => error,
    }
}

/// Whether a write failed because its reader is gone. serde wraps the error of the write in its own.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let of_io = error.downcast_ref::<io::Error>().map(io::Error::kind);
    let of_json = || error.downcast_ref::<serde_json::Error>()?.io_error_kind();
    of_io.or_else(of_json) == Some(io::ErrorKind::BrokenPipe)
}

fn dispatch(command: Cmd) -> Outcome {
    match command {
        Cmd::Run(args) => run(&args),
        Cmd::Validate(args) => validate_command(&args),
        Cmd::Import(args) => match args.command {
            ImportCommand::Compose(args) => import::compose(&args),
        },
        Cmd::Status(args) => block_on(status::status(&args, &root_of(&args.agent.0)?)),
        Cmd::Explain(args) => block_on(explain::explain(&args, &root_of(&args.agent.0)?)),
        Cmd::Events(args) => block_on(events::events(&args, &root_of(&args.agent.0)?)),
        Cmd::Plan(args) => block_on(plan::plan(&args, &root_of(&args.manifests.agent.0)?)),
        Cmd::Diff(args) => block_on(plan::diff(&args, &root_of(&args.manifests.agent.0)?)),
        Cmd::Rollout(args) => {
            let root = root_of(&rollout::agent(&args.command).0)?;
            block_on(rollout::rollout(&args.command, &root))
        }
        Cmd::Restart(args) => block_on(orders::restart(&args, &root_of(&args.pods.agent.0)?)),
        Cmd::RunJob(args) => block_on(orders::run_job(&args, &root_of(&args.agent.0)?)),
        Cmd::Pull(args) => block_on(orders::pull(&args, &root_of(&args.agent.0)?)),
        Cmd::Stop(args) => block_on(orders::stop(&args, &root_of(&args.agent.0)?)),
        Cmd::Start(args) => block_on(orders::start(&args, &root_of(&args.agent.0)?)),
        Cmd::Wait(args) => block_on(wait::wait(&args, &root_of(&args.agent.0)?)),
        Cmd::Volumes(args) => {
            let root = root_of(&volumes::agent(&args).0)?;
            block_on(volumes::volumes(&args, &root))
        }
        Cmd::Top(args) => block_on(top::top(&args, &root_of(&args.agent.0)?)),
        Cmd::Images(args) => block_on(images::images(&args, &root_of(&args.agent.0)?)),
        Cmd::Logs(args) => block_on(logs::logs(&args, &root_of(&args.agent.0)?)),
        Cmd::Exec(args) => block_on(exec::exec(&args, &root_of(&args.agent.0)?)),
        Cmd::Attach(args) => block_on(exec::attach(&args, &root_of(&args.agent.0)?)),
        Cmd::Cp(args) => block_on(cp::cp(&args, &root_of(&args.agent.0)?)),
        Cmd::PortForward(args) => {
            block_on(port_forward::port_forward(&args, &root_of(&args.agent.0)?))
        }
        Cmd::ApproveCertificates(args) => approve(args),
        Cmd::Cleanup(args) => block_on(cleanup::cleanup(&args)),
        Cmd::Dns(args) => dns::dns(args),
        Cmd::Config(args) => block_on(config::config(&args.command)),
        Cmd::Completions { shell } => print(&complete::script(shell)?),
        Cmd::Version { output } => Ok(version::version(output, &mut io::stdout())?),
    }
}

/// The environment of this process.
pub fn ambient() -> Result<Ambient, Failure> {
    let env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect_map();
    Ok(Ambient {
        env,
        // Absent only where /proc is; the node name then says localhost.
        hostname: std::fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        cwd: std::env::current_dir().context("failed to find the current directory")?,
    })
}

/// The config file given by the flag, otherwise by the environment; an empty name means none.
fn config_file(flag: Option<&Path>, ambient: &Ambient) -> Result<Option<LocatedFile>, Failure> {
    let env = ambient.env.get(CONFIG_ENV).filter(|path| !path.is_empty());
    flag.or(env.map(Path::new))
        .map(file::read)
        .transpose()
        .map_err(|e| Failure::Usage(e.into()))
}

/// Resolves the whole configuration from these flags, the environment and the config file.
pub fn resolve_args(args: &SettingArgs) -> Result<Resolved, Failure> {
    let ambient = ambient()?;
    let file = config_file(args.config.as_deref(), &ambient)?;
    resolve(&args.settings, file.as_ref(), &ambient).map_err(|e| Failure::Usage(e.into()))
}

fn root_of(args: &SettingArgs) -> Result<std::path::PathBuf, Failure> {
    let ambient = ambient()?;
    let file = config_file(args.config.as_deref(), &ambient)?;
    resolve_root(&args.settings, file.as_ref(), &ambient).map_err(|e| Failure::Usage(e.into()))
}

/// Runs a command that asks an agent, on this thread.
fn block_on(command: impl Future<Output = Outcome>) -> Outcome {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the I/O runtime")?
        .block_on(command)
}

fn validate_command(args: &ValidateArgs) -> Outcome {
    let node_name = if let Some(name) = &args.node_name {
        name.as_str().into()
    } else {
        let ambient = ambient()?;
        let file = config_file(None, &ambient)?;
        let name = resolve_node_name(file.as_ref(), &ambient);
        name.map_err(|e| Failure::Usage(e.into()))?.into()
    };
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    validate::validate(
        &args.inputs,
        args.output,
        &node_name,
        validate::Rules {
            app_armor: mirrorlet_host::app_armor_is_enabled(),
            strict: args.strict,
        },
        colour,
        &mut stdin,
        &mut stdout,
    )
}

/// Most worker threads of the agent. It waits far more than it computes, and each thread costs
/// memory of its own.
const WORKERS_MAX: usize = 4;

/// Stack of the agent's threads, in bytes; its deepest work is parsing a manifest.
const STACK_BYTES: usize = 2 << 20;

fn approve(args: ApproveArgs) -> Outcome {
    crate::logging::init(args.log_format, &args.log_level).map_err(|e| Failure::Usage(e.into()))?;
    let (namespace, account) = args.service_account;
    let lease = args
        .lease
        .unwrap_or_else(|| (namespace.clone(), "mirrorlet-approver".to_owned()));
    let options = ApproveOptions {
        access: args.kubeconfig,
        approver: Approver::new(&namespace, &account, &args.node_name_suffix),
        lease,
        metrics_address: args.metrics_address.0,
        hostname: ambient()?.hostname,
    };
    block_on(async {
        match approve::approve(options).await {
            Err(error) if error.is::<ConnectError>() => Err(Failure::Usage(error)),
            outcome => Ok(outcome?),
        }
    })
}

fn run(args: &SettingArgs) -> Outcome {
    let resolved = resolve_args(args)?;
    let config = &resolved.config;
    crate::logging::init(config.log_format, &config.log_level)
        .map_err(|e| Failure::Usage(e.into()))?;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.min(WORKERS_MAX))
        .thread_stack_size(STACK_BYTES)
        .thread_name("mirrorlet")
        .enable_all()
        .build()
        .context("failed to start the I/O runtime")?;
    let outcome = runtime.block_on(crate::app::run(resolved));
    // A blocking call stuck in the kernel must not hold up the exit.
    runtime.shutdown_background();
    match outcome {
        // Nothing else to wait for: the kubeconfig must be corrected first.
        Err(error) if error.is::<ConnectError>() => Err(Failure::Usage(error)),
        outcome => Ok(outcome?),
    }
}
