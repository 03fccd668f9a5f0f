//! The command line, as typed.
//!
//! The flags of `run` are built from the table in [`super::table`], so every setting has its
//! flag. Values stay text here: [`super::resolve`] parses them together with those of the other
//! rungs.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

mod access;
mod approve;
mod events;
mod examples;
mod import;
mod logs;
mod orders;
mod rollout;
mod settings;
mod status;
mod usage;
mod volumes;

pub use access::{AttachArgs, CpArgs, ExecArgs, PortForwardArgs};
pub use approve::ApproveArgs;
pub use events::{EventKind, EventsArgs};
pub use import::{ComposeArgs, ImportArgs, ImportCommand};
pub use logs::{LOG_REQUESTS_MAX, LogsArgs};
pub use orders::{OrderArgs, RestartArgs, RunJobArgs, WaitArgs, WaitFor};
pub use rollout::{
    DiffArgs, PlanArgs, RolloutArgs, RolloutCommand, RolloutHistoryArgs, RolloutStatusArgs,
};
pub use settings::{AgentArgs, HiddenSettings, SettingArgs};
pub use status::{ExplainArgs, StatusArgs, StatusOrder, StatusOutput};
pub use usage::{ImagesArgs, TopArgs, TopOrder};
pub use volumes::{ListArgs, RemoveArgs, VolumesArgs, VolumesCommand};

/// Environment variable naming the config file.
pub const CONFIG_ENV: &str = "MIRRORLET_CONFIG";

const EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the command failed, or found problems
  2  the command line or the configuration is invalid
  3  no agent is running with that root directory";

/// Those of the commands that ask no agent.
const OWN_EXIT_CODES: &str = "\
Exit codes:
  0  success
  1  the command failed, or found problems
  2  the command line or the configuration is invalid";

const PLAN_EXIT_CODES: &str = "\
Exit codes:
  0  nothing would change
  1  the command failed, or a manifest has errors
  2  something would change; or, with a message on standard error, the command line is invalid
  3  no agent is running with that root directory";

const DIFF_EXIT_CODES: &str = "\
Exit codes:
  0  no differences
  1  differences
  2  the command failed, or the command line is invalid
  3  no agent is running with that root directory";

const EXEC_EXIT_CODES: &str = "\
Exit codes:
  the exit code of the command or container: 126 or 127 if the Engine can't start the command,
  with the reason on standard output; or, with a message on standard error:
  1  there is no such pod or container, or the connection was lost
  2  the command line is invalid
  3  no agent is running with that root directory";

/// Run Kubernetes pods on a Docker Engine.
#[derive(Debug, Parser)]
#[command(name = "mirrorlet", version, about, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Cmd,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Run the agent, which keeps the pods of the manifests running on the Docker Engine.
    #[command(after_help = examples::help(examples::RUN, OWN_EXIT_CODES))]
    Run(SettingArgs),
    /// Check manifests. Needs neither an agent nor an Engine.
    #[command(after_help = examples::help(examples::VALIDATE, OWN_EXIT_CODES))]
    Validate(ValidateArgs),
    /// Convert the configuration of other tools to manifests.
    Import(ImportArgs),
    /// Show the pods of the running agent, and problems.
    #[command(after_help = examples::help(examples::STATUS, EXIT_CODES))]
    Status(Box<StatusArgs>),
    /// Show the history of a pod and the reasons.
    #[command(after_help = examples::help(examples::EXPLAIN, EXIT_CODES))]
    Explain(ExplainArgs),
    /// Show the Events of pods and of the node.
    #[command(after_help = EXIT_CODES)]
    Events(EventsArgs),
    /// Show what would change with other manifests. Changes nothing.
    #[command(after_help = examples::help(examples::PLAN, PLAN_EXIT_CODES))]
    Plan(PlanArgs),
    /// Show how running pods differ from their manifests.
    #[command(after_help = DIFF_EXIT_CODES)]
    Diff(DiffArgs),
    /// Manage the rollouts of static pods: edits of their manifests.
    #[command(after_help = examples::help(examples::ROLLOUT, EXIT_CODES))]
    Rollout(RolloutArgs),
    /// Restart the containers of static pods without back-off, or run Jobs (job/NAME) again from the
    /// beginning.
    #[command(after_help = examples::help(examples::RESTART, EXIT_CODES))]
    Restart(RestartArgs),
    /// Pull the images of static pods, whatever their pull policy. Nothing is restarted.
    #[command(after_help = EXIT_CODES)]
    Pull(OrderArgs),
    /// Stop static pods until they are started or their manifests change. They stay stopped when
    /// the agent restarts.
    #[command(after_help = EXIT_CODES)]
    Stop(OrderArgs),
    /// Start static pods that were stopped.
    #[command(after_help = EXIT_CODES)]
    Start(OrderArgs),
    /// Start a run of CronJobs now, whatever their schedule.
    #[command(after_help = EXIT_CODES)]
    RunJob(RunJobArgs),
    /// Wait until pods reach a state (ready, healthy, stopped, complete or deleted).
    #[command(after_help = examples::help(examples::WAIT, EXIT_CODES))]
    Wait(WaitArgs),
    /// List and remove the volumes of claims.
    #[command(after_help = examples::help(examples::VOLUMES, EXIT_CODES))]
    Volumes(VolumesArgs),
    /// Show the CPU and memory that pods use.
    #[command(after_help = EXIT_CODES)]
    Top(TopArgs),
    /// List the images on the Engine, with the pods that use them.
    #[command(after_help = EXIT_CODES)]
    Images(ImagesArgs),
    /// Print the logs of a container, or of several pods.
    #[command(after_help = examples::help(examples::LOGS, EXIT_CODES))]
    Logs(LogsArgs),
    /// Run a command in a container.
    #[command(after_help = examples::help(examples::EXEC, EXEC_EXIT_CODES))]
    Exec(ExecArgs),
    /// Attach to the main process of a container.
    #[command(after_help = EXEC_EXIT_CODES)]
    Attach(AttachArgs),
    /// Copy files and directories to and from containers.
    #[command(after_help = examples::help(examples::CP, EXIT_CODES))]
    Cp(CpArgs),
    /// Forward one or more local ports to a pod.
    #[command(after_help = examples::help(examples::PORT_FORWARD, EXIT_CODES))]
    PortForward(PortForwardArgs),
    /// Approve and deny the certificate signing requests of agents in a cluster.
    #[command(after_help = OWN_EXIT_CODES)]
    ApproveCertificates(ApproveArgs),
    /// Remove what a stopped agent left on this machine: its containers, the volumes and cgroups of
    /// its pods, the links to their logs, its rules for host ports. Volumes of claims, images and
    /// manifests stay.
    #[command(after_help = with_settings(OWN_EXIT_CODES))]
    Cleanup(CleanupArgs),
    /// Serve the names of pods by DNS, from a table that the agent writes. The agent runs this in a
    /// container where --dns is set.
    #[command(hide = true, after_help = OWN_EXIT_CODES)]
    Dns(DnsArgs),
    /// Show the configuration or the JSON schema of the config file.
    Config(ConfigArgs),
    /// Print a shell completion script. It completes the names of pods and containers, too, while
    /// the agent runs.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version {
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = VersionOutput::Text)]
        output: VersionOutput,
    },
}

/// The end of the help of a command with [`HiddenSettings`].
fn with_settings(codes: &str) -> String {
    format!("Takes the other flags of mirrorlet run, too: see mirrorlet run --help.\n\n{codes}")
}

/// Arguments of `dns`.
#[derive(Debug, Args)]
pub struct DnsArgs {
    /// File of the table of names.
    #[arg(long, value_name = "FILE")]
    pub table: PathBuf,
    /// Address and port to serve on; may be repeated.
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen: Vec<SocketAddr>,
    /// Subnet of clients; may be repeated. Others are refused.
    #[arg(long, value_name = "SUBNET", required = true)]
    pub from: Vec<String>,
}

/// Arguments of `validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Manifest files, directories of manifests, or - for standard input.
    #[arg(required = true, value_name = "FILE|DIR|-", value_hint = clap::ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = ValidateOutput::Text)]
    pub output: ValidateOutput,
    /// Name of the Node that the pods are for [default: the one that run would use with this
    /// environment].
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Exit with code 1 on warnings, too.
    #[arg(long)]
    pub strict: bool,
}

/// Output formats of `validate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ValidateOutput {
    /// Each problem with its source line.
    Text,
    /// One JSON document.
    Json,
}

/// Arguments of `cleanup`.
#[derive(Debug, Clone, Args)]
pub struct CleanupArgs {
    /// Remove everything found. Without this flag, only print what would be removed.
    #[arg(long)]
    pub yes: bool,
    /// Name each container and each pod with volumes.
    #[arg(short, long)]
    pub verbose: bool,
    /// The agent's settings.
    #[command(flatten)]
    pub settings: HiddenSettings,
}

/// Output formats of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DocumentOutput {
    /// Text and tables.
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Arguments of `config`.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// The subcommand.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `config`.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print the JSON schema of the config file.
    Schema,
    /// Print each setting that `run` would use with the same flags, and its origin.
    #[command(after_help = with_settings(EXIT_CODES))]
    Show {
        /// The flags of `run`.
        #[command(flatten)]
        settings: HiddenSettings,
        /// Print the settings of the running agent instead; can be combined only with --root and
        /// --config.
        #[arg(long)]
        running: bool,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = ShowOutput::Table)]
        output: ShowOutput,
    },
}

/// Output formats of `config show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShowOutput {
    /// Key, value and origin in columns.
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Output formats of `version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VersionOutput {
    /// One line.
    Text,
    /// One JSON document.
    Json,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::error::ErrorKind;
    use clap::{Command, CommandFactory};

    use super::*;
    use crate::config::table::{Key, ROWS, Setting};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_its_flag_and_keeps_its_text() {
        for row in &*ROWS {
            let flag = format!("--{}", row.flag);
            let cli = Cli::try_parse_from(["mirrorlet", "run", &flag, "x"]).unwrap();
            let Cmd::Run(args) = cli.command else {
                panic!("{flag}")
            };
            assert_eq!(args.settings[&row.key], Setting(vec!["x".to_owned()]));
            assert_eq!(args.settings.len(), 1);
        }
    }

    #[test]
    fn repeated_flags_add_up() {
        let cli = Cli::try_parse_from([
            "mirrorlet",
            "run",
            "--manifest-url",
            "http://a/",
            "--manifest-url",
            "http://b/",
        ])
        .unwrap();
        let Cmd::Run(args) = cli.command else {
            panic!()
        };
        assert_eq!(
            args.settings[&Key::ManifestUrls],
            Setting(vec!["http://a/".to_owned(), "http://b/".to_owned()])
        );
    }

    #[test]
    fn flags_of_yes_or_no_may_be_bare_as_the_kubelets_are() {
        for (line, seccomp, pods) in [
            ("--seccomp-default --max-pods 5", "true", Some("5")),
            ("--max-pods 5 --seccomp-default", "true", Some("5")),
            ("--seccomp-default=false", "false", None),
            ("--seccomp-default false --max-pods=5", "false", Some("5")),
        ] {
            let cli = Cli::try_parse_from(format!("mirrorlet run {line}").split(' ')).unwrap();
            let Cmd::Run(args) = cli.command else {
                panic!()
            };
            let given = |key: Key| args.settings.get(&key).map(|setting| setting.0.join(" "));
            assert_eq!(
                given(Key::SeccompDefault).as_deref(),
                Some(seccomp),
                "{line}"
            );
            assert_eq!(given(Key::MaxPods).as_deref(), pods, "{line}");
        }
    }

    fn commands(command: &Command, path: &str, found: &mut Vec<(String, String)>) {
        let path = format!("{path}{}", command.get_name());
        let help = command.clone().render_long_help().to_string();
        for sub in command.get_subcommands() {
            commands(sub, &format!("{path} "), found);
        }
        found.push((path, help));
    }

    /// The help of all commands, by the words that one types.
    fn helps() -> BTreeMap<String, String> {
        let mut found = Vec::new();
        commands(&Cli::command(), "", &mut found);
        found.into_iter().collect()
    }

    #[test]
    fn each_example_of_a_help_is_a_command_line() {
        let mut with_examples = Vec::new();
        for (path, help) in helps() {
            let lines = help.lines().skip_while(|line| *line != "Examples:");
            let lines = lines.take_while(|line| *line != "Exit codes:");
            let typed = lines.filter_map(|line| line.strip_prefix("  mirrorlet "));
            let mut count = 0;
            for line in typed {
                let line = format!("mirrorlet {}", line.split(" > ").next().unwrap());
                assert!(line.starts_with(&path), "{line:?} is no example of {path}");
                let parsed = Cli::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
            if count > 0 {
                with_examples.push(path);
            }
        }
        for command in [
            "run",
            "validate",
            "import compose",
            "status",
            "explain",
            "logs",
            "exec",
            "plan",
            "rollout",
            "restart",
            "wait",
            "volumes",
            "cp",
            "port-forward",
        ] {
            let path = format!("mirrorlet {command}");
            assert!(with_examples.contains(&path), "{path} has no examples");
        }
    }

    #[test]
    fn a_command_that_is_given_nothing_names_all_that_it_takes() {
        for (line, takes) in [
            ("mirrorlet logs", "<POD|--selector <LABELS>|--all-pods>"),
            ("mirrorlet volumes rm", "<NAME|--released>"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
            let text = error.to_string();
            // box 20
            assert!(text.contains(takes), "{text}");
            assert_eq!(error.kind(), ErrorKind::MissingRequiredArgument, "{text}");
        }
        for line in [
            "mirrorlet logs web db",
            "mirrorlet logs -l app=web",
            "mirrorlet logs --all-pods",
            "mirrorlet volumes rm one two",
            "mirrorlet volumes rm --released",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn commands_that_ask_no_agent_have_no_exit_code_for_it() {
        let helps = helps();
        let no_agent = "3  no agent is running";
        for command in ["validate", "import compose", "cleanup", "run"] {
            let help = &helps[&format!("mirrorlet {command}")];
            assert!(
                help.contains("2  the command line") && !help.contains(no_agent),
                "{help}"
            );
        }
        assert!(helps["mirrorlet config show"].contains(no_agent));
    }

    #[test]
    fn the_settings_of_run_are_taken_and_not_shown_by_other_commands() {
        let helps = helps();
        for command in ["cleanup", "config show"] {
            let help = &helps[&format!("mirrorlet {command}")];
            assert!(
                help.contains("--root") && help.contains("mirrorlet run --help"),
                "{help}"
            );
            assert!(!help.contains("--sweep-period"), "{help}");
            let line = format!("mirrorlet {command} --sweep-period 1m");
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
        assert!(helps["mirrorlet run"].contains("--sweep-period"));
    }

    #[test]
    fn usage_of_run_is_pinned() {
        let mut command = Cli::command();
        command.build();
        let run = command.find_subcommand_mut("run").unwrap();
        insta::assert_snapshot!(run.render_help());
    }
}
