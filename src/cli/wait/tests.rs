use super::*;
use serde_json::{Value, json};

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

/// What is awaited, after one look.
fn looked(typed: &str, report: &StatusReport, state: WaitFor) -> Awaited {
    let mut awaited = Awaited::new(typed);
    awaited.look(report, state).unwrap();
    awaited
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
            let awaited = looked(typed, &report, state);
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
fn nothing_is_deleted_before_all_is_known() {
    use WaitFor::Deleted;
    let known = json!({"endpoint": "e", "reachable": true});
    let away = json!({"endpoint": "e", "reachable": false});
    let unlisted = json!({"endpoint": "e", "reachable": true, "unlisted": true});
    let source = |kind: &str, synced: bool| {
        let location = if kind == "api" { "api server" } else { "/m" };
        json!({"kind": kind, "location": location, "synced": synced, "pods": 0})
    };
    let (read, unread) = (source("file", true), source("http", false));
    let [api, silent] = [true, false].map(|synced| source("api", synced));
    let full = |engine: &Value, sources: &[&Value], pods: &[Value]| -> StatusReport {
        let mut full = serde_json::to_value(report(pods)).unwrap();
        full["engine"] = engine.clone();
        full["sources"] = json!(sources);
        serde_json::from_value(full).unwrap()
    };
    // By whether the API server had the pod.
    for (engine, sources, [met, met_of_api]) in [
        (&known, &[&read, &api][..], [true, true]),
        (&known, &[], [true, true]),
        (&known, &[&read, &silent], [true, false]),
        (&known, &[&read, &unread], [false, false]),
        (&away, &[&read], [false, false]),
        (&unlisted, &[&read], [false, false]),
    ] {
        let absent = full(engine, sources, &[]);
        for typed in ["web", "deployment/web", "job/web"] {
            let awaited = looked(typed, &absent, Deleted);
            // box 13
            assert_eq!(awaited.met, met, "{typed} {absent:?}");
        }
        for (from, met) in [("/m", met), ("api server", met_of_api)] {
            let there = [pod("default", "web", "Running", &json!({"source": from}))];
            let mut seen = looked("web", &full(&known, &[&read, &api], &there), Deleted);
            assert!(!seen.met);
            seen.look(&absent, Deleted).unwrap();
            // box 13
            assert_eq!(seen.met, met, "{from} {absent:?}");
        }
    }
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

/// A report of a Deployment `web` of two pods, and of a Job `backup`.
fn workloads(pods: &[serde_json::Value], condition: &str) -> StatusReport {
    let report = report(pods);
    let mut report = serde_json::to_value(report).unwrap();
    report["workloads"] = json!([{
        "namespace": "default", "owner": "Deployment/web", "source": "/m", "wanted": 2,
        "ready": 0, "updated": 0, "available": 0, "conditions": [],
    }]);
    report["jobs"] = json!([{
        "namespace": "default", "name": "backup", "source": "/m", "active": 0, "succeeded": 0,
        "failed": 0, "condition": condition, "reason": "BackoffLimitExceeded", "message": "no",
    }]);
    serde_json::from_value(report).unwrap()
}

#[test]
fn a_workload_has_the_state_that_all_its_pods_have() {
    use WaitFor::{Complete, Deleted, Healthy, Ready, Stopped};
    let of = |name: &str, status: &str, ready: u32| {
        let more = json!({"workload": "Deployment/web", "ready": ready});
        pod("default", name, status, &more)
    };
    let [first, second] = ["web-0", "web-1"].map(|name| of(name, "Running", 1));
    // No source has it so far: the workload has fewer pods than it had.
    let mut adopted = of("web-2", "Unknown", 0);
    adopted["source"] = json!("");
    let all = [first.clone(), second.clone(), adopted.clone()].to_vec();
    let stopped = ["web-0", "web-1"].map(|name| of(name, "Stopped", 0));
    for (pods, met) in [
        (all, &[Ready, Healthy][..]),
        (vec![first.clone(), adopted.clone()], &[]),
        ([&stopped[..], &[adopted.clone()]].concat(), &[Stopped]),
        (vec![], &[]),
        (vec![first.clone()], &[]),
        (vec![first.clone(), of("web-1", "Running", 0)], &[]),
        (vec![first.clone(), second.clone()], &[Ready, Healthy]),
        (vec![first, second, of("web-1", "Terminating", 0)], &[]),
        (stopped.to_vec(), &[Stopped]),
    ] {
        let report = workloads(&pods, "Running");
        for typed in [
            "deployment/web",
            "deploy/web",
            "deploy/default/web",
            "web",
            "default/web",
        ] {
            for state in [Ready, Healthy, Stopped, Deleted] {
                let awaited = looked(typed, &report, state);
                // box 13
                assert_eq!(
                    awaited.met,
                    met.contains(&state),
                    "{typed} {pods:?} {state:?}"
                );
                assert_eq!(awaited.line(), "deployment/web condition met\n");
            }
        }
    }
    let mut seen = looked("web", &workloads(&[], "Running"), Deleted);
    assert!(!seen.met);
    seen.look(&report(&[]), Deleted).unwrap();
    assert!(seen.met);
    assert_eq!(seen.line(), "deployment/web condition met\n");
    assert!(!looked("deployment/web", &report(&[adopted]), Deleted).met);
    let mut gone = Awaited::new("sts/web");
    gone.look(&report(&[]), Deleted).unwrap();
    assert!(gone.met);
    assert!(
        Awaited::new("deployment/web")
            .look(&report(&[]), Complete)
            .is_err()
    );
}

#[test]
fn a_job_completes_or_fails() {
    let look = |typed: &str, condition: &str, state| {
        let mut awaited = Awaited::new(typed);
        let looked = awaited.look(&workloads(&[], condition), state);
        looked
            .map(|()| awaited.met)
            .map_err(|failure| match failure {
                Failure::Failed(error) | Failure::Usage(error) => error.to_string(),
                other => format!("{other:?}"),
            })
    };
    let complete = WaitFor::Complete;
    assert_eq!(look("job/backup", "Running", complete), Ok(false));
    assert_eq!(look("job/backup", "Complete", complete), Ok(true));
    assert_eq!(
        look("job/default/backup", "Complete", WaitFor::Deleted),
        Ok(false)
    );
    assert_eq!(look("job/other", "Complete", complete), Ok(false));
    assert_eq!(look("backup", "Complete", complete), Ok(true));
    assert_eq!(look("shop/backup", "Complete", complete), Ok(false));
    for (typed, state, words) in [
        (
            "job/backup",
            complete,
            "job default/backup has failed: BackoffLimitExceeded: no",
        ),
        (
            "job/backup",
            WaitFor::Ready,
            "for a Job, use --for=complete or --for=deleted",
        ),
        (
            "backup",
            complete,
            "job default/backup has failed: BackoffLimitExceeded: no",
        ),
        (
            "cronjob/backup",
            complete,
            "a CronJob reaches no state; wait for one of its Jobs: mirrorlet wait job/NAME --for=complete",
        ),
        (
            "service/web",
            WaitFor::Deleted,
            "can't wait for service/web; wait takes pods, workloads (deployment/NAME) and Jobs (job/NAME)",
        ),
    ] {
        assert_eq!(
            look(typed, "Failed", state),
            Err(words.to_owned()),
            "{typed}"
        );
    }
}

#[test]
fn jobs_of_several_namespaces_complete_or_one_fails() {
    let both = |typed: &str, conditions: [&str; 2]| {
        let mut report = serde_json::to_value(workloads(&[], conditions[0])).unwrap();
        let mut second = report["jobs"][0].clone();
        second["namespace"] = json!("shop");
        second["condition"] = json!(conditions[1]);
        report["jobs"].as_array_mut().unwrap().push(second);
        let report: StatusReport = serde_json::from_value(report).unwrap();
        let mut awaited = Awaited::new(typed);
        let looked = awaited.look(&report, WaitFor::Complete);
        looked
            .map(|()| awaited.met)
            .map_err(|error| format!("{error:?}"))
    };
    for typed in ["job/backup", "backup"] {
        assert_eq!(both(typed, ["Complete", "Running"]), Ok(false), "{typed}");
        assert_eq!(both(typed, ["Running", "Complete"]), Ok(false), "{typed}");
        assert_eq!(both(typed, ["Complete", "Complete"]), Ok(true), "{typed}");
        let failed = both(typed, ["Complete", "Failed"]).unwrap_err();
        assert!(failed.contains("job shop/backup has failed"), "{failed}");
    }
    let named = both("job/default/backup", ["Complete", "Failed"]);
    assert_eq!(named, Ok(true));
}

#[test]
fn a_bare_name_of_several_workloads_is_refused_with_their_kinds() {
    let mut report = serde_json::to_value(workloads(&[], "Running")).unwrap();
    report["jobs"][0]["name"] = json!("web");
    let report: StatusReport = serde_json::from_value(report).unwrap();
    let error = Awaited::new("web").look(&report, WaitFor::Ready);
    let Err(error) = error else {
        panic!("it chose one")
    };
    let error = format!("{error:?}");
    assert!(
        error.contains("deployment/web") && error.contains("job/web"),
        "{error}"
    );
}

#[test]
fn a_wait_in_vain_names_what_it_was_for() {
    for (state, wanted) in [
        (WaitFor::Ready, "be ready"),
        (WaitFor::Healthy, "be healthy"),
        (WaitFor::Stopped, "be stopped"),
        (WaitFor::Complete, "complete"),
        (WaitFor::Deleted, "be deleted"),
    ] {
        let waiting: VecDeque<Awaited> = ["web", "job/backup"].map(Awaited::new).into();
        let ended = not_in_time(Duration::from_millis(300), state, &waiting);
        let Err(Failure::Failed(error)) = ended else {
            panic!("{state:?}")
        };
        let words = format!(
            "timed out after 0.3 s waiting for pod/web, job/backup to {wanted}; see mirrorlet status"
        );
        // box 13
        assert_eq!(error.to_string(), words);
    }
}
