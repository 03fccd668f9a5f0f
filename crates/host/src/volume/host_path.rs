//! hostPath volumes: the path itself, checked for the requested type.
//!
//! Upstream: `pkg/volume/hostpath/host_path.go`.

use std::fs::{DirBuilder, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use mirrorlet_core::api::core::HostPathVolumeSource;

use super::host_root::{HostFiles, SeenAt};
use super::{Result, VolumeError, set_mode};

/// Mode of directories made on demand.
const DIR_MODE: u32 = 0o755;
/// Mode of files made on demand.
const FILE_MODE: u32 = 0o644;

/// Why a path can't be checked.
const UNSEEN: &str =
    "the agent can't see the host's files; mount / of the host and set --host-root";
/// Why a path is no device.
const NO_DEVICE: &str = "is not a block device";
/// Why a device can't be looked for.
const UNSEEN_DEVICE: &str = "can't be checked to be a block device: the agent can't see the host's files; mount / of the host and set --host-root";
/// Why a file can't be made.
const READ_ONLY: &str = "the agent can read but not create the host's files; create it on the host";

/// A path of the host, ready to be bound.
pub(super) struct HostPath {
    pub(super) path: PathBuf,
    /// Whether the Engine must create a directory there if it is missing.
    pub(super) made_by_engine: bool,
}

/// Checks a host path, creates it if its type says so, and returns it. An agent in a container can't
/// create paths that it sees read-only or not at all.
pub(super) fn ensure(
    volume: &str,
    source: &HostPathVolumeSource,
    host: &HostFiles,
) -> Result<HostPath> {
    let path = PathBuf::from(&source.path);
    let problem = |problem: String| VolumeError::Volume {
        volume: volume.to_owned(),
        problem,
    };
    let refused = |why: &str| problem(format!("hostPath {:?} {why}", source.path));
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(refused("must not contain '..'"));
    }
    if !path.is_absolute() {
        return Err(refused("must be absolute"));
    }
    let kind = source.type_.as_deref().unwrap_or_default();
    let seen = host
        .seen(&path)
        .map_err(|e| VolumeError::io("inspect", &path, e))?;
    let (at, is_own) = match seen {
        SeenAt::Own(at) => (Some(at), true),
        SeenAt::Below(at) => (Some(at), false),
        SeenAt::Nowhere if kind.is_empty() => (None, false),
        SeenAt::Nowhere => {
            return Err(refused(&format!(
                "can't be checked to be a {kind}: {UNSEEN}"
            )));
        }
    };
    let found = at.as_deref().map(type_of).transpose()?.flatten();
    match kind {
        "" | "DirectoryOrCreate" if found.is_none() && !is_own => {
            // The form of a mount that has the Engine make its source can't say such a path.
            if source.path.contains(':') {
                return Err(refused(
                    "can't be created from within a container; create it on the host",
                ));
            }
            return Ok(HostPath {
                path,
                made_by_engine: true,
            });
        }
        "FileOrCreate" if found.is_none() && !is_own => {
            return Err(refused(&format!("is missing, and {READ_ONLY}")));
        }
        // "" checks nothing, but runtimes make a missing directory for their bind mount, and not
        // every Engine does.
        "" | "DirectoryOrCreate" if found.is_none() => make_dir(&path)?,
        "" => {}
        "Directory" | "DirectoryOrCreate" => {
            expect(&path, found, FileType::is_dir, "directory")?;
        }
        "FileOrCreate" if found.is_none() => make_file(&path)?,
        "File" | "FileOrCreate" => expect(&path, found, FileType::is_file, "file")?,
        "Socket" => expect(&path, found, FileType::is_socket, "socket file")?,
        "CharDevice" => expect(&path, found, FileType::is_char_device, "character device")?,
        "BlockDevice" => expect(&path, found, FileType::is_block_device, "block device")?,
        other => return Err(problem(format!("{other} is an invalid volume type"))),
    }
    Ok(HostPath {
        path,
        made_by_engine: false,
    })
}

/// Checks a host path without creating it: a missing path is valid if its type has it created.
pub(super) fn check(volume: &str, source: &HostPathVolumeSource, host: &HostFiles) -> Result<()> {
    let is_made = matches!(
        source.type_.as_deref().unwrap_or_default(),
        "" | "DirectoryOrCreate" | "FileOrCreate"
    );
    let path = Path::new(&source.path);
    let there = match host.seen(path) {
        Ok(SeenAt::Own(at) | SeenAt::Below(at)) => type_of(&at)?.is_some(),
        Ok(SeenAt::Nowhere) | Err(_) => false,
    };
    if is_made && !there {
        return Ok(());
    }
    ensure(volume, source, host).map(|_| ())
}

/// Checks that a block device is at a path of the host. Nothing else is passed to the Engine: for a
/// directory it would give a container each device in it.
pub(super) fn check_device(path: &Path, host: &HostFiles) -> Result<()> {
    let problem = |problem| VolumeError::Device {
        path: path.to_owned(),
        problem,
    };
    let seen = host.seen(path);
    let at = match seen.map_err(|e| VolumeError::io("inspect", path, e))? {
        SeenAt::Own(at) | SeenAt::Below(at) => at,
        SeenAt::Nowhere => return Err(problem(UNSEEN_DEVICE)),
    };
    match type_of(&at)? {
        Some(found) if found.is_block_device() => Ok(()),
        Some(_) => Err(problem(NO_DEVICE)),
        None => Err(problem("doesn't exist")),
    }
}

/// Type of what is at the path, symlinks followed; none when nothing is.
fn type_of(path: &Path) -> Result<Option<FileType>> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata.file_type())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        // A file where a directory was to be: nothing can be at that path.
        Err(e) if e.kind() == io::ErrorKind::NotADirectory => Ok(None),
        Err(e) => Err(VolumeError::io("inspect", path, e)),
    }
}

fn expect(
    path: &Path,
    found: Option<FileType>,
    is: impl Fn(&FileType) -> bool,
    wanted: &'static str,
) -> Result<()> {
    if found.as_ref().is_some_and(is) {
        return Ok(());
    }
    Err(VolumeError::HostPathType {
        path: path.to_owned(),
        wanted,
    })
}

fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
        .map_err(|e| VolumeError::io("create directory", path, e))?;
    set_mode(path, DIR_MODE)
}

fn make_file(path: &Path) -> Result<()> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(path);
    match created {
        Ok(_) => set_mode(path, FILE_MODE),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            expect(path, type_of(path)?, FileType::is_file, "file")
        }
        Err(e) => Err(VolumeError::io("create file", path, e)),
    }
}

#[cfg(test)]
mod tests;
