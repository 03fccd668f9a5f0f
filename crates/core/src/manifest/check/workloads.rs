//! Validation of workloads: of all kinds, then Deployments and `DaemonSet`s.
//!
//! Upstream: `pkg/apis/apps/validation/validation.go` (`ValidateDeployment`, `ValidateDaemonSet`).

use k8s_openapi::api::apps::v1::{
    DaemonSetSpec, DaemonSetUpdateStrategy, DeploymentSpec, DeploymentStrategy,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use crate::api::meta::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use crate::api::requirement::{DOES_NOT_EXIST, EXISTS, IN, NOT_IN, meets};
use crate::api::{Pod, keys};
use crate::manifest::defaults::static_name;
use crate::manifest::problems::At;
use crate::manifest::{MANIFEST_BYTES_MAX, ParseContext};
use crate::objects::{has_config, restarts_on_config};
use crate::rollout::{ANNOTATION_PREFIX, ROLLOUT, RolloutStrategy};
use crate::spec::annotation;
use crate::workload::{
    RECREATE, REPLICAS_MAX, ROLLING_UPDATE, Workload, WorkloadKind, progress_deadline_seconds,
    scaled,
};

use super::{meta, names};

/// Most bytes of all pods of a workload together, as their author would have to write them.
const EXPANDED_BYTES_MAX: usize = 4 * MANIFEST_BYTES_MAX;

/// Upstream's default number of kept versions of a Deployment or `DaemonSet`, which exported documents
/// therefore contain.
const HISTORY_DEFAULT: i32 = 10;

/// Fields of a template's metadata that name the pod.
const NAMES: [&str; 4] = ["name", "generateName", "namespace", "uid"];

/// Checks a workload's document, but not its template. `pod` is the template with defaults,
/// `written` the document.
pub(in crate::manifest) fn check_workload(
    metadata: &ObjectMeta,
    workload: &Workload,
    pod: &Pod,
    written: &Value,
    ctx: &ParseContext<'_>,
    root: &At<'_>,
) {
    let kind = workload.kind();
    let at = root.key("spec");
    check_metadata(metadata, workload, ctx, root);
    if written.get("spec").is_none() {
        at.required(format!("a {kind} needs a spec"));
        return;
    }
    let template = root.dotted(kind.template_path());
    let written_template = kind.template_in(written);
    let has_template = written_template.is_some();
    if let Some(selector) = workload.selector() {
        check_selector(selector, kind, pod, has_template, &at);
    }
    if !has_template {
        let message = format!("a {kind} needs the template of its pods");
        template.required(message);
        return;
    }
    check_template_fields(workload, pod, written_template, &template);
    let name = metadata.name.as_deref().unwrap_or_default();
    match workload {
        Workload::Deployment(spec) => check_deployment(spec, pod, written, &at),
        Workload::StatefulSet(spec) => {
            super::stateful::check_stateful_set(spec, name, pod, written, &at);
        }
        Workload::DaemonSet(spec) => check_daemon_set(spec, &at),
        Workload::Job(spec) => {
            super::jobs::check_job(spec, name, pod, &at);
        }
        Workload::CronJob(specs) => {
            super::jobs::check_cron_job(&specs.0, name, &at);
            let (name, at) = (format!("{name}-00000000"), at.dotted("jobTemplate.spec"));
            super::jobs::check_job(&specs.1, &name, pod, &at);
        }
    }
    check_order(workload, pod, &at);
}

fn check_metadata(
    metadata: &ObjectMeta,
    workload: &Workload,
    ctx: &ParseContext<'_>,
    root: &At<'_>,
) {
    meta::check_object_metadata(metadata, root);
    let at = root.key("metadata");
    let name = metadata.name.as_deref().unwrap_or_default();
    if names::is_subdomain(name) {
        let last = workload.pod_name(name, workload.replicas().max(1) - 1);
        let full = static_name(&last, ctx.node_name, ctx.source);
        if !names::is_subdomain(&full) {
            let message = "pods of this name can't run on this node: the node's name is appended";
            at.key("name").invalid(message);
            at.help(format!(
                "with the node's name a pod's name has {} characters; {}",
                full.len(),
                names::SUBDOMAIN_RULE
            ));
        }
    }
    for key in metadata.annotations.iter().flat_map(|all| all.keys()) {
        if key.starts_with(ANNOTATION_PREFIX) {
            let message = format!("has no effect on a {}", workload.kind());
            at.key("annotations").key(key).warn(message);
            at.help("write it in spec.template.metadata.annotations");
        }
    }
}

fn check_selector(
    selector: &LabelSelector,
    kind: WorkloadKind,
    pod: &Pod,
    has_template: bool,
    at: &At<'_>,
) {
    let path = at.key("selector");
    let labels = selector.match_labels.iter().flatten();
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if labels.clone().next().is_none() && expressions.is_empty() {
        path.required(format!("a {kind} needs a selector of its pods"));
        path.help("copy the labels of spec.template.metadata to spec.selector.matchLabels");
        return;
    }
    let before = at.problems.len();
    meta::check_label_map(selector.match_labels.as_ref(), &path.key("matchLabels"));
    for (index, requirement) in expressions.iter().enumerate() {
        let path = path.key("matchExpressions").index(index);
        check_requirement(requirement, &path);
    }
    if has_template && at.problems.len() == before && !selects(selector, pod) {
        let path = at.dotted("template.metadata.labels");
        path.invalid("spec.selector does not match these labels");
        path.help("add the labels of the selector to the template");
    }
}

fn check_requirement(requirement: &LabelSelectorRequirement, at: &At<'_>) {
    let operators = [IN, NOT_IN, EXISTS, DOES_NOT_EXIST];
    let operator = requirement.operator.as_str();
    at.key("operator").one_of(Some(operator), &operators);
    if !names::is_qualified(&requirement.key) {
        at.key("key").invalid("this is not a valid label key");
    }
    let has_values = requirement.values.as_ref().is_some_and(|v| !v.is_empty());
    let wants_values = [IN, NOT_IN].contains(&operator);
    if operators.contains(&operator) && has_values != wants_values {
        let words = if wants_values {
            "needs"
        } else {
            "must not have"
        };
        let message = format!("the operator {operator} {words} values");
        at.key("values").invalid(message);
    }
}

/// Whether a selector selects the pods of a template.
fn selects(selector: &LabelSelector, pod: &Pod) -> bool {
    let label = |key: &String| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let mut equal = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| label(key) == Some(value))
        && expressions.all(|expression| {
            let values = expression.values.as_deref().unwrap_or_default();
            meets(&expression.operator, values, label(&expression.key))
        })
}

/// Refuses fields of the template that a pod may have, but a workload's pods may not.
fn check_template_fields(workload: &Workload, pod: &Pod, written: Option<&Value>, at: &At<'_>) {
    let kind = workload.kind();
    let metadata = written.and_then(|template| template.get("metadata"));
    for key in NAMES {
        if metadata.and_then(|metadata| metadata.get(key)).is_some() {
            let message = format!("has no effect: the pods are named after the {kind}");
            at.key("metadata").key(key).warn(message);
        }
    }
    let Some(spec) = &pod.spec else { return };
    if matches!(workload, Workload::Job(_) | Workload::CronJob(_)) {
        // Of a pod that refers to no object, this is said as of every pod.
        if restarts_on_config(pod) && has_config(pod) {
            let path = at.dotted("metadata.annotations").key(keys::RESTART_ON);
            path.warn(format!(
                "has no effect: pods of a {kind} are not restarted on edits"
            ));
        }
        return;
    }
    let at = at.key("spec");
    if spec.restart_policy.as_deref() != Some("Always") {
        let message = format!("must be Always in a {kind}");
        at.key("restartPolicy").invalid(message);
        at.help("remove it; for containers that run to completion, use a Job or a Pod");
    }
    if spec.active_deadline_seconds.is_some() {
        let message = format!("a {kind} can't have this field");
        at.key("activeDeadlineSeconds").invalid(message);
    }
}

fn check_deployment(spec: &DeploymentSpec, pod: &Pod, written: &Value, at: &At<'_>) {
    check_replicas(WorkloadKind::Deployment, spec.replicas, pod, written, at);
    check_strategy(spec.strategy.as_ref(), &at.key("strategy"));
    check_seconds(spec.min_ready_seconds, spec.revision_history_limit, at);
    let deadline = at.key("progressDeadlineSeconds");
    let seconds = progress_deadline_seconds(spec);
    not_negative(Some(seconds), &deadline);
    if seconds >= 0 && seconds <= spec.min_ready_seconds.unwrap_or(0) {
        deadline.invalid("must be greater than minReadySeconds");
    }
}

/// Checks the number of a workload's pods.
pub(super) fn check_replicas(
    kind: WorkloadKind,
    replicas: Option<i32>,
    pod: &Pod,
    written: &Value,
    at: &At<'_>,
) {
    let replicas = replicas.unwrap_or(1);
    not_negative(Some(replicas), &at.key("replicas"));
    let template = written.pointer("/spec/template").map(Value::to_string);
    let bytes = template.map_or(0, |template| template.len());
    let expanded = usize::try_from(replicas)
        .unwrap_or_default()
        .saturating_mul(bytes);
    if replicas > REPLICAS_MAX {
        let message = format!("one node runs at most {REPLICAS_MAX} pods of a {kind}");
        at.key("replicas").invalid(message);
    } else if expanded > EXPANDED_BYTES_MAX {
        let message = "too many pods for a template of this size";
        at.key("replicas").invalid(message);
    }
    if replicas > 1 {
        check_host_ports(kind, pod, at);
    }
}

/// Checks host ports: no two pods can have the same.
pub(super) fn check_host_ports(kind: WorkloadKind, pod: &Pod, at: &At<'_>) {
    let field = match kind {
        WorkloadKind::Deployment | WorkloadKind::StatefulSet | WorkloadKind::DaemonSet => {
            "replicas"
        }
        WorkloadKind::Job | WorkloadKind::CronJob => "parallelism",
    };
    let help = format!(
        "use the port in only one pod: set {field} to 1, or add a separate pod that forwards to the others by the name of a Service"
    );
    let at = at.dotted("template.spec");
    let Some(spec) = &pod.spec else { return };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("initContainers", init), ("containers", &spec.containers)] {
        for (index, container) in containers.iter().enumerate() {
            for (number, port) in container.ports.iter().flatten().enumerate() {
                if port.host_port.unwrap_or(0) == 0 {
                    continue;
                }
                let path = at.key(list).index(index).key("ports").index(number);
                let message = if spec.host_network == Some(true) {
                    format!(
                        "with hostNetwork this is a port of the host, which only one pod of the {kind} can use"
                    )
                } else {
                    format!("only one pod of the {kind} can use this host port")
                };
                path.key("hostPort").invalid(message);
                path.help(help.as_str());
            }
        }
    }
}

fn check_strategy(strategy: Option<&DeploymentStrategy>, at: &At<'_>) {
    let Some(strategy) = strategy else { return };
    let kind = strategy.type_.as_deref();
    let kinds = ["", RECREATE, ROLLING_UPDATE];
    at.key("type").one_of(kind, &kinds);
    let Some(update) = &strategy.rolling_update else {
        return;
    };
    let path = at.key("rollingUpdate");
    if kind == Some(RECREATE) {
        path.invalid("must not be set when the type is Recreate");
        return;
    }
    let (surge, unavailable) = (&update.max_surge, &update.max_unavailable);
    let surge_path = path.key("maxSurge");
    let unavailable_path = path.key("maxUnavailable");
    check_scaled(surge.as_ref(), &surge_path);
    check_scaled(unavailable.as_ref(), &unavailable_path);
    if unavailable.as_ref().and_then(|value| scaled(value, 100)) > Some(100)
        && matches!(unavailable, Some(IntOrString::String(_)))
    {
        unavailable_path.invalid("must not be greater than 100%");
    }
    let is_zero = |value: &Option<IntOrString>| {
        let value = value.as_ref().and_then(|value| scaled(value, 100));
        value == Some(0)
    };
    if is_zero(surge) && is_zero(unavailable) {
        unavailable_path.invalid("must not be 0 when maxSurge is 0");
    }
}

fn check_daemon_set(spec: &DaemonSetSpec, at: &At<'_>) {
    check_seconds(spec.min_ready_seconds, spec.revision_history_limit, at);
    if let Some(strategy) = &spec.update_strategy {
        check_update_strategy(strategy, &at.key("updateStrategy"));
    }
}

fn check_update_strategy(strategy: &DaemonSetUpdateStrategy, at: &At<'_>) {
    let path = at.key("type");
    if strategy.type_.as_deref() == Some("OnDelete") {
        let message = "an edit always replaces the pod: OnDelete is not supported";
        path.unsupported(message);
        path.help("use RollingUpdate; to hold edits back, use: mirrorlet rollout pause POD");
        return;
    }
    let kinds = ["", ROLLING_UPDATE];
    path.one_of(strategy.type_.as_deref(), &kinds);
    let Some(update) = &strategy.rolling_update else {
        return;
    };
    let (surge, unavailable) = (&update.max_surge, &update.max_unavailable);
    let path = at.key("rollingUpdate");
    check_scaled(surge.as_ref(), &path.key("maxSurge"));
    let unavailable_path = path.key("maxUnavailable");
    check_scaled(unavailable.as_ref(), &unavailable_path);
    let of = |value: &Option<IntOrString>, default| {
        let value = value.as_ref();
        value.map_or(Some(default), |value| scaled(value, 100))
    };
    match (of(surge, 0), of(unavailable, 1)) {
        (Some(0), Some(0)) => {
            unavailable_path.invalid("must not be 0 when maxSurge is 0");
        }
        (Some(1..), Some(1..)) => {
            let message = "must be 0 unless maxUnavailable is 0";
            path.key("maxSurge").invalid(message);
            path.help("set maxUnavailable: 0 to start the new pod before the old one is stopped");
        }
        _ => {}
    }
}

/// Checks fields that Deployments, `StatefulSet`s and `DaemonSet`s have.
pub(super) fn check_seconds(min_ready: Option<i32>, history: Option<i32>, at: &At<'_>) {
    not_negative(min_ready, &at.key("minReadySeconds"));
    let path = at.key("revisionHistoryLimit");
    not_negative(history, &path);
    if history.is_some_and(|limit| limit >= 0 && limit != HISTORY_DEFAULT) {
        path.warn("has no effect: the last 10 revisions of each pod are kept");
    }
}

pub(super) fn not_negative(value: Option<i32>, at: &At<'_>) {
    if value.is_some_and(|value| value < 0) {
        at.invalid("must not be negative");
    }
}

/// Checks a number of pods or a percentage.
pub(super) fn check_scaled(value: Option<&IntOrString>, at: &At<'_>) {
    match value {
        Some(IntOrString::Int(number)) => not_negative(Some(*number), at),
        Some(value @ IntOrString::String(_)) if scaled(value, 100).is_none() => {
            at.invalid("must be a number of pods, or a percentage like \"25%\"");
        }
        Some(IntOrString::String(_)) | None => {}
    }
}

/// Warns where the pods can't be replaced as the document says.
fn check_order(workload: &Workload, pod: &Pod, at: &At<'_>) {
    // The pod's own annotation wins, and is checked as a pod's.
    if annotation(&pod.metadata, ROLLOUT).is_some() {
        return;
    }
    let order = workload.order(pod);
    let Some(cause) = order.refused else { return };
    let (path, stop_first) = match workload {
        Workload::Deployment(_) => (at.key("strategy"), "strategy: {type: Recreate}"),
        Workload::DaemonSet(_) => (at.key("updateStrategy"), "maxSurge: 0"),
        // Its pods never run beside one another.
        Workload::StatefulSet(_) | Workload::Job(_) | Workload::CronJob(_) => return,
    };
    let consequence = match order.strategy {
        RolloutStrategy::StartFirst => "edits will be held",
        RolloutStrategy::Recreate => "each pod is stopped before its new version starts",
    };
    path.warn(format!("{consequence}: {}", cause.message));
    path.help(format!(
        "write {stop_first}, or remove what two versions of a pod can't share"
    ));
}
