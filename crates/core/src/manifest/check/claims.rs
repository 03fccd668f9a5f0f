//! Create-validation of claims and volumes.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`ValidatePersistentVolumeClaim`,
//! `ValidatePersistentVolume`).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::PersistentVolumeClaim;
use crate::api::keys;
use crate::api::quantity::Quantity;
use crate::manifest::problems::At;
use crate::objects::claims::{
    BLOCK, DEVICE_TYPE, FILESYSTEM, ONE_POD, PersistentVolume, is_volume_name, options_of,
};
use crate::path::{Path, Segment};

use super::{meta, names, objects, volumes};

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

/// The source type of a `PersistentVolume` in an unknown field, if it is one.
pub(in crate::manifest) fn unsupported_source(path: &Path) -> Option<&str> {
    match path.0.as_slice() {
        [Segment::Key(spec), Segment::Key(source)] if spec == "spec" => {
            SOURCES.iter().find(|known| *known == source).copied()
        }
        _ => None,
    }
}

/// Checks a `PersistentVolumeClaim`.
pub(in crate::manifest) fn check_claim(object: &PersistentVolumeClaim, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
    meta::check_own(&object.metadata, &keys::VOLUME_SETTINGS, root);
    let at = root.dotted("metadata.annotations");
    for (key, value) in object.metadata.annotations.iter().flatten() {
        let at = at.key(key);
        if key == keys::VOLUME_NAME && !is_volume_name(value) {
            at.invalid("this is not a valid name of a Docker volume");
            at.help("use letters, digits, `_`, `.` and `-`, with a letter or digit first");
        } else if key == keys::VOLUME_DRIVER && value.is_empty() {
            at.required("the name of a volume driver is required");
        } else if key == keys::VOLUME_OPTIONS && options_of(value).is_none() {
            at.invalid("must be `key=value`, separated by spaces");
        } else if key == keys::VOLUME_MUST_EXIST && value.parse::<bool>().is_err() {
            at.invalid("must be `true` or `false`");
        }
    }
    let at = root.key("spec");
    let Some(spec) = &object.spec else {
        at.required("a claim needs a spec");
        return;
    };
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    check_modes(modes, &at.key("accessModes"));
    let resources = at.key("resources");
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    check_size(requests, &resources.key("requests"));
    check_mode(spec.volume_mode.as_deref(), &at.key("volumeMode"));
    if spec.resources.as_ref().is_some_and(|r| r.limits.is_some()) {
        resources
            .key("limits")
            .warn("this has no effect: the size of a volume is not limited");
    }
    if let Some(name) = spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
        objects::check_reference(Some(name), &at.key("volumeName"));
    }
    check_class(spec.storage_class_name.as_deref(), &at);
    for (field, is_set) in [
        ("dataSource", spec.data_source.is_some()),
        ("dataSourceRef", spec.data_source_ref.is_some()),
    ] {
        if is_set {
            at.key(field)
                .invalid("creating a volume from another one is not supported");
            at.help("remove this field, and copy the data with mirrorlet cp");
        }
    }
    check_attributes(spec.volume_attributes_class_name.is_some(), &at);
    if spec.volume_mode.as_deref() == Some(BLOCK) {
        warn_of_settings(object, root);
    }
}

/// Warns of the annotations that choose a volume of the Engine: no device is one.
fn warn_of_settings(object: &PersistentVolumeClaim, root: &At<'_>) {
    let at = root.dotted("metadata.annotations");
    let annotations = object.metadata.annotations.iter().flatten();
    let keys = annotations.map(|(key, _)| key.as_str());
    for key in keys.filter(|key| keys::VOLUME_SETTINGS.contains(key)) {
        let at = at.key(key);
        at.warn("this has no effect: a volume of the Engine can't be a block device");
    }
}

/// Checks a `PersistentVolume`.
pub(in crate::manifest) fn check_volume(object: &PersistentVolume, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
    let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
    if !namespace.is_empty() {
        let at = root.dotted("metadata.namespace");
        at.invalid("a PersistentVolume has no namespace");
    }
    let (at, spec) = (root.key("spec"), &object.spec);
    check_modes(&spec.access_modes, &at.key("accessModes"));
    check_size(Some(&spec.capacity), &at.key("capacity"));
    check_mode(spec.volume_mode.as_deref(), &at.key("volumeMode"));
    check_class(spec.storage_class_name.as_deref(), &at);
    check_attributes(spec.volume_attributes_class_name.is_some(), &at);
    check_source(object, &at);
    if !spec.mount_options.is_empty() {
        at.key("mountOptions")
            .invalid("volumes of type hostPath and local have no mount options");
    }
    if spec.node_affinity.is_some() {
        at.key("nodeAffinity")
            .warn("this has no effect: the volume is on the machine that reads its manifest");
    }
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    let path = at.key("persistentVolumeReclaimPolicy");
    path.one_of(policy, &["Retain", "Delete", "Recycle"]);
    if policy.is_some_and(|policy| policy != "Retain") {
        path.warn("this has no effect: mirrorlet never removes data by itself");
    }
    if let Some(claim) = &spec.claim_ref {
        let at = at.key("claimRef");
        objects::check_reference(claim.name.as_deref(), &at.key("name"));
        let namespace = claim.namespace.as_deref().unwrap_or_default();
        if !names::is_label(namespace) {
            at.key("namespace")
                .invalid("must be the namespace of the claim");
        }
    }
}

fn check_source(object: &PersistentVolume, at: &At<'_>) {
    match (&object.spec.host_path, &object.spec.local) {
        (Some(_), Some(_)) => at.invalid("a volume can have only one type"),
        (Some(source), None) => {
            let at = at.key("hostPath");
            volumes::check_host_path(source, &at);
            let kind = source.type_.as_deref().unwrap_or_default();
            if object.is_block() && !["", DEVICE_TYPE].contains(&kind) {
                let at = at.key("type");
                at.invalid("must be BlockDevice or empty, as volumeMode is Block");
            }
        }
        (None, Some(source)) => {
            let at = at.key("local");
            let path = at.key("path");
            if !source.path.starts_with('/') {
                path.invalid("must be absolute");
            } else if source.path.split('/').any(|part| part == "..") {
                path.invalid("must not contain `..`");
            }
            if source.fs_type.is_some() {
                at.key("fsType").invalid("block devices are not mounted");
                at.help("mount the device and name its directory in `path`, or set volumeMode: Block for pods that use the device itself");
            }
        }
        // Its type is not supported, and was reported.
        (None, None) if at.problems.has_error() => {}
        (None, None) => at.required("a PersistentVolume needs hostPath or local"),
    }
}

fn check_modes(modes: &[String], at: &At<'_>) {
    if modes.is_empty() {
        at.required("at least one access mode is required");
        at.help("use ReadWriteOnce unless you need another one");
    }
    for (index, mode) in modes.iter().enumerate() {
        at.index(index).one_of(Some(mode), &ACCESS_MODES);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == ONE_POD) {
        at.invalid("ReadWriteOncePod can't be combined with other access modes");
    }
}

fn check_size(sizes: Option<&BTreeMap<String, ApiQuantity>>, at: &At<'_>) {
    let path = at.key("storage");
    match sizes.and_then(|sizes| sizes.get("storage")) {
        None => path.required("a size is required"),
        Some(size) => {
            let fine =
                Quantity::try_from(size).is_ok_and(|size| !size.is_zero() && !size.is_negative());
            if !fine {
                path.invalid("must be a positive quantity");
            }
        }
    }
}

fn check_mode(mode: Option<&str>, at: &At<'_>) {
    at.one_of(mode, &[FILESYSTEM, BLOCK]);
}

fn check_class(class: Option<&str>, at: &At<'_>) {
    if class.is_some_and(|class| !class.is_empty() && !names::is_subdomain(class)) {
        at.key("storageClassName")
            .invalid("must be a DNS-1123 subdomain");
    }
}

fn check_attributes(is_set: bool, at: &At<'_>) {
    if is_set {
        let at = at.key("volumeAttributesClassName");
        at.warn("this has no effect: volumes have no attributes");
    }
}
