//! Node admission: whether this node accepts a pod at all.
//!
//! Checked once, when a pod is new to this process: before its worker starts it, and never again for an
//! API pod. A refused pod fails with the reason that `kubectl` users know, and is not tried again.
//!
//! Upstream: `pkg/kubelet/lifecycle/predicate.go`, `pkg/kubelet/preemption/preemption.go`,
//! `pkg/scheduler/eventhandlers.go` (`AdmissionCheck`), `pkg/kubelet/sysctl/allowlist.go`,
//! `pkg/kubelet/lifecycle/handlers.go` (`appArmorAdmitHandler`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::quantity::Quantity;
use crate::api::{FullName, Pod, PodUid, Timestamp, VALUES_MAX, core, is_too_large, meta};
use crate::ending::{ending, is_api_pod};
use crate::pressure::{self, Pressure, Pressures};
use crate::resources::QosClass;
use crate::small::SmallCollect;
use crate::{app_armor, fields, resources, spec};

mod affinity;
mod fit;
mod preempt;
mod sysctls;
#[cfg(test)]
mod tests;

pub use fit::{
    HOST_PORT_CONFLICT, has_host_ports, held_request, host_port_holder, pod_requests,
    with_held_resources,
};
pub use preempt::awaited;

use fit::Shortage;

/// Label that names a node's operating system.
const OS_LABEL: &str = "kubernetes.io/os";
/// The only supported operating system.
const OS: &str = "linux";
/// The beginning of the message of a pod that the node refused; the cause follows.
pub const REJECTED: &str = "Pod was rejected: ";
/// Reason of the status of a pod that makes room for a critical one.
const PREEMPTING: &str = "Preempting";
/// Priority from which on a pod counts as critical (upstream `SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// The node as admission sees it. The default, a node without any known facts, refuses only host ports
/// that are taken and pods of another operating system.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdmitNode {
    /// Its name; empty if there is none to compare with.
    pub name: Arc<str>,
    /// Its labels; none while its Node object isn't known, and then node selectors are not checked.
    pub labels: Option<BTreeMap<String, String>>,
    /// Its taints.
    pub taints: Vec<core::Taint>,
    /// The resources that pods may request together; none if they are not tracked.
    pub allocatable: Option<BTreeMap<String, Quantity>>,
    /// Most pods it runs; none for no bound.
    pub pods_max: Option<u32>,
    /// Whether the host doesn't enforce `AppArmor` profiles.
    pub app_armor_disabled: bool,
    /// The pressures that the node is under.
    pub pressures: Pressures,
    /// Whether the Node belongs to another agent, which starts the new pods that are bound to it.
    pub is_anothers: bool,
}

impl AdmitNode {
    /// The node that an observed Node object describes. Resources count once its `allocatable` is set.
    pub fn of(node: &core::Node) -> Self {
        let parsed = |list: &BTreeMap<String, _>| -> BTreeMap<String, Quantity> {
            let readable =
                |(name, q): (&String, _)| Some((name.clone(), Quantity::try_from(q).ok()?));
            list.iter().filter_map(readable).collect_map()
        };
        let allocatable = node.status.as_ref().and_then(|s| s.allocatable.as_ref());
        let allocatable = allocatable.map(parsed);
        let pods_max = allocatable.as_ref().and_then(|list| list.get(fit::PODS));
        Self {
            name: node.metadata.name.as_deref().unwrap_or_default().into(),
            labels: Some(node.metadata.labels.clone().unwrap_or_default()),
            taints: node
                .spec
                .as_ref()
                .and_then(|s| s.taints.clone())
                .unwrap_or_default(),
            pods_max: pods_max.and_then(|pods| u32::try_from(pods.ceil()).ok()),
            allocatable,
            app_armor_disabled: false,
            pressures: Pressures::new(),
            is_anothers: false,
        }
    }

    /// The same node, on a host that enforces `AppArmor` profiles or doesn't.
    #[must_use]
    pub fn on_host(mut self, app_armor: bool) -> Self {
        self.app_armor_disabled = !app_armor;
        self
    }

    /// The same, under these pressures.
    #[must_use]
    pub fn under(mut self, pressures: Pressures) -> Self {
        self.pressures = pressures;
        self
    }

    /// The node for a pod of which something exists here already. The node's pressures don't refuse
    /// such a pod: eviction chooses the pods to stop. Nor do its resources refuse an API pod that still
    /// runs, whose requests may have changed since its admission. A pod that has to start again, as
    /// after a reboot, needs free resources.
    #[must_use]
    pub fn for_one_that_is_here(mut self, pod: &Pod, runs: bool) -> Self {
        self.pressures = Pressures::new();
        if runs && is_api_pod(pod) {
            self.allocatable = None;
        }
        self
    }
}

/// Whether a new pod is ignored: the Node that it is bound to belongs to another agent, and nothing of
/// the pod exists here.
pub fn is_left_to_another(pod: &Pod, node: &AdmitNode, is_here: bool) -> bool {
    node.is_anothers && is_api_pod(pod) && !is_here && ending(pod).is_none()
}

/// Why a pod ends as failed here, for its status and its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// In one word.
    pub reason: Arc<str>,
    /// `status.message`.
    pub message: Arc<str>,
    /// The cause of the failure.
    pub cause: FailureCause,
    /// The field of the pod that caused it, if there is one.
    pub field: Option<Arc<str>>,
}

/// The cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureCause {
    /// The node refuses the pod, which never ran here.
    Refused,
    /// It was running and is preempted for a critical pod.
    Preempted,
    /// It was running and is evicted, with this grace.
    Evicted {
        /// How long its containers may take to stop.
        grace: Duration,
        /// Whether the node is short of a resource; otherwise the pod exceeds a limit of its own.
        for_node: bool,
    },
}

impl Failure {
    fn refused(reason: &str, message: &str) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
            cause: FailureCause::Refused,
            field: None,
        }
    }

    /// A pod that is evicted.
    pub fn evicted(message: &str, grace: Duration, for_node: bool) -> Self {
        Self {
            reason: pressure::EVICTED.into(),
            message: message.into(),
            cause: FailureCause::Evicted { grace, for_node },
            field: None,
        }
    }

    /// Whether it is evicted.
    pub fn is_eviction(&self) -> bool {
        matches!(self.cause, FailureCause::Evicted { .. })
    }

    /// The failure of a pod that is preempted for a critical one.
    ///
    /// Upstream: `pkg/kubelet/preemption/preemption.go` (`message`).
    pub fn preempted() -> Self {
        Self {
            reason: PREEMPTING.into(),
            message: "Preempted in order to admit critical pod".into(),
            cause: FailureCause::Preempted,
            field: None,
        }
    }
}

/// The result of admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The pod may start, once these pods are preempted.
    Admitted {
        /// Pods to be stopped as preempted; most often none.
        preempt: Vec<PodUid>,
    },
    /// The pod fails.
    Refused(Failure),
}

/// The input of admission.
#[derive(Debug, Clone, Copy)]
pub struct AdmitInput<'a> {
    /// The pod that wants in.
    pub pod: &'a Pod,
    /// The pods that count: wanted, admitted, and not ended.
    pub others: &'a [Arc<Pod>],
    /// The node.
    pub node: &'a AdmitNode,
}

/// Whether the node takes the pod.
pub fn admit(input: &AdmitInput<'_>) -> Verdict {
    let pod = input.pod;
    if is_api_pod(pod) && is_too_large(&pod.metadata) {
        let message = format!(
            "the pod has more than {VALUES_MAX} values in lists and mappings, which is the maximum on this node"
        );
        return Verdict::Refused(Failure::refused("PodTooLarge", &message));
    }
    if is_pressed_out(pod, &input.node.pressures) {
        let pressures = pressure::listed(&input.node.pressures);
        let message = format!("The node had condition: {pressures}. ");
        return Verdict::Refused(Failure::refused(pressure::EVICTED, &message));
    }
    if is_api_pod(pod)
        && let Some(message) = sysctls::forbidden(pod)
    {
        return Verdict::Refused(Failure::refused("SysctlForbidden", &message));
    }
    let labels = pod.metadata.labels.as_ref();
    if labels.is_some_and(|l| l.get(OS_LABEL).is_some_and(|os| os != OS)) {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Verdict::Refused(Failure::refused(
            "PodOSSelectorNodeLabelDoesNotMatch",
            message,
        ));
    }
    if spec::spec(pod).os.as_ref().is_some_and(|os| os.name != OS) {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        return Verdict::Refused(Failure::refused("PodOSNotSupported", message));
    }
    let shortages = fit::shortages(input);
    let other = mismatch(input);
    if is_critical(pod) {
        // Being short of something is no reason to refuse a critical pod: others make room.
        return match other {
            Some(failure) => Verdict::Refused(failure),
            None if shortages.is_empty() => Verdict::Admitted {
                preempt: Vec::new(),
            },
            None => match preempt::victims(pod, input.others, &shortages) {
                Some(preempt) => Verdict::Admitted { preempt },
                None => Verdict::Refused(nobody_makes_room(pod, &shortages)),
            },
        };
    }
    let short = shortages.first().map(Shortage::failure);
    match short.or(other) {
        Some(failure) => Verdict::Refused(failure),
        None => Verdict::Admitted {
            preempt: Vec::new(),
        },
    }
}

/// Whether the node's pressures refuse a pod: if memory pressure is the only one, pods that are not
/// `BestEffort` and pods that tolerate it are accepted; otherwise none. Critical pods, which include
/// static ones, are always accepted.
///
/// Upstream: `Admit` of `pkg/kubelet/eviction/eviction_manager.go`.
fn is_pressed_out(pod: &Pod, pressures: &Pressures) -> bool {
    if pressures.is_empty() || is_critical(pod) {
        return false;
    }
    let only_memory = pressures
        .iter()
        .all(|pressure| *pressure == Pressure::Memory);
    let taint = core::Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..core::Taint::default()
    };
    let is_taken = || {
        resources::qos_class(pod) != QosClass::BestEffort || affinity::tolerates_taint(pod, &taint)
    };
    !(only_memory && is_taken())
}

/// The first check that isn't about resources and fails.
fn mismatch(input: &AdmitInput<'_>) -> Option<Failure> {
    let (pod, node) = (input.pod, input.node);
    let failed =
        |name: &str, why: &str| Failure::refused(name, &format!("Predicate {name} failed: {why}"));
    if let Some(labels) = &node.labels
        && !affinity::matches(pod, &node.name, labels)
    {
        return Some(failed(
            "NodeAffinity",
            "node(s) didn't match Pod's node affinity/selector",
        ));
    }
    let wanted = spec::spec(pod).node_name.as_deref().unwrap_or_default();
    if !wanted.is_empty() && !node.name.is_empty() && *wanted != *node.name {
        return Some(failed(
            "NodeName",
            "node(s) didn't match the requested node name",
        ));
    }
    if let Some((taken, holder)) = fit::host_port_taken(pod, input.others) {
        if is_api_pod(pod) {
            let why = "node(s) didn't have free ports for the requested pod ports";
            return Some(failed("NodePorts", why));
        }
        // Its author has one machine, and wants to know whom to ask.
        let name = FullName::of(holder);
        let message = format!(
            "host port {} is in use by pod {}/{}",
            fit::port_words(&taken),
            name.namespace,
            name.name
        );
        let (protocol, port, _) = taken;
        let field = fields::host_port(pod, port, protocol);
        return Some(Failure {
            field: field.map(Into::into),
            ..Failure::refused("NodePorts", &message)
        });
    }
    if is_api_pod(pod) && affinity::untolerated_no_execute(pod, &node.taints) {
        return Some(failed(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    // One that runs already has been asked before.
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if phase.is_none_or(|phase| phase == "Pending")
        && let Some(why) = app_armor::refusal(pod, !node.app_armor_disabled)
    {
        let message = format!("Cannot enforce AppArmor: {why}");
        return Some(Failure::refused("AppArmor", &message));
    }
    None
}

/// For a manifest's pod, the message names the short resources, as for any other pod: upstream's
/// mentions preemption, which doesn't help its author.
fn nobody_makes_room(pod: &Pod, shortages: &[Shortage]) -> Failure {
    if let Some(first) = shortages.first().filter(|_| !is_api_pod(pod)) {
        return first.failure();
    }
    let list: Vec<String> = shortages
        .iter()
        .map(|s| format!("(res: {}, q: {})", s.resource, s.missing()))
        .collect();
    let message = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error \
         finding a set of pods to preempt: no set of running pods found to reclaim resources: [{}]",
        list.join(", ")
    );
    Failure::refused("UnexpectedAdmissionError", &message)
}

/// Whether a pod is critical: one of a manifest, or one of system priority.
///
/// Upstream: `pkg/kubelet/types/pod_update.go` (`IsCriticalPod`).
pub fn is_critical(pod: &Pod) -> bool {
    !is_api_pod(pod) || is_system_critical(pod)
}

/// Whether a pod has system priority: it is never preempted or evicted.
pub fn is_system_critical(pod: &Pod) -> bool {
    let spec = spec::spec(pod);
    let is_system =
        |class: &str| matches!(class, "system-node-critical" | "system-cluster-critical");
    // A manifest names a class; only the API server turns it into a number.
    spec.priority.is_some_and(|p| p >= CRITICAL_PRIORITY)
        || (!is_api_pod(pod) && spec.priority_class_name.as_deref().is_some_and(is_system))
}

/// The order of admission of pods that are all new to this process: first running ones, then those of
/// manifests, then by age.
pub fn turn(pod: &Pod, runs: bool) -> (bool, bool, Option<Timestamp>, PodUid) {
    let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    (!runs, is_api_pod(pod), created, PodUid::of(pod))
}

/// Status of a pod that ends as failed here: its last status, if it ran, with phase, reason and
/// message.
///
/// Upstream: `pkg/kubelet/kubelet.go` (`rejectPod`).
pub fn failed_status(
    pod: &Pod,
    before: Option<&core::PodStatus>,
    failure: &Failure,
    now: Timestamp,
) -> core::PodStatus {
    let mut status = before.cloned().unwrap_or_else(|| core::PodStatus {
        start_time: Some(meta::Time(
            Timestamp::from_second(now.as_second()).unwrap_or(now),
        )),
        qos_class: Some(resources::qos_class(pod).as_str().to_owned()),
        ..core::PodStatus::default()
    });
    status.phase = Some("Failed".to_owned());
    status.reason = Some(failure.reason.to_string());
    let disrupted = match failure.cause {
        FailureCause::Refused
        | FailureCause::Evicted {
            for_node: false, ..
        } => None,
        FailureCause::Preempted => {
            Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned())
        }
        FailureCause::Evicted { for_node: true, .. } => Some(failure.message.to_string()),
    };
    status.message = Some(if failure.cause == FailureCause::Refused {
        format!("{REJECTED}{}", failure.message)
    } else {
        failure.message.to_string()
    });
    let conditions = status.conditions.get_or_insert_default();
    for condition in conditions.iter_mut() {
        if matches!(condition.type_.as_str(), "Ready" | "ContainersReady")
            && condition.status != "False"
        {
            "False".clone_into(&mut condition.status);
            condition.reason = Some("PodFailed".to_owned());
            condition.last_transition_time = Some(meta::Time(now));
        }
    }
    if let Some(message) = disrupted
        && !conditions.iter().any(|c| c.type_ == "DisruptionTarget")
    {
        conditions.push(core::PodCondition {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message),
            last_transition_time: Some(meta::Time(now)),
            ..core::PodCondition::default()
        });
    }
    if conditions.is_empty() {
        status.conditions = None;
    }
    status
}
