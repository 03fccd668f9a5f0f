use super::*;
use serde_json::json;

fn report(pods: &[serde_json::Value]) -> StatusReport {
    serde_json::from_value(json!({
        "agent": {"version": "0", "pid": 1, "startedAt": "2026-01-01T00:00:00Z", "nodeName": "box", "root": "/r", "owner": "o"},
        "engine": {"endpoint": "e", "reachable": true},
        "sources": [],
        "pods": pods,
        "problems": [],
    }))
    .unwrap()
}

fn pod(namespace: &str, name: &str, status: &str, more: &serde_json::Value) -> serde_json::Value {
    let mut pod = json!({
        "name": format!("{name}-box"), "manifestName": name, "namespace": namespace,
        "uid": "u", "source": "/m", "status": status, "phase": "Running", "ready": 1,
        "containersTotal": 1, "restarts": 0, "containers": [], "held": false,
    });
    let all = pod.as_object_mut().unwrap();
    all.extend(more.as_object().unwrap().clone());
    pod
}

#[test]
fn a_pod_is_as_wanted_by_the_newest_report() {
    use WaitFor::{Deleted, Healthy, Ready, Stopped};
    let none = &json!({});
    let rolling = &json!({"rollout": {
        "phase": "Judging", "revision": 1, "target": 2, "targetUid": "u2", "newest": 2,
        "reason": "", "message": "",
    }});
    // Typed, what runs, and for which states the wait ends.
    for (typed, pods, met) in [
        ("web", vec![], &[Deleted][..]),
        (
            "web",
            vec![pod("default", "web", "Running", none)],
            &[Ready, Healthy],
        ),
        (
            "web-box",
            vec![pod("default", "web", "Running", none)],
            &[Ready, Healthy],
        ),
        (
            "web",
            vec![pod("default", "web", "Running", &json!({"held": true}))],
            &[Ready],
        ),
        (
            "web",
            vec![pod("default", "web", "Running", rolling)],
            &[Ready],
        ),
        (
            "web",
            vec![pod("default", "web", "Running", &json!({"ready": 0}))],
            &[],
        ),
        // Orders that are not executed yet.
        ("web", vec![pod("default", "web", "Restarting", none)], &[]),
        ("web", vec![pod("default", "web", "Stopping", none)], &[]),
        (
            "web",
            vec![pod("default", "web", "Starting", &json!({"ready": 0}))],
            &[],
        ),
        (
            "web",
            vec![pod("default", "web", "Stopped", &json!({"ready": 0}))],
            &[Stopped],
        ),
        ("web", vec![pod("default", "web", "Terminating", none)], &[]),
        (
            "shop/web",
            vec![pod("default", "web", "Running", none)],
            &[Deleted],
        ),
    ] {
        let report = report(&pods);
        for state in [Ready, Healthy, Stopped, Deleted] {
            let mut awaited = Awaited::new(typed);
            awaited.look(&report, state).unwrap();
            assert_eq!(
                awaited.met,
                met.contains(&state),
                "{typed} {pods:?} {state:?}"
            );
        }
    }
    let several = report(&[
        pod("a", "web", "Running", none),
        pod("b", "web", "Running", none),
    ]);
    let mut awaited = Awaited::new("web");
    assert!(awaited.look(&several, Ready).is_err());
}

#[test]
fn a_condition_that_is_met_is_printed_as_by_kubectl() {
    let pods = [
        pod("default", "web", "Running", &json!({})),
        pod("shop", "db", "Running", &json!({})),
    ];
    for (typed, state, line) in [
        ("web", WaitFor::Ready, "pod/web-box condition met\n"),
        ("default/web", WaitFor::Ready, "pod/web-box condition met\n"),
        (
            "db",
            WaitFor::Ready,
            "pod/db-box condition met in namespace shop\n",
        ),
        (
            "pod/db",
            WaitFor::Ready,
            "pod/db-box condition met in namespace shop\n",
        ),
        // By the name that was typed: it may never have been seen.
        ("web", WaitFor::Deleted, "pod/web condition met\n"),
        (
            "pods/shop/db",
            WaitFor::Deleted,
            "pod/db condition met in namespace shop\n",
        ),
    ] {
        let mut awaited = Awaited::new(typed);
        awaited.look(&report(&pods), state).unwrap();
        assert_eq!(awaited.line(), line, "{typed}");
    }
}
