//! Compares the API server's status with the computed one, and decides what to write.
//!
//! Upstream: `pkg/kubelet/status/status_manager.go` (`mergePodStatus`, `normalizeStatus`,
//! `checkContainerStateTransition`) and `pkg/util/pod/pod.go` (`PatchPodStatus`).

#[cfg(test)]
#[expect(
    unreachable_pub,
    reason = "crates/testing includes the file and exports it"
)]
mod apply;
mod patch;
mod reported;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::conditions::OWNED;
use super::{is_ready, phase};
use crate::api::core::{self, ContainerState, ContainerStatus, PodCondition, PodStatus};
use crate::api::{Pod, Timestamp, keys, meta};
use crate::manager::is_mirror_pod;
use crate::restart::{could_restart_all, should_restart};
use crate::small::SmallCollect;
use crate::spec::{self, annotation};

/// Bytes that all termination messages of a pod may have together
/// (upstream `MaxPodTerminationMessageLogLength`).
const MESSAGES_MAX: usize = 12 * 1024;
/// The condition that disruptions set and we may set too, together with the terminal phase.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The inputs of the decision about a status write.
#[derive(Debug, Clone, Copy)]
pub struct MergeInput<'a> {
    /// The object in the API server: the pod's own or its mirror.
    pub api: &'a Pod,
    /// The pod that `computed` was computed from.
    pub pod: &'a Pod,
    /// The computed status.
    pub computed: &'a PodStatus,
    /// Whether a container of the pod may still run: the phase must not become terminal then.
    pub may_run: bool,
    /// The present time.
    pub now: Timestamp,
}

/// The result of merging.
#[derive(Debug, Clone, PartialEq)]
pub enum Merge {
    /// The API server has it already.
    Same,
    /// The strategic merge patch to send, with the object's UID as its precondition.
    Patch(Value),
    /// The API server would refuse the status: a container of the object has ended for good.
    Illegal(String),
}

/// The action on a pod's object in the API.
#[derive(Debug, Clone, PartialEq)]
pub enum StatusAction {
    /// Nothing.
    Nothing,
    /// Send this strategic merge patch to its status.
    Patch(Value),
    /// Delete it: it is being deleted, the API server knows that its pod has ended, and nothing of it
    /// is left here.
    DeleteObject,
    /// Delete this mirror, so that a new one is created: its pod, or a container of it, has ended for
    /// good and was started again, which the API server doesn't allow for either.
    DeleteMirror,
    /// Nothing can be done: the API server would refuse the status.
    Illegal(String),
}

/// Decides the action for a pod's object. `finished` says that the pod has ended for good, and that
/// nothing of it runs or is left.
///
/// Upstream: `pkg/kubelet/status/status_manager.go` (`syncPod`, `canBeDeleted`).
pub fn deed(input: &MergeInput<'_>, finished: bool) -> StatusAction {
    let is_mirror = is_mirror_pod(input.api);
    let goes = input.api.metadata.deletion_timestamp.is_some();
    if is_mirror && goes {
        return StatusAction::Nothing;
    }
    if is_mirror && !finished && is_revived(input.api, input.computed) {
        return StatusAction::DeleteMirror;
    }
    let merged = match merge(input) {
        // The last words of its containers can't be known any more; that it ended can.
        Merge::Illegal(_) if finished => {
            let mut computed = input.computed.clone();
            computed.container_statuses = None;
            computed.init_container_statuses = None;
            merge(&MergeInput {
                computed: &computed,
                ..*input
            })
        }
        // Users may also stop, start and restart containers that have ended for good.
        Merge::Illegal(_) if is_mirror => return StatusAction::DeleteMirror,
        merged => merged,
    };
    match merged {
        Merge::Patch(patch) => StatusAction::Patch(patch),
        Merge::Illegal(why) => StatusAction::Illegal(why),
        Merge::Same if may_delete(input.api, finished) => StatusAction::DeleteObject,
        Merge::Same => StatusAction::Nothing,
    }
}

/// Whether a pod's object may be deleted once its status was written: it is being deleted, the API
/// server knows that its pod has ended, and nothing of it is left here. The rest of the status doesn't
/// matter: the API server may not accept all of it.
///
/// Upstream: `pkg/kubelet/status/status_manager.go` (`canBeDeleted`).
pub fn may_delete(object: &Pod, finished: bool) -> bool {
    let status = object.status.as_ref();
    let ended = phase::terminal(status.and_then(|s| s.phase.as_deref())).is_some();
    let goes = object.metadata.deletion_timestamp.is_some();
    finished && ended && goes && !is_mirror_pod(object)
}

/// Whether a patch contains nothing beyond `sent`, an earlier one. Times of conditions are not
/// compared: each patch has its own.
pub fn repeats(patch: &Value, sent: &Value) -> bool {
    match (patch, sent) {
        (Value::Object(patch), Value::Object(sent)) => patch.iter().all(|(key, value)| {
            let sent = sent.get(key);
            sent.is_some_and(|sent| key == "lastTransitionTime" || repeats(value, sent))
        }),
        (Value::Array(patch), Value::Array(sent)) => patch
            .iter()
            .all(|item| sent.iter().any(|sent| repeats(item, sent))),
        (patch, sent) => patch == sent,
    }
}

/// Whether clients may wait for the news in a patch of that object: its phase, or that it became ready
/// or unready. Other changes can wait.
pub fn is_urgent(api: &Pod, patch: &Value) -> bool {
    let was_ready = api.status.as_ref().is_some_and(is_ready);
    let conditions = patch
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let turns = conditions.into_iter().flatten().any(|condition| {
        let is = |key: &str, word: &str| condition.get(key).is_some_and(|value| value == word);
        is("type", "Ready") && (is("status", "True") || (was_ready && is("status", "False")))
    });
    turns || patch.pointer("/status/phase").is_some()
}

/// Decides what to write.
///
/// Fields that we don't own stay as they are in the API server. A finished pod is never revived, and
/// finishes only if nothing of it may run. Transition times stay while their condition does.
pub fn merge(input: &MergeInput<'_>) -> Merge {
    let empty = PodStatus::default();
    let old = input.api.status.as_ref().unwrap_or(&empty);
    let mut new = old.clone();
    overlay(&mut new, old, input);
    normalize(input.pod, &mut new);
    if let Some(name) = revived_container(input.pod, old, &new) {
        return Merge::Illegal(format!(
            "container {name} has terminated and can't run again"
        ));
    }
    let uid = input.api.metadata.uid.as_deref().unwrap_or_default();
    let status = patch::patch(uid, old, &new);
    let annotations = held_annotations(input.api, input.pod);
    if status.is_none() && annotations.is_empty() {
        return Merge::Same;
    }
    let mut patch = status.unwrap_or_else(|| json!({"metadata": {"uid": uid}}));
    if !annotations.is_empty() {
        patch["metadata"]["annotations"] = Value::Object(annotations);
    }
    Merge::Patch(patch)
}

/// The patch of a mirror's annotations about a held revision; empty for other objects. They are written
/// with the status: a node may write nothing else of a pod.
fn held_annotations(api: &Pod, pod: &Pod) -> serde_json::Map<String, Value> {
    if !is_mirror_pod(api) {
        return serde_json::Map::new();
    }
    let differs = |key: &&str| annotation(&api.metadata, key) != annotation(&pod.metadata, key);
    let changed = keys::HELD.into_iter().filter(differs);
    changed
        .map(|key| (key.to_owned(), json!(annotation(&pod.metadata, key))))
        .collect_object()
}

/// Whether a finished pod's mirror would have to show a pod that runs again: the static pod was removed
/// and added again unchanged. Such a mirror must be replaced.
pub fn is_revived(mirror: &Pod, computed: &PodStatus) -> bool {
    let phase_of = |status: &PodStatus| phase::terminal(status.phase.as_deref());
    let finished = mirror.status.as_ref().and_then(phase_of).is_some();
    let runs = |s: &ContainerStatus| s.state.as_ref().is_some_and(|s| s.running.is_some());
    let statuses = computed.container_statuses.iter().flatten();
    let inits = computed.init_container_statuses.iter().flatten();
    finished && phase_of(computed).is_none() && statuses.chain(inits).any(runs)
}

/// Lays what we own over the API server's status.
fn overlay(new: &mut PodStatus, old: &PodStatus, input: &MergeInput<'_>) {
    let computed = input.computed;
    let was = phase::terminal(old.phase.as_deref());
    let is = phase::terminal(computed.phase.as_deref());
    let ends = was.is_none() && is.is_some();
    let same_phase = old.phase == computed.phase;
    if (was.is_none() || same_phase) && !(ends && input.may_run) {
        new.phase.clone_from(&computed.phase);
        // The reason of a finished pod stays, unless there is a better one.
        let or_kept = |ours: &Option<String>, theirs: &Option<String>| {
            let kept = was.and(theirs.as_ref());
            ours.as_ref().filter(|t| !t.is_empty()).or(kept).cloned()
        };
        new.reason = or_kept(&computed.reason, &old.reason);
        new.message = or_kept(&computed.message, &old.message);
    }
    new.start_time = old.start_time.clone().or(computed.start_time.clone());
    new.qos_class = old.qos_class.clone().or(computed.qos_class.clone());
    let mut lay = |field: fn(&mut PodStatus) -> &mut Option<Vec<ContainerStatus>>,
                   ours: &Option<Vec<ContainerStatus>>| {
        if ours.is_some() {
            field(new).clone_from(ours);
        }
    };
    lay(|s| &mut s.container_statuses, &computed.container_statuses);
    lay(
        |s| &mut s.init_container_statuses,
        &computed.init_container_statuses,
    );
    lay(
        |s| &mut s.ephemeral_container_statuses,
        &computed.ephemeral_container_statuses,
    );
    if computed.resources.is_some() {
        new.resources.clone_from(&computed.resources);
    }
    reported::keep(new, old);
    if computed.host_ip.is_some() {
        new.host_ip.clone_from(&computed.host_ip);
        new.host_ips.clone_from(&computed.host_ips);
    }
    if computed.pod_ip.is_some() {
        new.pod_ip.clone_from(&computed.pod_ip);
        new.pod_ips.clone_from(&computed.pod_ips);
    }
    new.observed_generation = old.observed_generation.max(generation(input));
    new.conditions = Some(conditions(old, input, ends));
    if phase::terminal(new.phase.as_deref()).is_some() {
        unready(new, old, input.now);
    }
}

/// The generation of the spec that the status is about. None for mirrors, which are never updated
/// (upstream leaves it empty), and where the API server doesn't count generations of pods.
fn generation(input: &MergeInput<'_>) -> Option<i64> {
    let counted = input.pod.metadata.generation.filter(|g| *g > 0);
    counted.filter(|_| !is_mirror_pod(input.api))
}

/// Foreign conditions as they are, then ours; their times of change as the API server has them
/// while their values are the same.
fn conditions(old: &PodStatus, input: &MergeInput<'_>, ends: bool) -> Vec<PodCondition> {
    let before = old.conditions.as_deref().unwrap_or_default();
    let ours = input.computed.conditions.as_deref().unwrap_or_default();
    let is_owned = |c: &&PodCondition| OWNED.contains(&c.type_.as_str());
    let disrupted = ours
        .iter()
        .find(|c| c.type_ == DISRUPTION_TARGET)
        .filter(|_| ends && !input.may_run);
    let foreign = before
        .iter()
        .filter(|c| !is_owned(c) && (disrupted.is_none() || c.type_ != DISRUPTION_TARGET));
    let generation = generation(input);
    let dated = ours.iter().filter(is_owned).chain(disrupted).map(|ours| {
        let known = before.iter().find(|c| c.type_ == ours.type_);
        let known_at = known
            .filter(|c| c.status == ours.status)
            .and_then(|c| c.last_transition_time.clone());
        PodCondition {
            last_transition_time: known_at.or(ours.last_transition_time.clone()),
            last_probe_time: known.and_then(|c| c.last_probe_time.clone()),
            observed_generation: generation.max(known.and_then(|c| c.observed_generation)),
            ..ours.clone()
        }
    });
    foreign.cloned().chain(dated).collect()
}

/// A finished pod is never ready, whatever the last reading of its containers was.
fn unready(new: &mut PodStatus, old: &PodStatus, now: Timestamp) {
    let reason = if new.phase.as_deref() == Some(phase::SUCCEEDED) {
        "PodCompleted"
    } else {
        "PodFailed"
    };
    for condition in new.conditions.iter_mut().flatten() {
        let about_ready = matches!(condition.type_.as_str(), "Ready" | "ContainersReady");
        if !about_ready || condition.status != "True" {
            continue;
        }
        let before = old.conditions.iter().flatten();
        let since = before
            .filter(|c| c.type_ == condition.type_ && c.status == "False")
            .find_map(|c| c.last_transition_time.clone());
        "False".clone_into(&mut condition.status);
        condition.reason = Some(reason.to_owned());
        condition.message = None;
        condition.last_transition_time = since.or(Some(meta::Time(now)));
    }
}

/// Makes the status what the API server would make of it: with times in whole seconds, and without
/// empty places; and cuts long termination messages.
fn normalize(pod: &Pod, status: &mut PodStatus) {
    let seconds = |time: &mut Option<meta::Time>| {
        if let Some(time) = time {
            *time = super::time(time.0);
        }
    };
    let count = spec::all_container_names(pod).count().max(1);
    let cut = |state: &mut Option<ContainerState>| {
        let Some(state) = state else { return };
        if let Some(running) = &mut state.running {
            seconds(&mut running.started_at);
        }
        if let Some(terminated) = &mut state.terminated {
            seconds(&mut terminated.started_at);
            seconds(&mut terminated.finished_at);
            if let Some(message) = &mut terminated.message {
                message.truncate(message.floor_char_boundary(MESSAGES_MAX / count));
            }
        }
    };
    seconds(&mut status.start_time);
    for condition in status.conditions.iter_mut().flatten() {
        seconds(&mut condition.last_transition_time);
        seconds(&mut condition.last_probe_time);
    }
    let inits = status.init_container_statuses.iter_mut().flatten();
    let apps = status.container_statuses.iter_mut().flatten();
    let added = status.ephemeral_container_statuses.iter_mut().flatten();
    for container in inits.chain(apps).chain(added) {
        cut(&mut container.state);
        cut(&mut container.last_state);
    }
}

/// The first container that the API server has as ended for good, and that now would not be. The
/// API server refuses such a status.
fn revived_container(pod: &Pod, old: &PodStatus, new: &PodStatus) -> Option<String> {
    let of = |status: &PodStatus| -> Vec<core::ContainerStatus> {
        let apps = status.container_statuses.iter().flatten();
        let inits = status.init_container_statuses.iter().flatten();
        apps.chain(inits).cloned().collect()
    };
    let ended = |status: &ContainerStatus| {
        let state = status.state.as_ref()?;
        state.terminated.as_ref().map(|t| t.exit_code)
    };
    let new = of(new);
    of(old).into_iter().find_map(|old| {
        let code = ended(&old)?;
        let (_, container) = spec::find_container(pod, &old.name)?;
        let may_restart = could_restart_all(pod) || should_restart(pod, container, code);
        let now = new.iter().find(|now| now.name == old.name)?;
        (!may_restart && ended(now).is_none()).then_some(old.name)
    })
}
