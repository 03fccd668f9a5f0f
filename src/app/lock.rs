//! One agent a root: the root directory's lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
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
    /// The error for the user who starts an agent, with advice.
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

/// The lock of a root directory, held until dropped. The kernel releases it when the process ends for
/// any reason, so there is no stale lock to clean up.
#[derive(Debug)]
pub struct RootLock {
    /// Open for as long as the lock is held; the lock belongs to the open file.
    file: File,
}

impl Drop for RootLock {
    /// Releases it explicitly, because a child that is being started may hold a copy of the open file
    /// between fork and exec.
    fn drop(&mut self) {
        // A failed unlock doesn't matter: closing the file, next, releases the lock.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl RootLock {
    /// Creates the root directory (0700) if it is missing, and takes its lock.
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
/// truncated: on a full disk, the block of the old one may be the only one available.
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

/// Closes an existing directory to others: pods' secrets will be stored below it.
fn restrict(root: &Path) -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let found = Found::look(root)?;
    match found.is_to_close((uid.as_raw(), gid.as_raw())) {
        Ok(true) => {
            std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o700))?;
            occurrences::root_closed(root, found.mode & 0o7777);
            Ok(())
        }
        Ok(false) => Ok(()),
        Err(why) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
    }
}

/// The root directory as the agent finds it.
#[derive(Debug)]
struct Found {
    uid: u32,
    gid: u32,
    mode: u32,
    content: Content,
}

/// The content of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Nothing,
    /// The files of a root directory.
    OfAgent,
    OfOthers,
}

impl Found {
    fn look(root: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(root)?;
        let content = if std::fs::read_dir(root)?.next().is_none() {
            Content::Nothing
        } else if root.join("owner").is_file() || root.join("manifests").is_dir() {
            Content::OfAgent
        } else {
            Content::OfOthers
        };
        Ok(Self {
            uid: found.uid(),
            gid: found.gid(),
            mode: found.mode(),
            content,
        })
    }

    /// Whether an agent of that user and group closes the directory to others; or why it refuses it, because
    /// others can write to it. Only one that is plainly a root directory is closed, lest `--root /srv` takes
    /// `/srv` from everybody.
    fn is_to_close(&self, (uid, gid): (u32, u32)) -> Result<bool, String> {
        /// Permissions of everybody but the owner; to write, of the group and of all.
        const OTHERS: u32 = 0o077;
        const GROUP_WRITE: u32 = 0o020;
        const ALL_WRITE: u32 = 0o002;
        if self.uid != 0 && self.uid != uid {
            let words = format!(
                "it belongs to user {}, who can write to it; choose a directory of its own",
                self.uid
            );
            return Err(words);
        }
        if self.mode & OTHERS == 0 {
            return Ok(false);
        }
        let by_group = self.mode & GROUP_WRITE != 0;
        let by_all = self.mode & ALL_WRITE != 0;
        match self.content {
            // Other users who could write to it may have created the files.
            Content::OfAgent if by_all || (by_group && self.gid != gid) => Err(
                "it is writable by others; check the files in it, and run chmod go-w on it"
                    .to_owned(),
            ),
            Content::OfOthers if by_all || by_group => Err(
                "it contains other files and is writable by others; choose a directory of its own"
                    .to_owned(),
            ),
            Content::Nothing | Content::OfAgent => Ok(true),
            Content::OfOthers => Ok(false),
        }
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
        for entry in ["home", "manifests"] {
            let refused = mode_after(0o777, Some(entry)).unwrap_err();
            // tenants L6
            assert!(matches!(refused, LockError::Io { .. }), "{refused}");
        }
    }

    #[test]
    fn a_directory_of_another_user_is_refused_whatever_its_mode() {
        use Content::{Nothing, OfAgent, OfOthers};
        let (belongs, used, other) = ("belongs to user 1000", "check the files", "other files");
        for (uid, gid, mode, content, agent, expected) in [
            (0, 0, 0o700, OfAgent, (0, 0), Ok(false)),
            (0, 0, 0o755, Nothing, (0, 0), Ok(true)),
            (0, 0, 0o777, Nothing, (0, 0), Ok(true)),
            (0, 0, 0o755, OfAgent, (0, 0), Ok(true)),
            (0, 0, 0o775, OfAgent, (0, 0), Ok(true)),
            (0, 50, 0o775, OfAgent, (0, 0), Err(used)),
            (0, 0, 0o777, OfAgent, (0, 0), Err(used)),
            (0, 0, 0o755, OfOthers, (0, 0), Ok(false)),
            (0, 0, 0o775, OfOthers, (0, 0), Err(other)),
            (1000, 1000, 0o700, Nothing, (0, 0), Err(belongs)),
            (1000, 1000, 0o700, OfAgent, (0, 0), Err(belongs)),
            (1000, 0, 0o755, OfOthers, (0, 0), Err(belongs)),
            // An agent of that user, as in tests.
            (1000, 1000, 0o700, OfAgent, (1000, 1000), Ok(false)),
            (1000, 1000, 0o775, OfAgent, (1000, 1000), Ok(true)),
            (0, 0, 0o700, OfAgent, (1000, 1000), Ok(false)),
        ] {
            let found = Found {
                uid,
                gid,
                mode,
                content,
            };
            let judged = found.is_to_close(agent);
            let agrees = match (&judged, expected) {
                (Ok(closes), Ok(expected)) => *closes == expected,
                (Err(why), Err(words)) => why.contains(words),
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
            };
            // tenants L6
            assert!(agrees, "{found:?} {agent:?}: {judged:?}");
        }
    }

    #[test]
    fn a_root_directory_of_another_user_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (us, other) = (rustix::process::geteuid(), rustix::fs::Uid::from_raw(1000));
        if !us.is_root() {
            return;
        }
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        rustix::fs::chown(dir.path(), Some(other), None).unwrap();
        let refused = RootLock::acquire(dir.path()).unwrap_err().of_start();
        let refused = format!("{refused:#}");
        // tenants L6
        assert!(refused.contains("belongs to user 1000"), "{refused}");
        assert!(!dir.path().join("lock").exists());
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
