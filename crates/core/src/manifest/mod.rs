//! Converts bytes to pods, workloads and the objects they refer to, or to diagnostics with the problem,
//! its position and its solution.
//!
//! The stages are *bytes → [`text`] → [`tree`] (values with positions) → JSON →
//! [`decode`](crate::decode) (typed) → [`defaults`] → [`check`] → static pod or object*. [`support`]
//! lists the fields that are refused. No message quotes a value: a diagnostic goes to logs and events.

mod build;
mod check;
mod defaults;
mod kind;
mod notes;
mod problems;
mod render;
mod support;
mod text;
mod tree;
mod uid;
mod workload;

use std::sync::Arc;

use crate::api::diagnostic::Position;
use crate::api::{Code, Diagnostic, FullName, NodeName, Pod};
use crate::cron::Runs;
use crate::desired::{Places, PodSource};
use crate::objects::{Object, ObjectKey, ObjectKind};
use crate::sizes::{Size, VALUES_TOTAL_MAX};
use crate::stateful::StatefulSet;
use crate::workload::WorkloadKey;

pub use build::{document_from_canonical, parse_manifest};
pub use check::{is_label_value, is_qualified};
pub use render::render;
pub use support::unsupported_fields;
pub(crate) use uid::uid_of;

/// Largest manifest read, as upstream: 10 MiB.
pub const MANIFEST_BYTES_MAX: usize = 10 * 1024 * 1024;

/// File names that are manifests, by ending.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Whether a file name is that of a manifest: `*.yaml`, `*.yml` or `*.json`, without a leading dot.
pub fn is_manifest_name(name: &str) -> bool {
    let Some((stem, extension)) = name.rsplit_once('.') else {
        return false;
    };
    !stem.is_empty() && !name.starts_with('.') && EXTENSIONS.contains(&extension)
}

/// The problem of a file that defines a Secret and that other users can read.
pub fn secret_open_to_others(location: &str) -> Diagnostic {
    let message = "this file defines a Secret, and other users can read it";
    Diagnostic::warning(Code::SecretOpenToOthers, location, message)
        .help(format!("let only its owner read it: chmod 600 {location}"))
}

/// Returns the problem that prevents a text from being parsed as YAML, with the message of
/// [`parse_manifest`]; none if it is YAML. The message contains `location`.
pub fn yaml_problem(bytes: &[u8], location: &str) -> Option<Diagnostic> {
    let read = text::documents(bytes, location, &mut Vec::new());
    read.err().map(|problem| *problem)
}

/// The inputs of parsing besides the manifest's bytes.
#[derive(Debug, Clone, Copy)]
pub struct ParseContext<'a> {
    /// Node the pods are bound to.
    pub node_name: &'a NodeName,
    /// Kind of source; part of the UID.
    pub source: PodSource,
    /// File path or URL; part of the UID, and contained in diagnostics.
    pub location: &'a str,
}

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parsed {
    /// Its documents, accepted and rejected, in order. Items of a list count as documents.
    pub documents: Vec<Document>,
    /// Problems without a document; an error here means that the file as a whole can't be read and
    /// `documents` is empty.
    pub problems: Vec<Diagnostic>,
}

impl Parsed {
    /// The size of the file, of that many bytes.
    pub fn size(&self, bytes: usize) -> Size {
        Size {
            values: self.values(),
            bytes,
        }
    }

    /// The number of values in the lists and mappings of its documents, as often as each has pods.
    fn values(&self) -> usize {
        let values = self.documents.iter().map(|document| document.values);
        values.fold(0, usize::saturating_add)
    }

    /// The number of values that further documents may have.
    fn left(&self) -> usize {
        VALUES_TOTAL_MAX.saturating_sub(self.values())
    }

    /// Whether the file contains a Secret, or a document that may be one.
    pub fn may_hold_secret(&self) -> bool {
        self.documents.iter().any(|document| document.may_be_secret)
    }
}

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its number, from 0.
    pub number: u32,
    /// Its start.
    pub position: Option<Position>,
    /// Kind and name of the described object; also set for rejected documents if their `metadata` can
    /// be read.
    pub key: Option<DocumentKey>,
    /// Whether its kind is Secret, or is not known.
    pub may_be_secret: bool,
    /// The number of values in its lists and mappings, multiplied by the number of its pods.
    pub values: usize,
    /// Its content; none when it is rejected.
    pub accepted: Option<Accepted>,
    /// The positions of fields that refer to objects or may contradict other documents.
    pub places: Places,
    /// Errors (then it is rejected) and warnings.
    pub problems: Vec<Diagnostic>,
}

impl Document {
    /// Whether it defines a Secret, accepted or not.
    pub fn is_secret(&self) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| match key {
            DocumentKey::Object(key) => key.kind == ObjectKind::Secret,
            DocumentKey::Pod(_) | DocumentKey::Workload(_) => false,
        })
    }

    /// The pods that it describes; none if it is rejected, or describes something else.
    pub fn pods(&self) -> &[Arc<Pod>] {
        self.accepted.as_ref().map_or(&[], Accepted::pods)
    }
}

/// Identifies what a document describes, among all documents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentKey {
    /// A pod, by its full name as it would run here.
    Pod(FullName),
    /// An object that pods refer to.
    Object(ObjectKey),
    /// A workload.
    Workload(WorkloadKey),
}

/// The content of a document that can be used.
#[derive(Debug, Clone, PartialEq)]
pub enum Accepted {
    /// A pod.
    Pod(AcceptedPod),
    /// An object that pods refer to.
    Object(Object),
    /// A workload, with the pods it wants.
    Workload(AcceptedWorkload),
    /// A namespace: read, without effect.
    Namespace,
}

impl Accepted {
    /// Returns its kind and name; none for a namespace.
    pub fn key(&self) -> Option<DocumentKey> {
        match self {
            Self::Pod(accepted) => Some(DocumentKey::Pod(FullName::of(&accepted.pod))),
            Self::Object(object) => Some(DocumentKey::Object(object.key())),
            Self::Workload(workload) => Some(DocumentKey::Workload(workload.key.clone())),
            Self::Namespace => None,
        }
    }

    /// The pods that it wants.
    pub fn pods(&self) -> &[Arc<Pod>] {
        match self {
            Self::Pod(accepted) => std::slice::from_ref(&accepted.pod),
            Self::Workload(workload) => &workload.pods,
            Self::Object(_) | Self::Namespace => &[],
        }
    }

    /// The template of its pods in its original form, if they are updated together.
    pub fn template(&self) -> Option<&Arc<serde_json::Value>> {
        match self {
            Self::Workload(workload) => workload.template.as_ref(),
            Self::Pod(_) | Self::Object(_) | Self::Namespace => None,
        }
    }

    /// The rules for its pods, if they run to completion.
    pub fn runs(&self) -> Option<&Arc<Runs>> {
        match self {
            Self::Workload(workload) => workload.runs.as_ref(),
            Self::Pod(_) | Self::Object(_) | Self::Namespace => None,
        }
    }
}

/// A pod that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptedPod {
    /// Defaulted and validated, with name, namespace, node, UID and annotations of a static pod.
    pub pod: Arc<Pod>,
    /// The manifest as JSON with ordered keys: the input of the UID's hash, and the content of the
    /// last-good store.
    pub canonical: serde_json::Value,
}

/// A workload with pods that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptedWorkload {
    /// Its kind and name.
    pub key: WorkloadKey,
    /// The pods that it describes, like [`AcceptedPod::pod`], each with [`WORKLOAD`] set.
    ///
    /// [`WORKLOAD`]: crate::api::keys::WORKLOAD
    pub pods: Vec<Arc<Pod>>,
    /// Set for a Job: then [`pods`](Self::pods) has one that represents all of them, and a later stage
    /// decides which ones exist.
    pub runs: Option<Arc<Runs>>,
    /// The ordinals, order and claims of a `StatefulSet`.
    pub set: Option<Arc<StatefulSet>>,
    /// The value of [`TEMPLATE`] on its pods; empty if they have none.
    ///
    /// [`TEMPLATE`]: crate::api::keys::TEMPLATE
    pub template_hash: String,
    /// The template in its original form, if there is such a hash.
    pub template: Option<Arc<serde_json::Value>>,
    /// The document as JSON with ordered keys: the content of the last-good store.
    pub canonical: serde_json::Value,
}
