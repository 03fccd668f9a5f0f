//! Requests, limits and the resulting `QoS` class.
//!
//! Upstream: `pkg/apis/core/v1/helper/qos/qos.go`, `pkg/api/v1/resource/helpers.go`.

use std::collections::BTreeMap;

use crate::api::core::{Container, ContainerStatus, ResourceRequirements};
use crate::api::quantity::Quantity;
use crate::api::{Pod, PodUid};
use crate::observed::Role;
use crate::small::SmallCollect;
use crate::spec;

type ApiQuantities = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

/// Name of the CPU resource.
pub const CPU: &str = "cpu";
/// Name of the memory resource.
pub const MEMORY: &str = "memory";

/// The parent cgroup of pods with pod-level resources, if none is configured for all pods.
pub const CGROUP_ROOT: &str = "mirrorlet";

/// Least CPU shares the kernel takes.
pub const SHARES_MIN: i64 = 2;
/// Most CPU shares the kernel takes.
const SHARES_MAX: i64 = 262_144;
/// Shares of one CPU.
const SHARES_PER_CPU: i64 = 1024;
/// Thousandths of a CPU in a CPU.
const MILLI: i64 = 1000;
/// Period of CPU quotas in microseconds.
pub const QUOTA_PERIOD: i64 = 100_000;

/// The limits and shares of a cgroup: that of a container, or of all containers of a pod together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    /// CPU shares.
    pub cpu_shares: i64,
    /// CPU quota in microseconds per [`QUOTA_PERIOD`]; none without a limit.
    pub cpu_quota: Option<i64>,
    /// Memory limit in bytes; none without a limit.
    pub memory: Option<i64>,
}

crate::words! {
    /// A pod's class of service.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum QosClass {
        /// Every container has CPU and memory limits, and requests equal to them.
        Guaranteed = "Guaranteed",
        /// Something is requested or limited.
        Burstable = "Burstable",
        /// Nothing is.
        BestEffort = "BestEffort",
    }
    /// The class as the API writes it.
    pub fn as_str;
}

/// Path of a pod's cgroup, component by component; none if `root` is not a cgroup.
///
/// Upstream: `pkg/kubelet/cm/pod_container_manager_linux.go` (`GetPodContainerName`).
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

/// The name of the systemd slice for the cgroup at that path: dashes separate its components.
pub fn slice_name(parts: &[String]) -> String {
    let escaped: Vec<String> = parts.iter().map(|part| part.replace('-', "_")).collect();
    format!("{}.slice", escaped.join("-"))
}

/// The parent of the pod's own cgroup: the configured one. Without it, a pod without pod-level
/// resources has no cgroup, and one with them has its own in [`CGROUP_ROOT`].
pub fn cgroup_root<'a>(configured: &'a str, pod: &Pod) -> &'a str {
    match of_pod(pod) {
        Some(_) => limited_root(configured),
        None => configured,
    }
}

/// The parent cgroup of pods with pod-level resources: the configured one, or [`CGROUP_ROOT`].
pub fn limited_root(configured: &str) -> &str {
    match configured.trim_matches('/') {
        "" => CGROUP_ROOT,
        _ => configured,
    }
}

/// The pod-level resources, `spec.resources`; none if these have neither CPU nor memory.
///
/// Upstream: `IsPodLevelResourcesSet` of `k8s.io/component-helpers/resource/helpers.go`.
pub fn of_pod(pod: &Pod) -> Option<&ResourceRequirements> {
    let resources = spec::spec(pod).resources.as_ref()?;
    let lists = [resources.requests.as_ref(), resources.limits.as_ref()];
    let mut names = lists.into_iter().flatten().flat_map(BTreeMap::keys);
    names
        .any(|name| [CPU, MEMORY].contains(&name.as_str()))
        .then_some(resources)
}

/// A container's limit; none if missing, invalid or not positive.
pub fn limit(container: &Container, resource: &str) -> Option<Quantity> {
    limit_in(container.resources.as_ref()?, resource)
}

/// The limit that applies to a container: its own, otherwise its pod's.
///
/// Upstream: `getCPULimit` and `getMemoryLimit` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
pub fn limit_within(pod: &Pod, container: &Container, resource: &str) -> Option<Quantity> {
    limit(container, resource).or_else(|| limit_in(of_pod(pod)?, resource))
}

/// A container's request, otherwise its limit; none if it has neither.
pub fn request(container: &Container, resource: &str) -> Option<Quantity> {
    request_in(container.resources.as_ref()?, resource)
}

/// CPU shares for a request in thousandths of a CPU.
pub fn cpu_shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_PER_CPU) / MILLI).clamp(SHARES_MIN, SHARES_MAX)
}

/// The CPU shares of a container: by its request, or by its limit or its pod's where it requests none.
///
/// Upstream: `generateLinuxContainerResources` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
pub fn container_shares(pod: &Pod, container: &Container) -> i64 {
    let requests_cpu = container
        .resources
        .as_ref()
        .and_then(|resources| resources.requests.as_ref())
        .is_some_and(|requests| requests.contains_key(CPU));
    let cpu = request(container, CPU)
        .or_else(|| limit_within(pod, container, CPU).filter(|_| !requests_cpu));
    cpu_shares(cpu.map_or(0, Quantity::milli_ceil))
}

/// The limit of a list of requests and limits; none when absent, unreadable or not above 0.
pub fn limit_in(resources: &ResourceRequirements, resource: &str) -> Option<Quantity> {
    amount_in(resources.limits.as_ref()?, resource)
}

/// A positive amount in a list of amounts; none if missing, invalid or not positive.
pub fn amount_in(list: &ApiQuantities, resource: &str) -> Option<Quantity> {
    let quantity = Quantity::try_from(list.get(resource)?).ok()?;
    (!quantity.is_zero() && !quantity.is_negative()).then_some(quantity)
}

/// The request in a list of requests and limits, otherwise the limit; none if it has neither.
pub fn request_in(resources: &ResourceRequirements, resource: &str) -> Option<Quantity> {
    let requests = resources.requests.as_ref();
    match requests.filter(|r| r.contains_key(resource)) {
        Some(requests) => amount_in(requests, resource),
        None => limit_in(resources, resource),
    }
}

/// Whether a container's resources in its status differ from those in its spec.
pub fn holds_others(container: &Container, status: &ContainerStatus) -> bool {
    let none = ResourceRequirements::default();
    let wanted = container.resources.as_ref().unwrap_or(&none);
    let started = status.resources.as_ref();
    started.is_some_and(|started| !same_amounts(started, wanted))
}

/// Whether two lists of requests and limits have equal amounts, whatever their notation.
pub fn same_amounts(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    amounts(a.requests.as_ref()) == amounts(b.requests.as_ref())
        && amounts(a.limits.as_ref()) == amounts(b.limits.as_ref())
}

/// Quantities by their value: the API server may write them in another way.
fn amounts(quantities: Option<&ApiQuantities>) -> BTreeMap<&str, Option<Quantity>> {
    let all = quantities.into_iter().flatten();
    all.map(|(name, quantity)| (name.as_str(), Quantity::try_from(quantity).ok()))
        .collect_map()
}

/// The pod's `QoS` class: by its pod-level resources if it has some, otherwise by its containers'.
pub fn qos_class(pod: &Pod) -> QosClass {
    match of_pod(pod) {
        Some(resources) => class_of([Some(resources)]),
        None => class_of(spec::containers(pod).map(|(_, c)| c.resources.as_ref())),
    }
}

fn class_of<'a>(all: impl IntoIterator<Item = Option<&'a ResourceRequirements>>) -> QosClass {
    let mut anything = false;
    let mut guaranteed = true;
    for resources in all {
        for resource in [CPU, MEMORY] {
            let request = resources.and_then(|r| request_in(r, resource));
            let limit = resources.and_then(|r| limit_in(r, resource));
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

/// The amount of a resource that the pod's containers request together.
pub fn container_requests(pod: &Pod, resource: &str) -> Quantity {
    requests_together(pod, |container| request(container, resource))
}

/// The total amount for the pod's containers, where `of` returns that of one: the sum over regular
/// containers and sidecars, or the maximum while the pod initializes.
///
/// Upstream: `AggregateContainerRequests` of `k8s.io/component-helpers/resource/helpers.go`.
pub fn requests_together(pod: &Pod, of: impl Fn(&Container) -> Option<Quantity>) -> Quantity {
    let mut apps = Quantity::default();
    let mut sidecars = Quantity::default();
    let mut initializing = Quantity::default();
    for (role, container) in spec::containers(pod) {
        let wanted = of(container).unwrap_or_default();
        match role {
            Role::Init => initializing = initializing.max(sidecars.saturating_add(wanted)),
            Role::Sidecar => {
                sidecars = sidecars.saturating_add(wanted);
                initializing = initializing.max(sidecars);
            }
            Role::App => apps = apps.saturating_add(wanted),
            // It takes of what its pod has.
            Role::Ephemeral => {}
        }
    }
    apps.saturating_add(sidecars).max(initializing)
}

/// The memory limit for all of the pod's containers together, in bytes: the pod-level limit, otherwise
/// the sum over app containers and sidecars, or the largest init container if that is more. None if the
/// pod and any app container or sidecar are unlimited.
pub fn pod_memory_limit(pod: &Pod) -> Option<u64> {
    if let Some(own) = of_pod(pod).and_then(|resources| limit_in(resources, MEMORY)) {
        return u64::try_from(own.ceil()).ok();
    }
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

    #[test]
    fn the_resources_of_a_pod_come_before_those_of_its_containers() {
        let with = |own: Value, container: &Value| -> Pod {
            serde_json::from_value(json!({"spec": {
                "resources": own,
                "containers": [{"name": "a", "resources": container}, {"name": "b"}],
            }}))
            .unwrap()
        };
        let full = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
        for (own, container, class, memory) in [
            (full.clone(), json!({}), QosClass::Guaranteed, Some(64)),
            (
                json!({"limits": {"memory": "64Mi"}}),
                full.clone(),
                QosClass::Burstable,
                Some(64),
            ),
            (
                json!({"requests": {"cpu": "1"}}),
                full.clone(),
                QosClass::Burstable,
                None,
            ),
            // These name neither CPU nor memory.
            (json!({}), json!({}), QosClass::BestEffort, None),
            (
                json!({"limits": {"hugepages-2Mi": "4Mi"}}),
                json!({}),
                QosClass::BestEffort,
                None,
            ),
        ] {
            let pod = with(own.clone(), &container);
            let memory = memory.map(|mib: u64| mib << 20);
            assert_eq!(
                (qos_class(&pod), pod_memory_limit(&pod)),
                (class, memory),
                "{own} {container}"
            );
        }
        let pod = with(full.clone(), &json!({"limits": {"memory": "16Mi"}}));
        let mib = |n: i64| Some(Quantity::of(n << 20));
        let limits: Vec<_> = spec::containers(&pod)
            .map(|(_, c)| limit_within(&pod, c, MEMORY))
            .collect();
        // docker 68
        assert_eq!(limits, [mib(16), mib(64)]);
        for (configured, own, expected) in [
            ("", &full, "mirrorlet"),
            ("/", &full, "mirrorlet"),
            ("", &json!({}), ""),
            ("pods", &full, "pods"),
        ] {
            let pod = with(own.clone(), &json!({}));
            assert_eq!(
                cgroup_root(configured, &pod),
                expected,
                "{configured} {own}"
            );
        }
    }
}
