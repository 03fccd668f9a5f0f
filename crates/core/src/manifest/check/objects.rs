//! Validation of the objects that pods refer to, and of references to them.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`ValidateConfigMap`, `ValidateSecret`,
//! `ValidateNamespace`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::ByteString;
use crate::api::core::{ConfigMap, Namespace, Secret};
use crate::manifest::problems::At;

use super::{meta, names};

/// Most bytes of all values of an object: 1 MiB.
const DATA_BYTES_MAX: usize = 1024 * 1024;

/// Keys that a secret of a type must have; of several alternatives, one.
const NEEDED: [(&str, &[&[&str]]); 5] = [
    ("kubernetes.io/dockerconfigjson", &[&[".dockerconfigjson"]]),
    ("kubernetes.io/dockercfg", &[&[".dockercfg"]]),
    ("kubernetes.io/basic-auth", &[&["username", "password"]]),
    ("kubernetes.io/ssh-auth", &[&["ssh-privatekey"]]),
    ("kubernetes.io/tls", &[&["tls.crt"], &["tls.key"]]),
];

/// Checks a `ConfigMap`.
pub(in crate::manifest) fn check_config_map(object: &ConfigMap, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
    let texts = object.data.iter().flatten();
    let binaries = object.binary_data.iter().flatten();
    let mut bytes = 0;
    for (key, text) in texts {
        check_data_key(key, &root.key("data"));
        bytes += text.len();
    }
    for (key, data) in binaries {
        let at = root.key("binaryData");
        check_data_key(key, &at);
        if object
            .data
            .as_ref()
            .is_some_and(|data| data.contains_key(key))
        {
            at.key(key).duplicate("data has this key, too");
        }
        bytes += data.0.len();
    }
    check_size(bytes, &root.key("data"));
}

/// Checks a `Secret`, its `stringData` not merged yet.
pub(in crate::manifest) fn check_secret(object: &Secret, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
    let mut values: BTreeMap<&str, &[u8]> = BTreeMap::new();
    for (key, ByteString(data)) in object.data.iter().flatten() {
        check_data_key(key, &root.key("data"));
        values.insert(key, data);
    }
    for (key, text) in object.string_data.iter().flatten() {
        check_data_key(key, &root.key("stringData"));
        values.insert(key, text.as_bytes());
    }
    check_size(values.values().map(|v| v.len()).sum(), &root.key("data"));
    let kind = object.type_.as_deref().unwrap_or_default();
    let needed = NEEDED.iter().find(|(name, _)| *name == kind);
    for keys in needed.map_or(&[][..], |(_, keys)| keys) {
        if !keys.iter().any(|key| values.contains_key(key)) {
            let keys = keys.join(" or ");
            root.key("data")
                .required(format!("a Secret of type {kind} needs the key {keys}"));
        }
    }
    for key in [".dockerconfigjson", ".dockercfg"] {
        let is_json = |value: &&[u8]| serde_json::from_slice::<Value>(value).is_ok();
        let is_used = needed.is_some_and(|(_, keys)| keys.concat().contains(&key));
        if is_used && values.get(key).is_some_and(|value| !is_json(value)) {
            let list = if object.string_data.iter().flatten().any(|(k, _)| k == key) {
                "stringData"
            } else {
                "data"
            };
            root.key(list).key(key).invalid("this is not JSON");
        }
    }
}

/// Checks a `Namespace`.
pub(in crate::manifest) fn check_namespace(object: &Namespace, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
}

fn check_data_key(key: &str, at: &At<'_>) {
    if !names::is_data_key(key) {
        at.key(key).invalid("this is not a valid key");
        at.help(KEY_RULE);
    }
}

/// The rule for keys of data, for messages.
const KEY_RULE: &str =
    "use at most 253 letters, digits, `-`, `_` and `.`, without `..` at the beginning";

fn check_size(bytes: usize, at: &At<'_>) {
    if bytes > DATA_BYTES_MAX {
        at.invalid(format!(
            "the values of an object may have at most {DATA_BYTES_MAX} bytes in total"
        ));
    }
}

/// Checks the name of an object that a pod refers to.
pub(super) fn check_reference(name: Option<&str>, at: &At<'_>) {
    let name = name.unwrap_or_default();
    if name.is_empty() {
        at.required("the name of an object is needed");
    } else if !names::is_subdomain(name) {
        at.invalid("must be a DNS-1123 subdomain");
        at.help(names::SUBDOMAIN_RULE);
    }
}

/// Checks a key of an object that a pod refers to.
pub(super) fn check_key(key: &str, at: &At<'_>) {
    if key.is_empty() {
        at.required("a key is needed");
    } else if !names::is_data_key(key) {
        at.invalid("this is not a valid key");
        at.help(KEY_RULE);
    }
}
