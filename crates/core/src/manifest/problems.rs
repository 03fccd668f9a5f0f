//! Gathers what is wrong with one document, and finds where it is written.

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
    /// The way from the document's object to the part of it that is looked at.
    base: Path,
    found: Vec<(Path, Diagnostic)>,
}

impl<'a> Problems<'a> {
    /// Of a document at `location`. `root` is its text, if there is one, and `prefix` the way from
    /// there to the pod when it is an item of a list.
    pub(super) fn new(location: &'a str, root: Option<&'a Node>, prefix: Path) -> Self {
        Self {
            location,
            root,
            prefix,
            base: Path::default(),
            found: Vec::new(),
        }
    }

    /// Has the paths that come be those within the part of the object at `base`: a pod's template
    /// is looked at as the pod is.
    pub(super) fn within(&mut self, base: Path) {
        self.base = base;
    }

    /// Something at the value of `path`.
    pub(super) fn add(&mut self, severity: Severity, code: Code, path: &Path, message: String) {
        self.push(severity, code, path, message, false);
    }

    /// Something about the field at `path` itself.
    pub(super) fn add_at_key(
        &mut self,
        severity: Severity,
        code: Code,
        path: &Path,
        message: String,
    ) {
        self.push(severity, code, path, message, true);
    }

    /// A value that isn't allowed.
    pub(super) fn invalid(&mut self, path: &Path, message: impl Into<String>) {
        self.add(Severity::Error, Code::InvalidValue, path, message.into());
    }

    /// A value that is allowed, and has not the effect that its author must expect.
    pub(super) fn warn(&mut self, path: &Path, message: impl Into<String>) {
        self.add(Severity::Warning, Code::InvalidValue, path, message.into());
    }

    /// A field without which the pod can't run.
    pub(super) fn required(&mut self, path: &Path, message: impl Into<String>) {
        self.add(Severity::Error, Code::Required, path, message.into());
    }

    /// The second of two things with one name.
    pub(super) fn duplicate(&mut self, path: &Path, message: impl Into<String>) {
        self.add(Severity::Error, Code::DuplicateName, path, message.into());
    }

    /// Advice on the last problem.
    pub(super) fn help(&mut self, help: impl Into<String>) {
        if let Some((_, last)) = self.found.last_mut() {
            last.help = Some(help.into());
        }
    }

    /// Forgets problems found since there were `from`, if they are a consequence of one at any of
    /// `causes`.
    pub(super) fn drop_consequences(&mut self, from: usize, causes: &[Path]) {
        let mut index = 0;
        self.found.retain(|(path, _)| {
            index += 1;
            let related = |cause: &Path| cause.contains(path) || path.contains(cause);
            index <= from || !causes.iter().any(related)
        });
    }

    /// Forgets problems found since there were `from`, at or below any of `places`.
    pub(super) fn drop_below(&mut self, from: usize, places: &[Path]) {
        let mut index = 0;
        self.found.retain(|(path, _)| {
            index += 1;
            index <= from || !places.iter().any(|place| place.contains(path))
        });
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether one of them makes the document unusable.
    pub(super) fn has_error(&self) -> bool {
        self.found
            .iter()
            .any(|(_, diagnostic)| diagnostic.is_error())
    }

    /// All of them, in the order of the text.
    pub(super) fn into_sorted(self) -> Vec<Diagnostic> {
        let mut all: Vec<Diagnostic> = self.found.into_iter().map(|(_, d)| d).collect();
        all.small_sort_by_key(|diagnostic| diagnostic.position.map(|place| place.offset));
        all
    }

    /// Where the value at `path` is written.
    pub(super) fn locate(&self, path: &Path) -> Option<Position> {
        self.root?.locate(&self.full(path))
    }

    fn full(&self, path: &Path) -> Path {
        let mut full = self.prefix.clone();
        full.0.extend(self.base.0.iter().chain(&path.0).cloned());
        full
    }

    fn push(&mut self, severity: Severity, code: Code, path: &Path, message: String, at_key: bool) {
        let full = self.full(path);
        let mut diagnostic = Diagnostic::new(severity, code, self.location, message);
        let position = self.root.and_then(|root| {
            if at_key {
                root.locate_key(&full)
            } else {
                root.locate(&full)
            }
        });
        if let Some(position) = position {
            diagnostic = diagnostic.at(position);
        }
        let mut field = self.base.clone();
        field.0.extend(path.0.iter().cloned());
        if !field.0.is_empty() {
            diagnostic = diagnostic.field(field.to_string());
        }
        self.found.push((field, diagnostic));
    }
}
