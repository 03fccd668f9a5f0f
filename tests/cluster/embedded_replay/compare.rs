//! Compares two answers, but for what is never the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Patterns for the parts of a text that differ between two runs, each with the word that replaces them.
/// Compiled once: answers have tens of thousands of texts.
static VARYING: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
    [
        (
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "<uid>",
        ),
        (r"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[[0-9]:.]+Z", "<time>"),
        (r"(?-u:\b)gen-[a-z0-9]{5}(?-u:\b)", "<generated>"),
    ]
    .map(|(pattern, word)| (Regex::new(pattern).unwrap(), word))
});
static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^([0-9]+[dhms])+$").unwrap());

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, Value>,
    pub(super) body: Value,
}

/// A place at which two answers differ.
pub(super) struct Difference {
    pub(super) place: String,
    ours: Option<Value>,
    theirs: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |value: Option<&Value>| {
            let text = value.map_or("-".to_owned(), Value::to_string);
            text.chars().take(300).collect::<String>()
        };
        writeln!(f, "    {}", self.place)?;
        writeln!(f, "        ours   {}", text(self.ours.as_ref()))?;
        write!(f, "        theirs {}", text(self.theirs.as_ref()))
    }
}

/// The places at which two answers differ.
pub(super) fn differences(ours: &Answer, theirs: &Answer) -> Vec<Difference> {
    let mut found = Vec::new();
    if ours.status != theirs.status {
        found.push(Difference {
            place: "status".to_owned(),
            ours: Some(ours.status.into()),
            theirs: Some(theirs.status.into()),
        });
        return found;
    }
    for (name, value) in &ours.headers {
        compare(
            Some(value),
            theirs.headers.get(name),
            &format!("header {name}"),
            &mut found,
        );
    }
    let (ours, theirs) = (same("", &ours.body), same("", &theirs.body));
    compare(Some(&ours), Some(&theirs), "", &mut found);
    found
}

fn compare(ours: Option<&Value>, theirs: Option<&Value>, place: &str, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let keys: BTreeSet<_> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let below = key.replace('~', "~0").replace('/', "~1");
                compare(a.get(key), b.get(key), &format!("{place}/{below}"), found);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(Some(a), Some(b), &format!("{place}/{index}"), found);
            }
        }
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => found.push(Difference {
            place: place.to_owned(),
            ours: ours.cloned(),
            theirs: theirs.cloned(),
        }),
    }
}

/// The value without times, identifiers, versions and what is thrown by dice.
fn same(key: &str, value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| (key.clone(), same(key, value)));
            Value::Object(pairs.collect())
        }
        Value::Array(items) => items.iter().map(|item| same(key, item)).collect(),
        Value::String(_) if ["uid", "resourceVersion", "continue"].contains(&key) => {
            format!("<{key}>").into()
        }
        Value::String(text) if key == "cells" && is_age(text) => "<age>".into(),
        Value::String(text) => {
            let mut text = text.clone();
            for (pattern, word) in &*VARYING {
                text = pattern.replace_all(&text, *word).into_owned();
            }
            text.into()
        }
        other => other.clone(),
    }
}

fn is_age(cell: &str) -> bool {
    AGE.is_match(cell)
}

/// The differences that are allowed.
pub(super) struct Allowed(Vec<Entry>);

struct Entry {
    request: Regex,
    place: Regex,
    reason: String,
    requests: BTreeSet<String>,
}

impl Allowed {
    pub(super) fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(|line| {
            let [request, place, reason] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("three parts with tabs between: {line}");
            };
            let pattern = |text: &str| Regex::new(&format!("^(?:{text})$")).unwrap();
            Entry {
                request: pattern(request),
                place: pattern(place),
                reason: reason.to_owned(),
                requests: BTreeSet::new(),
            }
        });
        Self(entries.collect())
    }

    /// Whether a difference is allowed.
    pub(super) fn allow(&mut self, request: &str, place: &str) -> bool {
        let entry = self
            .0
            .iter_mut()
            .find(|entry| entry.request.is_match(request) && entry.place.is_match(place));
        match entry {
            Some(entry) => {
                entry.requests.insert(request.to_owned());
                true
            }
            None => false,
        }
    }

    /// The entries that allowed nothing.
    pub(super) fn unused(&self) -> Vec<String> {
        let unused = self.0.iter().filter(|entry| entry.requests.is_empty());
        unused
            .map(|entry| format!("{} {}", entry.request, entry.place))
            .collect()
    }

    /// Each reason, with the number of requests whose answers differ for it.
    pub(super) fn table(&self) -> String {
        let mut reasons: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
        for entry in &self.0 {
            reasons
                .entry(&entry.reason)
                .or_default()
                .extend(&entry.requests);
        }
        let mut text = String::new();
        for (reason, requests) in reasons {
            // Writing to a String can't fail.
            let _ = writeln!(text, "| {reason} | {} |", requests.len());
        }
        text
    }
}
