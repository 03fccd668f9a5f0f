//! Removes a pod's directory: our own mounts are unmounted, and nothing is removed on another file
//! system, behind a mount or behind a symlink.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, DirEntry, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use mirrorlet_core::volumes::PodPaths;

use super::{Result, VolumeError, mountinfo};

/// Directories are entered this deep, each level holding two descriptors and a batch of names. Deeper
/// ones are moved up to the pod's directory first, so that no tree a container made can exhaust us.
const DEPTH_MAX: usize = 64;

/// Names of a directory read at a time: with the longest, 64 KiB for each level.
const BATCH: usize = 256;

/// Unmounts and removes a pod's directory.
pub(super) fn remove_pod(root: &Path, paths: &PodPaths) -> Result<()> {
    let dir = paths.pod_dir();
    if std::fs::symlink_metadata(dir).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    unmount_ours(paths)?;
    let pods_dir = PodPaths::pods_dir(root);
    let pods = rustix::fs::open(&pods_dir, dir_flags(), Mode::empty())
        .map_err(|e| VolumeError::io("remove", dir, e))?;
    remove_named(pods.as_fd(), dir)
}

/// Unmounts and removes a pod's volumes, and leaves everything else in its directory.
pub(super) fn release(paths: &PodPaths) -> Result<()> {
    let dir = paths.pod_dir();
    let made = [
        paths.volumes_dir(),
        paths.subpaths_dir(),
        paths.plugins_dir(),
    ];
    let is_there = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok();
    if !made.iter().any(is_there) {
        return Ok(());
    }
    unmount_ours(paths)?;
    let pod = rustix::fs::open(dir, dir_flags() | OFlags::NOFOLLOW, Mode::empty())
        .map_err(|e| VolumeError::io("open", dir, e))?;
    let mut left = made.iter().filter(|path| is_there(path));
    left.try_for_each(|path| remove_named(pod.as_fd(), path))
}

/// Removes the entry of `path` in its directory, `parent`, if it exists.
fn remove_named(parent: BorrowedFd<'_>, path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    let name =
        CString::new(name).map_err(|_| VolumeError::InvalidName(path.display().to_string()))?;
    match remove_tree(parent, &name) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::XDEV | Errno::BUSY) => Err(VolumeError::Busy {
            path: path.to_owned(),
            cause: "something is mounted below it".to_owned(),
        }),
        Err(e) => Err(VolumeError::io("remove", path, e)),
    }
}

/// Unmounts volumes in memory and bound sub-paths, newest first. Anything else that is mounted
/// below the pod's directory is not ours to unmount.
fn unmount_ours(paths: &PodPaths) -> Result<()> {
    let dir = paths.pod_dir();
    let real = dir
        .canonicalize()
        .map_err(|e| VolumeError::io("resolve", dir, e))?;
    let resolved = |path: &Path| match path.strip_prefix(dir) {
        Ok(rest) => real.join(rest),
        Err(_) => path.to_owned(),
    };
    let (volumes, subpaths) = (
        resolved(&paths.volumes_dir()),
        resolved(&paths.subpaths_dir()),
    );
    for point in mountinfo::below(&real)?.iter().rev() {
        let is_volume = point.parent().and_then(Path::parent) == Some(volumes.as_path());
        if !is_volume && !point.starts_with(&subpaths) {
            return Err(VolumeError::Busy {
                path: point.clone(),
                cause: "it was not mounted by mirrorlet".to_owned(),
            });
        }
        match unmount(point, UnmountFlags::NOFOLLOW) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(e) => {
                return Err(VolumeError::Busy {
                    path: point.clone(),
                    cause: e.to_string(),
                });
            }
        }
    }
    Ok(())
}

fn dir_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Opens a directory, but neither a symlink nor one that something is mounted on.
fn open_dir(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat2(
        parent,
        name,
        dir_flags() | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )
}

pub(super) fn remove_tree(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let top = open_dir(parent, name)?;
    let mut removal = Removal {
        top: top.as_fd(),
        moved: 0,
    };
    // Entries that were moved up are in a later batch.
    removal.remove_children(top.as_fd(), 0)?;
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    moved: u64,
}

impl Removal<'_> {
    fn remove_children(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<(), Errno> {
        // Continues behind the removed entries: from the start, the kernel would scan all the empty
        // space again. Files created meanwhile are found by another pass.
        let mut stream = Dir::read_from(dir)?;
        let mut is_empty = true;
        loop {
            let names = batch(&mut stream)?;
            if names.is_empty() {
                if is_empty {
                    return Ok(());
                }
                is_empty = true;
                stream.rewind();
                continue;
            }
            is_empty = false;
            for name in names {
                match rustix::fs::unlinkat(dir, &name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) => match self.remove_dir(dir, &name, depth) {
                        // Moved meanwhile, or one on the way to it: another pass finds where to.
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(e) => return Err(e),
                    },
                    Err(e) => return Err(e),
                }
            }
        }
    }

    fn remove_dir(
        &mut self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        depth: usize,
    ) -> Result<(), Errno> {
        if depth >= DEPTH_MAX {
            return self.move_up(parent, name);
        }
        let dir = open_dir(parent, name)?;
        self.remove_children(dir.as_fd(), depth + 1)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let to = format!(".removed-{}", self.moved);
            match rustix::fs::renameat_with(
                parent,
                name,
                self.top,
                to,
                rustix::fs::RenameFlags::NOREPLACE,
            ) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
}

/// The next names in a directory.
fn batch(stream: &mut Dir) -> Result<Vec<CString>, Errno> {
    let names = stream.filter(|entry| {
        let name = entry.as_ref().map(DirEntry::file_name);
        name != Ok(c".") && name != Ok(c"..")
    });
    let names = names.take(BATCH);
    names
        .map(|entry| Ok(entry?.file_name().to_owned()))
        .collect()
}
