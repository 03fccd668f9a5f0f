//! One probe's worker as a state machine: its next action, and the results to publish.

use std::time::Duration;

use crate::api::{ContainerId, Timestamp};
use crate::clock::since;
use crate::observed::{ContainerState, ContainerStatus};

use super::{ProbeKind, ProbeResult, ProbeSpec};

/// The state of a probe worker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProbeState {
    /// The instance that it probes.
    pub(super) id: Option<ContainerId>,
    /// Whether nothing is probed until there is another instance: one that failed its liveness probe is
    /// about to be stopped, and one whose startup is decided needs no more startup probes.
    on_hold: bool,
    /// The newest result that was counted, and how often it came in a row.
    run: Option<(ProbeResult, u32)>,
}

/// A worker's observation of its container.
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are seen one by one, and any of them may hold beside any other"
)]
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// The newest instance.
    pub instance: Option<&'a ContainerStatus>,
    /// Whether it has started ([`ProbeResults::has_started`](super::ProbeResults::has_started)).
    pub has_started: bool,
    /// Whether the pod is being stopped.
    pub terminating: bool,
    /// Whether the pod has ended: it succeeded or failed.
    pub over: bool,
    /// Whether the container is restarted when it has ended.
    pub restarts: bool,
    /// The result of the instance that an earlier agent published.
    pub kept: Option<ProbeResult>,
}

/// The next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing, this time.
    Wait,
    /// Attempt the probe.
    Probe,
    /// Do nothing before the pod changes: the container has ended for good, but a user may start it
    /// again.
    Rest,
    /// Nothing, ever again.
    End,
}

/// The decision of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// A removed instance, whose result is removed as well.
    pub forget: Option<ContainerId>,
    /// The result to publish for the current instance.
    pub publish: Option<ProbeResult>,
    /// The next action.
    pub action: Action,
}

impl Decision {
    fn new(action: Action) -> Self {
        Self {
            forget: None,
            publish: None,
            action,
        }
    }
}

/// Decides the next action from an observation of the container.
///
/// Upstream: `doProbe` of `pkg/kubelet/prober/worker.go`. Unlike there a container that was
/// created and not started yet is waited for, rather than published as failed: it will run under
/// the same id. The worker of a container that ended for good doesn't end before its pod does: a
/// static pod's may be started again, which upstream has no order for.
pub fn decide(
    state: ProbeState,
    kind: ProbeKind,
    spec: &ProbeSpec,
    seen: &Observation<'_>,
    now: Timestamp,
) -> (ProbeState, Decision) {
    let at_the_end = if seen.terminating {
        Action::End
    } else {
        Action::Rest
    };
    if seen.over {
        return (state, Decision::new(at_the_end));
    }
    let (state, mut decision) = take_up(state, kind, seen);
    let Some(instance) = seen.instance else {
        if seen.terminating {
            decision.action = Action::End;
        }
        return (state, decision);
    };
    // One that is being stopped is neither restarted nor held back any more.
    if seen.terminating && kind != ProbeKind::Readiness {
        decision.publish = Some(ProbeResult::Success);
        decision.action = Action::End;
        return (state, decision);
    }
    match instance.state {
        ContainerState::Exited => {
            decision.publish = Some(ProbeResult::Failure);
            if seen.terminating || !seen.restarts {
                decision.action = at_the_end;
            }
        }
        ContainerState::Running if !state.on_hold && is_due(kind, spec, seen, instance, now) => {
            decision.action = Action::Probe;
        }
        ContainerState::Created | ContainerState::Running | ContainerState::Unknown => {}
    }
    (state, decision)
}

/// Switches to another instance: counts of the previous one don't apply to it.
fn take_up(state: ProbeState, kind: ProbeKind, seen: &Observation<'_>) -> (ProbeState, Decision) {
    let mut decision = Decision::new(Action::Wait);
    let newest = seen.instance.map(|instance| &instance.id);
    if newest.is_none() || newest == state.id.as_ref() {
        return (state, decision);
    }
    decision.publish = Some(seen.kept.unwrap_or_else(|| kind.initial()));
    decision.forget = state.id;
    let anew = ProbeState {
        id: newest.cloned(),
        ..ProbeState::default()
    };
    (anew, decision)
}

/// Whether a running instance is to be probed now.
fn is_due(
    kind: ProbeKind,
    spec: &ProbeSpec,
    seen: &Observation<'_>,
    instance: &ContainerStatus,
    now: Timestamp,
) -> bool {
    let ran = instance.started_at.map(|at| since(at, now));
    // Whether it has started is the startup probe's question until it is answered, and after that
    // the others' turn.
    let turn = seen.has_started != (kind == ProbeKind::Startup);
    turn && ran.is_some_and(|ran| ran >= spec.initial_delay)
}

/// Evaluates the outcome of an attempt: returns the result to publish, if it is decided.
pub fn conclude(
    mut state: ProbeState,
    kind: ProbeKind,
    spec: &ProbeSpec,
    result: ProbeResult,
) -> (ProbeState, Option<ProbeResult>) {
    let times = match state.run {
        Some((last, times)) if last == result => times.saturating_add(1),
        Some(_) | None => 1,
    };
    state.run = Some((result, times));
    let threshold = match result {
        ProbeResult::Success => spec.success_threshold,
        ProbeResult::Failure => spec.failure_threshold,
        ProbeResult::Unknown => return (state, None),
    };
    if times < threshold {
        return (state, None);
    }
    let failed = result == ProbeResult::Failure;
    if kind == ProbeKind::Startup || (kind == ProbeKind::Liveness && failed) {
        state.on_hold = true;
        state.run = None;
    }
    (state, Some(result))
}

/// How long a worker waits before its first check. A restarted agent would begin with all probes at
/// once, so each waits a share of its period, given between 0 and 1.
///
/// Upstream: `run` of `pkg/kubelet/prober/worker.go`.
pub fn first_delay(spec: &ProbeSpec, uptime: Duration, share: f64) -> Duration {
    if spec.period > uptime {
        spec.period.mul_f64(share.clamp(0.0, 1.0))
    } else {
        Duration::ZERO
    }
}
