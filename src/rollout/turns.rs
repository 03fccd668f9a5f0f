//! The pods of `StatefulSet`s take turns: those whose turn to start has not come are held back, and
//! those whose turn to stop has not come stay.
//!
//! Nothing is stored for that. A pod was started if its history has a current revision, or if the
//! runtime has it; so after an agent is killed at any moment, the next one continues from the existing
//! state.

use std::collections::{BTreeMap, BTreeSet};

use super::Rollouts;
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::{Merged, Waiting};
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::{History, Revision, ready_since};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::stateful::{Member, StatefulSet, Turns, turns};
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_host::telemetry::occurrences;

/// Reason of the note that a pod waits for its turn.
const WAITS: &str = "WaitsForTurn";

/// The pods of `StatefulSet`s that wait for their turn.
#[derive(Default)]
pub(super) struct Queues {
    /// The conditions that they wait for, as last reported.
    reported: BTreeMap<FullName, String>,
    /// The pods in the runtime at this agent's first check, until the workers have adopted them; none
    /// before.
    left: Option<BTreeSet<PodUid>>,
}

impl Queues {
    /// Whether a pod waits.
    pub(super) fn any(&self) -> bool {
        !self.reported.is_empty()
    }

    /// Whether an earlier agent left a pod, and no worker has it yet.
    fn has_left(&self, uid: &PodUid) -> bool {
        self.left.as_ref().is_some_and(|left| left.contains(uid))
    }
}

/// The pods of a set, by number.
#[derive(Default)]
struct Row {
    /// Those that its document wants.
    wanted: BTreeMap<i32, PodUid>,
    /// The names of those that there are or were.
    known: BTreeMap<i32, FullName>,
    /// Their states.
    members: BTreeMap<i32, Member>,
}

impl Rollouts {
    /// Removes the pods of `StatefulSet`s that don't start yet from the wanted ones, and adds those
    /// that don't stop yet.
    pub(super) fn take_turns(&mut self, merged: &mut Merged, listed: &Pods, now: Timestamp) {
        self.look_at_left(listed);
        let sets = merged.sets.values().filter(|set| set.ordered).cloned();
        for set in sets.collect::<Vec<_>>() {
            let row = self.row(&set, merged);
            let decision = turns(&set, &row.members, now);
            if let Some(wait) = decision.look_again {
                self.look_in(wait);
            }
            // Written down before it stops: the next agent would take it for one that was started,
            // and start it again.
            let stops = |(ordinal, member): (&i32, &Member)| {
                matches!(member, Member::Started(_)) && !decision.runs.contains(ordinal)
            };
            self.switched |= row.members.iter().any(stops);
            self.queue(&set, &row, &decision, merged);
        }
        for (name, waiting) in &merged.waits {
            let uid = waiting.pod.as_ref().map(SourcePod::uid);
            let uid = uid.or_else(|| Some(self.histories.get(name)?.current()?.uid()));
            let is_news = self.queues.reported.get(name) != Some(&waiting.message);
            if let Some(uid) = uid.filter(|_| is_news) {
                let telemetry = &self.options.telemetry;
                occurrences::usual_note(telemetry.pod(name, &uid), WAITS, &waiting.message);
            }
        }
        let waits = merged.waits.iter();
        self.queues.reported = waits
            .map(|(name, waiting)| (name.clone(), waiting.message.clone()))
            .collect_map();
    }

    /// Notes the pods that an earlier agent left, until the workers have them.
    fn look_at_left(&mut self, listed: &Pods) {
        let uids = || listed.0.iter().map(|pod| pod.uid.clone()).collect_set();
        let left = self.queues.left.get_or_insert_with(uids);
        let board = &self.options.board;
        left.retain(|uid| board.get(uid).is_none() && listed.has(uid));
    }

    /// The pods of a set as they are.
    fn row(&self, set: &StatefulSet, merged: &Merged) -> Row {
        let mut row = Row::default();
        let key = WorkloadKey::of_set(set);
        for (uid, pod) in merged.pods.iter().filter(|(_, pod)| !pod.is_api()) {
            if WorkloadKey::of(&pod.pod).as_ref() != Some(&key) {
                continue;
            }
            let Some(ordinal) = set.ordinal(manifest_name(&pod.pod)) else {
                continue;
            };
            row.wanted.insert(ordinal, uid.clone());
            row.known.insert(ordinal, pod.full_name());
            // The agent that started it could not write that down.
            if self.queues.has_left(uid) {
                row.members.insert(ordinal, Member::Started(None));
            }
        }
        for (name, history) in &self.histories {
            let last = history.revisions.last().map(|revision| &revision.pod);
            let Some(pod) = last.filter(|pod| WorkloadKey::of(pod).as_ref() == Some(&key)) else {
                continue;
            };
            let (Some(ordinal), Some(member)) =
                (set.ordinal(manifest_name(pod)), self.member_of_set(history))
            else {
                continue;
            };
            row.known.insert(ordinal, name.clone());
            if member != Member::Stopping || !row.members.contains_key(&ordinal) {
                row.members.insert(ordinal, member);
            }
        }
        row
    }

    /// The state of a pod; none if there is nothing of it.
    fn member_of_set(&self, history: &History) -> Option<Member> {
        if let Some((current, _)) = &history.current {
            return Some(Member::Started(self.ready_since(current)));
        }
        let is_there = |revision: &Revision| {
            let uid = revision.uid();
            self.queues.has_left(&uid) || self.options.board.get(&uid).is_some()
        };
        let mut revisions = history.revisions.iter();
        revisions.any(is_there).then_some(Member::Stopping)
    }

    /// Since when a pod is Running and Ready.
    fn ready_since(&self, uid: &PodUid) -> Option<Timestamp> {
        let status = self.options.board.get(uid)?.status?;
        let runs = status.phase.as_deref() == Some("Running");
        ready_since(&status).filter(|_| runs)
    }

    /// Puts a decision about a set into the merged pods.
    fn queue(&self, set: &StatefulSet, row: &Row, decision: &Turns, merged: &mut Merged) {
        for (ordinal, uid) in &row.wanted {
            let wait = decision.waits.get(ordinal);
            if let Some(wait) = wait.filter(|_| !decision.runs.contains(ordinal))
                && let Some(pod) = merged.pods.remove(uid)
            {
                let message = format!("starts once {}", wait.words(set));
                let pod = Some(pod);
                let name = row.known.get(ordinal).cloned();
                merged
                    .waits
                    .extend(name.map(|name| (name, Waiting { pod, message })));
            }
        }
        let kept = decision.runs.iter().filter(|o| !row.wanted.contains_key(o));
        for ordinal in kept {
            let Some(name) = row.known.get(ordinal) else {
                continue;
            };
            let is_taken = merged.pods.values().any(|pod| pod.full_name() == *name);
            let history = self.histories.get(name);
            let wanted = history.and_then(|history| {
                let newest = history.newest_revision();
                newest.or_else(|| history.current())
            });
            let Some(revision) = wanted.filter(|_| !is_taken) else {
                continue;
            };
            let pod = SourcePod {
                config: revision.config.clone(),
                ..SourcePod::new(revision.pod.clone(), revision.origin.clone())
            };
            merged.pods.insert(pod.uid(), pod);
            if let Some(wait) = decision.waits.get(ordinal) {
                let message = format!("stops once {}", wait.words(set));
                let waiting = Waiting { pod: None, message };
                merged.waits.insert(name.clone(), waiting);
            }
        }
    }
}
