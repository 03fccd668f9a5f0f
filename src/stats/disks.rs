//! The sizes of directories: measured in the background, served from memory.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::machine::file_system;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::stats::Disk;

/// Shortest time between two measurements of one thing, as the kubelet's
/// (`--volume-stats-agg-period`).
const WAIT: Duration = Duration::from_mins(1);

/// How long a measurement is kept without requests.
const FORGET: Duration = Duration::from_mins(5);

/// Pauses after measurements that took too long.
const RETRY: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_mins(2), Duration::from_mins(20));

/// Maximum duration of one measurement. A tree that takes longer has millions of files: the size found
/// until then is a lower bound, and it is measured again less and less often.
const MEASURE_MAX: Duration = Duration::from_secs(5);

/// Directories are entered this deep, each level holding a descriptor. What is deeper isn't counted.
const DEPTH_MAX: usize = 128;

/// Most files with several names in one tree, each of which is remembered: about 5 MiB.
const LINKED_MAX: usize = 1 << 18;

/// Size of a block of `st_blocks`, in bytes, on any file system.
const BLOCK_BYTES: u64 = 512;

/// The object of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// All below a directory, but for other file systems.
    Tree(PathBuf),
    /// The same for a pod's volume, while this sandbox of the pod runs. An evicted pod is started again
    /// with another sandbox: its earlier measurements don't apply to the new volumes.
    Volume {
        /// The volume's directory.
        path: PathBuf,
        /// Id of the sandbox.
        sandbox: Arc<str>,
    },
    /// The log files of a container, in its directory of the Engine.
    Logs(PathBuf),
}

#[derive(Debug)]
struct Entry {
    found: Option<Disk>,
    /// Whether a measurement of it has ended, perhaps with nothing.
    is_answered: bool,
    /// Whether it was requested since the last measurement.
    is_asked: bool,
    /// When it was requested last.
    asked: Instant,
    /// From when on it may be measured: at once the first time.
    due: Instant,
    backoff: ExponentialBackoff,
}

/// The measured sizes of some targets.
#[derive(Debug)]
pub(super) struct Known {
    /// Those that hold something.
    pub(super) disks: HashMap<Target, Disk>,
    /// Whether a measurement of each has ended. A missing or unreadable one counts as empty then, and
    /// isn't worth a wait.
    pub(super) is_complete: bool,
}

/// The known disk usage.
#[derive(Debug)]
pub(super) struct Disks {
    entries: Mutex<HashMap<Target, Entry>>,
    asked: Notify,
    now: fn() -> Timestamp,
}

impl Disks {
    pub(super) fn new(now: fn() -> Timestamp) -> Self {
        Self {
            entries: Mutex::default(),
            asked: Notify::new(),
            now,
        }
    }

    /// Returns the known usage of these targets, and wakes the measuring task. Targets that were not
    /// requested for a while are forgotten.
    pub(super) fn ask(&self, targets: &HashSet<Target>) -> Known {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        entries.retain(|_, entry| now.duration_since(entry.asked) < FORGET);
        let mut known = Known {
            disks: HashMap::with_capacity(targets.len()),
            is_complete: true,
        };
        for target in targets {
            let entry = entries.entry(target.clone()).or_insert(Entry {
                found: None,
                is_answered: false,
                is_asked: true,
                asked: now,
                due: now,
                backoff: RETRY,
            });
            (entry.is_asked, entry.asked) = (true, now);
            known.is_complete &= entry.is_answered;
            let found = entry.found.map(|disk| (target.clone(), disk));
            known.disks.extend(found);
        }
        self.asked.notify_one();
        known
    }

    /// The target to measure now: the one that has waited longest. Even if all together take longer
    /// than their pause, each gets its turn.
    fn next(&self, now: Instant) -> Option<Target> {
        let mut entries = self.entries.lock();
        let due = entries
            .iter_mut()
            .filter(|(_, entry)| entry.is_asked && entry.due <= now);
        let (target, entry) = due.min_by_key(|(_, entry)| entry.due)?;
        entry.is_asked = false;
        entry.due = now + WAIT;
        Some(target.clone())
    }

    fn keep(&self, target: &Target, found: Option<Measured>) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(target) else {
            return;
        };
        entry.is_answered = true;
        let disk = found.map(|found| found.disk);
        if found.is_some_and(|found| found.is_partial) {
            let used = |disk: &Disk| disk.used_bytes;
            entry.found = entry.found.into_iter().chain(disk).max_by_key(used);
            entry.due = Instant::now() + entry.backoff.pause();
        } else {
            entry.found = disk;
            entry.backoff.reset();
        }
    }

    /// Measures the requested targets, one after the other, until cancelled.
    pub(super) async fn run(&self, cancel: CancellationToken) {
        let stop = Arc::new(AtomicBool::new(false));
        loop {
            tokio::select! {
                () = cancel.cancelled() => return,
                () = self.asked.notified() => {}
            }
            while let Some(target) = self.next(Instant::now()) {
                let (measured, stop_flag, now) = (target.clone(), Arc::clone(&stop), self.now);
                let measuring = tokio::task::spawn_blocking(move || {
                    let budget = Budget {
                        end: Instant::now() + MEASURE_MAX,
                        linked_max: LINKED_MAX,
                        stop: &stop_flag,
                    };
                    measure(&measured, &budget, now())
                });
                tokio::select! {
                    () = cancel.cancelled() => {
                        // It ends at its next file.
                        stop.store(true, Ordering::Relaxed);
                        return;
                    }
                    done = measuring => self.keep(&target, done.unwrap_or_default()),
                }
            }
        }
    }
}

/// The result of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Measured {
    disk: Disk,
    /// Whether it was given up: that is the least that is used.
    is_partial: bool,
}

struct Budget<'a> {
    end: Instant,
    linked_max: usize,
    stop: &'a AtomicBool,
}

impl Budget<'_> {
    fn is_left(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && Instant::now() <= self.end
    }
}

/// Measures a target and its file system; `None` if it is gone.
fn measure(target: &Target, budget: &Budget<'_>, now: Timestamp) -> Option<Measured> {
    let (path, held) = match target {
        Target::Tree(path) | Target::Volume { path, .. } => (path, tree(path, budget)?),
        Target::Logs(path) => (path, logs(path, budget)?),
    };
    let disk = Disk {
        used_bytes: Some(held.bytes),
        inodes_used: Some(held.inodes),
        ..file_system(path, now)?
    };
    let is_partial = held.is_partial;
    Some(Measured { disk, is_partial })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    bytes: u64,
    inodes: u64,
    /// Whether there may be more.
    is_partial: bool,
}

impl Held {
    fn add(&mut self, metadata: &fs::Metadata) {
        self.inodes += 1;
        self.bytes += metadata.blocks() * BLOCK_BYTES;
    }
}

/// All below a directory and itself. A file with several names counts once.
///
/// Upstream: `pkg/volume/util/fs/fs.go` (`DiskUsage`).
fn tree(root: &Path, budget: &Budget<'_>) -> Option<Held> {
    let metadata = fs::symlink_metadata(root).ok()?;
    let device = metadata.dev();
    let mut held = Held::default();
    held.add(&metadata);
    let mut linked = HashSet::new();
    // A file that is removed meanwhile counts as empty.
    let mut open: Vec<fs::ReadDir> = fs::read_dir(root).into_iter().collect();
    while let Some(entries) = open.last_mut() {
        if !budget.is_left() {
            held.is_partial = true;
            break;
        }
        let Some(entry) = entries.next() else {
            open.pop();
            continue;
        };
        let Ok((path, metadata)) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))
        else {
            continue;
        };
        if metadata.dev() != device {
            continue;
        }
        if metadata.is_dir() {
            held.add(&metadata);
            if open.len() < DEPTH_MAX {
                open.extend(fs::read_dir(path));
            } else {
                held.is_partial = true;
            }
        } else if metadata.nlink() < 2 {
            held.add(&metadata);
        } else if linked.len() < budget.linked_max {
            if linked.insert(metadata.ino()) {
                held.add(&metadata);
            }
        } else if !linked.contains(&metadata.ino()) {
            held.is_partial = true;
        }
    }
    Some(held)
}

/// Files of a log driver: `<id>-json.log` and those rotated before, or all of `local-logs`.
fn logs(directory: &Path, budget: &Budget<'_>) -> Option<Held> {
    let local = directory.join("local-logs");
    if local.is_dir() {
        return tree(&local, budget);
    }
    let mut held = Held::default();
    for entry in fs::read_dir(directory).ok()?.flatten() {
        if !budget.is_left() {
            held.is_partial = true;
            break;
        }
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| name.contains("-json.log"))
            && let Ok(metadata) = entry.metadata()
        {
            held.add(&metadata);
        }
    }
    Some(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(stop: &AtomicBool) -> Budget<'_> {
        Budget {
            end: Instant::now() + Duration::from_mins(10),
            linked_max: 2,
            stop,
        }
    }

    #[test]
    fn a_tree_counts_blocks_and_each_file_once() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let empty = tree(dir.path(), &budget(&stop)).unwrap();
        assert_eq!(empty.inodes, 1);
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/one"), vec![1; 100_000]).unwrap();
        fs::hard_link(dir.path().join("a/one"), dir.path().join("two")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("away")).unwrap();
        let held = tree(dir.path(), &budget(&stop)).unwrap();
        // usage 38a
        assert_eq!(held.inodes, 4, "{held:?}");
        let grown = held.bytes - empty.bytes;
        assert!((100_000..200_000).contains(&grown), "{held:?}");
        stop.store(true, Ordering::Relaxed);
        let cut = tree(dir.path(), &budget(&stop)).unwrap();
        assert!(cut.is_partial && cut.inodes == 1, "{cut:?}");
        assert_eq!(tree(&dir.path().join("gone"), &budget(&stop)), None);
    }

    /// A tenant makes directories as it likes: what measures them stays small.
    #[test]
    fn a_tree_too_deep_or_with_too_many_links_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let measured = || {
            let held = tree(dir.path(), &budget(&stop)).unwrap();
            (held.inodes, held.is_partial)
        };
        for (count, found) in [(1, (2, false)), (2, (3, false)), (3, (3, true))] {
            let file = dir.path().join(format!("{count}"));
            fs::write(&file, "").unwrap();
            fs::hard_link(&file, dir.path().join(format!("{count}-again"))).unwrap();
            assert_eq!(measured(), found, "{count}");
        }
        for entry in fs::read_dir(dir.path()).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        let mut deep = dir.path().to_owned();
        deep.extend(std::iter::repeat_n("d", DEPTH_MAX - 1));
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(measured(), (DEPTH_MAX as u64, false));
        fs::create_dir(deep.join("d")).unwrap();
        fs::write(deep.join("d/hidden"), "").unwrap();
        fs::write(dir.path().join("seen"), "").unwrap();
        // tenants H3
        assert_eq!(measured(), (DEPTH_MAX as u64 + 2, true));
    }

    #[test]
    fn logs_are_those_of_the_engines_drivers() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        for file in ["x-json.log", "x-json.log.1", "hostname", "config.v2.json"] {
            fs::write(dir.path().join(file), b"text").unwrap();
        }
        let held = logs(dir.path(), &budget(&stop)).unwrap();
        assert_eq!(held.inodes, 2);
        fs::create_dir(dir.path().join("local-logs")).unwrap();
        fs::write(dir.path().join("local-logs/container.log"), b"text").unwrap();
        let held = logs(dir.path(), &budget(&stop)).unwrap();
        assert_eq!(held.inodes, 2);
        assert_eq!(logs(&dir.path().join("gone"), &budget(&stop)), None);
    }

    #[test]
    fn something_is_measured_when_asked_for_and_at_most_once_a_minute() {
        let disks = Disks::new(Timestamp::now);
        let target = Target::Tree("/t".into());
        let targets = HashSet::from([target.clone()]);
        assert_eq!(disks.next(Instant::now()), None);
        assert!(disks.ask(&targets).disks.is_empty());
        let start = Instant::now();
        assert_eq!(disks.next(start), Some(target.clone()));
        assert_eq!(disks.next(start), None);
        let measured = |bytes, is_partial| {
            let disk = Disk {
                used_bytes: Some(bytes),
                ..Disk::default()
            };
            Some(Measured { disk, is_partial })
        };
        disks.keep(&target, measured(5, false));
        assert_eq!(disks.ask(&targets).disks.len(), 1);
        assert_eq!(disks.next(start + WAIT / 2), None);
        // usage 38a
        assert_eq!(disks.next(start + WAIT), Some(target.clone()));
        // Nobody has asked since.
        assert_eq!(disks.next(start + 10 * WAIT), None);
        for (found, least) in [(4, 5), (6, 6)] {
            disks.keep(&target, measured(found, true));
            // eviction 7
            assert_eq!(
                disks.ask(&targets).disks[&target].used_bytes,
                Some(least),
                "at least"
            );
        }
        assert_eq!(disks.next(Instant::now() + WAIT), None);
        assert_eq!(disks.next(Instant::now() + 9 * WAIT), Some(target));
        assert!(disks.ask(&HashSet::new()).disks.is_empty());
        assert_eq!(disks.next(Instant::now() + 100 * WAIT), None);
    }

    /// Three of these fit into the pause of each, and somebody asks for all of them all the time.
    #[test]
    fn each_is_measured_in_its_turn_where_all_take_longer_than_their_pause() {
        let disks = Disks::new(Timestamp::now);
        let target = |n: usize| Target::Tree(format!("/{n}").into());
        let targets: HashSet<Target> = (0..20).map(target).collect();
        disks.ask(&targets);
        let start = Instant::now();
        let mut measured = Vec::new();
        for turn in 0..60_u32 {
            disks.ask(&targets);
            measured.extend(disks.next(start + turn * WAIT / 3));
        }
        let first: HashSet<Target> = measured[..20].iter().cloned().collect();
        // usage 38a
        assert_eq!(first, targets);
        assert_eq!(measured[..20], measured[20..40]);
        assert_eq!(measured[20..40], measured[40..]);
    }

    /// Whoever waits for all answers must not wait for one that never comes.
    #[test]
    fn something_that_is_gone_is_answered_once_it_was_tried() {
        let disks = Disks::new(Timestamp::now);
        let [here, gone] = ["/here", "/gone"].map(|path| Target::Tree(path.into()));
        let targets = HashSet::from([here.clone(), gone.clone()]);
        assert!(!disks.ask(&targets).is_complete);
        let disk = Disk::default();
        let is_partial = false;
        disks.keep(&here, Some(Measured { disk, is_partial }));
        assert!(!disks.ask(&targets).is_complete, "one is left");
        disks.keep(&gone, None);
        let known = disks.ask(&targets);
        // eviction 14
        assert!(known.is_complete, "{known:?}");
        assert_eq!(known.disks.into_keys().collect::<Vec<_>>(), [here]);
        assert!(disks.ask(&HashSet::new()).is_complete);
    }

    #[tokio::test]
    async fn what_was_asked_for_is_measured_beside() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Arc::new(Disks::new(Timestamp::now));
        let cancel = CancellationToken::new();
        let running = tokio::spawn({
            let (disks, cancel) = (Arc::clone(&disks), cancel.clone());
            async move { disks.run(cancel).await }
        });
        let target = Target::Tree(dir.path().to_owned());
        let targets = HashSet::from([target.clone()]);
        let found = loop {
            if let Some(found) = disks.ask(&targets).disks.remove(&target) {
                break found;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        // usage 38a
        assert_eq!(found.inodes_used, Some(1));
        assert!(found.capacity_bytes > Some(0));
        cancel.cancel();
        running.await.unwrap();
    }
}
