//! PURE: at most one pod with the same full name at a time.
//!
//! A static pod may start only while no other pod with its full name is started, and in order of
//! arrival; versions that are superseded while they wait never reach the runtime. The lock is released
//! when its holder has *finished*, not merely stopped its containers; if they can't be removed, once
//! none of them runs and its volumes are released.
//!
//! Upstream: `pkg/kubelet/pod_workers.go` (`allowStaticPodStart`).

use std::collections::{HashMap, VecDeque};

use mirrorlet_core::api::{FullName, PodUid};

/// A pod that is started.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    uid: PodUid,
    /// Whether it runs beside another, and blocks no other pod.
    beside: bool,
}

/// The started and the waiting pods of each full name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NameLocks {
    started: HashMap<FullName, Vec<Holder>>,
    waiting: HashMap<FullName, VecDeque<PodUid>>,
}

impl NameLocks {
    /// Appends `uid` to the queue for `name`, unless it is in it or holds the name already.
    pub(super) fn join(&mut self, name: &FullName, uid: &PodUid) {
        if self.holds(name, uid) {
            return;
        }
        let queue = self.waiting.entry(name.clone()).or_default();
        if !queue.contains(uid) {
            queue.push_back(uid.clone());
        }
    }

    /// Gives `name` to `uid` if it is free and `uid` is first in its queue.
    pub(super) fn try_start(&mut self, name: &FullName, uid: &PodUid) -> bool {
        if self.holds(name, uid) {
            return true;
        }
        let is_first = self.waiting.get(name).and_then(VecDeque::front) == Some(uid);
        let starts = is_first && self.is_free(name);
        if starts {
            self.hold(name, uid, false);
        }
        starts
    }

    /// Starts `uid` beside the holder of `name`; it blocks no other pod until [`settle`](Self::settle).
    pub(super) fn start_beside(&mut self, name: &FullName, uid: &PodUid) {
        if !self.holds(name, uid) {
            self.hold(name, uid, true);
        }
    }

    /// Makes `uid`, if it was started beside another, an ordinary holder of `name`: it has replaced the
    /// other, or is being stopped.
    pub(super) fn settle(&mut self, name: &FullName, uid: &PodUid) {
        let mut holders = self.started.get_mut(name).into_iter().flatten();
        if let Some(holder) = holders.find(|holder| holder.uid == *uid) {
            holder.beside = false;
        }
    }

    /// Whether `uid` is started.
    pub(super) fn holds(&self, name: &FullName, uid: &PodUid) -> bool {
        let mut holders = self.started.get(name).into_iter().flatten();
        holders.any(|holder| holder.uid == *uid)
    }

    fn is_free(&self, name: &FullName) -> bool {
        let mut holders = self.started.get(name).into_iter().flatten();
        holders.all(|holder| holder.beside)
    }

    fn hold(&mut self, name: &FullName, uid: &PodUid, beside: bool) {
        self.drop_waiter(name, uid);
        let holder = Holder {
            uid: uid.clone(),
            beside,
        };
        self.started.entry(name.clone()).or_default().push(holder);
    }

    /// Gives `name` to a running pod, ahead of all waiting ones and despite other holders: a killed
    /// agent may have left two versions running.
    pub(super) fn adopt(&mut self, name: &FullName, uid: &PodUid) {
        if !self.holds(name, uid) {
            self.hold(name, uid, false);
        }
    }

    /// Removes `uid` from the queue for `name` and releases `name` if it holds it.
    pub(super) fn leave(&mut self, name: &FullName, uid: &PodUid) {
        self.drop_waiter(name, uid);
        if let Some(holders) = self.started.get_mut(name) {
            holders.retain(|holder| holder.uid != *uid);
            if holders.is_empty() {
                self.started.remove(name);
            }
        }
    }

    fn drop_waiter(&mut self, name: &FullName, uid: &PodUid) {
        if let Some(queue) = self.waiting.get_mut(name) {
            queue.retain(|waiter| waiter != uid);
            if queue.is_empty() {
                self.waiting.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> FullName {
        FullName::new("web-node", "default")
    }

    #[test]
    fn pods_of_one_name_start_in_order_and_one_at_a_time() {
        let mut locks = NameLocks::default();
        let [two, three, four] = ["2", "3", "4"].map(PodUid::from);
        for uid in [&two, &three, &four] {
            locks.join(&name(), uid);
        }
        // pods 43
        assert!(!locks.try_start(&name(), &three));
        assert!(locks.try_start(&name(), &two));
        assert!(locks.try_start(&name(), &two), "asking again is harmless");
        assert!(!locks.try_start(&name(), &four));
        // 3 is killed while it waits: it never starts.
        locks.leave(&name(), &three);
        assert!(!locks.try_start(&name(), &four), "2 has not finished");
        locks.leave(&name(), &two);
        assert!(
            !locks.try_start(&name(), &three),
            "who left must join again"
        );
        assert!(locks.try_start(&name(), &four));
        locks.leave(&name(), &four);
        assert_eq!(locks, NameLocks::default());
    }

    #[test]
    fn pods_that_run_already_go_ahead_of_those_who_wait() {
        let mut locks = NameLocks::default();
        let [new, orphan, other] = ["new", "orphan", "other"].map(PodUid::from);
        locks.join(&name(), &new);
        locks.adopt(&name(), &orphan);
        locks.adopt(&name(), &other);
        assert!(locks.try_start(&name(), &other), "it runs as it is");
        assert!(!locks.try_start(&name(), &new));
        locks.leave(&name(), &orphan);
        assert!(!locks.try_start(&name(), &new), "the other one runs");
        locks.leave(&name(), &other);
        assert!(locks.try_start(&name(), &new));
    }

    #[test]
    fn a_pod_beside_another_keeps_nobody_waiting_until_it_takes_its_place() {
        let mut locks = NameLocks::default();
        let [old, beside, next] = ["old", "beside", "next"].map(PodUid::from);
        // The one beside may be first, when an agent starts.
        locks.start_beside(&name(), &beside);
        locks.join(&name(), &old);
        assert!(locks.try_start(&name(), &old));
        locks.settle(&name(), &beside);
        locks.join(&name(), &next);
        locks.leave(&name(), &old);
        assert!(!locks.try_start(&name(), &next), "it has taken the place");
        locks.leave(&name(), &beside);
        assert!(locks.try_start(&name(), &next));
        locks.leave(&name(), &next);
        assert_eq!(locks, NameLocks::default());
    }

    #[test]
    fn names_do_not_collide_across_namespaces() {
        let mut locks = NameLocks::default();
        let other = FullName::new("web-node", "other");
        locks.join(&name(), &"1".into());
        locks.join(&other, &"2".into());
        assert!(locks.try_start(&name(), &"1".into()));
        assert!(locks.try_start(&other, &"2".into()));
    }
}
