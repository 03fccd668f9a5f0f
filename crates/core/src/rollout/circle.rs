//! Pods that swap host ports: each needs a port that another one has, so none of them can be updated
//! alone.
//!
//! All pods of such a circle are updated together, once every one of them can be started with the
//! others' new versions beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Cause, Change, Decision, History, Outcome, Preparation, Revision, Turn};
use crate::admit::host_port_holder;
use crate::api::{FullName, Pod, PodUid};
use crate::desired::SourcePod;
use crate::small::SmallCollect;

/// Reason of a version that can't be updated together with other pods.
const REFUSED: &str = "StartFirstRefused";

/// Returns the version that will replace the running one, regardless of its host ports; none if the
/// running one stays.
///
/// `has_failed` says that the running one failed its judgement and was not replaced. `restore` is the
/// node's default for restores.
pub fn next_version(
    history: &History,
    wanted: &SourcePod,
    turn: &Turn,
    has_failed: bool,
    restore: bool,
) -> Option<Arc<Pod>> {
    let current = history.current().filter(|_| history.beside.is_none())?;
    let (target, _) = history.target_of(wanted);
    let uid = PodUid::of(&target);
    let edited = history.newest.as_ref() != Some(&wanted.uid());
    let failed = |known: &Revision| matches!(known.outcome, Outcome::Failed(_));
    let tried = !edited && history.get(&uid).is_some_and(failed);
    let may_move = !history.paused && *turn == Turn::Now && !tried;
    if current.uid() != uid && may_move {
        return Some(target);
    }
    let fallback = history.fallback(restore).filter(|_| has_failed)?;
    Some(Arc::clone(&fallback.pod))
}

/// Returns the pods of each circle: every one of them needs a host port that another one of them has,
/// and none of a pod outside.
///
/// `next` are the next versions of pods, `running` are the pods that currently have host ports.
pub fn circles(
    next: &BTreeMap<FullName, Arc<Pod>>,
    running: &[Arc<Pod>],
) -> Vec<BTreeSet<FullName>> {
    let holders = |pod: &Arc<Pod>| -> BTreeSet<FullName> {
        let running = running.iter();
        let holds =
            running.filter(|other| host_port_holder(pod, std::slice::from_ref(other)).is_some());
        holds.map(|holder| FullName::of(holder)).collect_set()
    };
    let waits_for: BTreeMap<&FullName, BTreeSet<FullName>> = next
        .iter()
        .map(|(name, pod)| (name, holders(pod)))
        .filter(|(_, holders)| !holders.is_empty())
        .collect_map();
    let reached = |name: &FullName| -> BTreeSet<FullName> {
        let mut found = BTreeSet::new();
        let mut open = vec![name];
        while let Some(name) = open.pop() {
            for holder in waits_for.get(name).into_iter().flatten() {
                if found.insert(holder.clone()) {
                    open.push(holder);
                }
            }
        }
        found
    };
    let mut circles: Vec<BTreeSet<FullName>> = Vec::new();
    for name in waits_for.keys().copied() {
        let circle = reached(name);
        if circles.contains(&circle) {
            continue;
        }
        if circle.contains(name) && circle.iter().all(|other| reached(other).contains(name)) {
            circles.push(circle);
        }
    }
    circles
}

/// One pod of a circle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swapped {
    /// Why it can't be updated alone.
    pub alone: Cause,
    /// Its preparation for an update together with the others.
    pub own: Preparation,
}

/// Returns the preparation of each pod of a circle: none is complete before all others are.
pub fn together(pods: &BTreeMap<FullName, Swapped>) -> BTreeMap<FullName, Preparation> {
    let under_way = pods.values().any(|pod| pod.own == Preparation::UnderWay);
    let of = |name: &FullName, pod: &Swapped| {
        if let Preparation::Failed(_) = pod.own {
            return pod.own.clone();
        }
        let mut others = pods.iter().filter(|(other, _)| *other != name);
        let stuck = others.find_map(|(other, pod)| match &pod.own {
            Preparation::Failed(cause) => Some((other, cause)),
            Preparation::UnderWay | Preparation::Done => None,
        });
        match stuck {
            Some((other, cause)) => {
                let FullName { namespace, name } = other;
                let message = format!(
                    "{}; the pods swap host ports and are updated together, but pod {namespace}/{name} can't be updated yet: {}: {}",
                    pod.alone.message, cause.reason, cause.message
                );
                Preparation::Failed(Cause {
                    message: message.into(),
                    ..pod.alone.clone()
                })
            }
            None if under_way => Preparation::UnderWay,
            None => Preparation::Done,
        }
    };
    pods.iter()
        .map(|(name, pod)| (name.clone(), of(name, pod)))
        .collect_map()
}

/// Why a pod of the circle `pods` can't be started beside its running version.
pub fn swap_refused(pods: &BTreeSet<FullName>) -> Cause {
    let names = pods.iter();
    let names = names.map(|FullName { namespace, name }| format!("{namespace}/{name}"));
    let names = names.collect::<Vec<_>>().join(", ");
    let words = format!(
        "pods that swap host ports ({names}) can't be started before their running versions are stopped; set mirrorlet.dev/rollout: Recreate, or give one of them a free port first"
    );
    Cause::new(REFUSED, words)
}

/// Whether these decisions replace the running version of every pod of a circle.
pub fn all_move<'a>(mut decisions: impl Iterator<Item = &'a Decision>) -> bool {
    decisions.all(|decision| {
        matches!(
            decision.change,
            Some(Change::Switched | Change::Restored | Change::FellBack)
        )
    })
}
