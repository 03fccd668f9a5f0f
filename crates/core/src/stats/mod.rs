//! Resource usage of pods and their node: from the kernel's texts to values, and from values to a
//! kubelet's responses.
//!
//! [`cgroup`] and [`proc`] parse texts, [`Reading`] is the result of one reading, [`summary`],
//! [`resource`] and [`cadvisor`] are its three response formats, [`top`] is the form for users.
//! `crate::stats` reads the files.
//!
//! Upstream: `pkg/kubelet/stats`, `pkg/kubelet/server/stats`,
//! `pkg/kubelet/metrics/collectors/resource_metrics.go`, and cAdvisor, which does the reading there.

pub mod cadvisor;
pub mod cgroup;
pub mod place;
pub mod proc;
pub mod resource;
pub mod summary;
mod text;
pub mod top;
mod weight;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use self::cgroup::{Cpu, Detail, Memory};
use self::proc::Interface;
use crate::api::{PodUid, Timestamp};

/// The scope of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// CPU and memory.
    CpuAndMemory,
    /// Networks, disks and processes as well.
    Everything,
    /// In addition, the values that only dashboards use: throttling, disk traffic, limits.
    Detailed,
}

/// The values of one cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// When.
    pub time: Timestamp,
    /// Its processor time; none where that isn't counted.
    pub cpu: Option<Cpu>,
    /// CPU usage between this reading and the previous one, in billionths of a core; none at the first
    /// reading.
    pub nano_cores: Option<u64>,
    /// Its memory; none where that isn't counted.
    pub memory: Option<Memory>,
    /// How many processes it has.
    pub processes: Option<u64>,
    /// The values that are only read with [`Scope::Detailed`].
    pub detail: Option<Detail>,
}

impl Usage {
    /// Whether both its CPU and memory usage are above 0: a container that has just started may still
    /// have 0, and `metrics-server` would drop its whole pod for that.
    pub fn has_begun(&self) -> bool {
        self.cpu.is_some_and(|cpu| cpu.usage_nanos > 0)
            && self.memory.is_some_and(|memory| memory.working_set > 0)
    }
}

/// Rate between two readings of a counter in nanoseconds, in billionths of a core. None if no time
/// passed, or the counter decreased, as it does for a new cgroup with the same name.
///
/// Upstream: cAdvisor's `info/v2/conversion.go` (`InstCpuStats`).
pub fn nano_cores(before: (Timestamp, u64), now: (Timestamp, u64)) -> Option<u64> {
    let window = now
        .0
        .as_nanosecond()
        .checked_sub(before.0.as_nanosecond())?;
    let window = u128::try_from(window).ok().filter(|nanos| *nanos > 0)?;
    let used = u128::from(now.1.checked_sub(before.1)?);
    u64::try_from(used * 1_000_000_000 / window).ok()
}

/// A file system, and how much of it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    /// When it was read.
    #[serde(serialize_with = "summary::whole_seconds")]
    pub time: Timestamp,
    /// Bytes that are available to users other than root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// Its size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Bytes used by the thing this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<u64>,
    /// Free inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_free: Option<u64>,
    /// All inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Inodes used by the thing this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inodes_used: Option<u64>,
}

/// The network of a node or a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Network {
    /// When it was read.
    pub time: Timestamp,
    /// Its interfaces, but for loopback and the Engine's own.
    pub interfaces: Vec<Interface>,
}

/// A container, or a sandbox, that runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ContainerReading {
    /// Name in the pod's spec; `POD` for a sandbox.
    pub name: Arc<str>,
    /// Its name on the Engine.
    pub engine_name: String,
    /// Image as named by the spec.
    pub image: Arc<str>,
    /// When it was started.
    pub started_at: Timestamp,
    /// Path of its cgroup below the hierarchy's root.
    pub cgroup: String,
    /// Its resource usage.
    pub usage: Usage,
    /// Usage of its own file system.
    pub rootfs: Option<Disk>,
    /// Its log.
    pub logs: Option<Disk>,
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeReading {
    /// Its name in the spec.
    pub name: String,
    /// Its disk usage.
    pub disk: Disk,
    /// Whether it is ephemeral storage of the pod, rather than memory.
    pub is_ephemeral: bool,
}

/// A pod of which something runs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodReading {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its UID here. For a static pod it is not its mirror's, as with a kubelet.
    pub uid: PodUid,
    /// When it was started; none if its status doesn't contain it.
    pub started_at: Option<Timestamp>,
    /// Its running containers, by name: the newest of each.
    pub containers: Vec<ContainerReading>,
    /// Its sandbox.
    pub sandbox: Option<ContainerReading>,
    /// Path of its own cgroup, if it has one.
    pub cgroup: Option<String>,
    /// Its resource usage: that of its own cgroup, or the sum over its containers.
    pub usage: Usage,
    /// Its network; none for a pod in the host's.
    pub network: Option<Network>,
    /// Its volumes on this machine's disks.
    pub volumes: Vec<VolumeReading>,
}

/// A part of the machine besides the pods, for example the Engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SystemReading {
    /// `kubelet`, `runtime` or `pods`.
    pub name: &'static str,
    /// Path of its cgroup.
    pub cgroup: String,
    /// When it began, where that is known.
    pub started_at: Option<Timestamp>,
    /// Its resource usage.
    pub usage: Usage,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeReading {
    /// Name of the Node.
    pub name: String,
    /// When it was booted.
    pub booted_at: Timestamp,
    /// Resource usage of the whole machine.
    pub usage: Usage,
    /// How many processors it has.
    pub cpus: u64,
    /// Its memory in bytes.
    pub memory_bytes: u64,
    /// Its swap in bytes.
    pub swap_bytes: u64,
    /// Its network.
    pub network: Option<Network>,
    /// The disk of the agent's root directory.
    pub fs: Option<Disk>,
    /// The Engine's disk.
    pub image_fs: Option<Disk>,
    /// Threads now, and the most there can be.
    pub threads: Option<(u64, u64)>,
    /// Parts of it beside the pods.
    pub systems: Vec<SystemReading>,
    /// Names of block devices by their numbers.
    pub devices: BTreeMap<(u32, u32), String>,
}

/// One reading of everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// When it was done.
    pub time: Timestamp,
    /// The machine.
    pub node: NodeReading,
    /// The pods, by namespace and name.
    pub pods: Vec<PodReading>,
}

/// Returns the usage of a pod without a cgroup of its own: the sum over its containers and sandbox.
pub fn sum(time: Timestamp, parts: &[&Usage]) -> Usage {
    let cpus: Vec<&Cpu> = parts.iter().filter_map(|part| part.cpu.as_ref()).collect();
    let add = |of: fn(&Cpu) -> u64| cpus.iter().map(|cpu| of(cpu)).fold(0, u64::saturating_add);
    let cpu = (!cpus.is_empty()).then(|| Cpu {
        usage_nanos: add(|cpu| cpu.usage_nanos),
        user_nanos: add(|cpu| cpu.user_nanos),
        system_nanos: add(|cpu| cpu.system_nanos),
        throttling: None,
    });
    let rates: Option<Vec<u64>> = parts
        .iter()
        .filter(|part| part.cpu.is_some())
        .map(|part| part.nano_cores)
        .collect();
    let memory = parts
        .iter()
        .filter_map(|part| part.memory.as_ref())
        .copied()
        .reduce(Memory::plus);
    let processes: Vec<u64> = parts.iter().filter_map(|part| part.processes).collect();
    Usage {
        time,
        cpu,
        nano_cores: rates
            .filter(|rates| !rates.is_empty())
            .map(|rates| rates.iter().copied().fold(0, u64::saturating_add)),
        memory,
        processes: (!processes.is_empty())
            .then(|| processes.iter().copied().fold(0, u64::saturating_add)),
        detail: None,
    }
}
