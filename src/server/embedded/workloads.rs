//! The counts and conditions of workloads, as `kubectl get deployments` and `kubectl rollout status`
//! read them. Pure.
//!
//! Upstream: `pkg/controller/deployment/sync.go`, `pkg/apis/apps/v1/defaults.go`.

use mirrorlet_core::api::{PodUid, keys};
use mirrorlet_core::desired::SourceWorkload;
use mirrorlet_core::workload::WorkloadKind;
use mirrorlet_core::workload::standing::{Progress, Wish};
use serde_json::{Value, json};

/// A pod of a workload.
pub(super) struct Member<'a> {
    /// Its object.
    pub(super) object: &'a Value,
    /// Whether its version is that of the document.
    pub(super) is_newest: bool,
    /// Whether it is being stopped.
    pub(super) terminating: bool,
    /// Whether its version is judged in the place of another.
    pub(super) is_judged: bool,
}

impl Member<'_> {
    fn is_ready(&self) -> bool {
        let conditions = self.object["status"]["conditions"].as_array();
        let mut all = conditions.into_iter().flatten();
        all.any(|c| c["type"] == "Ready" && c["status"] == "True")
    }

    /// Why a version of the document can't be run, if it was tried.
    fn held(&self, workload: &SourceWorkload) -> Option<String> {
        let annotation = |key: &str| self.object["metadata"]["annotations"][key].as_str();
        let revision = annotation(keys::HELD_REVISION)?;
        // One that a newer document has replaced says nothing about that.
        let is_of_document = workload.pods.contains(&PodUid::from(revision));
        is_of_document.then(|| {
            annotation(keys::HELD_MESSAGE)
                .unwrap_or_default()
                .to_owned()
        })
    }
}

/// Fills in defaults, counts and conditions of a workload with these pods.
pub(super) fn complete(
    object: &mut Value,
    kind: WorkloadKind,
    workload: &SourceWorkload,
    pods: &[Member<'_>],
) {
    match kind {
        WorkloadKind::Deployment => {
            let held = pods.iter().find_map(|pod| pod.held(workload));
            deployment(object, pods, held.as_deref());
        }
        WorkloadKind::DaemonSet => daemon_set(object, pods),
        // StatefulSets are not served; the counts of the others are in their ledgers.
        WorkloadKind::StatefulSet | WorkloadKind::Job | WorkloadKind::CronJob => {}
    }
}

/// The number of such pods.
fn count(pods: &[Member<'_>], is: impl Fn(&Member<'_>) -> bool) -> i64 {
    let number = pods.iter().filter(|pod| is(pod)).count();
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn default(value: &mut Value, key: &str, default: Value) {
    if value[key].is_null() {
        value[key] = default;
    }
}

pub(super) fn generation(object: &Value) -> Value {
    match &object["metadata"]["generation"] {
        Value::Null => 1.into(),
        known => known.clone(),
    }
}

fn deployment(object: &mut Value, pods: &[Member<'_>], held: Option<&str>) {
    let spec = &mut object["spec"];
    default(spec, "replicas", 1.into());
    default(spec, "progressDeadlineSeconds", 600.into());
    default(spec, "revisionHistoryLimit", 10.into());
    default(
        spec,
        "strategy",
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
    );
    let wanted = spec["replicas"].as_i64().unwrap_or(1);
    let live = count(pods, |pod| !pod.terminating);
    let ready = count(pods, |pod| !pod.terminating && pod.is_ready());
    let updated = count(pods, |pod| pod.is_newest && !pod.terminating);
    let available = count(pods, |pod| {
        !pod.terminating && pod.is_ready() && !pod.is_judged
    });
    let wish = Wish::of(object);
    let number = |count: i64| u32::try_from(count).unwrap_or(u32::MAX);
    let progress = Progress {
        wanted: wish.pods,
        live: number(live),
        updated: number(updated),
        available: number(available),
        unavailable_max: wish.unavailable_max,
        paused: wish.paused,
        failed: held,
    };
    let conditions = progress.conditions();
    let generation = generation(object);
    object["metadata"]["generation"] = generation.clone();
    let mut status = json!({
        "observedGeneration": generation,
        "conditions": conditions,
    });
    // As upstream, a count of 0 is left out.
    for (key, number) in [
        ("replicas", live),
        ("updatedReplicas", updated),
        ("readyReplicas", ready),
        ("availableReplicas", available),
        (
            "unavailableReplicas",
            wanted.saturating_sub(available).max(0),
        ),
    ] {
        if number > 0 {
            status[key] = number.into();
        }
    }
    object["status"] = status;
}

fn daemon_set(object: &mut Value, pods: &[Member<'_>]) {
    let spec = &mut object["spec"];
    default(spec, "revisionHistoryLimit", 10.into());
    default(
        spec,
        "updateStrategy",
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
    );
    let ready = count(pods, |pod| !pod.terminating && pod.is_ready());
    let live = count(pods, |pod| !pod.terminating);
    let generation = generation(object);
    object["metadata"]["generation"] = generation.clone();
    object["status"] = json!({
        "observedGeneration": generation,
        "desiredNumberScheduled": 1,
        "currentNumberScheduled": live,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "updatedNumberScheduled": count(pods, |pod| pod.is_newest && !pod.terminating),
        "numberAvailable": ready,
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use mirrorlet_core::desired::{Origin, PodSource};

    use super::*;

    fn pod(ready: bool, held: Option<&str>) -> Value {
        let status = if ready { "True" } else { "False" };
        let mut pod = json!({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}});
        if let Some(revision) = held {
            pod["metadata"]["annotations"] =
                json!({keys::HELD_REVISION: revision, keys::HELD_MESSAGE: "no such image"});
        }
        pod
    }

    #[test]
    fn counts_and_conditions_are_what_kubectl_waits_for() {
        let workload = SourceWorkload {
            namespace: "default".to_owned(),
            owner: "Deployment/web".to_owned(),
            document: Arc::default(),
            pods: BTreeSet::from([PodUid::from("new")]),
            set: None,
            origin: Origin::whole(PodSource::Embedded, "x"),
            held: false,
        };
        for (pods, updated, ready, progressing) in [
            (
                [(pod(true, None), true), (pod(true, None), true)],
                2,
                2,
                "NewReplicaSetAvailable",
            ),
            (
                [(pod(true, None), true), (pod(false, None), true)],
                2,
                1,
                "ReplicaSetUpdated",
            ),
            // All are ready, but not of the newest version yet.
            (
                [(pod(true, None), false), (pod(true, None), true)],
                1,
                2,
                "ReplicaSetUpdated",
            ),
            (
                [(pod(true, Some("new")), false), (pod(true, None), true)],
                1,
                2,
                "ProgressDeadlineExceeded",
            ),
            // A newer document has replaced the version that was held.
            (
                [(pod(true, Some("old")), false), (pod(true, None), true)],
                1,
                2,
                "ReplicaSetUpdated",
            ),
        ] {
            let mut object = json!({"metadata": {"generation": 4}, "spec": {"replicas": 2}});
            let members: Vec<_> = pods
                .iter()
                .map(|(object, is_newest)| Member {
                    object,
                    is_newest: *is_newest,
                    terminating: false,
                    is_judged: false,
                })
                .collect();
            complete(&mut object, WorkloadKind::Deployment, &workload, &members);
            let status = &object["status"];
            // embedded 9
            assert_eq!(status["updatedReplicas"], updated);
            assert_eq!(status["readyReplicas"], ready);
            assert_eq!(status["observedGeneration"], 4);
            assert_eq!(status["conditions"][1]["reason"], progressing);
        }
    }
}
