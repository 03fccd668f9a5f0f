//! The desired pods, as their sources deliver them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::diagnostic::Position;
use crate::api::report::RolloutReport;
use crate::api::{Diagnostic, FullName, Pod, PodUid};
use crate::cron::Runs;
use crate::finished::FinishedPods;
use crate::objects::{Config, Object};
use crate::sizes::{DocumentValues, Sizes};
use crate::stateful::StatefulSet;

crate::words! {
    /// Kind of source a pod came from; the value of `kubernetes.io/config.source`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum PodSource {
        /// A file in the manifest directory.
        File = "file",
        /// A URL.
        Http = "http",
        /// A file that the embedded API stores.
        Embedded = "embedded",
        /// The API server.
        Api = "api",
    }
    /// The value of `kubernetes.io/config.source`.
    pub fn as_str;
    impl Display;
}

/// The exact origin of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// Kind of source.
    pub source: PodSource,
    /// File path or URL.
    pub location: String,
    /// Index of the document in it, from 0; items of a list count as documents.
    pub document: u32,
    /// The start of the document.
    pub position: Option<Position>,
}

impl Origin {
    /// The origin of everything at a location: its first document.
    pub fn whole(source: PodSource, location: impl Into<String>) -> Self {
        Self {
            source,
            location: location.into(),
            document: 0,
            position: None,
        }
    }

    /// Whether it is the same file or URL, regardless of the document.
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.source == other.source && self.location == other.location
    }

    /// Whether it is the same document, wherever it begins.
    pub fn is_same_document(&self, other: &Self) -> bool {
        self.document == other.document && self.is_same_place(other)
    }
}

/// The positions of a manifest's fields in its text, by path.
pub type Places = Arc<BTreeMap<String, Position>>;

/// A pod as its source delivers it: defaulted, validated, with name, namespace, node and UID set.
#[derive(Debug, Clone, PartialEq)]
pub struct SourcePod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its origin.
    pub origin: Origin,
    /// Whether this is the last valid version, in place of an invalid current one.
    pub held: bool,
    /// Problems with its current manifest: the reasons why it is held, and warnings.
    pub problems: Vec<Diagnostic>,
    /// Its rollout, until the newest revision is healthy.
    pub rollout: Option<RolloutReport>,
    /// The data of the objects that are part of this version.
    pub config: Option<Arc<Config>>,
    /// The positions of its fields; empty if the text is not available.
    pub places: Places,
    /// The template of its workload in its original form, if its pods are updated together.
    pub template: Option<Arc<Value>>,
    /// The Job or CronJob that this pod represents or belongs to.
    pub runs: Option<Arc<Runs>>,
}

impl SourcePod {
    /// Returns the current version of a pod, without problems or a rollout.
    pub fn new(pod: Arc<Pod>, origin: Origin) -> Self {
        Self {
            pod,
            origin,
            held: false,
            problems: Vec::new(),
            rollout: None,
            config: None,
            places: Places::default(),
            template: None,
            runs: None,
        }
    }

    /// UID of the pod.
    pub fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }

    /// Its UID without the objects that are part of its version: that of its manifest.
    pub fn manifest_uid(&self) -> PodUid {
        let config = self.config.as_ref();
        config.map_or_else(|| self.uid(), |config| config.manifest.clone())
    }

    /// Full name of the pod.
    pub fn full_name(&self) -> FullName {
        FullName::of(&self.pod)
    }

    /// Whether it comes from the API server.
    pub fn is_api(&self) -> bool {
        self.origin.source == PodSource::Api
    }
}

/// An object of a manifest that pods refer to.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceObject {
    /// The object.
    pub object: Object,
    /// Its origin.
    pub origin: Origin,
    /// Whether this is the last valid version, in place of an invalid current one.
    pub held: bool,
    /// The positions of fields that other documents may contradict; empty if the text is not available.
    pub places: Places,
}

/// A workload of a manifest, from its document.
#[derive(Debug, Clone, PartialEq)]
pub struct SourceWorkload {
    /// Its namespace.
    pub namespace: String,
    /// Its kind and name, in the form of its pods' annotation: `Deployment/web`.
    pub owner: String,
    /// The document as JSON.
    pub document: Arc<Value>,
    /// The UIDs of its pods' manifests.
    pub pods: BTreeSet<PodUid>,
    /// The ordinals, order and claims of a `StatefulSet`.
    pub set: Option<Arc<StatefulSet>>,
    /// The hash of its template, which its pods have as an annotation; empty if they have none.
    pub template_hash: String,
    /// Its origin.
    pub origin: Origin,
    /// Whether this is the last valid version, in place of an invalid current one.
    pub held: bool,
}

/// All pods and objects of one source, in the source's own order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SourceSet {
    /// Its pods, including those held at their last valid version.
    pub pods: Vec<SourcePod>,
    /// Its ended pods whose containers stay for their logs; not among the others.
    pub finished: FinishedPods,
    /// The objects in its other documents, including those held at their last valid version.
    pub objects: Vec<SourceObject>,
    /// The workloads that some of its pods belong to.
    pub workloads: Vec<SourceWorkload>,
    /// Problems without a pod in [`pods`](Self::pods): an invalid file without a last valid version, a
    /// directory that can't be read.
    pub problems: Vec<Diagnostic>,
    /// Names of files ignored by rule.
    pub ignored: Vec<String>,
    /// The sizes of a manifest directory's files, which share a limit.
    pub sizes: Sizes,
    /// The documents of these files as values, by path.
    pub values: BTreeMap<String, DocumentValues>,
}

/// The state of one source.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum SourceState {
    /// It has not delivered yet: a missing pod means nothing.
    #[default]
    NotSynced,
    /// The set that an earlier agent last received from it. Its pods are wanted, but a missing pod
    /// means nothing.
    LastKnown(Arc<SourceSet>),
    /// Its newest whole set.
    Synced(Arc<SourceSet>),
}

impl SourceState {
    /// The set to go by, if there is one.
    pub fn set(&self) -> Option<&Arc<SourceSet>> {
        match self {
            Self::NotSynced => None,
            Self::LastKnown(set) | Self::Synced(set) => Some(set),
        }
    }

    /// Whether it has delivered, so that a missing pod is not wanted.
    pub fn is_synced(&self) -> bool {
        matches!(self, Self::Synced(_))
    }
}

/// The kinds of sources that have all delivered, so that pods in none of them may be stopped. The
/// default: none yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Every directory and URL.
    pub manifests: bool,
    /// The API server, or none is configured.
    pub api: bool,
}

impl Delivered {
    /// Everything has.
    pub const ALL: Self = Self {
        manifests: true,
        api: true,
    };

    /// Every manifest, and the API server is silent.
    pub const MANIFESTS: Self = Self {
        manifests: true,
        api: false,
    };

    /// Whether every source has.
    pub fn all(self) -> bool {
        self.manifests && self.api
    }

    /// Whether a pod that is in no source may be stopped. While the API server has not delivered, a pod
    /// that may be its own is left alone; one with a UID that it never assigns is a manifest's.
    ///
    /// The API server assigns UUIDs in their text form. A manifest's pod has 32 hexadecimal digits
    /// without hyphens, unless its author gave it a UID.
    pub fn may_stop(self, uid: &PodUid) -> bool {
        self.manifests && (self.api || !is_uuid(uid.as_str()))
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12])
        && text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
}

/// The API server's pods of our Node: its newest complete list, kept current by its watch. Ordinary
/// pods as the server has them, without their managed fields, and the reduced form of mirrors and ended
/// pods ([`remains`](crate::ending::remains)).
#[derive(Debug, Clone, Default)]
pub struct ApiPods {
    /// The objects, by the UID that the API server assigned.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// The names of the settled pods, which are not among [`pods`](Self::pods): they have ended, and
    /// nothing of them is left on this node. Their number is unlimited.
    pub settled: BTreeMap<PodUid, FullName>,
    /// The ended pods of which only containers are left on this node, for their logs; not among
    /// [`pods`](Self::pods), either.
    pub finished: FinishedPods,
}

impl PartialEq for ApiPods {
    fn eq(&self, other: &Self) -> bool {
        let mut pairs = self.pods.iter().zip(&other.pods);
        self.pods.len() == other.pods.len()
            && pairs.all(|((uid, pod), (of, known))| uid == of && is_same(pod, known))
            && self.settled == other.settled
            && self.finished == other.finished
    }
}

/// Whether two pods are equal. Most are the same allocation, which is checked first.
pub fn is_same(pod: &Arc<Pod>, other: &Arc<Pod>) -> bool {
    Arc::ptr_eq(pod, other) || pod == other
}

/// The known pods of the API server: none before its first complete list of this run.
pub type ApiPodsState = Option<Arc<ApiPods>>;
