//! One API status per container of the spec.
//!
//! Upstream: `pkg/kubelet/kubelet_pods.go` (`convertToAPIContainerStatuses`) and
//! `pkg/kubelet/prober/prober_manager.go` (`UpdatePodStatus`).

use crate::api::Pod;
use crate::api::core::{
    self, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, VolumeMountStatus,
};
use crate::observed::{ContainerState, ContainerStatus, Role, judged_exit_code};
use crate::spec;

use super::user::user;
use super::{StatusInput, is_over_with_its_sandbox, pod_restarts, runs_again, time};
use crate::small::SmallSort;

/// The prefix of image ids, which no name has.
const IMAGE_ID: &str = "sha256:";

/// Exit code of a container with an unknown end.
const EXIT_CODE_UNKNOWN: i32 = 137;
/// Reason of such a container.
const REASON_UNKNOWN: &str = "ContainerStatusUnknown";
/// Waiting reason of a container that is next to be created.
pub const CONTAINER_CREATING: &str = "ContainerCreating";
/// Waiting reason of a container in a pod with init containers.
pub(super) const POD_INITIALIZING: &str = "PodInitializing";
/// Waiting reason of a container that is restarted with all others of its pod.
///
/// Upstream: `pkg/kubelet/kubelet_pods.go` (`RestartingAllContainers`).
const RESTARTING_ALL: &str = "RestartingAllContainers";

/// The statuses of a pod's containers, those of init containers first.
pub fn container_statuses(
    status: &core::PodStatus,
) -> impl Iterator<Item = &core::ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// The same, followed by those of ephemeral containers.
pub fn all_container_statuses(
    status: &core::PodStatus,
) -> impl Iterator<Item = &core::ContainerStatus> {
    let ephemeral = status.ephemeral_container_statuses.iter().flatten();
    container_statuses(status).chain(ephemeral)
}

/// Statuses of init containers and sidecars, in the spec's order.
pub(super) fn init_statuses(input: &StatusInput<'_>) -> Vec<core::ContainerStatus> {
    let previous = input
        .before()
        .and_then(|s| s.init_container_statuses.as_deref());
    statuses(input, previous, |role| role != Role::App)
}

/// Statuses of regular containers, by name.
pub(super) fn app_statuses(input: &StatusInput<'_>) -> Vec<core::ContainerStatus> {
    let previous = input.before().and_then(|s| s.container_statuses.as_deref());
    let mut statuses = statuses(input, previous, |role| role == Role::App);
    statuses.small_sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// Statuses of ephemeral containers, by name. They don't affect whether the pod is ready.
pub(super) fn ephemeral_statuses(input: &StatusInput<'_>) -> Vec<core::ContainerStatus> {
    let previous = input.before();
    let previous = previous.and_then(|s| s.ephemeral_container_statuses.as_deref());
    let mut statuses: Vec<_> = spec::ephemeral_containers(input.pod)
        .map(|container| {
            let mut before = previous.unwrap_or_default().iter();
            let before = before.find(|s| s.name == container.name);
            let mut status = status(input, &container, before);
            overlay_waiting(input, Role::Ephemeral, &mut status);
            status
        })
        .collect();
    statuses.small_sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

fn statuses(
    input: &StatusInput<'_>,
    previous: Option<&[core::ContainerStatus]>,
    wanted: fn(Role) -> bool,
) -> Vec<core::ContainerStatus> {
    spec::containers(input.pod)
        .filter(|(role, _)| wanted(*role))
        .map(|(role, container)| {
            let before = previous
                .unwrap_or_default()
                .iter()
                .find(|s| s.name == container.name);
            let mut status = status(input, container, before);
            overlay_restart(input, &mut status);
            overlay_waiting(input, role, &mut status);
            judge(input, role, container, &mut status);
            status
        })
        .collect()
}

/// The status of one container from its two newest instances; without any, from its previous status.
fn status(
    input: &StatusInput<'_>,
    container: &core::Container,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let mut instances = input
        .observed
        .containers
        .iter()
        .filter(|c| *c.name == *container.name);
    let Some(newest) = instances.next() else {
        return absent(input, container, before);
    };
    let mut status = of_instance(newest, before);
    status.volume_mounts = mounts(container);
    set_resources(input, &mut status, container, before);
    status.user = user_of(input.pod, container, &status, before);
    // Made by the image's id: of the same container the spec knows its name.
    if newest.image.starts_with(IMAGE_ID) && newest.hash == spec::container_hash(container) {
        status.image = container.image.clone().unwrap_or_default();
    }
    if let Some(second) = instances.next() {
        status.last_state = of_instance(second, before).state;
    }
    status
}

/// The status of a container without any instance.
fn absent(
    input: &StatusInput<'_>,
    container: &core::Container,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let has_inits = spec::containers(input.pod).any(|(role, _)| role != Role::App);
    let reason = if has_inits {
        POD_INITIALIZING
    } else {
        CONTAINER_CREATING
    };
    let mut status = core::ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(reason, "")),
        volume_mounts: mounts(container),
        ..core::ContainerStatus::default()
    };
    if !input.is_static {
        // It will be started with what the node has admitted it with.
        set_resources(input, &mut status, container, before);
    }
    let Some(before) = before else {
        return status;
    };
    let state = before.state.as_ref();
    if state.is_some_and(|s| s.terminated.is_some()) {
        return before.clone();
    }
    status.restart_count = before.restart_count;
    status.last_state.clone_from(&before.last_state);
    let ended_before = status
        .last_state
        .as_ref()
        .is_some_and(|s| s.terminated.is_some());
    if state.is_some_and(|s| s.running.is_some()) && !ended_before {
        status.last_state = Some(lost(
            "The container could not be located when the pod was deleted.  The container used to be Running",
        ));
        if input.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

/// The status one instance gives.
fn of_instance(
    seen: &ContainerStatus,
    before: Option<&core::ContainerStatus>,
) -> core::ContainerStatus {
    let mut restart_count = i32::try_from(seen.restart_count).unwrap_or(i32::MAX);
    let state = match seen.state {
        ContainerState::Running => core::ContainerState {
            running: Some(ContainerStateRunning {
                started_at: seen.started_at.map(time),
            }),
            ..core::ContainerState::default()
        },
        ContainerState::Created => waiting_state("", ""),
        ContainerState::Exited => terminated(seen),
        ContainerState::Unknown => {
            let ran = before.filter(|s| s.state.as_ref().is_some_and(|s| s.running.is_some()));
            if let Some(before) = ran {
                restart_count = before.restart_count.saturating_add(1);
                lost("The container could not be located when the pod was terminated")
            } else {
                waiting_state("", "")
            }
        }
    };
    core::ContainerStatus {
        name: seen.name.to_string(),
        image: seen.image.to_string(),
        image_id: seen.image_id.to_string(),
        container_id: Some(seen.id.to_string()),
        restart_count,
        state: Some(state),
        ..core::ContainerStatus::default()
    }
}

/// The container's mounts. Of those that are to be recursively read-only if possible, only the
/// Engine knows whether they are.
fn mounts(container: &core::Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.iter().flatten();
    let status = |mount: &core::VolumeMount| {
        let read_only = mount.read_only.filter(|read_only| *read_only);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only,
            recursive_read_only: read_only.and_then(|_| {
                let recursive = mount.recursive_read_only.as_deref();
                let recursive = recursive.unwrap_or("Disabled");
                (recursive != "IfPossible").then(|| recursive.to_owned())
            }),
            ..VolumeMountStatus::default()
        }
    };
    super::non_empty(mounts.map(status).collect())
}

/// The user of an instance: the one that it was started with, also where the spec has changed since.
fn user_of(
    pod: &Pod,
    container: &core::Container,
    status: &core::ContainerStatus,
    before: Option<&core::ContainerStatus>,
) -> Option<core::ContainerUser> {
    let same = before.filter(|before| before.container_id == status.container_id);
    let known = same.and_then(|before| before.user.clone());
    known.or_else(|| user(pod, container))
}

/// Sets the resources of a container. One of an API pod keeps its original ones, because this node
/// doesn't resize; one of a manifest has those of its instance's start while that runs, even if the
/// spec has changed since.
fn set_resources(
    input: &StatusInput<'_>,
    status: &mut core::ContainerStatus,
    container: &core::Container,
    before: Option<&core::ContainerStatus>,
) {
    let runs = status.state.as_ref().is_some_and(|s| s.running.is_some());
    let known = before.filter(|before| {
        let is_same = runs && before.container_id == status.container_id;
        before.resources.is_some() && (is_same || !input.is_static)
    });
    if let Some(before) = known {
        status.resources.clone_from(&before.resources);
        status
            .allocated_resources
            .clone_from(&before.allocated_resources);
        return;
    }
    let resources = container.resources.clone().unwrap_or_default();
    let requests = resources.requests.clone();
    status.allocated_resources = requests.filter(|requests| !requests.is_empty());
    status.resources = Some(resources);
}

/// A container that ended before all are restarted waits for its turn.
fn overlay_restart(input: &StatusInput<'_>, status: &mut core::ContainerStatus) {
    let newest = input.observed.find_container_status_by_name(&status.name);
    if !newest.is_some_and(|newest| pod_restarts(input).is_before(newest)) {
        return;
    }
    if let Some(state) = status.state.take_if(|s| s.terminated.is_some()) {
        status.last_state = Some(state);
        let message = "All containers of the pod are restarted";
        status.state = Some(waiting_state(RESTARTING_ALL, message));
    }
}

/// Says why a container that is to be started isn't.
fn overlay_waiting(input: &StatusInput<'_>, role: Role, status: &mut core::ContainerStatus) {
    let Some(waiting) = input.waiting.get(status.name.as_str()) else {
        return;
    };
    if !should_be_started(input, role, &status.name) {
        return;
    }
    if let Some(state) = status.state.take_if(|s| s.terminated.is_some()) {
        status.last_state = Some(state);
    }
    status.state = Some(waiting_state(&waiting.reason, &waiting.message));
}

/// Whether a container should be started in the next round, according to its own state.
///
/// Upstream: `pkg/kubelet/container/helpers.go` (`ShouldContainerBeRestarted`).
fn should_be_started(input: &StatusInput<'_>, role: Role, name: &str) -> bool {
    let goes = input.terminating || input.pod.metadata.deletion_timestamp.is_some();
    if goes || is_over_with_its_sandbox(input) {
        return false;
    }
    let Some(newest) = input.observed.find_container_status_by_name(name) else {
        return true;
    };
    match newest.state {
        ContainerState::Running => false,
        ContainerState::Created | ContainerState::Unknown => true,
        ContainerState::Exited if role == Role::Ephemeral => false,
        ContainerState::Exited if role == Role::Init && newest.succeeded() => false,
        ContainerState::Exited => spec::find_container(input.pod, name)
            .is_some_and(|(_, container)| runs_again(input, container, newest.judged_exit_code())),
    }
}

/// Sets `started` and `ready`.
///
/// Upstream: `pkg/kubelet/prober/prober_manager.go` (`UpdatePodStatus`).
fn judge(
    input: &StatusInput<'_>,
    role: Role,
    container: &core::Container,
    status: &mut core::ContainerStatus,
) {
    let state = status.state.as_ref();
    let running = state.is_some_and(|s| s.running.is_some());
    let succeeded = state.and_then(|s| s.terminated.as_ref()).is_some_and(|t| {
        let reason = t.reason.as_deref().unwrap_or_default();
        judged_exit_code(role, t.exit_code, reason) == 0
    });
    let newest = input
        .observed
        .find_container_status_by_name(&container.name)
        .filter(|_| running);
    match role {
        Role::Init => {
            // It has no startup probe.
            status.started = Some(running);
            status.ready = succeeded;
        }
        Role::Ephemeral => {}
        Role::Sidecar | Role::App => {
            let probes = input.probes;
            let started = newest.is_some_and(|seen| probes.has_started(container, seen));
            status.started = Some(started);
            status.ready = newest.is_some_and(|seen| probes.is_ready(container, seen));
        }
    }
}

fn waiting_state(reason: &str, message: &str) -> core::ContainerState {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    core::ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: some(reason),
            message: some(message),
        }),
        ..core::ContainerState::default()
    }
}

fn terminated(seen: &ContainerStatus) -> core::ContainerState {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    core::ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(seen.id.to_string()),
            exit_code: seen.exit_code.unwrap_or_default(),
            reason: some(&seen.reason),
            message: some(&seen.message),
            started_at: seen.started_at.map(time),
            finished_at: seen.finished_at.map(time),
            signal: None,
        }),
        ..core::ContainerState::default()
    }
}

/// The state of a removed container whose end is unknown.
fn lost(message: &str) -> core::ContainerState {
    core::ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: EXIT_CODE_UNKNOWN,
            reason: Some(REASON_UNKNOWN.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..core::ContainerState::default()
    }
}
