//! `mirrorlet validate`: reports the agent's problems with manifests, without an agent.
//!
//! Reads the files that the agent would read, by the same rules, and renders each problem with its
//! source line, except for Secrets. It starts nothing and needs neither an Engine nor root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use super::{Failure, Outcome};
use crate::config::args::ValidateOutput;
use mirrorlet_core::api::core::Service;
use mirrorlet_core::api::diagnostic::Position;
use mirrorlet_core::api::{Code, Diagnostic, FullName, NodeName, Pod, PodUid, Severity};
use mirrorlet_core::app_armor;
use mirrorlet_core::desired::{Places, PodSource};
use mirrorlet_core::manifest::{
    self, Accepted, Document, DocumentKey, MANIFEST_BYTES_MAX, ParseContext, is_manifest_name,
};
use mirrorlet_core::merge::COMPUTE_UID;
use mirrorlet_core::names::port_problems;
use mirrorlet_core::objects::{Object, ObjectKey, unmet};
use mirrorlet_core::sizes::Size;
use mirrorlet_host::disk;

use mirrorlet_core::small::SmallSort;
use report::{FileReport, Report, Summary};

mod report;

/// The path for standard input.
const STDIN: &str = "-";

/// The rules that depend on the machine and on flags.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules {
    /// Whether this machine enforces `AppArmor` profiles.
    pub app_armor: bool,
    /// Whether warnings fail the validation.
    pub strict: bool,
}

/// Checks manifests: files, directories (read as the agent reads them) and `-` for `stdin`.
///
/// Pods get the names they would have on `node_name`. Fails if `stdin` can't be read or
/// `out` can't be written, if it finds problems, or if a path doesn't exist.
pub fn validate(
    paths: &[PathBuf],
    output: ValidateOutput,
    node_name: &NodeName,
    rules: Rules,
    colour: bool,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
) -> Outcome {
    let mut run = Run {
        rules,
        ..Run::default()
    };
    for path in paths {
        run.read_path(path, node_name, stdin)?;
    }
    let (outcome, report) = run.finish();
    report.write(output, colour, out)?;
    outcome
}

/// Everything found so far.
#[derive(Default)]
struct Run {
    found: Vec<Found>,
    summary: Summary,
    /// Where each pod and object is defined first.
    seen: BTreeMap<DocumentKey, String>,
    /// The first pod of each UID, and where it is defined.
    uids: BTreeMap<PodUid, (FullName, String)>,
    /// The objects; none of a rejected one.
    objects: BTreeMap<ObjectKey, Option<Object>>,
    missing_path: bool,
    rules: Rules,
}

/// A file's problems, and the data to check against other files.
#[derive(Default)]
struct Found {
    file: FileReport,
    /// Its pods that refer to objects, with the place of each reference.
    pods: Vec<(Arc<Pod>, Places)>,
    /// Its Services, with the place of each and of its fields.
    services: Vec<(Arc<Service>, Option<Position>, Places)>,
    size: Size,
    /// Whether it was read as part of a directory, which defines all objects that its pods need.
    in_directory: bool,
}

impl Run {
    fn read_path(
        &mut self,
        path: &Path,
        node_name: &NodeName,
        stdin: &mut dyn Read,
    ) -> anyhow::Result<()> {
        if path == Path::new(STDIN) {
            let bytes = read_bounded(stdin).context("failed to read standard input")?;
            self.read_manifest(&bytes, STDIN, node_name);
            return Ok(());
        }
        match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => self.read_directory(path, node_name),
            Ok(_) => {
                self.read_file(path, node_name);
            }
            Err(error) => {
                self.missing_path |= error.kind() == io::ErrorKind::NotFound;
                self.unreadable(path, &error);
            }
        }
        Ok(())
    }

    fn read_directory(&mut self, directory: &Path, node_name: &NodeName) {
        let entries = fs::read_dir(directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut paths: Vec<PathBuf> = match entries {
            Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => {
                self.unreadable(directory, &error);
                return;
            }
        };
        paths.small_sort();
        let mut all = Size::default();
        for path in paths {
            let is_manifest = path.file_name().and_then(|name| name.to_str());
            if !is_manifest.is_some_and(is_manifest_name) {
                self.summary.ignored.push(path.display().to_string());
            } else if let Err(error) = check_regular(&path) {
                self.unreadable(&path, &error);
            } else if let Some(found) = self.read_file(&path, node_name) {
                found.in_directory = true;
                let sum = all.plus(found.size);
                match sum.too_much(found.file.location()) {
                    Some(problem) => found.file.note(problem),
                    None => all = sum,
                }
            }
        }
    }

    fn read_file(&mut self, path: &Path, node_name: &NodeName) -> Option<&mut Found> {
        let location = path.display().to_string();
        match File::open(path).and_then(|mut file| read_bounded(&mut file)) {
            Ok(bytes) => {
                let is_secret = self.read_manifest(&bytes, &location, node_name);
                let found = self.found.last_mut()?;
                if is_secret && disk::others_can_read(path) {
                    found.file.note(manifest::secret_open_to_others(&location));
                }
                Some(found)
            }
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
        }
    }

    /// Reads one file; returns whether it defines a Secret.
    fn read_manifest(&mut self, bytes: &[u8], location: &str, node_name: &NodeName) -> bool {
        let ctx = ParseContext {
            node_name,
            source: PodSource::File,
            location,
        };
        let parsed = manifest::parse_manifest(bytes, &ctx);
        let source = String::from_utf8(bytes.to_vec()).ok();
        let mut found = Found {
            file: FileReport::new(location, source),
            size: parsed.size(bytes.len()),
            ..Found::default()
        };
        let mut is_secret = false;
        for document in parsed.documents {
            is_secret |= document.is_secret();
            // The pods of a workload differ in their names alone.
            if let Some(pod) = document.pods().first() {
                if let Some(why) = app_armor::refusal(pod, self.rules.app_armor) {
                    let message = format!("an agent on this machine would refuse the pod: {why}");
                    let mut refused = Diagnostic::warning(Code::InvalidValue, location, message);
                    refused.position = document.position;
                    found.file.note(refused);
                }
                let pod = Arc::clone(pod);
                found.pods.push((pod, Arc::clone(&document.places)));
            }
            self.summary.pods += document.pods().len();
            self.summary.note_empty_dirs(document.pods());
            if let Some(Accepted::Object(Object::Service(service))) = &document.accepted {
                let place = document.position;
                let places = Arc::clone(&document.places);
                found.services.push((Arc::clone(service), place, places));
            }
            let key = document.key.as_ref();
            let duplicate = key
                .and_then(|key| self.note_key(key, &document, location))
                .or_else(|| self.note_pods(&document, location))
                .or_else(|| self.note_uid(&document, location));
            let may_be_secret = document.may_be_secret;
            for diagnostic in document.problems {
                // A line with a kind is no secret.
                let may_be_secret = may_be_secret && diagnostic.code != Code::WrongKind;
                found.file.note_at(diagnostic, may_be_secret);
            }
            if let Some(duplicate) = duplicate {
                found.file.note(duplicate);
            }
        }
        let may_be_secret = found.file.mentions("Secret");
        for diagnostic in parsed.problems {
            found.file.note_at(diagnostic, may_be_secret);
        }
        self.summary.files += 1;
        self.found.push(found);
        is_secret
    }

    /// Remembers what a document defines; fails with what is wrong if another one does.
    fn note_key(
        &mut self,
        key: &DocumentKey,
        document: &Document,
        location: &str,
    ) -> Option<Diagnostic> {
        if let Some(first) = self.seen.get(key) {
            let (code, what, help) = match key {
                DocumentKey::Pod(name) => (
                    Code::DuplicatePod,
                    format!("pod {name}"),
                    "the first one runs; give this one another name or namespace",
                ),
                DocumentKey::Workload(key) => (
                    Code::DuplicatePod,
                    key.to_string(),
                    "the pods of the first one run; give this one another name or namespace",
                ),
                DocumentKey::Object(key) => (
                    Code::DuplicateObject,
                    key.words(),
                    "the first one is used; give this one another name or namespace",
                ),
            };
            let message = format!("{what} is already defined by {first}");
            let mut diagnostic = Diagnostic::error(code, location, message).help(help);
            diagnostic.position = document.position;
            return Some(diagnostic);
        }
        self.seen.insert(key.clone(), place(document, location));
        if let DocumentKey::Object(key) = key {
            let object = match &document.accepted {
                Some(Accepted::Object(object)) => Some(object.clone()),
                Some(Accepted::Pod(_) | Accepted::Workload(_) | Accepted::Namespace) | None => None,
            };
            self.summary.objects += usize::from(object.is_some());
            self.objects.insert(key.clone(), object);
        }
        None
    }

    /// Remembers the pods of a workload; fails with what is wrong if another document defines one.
    fn note_pods(&mut self, document: &Document, location: &str) -> Option<Diagnostic> {
        let Some(Accepted::Workload(workload)) = &document.accepted else {
            return None;
        };
        let keys = workload
            .pods
            .iter()
            .map(|pod| DocumentKey::Pod(FullName::of(pod)));
        for claim in workload.set.iter().flat_map(|set| &set.claims) {
            let claim = Object::Claim(Arc::clone(claim));
            self.objects.entry(claim.key()).or_insert(Some(claim));
        }
        // All are remembered.
        let duplicates: Vec<_> = keys
            .filter_map(|key| self.note_key(&key, document, location))
            .collect();
        duplicates.into_iter().next()
    }

    /// Records the UID of a pod; fails with a problem if another one has it. Only an explicitly set UID
    /// can be that of two pods with different names.
    fn note_uid(&mut self, document: &Document, location: &str) -> Option<Diagnostic> {
        let Some(Accepted::Pod(accepted)) = &document.accepted else {
            return None;
        };
        let (uid, name) = (PodUid::of(&accepted.pod), FullName::of(&accepted.pod));
        if let Some((other, first)) = self.uids.get(&uid) {
            let message = format!("pod {name} has the same UID as pod {other}, defined by {first}");
            let mut diagnostic = Diagnostic::error(Code::DuplicatePod, location, message)
                .field("metadata.uid")
                .help(COMPUTE_UID);
            diagnostic.position = document.position;
            return Some(diagnostic);
        }
        self.uids.insert(uid, (name, place(document, location)));
        None
    }

    /// Records unresolved references, once everything is read. If only single files were given, the
    /// missing objects may be in others.
    fn find_unmet(&mut self) {
        let objects = &self.objects;
        let find = |key: &ObjectKey| objects.get(key).cloned().flatten();
        let is_rejected = |key: &ObjectKey| objects.get(key).is_some_and(Option::is_none);
        let pods = self.found.iter().flat_map(|found| &found.pods);
        let pods: Vec<Arc<Pod>> = pods.map(|(pod, _)| Arc::clone(pod)).collect();
        for found in &mut self.found {
            for (service, position, places) in std::mem::take(&mut found.services) {
                let pods = pods.iter().map(|pod| &**pod);
                for mut problem in port_problems(&service, found.file.location(), pods) {
                    let field = problem.field.as_deref().unwrap_or_default();
                    problem.position = places.get(field).copied().or(position);
                    found.file.note(problem);
                }
            }
            for (pod, places) in std::mem::take(&mut found.pods) {
                // A rejected object has problems of its own.
                let unmet = unmet(&pod, find).into_iter();
                for unmet in unmet.filter(|unmet| !is_rejected(&unmet.key)) {
                    let mut problem = unmet.diagnostic(found.file.location());
                    let field = problem.field.as_deref().unwrap_or_default();
                    problem.position = places.get(field).copied();
                    if !found.in_directory {
                        problem.severity = Severity::Warning;
                    }
                    found.file.note(problem);
                }
            }
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        let message = format!("can't be read: {error}");
        let location = path.display().to_string();
        let problem = Diagnostic::error(Code::Unreadable, &location, message);
        let mut file = FileReport::new(&location, None);
        file.note(problem);
        self.found.push(Found {
            file,
            ..Found::default()
        });
    }

    /// The result, once everything is read.
    fn finish(mut self) -> (Outcome, Report) {
        self.find_unmet();
        let files = self.found.into_iter().map(|found| found.file).collect();
        let report = Report::new(files, self.summary);
        let outcome = if self.missing_path {
            Err(Failure::UsagePrinted)
        } else if report.has_errors() || (self.rules.strict && report.has_warnings()) {
            Err(Failure::Problems)
        } else {
            Ok(())
        };
        (outcome, report)
    }
}

/// Where a document begins.
fn place(document: &Document, location: &str) -> String {
    document.position.map_or_else(
        || location.to_owned(),
        |at| format!("{location}:{}:{}", at.line, at.column),
    )
}

/// Refuses files that the agent doesn't open in the manifest directory.
///
/// # Errors
/// It isn't a regular file, or can't be read.
pub(super) fn check_regular(path: &Path) -> io::Result<()> {
    disk::check_regular(&fs::metadata(path)?).map_err(io::Error::other)
}

/// Reads at most one byte more than the maximum size of a manifest, to detect one that is too large.
fn read_bounded(reader: &mut dyn Read) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(MANIFEST_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
