//! Bytes → pods, or diagnostics that say what, where and what to do.
//!
//! The way is *bytes → [`text`] → [`tree`] (values with places) → JSON → [`decode`] (typed) →
//! [`defaults`] → [`check`] → static pod*. Beside it [`support`] lists the fields that are
//! refused. No message quotes a value: a diagnostic goes to logs and events.

mod build;
mod check;
mod decode;
mod defaults;
mod path;
mod problems;
mod render;
mod support;
mod text;
mod tree;
mod uid;

use std::sync::Arc;

use crate::api::diagnostic::Position;
use crate::api::{Diagnostic, FullName, NodeName, Pod};
use crate::desired::PodSource;

pub use build::{parse_manifest, pod_from_canonical};
pub use render::render;
pub use support::unsupported_fields;

/// Largest manifest read, as upstream: 10 MiB.
pub const MANIFEST_BYTES_MAX: usize = 10 * 1024 * 1024;

/// File names that are manifests, by ending.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// Whether a name is a manifest's: `*.yaml`, `*.yml` or `*.json`, without a leading dot.
#[must_use]
pub fn is_manifest_name(name: &str) -> bool {
    let Some((stem, extension)) = name.rsplit_once('.') else {
        return false;
    };
    !stem.is_empty() && !name.starts_with('.') && EXTENSIONS.contains(&extension)
}

/// The inputs of parsing besides the manifest's bytes.
#[derive(Debug, Clone, Copy)]
pub struct ParseContext<'a> {
    /// Node the pods are bound to.
    pub node_name: &'a NodeName,
    /// Kind of source; part of the UID.
    pub source: PodSource,
    /// File path or URL; part of the UID, and named in diagnostics.
    pub location: &'a str,
}

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Parsed {
    /// Its pods, accepted and rejected, in order. Items of a list count as documents.
    pub documents: Vec<Document>,
    /// Problems that belong to no document; an error here means that the file as a whole can't
    /// be read and `documents` is empty.
    pub problems: Vec<Diagnostic>,
}

/// One pod of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its number, from 0.
    pub number: u32,
    /// Its start.
    pub position: Option<Position>,
    /// The pod's full name as it would run here, as far as the document tells; set for rejected
    /// documents too when their `metadata` can be read.
    pub full_name: Option<FullName>,
    /// The pod; none when it is rejected.
    pub accepted: Option<AcceptedPod>,
    /// Errors (then it is rejected) and warnings.
    pub problems: Vec<Diagnostic>,
}

/// A pod that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct AcceptedPod {
    /// Defaulted and validated, with name, namespace, node, UID and annotations of a static pod.
    pub pod: Arc<Pod>,
    /// The manifest as JSON with ordered keys: the input of the UID's hash, and what the
    /// last-good store keeps.
    pub canonical: serde_json::Value,
}
