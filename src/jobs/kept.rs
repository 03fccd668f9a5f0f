//! Ledgers on disk: the started pods of a Job or CronJob, and their outcomes.
//!
//! One file each under `<root>/jobs/` and `<root>/cronjobs/`, replaced by renaming and synced, readable
//! only by root. One that can't be read stays as it is, and its workload is left alone: to begin it
//! again could repeat its work. It is read again at intervals: the disk may have been the cause, or a
//! user restores it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::store::kept::{Claim, StateDir, file_name};
use mirrorlet_core::job::JobName;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;

/// Version of the file format. A file of another version can't be read.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read, in bytes: 100,000 indexes of which each has failed, or a thousand runs
/// of a large template.
const STORED_BYTES_MAX: u64 = 64 << 20;
/// Pause before a file that can't be read is read again. It doesn't grow: the problem's help names it.
pub(super) const READ_RETRY: Duration = Duration::from_secs(30);
/// Pause after a record could not be written. Without one it would be written at each look at pods. It
/// doesn't grow: an attempt is one file, and the Job waits for it.
const WRITE_RETRY: Duration = Duration::from_secs(30);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored<T> {
    version: u32,
    job: JobName,
    record: T,
}

/// The directory, and its contents.
pub(super) struct RecordStore<T> {
    kept: StateDir,
    saved: BTreeMap<JobName, T>,
    /// Jobs without a record that may still have a file: it was written, but may not be durable.
    unsure: BTreeSet<JobName>,
    /// Files that can't be read, by name, and why.
    unreadable: BTreeMap<String, String>,
    /// Why none can be read, if so.
    closed: Option<String>,
    /// When those that can't be read may be read again.
    read_at: Option<Instant>,
    /// The Jobs whose records could not be written: when the write may be retried, and the error.
    refused: BTreeMap<JobName, (Instant, String)>,
}

/// The files of a directory: the records, those that can't be read and why, and why none can be.
type Files<T> = (
    BTreeMap<JobName, T>,
    BTreeMap<String, String>,
    Option<String>,
);

fn claim<T>(stored: &Stored<T>) -> Claim {
    Claim {
        version: stored.version,
        name: Some(file_name(&stored.job)),
    }
}

fn read_all<T: DeserializeOwned>(kept: &StateDir) -> Files<T> {
    let mut saved = BTreeMap::new();
    let read = kept.read_in_place(claim, |stored: Stored<T>| {
        saved.insert(stored.job, stored.record);
    });
    match read {
        Ok(unreadable) => (saved, unreadable.into_iter().collect_map(), None),
        Err(why) => (saved, BTreeMap::new(), Some(why)),
    }
}

impl<T: Serialize + DeserializeOwned + Clone + Send + 'static> RecordStore<T> {
    /// Reads the records of a directory under the root. Blocks.
    pub(super) fn load(root: &Path, directory: &str) -> Self {
        let kept = StateDir {
            dir: root.join(directory),
            what: "record",
            version: FORMAT_VERSION,
            bytes_max: STORED_BYTES_MAX,
            ..StateDir::default()
        };
        let (saved, unreadable, closed) = read_all(&kept);
        Self {
            kept,
            saved,
            unsure: BTreeSet::new(),
            unreadable,
            closed,
            read_at: None,
            refused: BTreeMap::new(),
        }
    }

    /// The files of those of these Jobs whose records can't be read.
    pub(super) fn unreadable_files<'a>(
        &self,
        jobs: impl Iterator<Item = &'a JobName>,
    ) -> Vec<String> {
        let unreadable = jobs.filter(|job| self.unreadable(job).is_some());
        unreadable.map(file_name).collect()
    }

    /// Reads these unreadable files again; at most once per [`READ_RETRY`]. Returns when to do so next,
    /// if any is still unreadable. A missing file stays among them: an unmounted directory must not
    /// make a Job run again.
    pub(super) async fn read_again(&mut self, files: Vec<String>) -> Option<Duration> {
        if files.is_empty() {
            return None;
        }
        let now = Instant::now();
        if let Some(read_at) = self.read_at.filter(|read_at| *read_at > now) {
            return Some(read_at - now);
        }
        self.read_at = Some(now + READ_RETRY);
        let kept = self.kept.clone();
        if self.closed.is_some() {
            let read = move || kept.dir.is_dir().then(|| read_all(&kept));
            if let Some(all) = disk::blocking(read).await {
                self.take(all);
            }
        } else {
            let read = disk::blocking(move || {
                let files = files.into_iter();
                let read = files.map(|file| (kept.read_again(&file, claim::<T>), file));
                read.collect::<Vec<_>>()
            });
            for (stored, file) in read.await {
                match stored {
                    Ok(Stored { job, record, .. }) => {
                        self.unreadable.remove(&file);
                        self.unsure.remove(&job);
                        self.saved.insert(job, record);
                    }
                    Err(why) => {
                        self.unreadable.insert(file, why);
                    }
                }
            }
        }
        self.has_unreadable().then_some(READ_RETRY)
    }

    /// Takes the result of reading the whole directory. If that failed again, the data written
    /// meanwhile is still on disk.
    fn take(&mut self, (saved, unreadable, closed): Files<T>) {
        self.closed = closed;
        if self.closed.is_none() {
            self.unsure.retain(|job| !saved.contains_key(job));
            (self.saved, self.unreadable) = (saved, unreadable);
        }
    }

    /// The record of a Job on disk.
    pub(super) fn get(&self, job: &JobName) -> Option<&T> {
        self.saved.get(job)
    }

    /// The Jobs with a record on disk, and those that may have one.
    pub(super) fn names(&self) -> impl Iterator<Item = &JobName> {
        self.saved.keys().chain(&self.unsure)
    }

    /// The records on disk.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.saved.values()
    }

    /// Whether there are no records on disk.
    pub(super) fn is_empty(&self) -> bool {
        self.saved.is_empty() && self.unsure.is_empty()
    }

    /// The file of a Job's record, and why it can't be read, if it can't. A record that this agent has
    /// written is also known while its directory can't be read.
    pub(super) fn unreadable(&self, job: &JobName) -> Option<(String, &str)> {
        let file = file_name(job);
        let closed = self.closed.as_ref();
        let closed = closed.filter(|_| !self.saved.contains_key(job));
        let why = closed.or_else(|| self.unreadable.get(&file))?;
        Some((self.kept.dir.join(file).display().to_string(), why))
    }

    /// Whether a file can't be read, whichever it is.
    fn has_unreadable(&self) -> bool {
        self.closed.is_some() || !self.unreadable.is_empty()
    }

    /// Writes records and removes those that are empty; returns the error of each that failed.
    /// `changes` is everything to be written now. A write that failed a moment ago fails again without
    /// an attempt, unless a user gave an order about that workload.
    pub(super) async fn keep(
        &mut self,
        mut changes: Vec<(JobName, Option<T>)>,
        ordered: &BTreeSet<JobName>,
    ) -> BTreeMap<JobName, String> {
        let mut failed = BTreeMap::new();
        let now = Instant::now();
        let is_change = |job: &JobName| changes.iter().any(|(changed, _)| changed == job);
        self.refused.retain(|job, _| is_change(job));
        changes.retain(|(job, _)| {
            let refused = self.refused.get(job);
            let refused = refused.filter(|(until, _)| *until > now && !ordered.contains(job));
            failed.extend(refused.map(|(_, why)| (job.clone(), why.clone())));
            refused.is_none()
        });
        if changes.is_empty() {
            return failed;
        }
        let written = self.kept.keep_named(changes, |job, record| Stored {
            version: FORMAT_VERSION,
            job,
            record,
        });
        for (job, record, result) in written.await {
            if let Err(error) = result {
                if !self.saved.contains_key(&job) {
                    self.unsure.insert(job.clone());
                }
                let refused = (Instant::now() + WRITE_RETRY, error.to_string());
                self.refused.insert(job.clone(), refused);
                failed.insert(job, error.to_string());
                continue;
            }
            self.refused.remove(&job);
            self.unsure.remove(&job);
            self.unreadable.remove(&file_name(&job));
            match record {
                Some(record) => self.saved.insert(job, record),
                None => self.saved.remove(&job),
            };
        }
        failed
    }

    /// When to retry failed writes, if there are any.
    pub(super) fn write_in(&self) -> Option<Duration> {
        let first = self.refused.values().map(|(until, _)| *until).min()?;
        Some(first.saturating_duration_since(Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_could_not_be_read_is_read_again_once_it_is_there() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("jobs");
        std::fs::write(&dir, "").unwrap();
        let mut store = RecordStore::<u8>::load(root.path(), "jobs");
        let job = JobName::new("default", "work");
        let files = store.unreadable_files([&job].into_iter());
        assert_eq!(files, [file_name(&job)]);
        // No directory doesn't mean that no Job has run.
        std::fs::remove_file(&dir).unwrap();
        let next = store.read_again(files.clone()).await;
        assert_eq!(next, Some(READ_RETRY));
        assert!(store.unreadable(&job).is_some());
        std::fs::create_dir(&dir).unwrap();
        assert!(store.read_again(files.clone()).await.is_some());
        assert!(store.unreadable(&job).is_some(), "not before its time");
        tokio::time::advance(READ_RETRY).await;
        assert_eq!(store.read_again(files).await, None);
        assert_eq!(store.unreadable(&job), None);
    }

    #[test]
    fn a_record_that_was_written_outlasts_a_read_that_fails_again() {
        let root = tempfile::tempdir().unwrap();
        let mut store = RecordStore::<u8>::load(root.path(), "jobs");
        let [job, other] = ["work", "other"].map(|name| JobName::new("default", name));
        store.closed = Some("busy".to_owned());
        store.saved.insert(job.clone(), 1);
        store.unsure.insert(other.clone());
        store.take((
            BTreeMap::new(),
            BTreeMap::new(),
            Some("still busy".to_owned()),
        ));
        assert_eq!((store.get(&job), store.unreadable(&job)), (Some(&1), None));
        assert!(store.unreadable(&other).unwrap().1.contains("still"));
        let saved = BTreeMap::from([(job.clone(), 1), (other.clone(), 2)]);
        store.take((saved, BTreeMap::new(), None));
        assert_eq!(store.unreadable(&other), None);
        // Neither of them twice.
        assert!(store.names().eq([&other, &job]));
    }

    #[tokio::test]
    async fn a_record_that_may_not_last_is_removed_with_its_job() {
        let root = tempfile::tempdir().unwrap();
        let mut store = RecordStore::<u8>::load(root.path(), "jobs");
        let job = JobName::new("default", "work");
        store.kept.sync = |_| Err(std::io::ErrorKind::StorageFull.into());
        let none = BTreeSet::new();
        let failed = store.keep(vec![(job.clone(), Some(1))], &none).await;
        assert!(failed.contains_key(&job));
        assert_eq!((store.get(&job), store.is_empty()), (None, false));
        assert!(store.names().eq([&job]));
        store.kept.sync = disk::sync_directory;
        let ordered = BTreeSet::from([job.clone()]);
        let failed = store.keep(vec![(job, None)], &ordered).await;
        assert!(failed.is_empty() && store.is_empty());
        let files = std::fs::read_dir(root.path().join("jobs")).unwrap();
        assert_eq!(files.count(), 0);
    }
}
