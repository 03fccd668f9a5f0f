//! Decisions about all pods: about one after the other, except for those that swap host ports.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::ports::is_port;
use super::{ADMIT_PERIOD, Rollouts, lives, seen, starts_first, troubles};
use crate::store::board::{Phase as WorkerPhase, PodView};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::{
    Cause, Change, Decision, History, Input, Outcome, Phase, Preparation, Swapped, Turn, View,
    all_move, beside_pod, circles, decide, is_beside, next_version, swap_refused, together,
};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::status::trouble::Trouble;

/// The state that decisions are made from.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    /// The newest version of each pod.
    pub(super) wanted: &'a BTreeMap<FullName, SourcePod>,
    /// The turns of the pods of workloads.
    pub(super) turns: &'a BTreeMap<FullName, Turn>,
    /// The versions that were run so far.
    pub(super) before: &'a Merged,
    /// The pods in the runtime's last list.
    pub(super) listed: &'a Pods,
    /// The present time.
    pub(super) now: Timestamp,
}

/// A version that is to take the place of another.
struct Next {
    /// It, as it would be started.
    target: Arc<Pod>,
    running: Arc<Pod>,
}

/// Pods that swap host ports.
pub(super) struct Circle {
    pub(super) names: BTreeSet<FullName>,
    /// The running pods once all of them are updated.
    pub(super) after: Merged,
    /// The versions of them that run now.
    pub(super) stops: Vec<Arc<Pod>>,
}

impl Circle {
    /// The circles of pods whose next versions wait for each other's host ports.
    pub(super) fn all(
        next: &BTreeMap<FullName, Arc<Pod>>,
        before: &Merged,
        takes_room: impl Fn(&Pod) -> bool,
    ) -> Vec<Self> {
        let running = before.pods.values().map(|pod| &pod.pod);
        let running: Vec<Arc<Pod>> = running.filter(|pod| takes_room(pod)).cloned().collect();
        let found = circles(next, &running).into_iter();
        found.map(|names| Self::of(names, next, before)).collect()
    }

    fn of(names: BTreeSet<FullName>, next: &BTreeMap<FullName, Arc<Pod>>, before: &Merged) -> Self {
        let (mut after, mut stops) = (before.clone(), Vec::new());
        for running in before.pods.values().filter(|pod| !pod.is_api()) {
            let name = running.full_name();
            if let Some(pod) = next.get(&name).filter(|_| names.contains(&name)) {
                let next = SourcePod::new(Arc::clone(pod), running.origin.clone());
                after.pods.remove(&running.uid());
                after.pods.insert(next.uid(), next);
                stops.push(Arc::clone(&running.pod));
            }
        }
        Self {
            names,
            after,
            stops,
        }
    }
}

impl Rollouts {
    /// Decides about every pod. Those that swap host ports are updated together, or none of them is. Of
    /// others that need the same resources only the first one is updated: what it uses from now on
    /// counts for those after it. A restore takes precedence over an edit.
    pub(super) fn decide_all(&mut self, facts: Facts<'_>) -> BTreeMap<FullName, Decision> {
        let mut edits = BTreeSet::new();
        let alone = facts.wanted.keys().map(|name| {
            let next = self.next(name, facts);
            edits.extend(next.as_ref().map(|_| name.clone()));
            (name.clone(), self.preparation(name, next, facts, None))
        });
        let alone: BTreeMap<FullName, Preparation> = alone.collect_map();
        let mut room = Cow::Borrowed(facts.before);
        let mut decisions = BTreeMap::new();
        for circle in self.circles(&alone, facts) {
            if matches!(room, Cow::Owned(_)) {
                // It was made without what runs from now on.
                self.look_in(Duration::ZERO);
                break;
            }
            let decided = self.decide_circle(&circle, &alone, facts);
            make_room(&mut room, &decided, facts.wanted);
            decisions.extend(decided);
        }
        let rest = alone
            .iter()
            .filter(|(name, _)| !decisions.contains_key(*name));
        let (edits, others): (Vec<_>, Vec<_>) = rest.partition(|(name, _)| edits.contains(*name));
        let mut decided = BTreeMap::new();
        for (name, preparation) in others.into_iter().chain(edits) {
            let present = Facts {
                before: &room,
                ..facts
            };
            let refused = self.refused_since(name, preparation, present);
            let refused = refused.map(Preparation::Failed);
            let preparation = refused.as_ref().unwrap_or(preparation);
            let decision = self.decide(name, preparation, present, None);
            decided.extend(decision.map(|decision| (name.clone(), decision)));
            make_room(&mut room, &decided, facts.wanted);
            decisions.append(&mut decided);
        }
        decisions
    }

    /// The circles of pods that wait for host ports: for an update, or because the version that runs has
    /// failed and the healthy one can't take its place.
    fn circles(&self, alone: &BTreeMap<FullName, Preparation>, facts: Facts<'_>) -> Vec<Circle> {
        let next = facts.wanted.iter().filter_map(|(name, newest)| {
            let history = self.histories.get(name)?;
            let turn = facts.turns.get(name).unwrap_or(&Turn::Now);
            let has_failed = matches!(self.phases.get(name), Some(Phase::Failed(_)));
            let waits =
                matches!(alone.get(name), Some(Preparation::Failed(cause)) if is_port(cause));
            if !waits && !has_failed {
                return None;
            }
            let next = next_version(history, newest, turn, has_failed, self.options.restore)?;
            Some((name.clone(), next))
        });
        let board = &self.options.board;
        let takes_room = |pod: &Pod| super::options::takes_room(board, pod);
        Circle::all(&next.collect_map(), facts.before, takes_room)
    }

    /// Decides about the pods of a circle.
    fn decide_circle(
        &mut self,
        circle: &Circle,
        alone: &BTreeMap<FullName, Preparation>,
        facts: Facts<'_>,
    ) -> BTreeMap<FullName, Decision> {
        let swapped = circle.names.iter().filter_map(|name| {
            let own = self.preparation(name, self.next(name, facts), facts, Some(circle));
            let alone = match alone.get(name)? {
                Preparation::Failed(cause) => cause.clone(),
                // It runs, has failed, and is to be replaced by the healthy version.
                Preparation::UnderWay | Preparation::Done => Cause::new("", ""),
            };
            Some((name.clone(), Swapped { alone, own }))
        });
        let prepared = together(&swapped.collect_map());
        let is_done = |preparation: &Preparation| *preparation == Preparation::Done;
        if prepared.values().all(is_done) {
            let decisions = self.decide_each(&prepared, facts, Some(circle));
            if all_move(decisions.values()) {
                return decisions;
            }
            let alone = alone
                .iter()
                .filter(|(name, _)| circle.names.contains(*name));
            let alone = alone.map(|(name, alone)| (name.clone(), alone.clone()));
            return self.decide_each(&alone.collect_map(), facts, None);
        }
        self.decide_each(&prepared, facts, None)
    }

    fn decide_each(
        &mut self,
        prepared: &BTreeMap<FullName, Preparation>,
        facts: Facts<'_>,
        circle: Option<&Circle>,
    ) -> BTreeMap<FullName, Decision> {
        let decisions = prepared.iter().filter_map(|(name, preparation)| {
            let decision = self.decide(name, preparation, facts, circle)?;
            Some((name.clone(), decision))
        });
        decisions.collect_map()
    }

    /// The version that is to run if all goes well, and the history of its pod.
    fn target(&self, name: &FullName, facts: Facts<'_>) -> Option<(Arc<Pod>, History)> {
        let newest = facts.wanted.get(name)?;
        let known = self.histories.get(name);
        let target = known.map(|history| history.target_of(newest).0);
        let target = target.unwrap_or_else(|| Arc::clone(&newest.pod));
        let history = self.history(name, &PodUid::of(&target), facts.listed);
        Some((target, history))
    }

    /// Whether anything of a version runs.
    fn runs(&self, uid: &PodUid, facts: Facts<'_>) -> bool {
        match self.options.board.get(uid).filter(lives) {
            Some(view) => view.observed.anything_running(),
            None => facts.listed.has(uid),
        }
    }

    /// The version of a pod that will replace the running one, if any.
    fn next(&self, name: &FullName, facts: Facts<'_>) -> Option<Next> {
        let turn = facts.turns.get(name).unwrap_or(&Turn::Now);
        let (target, history) = self.target(name, facts)?;
        let newest = facts.wanted.get(name)?;
        let uid = PodUid::of(&target);
        let running = history.current().filter(|running| running.uid() != uid)?;
        let failed = history
            .get(&uid)
            .is_some_and(|r| matches!(r.outcome, Outcome::Failed(_)));
        // A version that failed before is retried only after an edit.
        let edited = history.newest.as_ref() != Some(&newest.uid());
        let tried = failed && !edited;
        let is_beside = history.beside.as_ref().is_some_and(|(one, _)| *one == uid);
        if tried || history.paused || *turn != Turn::Now || is_beside {
            return None;
        }
        let starts_first = starts_first(&target) && self.runs(&running.uid(), facts);
        let target = if starts_first {
            beside_pod(&target)
        } else {
            target
        };
        let running = Arc::clone(&running.pod);
        Some(Next { target, running })
    }

    /// Why a prepared version can't be started after all: another pod has taken the resources for it in
    /// the same pass, whose state is in `facts`.
    fn refused_since(
        &mut self,
        name: &FullName,
        preparation: &Preparation,
        facts: Facts<'_>,
    ) -> Option<Cause> {
        let Next { target, running } = match preparation {
            Preparation::Done => self.next(name, facts)?,
            Preparation::UnderWay | Preparation::Failed(_) => return None,
        };
        let cause = self
            .options
            .refused(&target, Some(&running), facts.before)?;
        self.look_in(ADMIT_PERIOD);
        Some(cause)
    }

    /// How far the next version of a pod is prepared: by itself, or for an update together with the other
    /// pods of a circle. The first question begins it.
    fn preparation(
        &mut self,
        name: &FullName,
        next: Option<Next>,
        facts: Facts<'_>,
        circle: Option<&Circle>,
    ) -> Preparation {
        let Some(Next { target, running }) = next else {
            self.preparations.end(name);
            return Preparation::Done;
        };
        if let Some(circle) = circle.filter(|_| is_beside(&target)) {
            return Preparation::Failed(swap_refused(&circle.names));
        }
        let room = circle.map_or(facts.before, |circle| &circle.after);
        if let Some(cause) = self.options.refused(&target, Some(&running), room) {
            self.look_in(ADMIT_PERIOD);
            return Preparation::Failed(cause);
        }
        let others = circle.into_iter().flat_map(|circle| &circle.stops);
        let others = others.filter(|other| FullName::of(other) != *name);
        let stops = std::iter::once(&running).chain(others).cloned();
        self.preparations.of(name, &target, stops.collect())
    }

    fn decide(
        &self,
        name: &FullName,
        preparation: &Preparation,
        facts: Facts<'_>,
        circle: Option<&Circle>,
    ) -> Option<Decision> {
        let newest = facts.wanted.get(name)?;
        let (target, history) = self.target(name, facts)?;
        let uid = PodUid::of(&target);
        let current = history.current.as_ref();
        let current = current.map_or(&uid, |(current, _)| current);
        let view = self.options.board.get(current).filter(lives);
        let beside = self.options.board.get(&uid).filter(lives);
        let beside = beside.filter(|_| uid != *current);
        let journal = &self.options.telemetry.journal;
        let [of_current, of_beside] = [&view, &beside].map(|view| troubles(journal, view.as_ref()));
        let restore_waits = self.restore_waits(&history, facts.before, circle);
        let input = Input {
            wanted: newest,
            runs: self.runs(current, facts),
            current: self.seen(view.as_ref(), &of_current),
            beside: self.seen(beside.as_ref(), &of_beside),
            preparation,
            turn: facts.turns.get(name).unwrap_or(&Turn::Now),
            restore: self.options.restore,
            restore_waits: restore_waits.as_ref(),
            engine_away: self.engine.is_away(),
            now: facts.now,
        };
        Some(decide(&history, &input))
    }

    /// The view of a version that is judged.
    fn seen<'a>(&self, view: Option<&'a PodView>, troubles: &'a [Trouble]) -> View<'a> {
        let uid = view.map(|view| &view.uid);
        // Its status is meaningless before it may start.
        let waits = |view: &&PodView| {
            view.phase == WorkerPhase::WaitingToStart && self.delays.waits(&view.uid)
        };
        let view = view.filter(|view| !waits(view));
        seen(view, troubles, self.delays.counts_from(uid))
    }

    /// Why the healthy version of a pod can't take the place of the one that is judged: another pod has
    /// its host port.
    fn restore_waits(
        &self,
        history: &History,
        before: &Merged,
        circle: Option<&Circle>,
    ) -> Option<Cause> {
        let healthy = history.fallback(self.options.restore)?;
        let returns = |circle: &&Circle| circle.after.pods.contains_key(&healthy.uid());
        let room = circle
            .filter(returns)
            .map_or(before, |circle| &circle.after);
        let running = history.current().map(|running| &*running.pod);
        let refused = self.options.refused(&healthy.pod, running, room);
        refused.filter(is_port)
    }

    /// The history of a pod's revisions. At this agent's first check, the newest one may already run,
    /// whatever the disk has.
    pub(super) fn history(&self, name: &FullName, newest: &PodUid, listed: &Pods) -> History {
        let mut history = self.histories.get(name).cloned().unwrap_or_default();
        if !self.phases.contains_key(name)
            && let Some((current, _)) = &history.current
            && listed.has(newest)
            && !listed.has(current)
        {
            history.take_running(newest);
        }
        history
    }
}

/// Replaces the running version by the one that runs from now on.
fn make_room(
    room: &mut Cow<'_, Merged>,
    decisions: &BTreeMap<FullName, Decision>,
    wanted: &BTreeMap<FullName, SourcePod>,
) {
    for (name, decision) in decisions {
        let moves = decision
            .change
            .is_some_and(|change| change != Change::Succeeded);
        let Some(newest) = wanted.get(name).filter(|_| moves) else {
            continue;
        };
        let room = room.to_mut();
        let is_other = |pod: &SourcePod| pod.is_api() || pod.full_name() != *name;
        room.pods.retain(|_, pod| is_other(pod));
        room.beside.retain(|_, pod| is_other(pod));
        let pod = decision.pod(newest);
        room.pods.insert(pod.uid(), pod);
        if let Some(pod) = decision.beside(newest) {
            room.beside.insert(pod.uid(), pod);
        }
    }
}
