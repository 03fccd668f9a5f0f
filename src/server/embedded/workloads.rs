//! The counts and conditions of workloads, for `kubectl get deployments` and `kubectl rollout status`.
//! Pure.
//!
//! Upstream: `pkg/controller/deployment/sync.go`,
//! `pkg/controller/statefulset/stateful_set_control.go`, `pkg/apis/apps/v1/defaults.go`.

use mirrorlet_core::api::report::WorkloadReport;
use mirrorlet_core::workload::WorkloadKind;
use serde_json::{Value, json};

/// Fills in defaults, counts and conditions of a workload with permanent pods.
pub(super) fn complete(object: &mut Value, kind: WorkloadKind, report: &WorkloadReport) {
    match kind {
        WorkloadKind::Deployment => deployment(object, report),
        WorkloadKind::StatefulSet => stateful_set(object, report),
        WorkloadKind::DaemonSet => daemon_set(object, report),
        // Their counts are in their records.
        WorkloadKind::Job | WorkloadKind::CronJob => {}
    }
}

pub(super) fn default(value: &mut Value, key: &str, default: Value) {
    if value[key].is_null() {
        value[key] = default;
    }
}

/// The generation of the document, which is also that of the status: both are from the same look.
pub(super) fn observe(object: &mut Value) -> Value {
    default(&mut object["metadata"], "generation", 1.into());
    object["metadata"]["generation"].clone()
}

/// Sets counts; as upstream, one of 0 is left out.
pub(super) fn set_counts(status: &mut Value, counts: &[(&str, u32)]) {
    for (key, number) in counts.iter().filter(|(_, number)| *number > 0) {
        status[*key] = (*number).into();
    }
}

fn deployment(object: &mut Value, report: &WorkloadReport) {
    let spec = &mut object["spec"];
    default(spec, "replicas", 1.into());
    default(spec, "progressDeadlineSeconds", 600.into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(
        spec,
        "strategy",
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
    );
    let mut status = json!({
        "observedGeneration": observe(object),
        "conditions": report.conditions,
    });
    set_counts(
        &mut status,
        &[
            ("replicas", report.pods),
            ("updatedReplicas", report.updated),
            ("readyReplicas", report.ready),
            ("availableReplicas", report.available),
            (
                "unavailableReplicas",
                report.wanted.saturating_sub(report.available),
            ),
        ],
    );
    object["status"] = status;
}

fn stateful_set(object: &mut Value, report: &WorkloadReport) {
    let spec = &mut object["spec"];
    default(spec, "replicas", 1.into());
    default(spec, "podManagementPolicy", "OrderedReady".into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(spec, "updateStrategy", json!({}));
    let strategy = &mut spec["updateStrategy"];
    default(strategy, "type", "RollingUpdate".into());
    default(strategy, "rollingUpdate", json!({}));
    default(&mut strategy["rollingUpdate"], "partition", 0.into());
    default(spec, "persistentVolumeClaimRetentionPolicy", json!({}));
    let retention = &mut spec["persistentVolumeClaimRetentionPolicy"];
    default(retention, "whenDeleted", "Retain".into());
    default(retention, "whenScaled", "Retain".into());
    let mut status = json!({
        "observedGeneration": observe(object),
        "replicas": report.pods,
        "availableReplicas": report.available,
        "collisionCount": 0,
    });
    let counts = [
        ("readyReplicas", report.ready),
        ("updatedReplicas", report.updated),
    ];
    set_counts(&mut status, &counts);
    if let Some(revisions) = &report.revisions {
        set_counts(&mut status, &[("currentReplicas", revisions.current_pods)]);
        status["currentRevision"] = revisions.current.as_str().into();
        status["updateRevision"] = revisions.update.as_str().into();
    }
    object["status"] = status;
}

fn daemon_set(object: &mut Value, report: &WorkloadReport) {
    let spec = &mut object["spec"];
    default(spec, "revisionHistoryLimit", 10.into());
    default(
        spec,
        "updateStrategy",
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
    );
    let generation = observe(object);
    object["status"] = json!({
        "observedGeneration": generation,
        "desiredNumberScheduled": 1,
        "currentNumberScheduled": report.pods,
        "numberMisscheduled": 0,
        "numberReady": report.ready,
        "updatedNumberScheduled": report.updated,
        "numberAvailable": report.ready,
    });
}
