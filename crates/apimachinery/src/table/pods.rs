//! The row of a pod.
//!
//! Upstream: `printPod` of `pkg/printers/internalversion/printers.go`.

use mirrorlet_core::api::core::{ContainerStatus, PodStatus};
use mirrorlet_core::api::{self, Pod, Timestamp};
use mirrorlet_core::clock::age;
use mirrorlet_core::observed::Role;
use mirrorlet_core::spec;
use mirrorlet_core::status::printed_status;
use serde_json::{Value, json};

use super::cells::{NONE, since};
use crate::meta;

/// The cells of a pod's row.
pub(super) fn pod_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let pod: Pod = api::read(object).unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let (word, _) = printed_status(&pod, &status);
    let (ready, total) = ready(&pod, &status);
    let text = |value: Option<&str>| match value {
        None | Some("") => json!(NONE),
        Some(text) => json!(text),
    };
    let gates = spec::spec(&pod)
        .readiness_gates
        .as_deref()
        .unwrap_or_default();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let met = gates.iter().filter(|gate| {
        let mut all = conditions.iter();
        all.any(|c| c.type_ == gate.condition_type && c.status == "True")
    });
    let gates = match gates.len() {
        0 => json!(NONE),
        total => json!(format!("{}/{total}", met.count())),
    };
    vec![
        json!(meta::name(object)),
        json!(format!("{ready}/{total}")),
        json!(word),
        json!(restarts(&pod, &status, &word, now)),
        json!(since(&object["metadata"]["creationTimestamp"], now)),
        text(status.pod_ip.as_deref()),
        text(spec::spec(&pod).node_name.as_deref()),
        text(status.nominated_node_name.as_deref()),
        gates,
    ]
}

fn is_sidecar(pod: &Pod, name: &str) -> bool {
    spec::find_container(pod, name).is_some_and(|(role, _)| role == Role::Sidecar)
}

/// The numbers of its containers and sidecars that are ready, and of all.
fn ready(pod: &Pod, status: &PodStatus) -> (usize, usize) {
    let counted = |role: Role| matches!(role, Role::App | Role::Sidecar);
    let total = spec::containers(pod)
        .filter(|(role, _)| counted(*role))
        .count();
    let main = status.container_statuses.iter().flatten();
    let sidecars = status.init_container_statuses.iter().flatten();
    let sidecars = sidecars.filter(|s| is_sidecar(pod, &s.name) && s.started == Some(true));
    let running = |s: &&ContainerStatus| {
        s.ready
            && s.state
                .as_ref()
                .is_some_and(|state| state.running.is_some())
    };
    (main.chain(sidecars).filter(running).count(), total)
}

/// The number of restarts, and the time of the last: of init containers until they are done,
/// then the others.
fn restarts(pod: &Pod, status: &PodStatus, word: &str, now: Timestamp) -> String {
    let init = || status.init_container_statuses.iter().flatten();
    let counted: Vec<&ContainerStatus> = if word.starts_with("Init:") {
        init().collect()
    } else {
        let main = status.container_statuses.iter().flatten();
        let sidecars = init().filter(|s| is_sidecar(pod, &s.name));
        main.chain(sidecars).collect()
    };
    let total: i32 = counted.iter().map(|s| s.restart_count).sum();
    let ends = counted.iter().filter_map(|s| {
        let last = s.last_state.as_ref()?.terminated.as_ref()?;
        last.finished_at.as_ref().map(|time| time.0)
    });
    match ends.max().filter(|_| total > 0) {
        Some(last) => format!("{total} ({} ago)", age(last, now)),
        None => total.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_one_row() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let running = json!({"running": {"startedAt": "2026-01-02T03:00:00Z"}});
        let pod = json!({
            "metadata": {"name": "web", "creationTimestamp": "2026-01-02T02:04:05Z"},
            "spec": {"nodeName": "n", "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x"}],
                "initContainers": [{"name": "s", "image": "x", "restartPolicy": "Always"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1",
                "conditions": [{"type": "Initialized", "status": "True"}],
                "initContainerStatuses": [{"name": "s", "image": "x", "imageID": "", "ready": true, "started": true, "restartCount": 0, "state": running}],
                "containerStatuses": [
                    {"name": "a", "image": "x", "imageID": "", "ready": true, "restartCount": 2, "state": running,
                     "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-02T02:59:05Z"}}},
                    {"name": "b", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
        });
        // embedded 3
        assert_eq!(
            pod_cells(&pod, now),
            [
                json!("web"),
                json!("2/3"),
                json!("CrashLoopBackOff"),
                json!("2 (5m ago)"),
                json!("60m"),
                json!("10.0.0.1"),
                json!("n"),
                json!(NONE),
                json!(NONE)
            ]
        );
        let mut leaving = pod.clone();
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        assert_eq!(pod_cells(&leaving, now)[2], "Terminating");
        let begun = pod_cells(&json!({"metadata": {"name": "x"}}), now);
        assert_eq!(begun[1], "0/0");
    }
}
