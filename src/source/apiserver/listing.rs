//! PURE: from the events of a watch to whole sets.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kube::runtime::watcher::Event;

use mirrorlet_core::api::meta::Time;
use mirrorlet_core::api::{Diagnostic, FullName, Pod, PodUid, Watched, is_too_large, keys};
use mirrorlet_core::desired::{ApiPods, Origin, PodSource, SourcePod, SourceSet};
use mirrorlet_core::ending::{is_over, is_settled, remains, remains_of_deleted};
use mirrorlet_core::manager::is_mirror_pod;

/// The location of these pods in reports.
pub(super) const LOCATION: &str = "api server";

/// Pods that are not over, and are taken up beyond those that the node runs: they are on their way to
/// be refused.
const REFUSED_AT_A_TIME: usize = 256;

/// Most bytes that pods may take which are not over, about, for another one to be taken up. A pod of
/// everyday size takes 20 to 100 KB.
const ACTIVE_BYTES_MAX: usize = 48 << 20;
/// The bytes that a value of a pod takes beside its text, about.
const VALUE_BYTES: usize = 200;
/// Most bytes of the texts of all pods that wait. Of further ones only the names are kept, and they are
/// asked for in their turn.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// The bytes that a pod takes here, about.
fn bytes_of(pod: &Pod) -> usize {
    /// Counts bytes, and the signs that begin a value.
    #[derive(Default)]
    struct Count {
        bytes: usize,
        values: usize,
    }

    impl io::Write for Count {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let begins = |sign: &&u8| matches!(sign, b',' | b'[' | b'{');
            self.bytes += text.len();
            self.values += text.iter().filter(begins).count();
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    let mut count = Count::default();
    // Nothing fails there.
    let _ = serde_json::to_writer(&mut count, pod);
    // As the server has it, and as this node marks it.
    2 * count.bytes + count.values * VALUE_BYTES
}

/// The API server's pods of our Node.
#[derive(Debug)]
pub(super) struct Listing {
    known: Known,
    /// A list under way: what of it has arrived.
    arriving: Option<Known>,
    /// Whether a list was ever whole, and none is under way.
    whole: bool,
    /// Most pods taken up that are not over.
    active_max: usize,
}

impl Listing {
    /// Knows nothing yet. `pods_max` is how many pods the node runs at a time.
    pub(super) fn new(pods_max: usize) -> Self {
        Self {
            known: Known::default(),
            arriving: None,
            whole: false,
            active_max: pods_max.saturating_add(REFUSED_AT_A_TIME),
        }
    }

    /// Takes up an event. `may_be_here` tells whether anything of a pod that was not known before may
    /// be on this node. Tells whether what is known has changed.
    pub(super) fn take(
        &mut self,
        event: Event<Watched<Pod>>,
        may_be_here: impl Fn(&PodUid) -> bool,
    ) -> bool {
        match event {
            Event::Init => {
                self.arriving = Some(Known::default());
                self.whole = false;
                false
            }
            Event::InitApply(Watched(pod)) => {
                let arriving = self.arriving.get_or_insert_default();
                if !arriving.take_over(&self.known, &pod) {
                    let place = self.known.place(&pod, may_be_here);
                    arriving.put(pod, place, self.active_max);
                }
                false
            }
            Event::InitDone => {
                self.known = self.arriving.take().unwrap_or_default();
                self.whole = true;
                true
            }
            Event::Apply(Watched(pod)) => {
                let place = self.known.place(&pod, may_be_here);
                let changed = self.known.put(pod, place, self.active_max);
                self.known.promote(self.active_max) || changed
            }
            Event::Delete(Watched(pod)) => {
                let changed = self.known.forget(&PodUid::of(&pod));
                self.known.promote(self.active_max) || changed
            }
        }
    }

    /// Settles a pod of which nothing is left on this node, as its worker says. Tells whether what is
    /// known has changed.
    pub(super) fn settle(&mut self, uid: &PodUid) -> bool {
        let pods = &self.known.objects.pods;
        let Some(pod) = pods.get(uid).filter(|pod| is_settled(pod)) else {
            return false;
        };
        let name = FullName::of(pod);
        self.known.forget(uid);
        self.known.settle(uid.clone(), name)
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

    /// All objects, as the server has them, but for those that wait.
    pub(super) fn objects(&self) -> Arc<ApiPods> {
        Arc::clone(&self.known.objects)
    }

    /// The ordinary pods, marked with their source.
    pub(super) fn ordinary(&self) -> Arc<BTreeMap<PodUid, Arc<Pod>>> {
        Arc::clone(&self.known.ordinary)
    }

    /// Whether any pod waits to be taken up.
    pub(super) fn any_waits(&self) -> bool {
        !self.known.waiting.is_empty()
    }

    /// The pod whose turn it is to be taken up, and which the API server has to be asked for, as its text
    /// is not kept.
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

    /// Takes up the answer about a pod that was asked for; none where there is no such pod any more. Tells
    /// whether what is known has changed.
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

/// The form in which an object is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its name.
    Settled,
    /// Its fields that are used.
    Whole,
    /// The few fields by which its deletion is confirmed.
    Deleted,
    /// The same, or its text until there is room for it.
    Newcomer,
}

/// A pod that waits to be taken up.
#[derive(Debug)]
struct Waiting {
    name: FullName,
    priority: i32,
    created: Option<Time>,
    /// The pod as JSON; none where all those that wait take too much.
    text: Option<Box<[u8]>>,
}

/// A set of the API server's pods.
#[derive(Debug, Default)]
struct Known {
    /// Every object that is taken up, and the names of settled pods. Copied by a change only while a
    /// reader still holds the previous one.
    objects: Arc<ApiPods>,
    /// Those that are no mirrors and not settled, marked with their source.
    ordinary: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    /// Those of them that are not over, and the bytes that each takes, about.
    active: BTreeMap<PodUid, usize>,
    /// Pods that wait to be taken up. A tenant can make thousands that the node has to refuse, and each
    /// takes twenty times as much while it is dealt with.
    waiting: BTreeMap<PodUid, Waiting>,
    /// The bytes of their texts.
    waiting_bytes: usize,
}

impl Known {
    fn place(&self, pod: &Pod, may_be_here: impl Fn(&PodUid) -> bool) -> Place {
        let uid = PodUid::of(pod);
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        if self.objects.settled.contains_key(&uid) && !is_deleted {
            // It never starts again, whatever its status becomes.
            Place::Settled
        } else if self.objects.pods.contains_key(&uid) || is_mirror_pod(pod) || may_be_here(&uid) {
            Place::Whole
        } else if is_settled(pod) {
            Place::Settled
        } else if is_deleted {
            Place::Deleted
        } else if is_over(pod.status.as_ref()) {
            Place::Whole
        } else {
            Place::Newcomer
        }
    }

    /// Tells whether that made a difference.
    fn put(&mut self, pod: Pod, place: Place, active_max: usize) -> bool {
        let uid = PodUid::of(&pod);
        let has_room = self.has_room(active_max);
        match place {
            Place::Settled => {
                let name = FullName::of(&pod);
                self.stop_waiting(&uid);
                self.settle(uid, name)
            }
            // One that is too large is refused, and of it only its remains are held.
            Place::Newcomer if !has_room && !is_too_large(&pod.metadata) => {
                self.wait(uid, pod);
                false
            }
            Place::Deleted => {
                self.stop_waiting(&uid);
                self.insert(remains_of_deleted(pod));
                true
            }
            Place::Whole | Place::Newcomer => {
                self.stop_waiting(&uid);
                self.insert(remains(pod));
                true
            }
        }
    }

    /// Has a pod wait for its turn.
    fn wait(&mut self, uid: PodUid, mut pod: Pod) {
        self.stop_waiting(&uid);
        pod.metadata.managed_fields = None;
        let text = serde_json::to_vec(&pod).ok();
        let text = text.filter(|text| self.waiting_bytes + text.len() <= WAITING_BYTES_MAX);
        self.waiting_bytes += text.as_ref().map_or(0, Vec::len);
        let waiting = Waiting {
            name: FullName::of(&pod),
            priority: pod.spec.and_then(|spec| spec.priority).unwrap_or_default(),
            created: pod.metadata.creation_timestamp,
            text: text.map(Into::into),
        };
        self.waiting.insert(uid, waiting);
    }

    /// The pod that is taken up next: of a higher priority before others, then of a namespace of which fewer
    /// pods are taken up, so that no tenant waits for all the pods of another, then an older one.
    fn next_in_turn(&self) -> Option<(&PodUid, &Waiting)> {
        let mut taken_up: BTreeMap<&str, usize> = BTreeMap::new();
        for uid in self.active.keys() {
            let pod = self.objects.pods.get(uid);
            let namespace = pod.and_then(|pod| pod.metadata.namespace.as_deref());
            *taken_up.entry(namespace.unwrap_or_default()).or_default() += 1;
        }
        self.waiting.iter().min_by_key(|(uid, waiting)| {
            let others = taken_up.get(&*waiting.name.namespace).copied();
            let priority = Reverse(waiting.priority);
            (priority, others.unwrap_or_default(), &waiting.created, *uid)
        })
    }

    /// Takes up pods that wait, while there is room and their texts are kept. Tells whether there were any.
    fn promote(&mut self, active_max: usize) -> bool {
        let mut promoted = false;
        while self.has_room(active_max)
            && let Some((uid, Waiting { text: Some(_), .. })) = self.next_in_turn()
        {
            let uid = uid.clone();
            let text = self.stop_waiting(&uid).unwrap_or_default();
            // What was written by serde is read by it.
            if let Ok(Watched(pod)) = serde_json::from_slice(&text) {
                self.insert(remains(pod));
                promoted = true;
            }
        }
        promoted
    }

    /// Whether one more pod may be taken up that is not over: by their number, and by what they take.
    fn has_room(&self, active_max: usize) -> bool {
        self.active.len() < active_max && self.active.values().sum::<usize>() < ACTIVE_BYTES_MAX
    }

    /// Returns the text of a pod that doesn't wait any more, if it was kept.
    fn stop_waiting(&mut self, uid: &PodUid) -> Option<Box<[u8]>> {
        let text = self.waiting.remove(uid)?.text?;
        self.waiting_bytes -= text.len();
        Some(text)
    }

    /// Takes over what another set has of a pod, if that is the same version. Tells whether it is.
    fn take_over(&mut self, known: &Self, pod: &Pod) -> bool {
        let uid = PodUid::of(pod);
        let same = known.objects.pods.get(&uid).filter(|known| {
            let version = &known.metadata.resource_version;
            version.is_some() && *version == pod.metadata.resource_version
        });
        let Some(object) = same else {
            return false;
        };
        self.stop_waiting(&uid);
        if let Some(bytes) = known.active.get(&uid) {
            self.active.insert(uid.clone(), *bytes);
        }
        if let Some(marked) = known.ordinary.get(&uid) {
            Arc::make_mut(&mut self.ordinary).insert(uid.clone(), Arc::clone(marked));
        }
        let objects = Arc::make_mut(&mut self.objects);
        objects.pods.insert(uid, Arc::clone(object));
        true
    }

    fn settle(&mut self, uid: PodUid, name: FullName) -> bool {
        if self.objects.settled.contains_key(&uid) {
            return false;
        }
        let objects = Arc::make_mut(&mut self.objects);
        objects.settled.insert(uid, name);
        true
    }

    /// Tells whether it was taken up or settled.
    fn forget(&mut self, uid: &PodUid) -> bool {
        self.stop_waiting(uid);
        let known = &self.objects;
        if !known.pods.contains_key(uid) && !known.settled.contains_key(uid) {
            return false;
        }
        self.active.remove(uid);
        if self.ordinary.contains_key(uid) {
            Arc::make_mut(&mut self.ordinary).remove(uid);
        }
        let objects = Arc::make_mut(&mut self.objects);
        objects.pods.remove(uid);
        objects.settled.remove(uid);
        true
    }

    fn insert(&mut self, mut pod: Pod) {
        // managedFields are not used here, and are a good part of the object.
        pod.metadata.managed_fields = None;
        let uid = PodUid::of(&pod);
        self.active.remove(&uid);
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
            self.active.insert(uid.clone(), bytes_of(&pod));
            ordinary.insert(uid.clone(), Arc::new(marked(pod.clone())));
            Arc::new(pod)
        };
        let objects = Arc::make_mut(&mut self.objects);
        objects.settled.remove(&uid);
        objects.pods.insert(uid, object);
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
