//! The deletion of a namespace: first everything in it is deleted, then the namespace itself. While
//! pods stop, it is shown as Terminating, and nothing can be created in it.
//!
//! Upstream: `pkg/controller/namespace/deletion/namespaced_resources_deleter.go`.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::garbage::{self, Propagation};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{
    CLAIMS, CONFIG_MAPS, EVENTS, LEASES, NAMESPACES, PODS, RESOURCES, Resource, SECRETS, SERVICES,
};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::desired::Origin;
use mirrorlet_host::disk;
use serde_json::{Value, json};

use super::deletes::deletion;
use super::stored::{text_of, unstored};
use super::{Api, files, held};
use mirrorlet_core::small::SmallCollect;

/// Whether objects of a kind are removed after those that use them.
fn is_used(key: &Key) -> bool {
    [&CONFIG_MAPS, &SECRETS, &SERVICES, &CLAIMS].contains(&key.resource)
}

impl Api {
    /// Checks that the namespace of a new object exists and is not being deleted.
    pub(super) fn check_namespace(&self, key: &Key) -> Result<(), Status> {
        if !key.resource.namespaced {
            return Ok(());
        }
        let namespace = key.namespace.as_str();
        let found = self.find(&Key::new(&NAMESPACES, "", namespace))?;
        if !garbage::is_deleted(&found) {
            return Ok(());
        }
        // Upstream: `plugin/namespace/lifecycle/admission.go`.
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        Err(Status::forbidden(key.resource, &key.name, &why))
    }

    /// Removes a namespace and all objects that the API stores in it. The caller holds the turn.
    ///
    /// # Errors
    /// An object in it is defined elsewhere: the namespace would stay, so nothing is removed.
    pub(super) async fn remove_namespace(
        &self,
        key: &Key,
        options: &Value,
    ) -> Result<Value, Status> {
        let contents = self.contents(&key.name)?;
        self.store.note_end(&key.name, Timestamp::now());
        for (key, object) in &contents {
            if key.resource == &PODS && !garbage::is_deleted(object) {
                self.store
                    .note_deletion(meta::uid(object), deletion(object, options));
            }
        }
        self.store.touch();
        let terminating = self.find(key);
        let all = contents.len();
        let keys = self.hold_contents(contents, options).await?;
        if keys.len() < all
            && let Ok(terminating) = &terminating
        {
            // It may be long until the last finalizer is removed.
            self.write_file(self.store.held_directory(), key, text_of(terminating)?)
                .await?;
        }
        // What belongs to a workload has no file of its own, and goes with it.
        let (used, users): (Vec<_>, Vec<_>) = keys.into_iter().partition(is_used);
        self.remove_all(users).await?;
        self.remove_all(used).await?;
        self.remove_all(vec![key.clone()]).await?;
        // Everything in it is removed first: no later step removes the rest.
        if self.store.is_behind() {
            self.loaded().await?;
        }
        terminating
    }

    /// Stores the next version of a namespace that is being deleted. It stays in that state: its only
    /// file is the one that records that.
    pub(super) async fn store_end(&self, key: &Key, object: &Value) -> Result<Value, Status> {
        let held = self.store.held_directory();
        let path = files::path(held, key);
        // There is one only if finalizers hold something in it.
        if disk::blocking(move || path.exists()).await {
            self.write_file(held, key, text_of(object)?).await?;
        }
        self.store.change_end(&key.name, object);
        self.loaded().await?;
        self.find(key)
    }

    /// Marks the objects of a namespace as deleted that finalizers hold: the namespace stays as long as
    /// they do. Removes remains of failed deletions of ended ones. Returns the keys of the others.
    async fn hold_contents(
        &self,
        contents: Vec<(Key, Arc<Value>)>,
        options: &Value,
    ) -> Result<Vec<Key>, Status> {
        let (mut others, mut ended) = (Vec::new(), Vec::new());
        for (key, object) in contents {
            let origin = self.store.origin(&key);
            let is_own = origin.is_some_and(|origin| self.store.is_own_file(&key, &origin));
            if !is_own || !garbage::has_finalizers(&object) {
                others.push(key);
            } else if !garbage::is_deleted(&object) {
                let propagation = Propagation::Background;
                self.hold(&key, &object, options, propagation).await?;
            } else if self.store.held(|held| held.has(&key)) {
                ended.push(key);
            }
        }
        self.remove_all(ended).await?;
        Ok(others)
    }

    /// Removes files, with what failed deletions left of their objects, and waits until the agent has
    /// read that.
    async fn remove_all(&self, keys: Vec<Key>) -> Result<(), Status> {
        if keys.is_empty() {
            return Ok(());
        }
        self.store.set_behind(true);
        let directory = self.store.directory().to_owned();
        let held_directory = self.store.held_directory().to_owned();
        let (leases, files): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| key.resource == &LEASES);
        self.store.leases(|all| {
            for key in &leases {
                all.remove(key);
            }
        });
        // The file of what is shown from it stays, as does that which says how the namespace ends.
        let left: Vec<Key> = self.store.held(|held| {
            let is_left = |key: &&Key| key.resource != &NAMESPACES && !held.has(key);
            files.iter().filter(is_left).cloned().collect()
        });
        let remove = move || -> io::Result<()> {
            left.iter()
                .try_for_each(|key| held::forget(&held_directory, key))?;
            files
                .iter()
                .try_for_each(|key| files::remove(&directory, key))
        };
        let removed = disk::blocking(remove).await;
        removed.map_err(|error| unstored(&error))?;
        self.taken_in().await;
        Ok(())
    }

    /// The objects in a namespace, except for events.
    ///
    /// # Errors
    /// An object is defined by a file outside the API's directory.
    fn contents(&self, namespace: &str) -> Result<Vec<(Key, Arc<Value>)>, Status> {
        let is_of_it = |resource: &&&'static Resource| {
            resource.is_stored() && resource.namespaced && **resource != &EVENTS
        };
        let mut contents = Vec::new();
        for &resource in RESOURCES.iter().filter(is_of_it) {
            let all = Selector::default();
            let objects = self
                .store
                .read(|cache| cache.list(resource, namespace, &all));
            contents.extend(objects.into_iter().map(|object| {
                let key = Key::new(resource, namespace, meta::name(&object));
                (key, object)
            }));
        }
        let directory = self.store.directory();
        let files: BTreeSet<_> = contents
            .iter()
            .map(|(key, _)| files::path(directory, key))
            .collect_set();
        for (key, object) in &contents {
            let Some(Origin { location, .. }) = self.store.origin(key) else {
                continue;
            };
            // The file of what is being deleted is gone already.
            if garbage::is_deleted(object) {
                continue;
            }
            if !files.contains(Path::new(&location)) {
                let why = format!(
                    "{} {:?} in it is defined by {location}; remove it there first",
                    key.resource.singular, key.name
                );
                return Err(Status::forbidden(&NAMESPACES, namespace, &why));
            }
        }
        Ok(contents)
    }
}

/// Makes a Namespace one that is being deleted.
pub(super) fn terminate(object: &mut Value, since: &str) {
    meta::metadata(object).insert("deletionTimestamp".to_owned(), since.into());
    object["status"] = json!({"phase": "Terminating"});
}
