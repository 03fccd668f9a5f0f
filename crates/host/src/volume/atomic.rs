//! Writes a volume's files so that a reader sees either all old or all new ones.
//!
//! ```text
//!   <volume>/name   → ..data/name                        what containers open
//!   <volume>/..data → ..2006_01_02_15_04_05.1a2b3c4d     renamed over: the one moment of change
//!   <volume>/..2006_01_02_15_04_05.1a2b3c4d/name         the file
//! ```
//!
//! Remains of an interrupted write are removed by the next one. Unlike upstream, links without a file
//! are found by scanning the links, so that this holds for them as well.
//!
//! Upstream: `pkg/volume/util/atomic_writer.go`, ownership: `pkg/volume/volume_linux.go`.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Uid};

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::payload::{DIRECTORY_BYTES, Payload, bytes_of_file};

use super::{Result, VolumeError, files, set_mode};
use crate::disk::IfThere as _;
use mirrorlet_core::small::SmallSort;

/// The link to the files in force.
const DATA: &str = "..data";
/// The link that is about to be renamed over [`DATA`].
const DATA_NEW: &str = "..data_tmp";
/// The prefix of our own names in a volume, which no file's path has.
const OURS: &str = "..";
/// Mode of directories of files.
const DIR_MODE: u32 = 0o755;
/// The group's permissions for files, in addition to their mode: the volume is read-only.
const GROUP_FILE: u32 = 0o440;
/// The same with directories; new files in them would belong to the group.
const GROUP_DIR: u32 = 0o2550;

/// A step that has been done; tests stop a write after each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    LeftoversRemoved,
    DirMade,
    FileWritten,
    Prepared,
    Switched,
    LinkMade,
    LinkRemoved,
    OldRemoved,
}

/// Whether files were once written whole to that directory.
pub(super) fn is_written(dir: &Path) -> bool {
    std::fs::metadata(dir.join(DATA)).is_ok_and(|found| found.is_dir())
}

/// The size of a volume's files with their directories and mount points, as [`Payload`] counts them,
/// including remains of an interrupted write; none for a missing volume.
pub(super) fn size(dir: &Path) -> Result<usize> {
    if std::fs::symlink_metadata(dir).is_err() {
        return Ok(0);
    }
    let mut bytes = 0_usize;
    let mut left = vec![dir.to_owned()];
    while let Some(below) = left.pop() {
        for (path, name) in entries(&below)? {
            match std::fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => {
                    let is_ours = name.as_encoded_bytes().starts_with(OURS.as_bytes());
                    if below != dir || !is_ours {
                        bytes = bytes.saturating_add(DIRECTORY_BYTES);
                    }
                    left.push(path);
                }
                Ok(found) if found.is_file() => {
                    let length = usize::try_from(found.len()).unwrap_or(usize::MAX);
                    bytes = bytes.saturating_add(bytes_of_file(length));
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(bytes)
}

/// Makes an existing directory contain exactly these files, readable by `group` if there is one.
/// Returns whether anything was changed.
pub(super) fn write(dir: &Path, payload: &Payload, group: Option<u32>) -> Result<bool> {
    write_stepwise(dir, payload, group, &mut |_| Ok(()))
}

/// Like [`write`]; `done` is called after every step, and aborts the write by failing.
pub(super) fn write_stepwise(
    dir: &Path,
    payload: &Payload,
    group: Option<u32>,
    done: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<bool> {
    let data = dir.join(DATA);
    let old = std::fs::read_link(&data).if_there();
    let old = old.map_err(|e| VolumeError::io("read the link", &data, e))?;
    remove_leftovers(dir, old.as_deref(), done)?;
    let old_dir = old.map(|old| dir.join(old));
    let is_same = match &old_dir {
        Some(old) => holds(old, payload)?,
        None => false,
    };
    let mut changed = !is_same;
    if !is_same {
        let new = new_dir(dir)?;
        done(Step::DirMade)?;
        write_files(&new, payload, done)?;
        if let Some(group) = group {
            give_to_group(&new, group)?;
        }
        let link = dir.join(DATA_NEW);
        let name = new.file_name().unwrap_or_default();
        symlink(name, &link).map_err(|e| VolumeError::io("create the link", &link, e))?;
        done(Step::Prepared)?;
        std::fs::rename(&link, &data).map_err(|e| VolumeError::io("replace", &data, e))?;
        done(Step::Switched)?;
    }
    changed |= set_links(dir, &payload.visible(), group, done)?;
    if let Some(old) = old_dir.filter(|_| !is_same) {
        remove_dir(&old)?;
        done(Step::OldRemoved)?;
    }
    Ok(changed)
}

/// Gives a volume's own directory to its group.
pub(super) fn own_root(dir: &Path, mode: u32, group: Option<u32>) -> Result<()> {
    match group {
        None => set_mode(dir, mode),
        Some(group) => {
            change_group(dir, group)?;
            set_mode(dir, mode | GROUP_DIR)
        }
    }
}

/// Removes what an interrupted write left.
fn remove_leftovers(
    dir: &Path,
    in_force: Option<&Path>,
    done: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    for (path, name) in entries(dir)? {
        let is_ours = name.as_encoded_bytes().starts_with(OURS.as_bytes());
        if !is_ours || name == DATA || Some(Path::new(&name)) == in_force {
            continue;
        }
        let is_dir = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_dir {
            remove_dir(&path)?;
        } else {
            std::fs::remove_file(&path).map_err(|e| VolumeError::io("remove", &path, e))?;
        }
        done(Step::LeftoversRemoved)?;
    }
    Ok(())
}

fn remove_dir(path: &Path) -> Result<()> {
    let removed = std::fs::remove_dir_all(path).if_there();
    removed.map_err(|e| VolumeError::io("remove", path, e))?;
    Ok(())
}

/// Whether a directory of files holds just these.
fn holds(dir: &Path, payload: &Payload) -> Result<bool> {
    let mut found = BTreeSet::new();
    if !files_below(dir, "", &mut found)? || found.len() != payload.files().len() {
        return Ok(false);
    }
    for (path, file) in payload.files() {
        if !found.contains(path) {
            return Ok(false);
        }
        let path = dir.join(path);
        if !files::holds(&path, &file.data).map_err(|e| VolumeError::io("read", &path, e))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Paths of all files below a directory; false where it is not there.
fn files_below(dir: &Path, prefix: &str, found: &mut BTreeSet<String>) -> Result<bool> {
    if std::fs::symlink_metadata(dir).is_err() {
        return Ok(false);
    }
    for (path, name) in entries(dir)? {
        let name = format!("{prefix}{}", name.to_string_lossy());
        let is_dir = std::fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_dir {
            files_below(&path, &format!("{name}/"), found)?;
        } else {
            found.insert(name);
        }
    }
    Ok(true)
}

/// Makes a directory with a name of its own.
fn new_dir(dir: &Path) -> Result<PathBuf> {
    let now = Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S").to_string();
    let prefix = format!("{OURS}{now}.");
    let make = |path: &Path| DirBuilder::new().mode(DIR_MODE).create(path);
    let path = files::make_named(dir, &prefix, "create directory", make)?;
    set_mode(&path, DIR_MODE)?;
    Ok(path)
}

fn write_files(
    dir: &Path,
    payload: &Payload,
    done: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<()> {
    for (name, file) in payload.files() {
        make_parents(dir, name)?;
        let path = dir.join(name);
        // No user may read it before its owner and mode are set.
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600).open(&path);
        created
            .and_then(|mut created| created.write_all(&file.data))
            .map_err(|e| VolumeError::io("write", &path, e))?;
        if let Some(user) = file.user {
            rustix::fs::chown(&path, Some(Uid::from_raw(user)), None)
                .map_err(|e| VolumeError::io("set the owner of", &path, e))?;
        }
        set_mode(&path, file.mode)?;
        done(Step::FileWritten)?;
    }
    Ok(())
}

/// Makes the directories that a file lies in.
fn make_parents(dir: &Path, name: &str) -> Result<()> {
    let mut path = dir.to_owned();
    let parents = name.rsplit_once('/').map(|(parents, _)| parents);
    for parent in parents.into_iter().flat_map(|parents| parents.split('/')) {
        path.push(parent);
        match DirBuilder::new().mode(DIR_MODE).create(&path) {
            Ok(()) => set_mode(&path, DIR_MODE)?,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(VolumeError::io("create directory", &path, e)),
        }
    }
    Ok(())
}

/// Gives everything of a directory to a group, deepest first, as `fsGroup` wants it.
fn give_to_group(path: &Path, group: u32) -> Result<()> {
    let found = std::fs::symlink_metadata(path).map_err(|e| VolumeError::io("inspect", path, e))?;
    if found.is_dir() {
        for (entry, _) in entries(path)? {
            give_to_group(&entry, group)?;
        }
    }
    change_group(path, group)?;
    if found.is_symlink() {
        return Ok(());
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&found) & 0o7777;
    let granted = if found.is_dir() {
        GROUP_DIR
    } else {
        GROUP_FILE
    };
    set_mode(path, mode | granted)
}

/// Changes the group of a path itself, not of a link's target.
fn change_group(path: &Path, group: u32) -> Result<()> {
    let group = Some(Gid::from_raw(group));
    rustix::fs::chownat(CWD, path, None, group, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|e| VolumeError::io("set the group of", path, e))
}

/// Makes the links to these names, and removes ours to any other. What is no link of ours, a
/// mount point say, stays.
fn set_links(
    dir: &Path,
    visible: &BTreeSet<&str>,
    group: Option<u32>,
    done: &mut dyn FnMut(Step) -> Result<()>,
) -> Result<bool> {
    let mut changed = false;
    for name in visible {
        let path = dir.join(name);
        match symlink(Path::new(DATA).join(name), &path) {
            Ok(()) => {
                if let Some(group) = group {
                    change_group(&path, group)?;
                }
                changed = true;
                done(Step::LinkMade)?;
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(VolumeError::io("create the link", &path, e)),
        }
    }
    for (path, name) in entries(dir)? {
        let is_wanted = name.to_str().is_some_and(|name| visible.contains(name));
        if !is_wanted && is_link_to_data(&path, &name) {
            std::fs::remove_file(&path).map_err(|e| VolumeError::io("remove", &path, e))?;
            changed = true;
            done(Step::LinkRemoved)?;
        }
    }
    Ok(changed)
}

fn is_link_to_data(path: &Path, name: &OsStr) -> bool {
    std::fs::read_link(path).is_ok_and(|target| target == Path::new(DATA).join(name))
}

/// Paths and names in a directory, read whole before anything is changed in it.
fn entries(dir: &Path) -> Result<Vec<(PathBuf, std::ffi::OsString)>> {
    let fail = |e: io::Error| VolumeError::io("read directory", dir, e);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        found.push((entry.path(), entry.file_name()));
    }
    found.small_sort();
    Ok(found)
}

#[cfg(test)]
mod tests;
