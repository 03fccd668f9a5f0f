//! Create-validation of `StatefulSet`s.
//!
//! Upstream: `pkg/apis/apps/validation/validation.go` (`ValidateStatefulSetSpec`).

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::{StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::core::PersistentVolumeClaim;
use crate::api::{Code, Pod, Severity, keys};
use crate::manifest::problems::Problems;
use crate::path::Path;
use crate::rollout::{ROLLOUT, RolloutStrategy, Settings};
use crate::workload::{
    DELETE, ON_DELETE, ORDERED_READY, PARALLEL, RETAIN, ROLLING_UPDATE, WorkloadKind, claim_name,
    first_ordinal, scaled,
};

use super::workloads::{check_replicas, check_scaled, check_seconds, not_negative};
use super::{check_claim, names, one_of};

/// Checks what a `StatefulSet` named `name` has beside its template. `pod` is the template with
/// defaults, `written` the document.
pub(super) fn check_stateful_set(
    spec: &StatefulSetSpec,
    name: &str,
    pod: &Pod,
    written: &Value,
    problems: &mut Problems<'_>,
) {
    let at = Path::of("spec");
    check_replicas(
        WorkloadKind::StatefulSet,
        spec.replicas,
        pod,
        written,
        problems,
    );
    let start = first_ordinal(spec);
    not_negative(Some(start), &at.dotted("ordinals.start"), problems);
    let last = start.checked_add(spec.replicas.unwrap_or(1).max(1) - 1);
    check_hostname(name, last, &at, problems);
    if let Some(service) = spec.service_name.as_deref().filter(|name| !name.is_empty())
        && !names::is_label(service)
    {
        problems.invalid(&at.key("serviceName"), "must be a DNS-1123 label");
        problems.help(names::LABEL_RULE);
    }
    let policies = ["", ORDERED_READY, PARALLEL];
    let policy = spec.pod_management_policy.as_deref();
    one_of(policy, &policies, &at.key("podManagementPolicy"), problems);
    check_seconds(
        spec.min_ready_seconds,
        spec.revision_history_limit,
        &at,
        problems,
    );
    if let Some(strategy) = &spec.update_strategy {
        check_update_strategy(strategy, &at.key("updateStrategy"), problems);
    }
    check_retention(spec, &at, problems);
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    check_claims(templates, name, last.unwrap_or(i32::MAX), problems);
    if Settings::of(pod).strategy == RolloutStrategy::StartFirst {
        let path = at.dotted("template.metadata.annotations").key(ROLLOUT);
        let message = "two versions of a pod of a StatefulSet never run at a time";
        problems.invalid(&path, message);
        problems.help("remove the annotation");
    }
}

/// A pod's name is its host's.
fn check_hostname(name: &str, last: Option<i32>, at: &Path, problems: &mut Problems<'_>) {
    let Some(last) = last else {
        let message = "the number of the last pod is too large";
        return problems.invalid(&at.dotted("ordinals.start"), message);
    };
    let hostname = format!("{name}-{last}");
    if names::is_subdomain(name) && !names::is_label(&hostname) {
        let message = format!("{hostname} must be a DNS-1123 label: it is the host name of a pod");
        problems.invalid(&Path::of("metadata").key("name"), message);
        problems.help(names::LABEL_RULE);
    }
}

fn check_update_strategy(
    strategy: &StatefulSetUpdateStrategy,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    let path = at.key("type");
    let kind = strategy.type_.as_deref();
    one_of(kind, &["", ROLLING_UPDATE, ON_DELETE], &path, problems);
    let update = strategy.rolling_update.as_ref();
    if kind == Some(ON_DELETE) {
        if update.is_some() {
            let message = "must not be set when the type is OnDelete";
            return problems.invalid(&at.key("rollingUpdate"), message);
        }
        let message = "an edit always replaces the pods: OnDelete is not supported";
        let code = Code::UnsupportedField;
        problems.add(Severity::Error, code, &path, message.to_owned());
        problems.help("use RollingUpdate; mirrorlet rollout pause POD holds edits back");
        return;
    }
    let Some(update) = update else { return };
    let partition = at.dotted("rollingUpdate.partition");
    not_negative(update.partition, &partition, problems);
    let path = at.dotted("rollingUpdate.maxUnavailable");
    let value = update.max_unavailable.as_ref();
    check_scaled(value, &path, problems);
    let of_hundred = value.and_then(|value| scaled(value, 100));
    if of_hundred == Some(0) {
        problems.invalid(&path, "must not be 0");
    } else if of_hundred > Some(100) && matches!(value, Some(IntOrString::String(_))) {
        problems.invalid(&path, "must not be greater than 100%");
    }
}

/// Data is never removed by itself.
fn check_retention(spec: &StatefulSetSpec, at: &Path, problems: &mut Problems<'_>) {
    let Some(policy) = &spec.persistent_volume_claim_retention_policy else {
        return;
    };
    let at = at.key("persistentVolumeClaimRetentionPolicy");
    for (field, value) in [
        ("whenDeleted", policy.when_deleted.as_deref()),
        ("whenScaled", policy.when_scaled.as_deref()),
    ] {
        let path = at.key(field);
        one_of(value, &["", RETAIN, DELETE], &path, problems);
        if value == Some(DELETE) {
            let message = "the data of claims is never removed by an edit of a document";
            let code = Code::UnsupportedField;
            problems.add(Severity::Error, code, &path, message.to_owned());
            problems.help("write Retain, and remove what isn't needed with: mirrorlet volumes rm");
        }
    }
}

fn check_claims(
    templates: &[PersistentVolumeClaim],
    set: &str,
    last: i32,
    problems: &mut Problems<'_>,
) {
    let mut seen = BTreeSet::new();
    for (index, template) in templates.iter().enumerate() {
        let at = Path::of("spec").key("volumeClaimTemplates").index(index);
        problems.within(at);
        check_claim(template, problems);
        problems.within(Path::default());
        let metadata = at_metadata(index);
        let name = template.metadata.name.as_deref().unwrap_or_default();
        let path = metadata.key("name");
        if !name.is_empty() && !names::is_label(name) {
            let message = "must be a DNS-1123 label: it is the name of a volume";
            problems.invalid(&path, message);
            problems.help(names::LABEL_RULE);
        } else if !names::is_subdomain(&claim_name(name, set, last)) && names::is_label(name) {
            problems.invalid(&path, "the names of the claims would be too long");
        }
        if !seen.insert(name) {
            problems.duplicate(&path, "another template has this name");
        }
        let annotations = template.metadata.annotations.iter().flatten();
        if annotations.clone().any(|(key, _)| key == keys::VOLUME_NAME) {
            let path = metadata.key("annotations").key(keys::VOLUME_NAME);
            problems.invalid(&path, "each pod has a claim with a volume of its own");
            problems.help("write a PersistentVolumeClaim document for the claim of each pod");
        }
    }
}

fn at_metadata(index: usize) -> Path {
    let at = Path::of("spec").key("volumeClaimTemplates").index(index);
    at.key("metadata")
}
