//! Create-validation of Jobs and CronJobs.
//!
//! Upstream: `pkg/apis/batch/validation/validation.go` (`ValidateJobSpec`, `ValidateCronJobSpec`).

use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJobSpec, JobSpec, PodFailurePolicyRule, SuccessPolicyRule};

use crate::api::{Code, Pod, Severity};
use crate::cron::{Concurrency, Schedule, time_zone};
use crate::job::{FailureAction, INDEXED, IndexSet, NON_INDEXED};
use crate::manifest::problems::At;
use crate::spec;
use crate::workload::{REPLICAS_MAX, WorkloadKind};

use super::names;
use super::workloads::{check_host_ports, not_negative};

/// Most indexes of a Job that may fail, as upstream.
const FAILED_INDEXES_MAX: i32 = 100_000;
/// The same of a Job with more completions than [`COMPLETIONS_MANY`], as upstream.
const FAILED_INDEXES_OF_MANY_MAX: i32 = 10_000;
/// Completions above which a Job with a limit for each index needs a limit of failed indexes, as upstream.
/// Upstream limits its parallelism, too, to more than a node runs.
const COMPLETIONS_MANY: i32 = 100_000;
/// Most rules of a policy, as upstream.
const RULES_MAX: usize = 20;
/// Most values of a rule, as upstream.
const VALUES_MAX: usize = 255;
/// Most conditions of a rule, as upstream.
const PATTERNS_MAX: usize = 20;
/// Longest name of a host.
const HOSTNAME_MAX: usize = 63;
/// Longest name of a CronJob, as upstream: its Jobs' names are 11 characters longer.
const CRON_NAME_MAX: usize = 52;
/// The controller of Jobs that is meant where a document names none.
const CONTROLLER: &str = "kubernetes.io/job-controller";

/// Checks the fields of a Job besides its template. `pod` is the template with defaults, `at` the path
/// to the spec.
pub(super) fn check_job(spec: &JobSpec, name: &str, pod: &Pod, at: &At<'_>) {
    check_numbers(spec, at);
    check_completions(spec, name, at);
    check_limits_per_index(spec, at);
    check_restart_policy(spec, pod, at);
    if let Some(policy) = &spec.pod_failure_policy {
        let path = at.dotted("podFailurePolicy.rules");
        check_count(policy.rules.len(), RULES_MAX, &path);
        for (index, rule) in policy.rules.iter().enumerate() {
            check_failure_rule(rule, spec, pod, &path.index(index));
        }
    }
    if let Some(policy) = &spec.success_policy {
        check_success_rules(&policy.rules, spec, at);
    }
    check_unsupported(spec, at);
    let at_once = spec.parallelism.unwrap_or(1);
    if at_once.min(spec.completions.unwrap_or(at_once)) > 1 {
        check_host_ports(WorkloadKind::Job, pod, at);
    }
}

/// Checks the fields of a CronJob besides its Job template.
pub(super) fn check_cron_job(spec: &CronJobSpec, name: &str, at: &At<'_>) {
    if name.len() > CRON_NAME_MAX {
        let message = format!("must not be longer than {CRON_NAME_MAX} characters");
        at.problems.root().dotted("metadata.name").invalid(message);
    }
    let zone = match spec.time_zone.as_deref() {
        None => Some(TimeZone::UTC),
        Some(name) => {
            let zone = time_zone(name);
            if zone.is_none() {
                let path = at.key("timeZone");
                path.invalid("unknown time zone");
                path.help("use a name of the IANA time zone database, for example Europe/Berlin");
            }
            zone
        }
    };
    let path = at.key("schedule");
    if spec.schedule.is_empty() {
        path.required("a CronJob needs a schedule");
    } else if let Err(why) = Schedule::parse(&spec.schedule, zone.unwrap_or(TimeZone::UTC)) {
        path.invalid(why.to_string());
        path.help("for example \"30 2 * * 1-5\": at 02:30 from Monday to Friday");
    }
    let policies = Concurrency::ALL.map(|(name, _)| name);
    let policy = spec.concurrency_policy.as_deref();
    at.key("concurrencyPolicy").one_of(policy, &policies);
    let deadline = spec.starting_deadline_seconds;
    if deadline.is_some_and(|seconds| seconds < 0) {
        at.key("startingDeadlineSeconds")
            .invalid("must not be negative");
    }
    for (field, value) in [
        (
            "successfulJobsHistoryLimit",
            spec.successful_jobs_history_limit,
        ),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit),
    ] {
        not_negative(value, &at.key(field));
    }
}

fn check_numbers(spec: &JobSpec, at: &At<'_>) {
    for (field, value) in [
        ("completions", spec.completions),
        ("parallelism", spec.parallelism),
        ("backoffLimit", spec.backoff_limit),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index),
        ("maxFailedIndexes", spec.max_failed_indexes),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished),
    ] {
        not_negative(value, &at.key(field));
    }
    let deadline = spec.active_deadline_seconds;
    if deadline.is_some_and(|seconds| seconds < 0) {
        let path = at.key("activeDeadlineSeconds");
        path.invalid("must not be negative");
    }
    if spec.parallelism.is_some_and(|pods| pods > REPLICAS_MAX) {
        let message = format!("one node runs at most {REPLICAS_MAX} pods of a Job at a time");
        at.key("parallelism").invalid(message);
    }
}

fn check_completions(spec: &JobSpec, name: &str, at: &At<'_>) {
    let mode = spec.completion_mode.as_deref();
    let path = at.key("completionMode");
    path.one_of(mode, &[INDEXED, NON_INDEXED]);
    if mode != Some(INDEXED) {
        return;
    }
    let Some(completions) = spec.completions else {
        let message = "a Job with completionMode Indexed needs the number of its completions";
        at.key("completions").required(message);
        return;
    };
    let host = format!("{name}-{}", completions.max(1) - 1);
    if host.len() > HOSTNAME_MAX || !names::is_label(&host) {
        let path = at.problems.root().dotted("metadata.name");
        let message = "pods of a Job with completionMode Indexed have the Job's name and their index as host name, which would not be valid here";
        path.invalid(message);
        path.help("use at most 63 lower-case letters, digits and -, the index included");
    }
}

fn check_limits_per_index(spec: &JobSpec, at: &At<'_>) {
    let is_indexed = spec.completion_mode.as_deref() == Some(INDEXED);
    if spec.backoff_limit_per_index.is_some() && !is_indexed {
        let path = at.key("backoffLimitPerIndex");
        path.invalid("needs completionMode Indexed");
    }
    let is_many = is_indexed && spec.completions.is_some_and(|n| n > COMPLETIONS_MANY);
    let is_many = is_many && spec.backoff_limit_per_index.is_some();
    let path = at.key("maxFailedIndexes");
    let Some(most) = spec.max_failed_indexes else {
        if is_many {
            path.required(format!(
                "is required together with backoffLimitPerIndex and more than {COMPLETIONS_MANY} completions"
            ));
        }
        return;
    };
    let limit = if is_many {
        FAILED_INDEXES_OF_MANY_MAX
    } else {
        FAILED_INDEXES_MAX
    };
    if most > limit {
        path.invalid(format!("must not be greater than {limit}"));
    }
    if spec.backoff_limit_per_index.is_none() {
        path.invalid("needs backoffLimitPerIndex");
    }
    if spec
        .completions
        .is_some_and(|completions| most > completions)
    {
        path.invalid("must not be greater than completions");
    }
}

fn check_restart_policy(spec: &JobSpec, pod: &Pod, at: &At<'_>) {
    let Some(pod_spec) = &pod.spec else { return };
    let path = at.dotted("template.spec.restartPolicy");
    let policy = pod_spec.restart_policy.as_deref();
    if !matches!(policy, Some("Never" | "OnFailure")) {
        path.required("must be Never or OnFailure in a Job");
        return;
    }
    for (field, is_set) in [
        ("podFailurePolicy", spec.pod_failure_policy.is_some()),
        (
            "backoffLimitPerIndex",
            spec.backoff_limit_per_index.is_some(),
        ),
    ] {
        if is_set && policy != Some("Never") {
            path.invalid(format!("must be Never with {field}"));
        }
    }
}

fn check_count(count: usize, most: usize, at: &At<'_>) {
    if count == 0 {
        at.required("must not be empty");
    } else if count > most {
        at.invalid(format!("must not have more than {most} items"));
    }
}

fn check_failure_rule(rule: &PodFailurePolicyRule, spec: &JobSpec, pod: &Pod, at: &At<'_>) {
    let actions = FailureAction::ALL.map(|(name, _)| name);
    let path = at.key("action");
    path.one_of(Some(&rule.action), &actions);
    if rule.action == "FailIndex" && spec.backoff_limit_per_index.is_none() {
        path.invalid("needs backoffLimitPerIndex");
    }
    let conditions = rule.on_pod_conditions.as_deref().unwrap_or_default();
    match &rule.on_exit_codes {
        None if conditions.is_empty() => {
            at.required("a rule needs onExitCodes or onPodConditions");
        }
        Some(_) if !conditions.is_empty() => {
            at.invalid("must not have both onExitCodes and onPodConditions");
        }
        Some(codes) => {
            let at = at.key("onExitCodes");
            at.key("operator")
                .one_of(Some(&codes.operator), &["In", "NotIn"]);
            check_values(&codes.values, &codes.operator, &at.key("values"));
            let mut containers = spec::containers(pod);
            if let Some(name) = &codes.container_name
                && !containers.any(|(_, container)| container.name == *name)
            {
                let path = at.key("containerName");
                path.invalid("the template has no container of this name");
            }
        }
        None => {
            let at = at.key("onPodConditions");
            check_count(conditions.len(), PATTERNS_MAX, &at);
            for (index, condition) in conditions.iter().enumerate() {
                let at = at.index(index);
                if !names::is_qualified(&condition.type_) {
                    at.key("type")
                        .invalid("this is not the type of a condition");
                }
                let status = condition.status.as_deref().or(Some("True"));
                let statuses = ["True", "False", "Unknown"];
                at.key("status").one_of(status, &statuses);
            }
        }
    }
}

fn check_values(values: &[i32], operator: &str, at: &At<'_>) {
    check_count(values.len(), VALUES_MAX, at);
    if operator == "In" && values.contains(&0) {
        at.invalid("must not contain 0 with the operator In: exit code 0 is not a failure");
    }
    if values.windows(2).any(|pair| pair[0] >= pair[1]) {
        at.invalid("must be in ascending order, without duplicates");
    }
}

fn check_success_rules(rules: &[SuccessPolicyRule], spec: &JobSpec, at: &At<'_>) {
    let path = at.key("successPolicy");
    if spec.completion_mode.as_deref() != Some(INDEXED) {
        path.invalid("needs completionMode Indexed");
    }
    let path = path.key("rules");
    check_count(rules.len(), RULES_MAX, &path);
    let completions = spec.completions.unwrap_or(0).unsigned_abs();
    for (number, rule) in rules.iter().enumerate() {
        let at = path.index(number);
        if rule.succeeded_count.is_none() && rule.succeeded_indexes.is_none() {
            at.required("a rule needs succeededCount or succeededIndexes");
        }
        let mut most = completions;
        if let Some(text) = &rule.succeeded_indexes {
            let path = at.key("succeededIndexes");
            match text.parse::<IndexSet>() {
                Ok(indexes) if indexes.greatest().is_some_and(|index| index >= completions) => {
                    path.invalid("must contain only indexes less than completions");
                }
                Ok(indexes) => most = indexes.len(),
                Err(_) => {
                    path.invalid("must be indexes in ascending order, like 0,2-4");
                }
            }
        }
        if let Some(count) = rule.succeeded_count
            && (count < 1 || count.unsigned_abs() > most)
        {
            let message = format!("must be between 1 and {most}");
            at.key("succeededCount").invalid(message);
        }
    }
}

/// Refuses what can't be honoured, and names what has no effect.
fn check_unsupported(spec: &JobSpec, at: &At<'_>) {
    let refuse = |field: &str, message: &str| {
        let code = Code::UnsupportedField;
        at.key(field).report_key(Severity::Error, code, message);
    };
    if spec
        .managed_by
        .as_deref()
        .is_some_and(|name| name != CONTROLLER)
    {
        refuse("managedBy", "other Job controllers are not supported");
    }
    if spec.scheduling.is_some() {
        refuse("scheduling", "pods of a Job can't be scheduled as a group");
    }
    let replacement = spec.pod_replacement_policy.as_deref();
    let path = at.key("podReplacementPolicy");
    let policies = ["TerminatingOrFailed", "Failed"];
    path.one_of(replacement, &policies);
    if replacement == Some("TerminatingOrFailed") {
        let message = if spec.pod_failure_policy.is_some() {
            return path.invalid("must be Failed with podFailurePolicy");
        } else {
            "has no effect: a pod is always replaced after all its containers have stopped"
        };
        path.warn(message);
    }
    if spec.selector.is_some() || spec.manual_selector == Some(true) {
        let message = "has no effect: a Job selects exactly the pods that it creates";
        let field = if spec.selector.is_some() {
            "selector"
        } else {
            "manualSelector"
        };
        at.key(field).warn(message);
    }
}
