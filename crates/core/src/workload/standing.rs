//! How far a workload whose pods stay has come: counts and conditions.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::{RECREATE, ROLLING_DEFAULT, WorkloadKind};
use crate::api::report::{PodReport, RolloutPhase, WorkloadCondition, WorkloadReport};
use crate::desired::SourceWorkload;
use crate::rollout::group::{FAILED_ELSEWHERE, fenceposts};

/// The counts and settings that the conditions of a Deployment are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress<'a> {
    /// The number of pods that it wants.
    pub wanted: u32,
    /// The number that are not being stopped.
    pub live: u32,
    /// The number that run the version of the document.
    pub updated: u32,
    /// The number that serve.
    pub available: u32,
    /// How many may be unavailable.
    pub unavailable_max: u32,
    /// Whether no pod is updated.
    pub paused: bool,
    /// Why the version of the document doesn't run, if it can't.
    pub failed: Option<&'a str>,
}

impl Progress<'_> {
    /// The conditions `Available` and `Progressing`.
    ///
    /// Upstream: `pkg/controller/deployment/progress.go` (`syncRolloutStatus`) and `sync.go`
    /// (`calculateStatus`, `checkPausedConditions`).
    #[must_use]
    pub fn conditions(&self) -> [WorkloadCondition; 2] {
        let condition = |kind: &str, status: &str, reason: &str, message: &str| WorkloadCondition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
        let available = if self.available >= self.wanted.saturating_sub(self.unavailable_max) {
            let message = "Deployment has minimum availability.";
            condition("Available", "True", "MinimumReplicasAvailable", message)
        } else {
            let message = "Deployment does not have minimum availability.";
            condition("Available", "False", "MinimumReplicasUnavailable", message)
        };
        let complete = self.updated == self.wanted
            && self.live == self.wanted
            && self.available >= self.wanted;
        let progressing =
            |status, reason, message| condition("Progressing", status, reason, message);
        let progressing = match self.failed {
            // The word by which `kubectl rollout status` ends.
            Some(why) => progressing("False", "ProgressDeadlineExceeded", why),
            None if self.paused => {
                progressing("Unknown", "DeploymentPaused", "Deployment is paused")
            }
            None if complete => {
                let message = "All pods run the version of the document.";
                progressing("True", "NewReplicaSetAvailable", message)
            }
            None => progressing("True", "ReplicaSetUpdated", "Pods are being updated."),
        };
        [available, progressing]
    }
}

/// The settings of a document that concern its pods together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// How many there are to be.
    pub pods: u32,
    /// How many may be unavailable.
    pub unavailable_max: u32,
    /// Whether none is updated.
    pub paused: bool,
}

impl Wish {
    /// The wish of a workload's document.
    #[must_use]
    pub fn of(document: &Value) -> Self {
        let spec = &document["spec"];
        let pods = spec["replicas"].as_i64().unwrap_or(1).max(0);
        let strategy = &spec["strategy"];
        let total = i32::try_from(pods).unwrap_or(i32::MAX);
        let limit = |key: &str| {
            let written = &strategy["rollingUpdate"][key];
            let written: Option<IntOrString> = serde_json::from_value(written.clone()).ok();
            written.unwrap_or_else(|| IntOrString::String(ROLLING_DEFAULT.to_owned()))
        };
        let is_rolling = strategy["type"] != RECREATE && total > 0;
        let (_, unavailable) = fenceposts(&limit("maxSurge"), &limit("maxUnavailable"), total);
        let pods = u32::try_from(pods).unwrap_or(u32::MAX);
        Self {
            pods,
            // Upstream: `MaxUnavailable` of `deployment/util`.
            unavailable_max: if is_rolling { unavailable.min(pods) } else { 0 },
            paused: spec["paused"] == true,
        }
    }
}

/// The report of a workload with these pods and others.
#[must_use]
pub fn report(document: &SourceWorkload, pods: &[PodReport]) -> WorkloadReport {
    let wish = Wish::of(&document.document);
    let mut report = WorkloadReport {
        namespace: document.namespace.clone(),
        owner: document.owner.clone(),
        source: document.origin.location.clone(),
        wanted: wish.pods,
        ready: 0,
        updated: 0,
        available: 0,
        conditions: Vec::new(),
    };
    let is_its = |pod: &&PodReport| report.has(pod) && !pod.is_ending();
    let pods: Vec<&PodReport> = pods.iter().filter(is_its).collect();
    let count = |is: &dyn Fn(&PodReport) -> bool| {
        let number = pods.iter().filter(|pod| is(pod)).count();
        u32::try_from(number).unwrap_or(u32::MAX)
    };
    let is_paused = |pod: &&PodReport| {
        let rollout = pod.rollout.as_ref();
        rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Paused)
    };
    let failed = failed(&pods);
    let progress = Progress {
        wanted: wish.pods,
        live: count(&|_| true),
        updated: count(&PodReport::is_updated),
        available: count(&is_available),
        unavailable_max: wish.unavailable_max,
        paused: wish.paused || (!pods.is_empty() && pods.iter().all(is_paused)),
        failed: failed.as_deref(),
    };
    (report.ready, report.updated) = (count(&PodReport::is_ready), progress.updated);
    report.available = progress.available;
    if report.owner.starts_with(WorkloadKind::Deployment.as_str()) {
        report.conditions = progress.conditions().to_vec();
    }
    report
}

/// Why the version of the document doesn't run: the words about the pod where it failed.
fn failed(pods: &[&PodReport]) -> Option<String> {
    let setbacks = pods.iter().filter_map(|pod| {
        let rollout = pod.rollout.as_ref()?;
        let is_setback = matches!(
            rollout.phase,
            RolloutPhase::Held
                | RolloutPhase::Failed
                | RolloutPhase::Restoring
                | RolloutPhase::Restored
        );
        is_setback.then(|| {
            let words = format!("pod {}: {}: {}", pod.name, rollout.reason, rollout.message);
            (rollout.reason == FAILED_ELSEWHERE, words)
        })
    });
    setbacks.min().map(|(_, words)| words)
}

/// Whether a pod serves: it is Ready, and isn't a version that is still judged in the place of
/// another.
fn is_available(pod: &PodReport) -> bool {
    let is_judged = pod.rollout.as_ref().is_some_and(|rollout| {
        rollout.phase == RolloutPhase::Judging && rollout.revision == rollout.target
    });
    pod.is_ready() && !is_judged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_those_of_upstreams_controller() {
        let whole = Progress {
            wanted: 3,
            live: 3,
            updated: 3,
            available: 3,
            ..Progress::default()
        };
        for (progress, available, progressing) in [
            (
                whole,
                "MinimumReplicasAvailable",
                "True NewReplicaSetAvailable",
            ),
            (
                Progress {
                    updated: 1,
                    ..whole
                },
                "MinimumReplicasAvailable",
                "True ReplicaSetUpdated",
            ),
            (
                Progress {
                    available: 2,
                    ..whole
                },
                "MinimumReplicasUnavailable",
                "True ReplicaSetUpdated",
            ),
            (
                Progress {
                    available: 2,
                    unavailable_max: 1,
                    ..whole
                },
                "MinimumReplicasAvailable",
                "True ReplicaSetUpdated",
            ),
            // Old pods are still being stopped.
            (
                Progress { live: 4, ..whole },
                "MinimumReplicasAvailable",
                "True ReplicaSetUpdated",
            ),
            (
                Progress {
                    updated: 0,
                    paused: true,
                    ..whole
                },
                "MinimumReplicasAvailable",
                "Unknown DeploymentPaused",
            ),
            (
                Progress {
                    updated: 0,
                    failed: Some("pod web-1: it crashed"),
                    ..whole
                },
                "MinimumReplicasAvailable",
                "False ProgressDeadlineExceeded",
            ),
            (
                Progress::default(),
                "MinimumReplicasAvailable",
                "True NewReplicaSetAvailable",
            ),
        ] {
            let [first, second] = progress.conditions();
            // workloads 15
            assert_eq!(first.reason, available, "{progress:?}");
            let told = format!("{} {}", second.status, second.reason);
            // workloads 15
            assert_eq!(told, progressing, "{progress:?}");
        }
    }

    #[test]
    fn what_a_document_wants_is_rounded_as_upstream() {
        for (spec, pods, unavailable_max, paused) in [
            (json!({}), 1, 0, false),
            (json!({"replicas": 4}), 4, 1, false),
            (json!({"replicas": 3, "paused": true}), 3, 0, true),
            (
                json!({"replicas": 4, "strategy": {"type": "Recreate"}}),
                4,
                0,
                false,
            ),
            (
                json!({"replicas": 2, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}}),
                2,
                2,
                false,
            ),
            (json!({"replicas": 0}), 0, 0, false),
        ] {
            let wish = Wish {
                pods,
                unavailable_max,
                paused,
            };
            // workloads 15
            assert_eq!(Wish::of(&json!({"spec": spec})), wish);
        }
    }
}
