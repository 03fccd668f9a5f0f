//! Whether a running revision is healthy, by its status.

use std::time::Duration;

use super::{Cause, Life, Settings};
use crate::api::core::{ContainerStatus, PodStatus};
use crate::api::{Pod, Timestamp};
use crate::status::container_statuses;
use crate::status::trouble::{Trouble, failed_attempt, hook_has_failed};
use crate::{clock, fields, spec};

/// Reasons for which a container waits that no wait resolves: the Engine refused to create or start
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
    /// Not decided yet; with the time after which it can be, though nothing happens.
    Open(Option<Duration>),
    /// Badly.
    Failed(Cause),
}

/// The precision of the time since when a pod is ready: a status has whole seconds.
const READY_PRECISION: Duration = Duration::from_secs(1);

/// The observations of a running revision that its health depends on.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Its status.
    pub status: &'a PodStatus,
    /// Why its liveness or startup probe last stopped a container, if it did.
    pub failed_probe: Option<&'a str>,
    /// The failures of its probes and hooks, oldest first.
    pub troubles: &'a [Trouble],
    /// Its life.
    pub life: &'a Life,
    /// Its deadline counts from then on at the earliest.
    pub counts_from: Timestamp,
    /// The present time.
    pub now: Timestamp,
}

impl Seen<'_> {
    /// The rest of a span that began at `from`; none once it has passed.
    fn left(&self, from: Timestamp, span: Duration) -> Option<Duration> {
        span.checked_sub(clock::since(from, self.now))
            .filter(|left| !left.is_zero())
    }

    /// Time until it has been ready for long enough, if it stays ready; none if it is not ready, or has
    /// been long enough.
    pub(super) fn healthy_in(&self, settings: &Settings) -> Option<Duration> {
        let since = self.life.ready_since(self.status)?;
        if settings.min_ready.is_zero() {
            return None;
        }
        self.left(since, settings.min_ready.saturating_add(READY_PRECISION))
    }
}

/// The health of a running revision.
///
/// Healthy: it was ready for the minimum time without a restart, even if it was restarted before.
/// Failed: it ended badly, a container was restarted too often, was stopped by its liveness or startup
/// probe or can't be created, or its deadline has passed.
pub fn assess(pod: &Pod, seen: &Seen<'_>, settings: &Settings) -> Health {
    let status = seen.status;
    match status.phase.as_deref() {
        Some("Succeeded") => return Health::Ended,
        Some("Failed") => {
            let reason = status.reason.as_deref().unwrap_or("PodFailed");
            let message = status
                .message
                .as_deref()
                .unwrap_or("a container failed and is not restarted");
            return Health::Failed(Cause::new(reason, message));
        }
        _ => {}
    }
    // It may have been ready before the switch: it was already running, and is assessed for the first
    // time.
    let is_ready = ready_since(status).is_some();
    let healthy_in = seen.healthy_in(settings);
    if is_ready && healthy_in.is_none() {
        return Health::Healthy;
    }
    if let Some(cause) = failure(pod, seen, settings) {
        return Health::Failed(cause);
    }
    if is_ready {
        return Health::Open(healthy_in);
    }
    let deadline = progress_deadline(pod);
    if let Some(wait) = seen.left(seen.life.since.max(seen.counts_from), deadline) {
        return Health::Open(Some(wait));
    }
    Health::Failed(late(pod, seen, settings, deadline))
}

/// The cause of a failure by the deadline, with the container that was restarted or isn't ready.
fn late(pod: &Pod, seen: &Seen<'_>, settings: &Settings, deadline: Duration) -> Cause {
    let (within, least) = (deadline.as_secs(), settings.min_ready.as_secs());
    let late = if seen.life.was_ready {
        format!("within {within} s, it was not ready for {least} s without interruption")
    } else {
        format!("it was not ready within {within} s")
    };
    let restarted = container_statuses(seen.status).find(|one| seen.life.restarts(one) > 0);
    let why = match restarted {
        Some(container) => Some(crashed(pod, container, seen)),
        None => container_statuses(seen.status).find_map(|container| unready(pod, container, seen)),
    };
    let reason = "ProgressDeadlineExceeded";
    match why {
        Some(Cause { message, field, .. }) => {
            Cause::new(reason, format!("{late}: {message}")).of_field(field)
        }
        None => Cause::new(reason, late),
    }
}

/// The cause why a container isn't ready, with its field; none if it is ready or has ended.
fn unready(pod: &Pod, status: &ContainerStatus, seen: &Seen<'_>) -> Option<Cause> {
    let name = &status.name;
    let state = status.state.as_ref().filter(|_| !status.ready)?;
    let mut all = spec::containers(pod);
    let (_, container) = all.find(|(_, container)| container.name == *name)?;
    let field = fields::container(pod, name);
    let cause = |words: String, part: &str| {
        let field = field.as_ref().map(|field| format!("{field}{part}"));
        Some(Cause::new("NotReady", words).of_field(field))
    };
    if let Some(waiting) = &state.waiting {
        let mut words = format!("container {name} waits");
        for text in [&waiting.reason, &waiting.message].into_iter().flatten() {
            words = format!("{words}: {text}");
        }
        let hook = container
            .lifecycle
            .as_ref()
            .and_then(|all| all.post_start.as_ref());
        // A container is being created until that has ended.
        return if hook.is_some() {
            let words = format!("{words}; its postStart hook may still be running");
            cause(words, ".lifecycle.postStart")
        } else {
            cause(words, "")
        };
    }
    state.running.as_ref()?;
    let said = failed_attempt(seen.troubles, status).map(|trouble| {
        let words = trouble.message.split_once(" probe failed: ");
        words.map_or(&*trouble.message, |(_, said)| said)
    });
    let said = said.map_or_else(String::new, |said| format!(": {said}"));
    if status.started != Some(true) && container.startup_probe.is_some() {
        let words = format!("the startup probe of container {name} has not succeeded{said}");
        return cause(words, ".startupProbe");
    }
    container.readiness_probe.as_ref()?;
    let words = format!("the readiness probe of container {name} has not succeeded{said}");
    cause(words, ".readinessProbe")
}

/// The cause of a failure that needs no deadline.
fn failure(pod: &Pod, seen: &Seen<'_>, settings: &Settings) -> Option<Cause> {
    if let Some(cause) =
        container_statuses(seen.status).find_map(|container| refused(pod, container))
    {
        return Some(cause);
    }
    // The neighbours of what the node itself needs may be restarting, too.
    let class = spec::spec(pod).priority_class_name.as_deref();
    if class == Some("system-node-critical") {
        return None;
    }
    let mut all = container_statuses(seen.status);
    let often = all.find(|container| seen.life.restarts(container) >= settings.max_restarts);
    often
        .map(|container| crashed(pod, container, seen))
        .or_else(|| Some(unhealthy(pod, seen.failed_probe?)))
}

/// The cause of a failed probe, whose message names its container first.
fn unhealthy(pod: &Pod, probe: &str) -> Cause {
    let named = probe.strip_prefix("container ");
    let name = named.and_then(|words| words.split(' ').next());
    Cause::new("Unhealthy", probe).of_field(name.and_then(|name| fields::container(pod, name)))
}

/// Why a container can't run, where that is for good.
fn refused(pod: &Pod, container: &ContainerStatus) -> Option<Cause> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.as_deref()?;
    let message = waiting.message.as_deref().unwrap_or_default();
    let message = format!("container {}: {message}", container.name);
    REFUSED
        .contains(&reason)
        .then(|| Cause::new(reason, message).of_field(fields::container(pod, &container.name)))
}

fn crashed(pod: &Pod, container: &ContainerStatus, seen: &Seen<'_>) -> Cause {
    let (name, restarts) = (&container.name, seen.life.restarts(container));
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
    let hook = if hook_has_failed(seen.troubles, container) {
        ": its postStart hook failed"
    } else {
        ""
    };
    let message = format!("container {name} was restarted {times}{last}{hook}");
    Cause::new("CrashLoopBackOff", message).of_field(fields::container(pod, name))
}

/// Since when the pod is ready.
pub fn ready_since(status: &PodStatus) -> Option<Timestamp> {
    let mut conditions = status.conditions.iter().flatten();
    let ready =
        conditions.find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// The time within which the pod must become ready: its configured deadline, or longer if its startup
/// probes take longer.
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
