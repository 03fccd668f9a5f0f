//! Records changes of manifests in the journal: read, held at their last good version, refused because
//! of another pod with the same name, and changes of workloads' pods.

use std::collections::{BTreeMap, BTreeSet};

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::{SourcePod, SourceState};
use mirrorlet_core::events::of_pods;
use mirrorlet_core::merge::{Merged, PodOperation, SourceName};
use mirrorlet_core::observed::Pods;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Remembers what was reported already.
#[derive(Debug, Default)]
pub(super) struct ManifestReporter {
    held: BTreeMap<PodUid, FullName>,
    refused: BTreeSet<(FullName, PodUid, String)>,
}

impl ManifestReporter {
    /// Reports one operation of a merge. Called before it is executed, so that the pod's containers are
    /// known for later entries.
    pub(super) fn operation(telemetry: &Telemetry, operation: &PodOperation) {
        match operation {
            PodOperation::Add(pod) | PodOperation::Update(pod) => {
                occurrences::manifest_read(telemetry, pod);
            }
            PodOperation::Remove(_) | PodOperation::Delete(_) | PodOperation::Reconcile(_) => {}
        }
    }

    /// Records the events of workloads whose pods have changed. `before` is the previous merge; none if
    /// that didn't know the running pods yet: then the pods in `listed` are not new.
    pub(super) fn workloads(
        telemetry: &Telemetry,
        before: Option<&Merged>,
        merged: &Merged,
        listed: &Pods,
    ) {
        if before.is_some_and(|before| {
            before.pods.keys().eq(merged.pods.keys())
                && before.beside.keys().eq(merged.beside.keys())
        }) {
            return;
        }
        let events = if let Some(before) = before {
            of_pods(of_manifests(before), of_manifests(merged))
        } else {
            let running = listed.0.iter().map(|pod| &pod.full_name);
            let running: BTreeSet<&FullName> = running.collect_set();
            let known = of_manifests(merged).filter(|pod| running.contains(&FullName::of(pod)));
            of_pods(known, of_manifests(merged))
        };
        for event in &events {
            occurrences::workload(telemetry, event);
        }
    }

    /// Reports new problems with manifests.
    pub(super) fn merged(
        &mut self,
        telemetry: &Telemetry,
        states: &BTreeMap<SourceName, SourceState>,
        merged: &Merged,
    ) {
        let mut held = BTreeMap::new();
        for (uid, pod) in merged.pods.iter().filter(|(_, pod)| pod.held) {
            let name = pod.full_name();
            if !self.held.contains_key(uid) {
                let problem = pod.problems.first().map(ToString::to_string);
                let problem = problem.unwrap_or_else(|| "it is unusable".to_owned());
                occurrences::manifest_held(telemetry.pod(&name, uid), &problem);
            }
            held.insert(uid.clone(), name);
        }
        for (uid, name) in &self.held {
            if !held.contains_key(uid) && merged.pods.contains_key(uid) {
                occurrences::manifest_released(telemetry.pod(name, uid));
            }
        }
        self.held = held;
        let refused: BTreeMap<_, _> = states
            .values()
            .filter_map(SourceState::set)
            .flat_map(|set| &set.pods)
            .filter(|pod| lost(pod, merged))
            .map(|pod| {
                let location = pod.origin.location.clone();
                ((pod.full_name(), pod.uid(), location), pod)
            })
            .collect_map();
        for (key, pod) in &refused {
            if !self.refused.contains(key) {
                occurrences::pod_duplicate(telemetry, pod);
            }
        }
        self.refused = refused.into_keys().collect_set();
    }
}

/// The wanted pods of manifests, in whatever version.
fn of_manifests(merged: &Merged) -> impl Iterator<Item = &Pod> {
    let pods = merged.pods.values().chain(merged.beside.values());
    pods.filter(|pod| !pod.is_api()).map(|pod| &*pod.pod)
}

/// Whether another pod runs in its place.
fn lost(pod: &SourcePod, merged: &Merged) -> bool {
    match merged.pods.get(&pod.uid()) {
        Some(running) => running.origin != pod.origin,
        None => true,
    }
}
