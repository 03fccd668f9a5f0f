//! Admission of new pods, once each; and of refused pods of manifests, again when there may be free
//! resources.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::{Command, PodWorkers, Wanted};
use mirrorlet_core::admit::{
    AdmitInput, AdmitNode, Failure, Verdict, admit, awaited, is_left_to_another, turn,
};
use mirrorlet_core::api::{FullName, Pod, PodUid, is_too_large};
use mirrorlet_core::ending::{Ending, ending, is_api_pod, is_over};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::rollout::{admitted_pod, is_beside};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_host::telemetry::occurrences;

impl PodWorkers {
    /// Handles a changed node: there may be resources for refused pods, or the Node is ours again.
    pub(super) fn node_changed(&mut self, cancel: &CancellationToken) {
        self.admit_refused();
        self.start_waiting(cancel);
    }

    /// Starts the wanted pods that have waited for the Node, or since the agent's start.
    pub(super) fn start_waiting(&mut self, cancel: &CancellationToken) {
        let wanted = self.wanted.borrow().clone();
        self.start_new(&wanted, cancel);
    }

    /// Starts new pods, running ones first. If a pod's remains are being removed, it starts after that;
    /// if its Node belongs to another agent, when the Node is ours again.
    pub(super) fn start_new(&mut self, wanted: &Wanted, cancel: &CancellationToken) {
        self.early.reset();
        let new = |uid: &&PodUid| !self.workers.contains_key(*uid) && !self.tidy.removes(uid);
        let uids: BTreeSet<PodUid> = wanted.pods.keys().filter(new).cloned().collect_set();
        if uids.is_empty() {
            return;
        }
        let held = self.held();
        let node = self.context.node.get();
        let mut pods: Vec<_> = uids.iter().filter_map(|uid| wanted.pods.get(uid)).collect();
        pods.retain(|pod| !is_left_to_another(pod, &node, held.contains_key(&PodUid::of(pod))));
        self.hold_early(&mut pods, wanted, &node, &held);
        pods.small_sort_by_cached_key(|pod| turn(pod, held.contains_key(&PodUid::of(pod))));
        let mut active = self.active_pods();
        for pod in pods {
            let is_here = held.contains_key(&PodUid::of(pod));
            let verdict = self.ask(pod, &node, &active, is_here);
            if !is_api_pod(pod) && !is_beside(pod) && self.runs(&PodUid::of(pod)) {
                // It doesn't wait: it runs, and must be stopped before another starts.
                self.locks
                    .with(|locks| locks.adopt(&FullName::of(pod), &PodUid::of(pod)));
            }
            self.make_room(pod, &verdict, &node, &mut active);
            self.admit_one(pod, verdict, &mut active, cancel);
        }
    }

    /// Whether any container of a pod may run, from its newest successful read, otherwise from the
    /// newest list.
    pub(super) fn runs(&self, uid: &PodUid) -> bool {
        let seen = self.context.cache.get(uid);
        let is_known = seen.modified.is_some() && !seen.is_unknown();
        if is_known || self.gone.contains(uid) {
            return seen.status.anything_running();
        }
        let listed = self.listed.borrow();
        let mut listed = listed.iter().flat_map(|pods| &pods.0);
        listed.any(|pod| {
            let mut all = pod.containers.iter().chain(&pod.sandboxes);
            pod.uid == *uid && all.any(|container| container.state == ContainerState::Running)
        })
    }

    /// Whether the node accepts a pod, of which something may exist here. An existing static pod stays:
    /// the machine has run it so far, and an upgrade or another reservation stops nothing. Nor does a
    /// shortage stop a running API pod.
    fn ask(&self, pod: &Arc<Pod>, node: &AdmitNode, active: &[Arc<Pod>], is_here: bool) -> Verdict {
        let admitted = Verdict::Admitted {
            preempt: Vec::new(),
        };
        // A pod that must only be ended needs no admission.
        if ending(pod).is_some() || has_ended(pod) {
            return admitted;
        }
        let calm = is_here.then(|| {
            let runs = self.runs(&PodUid::of(pod));
            node.clone().for_one_that_is_here(pod, runs)
        });
        let verdict = admit(&AdmitInput {
            pod: &admitted_pod(pod),
            others: active,
            node: calm.as_ref().unwrap_or(node),
        });
        match verdict {
            Verdict::Refused(Failure {
                reason, message, ..
            }) if is_here && !is_api_pod(pod) => {
                let message = format!("the pod is already running and is not stopped: {message}");
                let telemetry = &self.context.telemetry;
                telemetry.about(pod, |of| occurrences::note(of, &reason, &message));
                admitted
            }
            verdict => verdict,
        }
    }

    /// Starts one pod, if the node takes it.
    pub(super) fn admit_and_start(&mut self, pod: &Arc<Pod>, cancel: &CancellationToken) {
        let (node, mut active) = (self.context.node.get(), self.active_pods());
        let verdict = self.ask(pod, &node, &active, false);
        self.make_room(pod, &verdict, &node, &mut active);
        self.admit_one(pod, verdict, &mut active, cancel);
    }

    fn admit_one(
        &mut self,
        pod: &Arc<Pod>,
        verdict: Verdict,
        active: &mut Vec<Arc<Pod>>,
        cancel: &CancellationToken,
    ) {
        let (uid, full_name) = (PodUid::of(pod), FullName::of(pod));
        let command = match verdict {
            Verdict::Admitted { .. } => {
                if is_beside(pod) {
                    self.locks
                        .with(|locks| locks.start_beside(&full_name, &uid));
                } else if !is_api_pod(pod) {
                    self.locks.with(|locks| locks.join(&full_name, &uid));
                }
                // One that has ended is looked after, and needs no room.
                if !has_ended(pod) {
                    active.push(admitted_pod(pod));
                }
                // It was not known whether it is wanted.
                self.locks.pod_stopped(&uid);
                Command::Run(Arc::clone(pod))
            }
            Verdict::Refused(failure) => {
                let (reason, message) = (&failure.reason, &failure.message);
                let telemetry = &self.context.telemetry;
                occurrences::note(telemetry.pod(&full_name, &uid), reason, message);
                Command::Fail(Arc::clone(pod), failure)
            }
        };
        let pod = Some(Arc::clone(pod));
        self.start_worker(uid, full_name, command, pod, cancel);
    }

    /// Pods that count in the admission of another: admitted, and not ended.
    fn active_pods(&self) -> Vec<Arc<Pod>> {
        let active = self
            .workers
            .values()
            .filter(|h| h.active.load(Ordering::Relaxed));
        active
            .filter_map(|handle| match &*handle.commands.borrow() {
                Command::Run(pod) if !has_ended(pod) => Some(admitted_pod(pod)),
                Command::Run(_) | Command::Fail(..) | Command::Stop { .. } => None,
            })
            .collect()
    }

    /// Stops the pods that are preempted for an admitted one, which starts once they have stopped.
    fn make_room(
        &self,
        pod: &Arc<Pod>,
        verdict: &Verdict,
        node: &AdmitNode,
        active: &mut Vec<Arc<Pod>>,
    ) {
        let Verdict::Admitted { preempt } = verdict else {
            return;
        };
        for victim in preempt {
            self.preempt(victim);
            active.retain(|pod| PodUid::of(pod) != *victim);
        }
        // Another version of the pod, or an order of it, may have preempted them.
        self.await_room(pod, &self.locks.preempted(), node, active);
    }

    /// Makes a pod wait for those of these preempted pods beside which it doesn't fit. A running pod,
    /// or one that starts nothing, doesn't wait.
    fn await_room(
        &self,
        pod: &Arc<Pod>,
        preempted: &[Arc<Pod>],
        node: &AdmitNode,
        active: &[Arc<Pod>],
    ) {
        let uid = PodUid::of(pod);
        let starts = !has_ended(pod) && ending(pod).is_none() && !self.runs(&uid);
        let input = AdmitInput {
            pod,
            others: active,
            node,
        };
        let preempted = if starts { preempted } else { &[] };
        self.locks.await_room(&uid, awaited(&input, preempted));
    }

    /// Checks again, after resources may have been freed, whether pods still have to wait for preempted
    /// ones.
    fn await_room_again(&self, node: &AdmitNode, active: &[Arc<Pod>]) {
        for (uid, preempted) in self.locks.room_waits() {
            if let Some(pod) = self.wanted_of(&uid) {
                self.await_room(&pod, &preempted, node, active);
            }
        }
    }

    /// The critical pods that wait for preempted ones and whose spec was edited.
    pub(super) fn edited_waiting(&self, wanted: &Wanted) -> Vec<PodUid> {
        let waiting = self.locks.room_waits().into_iter().map(|(uid, _)| uid);
        let is_edited = |uid: &PodUid| {
            let pods = wanted.pods.get(uid).zip(self.wanted_of(uid));
            pods.is_some_and(|(pod, known)| pod.spec != known.spec)
        };
        waiting.filter(is_edited).collect()
    }

    /// Admits edited pods again that wait for preempted pods: they may need more resources than before,
    /// and have to preempt more pods, or fewer.
    pub(super) fn ask_waiting(&self, edited: &[PodUid]) {
        if edited.is_empty() {
            return;
        }
        let (node, mut active) = (self.context.node.get(), self.active_pods());
        for pod in edited.iter().filter_map(|uid| self.wanted_of(uid)) {
            let uid = PodUid::of(&pod);
            active.retain(|other| PodUid::of(other) != uid);
            // One of the API server was admitted for good.
            let verdict = if is_api_pod(&pod) {
                Verdict::Admitted {
                    preempt: Vec::new(),
                }
            } else {
                self.ask(&pod, &node, &active, false)
            };
            self.make_room(&pod, &verdict, &node, &mut active);
            match verdict {
                Verdict::Admitted { .. } if has_ended(&pod) => {}
                Verdict::Admitted { .. } => active.push(admitted_pod(&pod)),
                Verdict::Refused(failure) => self.refuse_waiting(&pod, failure),
            }
        }
    }

    /// The version that a pod's worker was ordered to run.
    fn wanted_of(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let handle = self.workers.get(uid)?;
        match &*handle.commands.borrow() {
            Command::Run(pod) => Some(Arc::clone(pod)),
            Command::Fail(..) | Command::Stop { .. } => None,
        }
    }

    fn preempt(&self, uid: &PodUid) {
        let Some(handle) = self.workers.get(uid) else {
            return;
        };
        let failure = Failure::preempted();
        let (telemetry, reason) = (&self.context.telemetry, &failure.reason);
        occurrences::note(
            telemetry.pod(&handle.full_name, uid),
            reason,
            &failure.message,
        );
        handle.commands.send_if_modified(|command| match command {
            Command::Run(pod) => {
                self.locks.pod_preempted(pod, &handle.active);
                *command = Command::Fail(Arc::clone(pod), failure.clone());
                true
            }
            Command::Fail(..) | Command::Stop { .. } => false,
        });
    }

    /// Admits refused or evicted pods of manifests again. A restart of the agent would do so too, and
    /// must have the same result. An API pod has failed for good.
    pub(super) fn admit_refused(&mut self) {
        self.ask_refused(&BTreeSet::new());
    }

    /// The same, after these pods were edited.
    pub(super) fn ask_refused(&mut self, edited: &BTreeSet<PodUid>) {
        self.evicted.ask();
        let (node, mut active) = (self.context.node.get(), self.active_pods());
        let mut refused: Vec<_> = self
            .workers
            .values()
            .filter_map(|handle| match &*handle.commands.borrow() {
                Command::Fail(pod, _) if !is_api_pod(pod) => Some(Arc::clone(pod)),
                Command::Run(_) | Command::Fail(..) | Command::Stop { .. } => None,
            })
            .collect();
        refused.retain(|pod| !self.evicted.holds(&PodUid::of(pod), &node));
        refused.small_sort_by_cached_key(|pod| turn(pod, false));
        for pod in refused {
            let verdict = admit(&AdmitInput {
                pod: &admitted_pod(&pod),
                others: &active,
                node: &node,
            });
            if let Verdict::Refused(failure) = &verdict {
                let uid = PodUid::of(&pod);
                self.refuse_again(&uid, failure, edited.contains(&uid));
                continue;
            }
            self.make_room(&pod, &verdict, &node, &mut active);
            active.push(admitted_pod(&pod));
            if let Some(handle) = self.workers.get(&PodUid::of(&pod)) {
                handle.commands.send_replace(Command::Run(pod));
            }
        }
        self.await_room_again(&node, &active);
    }
}

/// Whether an object has only some of a pod's values: it may end the pod, but nothing is started from
/// it.
pub(super) fn is_cut(pod: &Pod) -> bool {
    is_api_pod(pod) && is_too_large(&pod.metadata) && ending(pod).is_none()
}

/// Whether a pod needs no resources any more: an ended API pod, or a Job's pod that is kept for its
/// logs.
fn has_ended(pod: &Pod) -> bool {
    ending(pod) == Some(Ending::Over) || is_over(pod.status.as_ref())
}
