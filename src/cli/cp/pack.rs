//! Packs a local file or directory for a container.

use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tar::{Builder, EntryType, Header, HeaderMode};
use tokio::sync::mpsc;

/// Bytes sent at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Packs a file or a directory with its contents, under another name; without one, only the directory's
/// contents. Returns the skipped files, with the reasons.
///
/// # Errors
/// A file could not be read, or changed meanwhile; the archive is aborted then, too. Broken pipe: the
/// reader is gone.
pub(super) fn pack(
    source: &Path,
    name: Option<&Path>,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<Vec<String>> {
    let pieces = Pieces {
        sender: sender.clone(),
    };
    let mut packing = Packing {
        tar: Builder::new(BufWriter::with_capacity(PIECE_BYTES, pieces)),
        skipped: Vec::new(),
    };
    let packed = packing
        .all(source, name)
        .and_then(|()| packing.tar.into_inner()?.flush());
    match packed {
        Ok(()) => Ok(packing.skipped),
        Err(error) => {
            // An archive without its end must not look complete. The receiver may be gone.
            let _ = sender.blocking_send(Err(io::ErrorKind::Interrupted.into()));
            Err(error)
        }
    }
}

struct Packing<W: Write> {
    tar: Builder<W>,
    skipped: Vec<String>,
}

impl<W: Write> Packing<W> {
    fn all(&mut self, source: &Path, name: Option<&Path>) -> io::Result<()> {
        // Files still to be packed, each with its name in the archive.
        let mut left: Vec<(PathBuf, PathBuf)> = Vec::new();
        match name {
            Some(name) => left.push((source.to_owned(), name.to_owned())),
            None => left.extend(children(source, Path::new(""))?),
        }
        while let Some((path, name)) = left.pop() {
            let found = fs::symlink_metadata(&path).map_err(|e| within(&path, &e))?;
            self.one(&path, &name, &found)
                .map_err(|e| within(&path, &e))?;
            if found.is_dir() {
                left.extend(children(&path, &name)?);
            }
        }
        Ok(())
    }

    fn one(&mut self, path: &Path, name: &Path, found: &Metadata) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_metadata_in_mode(found, HeaderMode::Complete);
        // Our users are not the container's.
        header.set_uid(0);
        header.set_gid(0);
        let kind = found.file_type();
        if kind.is_dir() {
            header.set_size(0);
            self.tar.append_data(&mut header, name, io::empty())
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            header.set_size(0);
            self.tar
                .append_link(&mut header, name, fs::read_link(path)?)
        } else if kind.is_file() {
            let size = found.len();
            let mut content = Exactly {
                file: File::open(path)?,
                left: size,
            };
            header.set_size(size);
            self.tar.append_data(&mut header, name, &mut content)
        } else {
            self.skipped.push(format!(
                "skipped {}: it is not a file, directory or link",
                path.display()
            ));
            Ok(())
        }
    }
}

/// The entries of a directory, with their names in the archive.
fn children(dir: &Path, name: &Path) -> io::Result<Vec<(PathBuf, PathBuf)>> {
    let entries = fs::read_dir(dir).map_err(|e| within(dir, &e))?;
    entries
        .map(|entry| {
            let entry = entry.map_err(|e| within(dir, &e))?;
            Ok((entry.path(), name.join(entry.file_name())))
        })
        .collect()
}

/// An error with its place. Broken pipes are not the place's.
fn within(path: &Path, error: &io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return io::ErrorKind::BrokenPipe.into();
    }
    let words = format!("failed to read {}: {error}", path.display());
    io::Error::new(error.kind(), words)
}

/// A file of the size it is said to have, whatever it has become.
struct Exactly {
    file: File,
    left: u64,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = buffer.len().min(wanted);
        let read = self.file.read(&mut buffer[..length])?;
        if read == 0 && length > 0 {
            return Err(io::Error::other("it was truncated while it was being read"));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Sends what is written, in pieces.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
}

impl Write for Pieces {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.sender
            .blocking_send(Ok(Bytes::copy_from_slice(buffer)))
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use super::*;

    fn packed(source: &Path, name: Option<&str>) -> (BTreeMap<String, String>, Vec<String>) {
        let (sender, mut receiver) = mpsc::channel(1000);
        let skipped = pack(source, name.map(Path::new), &sender).unwrap();
        drop(sender);
        let mut bytes = Vec::new();
        while let Ok(piece) = receiver.try_recv() {
            bytes.extend(piece.unwrap());
        }
        let mut entries = BTreeMap::new();
        for entry in tar::Archive::new(&bytes[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().uid().unwrap(), 0);
            let path = entry.path().unwrap().display().to_string();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            let link = entry.link_name().unwrap();
            let shown = link.map_or(content, |link| format!("-> {}", link.display()));
            entries.insert(path, shown);
        }
        (entries, skipped)
    }

    #[test]
    fn a_tree_is_packed_under_its_name_or_without_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir(at("sub")).unwrap();
        fs::write(at("a"), "A").unwrap();
        let long = "l".repeat(200);
        fs::write(at("sub").join(&long), "L").unwrap();
        symlink("../a", at("sub/link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let (named, skipped) = packed(dir.path(), Some("top"));
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        let expected = [
            ("top".to_owned(), ""),
            ("top/a".to_owned(), "A"),
            ("top/sub".to_owned(), ""),
            (format!("top/sub/{long}"), "L"),
            ("top/sub/link".to_owned(), "-> ../a"),
        ];
        let expected: BTreeMap<String, String> = expected
            .into_iter()
            .map(|(path, content)| (path, content.to_owned()))
            .collect();
        assert_eq!(named, expected);
        let (bare, _) = packed(dir.path(), None);
        assert!(
            bare.contains_key("sub/link") && !bare.contains_key(""),
            "{bare:?}"
        );
        let (file, _) = packed(&at("a"), Some("b"));
        assert_eq!(file, BTreeMap::from([("b".to_owned(), "A".to_owned())]));
    }

    #[test]
    fn what_can_not_be_read_breaks_the_archive_off() {
        let (sender, mut receiver) = mpsc::channel(10);
        let missing = Path::new("/no/such/file");
        let error = pack(missing, Some(Path::new("x")), &sender).unwrap_err();
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        let mut last = None;
        while let Ok(piece) = receiver.try_recv() {
            last = Some(piece);
        }
        assert!(matches!(last, Some(Err(_))));
    }
}
