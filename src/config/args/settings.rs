//! Settings as flags: all of them, the same with most hidden, and those that locate a running agent.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::CONFIG_ENV;
use crate::config::kinds::Arity;
use crate::config::table::{Key, ROWS, Setting, SettingRow};
use mirrorlet_core::small::SmallCollect;

/// The config file and the settings given as flags.
#[derive(Debug, Clone, Default)]
pub struct SettingArgs {
    /// Config file, if one was given.
    pub config: Option<PathBuf>,
    /// Settings given as flags.
    pub settings: BTreeMap<Key, Setting>,
}

/// The flags of `run` for commands that go by the settings of an agent. Help shows those that locate
/// the agent.
#[derive(Debug, Clone, Default)]
pub struct HiddenSettings(pub SettingArgs);

/// The flags that locate a running agent.
#[derive(Debug, Clone, Default)]
pub struct AgentArgs(pub SettingArgs);

/// Has clap fill `$group` from `$flags`; `$wrap` makes one of settings.
macro_rules! flags_of {
    ($group:ty, $wrap:expr, $flags:expr) => {
        impl Args for $group {
            fn augment_args(command: Command) -> Command {
                command.args($flags)
            }

            fn augment_args_for_update(command: Command) -> Command {
                Self::augment_args(command)
            }
        }

        impl FromArgMatches for $group {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
                Ok($wrap(settings_of(matches)))
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = $wrap(settings_of(matches));
                Ok(())
            }
        }
    };
}

flags_of!(
    SettingArgs,
    std::convert::identity,
    [config_arg()]
        .into_iter()
        .chain(ROWS.iter().map(|row| setting_arg(row.key)))
);
flags_of!(
    HiddenSettings,
    HiddenSettings,
    [config_arg()].into_iter().chain(
        ROWS.iter()
            .map(|row| setting_arg(row.key).hide(row.key != Key::Root))
    )
);
flags_of!(AgentArgs, AgentArgs, [setting_arg(Key::Root), config_arg()]);

fn config_arg() -> Arg {
    Arg::new("config")
        .long("config")
        .value_name("FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .value_hint(clap::ValueHint::FilePath)
        .help(format!("Config file, YAML or JSON [env: {CONFIG_ENV}]"))
}

/// Help of a setting's flag: description, default and environment variable.
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
    // The kubelet's may be bare: `--seccomp-default`.
    let arg = if row.value == "BOOL" {
        arg.num_args(0..=1).default_missing_value("true")
    } else {
        arg
    };
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
        .collect_map();
    SettingArgs {
        config: matches.get_one::<PathBuf>("config").cloned(),
        settings,
    }
}
