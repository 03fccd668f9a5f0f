//! The machine: its total usage, and its disks.

use std::path::Path;

use super::cgroups::Buffer;
use super::{Kernel, StatsError};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::stats::{Disk, Network, NodeReading, Scope, Usage, proc};

/// Reads the machine.
///
/// # Errors
/// `/proc/stat` or `/proc/meminfo` can't be read, without which there are no statistics.
pub(super) fn read(
    kernel: &Kernel,
    name: &str,
    root: &Path,
    scope: Scope,
    now: Timestamp,
    buffer: &mut Buffer,
) -> Result<NodeReading, StatsError> {
    let proc = &kernel.proc;
    let (cpu, booted_at) = buffer
        .read(proc.join("stat"))
        .and_then(proc::stat)
        .ok_or(StatsError::Machine("/proc/stat"))?;
    let vmstat = buffer.read(proc.join("vmstat")).map(str::to_owned);
    let meminfo = buffer
        .read(proc.join("meminfo"))
        .map(proc::meminfo)
        .ok_or(StatsError::Machine("/proc/meminfo"))?;
    let memory = proc::memory(&meminfo, &vmstat.unwrap_or_default())
        .ok_or(StatsError::Machine("/proc/meminfo"))?;
    let swap_bytes = meminfo.get("SwapTotal").copied().unwrap_or_default();
    let mut node = NodeReading {
        name: name.to_owned(),
        booted_at,
        usage: Usage {
            time: now,
            cpu: Some(cpu),
            memory: Some(memory),
            ..Usage::default()
        },
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
        memory_bytes: memory.limit.unwrap_or_default(),
        swap_bytes,
        ..NodeReading::default()
    };
    if scope == Scope::CpuAndMemory {
        return Ok(node);
    }
    // The machine's network is that of its first process; our own where we can't see that one.
    let net_dev = ["1/net/dev", "net/dev"];
    node.network = net_dev.iter().find_map(|file| {
        let interfaces = proc::interfaces(buffer.read(proc.join(file))?);
        Some(Network {
            time: now,
            interfaces,
        })
    });
    let mut text = |file: &str| {
        let read = buffer.read(proc.join(file));
        read.unwrap_or_default().to_owned()
    };
    node.threads = proc::threads(
        &text("loadavg"),
        &text("sys/kernel/pid_max"),
        &text("sys/kernel/threads-max"),
    );
    if scope == Scope::Detailed {
        node.devices = proc::devices(&text("partitions"));
    }
    node.fs = file_system(root, now).map(with_use);
    Ok(node)
}

/// The file system of that path, without its usage by others.
pub(super) fn file_system(path: &Path, now: Timestamp) -> Option<Disk> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(Disk {
        time: now,
        available_bytes: Some(stat.f_bavail.saturating_mul(stat.f_frsize)),
        capacity_bytes: Some(stat.f_blocks.saturating_mul(stat.f_frsize)),
        used_bytes: None,
        inodes_free: Some(stat.f_ffree),
        inodes: Some(stat.f_files),
        inodes_used: None,
    })
}

/// The total usage of a file system.
pub(super) fn with_use(disk: Disk) -> Disk {
    let less = |all: Option<u64>, rest: Option<u64>| Some(all?.saturating_sub(rest?));
    Disk {
        used_bytes: less(disk.capacity_bytes, disk.available_bytes),
        inodes_used: less(disk.inodes, disk.inodes_free),
        ..disk
    }
}
