//! Reads files of variables from volumes that containers write to.
//!
//! A container may have put anything there: only regular files of this volume are opened.

use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use mirrorlet_core::api::core::FileKeySelector;
use mirrorlet_core::env::{EnvFiles, FILES_BYTES_MAX, FileError};

use super::subpath::in_proc;

/// Largest file that is read, in bytes.
const BYTES_MAX: u64 = 1024 * 1024;

/// Reads files of volumes, each once and in the order of the variables, until their total size is too
/// large. `volume` returns the directory of a volume by name.
pub(super) fn read_all(wanted: &[FileKeySelector], volume: impl Fn(&str) -> PathBuf) -> EnvFiles {
    let mut files = EnvFiles::new();
    let mut left = FILES_BYTES_MAX;
    for FileKeySelector {
        volume_name, path, ..
    } in wanted
    {
        if let Entry::Vacant(file) = files.entry((volume_name.clone(), path.clone())) {
            let text = read(&volume(volume_name), path, left);
            left = left.saturating_sub(text.as_ref().map_or(0, String::len));
            file.insert(text);
        }
    }
    files
}

/// Reads a file of a volume, of at most that many bytes.
fn read(volume: &Path, path: &str, left: usize) -> Result<String, FileError> {
    let unreadable = |words: &str| FileError::Unreadable(words.to_owned());
    let failed = |errno: Errno| match errno {
        Errno::NOENT => FileError::Missing,
        Errno::XDEV | Errno::LOOP => unreadable("a symlink in its path points outside the volume"),
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
        // One byte more shows that it is too long.
        file.take(BYTES_MAX.min(left as u64) + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: io::Error| unread(&error))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(unreadable("it is larger than 1 MiB"));
    }
    if bytes.len() > left {
        return Err(FileError::TooMuch);
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
        let read = |volume: &Path, path: &str| read(volume, path, FILES_BYTES_MAX);
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
    fn files_of_variables_have_a_bound_together() {
        let dir = tempfile::tempdir().unwrap();
        let volume = |name: &str| dir.path().join(name);
        std::fs::create_dir(volume("v")).unwrap();
        let whole = vec![b'#'; 1024 * 1024];
        for (name, bytes) in [
            ("a", &whole[..]),
            ("b", &whole[1..]),
            ("c", b"C='1'"),
            ("d", b"#"),
            ("e", b""),
        ] {
            std::fs::write(volume("v").join(name), bytes).unwrap();
        }
        let wanted = |path: &str| FileKeySelector {
            volume_name: "v".to_owned(),
            path: path.to_owned(),
            key: "K".to_owned(),
            ..FileKeySelector::default()
        };
        // A file counts once; one that is too large takes no room.
        let wanted = ["a", "a", "none", "b", "c", "d", "e"].map(wanted);
        let read = read_all(&wanted, volume);
        let of = |path: &str| {
            let file = &read[&("v".to_owned(), path.to_owned())];
            file.as_ref().map(String::len).map_err(ToString::to_string)
        };
        // docker 4a, tenants H1
        assert_eq!(
            ["a", "b", "d", "e"].map(of),
            [Ok(whole.len()), Ok(whole.len() - 1), Ok(1), Ok(0)]
        );
        assert_eq!(
            of("c").unwrap_err(),
            "the files of the container's variables exceed 2097152 bytes in total"
        );
        assert_eq!(of("none").unwrap_err(), "the file doesn't exist");
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
