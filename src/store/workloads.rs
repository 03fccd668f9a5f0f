//! The documents with the names of workloads, in one small file below the root: a workload without pods
//! keeps its name over a restart of the agent, even if other documents want it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::desired::Origin;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_host::disk::{self, IfThere as _};
use mirrorlet_host::telemetry::occurrences;

/// Name of the file.
const FILE: &str = "workloads.json";
/// Version of its format.
const FORMAT_VERSION: u32 = 1;
/// Largest file that is read or written: room for some twenty thousand workloads.
const FILE_MIB_MAX: u64 = 4;

/// The file.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    /// By their keys as they are displayed.
    workloads: BTreeMap<String, Origin>,
}

/// The documents, and their file. The default keeps them in memory only.
#[derive(Debug, Default)]
pub struct WorkloadStore {
    path: Option<PathBuf>,
    known: BTreeMap<WorkloadKey, Origin>,
    /// Why the file is outdated, if it is.
    unkept: Option<String>,
}

impl WorkloadStore {
    /// Reads an earlier agent's data. Blocks.
    pub fn load(root: &Path) -> Self {
        let path = root.join(FILE);
        let known = read(&path).unwrap_or_else(|error| {
            let message = format!(
                "failed to read which document defines each workload; if two documents define the same one, the first is used: {error}"
            );
            report(&path, message);
            BTreeMap::new()
        });
        Self {
            path: Some(path),
            known,
            unkept: None,
        }
    }

    /// The documents, without their positions.
    pub fn known(&self) -> &BTreeMap<WorkloadKey, Origin> {
        &self.known
    }

    /// Stores these documents. A failed write is retried with the next call.
    pub async fn keep(&mut self, workloads: &BTreeMap<WorkloadKey, Origin>) {
        let mut pairs = workloads.iter().zip(&self.known);
        let is_same = workloads.len() == self.known.len()
            && pairs.all(|((key, origin), (known, before))| {
                key == known && origin.is_same_document(before)
            });
        if is_same && self.unkept.is_none() {
            return;
        }
        // Positions change with every edit.
        let documents = workloads.iter().map(|(key, origin)| {
            let origin = Origin {
                position: None,
                ..origin.clone()
            };
            (key.clone(), origin)
        });
        self.known = documents.collect_map();
        let Some(path) = self.path.clone() else {
            return;
        };
        let named = self.known.iter();
        let stored = Stored {
            version: FORMAT_VERSION,
            workloads: named
                .map(|(key, origin)| (key.to_string(), origin.clone()))
                .collect_map(),
        };
        let written = disk::blocking({
            let path = path.clone();
            move || write(&path, &stored)
        })
        .await;
        let unkept = written.err().map(|error| error.to_string());
        if let Some(why) = unkept
            .as_ref()
            .filter(|why| self.unkept.as_ref() != Some(*why))
        {
            let message = format!(
                "failed to save which document defines each workload; after a restart, the agent may use another document of the same name: {why}"
            );
            report(&path, message);
        }
        self.unkept = unkept;
    }
}

fn report(path: &Path, message: String) {
    let place = path.display().to_string();
    occurrences::manifest_problem(&Diagnostic::warning(Code::Unreadable, place, message));
}

fn read(path: &Path) -> io::Result<BTreeMap<WorkloadKey, Origin>> {
    let Some(bytes) = disk::read_small(path, FILE_MIB_MAX).if_there()? else {
        return Ok(BTreeMap::new());
    };
    let stored: Stored = serde_json::from_slice(&bytes)?;
    if stored.version != FORMAT_VERSION {
        let message = format!("its format version {} is not known", stored.version);
        return Err(io::Error::other(message));
    }
    let documents = stored.workloads.into_iter();
    let documents = documents.filter_map(|(key, origin)| Some((WorkloadKey::read(&key)?, origin)));
    Ok(documents.collect_map())
}

/// Renamed in for good.
fn write(path: &Path, stored: &Stored) -> io::Result<()> {
    let text = serde_json::to_vec(stored)?;
    if text.len() as u64 > FILE_MIB_MAX << 20 {
        let message = format!("it would be larger than {FILE_MIB_MAX} MiB");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    disk::replace(path, &text)?;
    path.parent().map_or(Ok(()), disk::sync_directory)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use mirrorlet_core::api::diagnostic::Position;
    use mirrorlet_core::desired::PodSource;

    use super::*;

    fn named(names: &[(&str, &str)], line: u32) -> BTreeMap<WorkloadKey, Origin> {
        let keys = names.iter().map(|(owner, location)| {
            let key = WorkloadKey::of_owner("shop", owner).unwrap();
            let position = Position {
                line,
                column: 1,
                offset: 0,
                length: 0,
            };
            let origin = Origin {
                position: Some(position),
                ..Origin::whole(PodSource::File, *location)
            };
            (key, origin)
        });
        keys.collect_map()
    }

    #[tokio::test]
    async fn names_of_workloads_outlive_the_agent() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(FILE);
        let two = [
            ("CronJob/dump", "/m/b.yaml"),
            ("Deployment/web", "/m/b.yaml"),
        ];
        let mut store = WorkloadStore::load(root.path());
        assert!(store.known().is_empty());
        store.keep(&BTreeMap::new()).await;
        assert!(!file.exists(), "there is nothing to remember");
        store.keep(&named(&two, 1)).await;
        let again = WorkloadStore::load(root.path());
        let expected: BTreeMap<_, _> = named(&two, 1)
            .into_iter()
            .map(|(key, origin)| {
                let position = None;
                (key, Origin { position, ..origin })
            })
            .collect_map();
        // workloads 5a
        assert_eq!(*again.known(), expected);
        // A place in a text is no news; another document is.
        fs::remove_file(&file).unwrap();
        store.keep(&named(&two, 7)).await;
        assert!(!file.exists());
        store.keep(&named(&two[..1], 7)).await;
        assert_eq!(WorkloadStore::load(root.path()).known().len(), 1);
    }

    #[tokio::test]
    async fn names_that_cannot_be_kept_are_kept_later() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join(FILE);
        // A directory can't be replaced by a file.
        fs::create_dir(&file).unwrap();
        let mut store = WorkloadStore::load(root.path());
        let one = named(&[("Deployment/web", "/m/b.yaml")], 1);
        store.keep(&one).await;
        assert_eq!(store.known().len(), 1);
        fs::remove_dir(&file).unwrap();
        store.keep(&one).await;
        let again = WorkloadStore::load(root.path());
        // workloads 5a
        assert_eq!(again.known().len(), 1);
        fs::write(&file, "no JSON").unwrap();
        assert!(WorkloadStore::load(root.path()).known().is_empty());
    }
}
