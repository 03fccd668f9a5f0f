//! Volumes and where containers mount them.

use std::collections::HashSet;

use crate::api::core::{
    Container, HostPathVolumeSource, ImageVolumeSource, PodSpec, Volume, VolumeMount,
};
use crate::api::quantity::Quantity;
use crate::manifest::problems::At;

use super::containers::{PULL_POLICIES, check_image};
use super::{check_label_name, objects, values};

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "DirectoryOrCreate",
    "Directory",
    "FileOrCreate",
    "File",
    "Socket",
    "CharDevice",
    "BlockDevice",
];

/// Checks `spec.volumes` and returns their names.
pub(super) fn check_volumes<'a>(spec: &'a PodSpec, at: &At<'_>) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = at.index(index);
        check_label_name(&volume.name, "a volume", &path.key("name"));
        path.key("name").unique(&volume.name, "a volume", &mut seen);
        check_source(volume, spec, &path);
    }
    seen
}

fn check_source(volume: &Volume, spec: &PodSpec, at: &At<'_>) {
    let sources = usize::from(volume.host_path.is_some())
        + usize::from(volume.empty_dir.is_some())
        + usize::from(volume.config_map.is_some())
        + usize::from(volume.secret.is_some())
        + usize::from(volume.downward_api.is_some())
        + usize::from(volume.projected.is_some())
        + usize::from(volume.persistent_volume_claim.is_some())
        + usize::from(volume.image.is_some());
    if sources > 1 {
        at.invalid("a volume can have only one type");
    }
    if let Some(host_path) = &volume.host_path {
        check_host_path(host_path, &at.key("hostPath"));
    }
    if let Some(downward) = &volume.downward_api {
        let at = at.key("downwardAPI");
        values::check_mode(downward.default_mode, &at.key("defaultMode"));
        let items = downward.items.as_deref().unwrap_or_default();
        values::check_items(items, spec, &mut HashSet::new(), &at);
    }
    if let Some(source) = &volume.config_map {
        let at = at.key("configMap");
        values::check_mode(source.default_mode, &at.key("defaultMode"));
        let items = source.items.as_deref();
        objects::check_reference(Some(&source.name), &at.key("name"));
        values::check_keys(items, &mut HashSet::new(), &at);
    }
    if let Some(source) = &volume.secret {
        let at = at.key("secret");
        values::check_mode(source.default_mode, &at.key("defaultMode"));
        let items = source.items.as_deref();
        objects::check_reference(source.secret_name.as_deref(), &at.key("secretName"));
        values::check_keys(items, &mut HashSet::new(), &at);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let path = at.key("persistentVolumeClaim").key("claimName");
        objects::check_reference(Some(&source.claim_name), &path);
    }
    if let Some(image) = &volume.image {
        check_image_volume(image, &at.key("image"));
    }
    if let Some(projected) = &volume.projected {
        values::check_projected(projected, spec, &at.key("projected"));
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let path = at.key("emptyDir");
        let medium = empty_dir.medium.as_deref().unwrap_or_default();
        if !medium.starts_with("HugePages") {
            path.key("medium").one_of(Some(medium), &["", "Memory"]);
        }
        if empty_dir
            .mode
            .is_some_and(|mode| !(0..=0o1777).contains(&mode))
        {
            path.key("mode")
                .invalid("must be a number between 0 and 01777 (octal)");
        }
        if let Some(limit) = &empty_dir.size_limit {
            let fine = Quantity::try_from(limit).is_ok_and(|limit| !limit.is_negative());
            if !fine {
                path.key("sizeLimit")
                    .invalid("this is not a positive quantity");
            }
        }
    }
}

/// Upstream: `validateImageVolumeSource` of `pkg/apis/core/validation/validation.go`.
fn check_image_volume(source: &ImageVolumeSource, at: &At<'_>) {
    let reference = source.reference.as_deref();
    let required = "an image volume needs the reference of an image";
    check_image(reference, required, &at.key("reference"));
    at.key("pullPolicy")
        .one_of(source.pull_policy.as_deref(), &PULL_POLICIES);
}

pub(super) fn check_host_path(source: &HostPathVolumeSource, at: &At<'_>) {
    let path = at.key("path");
    if source.path.is_empty() {
        path.required("a hostPath volume needs a path");
    } else if source.path.split('/').any(|part| part == "..") {
        path.invalid("must not contain `..`");
    } else if !source.path.starts_with('/') {
        path.invalid("must be absolute");
    }
    if source
        .type_
        .as_deref()
        .is_some_and(|kind| !HOST_PATH_TYPES.contains(&kind))
    {
        at.key("type").invalid(format!(
            "must be empty or one of: {}",
            HOST_PATH_TYPES[1..].join(", ")
        ));
    }
}

/// Checks `volumeMounts` of one container; `images` are the names of image volumes.
pub(super) fn check_mounts(
    container: &Container,
    volumes: &HashSet<&str>,
    images: &HashSet<&str>,
    at: &At<'_>,
) {
    let privileged = container
        .security_context
        .as_ref()
        .is_some_and(|context| context.privileged == Some(true));
    let mut paths = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = at.key("volumeMounts").index(index);
        if mount.name.is_empty() {
            path.key("name")
                .required("a mount needs the name of a volume");
        } else if !volumes.contains(mount.name.as_str()) {
            path.key("name").invalid("no volume has this name");
        }
        let target = &path.key("mountPath");
        if mount.mount_path.is_empty() {
            target.required("a mount needs a path");
        } else if mount.mount_path.contains(':') {
            target.invalid("must not contain `:`");
        } else if mount.mount_path.split('/').any(|part| part == "..") {
            target.invalid("must not contain `..`");
        } else if !paths.insert(mount.mount_path.as_str()) {
            target.duplicate("duplicate mount path");
        }
        check_sub_path(mount, &path);
        if images.contains(mount.name.as_str()) {
            check_image_mount(mount, &path);
        }
        let propagation = mount.mount_propagation.as_deref();
        check_recursion(mount, &path.key("recursiveReadOnly"));
        let path = path.key("mountPropagation");
        path.one_of(propagation, &["None", "HostToContainer", "Bidirectional"]);
        if propagation == Some("Bidirectional") && !privileged {
            path.invalid("Bidirectional requires a privileged container");
        }
    }
}

/// Refuses options that the Engine only supports for bind mounts: it mounts images itself. Without
/// this, the pod would fail when its container is created.
fn check_image_mount(mount: &VolumeMount, at: &At<'_>) {
    let is_given = |text: &Option<String>, none: &str| {
        text.as_deref()
            .is_some_and(|text| !text.is_empty() && text != none)
    };
    if is_given(&mount.sub_path_expr, "") {
        let at = at.key("subPathExpr");
        at.invalid("mounts of image volumes do not support subPathExpr");
        at.help("use subPath");
    }
    for (key, value, none) in [
        ("mountPropagation", &mount.mount_propagation, "None"),
        ("recursiveReadOnly", &mount.recursive_read_only, "Disabled"),
    ] {
        if is_given(value, none) {
            at.key(key)
                .invalid(format!("mounts of image volumes do not support {key}"));
        }
    }
}

/// Checks `volumeDevices` of one container; `claims` are the volumes with claims.
///
/// Upstream: `ValidateVolumeDevices` of `pkg/apis/core/validation/validation.go`, and `makeBlockVolumes`
/// of `pkg/kubelet/kubelet_pods.go`, which refuses a relative path.
pub(super) fn check_devices(
    container: &Container,
    volumes: &HashSet<&str>,
    claims: &HashSet<&str>,
    at: &At<'_>,
) {
    let mounts = || container.volume_mounts.iter().flatten();
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = at.key("volumeDevices").index(index);
        let (at_name, name) = (at.key("name"), device.name.as_str());
        if name.is_empty() {
            at_name.required("a device needs the name of a volume");
        } else if !volumes.contains(name) {
            at_name.invalid("no volume has this name");
        } else if !claims.contains(name) {
            at_name.invalid("only a volume of type persistentVolumeClaim can be a device");
        } else if !names.insert(name) {
            at_name.duplicate("this volume is a device of the container already");
        } else if mounts().any(|mount| mount.name == name) {
            at_name.invalid("a volume can't be in both volumeDevices and volumeMounts");
        }
        let (at_path, path) = (at.key("devicePath"), device.device_path.as_str());
        if path.is_empty() {
            at_path.required("a device needs a path");
        } else if !path.starts_with('/') {
            at_path.invalid("must be absolute");
        } else if path.split('/').any(|part| part == "..") {
            at_path.invalid("must not contain `..`");
        } else if !paths.insert(path) {
            at_path.duplicate("duplicate device path");
        } else if mounts().any(|mount| mount.mount_path == path) {
            at_path.duplicate("the container mounts a volume at this path");
        }
    }
}

/// Upstream: `validateMountRecursiveReadOnly` of `pkg/apis/core/validation/validation.go`.
fn check_recursion(mount: &VolumeMount, at: &At<'_>) {
    let recursive = mount.recursive_read_only.as_deref();
    at.one_of(recursive, &["Disabled", "IfPossible", "Enabled"]);
    if !matches!(recursive, Some("IfPossible" | "Enabled")) {
        return;
    }
    if mount.read_only != Some(true) {
        at.invalid("requires readOnly: true");
    }
    let propagation = mount.mount_propagation.as_deref();
    if propagation.is_some_and(|propagation| propagation != "None") {
        at.invalid("can't be used together with mountPropagation");
    }
}

/// Upstream: `pkg/apis/core/validation/validation.go` (`ValidateVolumeMounts`,
/// `validateLocalDescendingPath`). An expanded `subPathExpr` is checked again when it is mounted.
fn check_sub_path(mount: &VolumeMount, at: &At<'_>) {
    let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if given(&mount.sub_path) && given(&mount.sub_path_expr) {
        at.key("subPathExpr")
            .invalid("subPathExpr and subPath are mutually exclusive");
    }
    for (key, text) in [
        ("subPath", mount.sub_path.as_deref()),
        ("subPathExpr", mount.sub_path_expr.as_deref()),
    ] {
        let text = text.unwrap_or_default();
        if text.starts_with('/') {
            at.key(key).invalid("must be a relative path");
        } else if text.split('/').any(|part| part == "..") {
            at.key(key).invalid("must not contain `..`");
        }
    }
}
