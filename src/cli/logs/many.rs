//! Logs of several containers: of named pods, of pods with certain labels, or of all pods.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use anstyle::AnsiColor;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;

use super::{Lines, goes_on, is_over, log, path, pods_named, prefix, query};
use crate::cli::status::{self, watch_reports};
use crate::cli::{Failure, Outcome, is_broken_pipe};
use crate::config::args::{LOG_REQUESTS_MAX, LogsArgs};
use crate::server::admin::{LogsQuery, STREAMS_MAX};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use mirrorlet_core::api::{PodUid, Timestamp};

/// Colours of prefixes on a terminal, one for each pod.
const COLOURS: [AnsiColor; 6] = [
    AnsiColor::Cyan,
    AnsiColor::Yellow,
    AnsiColor::Green,
    AnsiColor::Magenta,
    AnsiColor::Blue,
    AnsiColor::Red,
];

// Each log that is followed is a stream, and so is the watch of the status.
const _: () = assert!((LOG_REQUESTS_MAX as usize) < STREAMS_MAX);

/// One container whose log is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    uid: PodUid,
    container: String,
    /// Its instance as of the report; none where no instance was started.
    instance: Option<String>,
    /// Empty if none is requested.
    prefix: String,
}

/// Prints the logs of several containers.
pub(super) async fn logs(args: &LogsArgs, root: &Path) -> Outcome {
    let is_selection = args.pods.is_empty();
    if is_selection && args.follow && !args.previous {
        return follow(args, root, None).await;
    }
    let report = status::fetch(root, false).await?;
    let mut targets = targets(args, &report, None)?;
    if goes_on(args)
        && let Some(uid) = only_pod(&pods(args, &report)?, &targets)
    {
        return follow(args, root, Some(uid)).await;
    }
    if is_selection {
        targets.retain(|target| target.instance.is_some());
        if targets.is_empty() {
            writeln!(anstream::stderr(), "No logs found.")?;
        }
    }
    let query = query(args, Timestamp::now());
    let streams = targets.iter().map(|target| print(target, &query, root));
    let outcomes = if args.follow {
        check_limit(targets.len(), args)?;
        join_all(streams).await
    } else {
        let mut outcomes = Vec::new();
        for stream in streams {
            let outcome = stream.await;
            let is_last = outcome.as_ref().is_err_and(ends_all);
            outcomes.push(outcome);
            if is_last {
                break;
            }
        }
        outcomes
    };
    all_of(outcomes.into_iter().filter_map(Result::err).collect())
}

/// Whether the logs of other containers can't be printed, either: the reader is gone, or there is no
/// agent.
fn ends_all(failure: &Failure) -> bool {
    is_closed(failure) || matches!(failure, Failure::NoAgent(_))
}

fn is_closed(failure: &Failure) -> bool {
    failure.error().is_some_and(is_broken_pipe)
}

/// The outcome of several logs, by their failures; all but the last one are printed here. A container
/// without a log doesn't keep the others from being printed.
fn all_of(mut failed: Vec<Failure>) -> Outcome {
    if let Some(closed) = failed.iter().position(is_closed) {
        return Err(failed.swap_remove(closed));
    }
    // The agent's stop breaks off all of them, and is reported once.
    let is_stop = |failure: &Failure| matches!(failure, Failure::NoAgent(_));
    let (mut stops, mut others): (Vec<_>, Vec<_>) = failed.into_iter().partition(is_stop);
    let last = stops.pop().or_else(|| others.pop());
    others.iter().for_each(report);
    last.map_or(Ok(()), Err)
}

/// Prints the log of one container among those of others.
async fn print(target: &Target, query: &LogsQuery, root: &Path) -> Outcome {
    let path = path(query, &target.uid, Some(&target.container))?;
    let lines = Lines::among_others(target.prefix.clone());
    log(root, &path, Some(lines)).await
}

/// The pod for the names, if it is a single one and any of its containers has started. Otherwise the
/// agent reports for each container why it has no log.
fn only_pod<'a>(pods: &[&'a PodReport], targets: &[Target]) -> Option<&'a PodUid> {
    let [pod] = pods else {
        return None;
    };
    let has_begun = targets.iter().any(|target| target.instance.is_some());
    has_begun.then_some(&pod.uid)
}

/// Follows the logs of the selected pods until interrupted, or those of one pod until it ends: each
/// instance of a container once, later ones from their beginning.
async fn follow(args: &LogsArgs, root: &Path, only: Option<&PodUid>) -> Outcome {
    let limit = usize::from(args.max_log_requests);
    let query = query(args, Timestamp::now());
    let mut reports = watch_reports(root, false).await?;
    let mut known = Known::default();
    let mut waiting: VecDeque<(Target, LogsQuery)> = VecDeque::new();
    let mut streams = FuturesUnordered::new();
    let (mut is_first, mut ends, mut has_failed) = (true, false, false);
    while !ends || !streams.is_empty() {
        tokio::select! {
            next = reports.next() => {
                let next = next?;
                let found = targets(args, &next, only)?;
                ends = only.is_some_and(|uid| is_over(&next, uid));
                if is_first && only.is_some() {
                    let has_missing = report_missing(&found, &query, root).await?;
                    has_failed = has_missing && ends;
                }
                let new = known.new_instances(found);
                if is_first {
                    check_limit(new.len(), args)?;
                }
                waiting.extend(new.into_iter().map(|target| {
                    let mut query = query.clone();
                    query.instance.clone_from(&target.instance);
                    if !is_first {
                        query.tail = None;
                        query.since_time = None;
                    }
                    (target, query)
                }));
                is_first = false;
            }
            Some(outcome) = streams.next() => match outcome {
                Err(failure) if ends_all(&failure) => return Err(failure),
                Err(failure) => {
                    report(&failure);
                    has_failed = true;
                }
                Ok(()) => {}
            },
        }
        while streams.len() < limit
            && let Some((target, query)) = waiting.pop_front()
        {
            streams.push(async move { print(&target, &query, root).await });
        }
    }
    if has_failed {
        return Err(Failure::Problems);
    }
    Ok(())
}

/// Reports for each container that has no instance why it has no log. Returns whether there are any.
async fn report_missing(
    targets: &[Target],
    query: &LogsQuery,
    root: &Path,
) -> Result<bool, Failure> {
    // Of one that has started since the report nothing is printed here: its log is followed.
    let query = LogsQuery {
        follow: false,
        tail: Some(0),
        ..query.clone()
    };
    let mut has_any = false;
    for target in targets.iter().filter(|target| target.instance.is_none()) {
        match print(target, &query, root).await {
            Err(failure) if ends_all(&failure) => return Err(failure),
            Err(failure) => {
                report(&failure);
                has_any = true;
            }
            Ok(()) => {}
        }
    }
    Ok(has_any)
}

/// The instances of existing pods whose logs were started.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, PodUid>);

impl Known {
    /// Those of the targets that have an instance which is new.
    fn new_instances(&mut self, targets: Vec<Target>) -> Vec<Target> {
        self.0
            .retain(|_, uid| targets.iter().any(|target| target.uid == *uid));
        let is_new = |target: &Target| {
            let instance = target.instance.clone();
            instance.is_some_and(|id| self.0.insert(id, target.uid.clone()).is_none())
        };
        targets.into_iter().filter(is_new).collect()
    }
}

/// Refuses to follow more containers than allowed.
fn check_limit(streams: usize, args: &LogsArgs) -> Outcome {
    let limit = args.max_log_requests;
    if streams <= usize::from(limit) {
        return Ok(());
    }
    let help = if limit < LOG_REQUESTS_MAX {
        "use --max-log-requests to raise it"
    } else {
        "select fewer pods with -l, or a container with -c"
    };
    Err(Failure::Failed(anyhow::anyhow!(
        "attempted to follow {streams} containers, but the maximum is {limit}; {help}"
    )))
}

fn report(failure: &Failure) {
    if let Some(error) = failure.error() {
        // Standard error gone: the exit code must do.
        let _ = writeln!(anstream::stderr(), "mirrorlet: {error:#}");
    }
}

/// The containers whose logs are requested, in the order of the report and of the manifests; only those
/// of one pod if `only` is set, and none once it is gone.
fn targets(
    args: &LogsArgs,
    report: &StatusReport,
    only: Option<&PodUid>,
) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    let is_coloured = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let pods: Vec<&PodReport> = match only {
        Some(uid) => report.pods.iter().filter(|pod| pod.uid == *uid).collect(),
        None => pods(args, report)?,
    };
    for pod in pods {
        let is_asked = |name: &str| args.container.as_deref().is_none_or(|asked| asked == name);
        let containers = pod.containers.iter().filter(|c| is_asked(&c.name));
        targets.extend(containers.map(|container| Target {
            uid: pod.uid.clone(),
            container: container.name.clone(),
            instance: container.id.clone(),
            prefix: match (args.prefix || args.all_pods, is_coloured) {
                (false, _) => String::new(),
                (true, false) => prefix(pod, &container.name),
                (true, true) => coloured(pod, &prefix(pod, &container.name)),
            },
        }));
    }
    if let (true, Some(asked)) = (targets.is_empty(), &args.container)
        && !args.pods.is_empty()
        && only.is_none()
    {
        let pods = args.pods.join(", ");
        return Err(Failure::Failed(anyhow::anyhow!(
            "no container {asked:?} in these pods: {pods}"
        )));
    }
    Ok(targets)
}

fn pods<'a>(args: &LogsArgs, report: &'a StatusReport) -> Result<Vec<&'a PodReport>, Failure> {
    if args.pods.is_empty() {
        let selector = args.selector.clone().unwrap_or_default();
        let selected = |pod: &&PodReport| selector.matches(&pod.labels);
        return Ok(report.pods.iter().filter(selected).collect());
    }
    let mut pods: Vec<&PodReport> = Vec::new();
    for name in &args.pods {
        for pod in pods_named(report, name)? {
            if !pods.contains(&pod) {
                pods.push(pod);
            }
        }
    }
    Ok(pods)
}

/// The prefix in a colour that its pod always has.
fn coloured(pod: &PodReport, prefix: &str) -> String {
    let sum: usize = pod.name.bytes().map(usize::from).sum();
    let style = COLOURS[sum % COLOURS.len()].on_default();
    format!("{style}{prefix}{style:#}")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::logs::tests::report_with;
    use crate::config::args::{Cli, Cmd};

    fn parsed(flags: &[&str]) -> LogsArgs {
        let cli = Cli::try_parse_from(["mirrorlet", "logs"].iter().chain(flags)).unwrap();
        let Cmd::Logs(args) = cli.command else {
            panic!()
        };
        args
    }

    fn target(uid: &str, instance: Option<&str>) -> Target {
        Target {
            uid: uid.into(),
            container: "c".to_owned(),
            instance: instance.map(str::to_owned),
            prefix: String::new(),
        }
    }

    #[test]
    fn a_stop_of_the_agent_is_the_outcome_of_all_logs() {
        let no_log = || Failure::Failed(anyhow::anyhow!("no log"));
        let stop = || Failure::NoAgent(anyhow::anyhow!("closed"));
        let closed = || Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        for (failed, code) in [
            (vec![], None),
            (vec![no_log()], Some(1)),
            (vec![stop(), stop()], Some(3)),
            (vec![stop(), no_log()], Some(3)),
        ] {
            let outcome = all_of(failed);
            // docker 52
            assert_eq!(outcome.err().map(|failure| failure.exit_code()), code);
        }
        let outcome = all_of(vec![stop(), closed(), no_log()]);
        assert!(outcome.is_err_and(|failure| is_closed(&failure)));
        for (failure, ends) in [(no_log(), false), (stop(), true), (closed(), true)] {
            assert_eq!(ends_all(&failure), ends, "{failure:?}");
        }
    }

    #[test]
    fn one_pod_is_followed_over_its_restarts_once_it_has_begun() {
        let pod = |name: &str, containers: &[(&str, Option<&str>)]| {
            let containers = containers.iter().map(|(name, id)| {
                serde_json::json!({
                    "name": name, "role": "app", "image": "i", "state": "running", "ready": true,
                    "restarts": 0, "id": id,
                })
            });
            serde_json::json!({
                "name": format!("{name}-box"), "manifestName": name, "namespace": "default",
                "uid": name, "source": "", "status": "Running", "phase": "Running", "ready": 1,
                "containersTotal": 1, "restarts": 0, "held": false,
                "containers": containers.collect::<Vec<_>>(),
            })
        };
        let report = report_with(serde_json::json!({
            "pods": [
                pod("a", &[("web", Some("1")), ("log", None)]),
                pod("b", &[("db", Some("2"))]),
                pod("c", &[("web", None)]),
            ],
        }));
        for (flags, only) in [
            (&["a", "--all-containers"][..], Some("a")),
            (&["a", "a", "-c", "web"], Some("a")),
            (&["a", "-c", "log"], None),
            (&["c", "--all-containers"], None),
            (&["a", "b", "--all-containers"], None),
            // Only one of them has it.
            (&["a", "b", "-c", "db"], None),
        ] {
            let args = parsed(flags);
            let pods = pods(&args, &report).unwrap();
            let targets = targets(&args, &report, None).unwrap();
            let found = only_pod(&pods, &targets).map(PodUid::as_str);
            // docker 52
            assert_eq!(found, only, "{flags:?}");
        }
    }

    #[test]
    fn too_many_containers_are_refused_with_what_to_do() {
        for (limit, streams, expected) in [
            ("32", 32, None),
            ("32", 33, Some("use --max-log-requests to raise it")),
            ("60", 60, None),
            ("60", 61, Some("select fewer pods")),
        ] {
            let args = parsed(&["--all-pods", "-f", "--max-log-requests", limit]);
            let outcome = check_limit(streams, &args);
            let error = outcome.as_ref().err().and_then(Failure::error);
            let words = error.map(ToString::to_string).unwrap_or_default();
            // docker 52
            assert!(words.contains(expected.unwrap_or_default()), "{words}");
            // docker 52
            assert_eq!(outcome.is_err(), expected.is_some(), "{limit} {streams}");
        }
    }

    #[test]
    fn each_instance_is_followed_once_while_its_pod_is_there() {
        let mut known = Known::default();
        for (targets, new) in [
            (vec![target("a", None)], vec![]),
            (vec![target("a", Some("1"))], vec!["1"]),
            (
                vec![target("a", Some("1")), target("b", Some("2"))],
                vec!["2"],
            ),
            // A restart.
            (
                vec![target("a", Some("3")), target("b", Some("2"))],
                vec!["3"],
            ),
            (vec![target("b", Some("2"))], vec![]),
        ] {
            let found = known.new_instances(targets);
            let found: Vec<_> = found.into_iter().filter_map(|t| t.instance).collect();
            // docker 52
            assert_eq!(found, new);
        }
        assert_eq!(known.0.len(), 1);
    }
}
