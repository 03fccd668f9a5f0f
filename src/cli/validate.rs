//! `mirrorlet validate`: what the agent would say about manifests, without an agent.
//!
//! Reads what the agent would read, by the same rules, and draws each problem with its source
//! line. It starts nothing and needs neither an Engine nor root.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;

use mirrorlet_core::api::{Code, Diagnostic, FullName, NodeName};
use mirrorlet_core::app_armor;
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{self, MANIFEST_BYTES_MAX, ParseContext, is_manifest_name};

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
    seen: BTreeMap<FullName, String>,
    missing_path: bool,
    /// Whether this machine enforces `AppArmor` profiles.
    app_armor: bool,
}

/// A file's problems, with its text to draw them on.
struct Found {
    source: Option<String>,
    problems: Vec<Diagnostic>,
}

/// The last line, as data.
#[derive(Debug, Default, Serialize)]
struct Summary {
    files: usize,
    pods: usize,
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
            Ok(_) => self.read_file(path, node_name),
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
                self.read_file(&path, node_name);
            } else {
                self.summary.ignored.push(path.display().to_string());
            }
        }
    }

    fn read_file(&mut self, path: &Path, node_name: &NodeName) {
        match File::open(path).and_then(|mut file| read_bounded(&mut file)) {
            Ok(bytes) => self.read_manifest(&bytes, &path.display().to_string(), node_name),
            Err(error) => self.unreadable(path, &error),
        }
    }

    fn read_manifest(&mut self, bytes: &[u8], location: &str, node_name: &NodeName) {
        let ctx = ParseContext {
            node_name,
            source: PodSource::File,
            location,
        };
        let parsed = manifest::parse_manifest(bytes, &ctx);
        let mut problems = Vec::new();
        for document in parsed.documents {
            problems.extend(document.problems);
            if let Some(accepted) = &document.accepted
                && let Some(why) = app_armor::refusal(&accepted.pod, self.app_armor)
            {
                let message = format!("an agent on this machine would refuse the pod: {why}");
                let mut refused = Diagnostic::warning(Code::InvalidValue, location, message);
                refused.position = document.position;
                problems.push(refused);
            }
            self.summary.pods += usize::from(document.accepted.is_some());
            let Some(name) = document.full_name else {
                continue;
            };
            let place = document.position.map_or_else(
                || location.to_owned(),
                |at| format!("{location}:{}:{}", at.line, at.column),
            );
            if let Some(first) = self.seen.get(&name) {
                let message = format!("pod {name} is already defined by {first}");
                let mut duplicate = Diagnostic::error(Code::DuplicatePod, location, message)
                    .help("the first one runs; give this one another name or namespace");
                duplicate.position = document.position;
                problems.push(duplicate);
            } else {
                self.seen.insert(name, place);
            }
        }
        problems.extend(parsed.problems);
        self.summary.files += 1;
        let source = String::from_utf8(bytes.to_vec()).ok();
        self.add(Found { source, problems });
    }

    fn unreadable(&mut self, path: &Path, error: &io::Error) {
        let message = format!("can't be read: {error}");
        let problem = Diagnostic::error(Code::Unreadable, path.display().to_string(), message);
        self.add(Found {
            source: None,
            problems: vec![problem],
        });
    }

    fn add(&mut self, found: Found) {
        let errors = found.problems.iter().filter(|p| p.is_error()).count();
        self.summary.errors += errors;
        self.summary.warnings += found.problems.len() - errors;
        // Texts of clean files aren't needed any more.
        if !found.problems.is_empty() {
            self.found.push(found);
        }
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
                let drawn = manifest::render(problem, found.source.as_deref(), colour);
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
        writeln!(
            out,
            "{}, {}: {}, {}",
            counted(summary.files, "file"),
            counted(summary.pods, "valid pod"),
            counted(summary.errors, "error"),
            counted(summary.warnings, "warning")
        )
    }

    fn write_json(&self, out: &mut dyn Write) -> anyhow::Result<()> {
        let diagnostics = self.found.iter().flat_map(|found| &found.problems);
        let output = Output {
            diagnostics: diagnostics.collect(),
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
}
