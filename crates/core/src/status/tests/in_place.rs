//! Statuses of pods whose containers are restarted all at once
//! (upstream's `TestGenerateAllContainersRestartingCondition`).

use super::*;
use crate::observed::ContainerState::{Exited, Running};
use crate::restart::ACTION_RESTART_ALL;

/// A pod that is never restarted but when `web` exits with 42.
fn asking() -> Pod {
    let mut pod = pod("Never", vec![container("init")], &["app", "web"]);
    let web = &mut pod.spec.as_mut().unwrap().containers[1];
    web.restart_policy = Some("Never".into());
    web.restart_policy_rules = Some(vec![core::ContainerRestartRule {
        action: ACTION_RESTART_ALL.into(),
        exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
            operator: "In".into(),
            values: Some(vec![42]),
        }),
    }]);
    pod
}

fn since(seen: ContainerStatus, pod_restarts: u32) -> ContainerStatus {
    ContainerStatus {
        pod_restarts,
        ..seen
    }
}

/// The condition's status and reason.
fn restarting(status: &core::PodStatus) -> (&str, Option<&str>) {
    let condition = condition(status, "AllContainersRestarting");
    (&condition.status, condition.reason.as_deref())
}

fn api_of<'a>(status: &'a core::PodStatus, name: &str) -> &'a ApiContainer {
    let apps = status.container_statuses.iter().flatten();
    let inits = status.init_container_statuses.iter().flatten();
    apps.chain(inits).find(|c| c.name == name).unwrap()
}

/// Whether a container waits for its restart, the exit code of its last instance, its restart count.
fn waits(status: &core::PodStatus, name: &str) -> (bool, Option<i32>, i32) {
    let status = api_of(status, name);
    let state = status.state.as_ref().unwrap();
    let waiting = state.waiting.as_ref().and_then(|w| w.reason.as_deref());
    let last = status.last_state.as_ref();
    let last = last.and_then(|last| last.terminated.as_ref());
    let waits = waiting == Some("RestartingAllContainers");
    (
        waits,
        last.map(|ended| ended.exit_code),
        status.restart_count,
    )
}

#[test]
fn the_exit_that_restarts_all_ends_no_pod_and_is_told() {
    let pod = asking();
    let init = exited(&pod, "init", 0);
    let ask = exited(&pod, "web", 42);
    let status =
        |containers: Vec<ContainerStatus>| compute_pod_status(&input(&pod, &observed(containers)));
    let up = vec![running(&pod, "web"), running(&pod, "app"), init.clone()];
    assert_eq!(restarting(&status(up)), ("False", None));

    let asked = status(vec![ask.clone(), running(&pod, "app"), init.clone()]);
    let started = ("True", Some("RestartAllContainersStarted"));
    // docker 5a
    assert_eq!(restarting(&asked), started);
    assert_eq!(asked.phase.as_deref(), Some("Running"));
    assert_eq!(waits(&asked, "web"), (true, Some(42), 0));

    // Everything has stopped.
    let killed = exited(&pod, "app", 137);
    let stopped = vec![ask, killed, init];
    let all = status(stopped.clone());
    assert_eq!(restarting(&all), started);
    assert_eq!(all.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&all, "Ready").status, "False");
    for (name, code) in [("web", 42), ("app", 137), ("init", 0)] {
        assert_eq!(waits(&all, name), (true, Some(code), 0), "{name}");
    }

    // The first container is back, and runs its second time.
    let mut again = stopped;
    again.insert(0, since(instance(&pod, "init", 1, Running, None), 1));
    let init = status(again.clone());
    assert_eq!(restarting(&init), ("False", None));
    assert_eq!(init.phase.as_deref(), Some("Pending"));
    assert_eq!(waits(&init, "web"), (true, Some(42), 0));
    assert_eq!(condition(&init, "Initialized").status, "True");

    again[0] = since(instance(&pod, "init", 1, Exited, Some(0)), 1);
    for name in ["web", "app"] {
        again.insert(0, since(instance(&pod, name, 1, Running, None), 1));
    }
    let done = status(again);
    assert_eq!(restarting(&done), ("False", None));
    assert_eq!(done.phase.as_deref(), Some("Running"));
    assert_eq!(waits(&done, "web"), (false, Some(42), 1));
    assert_eq!(waits(&done, "app"), (false, Some(137), 1));
    assert_eq!(condition(&done, "Ready").status, "True");
}

#[test]
fn a_pod_that_ends_is_not_restarted() {
    let pod = asking();
    let seen = |code| {
        observed(vec![
            exited(&pod, "web", code),
            exited(&pod, "app", 137),
            exited(&pod, "init", 0),
        ])
    };
    for (code, terminating, phase, reason) in [
        (42, true, "Failed", Some("PodFailed")),
        (1, false, "Failed", Some("PodFailed")),
        (42, false, "Running", Some("RestartAllContainersStarted")),
    ] {
        let seen = seen(code);
        let status = compute_pod_status(&StatusInput {
            terminating,
            is_static: false,
            ..input(&pod, &seen)
        });
        assert_eq!(status.phase.as_deref(), Some(phase), "{code} {terminating}");
        assert_eq!(restarting(&status).1, reason, "{code} {terminating}");
        assert_eq!(waits(&status, "web").0, phase == "Running");
    }
    // Pods without such a rule have no such condition.
    let plain = super::pod("Never", Vec::new(), &["web"]);
    let seen = observed(vec![running(&plain, "web")]);
    let status = compute_pod_status(&input(&plain, &seen));
    let kinds: Vec<String> = status
        .conditions
        .unwrap()
        .into_iter()
        .map(|c| c.type_)
        .collect();
    assert!(
        !kinds.contains(&"AllContainersRestarting".to_owned()),
        "{kinds:?}"
    );
}
