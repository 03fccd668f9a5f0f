//! Small files, read and written.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::CertificateError;

/// Largest file that is read, in bytes; honest ones have a few thousand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of a certificate's size. Blocks on the disk.
///
/// # Errors
/// It can't be read, or is larger than 1 MiB.
pub fn read_small(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |cause: String| CertificateError::Unreadable {
        path: PathBuf::from(path),
        cause,
    };
    let length = std::fs::metadata(path)
        .map_err(|error| unreadable(error.to_string()))?
        .len();
    if length > FILE_BYTES_MAX {
        return Err(unreadable("it is larger than 1 MiB".to_owned()));
    }
    std::fs::read(path).map_err(|error| unreadable(error.to_string()))
}

/// Writes a file that only we can read, next door, and renames it in; its directory is made, for
/// us alone. Blocks on the disk.
///
/// # Errors
/// As the system says.
pub fn write_secret(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = file.parent() {
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(directory)?;
    }
    let mut next_door = file.as_os_str().to_owned();
    next_door.push(".new");
    let next_door = PathBuf::from(next_door);
    match std::fs::remove_file(&next_door) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = std::fs::OpenOptions::new();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&next_door)?;
    written.write_all(bytes)?;
    written.sync_all()?;
    std::fs::rename(next_door, file)
}
