//! What is read off the machine again and again, for the conditions of our Node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::observe::Reach;
use crate::pod::node::{DiskReading, EngineSeen, PidReading, Readings};
use crate::store::cell::{Reader, Writer, cell};

/// How often the machine is read: upstream's `nodeStatusUpdateFrequency`.
const READ_PERIOD: Duration = Duration::from_secs(10);
/// How long a read may take before it counts as none. A few lines of /proc and two `statvfs`
/// calls take microseconds; a disk that hangs takes for ever.
const READ_DEADLINE: Duration = Duration::from_secs(2);

/// The file systems that are looked at.
#[derive(Debug, Clone)]
pub struct Disks {
    /// Where pods' volumes are.
    pub nodefs: PathBuf,
    /// Where the Engine's images and containers are, if that is on this machine.
    pub imagefs: Option<PathBuf>,
}

/// Publishes [`Readings`] every few seconds, and at once when the Engine comes or goes.
pub struct ReadingsTask {
    disks: Disks,
    reach: watch::Receiver<Reach>,
    readings: Writer<Readings>,
}

impl ReadingsTask {
    /// A task that reads these disks and that reach, with a reader of what it read.
    #[must_use]
    pub fn new(disks: Disks, reach: watch::Receiver<Reach>) -> (Self, Reader<Readings>) {
        let (readings, reader) = cell(Readings::default());
        let task = Self {
            disks,
            reach,
            readings,
        };
        (task, reader)
    }

    /// Runs until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut ticks = tokio::time::interval(READ_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = None;
        loop {
            // All arms may be dropped: a tick or a change that was not taken comes again.
            tokio::select! {
                () = cancel.cancelled() => return,
                _ = ticks.tick() => {}
                changed = self.reach.changed() => if changed.is_err() { return },
            }
            let engine = match &*self.reach.borrow_and_update() {
                Reach::Unknown => EngineSeen::Unknown,
                Reach::Up => EngineSeen::Up,
                Reach::Down(cause) => EngineSeen::Down(cause.clone()),
            };
            // A read that hangs is waited for again, never doubled.
            let mut reading = under_way.take().unwrap_or_else(|| {
                let disks = self.disks.clone();
                tokio::task::spawn_blocking(move || machine(&disks))
            });
            let machine = tokio::select! {
                () = cancel.cancelled() => return,
                read = tokio::time::timeout(READ_DEADLINE, &mut reading) => read,
            };
            let machine = match machine {
                Ok(read) => read.unwrap_or_default(),
                Err(_) => {
                    under_way = Some(reading);
                    Readings::default()
                }
            };
            self.readings.publish(Readings { engine, ..machine });
        }
    }
}

fn machine(disks: &Disks) -> Readings {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let number = |path: &str| read(path).trim().parse().ok();
    let limits = [
        number("/proc/sys/kernel/pid_max"),
        number("/proc/sys/kernel/threads-max"),
    ];
    let nodefs = disk("nodefs", &disks.nodefs);
    let imagefs = disks.imagefs.as_deref().map(|path| disk("imagefs", path));
    Readings {
        engine: EngineSeen::Unknown,
        memory_available_bytes: memory_available(&read("/proc/meminfo")),
        disks: [Some(nodefs), imagefs]
            .into_iter()
            .flatten()
            .flatten()
            .collect(),
        pids: threads(&read("/proc/loadavg"))
            .zip(limits.into_iter().flatten().min())
            .map(|(used, max)| PidReading { used, max }),
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

/// `MemAvailable` in bytes.
fn memory_available(meminfo: &str) -> Option<u64> {
    let rest = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// How many threads there are: the number after the slash.
fn threads(loadavg: &str) -> Option<u64> {
    let entities = loadavg.split_whitespace().nth(3)?;
    entities.split_once('/')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_read() {
        let meminfo = "MemTotal: 24689764 kB\nMemAvailable:   12344 kB\n";
        assert_eq!(memory_available(meminfo), Some(12344 * 1024));
        assert_eq!(memory_available(""), None);
        assert_eq!(threads("0.75 1.35 1.25 1/1234 9999\n"), Some(1234));
        assert_eq!(threads("x"), None);
    }

    #[tokio::test]
    async fn readings_follow_the_engine_at_once() {
        let (sender, reach) = watch::channel(Reach::Unknown);
        let disks = Disks {
            nodefs: "/".into(),
            imagefs: None,
        };
        let (task, mut readings) = ReadingsTask::new(disks, reach);
        let cancel = CancellationToken::new();
        let running = tokio::spawn(task.run(cancel.clone()));
        let down = EngineSeen::Down("x".to_owned());
        sender.send_replace(Reach::Down("x".to_owned()));
        let seen = readings.wait_for(|readings| readings.engine == down).await;
        let seen = seen.unwrap();
        assert!(seen.memory_available_bytes.is_some());
        assert_eq!(seen.disks.len(), 1);
        assert!(seen.pids.is_some_and(|pids| pids.used < pids.max));
        sender.send_replace(Reach::Up);
        let up = readings.wait_for(|readings| readings.engine == EngineSeen::Up);
        up.await.unwrap();
        cancel.cancel();
        running.await.unwrap();
    }
}
