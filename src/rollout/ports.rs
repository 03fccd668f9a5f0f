//! Versions that wait for a port of the host: when another pod may have let go of it, and pods that wait
//! for one another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::store::board::{Board, PodView};
use mirrorlet_core::admit::{has_host_ports, host_port_holder};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::rollout::{Cause, Phase};
use mirrorlet_core::small::SmallCollect;

/// Whether a version is held for a port of the host.
pub(super) fn waits_for_port(phase: &Phase) -> bool {
    let is_port = |cause: &Cause| {
        let field = cause.field.as_deref();
        field.is_some_and(|field| field.ends_with(".hostPort"))
    };
    matches!(phase, Phase::Held(cause) if is_port(cause))
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
    pub(super) fn with_circle(&self, cause: Cause, name: &FullName, before: &Merged) -> Cause {
        match self.circle(name, before) {
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
    fn circle(&self, name: &FullName, before: &Merged) -> Option<String> {
        let running = before.pods.values().filter(|pod| !pod.is_api());
        let running: Vec<Arc<Pod>> = running.map(|pod| Arc::clone(&pod.pod)).collect();
        let mut circle = vec![name.clone()];
        loop {
            let newest = self.newest.get(circle.last()?)?;
            let next = FullName::of(host_port_holder(newest, &running)?);
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
