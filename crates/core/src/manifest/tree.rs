//! A YAML value that records the position of each of its parts.

use serde::de::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

use crate::api::diagnostic::Position;
use crate::path::{Path, Segment};
use crate::yaml::{self, position};

/// The content of a [`Node`].
pub(super) type Kind = yaml::Kind<Node>;
type Entry = yaml::Entry<Node>;

/// A value and its place.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) position: Option<Position>,
}

impl Node {
    /// Whether nothing is written here.
    pub(super) fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Scalar(Value::Null))
    }

    /// The number of values below it: items of lists and entries of mappings.
    pub(super) fn count(&self) -> usize {
        match &self.kind {
            Kind::Scalar(_) => 0,
            Kind::Sequence(items) => items.iter().map(|item| 1 + item.count()).sum(),
            Kind::Mapping(entries) => entries.iter().map(|entry| 1 + entry.value.count()).sum(),
        }
    }

    /// The value of `key`, if this is a mapping with that key.
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

    /// The position of the value at `path`, or of its innermost existing parent. For a scalar this is
    /// its value, for everything else its key.
    pub(super) fn locate(&self, path: &Path) -> Option<Position> {
        self.walk(path, false)
    }

    /// As [`locate`](Self::locate), but the position of the value's key.
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

    /// Converts it to JSON: without nulls in mappings, and with the last of equal keys.
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

    /// Returns the first of `keys` that this mapping has more than once.
    pub(super) fn repeated(&self, keys: &[&'static str]) -> Option<&'static str> {
        let Kind::Mapping(entries) = &self.kind else {
            return None;
        };
        let is_repeated =
            |key: &&str| entries.iter().filter(|entry| entry.key == **key).count() > 1;
        keys.iter().copied().find(is_repeated)
    }

    /// Calls `found` for each key that is repeated later in the same mapping.
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

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Kind>::deserialize(deserializer)?;
        Ok(Self {
            kind: spanned.value,
            position: position(spanned.defined).or_else(|| position(spanned.referenced)),
        })
    }
}
