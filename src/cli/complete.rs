//! Completion in shells: of flags and values by clap, of pods and containers by the running agent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::{block_on, root_of, status};
use crate::config::args::{Cli, SettingArgs};
use crate::config::table::{Key, Setting};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use mirrorlet_core::select::find_pod;
use mirrorlet_core::small::SmallCollect;

/// Set by the script in the shell when it asks for candidates.
const VARIABLE: &str = "_MIRRORLET_COMPLETE";

/// A file among the functions of zsh is read at its first use, and has to answer that, too.
const ZSH_FIRST_USE: &[u8] = b"
if [ \"${funcstack[1]}\" = _mirrorlet ]; then
    _clap_dynamic_completer_mirrorlet \"$@\"
fi
";

/// How long the agent may take: whoever presses the key waits.
const DEADLINE: Duration = Duration::from_millis(500);

/// Answers a shell that asks for candidates; whether one does.
pub(super) fn answer() -> Result<bool, clap::Error> {
    let cwd = std::env::current_dir().ok();
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(std::env::args_os(), cwd.as_deref())
}

/// Returns the script that has a shell ask this program.
///
/// # Errors
/// No script is known for that shell.
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
        "cron_jobs" => completed(arg, cron_jobs),
        _ => arg,
    });
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_candidates)
    })
}

fn completed(arg: Arg, candidates: fn(&OsStr) -> Vec<CompletionCandidate>) -> Arg {
    arg.add(ArgValueCompleter::new(candidates))
}

fn pods(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else {
        return Vec::new();
    };
    let words = words();
    let pods = known_pods(&words);
    let mut names = pod_names(&pods, begun);
    if takes_workloads(&words) {
        names.extend(workload_names(&pods, begun));
    }
    let candidate =
        |(name, status): (String, String)| CompletionCandidate::new(name).help(Some(status.into()));
    names.into_iter().map(candidate).collect()
}

/// Whether the command of a line takes a workload for its pods.
fn takes_workloads(words: &[OsString]) -> bool {
    const COMMANDS: [&str; 11] = [
        "attach",
        "exec",
        "logs",
        "port-forward",
        "pull",
        "restart",
        "start",
        "status",
        "stop",
        "top",
        "wait",
    ];
    let command = words.get(1).and_then(|word| word.to_str());
    command.is_some_and(|command| COMMANDS.contains(&command))
}

/// The workloads that begin so, as `deployment/web`, each with the number of its pods.
fn workload_names(pods: &[PodReport], begun: &str) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let owners = pods.iter().filter(|pod| !pod.is_ending());
    for owner in owners.filter_map(|pod| pod.workload.as_ref()) {
        if let Some((kind, name)) = owner.split_once('/') {
            let name = format!("{}/{name}", kind.to_ascii_lowercase());
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
    let names = cron_jobs.into_iter().map(|cron| cron.name);
    let begun = begun.to_string_lossy();
    let names = names.filter(|name| name.starts_with(&*begun));
    names.map(CompletionCandidate::new).collect()
}

/// The names that the agent has for the line; none where it doesn't answer.
fn known(words: &[OsString]) -> Option<StatusReport> {
    let setting = |text: &OsStr| Setting(vec![text.to_string_lossy().into_owned()]);
    let args = SettingArgs {
        config: flag(words, "--config").map(PathBuf::from),
        settings: flag(words, "--root")
            .map(|root| (Key::Root, setting(&root)))
            .into_iter()
            .collect(),
    };
    let mut report = None;
    let asking = async {
        let asked = tokio::time::timeout(DEADLINE, status::fetch(&root_of(&args)?, false)).await;
        report = Some(asked??);
        Ok(())
    };
    // Nobody reads an error in the middle of a line.
    let _ = block_on(asking);
    report
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

/// The names of pods that begin so, each with its status: the short name, and with its namespace
/// where several pods share it or the word has one.
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

/// The containers that begin so of the pods that the line names, or of all.
fn container_names(pods: &[PodReport], words: &[OsString], begun: &str) -> BTreeSet<String> {
    let named = words
        .iter()
        .skip(2)
        .filter_map(|word| find_pod(pods, word.to_str()?).ok());
    let mut meant: Vec<&PodReport> = named.collect();
    if meant.is_empty() {
        meant = pods.iter().collect();
    }
    let containers = meant.iter().flat_map(|pod| &pod.containers);
    let all = containers.map(|container| container.name.clone());
    all.filter(|name| name.starts_with(begun)).collect_set()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, status: &str, containers: &[&str]) -> PodReport {
        let containers: Vec<_> = containers
            .iter()
            .map(|name| {
                serde_json::json!({
                    "name": name, "role": "app", "image": "x", "state": "running", "ready": true,
                    "restarts": 0,
                })
            })
            .collect();
        serde_json::from_value(serde_json::json!({
            "name": format!("{name}-box"), "manifestName": name, "namespace": namespace,
            "uid": format!("{namespace}-{name}"), "source": "", "status": status, "phase": status,
            "ready": 1, "containersTotal": 1, "restarts": 0, "containers": containers,
            "held": false,
        }))
        .unwrap()
    }

    fn pods() -> Vec<PodReport> {
        vec![
            pod("default", "web", "Running", &["main", "sidecar"]),
            pod("default", "db", "Running", &["db"]),
            pod("default", "db", "Terminating", &["db"]),
            pod("shop", "web", "Pending", &["main"]),
        ]
    }

    #[test]
    fn pods_are_named_as_briefly_as_possible() {
        for (begun, expected) in [
            ("", "db default/web shop/web"),
            ("d", "db default/web"),
            ("default/", "default/db default/web"),
            ("x", ""),
        ] {
            let names = pod_names(&pods(), begun);
            let names: Vec<_> = names.into_keys().collect();
            assert_eq!(names.join(" "), expected, "{begun}");
        }
        assert_eq!(pod_names(&pods(), "shop")["shop/web"], "Pending");
    }

    #[test]
    fn workloads_are_named_with_their_kinds() {
        let of = |name: &str, status: &str, owner: &str| PodReport {
            workload: Some(owner.to_owned()),
            ..pod("default", name, status, &["main"])
        };
        let pods = [
            of("web-0", "Running", "Deployment/web"),
            of("web-1", "Running", "Deployment/web"),
            of("web-2", "Terminating", "Deployment/web"),
            of("agent", "Running", "DaemonSet/agent"),
            pod("default", "db", "Running", &["db"]),
        ];
        let names = workload_names(&pods, "d");
        let names: Vec<_> = names
            .iter()
            .map(|(name, pods)| (&**name, &**pods))
            .collect();
        let expected = [("daemonset/agent", "1 pod"), ("deployment/web", "2 pods")];
        assert_eq!(names, expected);
        assert!(workload_names(&pods, "web").is_empty());
        for (line, expected) in [
            ("mirrorlet logs dep", true),
            ("mirrorlet status d", true),
            ("mirrorlet exec d", true),
            ("mirrorlet explain d", false),
            ("mirrorlet", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(takes_workloads(&words), expected, "{line}");
        }
    }

    #[test]
    fn containers_are_those_of_the_pods_named() {
        for (line, begun, expected) in [
            ("mirrorlet logs default/web -c", "", "main sidecar"),
            ("mirrorlet logs default/web -c", "s", "sidecar"),
            ("mirrorlet logs db shop/web -c", "", "db main"),
            ("mirrorlet logs -c", "", "db main sidecar"),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let names = container_names(&pods(), &words, begun);
            let names: Vec<_> = names.into_iter().collect();
            assert_eq!(names.join(" "), expected, "{line}");
        }
    }

    #[test]
    fn flags_are_found_in_both_forms() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        assert_eq!(flag(&words("a --root /r x"), "--root"), Some("/r".into()));
        assert_eq!(flag(&words("a --root=/r"), "--root"), Some("/r".into()));
        assert_eq!(flag(&words("a --roots=/r"), "--root"), None);
    }

    #[test]
    fn every_pod_and_container_has_candidates() {
        fn check(command: &Command, found: &mut usize) {
            for arg in command.get_arguments() {
                let is_known =
                    ["pod", "pods", "container", "cron_jobs"].contains(&arg.get_id().as_str());
                assert_eq!(
                    arg.get::<ArgValueCompleter>().is_some(),
                    is_known,
                    "{arg:?}"
                );
                *found += usize::from(is_known);
            }
            for command in command.get_subcommands() {
                check(command, found);
            }
        }
        let mut found = 0;
        check(&command(), &mut found);
        assert!(found > 20, "{found}");
    }
}
