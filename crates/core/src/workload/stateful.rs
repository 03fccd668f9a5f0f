//! `StatefulSet`s: the identity of each pod, and its claims.
//!
//! Upstream: `pkg/controller/statefulset/stateful_set_utils.go` (`newStatefulSetPod`,
//! `getPersistentVolumeClaims`, `updateStorage`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSetSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use super::{Workload, WorkloadKey};
use crate::api::core::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Volume};
use crate::api::meta::ObjectMeta;
use crate::api::{Pod, keys};
use crate::path::Path;
use crate::rollout::group::{UpdatePolicy, Updates};
use crate::small::SmallCollect;
use crate::stateful::StatefulSet;

/// Value for pods that start and stop one after the other.
pub(crate) const ORDERED_READY: &str = "OrderedReady";
/// Value for pods that start and stop all at once.
pub(crate) const PARALLEL: &str = "Parallel";
/// Value of an update strategy that waits until a user deletes each pod.
pub(crate) const ON_DELETE: &str = "OnDelete";
/// Word for claims that stay.
pub(crate) const RETAIN: &str = "Retain";
/// Word for claims that are removed.
pub(crate) const DELETE: &str = "Delete";

/// Returns the `StatefulSet` in a checked document, if it is one.
pub(crate) fn stateful_set(key: &WorkloadKey, workload: &Workload) -> Option<StatefulSet> {
    let Workload::StatefulSet(spec) = workload else {
        return None;
    };
    let start = first_ordinal(spec);
    let ordinals = start..start.saturating_add(workload.replicas());
    let seconds = u64::try_from(spec.min_ready_seconds.unwrap_or(0)).unwrap_or_default();
    let claims = ordinals.clone().flat_map(|ordinal| {
        let templates = spec.volume_claim_templates.iter().flatten();
        templates.map(move |template| Arc::new(claim(key, spec, template, ordinal)))
    });
    let templates = spec.volume_claim_templates.iter().flatten();
    let claim_templates = templates.map(|template| {
        let name = template.metadata.name.clone().unwrap_or_default();
        (name, Arc::new(claim(key, spec, template, start)))
    });
    Some(StatefulSet {
        claim_templates: claim_templates.collect(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        ordered: spec.pod_management_policy.as_deref() != Some(PARALLEL),
        min_ready: Duration::from_secs(seconds),
        claims: claims.collect(),
        ordinals,
    })
}

/// How its pods are updated: from the last one on, one at a time unless the document sets more.
///
/// Upstream: `updateStatefulSet` of `pkg/controller/statefulset/stateful_set_control.go`.
pub(super) fn updates(spec: &StatefulSetSpec) -> Updates {
    let strategy = spec.update_strategy.as_ref();
    let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let max_unavailable = update.and_then(|update| update.max_unavailable.clone());
    Updates {
        paused: false,
        policy: UpdatePolicy::Ordered {
            partition: update.and_then(|update| update.partition).unwrap_or(0),
            max_unavailable: max_unavailable.unwrap_or(IntOrString::Int(1)),
        },
    }
}

/// The number of the first pod.
pub(crate) fn first_ordinal(spec: &StatefulSetSpec) -> i32 {
    let start = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start);
    start.unwrap_or(0)
}

/// Name of the claim of a pod.
pub(crate) fn claim_name(template: &str, set: &str, ordinal: i32) -> String {
    format!("{template}-{set}-{ordinal}")
}

/// The claim of a pod by one of the templates.
fn claim(
    key: &WorkloadKey,
    spec: &StatefulSetSpec,
    template: &PersistentVolumeClaim,
    ordinal: i32,
) -> PersistentVolumeClaim {
    let name = template.metadata.name.as_deref().unwrap_or_default();
    let mut labels = template.metadata.labels.clone().unwrap_or_default();
    labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(claim_name(name, &key.name, ordinal)),
            namespace: Some(key.namespace.clone()),
            labels: Some(labels),
            annotations: template.metadata.annotations.clone(),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Names of the volumes with claims of a pod, and the claims.
fn volumes<'a>(
    spec: &'a StatefulSetSpec,
    set: &str,
    ordinal: i32,
) -> impl Iterator<Item = (&'a str, String)> {
    let templates = spec.volume_claim_templates.iter().flatten();
    templates.map(move |template| {
        let name = template.metadata.name.as_deref().unwrap_or_default();
        (name, claim_name(name, set, ordinal))
    })
}

/// The labels that identify a pod.
fn labels(name: String, ordinal: i32) -> [(&'static str, String); 2] {
    [
        (keys::STATEFUL_POD_NAME, name),
        (keys::POD_INDEX, ordinal.to_string()),
    ]
}

/// Gives a pod from the template of a `StatefulSet` named `set` the identity of its ordinal, in the pod
/// and in the document that would describe it by itself.
pub(crate) fn take_identity(
    spec: &StatefulSetSpec,
    set: &str,
    ordinal: i32,
    pod: &mut Pod,
    document: Option<&mut Value>,
) {
    let name = format!("{set}-{ordinal}");
    let service = spec.service_name.as_deref().filter(|name| !name.is_empty());
    let of_claims: BTreeMap<&str, String> = volumes(spec, set, ordinal).collect_map();
    let own = pod.metadata.labels.get_or_insert_default();
    for (key, value) in labels(name.clone(), ordinal) {
        own.insert(key.to_owned(), value);
    }
    let described = pod.spec.get_or_insert_default();
    described.hostname = Some(name.clone());
    described.subdomain = service.map(str::to_owned);
    if !of_claims.is_empty() {
        let known = described.volumes.get_or_insert_default();
        known.retain(|volume| !of_claims.contains_key(volume.name.as_str()));
        known.extend(of_claims.iter().map(|(volume, claim)| Volume {
            name: (*volume).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim.clone(),
                read_only: None,
            }),
            ..Volume::default()
        }));
    }
    let Some(document) = document else { return };
    let own = part(part(document, "metadata"), "labels");
    for (key, value) in labels(name.clone(), ordinal) {
        set_key(own, key, value.into());
    }
    let described = part(document, "spec");
    set_key(described, "hostname", name.into());
    match (service, described.as_object_mut()) {
        (Some(service), _) => set_key(described, "subdomain", service.into()),
        (None, Some(described)) => {
            described.remove("subdomain");
        }
        (None, None) => {}
    }
    if of_claims.is_empty() {
        return;
    }
    let known = described.get("volumes").and_then(Value::as_array);
    let is_other = |volume: &&Value| {
        let name = volume.get("name").and_then(Value::as_str);
        name.is_none_or(|name| !of_claims.contains_key(name))
    };
    let known = known.into_iter().flatten().filter(is_other).cloned();
    let added = of_claims.iter().map(
        |(volume, claim)| json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}),
    );
    let all: Vec<Value> = known.chain(added).collect();
    set_key(described, "volumes", all.into());
}

/// The paths, in a template at `at`, of the fields that [`take_identity`] has set in `pod`.
pub(crate) fn given(spec: &StatefulSetSpec, pod: &Pod, at: &Path) -> impl Iterator<Item = Path> {
    let labels = [keys::STATEFUL_POD_NAME, keys::POD_INDEX];
    let labels = labels.map(|label| at.dotted("metadata.labels").key(label));
    let names = ["hostname", "subdomain"].map(|field| at.key("spec").key(field));
    let claims = spec.volume_claim_templates.iter().flatten();
    let claims: BTreeSet<&str> = claims
        .map(|template| template.metadata.name.as_deref().unwrap_or_default())
        .collect_set();
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let at = at.dotted("spec.volumes");
    let volumes = volumes
        .enumerate()
        .filter(move |(_, volume)| claims.contains(volume.name.as_str()))
        .map(move |(index, _)| at.index(index));
    labels.into_iter().chain(names).chain(volumes)
}

/// The mapping below a key; created if it is missing.
fn part<'a>(document: &'a mut Value, key: &str) -> &'a mut Value {
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let part = &mut document[key];
    if part.is_null() {
        *part = Value::Object(Map::new());
    }
    part
}

fn set_key(document: &mut Value, key: &str, value: Value) {
    if let Some(map) = document.as_object_mut() {
        map.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests;
