//! Shell completion: clap completes flags and values, the running agent provides pods, containers,
//! workloads, namespaces and volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::{CompleteEnv, Shells};

use super::{Failure, block_on, root_of, status, volumes};
use crate::config::args::{Cli, SettingArgs};
use crate::config::table::{Key, ROWS, Setting};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use mirrorlet_core::select::find_pods;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::WorkloadKind;

/// Set by the script in the shell when it requests candidates.
const VARIABLE: &str = "_MIRRORLET_COMPLETE";

/// A file among zsh's functions is read at its first use, and must answer that, too.
const ZSH_FIRST_USE: &[u8] = b"
if [ \"${funcstack[1]}\" = _mirrorlet ]; then
    _clap_dynamic_completer_mirrorlet \"$@\"
fi
";

/// How long the agent may take, because the user waits at the prompt.
const DEADLINE: Duration = Duration::from_millis(500);

/// Answers a shell's request for candidates; returns whether there was one.
pub(super) fn answer() -> Result<bool, clap::Error> {
    let cwd = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(std::env::args_os(), cwd.as_deref())
}

/// Returns the script that makes a shell call this program for completion.
///
/// # Errors
/// The shell is not supported.
pub fn script(shell: clap_complete::Shell) -> io::Result<String> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let shell = shells.completer(&name);
    let shell = shell.ok_or_else(|| io::Error::other(format!("no completion for {name}")))?;
    let mut script = Vec::new();
    let program = "mirrorlet";
    shell.write_registration(VARIABLE, program, program, program, &mut script)?;
    if name == "zsh" {
        script.extend_from_slice(ZSH_FIRST_USE);
    }
    String::from_utf8(script).map_err(io::Error::other)
}

/// The command line, with candidates for pods and containers.
fn command() -> Command {
    with_candidates(Cli::command())
}

fn with_candidates(command: Command) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|command| command.get_name().to_owned())
        .collect();
    let command = command.mut_args(|arg| match arg.get_id().as_str() {
        "pod" | "pods" => completed(arg, pods),
        "container" => completed(arg, containers),
        "source" | "destination" => completed(arg, sides_of_copy),
        "cron_jobs" => completed(arg, cron_jobs),
        "namespace" => completed(arg, namespaces),
        "names" => completed(arg, volume_names),
        id => match setting_values(id) {
            Some(values) => arg.add(ArgValueCompleter::new(move |begun: &OsStr| {
                beginning(values.iter().cloned(), begun)
            })),
            None => arg,
        },
    });
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_candidates)
    })
}

/// The values of a setting that has a few.
fn setting_values(name: &str) -> Option<Vec<String>> {
    let row = ROWS.iter().find(|row| row.name == name)?;
    if row.schema["type"] == "boolean" {
        return Some(vec!["true".to_owned(), "false".to_owned()]);
    }
    let values = row.schema["enum"].as_array()?.iter();
    Some(
        values
            .filter_map(|value| value.as_str().map(str::to_owned))
            .collect(),
    )
}

/// The candidates among these that begin so.
fn beginning(all: impl Iterator<Item = String>, begun: &OsStr) -> Vec<CompletionCandidate> {
    let begun = begun.to_string_lossy();
    let names = all.filter(|name| name.starts_with(&*begun));
    names.map(CompletionCandidate::new).collect()
}

fn completed(arg: Arg, candidates: fn(&OsStr) -> Vec<CompletionCandidate>) -> Arg {
    arg.add(ArgValueCompleter::new(candidates))
}

fn pods(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else {
        return Vec::new();
    };
    let words = words();
    let known = known(&words).map(|report| (owners(&report), report.pods));
    let (owners, pods) = known.unwrap_or_default();
    let names = names(&words, pods, &owners, begun);
    let candidate =
        |(name, status): (String, String)| CompletionCandidate::new(name).help(Some(status.into()));
    names.into_iter().map(candidate).collect()
}

/// The arguments of a copy with this prefix: local paths, and pods, whose names are followed by a path.
fn sides_of_copy(begun: &OsStr) -> Vec<CompletionCandidate> {
    let is_path = |begun: &str| begun.contains(':') || begun.starts_with(['/', '.', '~']);
    let mut sides = PathCompleter::any().complete(begun);
    if begun.to_str().is_some_and(|begun| !is_path(begun)) {
        sides.extend(pods(begun).into_iter().map(|pod| pod_side(&pod)));
    }
    sides
}

/// A pod as a side of a copy.
fn pod_side(pod: &CompletionCandidate) -> CompletionCandidate {
    let mut side = pod.get_value().to_owned();
    side.push(":");
    CompletionCandidate::new(side).help(pod.get_help().cloned())
}

/// The workloads of a report, which may have no pods now: `Deployment/web`, `Job/migrate`.
fn owners(report: &StatusReport) -> Vec<String> {
    let workloads = report.workloads.iter().map(|one| one.owner.clone());
    let jobs = report.jobs.iter().map(|job| format!("Job/{}", job.name));
    workloads.chain(jobs).collect()
}

/// The names of pods and workloads that the command of a line takes and that begin so. `owners` are the
/// workloads that are known by themselves.
fn names(
    words: &[OsString],
    mut pods: Vec<PodReport>,
    owners: &[String],
    begun: &str,
) -> BTreeMap<String, String> {
    /// These take a workload that has no pods.
    const WITHOUT_PODS: [&str; 6] = ["events", "explain", "restart", "rollout", "status", "wait"];
    /// These refuse the pods of a Job; `restart` takes the Job.
    const NOT_OF_JOBS: [&str; 5] = ["pull", "restart", "rollout", "start", "stop"];
    let is_of_job = |owner: &str| owner.starts_with("Job/");
    let command = command_of(words);
    let mut workloads = workload_names(&pods, begun);
    if NOT_OF_JOBS.contains(&command) {
        pods.retain(|pod| !pod.workload.as_deref().is_some_and(is_of_job));
        if command != "restart" {
            workloads = workload_names(&pods, begun);
        }
    }
    let takes = |owner: &str| command != "rollout" || !is_of_job(owner);
    let owners = owners.iter().filter(|owner| takes(owner.as_str()));
    for name in owners.filter_map(|owner| as_typed(owner, begun)) {
        if WITHOUT_PODS.contains(&command) && name.starts_with(begun) {
            workloads
                .entry(name)
                .or_insert_with(|| "no pods".to_owned());
        }
    }
    let mut names = pod_names(&pods, begun);
    if takes_workloads(command) {
        names.append(&mut workloads);
    }
    names
}

/// The command of a line; empty where it has none yet.
fn command_of(words: &[OsString]) -> &str {
    let command = words.get(1).and_then(|word| word.to_str());
    command.unwrap_or_default()
}

/// Whether a command takes a workload for its pods.
fn takes_workloads(command: &str) -> bool {
    const COMMANDS: [&str; 15] = [
        "attach",
        "cp",
        "events",
        "exec",
        "explain",
        "logs",
        "port-forward",
        "pull",
        "restart",
        "rollout",
        "start",
        "status",
        "stop",
        "top",
        "wait",
    ];
    COMMANDS.contains(&command)
}

/// A workload as `deployment/web`, or with the short word that is typed, as `deploy/web`.
fn as_typed(owner: &str, begun: &str) -> Option<String> {
    let (kind, name) = owner.split_once('/')?;
    let typed = begun.split_once('/').map(|(word, _)| word);
    let typed = typed.and_then(|word| Some((WorkloadKind::of_word(word)?.as_str(), word)));
    let word = match typed {
        Some((of, word)) if of == kind => word.to_owned(),
        Some(_) | None => kind.to_ascii_lowercase(),
    };
    Some(format!("{word}/{name}"))
}

/// The workloads of pods that begin so, each with the number of its pods.
fn workload_names(pods: &[PodReport], begun: &str) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let owners = pods.iter().filter(|pod| !pod.is_ending());
    for owner in owners.filter_map(|pod| pod.workload.as_ref()) {
        if let Some(name) = as_typed(owner, begun) {
            *counts.entry(name).or_default() += 1;
        }
    }
    counts.retain(|name, _| name.starts_with(begun));
    counts
        .into_iter()
        .map(|(name, count)| {
            (
                name,
                if count == 1 {
                    "1 pod".to_owned()
                } else {
                    format!("{count} pods")
                },
            )
        })
        .collect_map()
}

fn containers(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else {
        return Vec::new();
    };
    let words = words();
    let names = container_names(&known_pods(&words), &words, begun);
    names.into_iter().map(CompletionCandidate::new).collect()
}

/// The words of the line so far.
fn words() -> Vec<OsString> {
    let after_escape = std::env::args_os().skip_while(|word| word != "--");
    after_escape.skip(1).collect()
}

/// The pods of the agent that the line means; none where it doesn't answer.
fn known_pods(words: &[OsString]) -> Vec<PodReport> {
    known(words).map_or_else(Vec::new, |report| report.pods)
}

fn cron_jobs(begun: &OsStr) -> Vec<CompletionCandidate> {
    let cron_jobs = known(&words()).map_or_else(Vec::new, |report| report.cron_jobs);
    beginning(cron_jobs.into_iter().map(|cron| cron.name), begun)
}

fn namespaces(begun: &OsStr) -> Vec<CompletionCandidate> {
    let pods = known_pods(&words()).into_iter();
    let names: BTreeSet<String> = pods.map(|pod| pod.namespace).collect_set();
    beginning(names.into_iter(), begun)
}

fn volume_names(begun: &OsStr) -> Vec<CompletionCandidate> {
    let report = asked(&words(), async |root| volumes::fetch(&root).await);
    let volumes = report.map_or_else(Vec::new, |report| report.volumes);
    beginning(volumes.into_iter().map(|volume| volume.name), begun)
}

/// The names that the agent has for the line; none where it doesn't answer.
fn known(words: &[OsString]) -> Option<StatusReport> {
    asked(words, async |root| status::fetch(&root, false).await)
}

/// The answer of the agent that the line means; none where it doesn't answer.
fn asked<T>(words: &[OsString], ask: impl AsyncFnOnce(PathBuf) -> Result<T, Failure>) -> Option<T> {
    let setting = |text: &OsStr| Setting(vec![text.to_string_lossy().into_owned()]);
    let args = SettingArgs {
        config: flag(words, "--config").map(PathBuf::from),
        settings: flag(words, "--root")
            .map(|root| (Key::Root, setting(&root)))
            .into_iter()
            .collect_map(),
    };
    let mut answer = None;
    let asking = async {
        let asked = tokio::time::timeout(DEADLINE, ask(root_of(&args)?)).await;
        answer = Some(asked??);
        Ok(())
    };
    // An error would only disturb the command line.
    let _ = block_on(asking);
    answer
}

/// The value of a flag.
fn flag(words: &[OsString], name: &str) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == name {
            return words.next().cloned();
        }
        let word = word.to_str().unwrap_or_default();
        if let Some(value) = word
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('='))
        {
            return Some(value.into());
        }
    }
    None
}

/// The names of pods with this prefix, each with its status: the short name, and with its namespace if
/// several pods share it or the word has one.
fn pod_names(pods: &[PodReport], begun: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !pod.is_ending()) {
        let is_shared =
            |other: &PodReport| other.manifest_name == pod.manifest_name && !other.is_same_pod(pod);
        let short = &pod.manifest_name;
        let name = if begun.contains('/') || pods.iter().any(is_shared) {
            format!("{}/{short}", pod.namespace)
        } else {
            short.clone()
        };
        if name.starts_with(begun) {
            names.insert(name, pod.status.clone());
        }
    }
    names
}

/// The containers that begin so of the pods that the line names, by themselves or by their workload,
/// or of all.
fn container_names(pods: &[PodReport], words: &[OsString], begun: &str) -> BTreeSet<String> {
    let is_copy = command_of(words) == "cp";
    let named = words.iter().skip(2).filter_map(|word| {
        let word = word.to_str()?;
        let name = if is_copy {
            // Without a colon it is a local path.
            word.split_once(':')?.0
        } else {
            word
        };
        find_pods(pods, name).ok()
    });
    let mut meant: Vec<&PodReport> = named.flatten().collect();
    if meant.is_empty() {
        meant = pods.iter().collect();
    }
    let containers = meant.iter().flat_map(|pod| &pod.containers);
    let all = containers.map(|container| container.name.clone());
    all.filter(|name| name.starts_with(begun)).collect_set()
}

#[cfg(test)]
mod tests;
