//! The rules in a Job's document, without the template of its pods.

use k8s_openapi::api::batch::v1::{
    JobSpec, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule,
};
use serde::{Deserialize, Serialize};

use super::IndexSet;

/// Default number of retries of failed pods, as upstream.
pub const BACKOFF_LIMIT_DEFAULT: u32 = 6;

/// The completion mode in which each pod has its own index.
pub const INDEXED: &str = "Indexed";
/// The completion mode in which pods have no index.
pub const NON_INDEXED: &str = "NonIndexed";

/// The rules for a Job's pods together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rules {
    /// The number of pods that have to succeed; none if the first success completes the Job.
    pub completions: Option<u32>,
    /// Most pods at a time.
    pub parallelism: u32,
    /// Whether each pod has an index.
    pub indexed: bool,
    /// The number of failed pods that are retried before the Job fails.
    pub backoff_limit: u32,
    /// The same of each index by itself.
    pub backoff_limit_per_index: Option<u32>,
    /// The number of indexes that may fail before the Job fails immediately.
    pub max_failed_indexes: Option<u32>,
    /// The consequences of failed pods, in order.
    pub failure_rules: Vec<FailureRule>,
    /// The rules by which the Job succeeds before all its pods have, in order.
    pub success_rules: Vec<SuccessRule>,
    /// Seconds that the Job may take.
    pub active_deadline: Option<u64>,
    /// Seconds for which its pods stay after its end.
    pub ttl: Option<u64>,
    /// Whether none of its pods may run.
    pub suspend: bool,
    /// Whether failed containers run again in their pod.
    pub restarts: bool,
}

/// A rule about failed pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureRule {
    /// The consequence.
    pub action: FailureAction,
    /// The pods that it is about.
    pub when: FailureWhen,
}

/// The consequence of a failed pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureAction {
    /// The Job has failed.
    FailJob,
    /// The pod's index has failed.
    FailIndex,
    /// The failure is ignored: it doesn't count.
    Ignore,
    /// The pod counts.
    Count,
}

impl FailureAction {
    /// Every action, by its name in documents.
    pub const ALL: [(&str, Self); 4] = [
        ("FailJob", Self::FailJob),
        ("FailIndex", Self::FailIndex),
        ("Ignore", Self::Ignore),
        ("Count", Self::Count),
    ];

    fn of(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        let known = all.find(|(known, _)| *known == name);
        known.map_or(Self::Count, |(_, action)| action)
    }
}

/// The failed pods that a rule is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureWhen {
    /// A container ended with one of these codes.
    ExitCode {
        /// The container; any, if it names none.
        container: Option<String>,
        /// The codes.
        values: Vec<i32>,
        /// Whether the codes are all others, but for 0.
        others: bool,
    },
    /// The pod has one of these conditions, with this status.
    Conditions(Vec<(String, String)>),
}

/// A rule by which a Job succeeds before all its pods have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuccessRule {
    /// The indexes that count; all, if it names none.
    pub indexes: Option<IndexSet>,
    /// The number of them that have to succeed; all of them if none.
    pub count: Option<u32>,
}

impl SuccessRule {
    /// Whether it is met by the indexes that have succeeded.
    pub fn is_met(&self, succeeded: &IndexSet) -> bool {
        let count = match &self.indexes {
            None => succeeded.len(),
            Some(indexes) => indexes.shared(succeeded),
        };
        match (self.count, &self.indexes) {
            (Some(wanted), _) => count >= wanted,
            (None, Some(indexes)) => count >= indexes.len(),
            (None, None) => false,
        }
    }
}

impl Rules {
    /// Those of a checked document, with upstream's defaults.
    pub fn of(spec: &JobSpec) -> Self {
        let number = |value: Option<i32>| value.and_then(|value| u32::try_from(value).ok());
        let seconds = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok());
        let is_plain = spec.completions.is_none() && spec.parallelism.is_none();
        let policy = spec.pod_failure_policy.as_ref();
        let success = spec.success_policy.as_ref();
        let backoff_limit_per_index = number(spec.backoff_limit_per_index);
        let template = spec.template.spec.as_ref();
        let restart_policy = template.and_then(|spec| spec.restart_policy.as_deref());
        Self {
            completions: number(spec.completions).or(is_plain.then_some(1)),
            parallelism: number(spec.parallelism).unwrap_or(1),
            indexed: spec.completion_mode.as_deref() == Some(INDEXED),
            backoff_limit: number(spec.backoff_limit).unwrap_or(match backoff_limit_per_index {
                // Each index has its own limit.
                Some(_) => i32::MAX.unsigned_abs(),
                None => BACKOFF_LIMIT_DEFAULT,
            }),
            backoff_limit_per_index,
            max_failed_indexes: number(spec.max_failed_indexes),
            failure_rules: policy
                .map(|policy| policy.rules.iter().map(failure_rule).collect())
                .unwrap_or_default(),
            success_rules: success
                .map(|policy| {
                    let rules = policy.rules.iter().map(|rule| SuccessRule {
                        indexes: rule.succeeded_indexes.as_ref().and_then(|t| t.parse().ok()),
                        count: number(rule.succeeded_count),
                    });
                    rules.collect()
                })
                .unwrap_or_default(),
            active_deadline: seconds(spec.active_deadline_seconds),
            ttl: seconds(spec.ttl_seconds_after_finished.map(i64::from)),
            suspend: spec.suspend == Some(true),
            restarts: restart_policy == Some("OnFailure"),
        }
    }
}

fn failure_rule(rule: &PodFailurePolicyRule) -> FailureRule {
    let when = match (&rule.on_exit_codes, &rule.on_pod_conditions) {
        (Some(codes), _) => exit_codes(codes),
        (None, conditions) => {
            let conditions = conditions.iter().flatten().map(|condition| {
                let status = condition.status.as_deref().unwrap_or("True");
                (condition.type_.clone(), status.to_owned())
            });
            FailureWhen::Conditions(conditions.collect())
        }
    };
    FailureRule {
        action: FailureAction::of(&rule.action),
        when,
    }
}

fn exit_codes(codes: &PodFailurePolicyOnExitCodesRequirement) -> FailureWhen {
    FailureWhen::ExitCode {
        container: codes.container_name.clone(),
        values: codes.values.clone(),
        others: codes.operator == "NotIn",
    }
}
