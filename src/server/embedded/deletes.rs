//! `delete`, `deletecollection` and evictions: a file goes, and what its containers still do is shown
//! until they are gone.

use axum::response::Response;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::{ListOptions, WriteOptions};
use mirrorlet_apimachinery::resources::{EVENTS, NAMESPACES, PODS, RESOURCES, Resource, Target};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::{self, Status};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::desired::PodSource;
use mirrorlet_host::disk;
use serde_json::{Value, json};

use super::project::Deletion;
use super::writes::{of_view, unstored};
use super::{Api, Asked, answer, body, files};
use crate::server::view::{Order, Verb};

impl Api {
    /// Answers `delete`.
    pub(super) async fn delete(
        &self,
        target: &Target,
        name: &str,
        asked: &Asked,
        bytes: &[u8],
    ) -> Result<Response, Status> {
        let options = body::options(&asked.headers, bytes)?;
        let key = Key::new(target.resource, target.namespace.as_str(), name);
        let value = self.remove(&key, &options, asked).await?;
        Ok(answer::json(200, &value, &asked.headers))
    }

    /// Answers an eviction: a deletion that a budget could refuse, of which there are none.
    pub(super) async fn evict(
        &self,
        target: &Target,
        name: &str,
        asked: &Asked,
        bytes: &[u8],
    ) -> Result<Response, Status> {
        let eviction = body::object(&asked.headers, bytes)?;
        let key = Key::new(target.resource, target.namespace.as_str(), name);
        self.remove(&key, &eviction["deleteOptions"], asked).await?;
        let done = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(answer::json(201, &done, &asked.headers))
    }

    /// Answers `deletecollection`: each object by itself, those that the API doesn't store left.
    pub(super) async fn delete_collection(
        &self,
        target: &Target,
        asked: &Asked,
        bytes: &[u8],
    ) -> Result<Response, Status> {
        let options = body::options(&asked.headers, bytes)?;
        let list = ListOptions::parse(&asked.query)?;
        let resource = target.resource;
        let selector = Selector::parse(&list.label_selector, &list.field_selector, resource)?;
        let (revision, objects) = self.store.read(|cache| {
            let objects = cache.list(resource, &target.namespace, &selector);
            (cache.revision(), objects)
        });
        for object in &objects {
            let key = Key::new(resource, meta::namespace(object), meta::name(object));
            match self.remove(&key, &options, asked).await {
                // It went meanwhile.
                Err(status) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        let value = answer::list(resource, &objects, revision, answer::Form::Whole);
        Ok(answer::json(200, &value, &asked.headers))
    }

    /// Removes an object. Returns what the answer holds.
    async fn remove(&self, key: &Key, options: &Value, asked: &Asked) -> Result<Value, Status> {
        let dry_run = WriteOptions::parse(&asked.query)?.dry_run || options["dryRun"][0] == "All";
        let _writing = self.writing.lock().await;
        let object = self.find(key)?;
        meta::check_preconditions(options, &object, key.resource)?;
        let answer = |object: &Value| {
            if key.resource == &PODS {
                object.clone()
            } else {
                status::deleted(key.resource, &key.name, meta::uid(object))
            }
        };
        if !object["metadata"]["deletionTimestamp"].is_null() || dry_run {
            return Ok(answer(&object));
        }
        let owner = &object["metadata"]["ownerReferences"][0];
        let is_stored = self
            .store
            .origin(key)
            .is_some_and(|origin| origin.source == PodSource::Embedded);
        if is_stored && key.resource == &PODS && owner["apiVersion"] == "apps/v1" {
            // As in a cluster: its workload replaces it.
            let order = Order {
                pod: format!("{}/{}", key.namespace, key.name),
                verb: Verb::Restart,
                container: None,
                pull: false,
            };
            let ordered = self.store.view().order(&order).await;
            ordered.map_err(|error| of_view(&error))?;
            self.store.touch();
            return Ok(answer(&object));
        }
        self.check_stored(key, &object)?;
        if key.resource == &NAMESPACES {
            self.check_empty(&key.name)?;
        }
        if key.resource == &PODS {
            let said = options["gracePeriodSeconds"].as_i64();
            let grace = said.or(object["spec"]["terminationGracePeriodSeconds"].as_i64());
            let grace_seconds = grace.unwrap_or(30).max(0);
            let after = std::time::Duration::from_secs(grace_seconds.unsigned_abs());
            let at = Timestamp::now();
            let at = at.saturating_add(after).unwrap_or(at);
            let deletion = Deletion { at, grace_seconds };
            let pod = self.store.view().pod_by_name(&key.namespace, &key.name);
            if let Some(pod) = pod.filter(|_| said.is_some()) {
                self.store.view().shorten_grace(&PodUid::of(&pod), after);
            }
            self.store.note_deletion(meta::uid(&object), deletion);
        }
        let (directory, removed) = (self.store.directory().to_owned(), key.clone());
        disk::blocking(move || files::remove(&directory, &removed))
            .await
            .map_err(|error| unstored(&error))?;
        self.taken_in().await;
        // What its containers still do is shown until they are gone.
        let left = self.find(key).ok();
        let left = left.filter(|left| meta::uid(left) == meta::uid(&object));
        Ok(answer(left.as_ref().unwrap_or(&object)))
    }

    /// Checks that nothing is in a namespace.
    fn check_empty(&self, namespace: &str) -> Result<(), Status> {
        let is_of_it = |resource: &&&'static Resource| {
            resource.is_stored() && resource.namespaced && **resource != &EVENTS
        };
        for resource in RESOURCES.iter().filter(is_of_it) {
            let all = Selector::default();
            let objects = self
                .store
                .read(|cache| cache.list(resource, namespace, &all));
            if let Some(object) = objects.first() {
                let why = format!(
                    "{} {:?} is in it; delete what is in it first",
                    resource.singular,
                    meta::name(object)
                );
                return Err(Status::conflict(&NAMESPACES, namespace, &why));
            }
        }
        Ok(())
    }
}
