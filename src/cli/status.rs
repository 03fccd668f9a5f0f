//! `mirrorlet status`: the pods of the running agent, and the problems.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::Duration;

use super::table::one_line;
use super::{Failure, Outcome, client};
use crate::config::args::{StatusArgs, StatusOrder, StatusOutput};
use mirrorlet_core::api::report::{CronJobReport, PodReport, StatusReport};
use mirrorlet_core::api::{Diagnostic, Timestamp};
use mirrorlet_core::labels::LabelSelector;
use mirrorlet_core::select::{PodNotFound, find_pods, names_cron_job, names_job};
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::workload::standing;

pub mod render;

/// Interval of updates of the ages on a terminal.
const REDRAW: Duration = Duration::from_secs(1);

/// Moves a terminal's cursor home and clears it.
pub(super) const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Prints the status once, or with every change.
pub async fn status(args: &StatusArgs, root: &Path) -> Outcome {
    if args.watch {
        return watch(args, root).await;
    }
    let report = selected(args, fetch(root, true).await?, false)?;
    print(&text(args.output, &report, false)?, false)?;
    if args.exit_code && !report.is_well() {
        return Err(Failure::Problems);
    }
    Ok(())
}

/// Reads the status of the agent of `root` once. A fresh report includes all saved changes, and takes a
/// few hundredths of a second longer.
pub async fn fetch(root: &Path, fresh: bool) -> Result<StatusReport, Failure> {
    let path = format!("/v1/status?fresh={fresh}");
    let body = client::get(root, &path).await?.whole().await?;
    Ok(client::parse(&body)?)
}

/// The current report, and one after each change. A fresh one includes all saved changes.
pub(super) async fn watch_reports(
    root: &Path,
    fresh: bool,
) -> Result<client::Lines<StatusReport>, Failure> {
    let path = format!("/v1/status?watch=true&fresh={fresh}");
    client::Lines::watch(root, &path).await
}

async fn watch(args: &StatusArgs, root: &Path) -> Outcome {
    let mut reports = watch_reports(root, true).await?;
    let redraw = io::stdout().is_terminal()
        && matches!(args.output, StatusOutput::Table | StatusOutput::Wide);
    let mut report = reports.next().await?;
    let mut shown = String::new();
    loop {
        let text = text(args.output, &selected(args, report.clone(), true)?, true)?;
        if !redraw || text != shown {
            print(&text, redraw)?;
        }
        shown = text;
        tokio::select! {
            next = reports.next() => report = next?,
            // Ages change though nothing happens.
            () = tokio::time::sleep(REDRAW), if redraw => {}
        }
    }
}

/// The requested part of a report, in the requested order. While watching, the requested pods may
/// appear and disappear.
fn selected(
    args: &StatusArgs,
    mut report: StatusReport,
    watching: bool,
) -> Result<StatusReport, Failure> {
    if !args.pods.is_empty() {
        let pods = named(&report, &args.pods, watching)?;
        let mut jobs = std::mem::take(&mut report.jobs);
        jobs.retain(|job| {
            let of_pod = |pod: &PodReport| job.has(pod);
            pods.iter().any(of_pod) || args.pods.iter().any(|text| names_job(text, job))
        });
        let is_named =
            |cron: &CronJobReport| args.pods.iter().any(|text| names_cron_job(text, cron));
        report.cron_jobs.retain(is_named);
        report.workloads.retain(|one| {
            let of_pod = |pod: &PodReport| one.has(pod);
            pods.iter().any(of_pod) || args.pods.iter().any(|text| standing::is_named(one, text))
        });
        report = only(report, pods);
        report.jobs = jobs;
    } else if args.selector.is_some() || args.namespace.is_some() {
        let (namespace, selector) = (args.namespace.as_ref(), args.selector.as_ref());
        let is_in = |of: &String| namespace.is_none_or(|namespace| namespace == of);
        let mut pods = std::mem::take(&mut report.pods);
        pods.retain(|pod| {
            let has_labels = |selector: &LabelSelector| selector.matches(&pod.labels);
            is_in(&pod.namespace) && selector.is_none_or(has_labels)
        });
        let mut jobs = std::mem::take(&mut report.jobs);
        jobs.retain(|job| {
            is_in(&job.namespace) && (selector.is_none() || pods.iter().any(|pod| job.has(pod)))
        });
        let crons = &mut report.cron_jobs;
        crons.retain(|cron| is_in(&cron.namespace) && selector.is_none());
        report.workloads.retain(|one| {
            is_in(&one.namespace) && (selector.is_none() || pods.iter().any(|pod| one.has(pod)))
        });
        report = only(report, pods);
        report.jobs = jobs;
    }
    // They come by namespace and name, and stay so where they are equal otherwise.
    match args.sort_by {
        StatusOrder::Name => {}
        StatusOrder::Age => report.pods.small_sort_by_key(|pod| Reverse(pod.started_at)),
        StatusOrder::Restarts => report.pods.small_sort_by_key(|pod| Reverse(pod.restarts)),
        StatusOrder::Status => report.pods.small_sort_by(|a, b| a.status.cmp(&b.status)),
    }
    Ok(report)
}

fn text(output: StatusOutput, report: &StatusReport, watching: bool) -> Result<String, Failure> {
    Ok(match output {
        StatusOutput::Table => render::render(report, Timestamp::now(), false),
        StatusOutput::Wide => render::render(report, Timestamp::now(), true),
        StatusOutput::Name => names(report),
        StatusOutput::Json if watching => serde_json::to_string(report)? + "\n",
        StatusOutput::Json => serde_json::to_string_pretty(report)? + "\n",
        StatusOutput::Yaml if watching => {
            format!("---\n{}", serde_saphyr::to_string(report)?)
        }
        StatusOutput::Yaml => serde_saphyr::to_string(report)?,
    })
}

/// The name of each pod on a line of its own; versions of one pod share theirs.
fn names(report: &StatusReport) -> String {
    let mut seen = BTreeSet::new();
    let mut out = String::new();
    for pod in &report.pods {
        let name = one_line(&format!("{}/{}", pod.namespace, pod.name));
        if seen.insert(name.clone()) {
            out = out + &name + "\n";
        }
    }
    out
}

/// The pods with these names. While watching, they may appear and disappear.
pub(super) fn named(
    report: &StatusReport,
    wanted: &[String],
    watching: bool,
) -> Result<Vec<PodReport>, Failure> {
    let mut pods = Vec::new();
    for text in wanted {
        match find_pods(&report.pods, text) {
            // Includes the old version of an edited pod, while it exists.
            Ok(found) => {
                for pod in &report.pods {
                    let is_meant = found.iter().any(|found| pod.is_same_pod(found));
                    if is_meant && !pods.contains(pod) {
                        pods.push(pod.clone());
                    }
                }
            }
            Err(_) if watching => {}
            Err(_) if report.jobs.iter().any(|job| names_job(text, job)) => {}
            Err(_)
                if report
                    .cron_jobs
                    .iter()
                    .any(|cron| names_cron_job(text, cron)) => {}
            // One that wants no pods has none.
            Err(PodNotFound::Unknown { .. })
                if report
                    .workloads
                    .iter()
                    .any(|one| standing::is_named(one, text)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(pods)
}

/// The report with these pods alone, and the problems that are theirs.
fn only(mut report: StatusReport, pods: Vec<PodReport>) -> StatusReport {
    let is_theirs = |problem: &Diagnostic| pods.iter().any(|pod| is_about(problem, pod));
    report.problems.retain(is_theirs);
    report.pods = pods;
    for source in &mut report.sources {
        source.problems.clear();
        source.ignored.clear();
    }
    report
}

/// Whether a problem is about a pod, or about the workload that it belongs to.
fn is_about(problem: &Diagnostic, pod: &PodReport) -> bool {
    let name = format!("{}/{}", pod.namespace, pod.name);
    let owner = pod
        .workload
        .as_deref()
        .and_then(|owner| owner.split_once('/'));
    let workload = owner.map(|(kind, name)| format!("{kind} {}/{name}", pod.namespace));
    problem.pod.as_ref() == Some(&name) || (workload.is_some() && problem.workload == workload)
}

fn print(text: &str, redraw: bool) -> Outcome {
    let clear = if redraw { CLEAR } else { "" };
    super::print(&format!("{clear}{text}"))
}

#[cfg(test)]
mod tests;
