//! The operations that turn one desired set into the next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::keys;
use crate::api::{Pod, PodUid, Timestamp};
use crate::desired::SourcePod;
use crate::small::SmallCollect;

/// The change of one pod between two desired sets.
///
/// Upstream: `pkg/kubelet/types/pod_update.go` (`PodOperation`). Its `SET` is never emitted, and
/// its empty `ADD`, which only says that a source has delivered, is
/// [`Merged::delivered`](super::Merged::delivered) here.
#[derive(Debug, Clone, PartialEq)]
pub enum PodOperation {
    /// The pod is no longer wanted. Contains the pod as it was.
    Remove(SourcePod),
    /// The pod is new.
    Add(SourcePod),
    /// Spec, labels, annotations or deletion marks differ.
    Update(SourcePod),
    /// As [`Update`](Self::Update), and the pod is being deleted.
    Delete(SourcePod),
    /// Only the status differs.
    Reconcile(SourcePod),
}

impl PodOperation {
    /// The pod concerned.
    pub fn pod(&self) -> &SourcePod {
        match self {
            Self::Remove(pod)
            | Self::Add(pod)
            | Self::Update(pod)
            | Self::Delete(pod)
            | Self::Reconcile(pod) => pod,
        }
    }
}

/// Annotations that say how we learned of a pod: never compared, kept across updates.
const LOCAL_ANNOTATIONS: [&str; 3] = [keys::CONFIG_SOURCE, keys::CONFIG_SEEN, keys::CONFIG_MIRROR];

/// The operations that turn one desired set into the next: removals, additions, updates, deletions,
/// reconciliations, in this order, each by UID.
///
/// Removals come first, so that the full name of a pod is free for its successor.
///
/// Upstream: `pkg/kubelet/config/config.go` (`merge`, `checkAndUpdatePod`).
pub fn diff(
    old: &BTreeMap<PodUid, SourcePod>,
    new: &BTreeMap<PodUid, SourcePod>,
) -> Vec<PodOperation> {
    let gone = old.iter().filter(|(uid, _)| !new.contains_key(*uid));
    let mut operations: Vec<_> = gone
        .map(|(_, pod)| PodOperation::Remove(pod.clone()))
        .collect();
    let (mut updates, mut deletions, mut reconciliations) = (Vec::new(), Vec::new(), Vec::new());
    for (uid, pod) in new {
        let Some(present) = old.get(uid) else {
            operations.push(PodOperation::Add(pod.clone()));
            continue;
        };
        if Arc::ptr_eq(&present.pod, &pod.pod) {
            continue;
        }
        if semantically_differ(&present.pod, &pod.pod) {
            let pod = keep_local_annotations(pod, &present.pod);
            if pod.pod.metadata.deletion_timestamp.is_some() {
                deletions.push(PodOperation::Delete(pod));
            } else {
                updates.push(PodOperation::Update(pod));
            }
        } else if present.pod.status != pod.pod.status {
            let pod = keep_local_annotations(pod, &present.pod);
            reconciliations.push(PodOperation::Reconcile(pod));
        }
    }
    operations.extend(updates);
    operations.extend(deletions);
    operations.extend(reconciliations);
    operations
}

/// Upstream: `podsDifferSemantically`.
fn semantically_differ(a: &Pod, b: &Pod) -> bool {
    a.spec != b.spec
        || a.metadata
            .labels
            .iter()
            .flatten()
            .ne(b.metadata.labels.iter().flatten())
        || a.metadata.deletion_timestamp != b.metadata.deletion_timestamp
        || a.metadata.deletion_grace_period_seconds != b.metadata.deletion_grace_period_seconds
        || shared_annotations(a).ne(shared_annotations(b))
}

fn shared_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let all = pod.metadata.annotations.iter().flatten();
    // A user's order is not an edit.
    let is_shared = |key: &str| !LOCAL_ANNOTATIONS.contains(&key) && !keys::OWN.contains(&key);
    all.filter(move |(key, _)| is_shared(key))
}

/// The new pod with the local annotations of the current one.
pub(super) fn keep_local_annotations(new: &SourcePod, present: &Pod) -> SourcePod {
    let local = |pod: &Pod| -> BTreeSet<(String, String)> {
        let all = pod.metadata.annotations.iter().flatten();
        all.filter(|(key, _)| LOCAL_ANNOTATIONS.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect_set()
    };
    let wanted = local(present);
    let mut result = new.clone();
    if local(&new.pod) != wanted {
        let pod = Arc::make_mut(&mut result.pod);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.retain(|key, _| !LOCAL_ANNOTATIONS.contains(&key.as_str()));
        annotations.extend(wanted);
    }
    result
}

/// Records on a pod when it was first seen, as upstream does for each added pod.
pub(super) fn with_seen(pod: &SourcePod, now: Timestamp) -> SourcePod {
    let mut result = pod.clone();
    let annotations = &mut Arc::make_mut(&mut result.pod).metadata.annotations;
    let annotations = annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SEEN.to_owned(), format!("{now:.9}"));
    result
}
