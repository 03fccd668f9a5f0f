//! Conditions of our Node, from readings.
//!
//! Upstream: `pkg/kubelet/nodestatus/setters.go`, `pkg/kubelet/eviction/defaults_linux.go`.

use std::time::Duration;

use super::{DiskReading, EngineSeen, Readings};
use crate::api::Timestamp;
use crate::api::core::NodeCondition;
use crate::api::meta::Time;

/// Less available memory than this is pressure: upstream's `memory.available<100Mi`.
const MEMORY_AVAILABLE_MIN: u64 = 100 << 20;
/// Less of the pods' disk than this is pressure: upstream's `nodefs.available<10%`.
const NODEFS_AVAILABLE_PERCENT: u64 = 10;
/// Less of the images' disk than this is pressure: upstream's `imagefs.available<15%`.
const IMAGEFS_AVAILABLE_PERCENT: u64 = 15;
/// Fewer inodes than this are pressure: upstream's `nodefs.inodesFree<5%`.
const INODES_FREE_PERCENT: u64 = 5;
/// Fewer process numbers than this are pressure. Upstream has no default; this is a guess that
/// leaves room for a shell to look with.
const PIDS_FREE_PERCENT: u64 = 5;
/// How long a pressure is told after it was last seen, so that it doesn't flap: upstream's
/// `evictionPressureTransitionPeriod`.
const PRESSURE_HOLD: Duration = Duration::from_mins(5);
/// How many problems of pods a condition's message names; the rest are counted.
const PROBLEMS_NAMED_MAX: usize = 5;
/// Longest message of a condition, in bytes; the API server takes 32 KiB, nobody reads that.
const MESSAGE_MAX: usize = 1024;

/// When each pressure was last seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressures {
    memory: Option<Timestamp>,
    disk: Option<Timestamp>,
    pids: Option<Timestamp>,
}

impl Pressures {
    /// These pressures after another look.
    #[must_use]
    pub fn after(self, readings: &Readings, now: Timestamp) -> Self {
        let seen = |under: bool, before: Option<Timestamp>| if under { Some(now) } else { before };
        Self {
            memory: seen(is_short_of_memory(readings), self.memory),
            disk: seen(readings.disks.iter().any(is_short_of_disk), self.disk),
            pids: seen(is_short_of_pids(readings), self.pids),
        }
    }
}

fn is_short_of_memory(readings: &Readings) -> bool {
    readings
        .memory_available_bytes
        .is_some_and(|bytes| bytes < MEMORY_AVAILABLE_MIN)
}

/// Whether a disk has too little space or too few inodes left.
#[must_use]
pub fn is_short_of_disk(disk: &DiskReading) -> bool {
    let bytes_percent = match disk.name {
        "imagefs" => IMAGEFS_AVAILABLE_PERCENT,
        _ => NODEFS_AVAILABLE_PERCENT,
    };
    is_below(disk.available_bytes, disk.capacity_bytes, bytes_percent)
        || is_below(disk.inodes_free, disk.inodes, INODES_FREE_PERCENT)
}

fn is_short_of_pids(readings: &Readings) -> bool {
    readings.pids.is_some_and(|pids| {
        is_below(
            pids.max.saturating_sub(pids.used),
            pids.max,
            PIDS_FREE_PERCENT,
        )
    })
}

/// Whether `left` is less than that share of `all`; never of nothing.
fn is_below(left: u64, all: u64, percent: u64) -> bool {
    u128::from(left) * 100 < u128::from(all) * u128::from(percent)
}

/// Whether a pressure is told at `now`.
fn is_told(seen: Option<Timestamp>, now: Timestamp) -> bool {
    seen.is_some_and(|seen| now.duration_since(seen).unsigned_abs() < PRESSURE_HOLD)
}

struct Told {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

/// The conditions of our Node, `Ready` last. Each keeps its `lastTransitionTime` from `before`
/// unless its status changed.
#[must_use]
pub fn compute_conditions(
    readings: &Readings,
    pressures: &Pressures,
    problems: &PodProblems,
    before: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let pressure = |kind, seen, bad: (&'static str, &str), good: (&'static str, &str)| {
        let status = is_told(seen, now);
        let (reason, message) = if status { bad } else { good };
        Told {
            kind,
            status,
            reason,
            message: message.to_owned(),
        }
    };
    [
        pressure(
            "MemoryPressure",
            pressures.memory,
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
            "DiskPressure",
            pressures.disk,
            (
                "KubeletHasDiskPressure",
                "the node has disk pressure: too little space or too few inodes",
            ),
            ("KubeletHasNoDiskPressure", "the node has no disk pressure"),
        ),
        pressure(
            "PIDPressure",
            pressures.pids,
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
    .map(|told| condition(told, before, now))
    .collect()
}

/// The conditions a Node is in before the next look: those told last, written or not, but for
/// what others declared unknown since, and what was never told.
#[must_use]
pub fn believed_conditions(told: &[NodeCondition], base: &[NodeCondition]) -> Vec<NodeCondition> {
    let is_told = |kind: &str| told.iter().any(|told| told.type_ == kind);
    told.iter()
        .map(|told| {
            base.iter()
                .find(|base| base.type_ == told.type_ && base.status == "Unknown")
                .unwrap_or(told)
        })
        .chain(base.iter().filter(|base| !is_told(&base.type_)))
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

fn mirrors(problems: &[String]) -> Told {
    told(
        "MirrorPodsHealthy",
        ("MirrorPodsPosted", "every static pod has its mirror pod"),
        "MirrorPodsMissing",
        problems,
    )
}

fn rollouts(problems: &[String]) -> Told {
    told(
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
fn told(
    kind: &'static str,
    good: (&'static str, &str),
    bad: &'static str,
    problems: &[String],
) -> Told {
    if problems.is_empty() {
        let (reason, message) = good;
        return Told {
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
    Told {
        kind,
        status: false,
        reason: bad,
        message,
    }
}

fn ready(engine: &EngineSeen) -> Told {
    let kind = "Ready";
    match engine {
        EngineSeen::Up => Told {
            kind,
            status: true,
            reason: "KubeletReady",
            message: "mirrorlet is posting ready status".to_owned(),
        },
        EngineSeen::Unknown => Told {
            kind,
            status: false,
            reason: "KubeletNotReady",
            message: "the Docker Engine has not been reached yet".to_owned(),
        },
        EngineSeen::Down(cause) => {
            let mut message = format!("the Docker Engine is down: {cause}");
            truncate(&mut message);
            Told {
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
        let end = (0..=MESSAGE_MAX)
            .rev()
            .find(|at| message.is_char_boundary(*at))
            .unwrap_or(0);
        message.truncate(end);
        message.push('…');
    }
}

fn condition(told: Told, before: &[NodeCondition], now: Timestamp) -> NodeCondition {
    let status = if told.status { "True" } else { "False" };
    let since = before
        .iter()
        .find(|condition| condition.type_ == told.kind && condition.status == status)
        .and_then(|condition| condition.last_transition_time.clone());
    NodeCondition {
        type_: told.kind.to_owned(),
        status: status.to_owned(),
        reason: Some(told.reason.to_owned()),
        message: Some(told.message),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: Some(since.unwrap_or(Time(now))),
    }
}
