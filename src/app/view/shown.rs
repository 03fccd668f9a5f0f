//! The state that the embedded API shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::View;
use crate::rollout::Histories;
use crate::server::view::{Shown, ShownPod};
use crate::store::board::{Phase, PodView};
use mirrorlet_core::api::core::{Node, NodeCondition};
use mirrorlet_core::api::report::{PodReport, WorkloadReport};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet, SourceWorkload};
use mirrorlet_core::ending::is_over;
use mirrorlet_core::events::Happening;
use mirrorlet_core::eviction::Pressures;
use mirrorlet_core::manager::PodTable;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::names::manifest_name;
use mirrorlet_core::node::{PodProblems, Readings, compute_node, compute_node_status};
use mirrorlet_core::rollout::problem_lines;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_core::workload::WorkloadKey;
use mirrorlet_core::workload::revisions::revisions;
use mirrorlet_core::workload::standing::{Member, report};

/// The type of the condition that a pod takes requests.
const READY: &str = "Ready";

impl View {
    pub(super) fn show(&self, before: &[NodeCondition]) -> Shown {
        let merged = self.merged.get();
        // Read before the pods, so that all known ones are among them.
        let complete = self.is_complete(&merged);
        let objects = merged.objects.values().cloned().collect();
        let jobs = self.jobs.states();
        let pods = self.pods(&merged);
        let workloads = self.workloads();
        let (histories, table) = (self.rollouts.histories(), self.manager.get());
        let (mut standings, mut known) = (Vec::new(), BTreeMap::new());
        for (key, workload) in staying(&workloads) {
            let members = members(&key, &merged, &pods, &histories);
            standings.push(standing(&key, workload, &members, &merged, &table));
            let versions = revisions(workload, histories.values(), &members);
            known.insert(key, versions);
        }
        Shown {
            pods: self.shown_pods(&merged),
            objects,
            bindings: merged.bindings.clone(),
            workloads,
            standings,
            revisions: known,
            jobs: jobs.jobs.clone(),
            cron_jobs: jobs.cron_jobs.clone(),
            node: Some(self.node(&merged, before)),
            complete,
        }
    }

    /// Whether everything that exists is known.
    fn is_complete(&self, merged: &Merged) -> bool {
        let entries = self.cache.all().into_iter();
        // What a look that failed would have found is not known.
        let may_run = entries
            .filter(|entry| entry.error.is_some() || entry.status.anything_running())
            .map(|entry| entry.status.uid.clone());
        let is_stopped = |uid: &PodUid| self.board.get(uid).is_some();
        self.cache.known_until().is_some() && knows_all(merged, may_run, is_stopped)
    }

    fn shown_pods(&self, merged: &Merged) -> Vec<ShownPod> {
        let stored = self.stored_pods();
        let mut pods: Vec<_> = merged
            .pods
            .values()
            .map(|wanted| {
                let view = self.board.get(&wanted.uid());
                shown_pod(wanted, newest_of(wanted, &stored), view.as_ref())
            })
            .collect();
        for view in self.board.all() {
            let is_wanted =
                merged.pods.contains_key(&view.uid) || merged.beside.contains_key(&view.uid);
            let Some(pod) = view.pod.filter(|_| !is_wanted) else {
                continue;
            };
            if view.phase == Phase::Finished {
                continue;
            }
            let mut pod = Arc::unwrap_or_clone(pod);
            if let Some(status) = view.status {
                pod.status = Some((*status).clone());
            }
            pods.push(ShownPod {
                pod,
                newest: None,
                origin: None,
                terminating: true,
            });
        }
        pods
    }

    /// The pods that the embedded API stores.
    fn stored_pods(&self) -> StoredPods {
        let mut stored = StoredPods::new();
        let sources = self.sources.iter();
        for source in sources.filter(|source| source.name.source == PodSource::Embedded) {
            if let Some(set) = source.state.get().set() {
                stored.append(&mut bare(set));
            }
        }
        stored
    }

    /// The workloads of all sources; of two with one name, the one that has it.
    pub(super) fn workloads(&self) -> Vec<SourceWorkload> {
        let merged = self.merged.get();
        let states: Vec<_> = self.sources.iter().map(|one| one.state.get()).collect();
        let sets = states.iter().filter_map(|state| state.set());
        let documents = merged.one_of_each(sets.flat_map(|set| &set.workloads));
        documents.into_iter().cloned().collect()
    }

    /// The states of the workloads with permanent pods.
    pub(super) fn workload_reports(
        &self,
        merged: &Merged,
        pods: &[PodReport],
    ) -> Vec<WorkloadReport> {
        let (histories, table) = (self.rollouts.histories(), self.manager.get());
        let workloads = self.workloads();
        let reported = |(key, workload): (WorkloadKey, &SourceWorkload)| {
            let members = members(&key, merged, pods, &histories);
            standing(&key, workload, &members, merged, &table)
        };
        staying(&workloads).map(reported).collect()
    }

    fn node(&self, merged: &Merged, before: &[NodeCondition]) -> Node {
        let mut facts = self.facts.clone();
        facts.addresses.clone_from(&self.addresses.get());
        facts
            .engine_version
            .clone_from(&self.engine.borrow().version);
        let readings = Readings {
            engine: self.reach.borrow().clone(),
            pressures: Pressures::clone(&self.pressures.get()),
        };
        let problems = PodProblems {
            rollouts: problem_lines(merged.pods.values()),
            ..PodProblems::default()
        };
        let mut status =
            compute_node_status(&facts, &readings, &problems, before, Timestamp::now());
        // Heartbeats are dropped: they would be a change of the Node at each read.
        for condition in status.conditions.iter_mut().flatten() {
            condition
                .last_heartbeat_time
                .clone_from(&condition.last_transition_time);
        }
        let mut node = compute_node(&facts, status);
        let edits = self.rollouts.node_edits().get();
        // Annotations that the agent sets itself stay as they are.
        for (known, added) in [
            (&mut node.metadata.labels, &edits.labels),
            (&mut node.metadata.annotations, &edits.annotations),
        ] {
            let known = known.get_or_insert_default();
            for (key, value) in added {
                known.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        if edits.unschedulable {
            node.spec.get_or_insert_default().unschedulable = Some(true);
        }
        node
    }

    pub(super) fn happenings_from(&self, from: u64) -> (Vec<Happening>, u64) {
        let entries = self.journal.entries(from);
        let next = entries.last().map_or(from, |entry| entry.number + 1);
        let node = &self.resolved.config.node_name;
        let happenings = entries.iter().filter_map(|entry| entry.happening(node));
        (happenings.collect(), next)
    }
}

/// Whether a pod that is not in `merged` is gone: all sources of manifests have delivered, the running
/// version of each pod is known, and every pod that runs unwanted is being stopped.
fn knows_all(
    merged: &Merged,
    mut may_run: impl Iterator<Item = PodUid>,
    is_stopped: impl Fn(&PodUid) -> bool,
) -> bool {
    let is_wanted = |uid: &PodUid| {
        merged.pods.contains_key(uid)
            || merged.beside.contains_key(uid)
            || merged.finished.contains(uid)
    };
    merged.delivered.manifests
        && merged.settled
        && may_run.all(|uid| is_wanted(&uid) || is_stopped(&uid))
}

/// The pods of documents by their full names.
type StoredPods = BTreeMap<FullName, (Origin, Arc<Pod>)>;

/// The pods of a source that have a document each: those of no workload.
fn bare(set: &SourceSet) -> StoredPods {
    let pods = set.pods.iter();
    let bare = pods.filter(|pod| pod.runs.is_none() && WorkloadKey::of(&pod.pod).is_none());
    bare.map(|pod| (pod.full_name(), (pod.origin.clone(), Arc::clone(&pod.pod))))
        .collect_map()
}

/// The pod of the document that a pod which is wanted comes from, as that is now.
fn newest_of(wanted: &SourcePod, stored: &StoredPods) -> Option<Arc<Pod>> {
    let (origin, pod) = stored.get(&wanted.full_name())?;
    origin
        .is_same_document(&wanted.origin)
        .then(|| Arc::clone(pod))
}

/// A wanted pod. One that was not wanted for a while, and is wanted again, has to stop first: until
/// then it is shown as being stopped. A pod that has ended by itself is shown with its end.
fn shown_pod(wanted: &SourcePod, newest: Option<Arc<Pod>>, view: Option<&PodView>) -> ShownPod {
    let mut pod = (*wanted.pod).clone();
    let status = view.and_then(|view| view.status.as_deref());
    if let Some(status) = status {
        pod.status = Some(status.clone());
    }
    let stops =
        view.is_some_and(|view| matches!(view.phase, Phase::Terminating | Phase::Terminated));
    let terminating = stops && !is_over(status);
    if terminating && let Some(status) = &mut pod.status {
        for condition in status.conditions.iter_mut().flatten() {
            if condition.type_ == READY && condition.status != "False" {
                "False".clone_into(&mut condition.status);
                condition.reason = Some("PodTerminating".to_owned());
                condition.message =
                    Some("the pod is being stopped, and is then started again".to_owned());
            }
        }
    }
    ShownPod {
        pod,
        newest,
        origin: Some(wanted.origin.clone()),
        terminating,
    }
}

/// The workloads with permanent pods.
pub(super) fn staying(
    workloads: &[SourceWorkload],
) -> impl Iterator<Item = (WorkloadKey, &SourceWorkload)> {
    workloads.iter().filter_map(|workload| {
        let key = workload.key()?;
        key.kind.stays().then_some((key, workload))
    })
}

/// The state of a workload with these pods.
fn standing(
    key: &WorkloadKey,
    workload: &SourceWorkload,
    members: &[Member<'_>],
    merged: &Merged,
    table: &PodTable,
) -> WorkloadReport {
    let clash = merged.clashes.get(key).map(String::as_str);
    report(workload, members, &waits(merged, table, key), clash)
}

/// The pods of a workload that are to be there.
fn members<'a>(
    key: &WorkloadKey,
    merged: &'a Merged,
    pods: &'a [PodReport],
    histories: &Histories,
) -> Vec<Member<'a>> {
    let owner = key.owner();
    let is_its = |pod: &&PodReport| {
        pod.workload.as_deref() == Some(&*owner) && pod.namespace == key.namespace
    };
    let its = pods.iter().filter(is_its).filter_map(|pod| {
        let wanted = merged.pods.get(&pod.uid)?;
        let history = histories.get(&wanted.full_name());
        (!wanted.is_api()).then(|| Member::of(pod, wanted, history))
    });
    its.collect()
}

/// The conditions that pods of a `StatefulSet` wait for before they start or stop, in the order of
/// their numbers.
fn waits(merged: &Merged, table: &PodTable, key: &WorkloadKey) -> Vec<String> {
    let Some(set) = merged.sets.get(key) else {
        return Vec::new();
    };
    let mut waits: Vec<(i32, String)> = merged
        .waits
        .iter()
        .filter_map(|(name, waiting)| {
            let queued = waiting.pod.as_ref().map(|queued| Arc::clone(&queued.pod));
            let pod = queued.or_else(|| table.get_pod_by_full_name(name))?;
            let is_its = WorkloadKey::of(&pod).as_ref() == Some(key);
            let ordinal = set.ordinal(manifest_name(&pod)).filter(|_| is_its)?;
            Some((ordinal, format!("pod {} {}", name.name, waiting.message)))
        })
        .collect();
    waits.small_sort();
    waits.into_iter().map(|(_, words)| words).collect()
}

#[cfg(test)]
mod tests {
    use mirrorlet_core::api::core::PodStatus;
    use mirrorlet_core::api::keys;
    use mirrorlet_core::observed;
    use serde_json::json;

    use super::*;

    fn wanted() -> SourcePod {
        let pod = json!({"metadata": {"name": "web-box", "namespace": "default", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}});
        SourcePod::new(
            Arc::new(serde_json::from_value(pod).unwrap()),
            Origin::whole(PodSource::File, "web.yaml"),
        )
    }

    fn view(phase: Phase, status: &serde_json::Value) -> PodView {
        let status: PodStatus = serde_json::from_value(status.clone()).unwrap();
        PodView {
            uid: "u".into(),
            full_name: FullName::new("web-box", "default"),
            pod: None,
            phase,
            status: Some(Arc::new(status)),
            observed: Arc::new(observed::PodStatus::empty("u".into())),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        }
    }

    #[test]
    fn a_pod_that_is_wanted_again_is_shown_as_stopping_until_it_has() {
        let ready =
            json!([{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]);
        for (phase, of_status, terminating) in [
            (Phase::Terminating, "Running", true),
            (Phase::Terminated, "Running", true),
            (Phase::Syncing, "Running", false),
            (Phase::WaitingToStart, "Pending", false),
            // It ended by itself.
            (Phase::Terminating, "Failed", false),
            (Phase::Finished, "Succeeded", false),
        ] {
            let status = json!({"phase": of_status, "conditions": ready});
            let shown = shown_pod(&wanted(), None, Some(&view(phase, &status)));
            let conditions = shown.pod.status.unwrap().conditions.unwrap();
            let told = [0, 1].map(|at| conditions[at].status.clone());
            let expected = if terminating { "False" } else { "True" };
            assert_eq!(shown.terminating, terminating, "{phase:?} {of_status}");
            assert_eq!(told, [expected, "True"], "{phase:?} {of_status}");
            assert!(shown.origin.is_some());
        }
        assert!(!shown_pod(&wanted(), None, None).terminating);
    }

    #[test]
    fn what_is_not_shown_is_gone_once_it_is_known_what_runs() {
        let wanted = wanted();
        for (manifests, settled, runs, stops, expected) in [
            (true, true, vec![], vec![], true),
            (true, true, vec!["u"], vec![], true),
            (true, true, vec!["u", "old"], vec!["old"], true),
            // Its worker has not begun to stop it.
            (true, true, vec!["old"], vec![], false),
            // The runtime was not listed, or a URL has not answered.
            (true, false, vec![], vec![], false),
            (false, true, vec![], vec![], false),
        ] {
            let mut merged = Merged {
                settled,
                ..Merged::default()
            };
            merged.delivered.manifests = manifests;
            merged.pods.insert(wanted.uid(), wanted.clone());
            let may_run = runs.iter().map(|uid| PodUid::from(*uid));
            let known = knows_all(&merged, may_run, |uid| stops.contains(&uid.as_str()));
            // embedded 67
            assert_eq!(known, expected, "{manifests} {settled} {runs:?} {stops:?}");
        }
    }

    #[test]
    fn a_pod_has_the_newest_document_of_its_file() {
        let pod = |uid: &str, location: &str, workload: Option<&str>| {
            let annotations: BTreeMap<_, _> = workload
                .map(|name| (keys::WORKLOAD, name))
                .into_iter()
                .collect();
            let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": uid, "annotations": annotations}});
            let origin = Origin::whole(PodSource::Embedded, location);
            SourcePod::new(Arc::new(serde_json::from_value(pod).unwrap()), origin)
        };
        for (stored, expected) in [
            (pod("new", "web.yaml", None), Some("new")),
            // Another file has a pod of its name.
            (pod("new", "other.yaml", None), None),
            // The document is the workload's.
            (pod("new", "web.yaml", Some("Deployment/web")), None),
        ] {
            let set = SourceSet {
                pods: vec![stored],
                ..SourceSet::default()
            };
            let runs = pod("old", "web.yaml", None);
            let newest = newest_of(&runs, &bare(&set));
            let shown = shown_pod(&runs, newest, None);
            let uid = |pod: &Pod| pod.metadata.uid.clone();
            // embedded 66
            assert_eq!(shown.newest.and_then(|pod| uid(&pod)).as_deref(), expected);
            assert_eq!(uid(&shown.pod).as_deref(), Some("old"));
        }
    }
}
