//! Tests of the probe workers' decisions.

use proptest::prelude::*;

use super::*;
use crate::api::{ContainerId, Timestamp};
use crate::observed::{ContainerHash, ContainerState, ContainerStatus, Role};

/// The present in every test, in seconds.
const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn spec() -> ProbeSpec {
    ProbeSpec::of(&Probe::default())
}

/// An instance of a container that has run for a minute, unless it has not been started.
fn instance(id: &str, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        by_hand: None,
        id: ContainerId::docker(id),
        name: "web".into(),
        role: Role::App,
        state,
        created_at: at(-61),
        started_at: (state != ContainerState::Created).then(|| at(-60)),
        finished_at: (state == ContainerState::Exited).then(|| at(-1)),
        exit_code: (state == ContainerState::Exited).then_some(1),
        image: "web:1".into(),
        image_id: "".into(),
        hash: ContainerHash(1),
        restart_count: 0,
        pod_restarts: 0,
        reason: "".into(),
        message: "".into(),
    }
}

/// The observation of a healthy container that restarts.
fn seen(instance: Option<&ContainerStatus>) -> Observation<'_> {
    Observation {
        instance,
        has_started: true,
        terminating: false,
        over: false,
        restarts: true,
        kept: None,
    }
}

/// A worker that has taken up instance `a`.
fn on_a() -> ProbeState {
    let a = instance("a", ContainerState::Running);
    decide(
        ProbeState::default(),
        ProbeKind::Liveness,
        &spec(),
        &seen(Some(&a)),
        at(0),
    )
    .0
}

fn look(state: &ProbeState, kind: ProbeKind, seen: &Observation<'_>) -> Decision {
    decide(state.clone(), kind, &spec(), seen, at(0)).1
}

#[test]
fn numbers_left_out_have_the_apis_defaults() {
    let usual = ProbeSpec {
        initial_delay: Duration::ZERO,
        timeout: Duration::from_secs(1),
        period: Duration::from_secs(10),
        success_threshold: 1,
        failure_threshold: 3,
    };
    assert_eq!(spec(), usual);
    let given = Probe {
        initial_delay_seconds: Some(5),
        timeout_seconds: Some(2),
        period_seconds: Some(1),
        success_threshold: Some(4),
        failure_threshold: Some(6),
        ..Probe::default()
    };
    let expected = ProbeSpec {
        initial_delay: Duration::from_secs(5),
        timeout: Duration::from_secs(2),
        period: Duration::from_secs(1),
        success_threshold: 4,
        failure_threshold: 6,
    };
    assert_eq!(ProbeSpec::of(&given), expected);
}

#[test]
fn a_new_instance_begins_with_what_its_kind_assumes() {
    let a = instance("a", ContainerState::Running);
    for (kind, initial) in [
        (ProbeKind::Liveness, ProbeResult::Success),
        (ProbeKind::Readiness, ProbeResult::Failure),
        (ProbeKind::Startup, ProbeResult::Unknown),
    ] {
        let began = look(&ProbeState::default(), kind, &seen(Some(&a)));
        assert_eq!(began.publish, Some(initial), "{kind}");
        assert_eq!(began.forget, None);
        let kept = Observation {
            kept: Some(ProbeResult::Success),
            ..seen(Some(&a))
        };
        let goes_on = look(&ProbeState::default(), kind, &kept);
        assert_eq!(goes_on.publish, Some(ProbeResult::Success), "{kind}");
    }
}

#[test]
fn another_instance_replaces_the_one_before() {
    let b = instance("b", ContainerState::Running);
    let (state, replaced) = decide(
        on_a(),
        ProbeKind::Readiness,
        &spec(),
        &seen(Some(&b)),
        at(0),
    );
    assert_eq!(replaced.forget, Some(ContainerId::docker("a")));
    assert_eq!(replaced.publish, Some(ProbeResult::Failure));
    assert_eq!(state.id, Some(ContainerId::docker("b")));
}

#[test]
fn when_to_probe() {
    use Action::{End, Probe, Rest, Wait};
    use ProbeKind::{Liveness, Readiness, Startup};
    let created = instance("a", ContainerState::Created);
    let running = instance("a", ContainerState::Running);
    let exited = instance("a", ContainerState::Exited);
    let unknown = instance("a", ContainerState::Unknown);
    let up = seen(Some(&running));
    let down = seen(Some(&exited));
    let success = Some(ProbeResult::Success);
    let failure = Some(ProbeResult::Failure);
    for (what, kind, seen, action, publish) in [
        ("nothing is there yet", Liveness, seen(None), Wait, None),
        (
            "it is not started yet",
            Liveness,
            seen(Some(&created)),
            Wait,
            None,
        ),
        (
            "nobody can tell",
            Liveness,
            seen(Some(&unknown)),
            Wait,
            None,
        ),
        ("it runs", Liveness, up, Probe, None),
        ("it runs", Readiness, up, Probe, None),
        ("it has started", Startup, up, Wait, None),
        (
            "it has not started",
            Startup,
            Observation {
                has_started: false,
                ..up
            },
            Probe,
            None,
        ),
        (
            "startup holds the others",
            Liveness,
            Observation {
                has_started: false,
                ..up
            },
            Wait,
            None,
        ),
        ("it ended, and comes back", Readiness, down, Wait, failure),
        (
            "it ended for good",
            Readiness,
            Observation {
                restarts: false,
                ..down
            },
            Rest,
            failure,
        ),
        (
            "the pod is being stopped",
            Liveness,
            Observation {
                terminating: true,
                ..up
            },
            End,
            success,
        ),
        (
            "the pod is being stopped before it started",
            Startup,
            Observation {
                terminating: true,
                has_started: false,
                ..up
            },
            End,
            success,
        ),
        (
            "readiness goes on while the pod is being stopped",
            Readiness,
            Observation {
                terminating: true,
                ..up
            },
            Probe,
            None,
        ),
        (
            "until the container is down",
            Readiness,
            Observation {
                terminating: true,
                ..down
            },
            End,
            failure,
        ),
        (
            "the pod is over",
            Readiness,
            Observation { over: true, ..up },
            Rest,
            None,
        ),
        (
            "the pod is over and being stopped",
            Readiness,
            Observation {
                over: true,
                terminating: true,
                ..up
            },
            End,
            None,
        ),
    ] {
        let decision = look(&on_a(), kind, &seen);
        // pods 56
        assert_eq!(decision.action, action, "{what} ({kind})");
        let news = decision.publish.filter(|_| decision.forget.is_none());
        let news = news.filter(|_| seen.instance.is_some());
        assert_eq!(news, publish, "{what} ({kind})");
    }
}

#[test]
fn the_first_attempt_waits_for_the_initial_delay_from_the_start() {
    let spec = ProbeSpec {
        initial_delay: Duration::from_mins(1),
        ..spec()
    };
    let a = instance("a", ContainerState::Running);
    let action = |now| {
        decide(on_a(), ProbeKind::Liveness, &spec, &seen(Some(&a)), now)
            .1
            .action
    };
    assert_eq!(action(at(-1)), Action::Wait);
    assert_eq!(action(at(0)), Action::Probe);
    // A clock that was set back.
    assert_eq!(action(at(-100)), Action::Wait);
}

#[test]
fn a_result_counts_once_it_came_often_enough() {
    use ProbeResult::{Failure, Success};
    let spec = ProbeSpec {
        success_threshold: 2,
        failure_threshold: 3,
        ..spec()
    };
    let mut state = on_a();
    let mut published = Vec::new();
    for result in [
        Failure, Failure, Success, Failure, Failure, Failure, Failure, Success, Success,
    ] {
        let (next, publish) = conclude(state, ProbeKind::Readiness, &spec, result);
        state = next;
        published.push(publish);
    }
    let (f, s) = (Some(Failure), Some(Success));
    // pods 56
    assert_eq!(
        published,
        [None, None, None, None, None, f, f, None, s],
        "a result in between begins anew"
    );
}

#[test]
fn a_decided_worker_holds_until_there_is_another_instance() {
    use ProbeKind::{Liveness, Readiness, Startup};
    use ProbeResult::{Failure, Success};
    let once = ProbeSpec {
        failure_threshold: 1,
        ..spec()
    };
    let (a, b) = (
        instance("a", ContainerState::Running),
        instance("b", ContainerState::Running),
    );
    for (kind, result, holds) in [
        (Liveness, Failure, true),
        (Liveness, Success, false),
        (Readiness, Failure, false),
        (Readiness, Success, false),
        (Startup, Failure, true),
        (Startup, Success, true),
    ] {
        let (state, published) = conclude(on_a(), kind, &once, result);
        assert_eq!(published, Some(result));
        // A startup probe is asked again only if what it said got lost.
        let has_started = kind != Startup;
        let on = |instance| Observation {
            has_started,
            ..seen(Some(instance))
        };
        let held = look(&state, kind, &on(&a)).action == Action::Wait;
        // pods 56
        assert_eq!(held, holds, "{kind} {result:?}");
        let next = look(&state, kind, &on(&b));
        assert_eq!(next.action, Action::Probe, "{kind} {result:?}");
    }
}

#[test]
fn only_an_agent_that_has_just_started_spreads_its_first_probes() {
    let spec = spec();
    let (young, old) = (Duration::from_secs(9), Duration::from_secs(10));
    assert_eq!(first_delay(&spec, young, 0.5), Duration::from_secs(5));
    assert_eq!(first_delay(&spec, old, 0.5), Duration::ZERO);
}

#[test]
fn what_answers_and_exit_codes_mean() {
    let failure = |text: &str| Outcome::Failure(text.to_owned());
    for (status, outcome) in [
        (200, Outcome::Success),
        (299, Outcome::Success),
        (
            304,
            Outcome::Warning("Probe terminated redirects, Response body: <a>".into()),
        ),
        (400, failure("HTTP probe failed with statuscode: 400")),
        (500, failure("HTTP probe failed with statuscode: 500")),
        (101, failure("HTTP probe failed with statuscode: 101")),
    ] {
        assert_eq!(of_http(status, b"<a>\n\n"), outcome);
    }
    assert_eq!(of_exec(0, b"noise"), Outcome::Success);
    assert_eq!(
        of_exec(1, b" cat: no such file\n"),
        failure("cat: no such file")
    );
    assert_eq!(of_exec(3, b"\n"), failure("command exited with 3"));
    let long = of_exec(1, &vec![b'x'; 1 << 20]);
    assert_eq!(long, Outcome::Failure("x".repeat(10 * 1024)));
}

#[test]
fn results_make_started_and_ready() {
    use ProbeResult::{Failure, Success, Unknown};
    let running = instance("a", ContainerState::Running);
    let exited = instance("a", ContainerState::Exited);
    let probed = |startup: bool, readiness: bool| Container {
        startup_probe: startup.then(Probe::default),
        readiness_probe: readiness.then(Probe::default),
        ..Container::default()
    };
    for (startup, readiness, results, started, ready) in [
        (false, false, [None, None], true, true),
        (false, true, [None, None], true, false),
        (false, true, [None, Some(Failure)], true, false),
        (false, true, [None, Some(Success)], true, true),
        (true, false, [None, None], false, false),
        (true, false, [Some(Unknown), None], false, false),
        (true, false, [Some(Success), None], true, true),
        (true, true, [Some(Failure), Some(Success)], false, false),
        (true, true, [Some(Success), Some(Success)], true, true),
        // A probe that an edit removed has no result any more.
        (false, false, [Some(Failure), Some(Failure)], true, true),
    ] {
        let mut all = ProbeResults::default();
        for (kind, result) in [ProbeKind::Startup, ProbeKind::Readiness]
            .into_iter()
            .zip(results)
        {
            if let Some(result) = result {
                all.set(&running.id, kind, result);
            }
        }
        let container = probed(startup, readiness);
        assert_eq!(
            all.has_started(&container, &running),
            started,
            "{results:?}"
        );
        assert_eq!(all.is_ready(&container, &running), ready, "{results:?}");
        assert!(!all.has_started(&container, &exited));
        assert!(!all.is_ready(&container, &exited));
    }
}

#[test]
fn results_are_kept_and_forgotten_by_instance() {
    let (a, b) = (ContainerId::docker("a"), ContainerId::docker("b"));
    let mut results = ProbeResults::default();
    assert!(results.set(&a, ProbeKind::Liveness, ProbeResult::Success));
    assert!(!results.set(&a, ProbeKind::Liveness, ProbeResult::Success));
    assert!(results.set(&a, ProbeKind::Liveness, ProbeResult::Failure));
    assert_eq!(results.get(&b, ProbeKind::Liveness), None);
    assert!(!results.remove(&b, ProbeKind::Liveness));
    assert!(results.remove(&a, ProbeKind::Liveness));
    assert_eq!(results, ProbeResults::default());
}

#[test]
fn only_that_it_had_started_and_was_ready_is_left_to_the_next_agent() {
    use ProbeKind::{Liveness, Readiness, Startup};
    let (a, b) = (ContainerId::docker("a"), ContainerId::docker("b"));
    let mut results = ProbeResults::default();
    results.set(&a, Liveness, ProbeResult::Failure);
    results.set(&a, Readiness, ProbeResult::Success);
    results.set(&a, Startup, ProbeResult::Success);
    results.set(&b, Readiness, ProbeResult::Failure);
    results.set(&b, Startup, ProbeResult::Unknown);
    let mut expected = ProbeResults::default();
    expected.set(&a, Readiness, ProbeResult::Success);
    expected.set(&a, Startup, ProbeResult::Success);
    assert_eq!(results.kept(), expected);
    let written = serde_json::to_string(&expected).unwrap();
    assert_eq!(
        written,
        r#"{"docker://a":{"readiness":"success","startup":"success"}}"#
    );
    assert_eq!(
        serde_json::from_str::<ProbeResults>(&written).unwrap(),
        expected
    );
}

fn any_result() -> impl Strategy<Value = ProbeResult> {
    prop_oneof![Just(ProbeResult::Success), Just(ProbeResult::Failure)]
}

proptest! {
    /// Every published result was that of as many attempts in a row as its threshold says, all of
    /// the instance that it is published of.
    #[test]
    fn nothing_is_published_below_its_threshold(
        kind in prop_oneof![
            Just(ProbeKind::Liveness), Just(ProbeKind::Readiness), Just(ProbeKind::Startup)
        ],
        success_threshold in 1_u32..4,
        failure_threshold in 1_u32..4,
        // Results, and now and then another instance.
        story in prop::collection::vec(prop::option::weighted(0.9, any_result()), 0..60),
    ) {
        let spec = ProbeSpec { success_threshold, failure_threshold, ..spec() };
        let mut state = ProbeState::default();
        let mut generation = 0;
        let mut attempts: Vec<ProbeResult> = Vec::new();
        let mut decided = false;
        for step in story {
            let Some(result) = step else {
                generation += 1;
                attempts.clear();
                decided = false;
                continue;
            };
            let instance = instance(&format!("i{generation}"), ContainerState::Running);
            let seen = Observation {
                has_started: kind != ProbeKind::Startup,
                ..seen(Some(&instance))
            };
            let (next, decision) = decide(state, kind, &spec, &seen, at(0));
            state = next;
            prop_assert_eq!(state.id.as_ref(), Some(&instance.id));
            prop_assert_eq!(decision.action == Action::Probe, !decided);
            if decision.action != Action::Probe {
                continue;
            }
            let (next, published) = conclude(state, kind, &spec, result);
            state = next;
            attempts.push(result);
            let threshold = match result {
                ProbeResult::Success => success_threshold,
                ProbeResult::Failure | ProbeResult::Unknown => failure_threshold,
            };
            let in_a_row = attempts.iter().rev().take_while(|r| **r == result).count();
            let enough = u32::try_from(in_a_row).unwrap() >= threshold;
            // pods 56
            prop_assert_eq!(published, enough.then_some(result));
            decided = enough
                && (kind == ProbeKind::Startup
                    || (kind == ProbeKind::Liveness && result == ProbeResult::Failure));
        }
    }
}
