//! Mounts of an app container: volumes, `/etc/hosts`, the termination message.
//!
//! Upstream: `makeMounts` of `pkg/kubelet/kubelet_pods.go`, cri-dockerd `libdocker/helpers.go`.

use std::path::{Path, PathBuf};

use bollard::models::{
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountImageOptions, MountType,
    MountVolumeOptions, VolumeCreateRequest,
};

use mirrorlet_core::api::core::{Container, VolumeMount};
use mirrorlet_core::api::keys;
use mirrorlet_core::objects::claims::{ClaimName, EngineVolume};
use mirrorlet_core::volumes::VolumeMap;

use super::labels::termination_path;
use super::security::is_privileged;
use super::{ConfigError, EngineFacts};

/// The mount path of the managed hosts file.
pub const ETC_HOSTS: &str = "/etc/hosts";
/// First API where a read-only bind mount is recursively so by default.
const API_RECURSIVE_READ_ONLY: (u16, u16) = (1, 44);
/// First API that mounts images: that of Docker Engine 28.
const API_IMAGE_MOUNTS: (u16, u16) = (1, 48);

/// Whether the container mounts something of its own at `/etc/hosts`.
pub fn mounts_etc_hosts(container: &Container) -> bool {
    container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| absolute(&mount.mount_path).trim_end_matches('/') == ETC_HOSTS)
}

/// All mounts of the container: its volume mounts in the spec's order, then ours.
pub(super) fn mounts(
    container: &Container,
    volumes: &VolumeMap,
    etc_hosts: Option<&Path>,
    termination_log: Option<&Path>,
    engine: &EngineFacts,
) -> Result<Vec<Mount>, ConfigError> {
    let mut mounts = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if is_made_by_engine(mount, volumes) {
            continue;
        }
        let read_only = is_read_only(mount, volumes);
        if let Some(name) = engine_volume(mount, volumes) {
            mounts.push(named_mount(mount, name, read_only)?);
            continue;
        }
        if let Some(image) = volumes.images.get(&mount.name) {
            mounts.push(image_mount(mount, image, engine)?);
            continue;
        }
        let source = source(container, index, mount, volumes)?;
        mounts.push(volume_mount(container, mount, &source, read_only, engine)?);
    }
    if let Some(path) = etc_hosts.filter(|_| !mounts_etc_hosts(container)) {
        mounts.push(bind(path, ETC_HOSTS));
    }
    if let Some(path) = termination_log {
        mounts.push(bind(path, &termination_path(container)));
    }
    Ok(mounts)
}

/// Whether the volume or its mount is read-only.
fn is_read_only(mount: &VolumeMount, volumes: &VolumeMap) -> bool {
    volumes.read_only.contains(&mount.name) || mount.read_only == Some(true)
}

/// The mounts whose directory the Engine creates if it is missing, in the form that has this effect in
/// every version of its API: `source:target:options`.
pub(super) fn binds(
    container: &Container,
    volumes: &VolumeMap,
    engine: &EngineFacts,
) -> Result<Vec<String>, ConfigError> {
    let mut binds = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if !is_made_by_engine(mount, volumes) {
            continue;
        }
        let source = source(container, index, mount, volumes)?;
        let read_only = is_read_only(mount, volumes);
        let bound = volume_mount(container, mount, &source, read_only, engine)?;
        let target = bound.target.unwrap_or_default();
        if target.contains(':') {
            return Err(ConfigError::Mount {
                path: target,
                problem: "the Engine doesn't accept a path with a colon here; create the volume's directory on the host",
            });
        }
        let options = bound.bind_options.unwrap_or_default();
        if options.read_only_force_recursive == Some(true) {
            return Err(ConfigError::Mount {
                path: target,
                problem: "recursiveReadOnly: Enabled needs an existing directory; create the volume's directory on the host",
            });
        }
        let mut bind = format!("{}:{target}", source.display());
        bind.push_str(if read_only { ":ro" } else { ":rw" });
        if let Some(propagation) = options.propagation {
            bind.push(',');
            bind.push_str(propagation.as_ref());
        }
        binds.push(bind);
    }
    Ok(binds)
}

fn is_made_by_engine(mount: &VolumeMount, volumes: &VolumeMap) -> bool {
    volumes.made_by_engine.contains(&mount.name) && !has_subpath(mount)
}

/// The Engine's volume that is mounted as a whole, if it is one.
fn engine_volume<'a>(mount: &VolumeMount, volumes: &'a VolumeMap) -> Option<&'a str> {
    let name = volumes.engine_volumes.get(&mount.name)?;
    (!has_subpath(mount)).then_some(name)
}

/// The mount of a volume of the Engine. As in Kubernetes, it is not filled from the image.
fn named_mount(mount: &VolumeMount, name: &str, read_only: bool) -> Result<Mount, ConfigError> {
    if has_options_of_binds(mount) {
        return Err(ConfigError::Mount {
            path: mount.mount_path.clone(),
            problem: "a volume of the Engine has neither mountPropagation nor recursiveReadOnly",
        });
    }
    Ok(Mount {
        target: Some(absolute(&mount.mount_path)),
        source: Some(name.to_owned()),
        typ: Some(MountType::VOLUME),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    })
}

/// The mount of an image. It can't be written to, whatever the pod says.
///
/// Upstream: `makeMounts` of `pkg/kubelet/kubelet_pods.go` (`ImageSubPath`).
fn image_mount(
    mount: &VolumeMount,
    image: &str,
    engine: &EngineFacts,
) -> Result<Mount, ConfigError> {
    let fail = |problem| ConfigError::Mount {
        path: mount.mount_path.clone(),
        problem,
    };
    check_image_volume(&mount.name, engine)?;
    if has_options_of_binds(mount) {
        return Err(fail(
            "image volumes do not support mountPropagation and recursiveReadOnly",
        ));
    }
    if is_given(mount.sub_path_expr.as_deref()) {
        return Err(fail(
            "image volumes do not support subPathExpr; use subPath",
        ));
    }
    let sub_path = mount.sub_path.clone().filter(|path| !path.is_empty());
    Ok(Mount {
        target: Some(absolute(&mount.mount_path)),
        source: Some(image.to_owned()),
        typ: Some(MountType::IMAGE),
        read_only: Some(true),
        image_options: sub_path.map(|subpath| MountImageOptions {
            subpath: Some(subpath),
        }),
        ..Mount::default()
    })
}

/// Fails where the Engine can't mount images.
pub(crate) fn check_image_volume(volume: &str, engine: &EngineFacts) -> Result<(), ConfigError> {
    if engine.api_version >= API_IMAGE_MOUNTS {
        return Ok(());
    }
    Err(ConfigError::NoImageVolumes {
        volume: volume.to_owned(),
        api: engine.api_version,
    })
}

/// The request that makes the volume of a claim.
pub(crate) fn volume_request(
    claim: &ClaimName,
    volume: &EngineVolume,
    owner: &str,
) -> VolumeCreateRequest {
    let labels = [
        (keys::OWNER, owner),
        (keys::CLAIM_NAMESPACE, &claim.namespace),
        (keys::CLAIM_NAME, &claim.name),
    ];
    let options = volume.options.clone();
    VolumeCreateRequest {
        name: Some(volume.name.clone()),
        driver: Some(volume.driver.clone()),
        driver_opts: Some(options.into_iter().collect()),
        labels: Some(
            labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        ),
        ..VolumeCreateRequest::default()
    }
}

fn has_subpath(mount: &VolumeMount) -> bool {
    is_given(mount.sub_path.as_deref()) || is_given(mount.sub_path_expr.as_deref())
}

fn is_given(text: Option<&str>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}

/// Whether a mount has options that the Engine only supports for bind mounts.
fn has_options_of_binds(mount: &VolumeMount) -> bool {
    let none = |text: &Option<String>, is: &str| text.as_deref().is_none_or(|text| text == is);
    !none(&mount.mount_propagation, "None") || !none(&mount.recursive_read_only, "Disabled")
}

fn source(
    container: &Container,
    index: usize,
    mount: &VolumeMount,
    volumes: &VolumeMap,
) -> Result<PathBuf, ConfigError> {
    if has_subpath(mount) {
        let key = (container.name.clone(), index);
        return volumes
            .subpaths
            .get(&key)
            .cloned()
            .ok_or_else(|| ConfigError::NoSubPath {
                volume: mount.name.clone(),
                path: mount.mount_path.clone(),
            });
    }
    volumes
        .volumes
        .get(&mount.name)
        .cloned()
        .ok_or_else(|| ConfigError::NoSuchVolume {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
        })
}

fn volume_mount(
    container: &Container,
    mount: &VolumeMount,
    source: &Path,
    read_only: bool,
    engine: &EngineFacts,
) -> Result<Mount, ConfigError> {
    let fail = |problem| ConfigError::Mount {
        path: mount.mount_path.clone(),
        problem,
    };
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => Some(MountBindOptionsPropagationEnum::RSLAVE),
        Some("Bidirectional") if is_privileged(container) => {
            Some(MountBindOptionsPropagationEnum::RSHARED)
        }
        Some("Bidirectional") => {
            return Err(fail(
                "Bidirectional propagation needs a privileged container",
            ));
        }
        _ => None,
    };
    let is_known = engine.api_version >= API_RECURSIVE_READ_ONLY;
    let recursive = mount.recursive_read_only.as_deref();
    let forced = recursive == Some("Enabled");
    if forced && !is_known {
        return Err(ConfigError::NoRecursiveReadOnly {
            path: mount.mount_path.clone(),
            api: engine.api_version,
        });
    }
    let mut bound = bind(source, &absolute(&mount.mount_path));
    bound.read_only = Some(read_only);
    // Where the kernel can, the Engine makes mounts recursively read-only by itself.
    let if_possible = recursive == Some("IfPossible");
    let non_recursive = read_only && is_known && !forced && !if_possible;
    if propagation.is_some() || non_recursive || forced {
        bound.bind_options = Some(MountBindOptions {
            propagation,
            read_only_non_recursive: non_recursive.then_some(true),
            read_only_force_recursive: forced.then_some(true),
            ..MountBindOptions::default()
        });
    }
    Ok(bound)
}

/// A bind mount. The Engine is not asked to create a missing source: required sources were created
/// before, and an empty directory in place of a removed one would go unnoticed.
fn bind(source: &Path, target: &str) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(source.to_string_lossy().into_owned()),
        typ: Some(MountType::BIND),
        read_only: Some(false),
        ..Mount::default()
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    }
}
