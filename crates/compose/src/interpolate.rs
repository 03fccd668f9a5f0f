//! Interpolates variables in strings: `$VAR`, `${VAR:-default}` and the other forms of compose.
//!
//! Upstream: `template/template.go` of compose-go.

use std::collections::{BTreeMap, BTreeSet};

use mirrorlet_core::api::{Code, Diagnostic};

use crate::tree::{Kind, Node, Place, Tag};

/// Variables by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Defaults inside defaults.
const DEPTH_MAX: usize = 16;

/// Why a string can't be interpolated. Names variables, never values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// `${VAR:?message}` of a variable that isn't set.
    Required { name: String, message: String },
    /// Not a form that compose knows.
    Invalid,
}

/// Interpolates the variables of a string. Unset ones are added to `unset`.
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
/// Upstream: `getFirstBraceClosingIndex`. As there, the character behind a brace is not checked.
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

/// Interpolates the variables of all values of a tree, not of its keys. `wrong` is called with the node
/// of each string that can't be interpolated.
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

/// Gives the variables of services that have no value the one that they have in a model, and collects
/// the values of configs and secrets that come from variables, by their field.
///
/// Upstream: `ResolveEnvironment` of `loader/environment.go`.
pub(crate) fn resolve(root: &mut Node, variables: &Variables, given: &mut Variables) {
    for section in root.entries_mut().into_iter().flatten() {
        let is_file = matches!(section.key.as_str(), "configs" | "secrets");
        for entry in section.value.entries_mut().into_iter().flatten() {
            if is_file {
                let name = entry.value.set("environment").and_then(Node::text);
                if let Some(value) = name.and_then(|name| variables.get(&name)) {
                    let field = format!("{}.{}", section.key, entry.key);
                    given.insert(field, value.clone());
                }
            } else if section.key == "services" {
                resolve_service(&mut entry.value, variables);
            }
        }
    }
}

fn resolve_service(service: &mut Node, variables: &Variables) {
    let keys = service.entries_mut().into_iter().flatten();
    for environment in keys.filter(|entry| entry.key == "environment") {
        for entry in environment.value.entries_mut().into_iter().flatten() {
            let is_open = entry.value.kind == Kind::Null && entry.value.tag == Tag::None;
            if let Some(value) = variables.get(&entry.key).filter(|_| is_open) {
                entry.value.kind = Kind::Text(value.clone());
            }
        }
    }
}

/// The warning about variables that are not set.
pub(crate) fn not_set(place: &Place, names: &BTreeSet<String>) -> Diagnostic {
    let is_one = names.len() == 1;
    let names = names.iter().cloned().collect::<Vec<_>>().join(", ");
    let message = if is_one {
        format!("the variable {names} isn't set and counts as empty")
    } else {
        format!("the variables {names} aren't set and count as empty")
    };
    place.mark(Diagnostic::warning(Code::MissingObject, "", message))
}

/// The error about a text that has no value.
pub(crate) fn bad_variable(node: &Node, wrong: &Wrong) -> Diagnostic {
    let (message, help) = match wrong {
        Wrong::Required { name, message } if message.is_empty() => {
            (format!("the variable {name} must be set"), None)
        }
        Wrong::Required { name, message } => {
            (format!("the variable {name} must be set: {message}"), None)
        }
        Wrong::Invalid => (
            "this is not a valid variable expression".to_owned(),
            Some("write $$ for a $"),
        ),
    };
    let problem = Diagnostic::error(Code::InvalidValue, "", message);
    let problem = match help {
        Some(help) => problem.help(help),
        None => problem,
    };
    node.place.mark(problem)
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
