//! Downward API fields and resources of a pod, as strings for variables and files.
//!
//! Upstream: `pkg/fieldpath/fieldpath.go`, `pkg/api/v1/resource/helpers.go`,
//! `podFieldSelectorRuntimeValue` of `pkg/kubelet/kubelet_pods.go`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::amounts::Amounts;
use crate::api::core::{Container, ResourceFieldSelector};
use crate::api::quantity::Quantity;
use crate::api::{Pod, keys};
use crate::{resources, spec};

/// Why a field or resource has no value. Names fields, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DownwardError {
    /// The field has no value for a container.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// The resource is not supported.
    #[error("unsupported container resource: {0}")]
    UnsupportedResource(String),
    /// The pod has no such container.
    #[error("container {0} not found")]
    NoSuchContainer(String),
    /// A quantity can't be read.
    #[error("{0} or its divisor is not a quantity")]
    InvalidQuantity(String),
}

/// Value of a field of the pod's metadata that is valid for both variables and files; none for any
/// other field. A missing label or annotation is the empty string.
fn metadata_value(pod: &Pod, path: &str) -> Option<String> {
    let metadata = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Some(lookup(metadata.labels.as_ref(), key));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Some(lookup(metadata.annotations.as_ref(), key));
    }
    Some(match path {
        "metadata.name" => text(&metadata.name),
        "metadata.namespace" => text(&metadata.namespace),
        "metadata.uid" => text(&metadata.uid),
        _ => return None,
    })
}

/// Value of a field that a file holds.
pub fn file_value(pod: &Pod, path: &str) -> Result<String, DownwardError> {
    let formatted = |map: &Option<BTreeMap<String, String>>| format_map(map.as_ref());
    match path {
        "metadata.labels" => Ok(formatted(&pod.metadata.labels)),
        // Notes about a newer revision are not shown to containers.
        "metadata.annotations" => {
            let mut annotations = pod.metadata.annotations.clone();
            if let Some(annotations) = &mut annotations {
                let is_ours = |key: &str| {
                    keys::HELD.contains(&key) || [keys::STOPPED, keys::RESTART].contains(&key)
                };
                annotations.retain(|key, _| !is_ours(key));
            }
            Ok(formatted(&annotations))
        }
        _ => metadata_value(pod, path)
            .ok_or_else(|| DownwardError::UnsupportedField(path.to_owned())),
    }
}

/// Value of a field for a variable. The primary address comes first.
pub fn variable_value(
    pod: &Pod,
    path: &str,
    host_ips: &[IpAddr],
    pod_ips: &[IpAddr],
) -> Result<String, DownwardError> {
    if let Some(value) = metadata_value(pod, path) {
        return Ok(value);
    }
    let spec = spec::spec(pod);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" => text(&spec.node_name),
        "spec.serviceAccountName" => text(&spec.service_account_name),
        "status.hostIP" => first(host_ips),
        "status.hostIPs" => joined(host_ips),
        "status.podIP" => first(pod_ips),
        "status.podIPs" => joined(pod_ips),
        _ => return Err(DownwardError::UnsupportedField(path.to_owned())),
    })
}

/// Value of a resource field, divided and rounded up. `own` is the container for a selector without a
/// name.
pub fn resource_value(
    pod: &Pod,
    selector: &ResourceFieldSelector,
    own: Option<&Container>,
    allocatable: Amounts,
) -> Result<String, DownwardError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    let named = || spec::find_container(pod, name).map(|(_, container)| container);
    let container = own
        .filter(|_| name.is_empty())
        .or_else(named)
        .ok_or_else(|| DownwardError::NoSuchContainer(name.to_owned()))?;
    let unsupported = || DownwardError::UnsupportedResource(selector.resource.clone());
    let (side, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(
        resource,
        resources::CPU | resources::MEMORY | "ephemeral-storage"
    ) || resource.starts_with("hugepages-");
    let value = match side {
        _ if !known => return Err(unsupported()),
        "limits" => {
            let limit = resources::limit_within(pod, container, resource);
            limit.unwrap_or_else(|| fallback(resource, allocatable))
        }
        "requests" => resources::request(container, resource).unwrap_or_default(),
        _ => return Err(unsupported()),
    };
    let divisor = match selector.divisor.as_ref().map(Quantity::try_from) {
        None => Quantity::of(1),
        Some(Ok(divisor)) if divisor.is_zero() => Quantity::of(1),
        Some(Ok(divisor)) => divisor,
        Some(Err(_)) => return Err(DownwardError::InvalidQuantity(selector.resource.clone())),
    };
    Ok(value.div_ceil(divisor).to_string())
}

/// The value of an absent limit: everything the node has, but no huge pages.
fn fallback(resource: &str, allocatable: Amounts) -> Quantity {
    let whole = |units: u64| Quantity::of(i64::try_from(units).unwrap_or(i64::MAX));
    match resource {
        resources::CPU => Quantity::of_milli(allocatable.cpu_milli),
        resources::MEMORY => whole(allocatable.memory_bytes),
        "ephemeral-storage" => whole(allocatable.ephemeral_storage_bytes),
        _ => Quantity::default(),
    }
}

/// Lines `key="value"` in the keys' order, values quoted as Go does, without a last line feed.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", go_quoted(value)))
        .collect();
    lines.join("\n")
}

/// A text in quotes, as Go's `strconv.Quote` writes it.
fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if is_printable(c) => quoted.push(c),
            c => {
                let code = u32::from(c);
                let _ = match code {
                    0..0x80 => write!(quoted, "\\x{code:02x}"),
                    0x80..0x1_0000 => write!(quoted, "\\u{code:04x}"),
                    _ => write!(quoted, "\\U{code:08x}"),
                };
            }
        }
    }
    quoted.push('"');
    quoted
}

/// Whether Go would print the character as it is. The text's first character is set apart
/// because a combining one is escaped only there.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return c == ' ' || c.is_ascii_graphic();
    }
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().eq(text.chars())
}

fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?
        .strip_prefix("['")?
        .strip_suffix("']")
}

fn lookup(map: Option<&BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key))
        .cloned()
        .unwrap_or_default()
}

fn first(ips: &[IpAddr]) -> String {
    ips.first().map(ToString::to_string).unwrap_or_default()
}

fn joined(ips: &[IpAddr]) -> String {
    let texts: Vec<String> = ips.iter().map(ToString::to_string).collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        for (text, expected) in [
            ("", r#""""#),
            ("a b", r#""a b""#),
            ("say \"hi\"\\", r#""say \"hi\"\\""#),
            ("1\n2\t3\r\u{7}\u{8}\u{b}\u{c}", r#""1\n2\t3\r\a\b\v\f""#),
            ("\u{1}\u{7f}", r#""\x01\x7f""#),
            ("é世🦀", r#""é世🦀""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{a0}\u{200b}\u{feff}", r#""\u00a0\u200b\ufeff""#),
            ("\u{e0001}", r#""\U000e0001""#),
            ("it's", r#""it's""#),
        ] {
            assert_eq!(go_quoted(text), expected, "{text:?}");
        }
    }

    #[test]
    fn fields_in_files() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "prod", "uid": "u-1",
                "labels": {"b": "2", "a": "1"},
            },
            "spec": {"nodeName": "box", "containers": []},
        }))
        .unwrap();
        for (path, expected) in [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("prod")),
            ("metadata.uid", Some("u-1")),
            ("metadata.labels", Some("a=\"1\"\nb=\"2\"")),
            ("metadata.annotations", Some("")),
            ("metadata.labels['b']", Some("2")),
            ("metadata.annotations['x']", Some("")),
            ("spec.nodeName", None),
            ("status.podIP", None),
        ] {
            assert_eq!(file_value(&pod, path).ok().as_deref(), expected, "{path}");
        }
    }
}
