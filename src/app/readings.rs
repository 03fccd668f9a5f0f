//! The machine's data in our Node: facts that hold until the next boot, and readings of the
//! moment. All are small files of the kernel's; what can't be read is left out.

use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::facts::{self, Machine};
use crate::config::Config;
use crate::observe::Reach;
use crate::store::cell::{Reader, Writer};
use mirrorlet_core::api::report::EngineReport;
use mirrorlet_core::node::{
    DiskReading, EngineSeen, ImageSeen, NodeFacts, PidReading, Readings, is_short_of_disk,
};
use mirrorlet_host::volume::HostFiles;

/// How often the machine is read: as often as the Node's status is computed.
const PERIOD: Duration = Duration::from_secs(10);

/// The facts, but for those of the Engine.
pub(super) fn node_facts(
    config: &Config,
    owner: &str,
    machine: &Machine,
    node_api_port: Option<u16>,
) -> NodeFacts {
    let host = HostFiles::new(config.host_root.clone());
    // What the host has there, where it is seen.
    let of_host = |path: &str| match host.path(Path::new(path)) {
        Ok(Some(path)) => std::fs::read_to_string(path).unwrap_or_default(),
        _ => String::new(),
    };
    let first = |paths: &[&str]| {
        let mut read = paths.iter().map(|path| of_host(path).trim().to_owned());
        read.find(|text| !text.is_empty()).unwrap_or_default()
    };
    let machine_id = first(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    NodeFacts {
        name: config.node_name.clone(),
        owner: owner.to_owned(),
        hostname: line("/proc/sys/kernel/hostname"),
        arch: go_arch(std::env::consts::ARCH).to_owned(),
        addresses: machine.ips.clone(),
        node_api_port,
        labels: config.node_labels.clone(),
        taints: config.register_with_taints.clone(),
        capacity: machine.capacity,
        reserved: machine.reserved,
        max_pods: config.max_pods,
        system_uuid: first(&["/sys/class/dmi/id/product_uuid", "/etc/machine-id"]),
        machine_id,
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        kernel_version: line("/proc/sys/kernel/osrelease"),
        os_image: os_image(&of_host("/etc/os-release")),
        engine_version: None,
        images: Vec::new(),
    }
}

/// Keeps facts and readings until cancelled.
pub(super) async fn keep(
    root: std::path::PathBuf,
    mut facts: Writer<NodeFacts>,
    mut readings: Writer<Readings>,
    mut reach: watch::Receiver<Reach>,
    mut engine: watch::Receiver<EngineReport>,
    mut images: Reader<Vec<ImageSeen>>,
    cancel: CancellationToken,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let seen = match &*reach.borrow_and_update() {
            Reach::Unknown => EngineSeen::Unknown,
            Reach::Up => EngineSeen::Up,
            Reach::Down(cause) => EngineSeen::Down(cause.clone()),
        };
        readings.publish(read(&root, seen));
        let mut known = (*facts.get()).clone();
        if let Some(version) = engine.borrow_and_update().version.clone() {
            known.engine_version = Some(version);
        }
        known.images.clone_from(&images.get());
        facts.publish(known);
        let told = tokio::select! {
            () = cancel.cancelled() => return,
            _ = ticks.tick() => Ok(()),
            told = reach.changed() => told,
            told = engine.changed() => told,
            Ok(_) = images.changed() => Ok(()),
        };
        if told.is_err() {
            return;
        }
    }
}

fn read(root: &Path, engine: EngineSeen) -> Readings {
    Readings {
        engine,
        memory_available_bytes: facts::meminfo_bytes(&text("/proc/meminfo"), "MemAvailable:"),
        disks: disk("nodefs", root).into_iter().collect(),
        pids: pids(
            &text("/proc/loadavg"),
            &line("/proc/sys/kernel/pid_max"),
            &line("/proc/sys/kernel/threads-max"),
        ),
    }
}

fn disk(name: &'static str, path: &Path) -> Option<DiskReading> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(DiskReading {
        name,
        available_bytes: stat.f_bavail.saturating_mul(stat.f_frsize),
        capacity_bytes: stat.f_blocks.saturating_mul(stat.f_frsize),
        inodes_free: stat.f_favail,
        inodes: stat.f_files,
    })
}

/// Whether the disk below `path` is under pressure, as a Node's condition tells it.
pub(super) fn has_disk_pressure(path: &Path) -> bool {
    disk("nodefs", path).is_some_and(|disk| is_short_of_disk(&disk))
}

/// Upstream: `pkg/kubelet/stats/pidlimit/pidlimit_linux.go`.
fn pids(loadavg: &str, pid_max: &str, threads_max: &str) -> Option<PidReading> {
    let (_, all) = loadavg.split_whitespace().nth(3)?.split_once('/')?;
    let limits = [pid_max, threads_max].map(|text| text.parse::<u64>().ok());
    Some(PidReading {
        used: all.parse().ok()?,
        max: limits.into_iter().flatten().min()?,
    })
}

/// `PRETTY_NAME` of an os-release file.
fn os_image(os_release: &str) -> String {
    let named = os_release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    named.unwrap_or("Linux").trim_matches('"').to_owned()
}

/// An architecture as Go, and hence Kubernetes, names it.
fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn line(path: &str) -> String {
    text(path).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_against_the_smaller_limit() {
        let read = pids("0.5 0.4 0.3 2/345 6789", "4194304", "1000");
        assert_eq!(
            read,
            Some(PidReading {
                used: 345,
                max: 1000
            })
        );
        assert_eq!(pids("", "1", "1"), None);
        assert_eq!(pids("0 0 0 1/2 3", "", ""), None);
    }

    #[test]
    fn the_system_is_named_as_it_names_itself() {
        let text = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n";
        assert_eq!(os_image(text), "Debian GNU/Linux 12 (bookworm)");
        assert_eq!(os_image(""), "Linux");
    }

    #[test]
    fn a_machine_has_all_readings() {
        let read = read(Path::new("/"), EngineSeen::Up);
        assert!(read.memory_available_bytes.is_some_and(|bytes| bytes > 0));
        assert!(read.disks[0].capacity_bytes >= read.disks[0].available_bytes);
        assert!(
            read.pids
                .is_some_and(|pids| pids.used > 0 && pids.used < pids.max)
        );
    }
}
