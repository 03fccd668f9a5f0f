//! Ended API pods whose containers stay on this node for their logs.
//!
//! They accumulate until they are deleted, and need no work before that. So only the reduced form of
//! each object is kept ([`remains`](crate::ending::remains)), as compressed text, which is decoded when
//! the pod is requested. Decoded it takes ten times as much.

use std::collections::BTreeMap;
use std::sync::Arc;

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec;

use crate::api::{FullName, Pod, PodUid, Watched};

/// How well texts are compressed: better than that costs twice the time and gains one byte in fifty.
const LEVEL: u8 = 6;

/// An ended pod, in its stored form.
#[derive(Debug, Clone)]
pub struct FinishedPod {
    name: FullName,
    /// The version of the object, if it is a number.
    version: Option<u64>,
    has_succeeded: bool,
    pub(crate) text: Arc<[u8]>,
}

impl PartialEq for FinishedPod {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.text, &other.text) || self.text == other.text
    }
}

fn version(pod: &Pod) -> Option<u64> {
    pod.metadata.resource_version.as_ref()?.parse().ok()
}

impl FinishedPod {
    /// Returns the stored form of a pod's reduced object.
    pub fn of(pod: &Pod) -> Option<Self> {
        let json = serde_json::to_vec(pod).ok()?;
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        Some(Self {
            name: FullName::of(pod),
            version: version(pod),
            has_succeeded: phase == Some("Succeeded"),
            text: compress_to_vec(&json, LEVEL).into(),
        })
    }

    /// Returns this pod after a change of its object. `left` returns the reduced object; none for a pod
    /// that hasn't ended, and then the pod stays as it was: it never starts again, whatever its status
    /// becomes.
    #[must_use]
    pub fn changed(&self, object: &Pod, left: impl FnOnce(Pod) -> Option<Pod>) -> Self {
        let is_same = self.version.is_some() && self.version == version(object);
        let news = (!is_same).then(|| left(object.clone())).flatten();
        let news = news.and_then(|pod| Self::of(&pod));
        news.unwrap_or_else(|| self.clone())
    }

    /// The full name of the pod.
    pub fn name(&self) -> &FullName {
        &self.name
    }

    /// Whether its phase is `Succeeded`, and not `Failed`.
    pub fn has_succeeded(&self) -> bool {
        self.has_succeeded
    }

    /// Decodes the pod, with the fields that are kept.
    pub fn pod(&self) -> Option<Pod> {
        // It was written here: nothing of this fails.
        let json = decompress_to_vec(&self.text).ok()?;
        let json = String::from_utf8(json).ok()?;
        let Watched(pod) = serde_json::from_str(&json).ok()?;
        Some(pod)
    }
}

/// Ended pods, by UID. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FinishedPods(Arc<BTreeMap<PodUid, FinishedPod>>);

impl PartialEq for FinishedPods {
    fn eq(&self, other: &Self) -> bool {
        self.is(other) || self.0 == other.0
    }
}

impl FinishedPods {
    /// Whether they are the same allocation.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a pod is one of them.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    /// The stored UID, whose text is shared.
    pub fn uid(&self, uid: &PodUid) -> Option<&PodUid> {
        self.0.get_key_value(uid).map(|(uid, _)| uid)
    }

    /// The pod of that UID.
    pub fn get(&self, uid: &PodUid) -> Option<&FinishedPod> {
        self.0.get(uid)
    }

    /// The pod of that name.
    pub fn find(&self, name: &FullName) -> Option<&FinishedPod> {
        self.0.values().find(|pod| pod.name == *name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &FinishedPod)> {
        self.0.iter()
    }

    /// Decodes all of them.
    pub fn pods(&self) -> impl Iterator<Item = Pod> {
        self.0.values().filter_map(FinishedPod::pod)
    }

    /// Adds a pod, or replaces the one with its UID. Returns whether that is a change.
    pub fn insert(&mut self, uid: PodUid, pod: FinishedPod) -> bool {
        if self.0.get(&uid) == Some(&pod) {
            return false;
        }
        Arc::make_mut(&mut self.0).insert(uid, pod);
        true
    }

    /// Removes a pod. Returns whether it was among them.
    pub fn remove(&mut self, uid: &PodUid) -> bool {
        self.contains(uid) && Arc::make_mut(&mut self.0).remove(uid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn over(version: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": "job", "namespace": "ns", "resourceVersion": version},
            "status": {"phase": "Succeeded"},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_finished_pod_follows_its_object_but_never_starts_again() {
        let kept = FinishedPod::of(&over("10")).unwrap();
        let same = kept.changed(&over("10"), Some);
        assert!(Arc::ptr_eq(&same.text, &kept.text));
        let mut object = over("11");
        object.status.as_mut().unwrap().message = Some("late".to_owned());
        let after = kept.changed(&object, Some);
        assert_ne!(after, kept);
        assert_eq!(after.pod(), Some(object));
        // node 6k
        assert_eq!(after.changed(&over("12"), |_| None), after);
    }

    #[test]
    fn clones_share_the_pods_until_one_changes() {
        let mut pods = FinishedPods::default();
        let kept = FinishedPod::of(&over("10")).unwrap();
        assert!(pods.insert("a".into(), kept.clone()));
        let before = pods.clone();
        assert!(!pods.insert("a".into(), kept.clone()));
        assert!(!pods.remove(&"b".into()));
        assert!(pods.is(&before));
        assert!(pods.find(kept.name()).is_some());
        assert!(pods.remove(&"a".into()));
        assert!(pods.is_empty() && before.len() == 1);
        assert_ne!(pods, before);
    }
}
