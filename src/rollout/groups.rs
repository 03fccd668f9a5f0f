//! The pods of workloads, which are updated together.

use std::collections::BTreeMap;

use super::Rollouts;
use mirrorlet_core::api::{FullName, PodUid, Timestamp};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::observed::Pods;
use mirrorlet_core::rollout::group::{Member, number, turns};
use mirrorlet_core::rollout::{History, Turn, Updates};
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::status::is_ready;
use mirrorlet_core::workload::WorkloadKey;

impl Rollouts {
    /// Decides which pods of each workload may be updated now. A version that failed in one of them is
    /// recorded as failed in the histories of all.
    pub(super) fn turns(
        &mut self,
        wanted: &BTreeMap<FullName, SourcePod>,
        listed: &Pods,
        now: Timestamp,
    ) -> BTreeMap<FullName, Turn> {
        let mut groups: BTreeMap<WorkloadKey, Vec<&SourcePod>> = BTreeMap::new();
        for pod in wanted.values() {
            if let Some(key) = WorkloadKey::of(&pod.pod) {
                groups.entry(key).or_default().push(pod);
            }
        }
        let mut all = BTreeMap::new();
        for pods in groups.values() {
            let Some(updates) = pods.first().and_then(|pod| Updates::of(&pod.pod)) else {
                continue;
            };
            let members = pods.iter().map(|pod| self.member_of(pod, listed, now));
            let mut members: Vec<Member> = members.collect();
            let turns = turns(&mut members, &updates, self.options.restore);
            for (member, turn) in members.into_iter().zip(turns) {
                self.histories.insert(member.name.clone(), member.history);
                all.insert(member.name, turn);
            }
        }
        all
    }

    fn member_of(&self, pod: &SourcePod, listed: &Pods, now: Timestamp) -> Member {
        let name = pod.full_name();
        let known = self.histories.get(&name);
        let target = known.map_or_else(|| pod.uid(), |known| PodUid::of(&known.target_of(pod).0));
        let mut history = self.history(&name, &target, listed);
        history.take_newest(pod, now);
        self.member(name, history)
    }

    fn member(&self, name: FullName, history: History) -> Member {
        let current = history.current.as_ref();
        let view = current.and_then(|(uid, _)| self.options.board.get(uid));
        let status = view.and_then(|view| view.status);
        let newest = history.revisions.last();
        Member {
            number: newest.map_or(0, |newest| number(manifest_name(&newest.pod))),
            ready: status.is_some_and(|status| is_ready(&status)),
            name,
            history,
        }
    }

    /// The pods of a workload, from the lowest number to the highest.
    pub(super) fn members(&self, key: &WorkloadKey) -> Vec<Member> {
        let is_its = |history: &History| {
            let newest = history.newest_revision();
            newest.is_some_and(|newest| WorkloadKey::of(&newest.pod).as_ref() == Some(key))
        };
        let histories = self.histories.iter().filter(|(_, one)| is_its(one));
        let mut members: Vec<Member> = histories
            .map(|(name, history)| self.member(name.clone(), history.clone()))
            .collect();
        members.small_sort_by_key(|member| member.number);
        members
    }

    /// The workload that a pod belongs to.
    pub(super) fn workload_of(&self, name: &FullName) -> Option<WorkloadKey> {
        let history = self.histories.get(name)?;
        let newest = history.newest_revision()?;
        WorkloadKey::of(&newest.pod)
    }
}
