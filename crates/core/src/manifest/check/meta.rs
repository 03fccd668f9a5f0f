//! Metadata: names, labels, annotations.

use std::collections::BTreeMap;

use crate::api::meta::ObjectMeta;
use crate::api::{Code, Severity, keys};
use crate::app_armor;
use crate::cdi;
use crate::decode;
use crate::log_limits::{self, OwnLimits};
use crate::manifest::ParseContext;
use crate::manifest::defaults::static_name;
use crate::manifest::problems::At;
use crate::objects::check_restart_on;
use crate::rollout::{ANNOTATION_PREFIX, ROLLOUT_ANNOTATIONS, Settings};

use crate::spec::annotation;

use super::names;

/// Most bytes of all annotations together.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// Longest UID; it becomes part of paths and container names.
const UID_MAX: usize = 63;

pub(super) fn check_metadata(meta: &ObjectMeta, ctx: &ParseContext<'_>, root: &At<'_>) {
    let at = root.key("metadata");
    check_name(meta, ctx, &at);
    check_namespace_name(meta, &at);
    check_shown(meta, root);
}

/// Checks the metadata that a pod template has as well: all but its names.
pub(super) fn check_shown(meta: &ObjectMeta, root: &At<'_>) {
    let at = root.key("metadata");
    let uid = meta.uid.as_deref().unwrap_or_default();
    let uid_ok = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if uid.len() > UID_MAX || !uid.chars().all(uid_ok) {
        at.key("uid")
            .invalid(format!("must be at most {UID_MAX} letters, digits and `-`"));
        at.help("remove it: the UID is computed");
    }
    check_labels(meta, &at);
    check_annotations(meta, &at.key("annotations"));
    let settings = ROLLOUT_ANNOTATIONS.iter().chain(&log_limits::ALL);
    let settings: Vec<_> = settings.chain(&[keys::RESTART_ON]).copied().collect();
    check_own(meta, &settings, root);
    let (mut rollout, mut logs) = (Settings::default(), OwnLimits::default());
    for (key, value) in meta.annotations.iter().flatten() {
        if let Err(rule) = rollout.set(key, value).and_then(|()| logs.set(key, value)) {
            at.key("annotations").key(key).invalid(rule);
        }
    }
    if let Some(value) = annotation(meta, keys::RESTART_ON) {
        let at = at.key("annotations").key(keys::RESTART_ON);
        if let Err(rule) = check_restart_on(value) {
            at.invalid(rule);
        } else if !uid.is_empty() {
            at.invalid("can't be used together with metadata.uid");
            at.help("remove metadata.uid: the UID is computed from the pod and its objects");
        }
    }
}

/// Warns about annotations with our prefix that have no effect. `settings` are those that an author can
/// set here.
pub(super) fn check_own(meta: &ObjectMeta, settings: &[&'static str], root: &At<'_>) {
    let at = root.dotted("metadata.annotations");
    for key in meta.annotations.iter().flat_map(|all| all.keys()) {
        let is_known = settings.contains(&key.as_str()) || keys::BY_AGENT.contains(&key.as_str());
        let Some(name) = key.strip_prefix(ANNOTATION_PREFIX).filter(|_| !is_known) else {
            continue;
        };
        let message = "unknown annotation; it is ignored".to_owned();
        at.key(key)
            .report_key(Severity::Warning, Code::UnknownField, message);
        let names = settings
            .iter()
            .map(|key| key.strip_prefix(ANNOTATION_PREFIX));
        let names: Vec<&'static str> = names.flatten().collect();
        if let Some(meant) = decode::closest(name, &names) {
            at.help(format!("did you mean {ANNOTATION_PREFIX}{meant}?"));
        }
    }
}

/// Checks the metadata of an object that pods refer to.
pub(super) fn check_object_metadata(meta: &ObjectMeta, root: &At<'_>) {
    let at = root.key("metadata");
    let path = at.key("name");
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        path.required("an object needs a name");
    } else if !names::is_subdomain(name) {
        path.invalid("must be a DNS-1123 subdomain");
        path.help(names::SUBDOMAIN_RULE);
    }
    check_namespace_name(meta, &at);
    check_labels(meta, &at);
}

fn check_namespace_name(meta: &ObjectMeta, at: &At<'_>) {
    if let Some(namespace) = meta.namespace.as_deref().filter(|n| !n.is_empty())
        && !names::is_label(namespace)
    {
        at.key("namespace").invalid("must be a DNS-1123 label");
        at.help(names::LABEL_RULE);
    }
}

fn check_labels(meta: &ObjectMeta, at: &At<'_>) {
    check_label_map(meta.labels.as_ref(), &at.key("labels"));
}

/// Checks labels, or what selects by them.
pub(super) fn check_label_map(labels: Option<&BTreeMap<String, String>>, at: &At<'_>) {
    for (key, value) in labels.into_iter().flatten() {
        let path = at.key(key);
        if !names::is_qualified(key) {
            path.invalid("this is not a valid label key");
            path.help("a key is an optional DNS prefix and `/`, and at most 63 letters, digits, `-`, `_` and `.`");
        }
        if !names::is_label_value(value) {
            path.invalid("this is not a valid label value");
            path.help("use at most 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends");
        }
    }
}

fn check_name(meta: &ObjectMeta, ctx: &ParseContext<'_>, at: &At<'_>) {
    let path = at.key("name");
    let name = meta.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        path.required("a static pod needs a name");
        if meta.generate_name.as_deref().is_some_and(|n| !n.is_empty()) {
            path.help(
                "generateName is resolved by the API server, which never receives the manifest",
            );
        }
        return;
    }
    if !names::is_subdomain(name) {
        path.invalid("must be a DNS-1123 subdomain");
        path.help(names::SUBDOMAIN_RULE);
        return;
    }
    let full = static_name(name, ctx.node_name, ctx.source);
    if !names::is_subdomain(&full) {
        let length = full.len();
        path.invalid("the name can't be used on this node: the node's name is appended to it");
        path.help(format!(
            "with the node's name there are {length} characters; {}",
            names::SUBDOMAIN_RULE
        ));
    }
}

fn check_annotations(meta: &ObjectMeta, at: &At<'_>) {
    let Some(annotations) = &meta.annotations else {
        return;
    };
    for key in annotations.keys() {
        if !names::is_qualified(&key.to_lowercase()) {
            at.key(key).invalid("this is not a valid annotation key");
        }
    }
    if annotations.contains_key(keys::CONFIG_MIRROR) {
        at.key(keys::CONFIG_MIRROR)
            .invalid("this annotation marks a mirror pod, and mirror pods are not run");
        at.help("in a manifest exported from the API server, remove this annotation, the uid and the status");
    }
    for key in keys::OWN.into_iter().chain([
        keys::WORKLOAD,
        keys::TEMPLATE,
        keys::UPDATES,
        keys::CRON_JOB,
    ]) {
        if annotations.contains_key(key) {
            at.key(key).invalid("only the agent sets this annotation");
        }
    }
    for (key, value) in annotations {
        let of = key.starts_with(app_armor::ANNOTATION_PREFIX);
        if of && !value.is_empty() && app_armor::of_annotation(value).is_none() {
            at.key(key)
                .warn("this is not an AppArmor profile: the node rejects the pod");
            at.help("use runtime/default, unconfined or localhost/<profile>, or better the field appArmorProfile");
        }
        if key.starts_with(cdi::ANNOTATION_PREFIX)
            && let Err(rule) = cdi::parse(value)
        {
            at.key(key).invalid(rule);
        }
    }
    let bytes: usize = annotations.iter().map(|(k, v)| k.len() + v.len()).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        at.invalid(format!(
            "the annotations of a pod may have at most {ANNOTATIONS_BYTES_MAX} bytes in total"
        ));
    }
}
