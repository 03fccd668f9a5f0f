//! PURE: from the events of a watch to whole sets.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::runtime::watcher::Event;

use mirrorlet_core::api::{Diagnostic, Pod, PodUid, Watched, keys};
use mirrorlet_core::desired::{ApiPods, Origin, PodSource, SourcePod, SourceSet};
use mirrorlet_core::ending::{is_over, remains};
use mirrorlet_core::manager::is_mirror_pod;

/// The location of these pods in reports.
pub(super) const LOCATION: &str = "api server";

/// The API server's pods of our Node.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// Every object. Copied by a change only while a reader still has the map of before.
    objects: Arc<ApiPods>,
    /// Those that are no mirrors, marked with their source.
    ordinary: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    /// A list under way: what of it has arrived.
    arriving: Option<Vec<Pod>>,
    /// Whether a list was ever whole, and none is under way.
    whole: bool,
}

impl Listing {
    /// Takes up an event. Tells whether what is known has changed.
    pub(super) fn take(&mut self, event: Event<Watched<Pod>>) -> bool {
        match event {
            Event::Init => {
                self.arriving = Some(Vec::new());
                self.whole = false;
                false
            }
            Event::InitApply(Watched(pod)) => {
                let pod = remains(pod);
                self.arriving.get_or_insert_default().push(pod);
                false
            }
            Event::InitDone => {
                self.objects = Arc::default();
                self.ordinary = Arc::default();
                for pod in self.arriving.take().unwrap_or_default() {
                    self.insert(pod);
                }
                self.whole = true;
                true
            }
            Event::Apply(Watched(pod)) => {
                self.insert(remains(pod));
                true
            }
            Event::Delete(Watched(pod)) => {
                let uid = PodUid::of(&pod);
                if !self.objects.pods.contains_key(&uid) {
                    return false;
                }
                Arc::make_mut(&mut self.ordinary).remove(&uid);
                Arc::make_mut(&mut self.objects).pods.remove(&uid);
                true
            }
        }
    }

    fn insert(&mut self, mut pod: Pod) {
        // managedFields are not used here, and are a good part of the object.
        pod.metadata.managed_fields = None;
        let uid = PodUid::of(&pod);
        let ordinary = Arc::make_mut(&mut self.ordinary);
        let object = if is_mirror_pod(&pod) {
            ordinary.remove(&uid);
            Arc::new(pod)
        } else if is_over(pod.status.as_ref()) {
            // One copy is enough: nobody compares the annotations of what is left of it.
            let pod = Arc::new(marked(pod));
            ordinary.insert(uid.clone(), Arc::clone(&pod));
            pod
        } else {
            ordinary.insert(uid.clone(), Arc::new(marked(pod.clone())));
            Arc::new(pod)
        };
        let objects = Arc::make_mut(&mut self.objects);
        objects.pods.insert(uid, object);
    }

    /// Gives a list up that is under way. What was known stands.
    pub(super) fn abandon(&mut self) {
        self.arriving = None;
        self.whole = false;
    }

    /// Whether all objects are known.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// All objects, as the server has them.
    pub(super) fn objects(&self) -> Arc<ApiPods> {
        Arc::clone(&self.objects)
    }

    /// The ordinary pods, marked with their source.
    pub(super) fn ordinary(&self) -> Arc<BTreeMap<PodUid, Arc<Pod>>> {
        Arc::clone(&self.ordinary)
    }
}

/// The pod with its source noted on it, whatever was noted there: nobody makes a pod static by
/// an annotation.
pub(super) fn marked(mut pod: Pod) -> Pod {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SOURCE.to_owned(), PodSource::Api.to_string());
    pod
}

/// The set that these pods make, oldest first.
pub(super) fn source_set<'a>(
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    problems: Vec<Diagnostic>,
) -> SourceSet {
    let mut pods: Vec<_> = pods.into_iter().cloned().collect();
    pods.sort_by_cached_key(|pod| {
        let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
        (created, PodUid::of(pod))
    });
    let pods = pods
        .into_iter()
        .map(|pod| SourcePod::new(pod, Origin::whole(PodSource::Api, LOCATION)));
    SourceSet {
        pods: pods.collect(),
        problems,
        ..SourceSet::default()
    }
}
