//! Histories on disk: which revision runs, which was healthy, which failed and why.
//!
//! One file per pod under `<root>/rollouts/`, renamed in, readable by root alone, since pods may hold
//! secrets. Nothing here is ever fatal.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::store::kept::{Claim, StateDir, file_name};
use mirrorlet_core::api::{Code, Diagnostic, FullName};
use mirrorlet_core::manifest::MANIFEST_BYTES_MAX;
use mirrorlet_core::rollout::{History, REVISIONS_MAX};
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;

/// Name of the directory under the root.
const DIRECTORY: &str = "rollouts";
/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read: as many revisions as are kept, each of the largest size and twice as
/// long for what it is defaulted with.
const STORED_BYTES_MAX: u64 = (2 * REVISIONS_MAX * MANIFEST_BYTES_MAX) as u64;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    full_name: FullName,
    history: History,
}

/// The directory, and what it holds.
pub(super) struct HistoryStore {
    kept: StateDir,
    saved: BTreeMap<FullName, History>,
    /// Why the newest attempt to write failed, if it did.
    failing: Option<String>,
}

impl HistoryStore {
    /// Reads the histories. Blocks.
    pub(super) fn load(root: &Path) -> (Self, BTreeMap<FullName, History>) {
        let kept = StateDir {
            dir: root.join(DIRECTORY),
            what: "rollout history",
            version: FORMAT_VERSION,
            bytes_max: STORED_BYTES_MAX,
        };
        let claim = |stored: &Stored| Claim {
            version: stored.version,
            name: Some(file_name(&stored.full_name)),
        };
        let mut saved = BTreeMap::new();
        let problems = kept.read_all(claim, |stored: Stored, _| {
            saved.insert(stored.full_name, stored.history);
        });
        tell(&problems);
        let histories = saved.clone();
        let store = Self {
            kept,
            saved,
            failing: None,
        };
        (store, histories)
    }

    /// Writes the histories that have changed, and removes those that are forgotten. Returns whether
    /// the disk has all of them now.
    pub(super) async fn keep(&mut self, histories: &BTreeMap<FullName, History>) -> bool {
        let changed =
            |(name, history): &(&FullName, &History)| self.saved.get(*name) != Some(*history);
        let changed: Vec<Stored> = histories
            .iter()
            .filter(changed)
            .map(|(name, history)| Stored {
                version: FORMAT_VERSION,
                full_name: name.clone(),
                history: history.clone(),
            })
            .collect();
        let forgotten = |name: &&FullName| !histories.contains_key(*name);
        let forgotten: Vec<FullName> = self.saved.keys().filter(forgotten).cloned().collect();
        if changed.is_empty() && forgotten.is_empty() {
            self.failing = None;
            return true;
        }
        for name in &forgotten {
            self.saved.remove(name);
        }
        let kept = self.kept.clone();
        let written = disk::blocking(move || {
            for name in &forgotten {
                // One that stays is read by the next agent, which forgets it again.
                let _ = kept.remove(&file_name(name));
            }
            let write = |stored: Stored| match kept.write(&file_name(&stored.full_name), &stored) {
                Ok(()) => Ok((stored.full_name, stored.history)),
                Err(error) => Err(error.to_string()),
            };
            changed.into_iter().map(write).collect::<Vec<_>>()
        });
        let mut failed = None;
        for result in written.await {
            match result {
                Ok((name, history)) => {
                    self.saved.insert(name, history);
                }
                Err(error) => failed = Some(error),
            }
        }
        let was_failing = std::mem::replace(&mut self.failing, failed).is_some();
        if let Some(problem) = self.problem().filter(|_| !was_failing) {
            tell(&[problem]);
        }
        self.failing.is_none()
    }

    /// Returns what keeps the histories from the disk.
    pub(super) fn problem(&self) -> Option<Diagnostic> {
        let error = self.failing.as_ref()?;
        let dir = self.kept.dir.display().to_string();
        let message = format!("rollout histories can't be written: {error}");
        let problem = Diagnostic::error(Code::Unreadable, dir, message);
        Some(problem.help("free disk space; until then, the effects of stop, start and rollout commands are lost when the agent restarts"))
    }

    /// Returns why the disk hasn't got the history of one of these pods.
    pub(super) fn unkept(
        &self,
        pods: &[FullName],
        histories: &BTreeMap<FullName, History>,
    ) -> Option<&str> {
        let is_kept = |name: &FullName| self.saved.get(name) == histories.get(name);
        self.failing
            .as_deref()
            .filter(|_| !pods.iter().all(is_kept))
    }
}

fn tell(problems: &[Diagnostic]) {
    for problem in problems {
        occurrences::manifest_problem(problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_history_that_could_not_be_written_is_written_once_there_is_room() {
        let root = tempfile::tempdir().unwrap();
        let (mut store, mut histories) = HistoryStore::load(root.path());
        let name = FullName::new("web", "default");
        histories.insert(name.clone(), History::default());
        // A file in the place of the directory.
        let directory = root.path().join(DIRECTORY);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::write(&directory, "").unwrap();
        assert!(!store.keep(&histories).await);
        assert!(
            store
                .unkept(std::slice::from_ref(&name), &histories)
                .is_some()
        );
        assert!(store.unkept(&[], &histories).is_none());
        std::fs::remove_file(&directory).unwrap();
        assert!(store.keep(&histories).await);
        assert!(
            store
                .unkept(std::slice::from_ref(&name), &histories)
                .is_none()
        );
        assert_eq!(store.problem(), None);
        let (_, kept) = HistoryStore::load(root.path());
        assert_eq!(kept.keys().collect::<Vec<_>>(), [&name]);
    }
}
