use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

#[test]
fn a_history_is_a_table() {
    let revision = |number: u64, outcome: &str, more: serde_json::Value| {
        let mut revision = json!({
            "number": number, "uid": format!("u{number}"), "outcome": outcome,
            "wantedAt": at(60 * i64::try_from(number).unwrap()).to_string(),
            "runs": false, "wanted": false,
        });
        let fields = more.as_object().unwrap().clone();
        revision.as_object_mut().unwrap().extend(fields);
        revision
    };
    let report = json!({
        "name": "web-box", "namespace": "default", "paused": true,
        "revisions": [
            revision(1, "Healthy", json!({})),
            revision(2, "Healthy", json!({"runs": true, "changes": ["spec.containers[web].image"]})),
            revision(3, "Ended", json!({"changes": ["metadata.labels.a", "spec.hostNetwork"]})),
            revision(5, "Failed", json!({
                "wanted": true, "reason": "CrashLoopBackOff", "message": "it\ncrashed",
            })),
            revision(6, "Open", json!({})),
        ],
    });
    let report: HistoryReport = serde_json::from_value(report).unwrap();
    insta::assert_snapshot!(anstream::adapter::strip_str(&revisions(&report, at(600))).to_string());
}

#[test]
fn a_history_without_revisions_says_why() {
    let report = HistoryReport {
        name: "Deployment/idle".to_owned(),
        namespace: "shop".to_owned(),
        paused: false,
        revisions: Vec::new(),
    };
    // workloads 27
    assert_eq!(
        revisions(&report, at(0)),
        "Deployment shop/idle has 0 desired pods, and therefore no revisions; set spec.replicas in its manifest to start some\n"
    );
}

/// Makes what is expected of a line.
type Made = fn(String) -> Standing;

#[test]
fn a_rollout_has_an_end() {
    let pod = |rollout: serde_json::Value| {
        let mut report = json!({
            "agent": {
                "version": "1", "pid": 1, "startedAt": at(0).to_string(), "nodeName": "box",
                "root": "/r", "owner": "o",
            },
            "engine": {"endpoint": "", "reachable": true},
            "sources": [], "problems": [],
            "pods": [{
                "name": "web-box", "manifestName": "web", "namespace": "default", "uid": "u1",
                "source": "/m/web.yaml", "status": "Running", "phase": "Running", "ready": 1,
                "containersTotal": 2, "restarts": 0, "containers": [], "held": false,
            }],
        });
        if !rollout.is_null() {
            report["pods"][0]["rollout"] = rollout;
        }
        serde_json::from_value::<StatusReport>(report).unwrap()
    };
    let rollout = |phase: &str| {
        json!({
            "phase": phase, "revision": 4, "target": 5, "targetUid": "u5", "newest": 6,
            "reason": "ErrImagePull", "message": "not found",
        })
    };
    let mut starting = pod(json!(null));
    let words = "the version of the manifest was started, 1 of 2 containers are ready";
    // rollouts 33
    assert_eq!(
        standing(&starting, "default", "web-box"),
        Standing::UnderWay(format!("pod default/web-box: {words}"))
    );
    // Nobody waits for one that is over, or that a user stopped.
    for (phase, status) in [
        ("Failed", "Error"),
        ("Succeeded", "Completed"),
        ("Running", "Stopped"),
    ] {
        (starting.pods[0].phase, starting.pods[0].status) = (phase.to_owned(), status.to_owned());
        let standing = standing(&starting, "default", "web-box");
        assert!(matches!(standing, Standing::Done(_)), "{status}");
    }
    let mut overdue = rollout("Held");
    overdue["overdue"] = json!(true);
    let mut first = rollout("Judging");
    first["target"] = json!(1);
    let mut judged = rollout("Judging");
    (judged["reason"], judged["message"]) = (json!(""), json!(""));
    let cases: [(serde_json::Value, Made, &str); 10] = [
        (
            rollout("Failed"),
            Standing::Failed,
            "revision 5 failed and keeps running: ErrImagePull: not found",
        ),
        (json!(null), Standing::Done, "successfully rolled out"),
        (
            rollout("Preparing"),
            Standing::UnderWay,
            "revision 5 is being prepared, revision 4 runs",
        ),
        (
            rollout("Held"),
            Standing::UnderWay,
            "revision 5 can't be started, revision 4 runs: ErrImagePull: not found",
        ),
        (
            overdue,
            Standing::Failed,
            "revision 5 exceeded its progress deadline, revision 4 runs: ErrImagePull: not found",
        ),
        (
            judged,
            Standing::UnderWay,
            "revision 5 was started, 1 of 2 containers are ready",
        ),
        (
            first,
            Standing::Failed,
            "revision 1 failed, and there is no older one to run instead: ErrImagePull: not found",
        ),
        (
            rollout("Paused"),
            Standing::UnderWay,
            "paused, revision 4 runs; resume with: mirrorlet rollout resume default/web-box",
        ),
        (
            rollout("Restored"),
            Standing::Failed,
            "revision 5 failed, revision 4 runs: ErrImagePull: not found",
        ),
        (
            rollout("Undone"),
            Standing::Done,
            "revision 4 runs, undone from revision 6",
        ),
    ];
    for (told, made, words) in cases {
        let mut report = pod(told);
        if report.pods[0].rollout.is_none() {
            report.pods[0].ready = 2;
        }
        assert_eq!(
            standing(&report, "default", "web-box"),
            made(format!("pod default/web-box: {words}"))
        );
        assert_eq!(standing(&report, "other", "web-box"), Standing::Gone);
    }
}

#[test]
fn a_set_is_followed_until_its_pods_are_ready() {
    for (progress, message, phase, made) in [
        (
            "Scaling",
            "pod db-1-box starts once db-0 is Running and Ready",
            None,
            Standing::UnderWay as Made,
        ),
        (
            "NotReady",
            "pod db-0-box is not Ready",
            None,
            Standing::UnderWay,
        ),
        // Those below the partition wait for ever.
        (
            "Partitioned",
            "pods with an ordinal below 1 keep their version",
            Some("Waiting"),
            Standing::Done,
        ),
    ] {
        let rollout = phase.map(|phase| {
            json!({
                "phase": phase, "revision": 1, "target": 2, "targetUid": "u", "newest": 2,
                "reason": "WaitsForItsTurn", "message": "the partition of its workload is 1",
            })
        });
        let report: StatusReport = serde_json::from_value(json!({
            "agent": {
                "version": "1", "pid": 1, "startedAt": at(0).to_string(), "nodeName": "box",
                "root": "/r", "owner": "o",
            },
            "engine": {"endpoint": "", "reachable": true},
            "sources": [], "problems": [],
            "pods": [{
                "name": "db-0-box", "manifestName": "db-0", "namespace": "default", "uid": "u",
                "workload": "StatefulSet/db", "source": "/m/db.yaml", "status": "Running",
                "phase": "Running", "ready": 1, "containersTotal": 1, "restarts": 0,
                "containers": [], "held": false, "rollout": rollout,
            }],
            "workloads": [{
                "namespace": "default", "owner": "StatefulSet/db", "source": "/m/db.yaml",
                "wanted": 2, "pods": 1, "ready": 1, "updated": 1, "available": 1,
                "progress": progress, "message": message, "conditions": [],
            }],
        }))
        .unwrap();
        // workloads 16
        assert_eq!(
            standing_of_workload(&report, "default", "StatefulSet/db"),
            made(format!("StatefulSet default/db: {message}"))
        );
    }
}

#[test]
fn a_workload_that_wants_no_pods_is_rolled_out_without_any() {
    for (wanted, message, expected) in [
        (
            0,
            "",
            Standing::Done("Deployment default/idle: it has 0 desired pods; set spec.replicas in its manifest to start some".to_owned()),
        ),
        (
            2,
            "",
            Standing::UnderWay("Deployment default/idle: 0 of 2 pods exist".to_owned()),
        ),
        (
            2,
            "its name is taken",
            Standing::UnderWay("Deployment default/idle: its name is taken".to_owned()),
        ),
    ] {
        let report: StatusReport = serde_json::from_value(json!({
            "agent": {
                "version": "1", "pid": 1, "startedAt": at(0).to_string(), "nodeName": "box",
                "root": "/r", "owner": "o",
            },
            "engine": {"endpoint": "", "reachable": true},
            "sources": [], "problems": [], "pods": [],
            "workloads": [{
                "namespace": "default", "owner": "Deployment/idle", "source": "/m/idle.yaml",
                "wanted": wanted, "pods": 0, "ready": 0, "updated": 0, "available": 0,
                "progress": "", "message": message, "conditions": [],
            }],
        }))
        .unwrap();
        let standing = |owner| standing_of_workload(&report, "default", owner);
        // rollouts 33
        assert_eq!(standing("Deployment/idle"), expected);
        assert_eq!(standing("StatefulSet/idle"), Standing::Gone);
    }
}

#[test]
fn pods_that_wait_for_one_that_can_not_be_started_wait_in_vain() {
    let pod = |number: u64, rollout: serde_json::Value| {
        json!({
            "name": format!("web-{number}-box"), "manifestName": format!("web-{number}"),
            "namespace": "default", "uid": format!("u{number}"), "workload": "Deployment/web",
            "source": "/m/web.yaml", "status": "Running", "phase": "Running", "ready": 1,
            "containersTotal": 1, "restarts": 0, "containers": [], "held": false,
            "rollout": rollout,
        })
    };
    let rollout = |phase: &str, overdue: bool| {
        let reason = match phase {
            "Judging" => "",
            _ => "ErrImagePull",
        };
        json!({
            "phase": phase, "revision": 1, "target": 2, "targetUid": "v", "newest": 2,
            "reason": reason, "message": "not found", "overdue": overdue,
        })
    };
    for (overdue, other, ends) in [
        (false, "Waiting", false),
        (true, "Waiting", true),
        (true, "Held", false),
        // Another one is updated at the same time.
        (true, "Judging", false),
    ] {
        let report: StatusReport = serde_json::from_value(json!({
            "agent": {
                "version": "1", "pid": 1, "startedAt": at(0).to_string(), "nodeName": "box",
                "root": "/r", "owner": "o",
            },
            "engine": {"endpoint": "", "reachable": true},
            "sources": [], "problems": [],
            "pods": [pod(0, rollout("Held", overdue)), pod(1, rollout(other, false))],
        }))
        .unwrap();
        let standing = standing_of_workload(&report, "default", "Deployment/web");
        let words = "Deployment default/web: pod default/web-0-box: revision 2 exceeded its progress deadline, revision 1 runs: ErrImagePull: not found";
        let failed = Standing::Failed(words.to_owned());
        // rollouts 33
        assert_eq!(standing == failed, ends, "{overdue} {other}: {standing:?}");
        assert!(
            ends || matches!(standing, Standing::UnderWay(_)),
            "{standing:?}"
        );
    }
}

#[test]
fn an_undo_counts_the_pods_that_went_back() {
    let pod = |rollout: serde_json::Value| -> PodReport {
        serde_json::from_value(json!({
            "name": "web-0-box", "manifestName": "web-0", "namespace": "default", "uid": "u",
            "source": "/m/web.yaml", "status": "Running", "phase": "Running", "ready": 1,
            "containersTotal": 1, "restarts": 0, "containers": [], "held": false,
            "rollout": rollout,
        }))
        .unwrap()
    };
    let undone = |phase: &str, revision: u64| {
        pod(json!({
            "phase": phase, "revision": revision, "target": 5, "targetUid": "u5", "newest": 6,
        }))
    };
    let newest = pod(serde_json::Value::Null);
    let judged = pod(json!({
        "phase": "Judging", "revision": 6, "target": 6, "targetUid": "u6", "newest": 6,
    }));
    for (pods, expected) in [
        (vec![&newest, &newest], 2),
        (vec![&newest, &judged], 2),
        (vec![&undone("Preparing", 6), &undone("Waiting", 6)], 0),
        (vec![&undone("Judging", 5), &undone("Waiting", 6)], 1),
        (vec![&undone("Undone", 5), &undone("Judging", 5)], 2),
        (vec![&undone("Undone", 5), &newest], 1),
    ] {
        assert_eq!(updated(&pods), expected, "{pods:?}");
    }
}

#[test]
fn a_rollout_that_does_not_end_in_time_is_named_with_its_state() {
    let limit = Duration::from_secs(5);
    let held = "pod default/web-box: revision 2 can't be started";
    for (last, words) in [
        (
            held,
            "the rollout of web did not end within 5 s: pod default/web-box: revision 2 can't be started; see mirrorlet explain web",
        ),
        (
            "",
            "the rollout of web did not end within 5 s; see mirrorlet explain web",
        ),
    ] {
        let Failure::Failed(error) = not_in_time("web", limit, last) else {
            panic!("{last}")
        };
        // rollouts 33
        assert_eq!(error.to_string(), words);
    }
}
