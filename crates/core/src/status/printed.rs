//! A pod's status in one word and one sentence.
//!
//! Upstream: `pkg/printers/internalversion/printers.go` (`printPod`).

use crate::api::Pod;
use crate::api::core::{ContainerStateTerminated, ContainerStatus, PodStatus};
use crate::observed::{Role, judged_exit_code};
use crate::pressure;
use crate::spec;

use super::containers::{POD_INITIALIZING, container_statuses};
use super::phase;

/// Returns the word for kubectl's STATUS column, and its message: why the pod isn't simply running, or
/// an empty string.
pub fn printed_status(pod: &Pod, status: &PodStatus) -> (String, String) {
    let mut word = status
        .reason
        .clone()
        .filter(|reason| !reason.is_empty())
        .or_else(|| status.phase.clone())
        .unwrap_or_default();
    let mut message = status.message.clone().unwrap_or_default();
    // Why its containers ended, which kubectl has no word for.
    if word == pressure::EVICTED {
        return (word, message);
    }
    let initializing = initializing(pod, status);
    if let Some((reason, why)) = &initializing {
        (word, message) = (reason.clone(), why.clone());
    }
    if initializing.is_none() || holds(status, "Initialized") {
        of_containers(status, &mut word, &mut message);
    }
    let terminal = phase::terminal(status.phase.as_deref()).is_some();
    if pod.metadata.deletion_timestamp.is_some() && !terminal {
        return ("Terminating".to_owned(), String::new());
    }
    (word, message)
}

/// The status of the first unfinished init container; `None` if all are done.
fn initializing(pod: &Pod, status: &PodStatus) -> Option<(String, String)> {
    let statuses = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let total = spec::spec(pod).init_containers.as_ref().map_or(0, Vec::len);
    for (index, container) in statuses.iter().enumerate() {
        let state = container.state.as_ref();
        let terminated = state.and_then(|s| s.terminated.as_ref());
        let waiting = state.and_then(|s| s.waiting.as_ref());
        let found = spec::find_container(pod, &container.name);
        let role = found.map_or(Role::Init, |(role, _)| role);
        let has_succeeded = terminated.is_some_and(|t| {
            let reason = t.reason.as_deref().unwrap_or_default();
            judged_exit_code(role, t.exit_code, reason) == 0
        });
        if has_succeeded || (role == Role::Sidecar && container.started == Some(true)) {
            continue;
        }
        if let Some(terminated) = terminated {
            let (reason, why) = ended(container, terminated);
            return Some((format!("Init:{reason}"), why));
        }
        let reason = waiting
            .and_then(|w| w.reason.as_deref())
            .filter(|reason| !reason.is_empty() && *reason != POD_INITIALIZING);
        if let Some(reason) = reason {
            let mut why = waiting.and_then(|w| w.message.clone()).unwrap_or_default();
            why.push_str(&last_end(container));
            return Some((format!("Init:{reason}"), why));
        }
        return Some((format!("Init:{index}/{total}"), String::new()));
    }
    None
}

/// Lets regular containers overrule the word; the first in order has the last say.
fn of_containers(status: &PodStatus, word: &mut String, message: &mut String) {
    let mut any_ready = false;
    for container in status.container_statuses.iter().flatten().rev() {
        let state = container.state.as_ref();
        let waiting = state.and_then(|s| s.waiting.as_ref());
        let waits = waiting
            .and_then(|w| w.reason.as_ref())
            .filter(|reason| !reason.is_empty());
        if let Some(reason) = waits {
            word.clone_from(reason);
            *message = waiting.and_then(|w| w.message.clone()).unwrap_or_default();
            message.push_str(&last_end(container));
        } else if let Some(terminated) = state.and_then(|s| s.terminated.as_ref()) {
            (*word, *message) = ended(container, terminated);
        } else if container.ready && state.is_some_and(|s| s.running.is_some()) {
            any_ready = true;
        }
    }
    if word == "Completed" && any_ready {
        word.clear();
        word.push_str(if is_ready(status) {
            phase::RUNNING
        } else {
            "NotReady"
        });
    }
}

/// Returns the message about a pod with an ended container whose restart fails with `error`; none if no
/// container has ended, or the pod has.
pub fn ended_and_failing(status: &PodStatus, error: &str) -> Option<String> {
    if phase::terminal(status.phase.as_deref()).is_some() {
        return None;
    }
    let ended = container_statuses(status).find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        (ended.exit_code != 0).then_some(ended)
    });
    Some(format!("{error}{}", exit_of(ended?)))
}

/// How the last instance of a waiting container ended, to follow the sentence that says why it waits.
fn last_end(container: &ContainerStatus) -> String {
    let last = container.last_state.as_ref();
    let ended = last.and_then(|state| state.terminated.as_ref());
    ended.map_or_else(String::new, exit_of)
}

/// How an instance ended, to follow a sentence.
fn exit_of(ended: &ContainerStateTerminated) -> String {
    let reason = ended.reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
    let words = ended.message.as_deref().map(str::trim_end);
    let line = words
        .and_then(|words| words.lines().last())
        .filter(|line| !line.is_empty());
    let line = line.map_or_else(String::new, |line| format!(": {line}"));
    format!("; last exit code {}{reason}{line}", ended.exit_code)
}

/// A container that ended: its reason, or else its signal or exit code; and a sentence.
fn ended(container: &ContainerStatus, terminated: &ContainerStateTerminated) -> (String, String) {
    let signal = terminated.signal.filter(|s| *s != 0);
    let reason = terminated.reason.as_deref().filter(|r| !r.is_empty());
    let word = match (reason, signal) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", terminated.exit_code),
    };
    let given = terminated.message.clone().filter(|m| !m.is_empty());
    let why = given.unwrap_or_else(|| {
        if terminated.exit_code == 0 {
            String::new()
        } else {
            format!(
                "container {} exited with {}",
                container.name, terminated.exit_code
            )
        }
    });
    (word, why)
}

/// Whether a condition is true.
fn holds(status: &PodStatus, kind: &str) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|c| c.type_ == kind && c.status == "True")
}

/// Whether the pod is Ready.
pub fn is_ready(status: &PodStatus) -> bool {
    holds(status, "Ready")
}
