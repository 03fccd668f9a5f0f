//! Plans of edits: the resulting changes of static pods if their sources change, decided by the same
//! functions as real changes, with facts that the runtime provides without changing anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

use super::decide::Circle;
use super::options::takes_room;
use super::ports::is_port;
use super::{Histories, RolloutHandle, RolloutOptions, seen, starts_first};
use mirrorlet_core::api::report::{Downtime, PlanAction, PlannedPod};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::objects::{KnownObjects, ObjectSet, references};
use mirrorlet_core::rollout::{
    Cause, Change, Decision, History, Input, Phase, Preparation, Revision, Turn, Updates, Version,
    beside_pod, changed_fields, compared_fields, decide, is_beside, swap_refused,
};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::spec;
use mirrorlet_core::volumes::empty_dirs;
use mirrorlet_runtime::PodCheck;

/// Pods that are checked at a time.
const CHECKS: usize = 4;
/// The changed field of a pod whose manifest only has another file name.
const FILE_NAME: &str = "(file name)";

impl RolloutHandle {
    /// Returns the action for each static pod if `newest` were the sources' state; `before` is the
    /// current state. With `content` each pod has both its manifests.
    pub async fn plan(&self, newest: &Merged, before: &Merged, content: bool) -> Vec<PlannedPod> {
        let statics = |merged: &Merged| {
            // Pods of Jobs are never replaced.
            let is_ours = |pod: &&SourcePod| !pod.is_api() && pod.runs.is_none();
            let pods = merged.pods.values().filter(is_ours);
            pods.cloned().collect::<Vec<SourcePod>>()
        };
        let (histories, objects) = (self.histories(), newest.known_objects());
        let wanted: Vec<SourcePod> = statics(newest)
            .into_iter()
            .map(|pod| {
                let history = histories.get(&pod.full_name());
                let with_config = self.options.with_config(&pod, history, newest);
                with_config.unwrap_or(pod)
            })
            .collect();
        let names: Vec<FullName> = wanted.iter().map(SourcePod::full_name).collect();
        let mut gone = statics(before);
        gone.retain(|pod| newest.delivered.manifests && !names.contains(&pod.full_name()));
        let mut room = Room::without(before, &gone);
        let from = Planner {
            options: &self.options,
            histories: &histories,
            objects: &objects,
            wanted: &wanted,
            content,
        };
        let plans = from.plan_all(&mut room).await;
        let mut planned: Vec<PlannedPod> = plans.into_iter().map(|plan| plan.pod).collect();
        planned.extend(gone.iter().map(|pod| PlannedPod {
            before: compared_fields(content.then(|| version(pod)), None).0,
            ..row(pod, PlanAction::Remove)
        }));
        planned.small_sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        planned
    }
}

/// The state that plans are made from.
struct Planner<'a> {
    options: &'a RolloutOptions,
    histories: &'a Histories,
    objects: &'a KnownObjects,
    wanted: &'a [SourcePod],
    content: bool,
}

impl Planner<'_> {
    /// Returns the plan of each wanted pod.
    async fn plan_all(&self, room: &mut Room) -> Vec<Plan> {
        let all: Vec<usize> = (0..self.wanted.len()).collect();
        let mut plans = self.plan(&all, room).await;
        loop {
            // Those that wait for a port get it once its holder was replaced by a version without it.
            while self.replace(&mut plans, room).await {
                let at = waiting(&plans);
                let again = self.plan(&at, room).await;
                put(&mut plans, at.into_iter().zip(again));
            }
            if !self.swap(&mut plans, room).await {
                return plans;
            }
        }
    }

    /// Replaces in `room` the versions that are planned to be replaced, one after the other, and
    /// returns whether it replaced any. A version whose resources another one has taken is planned
    /// again.
    async fn replace(&self, plans: &mut [Plan], room: &mut Room) -> bool {
        let mut is_news = false;
        for (at, newest) in self.wanted.iter().enumerate() {
            let replaced = |plan: &&mut Plan| plan.pod.action == PlanAction::Replace;
            let Some(plan) = plans.get_mut(at).filter(replaced) else {
                continue;
            };
            let Some(old) = room.replaced_by(newest) else {
                continue;
            };
            let is_refused = || {
                let next = match plan.pod.downtime {
                    Downtime::None => beside_pod(&newest.pod),
                    Downtime::Gap | Downtime::UntilReady => Arc::clone(&newest.pod),
                };
                let refused = self.options.refused(&next, Some(&old.pod), &room.pods);
                refused.is_some()
            };
            if is_news && is_refused() {
                let again = self.plan(&[at], room).await;
                if let Some(again) = again.into_iter().next() {
                    *plan = again;
                }
            } else {
                room.replace(old, newest);
                is_news = true;
            }
        }
        is_news
    }

    /// Plans pods that swap host ports again, as replaced together; false if there are none that can
    /// be.
    async fn swap(&self, plans: &mut [Plan], room: &mut Room) -> bool {
        let waiting: Vec<(usize, FullName)> = waiting(plans)
            .into_iter()
            .filter(|at| {
                plans
                    .get(*at)
                    .is_some_and(|plan| plan.pod.action == PlanAction::Held)
            })
            .filter_map(|at| Some((at, self.wanted.get(at)?.full_name())))
            .collect();
        let next = waiting.iter().filter_map(|(at, name)| {
            let (wanted, history) = (self.wanted.get(*at)?, self.histories.get(name)?);
            Some((name.clone(), history.target_of(wanted).0))
        });
        let takes_room = |pod: &Pod| takes_room(&self.options.board, pod);
        for circle in Circle::all(&next.collect_map(), &room.pods, takes_room) {
            let its = waiting
                .iter()
                .filter(|(_, name)| circle.names.contains(name));
            let at: Vec<usize> = its.map(|(at, _)| *at).collect();
            let mut stops = room.stops.clone();
            stops.extend(circle.stops);
            let mut swapped = Room {
                pods: circle.after,
                stops,
                swaps: circle.names,
            };
            let again = self.plan(&at, &swapped).await;
            let replaced = |plan: &Plan| plan.pod.action == PlanAction::Replace;
            let all = again.iter().all(replaced);
            // A pod that can't be replaced reports that itself; the others wait for its port.
            let again = at.into_iter().zip(again);
            put(plans, again.filter(|(_, plan)| all || !replaced(plan)));
            if all {
                swapped.swaps.clear();
                *room = swapped;
                return true;
            }
        }
        false
    }

    async fn plan(&self, at: &[usize], room: &Room) -> Vec<Plan> {
        let pods = at.iter().filter_map(|at| self.wanted.get(*at));
        let plans: Vec<BoxFuture<'_, Plan>> = pods
            .map(|pod| {
                let history = self.histories.get(&pod.full_name());
                let plan = self
                    .options
                    .plan_one(pod, history, room, self.objects, self.content);
                plan.boxed()
            })
            .collect();
        let plans = futures::stream::iter(plans).buffered(CHECKS);
        plans.collect().await
    }
}

/// The pods that a host port keeps from starting.
fn waiting(plans: &[Plan]) -> Vec<usize> {
    let plans = plans.iter().enumerate();
    let waiting = plans.filter(|(_, plan)| plan.waits);
    waiting.map(|(at, _)| at).collect()
}

fn put(plans: &mut [Plan], new: impl Iterator<Item = (usize, Plan)>) {
    for (at, new) in new {
        if let Some(plan) = plans.get_mut(at) {
            *plan = new;
        }
    }
}

/// The plan of a pod, and whether another pod's host port keeps it from starting.
struct Plan {
    pod: PlannedPod,
    waits: bool,
}

/// The pods that a planned one finds: without those that free resources for it in the same plan.
struct Room {
    pods: Merged,
    /// Those that stop.
    stops: Vec<Arc<Pod>>,
    /// Those that swap host ports, and are replaced together.
    swaps: BTreeSet<FullName>,
}

impl Room {
    /// The room without pods that are no longer wanted.
    fn without(before: &Merged, gone: &[SourcePod]) -> Self {
        let mut pods = before.clone();
        for pod in gone {
            pods.pods.remove(&pod.uid());
        }
        let stops = gone.iter().map(|pod| Arc::clone(&pod.pod)).collect();
        Self {
            pods,
            stops,
            swaps: BTreeSet::new(),
        }
    }

    /// Whether a version of a pod runs before the plan is done.
    fn had(&self, uid: &PodUid) -> bool {
        let mut stops = self.stops.iter();
        self.pods.pods.contains_key(uid) || stops.any(|pod| PodUid::of(pod) == *uid)
    }

    /// The version in the room that a planned one replaces, unless it is the same.
    fn replaced_by(&self, newest: &SourcePod) -> Option<SourcePod> {
        let name = newest.full_name();
        let is_old = |pod: &&SourcePod| {
            !pod.is_api() && pod.full_name() == name && pod.uid() != newest.uid()
        };
        self.pods.pods.values().find(is_old).cloned()
    }

    fn replace(&mut self, old: SourcePod, newest: &SourcePod) {
        self.pods.pods.remove(&old.uid());
        self.pods.pods.insert(newest.uid(), newest.clone());
        self.stops.push(old.pod);
    }
}

impl RolloutOptions {
    async fn plan_one(
        &self,
        wanted: &SourcePod,
        history: Option<&History>,
        room: &Room,
        objects: &KnownObjects,
        content: bool,
    ) -> Plan {
        let none = History::default();
        let history = history.unwrap_or(&none);
        let (target, config) = history.target_of(wanted);
        let mut objects = objects.set(&references(&target));
        if let Some(config) = &config {
            config.pin(&mut objects, &FullName::of(&target).namespace);
        }
        let running = history.current();
        let same = running.is_some_and(|running| running.uid() == PodUid::of(&target));
        let (check, decision) = self.decided(wanted, history, &target, room, &objects).await;
        let refused = check.as_ref().err();
        let waits = refused.is_some_and(is_port);
        let changes =
            running.map(|running| changed_fields(running.version(), (&target, config.as_deref())));
        let changes = changes.unwrap_or_default();
        let (action, cause) = match action(wanted, &decision) {
            (PlanAction::None, None) if running.is_none() => (PlanAction::Create, refused.cloned()),
            (PlanAction::Replace, None) => (PlanAction::Replace, refused.cloned()),
            // A manifest that sets its UID is edited in place.
            (PlanAction::None, None)
                if running.is_some_and(|r| same && r.pod.spec != target.spec) =>
            {
                (PlanAction::Replace, None)
            }
            known => known,
        };
        let words = |Cause {
                         reason, message, ..
                     }| (reason.to_string(), message.to_string());
        let (reason, message) = cause.map_or_else(Default::default, words);
        let check = check.unwrap_or_default();
        let before = running.filter(|_| content).map(Revision::version);
        let (before, after) = compared_fields(before, content.then(|| version(wanted)));
        let pod = PlannedPod {
            changes: match action {
                PlanAction::None => Vec::new(),
                // The name of the file is a part of the pod's UID.
                PlanAction::Replace if changes.is_empty() => vec![FILE_NAME.to_owned()],
                PlanAction::Create
                | PlanAction::Replace
                | PlanAction::Held
                | PlanAction::Remove => changes,
            },
            downtime: match action {
                PlanAction::Replace if decision.change == Some(Change::StartedBeside) => {
                    Downtime::None
                }
                PlanAction::Replace if has_probes(&target) => Downtime::UntilReady,
                PlanAction::Replace => Downtime::Gap,
                _ => Downtime::None,
            },
            emptied: emptied(action, running.filter(|_| !same)),
            pulls: check.pulls,
            unknown: check.unknown,
            reason,
            message,
            before,
            after,
            ..row(wanted, action)
        };
        Plan { pod, waits }
    }

    /// Returns the facts about a revision's start, and the decision that would follow.
    async fn decided(
        &self,
        wanted: &SourcePod,
        history: &History,
        target: &Arc<Pod>,
        room: &Room,
        objects: &ObjectSet,
    ) -> (Result<PodCheck, Cause>, Decision) {
        let running = history.current();
        let same = running.is_some_and(|running| running.uid() == PodUid::of(target));
        let view = running.and_then(|running| self.board.get(&running.uid()));
        let runs = match (&view, running) {
            (Some(view), _) => view.observed.anything_running(),
            (None, running) => running.is_some_and(|r| room.had(&r.uid())),
        };
        let check = if same {
            Ok(PodCheck::default())
        } else {
            let started = if runs && starts_first(target) {
                beside_pod(target)
            } else {
                Arc::clone(target)
            };
            let running = running.map(|running| &running.pod);
            self.check(&started, running, room, objects).await
        };
        let preparation = check.as_ref().err().map_or(Preparation::Done, |cause| {
            Preparation::Failed(cause.clone())
        });
        let beside = self.board.get(&PodUid::of(target)).filter(|_| !same);
        // Every pod of a workload gets its turn.
        let paused = Updates::of(&wanted.pod).is_some_and(|updates| updates.paused);
        let turn = if paused { Turn::Paused } else { Turn::Now };
        let decision = decide(
            history,
            &Input {
                wanted,
                runs,
                current: seen(view.as_ref(), &[], Timestamp::default()),
                beside: seen(beside.as_ref(), &[], Timestamp::default()),
                preparation: &preparation,
                turn: &turn,
                restore: self.restore,
                restore_waits: None,
                engine_away: false,
                now: (self.clock)(),
            },
        );
        (check, decision)
    }

    /// Whether a revision could be started in place of the running one.
    async fn check(
        &self,
        pod: &Arc<Pod>,
        replaces: Option<&Arc<Pod>>,
        room: &Room,
        objects: &ObjectSet,
    ) -> Result<PodCheck, Cause> {
        if is_beside(pod) && room.swaps.contains(&FullName::of(pod)) {
            return Err(swap_refused(&room.swaps));
        }
        if let Some(cause) = self.refused(pod, replaces.map(|pod| &**pod), &room.pods) {
            return Err(cause);
        }
        let stops: Vec<Arc<Pod>> = room.stops.iter().chain(replaces).cloned().collect();
        let checked = self.runtime.check_pod(pod, &stops, objects.clone()).await;
        checked.map_err(|error| {
            let cause = Cause::new(error.reason.to_string(), error.message);
            cause.of_field(error.field)
        })
    }
}

/// The effect of a decision on a pod that runs already.
fn action(wanted: &SourcePod, decision: &Decision) -> (PlanAction, Option<Cause>) {
    if wanted.held {
        let problem = wanted.problems.iter().find(|problem| problem.is_error());
        let message = problem.map_or("", |problem| &problem.message);
        return (
            PlanAction::Held,
            Some(Cause::new("InvalidManifest", message)),
        );
    }
    match (&decision.phase, decision.change) {
        (Phase::Held(cause) | Phase::Restored(cause), _) => (PlanAction::Held, Some(cause.clone())),
        (Phase::Paused, _) if !decision.history.paused => {
            let words = "its workload has paused: true";
            (PlanAction::Held, Some(Cause::new("Paused", words)))
        }
        (Phase::Paused, _) => {
            let typed = spec::typed_rollout(&wanted.pod);
            let words = format!(
                "its rollouts are paused; resume them with: mirrorlet rollout resume {typed}"
            );
            (PlanAction::Held, Some(Cause::new("Paused", words)))
        }
        (_, Some(Change::Switched | Change::StartedBeside)) => (PlanAction::Replace, None),
        (
            Phase::Settled
            | Phase::Preparing
            | Phase::Waiting(_)
            | Phase::Judging
            | Phase::Failed(_)
            | Phase::FirstFailed(_),
            _,
        ) => (PlanAction::None, None),
    }
}

/// Whether a start has ended only once a probe has passed.
fn has_probes(pod: &Pod) -> bool {
    spec::containers(pod).any(|(_, container)| {
        container.readiness_probe.is_some() || container.startup_probe.is_some()
    })
}

/// The volumes that lose their files when another pod replaces the one that runs. A pod that is edited in
/// place keeps them.
fn emptied(action: PlanAction, replaced: Option<&Revision>) -> Vec<String> {
    let replaced = replaced.filter(|_| action == PlanAction::Replace);
    let names = replaced
        .into_iter()
        .flat_map(|replaced| empty_dirs(&replaced.pod));
    names.map(str::to_owned).collect()
}

fn version(pod: &SourcePod) -> Version<'_> {
    (&pod.pod, pod.config.as_deref())
}

fn row(pod: &SourcePod, action: PlanAction) -> PlannedPod {
    let name = pod.full_name();
    PlannedPod {
        name: name.name.to_string(),
        namespace: name.namespace.to_string(),
        source: pod.origin.location.clone(),
        action,
        changes: Vec::new(),
        downtime: Downtime::None,
        emptied: Vec::new(),
        pulls: Vec::new(),
        unknown: Vec::new(),
        reason: String::new(),
        message: String::new(),
        before: None,
        after: None,
    }
}
