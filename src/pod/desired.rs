//! What is wanted: pods as their sources deliver them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::api::diagnostic::Position;
use crate::api::{Diagnostic, FullName, Pod, PodUid};

/// Kind of source a pod came from; the value of `kubernetes.io/config.source`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSource {
    /// A file in the manifest directory.
    File,
    /// A URL.
    Http,
    /// The API server.
    Api,
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        })
    }
}

/// Where exactly a pod came from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Kind of source.
    pub source: PodSource,
    /// File path or URL.
    pub location: String,
    /// Number of the document in it, from 0; items of a list count as documents.
    pub document: u32,
    /// Where the document starts.
    pub position: Option<Position>,
}

/// A pod as its source wants it: defaulted, validated, with name, namespace, node and UID set.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Where it came from.
    pub origin: Origin,
    /// Whether this is the last good version, standing in for a present one that can't be used.
    pub held: bool,
    /// Problems with its present manifest: the reasons it is held, and warnings.
    pub problems: Vec<Diagnostic>,
}

impl SourcePod {
    /// UID of the pod.
    #[must_use]
    pub fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }

    /// Full name of the pod.
    #[must_use]
    pub fn full_name(&self) -> FullName {
        FullName::of(&self.pod)
    }
}

/// Everything one source wants, in the source's own order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceSet {
    /// Its pods, those held at their last good version included.
    pub pods: Vec<SourcePod>,
    /// Problems that belong to none of [`pods`](Self::pods): a broken file without a last good
    /// version, a directory that can't be read.
    pub problems: Vec<Diagnostic>,
    /// Names of files ignored by rule.
    pub ignored: Vec<String>,
}

/// What is known of one source.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum SourceState {
    /// It has not delivered yet: nothing may be concluded from what it lacks.
    #[default]
    NotSynced,
    /// Its newest whole set.
    Synced(Arc<SourceSet>),
}

/// What the API server holds of our Node's pods: its newest whole list, kept current by its watch.
/// Ordinary pods and mirrors alike, as the server has them, without their managed fields.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ApiPods {
    /// The objects, by the UID that the API server gave them.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
}

/// What is known of the API server's pods: none before its first whole list of this run.
pub type ApiPodsState = Option<Arc<ApiPods>>;
