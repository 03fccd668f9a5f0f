//! Objects as a watch delivers them.

use k8s_openapi::{Metadata, Resource};
use serde::de::{DeserializeOwned, Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;

/// An object that is read in two steps: as any JSON, and that JSON's text as the object.
///
/// A watch may name an object before it says what became of it, so that it is kept as any JSON for
/// a moment, and serde makes a second reader of the whole type for such. This way a type has one
/// reader for all of the API server's answers; the second ones were a thirtieth of the program.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Watched<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = serde_json::Value::deserialize(deserializer)?;
        read(&json).map(Self).map_err(D::Error::custom)
    }
}

/// Reads an object from a JSON value. It is written to text and read from that: serde would compile a
/// second decoder of the type for values, as large as the one for text.
///
/// # Errors
/// The decoder's message, without the line and column: they are of the text that is written here,
/// not of the user's file or request.
pub fn read<T: DeserializeOwned>(json: &serde_json::Value) -> Result<T, String> {
    serde_json::from_str(&json.to_string()).map_err(|error| {
        let said = error.to_string();
        let words = said.rsplit_once(" at line ").map(|(words, _)| words);
        words.unwrap_or(&said).to_owned()
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
        assert!(error.to_string().contains("invalid type"), "{error}");
        let value = serde_json::from_str(text).unwrap();
        assert_eq!(
            read::<Pod>(&value).unwrap_err(),
            "invalid type: integer `7`, expected a sequence"
        );
    }
}
