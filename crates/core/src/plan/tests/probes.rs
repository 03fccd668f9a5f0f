//! Plans for running containers by the results of their probes.

use super::*;
use crate::probe::{ProbeKind, ProbeResult};

const KINDS: [(ProbeKind, &str); 2] = [
    (ProbeKind::Liveness, "livenessFailed"),
    (ProbeKind::Startup, "startupFailed"),
];

fn probe(container: &mut core::Container, kind: ProbeKind) {
    let probe = Some(core::Probe::default());
    match kind {
        ProbeKind::Liveness => container.liveness_probe = probe,
        ProbeKind::Readiness => container.readiness_probe = probe,
        ProbeKind::Startup => container.startup_probe = probe,
    }
}

fn says(id: &str, kind: ProbeKind, result: ProbeResult) -> ProbeResults {
    let mut results = ProbeResults::default();
    results.set(&ContainerId::docker(id), kind, result);
    results
}

#[test]
fn a_container_that_failed_is_replaced_unless_never() {
    for (kind, reason) in KINDS {
        for policy in ["Always", "OnFailure"] {
            let mut pod = pod(policy, vec![], &["a", "b"]);
            probe(&mut spec_of(&mut pod).containers[0], kind);
            let status = all_running(&pod);
            let failed = says("a-0", kind, ProbeResult::Failure);
            // pods 56b
            assert_eq!(
                steps(&plan_probed(&pod, &status, &failed)),
                [
                    format!("kill a-0 ({reason})"),
                    format!("start a #1 ({reason})")
                ],
                "{policy}"
            );
        }
        let mut pod = pod("Never", vec![], &["a"]);
        probe(&mut spec_of(&mut pod).containers[0], kind);
        let status = all_running(&pod);
        let failed = says("a-0", kind, ProbeResult::Failure);
        let plan = plan_probed(&pod, &status, &failed);
        assert_eq!(steps(&plan), [format!("kill a-0 ({reason})")]);
        assert!(!plan.finished, "it is over once the container has ended");
        let failed = reasons(&plan).next().and_then(Reason::failed_probe);
        assert_eq!(failed, Some(kind));
    }
}

#[test]
fn whatever_else_a_probe_says_keeps_a_container() {
    use ProbeKind::{Liveness, Readiness, Startup};
    let none = ProbeResults::default();
    for (kind, results) in [
        (Liveness, none.clone()),
        (Liveness, says("a-0", Liveness, ProbeResult::Success)),
        // Of an instance that is gone.
        (Liveness, says("a-9", Liveness, ProbeResult::Failure)),
        // Of a probe that an edit took away.
        (Readiness, says("a-0", Liveness, ProbeResult::Failure)),
        (Readiness, says("a-0", Readiness, ProbeResult::Failure)),
        (Startup, none),
        (Startup, says("a-0", Startup, ProbeResult::Unknown)),
    ] {
        let mut pod = pod("Always", vec![], &["a"]);
        probe(&mut spec_of(&mut pod).containers[0], kind);
        let plan = plan_probed(&pod, &all_running(&pod), &results);
        assert!(plan.is_empty(), "{kind}: {:?}", steps(&plan));
    }
}

#[test]
fn what_comes_after_a_sidecar_waits_until_it_has_started() {
    let mut helper = sidecar("helper");
    probe(&mut helper, ProbeKind::Startup);
    probe(&mut helper, ProbeKind::Liveness);
    let pod = pod("Never", vec![helper, container("init")], &["app"]);
    let up = status(vec![instance(&pod, "helper", 0, ContainerState::Running)]);
    let startup = |result| says("helper-0", ProbeKind::Startup, result);
    for (results, expected) in [
        (ProbeResults::default(), vec![]),
        (startup(ProbeResult::Unknown), vec![]),
        (
            startup(ProbeResult::Success),
            vec!["start init #0 (neverStarted)"],
        ),
        // Its own restart does not ask the pod's policy.
        (
            startup(ProbeResult::Failure),
            vec![
                "kill helper-0 (startupFailed)",
                "start helper #1 (startupFailed)",
            ],
        ),
    ] {
        assert_eq!(steps(&plan_probed(&pod, &up, &results)), expected);
    }
    // Its liveness holds nothing back.
    let mut results = startup(ProbeResult::Success);
    let id = ContainerId::docker("helper-0");
    results.set(&id, ProbeKind::Liveness, ProbeResult::Failure);
    assert_eq!(
        steps(&plan_probed(&pod, &up, &results)),
        [
            "kill helper-0 (livenessFailed)",
            "start helper #1 (livenessFailed)",
            "start init #0 (neverStarted)",
        ]
    );
}

#[test]
fn a_sidecar_that_fails_later_is_replaced_beside_the_others() {
    let mut helper = sidecar("helper");
    probe(&mut helper, ProbeKind::Liveness);
    let pod = pod("Always", vec![helper], &["app"]);
    let failed = says("helper-0", ProbeKind::Liveness, ProbeResult::Failure);
    assert_eq!(
        steps(&plan_probed(&pod, &all_running(&pod), &failed)),
        [
            "kill helper-0 (livenessFailed)",
            "start helper #1 (livenessFailed)"
        ]
    );
}

#[test]
fn a_failed_probe_may_have_a_grace_of_its_own() {
    let mut pod = pod("Always", vec![], &["a"]);
    spec_of(&mut pod).termination_grace_period_seconds = Some(60);
    spec_of(&mut pod).containers[0].liveness_probe = Some(core::Probe {
        termination_grace_period_seconds: Some(3),
        ..core::Probe::default()
    });
    let failed = Reason::LivenessFailed {
        container: "a".into(),
        for_good: false,
    };
    let seconds = |pod: &Pod, reason: &Reason| kill_grace(pod, "a", reason).as_secs();
    assert_eq!(seconds(&pod, &failed), 3);
    assert_eq!(seconds(&pod, &Reason::Completed), 60);
    pod.metadata.deletion_grace_period_seconds = Some(5);
    assert_eq!(seconds(&pod, &failed), 5);
    pod.metadata.deletion_grace_period_seconds = None;
    spec_of(&mut pod).containers[0].liveness_probe = Some(core::Probe::default());
    assert_eq!(seconds(&pod, &failed), 60);
}
