//! Pods with init containers and sidecars.

use super::*;
use ContainerState::{Created, Exited, Running, Unknown};

fn base(policy: &str) -> (Pod, PodStatus) {
    let inits = ["init1", "init2", "init3"].map(container).to_vec();
    let pod = pod(policy, inits, &["foo1", "foo2"]);
    let mut status = all_running(&pod);
    // Before any regular container, all init containers done.
    status.containers.truncate(3);
    (pod, status)
}

fn replace(status: &mut PodStatus, seen: ContainerStatus) {
    let at = status.containers.iter().position(|c| c.name == seen.name);
    match at {
        Some(index) => status.containers[index] = seen,
        None => status.containers.insert(0, seen),
    }
}

fn drop_all(status: &mut PodStatus, names: &[&str]) {
    status.containers.retain(|c| !names.contains(&&*c.name));
}

#[test]
fn regular_containers_start_when_the_last_init_is_done() {
    let (pod, mut status) = base("Always");
    let started = [
        "start foo1 #0 (neverStarted)",
        "start foo2 #0 (neverStarted)",
    ];
    assert_eq!(steps(&plan(&pod, &status)), started);
    // Finished ones may be gone: the last tells.
    drop_all(&mut status, &["init1", "init2"]);
    assert_eq!(steps(&plan(&pod, &status)), started);
}

#[test]
fn an_init_containers_own_policy_decides_whether_its_failure_is_the_pods() {
    for (policy, own, comes_back) in [
        ("Always", "Never", false),
        ("Never", "OnFailure", true),
        ("Never", "Never", false),
    ] {
        for (state, reason) in [(Exited, "exited"), (Unknown, "unknownState")] {
            let (mut pod, mut status) = base(policy);
            let inits = spec_of(&mut pod).init_containers.as_mut().unwrap();
            inits[1].restart_policy = Some(own.into());
            drop_all(&mut status, &["init3"]);
            replace(&mut status, instance(&pod, "init2", 0, state));
            let plan = plan(&pod, &status);
            assert_eq!(plan.finished, !comes_back, "{policy} {own} {state}");
            let start = format!("start init2 #1 ({reason})");
            assert_eq!(
                steps(&plan).contains(&start),
                comes_back,
                "{policy} {own} {state}"
            );
        }
    }
    // Killed for its memory it failed, though it ended with 0.
    let (pod, mut status) = base("OnFailure");
    drop_all(&mut status, &["init3"]);
    let mut killed = succeeded(instance(&pod, "init2", 0, Exited));
    killed.reason = "OOMKilled".into();
    replace(&mut status, killed);
    assert_eq!(steps(&plan(&pod, &status)), ["start init2 #1 (exited)"]);
}

#[test]
fn init_containers_run_one_after_another() {
    let (pod, mut status) = base("Always");
    drop_all(&mut status, &["init3"]);
    // docker 28
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start init3 #0 (neverStarted)"]
    );
    drop_all(&mut status, &["init1"]);
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start init3 #0 (neverStarted)"]
    );
    replace(&mut status, instance(&pod, "init2", 0, Running));
    assert!(plan(&pod, &status).is_empty());
    drop_all(&mut status, &["init2"]);
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start init1 #0 (neverStarted)"]
    );
}

#[test]
fn a_failed_init_is_retried_or_ends_the_pod() {
    for (policy, seen, expect) in [
        ("Always", Exited, vec!["start init3 #1 (exited)"]),
        ("OnFailure", Exited, vec!["start init3 #1 (exited)"]),
        ("Never", Exited, vec!["kill-pod (initFailed)"]),
        ("Always", Created, vec!["start init3 #0 (createdOnly)"]),
        ("Never", Created, vec!["start init3 #0 (createdOnly)"]),
        (
            "Always",
            Unknown,
            vec![
                "kill init3-0 (unknownState)",
                "start init3 #1 (unknownState)",
            ],
        ),
        (
            "OnFailure",
            Unknown,
            vec![
                "kill init3-0 (unknownState)",
                "start init3 #1 (unknownState)",
            ],
        ),
        ("Never", Unknown, vec!["kill-pod (initFailed)"]),
    ] {
        let (pod, mut status) = base(policy);
        replace(&mut status, instance(&pod, "init3", 0, seen));
        let plan = plan(&pod, &status);
        // docker 28
        assert_eq!(steps(&plan), expect, "{policy} {seen}");
        assert_eq!(plan.finished, expect[0].starts_with("kill-pod"));
    }
}

#[test]
fn an_init_killed_for_its_memory_failed_whatever_its_exit_code() {
    for (policy, expect) in [
        ("Always", "start init2 #1 (exited)"),
        ("Never", "kill-pod (initFailed)"),
    ] {
        let (pod, mut status) = base(policy);
        drop_all(&mut status, &["init3"]);
        let mut killed = succeeded(instance(&pod, "init2", 0, Exited));
        killed.reason = "OOMKilled".into();
        replace(&mut status, killed);
        // pods 58, docker 62
        assert_eq!(steps(&plan(&pod, &status)), [expect], "{policy}");
    }
}

#[test]
fn a_failed_init_waits_and_holds_back_the_rest() {
    let (pod, mut status) = base("Always");
    replace(&mut status, instance(&pod, "init3", 0, Exited));
    let mut backoff = Backoff::default();
    plan(&pod, &status).record_backoff(&pod, &status, &mut backoff, at(-1));
    let waits = plan_with(&pod, &status, &backoff);
    assert!(waits.is_empty());
    assert!(waits.waiting.contains_key("init3"));
    assert_eq!(waits.look_again, Some(Duration::from_secs(9)));
}

#[test]
fn a_running_regular_container_proves_initialisation() {
    let (pod, mut status) = base("Always");
    status.containers = vec![instance(&pod, "foo1", 0, Running)];
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start foo2 #0 (neverStarted)"]
    );
    // An exited one may be of another sandbox.
    status.containers = vec![instance(&pod, "foo1", 0, Exited)];
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start init1 #0 (neverStarted)"]
    );
}

#[test]
fn a_new_sandbox_runs_init_again_from_the_first() {
    let (pod, mut status) = base("Always");
    status.containers = vec![
        instance(&pod, "foo1", 2, Running),
        succeeded(instance(&pod, "init2", 0, Exited)),
        succeeded(instance(&pod, "init1", 4, Exited)),
        instance(&pod, "init1", 3, Exited),
    ];
    status.sandboxes[0].state = Exited;
    // docker 23
    assert_eq!(
        steps(&plan(&pod, &status)),
        [
            "kill-pod (sandboxDead)",
            "remove init2-0",
            "remove init1-4",
            "remove init1-3",
            "sandbox 1 (sandboxDead)",
            "start init1 #5 (sandboxRecreated)",
        ]
    );
    // Nothing comes back of a pod that is never restarted.
    let (never, _) = base("Never");
    let over = plan(&never, &status);
    assert_eq!(steps(&over), ["kill-pod (sandboxDead)", "remove init1-3"]);
    assert!(over.finished);
}

fn with_sidecars(policy: &str) -> (Pod, PodStatus) {
    let inits = vec![sidecar("side1"), container("init2"), sidecar("side3")];
    let pod = pod(policy, inits, &["foo1"]);
    let status = all_running(&pod);
    (pod, status)
}

#[test]
fn sidecars_start_in_order_with_init_containers() {
    let (pod, mut status) = with_sidecars("Never");
    // pods 59
    assert!(plan(&pod, &status).is_empty());
    drop_all(&mut status, &["foo1"]);
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start foo1 #0 (neverStarted)"]
    );
    drop_all(&mut status, &["side3"]);
    // docker 29
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start side3 #0 (neverStarted)"]
    );
    drop_all(&mut status, &["init2"]);
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start init2 #0 (neverStarted)"]
    );
    drop_all(&mut status, &["side1"]);
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start side1 #0 (neverStarted)"]
    );
}

#[test]
fn sidecars_are_always_restarted() {
    for policy in ["Always", "OnFailure", "Never"] {
        let (pod, status) = with_sidecars(policy);
        for (seen, expect) in [
            (
                succeeded(instance(&pod, "side1", 0, Exited)),
                vec!["start side1 #1 (exited)"],
            ),
            (
                instance(&pod, "side1", 0, Exited),
                vec!["start side1 #1 (exited)"],
            ),
            (
                instance(&pod, "side1", 0, Created),
                vec!["start side1 #0 (createdOnly)"],
            ),
            (
                instance(&pod, "side1", 0, Unknown),
                vec![
                    "kill side1-0 (unknownState)",
                    "start side1 #1 (unknownState)",
                ],
            ),
        ] {
            let what = format!("{policy} {}", seen.state);
            let mut status = status.clone();
            replace(&mut status, seen);
            // docker 29
            assert_eq!(steps(&plan(&pod, &status)), expect, "{what}");
        }
        let mut gone = status.clone();
        drop_all(&mut gone, &["side1", "side3", "init2"]);
        assert_eq!(
            steps(&plan(&pod, &gone)),
            [
                "start side1 #0 (neverStarted)",
                "start side3 #0 (neverStarted)"
            ],
            "{policy}"
        );
        let mut edited = pod.clone();
        spec_of(&mut edited).init_containers.as_mut().unwrap()[2].image = Some("x".into());
        assert_eq!(
            steps(&plan(&edited, &status)),
            [
                "kill side3-0 (definitionChanged)",
                "start side3 #1 (definitionChanged)"
            ],
            "{policy}"
        );
    }
}

#[test]
fn a_sidecar_that_fails_while_initialising_does_not_stop_what_comes_after() {
    let (pod, mut status) = with_sidecars("Always");
    drop_all(&mut status, &["foo1", "side3"]);
    replace(&mut status, instance(&pod, "side1", 0, Exited));
    assert_eq!(
        steps(&plan(&pod, &status)),
        ["start side1 #1 (exited)", "start side3 #0 (neverStarted)"]
    );
    let mut backoff = Backoff::default();
    plan(&pod, &status).record_backoff(&pod, &status, &mut backoff, at(-1));
    let waits = plan_with(&pod, &status, &backoff);
    assert_eq!(steps(&waits), ["start side3 #0 (neverStarted)"]);
    assert!(waits.waiting.contains_key("side1"));
}

#[test]
fn sidecars_do_not_keep_a_finished_pod_alive() {
    for (policy, code) in [("Never", 1), ("Never", 0), ("OnFailure", 0)] {
        let (pod, mut status) = with_sidecars(policy);
        let mut done = succeeded(instance(&pod, "foo1", 0, Exited));
        done.exit_code = Some(code);
        replace(&mut status, done);
        let running = plan(&pod, &status);
        // pods 59
        assert_eq!(steps(&running), ["kill-pod (completed)"], "{policy} {code}");
        assert!(running.finished);
        // Once they are stopped too, they are not started again.
        for name in ["side1", "side3"] {
            replace(&mut status, instance(&pod, name, 0, Exited));
        }
        status.sandboxes[0].state = Exited;
        let stopped = plan(&pod, &status);
        assert!(stopped.is_empty() && stopped.finished, "{policy} {code}");
    }
}
