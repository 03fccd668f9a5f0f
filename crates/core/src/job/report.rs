//! The state of a Job, for people.

use super::{Job, Ledger};
use crate::api::report::{JobReport, NO_PARALLELISM};

/// The state of a Job that a document at `source` describes.
pub fn report(job: &Job, ledger: &Ledger, source: &str) -> JobReport {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let of_indexes = |indexes: String| {
        if job.rules.indexed {
            indexes
        } else {
            String::new()
        }
    };
    let (condition, reason, message) = match &ledger.end {
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
        None => ("Running", String::new(), String::new()),
    };
    JobReport {
        namespace: job.name.namespace.clone(),
        name: job.name.name.clone(),
        source: source.to_owned(),
        cron_job: job.cron_job().map(str::to_owned),
        completions: job.rules.completions,
        active: count(ledger.active.len()),
        succeeded: ledger.succeeded.len(),
        failed: ledger.failures,
        completed_indexes: of_indexes(ledger.succeeded.to_string()),
        failed_indexes: of_indexes(ledger.failed.to_string()),
        condition: condition.to_owned(),
        reason,
        message,
        created_at: Some(ledger.created),
        started_at: ledger.started,
        ended_at: ledger.end.as_ref().map(|end| end.at),
    }
}
