//! Tests of the planner.
//!
//! The tables follow upstream's `kuberuntime_manager_test.go` (`TestComputePodActions*`): a base
//! pod and status, changed, and the steps that follow.

use std::collections::BTreeMap;

use super::*;
use crate::api::{PodUid, meta};
use crate::observed::{ContainerHash, ContainerStatus, SandboxStatus};

mod apps;
mod by_hand;
mod ephemeral;
mod in_place;
mod inits;
mod probes;
mod properties;

/// The present in every test, in seconds.
const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(NOW + seconds).unwrap()
}

fn container(name: &str) -> core::Container {
    core::Container {
        name: name.into(),
        image: Some(format!("{name}:1")),
        ..core::Container::default()
    }
}

fn sidecar(name: &str) -> core::Container {
    core::Container {
        restart_policy: Some("Always".into()),
        ..container(name)
    }
}

fn pod(policy: &str, inits: Vec<core::Container>, apps: &[&str]) -> Pod {
    Pod {
        metadata: meta::ObjectMeta {
            name: Some("foo".into()),
            namespace: Some("new".into()),
            uid: Some("12345678".into()),
            ..meta::ObjectMeta::default()
        },
        spec: Some(core::PodSpec {
            restart_policy: Some(policy.into()),
            init_containers: (!inits.is_empty()).then_some(inits),
            containers: apps.iter().map(|name| container(name)).collect(),
            ..core::PodSpec::default()
        }),
        status: None,
    }
}

fn rule(action: &str, operator: &str, code: i32) -> core::ContainerRestartRule {
    core::ContainerRestartRule {
        action: action.into(),
        exit_codes: Some(core::ContainerRestartRuleOnExitCodes {
            operator: operator.into(),
            values: Some(vec![code]),
        }),
    }
}

fn spec_of(pod: &mut Pod) -> &mut core::PodSpec {
    pod.spec.as_mut().unwrap()
}

fn sandbox(attempt: u32, state: ContainerState) -> SandboxStatus {
    SandboxStatus {
        by_hand: None,
        id: ContainerId::docker(format!("sandbox{attempt}")),
        attempt,
        state,
        created_at: at(-1000 + i64::from(attempt)),
        pod_started_at: None,
        host_network: false,
        ips: if state == ContainerState::Running {
            vec!["10.0.0.2".parse().unwrap()]
        } else {
            Vec::new()
        },
    }
}

/// An instance of a container of the pod: `Exited` ones ended badly a second ago.
fn instance(pod: &Pod, name: &str, restart_count: u32, state: ContainerState) -> ContainerStatus {
    let (role, container) = spec::find_any_container(pod, name).unwrap();
    let exited = state == ContainerState::Exited;
    ContainerStatus {
        by_hand: None,
        id: ContainerId::docker(format!("{name}-{restart_count}")),
        name: name.into(),
        role,
        state,
        created_at: at(-900 + i64::from(restart_count)),
        started_at: (state != ContainerState::Created).then(|| at(-800)),
        finished_at: exited.then(|| at(-1)),
        exit_code: exited.then_some(1),
        image: container.image.as_deref().unwrap().into(),
        image_id: "".into(),
        hash: spec::container_hash(&container),
        restart_count,
        pod_restarts: 0,
        reason: if exited { "Error" } else { "" }.into(),
        message: "".into(),
    }
}

fn succeeded(seen: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        state: ContainerState::Exited,
        finished_at: Some(at(-1)),
        exit_code: Some(0),
        reason: "Completed".into(),
        ..seen
    }
}

/// A pod in a good sandbox, with these instances.
fn status(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        full_name: crate::api::FullName::new("foo", "new"),
        ips: vec!["10.0.0.2".parse().unwrap()],
        containers,
        sandboxes: vec![sandbox(0, ContainerState::Running)],
        ..PodStatus::empty(PodUid::from("12345678"))
    }
}

/// The base status: everything runs.
fn all_running(pod: &Pod) -> PodStatus {
    status(
        spec::containers(pod)
            .map(|(role, c)| {
                let seen = instance(pod, &c.name, 0, ContainerState::Running);
                if role == Role::Init {
                    succeeded(seen)
                } else {
                    seen
                }
            })
            .collect(),
    )
}

fn plan_with(pod: &Pod, status: &PodStatus, backoff: &Backoff) -> Plan {
    compute_pod_actions(&PlanInput {
        pod,
        status,
        backoff,
        probes: &ProbeResults::default(),
        gc: ContainerGcPolicy::default(),
        now: at(0),
    })
}

fn plan_probed(pod: &Pod, status: &PodStatus, probes: &ProbeResults) -> Plan {
    compute_pod_actions(&PlanInput {
        pod,
        status,
        backoff: &Backoff::default(),
        probes,
        gc: ContainerGcPolicy::default(),
        now: at(0),
    })
}

fn plan(pod: &Pod, status: &PodStatus) -> Plan {
    plan_with(pod, status, &Backoff::default())
}

/// The reasons of all steps, in order.
fn reasons(plan: &Plan) -> impl Iterator<Item = &Reason> {
    plan.steps.iter().filter_map(|step| match step {
        Step::KillPod { reason }
        | Step::KillContainer { reason, .. }
        | Step::CreateSandbox { reason, .. }
        | Step::StartContainer { reason, .. } => Some(reason),
        Step::RemoveContainer { .. } => None,
    })
}

/// Steps in short: `kill-pod(reason)`, `kill a-0 (reason)`, `sandbox 1 (reason)`,
/// `start a #1 (reason)`, `remove a-0`.
fn steps(plan: &Plan) -> Vec<String> {
    let kind = |reason: &Reason| {
        let json = serde_json::to_value(reason).unwrap();
        json["kind"].as_str().unwrap().to_owned()
    };
    let step = |step: &Step| match step {
        Step::KillPod { reason } => format!("kill-pod ({})", kind(reason)),
        Step::KillContainer { id, reason, .. } => format!("kill {} ({})", id.id, kind(reason)),
        Step::CreateSandbox { attempt, reason } => format!("sandbox {attempt} ({})", kind(reason)),
        Step::StartContainer {
            name,
            restart_count,
            reason,
            ..
        } => format!("start {name} #{restart_count} ({})", kind(reason)),
        Step::RemoveContainer { id, .. } => format!("remove {}", id.id),
    };
    plan.steps.iter().map(step).collect()
}
