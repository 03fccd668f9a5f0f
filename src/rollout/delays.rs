//! The time in which a version could not be started, which doesn't count towards its progress deadline.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::board::{Board, Phase, PodView};
use mirrorlet_core::admit::host_port_holder;
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::rollout::rejected;

/// The versions that wait for other pods to stop or for resources of the node, and since when versions
/// could be started.
#[derive(Debug, Default)]
pub(super) struct Delays {
    /// Since when this agent reaches the runtime.
    begun: Timestamp,
    /// Since when each version that had to wait may start; none while it waits.
    waited: BTreeMap<PodUid, Option<Timestamp>>,
}

impl Delays {
    /// From now on, versions can be started.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.begun = now;
    }

    /// Records which versions wait.
    pub(super) fn look(&mut self, board: &Board, now: Timestamp) {
        // A clock that was set back must delay no deadline.
        self.begun = self.begun.min(now);
        let views = board.all();
        self.waited
            .retain(|uid, _| views.iter().any(|view| view.uid == *uid));
        for view in &views {
            if waits(view, &views) || is_rejected(view) {
                self.waited.insert(view.uid.clone(), None);
            } else if let Some(since) = self.waited.get_mut(&view.uid) {
                *since = Some(since.unwrap_or(now).min(now));
            }
        }
    }

    /// Whether a version waits.
    pub(super) fn waits(&self, uid: &PodUid) -> bool {
        matches!(self.waited.get(uid), Some(None))
    }

    /// Since when a version can be started, as far as this agent knows.
    pub(super) fn counts_from(&self, uid: Option<&PodUid>) -> Timestamp {
        let waited = uid.and_then(|uid| self.waited.get(uid).copied().flatten());
        waited.map_or(self.begun, |since| since.max(self.begun))
    }
}

/// Whether a version waits until the node has room for it.
fn is_rejected(view: &PodView) -> bool {
    view.status.as_deref().and_then(rejected).is_some()
}

/// Whether a version waits for another pod that stops. One that can't be stopped is not worth
/// waiting for.
fn waits(view: &PodView, views: &[PodView]) -> bool {
    let fails_to_stop = |other: &&PodView| {
        matches!(other.phase, Phase::Terminating | Phase::Terminated) && !other.error.is_empty()
    };
    let is_awaited = |other: &PodView| {
        let pods = view.pod.as_ref().zip(other.pod.as_ref());
        let port = pods.and_then(|(pod, other)| {
            host_port_holder(pod, &[Arc::clone(other)]).map(|(port, _)| port)
        });
        let makes_room = view.awaits.contains(&other.uid);
        other.full_name == view.full_name || port.is_some() || makes_room
    };
    view.phase == Phase::WaitingToStart && !views.iter().filter(fails_to_stop).any(is_awaited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::board::board;
    use mirrorlet_core::api::{FullName, Pod, core};
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn view(uid: &str, name: &str, phase: Phase, error: &str) -> PodView {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
        }))
        .unwrap();
        PodView {
            uid: uid.into(),
            full_name: FullName::of(&pod),
            pod: Some(Arc::new(pod)),
            phase,
            status: None,
            observed: Arc::default(),
            error: error.into(),
            failed_probe: None,
            awaits: Arc::default(),
        }
    }

    #[test]
    fn a_version_counts_from_the_time_when_it_may_start() {
        let (writer, board) = board();
        let mut delays = Delays::default();
        delays.begin(at(10));
        assert_eq!(delays.counts_from(None), at(10));
        writer.publish(view("a", "web", Phase::Terminating, ""));
        writer.publish(view("b", "web", Phase::WaitingToStart, ""));
        delays.look(&board, at(20));
        assert!(delays.waits(&"b".into()));
        writer.publish(view("b", "web", Phase::Syncing, ""));
        for now in [50, 60] {
            delays.look(&board, at(now));
            assert!(!delays.waits(&"b".into()));
            assert_eq!(delays.counts_from(Some(&"b".into())), at(50), "{now}");
        }
        // The clock is set back.
        delays.look(&board, at(5));
        assert_eq!(delays.counts_from(Some(&"b".into())), at(5));
        assert_eq!(delays.counts_from(Some(&"a".into())), at(5));
        writer.remove(&"b".into());
        delays.look(&board, at(6));
        assert!(delays.waited.is_empty(), "forgotten");
    }

    #[test]
    fn a_version_that_the_node_refuses_counts_from_the_time_when_there_is_room() {
        let (writer, board) = board();
        let mut delays = Delays::default();
        let of = |status: serde_json::Value| PodView {
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            ..view("b", "web", Phase::Finished, "")
        };
        writer.publish(of(json!({
            "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected: no room",
        })));
        delays.look(&board, at(20));
        assert!(delays.waits(&"b".into()));
        writer.publish(of(json!({"phase": "Pending"})));
        delays.look(&board, at(90));
        assert_eq!(delays.counts_from(Some(&"b".into())), at(90));
    }

    #[test]
    fn a_version_that_waits_for_what_can_not_be_stopped_is_judged() {
        for (name, waits) in [("web", false), ("other", false), ("", true)] {
            let (writer, board) = board();
            writer.publish(view("b", "web", Phase::WaitingToStart, ""));
            if !name.is_empty() {
                writer.publish(view("a", name, Phase::Terminating, "permission denied"));
            }
            let mut delays = Delays::default();
            delays.look(&board, at(20));
            assert_eq!(delays.waits(&"b".into()), waits, "{name}");
        }
    }

    #[test]
    fn a_version_that_waits_for_a_preempted_pod_is_judged_if_that_can_not_be_stopped() {
        let status = json!({"phase": "Failed", "reason": "Preempting"});
        let status: core::PodStatus = serde_json::from_value(status).unwrap();
        for (awaits, error, waits) in [
            (&["a"][..], "", true),
            (&["a"], "permission denied", false),
            (&["c", "a"], "permission denied", false),
            // It waits for another one, or for none.
            (&["c"], "permission denied", true),
            (&[], "permission denied", true),
        ] {
            let (writer, board) = board();
            writer.publish(PodView {
                awaits: awaits.iter().map(|uid| PodUid::from(*uid)).collect(),
                ..view("b", "web", Phase::WaitingToStart, "")
            });
            for (uid, error) in [("a", error), ("c", "")] {
                writer.publish(PodView {
                    pod: None,
                    status: Some(Arc::new(status.clone())),
                    ..view(uid, uid, Phase::Terminating, error)
                });
            }
            let mut delays = Delays::default();
            delays.look(&board, at(20));
            // pods 61c
            assert_eq!(delays.waits(&"b".into()), waits, "{awaits:?} {error}");
        }
    }
}
