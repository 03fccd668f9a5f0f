//! PURE: converts the events of a watch to whole sets.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::runtime::watcher::Event;

use super::grown::Grown;
use super::known::Known;
use mirrorlet_core::api::{Diagnostic, FullName, Pod, PodUid, Watched};
use mirrorlet_core::desired::{ApiPods, Origin, PodSource, SourcePod, SourceSet};
use mirrorlet_core::ending::{is_released, is_settled};
use mirrorlet_core::finished::{FinishedPod, FinishedPods};
use mirrorlet_core::small::SmallSort;

/// The location of these pods in reports.
pub(super) const LOCATION: &str = "api server";

/// Maximum number of adopted pods that haven't ended, beyond those that the node runs: they will be
/// refused.
const REFUSED_AT_A_TIME: usize = 64;

/// The API server's pods of our Node.
#[derive(Debug)]
pub(super) struct Listing {
    known: Known,
    /// The received part of a list in progress.
    arriving: Option<Known>,
    /// Whether a list was ever complete, and none is in progress.
    whole: bool,
    /// Maximum number of adopted pods that haven't ended.
    active_max: usize,
    grown: Grown,
}

impl Listing {
    /// Returns an empty set. `pods_max` is the maximum number of pods on the node.
    pub(super) fn new(pods_max: usize) -> Self {
        Self {
            known: Known::default(),
            arriving: None,
            whole: false,
            active_max: pods_max.saturating_add(REFUSED_AT_A_TIME),
            grown: Grown::default(),
        }
    }

    /// Processes an event. `may_be_here` returns whether anything of an unknown pod may be on this
    /// node, `last_known` what an earlier agent knew about it, and `is_static_pod` whether a static pod
    /// has a name. Returns whether the set has changed.
    pub(super) fn take(
        &mut self,
        event: Event<Watched<Pod>>,
        may_be_here: impl Fn(&PodUid) -> bool,
        last_known: impl Fn(&PodUid) -> Option<Arc<Pod>>,
        is_static_pod: impl Fn(&FullName) -> bool,
    ) -> bool {
        match event {
            Event::Init => {
                self.arriving = Some(Known::default());
                self.whole = false;
                false
            }
            Event::InitApply(Watched(pod)) => {
                let arriving = self.arriving.get_or_insert_default();
                let is_ignored = arriving.ignores(&pod, is_static_pod);
                if !is_ignored && !arriving.take_over(&self.known, &pod) {
                    let known = known_pod(&self.known, &pod, last_known);
                    let pod = self.grown.merge(pod, known.as_deref());
                    let place = self.known.place(&pod, may_be_here);
                    arriving.put(pod, place, self.active_max);
                }
                false
            }
            Event::InitDone => {
                self.known = self.arriving.take().unwrap_or_default().after(&self.known);
                self.known.look_after();
                let pods = &self.known.objects.pods;
                self.grown.retain(|uid| pods.contains_key(uid));
                self.whole = true;
                true
            }
            Event::Apply(Watched(pod)) => {
                if self.known.ignores(&pod, is_static_pod) {
                    return false;
                }
                let known = known_pod(&self.known, &pod, last_known);
                let pod = self.grown.merge(pod, known.as_deref());
                let place = self.known.place(&pod, may_be_here);
                let changed = self.known.put(pod, place, self.active_max);
                self.known.promote(self.active_max) || changed
            }
            Event::Delete(Watched(pod)) => {
                let uid = PodUid::of(&pod);
                self.grown.forget(&uid);
                let changed = self.known.forget(&uid);
                self.known.promote(self.active_max) || changed
            }
        }
    }

    /// Pods that keep running from their earlier objects because the new ones are too large, and that
    /// were not returned before.
    pub(super) fn newly_grown(&mut self) -> Vec<FullName> {
        self.grown.unreported()
    }

    /// Settles a pod of which nothing is left on this node, on its worker's report: it has ended, or is
    /// being deleted and kept by finalizers. Returns whether the set has changed.
    pub(super) fn settle(&mut self, uid: &PodUid) -> bool {
        let pods = &self.known.objects.pods;
        let is_done = |pod: &&Arc<Pod>| is_settled(pod) || is_released(pod);
        let Some(pod) = pods.get(uid).filter(is_done) else {
            return false;
        };
        let name = FullName::of(pod);
        self.known.forget(uid);
        self.known.settle(uid.clone(), name);
        self.known.look_after();
        true
    }

    /// Stores an ended pod in its short form, because only its containers are left on this node, on its
    /// worker's report. Returns whether the set has changed.
    pub(super) fn finish(&mut self, uid: &PodUid) -> bool {
        let pods = &self.known.objects.pods;
        let pod = pods.get(uid).filter(|pod| is_settled(pod));
        let Some(finished) = pod.and_then(|pod| FinishedPod::of(pod)) else {
            return false;
        };
        self.known.forget(uid);
        self.known.finish(uid.clone(), finished);
        self.known.look_after();
        true
    }

    /// Keeps an ended pod as it is for now, on its worker's report: the API server doesn't have its
    /// last status. Returns whether the set of others has changed.
    pub(super) fn stays_whole(&mut self, uid: &PodUid) -> bool {
        self.known.is_looked_after(uid);
        self.known.look_after()
    }

    /// The ended pods of which only containers are left.
    pub(super) fn finished(&self) -> FinishedPods {
        self.known.objects.finished.clone()
    }

    /// Abandons a list in progress. The earlier set stays.
    pub(super) fn abandon(&mut self) {
        self.arriving = None;
        self.whole = false;
    }

    /// Whether all objects are known.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// All objects from the server, except for those that wait.
    pub(super) fn objects(&self) -> Arc<ApiPods> {
        Arc::clone(&self.known.objects)
    }

    /// The ordinary pods, marked with their source.
    pub(super) fn ordinary(&self) -> Arc<BTreeMap<PodUid, Arc<Pod>>> {
        Arc::clone(&self.known.ordinary)
    }

    /// Whether any pod waits for adoption.
    pub(super) fn any_waits(&self) -> bool {
        !self.known.waiting.is_empty()
    }

    /// Whether mirrors are ignored, because there are too many without a static pod.
    pub(super) fn ignores_mirrors(&self) -> bool {
        self.known.ignores_any()
    }

    /// Whether a new list is needed to find ignored mirrors.
    pub(super) fn is_outdated(&self) -> bool {
        self.whole && self.known.has_room_for_ignored()
    }

    /// The next pod to adopt, if it must be requested from the API server because its text is not kept.
    pub(super) fn to_ask_for(&self) -> Option<(PodUid, FullName)> {
        if !self.whole || !self.known.has_room(self.active_max) {
            return None;
        }
        let (uid, waiting) = self.known.next_in_turn()?;
        waiting
            .text
            .is_none()
            .then(|| (uid.clone(), waiting.name.clone()))
    }

    /// Processes the answer about a requested pod; none if it no longer exists. Returns whether the set
    /// has changed.
    pub(super) fn answered(&mut self, uid: &PodUid, found: Option<Pod>) -> bool {
        let known = &mut self.known;
        if !known.waiting.contains_key(uid) {
            return false;
        }
        known.stop_waiting(uid);
        // A pod of that name, but another one: the watch brings it.
        let found = found.filter(|pod| PodUid::of(pod) == *uid);
        let changed = found.is_some_and(|pod| {
            // Nothing of a pod that waited was ever on this node.
            let place = known.place(&pod, |_| false);
            known.put(pod, place, self.active_max)
        });
        known.promote(self.active_max) || changed
    }
}

/// The known version of a pod: this agent's, or else the last one of an agent before it.
fn known_pod(
    known: &Known,
    pod: &Pod,
    last_known: impl Fn(&PodUid) -> Option<Arc<Pod>>,
) -> Option<Arc<Pod>> {
    let uid = PodUid::of(pod);
    let known = known.objects.pods.get(&uid).cloned();
    known.or_else(|| last_known(&uid))
}

/// The source set of these pods, oldest first, with the ended ones.
pub(super) fn source_set<'a>(
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    finished: FinishedPods,
    problems: Vec<Diagnostic>,
) -> SourceSet {
    let mut pods: Vec<_> = pods.into_iter().cloned().collect();
    pods.small_sort_by_cached_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (created, PodUid::of(pod))
    });
    let pods = pods
        .into_iter()
        .map(|pod| SourcePod::new(pod, Origin::whole(PodSource::Api, LOCATION)));
    SourceSet {
        pods: pods.collect(),
        finished,
        problems,
        ..SourceSet::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::source::apiserver::known::STRANGE_MIRRORS_MAX;

    fn mirror(n: usize) -> Watched<Pod> {
        let pod = json!({
            "metadata": {
                "name": format!("m{n}"), "namespace": "ns", "uid": format!("u{n}"),
                "resourceVersion": "1", "annotations": {"kubernetes.io/config.mirror": "h"},
            },
            "spec": {"nodeName": "n1", "containers": []},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn no_number_of_forged_mirrors_is_held() {
        let own = FullName::new(format!("m{}", STRANGE_MIRRORS_MAX + 1), "ns");
        let mut listing = Listing::new(110);
        // Whether that is a change, how many are held, whether others are ignored, and a new list is due.
        let mut take = |event| {
            let is_static_pod = |name: &FullName| *name == own;
            let changed = listing.take(event, |_| false, |_| None, is_static_pod);
            let held = listing.objects().pods.len();
            let (ignores, is_due) = (listing.ignores_mirrors(), listing.is_outdated());
            (changed, held, ignores, is_due)
        };
        take(Event::Init);
        // The mirror of a static pod comes last.
        for n in 0..STRANGE_MIRRORS_MAX + 2 {
            take(Event::InitApply(mirror(n)));
        }
        let all = STRANGE_MIRRORS_MAX + 1;
        // tenants M5
        assert_eq!(take(Event::InitDone), (true, all, true, false));
        // Another one; one that is known, and that of the static pod, are followed.
        let [known, of_pod] = [0, STRANGE_MIRRORS_MAX + 1].map(mirror);
        let unknown = mirror(STRANGE_MIRRORS_MAX);
        let ignored = take(Event::Apply(unknown.clone()));
        assert_eq!(ignored, (false, all, true, false));
        assert_eq!(take(Event::Apply(known)), (true, all, true, false));
        assert_eq!(take(Event::Delete(of_pod.clone())).1, all - 1);
        assert_eq!(take(Event::Apply(of_pod.clone())), (true, all, true, false));
        // Once there is room, a new list finds what was ignored.
        let mut is_outdated = false;
        for n in 0..STRANGE_MIRRORS_MAX / 2 {
            assert!(!is_outdated);
            is_outdated = take(Event::Delete(mirror(n))).3;
        }
        // tenants M5
        assert!(is_outdated);
        take(Event::Init);
        take(Event::InitApply(unknown));
        take(Event::InitApply(of_pod));
        // tenants M5
        assert_eq!(take(Event::InitDone), (true, 2, false, false));
    }
}
