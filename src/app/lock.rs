//! One agent a root: the root directory's lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use mirrorlet_host::telemetry::occurrences;

/// Why a root directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another agent uses it.
    #[error("another mirrorlet{} is using {}", .pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default(), .root.display())]
    Held {
        /// The root directory.
        root: PathBuf,
        /// The other's process id, where it could be read.
        pid: Option<u32>,
    },
    /// The system refused.
    #[error("failed to {attempt} {}", .path.display())]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
}

impl LockError {
    /// The error for a person who starts an agent, with what to do about it.
    pub fn of_start(self) -> anyhow::Error {
        let is_held = matches!(self, Self::Held { .. });
        let error = anyhow::Error::from(self);
        if is_held {
            anyhow::anyhow!(
                "{error}; stop that one first (a service: systemctl stop mirrorlet), or give this one a root directory of its own with --root DIR"
            )
        } else {
            error
        }
    }
}

/// The lock of a root directory, held until dropped. The kernel lets go of it when the process
/// ends in whatever way, so there is no stale lock to clean up.
#[derive(Debug)]
pub struct RootLock {
    /// Open for as long as the lock is held; the lock belongs to the open file.
    file: File,
}

impl Drop for RootLock {
    /// Lets go of it, also where a child that is being started holds a copy of the open file for
    /// the moment between fork and exec.
    fn drop(&mut self) {
        // A failed unlock doesn't matter: closing the file, next, releases the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl RootLock {
    /// Creates the root directory (0700) where missing, and takes its lock.
    ///
    /// # Errors
    /// Another agent holds it, or the system refused.
    pub fn acquire(root: &Path) -> Result<Self, LockError> {
        Self::acquire_with(root, write_pid)
    }

    /// As [`acquire`](Self::acquire), with the process id written by that function: tests have it fail.
    fn acquire_with(
        root: &Path,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<Self, LockError> {
        let fail = |attempt, path: &Path| {
            let path = path.to_owned();
            move |source| LockError::Io {
                attempt,
                path,
                source: advised(source),
            }
        };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(root)
            .map_err(fail("create the root directory", root))?;
        restrict(root).map_err(fail("restrict access to the root directory", root))?;
        let path = root.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(fail("open the lock file", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(LockError::Held {
                    root: root.to_owned(),
                    pid: read_pid(&mut file),
                });
            }
            Err(errno) => return Err(fail("lock", &path)(errno.into())),
        }
        // The lock is held without it: the process id is only for the error of a second agent.
        if let Err(error) = write(&mut file) {
            // That of the agent before would pass for this agent's.
            let _ = file.set_len(0);
            occurrences::pid_not_written(&path, &error);
        }
        Ok(Self { file })
    }
}

/// Replaces the process id in the lock file. The new one is written before the rest of the file is
/// cut off: on a full disk the block of the one before may be the only one that there is.
fn write_pid(file: &mut File) -> io::Result<()> {
    let line = format!("{}\n", std::process::id());
    file.rewind()?;
    file.write_all(line.as_bytes())?;
    let end = file.stream_position()?;
    file.set_len(end)
}

/// An error of the system, with advice where only root is let.
fn advised(error: io::Error) -> io::Error {
    let is_refused = error.kind() == io::ErrorKind::PermissionDenied;
    if is_refused && error.raw_os_error().is_some() {
        io::Error::new(error.kind(), format!("{error}; run it as root"))
    } else {
        error
    }
}

/// Closes a directory that was there before to others: pods' secrets will lie below it. Only one
/// that is plainly a root directory, lest `--root /srv` takes `/srv` from everybody; another is
/// left as it is, and refused if others may write to it.
fn restrict(root: &Path) -> io::Result<()> {
    /// Permissions of everybody but the owner.
    const OTHERS: u32 = 0o077;
    /// Of these, the ones to write.
    const OTHERS_WRITE: u32 = 0o022;
    let mode = std::fs::metadata(root)?.permissions().mode();
    if mode & OTHERS == 0 {
        return Ok(());
    }
    let empty = std::fs::read_dir(root)?.next().is_none();
    if empty || root.join("owner").is_file() || root.join("manifests").is_dir() {
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o700))?;
        occurrences::root_closed(root, mode & 0o7777);
        Ok(())
    } else if mode & OTHERS_WRITE == 0 {
        Ok(())
    } else {
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "it contains other files and is writable by others; choose a directory of its own",
        ))
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    /// A decimal process id and a line end fit in it.
    const PID_BYTES_MAX: u64 = 16;
    let mut text = String::new();
    file.take(PID_BYTES_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_and_told_the_pid() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("deep/root");
        let first = RootLock::acquire(&root).unwrap();
        let mode = std::fs::metadata(&root).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // A lock belongs to the open file, so the same process is as good as a second one here.
        let refused = RootLock::acquire(&root).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "another mirrorlet (pid {}) is using {}",
                std::process::id(),
                root.display()
            )
        );
        drop(first);
        RootLock::acquire(&root).unwrap();
    }

    #[test]
    fn what_a_dead_agent_left_behind_does_not_matter() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "123456789012345678901234567890\n").unwrap();
        let _lock = RootLock::acquire(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("lock")).unwrap();
        assert_eq!(text, format!("{}\n", std::process::id()));
    }

    #[test]
    fn a_full_disk_keeps_no_agent_from_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("lock"), "1234\n").unwrap();
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let _first = RootLock::acquire_with(dir.path(), |_| Err(full)).unwrap();
        let refused = RootLock::acquire(dir.path()).unwrap_err();
        assert!(
            matches!(refused, LockError::Held { pid: None, .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_directory_of_others_is_not_taken_from_them() {
        let mode_after = |before: u32, entry: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            if let Some(entry) = entry {
                std::fs::create_dir(dir.path().join(entry)).unwrap();
            }
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(before)).unwrap();
            RootLock::acquire(dir.path()).map(|_| {
                let mode = std::fs::metadata(dir.path()).unwrap().permissions().mode();
                mode & 0o777
            })
        };
        assert_eq!(mode_after(0o755, None).unwrap(), 0o700);
        assert_eq!(mode_after(0o755, Some("manifests")).unwrap(), 0o700);
        assert_eq!(mode_after(0o755, Some("home")).unwrap(), 0o755);
        let refused = mode_after(0o777, Some("home")).unwrap_err();
        // tenants L6
        assert!(matches!(refused, LockError::Io { .. }), "{refused}");
    }

    #[test]
    fn who_may_not_make_the_root_is_told_to_be_root() {
        let of_system = advised(rustix::io::Errno::ACCESS.into());
        let words = of_system.to_string();
        assert!(words.ends_with("; run it as root"), "{words}");
        // An error of our own has advice already.
        let own = advised(io::Error::new(io::ErrorKind::PermissionDenied, "choose"));
        assert_eq!(own.to_string(), "choose");
    }

    #[test]
    fn a_root_that_is_a_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("file");
        std::fs::write(&root, "").unwrap();
        let error = RootLock::acquire(&root).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
    }
}
