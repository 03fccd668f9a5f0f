//! All containers restarted in place (upstream's `TestComputePodActionsForRestartAllContainers`).

use std::time::Duration;

use super::*;
use crate::api::keys;
use crate::observed::{BY_HAND_SETTLES, UserActionRecord};
use crate::restart::ACTION_RESTART_ALL;
use ContainerState::{Created, Exited, Running, Unknown};

/// Exit code that restarts all.
const ASKS: i32 = 42;

fn asking(container: core::Container) -> core::Container {
    let policy = container.restart_policy.unwrap_or_else(|| "Never".into());
    core::Container {
        restart_policy: Some(policy),
        restart_policy_rules: Some(vec![rule(ACTION_RESTART_ALL, "In", ASKS)]),
        ..container
    }
}

/// A pod with an init container, a sidecar, and two regular containers, of which `foo` may ask.
fn base(policy: &str) -> Pod {
    let mut pod = pod(
        policy,
        vec![container("init"), sidecar("side")],
        &["foo", "bar"],
    );
    let foo = &mut spec_of(&mut pod).containers[0];
    *foo = asking(foo.clone());
    pod
}

fn ended(seen: ContainerStatus, code: i32) -> ContainerStatus {
    ContainerStatus {
        state: Exited,
        exit_code: Some(code),
        finished_at: Some(at(-1)),
        ..seen
    }
}

fn since(seen: ContainerStatus, pod_restarts: u32) -> ContainerStatus {
    ContainerStatus {
        pod_restarts,
        ..seen
    }
}

/// Puts an instance in the place of its name's newest.
fn put(status: &mut PodStatus, seen: ContainerStatus) {
    let old = status.containers.iter_mut().find(|c| c.name == seen.name);
    *old.unwrap() = seen;
}

/// Everything runs but `foo`, which has just asked.
fn asked(pod: &Pod) -> PodStatus {
    let mut seen = all_running(pod);
    put(&mut seen, ended(instance(pod, "foo", 0, Running), ASKS));
    seen
}

/// The numbers of the pod's restarts that starts note.
fn counts(plan: &Plan) -> Vec<u32> {
    let count = |step: &Step| match step {
        Step::StartContainer { pod_restarts, .. } => Some(*pod_restarts),
        _ => None,
    };
    plan.steps.iter().filter_map(count).collect()
}

#[test]
fn an_exit_that_asks_for_it_restarts_all_containers_in_the_order_of_a_new_pod() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = base(policy);
        let seen = |name: &str, count: u32, state| since(instance(&pod, name, count, state), count);
        let mut status = asked(&pod);
        let first = plan(&pod, &status);
        let expected = [
            "kill bar-0 (restartAll)",
            "kill side-0 (restartAll)",
            "start init #1 (restartAll)",
        ];
        // docker 5a
        assert_eq!(steps(&first), expected, "{policy}");
        assert_eq!(counts(&first), [1]);
        assert!(!first.finished);
        // The agent was killed before it started anything.
        put(&mut status, ended(instance(&pod, "bar", 0, Running), 137));
        let half = plan(&pod, &status);
        assert_eq!(
            steps(&half),
            ["kill side-0 (restartAll)", "start init #1 (restartAll)"]
        );
        put(&mut status, ended(instance(&pod, "side", 0, Running), 137));
        assert_eq!(steps(&plan(&pod, &status)), ["start init #1 (restartAll)"]);
        // From here on the new instance says that the restart was begun.
        status.containers.insert(0, seen("init", 1, Running));
        assert!(plan(&pod, &status).is_empty(), "{policy}");
        status.containers[0] = succeeded(seen("init", 1, Running));
        assert_eq!(steps(&plan(&pod, &status)), ["start side #1 (restartAll)"]);
        status.containers.insert(0, seen("side", 1, Running));
        let apps = plan(&pod, &status);
        assert_eq!(
            steps(&apps),
            ["start foo #1 (restartAll)", "start bar #1 (restartAll)"]
        );
        assert_eq!(counts(&apps), [1, 1]);
        status.containers.insert(0, seen("foo", 1, Running));
        let last = ["start bar #1 (restartAll)", "remove init-0"];
        assert_eq!(steps(&plan(&pod, &status)), last);
        status.containers.retain(|c| &*c.id.id != "init-0");
        status.containers.insert(0, seen("bar", 1, Running));
        // The instance that asked is still there, and asks no more.
        // docker 5b
        assert!(plan(&pod, &status).is_empty(), "{policy}");
        // The next exit asks again.
        let foo = status.containers.iter_mut().find(|c| &*c.name == "foo");
        *foo.unwrap() = ended(seen("foo", 1, Running), ASKS);
        let second = plan(&pod, &status);
        let expected = [
            "kill bar-1 (restartAll)",
            "kill side-1 (restartAll)",
            "start init #2 (restartAll)",
        ];
        assert_eq!(steps(&second)[..3], expected, "{policy}");
        assert_eq!(counts(&second), [2]);
    }
}

#[test]
fn sidecars_and_init_containers_may_ask_too() {
    let mut pod = base("Never");
    let inits = spec_of(&mut pod).init_containers.as_mut().unwrap();
    inits[1] = asking(inits[1].clone());
    let mut seen = all_running(&pod);
    put(&mut seen, ended(instance(&pod, "side", 0, Running), ASKS));
    let expected = [
        "kill foo-0 (restartAll)",
        "kill bar-0 (restartAll)",
        "start init #1 (restartAll)",
    ];
    // docker 5a
    assert_eq!(steps(&plan(&pod, &seen)), expected);
    // Of a pod that is over but for its sidecars, which are stopped, no exit restarts anything.
    for name in ["foo", "bar"] {
        put(&mut seen, succeeded(instance(&pod, name, 0, Exited)));
    }
    assert_eq!(steps(&plan(&pod, &seen)), ["start side #1 (exited)"]);
    seen.sandboxes[0].state = Exited;
    let over = plan(&pod, &seen);
    assert!(over.finished && over.is_empty(), "{over:?}");

    let mut pod = base("Never");
    let inits = spec_of(&mut pod).init_containers.as_mut().unwrap();
    inits.swap(0, 1);
    inits[1] = asking(inits[1].clone());
    let asked = ended(instance(&pod, "init", 0, Running), ASKS);
    let side = instance(&pod, "side", 0, Running);
    let asked = plan(&pod, &status(vec![asked, side.clone()]));
    let expected = ["kill side-0 (restartAll)", "start side #1 (restartAll)"];
    assert_eq!(steps(&asked), expected);
    // With another code it fails for good, and the stopped sidecar changes nothing.
    let inits = spec_of(&mut pod).init_containers.as_mut().unwrap();
    inits[0].restart_policy_rules = Some(vec![rule(ACTION_RESTART_ALL, "NotIn", 0)]);
    let failed = ended(instance(&pod, "init", 0, Running), 1);
    for side in [side.clone(), ended(side, 143)] {
        let failed = plan(&pod, &status(vec![failed.clone(), side]));
        assert!(failed.finished, "{:?}", steps(&failed));
    }
}

#[test]
fn only_an_exit_that_its_rules_name_restarts_all() {
    let pod = base("Never");
    for (state, code, asks) in [
        (Exited, ASKS, true),
        (Exited, 1, false),
        (Exited, 0, false),
        (Running, ASKS, false),
        (Unknown, ASKS, false),
    ] {
        let mut seen = all_running(&pod);
        let foo = ContainerStatus {
            state,
            ..ended(instance(&pod, "foo", 0, Running), code)
        };
        put(&mut seen, foo);
        let killed = steps(&plan(&pod, &seen)).contains(&"kill bar-0 (restartAll)".to_owned());
        assert_eq!(killed, asks, "{state} {code}");
    }
    // Labels of a pod without such rules are nobody's business: its image may have them.
    let plain = super::pod("Always", vec![container("init")], &["foo", "bar"]);
    let mut seen = all_running(&plain);
    put(&mut seen, since(instance(&plain, "foo", 0, Running), 7));
    assert!(plan(&plain, &seen).is_empty());
}

#[test]
fn what_had_ended_before_is_restarted_and_what_was_never_started_makes_room() {
    let pod = base("Never");
    let mut seen = asked(&pod);
    put(&mut seen, succeeded(instance(&pod, "bar", 3, Exited)));
    put(&mut seen, ended(instance(&pod, "side", 0, Running), 137));
    let first = plan(&pod, &seen);
    assert_eq!(steps(&first), ["start init #1 (restartAll)"]);
    let init = since(succeeded(instance(&pod, "init", 1, Running)), 1);
    let side = since(instance(&pod, "side", 1, Running), 1);
    seen.containers.splice(0..0, [init, side]);
    let apps = ["start foo #1 (restartAll)", "start bar #4 (restartAll)"];
    assert_eq!(steps(&plan(&pod, &seen)), apps);
    put(&mut seen, instance(&pod, "bar", 3, Created));
    let apps = [
        "remove bar-3",
        "start foo #1 (restartAll)",
        "start bar #3 (restartAll)",
    ];
    assert_eq!(steps(&plan(&pod, &seen)), apps);
    // One that is of the new count is taken over.
    put(&mut seen, since(instance(&pod, "bar", 3, Created), 1));
    let apps = [
        "start foo #1 (restartAll)",
        "start bar #3 (createdOnly)",
        "remove init-0",
    ];
    assert_eq!(steps(&plan(&pod, &seen)), apps);
    // An old instance that a user starts meanwhile is stopped.
    put(&mut seen, instance(&pod, "bar", 3, Running));
    let stopped = &steps(&plan(&pod, &seen))[0];
    assert_eq!(stopped, "kill bar-3 (restartAll)");
}

#[test]
fn added_containers_run_on_and_count_no_restarts() {
    let mut pod = base("Never");
    let added = core::EphemeralContainer {
        name: "debug".into(),
        image: Some("debug:1".into()),
        ..core::EphemeralContainer::default()
    };
    spec_of(&mut pod).ephemeral_containers = Some(vec![added]);
    let mut seen = asked(&pod);
    let first = plan(&pod, &seen);
    let starts = [
        "start debug #0 (neverStarted)",
        "start init #1 (restartAll)",
    ];
    assert_eq!(steps(&first)[2..], starts);
    assert_eq!(counts(&first), [0, 1]);
    seen.containers.push(instance(&pod, "debug", 0, Running));
    let steps = steps(&plan(&pod, &seen));
    assert!(
        steps.iter().all(|step| !step.contains("debug")),
        "{steps:?}"
    );
}

#[test]
fn a_pod_that_goes_or_is_over_is_not_restarted() {
    let over = |change: fn(&mut Pod)| {
        let mut pod = base("Always");
        change(&mut pod);
        plan(&pod, &asked(&pod))
    };
    let status = |phase: &str| core::PodStatus {
        phase: Some(phase.into()),
        ..core::PodStatus::default()
    };
    let deleted = over(|pod| pod.metadata.deletion_timestamp = Some(meta::Time(at(0))));
    assert!(deleted.is_empty() && !deleted.finished);
    let ended = status("Failed");
    let mut pod = base("Always");
    pod.status = Some(ended);
    let ended = plan(&pod, &asked(&pod));
    assert!(ended.finished && steps(&ended) == ["kill-pod (completed)"]);
    let late = over(|pod| spec_of(pod).active_deadline_seconds = Some(1));
    assert_eq!(steps(&late), ["kill-pod (deadlineExceeded)"]);
    let stopped = over(|pod| {
        let stopped = (keys::STOPPED.to_owned(), "true".to_owned());
        pod.metadata.annotations = Some([stopped].into());
    });
    assert_eq!(steps(&stopped), ["kill-pod (stopped)"]);
}

#[test]
fn it_goes_on_in_a_new_sandbox() {
    for policy in ["Always", "Never"] {
        let pod = base(policy);
        let mut seen = asked(&pod);
        seen.sandboxes[0].state = Exited;
        for name in ["bar", "side"] {
            put(&mut seen, ended(instance(&pod, name, 0, Running), 137));
        }
        let plan = plan(&pod, &seen);
        // What shows that there is a restart stays.
        let expected = ["sandbox 1 (sandboxDead)", "start init #1 (restartAll)"];
        assert_eq!(steps(&plan)[..2], expected, "{policy}");
        assert_eq!(counts(&plan), [1]);
        let kept = steps(&plan)
            .iter()
            .all(|step| !step.starts_with("remove foo"));
        assert!(kept, "{plan:?}");
    }
}

#[test]
fn the_instance_that_asked_stays_until_a_regular_container_was_restarted() {
    let mut pod = base("Always");
    let inits = spec_of(&mut pod).init_containers.as_mut().unwrap();
    inits[1] = asking(inits[1].clone());
    let old = |name: &str, code| ended(instance(&pod, name, 0, Running), code);
    let mut seen = status(vec![
        since(instance(&pod, "side", 2, Running), 1),
        since(old("side", 1), 1),
        old("side", ASKS),
        since(succeeded(instance(&pod, "init", 1, Running)), 1),
        old("init", 0),
        old("foo", 137),
        old("bar", 137),
    ]);
    seen.containers[1].id = ContainerId::docker("side-1");
    let removed = |seen: &PodStatus| {
        let mut steps = steps(&plan(&pod, seen));
        steps.retain(|step| step.starts_with("remove"));
        steps
    };
    // docker 5b
    assert_eq!(removed(&seen), Vec::<String>::new());
    for name in ["foo", "bar"] {
        seen.containers
            .insert(0, since(instance(&pod, name, 1, Running), 1));
    }
    assert_eq!(removed(&seen), ["remove init-0", "remove side-0"]);
}

#[test]
fn all_wait_with_the_container_that_asked_and_no_other_is_held_back() {
    let pod = base("Always");
    let mut seen = asked(&pod);
    let key = |index: usize| {
        let container = &spec::spec(&pod).containers[index];
        (
            container.name.as_str().into(),
            spec::container_hash(container),
        )
    };
    let mut backoff = Backoff::default();
    for _ in 0..3 {
        backoff.next(key(0), at(-1), at(-1));
    }
    let first = plan_with(&pod, &seen, &backoff);
    // docker 5a
    assert_eq!(
        steps(&first),
        ["kill bar-0 (restartAll)", "kill side-0 (restartAll)"]
    );
    assert_eq!(&*first.waiting["foo"].reason, "CrashLoopBackOff");
    for name in ["bar", "side"] {
        put(&mut seen, ended(instance(&pod, name, 0, Running), 137));
    }
    let held = plan_with(&pod, &seen, &backoff);
    assert!(held.is_empty() && held.look_again.is_some(), "{held:?}");
    // Those that it took along neither wait nor count.
    let mut backoff = Backoff::default();
    for index in [1, 1, 1] {
        backoff.next(key(index), at(-1), at(-1));
    }
    let (known, delay) = (backoff.delay(&key(1)), |backoff: &Backoff| {
        [0, 1].map(|index| backoff.delay(&key(index)).as_secs())
    });
    let init = since(succeeded(instance(&pod, "init", 1, Running)), 1);
    let side = since(instance(&pod, "side", 1, Running), 1);
    seen.containers.splice(0..0, [init, side]);
    let apps = plan_with(&pod, &seen, &backoff);
    assert_eq!(
        steps(&apps),
        ["start foo #1 (restartAll)", "start bar #1 (restartAll)"]
    );
    apps.record_backoff(&pod, &seen, &mut backoff, at(0));
    assert_eq!(delay(&backoff), [10, known.as_secs()]);
}

#[test]
fn nothing_is_stopped_while_the_second_half_of_a_docker_restart_may_come() {
    let pod = base("Always");
    let mut seen = asked(&pod);
    let left = Duration::from_millis(100);
    let foo = seen.containers.iter_mut().find(|c| &*c.name == "foo");
    foo.unwrap().by_hand = Some(UserActionRecord {
        what: UserAction::Stopped,
        at: at(0) - BY_HAND_SETTLES + left,
    });
    let waiting = Plan {
        look_again: Some(left),
        ..Plan::default()
    };
    assert_eq!(plan(&pod, &seen), waiting);
}

#[test]
fn there_is_no_grace_and_the_reason_names_the_exit() {
    let pod = base("Always");
    let mut seen = asked(&pod);
    let reason = |seen: &PodStatus| reasons(&plan(&pod, seen)).next().unwrap().clone();
    let why = reason(&seen);
    assert_eq!(
        why.to_string(),
        "container foo exited with 42, which restarts all containers"
    );
    assert_eq!(kill_grace(&pod, "bar", &why), Duration::ZERO);
    // Also once the restart was begun, as long as the instance is there.
    let init = since(instance(&pod, "init", 1, Running), 1);
    seen.containers.insert(0, init);
    assert_eq!(reason(&seen), why);
    put(&mut seen, instance(&pod, "foo", 0, Unknown));
    let words = reason(&seen).to_string();
    assert_eq!(words, "all containers of the pod are restarted");
}
