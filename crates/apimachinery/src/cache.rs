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
/// hour.
const CHANGES_MAX: usize = 1000;
/// How many of the newest are held as values, which watches that are up to date share. Older ones are
/// held as JSON.
const CHANGES_FRESH: usize = 100;

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

/// An object as it is held.
#[derive(Debug, Clone)]
enum Held {
    /// As lists and watches want it.
    Value(Arc<Value>),
    /// As JSON, which takes a fifth of the room.
    Text(Box<str>),
}

impl Held {
    fn object(&self) -> Arc<Value> {
        match self {
            Self::Value(object) => Arc::clone(object),
            // Made from a value, so it can be read.
            Self::Text(text) => Arc::new(serde_json::from_str(text).unwrap_or_default()),
        }
    }

    fn pack(&mut self) {
        if let Self::Value(object) = self {
            *self = Self::Text(object.to_string().into());
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
    object: Held,
    before: Option<Held>,
}

impl Change {
    /// The object since, or its last state with the revision of its end.
    #[must_use]
    pub fn object(&self) -> Arc<Value> {
        self.object.object()
    }

    /// The object before.
    #[must_use]
    pub fn before(&self) -> Option<Arc<Value>> {
        self.before.as_ref().map(Held::object)
    }

    fn pack(&mut self) {
        self.object.pack();
        if let Some(before) = &mut self.before {
            before.pack();
        }
    }

    /// The change as a watch of that selection sees it: an object that enters the selection is added, one
    /// that leaves it is deleted.
    #[must_use]
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
    objects: BTreeMap<Key, Held>,
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

    /// The same, with the objects of that resource put and removed one by one: there are many, few
    /// change at a time, and few are asked for, so that they are held as JSON.
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

    /// Puts an object, with its `resourceVersion`, unless it is as before.
    pub fn put(&mut self, key: Key, mut object: Value) {
        if let Some(before) = self.get(&key) {
            meta::set_revision(&mut object, meta::revision(&before).unwrap_or(0));
            if *before == object {
                return;
            }
            if meta::uid(&before) != meta::uid(&object) {
                // Another object of the same name.
                self.remove(&key);
                return self.note(ChangeKind::Added, key, object, None);
            }
            return self.note(ChangeKind::Modified, key, object, Some(before));
        }
        self.note(ChangeKind::Added, key, object, None);
    }

    /// Removes an object, if it is there.
    pub fn remove(&mut self, key: &Key) {
        if let Some(before) = self.objects.remove(key) {
            let before = before.object();
            let last = (*before).clone();
            self.note(ChangeKind::Deleted, key.clone(), last, Some(before));
        }
    }

    fn note(&mut self, kind: ChangeKind, key: Key, mut object: Value, before: Option<Arc<Value>>) {
        self.revision += 1;
        meta::set_revision(&mut object, self.revision);
        let object = Arc::new(object);
        if kind != ChangeKind::Deleted {
            let mut held = Held::Value(Arc::clone(&object));
            if self.is_apart(&key) {
                held.pack();
            }
            self.objects.insert(key.clone(), held);
        }
        self.changes.push_back(Change {
            revision: self.revision,
            kind,
            key,
            object: Held::Value(object),
            before: before.map(Held::Value),
        });
        let old = self.changes.len().checked_sub(CHANGES_FRESH + 1);
        if let Some(change) = old.and_then(|old| self.changes.get_mut(old)) {
            change.pack();
        }
        while self.changes.len() > CHANGES_MAX {
            if let Some(forgotten) = self.changes.pop_front() {
                self.forgotten = forgotten.revision;
            }
        }
    }

    /// All objects but those that are put one by one, by their keys.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Value)> {
        self.objects.iter().filter_map(|(key, held)| match held {
            Held::Value(object) => Some((key, &**object)),
            Held::Text(_) => None,
        })
    }

    /// The object of that key.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).map(Held::object)
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
            .map(|(_, held)| held.object())
            .filter(|object| selector.matches(object))
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
mod tests;
