//! Fuzz targets for requests to the embedded API.

use std::sync::LazyLock;

use mirrorlet_apimachinery::options::{ListOptions, WriteOptions};
use mirrorlet_apimachinery::resources::{RESOURCES, target};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::{apply, patch};
use serde_json::{Value, json};

use super::{choice, parts, text};

/// An object that patches are for.
static POD: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "labels": {"app": "web", "tier": "front"},
            "annotations": {"a": "b"},
            "finalizers": ["x", "y"],
        },
        "spec": {
            "containers": [
                {"name": "app", "image": "app:1", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                 "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "side", "image": "side:1"},
            ],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    })
});

/// A patch of each type, selected by the first byte, and server-side applies one after the other.
pub(crate) fn patches(bytes: &[u8]) {
    let (form, body) = choice(bytes);
    match form % 4 {
        0 => {
            let _ = patch::apply(&POD, patch::JSON, body);
        }
        1 => {
            if let Ok(once) = patch::apply(&POD, patch::MERGE, body) {
                let twice = patch::apply(&once, patch::MERGE, body);
                assert_eq!(twice.ok(), Some(once), "a merge patch twice is as one");
            }
        }
        2 => {
            let _ = patch::apply(&POD, patch::STRATEGIC, body);
        }
        _ => {
            let mut object: Option<Value> = Some(POD.clone());
            for (at, part) in parts(text(body)).take(4).enumerate() {
                let Ok(applied) = serde_json::from_str::<Value>(part) else {
                    continue;
                };
                let manager = if at % 2 == 0 { "one" } else { "other" };
                let (force, now) = (form > 127, "2026-01-01T00:00:00Z");
                let before = object.as_ref();
                if let Ok(after) = apply::apply(before, &applied, manager, force, now) {
                    object = Some(after);
                }
            }
        }
    }
}

/// A body in protobuf.
pub(crate) fn protobuf(bytes: &[u8]) {
    let _ = mirrorlet_apimachinery::protobuf::to_json(bytes);
}

/// A path, parameters, a label selector and a field selector, one per line.
pub(crate) fn selectors(bytes: &[u8]) {
    let mut lines = text(bytes).split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let _ = target(line());
    let query = line();
    let query: Vec<(String, String)> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let _ = ListOptions::parse(&query);
    let _ = WriteOptions::parse(&query);
    let (labels, fields) = (line(), line());
    for resource in RESOURCES {
        if let Ok(selector) = Selector::parse(labels, fields, resource) {
            let is_everything = labels.is_empty() && fields.is_empty();
            assert!(selector.matches(&POD) || !is_everything);
        }
    }
}
