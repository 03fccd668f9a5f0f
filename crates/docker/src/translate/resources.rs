//! Resources: shares, quotas, memory, OOM scores and cgroup parents.
//!
//! Upstream: `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`,
//! `pkg/kubelet/cm/cgroup_manager_linux.go`.

use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::quantity::Quantity;
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::observed::Role;
use mirrorlet_core::resources::{
    CPU, CgroupLimits, MEMORY, QUOTA_PERIOD, QosClass, cgroup_root, container_requests,
    container_shares, cpu_shares, limit_in, limit_within, of_pod, pod_cgroup, qos_class, request,
    request_in, slice_name,
};
use mirrorlet_core::spec;

use super::{CgroupDriver, ConfigError, EngineFacts, HostFacts};

/// Least CPU quota the kernel takes, in microseconds.
const QUOTA_MIN: i64 = 1_000;
/// Thousandths of a CPU in a CPU.
const MILLI: i64 = 1000;
/// OOM score of sandboxes: they use hardly any memory, and their pod dies with them.
pub const OOM_SANDBOX: i64 = -998;
/// OOM score of guaranteed and node-critical pods.
const OOM_GUARANTEED: i64 = -997;
/// OOM score of pods without requests.
const OOM_BEST_EFFORT: i64 = 1000;
/// Priority class of pods the node can't do without.
const NODE_CRITICAL: &str = "system-node-critical";

/// CPU quota in microseconds per [`QUOTA_PERIOD`], for a limit in thousandths of a CPU.
pub fn cpu_quota(milli: i64) -> i64 {
    (milli.saturating_mul(QUOTA_PERIOD) / MILLI).max(QUOTA_MIN)
}

/// A container's limits for the Engine; the memory limit also limits memory and swap together. A
/// container without limits has the pod's.
///
/// Upstream: `generateLinuxContainerResources` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`.
pub fn container_limits(pod: &Pod, container: &Container) -> CgroupLimits {
    let limit = |resource| limit_within(pod, container, resource);
    let shares = container_shares(pod, container);
    cgroup_limits(shares, limit(CPU), limit(MEMORY))
}

/// The limits of all containers of a pod together, if the pod has pod-level resources.
///
/// Upstream: `ResourceConfigForPod` of `pkg/kubelet/cm/helpers_linux.go`.
pub fn pod_limits(pod: &Pod) -> Option<CgroupLimits> {
    let own = of_pod(pod)?;
    let cpu = request_in(own, CPU).unwrap_or_else(|| container_requests(pod, CPU));
    let (cpu_limit, memory) = (limit_in(own, CPU), limit_in(own, MEMORY));
    let shares = cpu_shares(cpu.milli_ceil());
    Some(cgroup_limits(shares, cpu_limit, memory))
}

fn cgroup_limits(
    cpu_shares: i64,
    cpu_limit: Option<Quantity>,
    memory: Option<Quantity>,
) -> CgroupLimits {
    CgroupLimits {
        cpu_shares,
        cpu_quota: cpu_limit.map(|q| cpu_quota(q.milli_ceil())),
        memory: memory.map(Quantity::ceil),
    }
}

/// OOM score adjustment of a container, from −997 to 1000.
pub fn oom_score_adj(pod: &Pod, container: &Container, role: Role, node: &HostFacts) -> i64 {
    if spec::spec(pod).priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return OOM_GUARANTEED;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => OOM_GUARANTEED,
        QosClass::BestEffort => OOM_BEST_EFFORT,
        QosClass::Burstable => {
            let own = score_of_request(pod, container, node);
            let score = match role {
                Role::Sidecar => own.min(score_of_smallest_app(pod, node)),
                Role::Init | Role::App | Role::Ephemeral => own,
            };
            score.clamp(MILLI + OOM_GUARANTEED, OOM_BEST_EFFORT - 1)
        }
    }
}

/// A container's score by what it requests of memory, and by its share of what its pod requests
/// beyond all its containers' requests.
fn score_of_request(pod: &Pod, container: &Container, node: &HostFacts) -> i64 {
    let requested = request(container, MEMORY).map_or(0, Quantity::ceil);
    let own = of_pod(pod).and_then(|own| request_in(own, MEMORY));
    let rest = own.map_or(0, |own| {
        let rest = own.ceil() - container_requests(pod, MEMORY).ceil();
        let containers = spec::containers(pod).count();
        rest.max(0) / i64::try_from(containers.max(1)).unwrap_or(i64::MAX)
    });
    score(requested.saturating_add(rest), node)
}

fn score_of_smallest_app(pod: &Pod, node: &HostFacts) -> i64 {
    let smallest = spec::spec(pod)
        .containers
        .iter()
        .map(|c| request(c, MEMORY).map_or(0, Quantity::ceil))
        .min();
    score(smallest.unwrap_or(0), node)
}

fn score(memory_bytes: i64, node: &HostFacts) -> i64 {
    let capacity = i128::from(node.memory_bytes.max(1));
    let share = 1000 * i128::from(memory_bytes) / capacity;
    OOM_BEST_EFFORT.saturating_sub(i64::try_from(share).unwrap_or(i64::MAX))
}

/// The score for the Engine: never below 0 if it refuses that.
pub fn allowed_oom_score(score: i64, engine: &EngineFacts) -> i64 {
    if engine.negative_oom_score {
        score
    } else {
        score.max(0)
    }
}

/// The path of a pod's cgroup, component by component, and its limits, for a pod with pod-level
/// resources.
///
/// # Errors
/// The Engine has no cgroups that could be limited.
pub fn pod_cgroup_limits(
    pod: &Pod,
    root: &str,
    driver: CgroupDriver,
) -> Result<Option<(Vec<String>, CgroupLimits)>, ConfigError> {
    let Some(limits) = pod_limits(pod) else {
        return Ok(None);
    };
    if driver == CgroupDriver::None {
        return Err(ConfigError::NoPodCgroup);
    }
    let parts = pod_cgroup(cgroup_root(root, pod), qos_class(pod), &PodUid::of(pod));
    Ok(parts.map(|parts| (parts, limits)))
}

/// cgroup parent of a pod's containers; none to leave it to the Engine.
///
/// With cgroupfs a path below the root, with systemd the name of one slice, whose dashes represent the
/// same path.
pub fn cgroup_parent(pod: &Pod, root: &str, driver: CgroupDriver) -> Option<String> {
    let parts = pod_cgroup(cgroup_root(root, pod), qos_class(pod), &PodUid::of(pod))?;
    match driver {
        CgroupDriver::None => None,
        CgroupDriver::Cgroupfs => Some(format!("/{}", parts.join("/"))),
        CgroupDriver::Systemd => Some(slice_name(&parts)),
    }
}
