//! Sets of fields: trees in the format of `managedFields`, and the parts of an object that they select.

use mirrorlet_core::small::SmallCollect;
use serde_json::{Map, Value, json};

use crate::patch;

/// The element itself, among the fields that a manager has of it.
const ITSELF: &str = ".";
/// A field: the elements of its path in the format of `managedFields` (`f:spec`, `k:{"name":"web"}`).
pub(super) type Path = Vec<String>;

/// The fields of an object that its author set, as a tree; fields that never have a manager are left
/// out.
pub(super) fn fields_of_object(object: &Value) -> Value {
    let mut copy = object.clone();
    if let Some(map) = copy.as_object_mut() {
        for key in ["apiVersion", "kind", "status"] {
            map.remove(key);
        }
        if let Some(Value::Object(metadata)) = map.get_mut("metadata") {
            let managed = ["labels", "annotations", "finalizers", "ownerReferences"];
            metadata.retain(|key, _| managed.contains(&key.as_str()));
            if metadata.is_empty() {
                map.remove("metadata");
            }
        }
    }
    fields(&copy)
}

fn fields(value: &Value) -> Value {
    let Value::Object(map) = value else {
        return json!({});
    };
    let mut tree = Map::new();
    for (key, value) in map {
        let below = match value {
            Value::Array(items) => list_fields(key, items),
            value => fields(value),
        };
        tree.insert(format!("f:{key}"), below);
    }
    Value::Object(tree)
}

fn list_fields(list: &str, items: &[Value]) -> Value {
    let mut tree = Map::new();
    if patch::is_set(list) {
        for item in items {
            tree.insert(format!("v:{item}"), json!({}));
        }
    } else if let Some(keys) = patch::apply_keys(list, items.first()) {
        for item in items {
            let mut below = fields(item);
            below[ITSELF] = json!({});
            tree.insert(key_part(&keys, item), below);
        }
    }
    Value::Object(tree)
}

/// The path element of a list's element with those keys.
pub(super) fn key_part(keys: &[&str], item: &Value) -> String {
    let values = keys
        .iter()
        .map(|key| ((*key).to_owned(), patch::key_value(item, key)));
    format!("k:{}", Value::Object(values.collect_object()))
}

/// A tree of an object with all keys of its lists: trees stored by an earlier version distinguish ports
/// by their numbers alone.
pub(super) fn with_all_keys(tree: &Value, object: Option<&Value>) -> Value {
    in_field("", tree, object)
}

fn in_field(name: &str, tree: &Value, value: Option<&Value>) -> Value {
    let Value::Object(map) = tree else {
        return tree.clone();
    };
    let below = map.iter().map(|(part, below)| {
        let found = value.and_then(|value| look_up(value, std::slice::from_ref(part)));
        let keys = found
            .filter(|_| part.starts_with("k:"))
            .and_then(|item| Some((patch::apply_keys(name, Some(item))?, item)));
        let whole = keys.map_or_else(|| part.clone(), |(keys, item)| key_part(&keys, item));
        let field = part.strip_prefix("f:").unwrap_or_default();
        (whole, in_field(field, below, found))
    });
    Value::Object(below.collect_object())
}

/// The paths of a tree's leaves.
pub(super) fn leaves(tree: &Value) -> Vec<Path> {
    let mut found = Vec::new();
    collect(tree, &mut Vec::new(), &mut found);
    found
}

fn collect(tree: &Value, at: &mut Path, found: &mut Vec<Path>) {
    let Some(map) = tree.as_object().filter(|map| !map.is_empty()) else {
        found.push(at.clone());
        return;
    };
    for (key, below) in map {
        if key == ITSELF {
            continue;
        }
        at.push(key.clone());
        collect(below, at, found);
        at.pop();
    }
    // An element of which nothing but its key is set.
    if map.len() == 1 && map.contains_key(ITSELF) {
        found.push(at.clone());
    }
}

/// Whether a tree contains that path, or a path below it.
pub(super) fn has(tree: &Value, path: &[String]) -> bool {
    let mut at = tree;
    path.iter().all(|key| match at.get(key) {
        Some(below) => {
            at = below;
            true
        }
        None => false,
    })
}

/// Removes a path from a tree, with the branches that become empty.
pub(super) fn take_out(tree: &mut Value, path: &[String]) {
    let (Some((first, rest)), Some(map)) = (path.split_first(), tree.as_object_mut()) else {
        return;
    };
    if rest.is_empty() {
        map.remove(first);
    } else if let Some(below) = map.get_mut(first) {
        take_out(below, rest);
        let is_empty = below
            .as_object()
            .is_some_and(|map| map.keys().all(|key| key == ITSELF));
        if is_empty {
            map.remove(first);
        }
    }
}

/// Adds a path to a tree.
pub(super) fn put_in(tree: &mut Value, path: &[String]) {
    let mut at = tree;
    for key in path {
        if !at[key].is_object() {
            at[key] = json!({});
            if key.starts_with("k:") {
                at[key][ITSELF] = json!({});
            }
        }
        at = &mut at[key];
    }
}

/// The index of an element that a path's part means.
fn index_of(items: &[Value], part: &str) -> Option<usize> {
    if let Some(value) = part.strip_prefix("v:") {
        let value: Value = serde_json::from_str(value).ok()?;
        return items.iter().position(|item| *item == value);
    }
    let keys: Value = serde_json::from_str(part.strip_prefix("k:")?).ok()?;
    let keys = keys.as_object()?;
    items.iter().position(|item| {
        keys.iter()
            .all(|(key, value)| patch::key_value(item, key) == *value)
    })
}

pub(super) fn look_up<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    let mut at = object;
    for part in path {
        at = match (part.strip_prefix("f:"), at) {
            (Some(key), Value::Object(map)) => map.get(key)?,
            (None, Value::Array(items)) => items.get(index_of(items, part)?)?,
            _ => return None,
        };
    }
    Some(at)
}

pub(super) fn delete(object: &mut Value, path: &[String]) {
    let Some((last, above)) = path.split_last() else {
        return;
    };
    let mut at = object;
    for part in above {
        let next = match (part.strip_prefix("f:"), at) {
            (Some(key), Value::Object(map)) => map.get_mut(key),
            (None, Value::Array(items)) => {
                let index = index_of(items, part);
                index.and_then(|index| items.get_mut(index))
            }
            _ => None,
        };
        let Some(next) = next else { return };
        at = next;
    }
    match (last.strip_prefix("f:"), at) {
        (Some(key), Value::Object(map)) => drop(map.remove(key)),
        (None, Value::Array(items)) => {
            if let Some(index) = index_of(items, last) {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// A path as users read it: `.spec.containers[name="web"].image`.
pub(super) fn words(path: &[String]) -> String {
    let part = |part: &String| match part.split_once(':') {
        Some(("f", key)) => format!(".{key}"),
        Some(("k", keys)) => {
            let keys: Value = serde_json::from_str(keys).unwrap_or_default();
            let keys = keys.as_object().into_iter().flatten();
            let keys: Vec<_> = keys.map(|(key, value)| format!("{key}={value}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some((_, value)) => format!("[={value}]"),
        None => String::new(),
    };
    path.iter().map(part).collect()
}
