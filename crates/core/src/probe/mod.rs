//! Probes: their settings, the meaning of a result, and when to probe next.
//!
//! A worker per container and kind calls [`decide`] for the next action, attempts it, and passes the
//! outcome to [`conclude`]. The result is published in [`ProbeResults`], which the planner and the
//! status read.
//!
//! Upstream: `pkg/kubelet/prober` (`worker.go`, `prober.go`, `prober_manager.go`) and
//! `pkg/kubelet/prober/results`.

mod outcome;
mod results;
mod worker;

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::core::{Container, Probe};

pub use outcome::{Outcome, of_exec, of_http};
pub use results::ProbeResults;
pub use worker::{Action, Decision, Observation, ProbeState, conclude, decide, first_delay};

/// Maximum number of immediate attempts that end in an error, before the next period.
///
/// Upstream: `maxProbeRetries` of `pkg/kubelet/prober/prober.go`.
pub const ATTEMPTS_MAX: u32 = 3;

crate::words! {
    /// The kind of a probe.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum ProbeKind {
        /// Whether the container has to be restarted.
        Liveness = "Liveness",
        /// Whether it takes requests.
        Readiness = "Readiness",
        /// Whether it has started: until then the other two probes wait.
        Startup = "Startup",
    }
    /// The kind as events and metrics spell it.
    pub fn as_str;
    impl Display;
}

impl ProbeKind {
    /// The probe of that kind, if the container has one.
    #[must_use]
    pub fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Self::Liveness => container.liveness_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Startup => container.startup_probe.as_ref(),
        }
    }

    /// Returns the result before the first attempt: the container is live, is not ready, and its start
    /// is unknown.
    #[must_use]
    pub fn initial(self) -> ProbeResult {
        match self {
            Self::Liveness => ProbeResult::Success,
            Self::Readiness => ProbeResult::Failure,
            Self::Startup => ProbeResult::Unknown,
        }
    }
}

/// The result of a container's probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeResult {
    /// All is well.
    Success,
    /// It isn't.
    Failure,
    /// It is not known yet.
    Unknown,
}

/// A probe's numbers, with the API's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSpec {
    /// Nothing is probed until the container has run for this long.
    pub initial_delay: Duration,
    /// Longest time of one attempt.
    pub timeout: Duration,
    /// Time between two attempts.
    pub period: Duration,
    /// Successes in a row that count as one.
    pub success_threshold: u32,
    /// Failures in a row that count as one.
    pub failure_threshold: u32,
}

impl ProbeSpec {
    /// The numbers of that probe.
    ///
    /// Upstream: `SetDefaults_Probe` of `pkg/apis/core/v1/defaults.go`.
    pub fn of(probe: &Probe) -> Self {
        let number = |value: Option<i32>, usual: u32| {
            let given = value.and_then(|value| u32::try_from(value).ok());
            given.filter(|value| *value > 0).unwrap_or(usual)
        };
        let seconds = |value, usual| Duration::from_secs(number(value, usual).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            timeout: seconds(probe.timeout_seconds, 1),
            period: seconds(probe.period_seconds, 10),
            success_threshold: number(probe.success_threshold, 1),
            failure_threshold: number(probe.failure_threshold, 3),
        }
    }
}
