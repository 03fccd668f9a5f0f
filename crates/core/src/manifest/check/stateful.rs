//! Create-validation of `StatefulSet`s.
//!
//! Upstream: `pkg/apis/apps/validation/validation.go` (`ValidateStatefulSetSpec`).

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::core::PersistentVolumeClaim;
use crate::api::{Pod, keys};
use crate::manifest::problems::At;
use crate::rollout::{ROLLOUT, RolloutStrategy, Settings};
use crate::workload::{
    DELETE, ON_DELETE, ORDERED_READY, PARALLEL, RETAIN, ROLLING_UPDATE, WorkloadKind, claim_name,
    first_ordinal, scaled,
};

use super::workloads::{check_replicas, check_scaled, check_seconds, not_negative};
use super::{check_claim, names};

/// Checks the fields of a `StatefulSet` named `name` besides its template. `pod` is the template with
/// defaults, `written` the document.
pub(super) fn check_stateful_set(
    spec: &StatefulSetSpec,
    name: &str,
    pod: &Pod,
    written: &Value,
    at: &At<'_>,
) {
    check_replicas(WorkloadKind::StatefulSet, spec.replicas, pod, written, at);
    let start = first_ordinal(spec);
    not_negative(Some(start), &at.dotted("ordinals.start"));
    let last = start.checked_add(spec.replicas.unwrap_or(1).max(1) - 1);
    check_hostname(name, last, at);
    if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty())
        && !names::is_label(service)
    {
        at.key("serviceName").invalid("must be a DNS-1123 label");
        at.help(names::LABEL_RULE);
    }
    let policies = ["", ORDERED_READY, PARALLEL];
    let policy = spec.pod_management_policy.as_deref();
    at.key("podManagementPolicy").one_of(policy, &policies);
    check_seconds(spec.min_ready_seconds, spec.revision_history_limit, at);
    if let Some(strategy) = &spec.update_strategy {
        check_update_strategy(strategy, &at.key("updateStrategy"));
    }
    check_retention(spec, at);
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    check_claims(templates, name, last.unwrap_or(i32::MAX), at);
    if Settings::of(pod).strategy == RolloutStrategy::StartFirst {
        let path = at.dotted("template.metadata.annotations").key(ROLLOUT);
        let message = "two versions of a pod of a StatefulSet never run at the same time";
        path.invalid(message);
        path.help("remove the annotation");
    }
}

/// A pod's name is its host's.
fn check_hostname(name: &str, last: Option<i32>, at: &At<'_>) {
    let Some(last) = last else {
        let message = "the ordinal of the last pod is too large";
        return at.dotted("ordinals.start").invalid(message);
    };
    let hostname = format!("{name}-{last}");
    if names::is_subdomain(name) && !names::is_label(&hostname) {
        let message = format!("{hostname} must be a DNS-1123 label: it is the host name of a pod");
        at.problems.root().dotted("metadata.name").invalid(message);
        at.help(names::LABEL_RULE);
    }
}

fn check_update_strategy(strategy: &StatefulSetUpdateStrategy, at: &At<'_>) {
    let path = at.key("type");
    let kind = strategy.type_.as_deref();
    path.one_of(kind, &["", ROLLING_UPDATE, ON_DELETE]);
    let update = strategy.rolling_update.as_ref();
    if kind == Some(ON_DELETE) {
        if update.is_some() {
            let message = "must not be set when the type is OnDelete";
            return at.key("rollingUpdate").invalid(message);
        }
        let message = "an edit always replaces the pods: OnDelete is not supported";
        path.unsupported(message);
        path.help("use RollingUpdate; to hold edits back, use: mirrorlet rollout pause POD");
        return;
    }
    let Some(update) = update else { return };
    let partition = at.dotted("rollingUpdate.partition");
    not_negative(update.partition, &partition);
    let path = at.dotted("rollingUpdate.maxUnavailable");
    let value = update.max_unavailable.as_ref();
    check_scaled(value, &path);
    let of_hundred = value.and_then(|value| scaled(value, 100));
    if of_hundred == Some(0) {
        path.invalid("must not be 0");
    } else if of_hundred > Some(100) && matches!(value, Some(IntOrString::String(_))) {
        path.invalid("must not be greater than 100%");
    }
}

/// Data is never removed by itself.
fn check_retention(spec: &StatefulSetSpec, at: &At<'_>) {
    let Some(policy) = &spec.persistent_volume_claim_retention_policy else {
        return;
    };
    let at = at.key("persistentVolumeClaimRetentionPolicy");
    for (field, value) in [
        ("whenDeleted", policy.when_deleted.as_deref()),
        ("whenScaled", policy.when_scaled.as_deref()),
    ] {
        let path = at.key(field);
        path.one_of(value, &["", RETAIN, DELETE]);
        if value == Some(DELETE) {
            let message = "the data of claims is never removed by an edit of a document";
            path.unsupported(message);
            path.help("use Retain, and remove unneeded volumes with: mirrorlet volumes rm");
        }
    }
}

fn check_claims(templates: &[PersistentVolumeClaim], set: &str, last: i32, at: &At<'_>) {
    let mut seen = BTreeSet::new();
    for (index, template) in templates.iter().enumerate() {
        let at = at.key("volumeClaimTemplates").index(index);
        check_claim(template, &at);
        let metadata = at.key("metadata");
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let path = metadata.key("name");
        if !name.is_empty() && !names::is_label(name) {
            let message = "must be a DNS-1123 label: it is the name of a volume";
            path.invalid(message);
            path.help(names::LABEL_RULE);
        } else if !names::is_subdomain(&claim_name(name, set, last)) && names::is_label(name) {
            path.invalid("the names of the claims would be too long");
        }
        if !seen.insert(name) {
            path.duplicate("another template has this name");
        }
        let annotations = template.metadata.annotations.iter().flatten();
        if annotations.clone().any(|(key, _)| key == keys::VOLUME_NAME) {
            let path = metadata.key("annotations").key(keys::VOLUME_NAME);
            path.invalid("each pod has a claim with a volume of its own");
            path.help("write a PersistentVolumeClaim document for the claim of each pod");
        }
    }
}
