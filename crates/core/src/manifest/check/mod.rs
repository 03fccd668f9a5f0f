//! Create-validation of a pod, for the parts of its spec that we run.
//!
//! Every check notes what it finds and goes on, so that an author sees all faults at once.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`ValidatePodCreate`).

mod claims;
mod containers;
mod env;
mod handlers;
mod jobs;
mod meta;
mod names;
mod network;
mod objects;
mod resources;
mod scheduling;
mod security;
mod services;
mod stateful;
mod values;
mod volumes;
mod workloads;

use std::collections::HashSet;

use crate::api::core::PodSpec;
use crate::api::{Pod, keys};
use crate::objects::{has_config, restarts_on_config};
use crate::rollout::{ROLLOUT, RolloutStrategy, Settings, beside_refused};

pub(super) use claims::{check_claim, check_volume, unsupported_source};
pub use names::{is_label_value, is_qualified};
pub(super) use objects::{check_config_map, check_namespace, check_secret};
pub(super) use services::check_service;
pub(super) use workloads::check_workload;

use super::ParseContext;
use super::problems::Problems;
use crate::path::Path;

/// Largest `activeDeadlineSeconds`.
const DEADLINE_SECONDS_MAX: i64 = i32::MAX as i64;

/// Checks a defaulted pod that isn't a static pod yet.
pub(super) fn check_pod(pod: &Pod, ctx: &ParseContext<'_>, problems: &mut Problems<'_>) {
    meta::check_metadata(&pod.metadata, ctx, problems);
    check_described(pod, problems);
}

/// Checks a defaulted pod of a workload's template, which has no name.
pub(super) fn check_template(pod: &Pod, problems: &mut Problems<'_>) {
    meta::check_shown(&pod.metadata, problems);
    check_described(pod, problems);
}

fn check_described(pod: &Pod, problems: &mut Problems<'_>) {
    match &pod.spec {
        Some(spec) => {
            check_spec(spec, problems);
            resources::check_pod_resources(pod, spec, &Path::of("spec"), problems);
        }
        None => problems.required(&Path::of("spec"), "a pod needs a spec"),
    }
    check_start_first(pod, problems);
    if restarts_on_config(pod) && !has_config(pod) {
        let at = Path::of("metadata")
            .key("annotations")
            .key(keys::RESTART_ON);
        problems.warn(
            &at,
            "has no effect: the pod refers to no ConfigMap or Secret",
        );
    }
}

/// Warns where no edit of the pod could be rolled out as it says.
fn check_start_first(pod: &Pod, problems: &mut Problems<'_>) {
    let settings = Settings::of(pod);
    if settings.strategy == RolloutStrategy::StartFirst
        && let Some(cause) = beside_refused(pod, pod, &settings)
    {
        let at = Path::of("metadata").key("annotations").key(ROLLOUT);
        problems.warn(
            &at,
            format!("edits of this pod will be held: {}", cause.message),
        );
        problems.help("use Recreate, or remove what two versions of the pod can't share");
    }
}

fn check_spec(spec: &PodSpec, problems: &mut Problems<'_>) {
    let at = Path::of("spec");
    one_of(
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
        &at.key("restartPolicy"),
        problems,
    );
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        problems.invalid(
            &at.key("terminationGracePeriodSeconds"),
            "must not be negative",
        );
    }
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=DEADLINE_SECONDS_MAX).contains(&seconds)
    {
        problems.invalid(
            &at.key("activeDeadlineSeconds"),
            format!("must be between 1 and {DEADLINE_SECONDS_MAX}"),
        );
    }
    one_of(
        spec.os.as_ref().map(|os| os.name.as_str()),
        &["linux", "windows"],
        &at.dotted("os.name"),
        problems,
    );
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        problems.invalid(
            &at.key("shareProcessNamespace"),
            "can't be used together with hostPID",
        );
    }
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let path = at.key("imagePullSecrets").index(index).key("name");
        objects::check_reference(Some(&secret.name), &path, problems);
    }
    network::check_network(spec, &at, problems);
    scheduling::check_tolerations(spec, &at, problems);
    if let Some(context) = &spec.security_context {
        security::check_pod_security(context, spec, &at.key("securityContext"), problems);
    }
    let volumes = volumes::check_volumes(spec, &at.key("volumes"), problems);
    containers::check_containers(spec, &volumes, &at, problems);
}

/// Notes a word that isn't one of those allowed. The words themselves are quoted, the value isn't.
fn one_of(value: Option<&str>, allowed: &[&str], path: &Path, problems: &mut Problems<'_>) {
    if value.is_some_and(|value| !allowed.contains(&value)) {
        let listed: Vec<&str> = allowed.iter().copied().filter(|w| !w.is_empty()).collect();
        problems.invalid(path, format!("must be one of: {}", listed.join(", ")));
    }
}

/// Notes a name that was seen before in `seen`.
fn unique<'a>(
    name: &'a str,
    what: &str,
    seen: &mut HashSet<&'a str>,
    path: &Path,
    problems: &mut Problems<'_>,
) {
    if !name.is_empty() && !seen.insert(name) {
        problems.duplicate(path, format!("{what} of this name already exists"));
    }
}

/// Notes a missing name, or one that isn't a DNS-1123 label.
fn check_label_name(name: &str, what: &str, path: &Path, problems: &mut Problems<'_>) {
    if name.is_empty() {
        problems.required(path, format!("{what} needs a name"));
    } else if !names::is_label(name) {
        problems.invalid(path, format!("the name of {what} must be a DNS-1123 label"));
        problems.help(names::LABEL_RULE);
    }
}
