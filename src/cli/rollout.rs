//! `mirrorlet rollout`: follows and controls the rollouts of edits.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::logs::escape;
use super::status::watch_reports;
use super::table::{self, Cell, one_line};
use super::{Failure, Outcome, client, print, print_document};
use crate::config::args::{AgentArgs, RolloutCommand, RolloutHistoryArgs, RolloutStatusArgs};
use crate::server::admin::{CommandAnswer, CommandName, CommandQuery};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{
    HistoryReport, PodReport, RevisionReport, RolloutPhase, RolloutReport, STOPPED, STOPPING,
    StatusReport, WorkloadReport,
};
use mirrorlet_core::rollout::group::FAILED_ELSEWHERE;
use mirrorlet_core::workload::WorkloadKind;
use mirrorlet_core::workload::standing::{NOT_READY, PARTITIONED, SCALING};

#[cfg(test)]
mod tests;

/// The flags that locate the agent.
pub(super) fn agent(command: &RolloutCommand) -> &AgentArgs {
    match command {
        RolloutCommand::Status(args) => &args.pod.agent,
        RolloutCommand::History(args) => &args.pod.agent,
        RolloutCommand::Undo { pod, .. }
        | RolloutCommand::Retry { pod }
        | RolloutCommand::Pause { pod }
        | RolloutCommand::Resume { pod } => &pod.agent,
    }
}

/// Runs one of its subcommands.
pub async fn rollout(command: &RolloutCommand, root: &Path) -> Outcome {
    let (pod, name, to_revision) = match command {
        RolloutCommand::Status(args) => return status(args, root).await,
        RolloutCommand::History(args) => return history(args, root).await,
        RolloutCommand::Undo { pod, to_revision } => (pod, CommandName::Undo, *to_revision),
        RolloutCommand::Retry { pod } => (pod, CommandName::Retry, None),
        RolloutCommand::Pause { pod } => (pod, CommandName::Pause, None),
        RolloutCommand::Resume { pod } => (pod, CommandName::Resume, None),
    };
    let query = CommandQuery {
        pod: pod.pod.clone(),
        command: name,
        to_revision,
    };
    let path = client::with_query("/v1/rollouts", &query)?;
    let answer = client::post(root, &path).await?;
    let CommandAnswer { revision, workload } = client::parse(&answer)?;
    // As it was typed.
    let typed = one_line(&pod.pod);
    let done = match name {
        CommandName::Undo => format!("switching to revision {revision} until the manifest changes"),
        CommandName::Retry => format!("revision {revision} will be retried"),
        // Its pods may run different revisions.
        CommandName::Pause if workload.is_some() => {
            format!("its pods keep their revisions until: mirrorlet rollout resume {typed}")
        }
        CommandName::Pause => {
            format!("revision {revision} keeps running until: mirrorlet rollout resume {typed}")
        }
        CommandName::Resume => format!("rollouts resumed, revision {revision} will run"),
    };
    let what = match workload {
        // Its kind was typed.
        Some(_) if WorkloadKind::named(&pod.pod).is_some() => pod.pod.clone(),
        Some(workload) => workload,
        None => format!("pod {}", pod.pod),
    };
    print_line(&format!("{}: {done}", one_line(&what)))
}

fn print_line(line: &str) -> Outcome {
    print(&format!("{line}\n"))
}

async fn fetch(pod: &str, root: &Path) -> Result<HistoryReport, Failure> {
    let path = format!("/v1/rollouts?pod={}&fresh=true", escape(pod));
    let body = client::get(root, &path).await?.whole().await?;
    Ok(client::parse(&body)?)
}

async fn history(args: &RolloutHistoryArgs, root: &Path) -> Outcome {
    let report = fetch(&args.pod.pod, root).await?;
    print_document(args.output, &report, |report| {
        revisions(report, Timestamp::now())
    })
}

/// The revisions as a table, oldest first, as `kubectl rollout history` has them.
fn revisions(report: &HistoryReport, now: Timestamp) -> String {
    let of_workload = report.revisions.iter().any(|row| row.pods.is_some());
    let mut titles = vec!["REVISION", "AGE", "STATE", "CHANGED", "CAUSE"];
    if of_workload {
        titles.insert(3, "PODS");
    }
    let row = |revision: &RevisionReport| {
        let cause = match (&*revision.reason, &*revision.message) {
            ("", _) => String::new(),
            (reason, message) => format!("{reason}: {message}"),
        };
        let changes = match revision.changes.as_slice() {
            [] => "-".to_owned(),
            [first] => first.clone(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        };
        let mut row = vec![
            Cell::from(revision.number.to_string()),
            mirrorlet_core::clock::age(revision.wanted_at, now).into(),
            state(revision).into(),
            changes.into(),
            cause.into(),
        ];
        if of_workload {
            row.insert(3, revision.pods.unwrap_or(0).to_string().into());
        }
        row
    };
    if report.revisions.is_empty() {
        let (kind, name) = report
            .name
            .split_once('/')
            .unwrap_or(("pod", report.name.as_str()));
        let name = format!("{kind} {}/{name}", report.namespace);
        return format!(
            "{} has 0 desired pods, and therefore no revisions; set spec.replicas in its manifest to start some\n",
            one_line(&name)
        );
    }
    let mut text = table::titled(titles, report.revisions.iter().map(row));
    if report.paused {
        let name = typed(&report.namespace, &report.name);
        let name = one_line(&name);
        let words = "Rollouts are paused; resume them with: mirrorlet rollout resume";
        let _ = writeln!(text, "\n{words} {name}");
    }
    text
}

/// A pod, or a workload as its pods name it (`Deployment/web`), as commands take it.
fn typed(namespace: &str, name: &str) -> String {
    match name.split_once('/') {
        Some((kind, name)) => format!("{}/{namespace}/{name}", kind.to_lowercase()),
        None => format!("{namespace}/{name}"),
    }
}

fn state(revision: &RevisionReport) -> String {
    let outcome = match revision.outcome.as_str() {
        "Open" => "not judged",
        "Healthy" => "healthy",
        "Ended" => "ended",
        _ => "failed",
    };
    let mut words = vec![outcome];
    if revision.runs {
        words.push("running");
    }
    if revision.wanted {
        words.push("in the manifest");
    }
    words.join(", ")
}

async fn status(args: &RolloutStatusArgs, root: &Path) -> Outcome {
    let mut last = String::new();
    let follow = follow(args, root, &mut last);
    if args.timeout.is_zero() {
        return follow.await;
    }
    let followed = tokio::time::timeout(args.timeout, follow).await;
    followed.unwrap_or_else(|_| Err(not_in_time(&args.pod.pod, args.timeout, &last)))
}

/// The error for a rollout that is still in progress after that time; `last` is the last reported
/// state, if any.
fn not_in_time(name: &str, limit: Duration, last: &str) -> Failure {
    let (name, limit, last) = (one_line(name), limit.as_secs_f64(), one_line(last));
    let state = if last.is_empty() {
        last
    } else {
        format!(": {last}")
    };
    Failure::Failed(anyhow::anyhow!(
        "the rollout of {name} did not end within {limit} s{state}; see mirrorlet explain {name}"
    ))
}

/// Prints the progress of a rollout until it ends. The last reported state is stored in `last`.
async fn follow(args: &RolloutStatusArgs, root: &Path, last: &mut String) -> Outcome {
    let HistoryReport {
        name, namespace, ..
    } = fetch(&args.pod.pod, root).await?;
    let mut reports = watch_reports(root, true).await?;
    loop {
        let report = reports.next().await?;
        let standing = if name.contains('/') {
            standing_of_workload(&report, &namespace, &name)
        } else {
            standing(&report, &namespace, &name)
        };
        let (line, end) = match &standing {
            Standing::Gone => {
                let what = name.split_once('/').map_or("pod", |(kind, _)| kind);
                let name = name.rsplit('/').next().unwrap_or_default();
                let gone =
                    anyhow::anyhow!("no manifest defines {what} {namespace}/{name} any more");
                return Err(gone.into());
            }
            Standing::Done(line) => (line, Some(Ok(()))),
            Standing::Failed(line) => (line, Some(Err(Failure::Problems))),
            Standing::UnderWay(line) => (line, (!args.watch).then_some(Ok(()))),
        };
        if *line != *last {
            print_line(&one_line(line))?;
            last.clone_from(line);
        }
        if let Some(end) = end {
            return end;
        }
    }
}

/// The progress of a rollout.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// The pod isn't there.
    Gone,
    /// It continues.
    UnderWay(String),
    /// It ended well.
    Done(String),
    /// It failed, or can't be started within its progress deadline.
    Failed(String),
}

fn standing(report: &StatusReport, namespace: &str, name: &str) -> Standing {
    // One that is being stopped has no source any more.
    let is_it =
        |pod: &&PodReport| pod.name == name && pod.namespace == namespace && !pod.source.is_empty();
    report
        .pods
        .iter()
        .find(is_it)
        .map_or(Standing::Gone, standing_of)
}

/// The progress of a workload's rollout: that of its pods, one after another.
fn standing_of_workload(report: &StatusReport, namespace: &str, owner: &str) -> Standing {
    let is_its = |pod: &&PodReport| {
        pod.workload.as_deref() == Some(owner)
            && pod.namespace == namespace
            && !pod.source.is_empty()
    };
    let pods: Vec<&PodReport> = report.pods.iter().filter(is_its).collect();
    let (kind, name) = owner.split_once('/').unwrap_or_default();
    let all_are = format!("{kind} {namespace}/{name}: ");
    if pods.is_empty() {
        let found = workload(report, namespace, owner);
        return found.map_or(Standing::Gone, |found| without_pods(found, &all_are));
    }
    let updated = updated(&pods);
    let (mut failed, mut done) = (None, None);
    let (mut waits, mut is_overdue) = (None, false);
    for pod in &pods {
        let rollout = pod.rollout.as_ref();
        let is_waiting = rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Waiting);
        is_overdue |= rollout.is_some_and(|rollout| rollout.overdue);
        match standing_of(pod) {
            Standing::UnderWay(line) if is_waiting => waits = waits.or(Some(line)),
            Standing::UnderWay(line) => {
                let count = pods.len();
                let line =
                    format!("{all_are}{updated} of {count} pods have the new version; {line}");
                return Standing::UnderWay(line);
            }
            Standing::Failed(line) if failed.is_none() || failed_itself(pod) => failed = Some(line),
            Standing::Done(line) if is_undone(pod) => done = Some(line),
            Standing::Failed(_) | Standing::Done(_) | Standing::Gone => {}
        }
    }
    match of_set(report, namespace, owner) {
        Some((PARTITIONED, message)) if failed.is_none() => {
            return Standing::Done(format!("{all_are}{message}"));
        }
        Some((SCALING | NOT_READY, message)) if failed.is_none() => {
            return Standing::UnderWay(format!("{all_are}{message}"));
        }
        Some(_) | None => {}
    }
    // Pods that wait for one that can't be updated would wait forever.
    if let Some(line) = waits.filter(|_| !is_overdue) {
        return Standing::UnderWay(format!("{all_are}{line}"));
    }
    match (failed, done) {
        (Some(line), _) => Standing::Failed(format!("{all_are}{line}")),
        (None, Some(line)) => Standing::Done(format!("{all_are}{line}")),
        (None, None) => Standing::Done(format!(
            "{all_are}successfully rolled out to all {} pods",
            pods.len()
        )),
    }
}

/// The progress of a workload without pods; `all_are` describes it.
fn without_pods(found: &WorkloadReport, all_are: &str) -> Standing {
    let (wanted, message) = (found.wanted, &found.message);
    if wanted == 0 {
        Standing::Done(format!(
            "{all_are}it has 0 desired pods; set spec.replicas in its manifest to start some"
        ))
    } else if message.is_empty() {
        Standing::UnderWay(format!("{all_are}0 of {wanted} pods exist"))
    } else {
        Standing::UnderWay(format!("{all_are}{message}"))
    }
}

/// The report of a workload.
fn workload<'a>(
    report: &'a StatusReport,
    namespace: &str,
    owner: &str,
) -> Option<&'a WorkloadReport> {
    let mut all = report.workloads.iter();
    all.find(|one| one.namespace == namespace && one.owner == owner)
}

/// The number of pods that run the version which all of them should run: that of the manifest, or the
/// one selected by an undo.
fn updated(pods: &[&PodReport]) -> usize {
    let is_undo = |rollout: &RolloutReport| rollout.target != rollout.newest;
    let rollouts = || pods.iter().filter_map(|pod| pod.rollout.as_ref());
    let undone = rollouts().any(is_undo);
    let without = if undone {
        0
    } else {
        pods.len() - rollouts().count()
    };
    let is_there = |rollout: &&RolloutReport| rollout.revision == rollout.target;
    rollouts().filter(is_there).count() + without
}

/// The progress of a `StatefulSet`, and its message: its pods have no rollouts while they start and
/// stop, and those below its partition wait forever.
fn of_set<'a>(
    report: &'a StatusReport,
    namespace: &str,
    owner: &str,
) -> Option<(&'a str, &'a str)> {
    let found = workload(report, namespace, owner)?;
    let is_set = owner.starts_with(WorkloadKind::StatefulSet.as_str());
    is_set.then_some((&*found.progress, &*found.message))
}

/// Whether a pod runs an older version because of an undo.
fn is_undone(pod: &PodReport) -> bool {
    let rollout = pod.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Undone)
}

/// Whether a version failed at this pod, rather than at another one of its workload.
fn failed_itself(pod: &PodReport) -> bool {
    let rollout = pod.rollout.as_ref();
    rollout.is_some_and(|rollout| rollout.reason != FAILED_ELSEWHERE)
}

/// Whether a pod without a rollout is not ready, though it was not stopped and hasn't ended.
fn is_starting(pod: &PodReport) -> bool {
    let is_over = matches!(pod.phase.as_str(), "Succeeded" | "Failed");
    !is_over && !pod.is_ready() && ![STOPPED, STOPPING].contains(&pod.status.as_str())
}

fn standing_of(pod: &PodReport) -> Standing {
    let (namespace, name) = (&pod.namespace, &pod.name);
    let pod_is = format!("pod {namespace}/{name}: ");
    let rollout = pod.rollout.as_ref();
    let Some(rollout) = rollout.filter(|rollout| !rollout.is_paused_when_done()) else {
        if is_starting(pod) {
            let PodReport {
                ready,
                containers_total,
                ..
            } = pod;
            return Standing::UnderWay(format!(
                "{pod_is}the version of the manifest was started, {ready} of {containers_total} containers are ready"
            ));
        }
        let paused = if rollout.is_some() {
            "; its rollouts are paused"
        } else {
            ""
        };
        return Standing::Done(format!("{pod_is}successfully rolled out{paused}"));
    };
    let RolloutReport {
        phase,
        revision,
        target,
        newest,
        reason,
        message,
        ..
    } = rollout;
    match phase {
        RolloutPhase::Preparing => Standing::UnderWay(format!(
            "{pod_is}revision {target} is being prepared, revision {revision} runs"
        )),
        RolloutPhase::Waiting => Standing::UnderWay(format!(
            "{pod_is}revision {target} waits, revision {revision} runs: {message}"
        )),
        RolloutPhase::Restoring => Standing::UnderWay(format!(
            "{pod_is}revision {target} failed, restoring an older revision: {reason}: {message}"
        )),
        RolloutPhase::Held if rollout.overdue => Standing::Failed(format!(
            "{pod_is}revision {target} exceeded its progress deadline, revision {revision} runs: {reason}: {message}"
        )),
        RolloutPhase::Held => Standing::UnderWay(format!(
            "{pod_is}revision {target} can't be started, revision {revision} runs: {reason}: {message}"
        )),
        // For a first version, there is none to restore.
        RolloutPhase::Judging if !reason.is_empty() => Standing::Failed(format!(
            "{pod_is}revision {target} failed, and there is no older one to run instead: {reason}: {message}"
        )),
        RolloutPhase::Judging => Standing::UnderWay(format!(
            "{pod_is}revision {target} was started, {} of {} containers are ready",
            pod.ready, pod.containers_total
        )),
        RolloutPhase::Paused => Standing::UnderWay(format!(
            "{pod_is}paused, revision {revision} runs; resume with: mirrorlet rollout resume {}",
            typed(namespace, pod.workload.as_deref().unwrap_or(name))
        )),
        RolloutPhase::Failed => Standing::Failed(format!(
            "{pod_is}revision {target} failed and keeps running: {reason}: {message}"
        )),
        RolloutPhase::Restored => Standing::Failed(format!(
            "{pod_is}revision {target} failed, revision {revision} runs: {reason}: {message}"
        )),
        RolloutPhase::Undone => Standing::Done(format!(
            "{pod_is}revision {revision} runs, undone from revision {newest}"
        )),
    }
}
