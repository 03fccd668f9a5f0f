//! Last good manifests, on disk: a broken file keeps its pod across restarts of the agent too.
//!
//! One file per location under `<root>/last-good/`, renamed in, readable by root alone, since
//! manifests may hold secrets. Nothing here is ever fatal: what can't be read is reported and set
//! aside, what can't be written stays in memory and is tried again at the next [`LastGoodStore::flush`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::{Code, Diagnostic, FullName, NodeName, PodUid};
use crate::pod::desired::PodSource;
use crate::pod::hold::{LastGood, LastGoodPod};
use crate::pod::manifest::{MANIFEST_BYTES_MAX, ParseContext, pod_from_canonical};

/// Name of the directory under the root.
pub const DIRECTORY: &str = "last-good";

/// Version of the file format. A file of another version is set aside.
const FORMAT_VERSION: u32 = 1;

/// Largest stored file read: a manifest of the largest size, stored twice (as text and as
/// documents), each byte escaped to at most six.
const STORED_BYTES_MAX: u64 = 12 * MANIFEST_BYTES_MAX as u64;

const SUFFIX: &str = ".json";
const TEMPORARY: &str = ".tmp-";
const SET_ASIDE: &str = ".set-aside";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredFile {
    version: u32,
    source: PodSource,
    location: String,
    raw: String,
    documents: Vec<StoredDocument>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredDocument {
    number: u32,
    full_name: FullName,
    uid: PodUid,
    canonical: Value,
}

/// The last good versions of one source's locations, in memory and on disk.
///
/// Its methods block.
#[derive(Debug)]
pub struct LastGoodStore {
    dir: PathBuf,
    source: PodSource,
    known: BTreeMap<String, LastGood>,
    /// Locations whose file on disk is not what `known` says.
    unsaved: BTreeSet<String>,
}

impl LastGoodStore {
    /// Loads what is stored under `root` for a kind of source: for all its locations, or for
    /// `only` one. Also returns what can't be used.
    #[must_use]
    pub fn load(
        root: &Path,
        source: PodSource,
        only: Option<&str>,
        node_name: &NodeName,
    ) -> (Self, Vec<Diagnostic>) {
        let mut store = Self {
            dir: root.join(DIRECTORY),
            source,
            known: BTreeMap::new(),
            unsaved: BTreeSet::new(),
        };
        let problems = store.load_all(only, node_name);
        (store, problems)
    }

    /// The last good version of a location.
    #[must_use]
    pub fn get(&self, location: &str) -> Option<&LastGood> {
        self.known.get(location)
    }

    /// All locations with a last good version.
    pub fn locations(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
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
        if self.known.remove(location).is_some() {
            self.unsaved.insert(location.to_owned());
        }
    }

    /// Brings the disk up to date. What fails is returned, and tried again next time.
    pub fn flush(&mut self) -> Vec<Diagnostic> {
        if self.unsaved.is_empty() {
            return Vec::new();
        }
        let mut problems = Vec::new();
        let waiting = std::mem::take(&mut self.unsaved);
        for location in waiting {
            let path = self.path_of(&location);
            let done = match self.known.get(&location) {
                Some(good) => self.write(&path, &location, good),
                None => remove_if_present(&path),
            };
            if let Err(error) = done {
                problems.push(Self::unsaved_problem(&location, &error));
                self.unsaved.insert(location);
            }
        }
        if let Err(error) = sync_directory(&self.dir) {
            let dir = self.dir.display().to_string();
            problems.push(Self::unsaved_problem(&dir, &error));
        }
        problems
    }

    fn unsaved_problem(location: &str, error: &io::Error) -> Diagnostic {
        let message = format!("the last good version can't be kept on disk: {error}");
        Diagnostic::warning(Code::Unreadable, location, message)
            .help("free space or mend the root directory; until then only the memory keeps it")
    }

    fn path_of(&self, location: &str) -> PathBuf {
        self.dir.join(file_name(self.source, location))
    }

    /// Writes beside, syncs and renames in, so that a reader finds the old or the new file.
    fn write(&self, path: &Path, location: &str, good: &LastGood) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)?;
        let documents = good.pods.iter().map(|pod| StoredDocument {
            number: pod.number,
            full_name: pod.full_name.clone(),
            uid: pod.uid.clone(),
            canonical: pod.canonical.clone(),
        });
        let stored = StoredFile {
            version: FORMAT_VERSION,
            source: self.source,
            location: location.to_owned(),
            raw: good.raw.to_string(),
            documents: documents.collect(),
        };
        let bytes = serde_json::to_vec(&stored)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = self.dir.join(format!("{TEMPORARY}{name}"));
        let written = write_synced(&temporary, &bytes).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            // The disk may be full: give back what the attempt took. Its own failure adds nothing.
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    fn load_all(&mut self, only: Option<&str>, node_name: &NodeName) -> Vec<Diagnostic> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => {
                let message = format!("the last good versions can't be read: {error}");
                let dir = self.dir.display().to_string();
                return vec![Diagnostic::error(Code::Unreadable, dir, message)];
            }
        };
        let mut problems = Vec::new();
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(TEMPORARY) {
                // Left by a crash in the middle of a write; the rename never happened.
                let _ = fs::remove_file(&path);
            } else if !name.ends_with(SET_ASIDE) {
                match read_stored(&path, &name) {
                    Ok(stored) => self.take_in(stored, only, node_name, &mut problems),
                    Err(why) => problems.push(set_aside(&path, &why)),
                }
            }
        }
        problems
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
        let mut pods = Vec::new();
        for document in stored.documents {
            match pod_from_canonical(&document.canonical, &context) {
                // Name and UID are computed anew: both depend on the node's name.
                Ok(pod) => pods.push(LastGoodPod {
                    number: document.number,
                    full_name: FullName::of(&pod),
                    uid: PodUid::of(&pod),
                    canonical: document.canonical,
                    pod,
                }),
                Err(reasons) => {
                    problems.push(no_longer_good(&stored.location, &document, &reasons));
                }
            }
        }
        let raw = stored.raw.into();
        self.known.insert(stored.location, LastGood { raw, pods });
    }
}

fn no_longer_good(location: &str, document: &StoredDocument, reasons: &[Diagnostic]) -> Diagnostic {
    let reason = reasons.iter().find(|reason| reason.is_error());
    let code = reason.map_or(Code::InvalidValue, |reason| reason.code);
    let message = format!(
        "the stored last good version of pod {} can't be used by this version: {}",
        document.full_name,
        reason.map_or("it is not a valid pod", |reason| &reason.message)
    );
    Diagnostic::warning(code, location, message)
}

/// Name of the file that keeps a location: nothing of the location itself, which may be a URL or
/// longer than a file name.
fn file_name(source: PodSource, location: &str) -> String {
    let digest = Sha256::digest(format!("{source}\0{location}"));
    let hex = digest.iter().take(16).fold(String::new(), |mut hex, byte| {
        use std::fmt::Write as _;
        // Writing to a String can't fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    format!("{hex}{SUFFIX}")
}

fn read_stored(path: &Path, name: &str) -> Result<StoredFile, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() > STORED_BYTES_MAX {
        return Err("not a file written by mirrorlet".to_owned());
    }
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    // The parser's own words may quote the manifest, so only the place of the fault is told.
    let stored: StoredFile = serde_json::from_slice(&bytes)
        .map_err(|error| format!("damaged at line {} column {}", error.line(), error.column()))?;
    if stored.version != FORMAT_VERSION {
        return Err(format!(
            "its format version {} is not known",
            stored.version
        ));
    }
    if file_name(stored.source, &stored.location) != name {
        return Err("its name doesn't belong to its content".to_owned());
    }
    Ok(stored)
}

fn set_aside(path: &Path, why: &str) -> Diagnostic {
    let mut aside = path.as_os_str().to_owned();
    aside.push(SET_ASIDE);
    let done = match fs::rename(path, &aside) {
        Ok(()) => "set aside".to_owned(),
        Err(error) => format!("can't be set aside: {error}"),
    };
    let message = format!("a last good version can't be used ({why}); {done}");
    Diagnostic::warning(Code::Unreadable, path.display().to_string(), message)
}

/// Writes a file that root alone may read, and makes it last.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a file; one that is gone already is success.
pub(super) fn remove_if_present(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes renames and removals last.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    match File::open(dir) {
        Ok(dir) => dir.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
