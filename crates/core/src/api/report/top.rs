//! The usage of processors and memory.

use serde::{Deserialize, Serialize};

/// Usage of the node and of its pods: the data behind `mirrorlet top`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopReport {
    /// Name of the Node.
    pub node: String,
    /// Usage of the whole machine; its capacities are the limits.
    pub node_usage: UsageReport,
    /// The pods with running containers, by namespace and name.
    pub pods: Vec<PodUsage>,
}

/// Usage of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    /// Its namespace.
    pub namespace: String,
    /// Its name with the node's suffix.
    pub name: String,
    /// Usage of all of it.
    #[serde(flatten)]
    pub usage: UsageReport,
    /// Its containers that run.
    pub containers: Vec<ContainerUsage>,
}

/// Usage of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    /// Its name in the spec.
    pub name: String,
    /// Its usage.
    #[serde(flatten)]
    pub usage: UsageReport,
}

/// CPU and memory usage, and their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// CPU usage since the previous reading, in billionths of a core; none if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_nanos: Option<u64>,
    /// Limit of processors, in billionths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit_nanos: Option<u64>,
    /// Memory that can't be reclaimed immediately, in bytes: the working set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Limit of memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
}
