//! The events of the journal as objects in the cache.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use mirrorlet_apimachinery::cache::{Cache, Key};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{EVENTS, PODS, Resource};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::core::ObjectReference;
use mirrorlet_core::clock::elapsed;
use mirrorlet_core::events::Correlator;

use super::pods::pod_uid;
use super::project::{seconds, uid_of};
use crate::server::view::{AgentView, Shown, ShownPod};

/// The age up to which an event is shown.
///
/// Upstream: `--event-ttl` of kube-apiserver.
const EVENT_AGE_MAX: Duration = Duration::from_hours(1);
/// Most events that are shown; the oldest go first.
const EVENTS_MAX: usize = 2000;
/// Maximum number of events whose pods were not shown yet; the oldest stay as they are.
const EARLY_MAX: usize = 256;

/// The events of the journal as objects in the cache.
pub(super) struct Events {
    correlator: Correlator,
    /// The number of the next entry of the journal.
    next: u64,
    /// When each happened last.
    times: BTreeMap<Key, Timestamp>,
    /// The earliest of these.
    oldest: Option<Timestamp>,
    /// Events whose pods were not shown yet, with the agent's UIDs of these: the journal has some a
    /// moment before the agent shows their pods.
    early: VecDeque<(Key, String)>,
}

impl Events {
    /// Returns an empty set, for that node's agent.
    pub(super) fn new(node: &str) -> Self {
        Self {
            correlator: Correlator::new(node),
            next: 0,
            times: BTreeMap::new(),
            oldest: None,
            early: VecDeque::new(),
        }
    }

    /// Adds new entries of the journal, and drops old ones.
    pub(super) fn take(
        &mut self,
        view: &dyn AgentView,
        shown: &Shown,
        now: Timestamp,
        cache: &mut Cache,
    ) {
        self.name_early(shown, cache);
        let (happenings, next) = view.happenings(self.next);
        self.next = next;
        for mut happening in happenings {
            // Those of a pod that the API stores are about its object.
            let uid = happening.involved.uid.clone().unwrap_or_default();
            let pod = with_uid(shown, &uid);
            let is_early = pod.is_none() && happening.involved.kind.as_deref() == Some(PODS.kind);
            if let Some(pod) = pod.filter(|pod| pod.is_stored()) {
                happening.involved.uid = Some(pod_uid(pod));
            }
            name_workload(&mut happening.involved, cache);
            let at = happening.at;
            if let Some(write) = self.correlator.correlate(&happening, at) {
                let (namespace, name) = (write.namespace(), write.name());
                let key = Key::new(&EVENTS, namespace, name);
                let known = cache.get(&key);
                let created = known.map(|event| event["metadata"]["creationTimestamp"].clone());
                let mut event = serde_json::to_value(&write.event).unwrap_or_default();
                event["apiVersion"] = "v1".into();
                event["kind"] = "Event".into();
                event["metadata"]["uid"] = uid_of(&format!("Event {namespace}/{name}")).into();
                event["metadata"]["creationTimestamp"] =
                    created.unwrap_or_else(|| seconds(at).into());
                cache.put(key.clone(), event);
                if is_early {
                    self.note_early(key.clone(), uid);
                }
                self.times.insert(key, at);
            }
        }
        self.drop_old(now, cache);
    }

    /// Records an event whose pod isn't shown.
    fn note_early(&mut self, key: Key, uid: String) {
        self.early.retain(|(known, _)| *known != key);
        self.early.push_back((key, uid));
        if self.early.len() > EARLY_MAX {
            self.early.pop_front();
        }
    }

    /// Gives events the UIDs of their pods' objects once these are shown.
    fn name_early(&mut self, shown: &Shown, cache: &mut Cache) {
        self.early.retain(|(key, uid)| {
            let Some(pod) = with_uid(shown, uid) else {
                return true;
            };
            if let Some(event) = cache.get(key).filter(|_| pod.is_stored()) {
                let mut event = (*event).clone();
                event["involvedObject"]["uid"] = pod_uid(pod).into();
                cache.put(key.clone(), event);
            }
            false
        });
    }

    /// Whether one of them is older than the maximum age.
    pub(super) fn has_old(&self, now: Timestamp) -> bool {
        let oldest = self.oldest;
        oldest.is_some_and(|oldest| elapsed(oldest, now) >= EVENT_AGE_MAX)
    }

    /// Drops old ones, and the oldest if there are too many.
    pub(super) fn drop_old(&mut self, now: Timestamp, cache: &mut Cache) {
        let mut forget = |key: &Key| cache.remove(key);
        self.times.retain(|key, at| {
            let is_new = elapsed(*at, now) < EVENT_AGE_MAX;
            if !is_new {
                forget(key);
            }
            is_new
        });
        while self.times.len() > EVENTS_MAX {
            let oldest = self.times.iter().min_by_key(|(_, at)| **at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.times.remove(&oldest);
            forget(&oldest);
        }
        self.oldest = self.times.values().min().copied();
    }
}

/// The pod that the agent knows by that UID, if it is shown.
fn with_uid<'a>(shown: &'a Shown, uid: &str) -> Option<&'a ShownPod> {
    let mut pods = shown.pods.iter();
    pods.find(|pod| pod.pod.metadata.uid.as_deref() == Some(uid))
}

/// Gives a reference to a workload the UID of its object.
fn name_workload(involved: &mut ObjectReference, cache: &Cache) {
    if involved.uid.is_some() {
        return;
    }
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (kind, namespace) = (text(&involved.kind), text(&involved.namespace));
    let name = text(&involved.name);
    let object = Resource::of_kind(&kind);
    let object = object.and_then(|resource| cache.get(&Key::new(resource, &*namespace, &*name)));
    involved.uid = Some(match object {
        Some(object) => meta::uid(&object).to_owned(),
        None => uid_of(&format!("{kind} {namespace}/{name}")),
    });
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::selector::Selector;
    use mirrorlet_core::api::{FullName, PodUid, keys};
    use mirrorlet_core::events::{EventType, Happening, pod_ref};
    use serde_json::json;

    use super::*;
    use crate::server::embedded::bed::Bed;

    #[test]
    fn an_event_that_comes_before_its_pod_is_about_its_object() {
        let bed = Bed::new();
        let (name, uid) = (FullName::new("web", "default"), PodUid::from("u-1"));
        bed.view.happened.lock().unwrap().push(Happening {
            involved: pod_ref(&name, &uid, None),
            event_type: EventType::Warning,
            reason: "FailedScheduling".to_owned(),
            message: "0/1 nodes are available".to_owned(),
            at: Timestamp::now(),
        });
        let look = || {
            let store = &bed.api.store;
            store.read(|cache| cache.list(&EVENTS, "default", &Selector::default()))
        };
        let first = look();
        // It is there at once, and would stay so if its pod never came.
        assert_eq!(first.len(), 1);
        assert_eq!(first[0]["involvedObject"]["uid"], "u-1");
        let annotations = json!({keys::CONFIG_SOURCE: "embedded", keys::OBJECT_UID: "o-1"});
        let metadata = json!({"name": "web", "namespace": "default", "uid": "u-1", "annotations": annotations});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}});
        bed.view.shown.lock().unwrap().pods.push(ShownPod {
            pod: serde_json::from_value(pod).unwrap(),
            newest: None,
            origin: None,
            terminating: false,
        });
        bed.api.store.touch();
        let then = look();
        // embedded 5
        assert_eq!(then[0]["involvedObject"]["uid"], "o-1");
        assert_eq!(then.len(), 1);
        assert_eq!(then[0]["metadata"]["uid"], first[0]["metadata"]["uid"]);
    }
}
