//! Containers that were added to look into a pod.

use super::*;

fn with_debugger(mut pod: Pod) -> Pod {
    pod.spec.as_mut().unwrap().ephemeral_containers = Some(vec![core::EphemeralContainer {
        name: "debug".into(),
        image: Some("debug:1".into()),
        ..core::EphemeralContainer::default()
    }]);
    pod
}

fn status_of(pod: &Pod, observed: &PodStatus, waiting: &[(&str, &str)]) -> core::PodStatus {
    let waiting = waiting.iter().map(|(name, reason)| {
        let waiting = Waiting {
            reason: (*reason).into(),
            message: "".into(),
        };
        (Arc::from(*name), waiting)
    });
    compute_pod_status(&StatusInput {
        pod,
        observed,
        previous: None,
        waiting: &waiting.collect(),
        probes: &ProbeResults::default(),
        host_ips: &[],
        terminating: false,
        is_static: false,
        now: at(0),
    })
}

#[test]
fn one_has_a_status_and_no_part_in_the_pods() {
    let pod = with_debugger(pod("Always", Vec::new(), &["app"]));
    let app = || instance(&pod, "app", 0, ContainerState::Running, None);
    let debug = |state, code| instance(&pod, "debug", 0, state, code);
    let reason = |status: &core::PodStatus| {
        let debug = &status.ephemeral_container_statuses.as_ref().unwrap()[0];
        let state = debug.state.clone().unwrap();
        let waits = state.waiting.map(|w| w.reason.unwrap_or_default());
        let ended = state
            .terminated
            .map(|t| format!("{} {}", t.reason.unwrap(), t.exit_code));
        waits.or(ended).unwrap_or_else(|| "running".to_owned())
    };
    for (seen, waiting, expected) in [
        (vec![app()], vec![], "ContainerCreating"),
        (vec![app()], vec![("debug", "ErrImagePull")], "ErrImagePull"),
        (
            vec![app(), debug(ContainerState::Running, None)],
            vec![],
            "running",
        ),
        // It is not started again, so nothing is waited for.
        (
            vec![app(), debug(ContainerState::Exited, Some(3))],
            vec![("debug", "CrashLoopBackOff")],
            "Error 3",
        ),
    ] {
        let status = status_of(&pod, &observed(seen), &waiting);
        // node-api 13
        assert_eq!(reason(&status), expected);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let ready = status
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == "Ready");
        assert_eq!(ready.unwrap().status, "True", "{expected}");
        assert_eq!(status.container_statuses.unwrap().len(), 1);
    }
}
