//! Workloads of manifests: documents that describe pods by a template, and the resulting pods.
//!
//! A workload is expanded where it is read: its pods are static pods from then on, each with its own
//! UID, rollout and mirror. The pods of a document depend on the document alone (`Deployment`,
//! `StatefulSet`, `DaemonSet`); nothing of such a workload is stored except its document. The order in
//! which the pods of a `StatefulSet` start and stop is decided where they run ([`crate::stateful`]).
//! The pods of a `Job` depend on the outcome of others ([`crate::job`]): it is expanded to one pod that
//! represents all of them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    DaemonSetSpec, DaemonSetUpdateStrategy, DeploymentSpec, DeploymentStrategy, StatefulSetSpec,
};
use k8s_openapi::api::batch::v1::{CronJobSpec, JobSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::Pod;
use crate::api::core::PodTemplateSpec;
use crate::api::meta::LabelSelector;
use crate::rollout::{
    Cause, MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, ROLLOUT, RolloutStrategy, Settings,
    UpdatePolicy, Updates, beside_refused,
};
use crate::small::SmallCollect;

mod key;
mod stateful;

pub use key::{WorkloadKey, WorkloadKind};
pub(crate) use stateful::{
    DELETE, ON_DELETE, ORDERED_READY, PARALLEL, RETAIN, claim_name, first_ordinal, given,
    stateful_set, take_identity,
};

/// Maximum number of pods of one workload: ten times as many as a kubelet runs on a node.
pub const REPLICAS_MAX: i32 = 1100;

/// `progressDeadlineSeconds` of a Deployment that says none, as upstream's default.
const PROGRESS_DEADLINE_DEFAULT: i32 = 600;

/// Seconds that a pod of a `DaemonSet` or `StatefulSet` may take until it is ready.
const DEADLINE_SECONDS: i32 = 300;

/// `maxSurge` and `maxUnavailable` of a Deployment that says none, as upstream's default.
const ROLLING_DEFAULT: &str = "25%";

/// Value of an update strategy that replaces the pods gradually.
pub(crate) const ROLLING_UPDATE: &str = "RollingUpdate";
/// Value of an update strategy that stops the old pods first.
pub(crate) const RECREATE: &str = "Recreate";

/// The pods that a workload wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Expansion {
    /// Their names, without the node's suffix.
    pub names: Vec<String>,
    /// The rollout annotations that correspond to the document's own fields. An annotation of the
    /// template takes precedence.
    pub annotations: BTreeMap<&'static str, String>,
    /// How the pods are updated together; none if each is updated by itself.
    pub updates: Option<Updates>,
}

/// A workload, as its document describes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Workload {
    /// A number of equal pods.
    Deployment(DeploymentSpec),
    /// Pods in a row.
    StatefulSet(Box<StatefulSetSpec>),
    /// One pod.
    DaemonSet(DaemonSetSpec),
    /// Pods that end.
    Job(Box<JobSpec>),
    /// Repeated Jobs, with the Job's own part.
    CronJob(Box<(CronJobSpec, JobSpec)>),
}

impl Workload {
    /// Its kind.
    pub fn kind(&self) -> WorkloadKind {
        match self {
            Self::Deployment(_) => WorkloadKind::Deployment,
            Self::StatefulSet(_) => WorkloadKind::StatefulSet,
            Self::DaemonSet(_) => WorkloadKind::DaemonSet,
            Self::Job(_) => WorkloadKind::Job,
            Self::CronJob(_) => WorkloadKind::CronJob,
        }
    }

    /// The template of its pods.
    pub fn template(&self) -> &PodTemplateSpec {
        match self {
            Self::Deployment(spec) => &spec.template,
            Self::StatefulSet(spec) => &spec.template,
            Self::DaemonSet(spec) => &spec.template,
            Self::Job(spec) => &spec.template,
            Self::CronJob(specs) => &specs.1.template,
        }
    }

    /// The selector of its pods, which must match those of its template; none if it selects exactly the
    /// pods that it creates.
    pub fn selector(&self) -> Option<&LabelSelector> {
        match self {
            Self::Deployment(spec) => Some(&spec.selector),
            Self::StatefulSet(spec) => Some(&spec.selector),
            Self::DaemonSet(spec) => Some(&spec.selector),
            Self::Job(_) | Self::CronJob(_) => None,
        }
    }

    /// The number of pods that it describes: for a Job, all that have to succeed.
    pub fn replicas(&self) -> i32 {
        match self {
            Self::Deployment(spec) => spec.replicas.unwrap_or(1),
            Self::StatefulSet(spec) => spec.replicas.unwrap_or(1),
            Self::DaemonSet(_) => 1,
            Self::Job(spec) => job_pods(spec),
            Self::CronJob(specs) => job_pods(&specs.1),
        }
    }

    /// Name of its pod with a number, from 0, without the node's suffix. It never depends on the number
    /// of pods: scaling affects no other pod.
    pub fn pod_name(&self, name: &str, number: i32) -> String {
        match self {
            Self::Deployment(_) | Self::Job(_) => format!("{name}-{number}"),
            Self::StatefulSet(spec) => {
                format!("{name}-{}", first_ordinal(spec).saturating_add(number))
            }
            Self::DaemonSet(_) => name.to_owned(),
            // Of the run of number 0.
            Self::CronJob(_) => format!("{name}-0-{number}"),
        }
    }

    /// Returns the pods of a checked workload with that name. `pod` is its template with defaults.
    pub fn expand(&self, name: &str, pod: &Pod) -> Expansion {
        let (min_ready, deadline) = match self {
            Self::Job(_) | Self::CronJob(_) => {
                return Expansion {
                    names: vec![self.pod_name(name, 0)],
                    ..Expansion::default()
                };
            }
            Self::Deployment(spec) => (
                spec.min_ready_seconds,
                Some(progress_deadline_seconds(spec)),
            ),
            Self::StatefulSet(spec) => ready_within(spec.min_ready_seconds),
            Self::DaemonSet(spec) => ready_within(spec.min_ready_seconds),
        };
        let numbers = 0..self.replicas();
        Expansion {
            names: numbers.map(|number| self.pod_name(name, number)).collect(),
            annotations: annotations(self.order(pod).strategy, min_ready, deadline),
            updates: self.updates(),
        }
    }

    /// How its pods are updated together; none where each is updated by itself.
    fn updates(&self) -> Option<Updates> {
        let spec = match self {
            Self::Deployment(spec) => spec,
            Self::StatefulSet(spec) => return Some(stateful::updates(spec)),
            Self::DaemonSet(_) | Self::Job(_) | Self::CronJob(_) => return None,
        };
        let strategy = spec.strategy.as_ref();
        let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let default = || IntOrString::String(ROLLING_DEFAULT.to_owned());
        let or_default = |value: Option<&IntOrString>| value.cloned().unwrap_or_else(default);
        let policy = if strategy.and_then(|s| s.type_.as_deref()) == Some(RECREATE) {
            UpdatePolicy::Recreate
        } else {
            UpdatePolicy::RollingUpdate {
                max_surge: or_default(update.and_then(|update| update.max_surge.as_ref())),
                max_unavailable: or_default(
                    update.and_then(|update| update.max_unavailable.as_ref()),
                ),
            }
        };
        Some(Updates {
            paused: spec.paused == Some(true),
            policy,
        })
    }

    /// The order in which versions of its pods replace each other.
    pub fn order(&self, pod: &Pod) -> Order {
        match self {
            Self::Deployment(spec) => deployment_order(spec, pod),
            Self::DaemonSet(spec) => daemon_set_order(spec.update_strategy.as_ref(), pod),
            // No two pods of a StatefulSet ever have the same name.
            Self::StatefulSet(_) | Self::Job(_) | Self::CronJob(_) => Order {
                strategy: RolloutStrategy::Recreate,
                refused: None,
            },
        }
    }
}

/// `minReadySeconds`, and the seconds within which a pod must have been ready for that long.
fn ready_within(min_ready: Option<i32>) -> (Option<i32>, Option<i32>) {
    let in_addition = |seconds: i32| seconds.saturating_add(DEADLINE_SECONDS);
    (min_ready, min_ready.map(in_addition))
}

/// The number of a Job's pods that have to succeed.
fn job_pods(spec: &JobSpec) -> i32 {
    spec.completions.or(spec.parallelism).unwrap_or(1)
}

/// Seconds within which an update of a Deployment's pod must become healthy.
pub(crate) fn progress_deadline_seconds(spec: &DeploymentSpec) -> i32 {
    spec.progress_deadline_seconds
        .unwrap_or(PROGRESS_DEADLINE_DEFAULT)
}

/// The order in which versions of a workload's pods replace each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The order.
    pub strategy: RolloutStrategy,
    /// Why two versions of a pod can't run at the same time, if the document requires that.
    pub refused: Option<Cause>,
}

/// A rolling update keeps every pod available: each new version starts first, unless `maxSurge` is 0.
/// If two versions of a pod can't run at the same time, the old one is stopped first instead, unless
/// the document forbids unavailable pods.
fn deployment_order(spec: &DeploymentSpec, pod: &Pod) -> Order {
    let strategy = spec.strategy.as_ref();
    let is_recreate = strategy.and_then(|s| s.type_.as_deref()) == Some(RECREATE);
    if is_recreate || surges_not(strategy) {
        return Order {
            strategy: RolloutStrategy::Recreate,
            refused: None,
        };
    }
    let refused = beside_refused(pod, pod, &Settings::of(pod));
    let may_stop =
        refused.is_some() && max_unavailable(strategy, spec.replicas.unwrap_or(1)) != Some(0);
    Order {
        strategy: if may_stop {
            RolloutStrategy::Recreate
        } else {
            RolloutStrategy::StartFirst
        },
        refused,
    }
}

/// Whether the document forbids starting additional pods.
fn surges_not(strategy: Option<&DeploymentStrategy>) -> bool {
    let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = update.and_then(|update| update.max_surge.as_ref());
    // Any percentage but 0 is at least one pod.
    surge.and_then(|surge| scaled(surge, 100)) == Some(0)
}

/// How many pods may be unavailable during an update, if the document sets it.
fn max_unavailable(strategy: Option<&DeploymentStrategy>, replicas: i32) -> Option<i32> {
    let written = strategy?
        .rolling_update
        .as_ref()?
        .max_unavailable
        .as_ref()?;
    scaled(written, replicas)
}

/// A number, or a percentage of `total` rounded down; none for any other text.
///
/// Upstream: `GetScaledValueFromIntOrPercent` of `k8s.io/apimachinery/pkg/util/intstr`.
pub(crate) fn scaled(value: &IntOrString, total: i32) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: u32 = text.strip_suffix('%')?.parse().ok()?;
            let scaled = i64::from(percent).checked_mul(i64::from(total))? / 100;
            i32::try_from(scaled).ok()
        }
    }
}

/// As upstream, the new pod starts first if it may surge.
fn daemon_set_order(strategy: Option<&DaemonSetUpdateStrategy>, pod: &Pod) -> Order {
    let update = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = update.and_then(|update| update.max_surge.as_ref());
    // Of one pod, any percentage but 0 is the whole of it.
    let surges = surge
        .and_then(|surge| scaled(surge, 100))
        .is_some_and(|surge| surge > 0);
    if surges {
        Order {
            strategy: RolloutStrategy::StartFirst,
            refused: beside_refused(pod, pod, &Settings::of(pod)),
        }
    } else {
        Order {
            strategy: RolloutStrategy::Recreate,
            refused: None,
        }
    }
}

fn annotations(
    order: RolloutStrategy,
    min_ready: Option<i32>,
    deadline: Option<i32>,
) -> BTreeMap<&'static str, String> {
    let order = match order {
        RolloutStrategy::Recreate => RECREATE,
        RolloutStrategy::StartFirst => "StartFirst",
    };
    let seconds = [
        (MIN_READY_SECONDS, min_ready),
        (PROGRESS_DEADLINE_SECONDS, deadline),
    ];
    let seconds = seconds
        .into_iter()
        .filter_map(|(key, seconds)| Some((key, seconds?.to_string())));
    std::iter::once((ROLLOUT, order.to_owned()))
        .chain(seconds)
        .collect_map()
}

pub mod claims;
pub mod images;
pub mod revisions;
pub mod standing;
#[cfg(test)]
mod tests;
