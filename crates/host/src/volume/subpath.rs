//! Sub-paths of volumes, created and bind-mounted without ever leaving their volume.
//!
//! A container could replace a directory by a symlink between our check and the Engine's mount. So the
//! sub-path is opened once, beneath its volume, and that file descriptor is bind-mounted to a path of
//! ours, which the Engine then gets.
//!
//! Upstream: `pkg/volume/util/subpath/subpath_linux.go`.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::StatVfsMountFlags;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use mirrorlet_core::api::Pod;
use mirrorlet_core::api::core::VolumeMount;
use mirrorlet_core::expand::{Variables, expand_strict};
use mirrorlet_core::spec;
use mirrorlet_core::volumes::{PodPaths, VolumeMap};

use super::host_root::{HostFiles, SeenAt};
use super::{Result, VolumeError, checked_name, make_dir, mountinfo};

/// The permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Prepares every sub-path a container mounts.
pub(super) fn ensure(
    pod: &Pod,
    container: &str,
    environment: &Variables,
    paths: &PodPaths,
    host: &HostFiles,
    map: &mut VolumeMap,
) -> Result<()> {
    let Some((_, spec)) = spec::find_container(pod, container) else {
        return Ok(());
    };
    checked_name(container)?;
    let mounts = spec.volume_mounts.iter().flatten().enumerate();
    // What is below the root of an image is the Engine's to find.
    for (index, mount) in mounts.filter(|(_, mount)| !map.images.contains_key(&mount.name)) {
        let fail = |problem: String| VolumeError::SubPath {
            volume: mount.name.clone(),
            container: container.to_owned(),
            problem,
        };
        let Some(subpath) = expanded(mount, environment).map_err(fail)? else {
            continue;
        };
        checked_name(&mount.name)?;
        let volume = map
            .volumes
            .get(&mount.name)
            .ok_or_else(|| fail(no_directory(&mount.name, map)))?;
        let seen = if volume.starts_with(paths.pod_dir()) {
            SeenAt::Own(volume.clone())
        } else {
            host.seen(volume).map_err(|e| fail(e.to_string()))?
        };
        let (at, shown) = match seen {
            SeenAt::Own(at) => (at, None),
            SeenAt::Below(at) => (at, host.root()),
            SeenAt::Nowhere => {
                return Err(fail(
                    "the agent can't see the host's files; mount / of the host and set --host-root"
                        .to_owned(),
                ));
            }
        };
        let opened = open_or_create(&at, &subpath).map_err(|e| {
            fail(match (e, shown) {
                (Errno::ROFS, Some(_)) => {
                    "it is missing, and the agent can read but not create the host's files; create it on the host"
                        .to_owned()
                }
                (Errno::XDEV, _) => {
                    "a symlink in its path points outside the volume".to_owned()
                }
                (Errno::LOOP, _) => "a symlink in its path is broken, or points into /proc".to_owned(),
                (Errno::NOTDIR, _) => "a part of its path is not a directory".to_owned(),
                (e, _) => e.to_string(),
            })
        })?;
        let target = paths.subpath(&mount.name, container, index);
        host.check_mounts_seen(&mount.name, paths.pod_dir(), &target)?;
        bind(&opened, &target, &mount.name)?;
        if let Some(root) = shown {
            write_through(&opened, root, &target)?;
        }
        map.subpaths.insert((container.to_owned(), index), target);
    }
    Ok(())
}

/// Why a volume has no directory.
fn no_directory(volume: &str, map: &VolumeMap) -> String {
    match map.engine_volumes.get(volume) {
        Some(name) => format!(
            "volume {name} of the Engine has a driver other than local, or driver options, which do not support subPath"
        ),
        None => "no such volume".to_owned(),
    }
}

/// The sub-path of a mount, if it has one that is not the volume itself.
fn expanded(mount: &VolumeMount, environment: &Variables) -> Result<Option<String>, String> {
    let set = |text: &Option<String>| text.clone().filter(|t| !t.is_empty());
    let subpath = match (set(&mount.sub_path_expr), set(&mount.sub_path)) {
        (Some(expression), _) => expand_strict(&expression, environment)?,
        (None, Some(subpath)) => subpath,
        (None, None) => return Ok(None),
    };
    if Path::new(&subpath).is_absolute() {
        return Err("it must be relative".to_owned());
    }
    if Path::new(&subpath)
        .components()
        .any(|c| c == Component::ParentDir)
    {
        return Err("it must not contain '..'".to_owned());
    }
    Ok(Some(subpath))
}

/// Opens a sub-path; what is missing of it is made with the volume's mode. Symlinks are followed
/// as long as they stay in the volume.
fn open_or_create(volume: &Path, subpath: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(volume, flags | OFlags::DIRECTORY, Mode::empty())?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&root)?.st_mode & PERMISSIONS);
    let open = |path: &Path| {
        rustix::fs::openat2(
            &root,
            path,
            flags,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS,
        )
    };
    let mut walked = std::path::PathBuf::from(".");
    let mut current = open(&walked)?;
    for component in Path::new(subpath).components() {
        let Component::Normal(name) = component else {
            continue;
        };
        walked.push(name);
        current = match open(&walked) {
            Err(Errno::NOENT) => match rustix::fs::mkdirat(&current, name, mode) {
                Ok(()) => opened_with_mode(&current, name, mode)?,
                Err(Errno::EXIST) => open(&walked)?,
                Err(e) => return Err(e),
            },
            other => other?,
        };
    }
    Ok(current)
}

/// Opens a directory that was just created, and sets its full mode, which the umask reduced. Uses its
/// descriptor: a container may have put a symlink in its place.
///
/// Upstream: `doSafeMakeDir` of `pkg/volume/util/subpath/subpath_linux.go`.
pub(super) fn opened_with_mode(
    parent: &OwnedFd,
    name: &OsStr,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let created = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    rustix::fs::fchmod(&created, mode)?;
    Ok(created)
}

/// Binds an opened file or directory to its place, unless it is bound there already.
fn bind(source: &OwnedFd, target: &Path, volume: &str) -> Result<()> {
    let fail = |e: Errno| VolumeError::io("bind a sub-path to", target, e);
    let wanted = rustix::fs::fstat(source).map_err(fail)?;
    if target.exists() && mountinfo::is_mount_point(target)? {
        if rustix::fs::stat(target).is_ok_and(|found| same(&found, &wanted)) {
            return Ok(());
        }
        // It may be bound twice, see `write_through`.
        while mountinfo::is_mount_point(target)? {
            unmount(target, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH).map_err(fail)?;
        }
    }
    make_target(target, FileType::from_raw_mode(wanted.st_mode))?;
    mount_bind(in_proc(source), target).map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => VolumeError::MountNotPermitted {
            volume: volume.to_owned(),
            cause: e.to_string(),
        },
        e => fail(e),
    })
}

/// Makes a bind mount of the host's files writable. They are mounted read-only for the agent, and a
/// bind mount inherits that; the pod's own mount decides what the pod may write. Mounts of the host
/// below its root keep their flags.
fn write_through(source: &OwnedFd, host_root: &Path, target: &Path) -> Result<()> {
    let fail = |e: Errno| VolumeError::io("share a sub-path on", target, e);
    let is_of_root = rustix::fs::fstat(source).map_err(fail)?.st_dev
        == rustix::fs::stat(host_root).map_err(fail)?.st_dev;
    let bound = rustix::fs::statvfs(target).map_err(fail)?.f_flag;
    if !is_of_root || !bound.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    // Mounts that are not named again are removed.
    let mut flags = MountFlags::BIND;
    for (is, keep) in [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ] {
        if bound.contains(is) {
            flags |= keep;
        }
    }
    mount_remount(target, flags, "").map_err(fail)?;
    // The Engine sees another copy, made when it was bound and read-only still. What is bound over
    // both is copied as it is now.
    mount_bind(target, target).map_err(fail)
}

fn same(a: &Stat, b: &Stat) -> bool {
    (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
}

/// Makes what the sub-path is bound to: a directory for a directory, else an empty file.
fn make_target(target: &Path, kind: FileType) -> Result<()> {
    let (is_dir, is_file) = (target.is_dir(), target.is_file());
    if kind == FileType::Directory {
        if is_file {
            std::fs::remove_file(target).map_err(|e| VolumeError::io("remove", target, e))?;
        }
        return make_dir(target);
    }
    if is_dir {
        std::fs::remove_dir(target).map_err(|e| VolumeError::io("remove", target, e))?;
    }
    if let Some(parent) = target.parent() {
        make_dir(parent)?;
    }
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(target)
        .map_err(|e| VolumeError::io("create", target, e))?;
    Ok(())
}

pub(super) fn in_proc(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
