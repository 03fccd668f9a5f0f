//! A trial mount, to learn which processes see the agent's mounts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use super::{Result, VolumeError, make_dir, tmpfs};

/// Its directory in the root directory.
const DIR: &str = "trial-mount";
/// The file in it.
const FILE: &str = "seen";
/// Its size in bytes: one empty file.
const SIZE: u64 = 4096;
/// Its mode: only the agent uses it.
const MODE: u32 = 0o700;

/// A small tmpfs below the agent's root, unmounted on drop.
#[derive(Debug)]
pub struct TrialMount {
    dir: PathBuf,
}

impl TrialMount {
    /// Mounts it under that root, like volumes in memory. Reuses a leftover of a killed agent.
    ///
    /// # Errors
    /// The agent may not mount, or can't write below its root.
    pub fn make(root: &Path) -> Result<Self> {
        let dir = root.join(DIR);
        make_dir(&dir)?;
        let trial = Self { dir };
        tmpfs::ensure(DIR, &trial.dir, SIZE, MODE)?;
        let file = trial.file();
        fs::write(&file, "").map_err(|e| VolumeError::io("write", &file, e))?;
        Ok(trial)
    }

    /// A file that is visible only where the mount is.
    pub fn file(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}

impl Drop for TrialMount {
    fn drop(&mut self) {
        // Failures don't matter: the next trial reuses the remains.
        let _ = unmount(&self.dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        let _: io::Result<()> = fs::remove_dir(&self.dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::mountinfo;

    #[test]
    fn a_trial_mount_is_there_until_dropped() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(DIR);
        for _ in 0..2 {
            let trial = TrialMount::make(root.path()).unwrap();
            assert!(mountinfo::is_mount_point(&dir).unwrap());
            assert!(trial.file().exists());
            drop(trial);
            assert!(!dir.exists());
        }
    }

    #[test]
    fn a_trial_takes_over_what_was_left() {
        let root = tempfile::tempdir().unwrap();
        std::mem::forget(TrialMount::make(root.path()).unwrap());
        drop(TrialMount::make(root.path()).unwrap());
        assert!(!root.path().join(DIR).exists());
    }
}
