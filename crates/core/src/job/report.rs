//! The state of a Job, for people.

use super::{Job, JobRecord};
use crate::api::report::{JobReport, NO_PARALLELISM};

/// The state of a Job that a document at `source` describes.
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
