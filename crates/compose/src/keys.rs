//! Every key of the compose specification, and how it is imported.
//!
//! `docs/from-compose.md` contains this table; a test keeps the two equal.

use mirrorlet_core::api::diagnostic::Severity;
use mirrorlet_core::api::{Code, Diagnostic};

use crate::tree::{Entry, Kind, Node};

mod shape;
mod table;

pub use shape::Shape;
pub use table::KEYS;

pub(crate) use shape::check;

mirrorlet_core::words! {
    /// Whether a key is carried over.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Support {
        /// The manifests say the same.
        Carried = "carried over",
        /// Most values are imported. Every other value is reported.
        Partly = "in part",
        /// It is reported wherever it stands.
        Lost = "not carried over",
        /// It has no effect at run time, in compose either.
        NoEffect = "no effect",
    }
    /// Its word in the documentation.
    pub fn as_str;
}

/// A key of the compose specification.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its path: names are `*`, items of lists `[]`.
    pub path: &'static str,
    /// Whether it is carried over.
    pub support: Support,
    /// The form of its value.
    pub shape: Shape,
    /// How it is imported, or the reason why it isn't.
    pub text: &'static str,
}

/// Returns the row of a path.
fn row(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Whether the table has rows below a path.
fn has_below(path: &str) -> bool {
    KEYS.iter().any(|key| {
        key.path
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.') || rest.starts_with('['))
    })
}

/// The path of a key below another.
fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Reports the keys of a project that aren't imported, and unknown keys. `services` are the names of
/// the services that are imported; all others are ignored.
pub(crate) fn report<'a>(
    root: &Node,
    services: impl Iterator<Item = (&'a str, &'a Node)>,
    problems: &mut Vec<Diagnostic>,
) {
    for (name, service) in services {
        below(service, "services.*", &format!("services.{name}"), problems);
    }
    for section in root.entries() {
        if section.key != "services" {
            entry(section, "", "", problems);
        }
    }
}

fn below(node: &Node, path: &str, field: &str, problems: &mut Vec<Diagnostic>) {
    match &node.kind {
        Kind::Map(entries) => {
            for child in entries {
                entry(child, path, field, problems);
            }
        }
        Kind::List(items) => {
            let path = format!("{path}[]");
            for item in items.iter().filter(|_| has_below(&path)) {
                below(item, &path, field, problems);
            }
        }
        Kind::Null | Kind::Bool(_) | Kind::Int(_) | Kind::Float(_) | Kind::Text(_) => {}
    }
}

fn entry(entry: &Entry, path: &str, field: &str, problems: &mut Vec<Diagnostic>) {
    if entry.key.starts_with("x-") {
        return;
    }
    let (named, any) = (join(path, &entry.key), join(path, "*"));
    let field = join(field, &entry.key);
    let (path, row) = match row(&named) {
        Some(found) => (named, Some(found)),
        None => match row(&any) {
            Some(found) => (any, Some(found)),
            // The sections have no row of their own.
            None if has_below(&named) => (named, None),
            None => {
                let message = "this is not a key of the compose specification";
                problems.push(warning(
                    entry,
                    &field,
                    Code::UnknownField,
                    message.to_owned(),
                ));
                return;
            }
        },
    };
    match row.map(|row| (row.support, row.text)) {
        Some((Support::Lost, text)) => {
            if !is_default(&entry.value) {
                let message = format!("not carried over: {text}");
                problems.push(warning(entry, &field, Code::UnsupportedField, message));
            }
        }
        Some((Support::NoEffect, _)) => {}
        Some((Support::Carried | Support::Partly, _)) | None => {
            if has_below(&path) {
                below(&entry.value, &path, &field, problems);
            }
        }
    }
}

/// Whether a value equals the default, so that nothing is lost by ignoring it.
pub(crate) fn is_default(node: &Node) -> bool {
    match &node.kind {
        Kind::Null | Kind::Bool(false) => true,
        Kind::List(items) => items.is_empty(),
        Kind::Map(entries) => entries.is_empty(),
        Kind::Text(text) => matches!(text.as_str(), "" | "false" | "default" | "bridge"),
        Kind::Bool(true) | Kind::Int(_) | Kind::Float(_) => false,
    }
}

fn warning(entry: &Entry, field: &str, code: Code, message: String) -> Diagnostic {
    let problem = Diagnostic::new(Severity::Warning, code, "", message).field(field);
    entry.place.mark(problem)
}
