//! A directory of small JSON files that the agent stores for its next start.
//!
//! Files are replaced by renaming and synced, readable only by root. An unreadable one is set aside and
//! reported, never fatal.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use mirrorlet_core::api::{Code, Diagnostic, hex};
use mirrorlet_host::disk::{self, IfThere as _};

/// The suffix of file names.
pub const SUFFIX: &str = ".json";
const SET_ASIDE: &str = ".set-aside";

/// The header that identifies a valid file.
pub struct Claim {
    /// Version of its format.
    pub version: u32,
    /// The expected file name for its content, if there is one.
    pub name: Option<String>,
}

/// The directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    /// The directory; created with the first file.
    pub dir: PathBuf,
    /// The term for one file in messages: `last good version`.
    pub what: &'static str,
    /// Version of the format. A file with another version is set aside.
    pub version: u32,
    /// Largest file that is read, in bytes.
    pub bytes_max: u64,
    /// Makes renames and removals in a directory durable; tests make it fail.
    pub sync: fn(&Path) -> io::Result<()>,
}

impl Default for StateDir {
    fn default() -> Self {
        Self {
            dir: PathBuf::new(),
            what: "",
            version: 0,
            bytes_max: 0,
            sync: disk::sync_directory,
        }
    }
}

/// The file name for an identifier.
pub fn file_name(of: impl fmt::Display) -> String {
    let digest = Sha256::digest(of.to_string());
    format!("{}{SUFFIX}", hex(&digest[..16]))
}

/// The name of a file after it was set aside.
pub fn aside(path: &Path) -> PathBuf {
    let mut aside = path.as_os_str().to_owned();
    aside.push(SET_ASIDE);
    aside.into()
}

/// Sets an unusable file aside, and returns the problem. `what` is the term for the file in messages.
/// Blocks on the disk.
pub fn set_aside(path: &Path, what: &str, why: &str) -> Diagnostic {
    let done = match fs::rename(path, aside(path)) {
        Ok(()) => "set aside".to_owned(),
        Err(error) => format!("failed to rename it: {error}"),
    };
    let message = format!("a {what} is unusable ({why}); {done}");
    Diagnostic::warning(Code::Unreadable, path.display().to_string(), message)
}

impl StateDir {
    /// Passes every usable file to `take`, with the problems so far; returns all problems.
    pub fn read_all<T: DeserializeOwned>(
        &self,
        claim: impl Fn(&T) -> Claim,
        mut take: impl FnMut(T, &mut Vec<Diagnostic>),
    ) -> Vec<Diagnostic> {
        let entries = match fs::read_dir(&self.dir).if_there() {
            Ok(entries) => entries,
            Err(error) => {
                let message = format!("the {}s can't be read: {error}", self.what);
                let dir = self.dir.display().to_string();
                return vec![Diagnostic::error(Code::Unreadable, dir, message)];
            }
        };
        let mut problems = Vec::new();
        for entry in entries.into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(disk::TEMP_SUFFIX) {
                // Left by a crash in the middle of a write; the rename never happened.
                let _ = fs::remove_file(&path);
            } else if !name.ends_with(SET_ASIDE) {
                match self.read(&path, &name, &claim) {
                    Ok(stored) => take(stored, &mut problems),
                    Err(why) => problems.push(set_aside(&path, self.what, &why)),
                }
            }
        }
        problems
    }

    /// Passes every usable file to `take`, and leaves the others as they are: returns their names, and
    /// why they can't be used.
    ///
    /// # Errors
    /// The directory can't be read.
    pub fn read_in_place<T: DeserializeOwned>(
        &self,
        claim: impl Fn(&T) -> Claim,
        mut take: impl FnMut(T),
    ) -> Result<Vec<(String, String)>, String> {
        let entries = fs::read_dir(&self.dir).if_there();
        let entries = entries.map_err(|error| error.to_string())?;
        let mut unusable = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(|error| error.to_string())?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(disk::TEMP_SUFFIX) {
                // Left by a crash in the middle of a write; the rename never happened.
                let _ = fs::remove_file(entry.path());
            } else {
                match self.read(&entry.path(), &name, &claim) {
                    Ok(stored) => take(stored),
                    Err(why) => unusable.push((name, why)),
                }
            }
        }
        Ok(unusable)
    }

    /// Reads a file again that was unusable.
    ///
    /// # Errors
    /// It still is, or is missing.
    pub fn read_again<T: DeserializeOwned>(
        &self,
        name: &str,
        claim: impl Fn(&T) -> Claim,
    ) -> Result<T, String> {
        self.read(&self.dir.join(name), name, claim)
    }

    fn read<T: DeserializeOwned>(
        &self,
        path: &Path,
        name: &str,
        claim: impl Fn(&T) -> Claim,
    ) -> Result<T, String> {
        let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() || metadata.len() > self.bytes_max {
            return Err("not a file written by mirrorlet".to_owned());
        }
        let bytes = fs::read(path).map_err(|error| error.to_string())?;
        let text = String::from_utf8(bytes).map_err(|_| "damaged: not text".to_owned())?;
        // The parser's own words may quote the content, so the error has only the place of the fault.
        // From text, as kube-rs decodes: another decoder of Pods would be a quarter of a megabyte.
        let stored: T = serde_json::from_str(&text).map_err(|error| {
            format!("damaged at line {} column {}", error.line(), error.column())
        })?;
        let claimed = claim(&stored);
        if claimed.version != self.version {
            let version = claimed.version;
            return Err(format!("its format version {version} is not known"));
        }
        if claimed.name.as_deref() != Some(name) {
            return Err("its name doesn't match its content".to_owned());
        }
        Ok(stored)
    }

    /// Writes these values to files, given by their names, or removes those without a value, and makes
    /// that durable. A reader finds the old or the new file; removing a missing one is success. Returns
    /// the result of each, in their order: while the disk doesn't make it durable, all count as failed.
    pub fn keep<T: Serialize>(
        &self,
        changes: impl IntoIterator<Item = (String, Option<T>)>,
    ) -> Vec<io::Result<()>> {
        let changes = changes.into_iter();
        let mut results: Vec<_> = changes
            .map(|(name, stored)| self.change(&name, stored.as_ref()))
            .collect();
        if results.iter().any(Result::is_ok)
            && let Err(error) = (self.sync)(&self.dir)
        {
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(io::Error::new(error.kind(), error.to_string()));
            }
        }
        results
    }

    /// The same for values, each in the file with its name, on a thread that may block. `stored`
    /// returns a file's content. Returns each change with its result.
    pub async fn keep_named<K, V, T>(
        &self,
        changes: Vec<(K, Option<V>)>,
        stored: fn(K, V) -> T,
    ) -> Vec<(K, Option<V>, io::Result<()>)>
    where
        K: fmt::Display + Clone + Send + 'static,
        V: Clone + Send + 'static,
        T: Serialize + 'static,
    {
        let dir = self.clone();
        disk::blocking(move || {
            let files = changes.iter().map(|(key, value)| {
                let value = value.clone();
                let stored = value.map(|value| stored(key.clone(), value));
                (file_name(key), stored)
            });
            let results = dir.keep(files);
            let written = changes.into_iter().zip(results);
            written
                .map(|((key, value), result)| (key, value, result))
                .collect()
        })
        .await
    }

    fn change(&self, name: &str, stored: Option<&impl Serialize>) -> io::Result<()> {
        let path = self.dir.join(name);
        match stored {
            Some(stored) => disk::replace(&path, &serde_json::to_vec(stored)?),
            None => disk::remove(&path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_that_may_not_last() {
        let root = tempfile::tempdir().unwrap();
        let mut kept = StateDir {
            dir: root.path().join("kept"),
            ..StateDir::default()
        };
        let oks = |kept: &StateDir, changes: &[(&str, Option<u8>)]| -> Vec<bool> {
            let changes = changes.iter();
            let changes = changes.map(|(name, value)| ((*name).to_owned(), *value));
            kept.keep(changes).iter().map(Result::is_ok).collect()
        };
        // The second is a directory.
        std::fs::create_dir_all(kept.dir.join("b")).unwrap();
        let all = [("a", Some(1)), ("b", Some(2)), ("c", None)];
        // rollouts M8
        assert_eq!(oks(&kept, &all), [true, false, true]);
        assert_eq!(std::fs::read(kept.dir.join("a")).unwrap(), b"1");
        kept.sync = |_| Err(io::ErrorKind::StorageFull.into());
        // rollouts M8
        assert_eq!(oks(&kept, &all), [false; 3]);
        assert_eq!(oks(&kept, &[("a", None)]), [false]);
        // Where nothing was changed there is nothing to sync.
        kept.sync = |_| panic!("synced for nothing");
        assert_eq!(oks(&kept, &[]), [true; 0]);
        assert_eq!(oks(&kept, &[("b", Some(2))]), [false]);
    }
}
