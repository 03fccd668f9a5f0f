//! Merges an applied object into the stored one: maps field by field, lists by the keys of their elements.
//!
//! Unlike a strategic patch it has no directives, and a list may have several keys.
//!
//! Upstream: `structured-merge-diff/typed/merge.go`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::fields::{key_part, words};
use crate::patch::{self, apply_keys, key_value};
use crate::status::Status;

/// Merges the applied fields into an object.
///
/// # Errors
/// The value is nested too deeply, or an element of a list has no key or the key of another element.
pub(super) fn merge(object: &mut Value, applied: &Value) -> Result<(), Status> {
    patch::check_depth(applied)?;
    merge_value("", object, applied)
}

/// Sets the field of that name.
fn merge_value(name: &str, known: &mut Value, applied: &Value) -> Result<(), Status> {
    match (known, applied) {
        (Value::Object(known), Value::Object(fields)) => merge_map(known, fields),
        (known, Value::Object(fields)) => {
            let mut made = Map::new();
            merge_map(&mut made, fields)?;
            *known = made.into();
            Ok(())
        }
        (Value::Array(known), Value::Array(items)) => merge_list(name, known, items),
        (known, Value::Array(items)) => {
            let mut made = Vec::new();
            merge_list(name, &mut made, items)?;
            *known = made.into();
            Ok(())
        }
        (known, applied) => {
            *known = applied.clone();
            Ok(())
        }
    }
}

fn merge_map(known: &mut Map<String, Value>, fields: &Map<String, Value>) -> Result<(), Status> {
    for (key, value) in fields {
        if value.is_null() {
            known.remove(key);
            continue;
        }
        let field = known.entry(key.as_str()).or_insert(Value::Null);
        merge_value(key, field, value)?;
    }
    Ok(())
}

/// Sets the list of that name. Looks through neither list for each element of the other.
fn merge_list(name: &str, known: &mut Vec<Value>, items: &[Value]) -> Result<(), Status> {
    if patch::is_set(name) {
        let mut all: HashSet<Value> = known.iter().cloned().collect();
        let new = items.iter().filter(|item| all.insert((*item).clone()));
        known.extend(new.cloned());
        return Ok(());
    }
    let Some(keys) = apply_keys(name, items.first().or(known.first())) else {
        *known = items.to_vec();
        return Ok(());
    };
    let mut places = HashMap::new();
    for (place, element) in known.iter().enumerate() {
        places.entry(key_part(&keys, element)).or_insert(place);
    }
    let mut seen = HashSet::new();
    for item in items {
        if let Some(key) = keys.iter().find(|key| key_value(item, key).is_null()) {
            let message = format!(
                "{name}: associative list with keys has an element that omits key field {key:?}"
            );
            return Err(Status::bad_request(message));
        }
        let part = key_part(&keys, item);
        if !seen.insert(part.clone()) {
            let element = words(&[part]);
            let message = format!("{name}: duplicate entries for key {element}");
            return Err(Status::bad_request(message));
        }
        let place = places.get(&part).copied();
        if let Some(element) = place.and_then(|place| known.get_mut(place)) {
            merge_value("", element, item)?;
        } else {
            let mut made = Value::Null;
            merge_value("", &mut made, item)?;
            known.push(made);
        }
    }
    Ok(())
}
