//! tmpfs mounts, with a size limit, and never swapped out where the kernel supports that.

use std::ffi::CString;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use super::{Result, VolumeError, mountinfo};

/// The size limits of a tmpfs, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The memory limit of all containers of the pod, if any.
    pub(super) pod: Option<u64>,
    /// Memory of the node.
    pub(super) node: u64,
}

impl Limits {
    /// The minimum of these and of the volume's own limit.
    pub(super) fn least(self, own: Option<u64>) -> u64 {
        [own, self.pod]
            .into_iter()
            .flatten()
            .fold(self.node, u64::min)
            .max(1)
    }
}

/// Mounts a tmpfs of that size and mode on an existing directory, unless something is mounted there.
pub(super) fn ensure(volume: &str, dir: &Path, size: u64, mode: u32) -> Result<()> {
    if !mountinfo::is_mount_point(dir)? {
        mount_tmpfs(volume, dir, size, mode)?;
    }
    // Containers may request propagation even if the node's root is private.
    mount_change(dir, MountPropagationFlags::SHARED)
        .map_err(|e| VolumeError::io("share the mount on", dir, e))
}

fn mount_tmpfs(volume: &str, dir: &Path, size: u64, mode: u32) -> Result<()> {
    let try_mount = |options: String| {
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        mount("tmpfs", dir, "tmpfs", MountFlags::empty(), Some(&*options))
    };
    let plain = format!("size={size},mode={mode:04o}");
    let mounted = match try_mount(format!("{plain},noswap")) {
        Err(Errno::INVAL) => try_mount(plain),
        other => other,
    };
    mounted.map_err(|e| match e {
        Errno::PERM | Errno::ACCESS => VolumeError::MountNotPermitted {
            volume: volume.to_owned(),
            cause: e.to_string(),
        },
        e => VolumeError::io("mount a tmpfs on", dir, e),
    })
}
