//! Whether a revision that runs is healthy, by its status.

use std::time::Duration;

use super::{Cause, Settings};
use crate::api::core::{ContainerStatus, PodStatus};
use crate::api::{Pod, Timestamp};
use crate::spec;

/// Reasons for which a container waits that no wait mends: the Engine refused to create or start
/// it, or its image is gone.
const REFUSED: [&str; 7] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "ErrImagePull",
    "ErrImageNeverPull",
    "ImagePullBackOff",
    "InvalidImageName",
];

/// How a revision does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Well, for long enough.
    Healthy,
    /// It has ended well.
    Ended,
    /// That can't be said yet; with the time after which it can, though nothing happens.
    Open(Option<Duration>),
    /// Badly.
    Failed(Cause),
}

/// How a revision that runs since `since` does, by its status.
///
/// Healthy: it was ready for the least time without a restart. Failed: it ended
/// badly, a container was restarted too often or can't be created, or its deadline has passed.
#[must_use]
pub fn assess(
    pod: &Pod,
    status: &PodStatus,
    settings: &Settings,
    since: Timestamp,
    now: Timestamp,
) -> Health {
    match status.phase.as_deref() {
        Some("Succeeded") => return Health::Ended,
        Some("Failed") => {
            let reason = status.reason.as_deref().unwrap_or("PodFailed");
            let message = status
                .message
                .as_deref()
                .unwrap_or("a container failed for good");
            return Health::Failed(Cause::new(reason, message));
        }
        _ => {}
    }
    let all = || {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    };
    if let Some(cause) = all().find_map(refused) {
        return Health::Failed(cause);
    }
    let restarted = |max| all().find(|container| container.restart_count >= max);
    if let Some(container) = restarts_max(pod, settings).and_then(restarted) {
        return Health::Failed(crashed(container));
    }
    let left = |from: Timestamp, span: Duration| {
        let passed = Duration::try_from(now.duration_since(from)).unwrap_or_default();
        span.checked_sub(passed).filter(|left| !left.is_zero())
    };
    if let Some(ready_since) = ready_since(status) {
        // Ready before it was switched to: it ran already, and is looked at for the first time.
        return match left(ready_since, settings.min_ready) {
            None => Health::Healthy,
            Some(wait) => Health::Open(Some(wait)),
        };
    }
    let deadline = progress_deadline(pod);
    if let Some(wait) = left(since, deadline) {
        return Health::Open(Some(wait));
    }
    let message = format!("it was not ready within {} s", deadline.as_secs());
    Health::Failed(Cause::new("ProgressDeadlineExceeded", message))
}

/// Restarts of one container with which a revision has failed; none for what the node itself needs,
/// whose neighbours may be restarting too.
fn restarts_max(pod: &Pod, settings: &Settings) -> Option<i32> {
    let class = spec::spec(pod).priority_class_name.as_deref();
    (class != Some("system-node-critical")).then_some(settings.max_restarts)
}

/// Why a container can't run, where that is for good.
fn refused(container: &ContainerStatus) -> Option<Cause> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let message = format!("container {}: {message}", container.name);
    REFUSED
        .contains(&reason)
        .then(|| Cause::new(reason, message))
}

fn crashed(container: &ContainerStatus) -> Cause {
    let (name, restarts) = (&container.name, container.restart_count);
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let last = last.map_or_else(String::new, |ended| {
        let reason = ended.reason.as_deref().unwrap_or("ended");
        format!(", last with exit code {} ({reason})", ended.exit_code)
    });
    let times = if restarts == 1 {
        "once".to_owned()
    } else {
        format!("{restarts} times")
    };
    let message = format!("container {name} was restarted {times}{last}");
    Cause::new("CrashLoopBackOff", message)
}

/// Since when the pod is ready.
fn ready_since(status: &PodStatus) -> Option<Timestamp> {
    let mut conditions = status.conditions.iter().flatten();
    let ready =
        conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// Within what time the pod has to be ready: the deadline it names, or longer where its startup
/// probes have longer.
#[must_use]
pub fn progress_deadline(pod: &Pod) -> Duration {
    let settings = Settings::of(pod);
    settings.progress_deadline.max(startup_budget(pod))
}

/// The longest time that a container's startup probe gives it.
fn startup_budget(pod: &Pod) -> Duration {
    let budget = |(_, container): (_, &crate::api::core::Container)| {
        let probe = container.startup_probe.as_ref()?;
        let number = |value: Option<i32>, default| u64::try_from(value.unwrap_or(default)).ok();
        let periods = number(probe.failure_threshold, 3)? * number(probe.period_seconds, 10)?;
        Some(Duration::from_secs(
            periods + number(probe.initial_delay_seconds, 0)?,
        ))
    };
    spec::containers(pod)
        .filter_map(budget)
        .max()
        .unwrap_or_default()
}
