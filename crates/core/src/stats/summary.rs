//! The response of `/stats/summary`.
//!
//! Upstream: `staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go`,
//! `pkg/kubelet/server/stats/summary.go`, `pkg/kubelet/stats/helper.go`.

use serde::{Serialize, Serializer};

use super::proc::Interface;
use super::{ContainerReading, Disk, Network, NodeReading, PodReading, Reading, Scope, Usage};
use crate::api::Timestamp;

/// The interface whose counters represent the whole network's.
///
/// Upstream: `pkg/kubelet/stats/helper.go` (`defaultNetworkInterfaceName`).
const DEFAULT_INTERFACE: &str = "eth0";

/// A time in the API's format, with whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
pub struct Time(#[serde(serialize_with = "whole_seconds")] pub Timestamp);

pub(super) fn whole_seconds<S: Serializer>(
    time: &Timestamp,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let seconds = Timestamp::from_second(time.as_second()).unwrap_or_default();
    serializer.collect_str(&seconds)
}

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The machine.
    pub node: NodeStats,
    /// The pods of which something runs.
    pub pods: Vec<PodStats>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStats {
    node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system_containers: Vec<ContainerStats>,
    start_time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<RuntimeStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<RlimitStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<SwapStats>,
}

/// The Engine's disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeStats {
    image_fs: Disk,
    container_fs: Disk,
}

/// Threads of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RlimitStats {
    time: Time,
    maxpid: u64,
    curproc: u64,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStats {
    pod_ref: PodReference,
    /// `null` while it isn't known, as Go writes it.
    start_time: Option<Time>,
    /// `null` for none, as Go writes it.
    #[serde(serialize_with = "null_for_none")]
    containers: Vec<ContainerStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkStats>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume: Vec<VolumeStats>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<Disk>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    process_stats: Option<ProcessStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<SwapStats>,
}

fn null_for_none<T: Serialize, S: Serializer>(all: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    if all.is_empty() {
        return serializer.serialize_none();
    }
    serializer.collect_seq(all)
}

/// Identifies a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PodReference {
    name: String,
    namespace: String,
    uid: String,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStats {
    name: String,
    start_time: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<CpuStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryStats>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Disk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<SwapStats>,
}

/// Processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessStats {
    process_count: u64,
}

/// Processor time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CpuStats {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    usage_core_nano_seconds: u64,
}

/// Memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryStats {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    usage_bytes: u64,
    working_set_bytes: u64,
    rss_bytes: u64,
    page_faults: u64,
    major_page_faults: u64,
}

/// Swap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SwapStats {
    time: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_available_bytes: Option<u64>,
    swap_usage_bytes: u64,
}

/// A network: the counters of one interface inline, then all interfaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NetworkStats {
    time: Time,
    #[serde(flatten)]
    default: InterfaceStats,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<InterfaceStats>,
}

/// An interface; without counters if none has that name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceStats {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_errors: Option<u64>,
}

/// A volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VolumeStats {
    #[serde(flatten)]
    disk: Disk,
    name: String,
}

/// The response for a reading. A pod without a start time is left out of a complete response, as in
/// upstream's `ListPodStats`, and kept if only CPU and memory are requested.
pub fn summary(reading: &Reading, scope: Scope) -> Summary {
    let pods = reading.pods.iter();
    let is_included = |pod: &&PodReading| scope == Scope::CpuAndMemory || pod.started_at.is_some();
    Summary {
        node: node_stats(&reading.node, reading.time, scope),
        pods: pods
            .filter(is_included)
            .map(|pod| pod_stats(pod, &reading.node, scope))
            .collect(),
    }
}

fn node_stats(node: &NodeReading, time: Timestamp, scope: Scope) -> NodeStats {
    let whole = scope > Scope::CpuAndMemory;
    let systems = node.systems.iter().map(|system| ContainerStats {
        name: system.name.to_owned(),
        start_time: system.started_at.map(Time),
        cpu: cpu(&system.usage),
        memory: memory(&system.usage),
        rootfs: None,
        logs: None,
        swap: swap(&system.usage),
    });
    NodeStats {
        node_name: node.name.clone(),
        system_containers: systems.collect(),
        start_time: Time(node.booted_at),
        cpu: cpu(&node.usage),
        memory: memory(&node.usage),
        network: node.network.as_ref().filter(|_| whole).map(network),
        fs: node.fs.as_ref().filter(|_| whole).copied(),
        runtime: node
            .image_fs
            .as_ref()
            .filter(|_| whole)
            .map(|disk| RuntimeStats {
                image_fs: *disk,
                container_fs: *disk,
            }),
        rlimit: node
            .threads
            .filter(|_| whole)
            .map(|(now, max)| RlimitStats {
                time: Time(time),
                maxpid: max,
                curproc: now,
            }),
        swap: swap(&node.usage),
    }
}

fn pod_stats(pod: &PodReading, node: &NodeReading, scope: Scope) -> PodStats {
    let whole = scope > Scope::CpuAndMemory;
    PodStats {
        pod_ref: PodReference {
            name: pod.name.to_string(),
            namespace: pod.namespace.to_string(),
            uid: pod.uid.to_string(),
        },
        start_time: pod.started_at.map(Time),
        containers: pod
            .containers
            .iter()
            .map(|container| container_stats(container, whole))
            .collect(),
        cpu: cpu(&pod.usage),
        memory: memory(&pod.usage),
        network: pod.network.as_ref().filter(|_| whole).map(network),
        volume: pod
            .volumes
            .iter()
            .filter(|_| whole)
            .map(|volume| VolumeStats {
                disk: volume.disk,
                name: volume.name.clone(),
            })
            .collect(),
        ephemeral_storage: node
            .fs
            .as_ref()
            .filter(|_| whole)
            .map(|fs| storage(pod, fs)),
        process_stats: pod
            .usage
            .processes
            .filter(|_| whole)
            .map(|count| ProcessStats {
                process_count: count,
            }),
        swap: swap(&pod.usage),
    }
}

fn container_stats(container: &ContainerReading, whole: bool) -> ContainerStats {
    ContainerStats {
        name: container.name.to_string(),
        start_time: Some(Time(container.started_at)),
        cpu: cpu(&container.usage),
        memory: memory(&container.usage),
        rootfs: container.rootfs.as_ref().filter(|_| whole).copied(),
        logs: container.logs.as_ref().filter(|_| whole).copied(),
        swap: swap(&container.usage),
    }
}

fn cpu(usage: &Usage) -> Option<CpuStats> {
    Some(CpuStats {
        time: Time(usage.time),
        usage_nano_cores: usage.nano_cores,
        usage_core_nano_seconds: usage.cpu?.usage_nanos,
    })
}

fn memory(usage: &Usage) -> Option<MemoryStats> {
    let memory = usage.memory?;
    Some(MemoryStats {
        time: Time(usage.time),
        available_bytes: memory.available(),
        usage_bytes: memory.usage,
        working_set_bytes: memory.working_set,
        rss_bytes: memory.rss,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
    })
}

fn swap(usage: &Usage) -> Option<SwapStats> {
    let memory = usage.memory?;
    Some(SwapStats {
        time: Time(usage.time),
        swap_available_bytes: memory.swap_available(),
        swap_usage_bytes: memory.swap,
    })
}

fn network(network: &Network) -> NetworkStats {
    let interfaces: Vec<InterfaceStats> = network.interfaces.iter().map(interface).collect();
    let mut default = interfaces
        .iter()
        .filter(|each| each.name == DEFAULT_INTERFACE);
    NetworkStats {
        time: Time(network.time),
        default: default.next().cloned().unwrap_or_default(),
        interfaces,
    }
}

fn interface(interface: &Interface) -> InterfaceStats {
    InterfaceStats {
        name: interface.name.clone(),
        rx_bytes: Some(interface.received.bytes),
        rx_errors: Some(interface.received.errors),
        tx_bytes: Some(interface.sent.bytes),
        tx_errors: Some(interface.sent.errors),
    }
}

/// The disk usage of a pod: what its containers wrote, their logs and its volumes on disk.
///
/// Upstream: `calcEphemeralStorage` of `pkg/kubelet/stats/helper.go`.
fn storage(pod: &PodReading, fs: &Disk) -> Disk {
    let containers = pod.containers.iter();
    let volumes = pod.volumes.iter().filter(|volume| volume.is_ephemeral);
    let parts = containers
        .flat_map(|container| [container.rootfs.as_ref(), container.logs.as_ref()])
        .flatten()
        .chain(volumes.map(|volume| &volume.disk));
    let add = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
        (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
        (sum, more) => sum.or(more),
    };
    let mut used = Disk {
        used_bytes: None,
        inodes_used: None,
        ..*fs
    };
    for part in parts {
        used.used_bytes = add(used.used_bytes, part.used_bytes);
        used.inodes_used = add(used.inodes_used, part.inodes_used);
        used.time = used.time.max(part.time);
    }
    used
}
