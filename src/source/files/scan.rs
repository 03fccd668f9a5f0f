//! The content of the manifest directory: names, identities, bytes. Makes no decisions about pods.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use mirrorlet_core::manifest::{MANIFEST_BYTES_MAX, is_manifest_name};
use mirrorlet_core::small::SmallSort;
use mirrorlet_host::disk;

/// Minimum age of a file's last change before its identity stands for its content: a second write
/// within one tick of the file system's clock changes neither times nor, perhaps, the size. Twice the
/// coarsest tick in use (FAT's two seconds are for mtime only; ctime matters here).
const CLOCK_TICK_MAX: Duration = Duration::from_secs(2);

/// The attributes that change with a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether an equal identity later means equal content.
    pub(super) fn is_settled(&self, now: SystemTime) -> bool {
        let Ok(now) = now.duration_since(UNIX_EPOCH) else {
            return false;
        };
        let changed = u64::try_from(self.changed.0).map_or(Duration::MAX, Duration::from_secs);
        changed.saturating_add(CLOCK_TICK_MAX) < now
    }
}

/// An entry that is named like a manifest.
#[derive(Debug)]
pub(super) struct Entry {
    /// Its path, in the directory's own spelling.
    pub(super) path: PathBuf,
    /// The file's identity, or why it is not a readable file.
    pub(super) file: Result<Identity, String>,
}

/// The directory's content, by name.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) manifests: Vec<Entry>,
    pub(super) ignored: Vec<String>,
}

/// The directory was unmounted: the empty one below its mount is visible.
#[derive(Debug, thiserror::Error)]
#[error("another file system is there, and has no manifests")]
pub(super) struct Elsewhere;

/// Lists a directory. Opens no file.
pub(super) fn list(dir: &Path) -> io::Result<Listing> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name());
    }
    names.small_sort();
    let mut listing = Listing::default();
    for name in names {
        let path = dir.join(&name);
        if !name.to_str().is_some_and(is_manifest_name) {
            listing.ignored.push(name.to_string_lossy().into_owned());
        } else if let Ok(file) = look_at(&path) {
            listing.manifests.push(Entry { path, file });
        }
    }
    Ok(listing)
}

/// Lists the files that the embedded API stores: `NAMESPACE/RESOURCE/NAME.yaml`. A directory that is
/// removed meanwhile has no files.
///
/// # Errors
/// A directory exists but can't be read, so its files are unknown.
pub(super) fn list_stored(dir: &Path) -> io::Result<Listing> {
    let mut listing = Listing::default();
    for namespace in directories(dir)? {
        for resource in unless_gone(&namespace, directories(&namespace))? {
            let found = unless_gone(&resource, list(&resource))?;
            listing.manifests.extend(found.manifests);
            let ignored = found.ignored.into_iter().map(|name| resource.join(name));
            let below = |path: PathBuf| {
                let path = path.strip_prefix(dir).map(Path::to_owned).unwrap_or(path);
                path.to_string_lossy().into_owned()
            };
            listing.ignored.extend(ignored.map(below));
        }
    }
    Ok(listing)
}

/// Returns the entries of a directory, or nothing if it is gone or a user put a file in its place. Any
/// other error names the directory.
fn unless_gone<T: Default>(directory: &Path, found: io::Result<T>) -> io::Result<T> {
    found.or_else(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(T::default()),
        kind => Err(io::Error::new(
            kind,
            format!("{}: {error}", directory.display()),
        )),
    })
}

/// The directories in a directory, by name, except for those whose names begin with a dot.
fn directories(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        if !is_hidden && entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    found.small_sort();
    Ok(found)
}

/// The entry was removed since it was listed.
struct Gone;

fn look_at(path: &Path) -> Result<Result<Identity, String>, Gone> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(disk::check_regular(&metadata).map(|()| Identity::of(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match fs::symlink_metadata(path) {
            Ok(_) => Ok(Err("the symbolic link is broken".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Gone),
            Err(error) => Ok(Err(error.to_string())),
        },
        Err(error) => Ok(Err(error.to_string())),
    }
}

/// Why a file gave no bytes.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It is no longer there.
    Gone,
    /// It exists but can't be read.
    Unreadable(String),
}

/// Reads a file: at most one byte more than the maximum size of a manifest, and only from a regular
/// file, even if it became a FIFO since it was listed.
pub(super) fn read(path: &Path) -> Result<(Vec<u8>, Identity), ReadError> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|error| from_io(&error))?;
    let metadata = file.metadata().map_err(|error| from_io(&error))?;
    disk::check_regular(&metadata).map_err(ReadError::Unreadable)?;
    let bytes = read_bounded(&file, metadata.len()).map_err(|error| from_io(&error))?;
    Ok((bytes, Identity::of(&metadata)))
}

fn read_bounded(file: &File, size: u64) -> io::Result<Vec<u8>> {
    let bound = MANIFEST_BYTES_MAX + 1;
    let expected = usize::try_from(size).unwrap_or(bound).min(bound);
    let mut bytes = Vec::with_capacity(expected);
    file.take(bound as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn from_io(error: &io::Error) -> ReadError {
    if error.kind() == io::ErrorKind::NotFound {
        ReadError::Gone
    } else {
        ReadError::Unreadable(error.to_string())
    }
}

/// Whether a directory is a mount point: its file system differs from its parent's.
pub(super) fn is_mount(dir: &Path) -> bool {
    let device = |dir: &Path| fs::metadata(dir).ok().map(|found| found.dev());
    device(dir) != device(&dir.join(".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_manifests() {
        for (name, expected) in [
            ("web.yaml", true),
            ("web.yml", true),
            ("web.json", true),
            ("a.b.yaml", true),
            ("web.YAML", false),
            ("web.yaml~", false),
            ("web.yaml.swp", false),
            (".web.yaml", false),
            (".web.yaml.swp", false),
            (".yaml", false),
            ("4913", false),
            ("yaml", false),
            ("web.yaml.bak", false),
            ("#web.yaml#", false),
            ("..data", false),
        ] {
            // pods 6
            assert_eq!(is_manifest_name(name), expected, "{name}");
        }
    }

    #[test]
    fn nothing_but_regular_files_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("good.yaml"), "x").unwrap();
        fs::create_dir(at("directory.yaml")).unwrap();
        fs::create_dir(at("sub")).unwrap();
        std::os::unix::fs::symlink("loop.yaml", at("loop.yaml")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("dangling.yaml")).unwrap();
        std::os::unix::fs::symlink("good.yaml", at("link.yaml")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket.yaml")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo.yaml"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();

        let listing = list(dir.path()).unwrap();
        let told: Vec<_> = listing
            .manifests
            .iter()
            .map(|entry| {
                let name = entry.path.file_name().unwrap().to_str().unwrap();
                format!(
                    "{name}: {}",
                    entry.file.as_ref().err().map_or("fine", |why| why)
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                "dangling.yaml: the symbolic link is broken",
                "directory.yaml: it is a directory, not a regular file",
                "fifo.yaml: it is a FIFO, not a regular file",
                "good.yaml: fine",
                "link.yaml: fine",
                "loop.yaml: Too many levels of symbolic links (os error 40)",
                "socket.yaml: it is a socket, not a regular file",
            ]
        );
        // pods 6
        assert_eq!(listing.ignored, ["sub"]);
        // Even when asked for directly, a FIFO without a writer doesn't hang the reader.
        assert!(matches!(
            read(&at("fifo.yaml")),
            Err(ReadError::Unreadable(_))
        ));
        assert!(matches!(read(&at("absent.yaml")), Err(ReadError::Gone)));
        assert_eq!(read(&at("link.yaml")).unwrap().0, b"x");
    }

    /// A directory whose path is just short enough to be read; that of a longer name below it is not.
    fn deep(root: &Path) -> PathBuf {
        const PATH_MAX: usize = 4096;
        let mut dir = root.to_owned();
        while dir.as_os_str().len() < PATH_MAX - 250 {
            dir.push("d".repeat(200));
        }
        let left = PATH_MAX - dir.as_os_str().len();
        dir.push("e".repeat(left - 20));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Makes a directory whose path may be too long.
    fn make_below(parent: &Path, name: &str) {
        let parent = File::open(parent).unwrap();
        rustix::fs::mkdirat(parent, name, rustix::fs::Mode::RWXU).unwrap();
    }

    #[test]
    fn a_stored_directory_that_cannot_be_read_is_not_empty() {
        let root = tempfile::tempdir().unwrap();
        let dir = deep(root.path());
        fs::create_dir_all(dir.join("a/pods")).unwrap();
        fs::write(dir.join("a/pods/b.yaml"), "x").unwrap();
        // A file in place of a directory, and an empty namespace, hold no files.
        fs::write(dir.join("a/file"), "x").unwrap();
        fs::create_dir(dir.join("b")).unwrap();
        assert_eq!(list_stored(&dir).unwrap().manifests.len(), 1);

        // The directory of a resource.
        make_below(&dir.join("a"), "statefulsets-of-a-long-name");
        let error = list_stored(&dir).unwrap_err();
        // pods 1
        assert_eq!(error.kind(), io::ErrorKind::InvalidFilename, "{error}");
        assert!(error.to_string().contains("statefulsets"), "{error}");
        fs::rename(dir.join("a"), root.path().join("a")).unwrap();
        assert!(list_stored(&dir).unwrap().manifests.is_empty());

        // The directory of a namespace.
        make_below(&dir, "a-namespace-of-a-long-name");
        let error = list_stored(&dir).unwrap_err();
        assert!(error.to_string().contains("a-namespace"), "{error}");
    }

    #[test]
    fn a_directory_that_is_gone_is_empty() {
        let found = |kind: io::ErrorKind| {
            let found = unless_gone::<Vec<PathBuf>>(Path::new("/d"), Err(kind.into()));
            found.map_err(|error| error.kind())
        };
        assert_eq!(found(io::ErrorKind::NotFound), Ok(Vec::new()));
        assert_eq!(found(io::ErrorKind::NotADirectory), Ok(Vec::new()));
        let denied = io::ErrorKind::PermissionDenied;
        assert_eq!(found(denied), Err(denied));
    }

    #[test]
    fn an_identity_settles_with_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "x").unwrap();
        let (_, identity) = read(&path).unwrap();
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(!identity.is_settled(changed));
        assert!(identity.is_settled(changed + Duration::from_secs(10)));
    }
}
