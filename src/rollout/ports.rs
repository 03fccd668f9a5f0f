//! Versions that wait for a host port: when another pod may have released it.

use std::collections::{BTreeMap, BTreeSet};

use crate::store::board::{Board, PodView};
use mirrorlet_core::admit::has_host_ports;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::rollout::{Cause, Phase};
use mirrorlet_core::small::SmallCollect;

/// Whether a version is held because of a host port.
pub(super) fn waits_for_port(phase: &Phase) -> bool {
    matches!(phase, Phase::Held(cause) if is_port(cause))
}

/// Whether a cause is about a host port.
pub(super) fn is_port(cause: &Cause) -> bool {
    let field = cause.field.as_deref();
    field.is_some_and(|field| field.ends_with(".hostPort"))
}

/// The number of versions that are held for a port of the host.
fn waiting(phases: &BTreeMap<FullName, Phase>) -> usize {
    phases
        .values()
        .filter(|phase| waits_for_port(phase))
        .count()
}

/// The versions that are held for host ports, and the pods that have these ports.
#[derive(Default)]
pub(super) struct Ports {
    /// The number of versions that waited.
    waiting: usize,
    /// The versions of which something ran then, and that had host ports.
    holders: BTreeSet<PodUid>,
}

impl Ports {
    /// Whether a port may be free for a waiting version: a pod with host ports has stopped since the
    /// last check, or the version did not wait then, and that pod has stopped meanwhile.
    pub(super) fn may_be_free(
        &mut self,
        phases: &BTreeMap<FullName, Phase>,
        board: &Board,
    ) -> bool {
        let waiting = waiting(phases);
        let holds = |view: &PodView| {
            view.observed.anything_running() && view.pod.as_deref().is_some_and(has_host_ports)
        };
        let holders = if waiting > 0 {
            let views = board.all().into_iter().filter(holds);
            views.map(|view| view.uid).collect_set()
        } else {
            BTreeSet::new()
        };
        let is_new = waiting > self.waiting;
        let has_stopped = waiting > 0 && !self.holders.is_subset(&holders);
        (self.waiting, self.holders) = (waiting, holders);
        is_new || has_stopped
    }

    /// Whether to decide again immediately: another version waits now, or after a switch the running
    /// pods may not need the port that one waits for.
    pub(super) fn have_news(&self, has_switched: bool, phases: &BTreeMap<FullName, Phase>) -> bool {
        let waiting = waiting(phases);
        waiting > self.waiting || (has_switched && waiting > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::options::takes_room;
    use super::*;
    use crate::store::board::{BoardWriter, Phase as WorkerPhase, board};
    use mirrorlet_core::api::{ContainerId, Pod, Timestamp};
    use mirrorlet_core::observed::{ContainerState, PodStatus, SandboxStatus};

    /// A version of a pod, with one host port; 0 is none.
    fn pod(name: &str, port: u16) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-{port}")},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": port}]}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn name(pod: &str) -> FullName {
        FullName::new(pod, "default")
    }

    fn held(field: Option<&str>) -> Phase {
        Phase::Held(Cause::new("NodePorts", "taken").of_field(field))
    }

    /// Phases in which the pods of these names wait for ports, and no other waits for one.
    fn waiting_for_ports(names: &[&str]) -> BTreeMap<FullName, Phase> {
        let others = [
            ("image", held(Some("spec.containers[0].image"))),
            ("other", held(None)),
            ("done", Phase::Settled),
        ];
        let port = "spec.containers[0].ports[0].hostPort";
        let waiting = names.iter().map(|name| (*name, held(Some(port))));
        let all = waiting.chain(others);
        all.map(|(pod, phase)| (name(pod), phase)).collect()
    }

    fn publish(writer: &BoardWriter, pod: &Arc<Pod>, state: ContainerState) {
        publish_as(writer, pod, state, None);
    }

    fn publish_as(
        writer: &BoardWriter,
        pod: &Arc<Pod>,
        state: ContainerState,
        phase: Option<&str>,
    ) {
        let status = phase.map(|phase| {
            let status = serde_json::from_value(json!({"phase": phase}));
            Arc::new(status.unwrap())
        });
        let uid = PodUid::of(pod);
        let mut observed = PodStatus::empty(uid.clone());
        observed.sandboxes.push(SandboxStatus {
            id: ContainerId::new("fake", "s"),
            attempt: 0,
            state,
            created_at: Timestamp::UNIX_EPOCH,
            pod_started_at: None,
            host_network: false,
            ips: Vec::new(),
            by_hand: None,
        });
        writer.publish(PodView {
            full_name: FullName::of(pod),
            pod: Some(Arc::clone(pod)),
            phase: WorkerPhase::Syncing,
            status,
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
            uid,
        });
    }

    #[test]
    fn a_port_may_be_free_once_a_pod_with_ports_has_stopped() {
        let (writer, board) = board();
        let (with, without) = (pod("with", 80), pod("without", 0));
        publish(&writer, &with, ContainerState::Running);
        publish(&writer, &without, ContainerState::Running);
        let mut ports = Ports::default();
        assert!(!ports.may_be_free(&waiting_for_ports(&[]), &board));
        assert!(ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        assert!(!ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        publish(&writer, &without, ContainerState::Exited);
        assert!(!ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        publish(&writer, &with, ContainerState::Exited);
        assert!(ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        assert!(!ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        // It ran again, and left while nothing waited.
        publish(&writer, &with, ContainerState::Running);
        assert!(!ports.may_be_free(&waiting_for_ports(&["a"]), &board));
        assert!(!ports.may_be_free(&waiting_for_ports(&[]), &board));
        writer.remove(&PodUid::of(&with));
        assert!(!ports.may_be_free(&waiting_for_ports(&[]), &board));
        assert!(ports.may_be_free(&waiting_for_ports(&["a"]), &board));
    }

    #[test]
    fn a_switch_is_news_to_those_that_wait() {
        let (_writer, board) = board();
        let mut ports = Ports::default();
        assert!(!ports.have_news(true, &waiting_for_ports(&[])));
        assert!(ports.have_news(false, &waiting_for_ports(&["a"])));
        ports.may_be_free(&waiting_for_ports(&["a"]), &board);
        assert!(!ports.have_news(false, &waiting_for_ports(&["a"])));
        assert!(ports.have_news(true, &waiting_for_ports(&["a"])));
        assert!(ports.have_news(false, &waiting_for_ports(&["a", "b"])));
    }

    #[test]
    fn a_pod_that_the_node_refused_has_no_host_port() {
        let (writer, board) = board();
        let with = pod("a", 80);
        assert!(takes_room(&board, &with), "nothing is known of it");
        publish_as(&writer, &with, ContainerState::Exited, Some("Failed"));
        assert!(!takes_room(&board, &with));
        publish_as(&writer, &with, ContainerState::Running, Some("Failed"));
        assert!(takes_room(&board, &with), "something of it runs still");
    }
}
