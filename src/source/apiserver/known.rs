//! PURE: a set of the API server's pods, each in its stored form.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mirrorlet_core::api::meta::Time;
use mirrorlet_core::api::{FullName, Pod, PodUid, Watched, is_too_large, keys};
use mirrorlet_core::desired::{ApiPods, PodSource};
use mirrorlet_core::ending::{is_over, is_released, is_settled, remains, remains_of_deleted};
use mirrorlet_core::finished::FinishedPod;
use mirrorlet_core::manager::is_mirror_pod;
use mirrorlet_core::sizes::json_size;

/// Approximate maximum size of all pods that haven't ended, in bytes, up to which another one is
/// adopted. A usual pod takes 20 to 100 KB.
const ACTIVE_BYTES_MAX: usize = 48 << 20;
/// Maximum number of ended pods in a list that get a worker at a time: an earlier agent may have been
/// killed before it had stopped their sandboxes and released their volumes.
pub(super) const LOOKED_AFTER_AT_A_TIME: usize = 256;
/// The bytes that a value of a pod takes beside its text, about.
const VALUE_BYTES: usize = 200;
/// Maximum size of the texts of all waiting pods, in bytes. Of further ones only the names are kept,
/// and they are requested when their turn comes: memory that a burst once used is never returned to the
/// system.
const WAITING_BYTES_MAX: usize = 2 << 20;

/// Maximum number of mirrors without a static pod that are kept. Users who may create Pods can create
/// any number of them; the agent deletes them one by one.
pub(super) const STRANGE_MIRRORS_MAX: usize = 10_000;

/// The bytes that a pod takes here, about.
fn bytes_of(pod: &Pod) -> usize {
    let size = json_size(pod);
    // As the server has it, and as this node marks it.
    2 * size.bytes + size.values * VALUE_BYTES
}

/// The form in which an object is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Its name.
    Settled,
    /// Its short form.
    Finished,
    /// The fields that are used; for a mirror, those by which it is compared.
    Whole,
    /// The few fields by which its deletion is confirmed.
    Deleted,
    /// As [`Whole`](Self::Whole), or its text until the limits allow that.
    Newcomer,
}

/// A pod that waits for adoption.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) name: FullName,
    priority: i32,
    created: Option<Time>,
    /// The pod as JSON; none if all waiting pods take too much.
    pub(super) text: Option<Box<[u8]>>,
}

/// A set of the API server's pods.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// All adopted objects, and the names of settled pods. Copied by a change only while a reader still
    /// holds the previous one.
    pub(super) objects: Arc<ApiPods>,
    /// Those that are neither mirrors nor settled, annotated with their source.
    pub(super) ordinary: Arc<BTreeMap<PodUid, Arc<Pod>>>,
    /// Those that are kept in their short form before a worker has looked after them.
    unseen: BTreeSet<PodUid>,
    /// Those that were among these, and that a worker looks after.
    looked_after: BTreeSet<PodUid>,
    /// Those of them that are not over, and the bytes that each takes, about.
    active: BTreeMap<PodUid, usize>,
    /// Pods that wait for adoption. A tenant can create thousands that the node has to refuse, and each
    /// takes twenty times as much memory while it is processed.
    pub(super) waiting: BTreeMap<PodUid, Waiting>,
    /// The bytes of their texts.
    waiting_bytes: usize,
    /// The mirrors that no static pod had the name of when they came.
    strange_mirrors: BTreeSet<PodUid>,
    /// How often one of those was ignored, as there were too many.
    ignored: usize,
}

impl Known {
    pub(super) fn place(&self, pod: &Pod, may_be_here: impl Fn(&PodUid) -> bool) -> Place {
        let uid = PodUid::of(pod);
        let is_deleted = pod.metadata.deletion_timestamp.is_some();
        if self.objects.settled.contains_key(&uid) && !is_deleted {
            // It never starts again, whatever its status becomes.
            Place::Settled
        } else if self.objects.finished.contains(&uid) {
            if is_deleted {
                Place::Whole
            } else {
                Place::Finished
            }
        } else if self.objects.pods.contains_key(&uid) || is_mirror_pod(pod) {
            Place::Whole
        } else if may_be_here(&uid) {
            if is_settled(pod) {
                Place::Finished
            } else {
                Place::Whole
            }
        } else if is_settled(pod) || is_released(pod) {
            Place::Settled
        } else if is_deleted {
            Place::Deleted
        } else if is_over(pod.status.as_ref()) {
            Place::Whole
        } else {
            Place::Newcomer
        }
    }

    /// Returns whether that is a change.
    pub(super) fn put(&mut self, pod: Pod, place: Place, active_max: usize) -> bool {
        let uid = PodUid::of(&pod);
        let has_room = self.has_room(active_max);
        match place {
            Place::Settled => {
                let name = FullName::of(&pod);
                self.stop_waiting(&uid);
                self.settle(uid, name)
            }
            Place::Finished => {
                self.stop_waiting(&uid);
                let known = self.objects.finished.get(&uid);
                let pod = if let Some(known) = known {
                    Some(known.changed(&pod, left))
                } else {
                    self.unseen.insert(uid.clone());
                    left(pod).and_then(|pod| FinishedPod::of(&pod))
                };
                let changed = pod.is_some_and(|pod| self.finish(uid, pod));
                self.look_after() || changed
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

    /// Counts a mirror that is ignored, and returns whether it is: an unknown one without a static pod,
    /// according to `is_static_pod`. A static pod's mirror is always kept.
    pub(super) fn ignores(&mut self, pod: &Pod, is_static_pod: impl Fn(&FullName) -> bool) -> bool {
        let uid = PodUid::of(pod);
        let is_known = self.objects.pods.contains_key(&uid);
        if !is_mirror_pod(pod) || is_known || is_static_pod(&FullName::of(pod)) {
            return false;
        }
        if self.strange_mirrors.len() >= STRANGE_MIRRORS_MAX {
            self.ignored += 1;
            return true;
        }
        self.strange_mirrors.insert(uid);
        false
    }

    /// Whether mirrors are ignored.
    pub(super) fn ignores_any(&self) -> bool {
        self.ignored > 0
    }

    /// Whether ignored mirrors fit into the limit again, with enough room for a new list.
    pub(super) fn has_room_for_ignored(&self) -> bool {
        self.ignores_any() && self.strange_mirrors.len() <= STRANGE_MIRRORS_MAX / 2
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

    /// The pod to adopt next: a higher priority first, then a namespace with fewer adopted pods, so
    /// that no tenant waits for all the pods of another, then an older one.
    pub(super) fn next_in_turn(&self) -> Option<(&PodUid, &Waiting)> {
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

    /// Adopts waiting pods within the limits, if their texts are kept. Returns whether there were any.
    pub(super) fn promote(&mut self, active_max: usize) -> bool {
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

    /// Whether one more pod that hasn't ended may be adopted: by number and by size.
    pub(super) fn has_room(&self, active_max: usize) -> bool {
        self.active.len() < active_max && self.active.values().sum::<usize>() < ACTIVE_BYTES_MAX
    }

    /// Returns the text of a pod that no longer waits, if it was kept.
    pub(super) fn stop_waiting(&mut self, uid: &PodUid) -> Option<Box<[u8]>> {
        let text = self.waiting.remove(uid)?.text?;
        self.waiting_bytes -= text.len();
        Some(text)
    }

    /// Copies another set's form of a pod, if that is the same version, or has ended. Returns whether
    /// it is.
    pub(super) fn take_over(&mut self, known: &Self, pod: &Pod) -> bool {
        let uid = PodUid::of(pod);
        let finished = known.objects.finished.get(&uid);
        if let Some(finished) = finished.filter(|_| pod.metadata.deletion_timestamp.is_none()) {
            if known.unseen.contains(&uid) {
                self.unseen.insert(uid.clone());
            }
            self.finish(uid, finished.changed(pod, left));
            return true;
        }
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

    pub(super) fn settle(&mut self, uid: PodUid, name: FullName) -> bool {
        if self.objects.settled.contains_key(&uid) {
            return false;
        }
        let objects = Arc::make_mut(&mut self.objects);
        objects.settled.insert(uid, name);
        true
    }

    /// Returns whether that is a change.
    pub(super) fn finish(&mut self, uid: PodUid, pod: FinishedPod) -> bool {
        Arc::make_mut(&mut self.objects).finished.insert(uid, pod)
    }

    /// Returns this set as the successor of another one.
    pub(super) fn after(mut self, before: &Self) -> Self {
        let looked_after = before.looked_after.iter();
        let goes_on = looked_after.filter(|uid| self.objects.pods.contains_key(*uid));
        self.looked_after.extend(goes_on.cloned());
        self
    }

    /// Handles a pod whose worker has finished its work, or that is gone.
    pub(super) fn is_looked_after(&mut self, uid: &PodUid) {
        self.unseen.remove(uid);
        self.looked_after.remove(uid);
    }

    /// Adopts ended pods that had no worker yet, within the limit. Returns whether there were any.
    pub(super) fn look_after(&mut self) -> bool {
        let mut any = false;
        while self.looked_after.len() < LOOKED_AFTER_AT_A_TIME
            && let Some(uid) = self.unseen.pop_first()
        {
            let pod = self.objects.finished.get(&uid).and_then(FinishedPod::pod);
            if let Some(pod) = pod {
                self.looked_after.insert(uid);
                self.insert(pod);
                any = true;
            }
        }
        any
    }

    /// Forgets a pod. Returns whether it was adopted or settled.
    pub(super) fn forget(&mut self, uid: &PodUid) -> bool {
        self.stop_waiting(uid);
        let known = &self.objects;
        let is_known = known.pods.contains_key(uid) || known.settled.contains_key(uid);
        if !is_known && !known.finished.contains(uid) {
            return false;
        }
        self.active.remove(uid);
        self.strange_mirrors.remove(uid);
        self.is_looked_after(uid);
        if self.ordinary.contains_key(uid) {
            Arc::make_mut(&mut self.ordinary).remove(uid);
        }
        let objects = Arc::make_mut(&mut self.objects);
        objects.pods.remove(uid);
        objects.settled.remove(uid);
        objects.finished.remove(uid);
        true
    }

    fn insert(&mut self, mut pod: Pod) {
        // managedFields are not used here, and are a good part of the object.
        pod.metadata.managed_fields = None;
        let uid = PodUid::of(&pod);
        self.active.remove(&uid);
        self.unseen.remove(&uid);
        let ordinary = Arc::make_mut(&mut self.ordinary);
        let object = if is_mirror_pod(&pod) {
            ordinary.remove(&uid);
            Arc::new(pod)
        } else if is_over(pod.status.as_ref()) {
            // One copy is enough: the annotations of the reduced form are never compared.
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
        objects.finished.remove(&uid);
        objects.pods.insert(uid, object);
    }
}

/// The reduced form of an ended pod, annotated with its source; none for any other pod.
fn left(mut pod: Pod) -> Option<Pod> {
    pod.metadata.managed_fields = None;
    is_settled(&pod).then(|| marked(remains(pod)))
}

/// The pod annotated with its source, replacing any existing value: an annotation can't make a pod
/// static.
pub(super) fn marked(mut pod: Pod) -> Pod {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CONFIG_SOURCE.to_owned(), PodSource::Api.to_string());
    pod
}
