//! Volumes with generated content: `configMap`, `secret` and `downwardAPI`, alone and projected.
//! Sources that only exist in an API server were refused before.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`validateDownwardAPIVolumeFile`,
//! `validateProjectionSources`).

use std::collections::HashSet;

use crate::api::core::{
    DownwardAPIVolumeFile, KeyToPath, PodSpec, ProjectedVolumeSource, VolumeProjection,
};
use crate::manifest::problems::At;
use crate::spec::all_containers;

use super::env::{check_field, check_resource};
use super::objects;

/// Fields of the pod a file can hold.
const FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Largest mode of a file.
const MODE_MAX: i32 = 0o777;

/// Checks a `projected` volume.
pub(super) fn check_projected(projected: &ProjectedVolumeSource, spec: &PodSpec, at: &At<'_>) {
    check_mode(projected.default_mode, &at.key("defaultMode"));
    let mut paths = HashSet::new();
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let at = at.key("sources").index(index);
        if kinds(source) != 1 {
            at.invalid("must name exactly one source");
        }
        if let Some(downward) = &source.downward_api {
            let items = downward.items.as_deref().unwrap_or_default();
            check_items(items, spec, &mut paths, &at.key("downwardAPI"));
        }
        if let Some(source) = &source.config_map {
            let at = at.key("configMap");
            objects::check_reference(Some(&source.name), &at.key("name"));
            check_keys(source.items.as_deref(), &mut paths, &at);
        }
        if let Some(source) = &source.secret {
            let at = at.key("secret");
            objects::check_reference(Some(&source.name), &at.key("name"));
            check_keys(source.items.as_deref(), &mut paths, &at);
        }
    }
}

fn kinds(source: &VolumeProjection) -> usize {
    usize::from(source.config_map.is_some())
        + usize::from(source.secret.is_some())
        + usize::from(source.downward_api.is_some())
        + usize::from(source.service_account_token.is_some())
        + usize::from(source.cluster_trust_bundle.is_some())
        + usize::from(source.pod_certificate.is_some())
}

/// Checks `items` of a `downwardAPI`. `paths` are those in use already.
pub(super) fn check_items<'a>(
    items: &'a [DownwardAPIVolumeFile],
    spec: &PodSpec,
    paths: &mut HashSet<&'a str>,
    at: &At<'_>,
) {
    let containers: HashSet<&str> = all_containers(spec).map(|c| c.name.as_str()).collect();
    for (index, item) in items.iter().enumerate() {
        let at = at.key("items").index(index);
        check_path(&item.path, paths, &at);
        check_mode(item.mode, &at.key("mode"));
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), None) => {
                check_field(field, &FIELDS, &at.key("fieldRef"));
            }
            (None, Some(resource)) => {
                let at = at.key("resourceFieldRef");
                if resource
                    .container_name
                    .as_deref()
                    .unwrap_or_default()
                    .is_empty()
                {
                    at.key("containerName")
                        .required("the name of a container is needed");
                }
                check_resource(resource, &containers, &at);
            }
            (Some(_), Some(_)) | (None, None) => {
                at.invalid("must have either fieldRef or resourceFieldRef");
            }
        }
    }
}

/// Checks `items` that choose keys of an object.
pub(super) fn check_keys<'a>(
    items: Option<&'a [KeyToPath]>,
    paths: &mut HashSet<&'a str>,
    at: &At<'_>,
) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let at = at.key("items").index(index);
        objects::check_key(&item.key, &at.key("key"));
        check_path(&item.path, paths, &at);
        check_mode(item.mode, &at.key("mode"));
    }
}

pub(super) fn check_path<'a>(text: &'a str, paths: &mut HashSet<&'a str>, at: &At<'_>) {
    let path = at.key("path");
    if text.is_empty() {
        path.required("a file needs a path");
    } else if text.starts_with('/') {
        path.invalid("must be a relative path");
    } else if text.split('/').any(|part| part == "..") {
        path.invalid("must not contain `..`");
    } else if text.starts_with("..") {
        path.invalid("must not start with `..`");
    } else if !paths.insert(text) {
        path.duplicate("duplicate path: another file has it");
    }
}

/// Checks the mode of a file.
pub(super) fn check_mode(mode: Option<i32>, at: &At<'_>) {
    if mode.is_some_and(|mode| !(0..=MODE_MAX).contains(&mode)) {
        at.invalid("must be a mode between 0 and 0777 (octal)");
    }
}
