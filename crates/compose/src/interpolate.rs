//! Variables in texts: `$VAR`, `${VAR:-default}` and the other forms of compose.
//!
//! Upstream: `template/template.go` of compose-go.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{Kind, Node};

/// Variables by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Defaults inside defaults.
const DEPTH_MAX: usize = 16;

/// Why a text has no value. Names variables, never values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// `${VAR:?message}` of a variable that isn't set.
    Required { name: String, message: String },
    /// Not a form that compose knows.
    Invalid,
}

/// Replaces the variables of a text. Those that aren't set are added to `unset`.
pub(crate) fn substitute(
    text: &str,
    variables: &Variables,
    unset: &mut BTreeSet<String>,
) -> Result<String, Wrong> {
    replaced(text, variables, unset, 0)
}

fn replaced(
    text: &str,
    variables: &Variables,
    unset: &mut BTreeSet<String>,
    depth: usize,
) -> Result<String, Wrong> {
    if depth > DEPTH_MAX {
        return Err(Wrong::Invalid);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(next) = after.strip_prefix('$') {
            out.push('$');
            rest = next;
        } else if let Some(inner) = after.strip_prefix('{') {
            let end = closing(inner).ok_or(Wrong::Invalid)?;
            out.push_str(&braced(&inner[..end], variables, unset, depth)?);
            rest = &inner[end + 1..];
        } else {
            let end = name_end(after);
            if end == 0 {
                return Err(Wrong::Invalid);
            }
            out.push_str(&value(&after[..end], variables, unset));
            rest = &after[end..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The index of the brace that ends `${…`, with pairs of braces inside it left out, whether they are
/// those of variables or not. If they aren't pairs, it is the last brace of the text.
///
/// Upstream: `getFirstBraceClosingIndex`. As there, the character behind a brace is not looked at.
fn closing(inner: &str) -> Option<usize> {
    let mut depth = 1_usize;
    let mut bytes = inner.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'}' if depth == 1 => return Some(at),
            b'}' => depth -= 1,
            b'{' => {
                depth += 1;
                bytes.next();
            }
            _ => {}
        }
    }
    inner.rfind('}')
}

/// The length of the name that a text begins with.
fn name_end(text: &str) -> usize {
    let is_part = |(at, c): &(usize, char)| {
        c.is_ascii_alphabetic() || *c == '_' || (*at > 0 && c.is_ascii_digit())
    };
    text.char_indices().take_while(is_part).count()
}

fn value(name: &str, variables: &Variables, unset: &mut BTreeSet<String>) -> String {
    variables.get(name).cloned().unwrap_or_else(|| {
        unset.insert(name.to_owned());
        String::new()
    })
}

fn braced(
    inner: &str,
    variables: &Variables,
    unset: &mut BTreeSet<String>,
    depth: usize,
) -> Result<String, Wrong> {
    let end = name_end(inner);
    let (name, operator) = inner.split_at(end);
    if end == 0 {
        return Err(Wrong::Invalid);
    }
    if operator.is_empty() {
        return Ok(value(name, variables, unset));
    }
    // With a colon an empty value counts as none.
    let (colon, operator) = match operator.strip_prefix(':') {
        Some(rest) => (true, rest),
        None => (false, operator),
    };
    let found = variables
        .get(name)
        .filter(|value| !(colon && value.is_empty()));
    let mut chars = operator.chars();
    let sign = chars.next();
    let word = chars.as_str();
    match (sign, found) {
        (Some('-' | '?'), Some(value)) => Ok(value.clone()),
        (Some('-'), None) | (Some('+'), Some(_)) => replaced(word, variables, unset, depth + 1),
        (Some('+'), None) => Ok(String::new()),
        (Some('?'), None) => Err(Wrong::Required {
            name: name.to_owned(),
            message: replaced(word, variables, unset, depth + 1)?,
        }),
        _ => Err(Wrong::Invalid),
    }
}

/// Replaces the variables of all values of a tree; keys stay. `wrong` is called with the node of
/// each text that has no value.
pub(crate) fn interpolate(
    node: &mut Node,
    variables: &Variables,
    unset: &mut dyn FnMut(&Node, BTreeSet<String>),
    wrong: &mut dyn FnMut(&Node, Wrong),
) {
    match &mut node.kind {
        Kind::Text(text) if text.contains('$') => {
            let mut missing = BTreeSet::new();
            match substitute(text, variables, &mut missing) {
                Ok(replaced) => *text = replaced,
                Err(error) => wrong(node, error),
            }
            if !missing.is_empty() {
                unset(node, missing);
            }
        }
        Kind::Null | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) => {}
        Kind::List(items) => {
            for item in items {
                interpolate(item, variables, unset, wrong);
            }
        }
        Kind::Map(entries) => {
            for entry in entries {
                interpolate(&mut entry.value, variables, unset, wrong);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_compose_has_its_value() {
        let variables: Variables = [("A", "a"), ("E", ""), ("B", "b")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        for (text, expected) in [
            ("$A-${B}", "a-b"),
            ("$$A $${A} $", "?"),
            ("$$A $${A}", "$A ${A}"),
            ("${N}", ""),
            ("${N:-x}${N-y}${E:-x}${E-y}${A:-x}", "xyxa"),
            ("${N:-${B}}", "b"),
            ("${N:-${M:-deep}}!", "deep!"),
            ("${A:+set}${E:+set}${E+set}${N+set}", "setset"),
            ("${A:?no}${A?no}", "aa"),
            ("${N:?is needed}", "! N is needed"),
            ("${E:?}", "! E "),
            ("${E?}", ""),
            ("${A:-{\"a\":1}}", "a"),
            ("${N:-{\"a\":1}}!", "{\"a\":1}!"),
            (
                "${N:-{\"a\":{\"b\":\"$B\"}}}-${B}",
                "{\"a\":{\"b\":\"b\"}}-b",
            ),
            ("${N:-{}}", "{}"),
            ("${N:-{}", "{"),
            ("${}", "?"),
            ("${A", "?"),
            ("${A!x}", "?"),
            ("$1", "?"),
        ] {
            let found = match substitute(text, &variables, &mut BTreeSet::new()) {
                Ok(value) => value,
                Err(Wrong::Invalid) => "?".to_owned(),
                Err(Wrong::Required { name, message }) => format!("! {name} {message}"),
            };
            assert_eq!(found, expected, "{text}");
        }
        let mut unset = BTreeSet::new();
        assert!(substitute("$A $N ${M:-x}", &variables, &mut unset).is_ok());
        assert_eq!(unset, BTreeSet::from(["N".to_owned()]));
    }
}
