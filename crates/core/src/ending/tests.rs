use serde_json::{Value, json};

use super::*;
use crate::api::{FullName, PodUid, Watched};
use crate::finished::FinishedPod;

#[expect(
    clippy::needless_pass_by_value,
    reason = "tables read better with values"
)]
fn pod(source: &str, over: Value) -> Pod {
    let mut pod = json!({
        "metadata": {"annotations": {"kubernetes.io/config.source": source}},
        "spec": {"containers": [], "terminationGracePeriodSeconds": 30},
    });
    for (part, fields) in over.as_object().unwrap() {
        for (key, value) in fields.as_object().unwrap() {
            pod[part][key] = value.clone();
        }
    }
    serde_json::from_value(pod).unwrap()
}

#[test]
fn only_pods_of_the_api_server_end_while_they_are_wanted() {
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let phase = |phase: &str| json!({"status": {"phase": phase}});
    for (source, over, expected) in [
        ("api", json!({}), None),
        ("api", deleted.clone(), Some(Ending::Deleted)),
        ("api", phase("Running"), None),
        ("api", phase("Succeeded"), Some(Ending::Over)),
        ("api", phase("Failed"), Some(Ending::Over)),
        ("file", deleted, None),
        ("file", phase("Failed"), None),
        ("http", phase("Succeeded"), None),
    ] {
        assert_eq!(
            ending(&pod(source, over.clone())),
            expected,
            "{source} {over}"
        );
    }
    // A mirror is nobody's to end.
    let mirror = json!({"metadata": {
        "annotations": {"kubernetes.io/config.source": "api", "kubernetes.io/config.mirror": "h"},
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }});
    assert_eq!(ending(&pod("api", mirror)), None);
}

#[test]
fn a_pod_is_released_when_only_finalizers_keep_it() {
    let of = |grace: i64, phase: &str, state: Value| {
        let deletion = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace,
        });
        let container = json!({
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        });
        let status = json!({"phase": phase, "containerStatuses": [container]});
        pod("api", json!({"metadata": deletion, "status": status}))
    };
    let ended = || json!({"terminated": {"exitCode": 1}});
    let mut mirror = of(0, "Failed", ended());
    let annotations = mirror.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_MIRROR.to_owned(), "h".to_owned());
    for (case, pod, expected) in [
        ("over", of(0, "Failed", ended()), true),
        ("being stopped", of(30, "Failed", ended()), false),
        ("not over", of(0, "Running", ended()), false),
        ("runs", of(0, "Failed", json!({"running": {}})), false),
        (
            "not deleted",
            pod("api", json!({"status": {"phase": "Failed"}})),
            false,
        ),
        ("a mirror", mirror, false),
    ] {
        // node 6i
        assert_eq!(is_released(&pod), expected, "{case}");
        assert_eq!(is_released(&remains(pod)), expected, "{case}");
    }
}

#[test]
fn grace_only_shrinks() {
    let asked = |seconds: Option<i64>| {
        pod(
            "api",
            json!({"metadata": {"deletionGracePeriodSeconds": seconds}}),
        )
    };
    let seconds = Duration::from_secs;
    for (known, deletion, expected) in [
        (None, None, 30),
        (None, Some(15), 15),
        (None, Some(60), 60),
        (None, Some(0), 1),
        (Some(15), Some(30), 15),
        (Some(15), Some(5), 5),
        (Some(15), Some(0), 1),
        (Some(15), None, 15),
    ] {
        let got = grace(known.map(seconds), &asked(deletion));
        // pods 44
        assert_eq!(got, seconds(expected), "{known:?} {deletion:?}");
    }
}

#[test]
fn the_last_status_leaves_nothing_open() {
    let status = |value: Value| -> PodStatus { serde_json::from_value(value).unwrap() };
    let exit = |s: &ContainerStatus| {
        let ended = s.state.as_ref()?.terminated.as_ref()?;
        Some(ended.exit_code)
    };
    let running = json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}});
    let ended = json!({"name": "b", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 3}}});
    let waiting = json!({"name": "c", "image": "", "imageID": "", "ready": false,
        "restartCount": 0, "state": {"waiting": {}}});
    let initialized = json!([{"type": "Initialized", "status": "True"}]);

    let last = last_status(status(json!({
        "phase": "Running", "conditions": initialized,
        "containerStatuses": [running, ended, waiting],
    })));
    let exits: Vec<_> = last.container_statuses.iter().flatten().map(exit).collect();
    assert_eq!(exits, [Some(137), Some(3), Some(137)]);
    assert_eq!(last.phase.as_deref(), Some("Failed"));

    // One that never initialized: what never began has no end.
    let last = last_status(status(json!({
        "phase": "Pending", "conditions": [{"type": "Initialized", "status": "False"}],
        "initContainerStatuses": [ended, running, waiting],
        "containerStatuses": [waiting],
    })));
    let exits: Vec<_> = last
        .init_container_statuses
        .iter()
        .flatten()
        .map(exit)
        .collect();
    assert_eq!(exits, [Some(3), Some(137), None]);
    assert_eq!(exit(&last.container_statuses.as_ref().unwrap()[0]), None);
    assert_eq!(last.phase.as_deref(), Some("Failed"));

    for phase in ["Succeeded", "Failed"] {
        let last = last_status(status(json!({"phase": phase})));
        assert_eq!(last.phase.as_deref(), Some(phase), "never backwards");
    }
}

/// A pod of the API server as large as they get.
fn large(phase: &str, state: &Value) -> Pod {
    let text = "x".repeat(250_000);
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7",
            "annotations": {"a": text}, "labels": {"l": text}, "finalizers": [text],
        },
        "spec": {
            "nodeName": "n", "restartPolicy": "Never",
            "volumes": [{"name": text}],
            "initContainers": [{"name": "init", "image": "i:1", "args": [text]}],
            "containers": [{
                "name": "c", "image": "c:1", "command": [text], "env": [{"name": text}],
                "lifecycle": {"preStop": {"exec": {"command": [text]}}},
                "restartPolicy": "Never",
            }],
        },
        "status": {
            "phase": phase, "reason": "OutOfcpu",
            "containerStatuses": [{
                "name": "c", "image": "c:1", "imageID": "i", "ready": false,
                "restartCount": 0, "state": state, "resources": {"limits": {text.clone(): "1"}},
                "allocatedResources": {text.clone(): "1"},
                "volumeMounts": [{"name": text, "mountPath": text}],
                "user": {"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2]}},
            }],
        },
    }))
    .unwrap()
}

#[test]
fn of_a_pod_that_is_too_large_nothing_is_kept_that_could_run() {
    let variables = vec![serde_json::json!({"name": "a"}); 60_000];
    let pod = serde_json::json!({
        "metadata": {"name": "a", "uid": "u", "annotations": {"note": "n"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i", "env": variables}]},
        "status": {"phase": "Pending"},
    });
    let Watched(pod): Watched<Pod> = serde_json::from_value(pod).unwrap();
    let pod = remains(pod);
    // tenants M8
    assert!(
        is_too_large(&pod.metadata),
        "it is refused by this mark alone"
    );
    assert_eq!(pod.metadata.annotations.unwrap().len(), 1);
    let spec = pod.spec.unwrap();
    assert_eq!(
        (spec.node_name.as_deref(), &spec.containers[0].env),
        (Some("n"), &None)
    );
}

#[test]
fn of_a_pod_that_is_over_only_its_remains_are_kept() {
    let ended = || json!({"terminated": {"exitCode": 1}});
    for state in [
        ended(),
        json!({}),
        json!({"waiting": {"reason": "ErrImagePull"}}),
    ] {
        let pod = large("Failed", &state);
        let text = serde_json::to_string(&pod).unwrap();
        let kept = remains(serde_json::from_str(&text).unwrap());
        let bytes = serde_json::to_string(&kept).unwrap().len();
        // tenants M5
        assert!(bytes < 1024, "{bytes}");
        let (spec, status) = (kept.spec.as_ref().unwrap(), kept.status.as_ref().unwrap());
        let statuses = status.container_statuses.as_ref().unwrap();
        // tenants M5
        assert_eq!(
            (spec.containers.capacity(), statuses.capacity()),
            (spec.containers.len(), statuses.len())
        );
        let mut status = pod.status.clone().unwrap();
        for container in status.container_statuses.iter_mut().flatten() {
            container.resources = None;
            container.allocated_resources = None;
            container.volume_mounts = None;
            container.user = None;
        }
        assert_eq!(kept.status, Some(status));
        assert_eq!(PodUid::of(&kept), PodUid::of(&pod));
        let hashes = |pod: &Pod| -> Vec<_> {
            let all = spec::containers(pod);
            all.map(|(role, container)| (role, spec::container_hash(container)))
                .collect()
        };
        assert_eq!(hashes(&kept), hashes(&pod));
        assert_eq!(remains(kept.clone()), kept);
    }
    for whole in [
        large("Running", &ended()),
        large("Failed", &json!({"running": {}})),
    ] {
        assert_eq!(remains(whole.clone()), whole);
    }
}

#[test]
fn of_a_mirror_only_what_it_is_compared_by_is_kept() {
    let text = "x".repeat(250_000);
    let owner = |kind: &str| {
        json!({
            "apiVersion": "v1", "kind": kind, "name": "n", "uid": kind.to_lowercase(),
            "controller": true,
        })
    };
    let mirror = |annotations: Value| -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "web", "namespace": "ns", "uid": "u", "resourceVersion": "7",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
                "labels": {"l": text}, "annotations": annotations,
                "finalizers": vec![format!("example.com/{text}"); 100],
                "ownerReferences": vec![owner("Node"); 100],
            },
            "spec": {"nodeName": "n", "containers": [{"name": "c", "args": [text]}]},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        let owners = pod["metadata"]["ownerReferences"].as_array_mut().unwrap();
        owners.insert(0, owner("ReplicaSet"));
        serde_json::from_value(pod).unwrap()
    };
    let whole = mirror(json!({
        keys::CONFIG_MIRROR: "h", keys::CONFIG_HASH: "h", keys::CONFIG_SOURCE: "file",
        keys::HELD_REVISION: "r", keys::HELD_REASON: "why", keys::HELD_MESSAGE: "words",
        "note": text,
    }));
    let kept = remains(whole.clone());
    let bytes = serde_json::to_string(&kept).unwrap().len();
    // tenants M5
    assert!(bytes < 12_000, "{bytes}");
    let (of, was) = (&kept.metadata, &whole.metadata);
    assert_eq!(FullName::of(&kept), FullName::of(&whole));
    assert_eq!(
        (&of.uid, &of.resource_version, &of.deletion_timestamp),
        (&was.uid, &was.resource_version, &was.deletion_timestamp)
    );
    assert_eq!(of.deletion_grace_period_seconds, Some(0));
    let mut annotations = was.annotations.clone().unwrap();
    annotations.remove("note");
    assert_eq!(of.annotations, Some(annotations));
    let owners = of.owner_references.as_ref().unwrap();
    assert!(owners.iter().all(|owner| owner.uid == "node"));
    assert!(!owners.is_empty() && !of.finalizers.as_ref().unwrap().is_empty());
    assert_eq!(spec::spec(&kept).node_name.as_deref(), Some("n"));
    assert_eq!(kept.status, whole.status);
    assert_eq!(remains(kept.clone()), kept);
    // Values that no agent writes are no reason to hold more, either.
    let forged = remains(mirror(
        json!({keys::CONFIG_MIRROR: text, keys::HELD_MESSAGE: text}),
    ));
    let bytes = serde_json::to_string(&forged).unwrap().len();
    // tenants M5
    assert!(is_mirror_pod(&forged) && bytes < 16_000, "{bytes}");
}

/// A pod of everyday size that has run, as the API server has it.
fn ran() -> Pod {
    let sha = "0123456789abcdef0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a6978";
    let condition = |kind: &str, status: &str| {
        json!({
            "type": kind, "status": status, "reason": "PodCompleted",
            "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:05Z",
        })
    };
    let pod = json!({
        "metadata": {
            "name": "report-28912345-x7k2p", "namespace": "batch",
            "uid": "1b671a64-40d5-491e-99b0-da01ff1f3341", "resourceVersion": "123456",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "report", "batch.kubernetes.io/job-name": "report-28912345"},
            "annotations": {"kubernetes.io/config.source": "api", "note": "x".repeat(4000)},
        },
        "spec": {
            "nodeName": "node-1.example", "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "volumes": [{"name": "token", "projected": {"sources": []}}],
            "containers": [{
                "name": "main", "image": "registry.example/team/report:1.2.3",
                "env": [{"name": "MODE", "value": "daily"}],
                "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
            }],
        },
        "status": {
            "phase": "Succeeded", "qosClass": "BestEffort",
            "hostIP": "10.0.0.5", "hostIPs": [{"ip": "10.0.0.5"}],
            "podIP": "172.18.0.9", "podIPs": [{"ip": "172.18.0.9"}],
            "startTime": "2026-01-01T00:00:01Z",
            "conditions": [
                condition("PodReadyToStartContainers", "False"),
                condition("Initialized", "True"), condition("Ready", "False"),
                condition("ContainersReady", "False"), condition("PodScheduled", "True"),
            ],
            "containerStatuses": [{
                "name": "main", "image": "registry.example/team/report:1.2.3",
                "imageID": format!("registry.example/team/report@sha256:{sha}"),
                "containerID": format!("docker://{}", sha.chars().rev().collect::<String>()),
                "ready": false, "started": false, "restartCount": 0,
                "state": {"terminated": {
                    "exitCode": 0, "reason": "Completed",
                    "containerID": format!("docker://{}", sha.chars().rev().collect::<String>()),
                    "startedAt": "2026-01-01T00:00:02Z", "finishedAt": "2026-01-01T00:00:05Z",
                }},
            }],
        },
    });
    serde_json::from_value(pod).unwrap()
}

#[test]
fn what_is_kept_of_a_finished_pod_takes_less_than_a_kilobyte_and_is_read_as_it_was() {
    let left = remains(ran());
    let kept = FinishedPod::of(&left).unwrap();
    assert_eq!(kept.pod(), Some(left));
    assert_eq!(
        *kept.name(),
        FullName::new("report-28912345-x7k2p", "batch")
    );
    // node 6k
    assert!(kept.text.len() < 900, "{}", kept.text.len());
}
