//! Collects the problems of one document, with their positions.

use std::cell::RefCell;

use crate::api::diagnostic::Position;
use crate::api::{Code, Diagnostic, Severity};

use super::tree::Node;
use crate::path::Path;
use crate::small::SmallSort;

/// The problems of one document.
pub(super) struct Problems<'a> {
    location: &'a str,
    root: Option<&'a Node>,
    prefix: Path,
    found: RefCell<Vec<(Path, Diagnostic)>>,
}

impl<'a> Problems<'a> {
    /// Returns an empty list for a document at `location`. `root` is its parsed text, if there is one,
    /// and `prefix` the path from there to the pod if it is an item of a list.
    pub(super) fn new(location: &'a str, root: Option<&'a Node>, prefix: Path) -> Self {
        Self {
            location,
            root,
            prefix,
            found: RefCell::default(),
        }
    }

    /// The place of the document itself.
    pub(super) fn root(&self) -> At<'_> {
        At {
            path: Path::default(),
            problems: self,
        }
    }

    /// Drops problems from index `from` on, if they are a consequence of one at any of `causes`.
    pub(super) fn drop_consequences(&self, from: usize, causes: &[Path]) {
        let mut index = 0;
        self.found.borrow_mut().retain(|(path, _)| {
            index += 1;
            let related = |cause: &Path| cause.contains(path) || path.contains(cause);
            index <= from || !causes.iter().any(related)
        });
    }

    /// Drops problems from index `from` on, at or below any of `places`.
    pub(super) fn drop_below(&self, from: usize, places: &[Path]) {
        let mut index = 0;
        self.found.borrow_mut().retain(|(path, _)| {
            index += 1;
            index <= from || !places.iter().any(|place| place.contains(path))
        });
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.found.borrow().len()
    }

    /// Whether one of them makes the document unusable.
    pub(super) fn has_error(&self) -> bool {
        let found = self.found.borrow();
        found.iter().any(|(_, diagnostic)| diagnostic.is_error())
    }

    /// All of them, in the order of the text.
    pub(super) fn into_sorted(self) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self
            .found
            .into_inner()
            .into_iter()
            .map(|(_, d)| d)
            .collect();
        all.small_sort_by_key(|diagnostic| diagnostic.position.map(|place| place.offset));
        all
    }
}

/// A path in a document, with the list to which its checks report.
pub(super) struct At<'a> {
    pub(super) path: Path,
    pub(super) problems: &'a Problems<'a>,
}

impl At<'_> {
    /// The place of `key` of the value here.
    pub(super) fn key(&self, key: &str) -> Self {
        self.to(self.path.key(key))
    }

    /// The place of item `index` of the value here.
    pub(super) fn index(&self, index: usize) -> Self {
        self.to(self.path.index(index))
    }

    /// The path of the keys in `dotted` from here.
    pub(super) fn dotted(&self, dotted: &str) -> Self {
        self.to(self.path.dotted(dotted))
    }

    /// The path `path` relative to this one.
    pub(super) fn join(&self, path: &Path) -> Self {
        self.to(self.path.join(path))
    }

    fn to(&self, path: Path) -> Self {
        Self {
            path,
            problems: self.problems,
        }
    }

    /// Reports something about the value here.
    pub(super) fn report(&self, severity: Severity, code: Code, message: impl Into<String>) {
        let position = self.locate();
        self.push(severity, code, message.into(), position);
    }

    /// Reports something about the field here itself.
    pub(super) fn report_key(&self, severity: Severity, code: Code, message: impl Into<String>) {
        let root = self.problems.root;
        let position = root.and_then(|root| root.locate_key(&self.full()));
        self.push(severity, code, message.into(), position);
    }

    /// Reports a value that isn't allowed.
    pub(super) fn invalid(&self, message: impl Into<String>) {
        self.report(Severity::Error, Code::InvalidValue, message);
    }

    /// Reports a value that is allowed, but doesn't have the effect that its author expects.
    pub(super) fn warn(&self, message: impl Into<String>) {
        self.report(Severity::Warning, Code::InvalidValue, message);
    }

    /// Reports a missing field without which the pod can't run.
    pub(super) fn required(&self, message: impl Into<String>) {
        self.report(Severity::Error, Code::Required, message);
    }

    /// Reports the second of two things with one name.
    pub(super) fn duplicate(&self, message: impl Into<String>) {
        self.report(Severity::Error, Code::DuplicateName, message);
    }

    /// Reports a value that Kubernetes allows and mirrorlet does not support.
    pub(super) fn unsupported(&self, message: impl Into<String>) {
        self.report(Severity::Error, Code::UnsupportedField, message);
    }

    /// Adds advice to the last problem, wherever that is.
    pub(super) fn help(&self, help: impl Into<String>) {
        if let Some((_, last)) = self.problems.found.borrow_mut().last_mut() {
            last.help = Some(help.into());
        }
    }

    /// Where the value is written.
    pub(super) fn locate(&self) -> Option<Position> {
        self.problems.root?.locate(&self.full())
    }

    fn full(&self) -> Path {
        self.problems.prefix.join(&self.path)
    }

    fn push(&self, severity: Severity, code: Code, message: String, position: Option<Position>) {
        let mut diagnostic = Diagnostic::new(severity, code, self.problems.location, message);
        if let Some(position) = position {
            diagnostic = diagnostic.at(position);
        }
        if !self.path.0.is_empty() {
            diagnostic = diagnostic.field(self.path.to_string());
        }
        let mut found = self.problems.found.borrow_mut();
        found.push((self.path.clone(), diagnostic));
    }
}
