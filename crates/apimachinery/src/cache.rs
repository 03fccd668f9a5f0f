//! All objects, and the latest changes: what lists are answered from and watches resume from.
//!
//! The objects are made anew from the agent's state whenever somebody asks; the cache compares
//! them with those before and gives each change a revision.

use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::Value;

use crate::meta;
use crate::resources::Resource;
use crate::selector::Selector;
use crate::status::Status;

/// Most changes that are kept for watches that resume. At one change a second it is a quarter of an
/// hour; most share their objects with the cache.
const CHANGES_MAX: usize = 1000;

/// Identifies an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Its resource.
    pub resource: &'static Resource,
    /// Its namespace; empty where it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Key {
    /// The key of an object.
    pub fn new(
        resource: &'static Resource,
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self {
            resource,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    fn parts(&self) -> (&str, &str, &str, &str) {
        let resource = self.resource;
        (resource.group, resource.plural, &self.namespace, &self.name)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The kind of a change, as a watch names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It came.
    Added,
    /// It changed.
    Modified,
    /// It went.
    Deleted,
}

impl ChangeKind {
    /// The type of the event.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// A change of an object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its revision.
    pub revision: u64,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The object concerned.
    pub key: Key,
    /// The object since, or its last state with the revision of its end.
    pub object: Arc<Value>,
    /// The object before.
    pub before: Option<Arc<Value>>,
}

impl Change {
    /// The change as a watch of that selection sees it: an object that enters the selection is added, one
    /// that leaves it is deleted.
    #[must_use]
    pub fn seen_by(&self, selector: &Selector) -> Option<(ChangeKind, Arc<Value>)> {
        let now = self.kind != ChangeKind::Deleted && selector.matches(&self.object);
        let before = self.before.as_ref().filter(|b| selector.matches(b));
        match (before, now) {
            (None, false) => None,
            (None, true) => Some((ChangeKind::Added, Arc::clone(&self.object))),
            (Some(_), true) => Some((ChangeKind::Modified, Arc::clone(&self.object))),
            (Some(before), false) => {
                let mut last = (**before).clone();
                meta::set_revision(&mut last, self.revision);
                Some((ChangeKind::Deleted, Arc::new(last)))
            }
        }
    }
}

/// All objects and the latest changes.
#[derive(Debug)]
pub struct Cache {
    revision: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    changes: VecDeque<Change>,
    /// Changes up to this revision are no longer known.
    forgotten: u64,
    /// The resource whose objects are put and removed one by one.
    apart: Option<&'static Resource>,
}

impl Cache {
    /// An empty cache whose changes have revisions beyond that one.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self {
            revision,
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            forgotten: revision,
            apart: None,
        }
    }

    /// The same, with the objects of that resource put and removed one by one: there are many, and
    /// few change at a time.
    #[must_use]
    pub fn with_apart(self, resource: &'static Resource) -> Self {
        Self {
            apart: Some(resource),
            ..self
        }
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Makes these all objects there are, but for those that are put one by one. Their
    /// `resourceVersion` is set here; an object that is as before keeps the one that it had. Returns
    /// whether there was a change.
    pub fn replace(&mut self, wanted: BTreeMap<Key, Value>) -> bool {
        let first = self.revision;
        let is_apart = |key: &Key| {
            self.apart
                .is_some_and(|apart| std::ptr::eq(apart, key.resource))
        };
        let gone: Vec<_> = self
            .objects
            .keys()
            .filter(|key| !wanted.contains_key(key) && !is_apart(key))
            .cloned()
            .collect();
        for key in gone {
            self.remove(&key);
        }
        for (key, object) in wanted {
            self.put(key, object);
        }
        self.revision != first
    }

    /// Puts an object, with its `resourceVersion`, unless it is as before.
    pub fn put(&mut self, key: Key, mut object: Value) {
        let before = self.objects.get(&key).cloned();
        if let Some(before) = &before {
            meta::set_revision(&mut object, meta::revision(before).unwrap_or(0));
            if **before == object {
                return;
            }
            if meta::uid(before) != meta::uid(&object) {
                // Another object of the same name.
                self.remove(&key);
                return self.note(ChangeKind::Added, key, object, None);
            }
            return self.note(ChangeKind::Modified, key, object, Some(Arc::clone(before)));
        }
        self.note(ChangeKind::Added, key, object, None);
    }

    /// Removes an object, if it is there.
    pub fn remove(&mut self, key: &Key) {
        if let Some(before) = self.objects.remove(key) {
            let last = (*before).clone();
            self.note(ChangeKind::Deleted, key.clone(), last, Some(before));
        }
    }

    fn note(&mut self, kind: ChangeKind, key: Key, mut object: Value, before: Option<Arc<Value>>) {
        self.revision += 1;
        meta::set_revision(&mut object, self.revision);
        let object = Arc::new(object);
        if kind != ChangeKind::Deleted {
            self.objects.insert(key.clone(), Arc::clone(&object));
        }
        self.changes.push_back(Change {
            revision: self.revision,
            kind,
            key,
            object,
            before,
        });
        while self.changes.len() > CHANGES_MAX {
            if let Some(forgotten) = self.changes.pop_front() {
                self.forgotten = forgotten.revision;
            }
        }
    }

    /// All objects, by their keys.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects.iter().map(|(key, object)| (key, &**object))
    }

    /// The object of that key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// The objects of a resource that a selector means, in one namespace or in all (empty), by
    /// namespace and name.
    #[must_use]
    pub fn list(
        &self,
        resource: &'static Resource,
        namespace: &str,
        selector: &Selector,
    ) -> Vec<Arc<Value>> {
        let from = Key::new(resource, namespace, "");
        self.objects
            .range(from..)
            .take_while(|(key, _)| key.resource == resource)
            .filter(|(key, _)| namespace.is_empty() || key.namespace == namespace)
            .filter(|(_, object)| selector.matches(object))
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// The objects as they were at a revision: those of now, with the changes since undone.
    ///
    /// # Errors
    /// The revision is one that doesn't exist yet, or some of the changes are no longer known.
    pub fn list_at(
        &self,
        revision: u64,
        resource: &'static Resource,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<Arc<Value>>, Status> {
        if revision > self.revision {
            return Err(Status::too_large_version(revision, self.revision));
        }
        let all = Selector::default();
        let mut objects: BTreeMap<(String, String), Arc<Value>> = self
            .list(resource, namespace, &all)
            .into_iter()
            .map(|object| {
                let (namespace, name) = (meta::namespace(&object), meta::name(&object));
                ((namespace.to_owned(), name.to_owned()), object)
            })
            .collect();
        let changes: Vec<&Change> = self.since(revision)?.collect();
        for change in changes.into_iter().rev() {
            let key = &change.key;
            if key.resource != resource || (!namespace.is_empty() && key.namespace != namespace) {
                continue;
            }
            let place = (key.namespace.clone(), key.name.clone());
            match &change.before {
                Some(before) => drop(objects.insert(place, Arc::clone(before))),
                None => drop(objects.remove(&place)),
            }
        }
        let found = objects.into_values();
        Ok(found.filter(|object| selector.matches(object)).collect())
    }

    /// The changes after a revision, oldest first.
    ///
    /// # Errors
    /// Some of them are no longer known.
    pub fn since(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Status> {
        if revision < self.forgotten {
            return Err(Status::expired(revision, self.forgotten));
        }
        let first = self.changes.partition_point(|c| c.revision <= revision);
        Ok(self.changes.range(first..))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::resources::{CONFIG_MAPS, PODS};

    fn pod(name: &str, uid: &str, phase: &str) -> (Key, Value) {
        let metadata = json!({"name": name, "namespace": "a", "uid": uid});
        let object = json!({"metadata": metadata, "status": {"phase": phase}});
        (Key::new(&PODS, "a", name), object)
    }

    fn told(cache: &Cache, since: u64) -> Vec<String> {
        let words = |c: &Change| format!("{} {} {}", c.revision, c.kind.as_str(), c.key.name);
        cache.since(since).unwrap().map(words).collect()
    }

    #[test]
    fn only_what_changed_gets_a_revision() {
        let mut cache = Cache::new(100);
        cache.replace([pod("web", "1", "Pending"), pod("db", "2", "Running")].into());
        assert_eq!(told(&cache, 100), ["101 ADDED db", "102 ADDED web"]);
        // embedded 2
        assert!(!cache.replace([pod("web", "1", "Pending"), pod("db", "2", "Running")].into()));
        cache.replace([pod("web", "1", "Running"), pod("db", "2", "Running")].into());
        assert_eq!(told(&cache, 102), ["103 MODIFIED web"]);
        // Another pod of the same name, and one that is gone.
        cache.replace([pod("web", "3", "Running")].into());
        assert_eq!(
            told(&cache, 103),
            ["104 DELETED db", "105 DELETED web", "106 ADDED web"]
        );
        let kept = cache.get(&Key::new(&PODS, "a", "web")).unwrap();
        assert_eq!(kept["metadata"]["resourceVersion"], "106");
    }

    #[test]
    fn objects_that_are_put_one_by_one_stay() {
        let mut cache = Cache::new(0).with_apart(&CONFIG_MAPS);
        let map = Key::new(&CONFIG_MAPS, "a", "map");
        let object = |data: &str| json!({"metadata": {"name": "map", "uid": "9"}, "data": data});
        cache.put(map.clone(), object("x"));
        cache.replace([pod("web", "1", "Running")].into());
        cache.put(map.clone(), object("x"));
        cache.replace(BTreeMap::new());
        assert_eq!(
            told(&cache, 0),
            ["1 ADDED map", "2 ADDED web", "3 DELETED web"]
        );
        cache.put(map.clone(), object("y"));
        cache.remove(&map);
        cache.remove(&map);
        assert_eq!(told(&cache, 3), ["4 MODIFIED map", "5 DELETED map"]);
    }

    #[test]
    fn a_watch_from_a_forgotten_revision_expires() {
        let mut cache = Cache::new(0);
        for turn in 0..=CHANGES_MAX {
            cache.replace([pod("web", "1", &turn.to_string())].into());
        }
        // embedded 17
        assert_eq!(cache.since(0).err().unwrap().code, 410);
        assert_eq!(cache.since(1).unwrap().count(), CHANGES_MAX);
        // An agent that starts anew knows no change of before.
        assert_eq!(Cache::new(5000).since(4999).err().unwrap().code, 410);
    }

    #[test]
    fn selections_are_entered_and_left() {
        let mut cache = Cache::new(0);
        let running = Selector::parse("", "status.phase=Running", &PODS).unwrap();
        for phase in ["Pending", "Running", "Running ", "Failed"] {
            cache.replace([pod("web", "1", phase.trim())].into());
        }
        let seen: Vec<_> = cache
            .since(0)
            .unwrap()
            .filter_map(|change| change.seen_by(&running))
            .map(|(kind, object)| {
                let revision = object["metadata"]["resourceVersion"].as_str();
                format!("{} {}", kind.as_str(), revision.unwrap())
            })
            .collect();
        // embedded 18
        assert_eq!(seen, ["ADDED 2", "DELETED 3"]);
    }

    #[test]
    fn lists_are_of_one_resource_and_namespace() {
        let mut cache = Cache::new(0);
        let map = (
            Key::new(&CONFIG_MAPS, "a", "web"),
            json!({"metadata": {"name": "web"}}),
        );
        let other = (
            Key::new(&PODS, "b", "web"),
            json!({"metadata": {"name": "web"}}),
        );
        cache.replace(
            [
                pod("web", "1", "Running"),
                pod("db", "2", "Running"),
                map,
                other,
            ]
            .into(),
        );
        let all = Selector::default();
        assert_eq!(cache.list(&PODS, "a", &all).len(), 2);
        assert_eq!(cache.list(&PODS, "", &all).len(), 3);
        assert_eq!(cache.list(&PODS, "c", &all).len(), 0);
    }

    #[test]
    fn a_list_of_an_older_revision_is_what_it_was() {
        let mut cache = Cache::new(100);
        let all = Selector::default();
        let steps = [
            vec![("web", "1", "Pending")],
            vec![("web", "1", "Running"), ("db", "2", "Running")],
            vec![("web", "3", "Running")],
            vec![],
        ];
        let mut seen = vec![(100, Vec::new())];
        for step in steps {
            cache.replace(step.iter().map(|(n, u, p)| pod(n, u, p)).collect());
            seen.push((cache.revision(), cache.list(&PODS, "a", &all)));
        }
        for (revision, objects) in seen {
            // embedded 28
            assert_eq!(cache.list_at(revision, &PODS, "a", &all).unwrap(), objects);
            assert!(
                cache
                    .list_at(revision, &PODS, "b", &all)
                    .unwrap()
                    .is_empty()
            );
        }
        let code = |revision| cache.list_at(revision, &PODS, "", &all).unwrap_err().code;
        assert_eq!((code(99), code(1000)), (410, 504));
    }

    proptest! {
        /// Whoever lists, and applies all changes since, has what a list gives.
        #[test]
        fn changes_lead_from_one_list_to_the_next(
            steps in prop::collection::vec(prop::collection::btree_map(0..6_u8, (0..3_u8, 0..3_u8), 0..6), 1..40),
            from in 0..40_usize,
        ) {
            let mut cache = Cache::new(7);
            let all = Selector::default();
            let (mut mirror, mut revision) = (BTreeMap::new(), 7);
            for (turn, step) in steps.iter().enumerate() {
                let objects = step.iter().map(|(name, (uid, phase))| {
                    pod(&name.to_string(), &uid.to_string(), &phase.to_string())
                });
                cache.replace(objects.collect());
                if turn == from {
                    mirror = cache.list(&PODS, "", &all).into_iter()
                        .map(|object| (meta::name(&object).to_owned(), object)).collect();
                    revision = cache.revision();
                }
            }
            if from < steps.len() {
                for change in cache.since(revision).unwrap() {
                    prop_assert!(change.revision > revision);
                    revision = change.revision;
                    match change.kind {
                        ChangeKind::Deleted => {
                            prop_assert!(mirror.remove(&change.key.name).is_some());
                        }
                        ChangeKind::Added => {
                            let known = mirror.insert(change.key.name.clone(), Arc::clone(&change.object));
                            prop_assert!(known.is_none());
                        }
                        ChangeKind::Modified => {
                            let known = mirror.insert(change.key.name.clone(), Arc::clone(&change.object));
                            prop_assert!(known.is_some());
                        }
                    }
                }
                let listed: Vec<_> = cache.list(&PODS, "", &all);
                // embedded 17
                prop_assert_eq!(mirror.into_values().collect::<Vec<_>>(), listed);
            }
        }
    }
}
