//! The result of a validation, as text and as JSON.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use crate::cli::table::counted;
use crate::config::args::ValidateOutput;

use mirrorlet_core::api::{Diagnostic, Pod};
use mirrorlet_core::manifest;
use mirrorlet_core::volumes::empty_dirs;

/// The problems of one file, with its text for rendering them.
#[derive(Default)]
pub(super) struct FileReport {
    location: String,
    source: Option<String>,
    problems: Vec<Problem>,
}

/// A problem, and whether the line that it is about may be shown.
struct Problem {
    diagnostic: Diagnostic,
    may_be_secret: bool,
}

impl FileReport {
    /// The report of a file, without text if it can't be read.
    pub(super) fn new(location: &str, source: Option<String>) -> Self {
        Self {
            location: location.to_owned(),
            source,
            problems: Vec::new(),
        }
    }

    /// The path of the file.
    pub(super) fn location(&self) -> &str {
        &self.location
    }

    /// Whether the file contains that text, as far as is known.
    pub(super) fn mentions(&self, text: &str) -> bool {
        let source = self.source.as_ref();
        source.is_none_or(|source| source.contains(text))
    }

    /// Adds a problem that is drawn on its line.
    pub(super) fn note(&mut self, diagnostic: Diagnostic) {
        self.note_at(diagnostic, false);
    }

    /// Adds a problem; its line is rendered unless it may contain a secret.
    pub(super) fn note_at(&mut self, diagnostic: Diagnostic, may_be_secret: bool) {
        self.problems.push(Problem {
            diagnostic,
            may_be_secret,
        });
    }
}

/// The result of a validation.
pub(super) struct Report {
    files: Vec<FileReport>,
    summary: Summary,
}

/// The last line, as data.
#[derive(Debug, Default, Serialize)]
pub(super) struct Summary {
    pub(super) files: usize,
    pub(super) pods: usize,
    pub(super) objects: usize,
    errors: usize,
    warnings: usize,
    pub(super) ignored: Vec<String>,
    /// The number of pods with emptyDir volumes.
    #[serde(rename = "emptyDirPods")]
    empty_dir_pods: usize,
}

impl Summary {
    /// Counts those of these pods that have emptyDir volumes.
    pub(super) fn note_empty_dirs(&mut self, pods: &[Arc<Pod>]) {
        let with = pods.iter().filter(|pod| empty_dirs(pod).next().is_some());
        self.empty_dir_pods += with.count();
    }
}

/// The document of `-o json`.
#[derive(Serialize)]
struct Output<'a> {
    diagnostics: Vec<&'a Diagnostic>,
    summary: &'a Summary,
}

impl Report {
    /// Counts the problems of all files.
    pub(super) fn new(files: Vec<FileReport>, mut summary: Summary) -> Self {
        let problems = || files.iter().flat_map(|file| &file.problems);
        let errors = problems().filter(|p| p.diagnostic.is_error()).count();
        summary.errors = errors;
        summary.warnings = problems().count() - errors;
        Self { files, summary }
    }

    pub(super) fn has_errors(&self) -> bool {
        self.summary.errors > 0
    }

    pub(super) fn has_warnings(&self) -> bool {
        self.summary.warnings > 0
    }

    /// Writes the report.
    pub(super) fn write(
        &self,
        output: ValidateOutput,
        colour: bool,
        out: &mut dyn Write,
    ) -> anyhow::Result<()> {
        match output {
            ValidateOutput::Text => Ok(self.write_text(colour, out)?),
            ValidateOutput::Json => self.write_json(out),
        }
    }

    fn write_text(&self, colour: bool, out: &mut dyn Write) -> io::Result<()> {
        for file in &self.files {
            for problem in &file.problems {
                let source = file.source.as_deref().filter(|_| !problem.may_be_secret);
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
        if summary.empty_dir_pods > 0 {
            writeln!(
                out,
                "note: the emptyDir volumes of {} lose their files with each edit of the pod; a persistentVolumeClaim keeps its files",
                counted(summary.empty_dir_pods, "pod"),
            )?;
        }
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
        let diagnostics = self.files.iter().flat_map(|file| &file.problems);
        let output = Output {
            diagnostics: diagnostics.map(|problem| &problem.diagnostic).collect(),
            summary: &self.summary,
        };
        serde_json::to_writer_pretty(&mut *out, &output)?;
        writeln!(out)?;
        Ok(())
    }
}
