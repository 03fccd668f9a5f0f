//! Last good manifests, on disk: an invalid file keeps its pod, even across restarts of the agent.
//!
//! One file per location under `<root>/last-good/`, replaced by renaming, readable only by root. A
//! Secret is never written there, nor the text of a file that may contain one: those are kept in memory
//! only. Nothing here is ever fatal: an unreadable file is reported and set aside, a failed write stays
//! in memory and is retried at the next [`LastGoodStore::flush`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::store::kept::{self, Claim, StateDir};
use mirrorlet_core::api::{Code, Diagnostic, FullName, NodeName, PodUid};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::hold::{LastGood, LastGoodDocument};
use mirrorlet_core::manifest::{
    Accepted, DocumentKey, MANIFEST_BYTES_MAX, ParseContext, document_from_canonical,
};
use mirrorlet_core::sizes::{DocumentValues, json_values};
use mirrorlet_core::small::SmallCollect as _;

/// Name of the directory under the root.
pub const DIRECTORY: &str = "last-good";

/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;

/// Largest stored file read: a manifest of the largest size, stored twice (as text and as
/// documents), each byte escaped to at most six.
const STORED_BYTES_MAX: u64 = 12 * MANIFEST_BYTES_MAX as u64;

/// Whether last good versions may be stored under `root`; true if that is unknown. Blocks.
pub fn may_hold_any(root: &Path) -> bool {
    match fs::read_dir(root.join(DIRECTORY)) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredFile {
    version: u32,
    source: PodSource,
    location: String,
    raw: String,
    documents: Vec<StoredDocument>,
    /// Whether it was in a directory that was a mount of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    mounted: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredDocument {
    number: u32,
    full_name: FullName,
    uid: PodUid,
    /// The number of its values; earlier releases stored none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    values: Option<usize>,
    canonical: Value,
}

/// The last good versions of one source's locations, in memory and on disk.
///
/// Its methods block.
#[derive(Debug)]
pub struct LastGoodStore {
    kept: StateDir,
    source: PodSource,
    known: BTreeMap<String, LastGood>,
    /// Those that were in a directory that was a mount of its own.
    mounted: BTreeSet<String>,
    /// Locations whose file on disk differs from `known`.
    unsaved: BTreeSet<String>,
}

impl LastGoodStore {
    /// Loads the versions stored under `root` for a kind of source: for all its locations, or for
    /// `only` one. Also returns the problems with unusable ones.
    pub fn load(
        root: &Path,
        source: PodSource,
        only: Option<&str>,
        node_name: &NodeName,
    ) -> (Self, Vec<Diagnostic>) {
        let mut store = Self {
            kept: StateDir {
                dir: root.join(DIRECTORY),
                what: "last good version",
                version: FORMAT_VERSION,
                bytes_max: STORED_BYTES_MAX,
                ..StateDir::default()
            },
            source,
            known: BTreeMap::new(),
            mounted: BTreeSet::new(),
            unsaved: BTreeSet::new(),
        };
        let problems = store.load_all(only, node_name);
        (store, problems)
    }

    /// The last good version of a location.
    pub fn get(&self, location: &str) -> Option<&LastGood> {
        self.known.get(location)
    }

    /// All locations with a last good version.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// The locations that were in a directory that was a mount point.
    pub fn mounted(&self) -> impl Iterator<Item = &str> {
        self.mounted.iter().map(String::as_str)
    }

    /// The values of the documents of each location.
    pub fn values(&self) -> BTreeMap<String, DocumentValues> {
        let known = self.known.iter();
        let values = known.map(|(location, good)| (location.clone(), good.values()));
        values.collect_map()
    }

    /// Records whether the directory of all locations is a mount point, in memory;
    /// [`flush`](Self::flush) writes it.
    pub fn set_mounted(&mut self, is_mounted: bool) {
        for location in self.known.keys() {
            if self.mounted.contains(location) == is_mounted {
                continue;
            }
            if is_mounted {
                self.mounted.insert(location.clone());
            } else {
                self.mounted.remove(location);
            }
            self.unsaved.insert(location.clone());
        }
    }

    /// Replaces the last good version of a location, in memory; [`flush`](Self::flush) writes it.
    pub fn put(&mut self, location: &str, good: LastGood) {
        if self.known.get(location) != Some(&good) {
            self.known.insert(location.to_owned(), good);
            self.unsaved.insert(location.to_owned());
        }
    }

    /// Forgets a location, in memory; [`flush`](Self::flush) removes its file.
    pub fn forget(&mut self, location: &str) {
        self.mounted.remove(location);
        if self.known.remove(location).is_some() {
            self.unsaved.insert(location.to_owned());
        }
    }

    /// Writes all changes to disk. Failures are returned, and retried next time.
    pub fn flush(&mut self) -> Vec<Diagnostic> {
        if self.unsaved.is_empty() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        let waiting = std::mem::take(&mut self.unsaved);
        let files = waiting.iter().map(|location| {
            let good = self.known.get(location);
            let stored = good.map(|good| self.stored(location, good));
            (file_name(self.source, location), stored)
        });
        let results = self.kept.keep(files);
        for (location, result) in waiting.into_iter().zip(results) {
            if let Err(error) = result {
                problems.push(Self::unsaved_problem(&location, &error));
                self.unsaved.insert(location);
            }
        }
        problems
    }

    fn unsaved_problem(location: &str, error: &io::Error) -> Diagnostic {
        let message = format!("failed to save the last good version to disk: {error}");
        Diagnostic::warning(Code::Unreadable, location, message).help(
            "free disk space or repair the root directory; until then it is kept only in memory",
        )
    }

    fn stored(&self, location: &str, good: &LastGood) -> StoredFile {
        let documents = good.documents.iter().filter_map(stored_document);
        StoredFile {
            version: FORMAT_VERSION,
            source: self.source,
            location: location.to_owned(),
            raw: if good.may_hold_secret {
                String::new()
            } else {
                good.raw.to_string()
            },
            documents: documents.collect(),
            mounted: self.mounted.contains(location),
        }
    }

    fn load_all(&mut self, only: Option<&str>, node_name: &NodeName) -> Vec<Diagnostic> {
        let claim = |stored: &StoredFile| Claim {
            version: stored.version,
            name: Some(file_name(stored.source, &stored.location)),
        };
        self.kept.clone().read_all(claim, |stored, problems| {
            self.take_in(stored, only, node_name, problems);
        })
    }

    fn take_in(
        &mut self,
        stored: StoredFile,
        only: Option<&str>,
        node_name: &NodeName,
        problems: &mut Vec<Diagnostic>,
    ) {
        if stored.source != self.source || only.is_some_and(|only| only != stored.location) {
            return;
        }
        let context = ParseContext {
            node_name,
            source: self.source,
            location: &stored.location,
        };
        let mut documents = Vec::new();
        for document in stored.documents {
            match document_from_canonical(&document.canonical, &context) {
                // Name and UID are computed again: both depend on the node's name.
                Ok(good) => documents.extend(good.key().map(|key| LastGoodDocument {
                    number: document.number,
                    key,
                    values: document.values.unwrap_or_else(|| {
                        json_values(&document.canonical) * good.pods().len().max(1)
                    }),
                    content: good,
                })),
                Err(reasons) => {
                    problems.push(no_longer_good(&stored.location, &document, &reasons));
                }
            }
        }
        let good = LastGood {
            may_hold_secret: stored.raw.is_empty(),
            raw: stored.raw.into(),
            documents,
        };
        if stored.mounted {
            self.mounted.insert(stored.location.clone());
        }
        self.known.insert(stored.location, good);
    }
}

/// The document as it is stored; none of a Secret. Earlier releases read every document as a pod's.
fn stored_document(document: &LastGoodDocument) -> Option<StoredDocument> {
    let (full_name, uid, canonical) = match (&document.content, &document.key) {
        (Accepted::Pod(accepted), _) => (
            FullName::of(&accepted.pod),
            PodUid::of(&accepted.pod),
            accepted.canonical.clone(),
        ),
        (Accepted::Object(object), DocumentKey::Object(key)) => (
            FullName::new(key.name.as_str(), key.namespace.as_str()),
            PodUid::from(""),
            object.canonical()?,
        ),
        (Accepted::Workload(workload), _) => (
            FullName::new(workload.key.name.as_str(), workload.key.namespace.as_str()),
            PodUid::from(""),
            workload.canonical.clone(),
        ),
        (Accepted::Object(_) | Accepted::Namespace, _) => return None,
    };
    Some(StoredDocument {
        number: document.number,
        full_name,
        uid,
        values: Some(document.values),
        canonical,
    })
}

fn no_longer_good(location: &str, document: &StoredDocument, reasons: &[Diagnostic]) -> Diagnostic {
    let reason = reasons.iter().find(|reason| reason.is_error());
    let code = reason.map_or(Code::InvalidValue, |reason| reason.code);
    let message = format!(
        "the saved last good version of {} is not valid for this version of mirrorlet: {}",
        document.full_name,
        reason.map_or("it is not valid", |reason| &reason.message)
    );
    Diagnostic::warning(code, location, message)
}

/// Name of the file for a location. It doesn't contain the location itself, which may be a URL or
/// longer than a file name.
fn file_name(source: PodSource, location: &str) -> String {
    kept::file_name(format_args!("{source}\0{location}"))
}

#[cfg(test)]
mod tests;
