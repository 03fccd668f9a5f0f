//! The usage of processors and memory.

use serde::{Deserialize, Serialize};

/// Usage of the node and of its pods: the data behind `mirrorlet top`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TopReport {
    /// Name of the Node.
    pub node: String,
    /// Usage of the whole machine, with its size as limits.
    pub node_usage: UsageReport,
    /// The pods of which something runs, by namespace and name.
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

/// Processors and memory in use, and the most there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    /// Processors in use since the look before, in billionths of a core; none where that is not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_nanos: Option<u64>,
    /// Limit of processors, in billionths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit_nanos: Option<u64>,
    /// Memory in use that can't be reclaimed at once, in bytes: the working set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Limit of memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
}
