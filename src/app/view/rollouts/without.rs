//! Messages about workloads without rollouts: Jobs, `CronJob`s, and workloads without pods.

use crate::jobs::JobStates;
use crate::server::view::{ViewError, ViewErrorKind};
use mirrorlet_core::api::report::{CronJobReport, JobReport, NO_PARALLELISM};
use mirrorlet_core::api::split_name;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};

/// The error for a rollout of a Job or `CronJob` given as `job/NAME`, with its state if known.
pub(super) fn without_rollouts(text: &str, jobs: &JobStates) -> Option<ViewError> {
    let (word, typed) = text.split_once('/')?;
    let (namespace, name) = split_name(typed);
    let is_it =
        |of: &str, known: &str| name == known && namespace.is_none_or(|namespace| namespace == of);
    let (message, help) = match WorkloadKind::of_word(word)? {
        WorkloadKind::Job => {
            let mut known = jobs.jobs.iter();
            of_job(known.find(|job| is_it(&job.namespace, &job.name)), typed)
        }
        WorkloadKind::CronJob => {
            let mut known = jobs.cron_jobs.iter();
            of_cron_job(known.find(|cron| is_it(&cron.namespace, &cron.name)), typed)
        }
        WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {
            return None;
        }
    };
    Some(ViewErrorKind::Invalid.error(message).help(help))
}

fn of_job(job: Option<&JobReport>, typed: &str) -> (String, String) {
    let is_paused = job.is_some_and(|job| job.condition == "Suspended");
    let has_no_parallelism = job.is_some_and(|job| job.reason == NO_PARALLELISM);
    let state = match job.map(|job| job.condition.as_str()) {
        Some("Complete") => ", and this one is complete",
        Some("Failed") => ", and this one has failed",
        Some("Suspended") if has_no_parallelism => ", and the parallelism of this one is 0",
        Some("Suspended") => ", and this one is suspended",
        Some(_) | None => "",
    };
    let help = match (is_paused, has_no_parallelism) {
        (true, true) => "to run it, set spec.parallelism in its manifest to 1 or more".to_owned(),
        (true, false) => "to run it, remove spec.suspend from its manifest".to_owned(),
        (false, _) => format!("run it again with: mirrorlet restart job/{typed}"),
    };
    (format!("a Job has no rollouts{state}"), help)
}

fn of_cron_job(cron: Option<&CronJobReport>, typed: &str) -> (String, String) {
    let start = format!("start a run with: mirrorlet run-job {typed}");
    let (state, help) = match cron {
        Some(cron) if cron.suspended => (
            ", and this one is suspended".to_owned(),
            format!("{start}; to resume its schedule, remove spec.suspend from its manifest"),
        ),
        Some(CronJobReport {
            active: 0,
            next_schedule: Some(next),
            ..
        }) => (format!(", and this one runs next at {next}"), start),
        Some(_) | None => (String::new(), start),
    };
    (format!("a CronJob has no rollouts{state}"), help)
}

/// The error for a command about the revisions of a workload without pods.
pub(super) fn no_pods(key: &WorkloadKey) -> ViewError {
    ViewErrorKind::Conflict
        .error(format!(
            "{key} has 0 desired pods, and therefore no revisions"
        ))
        .help("set spec.replicas in its manifest to start some")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_without_pods_is_named_with_its_state() {
        let job = |name: &str, condition: &str, reason: &str| -> JobReport {
            let job = json!({
                "namespace": "shop", "name": name, "source": "/m/j.yaml", "active": 0,
                "succeeded": 0, "failed": 0, "condition": condition, "reason": reason,
            });
            serde_json::from_value(job).unwrap()
        };
        let cron =
            |name: &str, suspended: bool, active: u32, next: Option<&str>| -> CronJobReport {
                let cron = json!({
                    "namespace": "shop", "name": name, "source": "/m/c.yaml",
                    "schedule": "0 3 * * *", "timeZone": "UTC", "suspended": suspended,
                    "active": active, "nextSchedule": next,
                });
                serde_json::from_value(cron).unwrap()
            };
        let next = Some("2027-01-02T03:00:00Z");
        let jobs = JobStates {
            jobs: vec![
                job("done", "Complete", ""),
                job("broken", "Failed", "BackoffLimitExceeded"),
                job("later", "Suspended", ""),
                job("none", "Suspended", NO_PARALLELISM),
                job("busy", "Running", ""),
            ],
            cron_jobs: vec![
                cron("off", true, 0, None),
                cron("nightly", false, 0, next),
                cron("now", false, 1, next),
            ],
            ..JobStates::default()
        };
        for (text, words, help) in [
            (
                "job/done",
                "a Job has no rollouts, and this one is complete",
                "run it again with: mirrorlet restart job/done",
            ),
            (
                "jobs/shop/broken",
                "a Job has no rollouts, and this one has failed",
                "run it again with: mirrorlet restart job/shop/broken",
            ),
            (
                "job/later",
                "a Job has no rollouts, and this one is suspended",
                "to run it, remove spec.suspend from its manifest",
            ),
            (
                "job/none",
                "a Job has no rollouts, and the parallelism of this one is 0",
                "to run it, set spec.parallelism in its manifest to 1 or more",
            ),
            (
                "job/busy",
                "a Job has no rollouts",
                "run it again with: mirrorlet restart job/busy",
            ),
            (
                "job/other/done",
                "a Job has no rollouts",
                "run it again with: mirrorlet restart job/other/done",
            ),
            (
                "cj/off",
                "a CronJob has no rollouts, and this one is suspended",
                "start a run with: mirrorlet run-job off; to resume its schedule, remove spec.suspend from its manifest",
            ),
            (
                "cronjob/shop/nightly",
                "a CronJob has no rollouts, and this one runs next at 2027-01-02T03:00:00Z",
                "start a run with: mirrorlet run-job shop/nightly",
            ),
            (
                "cronjob/now",
                "a CronJob has no rollouts",
                "start a run with: mirrorlet run-job now",
            ),
        ] {
            let error = without_rollouts(text, &jobs).unwrap();
            // workloads 27
            assert_eq!(error.to_string(), words, "{text}");
            assert_eq!(error.help.as_deref(), Some(help), "{text}");
        }
        assert!(without_rollouts("deployment/done", &jobs).is_none());
        assert!(without_rollouts("done", &jobs).is_none());
    }
}
