//! Ledgers on disk: what was started of a Job or CronJob, and what became of it.
//!
//! One file each under `<root>/jobs/` and `<root>/cronjobs/`, renamed in and synced, readable by root
//! alone. One that can't be read stays as it is, and its workload is left alone: to begin it anew
//! could do its work twice.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::kept::{Claim, StateDir, file_name};
use mirrorlet_core::job::JobName;
use mirrorlet_core::small::SmallCollect;

/// Version of the file format. A file of another version can't be read.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read, in bytes: 100,000 indexes of which each has failed, or a thousand runs
/// of a large template.
const STORED_BYTES_MAX: u64 = 64 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored<T> {
    version: u32,
    job: JobName,
    record: T,
}

/// The directory, and what it holds.
pub(super) struct RecordStore<T> {
    kept: StateDir,
    saved: BTreeMap<JobName, T>,
    /// Files that can't be read, by name, and why.
    unreadable: BTreeMap<String, String>,
    /// Why none can be read, if so.
    closed: Option<String>,
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
        let claim = |stored: &Stored<T>| Claim {
            version: stored.version,
            name: Some(file_name(&stored.job)),
        };
        let mut saved = BTreeMap::new();
        let read = kept.read_in_place(claim, |stored: Stored<T>| {
            saved.insert(stored.job, stored.record);
        });
        let (unreadable, closed) = match read {
            Ok(unreadable) => (unreadable.into_iter().collect_map(), None),
            Err(why) => (BTreeMap::new(), Some(why)),
        };
        Self {
            kept,
            saved,
            unreadable,
            closed,
        }
    }

    /// The record of a Job, as the disk has it.
    pub(super) fn get(&self, job: &JobName) -> Option<&T> {
        self.saved.get(job)
    }

    /// The Jobs with a record on disk.
    pub(super) fn names(&self) -> impl Iterator<Item = &JobName> {
        self.saved.keys()
    }

    /// The records on disk.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.saved.values()
    }

    /// Whether the disk has none.
    pub(super) fn is_empty(&self) -> bool {
        self.saved.is_empty()
    }

    /// The file of a Job's record, and why it can't be read, if it can't.
    pub(super) fn unreadable(&self, job: &JobName) -> Option<(String, &str)> {
        let file = file_name(job);
        let why = self
            .closed
            .as_ref()
            .or_else(|| self.unreadable.get(&file))?;
        Some((self.kept.dir.join(file).display().to_string(), why))
    }

    /// Whether a file can't be read, whichever it is.
    pub(super) fn has_unreadable(&self) -> bool {
        self.closed.is_some() || !self.unreadable.is_empty()
    }

    /// Writes records, and removes those that are none; returns why for each that failed.
    pub(super) async fn keep(
        &mut self,
        changes: Vec<(JobName, Option<T>)>,
    ) -> BTreeMap<JobName, String> {
        if changes.is_empty() {
            return BTreeMap::new();
        }
        let written = self.kept.keep_named(changes, |job, record| Stored {
            version: FORMAT_VERSION,
            job,
            record,
        });
        let mut failed = BTreeMap::new();
        for (job, record, result) in written.await {
            if let Err(error) = result {
                failed.insert(job, error.to_string());
                continue;
            }
            self.unreadable.remove(&file_name(&job));
            match record {
                Some(record) => self.saved.insert(job, record),
                None => self.saved.remove(&job),
            };
        }
        failed
    }
}
