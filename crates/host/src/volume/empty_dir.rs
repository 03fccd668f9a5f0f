//! emptyDir volumes: a directory or a tmpfs that lives as long as its pod.
//!
//! A marker file beside the volume records that it is set up, so that a mode that its containers set
//! survives their restarts. `sizeLimit` bounds a tmpfs; a pod that exceeds it on disk is evicted.
//!
//! Upstream: `pkg/volume/emptydir/empty_dir.go`.

use std::path::{Path, PathBuf};

use rustix::fs::Gid;
use rustix::io::Errno;

use mirrorlet_core::api::core::EmptyDirVolumeSource;
use mirrorlet_core::api::quantity::Quantity;
use mirrorlet_core::volumes::PodPaths;

use super::tmpfs::{self, Limits};
use super::{Result, VolumeError, make_dir, mountinfo, set_mode};

/// Mode of a volume that names none: its users are unknown.
const MODE: u32 = 0o777;
/// The bits that a volume's own mode may have.
const MODE_BITS: u32 = 0o1777;
/// The bits that a volume with an fsGroup has, whatever its mode: owner and group may do everything.
const FS_GROUP_BITS: u32 = 0o770;
/// Bit that gives new files the directory's group.
const SETGID: u32 = 0o2000;

/// Whether a volume is in memory.
pub(super) fn is_in_memory(source: &EmptyDirVolumeSource) -> bool {
    source.medium.as_deref() == Some("Memory")
}

/// Creates an emptyDir volume unless it exists, and returns its path.
pub(super) fn ensure(
    volume: &str,
    source: &EmptyDirVolumeSource,
    paths: &PodPaths,
    limits: Limits,
    fs_group: Option<i64>,
) -> Result<PathBuf> {
    let dir = paths.empty_dir(volume);
    let ready = paths.empty_dir_ready(volume);
    let mode = source.mode.and_then(|mode| u32::try_from(mode).ok());
    let mode = mode.map_or(MODE, |mode| mode & MODE_BITS);
    match source.medium.as_deref().unwrap_or_default() {
        "" => {
            if ready.exists() && dir.is_dir() {
                return Ok(dir);
            }
            make_dir(&dir)?;
        }
        "Memory" => {
            make_dir(&dir)?;
            let mounted = mountinfo::is_mount_point(&dir)?;
            if mounted && ready.exists() {
                return Ok(dir);
            }
            tmpfs::ensure(volume, &dir, size(volume, source, limits)?, mode)?;
        }
        other => {
            return Err(VolumeError::Volume {
                volume: volume.to_owned(),
                problem: format!("emptyDir medium {other:?} is not supported"),
            });
        }
    }
    own(&dir, mode, fs_group)?;
    mark_ready(&ready)?;
    Ok(dir)
}

/// Sets group and mode of a new volume. It is empty, so nothing below it needs them.
pub(super) fn own(dir: &Path, mode: u32, fs_group: Option<i64>) -> Result<()> {
    let Some(group) = fs_group else {
        return set_mode(dir, mode);
    };
    let gid =
        u32::try_from(group).map_err(|_| VolumeError::io("set the group of", dir, Errno::INVAL))?;
    rustix::fs::chown(dir, None, Some(Gid::from_raw(gid)))
        .map_err(|e| VolumeError::io("set the group of", dir, e))?;
    set_mode(dir, mode | FS_GROUP_BITS | SETGID)
}

fn mark_ready(ready: &Path) -> Result<()> {
    if let Some(parent) = ready.parent() {
        make_dir(parent)?;
    }
    std::fs::write(ready, b"").map_err(|e| VolumeError::io("write", ready, e))
}

/// The least of the volume's own limit, the pod's and the node's memory.
fn size(volume: &str, source: &EmptyDirVolumeSource, limits: Limits) -> Result<u64> {
    let own = match source.size_limit.as_ref().map(Quantity::try_from) {
        None => None,
        Some(Ok(limit)) => u64::try_from(limit.ceil()).ok().filter(|bytes| *bytes > 0),
        Some(Err(e)) => {
            return Err(VolumeError::Volume {
                volume: volume.to_owned(),
                problem: format!("sizeLimit: {e}"),
            });
        }
    };
    Ok(limits.least(own))
}
