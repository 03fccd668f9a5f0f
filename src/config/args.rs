//! The command line, as typed.
//!
//! The flags of `run` are built from the table in [`super::table`], so a setting can't lack its
//! flag. Values stay text here: [`super::resolve`] parses them beside those of the other rungs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, Parser, Subcommand, ValueEnum,
};

use super::kinds::Arity;
use super::table::{Key, ROWS, Setting, SettingRow};

mod access;

pub use access::{AttachArgs, CpArgs, ExecArgs, PortForwardArgs};

/// Environment variable naming the config file.
pub const CONFIG_ENV: &str = "MIRRORLET_CONFIG";

const EXIT_CODES: &str = "\
Exit codes:
  0  all is well
  1  the command failed, or found problems
  2  the command line or the configuration is wrong
  3  no agent is running on that root directory";

const EXEC_EXIT_CODES: &str = "\
Exit codes:
  that of the command or container; or, with a message on standard error:
  1  it could not be run, or the connection broke off
  2  the command line is wrong
  3  no agent is running on that root directory";

/// Turns a Docker Engine into a Kubernetes node for static pods.
#[derive(Debug, Parser)]
#[command(name = "mirrorlet", version, about, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Cmd,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Cmd {
    /// Run the agent: the pods of the manifests, on the Docker Engine.
    #[command(after_help = EXIT_CODES)]
    Run(SettingArgs),
    /// Check manifests, without an agent or an Engine.
    #[command(after_help = EXIT_CODES)]
    Validate(ValidateArgs),
    /// Show the pods of the running agent, and what is wrong.
    #[command(after_help = EXIT_CODES)]
    Status(StatusArgs),
    /// Tell what happened to a pod, newest first, and why.
    #[command(after_help = EXIT_CODES)]
    Explain(ExplainArgs),
    /// Print the log of a container.
    #[command(after_help = EXIT_CODES)]
    Logs(LogsArgs),
    /// Run a command in a container.
    #[command(after_help = EXEC_EXIT_CODES)]
    Exec(ExecArgs),
    /// Attach to the main process of a container.
    #[command(after_help = EXEC_EXIT_CODES)]
    Attach(AttachArgs),
    /// Copy files and directories out of and into containers.
    #[command(after_help = EXIT_CODES)]
    Cp(CpArgs),
    /// Listen on local ports, and connect who comes to ports of a pod.
    #[command(after_help = EXIT_CODES)]
    PortForward(PortForwardArgs),
    /// Show the configuration, or the schema of the config file.
    Config(ConfigArgs),
    /// Print a shell's completion script.
    Completions {
        /// Shell to complete in.
        shell: clap_complete::Shell,
    },
    /// Print the version.
    Version {
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = VersionOutput::Text)]
        output: VersionOutput,
    },
}

/// Flags that make settings, and the config file.
#[derive(Debug, Clone, Default)]
pub struct SettingArgs {
    /// Config file, if one was named.
    pub config: Option<PathBuf>,
    /// Settings made by flags.
    pub settings: BTreeMap<Key, Setting>,
}

fn config_arg() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(clap::ValueHint::FilePath)
        .help(format!("Config file, YAML or JSON [env: {CONFIG_ENV}]"))
}

/// Help of a setting's flag, with its default and its environment variable.
fn help(row: &SettingRow) -> String {
    let default = row.fallback.words();
    let default = default.map_or_else(String::new, |words| format!(" [default: {words}]"));
    format!("{}{default} [env: {}]", row.help, row.env)
}

fn setting_arg(key: Key) -> Arg {
    let row = key.row();
    let arg = Arg::new(row.name)
        .long(row.flag)
        .value_name(row.value)
        .help(help(row));
    let arg = match row.value {
        "DIR" => arg.value_hint(clap::ValueHint::DirPath),
        "FILE" => arg.value_hint(clap::ValueHint::FilePath),
        _ => arg,
    };
    // Some numbers may be negative: `--maximum-dead-containers -1`.
    let arg = arg.allow_negative_numbers(row.value == "N");
    match row.arity {
        Arity::One => arg.action(ArgAction::Set),
        Arity::Many(_) => arg.action(ArgAction::Append),
    }
}

fn settings_of(matches: &ArgMatches) -> SettingArgs {
    let settings = ROWS
        .iter()
        .filter_map(|row| {
            let values = matches.try_get_many::<String>(row.name).ok()??;
            Some((row.key, Setting(values.cloned().collect())))
        })
        .collect();
    SettingArgs {
        config: matches.get_one::<PathBuf>("config").cloned(),
        settings,
    }
}

impl Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        command
            .arg(config_arg())
            .args(ROWS.iter().map(|row| setting_arg(row.key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(settings_of(matches))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = settings_of(matches);
        Ok(())
    }
}

/// The flags that find a running agent.
#[derive(Debug, Clone, Default)]
pub struct AgentArgs(pub SettingArgs);

impl Args for AgentArgs {
    fn augment_args(command: Command) -> Command {
        command.arg(setting_arg(Key::Root)).arg(config_arg())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AgentArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(settings_of(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0 = settings_of(matches);
        Ok(())
    }
}

/// Arguments of `validate`.
#[derive(Debug, Clone, Args)]
pub struct ValidateArgs {
    /// Manifest files, directories of them, or - for standard input.
    #[arg(required = true, value_name = "FILE|DIR|-", value_hint = clap::ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ValidateOutput::Text)]
    pub output: ValidateOutput,
    /// Name of the node the pods are for [default: as `run` would choose it].
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
}

/// Form of `validate`'s output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ValidateOutput {
    /// Each problem drawn with its source line.
    Text,
    /// One JSON document.
    Json,
}

/// Arguments of `status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Pods to show: name, namespace/name or UID, their own or their mirrors' [default: all].
    #[arg(value_name = "POD")]
    pub pods: Vec<String>,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = StatusOutput::Table)]
    pub output: StatusOutput,
    /// Show every change until interrupted.
    #[arg(short, long)]
    pub watch: bool,
}

/// Form of `status`'s output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatusOutput {
    /// A table, and what is wrong.
    Table,
    /// The same with addresses, UIDs, sources, images and messages.
    Wide,
    /// One JSON document; with --watch one a line.
    Json,
    /// One YAML document; with --watch one a change.
    Yaml,
}

/// Arguments of `explain`.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// The pod: name, namespace/name, or UID, its own or its mirror's. It may be gone already.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Form of the output.
    #[arg(short, long, value_enum, default_value_t = ExplainOutput::Text)]
    pub output: ExplainOutput,
}

/// Form of `explain`'s output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExplainOutput {
    /// The pod as it is, and its story as a table.
    Text,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Arguments of `logs`.
#[expect(clippy::struct_excessive_bools, reason = "one a flag")]
#[derive(Debug, Clone, Args)]
pub struct LogsArgs {
    /// The pod: name, namespace/name or UID, its own or its mirror's.
    #[arg(value_name = "POD")]
    pub pod: String,
    /// The agent to ask.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// The container; needed when the pod has several and names no default.
    #[arg(short, long, value_name = "NAME")]
    pub container: Option<String>,
    /// All containers of the pod, in the order of its manifest; with --follow side by side.
    #[arg(long, conflicts_with = "container")]
    pub all_containers: bool,
    /// Begin every line with its pod and container.
    #[arg(long)]
    pub prefix: bool,
    /// Go on with new lines until the container ends.
    #[arg(short, long)]
    pub follow: bool,
    /// Only that many of the last lines; -1 for all.
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = clap::value_parser!(i64).range(-1..))]
    pub tail: Option<i64>,
    /// The instance before the present one.
    #[arg(short, long)]
    pub previous: bool,
    /// Begin every line with its time.
    #[arg(long)]
    pub timestamps: bool,
    /// Only lines of that last while, for example 5m.
    #[arg(long, value_name = "DURATION", value_parser = super::duration::parse)]
    pub since: Option<std::time::Duration>,
    /// Only lines written at or after that time (RFC 3339).
    #[arg(long, value_name = "TIME", conflicts_with = "since")]
    pub since_time: Option<mirrorlet_core::api::Timestamp>,
    /// End after that many bytes.
    #[arg(long, value_name = "N")]
    pub limit_bytes: Option<u64>,
}

/// Arguments of `config`.
#[derive(Debug, Clone, Args)]
pub struct ConfigArgs {
    /// What to show.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// What `config` shows.
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// Print the JSON schema of the config file.
    Schema,
    /// Print every setting `run` would use with the same flags, and where it comes from.
    #[command(after_help = EXIT_CODES)]
    Show {
        /// The flags of `run`.
        #[command(flatten)]
        settings: SettingArgs,
        /// Ask the running agent what it uses, instead; only --root and --config go with it.
        #[arg(long)]
        running: bool,
        /// Form of the output.
        #[arg(short, long, value_enum, default_value_t = ShowOutput::Table)]
        output: ShowOutput,
    },
}

/// Form of `config show`'s output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ShowOutput {
    /// Key, value and origin in columns.
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// Form of `version`'s output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VersionOutput {
    /// One line.
    Text,
    /// One JSON document.
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

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
    fn usage_of_run_is_pinned() {
        let mut command = Cli::command();
        command.build();
        let run = command.find_subcommand_mut("run").unwrap();
        insta::assert_snapshot!(run.render_help());
    }
}
