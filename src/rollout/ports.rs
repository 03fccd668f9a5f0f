//! Versions that wait for a port of the host: when another pod may have let go of it, and pods that wait
//! for one another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::options::takes_room;
use crate::store::board::{Board, PodView};
use mirrorlet_core::admit::{has_host_ports, host_port_holder};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::rollout::{Cause, Phase};
use mirrorlet_core::small::SmallCollect;

/// Whether a version is held for a port of the host.
pub(super) fn waits_for_port(phase: &Phase) -> bool {
    matches!(phase, Phase::Held(cause) if is_port(cause))
}

/// Whether a cause is about a port of the host.
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

/// The versions that are held for host ports, and the pods that have those.
#[derive(Default)]
pub(super) struct Ports {
    /// The number of versions that waited.
    waiting: usize,
    /// The versions of which something ran then, and that had host ports.
    holders: BTreeSet<PodUid>,
    /// The newest version of each pod.
    newest: BTreeMap<FullName, Arc<Pod>>,
}

impl Ports {
    /// Takes in what sources want.
    pub(super) fn want(&mut self, wanted: &BTreeMap<FullName, SourcePod>) {
        let newest = wanted.iter();
        let newest = newest.map(|(name, newest)| (name.clone(), Arc::clone(&newest.pod)));
        self.newest = newest.collect_map();
    }

    /// Whether a port may be free for a version that waits: a pod with host ports has stopped since the
    /// last look, or the version did not wait then, and that pod has stopped meanwhile.
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

    /// Whether to decide again at once: another version waits now, or what runs from now on, after a switch,
    /// may not want the port that one waits for.
    pub(super) fn have_news(&self, has_switched: bool, phases: &BTreeMap<FullName, Phase>) -> bool {
        let waiting = waiting(phases);
        waiting > self.waiting || (has_switched && waiting > 0)
    }

    /// The cause for which a version isn't admitted, with the circle of pods that wait for one another's
    /// host ports, if that is it: none of them ever lets go.
    pub(super) fn with_circle(
        &self,
        cause: Cause,
        name: &FullName,
        before: &Merged,
        board: &Board,
    ) -> Cause {
        match self.circle(name, before, board) {
            Some(others) => {
                let message = format!(
                    "{}, which waits in turn for a host port of this one ({}); give one of them a free port first",
                    cause.message, others
                );
                Cause {
                    message: message.into(),
                    ..cause
                }
            }
            None => cause,
        }
    }

    /// The pods of the circle that a pod is part of: each wants a port that the next one has.
    fn circle(&self, name: &FullName, before: &Merged, board: &Board) -> Option<String> {
        let has_ports = |pod: &&SourcePod| !pod.is_api() && takes_room(board, &pod.pod);
        let running = before.pods.values().filter(has_ports);
        let running: Vec<Arc<Pod>> = running.map(|pod| Arc::clone(&pod.pod)).collect();
        let mut circle = vec![name.clone()];
        loop {
            let newest = self.newest.get(circle.last()?)?;
            let next = FullName::of(host_port_holder(newest, &running)?.1);
            if next == *name {
                break;
            }
            // One beside it may wait for a circle that it isn't part of.
            if circle.contains(&next) {
                return None;
            }
            circle.push(next);
        }
        let names = circle
            .iter()
            .map(|name| format!("{}/{}", name.namespace, name.name));
        Some(names.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::board::{BoardWriter, Phase as WorkerPhase, board};
    use mirrorlet_core::api::{ContainerId, Timestamp};
    use mirrorlet_core::desired::{Origin, PodSource};
    use mirrorlet_core::observed::{ContainerState, PodStatus, SandboxStatus};

    /// A version of a pod, with one host port; 0 is none.
    fn pod(name: &str, port: u16) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": format!("{name}-{port}")},
            "spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": port}]}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn of_sources(pods: &[Arc<Pod>]) -> BTreeMap<FullName, SourcePod> {
        let origin = || Origin::whole(PodSource::File, "/m/a.yaml");
        let pods = pods.iter();
        pods.map(|pod| {
            let name = FullName::of(pod);
            (name, SourcePod::new(Arc::clone(pod), origin()))
        })
        .collect()
    }

    fn merged(pods: &[Arc<Pod>]) -> Merged {
        let pods = of_sources(pods).into_values();
        Merged {
            pods: pods.map(|pod| (pod.uid(), pod)).collect(),
            ..Merged::default()
        }
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
    fn a_circle_of_pods_that_wait_for_one_another_is_named() {
        /// A pod with the port that it has and the one that it wants.
        type Wants = (&'static str, u16, u16);
        let (writer, board) = board();
        let cases: [(&str, &[Wants], Option<&str>); 5] = [
            ("nobody has it", &[("a", 1, 2)], None),
            ("another keeps it", &[("a", 1, 2), ("b", 2, 2)], None),
            ("another gives it up", &[("a", 1, 2), ("b", 2, 3)], None),
            (
                "two",
                &[("a", 1, 2), ("b", 2, 1)],
                Some("default/a, default/b"),
            ),
            (
                "three",
                &[("a", 1, 2), ("b", 2, 3), ("c", 3, 1)],
                Some("default/a, default/b, default/c"),
            ),
        ];
        for (case, pods, circle) in cases {
            let of = |port: fn(&Wants) -> u16| {
                let pods = pods.iter().map(|it| pod(it.0, port(it)));
                pods.collect::<Vec<_>>()
            };
            let mut ports = Ports::default();
            ports.want(&of_sources(&of(|it| it.2)));
            let before = merged(&of(|it| it.1));
            let cause = Cause::new("NodePorts", "port 2 is taken");
            let told = ports.with_circle(cause.clone(), &name("a"), &before, &board);
            // rollouts 31
            match circle {
                Some(circle) => assert!(told.message.contains(circle), "{case}: {told:?}"),
                None => assert_eq!(told, cause, "{case}"),
            }
        }
        // A pod that the node refused has no port.
        let mut ports = Ports::default();
        ports.want(&of_sources(&[pod("a", 2), pod("b", 1)]));
        let before = merged(&[pod("a", 1), pod("b", 2)]);
        assert!(ports.circle(&name("a"), &before, &board).is_some());
        publish_as(
            &writer,
            &pod("b", 2),
            ContainerState::Exited,
            Some("Failed"),
        );
        assert_eq!(ports.circle(&name("a"), &before, &board), None);
        // One that is over, and of which something runs still, has it.
        publish_as(
            &writer,
            &pod("b", 2),
            ContainerState::Running,
            Some("Failed"),
        );
        assert!(ports.circle(&name("a"), &before, &board).is_some());
    }

    #[test]
    fn a_pod_beside_a_circle_is_no_part_of_it() {
        let (_writer, board) = board();
        let mut ports = Ports::default();
        let wanted = [pod("a", 2), pod("b", 3), pod("c", 2)];
        ports.want(&of_sources(&wanted));
        let before = merged(&[pod("a", 1), pod("b", 2), pod("c", 3)]);
        assert_eq!(ports.circle(&name("a"), &before, &board), None);
        let circle = ports.circle(&name("b"), &before, &board);
        assert_eq!(circle.as_deref(), Some("default/b, default/c"));
    }
}
