//! The planner itself: computes the steps from a pod's observed state to its desired one.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_manager.go` (`computePodActions`). What upstream
//! decides only while it acts (back-off, pruning) is decided here too, so that a plan says all.

use crate::spec;

use super::app::{self, Verdict, by_hand};
use super::deadline::{Deadline, deadline};
use super::draft::{Draft, Start};
use super::in_place::{self, PodRestarts};
use super::init::{InitStart, Initialization, has_initialized, initialization};
use super::prune::prune;
use super::sandbox::{recreate, sandbox_changed};
use super::{Plan, PlanInput, Reason};
use crate::api::Pod;
use crate::api::report::STOPPED;
use crate::ending::is_over;
use crate::observed::{ContainerState, Role};

/// Decides the next steps for one pod. Reads nothing but its argument.
pub fn compute_pod_actions(input: &PlanInput<'_>) -> Plan {
    let restarts = PodRestarts::of(input.pod, input.status);
    let since = restarts.since(input.status);
    let judged = PlanInput {
        status: &since,
        ..*input
    };
    let mut draft = Draft::new(&judged, input.status, &restarts);
    decide(&mut draft);
    prune(&mut draft);
    draft.into_plan()
}

fn decide(draft: &mut Draft<'_>) {
    let (pod, status) = (draft.input.pod, draft.input.status);
    if let Some(reason) = over(pod) {
        return draft.finish(reason);
    }
    if spec::is_stopped(pod) {
        return stop(draft);
    }
    match deadline(pod, status, draft.input.now) {
        Deadline::Passed => return draft.finish(Reason::DeadlineExceeded),
        Deadline::Ahead(left) => draft.look_again(left),
        Deadline::None => {}
    }
    let changed = sandbox_changed(pod, status);
    if pod.metadata.deletion_timestamp.is_some() {
        return shrink(draft, changed);
    }
    if let Some(reason) = changed {
        return recreate(draft, reason);
    }
    stop_started_by_hand(draft);
    start_ephemerals(draft);
    if in_place::stop_all(draft) == Start::Waits {
        return;
    }
    match initialization(pod, status, draft.input.probes) {
        Initialization::Failed(reason) => draft.finish(reason),
        Initialization::Running(starts) => {
            start_inits(draft, starts);
        }
        Initialization::Done(starts) => {
            start_inits(draft, starts);
            plan_apps(draft);
        }
    }
}

/// Plans for a pod that a user stopped: its running containers are stopped, and none starts.
fn stop(draft: &mut Draft<'_>) {
    draft.kill_pod(Reason::Stopped);
    let message = spec::why_stopped(draft.input.pod);
    for (_, container) in spec::containers(draft.input.pod) {
        draft.hold(container, STOPPED, &message);
    }
}

/// The reason why the pod has ended, if its status has a final phase.
fn over(pod: &Pod) -> Option<Reason> {
    let status = pod.status.as_ref().filter(|status| is_over(Some(status)))?;
    let words = [&status.reason, &status.message].map(|text| text.as_deref().unwrap_or_default());
    let words: Vec<&str> = words.into_iter().filter(|text| !text.is_empty()).collect();
    Some(if words.is_empty() {
        Reason::Completed
    } else {
        Reason::Over {
            why: words.join(": ").into(),
        }
    })
}

/// Plans for a pod that is being deleted: nothing is started, and it has ended when its sandbox is gone
/// or none of its regular containers may be running.
fn shrink(draft: &mut Draft<'_>, sandbox_changed: Option<Reason>) {
    let status = draft.all;
    let runs = spec::spec(draft.input.pod).containers.iter().any(|c| {
        status
            .containers
            .iter()
            .any(|seen| *seen.name == *c.name && seen.may_be_running())
    });
    match sandbox_changed {
        Some(reason) => draft.finish(reason),
        None if !runs => draft.finish(Reason::Completed),
        None => {}
    }
}

/// Stops instances that a user started although they must not run: an instance older than the newest,
/// an init container that is already done, and containers that never start twice.
fn stop_started_by_hand(draft: &mut Draft<'_>) {
    let (pod, status) = (draft.input.pod, draft.input.status);
    for seen in &status.containers {
        let newest = status.find_container_status_by_name(&seen.name);
        let is_over = match seen.role {
            Role::Init => has_initialized(pod, status),
            Role::Ephemeral => true,
            Role::Sidecar | Role::App => false,
        };
        let is_older = newest.is_some_and(|newest| newest.id != seen.id);
        if let Some(reason) = by_hand(seen.started_by_hand(), &seen.name, true)
            && (is_older || is_over)
        {
            draft.kill(seen, reason);
        }
    }
}

/// Starts ephemeral containers, even while the pod initializes, because that may be the problem to
/// debug. They are never started twice, and block no other container.
fn start_ephemerals(draft: &mut Draft<'_>) {
    let (pod, status) = (draft.input.pod, draft.input.status);
    for container in spec::ephemeral_containers(pod) {
        let name = container.name.as_str().into();
        let newest = status.find_container_status_by_name(&container.name);
        let reason = match newest.map(|seen| seen.state) {
            None => Reason::NeverStarted { container: name },
            Some(ContainerState::Created) => Reason::CreatedOnly { container: name },
            Some(_) => continue,
        };
        draft.start(Role::Ephemeral, &container, reason);
    }
}

/// Starts init containers and sidecars in order. A regular one that has to wait blocks those after it,
/// a sidecar doesn't.
fn start_inits(draft: &mut Draft<'_>, starts: Vec<InitStart<'_>>) {
    for InitStart {
        role,
        container,
        reason,
    } in starts
    {
        let started = draft.start(role, container, reason);
        if started == Start::Waits && role == Role::Init {
            return;
        }
    }
}

fn plan_apps(draft: &mut Draft<'_>) {
    let PlanInput {
        pod,
        status,
        probes,
        ..
    } = *draft.input;
    let verdicts: Vec<_> = spec::spec(pod)
        .containers
        .iter()
        .map(|container| {
            let newest = status.find_container_status_by_name(&container.name);
            (
                container,
                newest,
                app::judge(pod, container, newest, probes),
            )
        })
        .collect();
    if verdicts.iter().all(|(_, _, v)| *v == Verdict::Done) {
        return draft.finish(Reason::Completed);
    }
    for (container, newest, verdict) in verdicts {
        match verdict {
            Verdict::Keep | Verdict::Done => {}
            // Whether the pod has ended is decided once the container has.
            Verdict::Stop(reason) => {
                if let Some(seen) = newest {
                    draft.kill(seen, reason);
                }
            }
            Verdict::Start(reason) => {
                draft.start(Role::App, container, reason);
            }
        }
    }
}
