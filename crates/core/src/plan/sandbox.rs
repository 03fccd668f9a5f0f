//! Whether a pod needs a new sandbox, and the consequences.
//!
//! Upstream: `pkg/kubelet/kuberuntime/util/util.go` (`PodSandboxChanged`) and the first half of
//! `kuberuntime_manager.go` (`computePodActions`).

use crate::api::Pod;
use crate::api::core::Container;
use crate::backoff::ContainerKey;
use crate::observed::{
    ContainerHash, ContainerState, ContainerStatus, PodStatus, Role, SandboxStatus,
};
use crate::restart::{self, should_restart};
use crate::spec::{self, RestartPolicy};

use super::draft::Draft;
use super::{Reason, Step};

/// Why the pod's sandbox must be replaced; none if it is fine.
pub(crate) fn sandbox_changed(pod: &Pod, status: &PodStatus) -> Option<Reason> {
    let Some(newest) = status.sandboxes.first() else {
        return Some(Reason::NoSandbox);
    };
    let ready = |s: &&SandboxStatus| s.state == ContainerState::Running;
    if status.sandboxes.iter().filter(ready).count() > 1 {
        return Some(Reason::SandboxDuplicated);
    }
    if let Some(what) = newest.hand() {
        return Some(Reason::SandboxByHand { what });
    }
    if newest.state != ContainerState::Running {
        return Some(Reason::SandboxDead);
    }
    let host_network = spec::is_host_network(pod);
    if newest.host_network != host_network {
        return Some(Reason::SandboxNetworkChanged);
    }
    if !host_network && newest.ips.is_empty() {
        return Some(Reason::SandboxWithoutAddress);
    }
    None
}

/// The key of the back-off of a pod's sandbox, which is not a container's name.
pub fn sandbox_key() -> ContainerKey {
    ("".into(), ContainerHash(0))
}

/// Whether the replaced sandbox died by itself, for example through its own containers, and so may die
/// again.
pub(super) fn has_died(reason: &Reason) -> bool {
    *reason == Reason::SandboxDead
}

/// Plans a new sandbox and the first containers in it. Only stops running containers if the pod is
/// never restarted and has run, or if all its work is done.
pub(super) fn recreate(draft: &mut Draft<'_>, reason: Reason) {
    let pod = draft.input.pod;
    let to_start = containers_to_start(pod, draft.input.status);
    if must_not_come_back(pod, draft.input.status, to_start.is_empty()) {
        return draft.finish(reason);
    }
    let by_hand = draft.input.status.sandboxes.first().and_then(|s| s.by_hand);
    if let Some(left) = by_hand.and_then(|by| by.settles(draft.input.now)) {
        return draft.look_again(left);
    }
    draft.kill_pod(reason.clone());
    let first_init = spec::containers(pod).find(|(role, _)| *role != Role::App);
    let first: Vec<(Role, &Container)> = match first_init {
        Some(init) => vec![init],
        None => to_start.into_iter().map(|app| (Role::App, app)).collect(),
    };
    if has_died(&reason) && draft.sandbox_waits(first.iter().map(|(_, container)| *container)) {
        return;
    }
    // Restart counts are read from instances that are about to be purged.
    for (role, container) in first {
        draft.start_in_new_sandbox(role, container);
    }
    purge(draft);
    let attempt = draft
        .input
        .status
        .sandboxes
        .iter()
        .map(|s| match s.state {
            // Adopted: an earlier agent's start of it may still be in progress.
            ContainerState::Created => s.attempt,
            ContainerState::Running | ContainerState::Exited | ContainerState::Unknown => {
                s.attempt.saturating_add(1)
            }
        })
        .max()
        .unwrap_or(0);
    draft.before.push(Step::CreateSandbox { attempt, reason });
}

/// Regular containers that run again in a new sandbox: all but those that have ended for good. If
/// another one were started against its policy, the next round would judge it by its old end.
///
/// Upstream requires a success under `OnFailure` only, and creates sandboxes endlessly for a pod whose
/// containers have policies of their own.
fn containers_to_start<'a>(pod: &'a Pod, status: &PodStatus) -> Vec<&'a Container> {
    let over = |container: &Container| {
        status
            .find_container_status_by_name(&container.name)
            .is_some_and(|seen| {
                seen.state == ContainerState::Exited
                    && !spec::to_restart(pod, &seen.id)
                    && !should_restart(pod, container, seen.exit_code.unwrap_or_default())
            })
    };
    spec::spec(pod)
        .containers
        .iter()
        .filter(|container| !over(container))
        .collect()
}

/// Whether a pod without a usable sandbox has ended, and doesn't need a new one.
///
/// Upstream checks whether it ever had a sandbox *and* containers. Checking whether any of its regular
/// containers ran, or an init container failed for good, is also correct for a removed sandbox, and
/// retries a pod whose sandbox died before it was initialised: otherwise none of its containers would
/// ever have an end state.
fn must_not_come_back(pod: &Pod, status: &PodStatus, nothing_to_start: bool) -> bool {
    let has_run = status.containers.iter().any(|seen| match seen.role {
        Role::App => seen.state != ContainerState::Created,
        Role::Init => has_failed(pod, seen),
        Role::Sidecar | Role::Ephemeral => false,
    });
    // Nothing to start means that every regular container has an instance, so that the pod was
    // initialised.
    let wanted = status
        .containers
        .iter()
        .any(|c| spec::to_restart(pod, &c.id));
    let never = spec::restart_policy(pod) == RestartPolicy::Never;
    nothing_to_start || (has_run && never && !wanted)
}

/// Whether the pod has no usable sandbox and has ended, so that it doesn't need a new one.
pub(crate) fn is_over_without_sandbox(pod: &Pod, status: &PodStatus) -> bool {
    let is_over = || {
        let nothing_to_start = containers_to_start(pod, status).is_empty();
        must_not_come_back(pod, status, nothing_to_start)
    };
    sandbox_changed(pod, status).is_some() && is_over()
}

/// Whether an init container failed for good, or does so by being stopped with its sandbox.
fn has_failed(pod: &Pod, seen: &ContainerStatus) -> bool {
    let Some((_, container)) = spec::find_container(pod, &seen.name) else {
        return false;
    };
    match seen.state {
        ContainerState::Created => false,
        ContainerState::Exited => {
            !seen.succeeded() && !should_restart(pod, container, seen.judged_exit_code())
        }
        ContainerState::Running | ContainerState::Unknown => {
            restart::policy(pod, container) == RestartPolicy::Never
        }
    }
}

/// Removes instances that must not be mistaken for a part of the new sandbox: init containers run again
/// from the first, and an instance that was never started would be started in the old network. Those
/// from before the last restart in place are harmless, and one of them is the evidence for it.
fn purge(draft: &mut Draft<'_>) {
    let (all, restarts) = (draft.all, draft.restarts);
    for seen in &all.containers {
        let is_init = matches!(seen.role, Role::Init | Role::Sidecar);
        if (is_init && !restarts.is_before(seen)) || seen.state == ContainerState::Created {
            draft.remove_before(seen);
        }
    }
}
