//! The directory of the Engine that holds images and the layers of containers.

use std::path::{Path, PathBuf};

use bollard::models::SystemInfo;

/// The driver type of an Engine that leaves images to containerd. A fresh install of Engine 29 and later
/// does.
const SNAPSHOTTER: [&str; 2] = ["driver-type", "io.containerd.snapshotter.v1"];

/// Directories of the sockets of a containerd that is a service of its own.
const SERVICE_SOCKETS: [&str; 2] = ["/run/containerd", "/var/run/containerd"];

/// Root directory of that containerd, unless its configuration names another.
const SERVICE_ROOT: &str = "/var/lib/containerd";

/// Root directory of a containerd that the Engine starts itself, below the Engine's own.
const OWN_ROOT: &str = "containerd/daemon";

/// Whether the Engine leaves images to containerd.
pub(super) fn is_of_containerd(info: &SystemInfo) -> bool {
    let mut status = info.driver_status.iter().flatten();
    status.any(|pair| pair == &SNAPSHOTTER)
}

/// The directory whose file system holds images and the layers of containers; none if the Engine
/// doesn't report its own.
///
/// The Engine doesn't report the root directory of a separate containerd service, so the default one is
/// assumed. Versions of the API before 1.46 don't report the containerd.
pub fn image_directory(info: &SystemInfo) -> Option<PathBuf> {
    let root = info.docker_root_dir.as_deref().map(Path::new)?;
    if !is_of_containerd(info) {
        return Some(root.to_owned());
    }
    let containerd = info.containerd.as_ref();
    let address = containerd.and_then(|containerd| containerd.address.as_deref());
    let is_service = address.is_none_or(|address| {
        let address = Path::new(address.trim_start_matches("unix://"));
        SERVICE_SOCKETS.iter().any(|dir| address.starts_with(dir))
    });
    Some(if is_service {
        SERVICE_ROOT.into()
    } else {
        root.join(OWN_ROOT)
    })
}

#[cfg(test)]
mod tests {
    use bollard::models::ContainerdInfo;

    use super::*;

    #[test]
    fn images_are_where_the_engine_or_its_containerd_keeps_them() {
        let overlay = ["Backing Filesystem", "extfs"];
        for (status, address, expected) in [
            (overlay, None, "/data/docker"),
            (
                overlay,
                Some("/run/containerd/containerd.sock"),
                "/data/docker",
            ),
            (SNAPSHOTTER, None, "/var/lib/containerd"),
            (
                SNAPSHOTTER,
                Some("/run/containerd/containerd.sock"),
                "/var/lib/containerd",
            ),
            (
                SNAPSHOTTER,
                Some("/var/run/docker/containerd/containerd.sock"),
                "/data/docker/containerd/daemon",
            ),
        ] {
            let info = SystemInfo {
                docker_root_dir: Some("/data/docker".to_owned()),
                driver_status: Some(vec![status.map(str::to_owned).to_vec()]),
                containerd: address.map(|address| ContainerdInfo {
                    address: Some(address.to_owned()),
                    ..ContainerdInfo::default()
                }),
                ..SystemInfo::default()
            };
            // docker 51
            assert_eq!(image_directory(&info), Some(expected.into()), "{address:?}");
        }
        assert_eq!(image_directory(&SystemInfo::default()), None);
    }
}
