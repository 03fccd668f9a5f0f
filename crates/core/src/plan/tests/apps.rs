//! Pods without init containers.

use super::*;
use ContainerState::{Created, Exited, Running, Unknown};

fn base(policy: &str) -> (Pod, PodStatus) {
    let pod = pod(policy, Vec::new(), &["foo1", "foo2", "foo3"]);
    let status = all_running(&pod);
    (pod, status)
}

#[test]
fn a_pod_that_runs_as_wanted_needs_nothing() {
    for policy in ["Always", "OnFailure", "Never"] {
        let (pod, status) = base(policy);
        assert_eq!(plan(&pod, &status), Plan::default(), "{policy}");
    }
}

#[test]
fn a_new_pod_gets_a_sandbox_and_its_containers_in_order() {
    for policy in ["Always", "OnFailure", "Never"] {
        let (pod, status) = base(policy);
        let nothing = PodStatus::empty(status.uid);
        assert_eq!(
            steps(&plan(&pod, &nothing)),
            [
                "sandbox 0 (noSandbox)",
                "start foo1 #0 (neverStarted)",
                "start foo2 #0 (neverStarted)",
                "start foo3 #0 (neverStarted)",
            ],
            "{policy}"
        );
    }
}

#[test]
fn restart_decisions_follow_policy_and_state() {
    let kept = || Vec::<&str>::new();
    for (policy, seen, expect) in [
        ("Always", Exited, vec!["start foo2 #1 (exited)"]),
        ("OnFailure", Exited, vec!["start foo2 #1 (exited)"]),
        ("Never", Exited, kept()),
        ("Always", Running, kept()),
        ("Always", Created, vec!["start foo2 #0 (createdOnly)"]),
        ("Never", Created, vec!["start foo2 #0 (createdOnly)"]),
        (
            "Always",
            Unknown,
            vec!["kill foo2-0 (unknownState)", "start foo2 #1 (unknownState)"],
        ),
        (
            "Never",
            Unknown,
            vec!["kill foo2-0 (unknownState)", "start foo2 #1 (unknownState)"],
        ),
    ] {
        let (pod, mut status) = base(policy);
        status.containers[1] = instance(&pod, "foo2", 0, seen);
        // docker 5
        assert_eq!(steps(&plan(&pod, &status)), expect, "{policy} {seen}");
    }
    for (policy, expect) in [
        ("Always", vec!["start foo2 #1 (exited)"]),
        ("OnFailure", kept()),
        ("Never", kept()),
    ] {
        let (pod, mut status) = base(policy);
        status.containers[1] = succeeded(instance(&pod, "foo2", 0, Exited));
        assert_eq!(steps(&plan(&pod, &status)), expect, "{policy} exit 0");
        status.containers.remove(1);
        let started = ["start foo2 #0 (neverStarted)"];
        assert_eq!(steps(&plan(&pod, &status)), started, "{policy} absent");
    }
}

#[test]
fn a_containers_own_policy_and_rules_come_before_the_pods() {
    let rule = |operator, code| rule("Restart", operator, code);
    let again = ["start foo2 #1 (exited)"];
    // The pod's policy, the container's, its rules; whether it comes back after code 1.
    for (policy, own, rules, comes_back) in [
        ("Never", "Always", vec![], true),
        ("Never", "OnFailure", vec![], true),
        ("Always", "Never", vec![], false),
        ("Never", "Never", vec![rule("In", 1)], true),
        ("Never", "Never", vec![rule("In", 2)], false),
        ("Never", "Never", vec![rule("NotIn", 2)], true),
    ] {
        let (mut pod, mut status) = base(policy);
        let container = &mut spec_of(&mut pod).containers[1];
        container.restart_policy = Some(own.into());
        container.restart_policy_rules = Some(rules);
        status.containers[1] = instance(&pod, "foo2", 0, Exited);
        let expected: &[&str] = if comes_back { &again } else { &[] };
        // docker 5
        assert_eq!(steps(&plan(&pod, &status)), expected, "{policy} {own}");
    }
    // A container that has completed is not started in a new sandbox either.
    let (mut pod, mut status) = base("Always");
    spec_of(&mut pod).containers[1].restart_policy = Some("OnFailure".into());
    status.containers[1] = succeeded(instance(&pod, "foo2", 0, Exited));
    status.sandboxes[0].state = Exited;
    let steps = steps(&plan(&pod, &status));
    assert!(steps.iter().any(|step| step.starts_with("start foo1")));
    assert!(
        !steps.iter().any(|step| step.starts_with("start foo2")),
        "{steps:?}"
    );
}

#[test]
fn a_changed_image_replaces_that_container_whatever_the_policy() {
    for policy in ["Always", "OnFailure", "Never"] {
        let (mut pod, mut status) = base(policy);
        spec_of(&mut pod).containers[1].image = Some("foo2:2".into());
        let replaced = [
            "kill foo2-0 (definitionChanged)",
            "start foo2 #1 (definitionChanged)",
        ];
        // docker 26
        assert_eq!(steps(&plan(&pod, &status)), replaced, "{policy}");
        status.containers[1].hash = ContainerHash(0);
        assert!(plan(&pod, &status).is_empty(), "{policy}: hash not known");
    }
}

#[test]
fn an_instance_created_from_another_definition_makes_room() {
    let (mut pod, mut status) = base("Always");
    status.containers[1].state = Created;
    spec_of(&mut pod).containers[1].image = Some("foo2:2".into());
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["remove foo2-0", "start foo2 #0 (createdOnly)"]
    );
}

#[test]
fn a_pod_whose_containers_are_done_is_stopped_and_finished() {
    for (policy, code) in [("Never", 1), ("Never", 0), ("OnFailure", 0)] {
        let (pod, mut status) = base(policy);
        for seen in &mut status.containers {
            *seen = succeeded(seen.clone());
            seen.exit_code = Some(code);
        }
        let done = plan(&pod, &status);
        // docker 25
        assert_eq!(steps(&done), ["kill-pod (completed)"], "{policy} {code}");
        assert!(done.finished);
        status.sandboxes[0].state = Exited;
        let stopped = plan(&pod, &status);
        assert!(stopped.is_empty(), "{policy} {code}: {:?}", steps(&stopped));
        assert!(stopped.finished);
        status.sandboxes.clear();
        let removed = plan(&pod, &status);
        // docker 24
        assert!(removed.is_empty(), "{policy} {code}: {:?}", steps(&removed));
        assert!(removed.finished);
    }
}

#[test]
fn a_bad_sandbox_is_replaced_with_everything_in_it() {
    type Change = fn(&mut Pod, &mut PodStatus);
    let cases: [(&str, u32, Change); 5] = [
        ("sandboxDead", 1, |_, s| {
            s.sandboxes = vec![sandbox(0, Exited)];
        }),
        // One that was only created is taken over.
        ("sandboxDead", 1, |_, s| {
            s.sandboxes = vec![sandbox(1, Created), sandbox(0, Running)];
        }),
        ("sandboxDuplicated", 2, |_, s| {
            s.sandboxes = vec![sandbox(1, Running), sandbox(0, Running)];
        }),
        ("sandboxNetworkChanged", 1, |p, _| {
            spec_of(p).host_network = Some(true);
        }),
        ("sandboxWithoutAddress", 1, |_, s| {
            s.sandboxes[0].ips.clear();
        }),
    ];
    for (reason, attempt, change) in cases {
        let (mut pod, mut status) = base("Always");
        change(&mut pod, &mut status);
        // docker 23
        assert_eq!(
            steps(&plan(&pod, &status)),
            [
                format!("kill-pod ({reason})"),
                format!("sandbox {attempt} ({reason})"),
                "start foo1 #1 (sandboxRecreated)".into(),
                "start foo2 #1 (sandboxRecreated)".into(),
                "start foo3 #1 (sandboxRecreated)".into(),
            ],
            "{reason}"
        );
    }
}

#[test]
fn a_host_network_pod_needs_no_address() {
    let (mut pod, mut status) = base("Always");
    spec_of(&mut pod).host_network = Some(true);
    status.sandboxes[0].host_network = true;
    status.sandboxes[0].ips.clear();
    assert!(plan(&pod, &status).is_empty());
}

#[test]
fn a_lost_sandbox_does_not_bring_back_what_is_done() {
    // Never: whatever has run is not run again, even if some of it still runs.
    let (never, mut status) = base("Never");
    status.sandboxes[0].state = Exited;
    let over = plan(&never, &status);
    // docker 24
    assert_eq!(steps(&over), ["kill-pod (sandboxDead)"]);
    assert!(over.finished);
    // Never, and nothing ran yet: try again.
    status.containers.clear();
    let again = plan(&never, &status);
    assert_eq!(steps(&again)[0], "sandbox 1 (sandboxDead)");
    assert!(!again.finished);
    // OnFailure: what succeeded isn't run again.
    let (on_failure, mut status) = base("OnFailure");
    status.sandboxes[0].state = Exited;
    status.containers[0] = succeeded(status.containers[0].clone());
    assert_eq!(
        steps(&plan(&on_failure, &status)),
        [
            "kill-pod (sandboxDead)",
            "sandbox 1 (sandboxDead)",
            "start foo2 #1 (sandboxRecreated)",
            "start foo3 #1 (sandboxRecreated)",
        ]
    );
}

#[test]
fn a_sandbox_lost_before_a_regular_container_ran_is_made_anew() {
    let inits = vec![container("init1"), sidecar("side")];
    let pod = pod("Never", inits, &["foo1"]);
    let init = instance(&pod, "init1", 0, Exited);
    let mut seen = status(vec![
        instance(&pod, "side", 0, Exited),
        succeeded(init.clone()),
    ]);
    seen.sandboxes[0].state = Exited;
    let again = plan(&pod, &seen);
    // docker 24
    assert!(!again.finished);
    assert_eq!(
        steps(&again),
        [
            "remove side-0",
            "remove init1-0",
            "sandbox 1 (sandboxDead)",
            "start init1 #1 (sandboxRecreated)",
        ]
    );
    // A regular container that was never started is as good as none.
    let created = instance(&pod, "foo1", 0, Created);
    seen.containers.insert(0, created);
    assert!(!plan(&pod, &seen).finished);
    // One that ran, and an init container that failed, end the pod.
    let mut ran = seen.clone();
    ran.containers[0] = instance(&pod, "foo1", 0, Exited);
    assert!(plan(&pod, &ran).finished);
    seen.containers = vec![init];
    assert!(plan(&pod, &seen).finished);
}

#[test]
fn an_instance_never_started_is_not_taken_over_by_another_sandbox() {
    let (pod, mut status) = base("Always");
    status.sandboxes[0].state = Exited;
    status.containers = vec![instance(&pod, "foo1", 3, Created)];
    let steps = steps(&plan(&pod, &status));
    assert_eq!(
        steps[..3],
        [
            "remove foo1-3",
            "sandbox 1 (sandboxDead)",
            "start foo1 #3 (sandboxRecreated)"
        ]
    );
}

#[test]
fn crash_loops_wait_and_say_so() {
    let (pod, mut status) = base("Always");
    status.containers[1] = instance(&pod, "foo2", 4, Exited);
    let mut backoff = Backoff::default();
    // The first restart is immediate, and advances the back-off.
    let first = plan_with(&pod, &status, &backoff);
    assert_eq!(steps(&first), ["start foo2 #5 (exited)"]);
    first.record_backoff(&pod, &status, &mut backoff, at(-1));
    let second = plan_with(&pod, &status, &backoff);
    assert!(second.is_empty());
    assert_eq!(second.look_again, Some(Duration::from_secs(9)));
    let waiting = &second.waiting["foo2"];
    // pods 57
    assert_eq!(&*waiting.reason, "CrashLoopBackOff");
    assert_eq!(
        &*waiting.message,
        "back-off 10s restarting failed container=foo2 pod=foo_new(12345678)"
    );
    assert!(!second.finished);
    // A container that is done doesn't wait, and the earliest one sets the time.
    status.containers[0] = instance(&pod, "foo1", 0, Exited);
    status.containers[0].finished_at = Some(at(-4));
    let key = |name: &str| {
        let (_, c) = spec::find_container(&pod, name).unwrap();
        (Arc::from(name), spec::container_hash(c))
    };
    backoff.next(key("foo1"), at(-4), at(-4));
    let both = plan_with(&pod, &status, &backoff);
    assert_eq!(both.waiting.len(), 2);
    assert_eq!(both.look_again, Some(Duration::from_secs(6)));
    // An edited container is another one.
    let mut edited = pod.clone();
    spec_of(&mut edited).containers[1].image = Some("foo2:2".into());
    assert_eq!(
        steps(&plan_with(&edited, &status, &backoff)),
        ["start foo2 #5 (exited)"]
    );
    // So is nobody who lost the sandbox.
    status.sandboxes[0].state = Exited;
    let recreated = plan_with(&pod, &status, &backoff);
    assert!(recreated.waiting.is_empty());
    assert_eq!(recreated.steps.len(), 5);
    let before = backoff.clone();
    recreated.record_backoff(&pod, &status, &mut backoff, at(0));
    backoff.reset(&sandbox_key());
    assert_eq!(backoff, before);
}

#[test]
fn a_sandbox_that_dies_again_and_again_waits_and_says_so() {
    let (pod, mut status) = base("Always");
    status.sandboxes[0].state = Exited;
    let mut backoff = Backoff::default();
    // The first new one is immediate, and advances the back-off.
    let first = plan_with(&pod, &status, &backoff);
    assert_eq!(steps(&first)[1], "sandbox 1 (sandboxDead)");
    first.record_backoff(&pod, &status, &mut backoff, at(-1));
    let second = plan_with(&pod, &status, &backoff);
    // What runs on without it has no network.
    assert_eq!(steps(&second), ["kill-pod (sandboxDead)"]);
    assert_eq!(second.look_again, Some(Duration::from_secs(9)));
    for seen in &mut status.containers {
        *seen = instance(&pod, &seen.name, 0, Exited);
    }
    let third = plan_with(&pod, &status, &backoff);
    // pods 57a
    assert!(third.is_empty() && !third.finished);
    assert_eq!(third.look_again, Some(Duration::from_secs(9)));
    let waits: Vec<&str> = third.waiting.keys().map(|name| &**name).collect();
    assert_eq!(waits, ["foo1", "foo2", "foo3"]);
    let waiting = &third.waiting["foo2"];
    assert_eq!(&*waiting.reason, "CrashLoopBackOff");
    assert_eq!(
        &*waiting.message,
        "back-off 10s restarting failed sandbox of pod=foo_new(12345678)"
    );
    // What is replaced for another reason doesn't wait, nor does it count.
    for changed in [
        |status: &mut PodStatus| status.sandboxes.clear(),
        |status: &mut PodStatus| {
            status.sandboxes[0].state = Running;
            status.sandboxes[0].host_network = true;
        },
    ] {
        let mut status = status.clone();
        changed(&mut status);
        let other = plan_with(&pod, &status, &backoff);
        assert!(other.waiting.is_empty());
        let before = backoff.clone();
        other.record_backoff(&pod, &status, &mut backoff, at(0));
        assert_eq!(backoff, before);
    }
}

#[test]
fn the_first_init_container_waits_for_a_sandbox_that_dies_again_and_again() {
    let init = container("init");
    let pod = pod("Always", vec![init, sidecar("log")], &["foo1"]);
    let mut status = all_running(&pod);
    status.sandboxes[0].state = Exited;
    let mut backoff = Backoff::default();
    backoff.next(sandbox_key(), at(-1), at(-1));
    let plan = plan_with(&pod, &status, &backoff);
    let waits: Vec<&str> = plan.waiting.keys().map(|name| &**name).collect();
    assert_eq!(waits, ["init"]);
}

#[test]
fn an_unknown_instance_is_stopped_even_while_its_container_waits() {
    let (pod, mut status) = base("Always");
    status.containers[1] = instance(&pod, "foo2", 1, Unknown);
    let old = instance(&pod, "foo2", 0, Exited);
    status.containers.insert(2, old);
    let mut backoff = Backoff::default();
    plan(&pod, &status).record_backoff(&pod, &status, &mut backoff, at(0));
    let waits = plan_with(&pod, &status, &backoff);
    // docker 27
    assert_eq!(steps(&waits), ["kill foo2-1 (unknownState)"]);
    assert!(waits.waiting.contains_key("foo2"));
}

#[test]
fn old_instances_go_after_the_starts() {
    let (pod, mut status) = base("Always");
    status.containers[1] = instance(&pod, "foo2", 5, Exited);
    status.containers.push(instance(&pod, "foo2", 4, Exited));
    status.containers.push(instance(&pod, "foo2", 3, Exited));
    status.containers.push(instance(&pod, "foo3", 0, Exited));
    status.containers.push(instance(&pod, "foo3", 0, Created));
    status.sandboxes.push(sandbox(7, Exited));
    status.sandboxes.push(sandbox(6, Created));
    // docker 56
    assert_eq!(
        steps(&plan(&pod, &status)),
        [
            "start foo2 #6 (exited)",
            "remove foo2-4",
            "remove foo2-3",
            "remove foo3-0",
            "remove sandbox7",
            "remove sandbox6",
        ]
    );
    let removed = plan(&pod, &status);
    let names: Vec<&str> = removed
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::RemoveContainer { name, .. } => Some(&**name),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["foo2", "foo2", "foo3", "POD", "POD"]);
}

#[test]
fn the_active_deadline_ends_a_pod_for_good() {
    let (mut pod, mut status) = base("Always");
    spec_of(&mut pod).active_deadline_seconds = Some(100);
    // Without a status, the oldest sandbox (1000 s old) counts.
    let late = plan(&pod, &status);
    assert_eq!(steps(&late), ["kill-pod (deadlineExceeded)"]);
    assert!(late.finished);
    assert_eq!(late.look_again, None);
    pod.status = Some(core::PodStatus {
        start_time: Some(meta::Time(at(-40))),
        ..core::PodStatus::default()
    });
    // So it does beside a status that knows of a later start only.
    assert_eq!(steps(&plan(&pod, &status)), steps(&late));
    status.sandboxes[0].created_at = at(-30);
    let early = plan(&pod, &status);
    assert!(early.is_empty() && !early.finished);
    assert_eq!(early.look_again, Some(Duration::from_mins(1)));
    pod.status.as_mut().unwrap().start_time = Some(meta::Time(at(-100)));
    status.sandboxes[0].state = Exited;
    for seen in &mut status.containers {
        *seen = succeeded(seen.clone());
    }
    let over = plan(&pod, &status);
    assert!(over.is_empty() && over.finished);
    // An agent that starts anew finds no status, and sandboxes that are younger than the pod.
    pod.status = None;
    status.sandboxes[0].pod_started_at = Some(at(-100));
    assert!(plan(&pod, &status).finished);
    status.sandboxes[0].pod_started_at = Some(at(-99));
    assert!(!plan(&pod, &status).finished);
    // A pod nobody started yet has all its time.
    pod.status = None;
    let new = plan(&pod, &PodStatus::empty(status.uid));
    assert_eq!(new.steps.len(), 4);
    assert_eq!(new.look_again, None);
}

#[test]
fn a_pod_being_deleted_only_shrinks() {
    let (mut pod, mut status) = base("Always");
    pod.metadata.deletion_timestamp = Some(meta::Time(at(0)));
    status.containers[1] = instance(&pod, "foo2", 0, Exited);
    // docker 5
    assert_eq!(plan(&pod, &status), Plan::default());
    status.containers[0] = instance(&pod, "foo1", 0, Exited);
    status.containers[2] = instance(&pod, "foo3", 0, Exited);
    assert_eq!(steps(&plan(&pod, &status)), ["kill-pod (completed)"]);
    let nothing = plan(&pod, &PodStatus::empty(status.uid));
    assert!(nothing.is_empty() && nothing.finished);
}

#[test]
fn a_terminal_pod_is_never_revived() {
    for phase in ["Succeeded", "Failed"] {
        let (mut pod, status) = base("Always");
        pod.status = Some(core::PodStatus {
            phase: Some(phase.into()),
            ..core::PodStatus::default()
        });
        let some = plan(&pod, &status);
        assert_eq!(steps(&some), ["kill-pod (completed)"], "{phase}");
        let none = plan(&pod, &PodStatus::empty(status.uid));
        assert!(none.is_empty() && none.finished, "{phase}");
    }
}

#[test]
fn what_still_runs_of_a_terminal_pod_is_stopped_for_the_reason_of_its_status() {
    let (mut pod, status) = base("Always");
    let empty = Some(String::new());
    for (reason, message, expected) in [
        (
            Some("Evicted".into()),
            Some("no memory".into()),
            "Evicted: no memory",
        ),
        (Some("Evicted".into()), None, "Evicted"),
        (empty.clone(), Some("no memory".into()), "no memory"),
        (empty, None, "all containers of the pod have ended"),
    ] {
        pod.status = Some(core::PodStatus {
            phase: Some("Failed".into()),
            reason,
            message,
            ..core::PodStatus::default()
        });
        let plan = plan(&pod, &status);
        let because: Vec<String> = reasons(&plan).map(ToString::to_string).collect();
        assert_eq!(because, [expected]);
    }
}

#[test]
fn reasons_are_told_in_the_order_of_steps() {
    let (pod, mut status) = base("Always");
    status.containers[2] = instance(&pod, "foo3", 0, Unknown);
    let why: BTreeMap<String, usize> = reasons(&plan(&pod, &status))
        .enumerate()
        .map(|(index, reason)| (reason.to_string(), index))
        .collect();
    assert_eq!(why["container foo3 is in an unknown state"], 1);
}
