//! Ledgers on disk: what was started of a Job, and what became of it.
//!
//! One file per Job under `<root>/jobs/`, renamed in and synced. One that can't be read stays as it
//! is, and its Job is left alone: to begin it anew could do its work twice.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::store::kept::{Claim, KeptDir, SUFFIX};
use mirrorlet_core::api::hex;
use mirrorlet_core::job::{JobName, Ledger};
use mirrorlet_host::disk;

/// Name of the directory under the root.
const DIRECTORY: &str = "jobs";
/// Version of the file format. A file of another version can't be read.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read, in bytes: 100,000 indexes of which each has failed.
const STORED_BYTES_MAX: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    job: JobName,
    ledger: Ledger,
}

/// The directory, and what it holds.
#[derive(Clone)]
pub(super) struct LedgerStore {
    kept: KeptDir,
    saved: BTreeMap<JobName, Ledger>,
    /// Files that can't be read, by name, and why.
    unreadable: BTreeMap<String, String>,
    /// Why none can be read, if so.
    closed: Option<String>,
}

impl LedgerStore {
    /// Reads the ledgers. Blocks.
    pub(super) fn load(root: &Path) -> Self {
        let kept = KeptDir {
            dir: root.join(DIRECTORY),
            what: "ledger of a Job",
            version: FORMAT_VERSION,
            bytes_max: STORED_BYTES_MAX,
        };
        let claim = |stored: &Stored| Claim {
            version: stored.version,
            name: Some(file_name(&stored.job)),
        };
        let mut saved = BTreeMap::new();
        let read = kept.read_in_place(claim, |stored: Stored| {
            saved.insert(stored.job, stored.ledger);
        });
        let (unreadable, closed) = match read {
            Ok(unreadable) => (unreadable.into_iter().collect(), None),
            Err(why) => (BTreeMap::new(), Some(why)),
        };
        Self {
            kept,
            saved,
            unreadable,
            closed,
        }
    }

    /// The ledger of a Job, as the disk has it.
    pub(super) fn get(&self, job: &JobName) -> Option<&Ledger> {
        self.saved.get(job)
    }

    /// The Jobs with a ledger on disk.
    pub(super) fn names(&self) -> impl Iterator<Item = &JobName> {
        self.saved.keys()
    }

    /// The file of a Job's ledger, and why it can't be read, if it can't.
    pub(super) fn unreadable(&self, job: &JobName) -> Option<(String, &str)> {
        let file = file_name(job);
        let why = self
            .closed
            .as_ref()
            .or_else(|| self.unreadable.get(&file))?;
        Some((self.kept.dir.join(file).display().to_string(), why))
    }

    /// Writes ledgers, and removes those that are none; returns why for each that failed.
    pub(super) async fn keep(
        &mut self,
        changes: Vec<(JobName, Option<Ledger>)>,
    ) -> BTreeMap<JobName, String> {
        if changes.is_empty() {
            return BTreeMap::new();
        }
        let mut store = self.clone();
        let (store, failed) = disk::blocking(move || {
            let mut failed = BTreeMap::new();
            for (job, ledger) in changes {
                if let Err(error) = store.change(&job, ledger) {
                    failed.insert(job, error.to_string());
                }
            }
            (store, failed)
        })
        .await;
        *self = store;
        failed
    }

    fn change(&mut self, job: &JobName, ledger: Option<Ledger>) -> std::io::Result<()> {
        let file = file_name(job);
        if let Some(ledger) = ledger {
            let stored = Stored {
                version: FORMAT_VERSION,
                job: job.clone(),
                ledger,
            };
            self.kept.write(&file, &stored)?;
            self.kept.sync()?;
            self.saved.insert(job.clone(), stored.ledger);
        } else {
            self.kept.remove(&file)?;
            self.saved.remove(job);
        }
        self.unreadable.remove(&file);
        Ok(())
    }
}

fn file_name(job: &JobName) -> String {
    let digest = Sha256::digest(job.to_string().as_bytes());
    format!("{}{SUFFIX}", hex(&digest[..16]))
}
