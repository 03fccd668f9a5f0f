//! A directory of small JSON files that the agent keeps for its next start.
//!
//! Files are renamed in and synced, readable by root alone. What can't be read is set aside and
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
    /// Name of the file that its content belongs into, if there can be one.
    pub name: Option<String>,
}

/// The directory.
#[derive(Debug, Clone, Default)]
pub struct StateDir {
    /// The directory; created with the first file.
    pub dir: PathBuf,
    /// The term for one file in messages: `last good version`.
    pub what: &'static str,
    /// Version of the format. A file of another version is set aside.
    pub version: u32,
    /// Largest file that is read, in bytes.
    pub bytes_max: u64,
}

/// The name of the file of what this text identifies.
pub fn file_name(of: impl fmt::Display) -> String {
    let digest = Sha256::digest(of.to_string());
    format!("{}{SUFFIX}", hex(&digest[..16]))
}

impl StateDir {
    /// Hands every file that can be used to `take`, with the problems so far; returns all
    /// problems.
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
                    Err(why) => problems.push(self.set_aside(&path, &why)),
                }
            }
        }
        problems
    }

    /// Hands every file that can be used to `take`, and leaves the others as they are: returns their
    /// names, and why they can't be used.
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

    fn set_aside(&self, path: &Path, why: &str) -> Diagnostic {
        let mut aside = path.as_os_str().to_owned();
        aside.push(SET_ASIDE);
        let done = match fs::rename(path, &aside) {
            Ok(()) => "set aside".to_owned(),
            Err(error) => format!("failed to rename it: {error}"),
        };
        let message = format!("a {} is unusable ({why}); {done}", self.what);
        Diagnostic::warning(Code::Unreadable, path.display().to_string(), message)
    }

    /// Writes a file, so that a reader finds the old or the new one.
    pub fn write(&self, name: &str, stored: &impl Serialize) -> io::Result<()> {
        disk::replace(&self.dir.join(name), &serde_json::to_vec(stored)?)
    }

    /// Removes a file; one that is gone already is success.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        disk::remove(&self.dir.join(name))
    }

    /// Makes renames and removals last.
    pub fn sync(&self) -> io::Result<()> {
        disk::sync_directory(&self.dir)
    }
}
