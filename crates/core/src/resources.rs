//! Requests, limits and the class of service that follows from them.
//!
//! Upstream: `pkg/apis/core/v1/helper/qos/qos.go`, `pkg/api/v1/resource/helpers.go`.

use std::collections::BTreeMap;

use crate::api::core::Container;
use crate::api::quantity::Quantity;
use crate::api::{Pod, PodUid};
use crate::spec;

/// Name of the CPU resource.
pub const CPU: &str = "cpu";
/// Name of the memory resource.
pub const MEMORY: &str = "memory";

/// A pod's class of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QosClass {
    /// Every container has CPU and memory limits, and requests equal to them.
    Guaranteed,
    /// Something is requested or limited.
    Burstable,
    /// Nothing is.
    BestEffort,
}

impl QosClass {
    /// The class as the API writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl QosClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Guaranteed, Self::Burstable, Self::BestEffort];
}

/// Path of a pod's cgroup, component by component; none when `root` names no cgroup.
///
/// Upstream: `pkg/kubelet/cm/pod_container_manager_linux.go` (`GetPodContainerName`).
#[must_use]
pub fn pod_cgroup(root: &str, class: QosClass, uid: &PodUid) -> Option<Vec<String>> {
    let mut parts: Vec<String> = root
        .trim_end_matches(".slice")
        .split('/')
        .filter(|part| !part.is_empty())
        .map(str::to_owned)
        .collect();
    if parts.is_empty() {
        return None;
    }
    match class {
        QosClass::Guaranteed => {}
        QosClass::Burstable => parts.push("burstable".to_owned()),
        QosClass::BestEffort => parts.push("besteffort".to_owned()),
    }
    parts.push(format!("pod{uid}"));
    Some(parts)
}

/// A container's limit; none when absent, unreadable or not above 0.
#[must_use]
pub fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    let limits = container.resources.as_ref()?.limits.as_ref()?;
    positive(limits, resource)
}

/// A container's request; its limit where it requests nothing, none when there is neither.
#[must_use]
pub fn request(container: &Container, resource: &str) -> Option<Quantity> {
    let requests = container
        .resources
        .as_ref()
        .and_then(|r| r.requests.as_ref());
    match requests.filter(|r| r.contains_key(resource)) {
        Some(requests) => positive(requests, resource),
        None => limit(container, resource),
    }
}

fn positive(
    list: &BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>,
    resource: &str,
) -> Option<Quantity> {
    let quantity = Quantity::try_from(list.get(resource)?).ok()?;
    (!quantity.is_zero() && !quantity.is_negative()).then_some(quantity)
}

/// The pod's class of service.
#[must_use]
pub fn qos_class(pod: &Pod) -> QosClass {
    let mut anything = false;
    let mut guaranteed = true;
    for (_, container) in spec::containers(pod) {
        for resource in [CPU, MEMORY] {
            let (request, limit) = (request(container, resource), limit(container, resource));
            anything |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (anything, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

/// The most memory the pod's containers may use together, in bytes: the sum over app containers
/// and sidecars, or the largest init container where that is more. None when any app container
/// or sidecar is unlimited.
#[must_use]
pub fn pod_memory_limit(pod: &Pod) -> Option<u64> {
    use crate::observed::Role;

    let mut together = Quantity::default();
    let mut largest_init = Quantity::default();
    for (role, container) in spec::containers(pod) {
        let limit = limit(container, MEMORY);
        match role {
            Role::App | Role::Sidecar => together = together.saturating_add(limit?),
            Role::Init => largest_init = largest_init.max(limit?),
            Role::Ephemeral => {}
        }
    }
    u64::try_from(together.max(largest_init).ceil())
        .ok()
        .filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(resources: &[Value]) -> Pod {
        let containers: Vec<Value> = resources
            .iter()
            .map(|r| json!({"name": "c", "resources": r}))
            .collect();
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn class_of_service_follows_requests_and_limits() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        let equal = json!({
            "limits": {"cpu": "1", "memory": "1Gi"},
            "requests": {"cpu": "1000m", "memory": "1024Mi"},
        });
        for (resources, expected) in [
            (vec![json!({})], QosClass::BestEffort),
            (vec![json!({"limits": {"cpu": "0"}})], QosClass::BestEffort),
            (vec![full.clone()], QosClass::Guaranteed),
            (vec![equal.clone(), full.clone()], QosClass::Guaranteed),
            (vec![full.clone(), json!({})], QosClass::Burstable),
            (
                vec![json!({"requests": {"cpu": "1m"}})],
                QosClass::Burstable,
            ),
            (
                vec![json!({"limits": {"memory": "1Mi"}})],
                QosClass::Burstable,
            ),
            (
                vec![json!({
                    "limits": {"cpu": "2", "memory": "1Gi"},
                    "requests": {"cpu": "1"},
                })],
                QosClass::Burstable,
            ),
        ] {
            assert_eq!(qos_class(&pod(&resources)), expected, "{resources:?}");
        }
    }

    #[test]
    fn a_pods_memory_limit_needs_all_its_containers() {
        let mib = |n: u64| json!({"limits": {"memory": format!("{n}Mi")}});
        assert_eq!(pod_memory_limit(&pod(&[mib(1), mib(2)])), Some(3 << 20));
        assert_eq!(pod_memory_limit(&pod(&[mib(1), json!({})])), None);
        let with_init: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "i", "resources": mib(8)}],
            "containers": [{"name": "c", "resources": mib(2)}],
        }}))
        .unwrap();
        assert_eq!(pod_memory_limit(&with_init), Some(8 << 20));
    }
}
