//! The versions of workloads as `ReplicaSet`s and `ControllerRevision`s, for `kubectl rollout history`
//! and `undo`. Pure.
//!
//! Upstream: `pkg/controller/deployment/sync.go` (`getNewReplicaSet`),
//! `pkg/controller/deployment/util/deployment_util.go` (`SetNewReplicaSetAnnotations`),
//! `pkg/controller/statefulset/stateful_set_utils.go` (`newRevision`, `getPatch`),
//! `pkg/controller/daemon/update.go` (`snapshot`, `getPatch`).

use mirrorlet_apimachinery::meta;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::rollout::group::short_hash;
use mirrorlet_core::workload::WorkloadKind;
use mirrorlet_core::workload::revisions::WorkloadRevision;
use mirrorlet_core::workload::standing::revision_name;
use serde_json::{Value, json};

use super::project::{seconds, uid_of};
use super::templates;
use super::workloads::set_counts;

/// The number of a version, on its `ReplicaSet` and on a Deployment of that version.
pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
/// The label by which a `ReplicaSet` selects its pods.
pub(super) const HASH_LABEL: &str = "pod-template-hash";
/// The label of a `StatefulSet`'s pods with the name of their version, and of a `DaemonSet`'s with the
/// hash at its end.
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";
/// The annotation of kubectl with what it applied last, which no version has.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The UID of the `ReplicaSet` or `ControllerRevision` with a name, for a workload with that UID.
pub(super) fn revision_uid(owner: &str, name: &str) -> String {
    uid_of(&format!("revision {owner} {name}"))
}

/// The metadata of a version's object.
fn metadata(workload: &Value, revision: &WorkloadRevision, started_at: Timestamp) -> Value {
    let (name, uid) = (meta::name(workload), meta::uid(workload));
    let own = revision_name(name, &revision.template_hash);
    let mut metadata = json!({
        "name": own,
        "namespace": meta::namespace(workload),
        "uid": revision_uid(uid, &own),
        "creationTimestamp": seconds(revision.wanted_at.unwrap_or(started_at)),
        "generation": 1,
        "ownerReferences": [{
            "apiVersion": workload["apiVersion"],
            "kind": workload["kind"],
            "name": name,
            "uid": uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }],
    });
    let labels = &revision.template["metadata"]["labels"];
    metadata["labels"] = if labels.is_object() {
        labels.clone()
    } else {
        json!({})
    };
    metadata
}

/// The object of each version of a workload.
pub(super) fn objects(
    workload: &Value,
    kind: WorkloadKind,
    revisions: &[WorkloadRevision],
    started_at: Timestamp,
) -> Vec<Value> {
    let wanted = workload["spec"]["replicas"].as_u64().unwrap_or(1);
    let old = revisions.iter().filter(|revision| !revision.is_newest);
    let old: u64 = old.map(|revision| u64::from(revision.pods)).sum();
    let made = revisions.iter().map(|revision| {
        let metadata = metadata(workload, revision, started_at);
        if kind == WorkloadKind::Deployment {
            let replicas = if revision.is_newest {
                wanted.saturating_sub(old)
            } else {
                revision.pods.into()
            };
            replica_set(workload, revision, metadata, replicas)
        } else {
            controller_revision(revision, kind, metadata)
        }
    });
    made.collect()
}

/// Sets the annotation with a Deployment's version, as upstream's controller does: kubectl's `undo`
/// needs annotations to exist.
pub(super) fn mark(deployment: &mut Value, revisions: &[WorkloadRevision]) {
    if let Some(newest) = revisions.iter().find(|revision| revision.is_newest) {
        let metadata = meta::metadata(deployment);
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[REVISION] = newest.number.to_string().into();
    }
}

fn replica_set(
    deployment: &Value,
    revision: &WorkloadRevision,
    mut metadata: Value,
    replicas: u64,
) -> Value {
    let hash = short_hash(&revision.template_hash);
    metadata["labels"][HASH_LABEL] = hash.into();
    metadata["annotations"] = json!({REVISION: revision.number.to_string()});
    if revision.is_newest {
        // Why it was changed, for example.
        let of_deployment = deployment["metadata"]["annotations"].as_object();
        for (key, value) in of_deployment.into_iter().flatten() {
            if ![LAST_APPLIED, REVISION].contains(&key.as_str()) {
                metadata["annotations"][key] = value.clone();
            }
        }
    }
    let mut selector = deployment["spec"]["selector"].clone();
    selector["matchLabels"][HASH_LABEL] = hash.into();
    let mut template = (*revision.template).clone();
    templates::show_template(&mut template);
    template["metadata"]["labels"][HASH_LABEL] = hash.into();
    let mut status = json!({"replicas": revision.pods, "observedGeneration": 1});
    let counts = [
        ("fullyLabeledReplicas", revision.pods),
        ("readyReplicas", revision.ready),
        ("availableReplicas", revision.available),
    ];
    set_counts(&mut status, &counts);
    let mut spec = json!({"replicas": replicas, "selector": selector, "template": template});
    if let Some(least) = deployment["spec"].get("minReadySeconds") {
        spec["minReadySeconds"] = least.clone();
    }
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": metadata,
        "spec": spec,
        "status": status,
    })
}

fn controller_revision(
    revision: &WorkloadRevision,
    kind: WorkloadKind,
    mut metadata: Value,
) -> Value {
    metadata["labels"][REVISION_LABEL] = if kind == WorkloadKind::DaemonSet {
        short_hash(&revision.template_hash).into()
    } else {
        metadata["name"].clone()
    };
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.remove("generation");
    }
    let mut template = (*revision.template).clone();
    templates::show_template(&mut template);
    template["$patch"] = "replace".into();
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata,
        "data": {"spec": {"template": template}},
        "revision": revision.number,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn revision(number: u64, image: &str, pods: u32, is_newest: bool) -> WorkloadRevision {
        let spec = json!({"containers": [{"name": "web", "image": image}]});
        WorkloadRevision {
            number,
            wanted_at: Some(Timestamp::UNIX_EPOCH),
            template: Arc::new(json!({"metadata": {"labels": {"app": "web"}}, "spec": spec})),
            template_hash: format!("{image}0123456789abcdef"),
            is_newest,
            pods,
            ready: pods,
            available: 0,
        }
    }

    fn workload(kind: &str) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": {
                "name": "web",
                "namespace": "default",
                "uid": "u-1",
                "annotations": {"kubernetes.io/change-cause": "an edit", LAST_APPLIED: "{}"},
            },
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}},
        })
    }

    #[test]
    fn each_version_of_a_deployment_is_a_replica_set() {
        let revisions = [revision(1, "a", 1, false), revision(2, "b", 1, true)];
        let (deployment, kind) = (workload("Deployment"), WorkloadKind::Deployment);
        let sets = objects(&deployment, kind, &revisions, Timestamp::UNIX_EPOCH);
        let [old, new] = sets.as_slice() else {
            panic!("{sets:?}")
        };
        // embedded 40
        assert_eq!(old["metadata"]["name"], "web-a012345678");
        assert_eq!(old["metadata"]["annotations"], json!({REVISION: "1"}));
        assert_eq!(new["metadata"]["ownerReferences"][0]["uid"], "u-1");
        let annotations = json!({REVISION: "2", "kubernetes.io/change-cause": "an edit"});
        assert_eq!(new["metadata"]["annotations"], annotations);
        // kubectl compares templates without this label.
        let labels = json!({"app": "web", HASH_LABEL: "b012345678"});
        assert_eq!(new["spec"]["template"]["metadata"]["labels"], labels);
        assert_eq!(new["spec"]["selector"]["matchLabels"], labels);
        assert_eq!(new["metadata"]["labels"], labels);
        let counts = |set: &Value| {
            [
                set["spec"]["replicas"].clone(),
                set["status"]["replicas"].clone(),
            ]
        };
        assert_eq!(counts(old), [1, 1]);
        assert_eq!(counts(new), [2, 1]);
        assert_eq!(new["status"]["readyReplicas"], 1);
        let mut marked = json!({"metadata": {"name": "web"}});
        mark(&mut marked, &revisions);
        assert_eq!(marked["metadata"]["annotations"], json!({REVISION: "2"}));
        assert_eq!(new["status"]["availableReplicas"], Value::Null);
    }

    #[test]
    fn each_version_of_a_stateful_set_is_a_patch_of_it() {
        let (set, kind) = (workload("StatefulSet"), WorkloadKind::StatefulSet);
        let made = objects(
            &set,
            kind,
            &[revision(7, "a", 1, true)],
            Timestamp::UNIX_EPOCH,
        );
        let revision = &made[0];
        // embedded 41
        assert_eq!(revision["revision"], 7);
        assert_eq!(revision["metadata"]["name"], "web-a012345678");
        assert_eq!(
            revision["metadata"]["labels"][REVISION_LABEL],
            "web-a012345678"
        );
        assert_eq!(revision["metadata"]["labels"]["app"], "web");
        let template = &revision["data"]["spec"]["template"];
        assert_eq!(template["$patch"], "replace");
        assert_eq!(template["spec"]["containers"][0]["image"], "a");
    }

    #[test]
    fn a_version_of_a_daemon_set_has_its_hash_as_label() {
        let (set, kind) = (workload("DaemonSet"), WorkloadKind::DaemonSet);
        let versions = [revision(1, "a", 1, true)];
        let made = objects(&set, kind, &versions, Timestamp::UNIX_EPOCH);
        assert_eq!(made[0]["kind"], "ControllerRevision");
        assert_eq!(made[0]["metadata"]["name"], "web-a012345678");
        let label = &made[0]["metadata"]["labels"][REVISION_LABEL];
        // embedded 43
        assert_eq!(label, "a012345678");
    }
}
