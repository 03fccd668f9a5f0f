//! PURE: pods whose objects have become too large since they were adopted.
//!
//! Of an object with too many values only some are kept, and a pod must not run with an incomplete
//! spec: its limits and its `securityContext` may be missing.

use std::collections::BTreeSet;

use mirrorlet_core::api::{FullName, Pod, PodUid, is_too_large, meta};
use mirrorlet_core::ending::is_over;

/// The pods whose objects have become too large.
#[derive(Debug, Default)]
pub(super) struct Grown {
    pods: BTreeSet<PodUid>,
    unreported: Vec<FullName>,
}

impl Grown {
    /// The pod to use for an object: the object itself, unless that is too large and the pod is `known`
    /// from before.
    pub(super) fn merge(&mut self, object: Pod, known: Option<&Pod>) -> Pod {
        let uid = PodUid::of(&object);
        let known = known.filter(|known| stands_in(known, &object));
        let Some(known) = known.filter(|_| is_too_large(&object.metadata)) else {
            self.pods.remove(&uid);
            return object;
        };
        if self.pods.insert(uid) {
            self.unreported.push(FullName::of(&object));
        }
        merged(known, object)
    }

    /// The object is gone.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    /// Forgets the pods of which `is_known` is false.
    pub(super) fn retain(&mut self, is_known: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|uid| is_known(uid));
    }

    /// The names of those that were not returned before.
    pub(super) fn unreported(&mut self) -> Vec<FullName> {
        std::mem::take(&mut self.unreported)
    }
}

/// Whether the known pod has a complete spec to use in place of its object's. A pod that has ended, or
/// that was deleted before it was ever here, is known in a short form only.
fn stands_in(known: &Pod, object: &Pod) -> bool {
    let is_deleted = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    !is_too_large(&known.metadata)
        && !is_over(known.status.as_ref())
        && (is_deleted(object) || !is_deleted(known))
}

/// The known spec, labels and annotations with the version, deletion and status of the object. The spec of a
/// pod that is bound to a node can't change, but for images, tolerations and resources.
fn merged(known: &Pod, object: Pod) -> Pod {
    Pod {
        metadata: meta::ObjectMeta {
            resource_version: object.metadata.resource_version,
            deletion_timestamp: object.metadata.deletion_timestamp,
            deletion_grace_period_seconds: object.metadata.deletion_grace_period_seconds,
            ..known.metadata.clone()
        },
        spec: known.spec.clone(),
        status: object.status,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use mirrorlet_core::api::Watched;

    fn pod(labels: usize, more: &Value) -> Pod {
        let labels = (0..labels).map(|n| (format!("l{n}"), json!("")));
        let labels: serde_json::Map<String, Value> = labels.collect();
        let mut pod = json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "labels": labels},
            "spec": {"containers": [{"name": "app", "securityContext": {"runAsUser": 7}}]},
            "status": {"phase": "Running"},
        });
        for section in ["metadata", "status"] {
            let fields = more[section].as_object().into_iter().flatten();
            for (key, value) in fields {
                pod[section][key] = value.clone();
            }
        }
        let Watched(pod) = serde_json::from_value(pod).unwrap();
        pod
    }

    #[test]
    fn an_object_that_became_too_large_changes_no_spec() {
        let known = pod(1, &json!({}));
        let news = json!({
            "metadata": {"resourceVersion": "6", "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "status": {"phase": "Failed"},
        });
        let large = || pod(10_001, &news);
        assert_ne!(large().spec, known.spec, "it is cut");
        let mut grown = Grown::default();
        let merged = grown.merge(large(), Some(&known));
        // tenants M8
        assert_eq!(merged.spec, known.spec);
        assert_eq!(merged.metadata.labels, known.metadata.labels);
        assert!(!is_too_large(&merged.metadata));
        assert_eq!(merged.metadata.resource_version.as_deref(), Some("6"));
        assert!(merged.metadata.deletion_timestamp.is_some());
        assert!(is_over(merged.status.as_ref()));
        // It is reported once, and again once it has been smaller.
        assert_eq!(grown.unreported(), [FullName::of(&known)]);
        grown.merge(large(), Some(&known));
        assert!(grown.unreported().is_empty());
        assert_eq!(
            grown.merge(pod(2, &json!({})), Some(&known)),
            pod(2, &json!({}))
        );
        grown.merge(large(), Some(&known));
        assert_eq!(grown.unreported().len(), 1);
    }

    #[test]
    fn what_is_known_in_short_alone_stands_in_for_no_spec() {
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let over = json!({"status": {"phase": "Failed"}});
        for known in [
            None,
            Some(pod(10_001, &json!({}))),
            Some(pod(1, &over)),
            Some(pod(1, &deleted)),
        ] {
            let mut grown = Grown::default();
            let merged = grown.merge(pod(10_001, &json!({})), known.as_ref());
            // tenants M8
            assert!(is_too_large(&merged.metadata), "it is refused");
            assert!(grown.unreported().is_empty());
        }
    }
}
