//! Jobs and CronJobs, for `kubectl get jobs` and `kubectl wait`. Pure.
//!
//! Upstream: `pkg/controller/job/job_controller.go`, `pkg/apis/batch/v1/defaults.go`.

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::resources::JOBS;
use mirrorlet_core::api::report::{CronJobReport, JobReport, NO_PARALLELISM};
use mirrorlet_core::api::{Timestamp, keys};
use serde_json::{Value, json};

use super::project::seconds;
use super::workloads::{default, observe, set_counts};

/// Fills in the defaults and the status of a Job.
pub(super) fn job(object: &mut Value, report: Option<&JobReport>) {
    observe(object);
    let name = object["metadata"]["name"].clone();
    let spec = &mut object["spec"];
    default(spec, "parallelism", 1.into());
    default(spec, "backoffLimit", 6.into());
    default(spec, "completionMode", "NonIndexed".into());
    default(spec, "suspend", false.into());
    if spec["completions"].is_null() && spec["parallelism"] == 1 {
        spec["completions"] = 1.into();
    }
    // Clients find its pods by it: to kubectl, none means all pods of the namespace.
    let own = selector(&name);
    default(spec, "selector", own);
    object["status"] = report.map_or_else(|| json!({}), job_status);
}

/// The selector that the API server generates for a Job, which matches the pods that it has created.
pub(super) fn selector(name: &Value) -> Value {
    json!({"matchLabels": {keys::JOB_NAME: name}})
}

/// Removes the generated selector from a Job: a document has none.
pub(super) fn take_selector(object: &mut Value, key: &Key) {
    let is_own = key.resource == &JOBS && object["spec"]["selector"] == selector(&json!(key.name));
    if is_own && let Some(spec) = object["spec"].as_object_mut() {
        spec.remove("selector");
    }
}

fn job_status(report: &JobReport) -> Value {
    let mut status = json!({"uncountedTerminatedPods": {}});
    let counts = [
        ("active", report.active),
        ("succeeded", report.succeeded),
        ("failed", report.failed),
    ];
    set_counts(&mut status, &counts);
    for (key, indexes) in [
        ("completedIndexes", &report.completed_indexes),
        ("failedIndexes", &report.failed_indexes),
    ] {
        if !indexes.is_empty() {
            status[key] = indexes.as_str().into();
        }
    }
    let time = |at: Option<Timestamp>| at.map(seconds);
    if let Some(started) = time(report.started_at) {
        status["startTime"] = started.into();
    }
    let ended = time(report.ended_at);
    if report.condition == "Complete"
        && let Some(ended) = &ended
    {
        status["completionTime"] = ended.as_str().into();
    }
    let has_condition = ["Complete", "Failed", "Suspended"].contains(&report.condition.as_str());
    if has_condition && report.reason != NO_PARALLELISM {
        let since = ended.or_else(|| time(report.started_at));
        status["conditions"] = json!([{
            "type": report.condition,
            "status": "True",
            "reason": report.reason,
            "message": report.message,
            "lastTransitionTime": since,
            "lastProbeTime": since,
        }]);
    }
    status
}

/// Fills in the defaults and the status of a CronJob. `runs` are its running Jobs.
pub(super) fn cron_job(object: &mut Value, report: Option<&CronJobReport>, runs: &[&JobReport]) {
    observe(object);
    let spec = &mut object["spec"];
    default(spec, "concurrencyPolicy", "Allow".into());
    default(spec, "suspend", false.into());
    default(spec, "successfulJobsHistoryLimit", 3.into());
    default(spec, "failedJobsHistoryLimit", 1.into());
    let mut status = json!({});
    if let Some(last) = report.and_then(|report| report.last_schedule) {
        status["lastScheduleTime"] = seconds(last).into();
    }
    let active: Vec<_> = runs
        .iter()
        .filter(|run| run.ended_at.is_none())
        .map(|run| {
            json!({"apiVersion": "batch/v1", "kind": "Job", "namespace": run.namespace, "name": run.name})
        })
        .collect();
    if !active.is_empty() {
        status["active"] = active.into();
    }
    object["status"] = status;
}

/// The Job that is a run of a CronJob, built from the CronJob's document.
pub(super) fn run(cron_job: &Value, report: &JobReport) -> Value {
    let template = &cron_job["spec"]["jobTemplate"];
    let mut metadata = json!({
        "name": report.name,
        "namespace": report.namespace,
        "ownerReferences": [{
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": cron_job["metadata"]["name"],
            "uid": cron_job["metadata"]["uid"],
            "controller": true,
        }],
    });
    for key in ["labels", "annotations"] {
        if template["metadata"][key].is_object() {
            metadata[key] = template["metadata"][key].clone();
        }
    }
    if let Some(started) = report.created_at.or(report.started_at) {
        metadata["creationTimestamp"] = seconds(started).into();
    }
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": template["spec"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mirrorlet_core::api::report::PODS_TERMINATING;

    fn report(condition: &str) -> JobReport {
        JobReport {
            namespace: "default".to_owned(),
            name: "work".to_owned(),
            source: String::new(),
            cron_job: None,
            completions: Some(3),
            active: 0,
            succeeded: 3,
            failed: 1,
            completed_indexes: "0-2".to_owned(),
            failed_indexes: String::new(),
            condition: condition.to_owned(),
            reason: "CompletionsReached".to_owned(),
            message: String::new(),
            created_at: None,
            started_at: Some("2026-01-02T03:04:05.5Z".parse().unwrap()),
            ended_at: Some("2026-01-02T03:05:05Z".parse().unwrap()),
        }
    }

    #[test]
    fn a_job_is_shown_with_the_selector_of_its_pods_and_stored_without() {
        let mut object = json!({"metadata": {"name": "work"}, "spec": {}});
        job(&mut object, None);
        let made = json!({"matchLabels": {"batch.kubernetes.io/job-name": "work"}});
        // embedded 58
        assert_eq!(object["spec"]["selector"], made);
        let key = Key::new(&JOBS, "default", "work");
        take_selector(&mut object, &key);
        assert!(object["spec"].get("selector").is_none(), "{object}");
        // Another one is its author's, who is told that it has no effect.
        let other = json!({"matchLabels": {"a": "b"}});
        object["spec"]["selector"] = other.clone();
        take_selector(&mut object, &key);
        assert_eq!(object["spec"]["selector"], other);
    }

    #[test]
    fn a_jobs_status_is_what_kubectl_waits_for() {
        let document = json!({"metadata": {"name": "work"}, "spec": {"completions": 3}});
        let mut complete = document.clone();
        job(&mut complete, Some(&report("Complete")));
        let status = &complete["status"];
        // embedded 27
        assert_eq!(status["conditions"][0]["type"], "Complete");
        assert_eq!(status["startTime"], "2026-01-02T03:04:05Z");
        assert_eq!(status["completionTime"], "2026-01-02T03:05:05Z");
        assert_eq!(
            (&status["succeeded"], &status["active"]),
            (&json!(3), &Value::Null)
        );
        let mut running = document.clone();
        let waits = JobReport {
            reason: PODS_TERMINATING.to_owned(),
            ..report("Running")
        };
        job(&mut running, Some(&waits));
        assert_eq!(running["status"]["conditions"], Value::Null);
        assert_eq!(running["spec"]["backoffLimit"], 6);
        // Upstream has that condition only for `suspend`.
        let mut without_parallelism = document.clone();
        let report_of = |reason: &str| JobReport {
            reason: reason.to_owned(),
            ..report("Suspended")
        };
        job(&mut without_parallelism, Some(&report_of(NO_PARALLELISM)));
        assert_eq!(without_parallelism["status"]["conditions"], Value::Null);
        let mut suspended = document.clone();
        job(&mut suspended, Some(&report_of("JobSuspended")));
        assert_eq!(suspended["status"]["conditions"][0]["type"], "Suspended");

        let cron = json!({"metadata": {"name": "nightly", "uid": "u"}, "spec": {"jobTemplate": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}}});
        let made = run(&cron, &report("Running"));
        assert_eq!(made["metadata"]["labels"]["a"], "b");
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "u");
        let mut cron = cron;
        let mut active = report("Running");
        active.ended_at = None;
        cron_job(&mut cron, None, &[&active, &report("Complete")]);
        assert_eq!(cron["status"]["active"].as_array().unwrap().len(), 1);
    }
}
