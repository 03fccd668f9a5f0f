//! Conditions of our Node, from readings.
//!
//! Upstream: `pkg/kubelet/nodestatus/setters.go`.

use super::{Readings, RuntimeReach};
use crate::api::Timestamp;
use crate::api::core::NodeCondition;
use crate::api::meta::Time;
use crate::pressure::Pressure;

/// How many problems of pods a condition's message names; the rest are counted.
const PROBLEMS_NAMED_MAX: usize = 5;
/// Maximum length of a condition's message, in bytes; the API server accepts 32 KiB, but nobody reads
/// that.
const MESSAGE_MAX: usize = 1024;

struct NewCondition {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// The conditions of our Node, `Ready` last. Each keeps its `lastTransitionTime` from `before`
/// unless its status changed.
pub fn compute_conditions(
    readings: &Readings,
    problems: &PodProblems,
    before: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let pressure = |of: Pressure, bad: (&'static str, &str), good: (&'static str, &str)| {
        let (kind, status) = (of.as_str(), readings.pressures.contains(&of));
        let (reason, message) = if status { bad } else { good };
        NewCondition {
            kind,
            status,
            reason,
            message: message.to_owned(),
        }
    };
    [
        pressure(
            Pressure::Memory,
            (
                "KubeletHasInsufficientMemory",
                "the node has insufficient memory available",
            ),
            (
                "KubeletHasSufficientMemory",
                "the node has sufficient memory available",
            ),
        ),
        pressure(
            Pressure::Disk,
            (
                "KubeletHasDiskPressure",
                "the node has disk pressure: too little space or too few inodes",
            ),
            ("KubeletHasNoDiskPressure", "the node has no disk pressure"),
        ),
        pressure(
            Pressure::Pid,
            (
                "KubeletHasInsufficientPID",
                "the node has insufficient PID available",
            ),
            (
                "KubeletHasSufficientPID",
                "the node has sufficient PID available",
            ),
        ),
        mirrors(&problems.mirrors),
        rollouts(&problems.rollouts),
        ready(&readings.engine),
    ]
    .into_iter()
    .map(|computed| condition(computed, before, now))
    .collect()
}

/// The last known conditions of the Node: those reported last, whether written or not, except for those
/// that others set to `Unknown` since, and those never reported.
pub fn believed_conditions(
    reported: &[NodeCondition],
    base: &[NodeCondition],
) -> Vec<NodeCondition> {
    let is_reported = |kind: &str| reported.iter().any(|reported| reported.type_ == kind);
    reported
        .iter()
        .map(|reported| {
            base.iter()
                .find(|base| base.type_ == reported.type_ && base.status == "Unknown")
                .unwrap_or(reported)
        })
        .chain(base.iter().filter(|base| !is_reported(&base.type_)))
        .cloned()
        .collect()
}

/// Problems of static pods for the Node's conditions, one line per pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodProblems {
    /// Pods without a mirror pod.
    pub mirrors: Vec<String>,
    /// Pods whose newest version is held or was restored.
    pub rollouts: Vec<String>,
}

fn mirrors(problems: &[String]) -> NewCondition {
    health(
        "MirrorPodsHealthy",
        ("MirrorPodsPosted", "every static pod has its mirror pod"),
        "MirrorPodsMissing",
        problems,
    )
}

fn rollouts(problems: &[String]) -> NewCondition {
    health(
        "RolloutsHealthy",
        (
            "NewestVersionsRun",
            "no version of a static pod is held or was restored",
        ),
        "VersionsHeldOrRestored",
        problems,
    )
}

/// A condition that is true where there are no problems, and else names some.
fn health(
    kind: &'static str,
    good: (&'static str, &str),
    bad: &'static str,
    problems: &[String],
) -> NewCondition {
    if problems.is_empty() {
        let (reason, message) = good;
        return NewCondition {
            kind,
            status: true,
            reason,
            message: message.to_owned(),
        };
    }
    let named: Vec<&str> = problems
        .iter()
        .take(PROBLEMS_NAMED_MAX)
        .map(String::as_str)
        .collect();
    let mut message = named.join("; ");
    truncate(&mut message);
    if problems.len() > named.len() {
        let more = problems.len() - named.len();
        message = format!("{message}; and {more} more");
    }
    NewCondition {
        kind,
        status: false,
        reason: bad,
        message,
    }
}

fn ready(engine: &RuntimeReach) -> NewCondition {
    let kind = "Ready";
    match engine {
        RuntimeReach::Up => NewCondition {
            kind,
            status: true,
            reason: "KubeletReady",
            message: "mirrorlet is posting ready status".to_owned(),
        },
        RuntimeReach::Unknown => NewCondition {
            kind,
            status: false,
            reason: "KubeletNotReady",
            message: "the Docker Engine has not been reached yet".to_owned(),
        },
        RuntimeReach::Down(cause) => {
            let mut message = format!("the Docker Engine is down: {cause}");
            truncate(&mut message);
            NewCondition {
                kind,
                status: false,
                reason: "KubeletNotReady",
                message,
            }
        }
    }
}

fn truncate(message: &mut String) {
    if message.len() > MESSAGE_MAX {
        message.truncate(message.floor_char_boundary(MESSAGE_MAX));
        message.push('…');
    }
}

fn condition(computed: NewCondition, before: &[NodeCondition], now: Timestamp) -> NodeCondition {
    let status = if computed.status { "True" } else { "False" };
    let since = before
        .iter()
        .find(|condition| condition.type_ == computed.kind && condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    NodeCondition {
        type_: computed.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(computed.reason.to_owned()),
        message: Some(computed.message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}
