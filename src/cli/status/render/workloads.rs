//! Deployments and `DaemonSet`s in the status report.

use super::{BAD, BOLD, GOOD, PENDING, line, styled};
use crate::cli::table::{self, Cell, one_line};
use mirrorlet_core::api::report::{WorkloadCondition, WorkloadReport};

/// The workloads, as `kubectl get deployments` prints them, and why one doesn't progress.
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
    let mut rows = vec![titles.map(|title| Cell::styled(title, BOLD)).to_vec()];
    for workload in workloads {
        let progress = progressing(workload);
        let style = match progress.map(|condition| condition.status.as_str()) {
            Some("False") => BAD,
            Some("Unknown") => PENDING,
            Some(_) | None => GOOD,
        };
        let word = progress.map_or("-", |condition| condition.reason.as_str());
        rows.push(vec![
            Cell::from(one_line(&workload.namespace).as_str()),
            Cell::from(one_line(&workload.owner).as_str()),
            Cell::from(format!("{}/{}", workload.ready, workload.wanted).as_str()),
            Cell::from(workload.updated.to_string().as_str()),
            Cell::from(workload.available.to_string().as_str()),
            Cell::styled(word, style),
        ]);
    }
    out.push('\n');
    out.push_str(&table::render(&rows));
    for workload in workloads {
        if let Some(condition) = progressing(workload).filter(|c| c.status == "False") {
            let name = one_line(&format!("{}/{}", workload.namespace, workload.owner));
            let (reason, message) = (one_line(&condition.reason), one_line(&condition.message));
            line(
                out,
                &format!("  {name}: {}: {message}", styled(&reason, BAD)),
            );
        }
    }
}

fn progressing(workload: &WorkloadReport) -> Option<&WorkloadCondition> {
    let mut conditions = workload.conditions.iter();
    conditions.find(|condition| condition.kind == "Progressing")
}
