//! The effect that an edit of the documents would have on a `CronJob`.

use super::CronJob;
use crate::api::report::RunAction;

/// Returns the effect of an edit on a `CronJob`, with the cause. `present` is the one in the current
/// document.
pub fn plan(cron: &CronJob, present: Option<&CronJob>) -> (RunAction, String) {
    let Some(present) = present else {
        let reason = if cron.suspend {
            "it is suspended: no runs are scheduled"
        } else {
            "it is new: the first run is at the next scheduled time"
        };
        return (RunAction::Create, reason.to_owned());
    };
    let changed = [
        ("schedule", present.text != cron.text),
        ("timeZone", present.zone != cron.zone),
        ("concurrencyPolicy", present.concurrency != cron.concurrency),
        (
            "startingDeadlineSeconds",
            present.starting_deadline != cron.starting_deadline,
        ),
        (
            "successfulJobsHistoryLimit",
            present.successful != cron.successful,
        ),
        ("failedJobsHistoryLimit", present.failed != cron.failed),
        ("suspend", present.suspend != cron.suspend),
        (
            "jobTemplate",
            present.job.content != cron.job.content || present.job.rules != cron.job.rules,
        ),
    ];
    let changed = changed.into_iter().filter(|(_, is_changed)| *is_changed);
    let fields: Vec<&str> = changed.map(|(field, _)| field).collect();
    if fields.is_empty() {
        return (RunAction::None, String::new());
    }
    let reason = format!(
        "{}; Jobs that already run are not changed",
        fields.join(", ")
    );
    (RunAction::Change, reason)
}
