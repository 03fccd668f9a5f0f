//! Texts of `/proc`, as values.

use std::collections::BTreeMap;

use super::cgroup::{Cpu, Memory, TICK_NANOS};
use crate::api::Timestamp;
use crate::small::SmallCollect;

/// Interfaces that are no network of a pod or node: loopback, and what the Engine and CNI make
/// for pods.
///
/// Upstream: cAdvisor's `container/libcontainer/handler.go` (`ignoredDevicePrefixes`).
const IGNORED_INTERFACES: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// Counters of a network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Received traffic.
    pub received: Traffic,
    /// Sent traffic.
    pub sent: Traffic,
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Errors.
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// Parses the interfaces in a `net/dev`. Invalid lines are skipped.
pub fn interfaces(net_dev: &str) -> Vec<Interface> {
    net_dev.lines().skip(2).filter_map(interface).collect()
}

fn interface(line: &str) -> Option<Interface> {
    let (name, numbers) = line.split_once(':')?;
    let name = name.trim();
    if IGNORED_INTERFACES.iter().any(|i| name.starts_with(i)) {
        return None;
    }
    let mut numbers = numbers.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let mut traffic = || {
        let counters = Traffic {
            bytes: next()?,
            packets: next()?,
            errors: next()?,
            dropped: next()?,
        };
        // fifo, frame or collisions, compressed or carrier, multicast or compressed
        for _ in 0..4 {
            next()?;
        }
        Some(counters)
    };
    Some(Interface {
        name: name.to_owned(),
        received: traffic()?,
        sent: traffic()?,
    })
}

/// Parses the CPU time of the machine and its boot time from a `/proc/stat`.
pub fn stat(text: &str) -> Option<(Cpu, Timestamp)> {
    let all = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<u64>> = all
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect();
    let ticks = ticks?;
    let nanos = |fields: &[usize]| {
        let sum = fields.iter().filter_map(|field| ticks.get(*field));
        let sum = sum.fold(0_u64, |sum, ticks| sum.saturating_add(*ticks));
        sum.saturating_mul(TICK_NANOS)
    };
    // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is within user and nice.
    let (user, system, steal) = (nanos(&[0, 1]), nanos(&[2, 5, 6]), nanos(&[7]));
    let booted = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    let booted = Timestamp::from_second(booted.trim().parse().ok()?).ok()?;
    let cpu = Cpu {
        usage_nanos: user.saturating_add(system).saturating_add(steal),
        user_nanos: user,
        system_nanos: system,
        throttling: None,
    };
    Some((cpu, booted))
}

/// Numbers of `/proc/meminfo`, in bytes.
pub fn meminfo(text: &str) -> BTreeMap<&str, u64> {
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            let kilobytes = value.trim().strip_suffix(" kB")?;
            let kilobytes: u64 = kilobytes.trim().parse().ok()?;
            Some((key, kilobytes.saturating_mul(1024)))
        })
        .collect_map()
}

/// Parses the memory of the machine from a `/proc/meminfo` and a `/proc/vmstat`.
///
/// Upstream: `statsFromMeminfo` of `github.com/opencontainers/cgroups/fs2`: free memory is what
/// isn't used, and the page cache counts as used.
pub fn memory(meminfo: &BTreeMap<&str, u64>, vmstat: &str) -> Option<Memory> {
    let get = |key| meminfo.get(key).copied();
    let or_zero = |key| get(key).unwrap_or_default();
    let total = get("MemTotal")?;
    let usage = total.saturating_sub(get("MemFree")?);
    let inactive_file = or_zero("Inactive(file)");
    let fault = |key: &str| {
        let mut lines = vmstat.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        found
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or_default()
    };
    let swap_total = or_zero("SwapTotal");
    Some(Memory {
        usage,
        working_set: usage.saturating_sub(inactive_file),
        rss: or_zero("AnonPages"),
        cache: or_zero("Cached"),
        mapped_file: or_zero("Mapped"),
        active_file: or_zero("Active(file)"),
        inactive_file,
        kernel: or_zero("Slab").saturating_add(or_zero("KernelStack")),
        swap: swap_total.saturating_sub(or_zero("SwapFree")),
        swap_limit: (swap_total > 0).then_some(swap_total),
        page_faults: fault("pgfault"),
        major_page_faults: fault("pgmajfault"),
        limit: Some(total),
    })
}

/// Parses the names of block devices by their numbers from a `/proc/partitions`.
pub fn devices(partitions: &str) -> BTreeMap<(u32, u32), String> {
    partitions
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace();
            let device = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some((device, words.nth(1)?.to_owned()))
        })
        .collect_map()
}

/// The upper directory of an overlay file system at `/`, from a process's `/proc/<pid>/mountinfo`; none
/// if its root is of another type.
pub fn upper_dir(mountinfo: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        if mount.split(' ').nth(4)? != "/" {
            return None;
        }
        let mut source = source.split(' ');
        if source.next()? != "overlay" {
            return None;
        }
        let options = source.nth(1)?;
        let upper = options
            .split(',')
            .find_map(|option| option.strip_prefix("upperdir="))?;
        // The kernel writes blanks and the like as octal numbers: such a path is left alone.
        (upper.starts_with('/') && !upper.contains('\\')).then(|| upper.to_owned())
    })
}

/// Path of a process's cgroup in a hierarchy, from its `/proc/<pid>/cgroup`: that of `controller`, or
/// of version 2 for none.
pub fn cgroup_of(text: &str, controller: Option<&str>) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = match controller {
            Some(name) => controllers.split(',').any(|each| each == name),
            None => controllers.is_empty(),
        };
        is_it.then(|| path.to_owned())
    })
}

/// Number of threads of the machine, and its maximum, from `/proc/loadavg`, `/proc/sys/kernel/pid_max`
/// and `/proc/sys/kernel/threads-max`.
///
/// Upstream: `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`.
pub fn threads(loadavg: &str, pid_max: &str, threads_max: &str) -> Option<(u64, u64)> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    let limits = [pid_max, threads_max].map(|text| text.trim().parse::<u64>().ok());
    Some((all.parse().ok()?, limits.into_iter().flatten().min()?))
}
