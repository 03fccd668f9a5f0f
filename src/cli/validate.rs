//! `mirrorlet validate`: what the agent would say about manifests, without an agent.
//!
//! Reads what the agent would read, by the same rules, and draws each problem with its source
//! line, but for Secrets. It starts nothing and needs neither an Engine nor root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use serde::Serialize;

use mirrorlet_core::api::diagnostic::Position;
use mirrorlet_core::api::{Code, Diagnostic, NodeName, Pod, Severity};
use mirrorlet_core::app_armor;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{
    self, Accepted, Document, DocumentKey, MANIFEST_BYTES_MAX, ParseContext, is_manifest_name,
};
use mirrorlet_core::objects::{Object, ObjectKey, unmet};
use mirrorlet_host::disk;

/// The path that stands for standard input.
const STDIN: &str = "-";

/// How the result is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For people: each problem with its source line, then a line that sums up.
    Text,
    /// For programs: one object with `diagnostics` and `summary`.
    Json,
}

/// The result of the validation; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// No error; there may be warnings.
    Fine,
    /// At least one error.
    Problems,
    /// A path that was named doesn't exist.
    Usage,
}

impl Outcome {
    /// The exit code: 0, 1 or 2.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Problems => 1,
            Self::Usage => 2,
        }
    }
}

/// Checks manifests: files, directories (read as the agent reads them) and `-` for `stdin`.
///
/// Pods get the names they would have on `node_name`; `app_armor` tells whether the machine enforces
/// `AppArmor` profiles. Fails only when `stdin` can't be read or
/// `out` can't be written; everything else is in what is written and in the [`Outcome`].
pub fn validate(
    paths: &[PathBuf],
    format: Format,
    node_name: &NodeName,
    app_armor: bool,
    colour: bool,
    stdin: &mut dyn Read,
    out: &mut dyn Write,
) -> anyhow::Result<Outcome> {
    let mut run = Run {
        app_armor,
        ..Run::default()
    };
    for path in paths {
        run.read_path(path, node_name, stdin)?;
    }
    run.find_unmet();
    run.sum_up();
    match format {
        Format::Text => run.write_text(colour, out)?,
        Format::Json => run.write_json(out)?,
    }
    Ok(run.outcome())
}

/// Everything found so far.
#[derive(Default)]
struct Run {
    found: Vec<Found>,
    summary: Summary,
    /// Where each pod and object is defined first.
    seen: BTreeMap<DocumentKey, String>,
    /// The objects; none of a rejected one.
    objects: BTreeMap<ObjectKey, Option<Object>>,
    missing_path: bool,
    /// Whether this machine enforces `AppArmor` profiles.
    app_armor: bool,
}

/// A file's problems, with its text to draw them on.
#[derive(Default)]
struct Found {
    location: String,
    source: Option<String>,
    problems: Vec<Problem>,
    /// Its pods that refer to objects, with the place of each reference.
    pods: Vec<(Arc<Pod>, BTreeMap<String, Position>)>,
    /// Whether it was read as part of a directory, which defines all objects that its pods need.
    in_directory: bool,
}

impl Found {
    fn note(&mut self, diagnostic: Diagnostic) {
        self.problems.push(Problem {
            diagnostic,
            may_be_secret: false,
        });
    }
}

/// A problem, and whether the line that it is about may be shown.
struct Problem {
    diagnostic: Diagnostic,
    may_be_secret: bool,
}

/// The last line, as data.
#[derive(Debug, Default, Serialize)]
struct Summary {
    files: usize,
    pods: usize,
    objects: usize,
    errors: usize,
    warnings: usize,
    ignored: Vec<String>,
}

/// The document of `-o json`.
#[derive(Serialize)]
struct Output<'a> {
    diagnostics: Vec<&'a Diagnostic>,
    summary: &'a Summary,
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
        paths.sort();
        for path in paths {
            if is_manifest(&path) {
                if let Some(found) = self.read_file(&path, node_name) {
                    found.in_directory = true;
                }
            } else {
                self.summary.ignored.push(path.display().to_string());
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
                    found.note(manifest::secret_open_to_others(&location));
                }
                Some(found)
            }
            Err(error) => {
                self.unreadable(path, &error);
                None
            }
        }
    }

    /// Reads one file, and tells whether it defines a Secret.
    fn read_manifest(&mut self, bytes: &[u8], location: &str, node_name: &NodeName) -> bool {
        let ctx = ParseContext {
            node_name,
            source: PodSource::File,
            location,
        };
        let parsed = manifest::parse_manifest(bytes, &ctx);
        let mut found = Found {
            location: location.to_owned(),
            source: String::from_utf8(bytes.to_vec()).ok(),
            ..Found::default()
        };
        let mut is_secret = false;
        for document in parsed.documents {
            is_secret |= document.is_secret();
            if let Some(accepted) = document.pod() {
                self.summary.pods += 1;
                if let Some(why) = app_armor::refusal(&accepted.pod, self.app_armor) {
                    let message = format!("an agent on this machine would refuse the pod: {why}");
                    let mut refused = Diagnostic::warning(Code::InvalidValue, location, message);
                    refused.position = document.position;
                    found.note(refused);
                }
                let pod = Arc::clone(&accepted.pod);
                found.pods.push((pod, document.places.clone()));
            }
            let duplicate = document.key.as_ref();
            let duplicate = duplicate.and_then(|key| self.note_key(key, &document, location));
            let may_be_secret = document.may_be_secret;
            let problems = document.problems.into_iter();
            found.problems.extend(problems.map(|diagnostic| Problem {
                // A line with a kind is no secret.
                may_be_secret: may_be_secret && diagnostic.code != Code::WrongKind,
                diagnostic,
            }));
            found.problems.extend(duplicate);
        }
        let may_be_secret = found
            .source
            .as_ref()
            .is_none_or(|text| text.contains("Secret"));
        found
            .problems
            .extend(parsed.problems.into_iter().map(|diagnostic| Problem {
                diagnostic,
                may_be_secret,
            }));
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
    ) -> Option<Problem> {
        let place = document.position.map_or_else(
            || location.to_owned(),
            |at| format!("{location}:{}:{}", at.line, at.column),
        );
        if let Some(first) = self.seen.get(key) {
            let (code, what, help) = match key {
                DocumentKey::Pod(name) => (
                    Code::DuplicatePod,
                    format!("pod {name}"),
                    "the first one runs; give this one another name or namespace",
                ),
                DocumentKey::Object(key) => (
                    Code::DuplicateObject,
                    format!("{} {}/{}", key.kind.as_str(), key.namespace, key.name),
                    "the first one is used; give this one another name or namespace",
                ),
            };
            let message = format!("{what} is already defined by {first}");
            let mut diagnostic = Diagnostic::error(code, location, message).help(help);
            diagnostic.position = document.position;
            return Some(Problem {
                diagnostic,
                may_be_secret: false,
            });
        }
        self.seen.insert(key.clone(), place);
        if let DocumentKey::Object(key) = key {
            let object = match &document.accepted {
                Some(Accepted::Object(object)) => Some(object.clone()),
                Some(Accepted::Pod(_) | Accepted::Namespace) | None => None,
            };
            self.summary.objects += usize::from(object.is_some());
            self.objects.insert(key.clone(), object);
        }
        None
    }

    /// Notes the references that lead nowhere, once everything is read. What a file lacks that was
    /// named alone may be in another one.
    fn find_unmet(&mut self) {
        let objects = &self.objects;
        let find = |key: &ObjectKey| objects.get(key).cloned().flatten();
        let is_rejected = |key: &ObjectKey| objects.get(key).is_some_and(Option::is_none);
        for found in &mut self.found {
            for (pod, places) in std::mem::take(&mut found.pods) {
                // A rejected object has problems of its own.
                let unmet = unmet(&pod, find).into_iter();
                for unmet in unmet.filter(|unmet| !is_rejected(&unmet.key)) {
                    let mut problem = unmet.diagnostic(&found.location);
                    let field = problem.field.as_deref().unwrap_or_default();
                    problem.position = places.get(field).copied();
                    if !found.in_directory {
                        problem.severity = Severity::Warning;
                    }
                    found.note(problem);
                }
            }
        }
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        let message = format!("can't be read: {error}");
        let location = path.display().to_string();
        let problem = Diagnostic::error(Code::Unreadable, &location, message);
        let mut found = Found {
            location,
            ..Found::default()
        };
        found.note(problem);
        self.found.push(found);
    }

    /// Counts what was found.
    fn sum_up(&mut self) {
        let problems = || self.found.iter().flat_map(|found| &found.problems);
        let errors = problems().filter(|p| p.diagnostic.is_error()).count();
        self.summary.errors = errors;
        self.summary.warnings = problems().count() - errors;
    }

    fn outcome(&self) -> Outcome {
        if self.missing_path {
            Outcome::Usage
        } else if self.summary.errors > 0 {
            Outcome::Problems
        } else {
            Outcome::Fine
        }
    }

    fn write_text(&self, colour: bool, out: &mut dyn Write) -> io::Result<()> {
        for found in &self.found {
            for problem in &found.problems {
                let source = found.source.as_deref().filter(|_| !problem.may_be_secret);
                let drawn = manifest::render(&problem.diagnostic, source, colour);
                writeln!(out, "{drawn}\n")?;
            }
        }
        for name in &self.summary.ignored {
            writeln!(
                out,
                "{name}: ignored: not a visible file that ends in .yaml, .yml or .json"
            )?;
        }
        let summary = &self.summary;
        let objects = match summary.objects {
            0 => String::new(),
            objects => format!(", {}", counted(objects, "object")),
        };
        writeln!(
            out,
            "{}, {}{objects}: {}, {}",
            counted(summary.files, "file"),
            counted(summary.pods, "valid pod"),
            counted(summary.errors, "error"),
            counted(summary.warnings, "warning")
        )
    }

    fn write_json(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let diagnostics = self.found.iter().flat_map(|found| &found.problems);
        let output = Output {
            diagnostics: diagnostics.map(|problem| &problem.diagnostic).collect(),
            summary: &self.summary,
        };
        serde_json::to_writer_pretty(&mut *out, &output)?;
        writeln!(out)?;
        Ok(())
    }
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Whether the agent reads this entry of its directory.
fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(is_manifest_name) && !path.is_dir()
}

/// Reads at most one byte more than a manifest may have: enough to know that it is too large.
fn read_bounded(reader: &mut dyn Read) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(MANIFEST_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    reader.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const GOOD: &str = "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: a, image: a}]}}\n";

    fn run(paths: &[PathBuf], format: Format, stdin: &str) -> (Outcome, String) {
        let node_name = NodeName::from("n");
        let mut out = Vec::new();
        let outcome = validate(
            paths,
            format,
            &node_name,
            false,
            false,
            &mut stdin.as_bytes(),
            &mut out,
        )
        .unwrap();
        (outcome, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_directory_is_read_as_the_agent_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("a.yaml", GOOD),
            ("b.yml", GOOD),
            ("c.json", "{}"),
            (".d.yaml", "?"),
            ("e.yaml.bak", "?"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        fs::create_dir(dir.path().join("f.yaml")).unwrap();
        let paths = [dir.path().to_path_buf()];
        let (outcome, text) = run(&paths, Format::Text, "");
        assert_eq!(outcome.exit_code(), 1);
        let text = text.replace(&dir.path().display().to_string(), "DIR");
        insta::assert_snapshot!(text);
        let (_, json) = run(&paths, Format::Json, "");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let codes: Vec<&str> = json["diagnostics"]
            .as_array()
            .unwrap()
            .iter()
            .map(|d| d["code"].as_str().unwrap())
            .collect();
        assert_eq!(codes, ["duplicate-pod", "wrong-kind", "wrong-kind"]);
        assert_eq!(json["summary"]["errors"], 3);
        assert_eq!(json["summary"]["ignored"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_profile_that_this_machine_does_not_enforce_is_warned_of() {
        let text = GOOD.replace(
            "spec: {",
            "spec: {securityContext: {appArmorProfile: {type: RuntimeDefault}}, ",
        );
        let (outcome, text) = run(&[PathBuf::from(STDIN)], Format::Text, &text);
        // tenants A1
        assert_eq!(outcome.exit_code(), 0);
        let words =
            "an agent on this machine would refuse the pod: AppArmor is not enabled on the host";
        assert!(text.contains(words) && text.contains("1 warning"), "{text}");
    }

    #[test]
    fn exit_codes_tell_fine_from_wrong_from_missing() {
        let stdin = [PathBuf::from(STDIN)];
        let (outcome, text) = run(&stdin, Format::Text, GOOD);
        assert_eq!(outcome.exit_code(), 0);
        assert_eq!(text, "1 file, 1 valid pod: 0 errors, 0 warnings\n");
        let warned = GOOD.replace("spec: {", "spec: {nodeSelector: {a: b}, ");
        let (outcome, text) = run(&stdin, Format::Text, &warned);
        assert_eq!(outcome.exit_code(), 0);
        assert!(text.ends_with("0 errors, 1 warning\n"), "{text}");
        assert_eq!(run(&stdin, Format::Text, "").0.exit_code(), 1);
        let missing = [PathBuf::from("no/such/file.yaml")];
        assert_eq!(run(&missing, Format::Text, "").0.exit_code(), 2);
    }

    #[test]
    fn references_of_a_directory_are_followed_and_no_secret_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let web = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: web
    image: web:1
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: settings, key: port}}}
    - {name: B, valueFrom: {secretKeyRef: {name: login, key: password}}}
    - {name: C, valueFrom: {secretKeyRef: {name: other, key: k, optional: true}}}
    envFrom:
    - configMapRef: {name: nowhere}
    - secretRef: {name: broken}
";
        let secrets = "apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: hunter2, password: hunter2}
---
apiVersion: v1
kind: Secret
metadata: {name: broken}
data: {password: hunter2!}
";
        let settings = "{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {colour: green}}\n";
        for (name, text) in [
            ("web.yaml", web),
            ("secrets.yaml", secrets),
            ("settings.yaml", settings),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let (outcome, text) = run(&[dir.path().to_path_buf()], Format::Text, "");
        assert_eq!(outcome.exit_code(), 1);
        let text = text.replace(&dir.path().display().to_string(), "DIR");
        // box 1, box 4
        assert!(!text.contains("hunter2"), "{text}");
        insta::assert_snapshot!(text);
        // Of a file that is named alone, others may define what it needs.
        let (outcome, text) = run(&[dir.path().join("web.yaml")], Format::Text, "");
        assert_eq!(outcome.exit_code(), 0, "{text}");
        assert!(text.ends_with("0 errors, 4 warnings\n"), "{text}");
        let hidden = format!("{secrets}---\n]");
        let (_, text) = run(&[PathBuf::from(STDIN)], Format::Text, &hidden);
        assert!(
            text.contains("error[half-written]") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
