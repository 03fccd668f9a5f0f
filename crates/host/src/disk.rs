//! Small files: read with a size limit and replaced as a whole, on threads that may block.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _,
};
use std::path::{Path, PathBuf};

/// The suffix of a file that is being written, before it is renamed.
pub const TEMP_SUFFIX: &str = ".new";

/// Extends results of calls on a path that may not exist.
pub trait IfThere<T> {
    /// Returns `None` if nothing exists at the path.
    ///
    /// # Errors
    /// Any other error of the call.
    fn if_there(self) -> io::Result<Option<T>>;
}

impl<T> IfThere<T> for io::Result<T> {
    fn if_there(self) -> io::Result<Option<T>> {
        match self {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }
}

/// Runs work that blocks for a moment on a thread where it may. A panic continues in the calling task.
///
/// # Cancel safety
/// Work that was started runs to its end even if the future is dropped.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let ended = match tokio::task::spawn_blocking(work).await {
        Ok(done) => return done,
        Err(ended) => ended,
    };
    match ended.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        // The async runtime shuts down, and this task with it.
        Err(_) => std::future::pending().await,
    }
}

/// Refuses anything but a regular file, with the name of its kind. A FIFO would block its reader
/// forever.
///
/// # Errors
/// It is not a regular file.
pub fn check_regular(metadata: &Metadata) -> Result<(), String> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(format!("it is {what}, not a regular file"))
}

/// Reads a file of at most `mib_max` MiB. Blocks on the disk.
///
/// # Errors
/// The system's error, or the file is larger.
pub fn read_small(path: &Path, mib_max: u64) -> io::Result<Vec<u8>> {
    let max = mib_max << 20;
    let mut bytes = Vec::new();
    // One byte more shows that it is too long.
    File::open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let words = format!("it is larger than {mib_max} MiB");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
    }
    Ok(bytes)
}

/// Whether users other than root and the agent's can read a file, by its own mode and those of all
/// directories above it. Follows links. Blocks on the disk.
pub fn others_can_read(path: &Path) -> bool {
    /// Bits of a mode: its group or all may read.
    const GROUP_READ: u32 = 0o040;
    const ALL_READ: u32 = 0o004;
    /// The group or all may enter a directory.
    const ENTER: u32 = 0o011;
    let (Ok(path), gid) = (fs::canonicalize(path), rustix::process::getegid()) else {
        return false;
    };
    let Ok(found) = fs::metadata(&path) else {
        return false;
    };
    let by_group =
        found.mode() & GROUP_READ != 0 && found.gid() != 0 && found.gid() != gid.as_raw();
    if !by_group && found.mode() & ALL_READ == 0 {
        return false;
    }
    let mut directories = path.ancestors().skip(1);
    directories.all(|dir| fs::metadata(dir).is_ok_and(|found| found.mode() & ENTER != 0))
}

/// Replaces a file with one that only the agent's user can read: it is written beside the old one,
/// synced and renamed, so that a reader finds the old one or the new one, also after a crash. Creates
/// the directory, with mode 0700, if it is missing; [`sync_directory`] makes the renaming durable.
/// Blocks on the disk.
///
/// # Errors
/// The system's error. The old file is unchanged, and no temporary file is left.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    let mut next_door = path.as_os_str().to_owned();
    next_door.push(TEMP_SUFFIX);
    let next_door = PathBuf::from(next_door);
    // Also removes a file that a crash has left there, with its mode.
    remove(&next_door)?;
    let written = write_synced(&next_door, bytes).and_then(|()| fs::rename(&next_door, path));
    if written.is_err() {
        // The disk may be full: releases the space of the attempt. A failure to do so is ignored.
        let _ = fs::remove_file(&next_door);
    }
    written
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes a file; a missing one is success. Blocks on the disk.
///
/// # Errors
/// As the system says.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path).if_there().map(drop)
}

/// Makes renames and removals in a directory durable; a missing one is success. Blocks on the disk.
///
/// # Errors
/// As the system says.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    let opened = File::open(directory).if_there()?;
    opened.map_or(Ok(()), |directory| directory.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_ours_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file");
        replace(&path, b"one").unwrap();
        // Where a crash has left something, or somebody a trap, it is not written through.
        let elsewhere = dir.path().join("elsewhere");
        fs::write(&elsewhere, "mine").unwrap();
        symlink(&elsewhere, dir.path().join("a/b/file.new")).unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read(&elsewhere).unwrap(), b"mine");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(&dir.path().join("a")), 0o700);
        // A file that can't be renamed is removed.
        fs::create_dir(dir.path().join("a/taken")).unwrap();
        replace(&dir.path().join("a/taken"), b"three").unwrap_err();
        assert!(!dir.path().join("a/taken.new").exists());
        sync_directory(&dir.path().join("a")).unwrap();
        sync_directory(&dir.path().join("none")).unwrap();
    }

    #[test]
    fn what_is_too_large_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![b'a'; 1 << 20]).unwrap();
        assert_eq!(read_small(&path, 1).unwrap().len(), 1 << 20);
        fs::write(&path, vec![b'a'; (1 << 20) + 1]).unwrap();
        let error = read_small(&path, 1).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 1 MiB");
        read_small(Path::new("/dev/zero"), 1).unwrap_err();
        remove(&path).unwrap();
        remove(&path).unwrap();
        let error = read_small(&path, 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    #[should_panic(expected = "as it was")]
    async fn a_panic_goes_on_where_it_was_asked_for() {
        blocking(|| panic!("as it was")).await;
    }
}
