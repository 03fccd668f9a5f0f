//! `mirrorlet plan` and `diff`: the effects of other manifests.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use k8s_openapi::ByteString;
use similar::TextDiff;

use super::table::{self, Cell, one_line};
use super::validate::check_regular;
use super::{Failure, Outcome, client, print, print_document};
use crate::config::args::{DiffArgs, PlanArgs};
use crate::server::admin::{PlanFile, PlanRequest};
use mirrorlet_core::api::Diagnostic;
use mirrorlet_core::api::report::{
    Downtime, OrderedChange, PlanAction, PlanReport, PlannedObject, PlannedOrder, PlannedPod,
    PlannedRun, RunAction,
};
use mirrorlet_core::manifest::{MANIFEST_BYTES_MAX, is_manifest_name};
use mirrorlet_core::small::SmallSort;

#[cfg(test)]
mod tests;

/// Exit code of a plan that changes something.
const CHANGES: u8 = 2;
/// Exit code of `diff` where it fails, as `kubectl diff` has it.
const DIFF_FAILED: u8 = 2;

/// Prints a plan.
pub async fn plan(args: &PlanArgs, root: &Path) -> Outcome {
    let report = fetch(&args.manifests.paths, root, false).await?;
    print_document(args.output, &report, render)?;
    if report.problems.iter().any(Diagnostic::is_error) {
        return Err(Failure::Problems);
    }
    let changes = report.pods.iter().any(|pod| pod.action != PlanAction::None);
    let runs = report.runs.iter().any(|run| run.action != RunAction::None);
    if changes || runs || !report.objects.is_empty() {
        return Err(Failure::Exit(CHANGES));
    }
    Ok(())
}

/// Prints the differences between the running pods and manifests.
pub async fn diff(args: &DiffArgs, root: &Path) -> Outcome {
    let report = match fetch(&args.manifests.paths, root, true).await {
        // Exit code 1 means that there are differences.
        Err(Failure::Failed(error)) => {
            eprintln_once(&error);
            return Err(Failure::Exit(DIFF_FAILED));
        }
        report => report?,
    };
    for problem in report.problems.iter().filter(|problem| problem.is_error()) {
        eprintln_once(problem);
    }
    let text = all_differences(&report);
    print(&text)?;
    if report.problems.iter().any(Diagnostic::is_error) {
        return Err(Failure::Exit(DIFF_FAILED));
    }
    if text.is_empty() {
        Ok(())
    } else {
        Err(Failure::Problems)
    }
}

/// All differences as text; empty without any.
fn all_differences(report: &PlanReport) -> String {
    let mut text: String = report.pods.iter().map(differences).collect();
    let runs = report.runs.iter().filter(|run| is_change(run));
    text.extend(runs.map(run_difference));
    text.extend(report.objects.iter().map(object_difference));
    text
}

fn eprintln_once(error: &dyn std::fmt::Display) {
    // Standard error gone as well: the exit code must do.
    let _ = writeln!(anstream::stderr().lock(), "mirrorlet: {error:#}");
}

async fn fetch(paths: &[PathBuf], root: &Path, content: bool) -> Result<PlanReport, Failure> {
    let request = request(paths, content)?;
    let answer = client::post_json(root, "/v1/plan", &request).await?;
    Ok(client::parse(&answer)?)
}

/// The files of these paths, by the names that they would have in the manifest directory.
fn request(paths: &[PathBuf], content: bool) -> anyhow::Result<PlanRequest> {
    let mut request = PlanRequest {
        content,
        ..PlanRequest::default()
    };
    for path in paths {
        let shown = path.display();
        let failed = || format!("failed to read {shown}");
        if !std::fs::metadata(path).with_context(failed)?.is_dir() {
            request.files.push(file(path)?);
            continue;
        }
        request.whole = true;
        let entries = std::fs::read_dir(path).with_context(failed)?;
        let mut inside: Vec<PathBuf> = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()
            .with_context(failed)?;
        inside.retain(|path| name(path).is_some_and(is_manifest_name));
        inside.small_sort();
        for path in inside {
            request.files.push(file(&path)?);
        }
    }
    let mut names: Vec<&str> = request.files.iter().map(|file| &*file.name).collect();
    names.small_sort();
    let mut pairs = names.iter().zip(names.iter().skip(1));
    if let Some((twice, _)) = pairs.find(|(one, next)| one == next) {
        return Err(anyhow!(
            "two of the files are named {twice}: a manifest directory can have only one file of each name"
        ));
    }
    Ok(request)
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

fn file(path: &Path) -> anyhow::Result<PlanFile> {
    let shown = path.display();
    let name = name(path).filter(|name| is_manifest_name(name)).ok_or_else(|| {
        anyhow!("{shown} would be ignored: a manifest's name ends in .yaml, .yml or .json, and doesn't begin with a dot")
    })?;
    let failed = || format!("failed to read {shown}");
    check_regular(path).with_context(failed)?;
    let bytes = std::fs::read(path).with_context(failed)?;
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(anyhow!(
            "{shown} is too large: {} bytes, the maximum is {MANIFEST_BYTES_MAX}",
            bytes.len()
        ));
    }
    let name = name.to_owned();
    Ok(match String::from_utf8(bytes) {
        Ok(text) => PlanFile {
            name,
            text,
            binary: None,
        },
        Err(error) => PlanFile {
            name,
            text: String::new(),
            binary: Some(ByteString(error.into_bytes())),
        },
    })
}

fn render(report: &PlanReport) -> String {
    let of = |pod: &PlannedPod| format!("{}/{}", pod.namespace, pod.name);
    let changed = || {
        report
            .pods
            .iter()
            .filter(|pod| pod.action != PlanAction::None)
    };
    let rows = changed().map(|pod| {
        let downtime = match (pod.action, pod.downtime) {
            // It serves no more.
            (PlanAction::Remove, _) => "-",
            (_, Downtime::None) => "none",
            (_, Downtime::Gap) => "gap",
            (_, Downtime::UntilReady) => "until ready",
        };
        vec![
            Cell::from(pod.action.as_str()),
            of(pod).into(),
            downtime.into(),
            pod.changes.join(", ").into(),
        ]
    });
    let mut text = table::titled(["ACTION", "POD", "DOWNTIME", "CHANGED"], rows);
    for order in &report.orders {
        let _ = write!(text, "\n{}", one_line(&in_order(order)));
    }
    for pod in changed() {
        for line in remarks(pod) {
            let _ = write!(text, "\n{}: {}", of(pod), one_line(&line));
        }
    }
    if !text.is_empty() && report.runs.iter().any(is_change) {
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
    }
    text.push_str(&runs(&report.runs));
    if !text.is_empty() && !report.objects.is_empty() {
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
    }
    text.push_str(&objects(&report.objects));
    if !text.is_empty() {
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
    }
    for problem in &report.problems {
        let word = if problem.is_error() {
            "error"
        } else {
            "warning"
        };
        let _ = writeln!(text, "{word}: {}", one_line(&problem.to_string()));
    }
    text.push_str(&counts(report));
    text
}

fn counts(report: &PlanReport) -> String {
    let count = |action| {
        let pods = report.pods.iter().filter(|pod| pod.action == action);
        pods.count()
    };
    format!(
        "{} to create, {} to replace, {} held, {} to remove, {} unchanged\n",
        count(PlanAction::Create),
        count(PlanAction::Replace),
        count(PlanAction::Held),
        count(PlanAction::Remove),
        count(PlanAction::None),
    )
}

/// Most steps of an order that are shown.
const STEPS_MAX: usize = 10;

/// The order of a workload's pods: `StatefulSet default/db updates db-1-box, then db-0-box`.
fn in_order(order: &PlannedOrder) -> String {
    let change = match order.change {
        OrderedChange::Start => "starts",
        OrderedChange::Stop => "stops",
        OrderedChange::Update => "updates",
    };
    let steps = order.steps.iter().take(STEPS_MAX);
    let mut steps: Vec<String> = steps.map(|step| step.join(" and ")).collect();
    let more = order.steps.len().saturating_sub(STEPS_MAX);
    if more > 0 {
        steps.push(format!("{more} more steps"));
    }
    format!(
        "{} {}/{} {change} {}",
        order.kind,
        order.namespace,
        order.name,
        steps.join(", then ")
    )
}

fn is_change(run: &PlannedRun) -> bool {
    run.action != RunAction::None
}

/// The table of Jobs and CronJobs.
fn runs(runs: &[PlannedRun]) -> String {
    let rows = runs.iter().filter(|run| is_change(run)).map(|run| {
        let name = format!("{}/{}", run.namespace, run.name);
        let next = run.next_schedule.map(|next| next.to_string());
        vec![
            Cell::from(run.action.as_str()),
            run.kind.as_str().into(),
            name.into(),
            next.unwrap_or_else(|| "-".to_owned()).into(),
            one_line(&run.reason).into(),
        ]
    });
    table::titled(["ACTION", "KIND", "NAME", "NEXT", "BECAUSE"], rows)
}

/// One line about a Job or `CronJob`.
fn run_difference(run: &PlannedRun) -> String {
    let because = match run.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let action = run.action.as_str();
    let (kind, namespace, name) = (&run.kind, &run.namespace, &run.name);
    let line = format!("{action}: {kind} {namespace}/{name}{because}");
    format!("{}\n", one_line(&line))
}

/// The table of objects that pods refer to.
fn objects(objects: &[PlannedObject]) -> String {
    let or_none = |names: &[String]| match names {
        [] => "-".to_owned(),
        names => names.join(", "),
    };
    let rows = objects.iter().map(|object| {
        vec![
            Cell::from(object.action.as_str()),
            object.kind.as_str().into(),
            object_name(object).into(),
            or_none(&object.changed).into(),
            or_none(&object.pods).into(),
        ]
    });
    table::titled(["ACTION", "KIND", "NAME", "CHANGED", "USED BY"], rows)
}

fn object_name(object: &PlannedObject) -> String {
    match object.namespace.as_str() {
        "" => object.name.clone(),
        namespace => format!("{namespace}/{}", object.name),
    }
}

/// One line about an object, which never shows its values: they may be secret.
fn object_difference(object: &PlannedObject) -> String {
    let keys = match object.changed.as_slice() {
        [] => String::new(),
        keys => format!(": {}", keys.join(", ")),
    };
    let (kind, name) = (&object.kind, object_name(object));
    let line = format!("{}: {kind} {name}{keys}", object.action.as_str());
    format!("{}\n", one_line(&line))
}

/// Returns the lines about a pod besides its row.
fn remarks(pod: &PlannedPod) -> Vec<String> {
    let mut lines = Vec::new();
    if !pod.reason.is_empty() {
        let words = match pod.action {
            PlanAction::Held => "the current version keeps running",
            _ => "it would not start",
        };
        lines.push(format!("{words}: {}: {}", pod.reason, pod.message));
    }
    if !pod.emptied.is_empty() {
        lines.push(format!(
            "emptyDir volumes that lose their files: {}",
            pod.emptied.join(", ")
        ));
    }
    if !pod.pulls.is_empty() {
        lines.push(format!("images to pull: {}", pod.pulls.join(", ")));
    }
    let unknown = pod.unknown.iter();
    lines.extend(unknown.map(|what| format!("not known in advance: {what}")));
    lines
}

/// The unified diff of one pod; empty where there is no difference.
fn differences(pod: &PlannedPod) -> String {
    let yaml = |value: &Option<serde_json::Value>| {
        let text = value.as_ref().map(serde_saphyr::to_string);
        text.and_then(Result::ok).unwrap_or_default()
    };
    let (before, after) = (yaml(&pod.before), yaml(&pod.after));
    if before == after {
        return String::new();
    }
    let name = format!("{}/{}", pod.namespace, pod.name);
    let side = |text: &str, words: String| {
        if text.is_empty() {
            "/dev/null".to_owned()
        } else {
            words
        }
    };
    let old = side(&before, format!("{name} (running)"));
    let new = side(&after, format!("{name} ({})", pod.source));
    let diff = TextDiff::from_lines(&before, &after);
    diff.unified_diff().header(&old, &new).to_string()
}
