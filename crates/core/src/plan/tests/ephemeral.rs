//! Containers that were added to look into a pod.

use super::*;
use ContainerState::{Created, Exited, Running, Unknown};

fn with_debugger(mut pod: Pod) -> Pod {
    spec_of(&mut pod).ephemeral_containers = Some(vec![core::EphemeralContainer {
        name: "debug".into(),
        image: Some("debug:1".into()),
        ..core::EphemeralContainer::default()
    }]);
    pod
}

#[test]
fn one_is_started_once_whatever_became_of_it() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = with_debugger(pod(policy, Vec::new(), &["foo1"]));
        let running = status(vec![instance(&pod, "foo1", 0, Running)]);
        let started = ["start debug #0 (neverStarted)"];
        assert_eq!(steps(&plan(&pod, &running)), started, "{policy}");
        for (state, expected) in [
            (Created, &["start debug #0 (createdOnly)"][..]),
            (Running, &[]),
            (Exited, &[]),
            (Unknown, &[]),
        ] {
            let mut status = running.clone();
            status.containers.push(instance(&pod, "debug", 0, state));
            // docker 30, node-api 13
            assert_eq!(steps(&plan(&pod, &status)), expected, "{policy} {state}");
        }
    }
}

#[test]
fn one_comes_before_init_containers_and_needs_a_sandbox() {
    let pod = with_debugger(pod("Always", vec![container("init")], &["foo1"]));
    let empty = status(Vec::new());
    // node-api 13
    assert_eq!(
        steps(&plan(&pod, &empty)),
        [
            "start debug #0 (neverStarted)",
            "start init #0 (neverStarted)"
        ]
    );
    let nothing = PodStatus::empty(empty.uid.clone());
    let first = steps(&plan(&pod, &nothing));
    assert!(
        first.iter().all(|step| !step.contains("debug")),
        "{first:?}"
    );
    // One that ran in a sandbox that is gone is not started in the next.
    let mut dead = status(vec![instance(&pod, "debug", 0, Exited)]);
    dead.sandboxes[0].state = Exited;
    let steps = steps(&plan(&pod, &dead));
    assert!(
        steps.iter().all(|step| !step.contains("debug")),
        "{steps:?}"
    );
}

#[test]
fn one_keeps_no_pod_alive() {
    let pod = with_debugger(pod("Never", Vec::new(), &["foo1"]));
    let done = succeeded(instance(&pod, "foo1", 0, Exited));
    let plan = plan(
        &pod,
        &status(vec![done, instance(&pod, "debug", 0, Running)]),
    );
    // node-api 13
    assert!(plan.finished);
    let mut deleted = pod;
    deleted.metadata.deletion_timestamp = Some(meta::Time(at(0)));
    let running = status(vec![instance(&deleted, "foo1", 0, Running)]);
    assert_eq!(
        steps(&super::plan(&deleted, &running)),
        Vec::<String>::new()
    );
}
