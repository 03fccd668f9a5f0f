//! The order in which a plan would change the pods of workloads.

use std::collections::BTreeMap;

use super::RolloutHandle;
use mirrorlet_core::api::FullName;
use mirrorlet_core::api::report::{Downtime, OrderedChange, PlanAction, PlannedOrder, PlannedPod};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::rollout::Updates;
use mirrorlet_core::rollout::group::{self, Member, number};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::stateful::{self, StatefulSet};
use mirrorlet_core::status::is_ready;
use mirrorlet_core::workload::WorkloadKey;

impl RolloutHandle {
    /// Returns the order in which the planned pods of each workload would change, unless all do at the
    /// same time. A pod that would keep its version, because of its set's partition or of others that
    /// come first, is planned as held from then on.
    pub fn orders(
        &self,
        newest: &Merged,
        before: &Merged,
        planned: &mut [PlannedPod],
    ) -> Vec<PlannedOrder> {
        let mut groups: BTreeMap<WorkloadKey, Vec<&SourcePod>> = BTreeMap::new();
        for pod in newest.pods.values().filter(|pod| pod.runs.is_none()) {
            if let Some(key) = WorkloadKey::of(&pod.pod) {
                groups.entry(key).or_default().push(pod);
            }
        }
        let mut orders = Vec::new();
        for (key, pods) in &groups {
            if let Some(updates) = pods.first().and_then(|pod| Updates::of(&pod.pod)) {
                let steps = self.updates(pods, &updates, newest, planned);
                orders.extend(order(key, OrderedChange::Update, steps));
            }
        }
        for (key, set) in &newest.sets {
            let (starts, stops) = turns(key, set, [newest, before], planned);
            orders.extend(order(key, OrderedChange::Start, starts));
            orders.extend(order(key, OrderedChange::Stop, stops));
        }
        orders
    }

    /// The pods of each step of an update.
    fn updates(
        &self,
        pods: &[&SourcePod],
        updates: &Updates,
        newest: &Merged,
        planned: &mut [PlannedPod],
    ) -> Vec<Vec<String>> {
        let members = pods.iter().filter_map(|pod| self.member(pod, newest));
        let is = |action: PlanAction| {
            let of = planned.iter().filter(|pod| pod.action == action);
            of.map(name).collect_set()
        };
        let (replaced, held) = (is(PlanAction::Replace), is(PlanAction::Held));
        let found = group::steps(members.collect(), updates, self.options.restore, &held);
        for pod in planned {
            if let Some(cause) = found.kept.get(&name(pod))
                && pod.action == PlanAction::Replace
            {
                pod.action = PlanAction::Held;
                pod.downtime = Downtime::None;
                pod.reason = cause.reason.to_string();
                pod.message = cause.message.to_string();
            }
        }
        let steps = found.steps.into_iter().map(|step| {
            let step = step.into_iter().filter(|name| replaced.contains(name));
            step.map(|name| name.name.to_string()).collect()
        });
        steps.collect()
    }

    /// An existing pod in its state after its document is merged.
    fn member(&self, pod: &SourcePod, newest: &Merged) -> Option<Member> {
        let histories = self.histories();
        let name = pod.full_name();
        let mut history = histories.get(&name)?.clone();
        let with_config = self.options.with_config(pod, Some(&history), newest);
        let wanted = with_config.as_ref().unwrap_or(pod);
        history.take_newest(wanted, (self.options.clock)());
        let (current, _) = history.current.as_ref()?;
        let status = self.options.board.get(current).and_then(|view| view.status);
        Some(Member {
            number: number(manifest_name(&pod.pod)),
            ready: status.is_some_and(|status| is_ready(&status)),
            name,
            history,
        })
    }
}

/// The pods of each step in which those of a set start, and stop.
fn turns(
    key: &WorkloadKey,
    set: &StatefulSet,
    merged: [&Merged; 2],
    planned: &[PlannedPod],
) -> (Vec<Vec<String>>, Vec<Vec<String>>) {
    let pods = merged.into_iter().flat_map(|merged| merged.pods.values());
    let names: BTreeMap<FullName, i32> = pods
        .filter(|pod| WorkloadKey::of(&pod.pod).as_ref() == Some(key))
        .filter_map(|pod| Some((pod.full_name(), set.ordinal(manifest_name(&pod.pod))?)))
        .collect_map();
    let actions = planned
        .iter()
        .filter_map(|pod| Some((*names.get(&name(pod))?, pod)));
    let pods: BTreeMap<i32, &PlannedPod> = actions.collect_map();
    let there = pods
        .iter()
        .filter(|(_, pod)| pod.action != PlanAction::Create);
    let found = stateful::steps(set, &there.map(|(ordinal, _)| *ordinal).collect_set());
    let by_name = |steps: Vec<Vec<i32>>| {
        let step = |step: Vec<i32>| {
            let pods = step.iter().filter_map(|ordinal| pods.get(ordinal));
            pods.map(|pod| pod.name.clone()).collect()
        };
        steps.into_iter().map(step).collect()
    };
    (by_name(found.starts), by_name(found.stops))
}

fn name(pod: &PlannedPod) -> FullName {
    FullName::new(pod.name.as_str(), pod.namespace.as_str())
}

/// An order of more than one step.
fn order(
    key: &WorkloadKey,
    change: OrderedChange,
    mut steps: Vec<Vec<String>>,
) -> Option<PlannedOrder> {
    steps.retain(|step| !step.is_empty());
    (steps.len() > 1).then(|| PlannedOrder {
        kind: key.kind.to_string(),
        namespace: key.namespace.clone(),
        name: key.name.clone(),
        change,
        steps,
    })
}
