//! `delete`, `deletecollection` and evictions: a file goes, and what its containers still do is shown
//! until they are gone.

use std::time::Duration;

use axum::response::Response;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::{ListOptions, WriteOptions};
use mirrorlet_apimachinery::resources::{LEASES, NAMESPACES, PODS, SERVICES, Target};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::{self, Status};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::desired::{Origin, PodSource};
use mirrorlet_host::disk;
use serde_json::{Value, json};

use super::project::Deletion;
use super::store::Changes;
use super::writes::{of_view, unstored};
use super::{Api, Asked, answer, body, files};
use crate::server::view::{Order, Verb};

/// The time beyond its grace that an evicted pod may take to stop, in the answer to its eviction.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// When a pod is killed that is deleted now, and the seconds until then.
pub(super) fn deletion(object: &Value, options: &Value) -> Deletion {
    let said = options["gracePeriodSeconds"].as_i64();
    let grace = said.or(object["spec"]["terminationGracePeriodSeconds"].as_i64());
    let grace_seconds = grace.unwrap_or(30).max(0);
    let after = Duration::from_secs(grace_seconds.unsigned_abs());
    let at = Timestamp::now();
    let at = at.saturating_add(after).unwrap_or(at);
    Deletion { at, grace_seconds }
}

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
        // kubectl drains by deletions, too.
        self.stopped(&key).await;
        Ok(answer::json(200, &value, &asked.headers))
    }

    /// Answers an eviction: a deletion that a budget could refuse, of which there are none. On a
    /// cordoned Node a workload's pod stays away, and the answer comes once it has stopped: whoever
    /// drains the Node waits for that.
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
        self.stopped(&key).await;
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
            // Upstream: `ReturnDeletedObject` of the resource's store.
            if [&PODS, &SERVICES].contains(&key.resource) {
                object.clone()
            } else {
                status::deleted(key.resource, &key.name, meta::uid(object))
            }
        };
        if dry_run {
            return Ok(answer(&object));
        }
        // Again, too: an earlier deletion may have ended with an error.
        if key.resource == &NAMESPACES {
            self.check_stored(key, &object)?;
            return self.remove_namespace(key, options).await;
        }
        if !object["metadata"]["deletionTimestamp"].is_null() {
            let current = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let said = options["gracePeriodSeconds"].as_i64();
            // As upstream, the grace of a pod that is being deleted can be shortened.
            if key.resource == &PODS && said.is_some_and(|said| Some(said) < current) {
                self.note_end_of_pod(key, &object, options);
                self.store.touch();
            }
            return Ok(answer(&object));
        }
        if key.resource == &PODS && self.is_replaced(key, &object) {
            // As in a cluster: its workload replaces it.
            let is_cordoned = self.store.view().node_edits().unschedulable;
            let order = Order {
                pod: format!("{}/{}", key.namespace, key.name),
                verb: if is_cordoned {
                    Verb::Evict
                } else {
                    Verb::Restart
                },
                container: None,
                pull: false,
            };
            let ordered = self.store.view().order(&order).await;
            ordered.map_err(|error| of_view(&error))?;
            self.store.touch();
            if is_cordoned && let Ok(evicted) = self.find(key) {
                self.store
                    .note_deletion(meta::uid(&evicted), deletion(&object, options));
            }
            return Ok(answer(&object));
        }
        self.check_stored(key, &object)?;
        if key.resource == &LEASES {
            self.store.leases(|leases| leases.remove(key));
            self.store.touch();
            return Ok(answer(&object));
        }
        if key.resource == &PODS {
            self.note_end_of_pod(key, &object, options);
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

    /// Whether a pod is one that a workload of the API replaces.
    fn is_replaced(&self, key: &Key, pod: &Value) -> bool {
        let owner = &pod["metadata"]["ownerReferences"][0];
        let of_another_file = |origin: Origin| {
            origin.source == PodSource::Embedded && !self.is_own_file(key, &origin.location)
        };
        owner["apiVersion"] == "apps/v1" && self.store.origin(key).is_some_and(of_another_file)
    }

    /// Has a pod end with the grace that its deletion says, or its own, and be shown so.
    fn note_end_of_pod(&self, key: &Key, object: &Value, options: &Value) {
        let deletion = deletion(object, options);
        let view = self.store.view();
        let pod = view.pod_by_name(&key.namespace, &key.name);
        let said = options["gracePeriodSeconds"].is_i64();
        if let Some(pod) = pod.filter(|_| said) {
            let after = Duration::from_secs(deletion.grace_seconds.unsigned_abs());
            view.shorten_grace(&PodUid::of(&pod), after);
        }
        self.store.note_deletion(meta::uid(object), deletion);
    }

    /// Waits until an evicted pod that stays here has stopped; not for ever, as a container may be
    /// stuck.
    async fn stopped(&self, key: &Key) {
        let object = |this: &Self| this.find(key).unwrap_or_default();
        let is_evicted = |pod: &Value| {
            pod["metadata"]["ownerReferences"][0]["kind"].is_string()
                && !pod["metadata"]["deletionTimestamp"].is_null()
                && self.store.view().node_edits().unschedulable
        };
        let grace = object(self)["metadata"]["deletionGracePeriodSeconds"].as_u64();
        let longest = Duration::from_secs(grace.unwrap_or(30)) + STOP_SLACK;
        let mut changes: Changes = self.store.changes();
        let ended = async {
            while is_evicted(&object(self)) {
                changes.changed().await;
            }
        };
        // Whoever asked looks at the pod, and finds it terminating.
        let _ = tokio::time::timeout(longest, ended).await;
    }
}
