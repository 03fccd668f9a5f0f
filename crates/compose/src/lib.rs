//! Converts Compose projects to manifests. PURE: takes options, environment and contents of files;
//! returns manifests and diagnostics.
//!
//! The stages are *bytes → [`tree`] (values with file and line) → [`interpolate`] → [`canonical`] (long
//! forms) → [`load`] (`extends`, `include`, several files) → [`project`] → [`manifests`]*. [`KEYS`]
//! lists every key of the specification and how it is imported; a key that isn't is a diagnostic with
//! its file and line.
//!
//! An import never reads the disk: it returns the paths that it needs, and is called again with their
//! contents. Diagnostics contain no values of variables, secrets or configs.

#![cfg_attr(
    test,
    expect(clippy::too_many_lines, reason = "a test is one story or one table")
)]

use std::collections::BTreeSet;

use mirrorlet_core::api::{Diagnostic, NodeName};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{ParseContext, parse_manifest};

mod canonical;
mod dotenv;
mod input;
mod interpolate;
mod keys;
mod load;
mod manifests;
mod merge;
mod named;
mod paths;
mod project;
mod tree;
mod value;
mod words;

#[cfg(test)]
mod tests;

pub use input::{Content, Disk, Need, Options, PathKind};
pub use keys::{KEYS, Key, Shape, Support};
pub use named::{ProjectFiles, project_files, unmerged_override};

use load::Loader;
use manifests::Document;
use mirrorlet_core::small::SmallSort;
use project::Project;

/// The result of [`import`].
#[derive(Debug)]
pub enum Import {
    /// More paths must be read: add them to the disk, and call again.
    Needs(BTreeSet<Need>),
    /// The manifests, with problems and notes.
    Done(Imported),
}

/// Manifests of a project.
#[derive(Debug)]
pub struct Imported {
    /// Name of the project.
    pub project: String,
    /// The files, in the order of the project; none if the project can't be read. Files that the agent
    /// would refuse are included, for a user to correct, and an error says so.
    pub files: Vec<ManifestFile>,
    /// The number of their services.
    pub services: usize,
    /// Errors, and keys that aren't imported, by file and line.
    pub problems: Vec<Diagnostic>,
    /// Defaults that differ from those of compose. They are not problems: no value in the files is
    /// ignored.
    pub notes: Vec<Diagnostic>,
}

impl Imported {
    /// Whether the project can't be read, or the agent would refuse a manifest.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(Diagnostic::is_error)
    }

    /// Whether there are no manifests, because the project can't be read.
    pub fn is_unreadable(&self) -> bool {
        is_unreadable(&self.problems)
    }

    /// The first line of each file that is written to a directory: later imports recognize the file by
    /// it.
    pub fn heading(&self) -> String {
        format!(
            "# Written by mirrorlet import compose for the project {}.\n",
            self.project
        )
    }

    /// Whether a file is left over from an earlier import of the project: it has the heading, and this
    /// import has no file of its name.
    pub fn is_left(&self, name: &str, content: &[u8]) -> bool {
        content.starts_with(self.heading().as_bytes())
            && self.files.iter().all(|file| file.name != name)
    }
}

/// A file of manifests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestFile {
    /// Its name.
    pub name: String,
    /// Its documents, as YAML.
    pub text: String,
    /// The number of its documents.
    pub documents: usize,
    /// Whether the file contains a Secret, so that only its owner may read it.
    pub is_secret: bool,
}

/// Imports a compose project.
pub fn import(options: &Options, disk: &Disk) -> Import {
    let mut loader = Loader::new(options, disk);
    let project = Project::load(&mut loader);
    if !loader.needs().is_empty() {
        return Import::Needs(loader.needs());
    }
    let documents = manifests::build(&mut loader, &project);
    if !loader.needs().is_empty() {
        return Import::Needs(loader.needs());
    }
    let (mut problems, notes) = (loader.problems, loader.notes);
    let files = if is_unreadable(&problems) {
        Vec::new()
    } else {
        files(&documents)
    };
    problems.extend(files.iter().flat_map(refused));
    problems.small_sort_by(|one, other| {
        let place = |problem: &Diagnostic| problem.position.map(|at| (at.line, at.column));
        (&one.file, place(one), &one.message).cmp(&(&other.file, place(other), &other.message))
    });
    problems.dedup();
    Import::Done(Imported {
        services: project.services.len(),
        project: project.name,
        files,
        problems,
        notes,
    })
}

/// The first words about a manifest that the agent would refuse.
const REFUSED: &str = "the manifest is refused: ";

fn is_unreadable(problems: &[Diagnostic]) -> bool {
    let mut errors = problems.iter().filter(|problem| problem.is_error());
    errors.any(|error| !error.message.starts_with(REFUSED))
}

/// Finds the parts of a file that the agent would refuse: values that none of the checks above covers.
/// The manifests are written all the same, for a user to correct.
fn refused(file: &ManifestFile) -> Vec<Diagnostic> {
    let node_name = NodeName::from("node");
    let ctx = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location: &file.name,
    };
    let parsed = parse_manifest(file.text.as_bytes(), &ctx);
    let own = parsed.documents.into_iter().flat_map(|d| d.problems);
    let errors = own.chain(parsed.problems).filter(Diagnostic::is_error);
    let refused = |mut problem: Diagnostic| {
        problem.message = format!("{REFUSED}{}", problem.message);
        problem
    };
    errors.map(refused).collect()
}

/// The documents by file, files in the order of their first document.
fn files(documents: &[Document]) -> Vec<ManifestFile> {
    let mut files: Vec<ManifestFile> = Vec::new();
    for document in documents {
        let name = format!("{}.yaml", document.file);
        let text = serde_saphyr::to_string(&document.value).unwrap_or_default();
        let is_secret = document.kind() == "Secret";
        match files.iter_mut().find(|file| file.name == name) {
            Some(file) => {
                file.text.push_str("---\n");
                file.text.push_str(&text);
                file.documents += 1;
                file.is_secret |= is_secret;
            }
            None => files.push(ManifestFile {
                name,
                text,
                documents: 1,
                is_secret,
            }),
        }
    }
    files
}
