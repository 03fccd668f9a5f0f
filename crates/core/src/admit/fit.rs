//! Whether a pod fits beside the other pods: their number, resources, host ports.
//!
//! Upstream: `pkg/scheduler/framework/plugins/noderesources/fit.go`,
//! `k8s.io/component-helpers/resource/helpers.go` (`PodRequests`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::{Container, ContainerStatus, PodStatus};
use crate::api::quantity::Quantity;
use crate::api::{FullName, Pod};
use crate::ending::is_api_pod;
use crate::observed::Role;
use crate::resources::{
    CPU, MEMORY, amount_in, holds_others, request, request_in, requests_together, same_amounts,
};
use crate::spec;
use crate::status::container_statuses;

use super::{AdmitInput, Failure};
use crate::small::SmallCollect;

/// Name of the resource that counts pods.
pub(super) const PODS: &str = "pods";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
/// A port on all addresses.
const ANY_ADDRESS: &str = "0.0.0.0";

/// A resource that is short. CPU in thousandths, all others in whole units.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shortage {
    pub(super) resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Shortage {
    /// How much is missing.
    pub(super) fn missing(&self) -> i64 {
        self.requested
            .saturating_sub(self.capacity.saturating_sub(self.used))
    }

    pub(super) fn failure(&self) -> Failure {
        let message = format!(
            "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
            self.resource, self.requested, self.used, self.capacity
        );
        Failure::refused(&format!("OutOf{}", self.resource), &message)
    }
}

/// The resources that are short for the pod, in the order in which they are reported.
pub(super) fn shortages(input: &AdmitInput<'_>) -> Vec<Shortage> {
    let mut short = Vec::new();
    let count = i64::try_from(input.others.len()).unwrap_or(i64::MAX);
    if let Some(most) = input.node.pods_max
        && count >= i64::from(most)
    {
        short.push(Shortage {
            resource: PODS.to_owned(),
            requested: 1,
            used: count,
            capacity: i64::from(most),
        });
    }
    let Some(allocatable) = &input.node.allocatable else {
        return short;
    };
    let requests = pod_requests(input.pod);
    if requests.is_empty() {
        return short;
    }
    let used: Vec<_> = input.others.iter().map(|pod| pod_requests(pod)).collect();
    let others = requests
        .keys()
        .map(String::as_str)
        .filter(|name| ![CPU, MEMORY, EPHEMERAL_STORAGE].contains(name));
    for name in [CPU, MEMORY, EPHEMERAL_STORAGE].into_iter().chain(others) {
        let Some(requested) = requests.get(name) else {
            continue;
        };
        let capacity = match allocatable.get(name) {
            Some(capacity) => *capacity,
            // Cluster-level resources don't belong to this node.
            None if name.contains('/') => continue,
            None => Quantity::default(),
        };
        let used = used
            .iter()
            .filter_map(|requests| requests.get(name))
            .fold(Quantity::default(), |sum, q| sum.saturating_add(*q));
        if used.saturating_add(*requested) > capacity {
            short.push(Shortage {
                resource: name.to_owned(),
                requested: units(name, *requested),
                used: units(name, used),
                capacity: units(name, capacity),
            });
        }
    }
    short
}

/// An amount in the units in which upstream counts the resource.
pub(super) fn units(resource: &str, quantity: Quantity) -> i64 {
    if resource == CPU {
        quantity.milli_ceil()
    } else {
        quantity.ceil()
    }
}

/// The resources that a pod requests: its pod-level requests, otherwise those of its containers, and
/// its overhead. Resources without a request are not listed.
pub fn pod_requests(pod: &Pod) -> BTreeMap<String, Quantity> {
    let spec = spec::spec(pod);
    let mut requests = BTreeMap::new();
    for name in resource_names(pod) {
        let parsed =
            |list: Option<&BTreeMap<String, _>>| Quantity::try_from(list?.get(&name)?).ok();
        let of_pod = parsed(own_requests(pod));
        let of_containers =
            || requests_together(pod, |container| held_request(pod, container, &name));
        let total = of_pod.unwrap_or_else(of_containers);
        let overhead = parsed(spec.overhead.as_ref()).unwrap_or_default();
        let total = total.saturating_add(overhead);
        if !total.is_zero() && !total.is_negative() {
            requests.insert(name, total);
        }
    }
    requests
}

/// The request that a container holds: for an API pod, the request that the node has admitted, from its
/// status; otherwise that of its spec. Containers are not resized here: anyone who may edit the pod can
/// ask for a resize, but only the node writes the status.
///
/// Upstream: `determineContainerReqs` of `k8s.io/component-helpers/resource/helpers.go`, where a resize is
/// infeasible.
pub fn held_request(pod: &Pod, container: &Container, resource: &str) -> Option<Quantity> {
    let status = pod.status.as_ref().filter(|_| is_api_pod(pod));
    let Some(status) = status.and_then(|status| status_of(status, container)) else {
        return request(container, resource);
    };
    match (&status.resources, &status.allocated_resources) {
        (Some(started), _) => request_in(started, resource),
        (None, Some(allocated)) => amount_in(allocated, resource),
        // It was not reported yet, or the API server doesn't keep them.
        (None, None) => request(container, resource),
    }
}

/// The requests that a pod with resources of its own holds as a whole: as [`held_request`] of a container.
fn own_requests(pod: &Pod) -> Option<&BTreeMap<String, ApiQuantity>> {
    let own = spec::spec(pod).resources.as_ref()?;
    let status = pod.status.as_ref().filter(|_| is_api_pod(pod));
    let held = status.and_then(|status| status.resources.as_ref());
    held.unwrap_or(own).requests.as_ref()
}

/// The pod with the resources that it and its containers hold according to that status, instead of
/// those of its spec: a container that starts again gets what the node has admitted. A pod of a
/// manifest can't be resized, and stays as it is.
///
/// Upstream: `UpdatePodFromAllocation` of `pkg/kubelet/allocation/allocation_manager.go`.
pub fn with_held_resources(pod: &Arc<Pod>, status: Option<&PodStatus>) -> Arc<Pod> {
    let Some(status) = status.filter(|_| is_api_pod(pod)) else {
        return Arc::clone(pod);
    };
    let held = |container: &Container| {
        let status = status_of(status, container)?;
        status
            .resources
            .as_ref()
            .filter(|_| holds_others(container, status))
    };
    let wanted = spec::spec(pod).resources.as_ref();
    let own = status.resources.as_ref();
    let own = own.filter(|held| wanted.is_some_and(|wanted| !same_amounts(held, wanted)));
    if own.is_none() && spec::containers(pod).all(|(_, container)| held(container).is_none()) {
        return Arc::clone(pod);
    }
    let mut pod = Pod::clone(pod);
    if let Some(spec) = &mut pod.spec {
        if let Some(own) = own {
            spec.resources = Some(own.clone());
        }
        let inits = spec.init_containers.iter_mut().flatten();
        for container in inits.chain(&mut spec.containers) {
            if let Some(resources) = held(container) {
                container.resources = Some(resources.clone());
            }
        }
    }
    Arc::new(pod)
}

fn status_of<'a>(status: &'a PodStatus, container: &Container) -> Option<&'a ContainerStatus> {
    container_statuses(status).find(|status| status.name == container.name)
}

fn resource_names(pod: &Pod) -> BTreeSet<String> {
    let spec = spec::spec(pod);
    let of_containers = spec::containers(pod)
        .filter_map(|(_, c)| c.resources.as_ref())
        .flat_map(|r| [r.requests.as_ref(), r.limits.as_ref()]);
    of_containers
        .chain([own_requests(pod)])
        .chain([spec.overhead.as_ref()])
        .flatten()
        .flat_map(BTreeMap::keys)
        .cloned()
        .collect_set()
}

/// The first host port of the pod that another pod has, and that pod.
pub(super) fn host_port_taken<'a, 'b>(
    pod: &'b Pod,
    others: impl IntoIterator<Item = &'a Arc<Pod>>,
) -> Option<(HostPort<'b>, &'a Pod)> {
    let wanted: Vec<_> = host_ports(pod).collect();
    let mut taken = others
        .into_iter()
        .flat_map(|other| host_ports(other).map(move |port| (port, &**other)));
    taken.find_map(|(taken, other)| {
        let port = wanted.iter().find(|port| collide(port, &taken))?;
        Some((*port, other))
    })
}

/// The first host port of the pod that one of `others` has, as `80/tcp`, and that pod; other versions
/// of the pod don't count.
pub fn host_port_holder<'a>(pod: &Pod, others: &'a [Arc<Pod>]) -> Option<(String, &'a Pod)> {
    let name = FullName::of(pod);
    let others = others.iter().filter(|other| FullName::of(other) != name);
    let (port, holder) = host_port_taken(pod, others)?;
    Some((port_words(&port), holder))
}

/// Reason of the note that another pod has a pod's host port.
pub const HOST_PORT_CONFLICT: &str = "HostPortConflict";

/// A host port as users know it.
pub(super) fn port_words((protocol, number, _): &HostPort<'_>) -> String {
    format!("{number}/{}", protocol.to_lowercase())
}

/// Whether a pod has host ports.
pub fn has_host_ports(pod: &Pod) -> bool {
    host_ports(pod).next().is_some()
}

/// Protocol, number and address of a host port.
pub(super) type HostPort<'a> = (&'a str, i32, &'a str);

fn host_ports(pod: &Pod) -> impl Iterator<Item = HostPort<'_>> {
    spec::containers(pod)
        .filter(|(role, _)| *role != Role::Init)
        .flat_map(|(_, container)| container.ports.iter().flatten())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let address = port.host_ip.as_deref().filter(|ip| !ip.is_empty());
            Some((protocol, number, address.unwrap_or(ANY_ADDRESS)))
        })
}

fn collide(a: &HostPort<'_>, b: &HostPort<'_>) -> bool {
    (a.0, a.1) == (b.0, b.1) && (a.2 == b.2 || a.2 == ANY_ADDRESS || b.2 == ANY_ADDRESS)
}
