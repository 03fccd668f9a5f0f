use crate::api::keys;

use super::*;

/// A story under `StartFirst` whose first revision, `a`, is healthy, and whose file says `b` now.
fn edited() -> Story {
    let mut story = Story::edited();
    story.strategy = "StartFirst";
    story.edit("b");
    story
}

fn runs_beside(decision: &Decision, story: &Story) -> Option<String> {
    let beside = decision.beside(&story.wanted)?;
    let annotations = beside.pod.metadata.annotations.as_ref().unwrap();
    assert_eq!(annotations.get(keys::BESIDE).unwrap(), "true");
    Some(beside.uid().to_string())
}

/// `edited`, with `b` beside `a`.
fn started() -> Story {
    let mut story = edited();
    assert_eq!(story.decide(Some(&ready(0))).phase, Phase::Preparing);
    story.preparation = Preparation::Done;
    let decision = story.decide(Some(&ready(0)));
    assert_eq!(decision.change, Some(Change::StartedBeside));
    assert_eq!(runs_beside(&decision, &story).as_deref(), Some("b"));
    story
}

#[test]
fn the_new_revision_is_judged_beside_the_old_one_and_takes_its_place() {
    let mut story = started();
    story.now += 5;
    let decision = story.decide_with(Some(&ready(0)), Some(&ready(22)));
    assert_eq!(
        (decision.phase.clone(), decision.change),
        (Phase::Judging, None)
    );
    assert_eq!(decision.look_again, Some(Duration::from_secs(8)));
    assert_eq!(decision.pod(&story.wanted).uid(), "a".into());
    let report = decision.pod(&story.wanted).rollout.unwrap();
    assert_eq!((report.revision, report.target), (1, 2));
    assert_eq!(
        report.since,
        Some(at(20)),
        "when it was started, not its predecessor"
    );
    story.now += 10;
    let decision = story.decide_with(Some(&ready(0)), Some(&ready(22)));
    assert_eq!(decision.change, Some(Change::HandedOver));
    assert_eq!(decision.phase, Phase::Settled);
    assert_eq!(story.runs(), "b");
    assert_eq!(decision.beside(&story.wanted), None);
    let newest = story.history.get(&"b".into()).unwrap();
    assert_eq!(newest.outcome, Outcome::Healthy);
    // Nothing is judged again in its new place.
    assert_eq!(story.decide(Some(&crashing(9))).phase, Phase::Settled);
}

#[test]
fn a_revision_that_fails_beside_the_old_one_is_stopped_and_not_tried_again() {
    for failing in [crashing(3), refused("RunContainerError")] {
        let mut story = started();
        let decision = story.decide_with(Some(&ready(0)), Some(&failing));
        // rollouts S2
        assert_eq!(decision.change, Some(Change::Restored));
        assert!(matches!(decision.phase, Phase::Restored(_)));
        assert_eq!(decision.beside(&story.wanted), None);
        assert_eq!(story.runs(), "a");
        let again = story.decide(Some(&ready(0)));
        assert_eq!((again.change, again.beside(&story.wanted)), (None, None));
        assert!(matches!(again.phase, Phase::Restored(_)));
    }
    let mut story = started();
    story.now += 301;
    let decision = story.decide_with(Some(&ready(0)), Some(&crashing(0)));
    let Phase::Restored(cause) = decision.phase else {
        panic!("{:?}", decision.phase);
    };
    assert_eq!(&*cause.reason, "ProgressDeadlineExceeded");
}

#[test]
fn a_revision_that_the_node_refuses_beside_the_old_one_is_held_and_goes_on_by_itself() {
    let mut story = started();
    story.now += 1;
    let decision = story.decide_with(Some(&ready(0)), Some(&rejected()));
    let Phase::Held(cause) = &decision.phase else {
        panic!("{:?}", decision.phase);
    };
    assert_eq!(&*cause.reason, "NodePorts");
    assert_eq!((decision.change, story.runs().as_str()), (None, "a"));
    // Its worker starts it as soon as it can.
    assert_eq!(runs_beside(&decision, &story).as_deref(), Some("b"));
    assert!(decision.look_again.is_some());
    assert!(decision.pod(&story.wanted).held);
    story.now += 3_600;
    let decision = story.decide_with(Some(&ready(0)), Some(&rejected()));
    assert!(matches!(decision.phase, Phase::Held(_)), "never failed");
    // There is room: it has its whole time.
    story.counts_from = story.now;
    story.now += 200;
    let decision = story.decide_with(Some(&ready(0)), Some(&crashing(0)));
    assert_eq!(decision.phase, Phase::Judging);
    let since = story.now - 20;
    story.decide_with(Some(&ready(0)), Some(&ready(since)));
    // rollouts S2a
    assert_eq!(story.runs(), "b");
}

#[test]
fn a_hand_over_that_keeps_failing_ends_by_the_deadline() {
    // `b` was started at 20, and has 300 s. Since when it is ready, the present time, and whether that
    // is the end.
    for (ready_at, now, ends) in [
        (Some(22), 33, false),
        (Some(22), 321, false),
        (Some(22), 322, true),
        (Some(200), 322, false),
        (Some(200), 500, true),
        // The clock was set back: it has its time from now on.
        (Some(22), 10, false),
        (Some(5000), 320, true),
        (None, 319, false),
        (None, 320, true),
    ] {
        let mut story = started();
        let status = ready_at.map(ready);
        let retry = Duration::from_secs(5);
        let decision = not_handed_over(&story.history, status.as_ref(), "no", at(now), retry);
        let uid = PodUid::from("b");
        let (current, _) = decision.history.current.clone().unwrap();
        assert_eq!(current, "a".into());
        if ends {
            let cause = Cause::new("HandOverFailed", "no; retries ended after 300 s");
            // rollouts S14
            assert_eq!(decision.phase, Phase::Restored(cause.clone()), "{now}");
            assert_eq!(decision.change, Some(Change::Restored));
            assert_eq!(decision.beside(&story.wanted), None);
            let outcome = &decision.history.get(&uid).unwrap().outcome;
            assert_eq!(*outcome, Outcome::Failed(cause));
        } else {
            // rollouts S14
            assert_eq!(decision.phase, Phase::Judging, "{now}");
            assert_eq!((decision.change, decision.look_again), (None, Some(retry)));
            assert!(decision.beside(&story.wanted).is_some());
        }
        // The next decision keeps to it.
        story.history = decision.history;
        story.now = now;
        let next = story.decide_with(Some(&ready(0)), None);
        assert_eq!(matches!(next.phase, Phase::Restored(_)), ends);
        assert_eq!(story.runs(), "a");
    }
}

/// Revision `c` runs beside `b`, which took the place of `a` and was not judged before the edit to `c`.
#[test]
fn when_both_fail_the_last_healthy_revision_runs() {
    let mut story = Story::edited();
    story.preparation = Preparation::Done;
    assert_eq!(story.decide(Some(&ready(0))).change, Some(Change::Switched));
    story.strategy = "StartFirst";
    story.edit("c");
    story.preparation = Preparation::Done;
    let decision = story.decide(Some(&crashing(2)));
    assert_eq!(decision.change, Some(Change::StartedBeside));
    let decision = story.decide_with(Some(&crashing(3)), Some(&crashing(2)));
    assert_eq!(decision.change, None, "`c` may be better");
    let decision = story.decide_with(Some(&crashing(3)), Some(&crashing(3)));
    assert_eq!(decision.change, Some(Change::Restored));
    assert_eq!(decision.look_again, Some(Duration::ZERO));
    assert_eq!(story.runs(), "b");
    let decision = story.decide(Some(&crashing(3)));
    // rollouts 13
    assert_eq!(decision.change, Some(Change::FellBack));
    assert!(matches!(decision.phase, Phase::Restored(_)));
    assert_eq!(story.runs(), "a");
    assert_eq!(story.decide(Some(&ready(30))).change, None);
}

#[test]
fn the_newest_edit_ends_what_runs_beside() {
    let mut story = started();
    story.edit("c");
    let decision = story.decide_with(Some(&ready(0)), None);
    assert_eq!(decision.phase, Phase::Preparing);
    assert_eq!(decision.beside(&story.wanted), None);
    // The old text put back changes nothing about what runs.
    let mut story = started();
    story.edit("a");
    let decision = story.decide_with(Some(&ready(0)), None);
    assert_eq!(
        (decision.phase.clone(), decision.change),
        (Phase::Settled, None)
    );
    assert_eq!(decision.beside(&story.wanted), None);
    assert_eq!(story.runs(), "a");
}

#[test]
fn without_a_pod_to_run_beside_a_revision_takes_the_place_at_once() {
    let mut story = edited();
    (story.runs, story.preparation) = (false, Preparation::Done);
    let decision = story.decide(Some(&crashing(9)));
    assert_eq!(decision.change, Some(Change::Switched));
    assert_eq!(story.runs(), "b");
}

#[test]
fn what_two_revisions_may_not_share_is_refused_by_name() {
    let pod = |spec: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap()
    };
    let mounts = |path: &str, read_only: bool| {
        pod(json!({
            "volumes": [{"name": "data", "hostPath": {"path": path}}],
            "containers": [{"name": "c", "volumeMounts": [
                {"name": "data", "mountPath": "/d", "readOnly": read_only}]}],
        }))
    };
    let ports =
        |port: serde_json::Value| pod(json!({"containers": [{"name": "c", "ports": [port]}]}));
    let claim_of = |source: serde_json::Value| {
        pod(json!({
            "volumes": [{"name": "db", "persistentVolumeClaim": source}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "db", "mountPath": "/d"}]}],
        }))
    };
    let claim = claim_of(json!({"claimName": "db"}));
    let reader = claim_of(json!({"claimName": "db", "readOnly": true}));
    let device_of = |source: serde_json::Value| {
        pod(json!({
            "volumes": [{"name": "db", "persistentVolumeClaim": source}],
            "containers": [{"name": "c", "volumeDevices": [{"name": "db", "devicePath": "/d"}]}],
        }))
    };
    let device = device_of(json!({"claimName": "db"}));
    let device_reader = device_of(json!({"claimName": "db", "readOnly": true}));
    let web = ports(json!({"containerPort": 80, "hostPort": 80}));
    let table = [
        (&web, &web, None),
        (&mounts("/srv/a", true), &mounts("/srv/a", true), None),
        (&mounts("/srv/a", false), &mounts("/srv/b", false), None),
        (
            &mounts("/srv/a", false),
            &mounts("/srv/a/b", true),
            Some("data"),
        ),
        (
            &mounts("/srv/a", true),
            &mounts("/srv", false),
            Some("data"),
        ),
        (&claim, &claim, Some("db")),
        (&reader, &reader, None),
        (&claim, &reader, Some("db")),
        (&claim, &claim_of(json!({"claimName": "other"})), None),
        (&device, &device, Some("db")),
        (&device_reader, &device, Some("db")),
        (&device_reader, &device_reader, None),
        (
            &web,
            &ports(json!({"containerPort": 9, "hostPort": 9, "protocol": "SCTP"})),
            Some("9/SCTP"),
        ),
        (
            &web,
            &ports(json!({"containerPort": 80, "hostPort": 80, "hostIP": "::1"})),
            Some("80/TCP"),
        ),
        (
            &web,
            &pod(
                json!({"hostNetwork": true, "containers": [{"name": "c", "ports": [{"containerPort": 80}]}]}),
            ),
            Some("port 80"),
        ),
        (
            &web,
            &pod(json!({"hostNetwork": true, "containers": [{"name": "c"}]})),
            None,
        ),
    ];
    for (running, revision, named) in table {
        let refused = beside_refused(running, revision, &Settings::default());
        let message = refused.map(|cause| cause.message.to_string());
        match named {
            None => assert_eq!(message, None),
            Some(named) => assert!(
                message.as_ref().is_some_and(|m| m.contains(named)),
                "{message:?}"
            ),
        }
    }
    let shared = Settings {
        share_volumes: true,
        ..Settings::default()
    };
    // rollouts S4
    assert_eq!(beside_refused(&claim, &claim, &shared), None);
}

proptest! {
    #[test]
    fn only_a_healthy_revision_takes_the_place_of_one_that_runs(
        events in prop::collection::vec((event(), 0u8..5), 0..60)
    ) {
        let mut story = Story::new("0");
        story.strategy = "StartFirst";
        story.edit("0");
        let mut beside = None;
        let mut status = None;
        for (event, other) in events {
            story.takes(event, &mut status);
            if story.history.beside.is_some() {
                story.takes(Event::Status(other), &mut beside);
            } else {
                beside = None;
            }
            let before = story.history.clone();
            let decision = story.decide_with(status.as_ref(), beside.as_ref());
            let (current, _) = story.history.current.clone().unwrap();
            if let Some((old, _)) = &before.current && *old != current && story.runs {
                let outcome = &story.history.get(&current).unwrap().outcome;
                let restored = decision.change == Some(Change::Restored);
                // rollouts S3
                prop_assert!(restored || *outcome == Outcome::Healthy, "{:?}", outcome);
            }
            // At most two, and they differ.
            if let Some((uid, _)) = &story.history.beside {
                prop_assert!(*uid != current && *uid == story.wanted.uid());
            }
        }
    }
}
