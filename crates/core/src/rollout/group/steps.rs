//! The order in which the pods of a workload would be updated, if every new version were healthy.

use std::collections::{BTreeMap, BTreeSet};

use super::{Member, Turn, Updates, turns};
use crate::api::{FullName, Timestamp};
use crate::rollout::{Cause, Outcome, Revision};
use crate::small::SmallSort;

/// The order of an update.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Steps {
    /// The pods of each step, by number. A step begins once the pods of earlier steps are healthy.
    pub steps: Vec<Vec<FullName>>,
    /// The pods that keep their version, and why.
    pub kept: BTreeMap<FullName, Cause>,
}

/// Computes the order in which pods would be updated, using [`turns`]. Those of `held` can't be: the
/// pods that wait for them keep their version.
pub fn steps(
    mut members: Vec<Member>,
    updates: &Updates,
    restore: bool,
    held: &BTreeSet<FullName>,
) -> Steps {
    let mut found = Steps::default();
    let mut is_settled = false;
    loop {
        let turns = turns(&mut members, updates, restore);
        let wants = |member: &Member| {
            member.wants_update() && !member.history.stopped && !held.contains(&member.name)
        };
        let mut step: Vec<&mut Member> = Vec::new();
        for (member, turn) in members.iter_mut().zip(&turns) {
            if wants(member) && *turn == Turn::Now {
                step.push(member);
            }
        }
        if step.is_empty() && is_settled {
            for (member, turn) in members.iter().zip(turns) {
                if let Turn::Waits(cause) = turn
                    && wants(member)
                {
                    found.kept.insert(member.name.clone(), cause);
                }
            }
            return found;
        }
        if step.is_empty() {
            // Assumes that updates in progress succeed, and pods that are not Ready become so.
            is_settled = true;
            let others = members.iter_mut().filter(|member| !wants(member));
            others
                .filter(|member| !held.contains(&member.name))
                .for_each(Member::settle);
            continue;
        }
        step.small_sort_by_key(|member| member.number);
        found
            .steps
            .push(step.iter().map(|member| member.name.clone()).collect());
        step.into_iter().for_each(Member::update);
    }
}

impl Member {
    /// Its target runs, and is healthy.
    fn update(&mut self) {
        let Some(target) = self.history.target().map(Revision::uid) else {
            return;
        };
        let known = self.history.current.as_ref();
        let since = known.map_or(Timestamp::UNIX_EPOCH, |(_, since)| *since);
        self.history.current = Some((target, since));
        self.settle();
    }

    /// The version that runs is healthy; one that runs beside it takes its place.
    fn settle(&mut self) {
        if let Some(beside) = self.history.beside.take() {
            self.history.current = Some(beside);
        }
        let Some((current, _)) = self.history.current.clone() else {
            return;
        };
        let mut revisions = self.history.revisions.iter_mut();
        if let Some(revision) = revisions.find(|revision| revision.uid() == current)
            && revision.outcome == Outcome::Open
        {
            revision.outcome = Outcome::Healthy;
        }
        self.ready = true;
    }
}
