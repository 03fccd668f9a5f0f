//! Resources: shares, quotas, memory, OOM scores and cgroup parents.
//!
//! Upstream: `pkg/kubelet/cm/helpers_linux.go`, `pkg/kubelet/qos/policy.go`,
//! `pkg/kubelet/cm/cgroup_manager_linux.go`.

use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::quantity::Quantity;
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::observed::Role;
use mirrorlet_core::resources::{CPU, MEMORY, QosClass, limit, pod_cgroup, qos_class, request};
use mirrorlet_core::spec;

use super::{CgroupDriver, EngineFacts, NodeFacts};

/// Least CPU shares the kernel takes.
pub const SHARES_MIN: i64 = 2;
/// Most CPU shares the kernel takes.
pub const SHARES_MAX: i64 = 262_144;
/// Shares of one CPU.
const SHARES_PER_CPU: i64 = 1024;
/// Period of CPU quotas in microseconds.
pub const QUOTA_PERIOD: i64 = 100_000;
/// Least CPU quota the kernel takes, in microseconds.
const QUOTA_MIN: i64 = 1_000;
/// Thousandths of a CPU in a CPU.
const MILLI: i64 = 1000;
/// OOM score of sandboxes: they use next to nothing, and their pod dies with them.
pub const OOM_SANDBOX: i64 = -998;
/// OOM score of guaranteed and node-critical pods.
const OOM_GUARANTEED: i64 = -997;
/// OOM score of pods that ask for nothing.
const OOM_BEST_EFFORT: i64 = 1000;
/// Priority class of pods the node can't do without.
const NODE_CRITICAL: &str = "system-node-critical";

/// CPU shares for a request in thousandths of a CPU.
#[must_use]
pub fn cpu_shares(milli: i64) -> i64 {
    (milli.saturating_mul(SHARES_PER_CPU) / MILLI).clamp(SHARES_MIN, SHARES_MAX)
}

/// CPU quota in microseconds per [`QUOTA_PERIOD`], for a limit in thousandths of a CPU.
#[must_use]
pub fn cpu_quota(milli: i64) -> i64 {
    (milli.saturating_mul(QUOTA_PERIOD) / MILLI).max(QUOTA_MIN)
}

/// A container's resources in the Engine's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineResources {
    /// CPU shares.
    pub cpu_shares: i64,
    /// CPU quota in microseconds per [`QUOTA_PERIOD`]; none without a limit.
    pub cpu_quota: Option<i64>,
    /// Memory limit in bytes, which is also that of memory and swap together.
    pub memory: Option<i64>,
}

/// Computes the Engine's settings of a container's resources.
#[must_use]
pub fn engine_resources(container: &Container) -> EngineResources {
    EngineResources {
        cpu_shares: cpu_shares(request(container, CPU).map_or(0, Quantity::milli_ceil)),
        cpu_quota: limit(container, CPU).map(|q| cpu_quota(q.milli_ceil())),
        memory: limit(container, MEMORY).map(Quantity::ceil),
    }
}

/// OOM score adjustment of a container, from −997 to 1000.
#[must_use]
pub fn oom_score_adj(pod: &Pod, container: &Container, role: Role, node: &NodeFacts) -> i64 {
    if spec::spec(pod).priority_class_name.as_deref() == Some(NODE_CRITICAL) {
        return OOM_GUARANTEED;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => OOM_GUARANTEED,
        QosClass::BestEffort => OOM_BEST_EFFORT,
        QosClass::Burstable => {
            let own = score_of_request(container, node);
            let score = match role {
                Role::Sidecar => own.min(score_of_smallest_app(pod, node)),
                Role::Init | Role::App | Role::Ephemeral => own,
            };
            score.clamp(MILLI + OOM_GUARANTEED, OOM_BEST_EFFORT - 1)
        }
    }
}

fn score_of_request(container: &Container, node: &NodeFacts) -> i64 {
    score(request(container, MEMORY).map_or(0, Quantity::ceil), node)
}

fn score_of_smallest_app(pod: &Pod, node: &NodeFacts) -> i64 {
    let smallest = spec::spec(pod)
        .containers
        .iter()
        .map(|c| request(c, MEMORY).map_or(0, Quantity::ceil))
        .min();
    score(smallest.unwrap_or(0), node)
}

fn score(memory_bytes: i64, node: &NodeFacts) -> i64 {
    let capacity = i128::from(node.memory_bytes.max(1));
    let share = 1000 * i128::from(memory_bytes) / capacity;
    OOM_BEST_EFFORT.saturating_sub(i64::try_from(share).unwrap_or(i64::MAX))
}

/// The score for the Engine: never below 0 where it refuses that.
#[must_use]
pub fn allowed_oom_score(score: i64, engine: &EngineFacts) -> i64 {
    if engine.negative_oom_score {
        score
    } else {
        score.max(0)
    }
}

/// cgroup parent of a pod's containers; none leaves it to the Engine.
///
/// With cgroupfs a path below the root, with systemd the name of one slice, whose dashes spell
/// the same path.
#[must_use]
pub fn cgroup_parent(pod: &Pod, root: &str, driver: CgroupDriver) -> Option<String> {
    let parts = pod_cgroup(root, qos_class(pod), &PodUid::of(pod))?;
    match driver {
        CgroupDriver::None => None,
        CgroupDriver::Cgroupfs => Some(format!("/{}", parts.join("/"))),
        CgroupDriver::Systemd => {
            let escaped: Vec<String> = parts.iter().map(|part| part.replace('-', "_")).collect();
            Some(format!("{}.slice", escaped.join("-")))
        }
    }
}
