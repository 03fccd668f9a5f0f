//! Histories on disk: which revision runs, which was healthy, which failed and why.
//!
//! One file per pod under `<root>/rollouts/`, replaced by renaming, readable only by root, because pods
//! may contain secrets. Nothing here is ever fatal.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::store::kept::{Claim, StateDir, file_name};
use mirrorlet_core::api::{Code, Diagnostic, FullName};
use mirrorlet_core::manifest::MANIFEST_BYTES_MAX;
use mirrorlet_core::rollout::{History, REVISIONS_MAX};
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

/// The directory, and its contents.
pub(super) struct HistoryStore {
    kept: StateDir,
    saved: BTreeMap<FullName, History>,
    /// The pods whose files may differ, or may be lost in a power cut.
    unsure: BTreeSet<FullName>,
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
            ..StateDir::default()
        };
        let claim = |stored: &Stored| Claim {
            version: stored.version,
            name: Some(file_name(&stored.full_name)),
        };
        let mut saved = BTreeMap::new();
        let problems = kept.read_all(claim, |stored: Stored, _| {
            saved.insert(stored.full_name, stored.history);
        });
        report(&problems);
        let histories = saved.clone();
        let store = Self {
            kept,
            saved,
            unsure: BTreeSet::new(),
            failing: None,
        };
        (store, histories)
    }

    /// Writes changed histories, and removes forgotten ones. Returns whether all of them are durably on
    /// disk now.
    pub(super) async fn keep(&mut self, histories: &BTreeMap<FullName, History>) -> bool {
        let changed =
            |(name, history): &(&FullName, &History)| self.saved.get(*name) != Some(*history);
        let changed = histories
            .iter()
            .filter(changed)
            .map(|(name, history)| (name.clone(), Some(history.clone())));
        let forgotten = |name: &&FullName| !histories.contains_key(*name);
        let known = self.saved.keys().chain(&self.unsure);
        let forgotten = known.filter(forgotten).map(|name| (name.clone(), None));
        let writes: Vec<(FullName, Option<History>)> = forgotten.chain(changed).collect();
        if writes.is_empty() {
            self.failing = None;
            return true;
        }
        let written = self.kept.keep_named(writes, |full_name, history| Stored {
            version: FORMAT_VERSION,
            full_name,
            history,
        });
        let mut failed = None;
        for (name, history, result) in written.await {
            self.saved.remove(&name);
            self.unsure.remove(&name);
            match (result, history) {
                (Ok(()), Some(history)) => {
                    self.saved.insert(name, history);
                }
                (Ok(()), None) => {}
                (Err(error), _) => {
                    failed = Some(error.to_string());
                    self.unsure.insert(name);
                }
            }
        }
        let was_failing = std::mem::replace(&mut self.failing, failed).is_some();
        if let Some(problem) = self.problem().filter(|_| !was_failing) {
            report(&[problem]);
        }
        self.failing.is_none()
    }

    /// Returns why histories can't be written to disk.
    pub(super) fn problem(&self) -> Option<Diagnostic> {
        let error = self.failing.as_ref()?;
        let dir = self.kept.dir.display().to_string();
        let message = format!("rollout histories can't be written: {error}");
        let problem = Diagnostic::error(Code::Unreadable, dir, message);
        Some(problem.help("free disk space; until then, the effects of stop, start and rollout commands are lost when the agent restarts"))
    }

    /// Returns why the history of one of these pods isn't on disk.
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

fn report(problems: &[Diagnostic]) {
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

    #[tokio::test]
    async fn a_history_that_may_not_last_is_not_kept() {
        let root = tempfile::tempdir().unwrap();
        let (mut store, mut histories) = HistoryStore::load(root.path());
        let [web, db] = ["web", "db"].map(|name| FullName::new(name, "default"));
        histories.insert(web.clone(), History::default());
        assert!(store.keep(&histories).await);
        let sync = std::mem::replace(&mut store.kept.sync, |_| {
            Err(std::io::ErrorKind::StorageFull.into())
        });
        let paused = History {
            paused: true,
            ..History::default()
        };
        histories.insert(web.clone(), paused);
        histories.insert(db.clone(), History::default());
        let both = [web.clone(), db.clone()];
        // rollouts M8
        assert!(!store.keep(&histories).await);
        assert!(store.unkept(&both, &histories).is_some());
        assert!(store.problem().is_some());
        // The file may be the new one by now.
        histories.insert(web.clone(), History::default());
        histories.remove(&db);
        assert!(!store.keep(&histories).await);
        store.kept.sync = sync;
        // rollouts M8
        assert!(store.keep(&histories).await);
        assert!(store.unkept(&both, &histories).is_none());
        let (_, kept) = HistoryStore::load(root.path());
        assert_eq!(kept, histories);
    }
}
