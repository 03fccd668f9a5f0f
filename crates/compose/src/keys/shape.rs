//! The type of each key's value, and the check of a file against these types.
//!
//! Upstream: `schema/compose-spec.json` of compose-go. Any scalar is a string here.

use mirrorlet_core::api::{Code, Diagnostic};

use crate::tree::{Entry, Kind, Node, Tag};
use crate::words;

use super::{has_below, join, row};

/// The type of a value. `null` matches every type: it counts as absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Any value: it is reported, or has no effect.
    Any,
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Whole,
    /// A number.
    Number,
    /// A size in memory.
    Size,
    /// The mode of a file, in octal digits.
    Mode,
    /// A string, or a list of them.
    Words,
    /// A list of strings.
    Texts,
    /// A mapping of names to strings, or a list of `NAME=VALUE` and `NAME`.
    Pairs,
    /// A mapping of names to strings, or a list of `NAME=VALUE`.
    Values,
    /// A mapping of names to an address or a list of them, or a list of strings.
    Hosts,
    /// A list of strings and mappings.
    Items,
    /// A list of mappings.
    Hooks,
    /// A string, or a list of strings and mappings.
    Files,
    /// A mapping, or a list of its keys.
    Named,
    /// A mapping, or a string.
    Short,
    /// A mapping, `true` or `false`.
    External,
    /// A mapping.
    Map,
}

impl Shape {
    /// The rule for a value, as an error states it.
    fn rule(self) -> &'static str {
        match self {
            Self::Any => "must be a value",
            Self::Text => "must be a string",
            Self::Flag => "must be true or false",
            Self::Whole => "must be a whole number",
            Self::Number => "must be a number",
            Self::Size => "must be a size, for example 64m",
            Self::Mode => "must be a file mode in octal digits, for example 0440",
            Self::Words => "must be a string or a list of strings",
            Self::Texts => "must be a list of strings",
            Self::Pairs => "must be a mapping of names to strings, or a list of NAME=VALUE",
            Self::Values => {
                "must be a mapping of names to strings, or a list of NAME=VALUE, each with a value"
            }
            Self::Hosts => "must be a list of NAME=ADDRESS, or a mapping of names to addresses",
            Self::Items => "must be a list of strings or mappings",
            Self::Hooks => "must be a list of mappings",
            Self::Files => "must be a string, or a list of strings or mappings",
            Self::Named => "must be a mapping, or a list of names",
            Self::Short => "must be a mapping or a string",
            Self::External => "must be true, false or a mapping",
            Self::Map => "must be a mapping",
        }
    }

    /// Whether a value has the form, without the items and entries in it.
    fn fits(self, node: &Node) -> bool {
        let is_list = matches!(node.kind, Kind::List(_));
        let is_map = matches!(node.kind, Kind::Map(_));
        let is_text = node.text().is_some();
        match self {
            Self::Any => true,
            Self::Text => is_text,
            Self::Flag => node.bool().is_some(),
            Self::Whole => node.int().is_some(),
            Self::Number => node.number().is_some(),
            Self::Size => node
                .text()
                .is_some_and(|text| words::bytes(&text).is_some()),
            Self::Mode => node.mode().is_some(),
            Self::Words | Self::Files => is_text || is_list,
            Self::Texts | Self::Items | Self::Hooks => is_list,
            Self::Pairs | Self::Values | Self::Hosts | Self::Named => is_list || is_map,
            Self::Short => is_text || is_map,
            Self::External => is_map || node.bool().is_some(),
            Self::Map => is_map,
        }
    }

    /// Whether an item of a list of the form may be so.
    fn fits_item(self, item: &Node) -> bool {
        let is_map = matches!(item.kind, Kind::Map(_));
        match self {
            Self::Words | Self::Texts | Self::Pairs | Self::Hosts | Self::Named => {
                item.text().is_some()
            }
            Self::Values => item.text().is_some_and(|text| text.contains('=')),
            Self::Items | Self::Files => is_map || item.text().is_some(),
            Self::Hooks => is_map,
            _ => true,
        }
    }

    /// Whether the value of an entry of a mapping of the form may be so.
    fn fits_entry(self, value: &Node) -> bool {
        match self {
            Self::Pairs => value.kind == Kind::Null || value.text().is_some(),
            Self::Values => value.text().is_some(),
            Self::Hosts => {
                Self::Words.fits(value) && value.items().iter().all(|item| item.text().is_some())
            }
            _ => true,
        }
    }
}

/// Reports the values of a file with a wrong type, and removes them: all later steps treat them as
/// absent.
pub(crate) fn check(root: &mut Node, problems: &mut Vec<Diagnostic>) {
    for section in root.entries_mut().into_iter().flatten() {
        entry(section, "", "", problems);
    }
}

fn entry(entry: &mut Entry, path: &str, field: &str, problems: &mut Vec<Diagnostic>) {
    let is_checked = entry.value.kind != Kind::Null && entry.value.tag != Tag::Reset;
    if entry.key.starts_with("x-") || !is_checked {
        return;
    }
    let (named, any) = (join(path, &entry.key), join(path, "*"));
    let field = join(field, &entry.key);
    let (path, shape) = match row(&named) {
        Some(row) => (named, row.shape),
        None => match row(&any) {
            Some(row) => (any, row.shape),
            // The sections have no row of their own.
            None if has_below(&named) => (named, Shape::Map),
            None => return,
        },
    };
    value(&mut entry.value, shape, &path, &field, problems);
}

fn value(node: &mut Node, shape: Shape, path: &str, field: &str, problems: &mut Vec<Diagnostic>) {
    if !shape.fits(node) {
        problems.push(wrong(node, field, shape));
        node.kind = Kind::Null;
        return;
    }
    match &mut node.kind {
        Kind::List(items) => {
            items.retain(|item| {
                let is_fit = item.tag == Tag::Reset || shape.fits_item(item);
                if !is_fit {
                    problems.push(wrong(item, field, shape));
                }
                is_fit
            });
            let below = format!("{path}[]");
            for child in items.iter_mut().filter_map(Node::entries_mut).flatten() {
                entry(child, &below, field, problems);
            }
        }
        Kind::Map(entries) => {
            let has_rows = has_below(path);
            for child in entries {
                if !shape.fits_entry(&child.value) && child.value.tag != Tag::Reset {
                    problems.push(wrong_entry(child, field, shape));
                    child.value.kind = Kind::Null;
                } else if has_rows {
                    entry(child, path, field, problems);
                }
            }
        }
        Kind::Null | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) => {}
    }
}

fn wrong(node: &Node, field: &str, shape: Shape) -> Diagnostic {
    let problem = Diagnostic::error(Code::InvalidValue, "", shape.rule()).field(field);
    node.place.mark(problem)
}

fn wrong_entry(child: &Entry, field: &str, shape: Shape) -> Diagnostic {
    let rule = match shape {
        Shape::Hosts => Shape::Words,
        _ => Shape::Text,
    };
    wrong(&child.value, &join(field, &child.key), rule)
}
