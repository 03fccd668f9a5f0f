//! `delete`, `deletecollection` and evictions: a file is removed, and the object is shown until its
//! containers are gone. In one file: all three end in `Api::remove`, and the rest supports it.

use std::path::Path;
use std::time::Duration;

use axum::response::Response;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::garbage::{self, Propagation};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::{ListOptions, WriteOptions};
use mirrorlet_apimachinery::paging::Page;
use mirrorlet_apimachinery::resources::{CRON_JOBS, JOBS, LEASES, NAMESPACES, PODS, SERVICES};
use mirrorlet_apimachinery::selector::Selector;
use mirrorlet_apimachinery::status::{self, Status};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::desired::{Origin, PodSource};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::job::JobName;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use mirrorlet_host::disk;
use serde_json::{Value, json};

use super::held;
use super::project::{Deletion, seconds};
use super::store::Changes;
use super::stored::{text_of, unstored};
use super::writes::of_view;
use super::{Api, Call, answer, body, files};
use crate::server::view::{Order, Verb};

/// The time beyond its grace that an evicted pod may take to stop, in the answer to its eviction.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// The body of the answer to a deletion.
///
/// Upstream: `ReturnDeletedObject` of the resource's store.
fn deletion_answer(key: &Key, object: &Value) -> Value {
    if [&PODS, &SERVICES].contains(&key.resource) {
        object.clone()
    } else {
        status::deleted(key.resource, &key.name, meta::uid(object))
    }
}

/// Checks that the dependents of an object can stay, if they are to.
fn check_propagation(key: &Key, propagation: Propagation) -> Result<(), Status> {
    if propagation != Propagation::Orphan || !held::makes_pods(key.resource) {
        return Ok(());
    }
    let why = "it defines its pods, which can't exist without it; change it in place, or delete it with its pods (--cascade=background)";
    Err(Status::forbidden(key.resource, &key.name, why))
}

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
    pub(super) async fn delete(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = body::options(call, bytes)?;
        let key = call.key();
        let value = self.asked_to_remove(&key, &options, call).await?;
        // kubectl drains by deletions, too.
        self.stopped(&key).await;
        Ok(answer::json(200, &value, &call.headers))
    }

    /// Answers an eviction: a deletion that a budget could refuse, but there are none. On a cordoned
    /// Node a workload's pod stays away, and the answer follows once it has stopped: `kubectl drain`
    /// waits for that.
    pub(super) async fn evict(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let eviction = body::small(&call.headers, bytes)?;
        let key = call.key();
        let options = &eviction["deleteOptions"];
        self.asked_to_remove(&key, options, call).await?;
        self.stopped(&key).await;
        let done = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(answer::json(201, &done, &call.headers))
    }

    /// Answers `deletecollection`: each object individually. Objects that the API doesn't store stay,
    /// and are not in the answer.
    pub(super) async fn delete_collection(
        &self,
        call: &Call,
        bytes: &[u8],
    ) -> Result<Response, Status> {
        let options = body::options(call, bytes)?;
        let list = ListOptions::parse(&call.query)?;
        let resource = call.target.resource;
        let selector = Selector::parse(&list.label_selector, &list.field_selector, resource)?;
        let (revision, objects) = self.store.read(|cache| {
            let objects = cache.list(resource, &call.target.namespace, &selector);
            (cache.revision(), objects)
        });
        let mut deleted = Vec::new();
        for object in objects {
            let key = Key::new(resource, meta::namespace(&object), meta::name(&object));
            if !self.may_remove(&key, &object) {
                continue;
            }
            match self.asked_to_remove(&key, &options, call).await {
                // It went meanwhile.
                Err(status) if status.code == 404 => {}
                other => drop(other?),
            }
            deleted.push(object);
        }
        let page = Page {
            objects: deleted,
            revision,
            token: None,
            remaining: None,
        };
        Ok(answer::list(
            resource,
            page,
            answer::Form::Whole,
            &call.headers,
            &self.watches.lines.texts,
        ))
    }

    /// Whether a deletion of an object is one of the API's: it stores it, it is being deleted already,
    /// or a workload of the API replaces it.
    fn may_remove(&self, key: &Key, object: &Value) -> bool {
        let is_replaced = key.resource == &PODS && self.is_replaced(key, object);
        let is_replaced = is_replaced || self.ended_of_job(key).is_some();
        is_replaced || garbage::is_deleted(object) || self.check_stored(key, object).is_ok()
    }

    /// Removes an object, unless that is a dry run. Returns what the answer holds.
    async fn asked_to_remove(
        &self,
        key: &Key,
        options: &Value,
        call: &Call,
    ) -> Result<Value, Status> {
        let dry_run = WriteOptions::parse(&call.query)?.dry_run || options["dryRun"][0] == "All";
        let (key, options) = (key.clone(), options.clone());
        let resource = key.resource;
        let remove = move |api: Self| async move {
            if dry_run {
                let object = api.find(&key)?;
                meta::check_preconditions(&options, &object, key.resource)?;
                Propagation::of(&options)?;
                return Ok(deletion_answer(&key, &object));
            }
            api.remove(&key, &options).await
        };
        self.in_turn(resource, remove).await
    }

    /// Removes an object. Returns the answer's content. The caller holds the turn.
    pub(super) async fn remove(&self, key: &Key, options: &Value) -> Result<Value, Status> {
        let object = self.find(key)?;
        meta::check_preconditions(options, &object, key.resource)?;
        let propagation = Propagation::of(options)?;
        // Again, too: an earlier deletion may have ended with an error.
        if key.resource == &NAMESPACES {
            self.check_stored(key, &object)?;
            return self.remove_namespace(key, options).await;
        }
        if garbage::is_deleted(&object) {
            let current = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let said = options["gracePeriodSeconds"].as_i64();
            // As upstream, the grace of a pod that is being deleted can be shortened.
            if key.resource == &PODS && said.is_some_and(|said| Some(said) < current) {
                self.note_end_of_pod(key, &object, options);
                self.store.touch();
            }
            return self.say_propagation(key, object, propagation).await;
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
                // The look for its UID made the objects without that.
                self.store.touch();
            }
            return Ok(deletion_answer(key, &object));
        }
        if self.remove_of_job(key, &object, propagation).await? {
            return Ok(deletion_answer(key, &object));
        }
        self.check_stored(key, &object)?;
        if key.resource == &LEASES {
            self.store.leases(|leases| leases.remove(key));
            self.store.touch();
            return Ok(deletion_answer(key, &object));
        }
        check_propagation(key, propagation)?;
        // Those that stay lose their owner first: a deletion that is answered is done.
        let propagation = if propagation == Propagation::Orphan {
            self.let_go(&object).await?;
            Propagation::Background
        } else {
            propagation
        };
        if key.resource != &PODS {
            return self.remove_stored(key, &object, options, propagation).await;
        }
        // The agent may stop the pod as soon as its file is gone.
        self.note_end_of_pod(key, &object, options);
        let removed = self.remove_stored(key, &object, options, propagation).await;
        if removed.is_err() && self.is_kept(key).await {
            self.forget_end_of_pod(key, &object);
        }
        removed
    }

    /// Removes an object with a file of its own. Returns the answer's content.
    async fn remove_stored(
        &self,
        key: &Key,
        object: &Value,
        options: &Value,
        propagation: Propagation,
    ) -> Result<Value, Status> {
        if let Some(held) = self.hold(key, object, options, propagation).await? {
            return Ok(held);
        }
        self.forget_held(key).await?;
        self.remove_file(key).await?;
        // What its containers still do is shown until they are gone.
        let left = self.find(key).ok();
        let left = left.filter(|left| meta::uid(left) == meta::uid(object));
        Ok(deletion_answer(key, left.as_ref().unwrap_or(object)))
    }

    /// Whether an object whose deletion has failed is unchanged: it has its file, and isn't shown as
    /// ended, which a repeated deletion removes.
    async fn is_kept(&self, key: &Key) -> bool {
        let path = files::path(self.store.directory(), key);
        let is_held = self.store.held(|held| held.has(key));
        !is_held && disk::blocking(move || path.exists()).await
    }

    /// Removes a pod of an ended Job, or a run of a CronJob. Returns whether it is one of these.
    async fn remove_of_job(
        &self,
        key: &Key,
        object: &Value,
        propagation: Propagation,
    ) -> Result<bool, Status> {
        let view = self.store.view();
        let removed = if let Some((job, pod)) = self.ended_of_job(key) {
            // Its Job has counted it, and it stayed for its logs alone.
            view.forget_job_pod(job, &pod).await
        } else if let Some(job) = self.run_of_cron_job(key, object) {
            check_propagation(key, propagation)?;
            view.delete_run(job).await
        } else {
            return Ok(false);
        };
        removed.map_err(|error| of_view(&error))?;
        self.loaded().await?;
        Ok(true)
    }

    /// Removes remains of a failed deletion of an object.
    async fn forget_held(&self, key: &Key) -> Result<(), Status> {
        let (directory, key) = (self.store.held_directory().to_owned(), key.clone());
        let forgotten = disk::blocking(move || held::forget(&directory, &key));
        forgotten.await.map_err(|error| unstored(&error))
    }

    /// Removes the file of an object, and waits until the agent has read that.
    async fn remove_file(&self, key: &Key) -> Result<(), Status> {
        self.unlink(self.store.directory(), key).await?;
        self.loaded().await
    }

    async fn unlink(&self, directory: &Path, key: &Key) -> Result<(), Status> {
        self.store.set_behind(true);
        let (directory, removed) = (directory.to_owned(), key.clone());
        disk::blocking(move || files::remove(&directory, &removed))
            .await
            .map_err(|error| unstored(&error))
    }

    /// Marks an object as deleted, if finalizers hold it. Returns its state then; none if nothing holds
    /// it, and nothing was done.
    pub(super) async fn hold(
        &self,
        key: &Key,
        object: &Value,
        options: &Value,
        propagation: Propagation,
    ) -> Result<Option<Value>, Status> {
        let mut marked = object.clone();
        let (at, grace_seconds) = if key.resource == &PODS {
            let deletion = deletion(object, options);
            (deletion.at, deletion.grace_seconds)
        } else {
            (Timestamp::now(), 0)
        };
        garbage::mark(&mut marked, propagation, &seconds(at), grace_seconds);
        if !garbage::has_finalizers(&marked) {
            return Ok(None);
        }
        self.put(key, marked).await.map(Some)
    }

    /// Stores what a later deletion of an object says about its dependents.
    async fn say_propagation(
        &self,
        key: &Key,
        object: Value,
        propagation: Propagation,
    ) -> Result<Value, Status> {
        if !garbage::has_finalizers(&object) {
            return Ok(deletion_answer(key, &object));
        }
        self.check_stored(key, &object)?;
        check_propagation(key, propagation)?;
        let mut marked = object.clone();
        garbage::mark(&mut marked, propagation, "", 0);
        if marked != object {
            return self.put(key, marked).await;
        }
        // An earlier deletion may have ended with an error.
        if self.store.held(|held| held.has(key)) {
            self.remove_file(key).await?;
        }
        Ok(object)
    }

    /// Takes an owner from its dependents, which stay when it goes.
    async fn let_go(&self, owner: &Value) -> Result<(), Status> {
        let dependents = self
            .store
            .members(|members| garbage::let_go(members, owner));
        for (key, object) in dependents {
            self.put(&key, object).await?;
        }
        Ok(())
    }

    /// Stores the next version of an object with only changed metadata; one that is being deleted is
    /// removed with its last finalizer. Returns it.
    pub(super) async fn put(&self, key: &Key, mut object: Value) -> Result<Value, Status> {
        let is_deleted = garbage::is_deleted(&object);
        if is_deleted && !garbage::has_finalizers(&object) {
            self.unlink(self.store.held_directory(), key).await?;
            self.store.held(|held| held.remove(key));
            self.remove_file(key).await?;
            return Ok(object);
        }
        // What has ended once stays so, whatever a later deletion says.
        let is_held = || self.store.held(|held| held.has(key));
        if is_deleted && (held::ends_at_once(key, &object) || is_held()) {
            meta::metadata(&mut object).remove("resourceVersion");
            self.write_file(self.store.held_directory(), key, text_of(&object)?)
                .await?;
            self.store.held(|held| held.insert(key.clone(), object));
            self.remove_file(key).await?;
            return self.find(key);
        }
        let before = self.find(key)?;
        let prepared = self.prepared(object, key, Some(&before), None, &WriteOptions::default())?;
        self.store(key, &prepared.object).await
    }

    /// Whether a pod is one that a workload of the API replaces.
    fn is_replaced(&self, key: &Key, pod: &Value) -> bool {
        let owner = &pod["metadata"]["ownerReferences"][0];
        let of_another_file = |origin: Origin| {
            origin.source == PodSource::Embedded && !self.store.is_own_file(key, &origin)
        };
        owner["apiVersion"] == "apps/v1" && self.store.origin(key).is_some_and(of_another_file)
    }

    /// The Job of an ended pod, with the pod's UID.
    fn ended_of_job(&self, key: &Key) -> Option<(JobName, PodUid)> {
        if key.resource != &PODS {
            return None;
        }
        let pod = self.store.view().pod_by_name(&key.namespace, &key.name)?;
        let job = WorkloadKey::of(&pod).filter(|owner| owner.kind == WorkloadKind::Job)?;
        let name = JobName::new(job.namespace, job.name);
        is_over(pod.status.as_ref()).then(|| (name, PodUid::of(&pod)))
    }

    /// The Job, if it is a run that a CronJob created by itself. A run that a user created from a
    /// CronJob has a document of its own.
    fn run_of_cron_job(&self, key: &Key, object: &Value) -> Option<JobName> {
        let owners = object["metadata"]["ownerReferences"].as_array();
        let mut owners = owners.into_iter().flatten();
        let is_run = key.resource == &JOBS
            && self.store.origin(key).is_none()
            && owners.any(|owner| owner["kind"] == CRON_JOBS.kind);
        is_run.then(|| JobName::new(&key.namespace, &key.name))
    }

    /// Makes a pod end with the grace period of its deletion, or its own, and be shown so.
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

    /// Reverts [`note_end_of_pod`](Self::note_end_of_pod), for a pod that continues: a later edit of it
    /// would stop it with the grace period of the deletion.
    fn forget_end_of_pod(&self, key: &Key, object: &Value) {
        let view = self.store.view();
        if let Some(pod) = view.pod_by_name(&key.namespace, &key.name) {
            view.forget_grace(&PodUid::of(&pod));
        }
        self.store.forget_deletion(meta::uid(object));
    }

    /// Waits until an evicted pod that stays here has stopped; not forever, because a container may be
    /// stuck.
    async fn stopped(&self, key: &Key) {
        let object = |this: &Self| this.find(key).unwrap_or_default();
        let is_evicted = |pod: &Value| {
            pod["metadata"]["ownerReferences"][0]["kind"].is_string()
                && garbage::is_deleted(pod)
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
        // The client then reads the pod, and finds it terminating.
        let _ = tokio::time::timeout(longest, ended).await;
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::resources::CONFIG_MAPS;
    use mirrorlet_core::api::keys;

    use super::*;
    use crate::server::embedded::bed::Bed;
    use crate::server::view::ShownPod;

    #[tokio::test]
    async fn dependents_stay_if_the_query_says_so() {
        let bed = Bed::new();
        let key = |name: &str| Key::new(&CONFIG_MAPS, "default", name);
        let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", "uid": format!("u-{name}")}});
        for owner in ["a", "b"] {
            let name = format!("of-{owner}");
            let mut owned = map(&name);
            owned["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": format!("u-{owner}")}]);
            bed.store(&key(owner), &map(owner));
            bed.store(&key(&name), &owned);
        }
        let is_owned = |owner: &str| {
            let file = bed.file(&key(&format!("of-{owner}")));
            std::fs::read_to_string(file)
                .unwrap()
                .contains("ownerReferences")
        };
        let path = "/api/v1/namespaces/default/configmaps";
        for (query, code) in [
            ("propagationPolicy=Some", 422),
            ("orphanDependents=maybe", 400),
            ("propagationPolicy=Orphan", 200),
        ] {
            let path = format!("{path}/a?{query}");
            let (answered, answer) = bed.ask("DELETE", &path, &Value::Null).await;
            // embedded 62
            assert_eq!(answered, code, "{answer}");
            assert_eq!(is_owned("a"), code != 200, "{query}");
            assert_eq!(bed.file(&key("a")).exists(), code != 200, "{query}");
        }
        // Those of a collection are read alike.
        assert!(is_owned("b"));
        let path = format!("{path}?orphanDependents=true&fieldSelector=metadata.name%3Db");
        let (code, answer) = bed.ask("DELETE", &path, &Value::Null).await;
        assert_eq!((code, is_owned("b")), (200, false), "{answer}");
    }

    #[tokio::test]
    async fn a_grace_in_the_query_is_that_of_the_pod() {
        let bed = Bed::new();
        let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u-1"}, "spec": {"containers": [{"name": "c"}]}});
        bed.view.shown.lock().unwrap().pods.push(ShownPod {
            pod: serde_json::from_value(pod).unwrap(),
            newest: None,
            origin: None,
            terminating: true,
        });
        let path = "/api/v1/namespaces/default/pods/web";
        let query = format!("{path}?gracePeriodSeconds=5");
        let (code, answer) = bed.ask("DELETE", &query, &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        let (_, shown) = bed.ask("GET", path, &Value::Null).await;
        // embedded 62
        assert_eq!(shown["metadata"]["deletionGracePeriodSeconds"], 5);
    }

    #[tokio::test]
    async fn a_deletion_that_fails_leaves_no_grace_behind() {
        let path = "/api/v1/namespaces/ns/pods/web?gracePeriodSeconds=1";
        let key = Key::new(&PODS, "ns", "web");
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "ns", "uid": "o-1", "finalizers": ["example.com/keep"]},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        });
        let graces = |bed: &Bed| bed.view.graces.lock().unwrap().len();
        let bed = Bed::new();
        bed.store(&key, &pod);
        // No file can be written below it.
        let held = bed.api.store.held_directory();
        std::fs::create_dir(held).unwrap();
        std::fs::write(held.join("ns"), "").unwrap();
        let (code, refused) = bed.ask("DELETE", path, &Value::Null).await;
        // embedded 62
        assert_eq!((code, graces(&bed)), (500, 0), "{refused}");
        assert!(bed.file(&key).exists());

        // What is stored and not loaded yet is a deletion.
        meta::metadata(&mut pod).remove("finalizers");
        let bed = Bed::new();
        bed.store(&key, &pod);
        *bed.view.is_slow.lock().unwrap() = true;
        let (code, answer) = bed.ask("DELETE", path, &Value::Null).await;
        // embedded 62
        assert_eq!((code, graces(&bed)), (504, 1), "{answer}");
        assert!(!bed.file(&key).exists());
    }

    #[tokio::test(start_paused = true)]
    async fn an_evicted_pod_is_shown_with_the_grace_that_was_asked_for() {
        let bed = Bed::new();
        bed.view.edits.lock().unwrap().unschedulable = true;
        let own = json!({keys::CONFIG_SOURCE: "embedded", keys::WORKLOAD: "Deployment/web"});
        let metadata =
            json!({"name": "web-0", "namespace": "default", "uid": "u-1", "annotations": own});
        let pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "c"}]}});
        let origin = Origin::whole(PodSource::Embedded, "/api/web.yaml");
        bed.view.shown.lock().unwrap().pods.push(ShownPod {
            pod: serde_json::from_value(pod).unwrap(),
            newest: None,
            origin: Some(origin),
            terminating: false,
        });
        let path = "/api/v1/namespaces/default/pods/web-0";
        let query = format!("{path}?gracePeriodSeconds=5");
        let (code, answer) = bed.ask("DELETE", &query, &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        let (_, shown) = bed.ask("GET", path, &Value::Null).await;
        // embedded 62
        assert_eq!(shown["metadata"]["deletionGracePeriodSeconds"], 5);
    }

    #[tokio::test]
    async fn a_collection_goes_but_for_what_manifests_define() {
        let bed = Bed::new();
        let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}});
        let keys = ["a", "z"].map(|name| Key::new(&CONFIG_MAPS, "default", name));
        for key in &keys {
            bed.store(key, &map(&key.name));
        }
        // Between the two.
        let manifest = Origin::whole(PodSource::File, "/m/cfg.yaml");
        bed.show(&map("cfg"), manifest);
        let path = "/api/v1/namespaces/default/configmaps";
        let (code, answer) = bed.ask("DELETE", path, &json!({})).await;
        // embedded 51
        assert_eq!(code, 200, "{answer}");
        let deleted = answer["items"].as_array().unwrap().iter();
        assert_eq!(deleted.map(meta::name).collect::<Vec<_>>(), ["a", "z"]);
        for key in &keys {
            assert!(!bed.file(key).exists(), "{}", key.name);
        }
    }
}
