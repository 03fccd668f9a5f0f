use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::desired::{Origin, PodSource};

mod versions;

#[test]
fn conditions_are_those_of_upstreams_controller() {
    let whole = Progress {
        wanted: 3,
        live: 3,
        updated: 3,
        available: 3,
        ..Progress::default()
    };
    for (progress, available, progressing) in [
        (
            whole,
            "MinimumReplicasAvailable",
            "True NewReplicaSetAvailable",
        ),
        (
            Progress {
                updated: 1,
                ..whole
            },
            "MinimumReplicasAvailable",
            "True ReplicaSetUpdated",
        ),
        (
            Progress {
                available: 2,
                ..whole
            },
            "MinimumReplicasUnavailable",
            "True ReplicaSetUpdated",
        ),
        (
            Progress {
                available: 2,
                unavailable_max: 1,
                ..whole
            },
            "MinimumReplicasAvailable",
            "True ReplicaSetUpdated",
        ),
        // A pod that crashes after the rollout is no rollout, nor is another number of pods.
        (
            Progress {
                available: 2,
                was_complete: true,
                ..whole
            },
            "MinimumReplicasUnavailable",
            "True NewReplicaSetAvailable",
        ),
        (
            Progress {
                wanted: 5,
                was_complete: true,
                ..whole
            },
            "MinimumReplicasUnavailable",
            "True NewReplicaSetAvailable",
        ),
        (
            Progress {
                live: 4,
                was_complete: true,
                ..whole
            },
            "MinimumReplicasAvailable",
            "True ReplicaSetUpdated",
        ),
        (
            Progress {
                updated: 0,
                undone: Some("all pods run an older version"),
                ..whole
            },
            "MinimumReplicasAvailable",
            "False ProgressDeadlineExceeded",
        ),
        // Old pods are still being stopped.
        (
            Progress { live: 4, ..whole },
            "MinimumReplicasAvailable",
            "True ReplicaSetUpdated",
        ),
        (
            Progress {
                updated: 0,
                paused: true,
                ..whole
            },
            "MinimumReplicasAvailable",
            "Unknown DeploymentPaused",
        ),
        (
            Progress {
                updated: 0,
                failed: Some("pod web-1: it crashed"),
                ..whole
            },
            "MinimumReplicasAvailable",
            "False ProgressDeadlineExceeded",
        ),
        (
            Progress::default(),
            "MinimumReplicasAvailable",
            "True NewReplicaSetAvailable",
        ),
    ] {
        let [first, second] = progress.conditions();
        // workloads 15
        assert_eq!(first.reason, available, "{progress:?}");
        let told = format!("{} {}", second.status, second.reason);
        // workloads 15
        assert_eq!(told, progressing, "{progress:?}");
    }
}

#[test]
fn what_a_document_wants_is_rounded_as_upstream() {
    for (spec, pods, unavailable_max, paused) in [
        (json!({}), 1, 0, false),
        (json!({"replicas": 4}), 4, 1, false),
        (json!({"replicas": 3, "paused": true}), 3, 0, true),
        (
            json!({"replicas": 4, "strategy": {"type": "Recreate"}}),
            4,
            0,
            false,
        ),
        (
            json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}}),
            2,
            2,
            false,
        ),
        (json!({"replicas": 0}), 0, 0, false),
    ] {
        let wish = DesiredPods {
            pods,
            unavailable_max,
            paused,
        };
        // workloads 15
        assert_eq!(DesiredPods::of(&json!({"spec": spec})), wish);
    }
}

/// A pod in a row: which manifest runs, which is the newest, its phase, and whether it is Ready.
struct Pod {
    report: PodReport,
    runs: PodUid,
    newest: PodUid,
    template_hash: String,
    config_is_old: bool,
}

fn pod(number: u32, runs: &str, newest: &str, phase: Option<RolloutPhase>, ready: bool) -> Pod {
    let rollout = phase.map(|phase| {
        json!({
            "phase": phase,
            "revision": if runs == newest { 2 } else { 1 },
            "target": if phase == RolloutPhase::Undone { 1 } else { 2 },
            "targetUid": newest,
            "newest": 2,
            "reason": "CrashLoopBackOff",
            "message": "it crashed",
        })
    });
    let report = json!({
        "name": format!("db-{number}-box"),
        "manifestName": format!("db-{number}"),
        "namespace": "default",
        "uid": format!("{number}{runs}"),
        "source": "/m/db.yaml",
        "status": "Running",
        "phase": "Running",
        "ready": u32::from(ready),
        "containersTotal": 1,
        "restarts": 0,
        "containers": [],
        "held": false,
        "rollout": rollout,
    });
    Pod {
        report: serde_json::from_value(report).unwrap(),
        runs: format!("{number}{runs}").into(),
        newest: format!("{number}{newest}").into(),
        template_hash: format!("{runs}-template-hash"),
        config_is_old: false,
    }
}

/// A pod that runs its first version, which has no verdict yet.
fn first(number: u32, ready: bool) -> Pod {
    let mut pod = pod(number, "new", "new", Some(RolloutPhase::Judging), ready);
    let rollout = pod.report.rollout.as_mut().unwrap();
    (rollout.revision, rollout.target, rollout.newest) = (1, 1, 1);
    pod
}

#[test]
fn a_first_version_takes_nobodys_place() {
    let two = json!({"replicas": 2});
    let longer = json!({"replicas": 2, "minReadySeconds": 5});
    let good = |number| pod(number, "new", "new", None, true);
    for (spec, pods, available, progress, message) in [
        (&two, [first(0, true), first(1, true)], 2, "Complete", ""),
        (&two, [good(0), first(1, true)], 2, "Complete", ""),
        (
            &two,
            [first(0, true), first(1, false)],
            1,
            "Scaling",
            "pod db-1-box is being started",
        ),
        (
            &longer,
            [good(0), first(1, true)],
            1,
            "Scaling",
            "pod db-1-box is being started",
        ),
    ] {
        for kind in ["StatefulSet", "DaemonSet"] {
            let report = report_of(kind, spec, &pods, &[]);
            // workloads 16
            assert_eq!(report.available, available, "{spec} {progress}");
            assert_eq!((&*report.progress, &*report.message), (progress, message));
        }
        let report = report_of("Deployment", spec, &pods, &[]);
        assert_eq!(report.available, available, "{spec} {progress}");
        let is_done = report.progress == "NewReplicaSetAvailable";
        assert_eq!(is_done, progress == "Complete");
    }
}

fn report_of(kind: &str, spec: &serde_json::Value, pods: &[Pod], waits: &[&str]) -> WorkloadReport {
    let document = SourceWorkload {
        namespace: "default".to_owned(),
        owner: format!("{kind}/db"),
        document: Arc::new(json!({"spec": spec})),
        pods: (0..5)
            .map(|n| PodUid::from(format!("{n}new")))
            .collect::<BTreeSet<_>>(),
        set: None,
        template_hash: "new-template-hash".to_owned(),
        origin: Origin::whole(PodSource::File, "/m/db.yaml"),
        held: false,
    };
    let members = pods.iter().map(|pod| Member {
        pod: &pod.report,
        runs: pod.runs.clone(),
        template_hash: &pod.template_hash,
        newest: Some(pod.newest.clone()),
        config_is_old: pod.config_is_old,
    });
    let waits: Vec<String> = waits.iter().map(|words| (*words).to_owned()).collect();
    let clash = spec["clash"].as_str();
    report(&document, &members.collect::<Vec<_>>(), &waits, clash)
}

#[test]
fn a_pod_whose_name_is_taken_fails_its_workload() {
    let clash = "pod db-1-box_default is already defined by /m/db-1.yaml";
    let good = |number| pod(number, "new", "new", None, true);
    let spec = json!({"replicas": 2, "clash": clash});
    let told = report_of("Deployment", &spec, &[good(0)], &[]);
    // workloads 15a
    assert_eq!(told.progress, "ProgressDeadlineExceeded");
    assert_eq!(told.conditions[1].message, clash);
    let told = report_of("StatefulSet", &spec, &[good(0)], &[]);
    assert_eq!((&*told.progress, &*told.message), ("Failed", clash));
}

#[test]
fn a_stateful_set_says_how_far_it_is_and_what_it_waits_for() {
    use RolloutPhase::{Held, Judging, Paused, Restored, Undone, Waiting};
    let good = |number| pod(number, "new", "new", None, true);
    let old = |number, phase| pod(number, "old", "new", Some(phase), true);
    let partition = json!({"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}});
    let two = json!({"replicas": 2});
    for (spec, pods, waits, counts, progress, message) in [
        (
            &two,
            vec![good(0), good(1)],
            "",
            [2, 2, 2, 2],
            "Complete",
            "",
        ),
        (&json!({"replicas": 0}), vec![], "", [0; 4], "Complete", ""),
        (
            &two,
            vec![pod(0, "new", "new", None, false)],
            "pod db-1-box starts once db-0 is Running and Ready",
            [1, 0, 1, 0],
            "Scaling",
            "pod db-1-box starts once db-0 is Running and Ready",
        ),
        (
            &two,
            vec![good(0)],
            "",
            [1; 4],
            "Scaling",
            "1 of 2 pods exist",
        ),
        (
            &two,
            vec![good(0), pod(1, "new", "new", None, false)],
            "",
            [2, 1, 2, 1],
            "NotReady",
            "pod db-1-box is not Ready",
        ),
        // The words are about the pod that is being updated, rather than about one that waits.
        (
            &two,
            vec![old(0, Waiting), pod(1, "new", "new", Some(Judging), true)],
            "",
            [2, 2, 1, 1],
            "Updating",
            "pod db-1-box is being updated",
        ),
        (
            &two,
            vec![old(0, Waiting), good(1)],
            "",
            [2, 2, 1, 2],
            "Updating",
            "pod db-0-box waits: it crashed",
        ),
        (
            &partition,
            vec![old(0, Waiting), good(1)],
            "",
            [2, 2, 1, 2],
            "Partitioned",
            "pods with an ordinal below 1 keep their version",
        ),
        (
            &two,
            vec![old(0, Held), old(1, Waiting)],
            "",
            [2, 2, 0, 2],
            "Failed",
            "pod db-0-box: CrashLoopBackOff: it crashed",
        ),
        (
            &two,
            vec![good(0), old(1, Restored)],
            "",
            [2, 2, 1, 2],
            "Failed",
            "pod db-1-box: CrashLoopBackOff: it crashed",
        ),
        (
            &two,
            vec![old(0, Paused), old(1, Paused)],
            "",
            [2, 2, 0, 2],
            "Paused",
            "its rollouts are paused",
        ),
        (
            &two,
            vec![old(0, Undone), old(1, Undone)],
            "",
            [2, 2, 0, 2],
            "Undone",
            "all pods run an older version, because a user ran `mirrorlet rollout undo`",
        ),
        // The other one is still on its way back.
        (
            &two,
            vec![old(0, Undone), pod(1, "new", "new", Some(Waiting), true)],
            "",
            [2, 2, 1, 2],
            "Updating",
            "pod db-0-box runs an older version after an undo",
        ),
        // The rollouts have not taken in the newest document yet.
        (
            &two,
            vec![
                pod(0, "old", "old", Some(Held), true),
                pod(1, "old", "old", None, true),
            ],
            "",
            [2, 2, 0, 2],
            "Updating",
            "pod db-0-box is being updated",
        ),
    ] {
        let waits: Vec<&str> = Some(waits)
            .filter(|words| !words.is_empty())
            .into_iter()
            .collect();
        let report = report_of("StatefulSet", spec, &pods, &waits);
        let told = [report.pods, report.ready, report.updated, report.available];
        // workloads 16
        assert_eq!(told, counts, "{progress}: {message}");
        assert_eq!((&*report.progress, &*report.message), (progress, message));
        assert!(report.conditions.is_empty());
    }
}

#[test]
fn counts_and_conditions_are_what_kubectl_waits_for() {
    use RolloutPhase::{Held, Judging, Undone};
    let good = |number| pod(number, "new", "new", None, true);
    for (pods, updated, ready, available, progressing) in [
        ([good(0), good(1)], 2, 2, 2, "NewReplicaSetAvailable"),
        (
            [pod(0, "new", "new", None, false), good(1)],
            2,
            1,
            1,
            // It was complete.
            "NewReplicaSetAvailable",
        ),
        // All pods are being started for the first time.
        (
            [first(0, false), first(1, true)],
            2,
            1,
            1,
            "ReplicaSetUpdated",
        ),
        ([good(0), first(1, false)], 2, 1, 1, "ReplicaSetUpdated"),
        (
            [
                pod(0, "old", "new", Some(Undone), true),
                pod(1, "old", "new", Some(Undone), true),
            ],
            0,
            2,
            2,
            "ProgressDeadlineExceeded",
        ),
        // All are ready, but not of the newest version yet, or not for long enough.
        (
            [pod(0, "old", "old", None, true), good(1)],
            1,
            2,
            2,
            "ReplicaSetUpdated",
        ),
        (
            [pod(0, "new", "new", Some(Judging), true), good(1)],
            2,
            2,
            1,
            "ReplicaSetUpdated",
        ),
        (
            [pod(0, "old", "new", Some(Held), true), good(1)],
            1,
            2,
            2,
            "ProgressDeadlineExceeded",
        ),
        // A newer document has replaced the version that was held.
        (
            [pod(0, "older", "old", Some(Held), true), good(1)],
            1,
            2,
            2,
            "ReplicaSetUpdated",
        ),
    ] {
        let report = report_of("Deployment", &json!({"replicas": 2}), &pods, &[]);
        // embedded 9
        assert_eq!((report.updated, report.ready), (updated, ready));
        assert_eq!((report.pods, report.available), (2, available));
        assert_eq!(report.conditions[1].reason, progressing);
        let is_undone = report.progress == "Undone" && updated == 0;
        assert!(is_undone || report.progress == progressing);
    }
}

/// A workload that was scaled to 0 and back: its pod is ready until its containers have stopped.
#[test]
fn a_pod_that_is_being_stopped_counts_for_nothing() {
    let stops = || {
        let mut pod = pod(0, "new", "new", None, true);
        "Terminating".clone_into(&mut pod.report.status);
        pod
    };
    let report = report_of("Deployment", &json!({"replicas": 1}), &[stops()], &[]);
    assert_eq!((report.pods, report.ready), (0, 0));
    assert_eq!((report.updated, report.available), (0, 0));
    assert_eq!(report.conditions[0].status, "False");
    assert_eq!(report.progress, "ReplicaSetUpdated");
    let report = report_of("StatefulSet", &json!({"replicas": 1}), &[stops()], &[]);
    assert_eq!((&*report.progress, report.ready), ("Scaling", 0));
    assert_eq!(report.revisions.unwrap().current_pods, 0);
}

#[test]
fn a_workload_is_named_as_kubectl_names_it() {
    let report = report_of("StatefulSet", &json!({}), &[], &[]);
    for (text, expected) in [
        ("statefulset/db", true),
        ("sts/db", true),
        ("StatefulSets/default/db", true),
        ("sts/other/db", false),
        ("sts/web", false),
        ("deployment/db", false),
        ("default/db", true),
        ("db", true),
        ("other/db", false),
        ("web", false),
    ] {
        // workloads 16
        assert_eq!(is_named(&report, text), expected, "{text}");
    }
}

#[test]
fn revisions_of_a_set_are_counted_as_upstream_counts_them() {
    let good = |number| pod(number, "new", "new", None, true);
    let old = |number, version| pod(number, version, "new", Some(RolloutPhase::Waiting), true);
    for (pods, current, current_pods) in [
        (vec![], "db-new-templa", 0),
        (vec![good(0), good(1)], "db-new-templa", 2),
        (vec![old(0, "old"), good(1)], "db-old-templa", 1),
        (
            vec![old(0, "old"), old(1, "old"), good(2)],
            "db-old-templa",
            2,
        ),
        // An edit before the last one has reached all.
        (
            vec![old(0, "one"), old(1, "two"), good(2)],
            "db-one-templa",
            1,
        ),
    ] {
        let report = report_of("StatefulSet", &json!({"replicas": 3}), &pods, &[]);
        let expected = SetRevisions {
            current: current.to_owned(),
            update: "db-new-templa".to_owned(),
            current_pods,
        };
        // workloads 17
        assert_eq!(report.revisions, Some(expected));
    }
    assert_eq!(report_of("DaemonSet", &json!({}), &[], &[]).revisions, None);
}
