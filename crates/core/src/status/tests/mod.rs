//! Tests of the status, after upstream's `kubelet_pods_test.go`, `generate_test.go` and
//! `printers_test.go`.

use super::*;
use crate::api::core::{
    ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus as ApiContainer,
};
use crate::api::{ContainerId, FullName, PodUid};
use crate::observed::{ContainerHash, ContainerState, ContainerStatus, SandboxStatus};

mod computed;
mod ephemeral;
mod in_place;
mod phases;
mod words;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
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
            name: Some("web".into()),
            namespace: Some("ns".into()),
            uid: Some("u1".into()),
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

fn observed(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        full_name: FullName::new("web", "ns"),
        ips: vec!["10.0.0.2".parse().unwrap()],
        containers,
        sandboxes: vec![SandboxStatus {
            by_hand: None,
            id: ContainerId::docker("sandbox0"),
            attempt: 0,
            state: ContainerState::Running,
            created_at: at(-100),
            pod_started_at: None,
            host_network: false,
            ips: vec!["10.0.0.2".parse().unwrap()],
        }],
        ..PodStatus::empty(PodUid::from("u1"))
    }
}

/// An instance; with an exit code it has ended.
fn instance(
    pod: &Pod,
    name: &str,
    count: u32,
    state: ContainerState,
    code: Option<i32>,
) -> ContainerStatus {
    let (role, container) = spec::find_any_container(pod, name).unwrap();
    ContainerStatus {
        by_hand: None,
        id: ContainerId::docker(format!("{name}-{count}")),
        name: name.into(),
        role,
        state,
        created_at: at(-60),
        started_at: (state != ContainerState::Created).then(|| at(-50)),
        finished_at: code.map(|_| at(-10)),
        exit_code: code,
        image: container.image.as_deref().unwrap().into(),
        image_id: format!("docker-pullable://{name}@sha256:0").into(),
        hash: spec::container_hash(&container),
        restart_count: count,
        pod_restarts: 0,
        reason: match code {
            None => "",
            Some(0) => "Completed",
            Some(_) => "Error",
        }
        .into(),
        message: "".into(),
    }
}

fn running(pod: &Pod, name: &str) -> ContainerStatus {
    instance(pod, name, 0, ContainerState::Running, None)
}

fn exited(pod: &Pod, name: &str, code: i32) -> ContainerStatus {
    instance(pod, name, 0, ContainerState::Exited, Some(code))
}

/// A base to change by `StatusInput { .., ..base }`.
fn input<'a>(pod: &'a Pod, observed: &'a PodStatus) -> StatusInput<'a> {
    static NOTHING_WAITS: BTreeMap<Arc<str>, Waiting> = BTreeMap::new();
    static NOTHING_PROBED: std::sync::LazyLock<ProbeResults> =
        std::sync::LazyLock::new(ProbeResults::default);
    StatusInput {
        pod,
        observed,
        previous: None,
        waiting: &NOTHING_WAITS,
        probes: &NOTHING_PROBED,
        host_ips: &[],
        terminating: false,
        is_static: true,
        now: at(0),
    }
}

fn waits(name: &str, reason: &str, message: &str) -> BTreeMap<Arc<str>, Waiting> {
    let waiting = Waiting {
        reason: reason.into(),
        message: message.into(),
    };
    BTreeMap::from([(Arc::from(name), waiting)])
}

fn api_running() -> ApiState {
    ApiState {
        running: Some(ContainerStateRunning::default()),
        ..ApiState::default()
    }
}

fn api_ended(code: i32) -> ApiState {
    let reason = if code == 0 { "Completed" } else { "Error" };
    ApiState {
        terminated: Some(ContainerStateTerminated {
            exit_code: code,
            reason: Some(reason.into()),
            ..ContainerStateTerminated::default()
        }),
        ..ApiState::default()
    }
}

fn api_waiting(reason: &str) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: (!reason.is_empty()).then(|| reason.into()),
            message: None,
        }),
        ..ApiState::default()
    }
}

/// A container in a state, ready and started when it runs.
fn api(name: &str, state: ApiState) -> ApiContainer {
    let runs = state.running.is_some();
    ApiContainer {
        name: name.into(),
        ready: runs,
        started: Some(runs),
        state: Some(state),
        ..ApiContainer::default()
    }
}

/// A container that waits to be restarted after it ended with that code.
fn api_restarting(name: &str, code: i32) -> ApiContainer {
    ApiContainer {
        last_state: Some(api_ended(code)),
        ..api(name, api_waiting("CrashLoopBackOff"))
    }
}

fn condition<'a>(status: &'a core::PodStatus, kind: &str) -> &'a core::PodCondition {
    let all = status.conditions.as_ref().unwrap();
    all.iter().find(|c| c.type_ == kind).unwrap()
}
