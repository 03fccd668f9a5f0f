//! Volumes with generated content: configMap, secret, downwardAPI, projected.
//!
//! Values that may be secret are kept in memory only: without a tmpfs on its directory, nothing is
//! written.
//!
//! Upstream: `SetUpAt` of `pkg/volume/{configmap,secret,downwardapi,projected}`.

use std::path::{Path, PathBuf};

use mirrorlet_core::api::Pod;
use mirrorlet_core::payload::{Kind, Medium, Payload, PayloadError, fs_group, nested_mount_points};
use mirrorlet_core::volumes::PodPaths;

use super::tmpfs::{self, Limits};
use super::{Result, VolumeError, atomic, make_dir, mountinfo};

/// Mode of a volume on disk and in memory; files in it are made by us only.
const DISK_MODE: u32 = 0o777;
const MEMORY_MODE: u32 = 0o1777;

/// The result of preparing a volume.
pub(super) struct PreparedVolume {
    /// Its directory.
    pub(super) path: PathBuf,
    /// The reason why it keeps its old content.
    pub(super) kept: Option<PayloadError>,
    /// Whether its files were rewritten.
    pub(super) changed: bool,
}

/// Creates a volume, or updates it. An existing volume stays as it is while its files can't be
/// computed.
pub(super) fn ensure(
    pod: &Pod,
    volume: &str,
    kind: Kind,
    payload: &Result<Payload, PayloadError>,
    paths: &PodPaths,
    limits: Limits,
) -> Result<PreparedVolume> {
    let path = paths.volume(kind.plugin(), volume);
    let payload = match payload {
        Ok(payload) => payload,
        Err(error) if is_made(&path, kind)? => {
            return Ok(PreparedVolume {
                path,
                kept: Some(error.clone()),
                changed: false,
            });
        }
        Err(error) => return Err(VolumeError::Payload(error.clone())),
    };
    let group = group_of(pod, &path)?;
    let is_new = !is_made(&path, kind)?;
    make_dir(&path)?;
    let mode = match kind.medium() {
        Medium::Disk => DISK_MODE,
        Medium::Memory => {
            tmpfs::ensure(volume, &path, limits.least(None), MEMORY_MODE)?;
            MEMORY_MODE
        }
    };
    if is_new {
        atomic::own_root(&path, mode, group)?;
    }
    let changed = atomic::write(&path, payload, group)?;
    for inside in nested_mount_points(pod, volume) {
        make_mount_point(&path, &inside)?;
    }
    Ok(PreparedVolume {
        path,
        kept: None,
        changed,
    })
}

/// Whether a volume exists and has its files.
pub(super) fn is_made(path: &Path, kind: Kind) -> Result<bool> {
    if !atomic::is_written(path) {
        return Ok(false);
    }
    match kind.medium() {
        Medium::Disk => Ok(true),
        Medium::Memory => mountinfo::is_mount_point(path),
    }
}

fn group_of(pod: &Pod, path: &Path) -> Result<Option<u32>> {
    let Some(group) = fs_group(pod) else {
        return Ok(None);
    };
    let group = u32::try_from(group)
        .map_err(|_| VolumeError::io("set the group of", path, rustix::io::Errno::INVAL))?;
    Ok(Some(group))
}

/// Makes a directory to mount something on, unless the volume holds something there.
fn make_mount_point(volume: &Path, inside: &str) -> Result<()> {
    let path = volume.join(inside);
    if std::fs::symlink_metadata(&path).is_ok() {
        return Ok(());
    }
    std::fs::create_dir_all(&path).map_err(|e| VolumeError::io("create directory", &path, e))?;
    super::set_mode(&path, 0o755)
}

#[cfg(test)]
mod tests;
