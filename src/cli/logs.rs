//! `mirrorlet logs`: the output of containers, each stream to its own.

use std::io::{self, Write};
use std::path::Path;

use lines::Lines;

use super::client::LOOK_AND_REPEAT;
use super::{Failure, Outcome, client, status};
use crate::config::args::LogsArgs;
use crate::server::admin::LogsQuery;
use crate::server::frame::{Frame, FrameReader};
use mirrorlet_core::api::report::{PodReport, STOPPED, STOPPING, StatusReport, TERMINATING};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::select::{find_pods, names_cron_job, names_job};

mod lines;
mod many;

/// Lines of each container that are printed of pods selected by labels. Upstream: `selectorTail` of
/// `kubectl/pkg/cmd/logs`.
const SELECTED_TAIL: i64 = 10;

/// Prints the requested logs.
pub async fn logs(args: &LogsArgs, root: &Path) -> Outcome {
    let [pod] = args.pods.as_slice() else {
        return many::logs(args, root).await;
    };
    if args.all_containers {
        return many::logs(args, root).await;
    }
    let report = status::fetch(root, false).await?;
    let found = pods_named(&report, pod)?;
    let [pod] = found[..] else {
        return many::logs(args, root).await;
    };
    let mut query = query(args, Timestamp::now());
    let name = chosen_name(args, pod);
    if goes_on(args) {
        query.instance = instance(pod, &name);
    }
    let lines = || args.prefix.then(|| Lines::with_prefix(prefix(pod, &name)));
    let first = path(&query, &pod.uid, args.container.as_deref())?;
    log(root, &first, lines()).await?;
    let Some(mut last) = query.instance.take() else {
        return Ok(());
    };
    (query.tail, query.since_time) = (None, None);
    let mut reports = status::watch_reports(root, false).await?;
    loop {
        match after(&reports.next().await?, &pod.uid, &name, &last) {
            After::Instance(next) => {
                query.instance = Some(next.clone());
                log(root, &path(&query, &pod.uid, Some(&name))?, lines()).await?;
                last = next;
            }
            After::Nothing => {}
            After::End => return Ok(()),
        }
    }
}

/// Whether a pod's log continues with later instances.
fn goes_on(args: &LogsArgs) -> bool {
    args.follow && !args.previous && args.limit_bytes.is_none()
}

/// The next step of a followed log, once an instance of its container has ended.
#[derive(Debug, PartialEq, Eq)]
enum After {
    /// Read the log of this instance.
    Instance(String),
    /// Wait: no newer instance exists yet.
    Nothing,
    /// End: no newer one will exist.
    End,
}

/// Decides from a report how a followed log continues after the instance `last`.
fn after(report: &StatusReport, uid: &PodUid, container: &str, last: &str) -> After {
    let pod = report.pods.iter().find(|pod| pod.uid == *uid);
    let newest = pod.and_then(|pod| instance(pod, container));
    match newest.filter(|id| id != last) {
        Some(next) => After::Instance(next),
        None if is_over(report, uid) => After::End,
        None => After::Nothing,
    }
}

/// Whether a pod starts no further instances: it is gone, over, being removed or stopped.
fn is_over(report: &StatusReport, uid: &PodUid) -> bool {
    let pod = report.pods.iter().find(|pod| pod.uid == *uid);
    pod.is_none_or(|pod| {
        ["Succeeded", "Failed"].contains(&pod.phase.as_str())
            || [STOPPED, STOPPING, TERMINATING].contains(&pod.status.as_str())
    })
}

/// The id of the newest instance of a container.
fn instance(pod: &PodReport, container: &str) -> Option<String> {
    let mut all = pod.containers.iter();
    all.find(|one| one.name == container)?.id.clone()
}

/// The pods that a text means. A workload without pods is named as one.
fn pods_named<'a>(report: &'a StatusReport, text: &str) -> anyhow::Result<Vec<&'a PodReport>> {
    let error = match find_pods(&report.pods, text) {
        Ok(pods) => return Ok(pods),
        Err(error) => error,
    };
    if let Some(job) = report.jobs.iter().find(|job| names_job(text, job)) {
        let why = if job.ended_at.is_some() {
            "they were removed after it ended, see its ttlSecondsAfterFinished"
        } else {
            "none was started yet"
        };
        let (namespace, name, condition) = (&job.namespace, &job.name, &job.condition);
        anyhow::bail!("job {namespace}/{name} ({condition}) has no pods: {why}");
    }
    if let Some(cron) = report
        .cron_jobs
        .iter()
        .find(|cron| names_cron_job(text, cron))
    {
        let (namespace, name) = (&cron.namespace, &cron.name);
        anyhow::bail!("cronjob {namespace}/{name} has no pods: none of its Jobs has any");
    }
    Err(error.into())
}

/// The prefix of a container's lines.
fn prefix(pod: &PodReport, container: &str) -> String {
    format!("[pod/{}/{container}] ", pod.name)
}

/// The container whose log is printed: the given one, otherwise the pod's default one, otherwise the
/// only one, because an older agent reports no default. Empty if the agent refuses the request without
/// a name.
fn chosen_name(args: &LogsArgs, pod: &PodReport) -> String {
    let asked = args.container.as_ref();
    let only = match pod.containers.as_slice() {
        [only] => Some(&only.name),
        _ => None,
    };
    asked
        .or(pod.default_container.as_ref())
        .or(only)
        .cloned()
        .unwrap_or_default()
}

/// Prints one log: as it comes, or line by line.
///
/// # Errors
/// [`Failure::NoAgent`] when the log breaks off because the agent stops.
async fn log(root: &Path, path: &str, mut lines: Option<Lines>) -> Outcome {
    let mut answer = client::get(root, path).await?;
    let mut reader = FrameReader::default();
    let is_whole = loop {
        let bytes = match answer.next().await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => break reader.is_empty(),
            Err(_) => break false,
        };
        reader.push(&bytes);
        while let Some(frame) = reader.next_frame()? {
            print(frame, lines.as_mut())?;
        }
        io::stdout().flush()?;
    };
    if let Some(lines) = lines {
        lines.finish(&mut io::stdout(), &mut io::stderr())?;
    }
    if is_whole {
        return Ok(());
    }
    Err(Failure::NoAgent(anyhow::anyhow!(
        "the agent closed the log before its end; {LOOK_AND_REPEAT}"
    )))
}

fn print(frame: Frame, lines: Option<&mut Lines>) -> Result<(), Failure> {
    let (bytes, is_error) = match frame {
        Frame::Stdout(bytes) => (bytes, false),
        Frame::Stderr(bytes) => (bytes, true),
        Frame::Failed(words) => {
            return Err(anyhow::anyhow!("lost the log: {words}").into());
        }
    };
    match (lines, is_error) {
        (None, false) => io::stdout().write_all(&bytes)?,
        (None, true) => io::stderr().write_all(&bytes)?,
        (Some(lines), false) => lines.write_out(&bytes, &mut io::stdout())?,
        (Some(lines), true) => lines.write_err(&bytes, &mut io::stderr())?,
    }
    Ok(())
}

/// The query of a log request.
fn query(args: &LogsArgs, now: Timestamp) -> LogsQuery {
    let ago = args.since.map(|ago| {
        now.checked_sub(ago)
            .unwrap_or(Timestamp::UNIX_EPOCH)
            .max(Timestamp::UNIX_EPOCH)
    });
    let default_tail = args.selector.is_some().then_some(SELECTED_TAIL);
    let tail = args.tail.or(default_tail);
    LogsQuery {
        follow: args.follow,
        previous: args.previous,
        timestamps: args.timestamps,
        // -1 means all lines.
        tail: tail.and_then(|tail| u64::try_from(tail).ok()),
        since_time: ago.or(args.since_time),
        limit_bytes: args.limit_bytes,
        ..LogsQuery::default()
    }
}

/// The path and query of a log request.
fn path(query: &LogsQuery, uid: &PodUid, container: Option<&str>) -> anyhow::Result<String> {
    let path = match container {
        Some(container) => format!("/v1/pods/{uid}/logs/{}", escape(container)),
        None => format!("/v1/pods/{uid}/logs"),
    };
    client::with_query(&path, query)
}

/// Escapes a text for one segment of a path, or one value of a query.
pub(super) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                char::from(byte).to_string()
            }
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::args::{Cli, Cmd};

    fn parsed(flags: &[&str]) -> LogsArgs {
        let cli = Cli::try_parse_from(["mirrorlet", "logs"].iter().chain(flags)).unwrap();
        let Cmd::Logs(args) = cli.command else {
            panic!()
        };
        args
    }

    #[test]
    fn flags_become_a_query() {
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        for (flags, expected) in [
            (&["p"][..], "/v1/pods/u/logs"),
            (&["p", "-c", "a/b"], "/v1/pods/u/logs/a%2Fb"),
            (
                &["p", "-f", "--tail", "5", "--since", "1m1ms"],
                "/v1/pods/u/logs?follow=true&tail=5&sinceTime=2026-01-02T03%3A03%3A05.499Z",
            ),
            (
                &["p", "-p", "--timestamps", "--limit-bytes", "9", "--tail=-1"],
                "/v1/pods/u/logs?previous=true&timestamps=true&limitBytes=9",
            ),
            (
                &["p", "--since-time", "2026-01-01T00:00:00.25Z"],
                "/v1/pods/u/logs?sinceTime=2026-01-01T00%3A00%3A00.25Z",
            ),
            (&["-l", "app=web"], "/v1/pods/u/logs?tail=10"),
            (&["-l", "app=web", "--tail=-1"], "/v1/pods/u/logs"),
            (&["--all-pods"], "/v1/pods/u/logs"),
            // Before the beginning of time is its beginning.
            (
                &["p", "--since", "1000000h"],
                "/v1/pods/u/logs?sinceTime=1970-01-01T00%3A00%3A00Z",
            ),
        ] {
            let args = parsed(flags);
            let path = path(&query(&args, now), &"u".into(), args.container.as_deref());
            assert_eq!(path.unwrap(), expected);
        }
    }

    /// A report of an agent that runs nothing, with these lists in the place of the empty ones.
    pub(super) fn report_with(lists: serde_json::Value) -> StatusReport {
        let now = "2026-01-02T03:04:05Z";
        let mut report = serde_json::json!({
            "agent": {
                "version": "1", "pid": 1, "startedAt": now, "nodeName": "box", "root": "/r",
                "owner": "o",
            },
            "engine": {"endpoint": "", "reachable": true},
            "sources": [], "problems": [], "pods": [],
        });
        let serde_json::Value::Object(lists) = lists else {
            panic!("lists by name, not {lists}")
        };
        report.as_object_mut().unwrap().extend(lists);
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn a_job_without_pods_is_told_why() {
        let job = |name: &str, ended: Option<&str>| {
            serde_json::json!({
                "namespace": "default", "name": name, "source": "", "active": 0, "succeeded": 1,
                "failed": 0, "condition": "Complete", "endedAt": ended,
            })
        };
        let now = "2026-01-02T03:04:05Z";
        let report = report_with(serde_json::json!({
            "jobs": [job("ttl", Some(now)), job("new", None)],
            "cronJobs": [{
                "namespace": "default", "name": "every", "source": "", "schedule": "* * * * *",
                "timeZone": "UTC", "suspended": false, "active": 0,
            }],
        }));
        for (text, words) in [
            (
                "job/ttl",
                "job default/ttl (Complete) has no pods: they were removed after it ended, see its ttlSecondsAfterFinished",
            ),
            (
                "job/new",
                "job default/new (Complete) has no pods: none was started yet",
            ),
            (
                "cronjob/default/every",
                "cronjob default/every has no pods: none of its Jobs has any",
            ),
            (
                "job/x",
                "pod \"job/x\" not found; mirrorlet status lists all pods",
            ),
        ] {
            assert_eq!(pods_named(&report, text).unwrap_err().to_string(), words);
        }
    }

    #[test]
    fn a_followed_container_goes_on_with_its_next_instance() {
        let report = |uid: &str, status: &str, phase: &str, id: Option<&str>| -> StatusReport {
            let now = "2026-01-02T03:04:05Z";
            let report = serde_json::json!({
                "agent": {"version": "1", "pid": 1, "startedAt": now, "nodeName": "box", "root": "/r", "owner": "o"},
                "engine": {"endpoint": "", "reachable": true}, "sources": [], "problems": [],
                "pods": [{
                    "name": "web-box", "manifestName": "web", "namespace": "default", "uid": uid,
                    "source": "", "status": status, "phase": phase, "ready": 0, "containersTotal": 1,
                    "restarts": 1, "held": false, "defaultContainer": "web", "containers": [
                        {"name": "other", "role": "init", "image": "i", "state": "running",
                            "ready": true, "restarts": 0, "id": "other"},
                        {"name": "web", "role": "app", "image": "i", "state": "waiting",
                            "ready": false, "restarts": 1, "id": id},
                    ],
                }],
            });
            serde_json::from_value(report).unwrap()
        };
        let next = || After::Instance("2".to_owned());
        for (report, expected) in [
            (
                report("u", "CrashLoopBackOff", "Running", Some("1")),
                After::Nothing,
            ),
            (report("u", "Running", "Running", None), After::Nothing),
            (report("u", "Running", "Running", Some("2")), next()),
            (report("u", "Error", "Failed", Some("2")), next()),
            (report("u", "Completed", "Succeeded", Some("1")), After::End),
            (report("u", "Stopped", "Running", Some("1")), After::End),
            (report("u", "Terminating", "Running", Some("1")), After::End),
            (report("v", "Running", "Running", Some("2")), After::End),
        ] {
            let name = chosen_name(&parsed(&["web", "-f"]), &report.pods[0]);
            let found = after(&report, &"u".into(), &name, "1");
            assert_eq!(found, expected, "{:?}", report.pods[0].status);
        }
        let pod = &report("u", "Running", "Running", None).pods[0];
        assert_eq!(chosen_name(&parsed(&["web", "-c", "other"]), pod), "other");
        // An older agent doesn't name the default.
        let mut pod = pod.clone();
        pod.default_container = None;
        assert_eq!(chosen_name(&parsed(&["web"]), &pod), "");
        pod.containers.remove(0);
        assert_eq!(chosen_name(&parsed(&["web"]), &pod), "web");
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        for flags in [
            &["p", "-c", "x", "--all-containers"][..],
            &["p", "--since", "1s", "--since-time", "2026-01-01T00:00:00Z"],
            &["p", "--tail=-2"],
            &[],
            &["p", "-l", "app=web"],
            &["p", "--all-pods"],
            &["--all-pods", "-l", "app=web"],
            &["-l", "app web"],
            &["p", "--max-log-requests=0"],
            &["p", "--max-log-requests=61"],
        ] {
            let all = ["mirrorlet", "logs"];
            let parsed = Cli::try_parse_from(all.iter().chain(flags));
            assert!(parsed.is_err(), "{flags:?}");
        }
    }
}
