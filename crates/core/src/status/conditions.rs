//! The conditions of a pod.
//!
//! Upstream: `pkg/kubelet/status/generate.go`.

use crate::api::core::{Container, ContainerStatus, PodCondition, ResourceRequirements};
use crate::observed::{self, Role};
use crate::plan::sandbox_changed;
use crate::resources::{holds_others, same_amounts};
use crate::restart::could_restart_all;
use crate::spec;

use super::{StatusInput, phase, pod_restarts, time};

const READY_TO_START: &str = "PodReadyToStartContainers";
const INITIALIZED: &str = "Initialized";
const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const SCHEDULED: &str = "PodScheduled";
const RESIZE_PENDING: &str = "PodResizePending";
const ALL_RESTARTING: &str = "AllContainersRestarting";

/// The condition types that a kubelet owns; all others are preserved.
pub(super) const OWNED: [&str; 7] = [
    READY_TO_START,
    INITIALIZED,
    READY,
    CONTAINERS_READY,
    SCHEDULED,
    RESIZE_PENDING,
    ALL_RESTARTING,
];

/// The inputs of conditions.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) input: &'a StatusInput<'a>,
    pub(super) phase: &'static str,
    pub(super) init: &'a [ContainerStatus],
    pub(super) apps: &'a [ContainerStatus],
    /// The pod-level resources of the pod, if it has some.
    pub(super) resources: Option<&'a ResourceRequirements>,
}

/// One condition's value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Value {
    fn new(holds: bool) -> Self {
        Self {
            holds,
            reason: "",
            message: String::new(),
        }
    }

    fn because(holds: bool, reason: &'static str, message: String) -> Self {
        Self {
            holds,
            reason,
            message,
        }
    }
}

/// All conditions: foreign ones of the API object first, then ours in upstream's order.
pub(super) fn conditions(view: &View<'_>) -> Vec<PodCondition> {
    let containers_ready = containers_ready(view);
    let ours = [
        (
            READY_TO_START,
            Value::new(sandbox_changed(view.input.pod, view.input.observed).is_none()),
        ),
        (INITIALIZED, initialized(view)),
        (READY, ready(view, &containers_ready)),
        (CONTAINERS_READY, containers_ready),
        (SCHEDULED, Value::new(true)),
    ];
    let api = view.input.pod.status.as_ref();
    api.and_then(|s| s.conditions.as_ref())
        .into_iter()
        .flatten()
        .filter(|c| !OWNED.contains(&c.type_.as_str()))
        .cloned()
        .chain(ours.map(|(kind, value)| condition(view, kind, value)))
        .chain(all_restarting(view).map(|value| condition(view, ALL_RESTARTING, value)))
        .chain(resize_pending(view).map(|value| condition(view, RESIZE_PENDING, value)))
        .collect()
}

/// The condition that all containers are being restarted in place: from the exit that requires it until
/// the first of them is created again. None if no exit can require it.
///
/// Upstream: `GenerateAllContainersRestartingCondition`, which has it true until all are removed.
fn all_restarting(view: &View<'_>) -> Option<Value> {
    if !could_restart_all(view.input.pod) {
        return None;
    }
    Some(match view.phase {
        phase::SUCCEEDED => Value::because(false, "PodCompleted", String::new()),
        phase::FAILED => Value::because(false, "PodFailed", String::new()),
        _ if pod_restarts(view.input).pending.is_some() => {
            let message = "container exited with restart policy rule".to_owned();
            Value::because(true, "RestartAllContainersStarted", message)
        }
        _ => Value::new(false),
    })
}

/// The condition that a pod or a container has other resources than its current spec: this node doesn't
/// resize. None if no resize is pending; a manifest's pod can't be resized.
///
/// Upstream: `handlePodResourcesResize` of `pkg/kubelet/allocation/allocation_manager.go`.
fn resize_pending(view: &View<'_>) -> Option<Value> {
    if view.input.is_static || phase::terminal(Some(view.phase)).is_some() {
        return None;
    }
    let waits = |container: &Container| {
        let mut statuses = view.apps.iter().chain(view.init);
        let status = statuses.find(|status| status.name == container.name);
        status.is_some_and(|status| holds_others(container, status))
    };
    let waiting: Vec<&str> = spec::containers(view.input.pod)
        .filter(|(role, container)| *role != Role::Init && waits(container))
        .map(|(_, container)| container.name.as_str())
        .collect();
    let own = spec::spec(view.input.pod).resources.as_ref();
    let own = own.zip(view.resources);
    let message = if own.is_some_and(|(wanted, held)| !same_amounts(wanted, held)) {
        "this node doesn't resize pods; the pod and its containers keep their resources, even after restarts; the new resources apply to a new pod".to_owned()
    } else if waiting.is_empty() {
        return None;
    } else {
        format!(
            "this node doesn't resize containers; [{}] keep their resources, even after restarts; the new resources apply to a new pod",
            waiting.join(" ")
        )
    };
    Some(Value::because(true, "Infeasible", message))
}

/// A condition that keeps its transition time while its value is unchanged.
fn condition(view: &View<'_>, kind: &str, value: Value) -> PodCondition {
    let status = if value.holds { "True" } else { "False" };
    let before = view
        .input
        .before()
        .and_then(|s| s.conditions.as_ref())
        .and_then(|all| all.iter().find(|c| c.type_ == kind))
        .filter(|c| c.status == status);
    let changed = before
        .and_then(|c| c.last_transition_time.clone())
        .unwrap_or_else(|| time(view.input.now));
    PodCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: (!value.reason.is_empty()).then(|| value.reason.to_owned()),
        message: (!value.message.is_empty()).then_some(value.message),
        last_transition_time: Some(changed),
        ..PodCondition::default()
    }
}

fn containers_ready(view: &View<'_>) -> Value {
    let mut unknown = Vec::new();
    let mut unready = Vec::new();
    for (role, container) in spec::containers(view.input.pod) {
        let statuses = match role {
            Role::Init | Role::Ephemeral => continue,
            Role::Sidecar => view.init,
            Role::App => view.apps,
        };
        match statuses.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if view.phase == phase::SUCCEEDED && unknown.is_empty() {
        return Value::because(false, "PodCompleted", String::new());
    }
    if view.phase == phase::FAILED {
        return Value::because(false, "PodFailed", String::new());
    }
    true_unless("ContainersNotReady", &unknown, "unready", &unready)
}

fn initialized(view: &View<'_>) -> Value {
    let mut unknown = Vec::new();
    let mut incomplete = Vec::new();
    for (role, container) in spec::containers(view.input.pod) {
        let status = view.init.iter().find(|s| s.name == container.name);
        let complete = match role {
            Role::App | Role::Ephemeral => continue,
            Role::Init => status.map(|s| s.ready),
            Role::Sidecar => status.map(|s| s.started == Some(true)),
        };
        match complete {
            None => unknown.push(container.name.as_str()),
            Some(false) => incomplete.push(container.name.as_str()),
            Some(true) => {}
        }
    }
    if view.phase == phase::SUCCEEDED && unknown.is_empty() {
        return Value::because(true, "PodCompleted", String::new());
    }
    let any_started = view.apps.iter().any(|s| {
        s.state
            .as_ref()
            .is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    });
    // A pod that was initialized stays so while its containers are restarted in place.
    let restarts = pod_restarts(view.input);
    let has_run = |seen: &observed::ContainerStatus| {
        seen.role == Role::App && seen.started_at.is_some() && restarts.is_before(seen)
    };
    if any_started || view.input.observed.containers.iter().any(has_run) {
        return Value::new(true);
    }
    true_unless(
        "ContainersNotInitialized",
        &unknown,
        "incomplete",
        &incomplete,
    )
}

/// True if nothing is missing; otherwise false, with the missing containers.
fn true_unless(reason: &'static str, unknown: &[&str], how: &str, names: &[&str]) -> Value {
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!(
            "containers with unknown status: [{}]",
            unknown.join(" ")
        ));
    }
    if !names.is_empty() {
        messages.push(format!(
            "containers with {how} status: [{}]",
            names.join(" ")
        ));
    }
    if messages.is_empty() {
        Value::new(true)
    } else {
        Value::because(false, reason, messages.join(", "))
    }
}

fn ready(view: &View<'_>, containers_ready: &Value) -> Value {
    if !containers_ready.holds {
        return containers_ready.clone();
    }
    let api = view.input.pod.status.as_ref();
    let given = api
        .and_then(|s| s.conditions.as_deref())
        .unwrap_or_default();
    let messages: Vec<String> = spec::spec(view.input.pod)
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let kind = &gate.condition_type;
            match given.iter().find(|c| c.type_ == *kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {kind:?} does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate {kind:?} is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if messages.is_empty() {
        Value::new(true)
    } else {
        Value::because(false, "ReadinessGatesNotReady", messages.join(", "))
    }
}
