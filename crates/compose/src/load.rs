//! Files → one tree: interpolation, `extends`, `include`, and the merge of several files.
//!
//! Upstream: `loader/loader.go`, `loader/extends.go`, `loader/include.go` of compose-go.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mirrorlet_core::api::diagnostic::Position;
use mirrorlet_core::api::{Code, Diagnostic};
use mirrorlet_core::small::SmallCollect;

use crate::canonical::{self, Base};
use crate::dotenv;
use crate::input::{Content, Disk, Need, Options, PathKind};
use crate::interpolate::{Variables, bad_variable, interpolate, not_set, resolve};
use crate::keys;
use crate::merge::{merge, without_redefined, without_resets};
use crate::paths::absolute;
use crate::tree::{Entry, Kind, Node, Place, parse};

/// Files inside files: `include` and `extends`.
const DEPTH_MAX: usize = 16;
/// Files of a project.
const FILES_MAX: usize = 256;

/// Top-level keys that hold things by name.
pub(crate) const SECTIONS: [&str; 6] = [
    "services", "volumes", "networks", "configs", "secrets", "models",
];

/// The needs and the results of loading.
pub(crate) struct Loader<'a> {
    pub(crate) options: &'a Options,
    disk: &'a Disk,
    needs: RefCell<BTreeSet<Need>>,
    pub(crate) problems: Vec<Diagnostic>,
    /// Differences from compose that are not a problem of a key.
    pub(crate) notes: Vec<Diagnostic>,
    /// Values of configs and secrets of included files that come from variables, by their field.
    pub(crate) given: Variables,
    read: usize,
}

/// A model's files, where relative paths begin, and the variables of its texts.
struct Model<'a> {
    files: &'a [PathBuf],
    dir: &'a Path,
    variables: &'a Variables,
    depth: usize,
}

/// The file that a service is read from.
struct Origin<'a> {
    root: &'a Node,
    file: &'a Path,
    dir: &'a Path,
    variables: &'a Variables,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(options: &'a Options, disk: &'a Disk) -> Self {
        Self {
            options,
            disk,
            needs: RefCell::default(),
            problems: Vec::new(),
            notes: Vec::new(),
            given: Variables::new(),
            read: 0,
        }
    }

    /// The paths that must be read before there is a result.
    pub(crate) fn needs(&self) -> BTreeSet<Need> {
        self.needs.borrow().clone()
    }

    /// The content of a file; none before it is read.
    pub(crate) fn content(&self, path: &Path) -> Option<&'a Content> {
        let found = self.disk.contents.get(path);
        if found.is_none() {
            self.needs
                .borrow_mut()
                .insert(Need::Content(path.to_owned()));
        }
        found
    }

    /// The kind of a path; none before it is read.
    pub(crate) fn kind(&self, path: &Path) -> Option<PathKind> {
        let found = self.disk.kinds.get(path).copied();
        if found.is_none() {
            self.needs.borrow_mut().insert(Need::Kind(path.to_owned()));
        }
        found
    }

    /// A path as messages name it.
    pub(crate) fn shown(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.options.current_dir).ok();
        let below = below.filter(|below| !below.as_os_str().is_empty());
        below.unwrap_or(path).display().to_string()
    }

    fn home(&self) -> Option<&'a str> {
        self.options.home.as_deref()
    }

    /// Adds an error at a place.
    pub(crate) fn error(&mut self, place: &Place, field: &str, message: impl Into<String>) {
        let problem = Diagnostic::error(Code::InvalidValue, "", message).field(field);
        self.problems.push(place.mark(problem));
    }

    /// The environment merged over the variables of the named files, or of `.env` in `dir`.
    pub(crate) fn variables(
        &mut self,
        over: &Variables,
        files: &[PathBuf],
        dir: &Path,
    ) -> Variables {
        let default = [dir.join(".env")];
        let (files, is_named) = match files {
            [] => (&default[..], false),
            files => (files, true),
        };
        let mut found = Variables::new();
        for file in files {
            let known: Variables = found.clone().into_iter().chain(over.clone()).collect_map();
            let none = Variables::new();
            if let Some(values) = self.env_file(file, &known, &none, is_named, None) {
                found.extend(values);
            }
        }
        found.extend(over.clone());
        found
    }

    /// The variables of a file; none if it is missing and optional. `place` is the position that names
    /// the file; `known` and `before` are those of [`dotenv::parse`].
    pub(crate) fn env_file(
        &mut self,
        file: &Path,
        known: &Variables,
        before: &Variables,
        is_required: bool,
        place: Option<&Place>,
    ) -> Option<Vec<(String, String)>> {
        let shown = self.shown(file);
        let text = self.text(file, is_required, place)?;
        let mut unset = BTreeMap::new();
        let parsed = dotenv::parse(&text, known, before, &mut unset);
        for (line, names) in &unset {
            let place = line_of(&shown, &text, *line);
            self.problems.push(not_set(&place, names));
        }
        match parsed {
            Ok(values) => Some(values),
            Err(bad) => {
                let message = format!("line {}: {}", bad.line, bad.why);
                self.problems
                    .push(Diagnostic::error(Code::Syntax, shown, message));
                None
            }
        }
    }

    /// The text of a file that is named at position `place`.
    pub(crate) fn text(
        &mut self,
        file: &Path,
        is_required: bool,
        place: Option<&Place>,
    ) -> Option<String> {
        let why = match self.content(file)? {
            Content::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => return Some(text.to_owned()),
                Err(_) => "is not UTF-8 text".to_owned(),
            },
            Content::Missing if !is_required => return None,
            Content::Missing => "does not exist".to_owned(),
            Content::Failed(why) => format!("can't be read: {why}"),
        };
        self.unreadable(file, &why, place);
        None
    }

    /// Adds an error about a file that is named at position `place`.
    pub(crate) fn unreadable(&mut self, file: &Path, why: &str, place: Option<&Place>) {
        let shown = self.shown(file);
        self.problems.push(match place {
            Some(place) => {
                let message = format!("the file {shown} {why}");
                place.mark(Diagnostic::error(Code::Unreadable, "", message))
            }
            None => Diagnostic::error(Code::Unreadable, shown, format!("the file {why}")),
        });
    }

    /// Loads the project that the files of the command line describe.
    pub(crate) fn project(&mut self, dir: &Path, variables: &Variables) -> Node {
        let files = self.options.files.clone();
        let model = Model {
            files: &files,
            dir,
            variables,
            depth: 0,
        };
        let mut root = self.model(&model);
        without_resets(&mut root);
        root
    }

    fn model(&mut self, model: &Model<'_>) -> Node {
        let place = Place {
            file: Arc::from(""),
            position: None,
        };
        let mut merged = Node::new(Kind::Map(Vec::new()), &place);
        for file in model.files {
            let Some(root) = self.file(file, model.variables, None) else {
                continue;
            };
            let mut ready = self.resolved(&root, file, model);
            if let Some(include) = ready.remove("include") {
                let included = self.included(&include.value, model);
                self.import(&mut ready, included);
            }
            merged = merge(merged, ready, "");
        }
        // An included model has variables of its own.
        if model.depth > 0 {
            resolve(&mut merged, model.variables, &mut self.given);
        }
        merged
    }

    /// A file, parsed and with its variables replaced. `place` is where it is named.
    fn file(&mut self, file: &Path, variables: &Variables, place: Option<&Place>) -> Option<Node> {
        self.read += 1;
        if self.read > FILES_MAX {
            if self.read == FILES_MAX + 1 {
                let message = format!("the project has more than {FILES_MAX} files");
                let problem = Diagnostic::error(Code::TooLarge, self.shown(file), message);
                self.problems.push(problem);
            }
            return None;
        }
        let bytes = match self.content(file)? {
            Content::Bytes(bytes) => bytes,
            Content::Missing => {
                self.unreadable(file, "does not exist", place);
                return None;
            }
            Content::Failed(why) => {
                self.unreadable(file, &format!("can't be read: {why}"), place);
                return None;
            }
        };
        let shown: Arc<str> = self.shown(file).into();
        let mut root = match parse(bytes, &shown) {
            Ok(root) => root,
            Err(problem) => {
                self.problems.push(*problem);
                return None;
            }
        };
        if !matches!(root.kind, Kind::Map(_)) {
            let place = root.place.clone();
            self.error(&place, "", "a compose file must be a mapping with services");
            return None;
        }
        let mut found = Vec::new();
        let problems = RefCell::new(&mut found);
        interpolate(
            &mut root,
            variables,
            &mut |node, names| problems.borrow_mut().push(not_set(&node.place, &names)),
            &mut |node, wrong| problems.borrow_mut().push(bad_variable(node, &wrong)),
        );
        self.problems.extend(found);
        keys::check(&mut root, &mut self.problems);
        Some(root)
    }

    /// A file's tree with services in long forms, and what they extend merged into them.
    fn resolved(&mut self, root: &Node, file: &Path, model: &Model<'_>) -> Node {
        let origin = Origin {
            root,
            file,
            dir: model.dir,
            variables: model.variables,
        };
        let mut ready = root.clone();
        let base = Base {
            dir: model.dir,
            home: self.home(),
        };
        for section in ready.entries_mut().into_iter().flatten() {
            let is_file = matches!(section.key.as_str(), "configs" | "secrets");
            for entry in section.value.entries_mut().into_iter().flatten() {
                if section.key == "services" {
                    let mut chain = Vec::new();
                    if let Some(service) = self.service(&origin, &entry.key, None, &mut chain) {
                        entry.value = service;
                    }
                } else if SECTIONS.contains(&section.key.as_str()) {
                    canonical::labels(&mut entry.value);
                }
                if is_file {
                    canonical::file_of(&mut entry.value, base);
                } else if section.key == "volumes" {
                    canonical::device_of(&mut entry.value, base);
                }
            }
        }
        ready
    }

    /// A service of a file in its long form, merged over what it extends.
    fn service(
        &mut self,
        origin: &Origin<'_>,
        name: &str,
        asked: Option<&Place>,
        chain: &mut Vec<(PathBuf, String)>,
    ) -> Option<Node> {
        let found = origin.root.at(&["services", name]);
        let Some(found) = found else {
            if let Some(place) = asked {
                let message = format!("extends a service that doesn't exist: {name}");
                self.error(place, "extends", message);
            }
            return None;
        };
        let mut service = found.clone();
        let base = Base {
            dir: origin.dir,
            home: self.home(),
        };
        canonical::service(&mut service, base, &mut self.problems);
        self.note_redefined(name, &mut service);
        let Some(extends) = service.remove("extends") else {
            return Some(service);
        };
        let link = (origin.file.to_owned(), name.to_owned());
        if chain.contains(&link) || chain.len() > DEPTH_MAX {
            self.error(&extends.place, "extends", "a service extends itself");
            return Some(service);
        }
        chain.push(link);
        match self.extended(origin, &extends.value, chain) {
            Some(base) => Some(merge(base, service, "services.*")),
            None => Some(service),
        }
    }

    /// Removes the mounts of a service that later mounts in the same file redefine, and adds a note for
    /// each. A service that others extend is read more than once.
    fn note_redefined(&mut self, name: &str, service: &mut Node) {
        for (key, item) in without_redefined(service) {
            let message = "ignored: a later item of the list has the same path, and Compose uses the later one";
            let note = Diagnostic::warning(Code::Ignored, "", message)
                .field(format!("services.{name}.{key}"))
                .help("remove one of them, or give it another path");
            let note = item.place.mark(note);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
    }

    fn extended(
        &mut self,
        origin: &Origin<'_>,
        extends: &Node,
        chain: &mut Vec<(PathBuf, String)>,
    ) -> Option<Node> {
        let Some(name) = extends.get("service").and_then(Node::text) else {
            self.error(&extends.place, "extends", "the service's name is missing");
            return None;
        };
        let Some(file) = extends.set("file").and_then(Node::text) else {
            return self.service(origin, &name, Some(&extends.place), chain);
        };
        let path = absolute(&file, origin.dir, self.home());
        let root = self.file(&path, origin.variables, Some(&extends.place))?;
        let other = Origin {
            root: &root,
            file: &path,
            dir: path.parent()?,
            variables: origin.variables,
        };
        self.service(&other, &name, Some(&extends.place), chain)
    }

    /// The models that `include` names, each with its own directory and variables.
    fn included(&mut self, include: &Node, model: &Model<'_>) -> Vec<Node> {
        if model.depth >= DEPTH_MAX {
            self.error(
                &include.place,
                "include",
                "files include one another too deeply",
            );
            return Vec::new();
        }
        let mut found = Vec::new();
        for item in include.items() {
            let at = |text: &String| absolute(text, model.dir, self.options.home.as_deref());
            let written = item.get("path").unwrap_or(item);
            let files: Vec<PathBuf> = written.texts().iter().map(at).collect();
            let dir = item.set("project_directory").and_then(Node::text);
            let first = files.first().and_then(|file| file.parent());
            let Some(dir) = dir.as_ref().map(at).or(first.map(Path::to_owned)) else {
                self.error(&item.place, "include", "the path of the file is missing");
                continue;
            };
            let env_files = item.set("env_file").map(Node::texts).unwrap_or_default();
            let env_files: Vec<PathBuf> = env_files.iter().map(at).collect();
            let variables = self.variables(model.variables, &env_files, &dir);
            for file in &files {
                if self.content(file) == Some(&Content::Missing) {
                    self.unreadable(file, "does not exist", Some(&item.place));
                }
            }
            found.push(self.model(&Model {
                files: &files,
                dir: &dir,
                variables: &variables,
                depth: model.depth + 1,
            }));
        }
        found
    }

    /// Adds what included models define to a file's tree.
    fn import(&mut self, into: &mut Node, included: Vec<Node>) {
        for root in included {
            let Kind::Map(sections) = root.kind else {
                continue;
            };
            for section in sections {
                if !SECTIONS.contains(&section.key.as_str()) {
                    continue;
                }
                if into.set(&section.key).is_none() {
                    let empty = Node::new(Kind::Map(Vec::new()), &section.value.place);
                    into.put(Entry::new(section.key.as_str(), empty));
                }
                let Kind::Map(entries) = section.value.kind else {
                    continue;
                };
                for entry in entries {
                    self.import_one(into, &section.key, &entry);
                }
            }
        }
    }

    fn import_one(&mut self, into: &mut Node, section: &str, entry: &Entry) {
        let known = into.at(&[section, &entry.key]);
        if known.is_some_and(|known| *known != entry.value) {
            let message = "an included file defines this with different content";
            let place = into
                .get(section)
                .and_then(|s| s.entry(&entry.key))
                .map_or_else(|| entry.place.clone(), |e| e.place.clone());
            self.error(&place, &format!("{section}.{}", entry.key), message);
            return;
        }
        let sections = into.entries_mut().into_iter().flatten();
        for own in sections.filter(|own| own.key == section) {
            own.value.put(entry.clone());
        }
    }
}

/// A line of a file, by its number from 1.
fn line_of(file: &str, text: &str, line: usize) -> Place {
    let before = text.split_inclusive('\n').take(line.saturating_sub(1));
    let position = Position {
        line: u32::try_from(line).unwrap_or(u32::MAX),
        column: 1,
        offset: before.map(str::len).sum(),
        length: 0,
    };
    Place {
        file: Arc::from(file),
        position: Some(position),
    }
}
