//! Settled pods: pods of the API server that are over, and of which nothing is left on this node.
//!
//! Workers tell which pods they are, and the API source keeps their names alone and wants them no
//! longer. Pods that are over stay in the API server until somebody deletes them, and there is no
//! limit to how many a tenant makes of those that a node refuses.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use mirrorlet_core::api::PodUid;
use mirrorlet_core::small::SmallCollect;

/// The settled pods that the API source has not heard of, and what the node held at the start.
/// Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SettledPods(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The pods that the runtime held something of when the agent started; `None` until it is known.
    held: Option<BTreeSet<PodUid>>,
    settled: BTreeSet<PodUid>,
}

impl SettledPods {
    /// Notes the pods that the runtime holds something of as the agent starts.
    pub fn start_with(&self, held: impl IntoIterator<Item = PodUid>) {
        self.0.state.lock().held = Some(held.into_iter().collect_set());
    }

    /// Whether anything may be on this node of a pod that no worker has had.
    pub fn may_be_here(&self, uid: &PodUid) -> bool {
        let state = self.0.state.lock();
        state.held.as_ref().is_none_or(|held| held.contains(uid))
    }

    /// Tells that nothing is left of a pod that is over.
    pub fn settle(&self, uid: &PodUid) {
        self.0.state.lock().settled.insert(uid.clone());
        self.0.told.notify_one();
    }

    /// The pods that have settled since the last call; waits for the first. Has one caller.
    ///
    /// Cancel safety: what is returned was not lost by a call that was dropped.
    pub async fn next(&self) -> BTreeSet<PodUid> {
        loop {
            let settled = std::mem::take(&mut self.0.state.lock().settled);
            if !settled.is_empty() {
                return settled;
            }
            self.0.told.notified().await;
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
        pods.settle(&"a".into());
        pods.settle(&"b".into());
        assert_eq!(pods.next().await, ["a".into(), "b".into()].into());
        let waiting = pods.clone();
        let waiting = tokio::spawn(async move { waiting.next().await });
        pods.settle(&"c".into());
        assert_eq!(waiting.await.unwrap(), ["c".into()].into());
    }
}
