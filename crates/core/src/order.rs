//! Users' orders (`mirrorlet stop`, `start` and `restart`) that are accepted and not executed yet.
//!
//! An order is part of the pod, as annotations; the observed status may be older. Until it catches up,
//! the pod counts neither as ready nor as stopped.

use crate::api::Pod;
use crate::observed::{ContainerStatus, PodStatus};
use crate::spec;

/// An order that is not executed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outstanding {
    /// The pod must stop, and some of its containers may run.
    Stop,
    /// An instance that may be running must be replaced.
    Restart,
    /// An instance that has ended must be replaced.
    Start,
}

/// The order about a pod that its worker hasn't executed yet, according to the observed status.
pub fn outstanding(pod: &Pod, observed: &PodStatus) -> Option<Outstanding> {
    if spec::is_stopped(pod) {
        return observed.anything_running().then_some(Outstanding::Stop);
    }
    let newest =
        spec::containers(pod).filter_map(|(_, c)| observed.find_container_status_by_name(&c.name));
    let mut replaced = newest
        .filter(|newest| spec::to_restart(pod, &newest.id))
        .peekable();
    replaced.peek()?;
    let runs = replaced.any(ContainerStatus::may_be_running);
    Some(if runs {
        Outstanding::Restart
    } else {
        Outstanding::Start
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::api::{ContainerId, PodUid, Timestamp, keys};
    use crate::observed::{ContainerHash, ContainerState, Role};

    fn instance(name: &str, id: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            id: ContainerId::docker(id),
            name: Arc::from(name),
            role: Role::App,
            state,
            by_hand: None,
            created_at: Timestamp::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: None,
            reason: Arc::from(""),
            message: Arc::from(""),
            image: Arc::from("a:1"),
            image_id: Arc::from("sha256:0"),
            hash: ContainerHash(0),
            restart_count: 0,
            pod_restarts: 0,
        }
    }

    #[test]
    fn an_order_is_outstanding_until_what_it_is_about_has_gone() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let stop = (keys::STOPPED, "true");
        let restart = |ids| (keys::RESTART, ids);
        // The orders, the newest instances of containers a and b, the outstanding one.
        for (orders, a, b, expected) in [
            (&[][..], ("a0", Running), ("b0", Running), None),
            (
                &[stop],
                ("a0", Running),
                ("b0", Exited),
                Some(Outstanding::Stop),
            ),
            (
                &[stop],
                ("a0", Unknown),
                ("b0", Exited),
                Some(Outstanding::Stop),
            ),
            (&[stop], ("a0", Exited), ("b0", Exited), None),
            // One that was restarted before it was stopped.
            (
                &[stop, restart("docker://a0")],
                ("a0", Exited),
                ("b0", Exited),
                None,
            ),
            (
                &[restart("docker://a0")],
                ("a0", Running),
                ("b0", Running),
                Some(Outstanding::Restart),
            ),
            (
                &[restart("docker://a0,docker://b0")],
                ("a1", Running),
                ("b0", Running),
                Some(Outstanding::Restart),
            ),
            (
                &[restart("docker://a0,docker://b0")],
                ("a0", Exited),
                ("b0", Running),
                Some(Outstanding::Restart),
            ),
            (
                &[restart("docker://a0,docker://b0")],
                ("a0", Exited),
                ("b0", Exited),
                Some(Outstanding::Start),
            ),
            (
                &[restart("docker://a0,docker://b0")],
                ("a1", Created),
                ("b0", Exited),
                Some(Outstanding::Start),
            ),
            (
                &[restart("docker://a0,docker://b0")],
                ("a1", Running),
                ("b1", Created),
                None,
            ),
            // Not in the pod any more.
            (
                &[restart("docker://c0")],
                ("a0", Running),
                ("b0", Running),
                None,
            ),
        ] {
            let annotations: serde_json::Map<_, _> = orders
                .iter()
                .map(|(key, value)| ((*key).to_owned(), json!(value)))
                .collect();
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": "p", "annotations": annotations},
                "spec": {"containers": [{"name": "a"}, {"name": "b"}]},
            }))
            .unwrap();
            let mut observed = PodStatus::empty(PodUid::from("u"));
            // An older instance, too.
            observed.containers = vec![
                instance("a", a.0, a.1),
                instance("b", b.0, b.1),
                instance("a", "old", Exited),
            ];
            assert_eq!(
                outstanding(&pod, &observed),
                expected,
                "{orders:?} {a:?} {b:?}"
            );
        }
        // Nothing is left of the instance that was to be replaced.
        let annotations = json!({keys::RESTART: "docker://a0"});
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [{"name": "a"}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(
            outstanding(&pod, &PodStatus::empty(PodUid::from("u"))),
            None
        );
    }
}
