//! Strategic merge patches: objects are merged field by field, lists by the keys of their elements.
//!
//! Lists may have as many elements as a body has room for, so no list is scanned for each element of
//! another.

use std::collections::{BTreeSet, HashMap, HashSet};

use mirrorlet_core::small::SmallSort;
use serde_json::{Map, Value};

use super::{is_set, merge_key, too_deep};
use crate::status::Status;

pub(super) fn merge_map(
    target: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    depth: usize,
) -> Result<(), Status> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    match patch.remove("$patch").as_ref().and_then(Value::as_str) {
        Some("replace") => {
            *target = patch;
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            let message = format!("Unknown patch type found: {other}");
            return Err(Status::bad_request(message));
        }
    }
    if let Some(Value::Array(keys)) = patch.remove("$retainKeys") {
        let kept: HashSet<&Value> = keys.iter().collect();
        target.retain(|key, _| kept.contains(&Value::from(key.as_str())));
    }
    let (directives, fields): (Vec<_>, Vec<_>) =
        patch.into_iter().partition(|(key, _)| key.starts_with('$'));
    for (key, value) in fields {
        merge_field(target, key, value, depth)?;
    }
    for (key, value) in directives {
        let Value::Array(items) = value else { continue };
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let Some(Value::Array(known)) = target.get_mut(list) {
                let gone: HashSet<&Value> = items.iter().collect();
                known.retain(|item| !gone.contains(item));
            }
        } else if let Some(list) = key.strip_prefix("$setElementOrder/")
            && let Some(Value::Array(known)) = target.get_mut(list)
        {
            set_order(list, known, &items);
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    key: String,
    value: Value,
    depth: usize,
) -> Result<(), Status> {
    match (target.get_mut(&key), value) {
        (_, Value::Null) => drop(target.remove(&key)),
        (Some(Value::Object(known)), Value::Object(patch)) => merge_map(known, patch, depth)?,
        (Some(Value::Array(known)), Value::Array(patch)) => {
            merge_list(&key, known, patch, depth)?;
        }
        (_, Value::Object(patch)) => {
            let mut made = Map::new();
            merge_map(&mut made, patch, depth)?;
            target.insert(key, Value::Object(made));
        }
        (_, Value::Array(patch)) => {
            let made = new_list(patch, depth)?;
            target.insert(key, Value::Array(made));
        }
        (_, value) => drop(target.insert(key, value)),
    }
    Ok(())
}

/// The value of a list that the object doesn't have: the patch's elements without directives. They are
/// not merged with one another: two elements with the same key stay two.
///
/// Upstream: `removeDirectives`.
fn new_list(patch: Vec<Value>, depth: usize) -> Result<Vec<Value>, Status> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let mut made = Vec::with_capacity(patch.len());
    for item in patch {
        match item {
            Value::Object(fields) if fields.contains_key("$patch") => {}
            Value::Object(fields) => {
                let mut element = Map::new();
                merge_map(&mut element, fields, depth)?;
                made.push(Value::Object(element));
            }
            item => made.push(item),
        }
    }
    Ok(made)
}

pub(super) fn merge_list(
    list: &str,
    known: &mut Vec<Value>,
    patch: Vec<Value>,
    depth: usize,
) -> Result<(), Status> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    if is_set(list) {
        let mut items: HashSet<Value> = known.iter().cloned().collect();
        known.extend(patch.into_iter().filter(|item| items.insert(item.clone())));
        return Ok(());
    }
    let element = patch.iter().chain(known.iter()).find(|e| e.is_object());
    let Some(key) = merge_key(list, element) else {
        *known = patch;
        return Ok(());
    };
    let replaces = |item: &Value| item.get("$patch").and_then(Value::as_str) == Some("replace");
    if patch.iter().any(replaces) {
        *known = patch;
        known.retain(|item| !replaces(item));
        return Ok(());
    }
    let mut elements = Elements::new(key, std::mem::take(known));
    for item in patch {
        let Value::Object(mut fields) = item else {
            return Err(Status::bad_request(format!(
                "an element of {list} is not an object"
            )));
        };
        let Some(id) = fields.get(key).cloned() else {
            let message = format!("map: {list} does not contain declared merge key: {key}");
            return Err(Status::bad_request(message));
        };
        if fields.get("$patch").and_then(Value::as_str) == Some("delete") {
            elements.remove(&id);
        } else if elements.has(&id) {
            elements.change(&id, |element| merge_map(element, fields, depth))?;
        } else {
            fields.remove("$patch");
            let mut made = Map::new();
            merge_map(&mut made, fields, depth)?;
            elements.push(Value::Object(made));
        }
    }
    *known = elements.into_list();
    Ok(())
}

/// The elements of a list, which can be found by their keys.
struct Elements {
    key: &'static str,
    /// None where an element was removed.
    list: Vec<Option<Value>>,
    /// The places of the elements with a key: a list may have several.
    places: HashMap<Value, BTreeSet<usize>>,
}

impl Elements {
    fn new(key: &'static str, list: Vec<Value>) -> Self {
        let mut elements = Self {
            key,
            list: Vec::with_capacity(list.len()),
            places: HashMap::new(),
        };
        for element in list {
            elements.push(element);
        }
        elements
    }

    fn has(&self, id: &Value) -> bool {
        self.places.contains_key(id)
    }

    fn push(&mut self, element: Value) {
        self.index(element.get(self.key).cloned(), self.list.len());
        self.list.push(Some(element));
    }

    fn index(&mut self, id: Option<Value>, place: usize) {
        if let Some(id) = id {
            self.places.entry(id).or_default().insert(place);
        }
    }

    /// Removes all elements with that key.
    fn remove(&mut self, id: &Value) {
        for place in self.places.remove(id).into_iter().flatten() {
            if let Some(element) = self.list.get_mut(place) {
                *element = None;
            }
        }
    }

    /// Changes the first element with that key. Its key can change, too, if it isn't a string or a
    /// number.
    fn change(
        &mut self,
        id: &Value,
        change: impl FnOnce(&mut Map<String, Value>) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let place = self
            .places
            .get(id)
            .and_then(|places| places.first().copied());
        let Some(place) = place else { return Ok(()) };
        let Some(Some(Value::Object(element))) = self.list.get_mut(place) else {
            return Ok(());
        };
        change(element)?;
        let now = element.get(self.key);
        if now == Some(id) {
            return Ok(());
        }
        let now = now.cloned();
        if let Some(places) = self.places.get_mut(id) {
            places.remove(&place);
            if places.is_empty() {
                self.places.remove(id);
            }
        }
        self.index(now, place);
        Ok(())
    }

    fn into_list(self) -> Vec<Value> {
        self.list.into_iter().flatten().collect()
    }
}

/// Sorts the elements that an order names into that order, at the place of the first of them; each
/// other element stays behind the one that it followed.
pub(super) fn set_order(list: &str, known: &mut Vec<Value>, order: &[Value]) {
    let key = merge_key(list, known.first());
    let id = |item: &Value| match key {
        Some(key) => item.get(key).cloned().unwrap_or(Value::Null),
        None => item.clone(),
    };
    let mut ranks: HashMap<Value, usize> = HashMap::new();
    for (rank, item) in order.iter().enumerate() {
        ranks.entry(id(item)).or_insert(rank);
    }
    let mut before = 0;
    let ranked = std::mem::take(known).into_iter().map(|item| {
        before = ranks.get(&id(&item)).copied().unwrap_or(before);
        (before, item)
    });
    let mut ordered: Vec<(usize, Value)> = ranked.collect();
    ordered.small_sort_by_key(|(rank, _)| *rank);
    known.extend(ordered.into_iter().map(|(_, item)| item));
}
