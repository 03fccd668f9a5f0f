//! The host's file system, as the agent sees it.
//!
//! On the host, the agent's paths are the host's. In a container they differ: a host path is found
//! below a directory where the host's root is mounted, with symlinks resolved as on the host.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mount::{UnmountFlags, unmount};

use super::{Result, VolumeError, mountinfo};
use crate::disk::IfThere as _;

/// How many symlinks a path may lead over: the kernel's own limit.
const SYMLINKS_MAX: usize = 40;

/// How the agent sees the host's files. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct HostFiles {
    shown: Shown,
    is_apart: Arc<AtomicBool>,
}

/// How the host's files are accessible.
#[derive(Debug, Clone, Default)]
enum Shown {
    #[default]
    Unsaid,
    /// They are the agent's own.
    Own,
    Below(PathBuf),
}

/// How the agent sees one path of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SeenAt {
    /// The host's path is the agent's.
    Own(PathBuf),
    /// It is visible to the agent, but read-only.
    Below(PathBuf),
    /// The agent doesn't see the host's files.
    Nowhere,
}

impl HostFiles {
    /// Host files below `root`; without one, the agent's own, unless they turn out to differ.
    pub fn new(root: Option<PathBuf>) -> Self {
        let shown = match root {
            None => Shown::Unsaid,
            Some(root) if root == Path::new("/") => Shown::Own,
            Some(root) => Shown::Below(root),
        };
        Self {
            shown,
            is_apart: Arc::default(),
        }
    }

    /// Unmounts the copies of our own volumes that came along when the host's files were mounted for
    /// the agent. They are not needed, and a directory with a mount in our own mount namespace can't be
    /// removed. Mounts that are shared with the host are left alone: those are the volumes themselves.
    /// `agent_root` is the agent's root directory.
    ///
    /// # Errors
    /// The mounts can't be read, or one can't be unmounted.
    pub fn forget_own_volumes(&self, agent_root: &Path) -> Result<()> {
        let Shown::Below(root) = &self.shown else {
            return Ok(());
        };
        let fail = |e: io::Error| VolumeError::io("unmount below", root, e);
        let copy = resolve_below(root, agent_root).map_err(fail)?;
        for point in mountinfo::unshared_below(&copy)?.iter().rev() {
            unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                .map_err(|e| fail(e.into()))?;
        }
        Ok(())
    }

    /// The directory where the host's files are mounted, if one is configured that is not the agent's
    /// own root.
    pub(super) fn root(&self) -> Option<&Path> {
        match &self.shown {
            Shown::Below(root) => Some(root),
            Shown::Unsaid | Shown::Own => None,
        }
    }

    /// Sets whether the host has different files than the agent.
    pub fn set_apart(&self, is_apart: bool) {
        self.is_apart.store(is_apart, Ordering::Relaxed);
    }

    /// Fails if the Engine would not see a mount that the agent makes at `target`, below the existing
    /// `dir`: a container would get the directory under it, on disk and without the files. Existing
    /// mounts may stay.
    pub(super) fn check_mounts_seen(&self, volume: &str, dir: &Path, target: &Path) -> Result<()> {
        let is_apart = self.is_apart.load(Ordering::Relaxed);
        if !is_apart
            || mountinfo::is_shared_at(dir)?
            || (target.exists() && mountinfo::is_mount_point(target)?)
        {
            return Ok(());
        }
        Err(VolumeError::MountNotSeen {
            volume: volume.to_owned(),
        })
    }

    /// The path at which the agent finds the host's `path`; none if it doesn't see the host's files.
    ///
    /// # Errors
    /// An error of the system.
    pub fn path(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        Ok(match self.seen(path)? {
            SeenAt::Own(path) | SeenAt::Below(path) => Some(path),
            SeenAt::Nowhere => None,
        })
    }

    pub(super) fn seen(&self, path: &Path) -> io::Result<SeenAt> {
        match &self.shown {
            Shown::Below(root) => resolve_below(root, path).map(SeenAt::Below),
            Shown::Unsaid if self.is_apart.load(Ordering::Relaxed) => Ok(SeenAt::Nowhere),
            Shown::Unsaid | Shown::Own => Ok(SeenAt::Own(path.to_owned())),
        }
    }
}

/// Resolves `path` as if `root` were `/`. Missing components are kept as they are.
fn resolve_below(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut left: VecDeque<OsString> = parts(path).collect();
    let mut at = root.to_owned();
    let mut symlinks = 0;
    while let Some(part) = left.pop_front() {
        if part == ".." {
            if at != root {
                at.pop();
            }
            continue;
        }
        let next = at.join(&part);
        let found = next.symlink_metadata().if_there()?;
        let is_symlink = found.is_some_and(|found| found.is_symlink());
        if !is_symlink {
            at = next;
            continue;
        }
        symlinks += 1;
        if symlinks > SYMLINKS_MAX {
            return Err(io::Error::from(rustix::io::Errno::LOOP));
        }
        let target = next.read_link()?;
        if target.is_absolute() {
            root.clone_into(&mut at);
        }
        for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
            left.push_front(part);
        }
    }
    Ok(at)
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn symlinks_are_followed_as_the_host_follows_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("run/a")).unwrap();
        fs::create_dir_all(root.join("var/lib")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        symlink("../../run/a", root.join("var/lib/near")).unwrap();
        symlink("../../../../../../run", root.join("var/lib/above")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        for (path, leads_to) in [
            ("/", ""),
            ("/run/a", "run/a"),
            ("/var/run/a", "run/a"),
            ("/var/lib/near", "run/a"),
            ("/var/lib/above/a", "run/a"),
            ("/../../run", "run"),
            ("/var/run/missing/b", "run/missing/b"),
        ] {
            let found = resolve_below(root, Path::new(path)).unwrap();
            // installed 1
            assert_eq!(found, root.join(leads_to), "{path}");
        }
        assert!(resolve_below(root, Path::new("/loop/a")).is_err());
    }

    #[test]
    fn who_is_apart_sees_nothing_unless_shown() {
        let etc = Path::new("/etc");
        let plain = HostFiles::new(None);
        assert_eq!(plain.path(etc).unwrap(), Some(etc.to_owned()));
        let clone = plain.clone();
        plain.set_apart(true);
        assert_eq!(clone.path(etc).unwrap(), None);

        let named = HostFiles::new(Some("/".into()));
        named.set_apart(true);
        assert_eq!(named.path(etc).unwrap(), Some(etc.to_owned()));

        let dir = tempfile::tempdir().unwrap();
        let shown = HostFiles::new(Some(dir.path().to_owned()));
        shown.set_apart(true);
        assert_eq!(shown.path(etc).unwrap(), Some(dir.path().join("etc")));
    }
}
