//! Wires eviction: its readings of the machine, and its reclaiming.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::facts::text;
use super::{Parts, spawn_until};
use crate::config::Config;
use crate::config::eviction::policy;
use crate::eviction::{EvictionHost, EvictionManager, Seen, Shortages};
use crate::stats::StatsProvider;
use crate::store::board::{Board, PodView};
use crate::store::cell::{Reader, Writer, cell};
use crate::store::evictions::{Evict, evictions};
use mirrorlet_core::eviction::{Observation, Observations, Pressures, Signal};
use mirrorlet_core::stats::{PodReading, proc};
use mirrorlet_docker::image::ImageReclaim;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::gc::ContainerGc;

/// Where the kernel's files are.
const PROC: &str = "/proc";

/// The ends that eviction writes to.
pub(super) struct Ends {
    pub(super) pressures: Writer<Pressures>,
    orders: mpsc::Sender<Evict>,
}

/// These ends, and those to read: the node's pressures, and orders to evict pods.
pub(super) fn ends() -> (Ends, Reader<Pressures>, mpsc::Receiver<Evict>) {
    let (pressures, reader) = cell(Pressures::new());
    let (orders, receiver) = evictions();
    (Ends { pressures, orders }, reader, receiver)
}

impl Ends {
    /// Starts to evict; returns the reader for the status report.
    pub(super) fn start(
        self,
        config: &Config,
        host: Host,
        board: Board,
        parts: &mut Parts,
        cancel: &CancellationToken,
    ) -> Reader<Shortages> {
        let (telemetry, host) = (host.telemetry.clone(), Arc::new(host));
        let Self { pressures, orders } = self;
        let (manager, shortages) =
            EvictionManager::new(policy(config), host, board, orders, pressures, telemetry);
        spawn_until(parts, cancel, "eviction", manager.run());
        shortages
    }
}

/// This machine and its Engine.
pub(super) struct Host {
    /// The agent's root directory.
    pub(super) root: PathBuf,
    /// Reads what pods use.
    pub(super) stats: Arc<StatsProvider>,
    /// Collects dead containers.
    pub(super) containers: Arc<ContainerGc>,
    /// Collects images; none where that is off.
    pub(super) images: Option<ImageReclaim>,
    pub(super) telemetry: Telemetry,
}

#[async_trait]
impl EvictionHost for Host {
    async fn observe(&self) -> Seen {
        let images = self.stats.image_dir().await;
        let root = self.root.clone();
        // A file system of the network may take its time.
        disk::blocking(move || observe(Path::new(PROC), &root, images.as_deref())).await
    }

    async fn usage(
        &self,
        pods: Vec<PodView>,
        patience: Duration,
    ) -> Result<Vec<PodReading>, String> {
        let read = self.stats.pods(pods, patience).await;
        read.map_err(|error| error.to_string())
    }

    async fn collect(&self) {
        let outcome = self.containers.delete_all_unused_containers().await;
        occurrences::containers_collected(&self.telemetry, &outcome, &mut false);
        if let Some(images) = &self.images {
            images.delete_unused_images().await;
        }
    }
}

/// Reads what the machine has left, with the kernel's files in `proc_dir`. A signal that can't be read is
/// missing.
fn observe(proc_dir: &Path, root: &Path, images: Option<&Path>) -> Seen {
    let mut observations = Observations::new();
    let mut saw = |signal, available, capacity| {
        let seen = Observation {
            available,
            capacity,
        };
        observations.insert(signal, seen);
    };
    let text = |file: &str| text(proc_dir.join(file));
    let memory = proc::memory(&proc::meminfo(&text("meminfo")), "");
    if let Some((memory, capacity)) = memory.and_then(|m| Some((m, m.limit?))) {
        let available = capacity.saturating_sub(memory.working_set);
        saw(Signal::MemoryAvailable, available, capacity);
    }
    let threads = proc::threads(
        &text("loadavg"),
        &text("sys/kernel/pid_max"),
        &text("sys/kernel/threads-max"),
    );
    if let Some((used, capacity)) = threads {
        let available = capacity.saturating_sub(used);
        saw(Signal::PidAvailable, available, capacity);
    }
    let mut disk = |path: &Path, bytes: Signal, inodes: Signal| {
        let Ok(stat) = rustix::fs::statvfs(path) else {
            return;
        };
        let of = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        saw(bytes, of(stat.f_bavail), of(stat.f_blocks));
        // A file system without a number of inodes never runs out of them.
        if stat.f_files > 0 {
            saw(inodes, stat.f_favail, stat.f_files);
        }
    };
    disk(root, Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
    if let Some(images) = images {
        disk(images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree);
    }
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let has_image_fs = images
        .and_then(device)
        .is_some_and(|dev| Some(dev) != device(root));
    Seen {
        observations,
        has_image_fs,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use mirrorlet_core::api::Timestamp;
    use mirrorlet_core::eviction::{Amount, Eviction, EvictionPolicy, Pressure, Threshold};

    #[test]
    fn a_machine_has_all_readings() {
        let seen = observe(Path::new(PROC), Path::new("/"), Some(Path::new("/proc")));
        // Some file systems, such as btrfs, have no number of inodes.
        let has_inodes = rustix::fs::statvfs("/").unwrap().f_files > 0;
        for signal in Signal::ALL {
            let seen = seen.observations.get(&signal);
            let is_expected = match signal {
                Signal::NodeFsInodesFree => has_inodes,
                // proc has no inodes to count.
                Signal::ImageFsInodesFree => false,
                Signal::MemoryAvailable
                | Signal::NodeFsAvailable
                | Signal::ImageFsAvailable
                | Signal::PidAvailable => true,
            };
            assert_eq!(seen.is_some(), is_expected, "{signal:?}");
            if let Some(seen) = seen {
                assert!(seen.available <= seen.capacity, "{signal:?}");
            }
        }
        assert!(seen.has_image_fs);
        let seen = observe(Path::new(PROC), Path::new("/"), None);
        assert!(!seen.has_image_fs);
        assert!(!seen.observations.contains_key(&Signal::ImageFsAvailable));
    }

    #[test]
    fn memory_and_process_numbers_fall_below_their_thresholds_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        fs::create_dir_all(dir.path().join("sys/kernel")).unwrap();
        write("sys/kernel/pid_max", "32768\n");
        write("sys/kernel/threads-max", "1000\n");
        let threshold = |signal, units| Threshold {
            signal,
            value: Amount::Units(units),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let policy = EvictionPolicy {
            thresholds: vec![
                threshold(Signal::MemoryAvailable, 100 << 10),
                threshold(Signal::PidAvailable, 100),
            ],
            max_pod_grace: Duration::ZERO,
            transition: Duration::ZERO,
        };
        let mut eviction = Eviction::default();
        // Memory that is free and that holds files which nobody reads, in KiB; and threads.
        for (second, (free, files, threads), expected) in [
            (0, (100, 0, 900), None),
            (
                10,
                (99, 0, 900),
                Some((Signal::MemoryAvailable, Pressure::Memory)),
            ),
            (20, (50, 50, 900), None),
            (
                30,
                (100, 0, 901),
                Some((Signal::PidAvailable, Pressure::Pid)),
            ),
            (40, (100, 0, 900), None),
        ] {
            let meminfo =
                format!("MemTotal: 1000 kB\nMemFree: {free} kB\nInactive(file): {files} kB\n");
            write("meminfo", &meminfo);
            write("loadavg", &format!("0.1 0.2 0.3 1/{threads} 7\n"));
            let seen = observe(dir.path(), dir.path(), None);
            let now = Timestamp::from_second(second).unwrap();
            let look = eviction.observe(&policy, &seen.observations, now);
            let starved = look.starved.map(|threshold| threshold.signal);
            // eviction 1
            assert_eq!(starved, expected.map(|(signal, _)| signal), "{second}");
            let pressures: Vec<Pressure> = look.pressures.into_iter().collect();
            // eviction 1
            assert_eq!(
                pressures,
                Vec::from_iter(expected.map(|(_, pressure)| pressure))
            );
        }
    }
}
