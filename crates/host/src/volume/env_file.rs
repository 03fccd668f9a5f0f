//! Files of variables in volumes that containers write to.
//!
//! A container may have put anything there: what is no regular file of this volume is not opened.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use mirrorlet_core::env::FileError;

use super::subpath::in_proc;

/// Largest file that is read, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;

/// Reads a file of a volume.
pub(super) fn read(volume: &Path, path: &str) -> Result<String, FileError> {
    let unreadable = |words: &str| FileError::Unreadable(words.to_owned());
    let failed = |errno: Errno| match errno {
        Errno::NOENT => FileError::Missing,
        Errno::XDEV | Errno::LOOP => unreadable("a symlink on its way leads out of the volume"),
        other => FileError::Unreadable(other.to_string()),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let root =
        rustix::fs::open(volume, flags | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
    let found = rustix::fs::openat2(&root, path, flags, Mode::empty(), beneath).map_err(failed)?;
    let stat = rustix::fs::fstat(&found).map_err(failed)?;
    // To open a device may have effects, and to open a pipe may not end.
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(unreadable("it is not a regular file"));
    }
    let read = || {
        let mut bytes = Vec::new();
        let file = open(in_proc(&found))?;
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: io::Error| unread(&error))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(unreadable("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8"))
}

/// Opens a file without waiting for a process that holds a lease on it, as its owner may for 45 seconds.
fn open(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn unread(error: &io::Error) -> FileError {
    let words = match error.kind() {
        ErrorKind::WouldBlock => "it is leased by another process".to_owned(),
        _ => error.to_string(),
    };
    FileError::Unreadable(words)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_regular_file_of_the_volume_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("v");
        std::fs::create_dir_all(volume.join("d")).unwrap();
        std::fs::write(volume.join("d/a.env"), "A='1'").unwrap();
        std::fs::write(dir.path().join("secret"), "S='1'").unwrap();
        symlink("d/a.env", volume.join("inside")).unwrap();
        symlink("../secret", volume.join("outside")).unwrap();
        symlink("/etc/hostname", volume.join("absolute")).unwrap();
        let _socket = UnixListener::bind(volume.join("socket")).unwrap();
        std::fs::write(volume.join("large"), vec![b'a'; 1024 * 1024 + 1]).unwrap();
        std::fs::write(volume.join("binary"), [0xff]).unwrap();
        let text = Ok("A='1'".to_owned());
        assert_eq!(read(&volume, "d/a.env"), text);
        assert_eq!(read(&volume, "inside"), text);
        assert_eq!(read(&volume, "none"), Err(FileError::Missing));
        for path in [
            "outside",
            "absolute",
            "../secret",
            "socket",
            "d",
            "large",
            "binary",
        ] {
            // docker 4a
            assert!(
                matches!(read(&volume, path), Err(FileError::Unreadable(_))),
                "{path}"
            );
        }
    }

    #[test]
    fn a_file_that_is_leased_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.env");
        std::fs::write(&path, "A='1'").unwrap();
        let file = open(&path).unwrap();
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        // docker 4a
        assert!(flags.contains(OFlags::NONBLOCK), "{flags:?}");
        let error = unread(&Errno::WOULDBLOCK.into());
        assert_eq!(
            error,
            FileError::Unreadable("it is leased by another process".to_owned())
        );
    }
}
