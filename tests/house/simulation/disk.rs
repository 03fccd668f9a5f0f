//! The agent's directory: full, and as a killed agent leaves it.

use std::fs;
use std::path::{Path, PathBuf};

use mirrorlet_core::api::{FullName, hex};
use mirrorlet_host::disk::TEMP_SUFFIX;
use sha2::{Digest, Sha256};

/// A directory in memory, where there is one: agents of lives write often. `hack/left.sh` removes it if
/// this process is killed.
pub(super) fn in_memory() -> tempfile::TempDir {
    let prefix = format!("mt.{}.", std::process::id());
    let mut directory = tempfile::Builder::new();
    let directory = directory.prefix(&prefix);
    let in_memory = directory.tempdir_in("/dev/shm");
    in_memory.unwrap_or_else(|_| directory.tempdir().unwrap())
}

/// Copies a directory. What goes meanwhile is left out.
pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let Ok(entries) = fs::read_dir(from) else {
        return;
    };
    for entry in entries.flatten() {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            let _ = fs::copy(&path, &to);
        }
    }
}

/// Lets every write of histories fail, or succeed again. A file is written next door first, and there
/// is a directory then.
pub(super) fn set_full(root: &Path, names: impl Iterator<Item = FullName>, full: bool) {
    for name in names {
        let door = next_door(root, &name);
        if full {
            fs::create_dir_all(door).unwrap();
        } else {
            let _ = fs::remove_dir(door);
        }
    }
}

fn next_door(root: &Path, name: &FullName) -> PathBuf {
    let digest = Sha256::digest(name.to_string().as_bytes());
    let file = format!("{}.json{TEMP_SUFFIX}", hex(&digest[..16]));
    root.join("rollouts").join(file)
}
