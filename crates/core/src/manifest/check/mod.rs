//! Validation of a pod on creation, for the supported parts of its spec.
//!
//! Every check records its problems and continues, so that an author sees all problems at once.
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
use crate::fields::container_path;
use crate::objects::{has_config, restarts_on_config};
use crate::rollout::{ROLLOUT, RolloutStrategy, Settings, beside_refused};
use crate::volumes::check_sub_paths;

pub(super) use claims::{check_claim, check_volume, unsupported_source};
pub use names::{is_label_value, is_qualified};
pub(super) use objects::{check_config_map, check_namespace, check_secret};
pub(super) use services::check_service;
pub(super) use workloads::check_workload;

use super::ParseContext;
use super::problems::At;

/// Largest `activeDeadlineSeconds`.
const DEADLINE_SECONDS_MAX: i64 = i32::MAX as i64;

/// Checks a defaulted pod before it becomes a static pod.
pub(super) fn check_pod(pod: &Pod, ctx: &ParseContext<'_>, root: &At<'_>) {
    meta::check_metadata(&pod.metadata, ctx, root);
    check_described(pod, root);
}

/// Checks a defaulted pod of a workload's template, which has no name.
pub(super) fn check_template(pod: &Pod, root: &At<'_>) {
    meta::check_shown(&pod.metadata, root);
    check_described(pod, root);
}

fn check_described(pod: &Pod, root: &At<'_>) {
    match &pod.spec {
        Some(spec) => {
            check_spec(spec, &root.key("spec"));
            resources::check_pod_resources(pod, spec, &root.key("spec"));
        }
        None => root.key("spec").required("a pod needs a spec"),
    }
    check_start_first(pod, root);
    warn_of_sub_paths(pod, root);
    if restarts_on_config(pod) && !has_config(pod) {
        let at = root.dotted("metadata.annotations").key(keys::RESTART_ON);
        at.warn("has no effect: the pod refers to no ConfigMap or Secret");
    }
}

/// Warns where no edit of the pod could be rolled out as it says.
fn check_start_first(pod: &Pod, root: &At<'_>) {
    let settings = Settings::of(pod);
    if settings.strategy == RolloutStrategy::StartFirst
        && let Some(cause) = beside_refused(pod, pod, &settings)
    {
        let at = root.dotted("metadata.annotations").key(ROLLOUT);
        at.warn(format!("edits of this pod will be held: {}", cause.message));
        at.help("use Recreate, or remove what two versions of the pod can't share");
    }
}

/// Warns about more sub-paths than a pod can start with. Not an error: a pod that a release without
/// that limit started keeps running.
fn warn_of_sub_paths(pod: &Pod, root: &At<'_>) {
    let Err(error) = check_sub_paths(pod) else {
        return;
    };
    if let Some(path) = container_path(pod, &error.container) {
        let at = root.join(&path).key("volumeMounts");
        at.warn(format!("the pod will not start: {error}"));
        at.help("mount a directory above them instead");
    }
}

fn check_spec(spec: &PodSpec, at: &At<'_>) {
    at.key("restartPolicy").one_of(
        spec.restart_policy.as_deref(),
        &["Always", "OnFailure", "Never"],
    );
    if spec.termination_grace_period_seconds.is_some_and(|s| s < 0) {
        at.key("terminationGracePeriodSeconds")
            .invalid("must not be negative");
    }
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=DEADLINE_SECONDS_MAX).contains(&seconds)
    {
        at.key("activeDeadlineSeconds")
            .invalid(format!("must be between 1 and {DEADLINE_SECONDS_MAX}"));
    }
    at.dotted("os.name").one_of(
        spec.os.as_ref().map(|os| os.name.as_str()),
        &["linux", "windows"],
    );
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        at.key("shareProcessNamespace")
            .invalid("can't be used together with hostPID");
    }
    for (index, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let path = at.key("imagePullSecrets").index(index).key("name");
        objects::check_reference(Some(&secret.name), &path);
    }
    network::check_network(spec, at);
    scheduling::check_tolerations(spec, at);
    if let Some(context) = &spec.security_context {
        security::check_pod_security(context, spec, &at.key("securityContext"));
    }
    let volumes = volumes::check_volumes(spec, &at.key("volumes"));
    containers::check_containers(spec, &volumes, at);
}

impl At<'_> {
    /// Reports a value that isn't one of those allowed. Quotes the allowed ones, but not the value.
    fn one_of(&self, value: Option<&str>, allowed: &[&str]) {
        if value.is_some_and(|value| !allowed.contains(&value)) {
            let listed: Vec<&str> = allowed.iter().copied().filter(|w| !w.is_empty()).collect();
            self.invalid(format!("must be one of: {}", listed.join(", ")));
        }
    }

    /// Reports a name that was seen before in `seen`.
    fn unique<'a>(&self, name: &'a str, what: &str, seen: &mut HashSet<&'a str>) {
        if !name.is_empty() && !seen.insert(name) {
            self.duplicate(format!("{what} of this name already exists"));
        }
    }
}

/// Notes a missing name, or one that isn't a DNS-1123 label.
fn check_label_name(name: &str, what: &str, at: &At<'_>) {
    if name.is_empty() {
        at.required(format!("{what} needs a name"));
    } else if !names::is_label(name) {
        at.invalid(format!("the name of {what} must be a DNS-1123 label"));
        at.help(names::LABEL_RULE);
    }
}
