//! Objects as they are read from the API server and the disk.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::{Metadata, Resource};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::keys;
use super::meta::ObjectMeta;
use crate::decode::decode_whole;

/// An object that is read in two steps: as any JSON, and from that as the object.
///
/// serde compiles a reader of the whole type for each input format: text, the buffered JSON of a watch
/// event, which has the object before its type, the JSON of a manifest. This way a type has one reader,
/// that for manifests.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Watched<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut json, is_too_large) = bounded(deserializer)?;
        mark(&mut json, is_too_large);
        read(&json).map(Self).map_err(D::Error::custom)
    }
}

/// Reads any JSON within the limit of values. Returns whether some were dropped.
fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Value, bool), D::Error> {
    let budget = Budget::default();
    let json = Bounded {
        budget: &budget,
        depth: 0,
    };
    let json = json.deserialize(deserializer)?;
    Ok((json, budget.is_exceeded.get()))
}

/// Maximum number of values of an object: items of lists and entries of mappings, without the fields of
/// the object and of its `metadata`, `spec` and `status`. A Pod with a few hundred is large, but the
/// 1.5 MiB that an API server stores may hold a hundred thousand, each of which takes hundreds of bytes
/// in memory.
pub const VALUES_MAX: usize = 10_000;

/// Counts the values of one object.
#[derive(Default)]
struct Budget {
    used: Cell<usize>,
    is_exceeded: Cell<bool>,
}

impl Budget {
    /// Whether there is room for one more value.
    fn take(&self) -> bool {
        let used = self.used.get();
        if used >= VALUES_MAX {
            self.is_exceeded.set(true);
            return false;
        }
        self.used.set(used + 1);
        true
    }
}

/// Reads any JSON, but for what is beyond the budget: that is left out and never held.
struct Bounded<'a> {
    budget: &'a Budget,
    /// The number of lists and mappings around it.
    depth: usize,
}

/// Mappings around the values that count: the object itself, and its sections.
const SECTIONS: usize = 2;
/// The sections with a fixed set of fields. All other fields may be a list or mapping of any length,
/// like the data of a config map.
const SECTION_NAMES: [&str; 3] = ["metadata", "spec", "status"];

impl Bounded<'_> {
    fn inner(&self) -> Self {
        Self {
            budget: self.budget,
            depth: self.depth + 1,
        }
    }

    /// The reader of a value of that key.
    fn of(&self, key: &str) -> Self {
        let is_section = self.depth > 0 || SECTION_NAMES.contains(&key);
        Self {
            depth: if is_section { self.depth + 1 } else { SECTIONS },
            ..self.inner()
        }
    }

    fn has_room(&self) -> bool {
        self.depth < SECTIONS || self.budget.take()
    }
}

impl<'de> DeserializeSeed<'de> for Bounded<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Bounded<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self.inner())? {
            list.push(item);
            if !self.has_room() {
                while items.next_element::<IgnoredAny>()?.is_some() {}
            }
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = serde_json::Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if self.has_room() {
                let value = entries.next_value_seed(self.of(&key))?;
                map.insert(key, value);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(map.into())
    }
}

/// Notes on an object whether values were left out, whatever its author has noted there.
fn mark(object: &mut Value, is_too_large: bool) {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(metadata) = metadata else { return };
    if is_too_large {
        let annotations = metadata.entry("annotations").or_insert(Value::Null);
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[keys::TOO_LARGE] = json!("true");
    } else if let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(keys::TOO_LARGE);
    }
}

/// Whether values of an object were dropped because it has too many.
pub fn is_too_large(metadata: &ObjectMeta) -> bool {
    let annotations = metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(keys::TOO_LARGE))
}

/// Reads a field as [`Watched`] does; for `#[serde(deserialize_with)]`.
///
/// # Errors
/// As [`read`].
pub fn shared<'de, K, D>(deserializer: D) -> Result<Arc<K>, D::Error>
where
    K: DeserializeOwned,
    D: Deserializer<'de>,
{
    Watched::deserialize(deserializer).map(|Watched(object)| Arc::new(object))
}

/// Reads a field from the agent's own storage, for `#[serde(deserialize_with)]`: as [`Watched`] does,
/// but keeps the agent's note that values were dropped. Only the agent's own note is ever stored.
///
/// # Errors
/// As [`read`].
pub fn read_stored<'de, K, D>(deserializer: D) -> Result<K, D::Error>
where
    K: DeserializeOwned,
    D: Deserializer<'de>,
{
    let (mut json, is_too_large) = bounded(deserializer)?;
    if is_too_large {
        mark(&mut json, true);
    }
    read(&json).map_err(D::Error::custom)
}

/// Reads an object from a JSON value.
///
/// # Errors
/// The path of the first value with a wrong type, and both types; never the value.
pub fn read<T: DeserializeOwned>(json: &serde_json::Value) -> Result<T, String> {
    decode_whole(json).map_err(|fault| {
        if fault.path.0.is_empty() {
            fault.message
        } else {
            format!("{}: {}", fault.path, fault.message)
        }
    })
}

impl<K: Resource> Resource for Watched<K> {
    const API_VERSION: &'static str = K::API_VERSION;
    const GROUP: &'static str = K::GROUP;
    const KIND: &'static str = K::KIND;
    const VERSION: &'static str = K::VERSION;
    const URL_PATH_SEGMENT: &'static str = K::URL_PATH_SEGMENT;
    type Scope = K::Scope;
}

impl<K: Metadata<Ty = ObjectMeta>> Metadata for Watched<K> {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        self.0.metadata()
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        self.0.metadata_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Pod;

    /// The text of a pod with a list in its spec, and with labels.
    fn pod(field: &str, item: &str, count: usize, labels: usize) -> String {
        let items = vec![item; count].join(",");
        let labels = (0..labels).map(|number| format!(r#""l{number}":"""#));
        let labels = labels.collect::<Vec<_>>().join(",");
        format!(
            r#"{{"metadata":{{"labels":{{{labels}}},"name":"web","uid":"u"}},"spec":{{"{field}":[{items}],"nodeName":"n"}},"status":{{"phase":"Pending"}}}}"#
        )
    }

    #[test]
    fn of_an_object_with_too_many_values_only_some_are_held() {
        let port = r#"{"containerPort":1}"#;
        let ports = format!(
            r#"{{"name":"a","ports":[{}]}}"#,
            vec![port; 60_000].join(",")
        );
        for (text, too_large) in [
            (pod("containers", r#"{"name":"a"}"#, 2, 3), false),
            (pod("containers", r#"{"name":"a"}"#, 4_900, 0), false),
            (pod("tolerations", "{}", VALUES_MAX, 0), false),
            (pod("tolerations", "{}", VALUES_MAX + 9, 0), true),
            (pod("tolerations", "{}", 500_000, 0), true),
            (pod("containers", &ports, 1, 0), true),
            (pod("containers", r#"{"name":"a"}"#, 1, 100_000), true),
        ] {
            let Watched(pod): Watched<Pod> = serde_json::from_str(&text).unwrap();
            // tenants M8
            assert_eq!(is_too_large(&pod.metadata), too_large, "{}", text.len());
            assert_eq!(pod.metadata.name.as_deref(), Some("web"));
            assert_eq!(pod.metadata.uid.as_deref(), Some("u"));
            let spec = pod.spec.as_ref().unwrap();
            assert_eq!(spec.node_name.as_deref(), Some("n"));
            assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));
            if !too_large {
                let plain: Pod = serde_json::from_str(&text).unwrap();
                assert_eq!(plain.spec.as_ref(), Some(spec));
            }
            let held = serde_json::to_value(spec).unwrap();
            assert!(count(&held) <= 3 * VALUES_MAX, "{}", count(&held));
        }
    }

    fn count(value: &Value) -> usize {
        match value {
            Value::Array(items) => items.iter().map(|item| 1 + count(item)).sum(),
            Value::Object(map) => map.values().map(|item| 1 + count(item)).sum(),
            _ => 0,
        }
    }

    #[test]
    fn nobody_is_too_large_by_an_annotation() {
        let text = json!({"metadata": {"annotations": {keys::TOO_LARGE: "true"}}}).to_string();
        let Watched(pod): Watched<Pod> = serde_json::from_str(&text).unwrap();
        assert!(!is_too_large(&pod.metadata));
        let mut stored = serde_json::Deserializer::from_str(&text);
        let pod: Pod = read_stored(&mut stored).unwrap();
        assert!(is_too_large(&pod.metadata), "but by this agent's own");
    }

    #[test]
    fn it_is_read_as_the_object_itself() {
        let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a"}]}}"#;
        let plain: Pod = serde_json::from_str(text).unwrap();
        let watched: Watched<Pod> = serde_json::from_str(text).unwrap();
        assert_eq!(watched.0, plain);
        assert_eq!(watched.metadata().name.as_deref(), Some("web"));
        // As where the event's type comes last.
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            serde_json::from_value::<Watched<Pod>>(value).unwrap().0,
            plain
        );
    }

    #[test]
    fn what_is_no_such_object_is_refused_by_its_words() {
        let text = r#"{"apiVersion":"v1","kind":"Pod","spec":{"containers":7}}"#;
        let error = serde_json::from_str::<Watched<Pod>>(text).unwrap_err();
        assert!(
            error.to_string().starts_with("spec.containers: expected"),
            "{error}"
        );
        let value = serde_json::from_str(text).unwrap();
        assert_eq!(
            read::<Pod>(&value).unwrap_err(),
            "spec.containers: expected a list, found a number"
        );
    }
}
