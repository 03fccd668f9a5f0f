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
mod tests;
