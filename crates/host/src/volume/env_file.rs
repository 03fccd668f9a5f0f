//! Files of variables in volumes that containers write to.
//!
//! A container may have put anything there: what is no regular file of this volume is not opened.

use std::fs::File;
use std::io::Read as _;
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
        let file = File::open(in_proc(&found))?;
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: std::io::Error| FileError::Unreadable(error.to_string()))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(unreadable("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8"))
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
}
