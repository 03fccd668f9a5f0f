//! The strategic merge patch that turns one pod status into another.

use serde_json::{Map, Value, json};

use super::reported::same_but_dropped;
use crate::api::core::PodStatus;
use crate::small::SmallCollect;

/// The patch from `old` to `new`, with the object's UID as precondition; none if they are equal except
/// for the order of conditions.
pub(super) fn patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let (old, new) = (object(old), object(new));
    let mut status = Map::new();
    for (key, value) in &new {
        let before = old.get(key);
        if before == Some(value) {
            continue;
        }
        let change = match key.as_str() {
            "conditions" => by_type(before, value),
            "containerStatuses" | "initContainerStatuses" | "ephemeralContainerStatuses" => {
                let same = before.is_some_and(|before| same_but_dropped(before, value));
                (!same).then(|| value.clone())
            }
            // These lists are merged by address by default.
            "podIPs" | "hostIPs" => Some(replaced(value)),
            _ => Some(value.clone()),
        };
        if let Some(change) = change {
            status.insert(key.clone(), change);
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        status.insert(key.clone(), Value::Null);
    }
    // An API server that doesn't know a pod's resources drops them: they alone are no reason for a write.
    let is_reason = |key: &String| key != "resources" || old.contains_key(key);
    let is_written = status.keys().any(is_reason);
    is_written.then(|| json!({"metadata": {"uid": uid}, "status": status}))
}

/// A status as an object, without empty values: the API server writes an empty `lastState`, and we
/// don't.
fn object(status: &PodStatus) -> Map<String, Value> {
    match serde_json::to_value(status).map(bare) {
        Ok(Value::Object(map)) => map,
        // A status is an object, and all of it can be written.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// The same without nulls and empty objects. Empty resources are kept: they mean that the container has
/// none.
fn bare(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let fields = map.into_iter().map(|(key, value)| (key, bare(value)));
            let says = |(key, value): &(String, Value)| {
                let is_empty = value.as_object().is_some_and(Map::is_empty);
                !value.is_null() && (!is_empty || key == "resources")
            };
            Value::Object(fields.filter(says).collect_object())
        }
        Value::Array(items) => items.into_iter().map(bare).collect(),
        other => other,
    }
}

fn replaced(list: &Value) -> Value {
    let items = list.as_array().into_iter().flatten().cloned();
    let directive = json!({"$patch": "replace"});
    std::iter::once(directive).chain(items).collect()
}

fn items(list: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_object)
}

/// The difference of two lists whose items are identified by their `type`.
fn by_type(old: Option<&Value>, new: &Value) -> Option<Value> {
    let find = |list, kind: Option<&Value>| items(list).find(move |item| item.get("type") == kind);
    let changed = items(Some(new)).filter_map(|item| {
        let kind = item.get("type");
        let Some(before) = find(old, kind) else {
            return Some(Value::Object(item.clone()));
        };
        let mut change: Map<String, Value> = item
            .iter()
            .filter(|(key, value)| before.get(*key) != Some(value))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect_object();
        for key in before.keys().filter(|key| !item.contains_key(*key)) {
            change.insert(key.clone(), Value::Null);
        }
        if change.is_empty() {
            return None;
        }
        change.insert("type".to_owned(), kind?.clone());
        Some(Value::Object(change))
    });
    let gone = items(old)
        .filter(|item| find(Some(new), item.get("type")).is_none())
        .filter_map(|item| Some(json!({"type": item.get("type")?, "$patch": "delete"})));
    let list: Vec<Value> = changed.chain(gone).collect();
    (!list.is_empty()).then_some(Value::Array(list))
}
