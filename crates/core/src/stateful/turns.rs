//! The order of a `StatefulSet`: the pods that may start, and those that may stop, now.
//!
//! Upstream: `pkg/controller/statefulset/stateful_set_control.go` (`updateStatefulSet`,
//! `processReplica`, `processCondemned`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::StatefulSet;
use crate::api::Timestamp;
use crate::clock;

/// The state of a pod of a `StatefulSet` that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Member {
    /// It was started, and is Running and Ready since that time, if it is.
    Started(Option<Timestamp>),
    /// It is being stopped.
    Stopping,
}

/// The condition that a pod waits for, with the ordinal of the pod that must meet it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// It is not Running and Ready.
    Ready(i32),
    /// It has not been Ready for long enough.
    Available(i32),
    /// It has not stopped.
    Stopped(i32),
}

impl Wait {
    /// The condition in words, after "once".
    #[must_use]
    pub fn words(self, set: &StatefulSet) -> String {
        match self {
            Self::Ready(ordinal) => format!("{} is Running and Ready", set.pod_name(ordinal)),
            Self::Available(ordinal) => format!(
                "{} has been Ready for {} s",
                set.pod_name(ordinal),
                set.min_ready.as_secs()
            ),
            Self::Stopped(ordinal) => format!("{} has stopped", set.pod_name(ordinal)),
        }
    }
}

/// The decision about the pods of a `StatefulSet`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Turns {
    /// The pods that are to be there now.
    pub runs: BTreeSet<i32>,
    /// The pods that don't start yet, or don't stop yet, with the reasons.
    pub waits: BTreeMap<i32, Wait>,
    /// When to decide again though nothing happens.
    pub look_again: Option<Duration>,
}

/// Decides which pods of a `StatefulSet` must exist now.
///
/// A started pod stays as long as the document includes it. In order, a pod starts once all before it
/// are Running and Ready, for `minReadySeconds`, and nothing of an earlier pod with its name is left.
/// Excess pods stop from the last one on, each once the previous one has stopped and all that stay are
/// Running and Ready, for as long. Upstream also waits before it stops an excess pod that is not the
/// first one that is not Ready; here it stops.
pub fn turns(set: &StatefulSet, members: &BTreeMap<i32, Member>, now: Timestamp) -> Turns {
    let mut turns = Turns::default();
    if !set.ordered {
        turns.runs.extend(set.ordinals.clone());
        return turns;
    }
    let mut first: Option<Wait> = None;
    for ordinal in set.ordinals.clone() {
        let own = match members.get(&ordinal) {
            Some(Member::Started(ready)) => {
                turns.runs.insert(ordinal);
                unavailable(set, ordinal, *ready, now, &mut turns.look_again)
            }
            Some(Member::Stopping) => {
                let wait = Wait::Stopped(ordinal);
                turns.waits.insert(ordinal, first.unwrap_or(wait));
                Some(wait)
            }
            None => {
                if let Some(wait) = first {
                    turns.waits.insert(ordinal, wait);
                } else {
                    turns.runs.insert(ordinal);
                }
                Some(Wait::Ready(ordinal))
            }
        };
        first = first.or(own);
    }
    stop(set, members, first, &mut turns);
    turns
}

/// Keeps the excess pods, except for the one whose turn it is.
fn stop(
    set: &StatefulSet,
    members: &BTreeMap<i32, Member>,
    first: Option<Wait>,
    turns: &mut Turns,
) {
    let condemned = members
        .iter()
        .rev()
        .filter(|(ordinal, _)| !set.ordinals.contains(*ordinal));
    let stopping = condemned
        .clone()
        .find(|(_, member)| **member == Member::Stopping);
    let mut wait = stopping
        .map(|(ordinal, _)| Wait::Stopped(*ordinal))
        .or(first);
    for (ordinal, member) in condemned {
        if *member == Member::Stopping {
            continue;
        }
        if let Some(wait) = wait {
            turns.runs.insert(*ordinal);
            turns.waits.insert(*ordinal, wait);
        }
        wait.get_or_insert(Wait::Stopped(*ordinal));
    }
}

/// The condition that a started pod must meet before the next one may start.
fn unavailable(
    set: &StatefulSet,
    ordinal: i32,
    ready: Option<Timestamp>,
    now: Timestamp,
    look_again: &mut Option<Duration>,
) -> Option<Wait> {
    let Some(since) = ready else {
        return Some(Wait::Ready(ordinal));
    };
    let left = set.min_ready.saturating_sub(clock::since(since, now));
    if left.is_zero() {
        return None;
    }
    *look_again = Some(look_again.map_or(left, |known| known.min(left)));
    Some(Wait::Available(ordinal))
}

#[cfg(test)]
mod tests;
