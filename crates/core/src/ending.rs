//! The end of a pod on this node: when, with which grace period, and with which last status.
//!
//! A static pod ends when its manifest is removed. An API pod has more ways: it is deleted there, it
//! reaches a final phase, or its object vanishes.
//!
//! Upstream: `pkg/kubelet/pod_workers.go` (`UpdatePod`, `calculateEffectiveGracePeriod`),
//! `pkg/kubelet/status/status_manager.go` (`TerminatePod`).

use std::time::Duration;

use crate::api::core::{
    self, ContainerState, ContainerStateTerminated, ContainerStatus, PodStatus,
};
use crate::api::{Pod, is_too_large, keys, meta};
use crate::manager::is_mirror_pod;
use crate::small::SmallCollect;
use crate::spec::{self, annotation};

/// Least grace of a pod that is being stopped.
const GRACE_MIN: Duration = Duration::from_secs(1);
/// Exit code of a container with an unknown end: as if killed.
const EXIT_UNKNOWN: i32 = 137;
/// Annotations of a mirror that are kept, because they identify it.
const MIRROR_ANNOTATIONS: [&str; 6] = [
    keys::CONFIG_MIRROR,
    keys::CONFIG_HASH,
    keys::CONFIG_SOURCE,
    keys::HELD_REVISION,
    keys::HELD_REASON,
    keys::HELD_MESSAGE,
];
/// Most owners, and most finalizers, of a mirror that are kept.
const MIRROR_NAMES_MAX: usize = 4;
/// Most bytes of a text of a mirror that are kept: more than any has that this agent writes.
const MIRROR_TEXT_MAX: usize = 2048;

/// Whether a pod comes from the API server and is not a mirror.
pub fn is_api_pod(pod: &Pod) -> bool {
    annotation(&pod.metadata, keys::CONFIG_SOURCE) == Some("api") && !is_mirror_pod(pod)
}

/// Why a pod that is still wanted must be stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It is being deleted in the API server: all of it is removed.
    Deleted,
    /// It has reached a final phase. Its dead containers stay, for their logs, until it is deleted.
    Over,
}

/// Whether an API pod has to end, according to its object.
pub fn ending(pod: &Pod) -> Option<Ending> {
    if !is_api_pod(pod) {
        None
    } else if pod.metadata.deletion_timestamp.is_some() {
        Some(Ending::Deleted)
    } else if is_over(pod.status.as_ref()) {
        Some(Ending::Over)
    } else {
        None
    }
}

/// Whether a status has a final phase.
pub fn is_over(status: Option<&PodStatus>) -> bool {
    let phase = status.and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether an ordinary API pod needs no more work, once nothing of it is left on this node: it has
/// ended, its status has the end of each of its containers, and it is not being deleted.
pub fn is_settled(pod: &Pod) -> bool {
    is_over(pod.status.as_ref())
        && all_ended(pod)
        && pod.metadata.deletion_timestamp.is_none()
        && !is_mirror_pod(pod)
}

/// Whether only finalizers keep the object of an ordinary API pod, once nothing of it is left on this
/// node: it has ended, its status has the end of each of its containers, and it was deleted with grace
/// period 0, after which an object without finalizers is gone.
pub fn is_released(pod: &Pod) -> bool {
    is_over(pod.status.as_ref())
        && all_ended(pod)
        && pod.metadata.deletion_timestamp.is_some()
        && pod.metadata.deletion_grace_period_seconds == Some(0)
        && !is_mirror_pod(pod)
}

/// Reduces an API pod to the parts that are kept once it has ended and none of its containers runs:
/// those needed for its status, its log and its deletion. Such pods accumulate, and their creators
/// decide how large they are. A mirror is reduced to the parts by which it is compared, whatever its
/// phase: anybody who may create pods can create one. Any other pod is kept whole.
pub fn remains(pod: Pod) -> Pod {
    if is_mirror_pod(&pod) {
        return mirror_remains(pod);
    }
    let is_done = is_over(pod.status.as_ref()) && all_ended(&pod);
    if is_done || is_too_large(&pod.metadata) {
        reduced(pod)
    } else {
        pod
    }
}

/// The identity of a mirror, its deletion, its Node, and the parts that it copies from its static pod.
/// Its spec may be from anybody, and nothing of it runs.
fn mirror_remains(mut pod: Pod) -> Pod {
    let mut metadata = pod.metadata;
    let annotations = metadata.annotations.take().map(|mut annotations| {
        annotations.retain(|key, _| MIRROR_ANNOTATIONS.contains(&key.as_str()));
        annotations.values_mut().for_each(cut);
        annotations
    });
    let finalizers = metadata.finalizers.take().map(|finalizers| {
        let mut finalizers = fitted(finalizers.into_iter().take(MIRROR_NAMES_MAX));
        finalizers.iter_mut().for_each(cut);
        finalizers
    });
    let owners = metadata.owner_references.take().map(|owners| {
        let nodes = owners.into_iter().filter(|owner| owner.kind == "Node");
        let nodes = nodes.take(MIRROR_NAMES_MAX).map(|mut owner| {
            cut(&mut owner.uid);
            meta::OwnerReference {
                kind: owner.kind,
                uid: owner.uid,
                ..meta::OwnerReference::default()
            }
        });
        fitted(nodes)
    });
    pod.metadata = meta::ObjectMeta {
        annotations,
        finalizers,
        owner_references: owners,
        ..identity(metadata)
    };
    pod.spec = pod.spec.map(|spec| core::PodSpec {
        node_name: spec.node_name,
        ..core::PodSpec::default()
    });
    pod
}

/// The fields by which a Pod is known, and that say whether it is being deleted.
fn identity(metadata: meta::ObjectMeta) -> meta::ObjectMeta {
    meta::ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
        ..meta::ObjectMeta::default()
    }
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(MIRROR_TEXT_MAX));
    text.shrink_to_fit();
}

/// Reduces an API pod that is being deleted, and of which nothing was ever on this node, to the parts
/// that confirm its deletion.
pub fn remains_of_deleted(pod: Pod) -> Pod {
    if is_mirror_pod(&pod) || pod.metadata.deletion_timestamp.is_none() {
        return pod;
    }
    reduced(pod)
}

fn reduced(mut pod: Pod) -> Pod {
    // What is left of it must never run.
    let too_large = is_too_large(&pod.metadata);
    let annotations =
        too_large.then(|| [(keys::TOO_LARGE.to_owned(), "true".to_owned())].collect_map());
    pod.metadata = meta::ObjectMeta {
        annotations,
        ..identity(pod.metadata)
    };
    pod.spec = pod.spec.map(|spec| core::PodSpec {
        containers: fitted(spec.containers.into_iter().map(container_remains)),
        init_containers: spec
            .init_containers
            .map(|inits| fitted(inits.into_iter().map(container_remains))),
        ephemeral_containers: spec.ephemeral_containers.map(fitted),
        node_name: spec.node_name,
        restart_policy: spec.restart_policy,
        host_network: spec.host_network,
        termination_grace_period_seconds: spec.termination_grace_period_seconds,
        readiness_gates: spec.readiness_gates.map(fitted),
        ..core::PodSpec::default()
    });
    pod.status = pod.status.map(status_remains);
    pod
}

/// Reduces the status of an ended API pod to the parts by which its object is compared: other data of
/// its running containers is no longer written.
pub fn status_remains(mut status: PodStatus) -> PodStatus {
    status.conditions = status.conditions.take().map(fitted);
    status.resources = None;
    for list in [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ] {
        *list = list.take().map(fitted);
        for container in list.iter_mut().flatten() {
            container.resources = None;
            container.allocated_resources = None;
            container.volume_mounts = None;
            container.user = None;
        }
    }
    status
}

/// A list without room for more: a decoded one has room for four elements, of up to a kilobyte each.
fn fitted<T>(list: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = list.into_iter().collect();
    list.shrink_to_fit();
    list
}

/// Name, image, and what its end means.
fn container_remains(container: core::Container) -> core::Container {
    core::Container {
        name: container.name,
        image: container.image,
        restart_policy: container.restart_policy,
        restart_policy_rules: container.restart_policy_rules,
        ..core::Container::default()
    }
}

/// Whether no container of the pod runs or is about to, by its status.
fn all_ended(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return true;
    };
    let apps = status.container_statuses.iter().flatten();
    let inits = status.init_container_statuses.iter().flatten();
    let added = status.ephemeral_container_statuses.iter().flatten();
    let all = apps.chain(inits).chain(added);
    let runs = |state: &ContainerState| state.running.is_some();
    !all.filter_map(|container| container.state.as_ref())
        .any(runs)
}

/// The grace period of a pod that is being stopped. `known` is its earlier one: it can only become
/// shorter, and never less than a second.
pub fn grace(known: Option<Duration>, pod: &Pod) -> Duration {
    let wanted = spec::termination_grace(pod);
    known
        .map_or(wanted, |known| known.min(wanted))
        .max(GRACE_MIN)
}

/// The last status of an API pod without running containers: containers whose end is unknown count as
/// killed, and the pod has ended.
pub fn last_status(mut status: PodStatus) -> PodStatus {
    let initialized = status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Initialized" && condition.status == "True");
    if initialized {
        close_all(status.container_statuses.iter_mut().flatten());
    }
    // Init containers after the last one that was ever started have no end to report.
    let inits = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let begun = inits
        .iter()
        .rposition(has_started)
        .map_or(0, |last| last + 1);
    close_all(
        status
            .init_container_statuses
            .iter_mut()
            .flatten()
            .take(begun),
    );
    if !is_over(Some(&status)) {
        status.phase = Some("Failed".to_owned());
    }
    status
}

/// Marks containers whose end is unknown as killed, for a pod without running containers.
pub(crate) fn close_all<'a>(containers: impl IntoIterator<Item = &'a mut ContainerStatus>) {
    for container in containers {
        close(container);
    }
}

fn has_started(container: &ContainerStatus) -> bool {
    let state = |s: &ContainerState| s.running.is_some() || s.terminated.is_some();
    container.state.as_ref().is_some_and(state) || container.last_state.as_ref().is_some_and(state)
}

fn close(container: &mut ContainerStatus) {
    if container
        .state
        .as_ref()
        .is_some_and(|s| s.terminated.is_some())
    {
        return;
    }
    container.ready = false;
    container.started = Some(false);
    container.state = Some(ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: EXIT_UNKNOWN,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(
                "The container could not be located when the pod was terminated".to_owned(),
            ),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    });
}

#[cfg(test)]
mod tests;
