//! Pods in the API's form: their UIDs, owners, versions and deletions. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mirrorlet_apimachinery::meta;
use mirrorlet_core::api::{self, Pod, keys};
use mirrorlet_core::resources::qos_class;
use mirrorlet_core::rollout::group::{short_hash, template_hash};
use mirrorlet_core::spec;
use mirrorlet_core::workload::standing::revision_name;
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use serde_json::{Value, json};

use super::project::{Context, Deletion, node_uid, seconds, uid_of};
use super::revisions::{HASH_LABEL, REVISION_LABEL, revision_uid};
use crate::server::view::ShownPod;

/// The annotations of a pod that are internal to the agent.
const OWN: [&str; 6] = [
    keys::CONFIG_HASH,
    keys::CONFIG_SOURCE,
    keys::CONFIG_SEEN,
    keys::OBJECT_UID,
    keys::STOPPED,
    keys::RESTART,
];

/// The UID of a pod's object. For a stored pod it was assigned at its creation; for any other it
/// follows its version and its restarts, as a mirror pod's would.
pub(super) fn pod_uid(shown: &ShownPod) -> String {
    let annotation = |pod: &Pod, key: &str| pod.metadata.annotations.as_ref()?.get(key).cloned();
    let running = &shown.pod;
    let newest = shown.newest.as_ref();
    // One that was deleted and created again may run as it was.
    let given = newest.and_then(|newest| annotation(newest, keys::OBJECT_UID));
    let given = given.or_else(|| annotation(running, keys::OBJECT_UID));
    given.unwrap_or_else(|| {
        let uid = running.metadata.uid.as_deref().unwrap_or_default();
        let restart = annotation(running, keys::RESTART).unwrap_or_default();
        uid_of(&format!("pod {uid} {restart}"))
    })
}

/// The pod as it is written: a write that was made of an older version would erase the newest one.
/// The status, and the containers that were added for debugging, are those of the version that runs,
/// which also says why it does.
fn as_written(shown: &ShownPod) -> Cow<'_, Pod> {
    let Some(newest) = &shown.newest else {
        return Cow::Borrowed(&shown.pod);
    };
    let mut pod = Pod::clone(newest);
    let running = &shown.pod;
    pod.status.clone_from(&running.status);
    let added = running.spec.as_ref();
    if let Some(added) = added.and_then(|spec| spec.ephemeral_containers.clone()) {
        pod.spec.get_or_insert_default().ephemeral_containers = Some(added);
    }
    let annotations = running.metadata.annotations.iter().flatten();
    let reasons = annotations.filter(|(key, _)| keys::HELD.contains(&key.as_str()));
    let known = pod.metadata.annotations.get_or_insert_default();
    known.extend(reasons.map(|(key, value)| (key.clone(), value.clone())));
    Cow::Owned(pod)
}

/// The object of a pod.
pub(super) fn pod_object(
    shown: &ShownPod,
    owners: &BTreeMap<WorkloadKey, String>,
    context: &Context<'_>,
) -> Value {
    let uid = pod_uid(shown);
    let written = as_written(shown);
    let pod = &*written;
    let is_stored = shown.is_stored();
    let hash = pod.metadata.annotations.as_ref();
    let hash = hash.and_then(|all| all.get(keys::CONFIG_HASH)).cloned();
    let mut object = serde_json::to_value(pod).unwrap_or_default();
    if !object["metadata"]["creationTimestamp"].is_string() {
        let started = pod
            .status
            .as_ref()
            .and_then(|status| status.start_time.as_ref());
        let created = started.map_or(context.started_at, |time| time.0);
        meta::metadata(&mut object).insert("creationTimestamp".to_owned(), seconds(created).into());
    }
    let metadata = meta::metadata(&mut object);
    metadata.insert("uid".to_owned(), uid.clone().into());
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.retain(|key, _| !OWN.contains(&key.as_str()));
        // kubectl shows the events of a mirror pod by this.
        if let Some(hash) = hash.filter(|_| !is_stored) {
            annotations.insert(keys::CONFIG_MIRROR.to_owned(), hash.into());
        }
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    label_version(pod, metadata);
    if let Some(reference) = owner_reference(pod, is_stored, owners, context) {
        metadata.insert("ownerReferences".to_owned(), json!([reference]));
    }
    let waits = spec::is_cordoned(&shown.pod);
    if waits && !has_running(&object) {
        unscheduled(&mut object);
        return object;
    }
    let metadata = meta::metadata(&mut object);
    // If its own document exists again, it is not deleted: a write would remove its file.
    let is_document = is_stored && shown.origin.is_some() && WorkloadKey::of(pod).is_none();
    if (shown.terminating && !is_document) || waits {
        let running = shown.pod.spec.as_ref();
        let grace = running.and_then(|spec| spec.termination_grace_period_seconds);
        let known = context.deletions.get(&uid).copied();
        let deletion = known.unwrap_or(Deletion {
            at: context.started_at,
            grace_seconds: grace.unwrap_or(30),
        });
        metadata.insert("deletionTimestamp".to_owned(), seconds(deletion.at).into());
        let grace = deletion.grace_seconds.into();
        metadata.insert("deletionGracePeriodSeconds".to_owned(), grace);
    }
    object
}

/// The name of a pod's version, if it belongs to a workload whose pods are updated together.
fn version_name(pod: &Pod) -> Option<(WorkloadKey, String)> {
    let (owner, hash) = (WorkloadKey::of(pod)?, template_hash(pod));
    let name = (!hash.is_empty()).then(|| revision_name(&owner.name, hash))?;
    Some((owner, name))
}

/// Adds the label by which upstream's controllers distinguish versions.
fn label_version(pod: &Pod, metadata: &mut serde_json::Map<String, Value>) {
    let Some((owner, name)) = version_name(pod) else {
        return;
    };
    let (key, value) = match owner.kind {
        WorkloadKind::Deployment => (HASH_LABEL, short_hash(template_hash(pod)).to_owned()),
        WorkloadKind::DaemonSet => (REVISION_LABEL, short_hash(template_hash(pod)).to_owned()),
        _ => (REVISION_LABEL, name),
    };
    let labels = metadata.entry("labels").or_insert_with(|| json!({}));
    labels[key] = value.into();
}

/// The owner of a pod: of a Deployment's the `ReplicaSet` of its version, of another workload's the
/// workload; of any other pod of a manifest the Node, as of a mirror pod.
fn owner_reference(
    pod: &Pod,
    is_stored: bool,
    owners: &BTreeMap<WorkloadKey, String>,
    context: &Context<'_>,
) -> Option<Value> {
    if let Some(owner) = WorkloadKey::of(pod) {
        let known = owners.get(&owner).cloned();
        let uid = known.unwrap_or_else(|| uid_of(&owner.to_string()));
        let version = version_name(pod).filter(|_| owner.kind == WorkloadKind::Deployment);
        if let Some((_, name)) = version {
            return Some(json!({
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": name,
                "uid": revision_uid(&uid, &name),
                "controller": true,
                "blockOwnerDeletion": true,
            }));
        }
        return Some(json!({
            "apiVersion": owner.kind.api_version(),
            "kind": owner.kind.as_str(),
            "name": owner.name,
            "uid": uid,
            "controller": true,
            "blockOwnerDeletion": true,
        }));
    }
    (!is_stored).then(|| {
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "name": context.node,
            "uid": node_uid(context.node),
            "controller": true,
        })
    })
}

/// Whether a container of a pod runs.
fn has_running(pod: &Value) -> bool {
    ["containerStatuses", "initContainerStatuses"]
        .iter()
        .any(|list| {
            let all = pod["status"][list].as_array().into_iter().flatten();
            all.into_iter()
                .any(|status| status["state"]["running"].is_object())
        })
}

/// A pod that waits until the Node is uncordoned, as one that the scheduler finds no node for.
///
/// Upstream: `pkg/scheduler/schedule_one.go` (`handleSchedulingFailure`).
fn unscheduled(pod: &mut Value) {
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("nodeName");
    }
    let typed = api::read(pod);
    let quality = typed.map_or(Value::Null, |pod| qos_class(&pod).as_str().into());
    pod["status"] = json!({
        "phase": "Pending",
        "qosClass": quality,
        "conditions": [{
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 node(s) were unschedulable.",
            "lastTransitionTime": pod["metadata"]["creationTimestamp"],
        }],
    });
}
