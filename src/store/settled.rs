//! Settled pods: API pods that have ended, and of which nothing is left on this node, or only
//! containers, for their logs.
//!
//! Workers report them, and the API source no longer wants them: if nothing is left of a pod it keeps
//! only the name, otherwise a short form. Ended pods stay in the API server until they are deleted, and
//! a tenant can create any number of pods that a node refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use mirrorlet_core::api::PodUid;
use mirrorlet_core::small::SmallCollect;

/// The remains of a settled pod on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Its containers, none of which runs.
    Containers,
    /// Nothing that runs, but the API server doesn't have its last status yet.
    Unreported,
}

/// The settled pods that were not reported to the API source yet, the node's pods at the start, and the
/// pods with containers but without a worker. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SettledPods(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The pods that the runtime held something of when the agent started; `None` until it is known.
    held: Option<BTreeSet<PodUid>>,
    settled: BTreeMap<PodUid, Left>,
    /// Pods with containers that stay for their logs, and which have no worker any more.
    resting: BTreeSet<PodUid>,
}

impl SettledPods {
    /// Records the pods in the runtime at the agent's start.
    pub fn start_with(&self, held: impl IntoIterator<Item = PodUid>) {
        self.0.state.lock().held = Some(held.into_iter().collect_set());
    }

    /// Whether anything of a pod that never had a worker may be on this node.
    pub fn may_be_here(&self, uid: &PodUid) -> bool {
        let state = self.0.state.lock();
        state.held.as_ref().is_none_or(|held| held.contains(uid))
    }

    /// Reports what is left of an ended pod.
    pub fn settle(&self, uid: &PodUid, left: Left) {
        let mut state = self.0.state.lock();
        if let Some(held) = &mut state.held {
            held.remove(uid);
        }
        state.settled.insert(uid.clone(), left);
        drop(state);
        self.0.changed.notify_one();
    }

    /// Notes that a pod has containers but no worker.
    pub fn rest(&self, uid: &PodUid) {
        self.0.state.lock().resting.insert(uid.clone());
    }

    /// Records that a pod has a worker again, or will have one.
    pub fn wake(&self, uid: &PodUid) {
        self.0.state.lock().resting.remove(uid);
    }

    /// Whether a pod has containers but no worker: until that changes, its observed state is not
    /// needed.
    pub fn rests(&self, uid: &PodUid) -> bool {
        self.0.state.lock().resting.contains(uid)
    }

    /// The pods that have settled since the last call; waits for the first. Has one caller.
    ///
    /// Cancel safety: a call that is dropped loses none.
    pub async fn next(&self) -> BTreeMap<PodUid, Left> {
        loop {
            let settled = std::mem::take(&mut self.0.state.lock().settled);
            if !settled.is_empty() {
                return settled;
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_the_runtime_was_listed_anything_may_be_here() {
        let pods = SettledPods::default();
        assert!(pods.may_be_here(&"a".into()));
        pods.start_with(["b".into()]);
        assert!(!pods.may_be_here(&"a".into()));
        assert!(pods.may_be_here(&"b".into()));
    }

    #[tokio::test]
    async fn each_settled_pod_is_told_once() {
        let pods = SettledPods::default();
        pods.settle(&"a".into(), Left::Nothing);
        pods.settle(&"b".into(), Left::Containers);
        let told = [("a".into(), Left::Nothing), ("b".into(), Left::Containers)];
        assert_eq!(pods.next().await, told.into());
        let waiting = pods.clone();
        let waiting = tokio::spawn(async move { waiting.next().await });
        pods.settle(&"c".into(), Left::Nothing);
        assert_eq!(waiting.await.unwrap(), [("c".into(), Left::Nothing)].into());
    }

    #[test]
    fn a_pod_rests_until_it_is_woken() {
        let pods = SettledPods::default();
        assert!(!pods.rests(&"a".into()));
        pods.clone().rest(&"a".into());
        assert!(pods.rests(&"a".into()));
        pods.wake(&"a".into());
        assert!(!pods.rests(&"a".into()));
    }
}
