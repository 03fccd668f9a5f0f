//! The UID of a static pod: a hash of its manifest and its location.
//!
//! A changed UID restarts the pod, so the hashed bytes must never change: they are computed from the
//! author's JSON, never from typed objects, whose fields change with every Kubernetes release.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::{PodUid, hex};
use crate::desired::PodSource;
use crate::rollout::is_rollout_annotation;
use crate::small::SmallSort;

use super::ParseContext;

/// First line of the hashed bytes. Another encoding needs another line here, and restarts every
/// static pod of every user.
const ENCODING: &str = "mirrorlet static pod 1";

/// The prefix of our own annotations.
const OWN_ANNOTATIONS: &str = "mirrorlet.dev/";

/// Bytes of the SHA-256 that are kept: 128 bits, as long as upstream's hash.
const UID_BYTES: usize = 16;

/// UID of a pod whose manifest doesn't set one: 32 lower-case hex digits.
///
/// Upstream: `pkg/kubelet/config/common.go` (`applyDefaults`), whose hash can't be reproduced.
pub(super) fn static_uid(canonical: &Value, ctx: &ParseContext<'_>) -> PodUid {
    let mut text = String::with_capacity(4096);
    text.push_str(ENCODING);
    text.push('\n');
    encode(&without_rollout_annotations(canonical), &mut text);
    text.push('\n');
    let source = match ctx.source {
        PodSource::File => {
            text.push_str("host:");
            quote(ctx.node_name.as_str(), &mut text);
            text.push('\n');
            "file:"
        }
        PodSource::Http => "url:",
        PodSource::Api => "api:",
        PodSource::Embedded => "embedded:",
    };
    text.push_str(source);
    quote(ctx.location, &mut text);
    text.push('\n');
    hashed(&text)
}

/// The hashed part of a pod of the embedded API: labels, annotations and the server's own metadata
/// change without a new version, as in a cluster. Our own annotations are settings, and count.
pub(super) fn without_api_metadata(canonical: &Value) -> Value {
    let mut identity = canonical.clone();
    if let Some(Value::Object(metadata)) = identity.get_mut("metadata") {
        metadata.retain(|key, _| ["name", "namespace", "annotations"].contains(&key.as_str()));
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.retain(|key, _| key.starts_with(OWN_ANNOTATIONS));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    identity
}

/// A UID of something that isn't a manifest alone.
pub(crate) fn uid_of(encoding: &str, value: &Value) -> PodUid {
    let mut text = format!("{encoding}\n");
    encode(value, &mut text);
    hashed(&text)
}

fn hashed(text: &str) -> PodUid {
    let digest = Sha256::digest(text.as_bytes());
    PodUid::from(hex(&digest[..UID_BYTES]))
}

/// The manifest without the annotations about rollouts: changing those restarts nothing.
fn without_rollout_annotations(canonical: &Value) -> Cow<'_, Value> {
    const ANNOTATIONS: &str = "/metadata/annotations";
    let is_one = |key: &String| is_rollout_annotation(key);
    let annotations = canonical.pointer(ANNOTATIONS).and_then(Value::as_object);
    if !annotations.is_some_and(|annotations| annotations.keys().any(is_one)) {
        return Cow::Borrowed(canonical);
    }
    let mut without = canonical.clone();
    let annotations = without
        .pointer_mut(ANNOTATIONS)
        .and_then(Value::as_object_mut);
    let is_empty = annotations.is_some_and(|annotations| {
        annotations.retain(|key, _| !is_one(key));
        annotations.is_empty()
    });
    // As if none had been written.
    if is_empty && let Some(Value::Object(metadata)) = without.pointer_mut("/metadata") {
        metadata.remove("annotations");
    }
    Cow::Owned(without)
}

/// Compact JSON with sorted keys and without the keys whose value is null.
fn encode(value: &Value, text: &mut String) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Number(number) => {
            let _ = write!(text, "{number}");
        }
        Value::String(value) => quote(value, text),
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                encode(item, text);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, v)| !v.is_null()).collect();
            entries.small_sort_by_key(|(key, _)| key.as_str());
            text.push('{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                quote(key, text);
                text.push(':');
                encode(value, text);
            }
            text.push('}');
        }
    }
}

/// A JSON string: `"`, `\` and control characters escaped, everything else as it is.
fn quote(value: &str, text: &mut String) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(text, "\\u{:04x}", u32::from(c));
            }
            c => text.push(c),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::NodeName;

    fn uid(value: &Value, source: PodSource, node: &str, location: &str) -> String {
        let node_name = NodeName::from(node);
        let ctx = ParseContext {
            node_name: &node_name,
            source,
            location,
        };
        static_uid(value, &ctx).to_string()
    }

    #[test]
    fn uids_are_pinned_for_ever() {
        let web = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1", "tty": true,
                "env": [{"name": "A", "value": "\"\\\n\u{e9}"}]}], "priority": -1},
        });
        let file = PodSource::File;
        let pinned = [
            (
                uid(&web, file, "Node-A", "/etc/m/web.yaml"),
                "c6bac58c1d1c939ee90a7c1c42d8c572",
            ),
            (
                uid(&web, PodSource::Http, "Node-A", "http://a/pods"),
                "c507bdfdba5fb634ef7090b7ac05041d",
            ),
            (
                uid(&json!({}), file, "n", "f"),
                "3312794462091a41aa182649c561ae03",
            ),
        ];
        for (uid, expected) in pinned {
            // pods 19
            assert_eq!(uid, expected);
        }
    }

    #[test]
    fn annotations_about_rollouts_are_no_part_of_the_uid() {
        let of = |metadata: Value| uid(&json!({"metadata": metadata}), PodSource::File, "n", "f");
        let rollout = (
            "mirrorlet.dev/max-restarts",
            "mirrorlet.dev/rollout-restore",
        );
        // rollouts 20
        assert_eq!(
            of(json!({"name": "a"})),
            of(json!({"name": "a", "annotations": {rollout.0: "1", rollout.1: "false"}}))
        );
        assert_eq!(
            of(json!({"annotations": {"x": "y"}})),
            of(json!({"annotations": {"x": "y", rollout.0: "2"}}))
        );
        assert_ne!(
            of(json!({"annotations": {"mirrorlet.dev/other": "1"}})),
            of(json!({}))
        );
    }

    #[test]
    fn order_and_nulls_do_not_matter_and_everything_else_does() {
        let file = PodSource::File;
        let base = uid(&json!({"a": 1, "b": [1, 2]}), file, "n", "f");
        assert_eq!(
            base,
            uid(&json!({"b": [1, 2], "c": null, "a": 1}), file, "n", "f")
        );
        for (other, node, location) in [
            (json!({"a": 1, "b": [2, 1]}), "n", "f"),
            (json!({"a": "1", "b": [1, 2]}), "n", "f"),
            (json!({"a": 1, "b": [1, 2]}), "m", "f"),
            (json!({"a": 1, "b": [1, 2]}), "n", "g"),
        ] {
            // pods 19
            assert_ne!(base, uid(&other, file, node, location));
        }
        let http = |node| uid(&json!({}), PodSource::Http, node, "u");
        assert_eq!(http("n"), http("m"));
    }
}
