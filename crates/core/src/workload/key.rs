//! The kinds of workloads, and the key of one.

use serde_json::Value;

use crate::api::{Pod, keys, split_name};
use crate::desired::SourceWorkload;
use crate::spec::annotation;
use crate::stateful::StatefulSet;

crate::words! {
    /// Kind of a workload.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum WorkloadKind {
        /// A number of equal pods.
        Deployment = "Deployment",
        /// Pods with a fixed name, an ordinal and storage of their own.
        StatefulSet = "StatefulSet",
        /// One pod on each node.
        DaemonSet = "DaemonSet",
        /// Pods that end.
        Job = "Job",
        /// A Job again and again, by a schedule.
        CronJob = "CronJob",
    }
    /// Its name in a document.
    pub fn as_str;
    impl Display;
}

impl WorkloadKind {
    /// The API version of its documents.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet => "apps/v1",
            Self::Job | Self::CronJob => "batch/v1",
        }
    }

    /// Whether its pods should keep running, rather than complete.
    pub fn stays(self) -> bool {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet => true,
            Self::Job | Self::CronJob => false,
        }
    }

    /// The path of its pod template in a document, with dots.
    pub fn template_path(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet | Self::Job => "spec.template",
            Self::CronJob => "spec.jobTemplate.spec.template",
        }
    }

    /// Returns the template of pods in a document, as it is written.
    pub(crate) fn template_in(self, document: &Value) -> Option<&Value> {
        let mut path = self.template_path().split('.');
        path.try_fold(document, |value, key| value.get(key))
    }

    /// The words before a name that mean it, as kubectl takes them, in lower case.
    fn words(self) -> [&'static str; 3] {
        match self {
            Self::Deployment => ["deployment", "deployments", "deploy"],
            Self::StatefulSet => ["statefulset", "statefulsets", "sts"],
            Self::DaemonSet => ["daemonset", "daemonsets", "ds"],
            Self::Job => ["job", "jobs", "job.batch"],
            Self::CronJob => ["cronjob", "cronjobs", "cj"],
        }
    }

    /// Returns the kind for a word before a name, as kubectl accepts it.
    pub fn of_word(word: &str) -> Option<Self> {
        let word = word.to_ascii_lowercase();
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.words().contains(&word.as_str()))
    }

    /// Returns the optional namespace and the value of [`keys::WORKLOAD`] for a text: `deploy/web` is
    /// `Deployment/web` in any namespace, `deploy/shop/web` the one in `shop`.
    pub fn named(text: &str) -> Option<(Option<&str>, String)> {
        let (word, rest) = text.split_once('/')?;
        let kind = Self::of_word(word)?;
        let (namespace, name) = split_name(rest);
        Some((namespace, format!("{kind}/{name}")))
    }
}

/// Identifies a workload among all documents. Displays as `Deployment default/web`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkloadKey {
    /// Its kind.
    pub kind: WorkloadKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl WorkloadKey {
    /// Returns the workload that a pod of a manifest belongs to; none for a pod with its own document.
    pub fn of(pod: &Pod) -> Option<Self> {
        let owner = annotation(&pod.metadata, keys::WORKLOAD)?;
        let namespace = pod.metadata.namespace.as_deref();
        Self::of_owner(namespace.unwrap_or(keys::DEFAULT_NAMESPACE), owner)
    }

    /// Returns the key of a `StatefulSet`.
    pub fn of_set(set: &StatefulSet) -> Self {
        Self {
            kind: WorkloadKind::StatefulSet,
            namespace: set.namespace.clone(),
            name: set.name.clone(),
        }
    }

    /// Returns the workload for an [`owner`](Self::owner) in a namespace.
    pub fn of_owner(namespace: &str, owner: &str) -> Option<Self> {
        let (kind, name) = owner.split_once('/')?;
        let kind = WorkloadKind::ALL.into_iter().find(|k| k.as_str() == kind)?;
        Some(Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Reads a key as it is displayed.
    pub fn read(text: &str) -> Option<Self> {
        let (kind, path) = text.split_once(' ')?;
        let (namespace, name) = path.split_once('/')?;
        Self::of_owner(namespace, &format!("{kind}/{name}"))
    }

    /// The workload in the form that users type: `deployment/default/web`.
    pub fn typed(&self) -> String {
        let kind = self.kind.as_str().to_lowercase();
        format!("{kind}/{}/{}", self.namespace, self.name)
    }

    /// The value of [`keys::WORKLOAD`] on its pods: `Deployment/web`.
    pub fn owner(&self) -> String {
        format!("{}/{}", self.kind, self.name)
    }
}

impl SourceWorkload {
    /// Its key; none if its owner is not one.
    pub fn key(&self) -> Option<WorkloadKey> {
        WorkloadKey::of_owner(&self.namespace, &self.owner)
    }
}

crate::display!(WorkloadKey, "{} {}/{}", kind, namespace, name);
