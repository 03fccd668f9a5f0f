//! A YAML value that remembers where each of its parts is written.
//!
//! Typed decoding straight from YAML would turn `app: yes` into the text `yes`, which Kubernetes
//! refuses: scalars get their type here, before any schema is known.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Spanned};

use crate::api::diagnostic::Position;

use crate::path::{Path, Segment};

/// Largest magnitude below which every integral float is exactly one integer.
const EXACT_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) position: Option<Position>,
}

/// The content of a [`Node`].
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Null, boolean, number or text.
    Scalar(Value),
    /// Items in order.
    Sequence(Vec<Node>),
    /// Entries in order, duplicates included; the last of equal keys counts.
    Mapping(Vec<Entry>),
}

/// A key of a mapping with its value.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_position: Option<Position>,
    pub(super) value: Node,
}

impl Node {
    /// Whether nothing is written here.
    pub(super) fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Scalar(Value::Null))
    }

    /// How many values are written below it: items of lists and entries of mappings.
    pub(super) fn count(&self) -> usize {
        match &self.kind {
            Kind::Scalar(_) => 0,
            Kind::Sequence(items) => items.iter().map(|item| 1 + item.count()).sum(),
            Kind::Mapping(entries) => entries.iter().map(|entry| 1 + entry.value.count()).sum(),
        }
    }

    /// The value of `key`, when this is a mapping that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// The text, when this is one.
    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar(Value::String(text)) => Some(text),
            Kind::Scalar(_) | Kind::Sequence(_) | Kind::Mapping(_) => None,
        }
    }

    /// The items, when this is a sequence.
    pub(super) fn items(&self) -> Option<&[Node]> {
        match &self.kind {
            Kind::Sequence(items) => Some(items),
            Kind::Scalar(_) | Kind::Mapping(_) => None,
        }
    }

    /// Replaces a sign in all texts and keys.
    pub(super) fn replace(&mut self, sign: char, by: &str) {
        match &mut self.kind {
            Kind::Scalar(Value::String(text)) => *text = text.replace(sign, by),
            Kind::Scalar(_) => {}
            Kind::Sequence(items) => items.iter_mut().for_each(|item| item.replace(sign, by)),
            Kind::Mapping(entries) => {
                for entry in entries {
                    entry.key = entry.key.replace(sign, by);
                    entry.value.replace(sign, by);
                }
            }
        }
    }

    fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.kind {
            Kind::Mapping(entries) => entries.iter().rfind(|entry| entry.key == key),
            Kind::Scalar(_) | Kind::Sequence(_) => None,
        }
    }

    /// The position of the value at `path`, or of its innermost existing parent.
    /// Scalars are found at their value, everything else at its key.
    pub(super) fn locate(&self, path: &Path) -> Option<Position> {
        self.walk(path, false)
    }

    /// As [`locate`](Self::locate), at the key that leads to the value.
    pub(super) fn locate_key(&self, path: &Path) -> Option<Position> {
        self.walk(path, true)
    }

    fn walk(&self, path: &Path, prefer_key: bool) -> Option<Position> {
        let mut node = self;
        let mut key = None;
        let mut reached = 0;
        for segment in &path.0 {
            let next = match segment {
                Segment::Key(name) => node.entry(name).map(|e| (&e.value, e.key_position)),
                Segment::Index(index) => {
                    let items = node.items().unwrap_or_default();
                    items.get(*index).map(|item| (item, None))
                }
            };
            let Some((next, next_key)) = next else { break };
            (node, key) = (next, next_key);
            reached += 1;
        }
        let is_scalar = matches!(node.kind, Kind::Scalar(_));
        let at_value = reached == path.0.len() && is_scalar && !prefer_key && !node.is_null();
        if at_value {
            node.position.or(key)
        } else {
            key.or(node.position)
        }
    }

    /// The same as JSON: nulls in mappings left out, the last of equal keys kept.
    pub(super) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::Sequence(items) => Value::Array(items.iter().map(Self::to_json).collect()),
            Kind::Mapping(entries) => {
                let mut map = Map::new();
                for entry in entries {
                    if entry.value.is_null() {
                        map.remove(&entry.key);
                    } else {
                        map.insert(entry.key.clone(), entry.value.to_json());
                    }
                }
                Value::Object(map)
            }
        }
    }

    /// Returns the first of `keys` that this mapping itself has more than once.
    pub(super) fn repeated(&self, keys: &[&'static str]) -> Option<&'static str> {
        let Kind::Mapping(entries) = &self.kind else {
            return None;
        };
        let is_repeated =
            |key: &&str| entries.iter().filter(|entry| entry.key == **key).count() > 1;
        keys.iter().copied().find(is_repeated)
    }

    /// Calls `found` for each key that an equal key follows in the same mapping.
    pub(super) fn for_each_duplicate(&self, path: &Path, found: &mut dyn FnMut(Path, &Entry)) {
        match &self.kind {
            Kind::Scalar(_) => {}
            Kind::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    item.for_each_duplicate(&path.index(index), found);
                }
            }
            Kind::Mapping(entries) => {
                let mut seen = std::collections::HashSet::new();
                for entry in entries {
                    let place = path.key(&entry.key);
                    if !seen.insert(entry.key.as_str()) {
                        found(place.clone(), entry);
                    }
                    entry.value.for_each_duplicate(&place, found);
                }
            }
        }
    }
}

/// Converts the parser's location; none when it doesn't know.
pub(super) fn position(location: Location) -> Option<Position> {
    if location.line() == 0 {
        return None;
    }
    let span = location.span();
    Some(Position {
        line: u32::try_from(location.line()).unwrap_or(u32::MAX),
        column: u32::try_from(location.column()).unwrap_or(u32::MAX),
        offset: usize::try_from(span.byte_offset()?).unwrap_or(usize::MAX),
        length: usize::try_from(span.byte_len()?).unwrap_or(0),
    })
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self {
            kind: spanned.value,
            position: position(spanned.defined).or_else(|| position(spanned.referenced)),
        })
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(KindVisitor)
    }
}

struct KindVisitor;

impl<'de> Visitor<'de> for KindVisitor {
    type Value = Kind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Kind, D::Error> {
        Kind::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::from(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::from(value)))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Kind, E> {
        // Go prints a whole number without a fraction, so that it decodes as an integer.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the bound makes the conversion exact"
        )]
        if value.fract() == 0.0 && value.abs() < EXACT_FLOAT_MAX {
            return Ok(Kind::Scalar(Value::from(value as i64)));
        }
        Number::from_f64(value)
            .map(|number| Kind::Scalar(Value::Number(number)))
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Kind, E> {
        Ok(Kind::Scalar(Value::String(value)))
    }

    fn visit_bytes<E: serde::de::Error>(self, _: &[u8]) -> Result<Kind, E> {
        Err(E::custom("binary values are not allowed in a manifest"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Kind::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Kind, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<KeyText>>()? {
            let value = access.next_value()?;
            entries.push(Entry {
                key: key.value.0,
                key_position: position(key.defined),
                value,
            });
        }
        Ok(Kind::Mapping(entries))
    }
}

/// A mapping's key, as text whatever it is written as.
struct KeyText(String);

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Kind::deserialize(deserializer)? {
            Kind::Scalar(Value::String(text)) => Ok(Self(text)),
            Kind::Scalar(Value::Number(number)) => Ok(Self(number.to_string())),
            Kind::Scalar(Value::Bool(value)) => Ok(Self(value.to_string())),
            Kind::Scalar(_) | Kind::Sequence(_) | Kind::Mapping(_) => {
                Err(D::Error::custom("a key must be a string"))
            }
        }
    }
}
