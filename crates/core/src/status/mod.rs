//! Converts observed containers to the API's `PodStatus`.
//!
//! Upstream: `pkg/kubelet/kubelet_pods.go` (`generateAPIPodStatus`),
//! `pkg/kubelet/status/generate.go`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::core::{HostIP, PodIP};
use crate::api::{Pod, Timestamp, core, meta};
use crate::ending::{close_all, is_over};
use crate::observed::PodStatus;
use crate::plan::deadline::{Deadline, deadline_since};
use crate::plan::in_place::PodRestarts;
use crate::plan::{Waiting, is_over_without_sandbox};
use crate::probe::ProbeResults;
use crate::resources::{of_pod, qos_class};
use crate::restart::{could_restart_all, should_restart};
use crate::spec;

mod conditions;
mod containers;
pub mod merge;
mod phase;
mod printed;
#[cfg(test)]
mod tests;
pub mod trouble;
mod user;

pub use containers::{CONTAINER_CREATING, all_container_statuses, container_statuses};
pub use printed::{ended_and_failing, is_ready, printed_status};

/// `status.message` of a pod that outlived its `activeDeadlineSeconds`.
const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";

/// Everything a pod's API status is computed from.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    /// The pod as wanted.
    pub pod: &'a Pod,
    /// The pod as seen.
    pub observed: &'a PodStatus,
    /// The previous status, which has restart counts, start time and sticky phases.
    pub previous: Option<&'a core::PodStatus>,
    /// Why stopped containers wait: back-off, failed pulls, failed starts.
    pub waiting: &'a BTreeMap<Arc<str>, Waiting>,
    /// Results of its probes.
    pub probes: &'a ProbeResults,
    /// The node's addresses, primary first.
    pub host_ips: &'a [IpAddr],
    /// Whether the pod is being stopped.
    pub terminating: bool,
    /// Whether the pod is a static one: termination never forces its phase to a terminal one.
    pub is_static: bool,
    /// The present time.
    pub now: Timestamp,
}

impl StatusInput<'_> {
    /// The status to continue from: the last computed one, otherwise the API object's.
    fn before(&self) -> Option<&core::PodStatus> {
        self.previous.or(self.pod.status.as_ref())
    }
}

/// The restarts of all containers of the pod, for a pod that continues.
fn pod_restarts<'a>(input: &StatusInput<'a>) -> PodRestarts<'a> {
    if !could_restart_all(input.pod) {
        return PodRestarts::NONE;
    }
    let goes = input.terminating || input.pod.metadata.deletion_timestamp.is_some();
    let ended = || is_over(input.before()) || is_over(input.pod.status.as_ref());
    let exceeded =
        || deadline_since(input.pod, Some(started(input)), input.now) == Deadline::Passed;
    if goes || ended() || exceeded() {
        return PodRestarts::NONE;
    }
    PodRestarts::of(input.pod, input.observed)
}

/// Whether the pod has lost its sandbox and gets no other, as the planner decides: nothing of it runs,
/// and nothing will.
fn is_over_with_its_sandbox(input: &StatusInput<'_>) -> bool {
    let goes = input.terminating || input.pod.metadata.deletion_timestamp.is_some();
    let seen = input.observed;
    if goes || spec::is_stopped(input.pod) || seen.is_empty() || seen.anything_running() {
        return false;
    }
    is_over_without_sandbox(input.pod, &pod_restarts(input).since(seen))
}

/// Whether a container that ended with that code runs again: by its policy, with all others of its pod,
/// or by a user's order.
fn runs_again(input: &StatusInput<'_>, container: &core::Container, code: i32) -> bool {
    let newest = || {
        input
            .observed
            .find_container_status_by_name(&container.name)
    };
    spec::is_stopped(input.pod)
        || newest().is_some_and(|newest| {
            spec::to_restart(input.pod, &newest.id) || pod_restarts(input).is_before(newest)
        })
        || should_restart(input.pod, container, code)
}

/// Computes a pod's API status. Equal input gives an equal status; computing it again from itself
/// changes nothing.
pub fn compute_pod_status(input: &StatusInput<'_>) -> core::PodStatus {
    let before = input.before();
    let started = started(input);
    let init_statuses = containers::init_statuses(input);
    let mut app_statuses = containers::app_statuses(input);
    if is_over_with_its_sandbox(input) && app_statuses.iter().any(has_ended) {
        // Upstream leaves such a pod Pending forever.
        close_all(&mut app_statuses);
    }
    let ephemeral_statuses = containers::ephemeral_statuses(input);
    let resources = own_resources(input);
    let verdict = verdict(input, started, &init_statuses, &app_statuses);
    let view = conditions::View {
        input,
        phase: verdict.phase,
        init: &init_statuses,
        apps: &app_statuses,
        resources: resources.as_ref(),
    };
    let conditions = conditions::conditions(&view);
    let pod_ips = pod_ips(input);
    core::PodStatus {
        conditions: Some(conditions),
        phase: Some(verdict.phase.to_owned()),
        reason: verdict.reason,
        message: verdict.message,
        start_time: Some(time(started)),
        qos_class: Some(
            before
                .and_then(|s| s.qos_class.clone())
                .unwrap_or_else(|| qos_class(input.pod).as_str().to_owned()),
        ),
        host_ip: input.host_ips.first().map(ToString::to_string),
        host_ips: non_empty(
            input
                .host_ips
                .iter()
                .map(|ip| HostIP { ip: ip.to_string() })
                .collect(),
        ),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: non_empty(pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        init_container_statuses: non_empty(init_statuses),
        container_statuses: non_empty(app_statuses),
        ephemeral_container_statuses: non_empty(ephemeral_statuses),
        resources,
        resource_claim_statuses: before.and_then(|s| s.resource_claim_statuses.clone()),
        ..core::PodStatus::default()
    }
}

/// The resources of a pod as a whole: as of its containers, one of the API server keeps those that it had at
/// first. Those of a manifest's pod are in its spec.
fn own_resources(input: &StatusInput<'_>) -> Option<core::ResourceRequirements> {
    let own = of_pod(input.pod).filter(|_| !input.is_static)?;
    let before = input.before().and_then(|status| status.resources.as_ref());
    Some(before.unwrap_or(own).clone())
}

/// When the pod was started: as in its previous status, but no later than its sandboxes show, which a
/// status that was computed without observations didn't know; now, for a new one.
fn started(input: &StatusInput<'_>) -> Timestamp {
    let of =
        |status: Option<&core::PodStatus>| status.and_then(|s| s.start_time.as_ref()).map(|t| t.0);
    of(input.before())
        .or_else(|| of(input.pod.status.as_ref()))
        .into_iter()
        .chain(input.observed.pod_started_at())
        .min()
        .unwrap_or(input.now)
}

/// A phase with the words that belong to it.
struct Verdict {
    phase: &'static str,
    reason: Option<String>,
    message: Option<String>,
}

/// The phase: computed, overruled by a terminal one before it, or by the deadline.
fn verdict(
    input: &StatusInput<'_>,
    started: Timestamp,
    init: &[core::ContainerStatus],
    apps: &[core::ContainerStatus],
) -> Verdict {
    let api = input.pod.status.as_ref();
    let before = input.before();
    let of =
        |status: Option<&core::PodStatus>| phase::terminal(status.and_then(|s| s.phase.as_deref()));
    let exceeded = deadline_since(input.pod, Some(started), input.now) == Deadline::Passed;
    let computed = match phase::phase(input, init, apps) {
        phase if exceeded || phase::terminal(Some(phase)).is_some() => phase,
        _ if is_over_with_its_sandbox(input) => phase::of_ended(apps),
        phase => phase,
    };
    // Nothing leaves a terminal phase; what the API server has said wins over what was computed.
    let phase = of(api).or(of(before)).unwrap_or(computed);
    let kept = |pick: fn(&core::PodStatus) -> Option<&String>| {
        let same = before.filter(|s| s.phase.as_deref() == Some(phase));
        same.and_then(pick)
            .filter(|text| !text.is_empty())
            .or_else(|| same.and(api).and_then(pick))
            .cloned()
    };
    let verdict = Verdict {
        phase,
        reason: kept(|s| s.reason.as_ref()),
        message: kept(|s| s.message.as_ref()),
    };
    if exceeded && phase::terminal(Some(phase)).is_none() {
        return Verdict {
            phase: phase::FAILED,
            reason: Some("DeadlineExceeded".to_owned()),
            message: Some(DEADLINE_MESSAGE.to_owned()),
        };
    }
    verdict
}

fn has_ended(container: &core::ContainerStatus) -> bool {
    let state = container.state.as_ref();
    state.is_some_and(|state| state.terminated.is_some())
}

/// At most one address of each family, the node's primary family first.
pub fn one_per_family(seen: &[IpAddr], host_ips: &[IpAddr]) -> Vec<IpAddr> {
    let primary_is_v6 = host_ips.first().is_some_and(IpAddr::is_ipv6);
    let of_family = |v6: bool| seen.iter().copied().find(|ip| ip.is_ipv6() == v6);
    [primary_is_v6, !primary_is_v6]
        .into_iter()
        .filter_map(of_family)
        .collect()
}

/// The pod's addresses: at most one of each family, the node's primary family first. Kept when the
/// sandbox is gone; a pod in the host's network has the host's, which never change.
fn pod_ips(input: &StatusInput<'_>) -> Vec<String> {
    let before: Vec<String> = input
        .before()
        .and_then(|s| s.pod_ips.as_ref())
        .map(|ips| ips.iter().map(|ip| ip.ip.clone()).collect())
        .unwrap_or_default();
    let seen = if spec::is_host_network(input.pod) {
        if !before.is_empty() {
            return before;
        }
        input.host_ips
    } else {
        &input.observed.ips
    };
    let ips: Vec<String> = one_per_family(seen, input.host_ips)
        .iter()
        .map(ToString::to_string)
        .collect();
    if ips.is_empty() { before } else { ips }
}

/// A moment as the API writes it: in whole seconds.
fn time(at: Timestamp) -> meta::Time {
    meta::Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

fn non_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
