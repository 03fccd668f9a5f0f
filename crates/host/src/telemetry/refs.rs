//! `RefManager`: the spec field of each container of a pod, for events about it. Kept until the pod is
//! gone, because a container is reported even when no source has its pod any more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::events::field_path;
use mirrorlet_core::spec;

/// Maximum number of pods with recorded containers: several times what a node runs.
const PODS_MAX: usize = 2_000;

/// The field of each container, by its name. A slice, because most pods have one container and a map
/// takes room for eleven.
type Paths = Box<[(Arc<str>, Arc<str>)]>;

/// Field paths by pod and container.
#[derive(Debug, Default)]
pub(super) struct RefManager {
    pods: BTreeMap<PodUid, Paths>,
    order: VecDeque<PodUid>,
}

impl RefManager {
    /// Records the containers of a pod. If there are too many pods, the one that was recorded longest
    /// ago is forgotten.
    pub(super) fn set(&mut self, pod: &Pod) {
        let uid = PodUid::of(pod);
        let paths = spec::containers(pod).filter_map(|(_, container)| {
            let path = field_path(pod, &container.name)?;
            Some((container.name.as_str().into(), path.into()))
        });
        if self.pods.insert(uid.clone(), paths.collect()).is_none() {
            self.order.push_back(uid);
        }
        if self.pods.len() > PODS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.pods.remove(&oldest);
        }
    }

    /// The field path of a container. An unknown container is treated as a regular one: a newly started
    /// agent knows a pod that is in no source only from the runtime.
    pub(super) fn get(&self, uid: &PodUid, container: &str) -> Arc<str> {
        self.pods
            .get(uid)
            .and_then(|paths| paths.iter().find(|(name, _)| **name == *container))
            .map_or_else(
                || format!("spec.containers{{{container}}}").into(),
                |(_, path)| Arc::clone(path),
            )
    }

    /// Forgets a pod.
    pub(super) fn clear(&mut self, uid: &PodUid) {
        if self.pods.remove(uid).is_some() {
            self.order.retain(|known| known != uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str) -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "uid": uid},
            "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "b"}]},
        }))
        .unwrap()
    }

    #[test]
    fn containers_are_known_until_their_pod_is_gone() {
        let mut refs = RefManager::default();
        let uid = PodUid::from("u");
        refs.set(&pod("u"));
        refs.set(&pod("u"));
        assert_eq!(&*refs.get(&uid, "b"), "spec.initContainers{b}");
        refs.clear(&uid);
        assert_eq!(&*refs.get(&uid, "b"), "spec.containers{b}");
        assert!(refs.order.is_empty());
        for i in 0..=PODS_MAX {
            refs.set(&pod(&i.to_string()));
        }
        assert_eq!((refs.pods.len(), refs.order.len()), (PODS_MAX, PODS_MAX));
    }
}
