//! All objects and their latest changes: the source of lists, and of the events from which watches
//! resume.
//!
//! The objects are built from the agent's state for each request; the cache compares them with the
//! previous ones and gives each change a revision.

mod key;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mirrorlet_core::sizes::json_size;
use mirrorlet_core::small::SmallCollect;
use serde_json::Value;

pub use self::key::Key;
use crate::bounds;
use crate::meta;
use crate::resources::Resource;
use crate::selector::Selector;
use crate::status::Status;

/// Most changes that are kept for watches that resume. At one change a second it is a quarter of an
/// hour.
const CHANGES_MAX: usize = 1000;
/// The maximum size of the changes that are kept, in bytes of JSON. Each change has the object before
/// and after, so a version of an object counts twice although it is held once.
const CHANGES_BYTES_MAX: usize = 16 << 20;
/// The number of the newest changes that are held as decoded values, which watches that are up to date
/// share. Older ones are held as JSON.
const FRESH_MAX: usize = 100;
/// Most memory that those values take, about. The newest change is held as values anyway: the objects
/// have it, too.
const FRESH_BYTES_MAX: usize = 16 << 20;

mirrorlet_core::words! {
    /// The type of a change, in the terms of a watch event.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ChangeKind {
        /// It came.
        Added = "ADDED",
        /// It changed.
        Modified = "MODIFIED",
        /// It went.
        Deleted = "DELETED",
    }
    /// The type of the event.
    pub fn as_str;
}

/// An object as it is held.
#[derive(Debug, Clone)]
enum Held {
    /// As lists and watches want it.
    Value(Arc<Value>),
    /// As JSON, which takes a fifth of the room.
    Text(Arc<str>),
}

/// A version of an object in the form in which it is held, without decoding it.
#[derive(Debug, Clone)]
pub struct Version {
    held: Held,
    /// The length of its JSON.
    bytes: usize,
    /// The memory that it takes as a value, about.
    memory: usize,
}

impl Version {
    fn new(object: Arc<Value>) -> Self {
        Self {
            bytes: json_size(&*object).bytes,
            memory: bounds::memory(&object),
            held: Held::Value(object),
        }
    }

    /// The object.
    pub fn object(&self) -> Arc<Value> {
        match &self.held {
            Held::Value(object) => Arc::clone(object),
            // Made from a value, so it can be read.
            Held::Text(text) => Arc::new(serde_json::from_str(text).unwrap_or_default()),
        }
    }

    fn unpacked(&self) -> Self {
        Self {
            held: Held::Value(self.object()),
            ..*self
        }
    }

    fn pack(&mut self) {
        if let Held::Value(object) = &self.held {
            self.held = Held::Text(object.to_string().into());
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
    object: Version,
    before: Option<Version>,
}

impl Change {
    /// The object after the change; for a deletion, its last state with the revision of the deletion.
    pub fn object(&self) -> Arc<Value> {
        self.object.object()
    }

    /// The object before.
    pub fn before(&self) -> Option<Arc<Value>> {
        self.before.as_ref().map(Version::object)
    }

    /// The length of the object before and after the change, as JSON.
    pub fn bytes(&self) -> usize {
        self.object.bytes + self.before.as_ref().map_or(0, |before| before.bytes)
    }

    fn memory(&self) -> usize {
        self.object.memory + self.before.as_ref().map_or(0, |before| before.memory)
    }

    /// The change as a watch with that selector sees it: an object that enters the selection is added,
    /// and one that leaves it is deleted.
    pub fn seen_by(&self, selector: &Selector) -> Option<(ChangeKind, Arc<Value>)> {
        let is_there = self.kind != ChangeKind::Deleted;
        let now = is_there.then(|| self.object());
        let now = now.filter(|now| selector.matches(now));
        let before = self.before().filter(|before| selector.matches(before));
        match (before, now) {
            (None, None) => None,
            (None, Some(now)) => Some((ChangeKind::Added, now)),
            (Some(_), Some(now)) => Some((ChangeKind::Modified, now)),
            (Some(before), None) => {
                let mut last = (*before).clone();
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
    objects: BTreeMap<Key, Version>,
    changes: VecDeque<Change>,
    /// Bytes of the changes as JSON.
    bytes: usize,
    /// How many of the newest changes are held as values, and the memory of these.
    fresh: usize,
    fresh_memory: usize,
    /// Changes up to this revision are no longer known.
    forgotten: u64,
    /// The resource whose objects are put and removed one by one.
    apart: Option<&'static Resource>,
}

impl Cache {
    /// Returns an empty cache that gives its changes revisions above `revision`.
    pub fn new(revision: u64) -> Self {
        Self {
            revision,
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            bytes: 0,
            fresh: 0,
            fresh_memory: 0,
            forgotten: revision,
            apart: None,
        }
    }

    /// Returns the cache with the objects of that resource put and removed one by one: there are many,
    /// few change at a time, and few are requested, so they are held as JSON.
    #[must_use]
    pub fn with_apart(self, resource: &'static Resource) -> Self {
        Self {
            apart: Some(resource),
            ..self
        }
    }

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Replaces all objects, except for those that are put one by one. Sets their `resourceVersion`; an
    /// object that is unchanged keeps its own. An object that came from this cache costs nothing.
    /// Returns whether anything changed.
    pub fn replace<V: Into<Arc<Value>>>(&mut self, wanted: BTreeMap<Key, V>) -> bool {
        let first = self.revision;
        let gone: Vec<_> = self
            .objects
            .keys()
            .filter(|key| !wanted.contains_key(key) && !self.is_apart(key))
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

    fn is_apart(&self, key: &Key) -> bool {
        self.apart
            .is_some_and(|apart| std::ptr::eq(apart, key.resource))
    }

    /// Puts an object and sets its `resourceVersion`, unless it is unchanged.
    pub fn put(&mut self, key: Key, object: impl Into<Arc<Value>>) {
        let mut object = object.into();
        if let Some(version) = self.objects.get(&key).map(Version::unpacked) {
            let before = version.object();
            if Arc::ptr_eq(&before, &object) {
                return;
            }
            let revision = meta::revision(&before).unwrap_or(0);
            meta::set_revision(Arc::make_mut(&mut object), revision);
            if before == object {
                return;
            }
            if meta::uid(&before) != meta::uid(&object) {
                // Another object of the same name.
                self.remove(&key);
                return self.note(ChangeKind::Added, key, object, None);
            }
            return self.note(ChangeKind::Modified, key, object, Some(version));
        }
        self.note(ChangeKind::Added, key, object, None);
    }

    /// Removes an object, if it is there.
    pub fn remove(&mut self, key: &Key) {
        if let Some(before) = self.objects.remove(key) {
            let last = before.object();
            let before = before.unpacked();
            self.note(ChangeKind::Deleted, key.clone(), last, Some(before));
        }
    }

    fn note(
        &mut self,
        kind: ChangeKind,
        key: Key,
        mut object: Arc<Value>,
        before: Option<Version>,
    ) {
        self.revision += 1;
        meta::set_revision(Arc::make_mut(&mut object), self.revision);
        let object = Version::new(object);
        if kind != ChangeKind::Deleted {
            let mut version = object.clone();
            if self.is_apart(&key) {
                version.pack();
            }
            self.objects.insert(key.clone(), version);
        }
        let change = Change {
            revision: self.revision,
            kind,
            key,
            object,
            before,
        };
        self.bytes += change.bytes();
        self.fresh_memory += change.memory();
        self.fresh += 1;
        self.changes.push_back(change);
        self.pack();
        self.forget();
    }

    /// Packs the oldest changes that are held as values, if these are too many or too large.
    fn pack(&mut self) {
        while self.fresh > FRESH_MAX || self.fresh_memory > FRESH_BYTES_MAX {
            let Some(at) = self.changes.len().checked_sub(self.fresh) else {
                return;
            };
            let text = self.text_before(at);
            let Some(change) = self.changes.get_mut(at) else {
                return;
            };
            let memory = change.memory();
            if let Some(before) = &mut change.before {
                match text {
                    Some(text) => before.held = Held::Text(text),
                    None => before.pack(),
                }
            }
            if self.fresh == 1 {
                return;
            }
            change.object.pack();
            self.fresh -= 1;
            self.fresh_memory = self.fresh_memory.saturating_sub(memory);
        }
    }

    /// The text of the object before a change, if the change before it has that.
    fn text_before(&self, at: usize) -> Option<Arc<str>> {
        let key = &self.changes.get(at)?.key;
        let is_same = |change: &&Change| change.key.name == key.name && change.key == *key;
        match &self.changes.range(..at).rev().find(is_same)?.object.held {
            Held::Text(text) => Some(Arc::clone(text)),
            Held::Value(_) => None,
        }
    }

    /// Forgets the oldest changes, if all are too many or too large; the newest stays.
    fn forget(&mut self) {
        while self.changes.len() > 1
            && (self.changes.len() > CHANGES_MAX || self.bytes > CHANGES_BYTES_MAX)
        {
            if let Some(forgotten) = self.changes.pop_front() {
                self.forgotten = forgotten.revision;
                self.bytes = self.bytes.saturating_sub(forgotten.bytes());
                if self.fresh > self.changes.len() {
                    self.fresh = self.changes.len();
                    self.fresh_memory = self.fresh_memory.saturating_sub(forgotten.memory());
                }
            }
        }
    }

    /// All objects by their keys, except for those that are put one by one.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects
            .iter()
            .filter_map(|(key, version)| match &version.held {
                Held::Value(object) => Some((key, &**object)),
                Held::Text(_) => None,
            })
    }

    /// The object of that key.
    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).map(Version::object)
    }

    /// The objects of a resource that match a selector, in one namespace or in all (empty), by
    /// namespace and name.
    pub fn list(
        &self,
        resource: &'static Resource,
        namespace: &str,
        selector: &Selector,
    ) -> Vec<Arc<Value>> {
        let found = self.found(resource, namespace, selector);
        found.map(|(_, object)| object).collect()
    }

    /// The same objects in the form in which they are held.
    pub fn versions(
        &self,
        resource: &'static Resource,
        namespace: &str,
        selector: &Selector,
    ) -> Vec<Version> {
        let found = self.found(resource, namespace, selector);
        found.map(|(version, _)| version.clone()).collect()
    }

    fn found(
        &self,
        resource: &'static Resource,
        namespace: &str,
        selector: &Selector,
    ) -> impl Iterator<Item = (&Version, Arc<Value>)> {
        let from = Key::new(resource, namespace, "");
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.resource == resource)
            .filter(move |(key, _)| namespace.is_empty() || key.namespace == namespace)
            .map(|(_, version)| (version, version.object()))
            .filter(|(_, object)| selector.matches(object))
    }

    /// The objects at a revision: the current ones with all later changes undone.
    ///
    /// # Errors
    /// The revision doesn't exist yet, or some of the changes are no longer known.
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
            .collect_map();
        let changes: Vec<&Change> = self.since(revision)?.collect();
        for change in changes.into_iter().rev() {
            let key = &change.key;
            if key.resource != resource || (!namespace.is_empty() && key.namespace != namespace) {
                continue;
            }
            let place = (key.namespace.clone(), key.name.clone());
            match change.before() {
                Some(before) => drop(objects.insert(place, before)),
                None => drop(objects.remove(&place)),
            }
        }
        let found = objects.into_values();
        Ok(found.filter(|object| selector.matches(object)).collect())
    }

    /// The changes after a revision, oldest first.
    ///
    /// # Errors
    /// Some of the changes are no longer known, or the revision doesn't exist yet.
    pub fn since(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Status> {
        if revision < self.forgotten {
            return Err(Status::expired(revision, self.forgotten));
        }
        if revision > self.revision {
            return Err(Status::unknown_version(revision, self.revision));
        }
        let first = self.changes.partition_point(|c| c.revision <= revision);
        Ok(self.changes.range(first..))
    }
}

#[cfg(test)]
mod tests;
