//! The state of a Job, for users.

use super::{Job, JobRecord};
use crate::api::report::{JobReport, NO_PARALLELISM, PODS_TERMINATING};

/// The report of a Job with a document at `source`.
pub fn report(job: &Job, record: &JobRecord, source: &str) -> JobReport {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let of_indexes = |indexes: String| {
        if job.rules.indexed {
            indexes
        } else {
            String::new()
        }
    };
    let (condition, reason, message) = match &record.end {
        Some(end) => (end.condition(), end.reason.clone(), end.message.clone()),
        None if job.rules.suspend => (
            "Suspended",
            "JobSuspended".to_owned(),
            "Job suspended".to_owned(),
        ),
        None if job.rules.parallelism == 0 => (
            "Suspended",
            NO_PARALLELISM.to_owned(),
            "parallelism is 0: no pod of the Job may run".to_owned(),
        ),
        None if record.active.is_empty() && !record.leaving.is_empty() => {
            ("Running", PODS_TERMINATING.to_owned(), waits_for(record))
        }
        None => ("Running", String::new(), String::new()),
    };
    JobReport {
        namespace: job.name.namespace.clone(),
        name: job.name.name.clone(),
        source: source.to_owned(),
        cron_job: job.cron_job().map(str::to_owned),
        completions: job.rules.completions,
        active: count(record.active.len()),
        succeeded: record.succeeded.len(),
        failed: record.failures,
        completed_indexes: of_indexes(record.succeeded.to_string()),
        failed_indexes: of_indexes(record.failed.to_string()),
        condition: condition.to_owned(),
        reason,
        message,
        created_at: Some(record.created),
        started_at: record.started,
        ended_at: record.end.as_ref().map(|end| end.at),
    }
}

/// The pods that a Job waits for before it starts its own, in words.
fn waits_for(record: &JobRecord) -> String {
    let of_last_run = if record.awaited() > 0 {
        " of its last run"
    } else {
        ""
    };
    match record.leaving.len() {
        1 => format!("waits for 1 pod{of_last_run} to stop"),
        count => format!("waits for {count} pods{of_last_run} to stop"),
    }
}
