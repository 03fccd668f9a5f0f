//! Unpacks an archive from a container.
//!
//! Files from a container are not trusted: an entry may have `..` in its path, or be below a link that
//! an earlier entry created. Every component of every path is checked before anything is written, and
//! only real directories are entered.

use std::ffi::OsStr;
use std::fs::{self, File, FileType, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use tar::{Archive, Entry, EntryType};

use super::is_plain;

/// Unpacks everything to `target`, which replaces `name`, the archive's top-level entry. Keeps the mode
/// bits in `modes`. Returns the skipped files, with the reasons.
///
/// # Errors
/// The archive is invalid or incomplete, an entry is outside of `target`, or the disk refuses one.
pub fn unpack(
    archive: impl Read,
    name: Option<&OsStr>,
    target: &Path,
    modes: u32,
) -> anyhow::Result<Vec<String>> {
    let mut unpacking = Unpacking {
        name,
        target,
        modes,
        skipped: Vec::new(),
        dirs: Vec::new(),
    };
    for entry in Archive::new(archive).entries()? {
        let entry = entry.context("the archive is incomplete")?;
        unpacking.put(entry)?;
    }
    unpacking.finish()
}

struct Unpacking<'a> {
    name: Option<&'a OsStr>,
    target: &'a Path,
    modes: u32,
    skipped: Vec<String>,
    /// Directories with their modes and times, which are set last: what is put into them needs
    /// the right to write, and changes their time.
    dirs: Vec<(PathBuf, u32, SystemTime)>,
}

impl Unpacking<'_> {
    fn put(&mut self, mut entry: Entry<'_, impl Read>) -> anyhow::Result<()> {
        let path = entry.path()?.into_owned();
        let to = self.place(&path)?;
        let mode = entry.header().mode()? & self.modes;
        let since = Duration::from_secs(entry.header().mtime()?);
        let changed = SystemTime::UNIX_EPOCH
            .checked_add(since)
            .with_context(|| format!("{} has a time out of range", path.display()))?;
        let failed = || format!("failed to write {}", to.display());
        match entry.header().entry_type() {
            EntryType::Directory => {
                if !fs::symlink_metadata(&to).is_ok_and(|found| found.is_dir()) {
                    fs::create_dir(&to).with_context(failed)?;
                }
                self.dirs.push((to, mode, changed));
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                make_way(&to).with_context(failed)?;
                let mut file = File::options()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&to)
                    .with_context(failed)?;
                io::copy(&mut entry, &mut file).with_context(failed)?;
                file.set_permissions(Permissions::from_mode(mode))
                    .and_then(|()| file.set_modified(changed))
                    .with_context(failed)?;
            }
            EntryType::Symlink => {
                let link = entry.link_name()?.context("a link has no target")?;
                make_way(&to).with_context(failed)?;
                symlink(link, &to).with_context(failed)?;
            }
            EntryType::Link => {
                let link = entry.link_name()?.context("a link has no target")?;
                let from = self.place(&link)?;
                make_way(&to).with_context(failed)?;
                fs::hard_link(from, &to).with_context(failed)?;
            }
            other => self.skipped.push(format!(
                "skipped {}: it is not a file, directory or link ({other:?})",
                path.display()
            )),
        }
        Ok(())
    }

    /// The local path of an entry. All its parents are directories.
    fn place(&self, path: &Path) -> anyhow::Result<PathBuf> {
        // The top of an archive of a whole file system is `/` or `./`.
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = path.strip_prefix(".").unwrap_or(path);
        let below = match self.name {
            Some(name) => path.strip_prefix(name).unwrap_or(path),
            None => path,
        };
        if !is_plain(below) {
            bail!(
                "refused {}: its path is outside the destination",
                path.display()
            );
        }
        let mut to = self.target.to_owned();
        let mut parts = below.components().peekable();
        while let Some(part) = parts.next() {
            to.push(part);
            let is_last = parts.peek().is_none();
            if !is_last && !fs::symlink_metadata(&to).is_ok_and(|found| found.is_dir()) {
                bail!(
                    "refused {}: {} is not a directory, and links are not followed",
                    path.display(),
                    to.display()
                );
            }
        }
        Ok(to)
    }

    /// Sets what was put off, the innermost first.
    fn finish(self) -> anyhow::Result<Vec<String>> {
        for (dir, mode, changed) in self.dirs.into_iter().rev() {
            File::open(&dir)
                .and_then(|file| file.set_modified(changed))
                .and_then(|()| fs::set_permissions(&dir, Permissions::from_mode(mode)))
                .with_context(|| format!("failed to set the mode of {}", dir.display()))?;
        }
        Ok(self.skipped)
    }
}

/// Removes a file or link at `path`, so that another one can be there. Everything else stays, and is
/// an error: a directory, and a device, FIFO or socket, which others use by its name.
fn make_way(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Err(io::Error::new(
            io::ErrorKind::IsADirectory,
            "a directory is in its place",
        )),
        Ok(found) => match special(found.file_type()) {
            Some(kind) => {
                let words = format!("a {kind} is in its place");
                Err(io::Error::new(io::ErrorKind::AlreadyExists, words))
            }
            None => fs::remove_file(path),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The kind of a file that is neither a regular file nor a directory or link.
pub fn special(kind: FileType) -> Option<&'static str> {
    if kind.is_char_device() || kind.is_block_device() {
        Some("device")
    } else if kind.is_fifo() {
        Some("FIFO")
    } else if kind.is_socket() {
        Some("socket")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tar::{Builder, Header};

    fn archive(entries: &[(EntryType, &str, &str)]) -> Vec<u8> {
        let mut tar = Builder::new(Vec::new());
        for (kind, path, data) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(if kind.is_dir() { 0o555 } else { 0o640 });
            header.set_mtime(1_000_000_000);
            let is_link = matches!(kind, EntryType::Symlink | EntryType::Link);
            if is_link {
                header.set_link_name_literal(data).unwrap();
            }
            // Set by hand: the library would refuse what is to be refused here.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            let content = if is_link { "" } else { *data };
            header.set_size(content.len() as u64);
            header.set_cksum();
            tar.append(&header, content.as_bytes()).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn unpacked(entries: &[(EntryType, &str, &str)], dir: &Path) -> anyhow::Result<Vec<String>> {
        let bytes = archive(entries);
        unpack(
            &bytes[..],
            Some(OsStr::new("top")),
            &dir.join("here"),
            0o777,
        )
    }

    #[test]
    fn a_tree_is_unpacked_under_its_new_name() {
        let dir = tempfile::tempdir().unwrap();
        let skipped = unpacked(
            &[
                (EntryType::Directory, "top/", ""),
                (EntryType::Regular, "top/a", "first"),
                (EntryType::Regular, "top/a", "second"),
                (EntryType::Directory, "top/sub/", ""),
                (EntryType::Regular, "top/sub/b", "deep"),
                (EntryType::Symlink, "top/sub/link", "/etc/passwd"),
                (EntryType::Link, "top/hard", "top/a"),
                (EntryType::Fifo, "top/pipe", ""),
            ],
            dir.path(),
        )
        .unwrap();
        let at = |path: &str| dir.path().join("here").join(path);
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "second");
        assert_eq!(fs::read_to_string(at("sub/b")).unwrap(), "deep");
        assert_eq!(fs::read_to_string(at("hard")).unwrap(), "second");
        assert_eq!(
            fs::read_link(at("sub/link")).unwrap(),
            Path::new("/etc/passwd")
        );
        let file = fs::metadata(at("a")).unwrap();
        assert_eq!(file.permissions().mode() & 0o7777, 0o640);
        let sub = fs::metadata(at("sub")).unwrap();
        assert_eq!(sub.permissions().mode() & 0o7777, 0o555);
        let age = sub
            .modified()
            .unwrap()
            .duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(age.unwrap().as_secs(), 1_000_000_000);
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert!(skipped[0].contains("top/pipe"), "{skipped:?}");
        // So that it can be removed by whoever isn't root.
        fs::set_permissions(at("sub"), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(at(""), Permissions::from_mode(0o755)).unwrap();
    }

    /// A program of root's that anybody may run as root would be one on this machine, too.
    #[test]
    fn set_user_id_bits_stay_behind_unless_asked_for() {
        for (modes, file, sub) in [(0o777, 0o755, 0o777), (0o7777, 0o6755, 0o1777)] {
            let mut tar = Builder::new(Vec::new());
            for (kind, path, mode) in [
                (EntryType::Directory, "top/", 0o1777),
                (EntryType::Regular, "top/su", 0o6755),
            ] {
                let mut header = Header::new_gnu();
                header.set_entry_type(kind);
                header.set_mode(mode);
                header.set_mtime(1_000_000_000);
                header.set_size(0);
                tar.append_data(&mut header, path, io::empty()).unwrap();
            }
            let (bytes, dir) = (tar.into_inner().unwrap(), tempfile::tempdir().unwrap());
            let target = dir.path().join("here");
            unpack(&bytes[..], Some(OsStr::new("top")), &target, modes).unwrap();
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
            // tenants L1
            assert_eq!((mode(&target.join("su")), mode(&target)), (file, sub));
        }
    }

    #[test]
    fn a_time_out_of_range_is_an_error() {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_mtime(u64::MAX);
        header.set_size(0);
        let mut tar = Builder::new(Vec::new());
        tar.append_data(&mut header, "top", io::empty()).unwrap();
        let (bytes, dir) = (tar.into_inner().unwrap(), tempfile::tempdir().unwrap());
        let error = unpack(&bytes[..], None, dir.path(), 0o777).unwrap_err();
        assert_eq!(error.to_string(), "top has a time out of range");
    }

    #[test]
    fn nothing_leaves_the_destination() {
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        let outside_dir = outside.path().to_str().unwrap();
        let up = "top/../../victim";
        for entries in [
            &[(EntryType::Regular, up, "bad")][..],
            &[(EntryType::Regular, "../victim", "bad")],
            &[
                (EntryType::Directory, "top/", ""),
                (EntryType::Symlink, "top/out", outside_dir),
                (EntryType::Regular, "top/out/victim", "bad"),
            ],
            &[
                (EntryType::Directory, "top/", ""),
                (EntryType::Symlink, "top/out", outside_dir),
                (EntryType::Directory, "top/out/sub/", ""),
            ],
            &[
                (EntryType::Directory, "top/", ""),
                (EntryType::Link, "top/hard", "../victim"),
            ],
        ] {
            let dir = tempfile::tempdir_in(outside.path()).unwrap();
            let refused = unpacked(entries, dir.path()).unwrap_err().to_string();
            assert!(refused.starts_with("refused "), "{refused}");
            // docker 55a
            assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        }
        // A link in a file's place is replaced, not followed.
        let dir = tempfile::tempdir().unwrap();
        let entries = [
            (EntryType::Directory, "top/", ""),
            (EntryType::Symlink, "top/x", victim.to_str().unwrap()),
            (EntryType::Regular, "top/x", "mine"),
        ];
        unpacked(&entries, dir.path()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(
            fs::read_to_string(dir.path().join("here/x")).unwrap(),
            "mine"
        );
        fs::set_permissions(dir.path().join("here"), Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_socket_stays_and_a_link_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().join("here");
        fs::create_dir(&here).unwrap();
        let _listener = UnixListener::bind(here.join("socket")).unwrap();
        let entries = [(EntryType::Regular, "top/socket", "bad")];
        let error = unpacked(&entries, dir.path()).unwrap_err();
        let words = format!("{error:#}");
        assert!(words.ends_with("a socket is in its place"), "{words}");
        let socket = fs::symlink_metadata(here.join("socket")).unwrap();
        assert_eq!(special(socket.file_type()), Some("socket"));
        // As in a directory of logs that is copied out a second time.
        let entries = [(EntryType::Symlink, "top/log", "/dev/null")];
        for _ in 0..2 {
            unpacked(&entries, dir.path()).unwrap();
        }
        assert_eq!(
            fs::read_link(here.join("log")).unwrap(),
            Path::new("/dev/null")
        );
    }

    #[test]
    fn an_archive_that_breaks_off_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let whole = archive(&[(EntryType::Regular, "top", "0123456789")]);
        let target = dir.path().join("here");
        // docker 55a
        assert!(unpack(&whole[..515], None, &target, 0o777).is_err());
    }
}
