//! Garbage collection: the API deletes its objects once their owners are gone, and completes deletions
//! that waited for dependents.
//!
//! While no stored object has an owner or waits for a finalizer, the task only waits for writes: an
//! idle agent spends nothing on it.

use std::time::Duration;

use mirrorlet_apimachinery::garbage::{self, Propagation, Step};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{CRON_JOBS, PODS};
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::api::keys;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::Api;
use super::held::makes_pods;

/// Minimum time between two passes over all objects.
const PAUSE: Duration = Duration::from_millis(100);
/// The same after an error. It doesn't grow: objects without an owner stay until then.
const PAUSE_AFTER_ERROR: Duration = Duration::from_secs(30);
/// Most rounds of a collection: each removes something, so that more mean a mistake.
const ROUNDS_MAX: usize = 1000;

/// Collects until `cancel`.
pub(super) async fn collect(api: Api, cancel: CancellationToken) {
    let collecting = async {
        let mut changes = api.store.changes();
        if !api.store.has_objects() {
            changes.written().await;
        }
        loop {
            if api.store.is_collectable() {
                let pause = match api.collect_garbage().await {
                    Ok(()) => PAUSE,
                    Err(error) => {
                        tracing::warn!(%error, "failed to delete objects without an owner; retrying");
                        PAUSE_AFTER_ERROR
                    }
                };
                tokio::time::sleep(pause).await;
            }
            if api.store.is_collectable() {
                changes.changed().await;
            } else {
                changes.written().await;
            }
        }
    };
    cancel.run_until_cancelled(collecting).await;
}

/// Whether a workload made a pod.
fn makes(owner: &Value, pod: &Value) -> bool {
    if pod["kind"] != PODS.kind || meta::namespace(owner) != meta::namespace(pod) {
        return false;
    }
    let annotations = &pod["metadata"]["annotations"];
    let (kind, name) = (owner["kind"].as_str(), meta::name(owner));
    let workload = annotations[keys::WORKLOAD].as_str().unwrap_or_default();
    let is_it = workload
        .split_once('/')
        .is_some_and(|(of, named)| Some(of) == kind && named == name);
    is_it || (kind == Some(CRON_JOBS.kind) && annotations[keys::CRON_JOB] == name)
}

impl Api {
    /// Deletes what has lost its owners, and what comes of that.
    async fn collect_garbage(&self) -> Result<(), Status> {
        // Before, nothing is known to have lost its owners; news comes with what is loaded.
        if self.check_known().await.is_err() {
            return Ok(());
        }
        let _turn = self.turn().await?;
        for _ in 0..ROUNDS_MAX {
            let steps = self
                .store
                .members(|members| garbage::collect(members, makes));
            if steps.is_empty() {
                return Ok(());
            }
            let mut failed = None;
            let mut has_succeeded = false;
            for step in steps {
                match self.take(step).await {
                    Ok(()) => has_succeeded = true,
                    // It went meanwhile.
                    Err(status) if status.code == 404 => has_succeeded = true,
                    Err(status) => failed = Some(status),
                }
            }
            // One that can't be deleted keeps no other from it.
            if let Some(status) = failed.filter(|_| !has_succeeded) {
                return Err(status);
            }
        }
        Err(Status::internal("garbage collection did not finish"))
    }

    async fn take(&self, step: Step) -> Result<(), Status> {
        match step {
            Step::Delete(key, propagation) => {
                let (kind, namespace, name) = (key.resource.kind, &key.namespace, &key.name);
                tracing::info!(kind, %namespace, %name, "object is deleted: its owners are gone, or are being deleted");
                // Pods of a workload go with it.
                let propagation = match propagation {
                    Propagation::Orphan if makes_pods(key.resource) => Propagation::Background,
                    other => other,
                };
                let options = json!({"propagationPolicy": propagation.as_str()});
                self.remove(&key, &options).await.map(drop)
            }
            Step::Update(key, object) => self.put(&key, object).await.map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::cache::Key;
    use mirrorlet_apimachinery::resources::CONFIG_MAPS;

    use super::*;
    use crate::server::embedded::bed::Bed;
    use crate::server::embedded::store::DELIVERY_MAX;

    #[tokio::test(start_paused = true)]
    async fn what_a_pod_owns_stays_until_it_is_known_what_runs() {
        let bed = Bed::new();
        let key = Key::new(&CONFIG_MAPS, "default", "cfg");
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u-1"});
        let metadata = json!({"name": "cfg", "namespace": "default", "ownerReferences": [owner]});
        bed.store(
            &key,
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}),
        );
        // Clients are let in some time after the start, whatever is known then.
        tokio::time::advance(DELIVERY_MAX).await;
        let steps = |complete: bool| {
            bed.view.shown.lock().unwrap().complete = complete;
            bed.api.store.touch();
            let store = &bed.api.store;
            store.members(|members| garbage::collect(members, makes))
        };
        // embedded 67
        assert_eq!(steps(false), []);
        bed.api.collect_garbage().await.unwrap();
        assert!(bed.file(&key).exists());
        assert_eq!(steps(true), [Step::Delete(key, Propagation::Background)]);
    }

    #[test]
    fn a_workload_is_known_by_the_annotations_of_its_pods() {
        let owner =
            |kind: &str| json!({"kind": kind, "metadata": {"namespace": "a", "name": "web"}});
        let pod = |namespace: &str, annotations: Value| json!({"kind": "Pod", "metadata": {"namespace": namespace, "annotations": annotations}});
        for (owner, pod, expected) in [
            (
                owner("Deployment"),
                pod("a", json!({keys::WORKLOAD: "Deployment/web"})),
                true,
            ),
            (
                owner("Deployment"),
                pod("a", json!({keys::WORKLOAD: "StatefulSet/web"})),
                false,
            ),
            (
                owner("Deployment"),
                pod("b", json!({keys::WORKLOAD: "Deployment/web"})),
                false,
            ),
            (owner("Deployment"), pod("a", json!({})), false),
            (
                owner("CronJob"),
                pod(
                    "a",
                    json!({keys::WORKLOAD: "Job/web-1", keys::CRON_JOB: "web"}),
                ),
                true,
            ),
        ] {
            assert_eq!(makes(&owner, &pod), expected, "{owner} {pod}");
        }
    }
}
