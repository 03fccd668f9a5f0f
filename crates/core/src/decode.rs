//! Decodes JSON to a typed object, as Kubernetes does, and collects every unknown field and every value
//! of a wrong type.
//!
//! It is a decoder of its own because it learns the known fields from each type (so "unknown" is
//! exact), accepts numbers for quantities as Go does, and never puts a value into an error.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StringDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, Visitor,
};
use serde_json::Value;
use strsim::osa_distance;

use crate::path::{Path, Segment};

/// Wrong values found in one object before giving up.
const FAULTS_MAX: usize = 50;

/// The message for a value that its type rejects for some other reason.
pub(crate) const UNFIT: &str = "this value can't be used here";

/// Help for a number in quotes.
const UNQUOTE: &str = "write the number without quotes: in quotes it is a string";
/// A boolean in plain words.
const BOOLEAN: &str = "true or false";

/// A field its type doesn't know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnknownField {
    pub(crate) path: Path,
    pub(crate) known: &'static [&'static str],
}

/// A value that can't be decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) path: Path,
    pub(crate) message: String,
    /// The correction of the value, if that is clear.
    pub(crate) help: Option<&'static str>,
}

/// Outcome of [`decode`].
#[derive(Debug)]
pub(crate) struct Decoded<T> {
    /// The object, without the values that couldn't be decoded; none if nothing can be.
    pub(crate) object: Option<T>,
    pub(crate) unknown: Vec<UnknownField>,
    pub(crate) faults: Vec<Fault>,
}

/// Decodes `value`. A value of a wrong type is recorded and skipped, so that later ones are found too.
pub(crate) fn decode<T: DeserializeOwned>(value: &Value) -> Decoded<T> {
    let mut faults: Vec<Fault> = Vec::new();
    let mut pruned: Option<Value> = None;
    loop {
        let state = State::default();
        let source = pruned.as_ref().unwrap_or(value);
        let result = T::deserialize(Decoder {
            value: source,
            state: &state,
        });
        let State {
            path: _,
            failed_at,
            unknown,
        } = state;
        let error = match result {
            Ok(object) => {
                return Decoded {
                    object: Some(object),
                    unknown: unknown.into_inner(),
                    faults,
                };
            }
            Err(error) => error,
        };
        let path = Path(failed_at.into_inner().unwrap_or_default());
        let mut rest = pruned.take().unwrap_or_else(|| value.clone());
        let removed = remove(&mut rest, &path.0);
        faults.push(Fault {
            path,
            message: error.message,
            help: error.help,
        });
        if !removed || faults.len() >= FAULTS_MAX {
            return Decoded {
                object: None,
                unknown: unknown.into_inner(),
                faults,
            };
        }
        pruned = Some(rest);
    }
}

/// Decodes `value` as a whole.
///
/// # Errors
/// The first value of a wrong type.
pub(crate) fn decode_whole<T: DeserializeOwned>(value: &Value) -> Result<T, Fault> {
    let state = State::default();
    let result = T::deserialize(Decoder {
        value,
        state: &state,
    });
    result.map_err(|error| Fault {
        path: Path(state.failed_at.into_inner().unwrap_or_default()),
        message: error.message,
        help: error.help,
    })
}

/// Takes away the innermost field on `path`; a list with a wrong item goes as a whole. Returns
/// whether that changed anything.
fn remove(value: &mut Value, path: &[Segment]) -> bool {
    let Some(last) = path.iter().rposition(|s| matches!(s, Segment::Key(_))) else {
        return false;
    };
    let (Some(Segment::Key(field)), way) = (path.get(last), &path[..last]) else {
        return false;
    };
    let mut inner = value;
    for segment in way {
        let next = match segment {
            Segment::Key(key) => inner.get_mut(key),
            Segment::Index(index) => inner.get_mut(index),
        };
        let Some(next) = next else { return false };
        inner = next;
    }
    inner
        .as_object_mut()
        .is_some_and(|map| map.remove(field).is_some())
}

#[derive(Default)]
struct State {
    path: RefCell<Vec<Segment>>,
    failed_at: RefCell<Option<Vec<Segment>>>,
    unknown: RefCell<Vec<UnknownField>>,
}

impl State {
    /// Decodes one part, recording the position of the innermost failure. Generic over the type of the
    /// part; the functions that it calls are not.
    fn enter<T>(
        &self,
        segment: Segment,
        part: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.begin(segment);
        let result = part();
        self.end(result.is_err());
        result
    }

    #[inline(never)]
    fn begin(&self, segment: Segment) {
        self.path.borrow_mut().push(segment);
    }

    #[inline(never)]
    fn end(&self, failed: bool) {
        if failed {
            let mut failed_at = self.failed_at.borrow_mut();
            if failed_at.is_none() {
                *failed_at = Some(self.path.borrow().clone());
            }
        }
        self.path.borrow_mut().pop();
    }

    /// Notes a field unless it is one of those known.
    #[inline(never)]
    fn check_field(&self, key: &str, known: &'static [&'static str]) {
        if !known.contains(&key) {
            let path = Path(self.path.borrow().clone()).key(key);
            let mut unknown = self.unknown.borrow_mut();
            unknown.push(UnknownField { path, known });
        }
    }
}

/// Why a value can't be decoded; never quotes the value.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Error {
    message: String,
    help: Option<&'static str>,
}

impl serde::de::Error for Error {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self {
            message: UNFIT.to_owned(),
            help: None,
        }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let expected = plain(&expected.to_string());
        Self {
            help: mended(&found, &expected),
            message: format!("expected {expected}, found {}", name_of(found)),
        }
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self {
            message: format!(
                "expected {}, found {}, which is not one",
                plain(&expected.to_string()),
                name_of(found)
            ),
            help: None,
        }
    }
}

/// The correction of a value with a wrong type, if the quotes are the problem.
fn mended(found: &Unexpected<'_>, expected: &str) -> Option<&'static str> {
    match (found, expected) {
        (
            Unexpected::Bool(_)
            | Unexpected::Unsigned(_)
            | Unexpected::Signed(_)
            | Unexpected::Float(_),
            "a string",
        ) => Some("quote it to make it a string"),
        (Unexpected::Str(text), BOOLEAN) => matches!(*text, "true" | "false")
            .then_some("write it without quotes: in quotes it is a string"),
        (Unexpected::Str(text), "a number") => text.parse::<f64>().is_ok().then_some(UNQUOTE),
        (Unexpected::Str(text), expected) if expected.starts_with("a whole number") => {
            text.parse::<i64>().is_ok().then_some(UNQUOTE)
        }
        _ => None,
    }
}

/// The expected type in plain words.
fn plain(expected: &str) -> String {
    match expected {
        "i32" => "a whole number of at most 32 bits".to_owned(),
        "i64" => "a whole number".to_owned(),
        "f64" => "a number".to_owned(),
        "a boolean" => BOOLEAN.to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a mapping".to_owned(),
        other if other.starts_with(char::is_uppercase) => format!("a mapping ({other})"),
        other => other.to_owned(),
    }
}

fn name_of(found: Unexpected<'_>) -> &'static str {
    match found {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Float(_) => "a number with a fraction",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "a number",
        Unexpected::Char(_) | Unexpected::Str(_) => "a string",
        Unexpected::Unit | Unexpected::Option => "nothing",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a mapping",
        _ => "something else",
    }
}

#[derive(Clone, Copy)]
struct Decoder<'a> {
    value: &'a Value,
    state: &'a State,
}

impl Decoder<'_> {
    fn visit<'de, V: Visitor<'de>>(
        self,
        visitor: V,
        fields: Option<&'static [&'static str]>,
    ) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(number) => {
                if let Some(value) = number.as_u64() {
                    visitor.visit_u64(value)
                } else if let Some(value) = number.as_i64() {
                    visitor.visit_i64(value)
                } else {
                    visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
                }
            }
            Value::String(text) => visitor.visit_str(text),
            Value::Array(items) => visitor.visit_seq(Items {
                items: items.iter().enumerate(),
                state: self.state,
            }),
            Value::Object(map) => visitor.visit_map(Entries {
                rest: map.iter(),
                current: None,
                fields,
                state: self.state,
            }),
        }
    }
}

impl<'de> Deserializer<'de> for Decoder<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.visit(visitor, None)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.value {
            Value::Null => visitor.visit_none(),
            Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.value {
            // Go decodes `cpu: 1` and `cpu: "1"` alike.
            Value::Number(number) if name == "Quantity" => {
                let text: StringDeserializer<Error> = number.to_string().into_deserializer();
                visitor.visit_newtype_struct(text)
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.visit(visitor, Some(fields))
    }

    /// There are only enums without data.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.value {
            Value::String(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => self.visit(visitor, None),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Value>>,
    state: &'a State,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let state = self.state;
        state
            .enter(Segment::Index(index), || {
                seed.deserialize(Decoder { value, state })
            })
            .map(Some)
    }

    // A list grown without it has room for four containers where there is one.
    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Entries<'a> {
    rest: serde_json::map::Iter<'a>,
    current: Option<(&'a String, &'a Value)>,
    fields: Option<&'static [&'static str]>,
    state: &'a State,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((key, value)) = self.rest.next() else {
            return Ok(None);
        };
        if let Some(known) = self.fields {
            self.state.check_field(key, known);
        }
        self.current = Some((key, value));
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Some((key, value)) = self.current.take() else {
            return Err(serde::de::Error::custom("a value without a key"));
        };
        let state = self.state;
        state.enter(Segment::Key(key.clone()), || {
            seed.deserialize(Decoder { value, state })
        })
    }
}

/// The known field that is most similar to `unknown`.
pub(crate) fn closest(unknown: &str, known: &[&'static str]) -> Option<&'static str> {
    let lower = unknown.to_lowercase();
    known
        .iter()
        .map(|field| (osa_distance(&lower, &field.to_lowercase()), *field))
        .filter(|(distance, field)| *distance <= field.len().max(unknown.len()) / 3)
        .min()
        .map(|(_, field)| field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_letters_in_the_wrong_order_are_one_mistake() {
        let known = ["name", "image", "args", "command", "env"];
        for (written, meant) in [
            ("nmae", Some("name")),
            ("iamge", Some("image")),
            ("agrs", Some("args")),
            ("comand", Some("command")),
            ("envs", Some("env")),
            ("volume", None),
        ] {
            assert_eq!(closest(written, &known), meant, "{written}");
        }
    }

    #[test]
    fn lists_take_the_memory_of_what_they_hold() {
        let pod: crate::api::Pod = decode_whole(&serde_json::json!({"spec": {
            "containers": [{"name": "c", "env": [{"name": "A"}, {"name": "B"}]}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }}))
        .unwrap();
        let spec = pod.spec.unwrap();
        let container = &spec.containers[0];
        assert_eq!(spec.containers.capacity(), 1);
        assert_eq!(container.env.as_ref().map(Vec::capacity), Some(2));
        assert_eq!(spec.volumes.as_ref().map(Vec::capacity), Some(1));
    }
}
