//! The table of pods.

use std::fmt::Write as _;

use anstyle::Style;

use crate::cli::table::{BAD, Cell, GOOD, PENDING, titles};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::report::{
    MirrorReport, PAUSED, PodReport, RESTARTING, RolloutPhase, RolloutReport, STARTING, STOPPED,
    STOPPING, StatusReport, TERMINATING,
};
use mirrorlet_core::clock::age;

/// Returns the titles, and a row for each pod.
pub(super) fn pods(report: &StatusReport, now: Timestamp, wide: bool) -> Vec<Vec<Cell>> {
    let always = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    let mirror_title = report.api.is_some().then_some("MIRROR");
    let wide_titles = [
        "IP", "PORTS", "UID", "WORKLOAD", "SOURCE", "IMAGE", "MESSAGE",
    ];
    let wide_titles = wide_titles.into_iter().filter(|_| wide);
    let names = always.into_iter().chain(mirror_title).chain(wide_titles);
    std::iter::once(titles(names))
        .chain(report.pods.iter().map(|pod| {
            let mirror = mirror_title.map(|_| mirror(pod.mirror.as_ref()));
            row(pod, mirror, now, wide)
        }))
        .collect()
}

fn mirror(mirror: Option<&MirrorReport>) -> Cell {
    match mirror {
        None => "-".into(),
        Some(mirror) => {
            let style = match mirror.state.as_str() {
                "Synced" => Style::new(),
                "Pending" => PENDING,
                _ => BAD,
            };
            Cell::styled(&mirror.state, style)
        }
    }
}

fn row(pod: &PodReport, mirror: Option<Cell>, now: Timestamp, wide: bool) -> Vec<Cell> {
    let beside = beside(pod, now);
    let mut row: Vec<Cell> = vec![
        pod.namespace.as_str().into(),
        pod.name.as_str().into(),
        format!("{}/{}", pod.ready, pod.containers_total).into(),
        Cell::styled(&format!("{}{beside}", pod.status), status_style(pod)),
        pod.restarts.to_string().into(),
        pod.started_at
            .map_or_else(|| "-".to_owned(), |started| age(started, now))
            .into(),
    ];
    row.extend(mirror);
    if wide {
        row.push(or_dash(&list(pod.ips.iter().map(ToString::to_string))));
        row.push(or_dash(&list(pod.ports.iter().map(ToString::to_string))));
        row.push(pod.uid.as_str().into());
        row.push(or_dash(pod.workload.as_deref().unwrap_or_default()));
        row.push(or_dash(&pod.source));
        let images = pod.containers.iter().map(|c| c.image.clone());
        row.push(or_dash(&list(images)));
        row.push(pod.message.as_str().into());
    }
    row
}

/// Returns the note beside a pod's status: whether a different version runs than its manifest has, or a
/// new one is judged.
pub(in crate::cli) fn beside(pod: &PodReport, now: Timestamp) -> String {
    let Some(rollout) = &pod.rollout else {
        return if pod.held { " (held)" } else { "" }.to_owned();
    };
    let RolloutReport { reason, target, .. } = rollout;
    let mut words = match rollout.phase {
        RolloutPhase::Preparing => "preparing a new version".to_owned(),
        RolloutPhase::Waiting => format!("waits: {}", rollout.message),
        RolloutPhase::Restoring => format!("restoring: {reason}"),
        RolloutPhase::Held => format!("held: {reason}"),
        RolloutPhase::Failed => format!("failed: {reason}"),
        RolloutPhase::Restored => format!("restored: {reason}"),
        RolloutPhase::Undone => format!("undone to revision {target}"),
        RolloutPhase::Paused => "paused".to_owned(),
        // The manifest can't be read now; what it said last is judged.
        RolloutPhase::Judging if pod.held && rollout.newest == *target => {
            return " (held)".to_owned();
        }
        // A first version replaces no other.
        RolloutPhase::Judging if rollout.target == 1 => return String::new(),
        RolloutPhase::Judging => "rolling out".to_owned(),
    };
    if let (Some(since), Some(deadline)) = (rollout.since, rollout.deadline_seconds) {
        let seconds = now.duration_since(since).as_secs().max(0);
        let _ = write!(words, ", {seconds}s of {deadline}s");
    }
    format!(" ({words})")
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

fn or_dash(text: &str) -> Cell {
    if text.is_empty() { "-" } else { text }.into()
}

fn status_style(pod: &PodReport) -> Style {
    match pod.status.as_str() {
        "Running" | "Completed" | "Succeeded" if pod.held || pod.ready < pod.containers_total => {
            PENDING
        }
        "Running" | "Completed" | "Succeeded" => GOOD,
        "Pending" | "ContainerCreating" | "PodInitializing" | TERMINATING | STOPPING | STOPPED
        | RESTARTING | STARTING | PAUSED => PENDING,
        status if status.starts_with("Init:") && !status.contains("Err") => PENDING,
        _ => BAD,
    }
}
