//! Restarting all containers of a pod in place (`restartPolicyRules`, `RestartAllContainers`): a
//! container exits with a code for which its rules require that, and all containers are stopped and
//! started as in a new pod, init containers first, in the same sandbox with the same volumes.
//!
//! Each instance records how many such restarts its pod had before its creation, in a label that never
//! changes ([`ContainerStatus::pod_restarts`]). So the decision depends only on the current state:
//!
//! - The highest number among the instances is that of the restarts that were begun.
//! - A restart is *pending* while the newest instance of a container has that number and exited with a
//!   code that asks for it. The count is one higher then.
//! - Instances with a number below the count are stopped, and are nothing but history then: deciders
//!   don't see them. They keep restart counts, logs and last states.
//!
//! So each exit restarts the pod exactly once, wherever an agent is killed. Before the first container
//! with the new count is created, the exited instance is the evidence: the newest instance of a
//! container is never pruned, and containers that are stopped meanwhile have the old number, whatever
//! their exit code. From then on the number of the new instance is the evidence, and the exited one no
//! longer counts. While only init containers have the new number, replacing the sandbox removes them;
//! the exited instance stays until a regular container has it ([`PodStatus::shows_pod_restart`]), and
//! requires the restart again. An exit is only lost if a user removes its container before any
//! container was created again.
//!
//! Upstream removes all instances, that one last, and knows the rest from the API server's object
//! (`pkg/kubelet/container/helpers.go`, `ShouldAllContainersRestart`;
//! `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `getContainersToReset`). A pod of a manifest has
//! no such object, and its logs would be lost.

use std::borrow::Cow;

use crate::api::Pod;
use crate::api::core::Container;
use crate::observed::{ContainerState, ContainerStatus, PodStatus, Role};
use crate::restart::{could_restart_all, restarts_all, should_restart};
use crate::spec;

use super::Reason;
use super::draft::{Draft, Start};

/// The restarts of all containers of a pod.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PodRestarts<'a> {
    /// The number of restarts, including the pending one.
    pub(crate) count: u32,
    /// The instance whose exit requires a restart for which no instance was created yet.
    pub(crate) pending: Option<&'a ContainerStatus>,
    /// The instance whose exit required the last restart, if it still exists.
    cause: Option<&'a ContainerStatus>,
}

impl<'a> PodRestarts<'a> {
    /// A pod that had none.
    pub(crate) const NONE: Self = Self {
        count: 0,
        pending: None,
        cause: None,
    };

    /// Reads them from the instances of a pod. A pod without such a rule has none, whatever labels its
    /// containers have.
    pub(crate) fn of(pod: &Pod, status: &'a PodStatus) -> Self {
        if !could_restart_all(pod) {
            return Self::NONE;
        }
        let begun = status.pod_restarts();
        // The first of several that exited is the cause: it may have been the others' end.
        let asking = |count: u32| {
            spec::containers(pod)
                .filter_map(|(_, container)| {
                    let named = |c: &&ContainerStatus| *c.name == *container.name;
                    let mut instances = status.containers.iter().filter(named);
                    let newest = instances.find(|c| c.pod_restarts <= count)?;
                    let asks = newest.pod_restarts == count && asks(container, newest);
                    asks.then_some(newest)
                })
                .min_by_key(|seen| seen.finished_at)
        };
        let pending = asking(begun)
            .filter(|cause| cause.role != Role::Sidecar || !was_over(pod, status, cause));
        Self {
            count: begun.saturating_add(u32::from(pending.is_some())),
            pending,
            cause: pending.or_else(|| begun.checked_sub(1).and_then(asking)),
        }
    }

    /// Whether an instance is from before the last restart: it must end, or has ended, and its
    /// container must be started again, whatever its policy.
    pub(crate) fn is_before(&self, seen: &ContainerStatus) -> bool {
        seen.role != Role::Ephemeral && seen.pod_restarts < self.count
    }

    /// The pod's status with only the containers since the last restart.
    pub(crate) fn since(&self, status: &'a PodStatus) -> Cow<'a, PodStatus> {
        if !status.containers.iter().any(|seen| self.is_before(seen)) {
            return Cow::Borrowed(status);
        }
        let mut since = status.clone();
        since.containers.retain(|seen| !self.is_before(seen));
        Cow::Owned(since)
    }

    /// Whether a container, of which that is the newest instance, ended or must end only because
    /// another one's exit restarts all.
    pub(super) fn took_along(
        &self,
        container: &Container,
        newest: Option<&ContainerStatus>,
    ) -> bool {
        newest.is_some_and(|newest| self.is_before(newest) && !asks(container, newest))
    }

    /// Why containers are stopped and started.
    pub(super) fn reason(&self) -> Reason {
        let why = self.cause.map_or_else(
            || "all containers of the pod are restarted".into(),
            |cause| {
                let code = cause.exit_code.unwrap_or_default();
                let name = &cause.name;
                format!("container {name} exited with {code}, which restarts all containers").into()
            },
        );
        Reason::RestartAll { why }
    }
}

/// Whether the pod had ended when that instance of a sidecar exited: all its regular containers were
/// done, or an init container had failed for good. Its sidecars are stopped then, and their exit codes
/// restart nothing. Containers that ended later may have been stopped for a restart.
fn was_over(pod: &Pod, status: &PodStatus, sidecar: &ContainerStatus) -> bool {
    let ended_for_good = |container: &Container, well_too: bool| {
        let newest = status.find_container_status_by_name(&container.name);
        newest.is_some_and(|seen| {
            seen.state == ContainerState::Exited
                && seen.pod_restarts == sidecar.pod_restarts
                && seen.finished_at <= sidecar.finished_at
                && (well_too || !seen.succeeded())
                && !should_restart(pod, container, seen.judged_exit_code())
        })
    };
    let mut apps = spec::spec(pod).containers.iter();
    let mut inits = spec::containers(pod).filter(|(role, _)| *role == Role::Init);
    apps.all(|container| ended_for_good(container, true))
        || inits.any(|(_, container)| ended_for_good(container, false))
}

/// Whether an instance exited with a code for which its container's rules restart all.
fn asks(container: &Container, seen: &ContainerStatus) -> bool {
    seen.state == ContainerState::Exited && restarts_all(container, seen.judged_exit_code())
}

/// Stops all containers from before a restart: regular containers, then sidecars and init containers,
/// each in the spec's order. Nothing starts while the container that required the restart is in
/// back-off, or while the second half of a user's `docker restart` may come.
///
/// Upstream's back-off doesn't delay such a restart, because no instance is left by then; the proposal
/// (KEP-5532) says that it should.
pub(super) fn stop_all(draft: &mut Draft<'_>) -> Start {
    let (pod, all, restarts) = (draft.input.pod, draft.all, draft.restarts);
    if restarts.count == 0 {
        return Start::Planned;
    }
    let pending = restarts.pending;
    if let Some(left) = pending
        .and_then(|cause| cause.by_hand)
        .and_then(|by| by.settles(draft.input.now))
    {
        draft.look_again(left);
        return Start::Waits;
    }
    let is_app = |role: &Role| *role == Role::App;
    let apps = spec::containers(pod).filter(|(role, _)| is_app(role));
    let inits = spec::containers(pod).filter(|(role, _)| !is_app(role));
    for (_, container) in apps.chain(inits) {
        for seen in &all.containers {
            let is_meant = *seen.name == *container.name && restarts.is_before(seen);
            if is_meant && seen.may_be_running() {
                draft.kill(seen, restarts.reason());
            }
        }
    }
    let asking = pending.and_then(|cause| spec::find_container(pod, &cause.name));
    match asking {
        Some((_, container)) if draft.waits(container) => Start::Waits,
        Some(_) | None => Start::Planned,
    }
}
