//! The merge task: combines the sources' sets to the desired set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::select_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::manifest_reporter::ManifestReporter;
use crate::jobs::Jobs;
use crate::rollout::Rollouts;
use crate::source::{SourceReader, problems_of};
use crate::store::cell::Writer;
use crate::store::claims::{ClaimHandle, ClaimStore, Releases, releases};
use crate::store::pods::PodWriter;
use crate::store::refresh::{RefreshHandle, Refreshes, refreshes};
use crate::store::workloads::WorkloadStore;
use crate::worker::Wanted;
use mirrorlet_core::api::{Diagnostic, Pod, PodUid, Timestamp};
use mirrorlet_core::desired::SourceState;
use mirrorlet_core::merge::{Incumbents, Merged, PodOperation, SourceName, diff, merge_sources};
use mirrorlet_core::observed::Pods;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::objects::ManifestObjects;

/// The stores that a merge writes. The task is their only writer.
pub struct MergeOutputs {
    /// The wanted pods by name.
    pub pods: PodWriter,
    /// Everything that is desired.
    pub merged: Writer<Merged>,
    /// The pods that the workers run.
    pub wanted: watch::Sender<Arc<Wanted>>,
    /// The objects that pods of manifests refer to.
    pub objects: Arc<ManifestObjects>,
    /// The documents with the names of workloads, for the next merge and the next agent.
    pub workloads: WorkloadStore,
}

/// The ways to reach the task.
#[derive(Debug, Clone)]
pub struct MergeHandles {
    /// Releases claims.
    pub claims: ClaimHandle,
    /// Has the newest sets of the sources merged.
    pub refresh: RefreshHandle,
}

/// Merges until cancelled.
pub struct MergeTask {
    sources: Vec<SourceReader>,
    listed: watch::Receiver<Option<Arc<Pods>>>,
    outputs: MergeOutputs,
    telemetry: Telemetry,
    conflicts: BTreeSet<Diagnostic>,
    reporter: ManifestReporter,
    rollouts: Rollouts,
    jobs: Jobs,
    claims: ClaimStore,
    releases: Releases,
    refreshes: Refreshes,
    /// The pods of the last merge as their sources delivered them: for an unchanged one, the result is
    /// reused.
    given: BTreeMap<PodUid, Arc<Pod>>,
    /// Whether a merge knew the running pods. Before that nothing is wanted, because the incumbent of
    /// two pods with one name is unknown.
    settled: bool,
}

impl MergeTask {
    /// Returns a task that merges `sources`. Pods that run according to the newest list take precedence
    /// over new ones with the same full name.
    pub fn new(
        sources: Vec<SourceReader>,
        listed: watch::Receiver<Option<Arc<Pods>>>,
        outputs: MergeOutputs,
        rollouts: Rollouts,
        jobs: Jobs,
        claims: ClaimStore,
        telemetry: Telemetry,
    ) -> (Self, MergeHandles) {
        let (claims_handle, releases) = releases();
        let (refresh, refreshes) = refreshes();
        let task = Self {
            sources,
            listed,
            outputs,
            telemetry,
            conflicts: BTreeSet::new(),
            reporter: ManifestReporter::default(),
            rollouts,
            jobs,
            claims,
            releases,
            refreshes,
            given: BTreeMap::new(),
            settled: false,
        };
        let handles = MergeHandles {
            claims: claims_handle,
            refresh,
        };
        (task, handles)
    }

    /// Merges until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        loop {
            let states = self.merge().await;
            self.rollouts.keep().await;
            let merged = self.outputs.merged.get();
            self.count_problems(&states, &merged);
            self.outputs.workloads.keep(&merged.workloads).await;
            self.refreshes.done();
            // A caller then finds the outcome of its order in the published state.
            self.jobs.answer();
            self.claims.answer();
            let mut readers: Vec<_> = self.sources.iter().map(|s| s.state.clone()).collect();
            let changed = select_all(readers.iter_mut().map(|reader| Box::pin(reader.changed())));
            let mut listed = self.listed.clone();
            let (index, release) = tokio::select! {
                () = cancel.cancelled() => break,
                known = listed.wait_for(Option::is_some), if !self.settled => {
                    if known.is_err() { break }
                    continue;
                }
                () = self.rollouts.changed() => continue,
                () = self.jobs.changed() => continue,
                () = self.refreshes.requested() => continue,
                () = self.outputs.objects.volumes_seen() => continue,
                Some(release) = self.releases.recv() => (None, Some(release)),
                (changed, index, _) = changed => if changed.is_ok() { (Some(index), None) } else { break },
            };
            if let Some(release) = release {
                self.claims.release(release).await;
            }
            if let Some(index) = index
                && let (Some(source), Some(reader)) =
                    (self.sources.get_mut(index), readers.get(index))
            {
                source.state = reader.clone();
            }
        }
        self.rollouts.shut_down().await;
    }

    /// Merges the current sets of the sources, and reports changes. Returns these sets.
    async fn merge(&mut self) -> BTreeMap<SourceName, SourceState> {
        let states: BTreeMap<SourceName, SourceState> = self
            .sources
            .iter()
            .map(|source| (source.name.clone(), (*source.state.get()).clone()))
            .collect_map();
        let before = self.outputs.merged.get();
        let listed = self.listed.borrow().clone();
        let mut merged = merge_sources(&states, &self.incumbents(&before), &before.objects);
        self.reporter.merged(&self.telemetry, &states, &merged);
        self.claims.saw(&self.outputs.objects.take_volumes()).await;
        merged.bind_claims(self.claims.bindings());
        merged.bindings = self.claims.keep(&merged.bindings).await.clone();
        self.jobs
            .apply(&mut merged, &states, listed.is_some())
            .await;
        self.report_conflicts(&states, &merged);
        // Before any pod is: one that comes with its objects finds them.
        self.outputs.objects.publish(merged.known_objects());
        self.rollouts.add_configs(&mut merged);
        if let Some(listed) = &listed {
            self.rollouts.apply(&mut merged, &before, listed).await;
            self.rollouts.keep_switches().await;
            merged.settled = true;
        }
        let now = Timestamp::now();
        self.given = merged.carry_over(&before, &self.given, now);
        self.report_operations(&before, &merged);
        if let Some(listed) = &listed {
            let before = self.settled.then_some(&*before);
            ManifestReporter::workloads(&self.telemetry, before, &merged, listed);
        }
        let all = merged.pods.iter().chain(&merged.beside);
        let wanted = Wanted {
            pods: all
                .map(|(uid, p)| (uid.clone(), Arc::clone(&p.pod)))
                .collect_map(),
            finished: merged.finished.clone(),
            delivered: merged.delivered,
            spared: self.jobs.spared().clone(),
        };
        let pods = merged.pods.values();
        self.outputs
            .pods
            .set_pods(pods.map(|pod| Arc::clone(&pod.pod)));
        self.outputs.merged.publish(merged);
        self.settled = listed.is_some();
        if listed.is_none() {
            return states;
        }
        self.outputs.wanted.send_if_modified(|known| {
            let changed = **known != wanted;
            if changed {
                *known = Arc::new(wanted);
            }
            changed
        });
        states
    }

    /// Reports the changes of pods between two merges.
    fn report_operations(&self, before: &Merged, merged: &Merged) {
        for operation in diff(&before.pods, &merged.pods) {
            let pod = operation.pod();
            // An ended pod is not a change, whatever its stored form.
            let uid = pod.uid();
            if before.finished.contains(&uid) {
                self.telemetry.journal.set_refs(&pod.pod);
                continue;
            }
            if merged.finished.contains(&uid) {
                continue;
            }
            ManifestReporter::operation(&self.telemetry, &operation);
            match &operation {
                PodOperation::Add(_) => {
                    let source = &pod.origin.location;
                    self.telemetry
                        .about(&pod.pod, |of| occurrences::pod_added(of, source));
                }
                PodOperation::Remove(_) => {
                    let reason = if self.outputs.pods.is_settled(&pod.uid()) {
                        "it has finished, and all its resources on this node were removed"
                    } else {
                        "its source no longer contains it"
                    };
                    self.telemetry
                        .about(&pod.pod, |of| occurrences::pod_removed(of, reason));
                }
                PodOperation::Update(_) | PodOperation::Delete(_) | PodOperation::Reconcile(_) => {}
            }
        }
    }

    /// The pods and objects that keep their names: those that were wanted before, or else those that an
    /// earlier agent wanted and those that run, so that a duplicate does not displace a running pod, or
    /// repeat a Job's work, when the agent restarts. The documents of Jobs that an earlier agent began
    /// are known once a merge had those of every source.
    fn incumbents(&self, before: &Merged) -> Incumbents {
        let (listed, none) = (self.listed.borrow().clone(), Pods::default());
        let mut incumbents = Incumbents {
            pods: self.rollouts.incumbents(listed.as_deref().unwrap_or(&none)),
            workloads: self.outputs.workloads.known().clone(),
            begun: BTreeMap::new(),
        };
        if self.settled {
            incumbents.pods.extend(before.incumbents().pods);
        } else {
            // The records of Jobs list them completely: the runtime has nothing to add.
            incumbents.pods.extend(before.runs.clone());
        }
        if !before.delivered.manifests {
            incumbents.begun = self.jobs.begun();
        }
        incumbents
    }

    /// Logs new conflicts and resolved ones, including those of Jobs. Sources log the problems of their
    /// own documents.
    fn report_conflicts(&mut self, states: &BTreeMap<SourceName, SourceState>, merged: &Merged) {
        let of_sources: BTreeSet<&Diagnostic> = problems_of_sources(states).collect_set();
        let others = merged.conflicts.iter();
        let others = others.filter(|problem| !of_sources.contains(*problem));
        let conflicts: BTreeSet<Diagnostic> = others.cloned().collect_set();
        for conflict in conflicts.difference(&self.conflicts) {
            occurrences::manifest_problem(conflict);
        }
        for conflict in self.conflicts.difference(&conflicts) {
            occurrences::manifest_mended(conflict);
        }
        self.conflicts = conflicts;
    }

    /// Counts all problems there are: those of documents, and what keeps versions and Jobs' records from
    /// the disk.
    fn count_problems(&self, states: &BTreeMap<SourceName, SourceState>, merged: &Merged) {
        let unkept = self.rollouts.unkept();
        let problems: BTreeSet<&Diagnostic> = problems_of_sources(states)
            .chain(&merged.conflicts)
            .chain(&unkept)
            .collect_set();
        let mut counts = BTreeMap::new();
        for problem in problems.iter().filter(|problem| problem.is_error()) {
            *counts.entry(problem.code).or_default() += 1;
        }
        self.telemetry.metrics.set_problems(&counts);
    }
}

/// The problems of all sources, those of their pods included.
fn problems_of_sources(
    states: &BTreeMap<SourceName, SourceState>,
) -> impl Iterator<Item = &Diagnostic> {
    let sets = states.values().filter_map(SourceState::set);
    sets.flat_map(|set| problems_of(set))
}
