//! Single files of a pod: termination messages and the hosts file.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{Result, VolumeError, make_dir, set_mode};
use crate::{disk, random};

/// Maximum number of bytes that are read of a termination message: its last ones.
///
/// Upstream: `MaxContainerTerminationMessageLength` of `pkg/kubelet/container/runtime.go`.
pub const TERMINATION_MESSAGE_MAX: u64 = 4096;
/// Mode of a termination message: the container's user is unknown.
const TERMINATION_MODE: u32 = 0o666;
/// Mode of the hosts file.
const HOSTS_MODE: u32 = 0o644;
/// Name of the file beside the termination messages that holds the restart count of the
/// container's last start.
const RESTARTS: &str = "restarts";
/// Most bytes read of it: the longest count.
const RESTARTS_MAX: u64 = 10;
/// Names tried before giving up; with 32 random bits a second try is rare.
const NAME_TRIES: usize = 16;

/// Creates an empty file with a unique name.
pub(super) fn new_termination_log(dir: &Path) -> Result<PathBuf> {
    make_dir(dir)?;
    let mut options = OpenOptions::new();
    let make = |path: &Path| options.write(true).create_new(true).open(path).map(drop);
    let path = make_named(dir, "", "create", make)?;
    set_mode(&path, TERMINATION_MODE)?;
    Ok(path)
}

/// Creates an entry with a unique name that begins with `prefix`. `make` fails if the name is taken;
/// `attempt` describes the operation, for errors.
pub(super) fn make_named(
    dir: &Path,
    prefix: &str,
    attempt: &'static str,
    mut make: impl FnMut(&Path) -> io::Result<()>,
) -> Result<PathBuf> {
    for _ in 0..NAME_TRIES {
        let random = random::number() & u64::from(u32::MAX);
        let path = dir.join(format!("{prefix}{random:08x}"));
        match make(&path) {
            Ok(()) => return Ok(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(VolumeError::io(attempt, &path, e)),
        }
    }
    let taken = io::ErrorKind::AlreadyExists;
    Err(VolumeError::io("find a free name in", dir, taken))
}

/// Removes a file made by [`new_termination_log`] in that directory.
pub(super) fn remove_termination_log(dir: &Path, path: &Path) -> Result<()> {
    if path.parent() != Some(dir) {
        return Err(VolumeError::io("remove", path, io::ErrorKind::InvalidInput));
    }
    disk::remove(path).map_err(|e| VolumeError::io("remove", path, e))
}

/// Records the restart count of a start, beside the termination messages.
pub(super) fn note_restarts(dir: &Path, count: u32) -> Result<()> {
    make_dir(dir)?;
    write_in_place(&dir.join(RESTARTS), &count.to_string())
}

/// The restart count recorded last; none if it is missing or invalid.
pub(super) fn noted_restarts(dir: &Path) -> Option<u32> {
    let file = File::open(dir.join(RESTARTS)).ok()?;
    let mut text = String::new();
    file.take(RESTARTS_MAX).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Reads the end of a termination message, at most [`TERMINATION_MESSAGE_MAX`] bytes; invalid UTF-8 in
/// it is replaced. Only reads a regular file, and follows no symlink.
pub fn read_termination_message(path: &Path) -> io::Result<String> {
    let mut file = open(path, OpenOptions::new().read(true))?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let start = metadata.len().saturating_sub(TERMINATION_MESSAGE_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(TERMINATION_MESSAGE_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Replaces the content of an existing file in place, so that containers that mount it see the change.
/// A file with that content is left alone.
pub fn overwrite(path: &Path, content: &str) -> Result<()> {
    rewrite(path, content).map_err(|e| VolumeError::io("write", path, e))
}

/// See [`overwrite`]. On a full disk the file keeps its beginning.
pub(super) fn rewrite(path: &Path, content: &str) -> io::Result<()> {
    if holds(path, content.as_bytes())? {
        return Ok(());
    }
    write_all(
        &mut open(path, OpenOptions::new().write(true))?,
        content.as_bytes(),
    )
}

/// Replaces the content of a file. It is never empty in between: a concurrent reader finds the old or
/// the new beginning.
fn write_all(file: &mut File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.set_len(content.len() as u64)
}

/// Writes a file without replacing its inode, unless it has that content already.
pub(super) fn write_in_place(path: &Path, content: &str) -> Result<()> {
    if holds(path, content.as_bytes()).unwrap_or(false) {
        return Ok(());
    }
    let fail = |e: io::Error| VolumeError::io("write", path, e);
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(HOSTS_MODE);
    let mut file = open(path, &mut options).map_err(fail)?;
    write_all(&mut file, content.as_bytes())
        .and_then(|()| file.set_permissions(Permissions::from_mode(HOSTS_MODE)))
        .map_err(fail)
}

/// Whether a file has exactly that content. Containers write to some of these files, so a different
/// length is enough for an answer, and no more than `content` is read.
pub(super) fn holds(path: &Path, content: &[u8]) -> io::Result<bool> {
    let file = open(path, OpenOptions::new().read(true))?;
    let (metadata, length) = (file.metadata()?, content.len() as u64);
    if !metadata.is_file() || metadata.len() != length {
        return Ok(false);
    }
    let mut found = Vec::with_capacity(content.len());
    // One byte more shows that it grows.
    file.take(length + 1).read_to_end(&mut found)?;
    Ok(found == content)
}

/// Opens a file that is no symlink, without waiting for the other end of a pipe.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    options
        .custom_flags(i32::try_from(flags.bits()).unwrap_or_default())
        .open(path)
}
