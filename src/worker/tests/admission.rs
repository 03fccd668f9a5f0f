//! Admission of pods.

use serde_json::json;

use super::super::*;
use super::bed::{Bed, SWEEP, api, changed, deleted, left_behind, phase_of, pod, runs};
use crate::store::settled::Left;
use mirrorlet_core::api::keys;
use mirrorlet_core::eviction::{Pressure, Pressures};
use mirrorlet_host::telemetry::journal::Kind;
use mirrorlet_runtime::RuntimeError;
use mirrorlet_testing::fake_runtime::FakeRuntime;

pub(super) const A: &str = "aaaa0000-0000-4000-8000-000000000001";
pub(super) const B: &str = "bbbb0000-0000-4000-8000-000000000002";

pub(super) fn node(labels: &[(&str, &str)], cpu: &str) -> AdmitNode {
    let labels = labels
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let allocatable = [("cpu", cpu), ("memory", "1Gi"), ("pods", "10")];
    AdmitNode {
        labels: Some(labels.collect()),
        allocatable: Some(
            allocatable
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v.parse().unwrap()))
                .collect(),
        ),
        pods_max: Some(10),
        ..AdmitNode::default()
    }
}

fn with_port(pod: &Arc<Pod>) -> Arc<Pod> {
    let port =
        json!({"name": "app", "image": "app:1", "ports": [{"containerPort": 80, "hostPort": 80}]});
    changed(pod, json!({"spec": {"containers": [port]}}))
}

pub(super) fn refused(view: Option<&PodView>, reason: &str) -> bool {
    view.is_some_and(|v| {
        v.phase == Phase::Finished
            && phase_of(v) == Some("Failed")
            && v.status.as_ref().unwrap().reason.as_deref() == Some(reason)
    })
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_fails_once_and_for_all() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let a = api(A, json!({"spec": {"nodeSelector": {"disk": "ssd"}}}));
    bed.want(&[&a]);
    bed.until_view(A, |v| refused(v, "NodeAffinity")).await;
    let view = bed.board.get(&A.into()).unwrap();
    let message = view.status.as_ref().unwrap().message.clone().unwrap();
    assert!(message.starts_with("Pod was rejected: "), "{message}");
    assert_eq!(
        view.status.unwrap().qos_class.as_deref(),
        Some("BestEffort")
    );
    // The node becomes what it wanted: too late.
    bed.node_is(node(&[("disk", "ssd")], "2"));
    bed.want(&[&changed(&a, json!({"status": {"phase": "Failed"}}))]);
    tokio::time::sleep(SWEEP).await;
    bed.until_view(A, |v| refused(v, "NodeAffinity")).await;
    // pods 61
    bed.fake.assert_call_counts("sync_pod", 0);
    let story = bed.telemetry.journal.story(&view.full_name);
    let warnings: Vec<_> = story.iter().filter(|e| e.kind == Kind::Warning).collect();
    assert_eq!(warnings.len(), 1);
    assert_eq!(&*warnings[0].reason, "NodeAffinity");
    // Deleted, it waits for its object to go, and leaves nothing.
    bed.want(&[&deleted(&a, 30)]);
    bed.until_view(A, |v| refused(v, "NodeAffinity")).await;
    bed.want(&[]);
    bed.until_view(A, |v| v.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_over_settles_when_nothing_of_it_is_left() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    bed.takes_ends.send_replace(false);
    let settled = bed.settled();
    let selector = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
    let (refused_pod, ran) = (api(A, selector), api(B, json!({})));
    bed.want(&[&refused_pod, &ran]);
    bed.until_view(A, |v| refused(v, "NodeAffinity")).await;
    bed.until_runs(B).await;
    bed.fake.exit_container(&B.into(), "app", 1);
    // Not before its object says so.
    let waited = tokio::time::timeout(SWEEP, settled.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    let failed = json!({"status": {"phase": "Failed"}});
    let over = [&refused_pod, &ran].map(|pod| changed(pod, failed.clone()));
    bed.want(&over.each_ref());
    // What ran keeps its containers, for their logs; its object doesn't show how they ended.
    let mut told = BTreeMap::new();
    while told.len() < 2 {
        told.extend(settled.next().await);
    }
    // node 6i
    assert_eq!(
        told,
        [(A.into(), Left::Nothing), (B.into(), Left::Unreported)].into()
    );
    let waited = tokio::time::timeout(SWEEP, settled.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    bed.want(&[&over[1]]);
    bed.until_view(A, |v| v.is_none()).await;
    assert!(!bed.fake.pod(&B.into()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_runs_already_goes_before_newcomers() {
    let fake = FakeRuntime::new();
    // The newcomer is older, and first by UID.
    let old = changed(
        &with_port(&api(A, json!({}))),
        json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}),
    );
    let running = with_port(&api(B, json!({})));
    left_behind(&fake, &running);
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.want(&[&old, &running]);
    bed.until_view(A, |v| refused(v, "NodePorts")).await;
    tokio::time::sleep(SWEEP).await;
    assert!(runs(&bed.fake, B));
    bed.fake.assert_call_counts("kill_pod", 0);
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_over_take_no_room_from_those_that_start_with_them() {
    let fake = FakeRuntime::new();
    let over = (0..10).map(|n| {
        let uid = format!("cccc0000-0000-4000-8000-00000000000{n}");
        let patch =
            json!({"metadata": {"name": format!("over-{n}")}, "status": {"phase": "Succeeded"}});
        api(&uid, patch)
    });
    let over: Vec<_> = over.collect();
    // The containers of one are still there, for its logs.
    left_behind(&fake, &over[0]);
    fake.exit_container(&PodUid::of(&over[0]), "app", 0);
    let created = json!({"metadata": {"creationTimestamp": "2021-01-01T00:00:00Z"}});
    let (new, running) = (api(A, created.clone()), api(B, created));
    left_behind(&fake, &running);
    let clock = fake.clone();
    let mut bed = Bed::with(fake, Clock::new(move || clock.now()));
    // It takes ten pods.
    bed.node_is(node(&[], "2"));
    let all: Vec<_> = over.iter().chain([&new, &running]).collect();
    bed.want(&all);
    bed.until_runs(A).await;
    // pods 61
    assert!(runs(&bed.fake, B), "what runs was stopped");
}

#[tokio::test(start_paused = true)]
async fn a_manifests_pod_that_was_refused_starts_when_there_is_room() {
    let bed = Bed::start();
    let (first, second) = (with_port(&pod("a")), with_port(&pod("b")));
    bed.want(&[&first, &second]);
    bed.until_runs("a").await;
    bed.until_view("b", |v| refused(v, "NodePorts")).await;
    // A restart of the agent would find the port free: so does this one.
    bed.want(&[&second]);
    bed.until_runs("b").await;
    bed.until_gone("a").await;
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_manifests_pod_that_was_refused_is_asked_for_again_when_it_is_edited() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let (first, second) = (with_port(&pod("a")), with_port(&pod("b")));
    bed.want(&[&first, &second]);
    bed.until_runs("a").await;
    bed.until_view("b", |v| refused(v, "NodePorts")).await;
    // Each edit that is refused says why, also where only the figures are others.
    for (cpu, requested) in [("64", "requested: 64000"), ("32", "requested: 32000")] {
        let resources = json!({"requests": {"cpu": cpu}});
        let app = json!({"name": "app", "image": "app:1", "resources": resources});
        let edited = changed(&second, json!({"spec": {"containers": [app]}}));
        bed.want(&[&first, &edited]);
        let says = |v: &PodView| {
            let message = v.status.as_ref().and_then(|status| status.message.clone());
            message.is_some_and(|message| message.contains(requested))
        };
        // pods 61
        bed.until_view("b", |v| refused(v, "OutOfcpu") && v.is_some_and(says))
            .await;
        let story = bed.telemetry.journal.story(&FullName::of(&second));
        let mut events = story.iter().filter(|entry| &*entry.reason == "OutOfcpu");
        // pods 61
        assert!(events.any(|event| event.message.contains(requested)));
    }
    let ports = json!([{"containerPort": 80, "hostPort": 81}]);
    let app = json!({"name": "app", "image": "app:1", "ports": ports});
    let edited = changed(&second, json!({"spec": {"containers": [app]}}));
    bed.want(&[&first, &edited]);
    // pods 61
    bed.until_runs("b").await;
    assert!(runs(&bed.fake, "a"));
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_refused_pod_that_runs_is_stopped() {
    let fake = FakeRuntime::new();
    let a = api(A, json!({"spec": {"nodeSelector": {"disk": "ssd"}}}));
    left_behind(&fake, &a);
    let clock = fake.clone();
    let mut bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.node_is(node(&[], "2"));
    bed.want(&[&a]);
    bed.until_view(A, |v| refused(v, "NodeAffinity")).await;
    assert!(!runs(&bed.fake, A));
}

#[tokio::test(start_paused = true)]
async fn a_resize_that_is_not_done_takes_room_from_nobody() {
    const C: &str = "cccc0000-0000-4000-8000-000000000003";
    let of = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"spec": {"containers": [{"name": "app", "image": "app:1", "resources": resources}]}})
    };
    let container = json!({
        "name": "app", "image": "app:1", "imageID": "", "containerID": format!("docker://app-{A}"),
        "ready": true, "restartCount": 0, "state": {"running": {}},
    });
    let mut started = container.clone();
    started["resources"] = json!({"requests": {"cpu": "100m"}});
    started["allocatedResources"] = json!({"cpu": "100m"});
    // An API server may not keep what a container was started with.
    for (cpu, status, is_known) in [
        ("1900m", &started, true),
        ("64", &started, true),
        ("1900m", &container, false),
        ("64", &container, false),
    ] {
        let fake = FakeRuntime::new();
        let (b, c) = (api(B, of("500m")), api(C, of("500m")));
        let younger = json!({"metadata": {"creationTimestamp": "2021-01-01T00:00:00Z"}});
        let b = changed(&b, younger);
        let resized = json!({
            "metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"},
            "status": {"phase": "Running", "containerStatuses": [status]},
        });
        let resized = changed(&api(A, of(cpu)), resized);
        left_behind(&fake, &resized);
        left_behind(&fake, &b);
        let mut bed = Bed::on(fake);
        bed.node_is(node(&[], "2"));
        bed.want(&[&resized, &b]);
        bed.until_view(B, |v| v.is_some()).await;
        bed.want(&[&resized, &b, &c]);
        if is_known {
            // pods 61a
            bed.until_runs(C).await;
        } else {
            bed.until_view(C, |v| refused(v, "OutOfcpu")).await;
        }
        // pods 61a
        assert!(runs(&bed.fake, A) && runs(&bed.fake, B), "{cpu} {status}");
        bed.fake.assert_call_counts("kill_pod", 0);
    }
}

/// Also if the agent was restarted after the resize.
#[tokio::test(start_paused = true)]
async fn a_resized_container_restarts_with_the_resources_it_had() {
    let of = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"spec": {"containers": [{"name": "app", "image": "app:1", "resources": resources}]}})
    };
    let (small, large) = (api(A, of("100m")), api(A, of("64")));
    for is_new_agent in [false, true] {
        let fake = FakeRuntime::new();
        let mut resized = Arc::clone(&large);
        if is_new_agent {
            let status = json!({
                "name": "app", "image": "app:1", "imageID": "", "containerID": format!("docker://app-{A}"),
                "ready": true, "restartCount": 0, "state": {"running": {}},
                "resources": {"requests": {"cpu": "100m"}}, "allocatedResources": {"cpu": "100m"},
            });
            let status = json!({"phase": "Running", "containerStatuses": [status]});
            resized = changed(&large, json!({ "status": status }));
            left_behind(&fake, &resized);
        }
        let bed = Bed::on(fake);
        bed.want(&[if is_new_agent { &resized } else { &small }]);
        let is_running = |v: Option<&PodView>| v.and_then(phase_of) == Some("Running");
        bed.until_view(A, is_running).await;
        bed.want(&[&resized]);
        let is_pending = |v: Option<&PodView>| {
            let status = v.and_then(|v| v.status.as_deref());
            let mut conditions = status
                .and_then(|s| s.conditions.as_deref())
                .into_iter()
                .flatten();
            conditions.any(|c| c.type_ == "PodResizePending" && c.status == "True")
        };
        bed.until_view(A, is_pending).await;
        for restarts in 1..3 {
            bed.fake.exit_container(&A.into(), "app", 1);
            bed.until("it has restarted", |fake| {
                let pod = fake.pod(&A.into());
                pod.running_containers()
                    .any(|c| c.restart_count == restarts)
            })
            .await;
            let started = bed.fake.started_as(&A.into()).unwrap();
            let requests = mirrorlet_core::admit::pod_requests(&Pod {
                status: None,
                ..Pod::clone(&started)
            });
            // pods 61b
            assert_eq!(requests["cpu"].milli_ceil(), 100, "{is_new_agent}");
        }
    }
}

/// As after a reboot into less memory: containers are left, and nothing runs.
#[tokio::test(start_paused = true)]
async fn a_resized_pod_that_has_to_start_again_needs_room() {
    let resources = json!({"requests": {"cpu": "64"}});
    let containers = json!([{"name": "app", "image": "app:1", "resources": resources}]);
    let resized = api(A, json!({"spec": {"containers": containers}}));
    for (has_exited, is_sandbox_lost, is_unseen, stays) in [
        (false, false, false, true),
        // The first look at it fails: the list says that it runs.
        (false, false, true, true),
        (true, false, false, true),
        (true, true, false, false),
    ] {
        let fake = FakeRuntime::new();
        left_behind(&fake, &resized);
        if has_exited {
            fake.exit_container(&A.into(), "app", 255);
        }
        if is_sandbox_lost {
            fake.lose_sandbox(&A.into());
        }
        if is_unseen {
            let refused = RuntimeError::Refused {
                status: 500,
                message: "no".to_owned(),
            };
            fake.refuse_next("get_pod_status", 1, refused);
        }
        let mut bed = Bed::on(fake);
        if is_unseen {
            let mut seen = bed.cache.subscribe(&A.into());
            seen.wait_for(|entry| entry.error.is_some()).await.unwrap();
        }
        // Nor does a pressure keep it.
        bed.node_is(node(&[], "2").under(Pressures::from([Pressure::Disk])));
        bed.want(&[&resized]);
        if stays {
            bed.until_runs(A).await;
            tokio::time::sleep(SWEEP).await;
            // pods 61a
            assert!(
                runs(&bed.fake, A),
                "exited: {has_exited}, unseen: {is_unseen}"
            );
            bed.fake.assert_call_counts("kill_pod", 0);
        } else {
            // pods 61a
            bed.until_view(A, |v| refused(v, "OutOfcpu")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_that_runs_is_not_refused() {
    let fake = FakeRuntime::new();
    let select = json!({"spec": {"nodeSelector": {"disk": "ssd"}}});
    let a = changed(&pod("a"), select.clone());
    left_behind(&fake, &a);
    let clock = fake.clone();
    let mut bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.node_is(node(&[], "2"));
    // One that doesn't run is refused for the same.
    bed.want(&[&a, &changed(&pod("b"), select)]);
    bed.until_view("b", |v| refused(v, "NodeAffinity")).await;
    tokio::time::sleep(SWEEP).await;
    assert!(runs(&bed.fake, "a"));
    let story = bed.telemetry.journal.story(&FullName::of(&a));
    assert!(story.iter().any(|entry| {
        &*entry.reason == "NodeAffinity" && entry.message.contains("already running")
    }));
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_makes_others_go() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let of = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        json!({"spec": {"containers": [{"name": "app", "image": "app:1", "resources": resources}]}})
    };
    let (a, b) = (api(A, of("1500m")), api(B, of("500m")));
    bed.want(&[&a, &b]);
    bed.until_runs(A).await;
    bed.until_runs(B).await;
    let critical = changed(&pod("static"), of("1"));
    bed.want(&[&a, &b, &critical]);
    bed.until_runs("static").await;
    // pods 61
    bed.until_view(A, |v| refused(v, "Preempting")).await;
    let view = bed.board.get(&A.into()).unwrap();
    let conditions = view.status.as_ref().unwrap().conditions.clone().unwrap();
    let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget");
    assert_eq!(
        target.unwrap().reason.as_deref(),
        Some("TerminationByKubelet")
    );
    assert!(!runs(&bed.fake, A));
    assert!(runs(&bed.fake, B));
    // Short of something that nobody can give back, it is refused itself.
    let huge = changed(&pod("huge"), of("64"));
    bed.want(&[&a, &b, &critical, &huge]);
    bed.until_view("huge", |v| refused(v, "OutOfcpu")).await;
    assert!(runs(&bed.fake, B));
}

#[tokio::test(start_paused = true)]
async fn pods_that_are_over_take_no_room() {
    let mut bed = Bed::start();
    bed.node_is(AdmitNode {
        pods_max: Some(1),
        ..AdmitNode::default()
    });
    let a = api(A, json!({"spec": {"restartPolicy": "Never"}}));
    let b = api(B, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.fake.exit_container(&A.into(), "app", 0);
    bed.until_view(A, |v| v.is_some_and(|v| v.phase == Phase::Finished))
        .await;
    bed.want(&[&a, &b]);
    bed.until_runs(B).await;
    let third = api("cccc0000-0000-4000-8000-000000000003", json!({}));
    bed.want(&[&a, &b, &third]);
    bed.until_view("cccc0000-0000-4000-8000-000000000003", |v| {
        refused(v, "OutOfpods")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn new_pods_of_a_node_that_another_took_are_left_to_the_other() {
    let mut bed = Bed::start();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.node_is(AdmitNode {
        is_anothers: true,
        ..AdmitNode::default()
    });
    let (b, own) = (api(B, json!({})), pod("own"));
    bed.want(&[&a, &b, &own]);
    bed.until_runs("own").await;
    tokio::time::sleep(SWEEP).await;
    // node 6l
    assert!(!runs(&bed.fake, B) && bed.board.get(&B.into()).is_none());
    assert!(runs(&bed.fake, A), "what runs stays");
    // It is ours again.
    bed.node_is(AdmitNode::default());
    bed.until_runs(B).await;
    bed.fake.assert_started_pods(&[A, "own", B]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_never_runs_by_an_object_of_which_values_are_missing() {
    let bed = Bed::start();
    let limited = json!({"name": "app", "image": "app:1", "securityContext": {"runAsUser": 7}});
    let a = api(A, json!({"spec": {"containers": [limited]}}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let mark = json!({"annotations": {keys::TOO_LARGE: "true"}});
    let bare = json!([{"name": "app", "image": "app:1"}]);
    let cut = changed(&a, json!({"metadata": mark, "spec": {"containers": bare}}));
    bed.want(&[&cut]);
    bed.fake.exit_container(&A.into(), "app", 1);
    bed.until("it is restarted", |fake| {
        let pod = fake.pod(&A.into());
        pod.running_containers().any(|c| c.restart_count == 1)
    })
    .await;
    let view = bed.board.get(&A.into()).unwrap();
    // tenants M8
    assert_eq!(view.pod.as_deref(), Some(&*a));
    // Its deletion counts all the same.
    bed.want(&[&deleted(&cut, 15)]);
    bed.until_gone(A).await;
    // An agent that finds it running, and knows nothing else of it, ends it.
    let fake = FakeRuntime::new();
    left_behind(&fake, &a);
    let bed = Bed::on(fake);
    bed.want(&[&cut]);
    bed.until_view(A, |v| refused(v, "PodTooLarge")).await;
    // tenants M8
    bed.fake.assert_started_containers(&[]);
}
