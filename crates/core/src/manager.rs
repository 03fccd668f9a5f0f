//! Wanted pods and their mirrors, indexed: the data of `PodManager` at one moment.
//!
//! A *mirror pod* represents a static pod in the API server. It is identified by its full name and by
//! the UID that the API server assigned; the pod that runs is always the static pod, under its own
//! *resolved* UID. This table maps between the two. `store::pods::PodManager` shares it, and is the
//! only owner of one.
//!
//! Upstream: `pkg/kubelet/pod/pod_manager.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{FullName, MirrorPodUid, Pod, PodUid, ResolvedPodUid, keys};
use crate::desired::PodSource;
use crate::small::SmallCollect;
use crate::spec::annotation;

/// Whether a pod is a mirror pod: it has the mirror annotation, whatever its value.
///
/// Upstream: `pkg/kubelet/types/pod_update.go` (`IsMirrorPod`).
pub fn is_mirror_pod(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::CONFIG_MIRROR).is_some()
}

/// Whether a pod is a static pod: it comes from a file or URL, and is not a mirror.
///
/// A mirror has a copy of its static pod's annotations, including the source, so that it must be
/// checked first whether the pod is a mirror.
///
/// Upstream: `pkg/kubelet/types/pod_update.go` (`IsStaticPod`).
pub fn is_static_pod(pod: &Pod) -> bool {
    !is_mirror_pod(pod)
        && [PodSource::File, PodSource::Http, PodSource::Embedded]
            .iter()
            .any(|source| annotation(&pod.metadata, keys::CONFIG_SOURCE) == Some(source.as_str()))
}

/// Whether `mirror` is the mirror of the current version of `pod`: same name and namespace, and its
/// mirror annotation equals the pod's hash. Nothing else is compared.
///
/// Upstream: `pkg/kubelet/pod/mirror_client.go` (`IsMirrorPodOf`).
pub fn is_mirror_pod_of(mirror: &Pod, pod: &Pod) -> bool {
    FullName::of(mirror) == FullName::of(pod)
        && annotation(&mirror.metadata, keys::CONFIG_MIRROR)
            .is_some_and(|hash| annotation(&pod.metadata, keys::CONFIG_HASH) == Some(hash))
}

/// Wanted pods and mirrors, indexed by UID and by full name, with translations between them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PodTable {
    by_uid: BTreeMap<ResolvedPodUid, Arc<Pod>>,
    mirrors_by_uid: BTreeMap<MirrorPodUid, Arc<Pod>>,
    by_full_name: BTreeMap<FullName, Arc<Pod>>,
    mirrors_by_full_name: BTreeMap<FullName, Arc<Pod>>,
    translations: BTreeMap<MirrorPodUid, ResolvedPodUid>,
}

fn resolved_uid(pod: &Pod) -> ResolvedPodUid {
    PodUid::of(pod).into()
}

fn mirror_uid(pod: &Pod) -> MirrorPodUid {
    PodUid::of(pod).into()
}

impl PodTable {
    /// Makes these the pods that are no mirrors.
    pub fn set_pods(&mut self, pods: impl IntoIterator<Item = Arc<Pod>>) {
        let known = self.get_pods();
        self.replace(&known, pods.into_iter().collect());
    }

    /// Makes these the mirrors.
    pub fn set_mirror_pods(&mut self, mirrors: impl IntoIterator<Item = Arc<Pod>>) {
        let known: Vec<_> = self.mirrors_by_uid.values().cloned().collect();
        self.replace(&known, mirrors.into_iter().collect());
    }

    /// Removals first: a removal takes the full name's entry with it.
    fn replace(&mut self, known: &[Arc<Pod>], pods: Vec<Arc<Pod>>) {
        let key = |pod: &Arc<Pod>| (PodUid::of(pod), FullName::of(pod));
        let kept: BTreeSet<_> = pods.iter().map(key).collect_set();
        for gone in known.iter().filter(|pod| !kept.contains(&key(pod))) {
            self.remove_pod(gone);
        }
        for pod in pods {
            self.add_pod(pod);
        }
    }

    /// Adds a pod or mirror, or replaces the one with its UID.
    pub fn add_pod(&mut self, pod: Arc<Pod>) {
        let name = FullName::of(&pod);
        if is_mirror_pod(&pod) {
            let uid = mirror_uid(&pod);
            if let Some(static_pod) = self.by_full_name.get(&name) {
                let resolved = resolved_uid(static_pod);
                self.translations.insert(uid.clone(), resolved);
            }
            self.mirrors_by_uid.insert(uid, Arc::clone(&pod));
            self.mirrors_by_full_name.insert(name, pod);
        } else {
            let uid = resolved_uid(&pod);
            if let Some(mirror) = self.mirrors_by_full_name.get(&name) {
                self.translations.insert(mirror_uid(mirror), uid.clone());
            }
            self.by_uid.insert(uid, Arc::clone(&pod));
            self.by_full_name.insert(name, pod);
        }
    }

    /// Removes a pod or mirror, by UID and by full name.
    ///
    /// The full name's entry is removed even if another UID has it by now, so a removal must be
    /// delivered before the addition of a successor. A removed pod's translations stay until its mirror
    /// is removed: while the pod terminates, its mirror's UID still translates to it.
    pub fn remove_pod(&mut self, pod: &Pod) {
        let name = FullName::of(pod);
        if is_mirror_pod(pod) {
            let uid = mirror_uid(pod);
            self.mirrors_by_uid.remove(&uid);
            self.mirrors_by_full_name.remove(&name);
            self.translations.remove(&uid);
        } else {
            self.by_uid.remove(&resolved_uid(pod));
            self.by_full_name.remove(&name);
        }
    }

    /// Every pod that is not a mirror.
    pub fn get_pods(&self) -> Vec<Arc<Pod>> {
        self.by_uid.values().cloned().collect()
    }

    /// The pod of that full name; never a mirror.
    pub fn get_pod_by_full_name(&self, name: &FullName) -> Option<Arc<Pod>> {
        self.by_full_name.get(name).cloned()
    }

    /// The pod with that namespace and name; never a mirror.
    pub fn get_pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.get_pod_by_full_name(&FullName::new(name, namespace))
    }

    /// The pod with exactly that UID; never a mirror, and without translation.
    pub fn get_pod_by_uid(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.by_uid.get(&ResolvedPodUid::from(uid.clone())).cloned()
    }

    /// The mirror that has the pod's full name.
    pub fn get_mirror_pod_by_pod(&self, pod: &Pod) -> Option<Arc<Pod>> {
        self.get_mirror_pod_by_full_name(&FullName::of(pod))
    }

    /// The mirror of that full name.
    pub fn get_mirror_pod_by_full_name(&self, name: &FullName) -> Option<Arc<Pod>> {
        self.mirrors_by_full_name.get(name).cloned()
    }

    /// Full names that have a mirror and no pod.
    pub fn get_orphaned_mirror_pod_names(&self) -> Vec<FullName> {
        let names = self.mirrors_by_full_name.keys();
        let orphans = names.filter(|name| !self.by_full_name.contains_key(*name));
        orphans.cloned().collect()
    }

    /// Each static pod with its mirror, if known.
    pub fn get_static_pod_to_mirror_pod_map(&self) -> Vec<(Arc<Pod>, Option<Arc<Pod>>)> {
        let statics = self.by_uid.values().filter(|pod| is_static_pod(pod));
        statics
            .map(|pod| (Arc::clone(pod), self.get_mirror_pod_by_pod(pod)))
            .collect()
    }

    /// The UID of the pod that runs: a mirror's UID becomes its static pod's; any other, including the
    /// empty one, stays as it is.
    pub fn translate_pod_uid(&self, uid: &PodUid) -> ResolvedPodUid {
        let translation = self.translations.get(&MirrorPodUid::from(uid.clone()));
        translation.cloned().unwrap_or_else(|| uid.clone().into())
    }
}

#[cfg(test)]
mod tests;
