//! Create-validation of claims and volumes.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`ValidatePersistentVolumeClaim`,
//! `ValidatePersistentVolume`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::PersistentVolumeClaim;
use crate::api::keys;
use crate::api::quantity::Quantity;
use crate::manifest::problems::Problems;
use crate::objects::claims::{ONE_POD, PersistentVolume, is_volume_name, options_of};
use crate::path::{Path, Segment};

use super::{meta, names, objects, one_of, volumes};

const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", ONE_POD];

/// Sources of a `PersistentVolume` that are not supported.
const SOURCES: [&str; 20] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "csi",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
];

/// The type of a `PersistentVolume` that an unknown field is, if it is one.
pub(in crate::manifest) fn unsupported_source(path: &Path) -> Option<&str> {
    match path.0.as_slice() {
        [Segment::Key(spec), Segment::Key(source)] if spec == "spec" => {
            SOURCES.iter().find(|known| *known == source).copied()
        }
        _ => None,
    }
}

/// Checks a `PersistentVolumeClaim`.
pub(in crate::manifest) fn check_claim(
    object: &PersistentVolumeClaim,
    problems: &mut Problems<'_>,
) {
    meta::check_object_metadata(&object.metadata, problems);
    meta::check_own(&object.metadata, &keys::VOLUME_SETTINGS, problems);
    let at = Path::of("metadata").key("annotations");
    for (key, value) in object.metadata.annotations.iter().flatten() {
        let at = at.key(key);
        if key == keys::VOLUME_NAME && !is_volume_name(value) {
            problems.invalid(&at, "this is not a valid name of a Docker volume");
            problems.help("use letters, digits, `_`, `.` and `-`, with a letter or digit first");
        } else if key == keys::VOLUME_DRIVER && value.is_empty() {
            problems.required(&at, "the name of a volume driver is required");
        } else if key == keys::VOLUME_OPTIONS && options_of(value).is_none() {
            problems.invalid(&at, "must be `key=value`, separated by spaces");
        } else if key == keys::VOLUME_MUST_EXIST && value.parse::<bool>().is_err() {
            problems.invalid(&at, "must be `true` or `false`");
        }
    }
    let at = Path::of("spec");
    let Some(spec) = &object.spec else {
        problems.required(&at, "a claim needs a spec");
        return;
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    check_modes(modes, &at.key("accessModes"), problems);
    let resources = at.key("resources");
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    check_size(requests, &resources.key("requests"), problems);
    check_mode(spec.volume_mode.as_deref(), &at.key("volumeMode"), problems);
    if spec.resources.as_ref().is_some_and(|r| r.limits.is_some()) {
        problems.warn(
            &resources.key("limits"),
            "this has no effect: the size of a volume is not limited",
        );
    }
    if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        objects::check_reference(Some(name), &at.key("volumeName"), problems);
    }
    check_class(spec.storage_class_name.as_deref(), &at, problems);
    for (field, is_set) in [
        ("dataSource", spec.data_source.is_some()),
        ("dataSourceRef", spec.data_source_ref.is_some()),
    ] {
        if is_set {
            problems.invalid(
                &at.key(field),
                "creating a volume from another one is not supported",
            );
            problems.help("remove this field, and copy the data with mirrorlet cp");
        }
    }
    check_attributes(spec.volume_attributes_class_name.is_some(), &at, problems);
}

/// Checks a `PersistentVolume`.
pub(in crate::manifest) fn check_volume(object: &PersistentVolume, problems: &mut Problems<'_>) {
    meta::check_object_metadata(&object.metadata, problems);
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() {
        let at = Path::of("metadata").key("namespace");
        problems.invalid(&at, "a PersistentVolume has no namespace");
    }
    let (at, spec) = (Path::of("spec"), &object.spec);
    check_modes(&spec.access_modes, &at.key("accessModes"), problems);
    check_size(Some(&spec.capacity), &at.key("capacity"), problems);
    check_mode(spec.volume_mode.as_deref(), &at.key("volumeMode"), problems);
    check_class(spec.storage_class_name.as_deref(), &at, problems);
    check_attributes(spec.volume_attributes_class_name.is_some(), &at, problems);
    match (&spec.host_path, &spec.local) {
        (Some(_), Some(_)) => problems.invalid(&at, "a volume can have only one type"),
        (Some(source), None) => volumes::check_host_path(source, &at.key("hostPath"), problems),
        (None, Some(source)) => {
            let at = at.key("local");
            let path = at.key("path");
            if !source.path.starts_with('/') {
                problems.invalid(&path, "must be absolute");
            } else if source.path.split('/').any(|part| part == "..") {
                problems.invalid(&path, "must not contain `..`");
            }
            if source.fs_type.is_some() {
                problems.invalid(
                    &at.key("fsType"),
                    "block devices are not supported; mount the device and name its directory in `path`",
                );
            }
        }
        // Its type is not supported, and was reported.
        (None, None) if problems.has_error() => {}
        (None, None) => problems.required(&at, "a PersistentVolume needs hostPath or local"),
    }
    if !spec.mount_options.is_empty() {
        problems.invalid(
            &at.key("mountOptions"),
            "volumes of type hostPath and local have no mount options",
        );
    }
    if spec.node_affinity.is_some() {
        problems.warn(
            &at.key("nodeAffinity"),
            "this has no effect: the volume is on the machine that reads its manifest",
        );
    }
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    let path = at.key("persistentVolumeReclaimPolicy");
    one_of(policy, &["Retain", "Delete", "Recycle"], &path, problems);
    if policy.is_some_and(|policy| policy != "Retain") {
        problems.warn(
            &path,
            "this has no effect: mirrorlet never removes data by itself",
        );
    }
    if let Some(claim) = &spec.claim_ref {
        let at = at.key("claimRef");
        objects::check_reference(claim.name.as_deref(), &at.key("name"), problems);
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        if !names::is_label(namespace) {
            problems.invalid(&at.key("namespace"), "must be the namespace of the claim");
        }
    }
}

fn check_modes(modes: &[String], at: &Path, problems: &mut Problems<'_>) {
    if modes.is_empty() {
        problems.required(at, "at least one access mode is required");
        problems.help("use ReadWriteOnce unless you need another one");
    }
    for (index, mode) in modes.iter().enumerate() {
        one_of(Some(mode), &ACCESS_MODES, &at.index(index), problems);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == ONE_POD) {
        problems.invalid(
            at,
            "ReadWriteOncePod can't be combined with other access modes",
        );
    }
}

fn check_size(
    sizes: Option<&BTreeMap<String, ApiQuantity>>,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    let path = at.key("storage");
    match sizes.and_then(|sizes| sizes.get("storage")) {
        None => problems.required(&path, "a size is required"),
        Some(size) => {
            let fine =
                Quantity::try_from(size).is_ok_and(|size| !size.is_zero() && !size.is_negative());
            if !fine {
                problems.invalid(&path, "must be a positive quantity");
            }
        }
    }
}

fn check_mode(mode: Option<&str>, at: &Path, problems: &mut Problems<'_>) {
    if mode == Some("Block") {
        problems.invalid(at, "block volumes are not supported");
    } else {
        one_of(mode, &["Filesystem"], at, problems);
    }
}

fn check_class(class: Option<&str>, at: &Path, problems: &mut Problems<'_>) {
    if class.is_some_and(|class| !class.is_empty() && !names::is_subdomain(class)) {
        problems.invalid(&at.key("storageClassName"), "must be a DNS-1123 subdomain");
    }
}

fn check_attributes(is_set: bool, at: &Path, problems: &mut Problems<'_>) {
    if is_set {
        let at = at.key("volumeAttributesClassName");
        problems.warn(&at, "this has no effect: volumes have no attributes");
    }
}
