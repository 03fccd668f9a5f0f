//! `activeDeadlineSeconds`: how long a pod may be active.
//!
//! Upstream: `pkg/kubelet/active_deadline.go`.

use std::time::Duration;

use crate::api::{Pod, Timestamp};
use crate::clock::elapsed;
use crate::observed::PodStatus;
use crate::spec;

/// The state of a pod's deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// There is no deadline, or the pod hasn't been started yet.
    None,
    /// It comes in that time.
    Ahead(Duration),
    /// It has passed.
    Passed,
}

/// Checks a pod's deadline. The pod's start is that in its status or that of its sandboxes, whichever
/// is earlier: an agent that starts just after the deadline must not find it in the future again, and a
/// status that was computed without observations is less exact than the current ones.
pub(crate) fn deadline(pod: &Pod, status: &PodStatus, now: Timestamp) -> Deadline {
    let said = spec::started_at(pod);
    let started = said.into_iter().chain(status.pod_started_at()).min();
    deadline_since(pod, started, now)
}

/// Checks the deadline of a pod with a known start.
pub(crate) fn deadline_since(pod: &Pod, started: Option<Timestamp>, now: Timestamp) -> Deadline {
    let seconds = spec::spec(pod)
        .active_deadline_seconds
        .and_then(|s| u64::try_from(s).ok());
    let (Some(seconds), Some(started)) = (seconds, started) else {
        return Deadline::None;
    };
    match Duration::from_secs(seconds).checked_sub(elapsed(started, now)) {
        Some(left) if !left.is_zero() => Deadline::Ahead(left),
        Some(_) | None => Deadline::Passed,
    }
}
