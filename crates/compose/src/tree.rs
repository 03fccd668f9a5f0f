//! A YAML value that records the file and line of each of its parts, and compose's tags.
//!
//! Scalars follow YAML 1.2, as in compose: `yes` and `on` are strings.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Spanned, Tagged};

use mirrorlet_core::api::diagnostic::Position;
use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::yaml::{self, position};

/// Limits on the size of a parsed file: far above any real one.
const NODES_MAX: usize = 200_000;
/// Events replayed by all aliases of a file together.
const ALIAS_EVENTS_MAX: usize = 100_000;
/// Aliases inside aliases.
const ALIAS_DEPTH_MAX: usize = 16;
/// Sequences and mappings inside one another.
const DEPTH_MAX: usize = 48;

/// Where something is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) file: Arc<str>,
    pub(crate) position: Option<Position>,
}

/// The meaning of a compose tag for the merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    /// To be merged by the rules.
    None,
    /// `!reset`: the key is removed.
    Reset,
    /// `!override`: the value replaces the earlier one.
    Override,
}

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) place: Place,
    pub(crate) tag: Tag,
}

/// The content of a [`Node`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a mapping with its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) value: Node,
}

/// Two nodes are equal if their contents are, wherever they are written.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Map(one), Kind::Map(two)) => {
                one.len() == two.len()
                    && one.iter().all(|entry| {
                        two.iter()
                            .any(|e| e.key == entry.key && e.value == entry.value)
                    })
            }
            (one, two) => one == two,
        }
    }
}

impl Node {
    pub(crate) fn new(kind: Kind, place: &Place) -> Self {
        Self {
            kind,
            place: place.clone(),
            tag: Tag::None,
        }
    }

    pub(crate) fn of_text(text: impl Into<String>, place: &Place) -> Self {
        Self::new(Kind::Text(text.into()), place)
    }

    /// The value of `key`, if this is a mapping with that key.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value)
    }

    /// As [`get`](Self::get), but none for null.
    pub(crate) fn set(&self, key: &str) -> Option<&Node> {
        self.get(key).filter(|node| node.kind != Kind::Null)
    }

    /// The value below several keys.
    pub(crate) fn at(&self, keys: &[&str]) -> Option<&Node> {
        keys.iter().try_fold(self, |node, key| node.set(key))
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn entries_mut(&mut self) -> Option<&mut Vec<Entry>> {
        match &mut self.kind {
            Kind::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// The entries of the mapping that `key` has; none where it has no mapping.
    pub(crate) fn entries_of(&self, key: &str) -> &[Entry] {
        self.get(key).map(Node::entries).unwrap_or_default()
    }

    pub(crate) fn items(&self) -> &[Node] {
        match &self.kind {
            Kind::List(items) => items,
            _ => &[],
        }
    }

    /// The items of the list that `key` has; none where it has no list.
    pub(crate) fn items_of(&self, key: &str) -> &[Node] {
        self.get(key).map(Node::items).unwrap_or_default()
    }

    /// The scalar as text, whatever it is written as; none for null, lists and mappings.
    pub(crate) fn text(&self) -> Option<String> {
        match &self.kind {
            Kind::Bool(value) => Some(value.to_string()),
            Kind::Int(value) => Some(value.to_string()),
            Kind::Float(value) => Some(value.to_string()),
            Kind::Text(value) => Some(value.clone()),
            Kind::Null | Kind::List(_) | Kind::Map(_) => None,
        }
    }

    /// The boolean, also from a string, which interpolation produces.
    pub(crate) fn bool(&self) -> Option<bool> {
        match &self.kind {
            Kind::Bool(value) => Some(*value),
            Kind::Text(text) => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "y" | "on" | "1" => Some(true),
                "false" | "no" | "n" | "off" | "0" | "" => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// The whole number, also of a text.
    pub(crate) fn int(&self) -> Option<i64> {
        match &self.kind {
            Kind::Int(value) => Some(*value),
            Kind::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// The mode of a file, whose texts are octal.
    pub(crate) fn mode(&self) -> Option<i64> {
        match &self.kind {
            Kind::Text(text) => i64::from_str_radix(text.trim_start_matches("0o"), 8).ok(),
            _ => self.int(),
        }
    }

    /// The number, also of a text.
    pub(crate) fn number(&self) -> Option<f64> {
        self.text()?.trim().parse().ok()
    }

    /// The texts of a list, or the one text.
    pub(crate) fn texts(&self) -> Vec<String> {
        match &self.kind {
            Kind::List(items) => items.iter().filter_map(Node::text).collect(),
            _ => self.text().into_iter().collect(),
        }
    }

    /// Replaces or adds an entry.
    pub(crate) fn put(&mut self, entry: Entry) {
        if let Some(entries) = self.entries_mut() {
            match entries.iter_mut().find(|e| e.key == entry.key) {
                Some(old) => *old = entry,
                None => entries.push(entry),
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Entry> {
        let entries = self.entries_mut()?;
        let at = entries.iter().position(|entry| entry.key == key)?;
        Some(entries.remove(at))
    }
}

impl Entry {
    pub(crate) fn new(key: impl Into<String>, value: Node) -> Self {
        Self {
            key: key.into(),
            place: value.place.clone(),
            value,
        }
    }
}

/// Parses a file; an empty file is an empty mapping.
pub(crate) fn parse(bytes: &[u8], file: &Arc<str>) -> Result<Node, Box<Diagnostic>> {
    let text = std::str::from_utf8(bytes).ok();
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        strict_booleans: true,
        duplicate_keys: DuplicateKeyPolicy::Error,
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: ALIAS_EVENTS_MAX,
            max_replay_stack_depth: ALIAS_DEPTH_MAX,
        },
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            flow_nesting_limit: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_recorded_anchor_events: NODES_MAX,
        },
    };
    let place = Place {
        file: file.clone(),
        position: None,
    };
    let read = text.map(|text| serde_saphyr::from_multiple_with_options::<Raw>(text, options));
    match read {
        Some(Ok(documents)) => {
            let mut documents = documents.into_iter();
            match (documents.next(), documents.next()) {
                (Some(first), None) => Ok(first.at(file)),
                (None, _) => Ok(Node::new(Kind::Map(Vec::new()), &place)),
                (Some(_), Some(second)) => {
                    let message = "a compose file must have only one YAML document";
                    let problem = Diagnostic::error(Code::Syntax, &**file, message);
                    Err(Box::new(second.at(file).place.mark(problem)))
                }
            }
        }
        Some(Err(error)) => Err(Box::new(syntax(bytes, file, &error))),
        None => Err(Box::new(syntax_of(bytes, file))),
    }
}

impl Place {
    /// A diagnostic at this place.
    pub(crate) fn mark(&self, mut problem: Diagnostic) -> Diagnostic {
        problem.file = self.file.to_string();
        problem.position = self.position;
        problem
    }
}

fn syntax_of(bytes: &[u8], file: &Arc<str>) -> Diagnostic {
    let found = mirrorlet_core::manifest::yaml_problem(bytes, file);
    found.unwrap_or_else(|| Diagnostic::error(Code::Syntax, &**file, "this is not valid YAML"))
}

fn syntax(bytes: &[u8], file: &Arc<str>, error: &serde_saphyr::Error) -> Diagnostic {
    let mut problem = syntax_of(bytes, file);
    if problem.position.is_none() {
        problem.position = error.without_snippet().location().and_then(position);
    }
    if matches!(
        error.without_snippet(),
        serde_saphyr::Error::DuplicateMappingKey { .. }
    ) {
        "this mapping has the same key twice".clone_into(&mut problem.message);
    }
    problem
}

/// A value as parsed, before it knows its file.
struct Raw {
    kind: yaml::Kind<Raw>,
    position: Option<Position>,
    tag: Tag,
}

impl Raw {
    fn at(self, file: &Arc<str>) -> Node {
        let place = |position| Place {
            file: file.clone(),
            position,
        };
        let kind = match self.kind {
            yaml::Kind::Scalar(value) => scalar(value),
            yaml::Kind::Sequence(items) => {
                Kind::List(items.into_iter().map(|item| item.at(file)).collect())
            }
            yaml::Kind::Mapping(entries) => {
                let entry = |entry: yaml::Entry<Raw>| Entry {
                    key: entry.key,
                    place: place(entry.key_position.or(entry.value.position)),
                    value: entry.value.at(file),
                };
                Kind::Map(entries.into_iter().map(entry).collect())
            }
        };
        Node {
            kind,
            place: place(self.position),
            tag: self.tag,
        }
    }
}

fn scalar(value: Value) -> Kind {
    match value {
        Value::Bool(value) => Kind::Bool(value),
        Value::String(text) => Kind::Text(text),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Kind::Int(whole),
            (None, Some(large)) => Kind::Text(large.to_string()),
            (None, None) => number.as_f64().map_or(Kind::Null, Kind::Float),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => Kind::Null,
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tagged<yaml::Kind<Raw>>>::deserialize(deserializer)?;
        let Tagged(kind, tag) = spanned.value;
        Ok(Self {
            kind,
            position: position(spanned.defined).or_else(|| position(spanned.referenced)),
            tag: match tag.as_deref() {
                Some("!reset") => Tag::Reset,
                Some("!override") => Tag::Override,
                _ => Tag::None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_tags_places_and_merge_keys_are_read_as_compose_reads_them() {
        let text = "x-base: &base\n  a: yes\n  m: 0444\nb:\n  <<: *base\n  c: !reset null\n  d: !override [1]\n  e: 22:22\n";
        let root = parse(text.as_bytes(), &"f.yaml".into()).unwrap();
        let b = root.get("b").unwrap();
        assert_eq!(b.get("a").unwrap().kind, Kind::Text("yes".to_owned()));
        assert_eq!(b.get("m").unwrap().int(), Some(0o444));
        assert_eq!(b.get("e").unwrap().text().unwrap(), "22:22");
        assert_eq!(b.get("c").unwrap().tag, Tag::Reset);
        assert_eq!(b.get("d").unwrap().tag, Tag::Override);
        assert_eq!(b.entry("d").unwrap().place.position.unwrap().line, 7);
        assert_eq!(b.entry("a").unwrap().place.position.unwrap().line, 2);
        let twice = parse(b"a: 1\na: 2\n", &"f.yaml".into()).unwrap_err();
        assert_eq!(twice.position.unwrap().line, 2, "{twice}");
    }
}
