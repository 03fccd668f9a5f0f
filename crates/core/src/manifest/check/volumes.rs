//! Volumes and where containers mount them.

use std::collections::HashSet;

use crate::api::core::{
    Container, HostPathVolumeSource, ImageVolumeSource, PodSpec, Volume, VolumeMount,
};
use crate::api::quantity::Quantity;
use crate::manifest::problems::Problems;
use crate::path::Path;

use super::containers::{PULL_POLICIES, check_image};
use super::{check_label_name, objects, one_of, unique, values};

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
pub(super) fn check_volumes<'a>(
    spec: &'a PodSpec,
    at: &Path,
    problems: &mut Problems<'_>,
) -> HashSet<&'a str> {
    let mut seen = HashSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = at.index(index);
        check_label_name(&volume.name, "a volume", &path.key("name"), problems);
        unique(
            &volume.name,
            "a volume",
            &mut seen,
            &path.key("name"),
            problems,
        );
        check_source(volume, spec, &path, problems);
    }
    seen
}

fn check_source(volume: &Volume, spec: &PodSpec, at: &Path, problems: &mut Problems<'_>) {
    let sources = usize::from(volume.host_path.is_some())
        + usize::from(volume.empty_dir.is_some())
        + usize::from(volume.config_map.is_some())
        + usize::from(volume.secret.is_some())
        + usize::from(volume.downward_api.is_some())
        + usize::from(volume.projected.is_some())
        + usize::from(volume.persistent_volume_claim.is_some())
        + usize::from(volume.image.is_some());
    if sources > 1 {
        problems.invalid(at, "a volume can have only one type");
    }
    if let Some(host_path) = &volume.host_path {
        check_host_path(host_path, &at.key("hostPath"), problems);
    }
    if let Some(downward) = &volume.downward_api {
        let at = at.key("downwardAPI");
        values::check_mode(downward.default_mode, &at.key("defaultMode"), problems);
        let items = downward.items.as_deref().unwrap_or_default();
        values::check_items(items, spec, &mut HashSet::new(), &at, problems);
    }
    if let Some(source) = &volume.config_map {
        let at = at.key("configMap");
        values::check_mode(source.default_mode, &at.key("defaultMode"), problems);
        let items = source.items.as_deref();
        objects::check_reference(Some(&source.name), &at.key("name"), problems);
        values::check_keys(items, &mut HashSet::new(), &at, problems);
    }
    if let Some(source) = &volume.secret {
        let at = at.key("secret");
        values::check_mode(source.default_mode, &at.key("defaultMode"), problems);
        let items = source.items.as_deref();
        objects::check_reference(
            source.secret_name.as_deref(),
            &at.key("secretName"),
            problems,
        );
        values::check_keys(items, &mut HashSet::new(), &at, problems);
    }
    if let Some(source) = &volume.persistent_volume_claim {
        let path = at.key("persistentVolumeClaim").key("claimName");
        objects::check_reference(Some(&source.claim_name), &path, problems);
    }
    if let Some(image) = &volume.image {
        check_image_volume(image, &at.key("image"), problems);
    }
    if let Some(projected) = &volume.projected {
        values::check_projected(projected, spec, &at.key("projected"), problems);
    }
    if let Some(empty_dir) = &volume.empty_dir {
        let path = at.key("emptyDir");
        let medium = empty_dir.medium.as_deref().unwrap_or_default();
        if !medium.starts_with("HugePages") {
            one_of(Some(medium), &["", "Memory"], &path.key("medium"), problems);
        }
        if empty_dir
            .mode
            .is_some_and(|mode| !(0..=0o1777).contains(&mode))
        {
            problems.invalid(
                &path.key("mode"),
                "must be a number between 0 and 01777 (octal)",
            );
        }
        if let Some(limit) = &empty_dir.size_limit {
            let fine = Quantity::try_from(limit).is_ok_and(|limit| !limit.is_negative());
            if !fine {
                problems.invalid(&path.key("sizeLimit"), "this is not a positive quantity");
            }
        }
    }
}

/// Upstream: `validateImageVolumeSource` of `pkg/apis/core/validation/validation.go`.
fn check_image_volume(source: &ImageVolumeSource, at: &Path, problems: &mut Problems<'_>) {
    let reference = source.reference.as_deref();
    let required = "a volume of an image needs the image's name";
    check_image(reference, required, &at.key("reference"), problems);
    one_of(
        source.pull_policy.as_deref(),
        &PULL_POLICIES,
        &at.key("pullPolicy"),
        problems,
    );
}

pub(super) fn check_host_path(
    source: &HostPathVolumeSource,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    let path = at.key("path");
    if source.path.is_empty() {
        problems.required(&path, "a hostPath volume needs a path");
    } else if source.path.split('/').any(|part| part == "..") {
        problems.invalid(&path, "must not contain `..`");
    } else if !source.path.starts_with('/') {
        problems.invalid(&path, "must be absolute");
    }
    if source
        .type_
        .as_deref()
        .is_some_and(|kind| !HOST_PATH_TYPES.contains(&kind))
    {
        problems.invalid(
            &at.key("type"),
            format!(
                "must be empty or one of: {}",
                HOST_PATH_TYPES[1..].join(", ")
            ),
        );
    }
}

/// Checks `volumeMounts` of one container.
pub(super) fn check_mounts(
    container: &Container,
    volumes: &HashSet<&str>,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    let privileged = container
        .security_context
        .as_ref()
        .is_some_and(|context| context.privileged == Some(true));
    let mut paths = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = at.key("volumeMounts").index(index);
        if mount.name.is_empty() {
            problems.required(&path.key("name"), "a mount needs the name of a volume");
        } else if !volumes.contains(mount.name.as_str()) {
            problems.invalid(&path.key("name"), "no volume has this name");
        }
        let target = &path.key("mountPath");
        if mount.mount_path.is_empty() {
            problems.required(target, "a mount needs a path");
        } else if mount.mount_path.contains(':') {
            problems.invalid(target, "must not contain `:`");
        } else if mount.mount_path.split('/').any(|part| part == "..") {
            problems.invalid(target, "must not contain `..`");
        } else if !paths.insert(mount.mount_path.as_str()) {
            problems.duplicate(target, "duplicate mount path");
        }
        check_sub_path(mount, &path, problems);
        let propagation = mount.mount_propagation.as_deref();
        check_recursion(mount, &path.key("recursiveReadOnly"), problems);
        let path = path.key("mountPropagation");
        one_of(
            propagation,
            &["None", "HostToContainer", "Bidirectional"],
            &path,
            problems,
        );
        if propagation == Some("Bidirectional") && !privileged {
            problems.invalid(&path, "Bidirectional requires a privileged container");
        }
    }
}

/// Upstream: `validateMountRecursiveReadOnly` of `pkg/apis/core/validation/validation.go`.
fn check_recursion(mount: &VolumeMount, at: &Path, problems: &mut Problems<'_>) {
    let recursive = mount.recursive_read_only.as_deref();
    one_of(
        recursive,
        &["Disabled", "IfPossible", "Enabled"],
        at,
        problems,
    );
    if !matches!(recursive, Some("IfPossible" | "Enabled")) {
        return;
    }
    if mount.read_only != Some(true) {
        problems.invalid(at, "requires readOnly: true");
    }
    let propagation = mount.mount_propagation.as_deref();
    if propagation.is_some_and(|propagation| propagation != "None") {
        problems.invalid(at, "can't be used together with mountPropagation");
    }
}

/// Upstream: `pkg/apis/core/validation/validation.go` (`ValidateVolumeMounts`,
/// `validateLocalDescendingPath`). An expanded `subPathExpr` is checked again when it is mounted.
fn check_sub_path(mount: &VolumeMount, at: &Path, problems: &mut Problems<'_>) {
    let given = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if given(&mount.sub_path) && given(&mount.sub_path_expr) {
        problems.invalid(
            &at.key("subPathExpr"),
            "subPathExpr and subPath are mutually exclusive",
        );
    }
    for (key, text) in [
        ("subPath", mount.sub_path.as_deref()),
        ("subPathExpr", mount.sub_path_expr.as_deref()),
    ] {
        let text = text.unwrap_or_default();
        if text.starts_with('/') {
            problems.invalid(&at.key(key), "must be a relative path");
        } else if text.split('/').any(|part| part == "..") {
            problems.invalid(&at.key(key), "must not contain `..`");
        }
    }
}
