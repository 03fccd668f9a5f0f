//! The expectations of a life: what ran in the last quiet period, and the events since.

use std::collections::{BTreeMap, BTreeSet};

use mirrorlet_core::api::{ContainerId, PodUid};

use super::versions::{Temper, Version};

/// The facts known of a life.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Agents that were killed.
    pub(super) agents: u64,
    /// Whether histories may have been lost.
    pub(super) disk_was_full: bool,
    /// The version of each pod that ran at the last peace.
    pub(super) settled: BTreeMap<u64, PodUid>,
    /// Those that were good, and so passed their judgement.
    healthy: BTreeMap<u64, PodUid>,
    /// The instances of those, by container.
    ids: BTreeMap<u64, BTreeMap<String, ContainerId>>,

    // Since the last peace:
    /// Pods that were edited or removed.
    edited: BTreeSet<u64>,
    /// Those of them that an edit may have restarted: another version could be prepared.
    moved: BTreeSet<u64>,
    removed: BTreeSet<u64>,
    /// Pods of which a good version was wanted.
    wanted_good: BTreeSet<u64>,
    /// Containers that may have been restarted for good reason.
    touched: BTreeSet<(u64, String)>,
    /// Whether a good version may have failed its judgement, or a bad one passed it.
    pub(super) disturbed: bool,

    /// Versions that were wanted while something disturbed their judgement, ever.
    tainted: BTreeSet<usize>,
    /// Versions wanted since the last peace.
    wanted: BTreeSet<usize>,
}

impl Known {
    /// A version is wanted from now on.
    pub(super) fn wants(&mut self, version: &Version, number: usize) {
        let name = version.name;
        self.edited.insert(name);
        self.moved.insert(name);
        self.wanted.insert(number);
        if version.temper == Temper::Good {
            self.wanted_good.insert(name);
        }
    }

    /// The next wanted version can't be prepared: nothing of the pod may change for it.
    pub(super) fn wants_unprepared(&mut self, version: &Version, number: usize) {
        let moved = self.moved.contains(&version.name);
        self.wants(version, number);
        if !moved {
            self.moved.remove(&version.name);
        }
    }

    /// Versions that could not be prepared can be from now on.
    pub(super) fn can_be_prepared(&mut self) {
        self.moved.extend(&self.edited);
    }

    /// A pod is not wanted any more.
    pub(super) fn removes(&mut self, name: u64) {
        self.edited.insert(name);
        self.moved.insert(name);
        self.removed.insert(name);
    }

    /// A container may be restarted.
    pub(super) fn touch(&mut self, name: u64, container: &str) {
        self.touched.insert((name, container.to_owned()));
    }

    /// All of a pod may be restarted.
    pub(super) fn touch_all(&mut self, name: u64) {
        self.moved.insert(name);
    }

    /// The containers that nothing may have restarted, with the version that they are of.
    pub(super) fn untouched(&self) -> impl Iterator<Item = (&PodUid, &str, &ContainerId)> {
        let names = self
            .ids
            .iter()
            .filter(|(name, _)| !self.moved.contains(name));
        names.flat_map(|(name, ids)| {
            let is_calm = |container: &str| {
                let key = (*name, container.to_owned());
                !self.touched.contains(&key)
            };
            let uid = &self.healthy[name];
            ids.iter()
                .filter(move |(container, _)| is_calm(container))
                .map(move |(container, id)| (uid, container.as_str(), id))
        })
    }

    /// The version of a pod that runs when peace returns, where that is certain.
    pub(super) fn expected(
        &self,
        newest: &Version,
        number: usize,
        restore: bool,
        jumps: bool,
    ) -> Option<PodUid> {
        let name = newest.name;
        // One that is judged beside another takes its place only if it passes.
        if !restore && !newest.starts_first {
            return Some(newest.uid());
        }
        if self.disk_was_full || jumps {
            return None;
        }
        if !self.edited.contains(&name) {
            return self.settled.get(&name).cloned();
        }
        if self.disturbed || self.tainted.contains(&number) {
            return None;
        }
        if newest.temper == Temper::Good {
            return Some(newest.uid());
        }
        let only_bad =
            restore && !self.wanted_good.contains(&name) && !self.removed.contains(&name);
        self.healthy.get(&name).filter(|_| only_bad).cloned()
    }

    /// Peace has returned, and these versions run, with these instances.
    pub(super) fn settle(
        &mut self,
        running: impl Iterator<Item = (Version, BTreeMap<String, ContainerId>)>,
    ) {
        if self.disturbed {
            self.tainted.append(&mut self.wanted);
        }
        self.settled.clear();
        self.healthy.clear();
        self.ids.clear();
        for (version, ids) in running {
            self.settled.insert(version.name, version.uid());
            if version.temper == Temper::Good {
                self.healthy.insert(version.name, version.uid());
                self.ids.insert(version.name, ids);
            }
        }
        self.edited.clear();
        self.moved.clear();
        self.removed.clear();
        self.wanted_good.clear();
        self.touched.clear();
        self.wanted.clear();
        self.disturbed = false;
    }
}
