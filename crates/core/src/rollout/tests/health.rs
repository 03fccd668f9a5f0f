use super::*;
use crate::status::trouble::Failed;

/// A status of a container that was restarted so often, whose instance before the present one was
/// started then.
fn restarted(restarts: i32, started: i64) -> core::PodStatus {
    let mut status = crashing(restarts);
    let last = status.container_statuses.as_mut().unwrap()[0]
        .last_state
        .as_mut();
    let started = Some(crate::api::meta::Time(at(started)));
    last.unwrap().terminated.as_mut().unwrap().started_at = started;
    status
}

#[test]
fn restarts_of_an_earlier_life_do_not_count() {
    let pod = revision("a").pod;
    for (started, again, fails) in [
        (3, false, false),
        (10, false, true),
        // It may be of the life before, which ended in the same second.
        (10, true, false),
        (12, true, true),
    ] {
        let status = restarted(9, started);
        let life = Life::new(at(10), again).seen(&status, at(1_000));
        for (now, fails) in [(20, fails), (100_000, true)] {
            let seen = Seen {
                status: &status,
                failed_probe: None,
                troubles: &[],
                life: &life,
                counts_from: Timestamp::default(),
                now: at(now),
            };
            let health = assess(&pod, &seen, &Settings::default());
            // rollouts 32
            assert_eq!(matches!(health, Health::Failed(_)), fails, "{health:?}");
        }
    }
    let life = Life::new(at(10), false).seen(&restarted(9, 3), at(1_000));
    for (status, expected) in [(restarted(9, 3), 0), (restarted(11, 12), 2)] {
        let containers = status.container_statuses.clone().unwrap();
        // rollouts 32
        assert_eq!(
            life.clone()
                .seen(&status, at(1_000))
                .restarts(&containers[0]),
            expected
        );
    }
}

/// A version that starts beside another, and is undone and asked for again: each time the agent stops
/// its container and starts it.
#[test]
fn starts_that_the_agent_makes_itself_fail_no_version() {
    let mut story = Story::edited();
    story.strategy = "StartFirst";
    story.edit("b");
    (story.preparation, story.now) = (Preparation::Done, 60);
    let runs = |restarts: i32, started: i64| {
        let mut status = restarted(restarts, started);
        status.container_statuses.as_mut().unwrap()[0].state = None;
        status
    };
    let mut started = story.now;
    for restarts in 0..6 {
        let decision = story.decide_with(Some(&ready(0)), None);
        assert_eq!(decision.change, Some(Change::StartedBeside), "{restarts}");
        let status = (restarts > 0).then(|| runs(restarts, started));
        started = story.now;
        let decision = story.decide_with(Some(&ready(0)), status.as_ref());
        // rollouts 32
        assert_eq!(decision.phase, Phase::Judging, "{restarts}");
        if restarts < 5 {
            let undo = || Command::Undo { to_revision: None };
            story.history.obey(undo()).unwrap();
            story.decide_with(Some(&ready(0)), None);
            assert_eq!(story.history.beside, None);
            story.history.obey(undo()).unwrap();
            story.now += 1;
        }
    }
    // Its deadline passes: nothing is said of restarts, of which there were none.
    story.now += 1000;
    let decision = story.decide_with(Some(&ready(0)), Some(&runs(5, started - 1)));
    let Phase::Restored(cause) = decision.phase else {
        panic!("{:?}", decision.phase)
    };
    // rollouts 32
    assert_eq!(&*cause.message, "it was not ready within 300 s");
}

#[test]
fn restarts_of_this_life_count_from_its_own_first_instance() {
    let mut story = Story::edited();
    story.edit("b");
    (story.preparation, story.now) = (Preparation::Done, 60);
    story.decide(Some(&ready(0)));
    // It ran before the edit of an agent of an older release, and was restarted 5 times.
    story.now = 70;
    story.decide(Some(&restarted(6, 50)));
    for (restarts, fails) in [(7, false), (8, false), (9, true)] {
        story.now += 10;
        let kept = serde_json::to_string(&story.history).unwrap();
        story.history = serde_json::from_str(&kept).unwrap();
        let decision = story.decide(Some(&restarted(restarts, story.now - 5)));
        let cause = match decision.phase {
            Phase::Restored(cause) => Some(cause.message.to_string()),
            _ => None,
        };
        let expected = "container web was restarted 3 times, last with exit code 3 (Error)";
        // rollouts 32
        assert_eq!(cause.as_deref(), fails.then_some(expected), "{restarts}");
    }
}

#[test]
fn a_version_that_crashed_until_its_deadline_says_so() {
    let pod = revision("a").pod;
    let seen = Seen {
        status: &crashing(2),
        failed_probe: None,
        troubles: &[],
        life: &Life::new(at(0), false),
        counts_from: Timestamp::default(),
        now: at(100_000),
    };
    let Health::Failed(cause) = assess(&pod, &seen, &Settings::default()) else {
        panic!("it did not fail")
    };
    assert_eq!(&*cause.reason, "ProgressDeadlineExceeded");
    // rollouts 34
    assert!(
        cause
            .message
            .ends_with(" s: container web was restarted 2 times, last with exit code 3 (Error)"),
        "{}",
        cause.message
    );
    assert_eq!(cause.field.as_deref(), Some("spec.containers[0]"));
}

#[test]
fn what_failed_of_a_container_is_a_part_of_the_cause() {
    let pod = json!({
        "metadata": {"name": "web-box", "namespace": "default", "uid": "a"},
        "spec": {"containers": [{"name": "web", "readinessProbe": {"tcpSocket": {"port": 80}}}]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let trouble = |what, message: &str| Trouble {
        container: "web".into(),
        what,
        at: at(90_000),
        message: message.into(),
    };
    let status = |container: serde_json::Value| -> core::PodStatus {
        let status = json!({"phase": "Running", "containerStatuses": [container]});
        serde_json::from_value(status).unwrap()
    };
    let unready = status(
        json!({"name": "web", "image": "i", "imageID": "", "ready": false,
        "restartCount": 0, "started": true, "state": {"running": {"startedAt": at(80_000).to_string()}}}),
    );
    let crashes = status(
        json!({"name": "web", "image": "i", "imageID": "", "ready": false,
        "restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": at(80_000).to_string()}}}),
    );
    for (status, trouble, expected) in [
        (
            &unready,
            trouble(
                Failed::Probe,
                "Readiness probe failed: HTTP probe failed with statuscode: 503",
            ),
            "the readiness probe of container web has not succeeded: HTTP probe failed with statuscode: 503",
        ),
        (
            &unready,
            trouble(Failed::Probe, "Readiness probe errored: no such host"),
            "the readiness probe of container web has not succeeded: Readiness probe errored: no such host",
        ),
        (
            &crashes,
            trouble(Failed::PostStart, "PostStartHook failed"),
            "container web was restarted 2 times, last with exit code 0 (Completed): its postStart hook failed",
        ),
    ] {
        let seen = Seen {
            status,
            failed_probe: None,
            troubles: &[trouble],
            life: &Life::new(at(0), false),
            counts_from: Timestamp::default(),
            now: at(100_000),
        };
        let Health::Failed(cause) = assess(&pod, &seen, &Settings::default()) else {
            panic!("it did not fail")
        };
        let expected = format!("it was not ready within 300 s: {expected}");
        assert_eq!(&*cause.message, expected);
    }
}

/// The cause of a version that was never ready, for each status.
#[test]
fn a_version_that_is_late_says_what_it_waits_for() {
    let pod = json!({
        "metadata": {"name": "web-box", "namespace": "default", "uid": "a"},
        "spec": {"containers": [
            {"name": "web", "readinessProbe": {"tcpSocket": {"port": 80}}},
            {"name": "slow", "startupProbe": {"tcpSocket": {"port": 81}}, "readinessProbe": {"tcpSocket": {"port": 81}}},
            {"name": "hook", "lifecycle": {"postStart": {"exec": {"command": ["sleep", "9"]}}}},
            {"name": "plain"},
        ]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let container = |name: &str, ready: bool, state: serde_json::Value| json!({"name": name, "image": "i", "imageID": "", "ready": ready, "restartCount": 0, "started": ready, "state": state});
    let runs = || json!({"running": {"startedAt": null}});
    let creating = || json!({"waiting": {"reason": "ContainerCreating"}});
    let good = || container("plain", true, runs());
    for (unready, field, expected) in [
        (
            container("web", false, runs()),
            Some("spec.containers[0].readinessProbe"),
            ": the readiness probe of container web has not succeeded",
        ),
        (
            container("slow", false, runs()),
            Some("spec.containers[1].startupProbe"),
            ": the startup probe of container slow has not succeeded",
        ),
        (
            container("hook", false, creating()),
            Some("spec.containers[2].lifecycle.postStart"),
            ": container hook waits: ContainerCreating; its postStart hook may still be running",
        ),
        (
            container("plain", false, creating()),
            Some("spec.containers[3]"),
            ": container plain waits: ContainerCreating",
        ),
        (good(), None, ""),
    ] {
        let status = json!({"phase": "Running", "containerStatuses": [good(), unready]});
        let status: core::PodStatus = serde_json::from_value(status).unwrap();
        let life = Life::new(at(0), false).seen(&status, at(1_000));
        let seen = Seen {
            status: &status,
            failed_probe: None,
            troubles: &[],
            life: &life,
            counts_from: Timestamp::default(),
            now: at(100_000),
        };
        let Health::Failed(cause) = assess(&pod, &seen, &Settings::default()) else {
            panic!("it did not fail")
        };
        let expected = format!("it was not ready within 300 s{expected}");
        // rollouts 34
        assert_eq!(&*cause.message, expected);
        assert_eq!(cause.field.as_deref(), field);
        // It was ready for a while.
        let life = life.clone().seen(&ready(50), at(1_000));
        let seen = Seen {
            life: &life,
            ..seen
        };
        let Health::Failed(cause) = assess(&pod, &seen, &Settings::default()) else {
            panic!("it did not fail")
        };
        let expected = "within 300 s, it was not ready for 10 s without interruption";
        // rollouts 34
        assert!(cause.message.starts_with(expected), "{}", cause.message);
    }
}
