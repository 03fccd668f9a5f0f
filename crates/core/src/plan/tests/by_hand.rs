//! Containers and sandboxes that a user stopped, started or restarted with docker.

use std::time::Duration;

use super::*;
use crate::api::keys;
use crate::observed::{BY_HAND_SETTLES, UserActionRecord};
use ContainerState::{Created, Exited, Running};

fn by(what: UserAction, seconds: i64) -> UserActionRecord {
    UserActionRecord {
        what,
        at: at(seconds),
    }
}

fn handled(pod: &Pod, attempt: u32, state: ContainerState, by_hand: UserActionRecord) -> PodStatus {
    status(vec![ContainerStatus {
        by_hand: Some(by_hand),
        ..instance(pod, "foo", attempt, state)
    }])
}

/// A back-off that holds `foo` for minutes.
fn crashed(pod: &Pod) -> Backoff {
    let mut backoff = Backoff::default();
    let hash = spec::container_hash(&spec::spec(pod).containers[0]);
    for _ in 0..6 {
        backoff.next(("foo".into(), hash), at(0), at(0));
    }
    backoff
}

#[test]
fn what_a_person_did_is_replaced_as_the_policy_says_and_never_waits_for_a_crash() {
    let start = || vec!["start foo #1 (byHand)"];
    let replace = || vec!["kill foo-0 (byHand)", "start foo #1 (byHand)"];
    for (what, state, policy, expect) in [
        (UserAction::Stopped, Exited, "Always", start()),
        (UserAction::Stopped, Exited, "OnFailure", start()),
        (UserAction::Stopped, Exited, "Never", vec![]),
        (UserAction::Restarted, Running, "Always", replace()),
        (UserAction::Restarted, Running, "OnFailure", replace()),
        // Its stop was its end.
        (
            UserAction::Restarted,
            Running,
            "Never",
            vec!["kill foo-0 (byHand)"],
        ),
        (UserAction::Started, Running, "Always", replace()),
        // It ended again before it was replaced.
        (UserAction::Restarted, Exited, "Always", start()),
        (UserAction::Signalled, Running, "Always", vec![]),
        (UserAction::Paused, Running, "Always", vec![]),
        (UserAction::Unpaused, Running, "Always", vec![]),
    ] {
        let pod = pod(policy, Vec::new(), &["foo", "other"]);
        let mut seen = handled(&pod, 0, state, by(what, -1));
        seen.containers.push(instance(&pod, "other", 0, Running));
        let mut backoff = crashed(&pod);
        let known = backoff.clone();
        let plan = plan_with(&pod, &seen, &backoff);
        // box 12
        assert_eq!(steps(&plan), expect, "{what:?} {state} {policy}");
        assert!(plan.waiting.is_empty());
        plan.record_backoff(&pod, &seen, &mut backoff, at(0));
        assert_eq!(backoff, known, "{what:?} {state} {policy}");
    }
}

#[test]
fn a_container_killed_with_docker_is_a_crash() {
    let pod = pod("Always", Vec::new(), &["foo"]);
    let seen = handled(&pod, 0, Exited, by(UserAction::Signalled, -1));
    assert_eq!(steps(&plan(&pod, &seen)), ["start foo #1 (exited)"]);
    let plan = plan_with(&pod, &seen, &crashed(&pod));
    assert!(plan.is_empty() && plan.waiting.contains_key("foo"));
}

#[test]
fn nothing_is_started_while_the_second_half_of_a_restart_may_come() {
    let just_now = |what| {
        let left = Duration::from_millis(100);
        UserActionRecord {
            what,
            at: at(0) - BY_HAND_SETTLES + left,
        }
    };
    for what in [UserAction::Signalled, UserAction::Stopped] {
        let pod = pod("Always", Vec::new(), &["foo"]);
        let waiting = Plan {
            look_again: Some(Duration::from_millis(100)),
            ..Plan::default()
        };
        let seen = handled(&pod, 0, Exited, just_now(what));
        // box 12
        assert_eq!(plan(&pod, &seen), waiting, "{what:?}");
        let mut seen = all_running(&pod);
        seen.sandboxes[0].state = Exited;
        seen.sandboxes[0].by_hand = Some(just_now(what));
        assert_eq!(plan(&pod, &seen), waiting, "{what:?} the sandbox");
    }
    // A clock that was set back holds nobody.
    let ahead = UserActionRecord {
        what: UserAction::Stopped,
        at: at(3600),
    };
    assert_eq!(ahead.settles(at(0)), None);
}

#[test]
fn of_two_instances_the_one_that_a_person_started_is_stopped() {
    let pod = pod("Always", Vec::new(), &["foo"]);
    let started = ContainerStatus {
        by_hand: Some(by(UserAction::Started, -1)),
        ..instance(&pod, "foo", 0, Running)
    };
    for (newest, expect) in [
        (Running, vec!["kill foo-0 (byHand)"]),
        (
            Created,
            vec!["kill foo-0 (byHand)", "start foo #1 (createdOnly)"],
        ),
        // It may have ended because of the other one.
        (Exited, vec!["kill foo-0 (byHand)", "start foo #2 (exited)"]),
    ] {
        let seen = status(vec![instance(&pod, "foo", 1, newest), started.clone()]);
        let plan = plan_with(&pod, &seen, &crashed(&pod));
        // box 12
        assert_eq!(steps(&plan), expect, "{newest}");
    }
}

#[test]
fn init_containers_that_were_passed_and_added_containers_are_not_run_again() {
    let mut pod = pod("Always", vec![container("init")], &["foo"]);
    let mut seen = all_running(&pod);
    let init = seen.containers.iter_mut().find(|c| &*c.name == "init");
    let init = init.unwrap();
    init.state = Running;
    init.by_hand = Some(by(UserAction::Started, -1));
    assert_eq!(steps(&plan(&pod, &seen)), ["kill init-0 (byHand)"]);
    // One that is not done yet starts over.
    seen.containers.retain(|c| &*c.name == "init");
    assert_eq!(
        steps(&plan(&pod, &seen)),
        ["kill init-0 (byHand)", "start init #1 (byHand)"]
    );
    pod.spec.as_mut().unwrap().init_containers = Some(vec![sidecar("side")]);
    let mut seen = all_running(&pod);
    let side = seen.containers.iter_mut().find(|c| &*c.name == "side");
    side.unwrap().by_hand = Some(by(UserAction::Restarted, -1));
    assert_eq!(
        steps(&plan(&pod, &seen)),
        ["kill side-0 (byHand)", "start side #1 (byHand)"]
    );
}

#[test]
fn a_sandbox_that_a_person_handled_is_replaced_with_its_containers() {
    for (what, state, policy, expect) in [
        (UserAction::Stopped, Exited, "Always", true),
        (UserAction::Restarted, Running, "Always", true),
        (UserAction::Started, Running, "OnFailure", true),
        (UserAction::Signalled, Running, "Always", false),
        (UserAction::Restarted, Running, "Never", false),
    ] {
        let pod = pod(policy, Vec::new(), &["foo"]);
        let mut seen = all_running(&pod);
        seen.sandboxes[0].state = state;
        seen.sandboxes[0].by_hand = Some(by(what, -1));
        let plan = plan(&pod, &seen);
        let replaced = [
            "kill-pod (sandboxByHand)",
            "sandbox 1 (sandboxByHand)",
            "start foo #1 (sandboxRecreated)",
        ];
        assert_eq!(
            steps(&plan) == replaced,
            expect,
            "{what:?} {:?}",
            steps(&plan)
        );
        assert_eq!(plan.finished, policy == "Never");
    }
}

/// The pod as the agent orders it.
fn ordered(policy: &str, orders: &[(&str, &str)]) -> Pod {
    let mut pod = pod(
        policy,
        vec![container("init"), sidecar("side")],
        &["foo", "bar"],
    );
    let orders = orders
        .iter()
        .map(|(key, value)| (String::from(*key), String::from(*value)));
    pod.metadata.annotations = Some(orders.collect());
    pod
}

#[test]
fn a_stopped_pod_ends_and_starts_nothing() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = ordered(policy, &[(keys::STOPPED, "true")]);
        let mut seen = all_running(&pod);
        let stopping = plan(&pod, &seen);
        assert_eq!(steps(&stopping), ["kill-pod (stopped)"], "{policy}");
        for container in &mut seen.containers {
            container.state = Exited;
        }
        seen.sandboxes[0].state = Exited;
        for status in [&seen, &PodStatus::empty(seen.uid.clone())] {
            let plan = plan(&pod, status);
            // box 13
            assert!(plan.is_empty() && !plan.finished, "{plan:?}");
            assert_eq!(&*plan.waiting["foo"].reason, crate::api::report::STOPPED);
        }
    }
}

#[test]
fn instances_that_a_person_wants_replaced_are_whatever_policy_and_back_off_say() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = ordered(policy, &[(keys::RESTART, "docker://foo-0,docker://side-0")]);
        let mut seen = all_running(&pod);
        let expect = [
            "kill side-0 (requested)",
            "kill foo-0 (requested)",
            "start side #1 (requested)",
            "start foo #1 (requested)",
        ];
        assert_eq!(steps(&plan(&pod, &seen)), expect, "{policy}");
        // A container that ended is started again without back-off.
        let foo = seen.containers.iter_mut().find(|c| &*c.name == "foo");
        *foo.unwrap() = succeeded(instance(&pod, "foo", 0, Exited));
        let hash = spec::container_hash(&spec::spec(&pod).containers[0]);
        let mut backoff = Backoff::default();
        for _ in 0..6 {
            backoff.next(("foo".into(), hash), at(0), at(0));
        }
        let plan = plan_with(&pod, &seen, &backoff);
        assert_eq!(steps(&plan).last().unwrap(), "start foo #1 (requested)");
        let known = backoff.clone();
        plan.record_backoff(&pod, &seen, &mut backoff, at(0));
        assert_eq!(backoff, known);
        // Also a pod that is over.
        seen.sandboxes[0].state = Exited;
        for container in &mut seen.containers {
            container.state = Exited;
        }
        let again = steps(&self::plan(&pod, &seen));
        assert!(
            again.contains(&"sandbox 1 (sandboxDead)".to_owned()),
            "{again:?}"
        );
        // The instance after it is another one.
        let seen = status(vec![
            instance(&pod, "foo", 1, Running),
            instance(&pod, "bar", 0, Running),
        ]);
        let rest = steps(&self::plan(&pod, &seen));
        assert!(rest.iter().all(|step| !step.contains("foo")), "{rest:?}");
    }
}
