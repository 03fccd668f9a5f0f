//! Objects as the API server and the disk have them.

use std::sync::Arc;

use k8s_openapi::{Metadata, Resource};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use crate::decode::decode_whole;

/// An object that is read in two steps: as any JSON, and that as the object.
///
/// serde compiles a reader of the whole type for each form that it is read from: text, any JSON that
/// a watch keeps for a moment because it names an object before it says what became of it, the
/// JSON of a manifest. This way a type has one, that of manifests.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Watched<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = serde_json::Value::deserialize(deserializer)?;
        read(&json).map(Self).map_err(D::Error::custom)
    }
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

/// Reads an object from a JSON value.
///
/// # Errors
/// The field of the first value that has another type, and the two types; never the value.
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
