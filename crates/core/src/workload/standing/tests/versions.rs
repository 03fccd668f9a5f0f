//! Versions that are of one manifest and differ by the objects that are a part of them.

use std::sync::Arc;

use super::*;
use crate::api::Timestamp;
use crate::objects::Object;
use crate::version::with_config;

/// A pod that has a `ConfigMap` with that colour as a part of its version.
fn of_colour(colour: &str) -> SourcePod {
    let pod = json!({
        "metadata": {
            "name": "db-0-box", "namespace": "default", "uid": "0new",
            "annotations": {"mirrorlet.dev/restart-on": "config"},
        },
        "spec": {"containers": [{"name": "c", "envFrom": [{"configMapRef": {"name": "a"}}]}]},
    });
    let pod = SourcePod::new(
        Arc::new(serde_json::from_value(pod).unwrap()),
        Origin::whole(PodSource::File, "/m/db.yaml"),
    );
    let map = json!({"metadata": {"name": "a"}, "data": {"COLOUR": colour}});
    let map = Object::ConfigMap(Arc::new(serde_json::from_value(map).unwrap()));
    with_config(&pod, "s", |_| Some(map.clone()), true, |_| None).unwrap()
}

#[test]
fn a_pod_with_old_objects_is_not_updated() {
    let (old, new) = (of_colour("red"), of_colour("blue"));
    assert_eq!(old.manifest_uid(), new.manifest_uid());
    let mut history = History::default();
    history.take_newest(&old, Timestamp::UNIX_EPOCH);
    let report = pod(0, "new", "new", None, true).report;
    let is_old = |runs, history: &History| Member::of(&report, runs, Some(history)).config_is_old;
    assert!(!is_old(&old, &history));
    history.take_newest(&new, Timestamp::UNIX_EPOCH);
    // workloads 15b
    assert!(is_old(&old, &history));
    assert!(!is_old(&new, &history));
    let member = Member::of(&report, &old, Some(&history));
    assert_eq!(member.runs, PodUid::from("0new"));
    assert_eq!(member.newest, Some(PodUid::from("0new")));
    assert!(!Member::of(&report, &old, None).config_is_old);
}

#[test]
fn a_rollout_of_objects_counts_as_one_of_the_document() {
    use RolloutPhase::{Judging, Preparing, Restored, Waiting};
    let with = |number, phase: Option<RolloutPhase>, config_is_old| {
        let mut pod = pod(number, "new", "new", phase, true);
        pod.config_is_old = config_is_old;
        pod
    };
    for (pods, updated, deployment, set) in [
        (
            [with(0, Some(Preparing), true), with(1, Some(Waiting), true)],
            0,
            "ReplicaSetUpdated",
            "Updating",
        ),
        (
            [with(0, Some(Judging), false), with(1, Some(Waiting), true)],
            1,
            "ReplicaSetUpdated",
            "Updating",
        ),
        (
            [with(0, Some(Restored), true), with(1, Some(Restored), true)],
            0,
            "ProgressDeadlineExceeded",
            "Failed",
        ),
        (
            [with(0, None, false), with(1, None, false)],
            2,
            "NewReplicaSetAvailable",
            "Complete",
        ),
    ] {
        for (kind, progress) in [("Deployment", deployment), ("StatefulSet", set)] {
            let report = report_of(kind, &json!({"replicas": 2}), &pods, &[]);
            let told = (report.updated, &*report.progress);
            // workloads 15b
            assert_eq!(told, (updated, progress), "{kind}");
        }
    }
}
