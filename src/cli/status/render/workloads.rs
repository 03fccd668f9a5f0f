//! Deployments, `StatefulSet`s and `DaemonSet`s in the status report.

use super::{line, styled};
use crate::cli::table::{self, BAD, Cell, GOOD, PENDING, one_line};
use anstyle::Style;
use mirrorlet_core::api::report::WorkloadReport;
use mirrorlet_core::workload::standing::FAILED;

/// The workloads in the format of `kubectl get deployments`, and what one waits for.
pub(super) fn workloads(out: &mut String, workloads: &[WorkloadReport]) {
    if workloads.is_empty() {
        return;
    }
    let titles = [
        "NAMESPACE",
        "WORKLOAD",
        "READY",
        "UP-TO-DATE",
        "AVAILABLE",
        "PROGRESSING",
    ];
    let row = |workload: &WorkloadReport| {
        vec![
            Cell::from(&workload.namespace),
            Cell::from(&workload.owner),
            format!("{}/{}", workload.ready, workload.wanted).into(),
            workload.updated.to_string().into(),
            workload.available.to_string().into(),
            Cell::styled(&workload.progress, style(workload)),
        ]
    };
    out.push('\n');
    out.push_str(&table::titled(titles, workloads.iter().map(row)));
    for workload in workloads.iter().filter(|one| !one.message.is_empty()) {
        let name = one_line(&format!("{}/{}", workload.namespace, workload.owner));
        let (word, message) = (one_line(&workload.progress), one_line(&workload.message));
        let word = styled(&word, style(workload));
        line(out, &format!("  {name}: {word}: {message}"));
    }
}

/// The style of a workload's progress.
fn style(workload: &WorkloadReport) -> Style {
    let mut conditions = workload.conditions.iter();
    let progressing = conditions.find(|condition| condition.kind == "Progressing");
    match progressing.map(|condition| condition.status.as_str()) {
        Some("False") => BAD,
        Some("Unknown") => PENDING,
        Some(_) => GOOD,
        None if workload.progress == FAILED => BAD,
        None if workload.message.is_empty() => GOOD,
        None => PENDING,
    }
}
