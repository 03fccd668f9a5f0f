//! A problem with an input: its description, position and solution.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How bad a [`Diagnostic`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The input works, but probably not as its author expects.
    Warning,
    /// The input, or the named part of it, is not used.
    Error,
}

crate::words! {
    /// The kind of a [`Diagnostic`], stable across releases: users search and alert on it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Code {
        /// The file can't be read (permissions, I/O error).
        Unreadable = "unreadable",
        /// The directory can't be read, or is gone.
        SourceUnavailable = "source-unavailable",
        /// The URL can't be fetched, or answers an error.
        FetchFailed = "fetch-failed",
        /// The file has no content.
        Empty = "empty",
        /// The file is larger than the 10 MiB that upstream allows.
        TooLarge = "too-large",
        /// The bytes are not UTF-8.
        NotUtf8 = "not-utf8",
        /// The text contains NUL bytes.
        NulByte = "nul-byte",
        /// The text is not YAML (nor JSON).
        Syntax = "syntax",
        /// Aliases expand beyond the budget.
        AliasBomb = "alias-bomb",
        /// The document has no `apiVersion` or `kind`, or a kind that is not supported.
        WrongKind = "wrong-kind",
        /// A value has the wrong type.
        InvalidType = "invalid-type",
        /// A value is not allowed.
        InvalidValue = "invalid-value",
        /// A required field is missing.
        Required = "required",
        /// A field is not known to Kubernetes.
        UnknownField = "unknown-field",
        /// A field is known, and can't be honoured here.
        UnsupportedField = "unsupported-field",
        /// A static pod may not reference this API object.
        ForbiddenReference = "forbidden-reference",
        /// Two manifests describe the same pod.
        DuplicatePod = "duplicate-pod",
        /// Two documents describe the same object.
        DuplicateObject = "duplicate-object",
        /// No manifest defines an object that a pod refers to, or the object lacks a key.
        MissingObject = "missing-object",
        /// An edit of an immutable object is ignored.
        Immutable = "immutable",
        /// Other users can read a file that defines a Secret.
        SecretOpenToOthers = "secret-open-to-others",
        /// Two items in one pod have the same name.
        DuplicateName = "duplicate-name",
        /// The file looks half-written.
        HalfWritten = "half-written",
        /// The newest version of a pod can't be started, or failed; the previous one runs.
        RolloutFailed = "rollout-failed",
        /// An older version of a pod runs than its manifest has, because of an undo.
        RolloutUndone = "rollout-undone",
        /// The newest version of a pod waits until its rollout is resumed.
        RolloutPaused = "rollout-paused",
        /// The file is ignored by rule.
        Ignored = "ignored",
    }
    /// The code as printed, for example `unknown-field`.
    pub fn as_str;
    impl Display;
}

/// Place of a [`Diagnostic`] in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Byte offset of the first byte concerned.
    pub offset: usize,
    /// Number of affected bytes; 0 for a position between two characters.
    pub length: usize,
}

/// A problem with an input.
///
/// `message` and `help` never contain an env value, a secret or a part of the manifest longer than a
/// name: a diagnostic goes to logs and events. Only `validate` renders the source line, because its
/// user can read the file anyway.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The kind of problem.
    pub code: Code,
    /// File path or URL.
    pub file: String,
    /// The position in the file; `None` if the problem is about the whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<Position>,
    /// The pod that the document describes, as `namespace/name`; `None` if there is none, or its
    /// `metadata` can't be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The workload that the document describes, as `Deployment default/web`; `None` as for `pod`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Path of the field, for example `spec.containers[0].image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The problem: one sentence without a full stop.
    pub message: String,
    /// How to fix it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

impl Diagnostic {
    /// A problem of a whole file.
    pub fn new(
        severity: Severity,
        code: Code,
        file: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            code,
            file: file.into(),
            position: None,
            pod: None,
            workload: None,
            field: None,
            message: message.into(),
            help: None,
        }
    }

    /// An error about a whole file.
    pub fn error(code: Code, file: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, file, message)
    }

    /// A warning about a whole file.
    pub fn warning(code: Code, file: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, file, message)
    }

    /// The same, at a place.
    #[must_use]
    pub fn at(mut self, position: Position) -> Self {
        self.position = Some(position);
        self
    }

    /// The same, about a field.
    #[must_use]
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same, with advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Whether it means that the input, or a part of it, is not used.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// One line: `file:line:column: field: message (code)`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(position) = self.position {
            write!(f, ":{}:{}", position.line, position.column)?;
        }
        f.write_str(": ")?;
        if let Some(field) = &self.field {
            write!(f, "{field}: ")?;
        }
        write!(f, "{} [{}]", self.message, self.code)
    }
}
