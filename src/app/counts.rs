//! Gauges of the pods by state, of those that fail or are not Ready, of the workloads by kind with
//! their pods that are not Ready, of the Jobs that failed, and of the state of sources, set at each
//! change; and the values of the per-pod series, computed at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::select_all;

use crate::jobs::JobStates;
use crate::source::SourceReader;
use crate::store::board::{Board, Phase, PodView};
use crate::store::cell::Reader;
use mirrorlet_core::api::report::JobReport;
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::desired::{SourceSet, SourceState, SourceWorkload};
use mirrorlet_core::finished::FinishedPods;
use mirrorlet_core::merge::Merged;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_core::status::{all_container_statuses, is_ready};
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use mirrorlet_host::telemetry::{Metrics, PodState};

mod samples;
mod sources;

pub(super) use samples::pod_samples;
pub(super) use sources::watch_sources;

/// Updates the number of pods in each state, of those that are not Ready, of those whose last sync
/// failed, and of the containers in back-off until cancelled.
pub(super) async fn count_pods(mut merged: Reader<Merged>, board: Board, metrics: Metrics) {
    let mut changed = board.changed();
    loop {
        changed.mark_unchanged();
        let views = board.all();
        let finished = merged.get().finished.clone();
        let states = views
            .iter()
            .map(state)
            .chain(finished_states(&finished, &views));
        let mut counts = BTreeMap::new();
        for state in states {
            *counts.entry(state).or_default() += 1;
        }
        metrics.set_pods(&counts);
        metrics.set_not_ready_pods(views.iter().filter(|view| is_unready(view)).count());
        metrics.set_failing_pods(views.iter().filter(|view| !view.error.is_empty()).count());
        metrics.set_containers_in_backoff(views.iter().map(in_backoff).sum());
        let goes_on = tokio::select! {
            result = changed.changed() => result.is_ok(),
            result = merged.changed() => result.is_ok(),
        };
        if !goes_on {
            return;
        }
    }
}

/// The states of the ended pods without a worker.
fn finished_states(finished: &FinishedPods, views: &[PodView]) -> impl Iterator<Item = PodState> {
    let working: BTreeSet<PodUid> = views.iter().map(|view| view.uid.clone()).collect_set();
    let pods = finished
        .iter()
        .filter(move |(uid, _)| !working.contains(*uid));
    pods.map(|(_, pod)| {
        if pod.has_succeeded() {
            PodState::Succeeded
        } else {
            PodState::Failed
        }
    })
}

/// Updates the number of delivered workloads of each kind until cancelled.
pub(super) async fn count_workloads(sources: Vec<SourceReader>, metrics: Metrics) {
    let mut states: Vec<_> = sources.into_iter().map(|source| source.state).collect();
    loop {
        let sets: Vec<Arc<SourceState>> = states.iter().map(Reader::get).collect();
        metrics.set_workloads(&by_kind(sets.iter().filter_map(|state| state.set())));
        if !any_changed(&mut states).await {
            return;
        }
    }
}

/// Updates the number of pods wanted by workloads that are not Ready until cancelled.
pub(super) async fn count_unready(
    sources: Vec<SourceReader>,
    mut merged: Reader<Merged>,
    board: Board,
    metrics: Metrics,
) {
    let mut states: Vec<_> = sources.into_iter().map(|source| source.state).collect();
    let mut changed = board.changed();
    loop {
        changed.mark_unchanged();
        let sets: Vec<Arc<SourceState>> = states.iter().map(Reader::get).collect();
        let sets: Vec<_> = sets.iter().filter_map(|state| state.set()).collect();
        metrics.set_unready_pods(&unready(&sets, &merged.get(), || board.all()));
        tokio::select! {
            lasts = any_changed(&mut states) => if !lasts { return },
            result = merged.changed() => if result.is_err() { return },
            result = changed.changed() => if result.is_err() { return },
        }
    }
}

/// Counts, by kind, the pods wanted by workloads that are not Ready. Pods that a user stopped don't
/// count.
fn unready(
    sets: &[&Arc<SourceSet>],
    merged: &Merged,
    views: impl FnOnce() -> Vec<PodView>,
) -> BTreeMap<WorkloadKind, usize> {
    let documents = merged.one_of_each(sets.iter().flat_map(|set| &set.workloads));
    // While a name is kept for a source that has not answered, the pods of another document are not
    // wanted.
    let with_name = documents.into_iter().filter(|one| !merged.has_lost(one));
    let mut missing: BTreeMap<WorkloadKey, usize> = with_name
        .filter_map(|one| Some((one.key()?, one.pods.len())))
        .filter(|(key, _)| key.kind.stays())
        .collect_map();
    if missing.is_empty() {
        return BTreeMap::new();
    }
    for view in views() {
        let ready = view.status.as_deref().is_some_and(is_ready);
        let is_well = ready || view.pod.as_deref().is_some_and(spec::is_stopped);
        let key = view.pod.as_deref().and_then(WorkloadKey::of);
        // While a new version starts beside the old one, both may be Ready.
        if let Some(missing) = key
            .filter(|_| is_well)
            .and_then(|key| missing.get_mut(&key))
        {
            *missing = missing.saturating_sub(1);
        }
    }
    let mut counts = BTreeMap::new();
    for (key, number) in missing {
        *counts.entry(key.kind).or_default() += number;
    }
    counts
}

/// Updates the number of failed Jobs until cancelled.
pub(super) async fn count_failed_jobs(states: Reader<JobStates>, metrics: Metrics) {
    let mut states = [states];
    loop {
        metrics.set_failed_jobs(failed(&states[0].get().jobs));
        if !any_changed(&mut states).await {
            return;
        }
    }
}

/// The number of failed Jobs. The failure of a CronJob's run no longer counts once a later run
/// completes.
fn failed(jobs: &[JobReport]) -> usize {
    let is_over = |run: &JobReport| {
        run.cron_job.is_some()
            && jobs.iter().any(|later| {
                later.condition == "Complete"
                    && (&later.namespace, &later.cron_job) == (&run.namespace, &run.cron_job)
                    && later.created_at > run.created_at
            })
    };
    let failed = jobs.iter().filter(|job| job.has_failed());
    failed.filter(|job| !is_over(job)).count()
}

/// Waits until one of the values has changed. Returns false once no more changes can happen; without
/// values, it waits forever.
pub(super) async fn any_changed<T: Send + Sync + 'static>(readers: &mut [Reader<T>]) -> bool {
    if readers.is_empty() {
        return std::future::pending().await;
    }
    let changed = select_all(readers.iter_mut().map(|reader| Box::pin(reader.changed())));
    changed.await.0.is_ok()
}

/// How many workloads of each kind there are. Two documents of one workload count once.
fn by_kind<'a>(sets: impl Iterator<Item = &'a Arc<SourceSet>>) -> BTreeMap<WorkloadKind, usize> {
    let workloads = sets.flat_map(|set| &set.workloads);
    let keys: BTreeSet<WorkloadKey> = workloads.filter_map(SourceWorkload::key).collect_set();
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key.kind).or_default() += 1;
    }
    counts
}

fn state(view: &PodView) -> PodState {
    match view.phase {
        Phase::Terminating | Phase::Terminated => PodState::Terminating,
        Phase::WaitingToStart | Phase::Syncing | Phase::Finished => {
            let phase = view.status.as_ref().and_then(|s| s.phase.as_deref());
            PodState::of_phase(phase.unwrap_or_default())
        }
    }
}

/// Whether a pod should be Ready and is not: it is pending or running, no user stopped it, and it is
/// not a pod of a Job (a Job's pod is meant to complete).
fn is_unready(view: &PodView) -> bool {
    let stays = |pod: &Arc<Pod>| {
        !spec::is_stopped(pod) && WorkloadKey::of(pod).is_none_or(|key| key.kind.stays())
    };
    view.phase != Phase::Finished
        && matches!(state(view), PodState::Pending | PodState::Running)
        && view.pod.as_ref().is_some_and(stays)
        && !view.status.as_deref().is_some_and(is_ready)
}

/// How many containers of a pod are in `CrashLoopBackOff`.
fn in_backoff(view: &PodView) -> usize {
    let Some(status) = view
        .status
        .as_deref()
        .filter(|_| state(view) != PodState::Terminating)
    else {
        return 0;
    };
    let statuses = all_container_statuses(status);
    let waiting = statuses.filter_map(|one| one.state.as_ref()?.waiting.as_ref());
    waiting
        .filter(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{Parts, spawn_until};
    use mirrorlet_core::api::{NodeName, Timestamp, keys};
    use mirrorlet_core::hold::{NewFile, with_files};
    use tokio_util::sync::CancellationToken;

    pub(super) fn set_of(text: &str) -> Arc<SourceSet> {
        let file = NewFile {
            location: "/m/a.yaml".to_owned(),
            bytes: text.as_bytes().to_vec(),
        };
        let node = NodeName::from("box");
        Arc::new(with_files(&SourceSet::default(), &[file], true, &node))
    }

    #[test]
    fn a_workload_of_two_documents_counts_once() {
        let deployment = |name: &str| {
            format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  replicas: 0\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    spec: {{containers: [{{name: c, image: i}}]}}\n---\n"
            )
        };
        let both = deployment("web") + &deployment("db");
        let sets = [set_of(&both), set_of(&deployment("web"))];
        let counts = BTreeMap::from([(WorkloadKind::Deployment, 2)]);
        assert_eq!(by_kind(sets.iter()), counts);
    }

    pub(super) fn view_of(set: &SourceSet, at: usize, status: serde_json::Value) -> PodView {
        let uid = set.pods[at].uid();
        PodView {
            full_name: set.pods[at].full_name(),
            pod: Some(Arc::clone(&set.pods[at].pod)),
            phase: Phase::Syncing,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::new(mirrorlet_core::observed::PodStatus::empty(uid.clone())),
            uid,
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        }
    }

    #[tokio::test]
    async fn pods_that_fail_and_containers_that_crash_are_counted() {
        let pod = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n---\n"
            )
        };
        let set = set_of(&(pod("a") + &pod("b") + &pod("c")));
        let waits = |reason: &str| {
            let state = serde_json::json!({"waiting": {"reason": reason}});
            serde_json::json!([{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "state": state,
            }])
        };
        let (writer, board) = crate::store::board::board();
        let (_merged, merged) = crate::store::cell::cell(Merged::default());
        let metrics = Metrics::new();
        let cancel = CancellationToken::new();
        let mut parts = Parts::new();
        spawn_until(
            &mut parts,
            &cancel,
            "counts",
            count_pods(merged, board, metrics.clone()),
        );
        let until = async |failing: usize, crashing: usize| {
            let failing = format!("mirrorlet_pods_failing {failing}\n");
            let crashing = format!("mirrorlet_containers_in_backoff {crashing}\n");
            loop {
                let text = metrics.encode();
                if text.contains(&failing) && text.contains(&crashing) {
                    break;
                }
                tokio::task::yield_now().await;
            }
        };
        let crash = "CrashLoopBackOff";
        let crashing = serde_json::json!({
            "phase": "Running",
            "containerStatuses": waits(crash),
            "initContainerStatuses": waits(crash),
        });
        writer.publish(view_of(&set, 0, crashing.clone()));
        let image = serde_json::json!({"containerStatuses": waits("ImagePullBackOff")});
        writer.publish(PodView {
            error: "ImagePullBackOff: no".into(),
            ..view_of(&set, 1, image)
        });
        // The last status of a pod that is being stopped.
        writer.publish(PodView {
            phase: Phase::Terminating,
            ..view_of(&set, 2, crashing)
        });
        until(1, 2).await;
        writer.publish(view_of(&set, 0, serde_json::json!({"phase": "Running"})));
        writer.remove(&set.pods[1].uid());
        until(0, 0).await;
        cancel.cancel();
        parts.join_next().await.unwrap().unwrap();
    }

    /// The set whose pod at that place has one more annotation.
    pub(super) fn annotated(set: &SourceSet, at: usize, key: &str, value: &str) -> SourceSet {
        let mut set = set.clone();
        let metadata = &mut Arc::make_mut(&mut set.pods[at].pod).metadata;
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(key.to_owned(), value.to_owned());
        set
    }

    #[test]
    fn a_pod_that_is_to_be_ready_and_is_not_is_unready() {
        let bare = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i}]}\n";
        let set = set_of(bare);
        let of_job = annotated(&set, 0, keys::WORKLOAD, "Job/backup");
        let stopped = annotated(&set, 0, keys::STOPPED, "true");
        let cordoned = annotated(&set, 0, keys::STOPPED, keys::CORDONED);
        let status = |phase: &str, ready: &str| {
            let conditions = serde_json::json!([{"type": "Ready", "status": ready}]);
            serde_json::json!({"phase": phase, "conditions": conditions})
        };
        for (set, worker, phase, ready, expected) in [
            (&*set, Phase::Syncing, "Running", "True", false),
            (&*set, Phase::Syncing, "Running", "False", true),
            (&*set, Phase::Syncing, "Pending", "False", true),
            (&*set, Phase::WaitingToStart, "Pending", "False", true),
            (&*set, Phase::Terminating, "Running", "False", false),
            (&*set, Phase::Finished, "Succeeded", "False", false),
            (&*set, Phase::Syncing, "Failed", "False", false),
            (&of_job, Phase::Syncing, "Running", "False", false),
            // Its status may be of before.
            (&stopped, Phase::Syncing, "Running", "False", false),
            (&stopped, Phase::Syncing, "Pending", "False", false),
            (&cordoned, Phase::Syncing, "Pending", "False", false),
        ] {
            let view = PodView {
                phase: worker,
                ..view_of(set, 0, status(phase, ready))
            };
            // agent 13
            assert_eq!(is_unready(&view), expected, "{worker:?} {phase} {ready}");
        }
        let new = PodView {
            status: None,
            ..view_of(&set, 0, status("Pending", "False"))
        };
        assert!(is_unready(&new));
    }

    #[test]
    fn a_failed_run_counts_until_a_later_run_completes() {
        let job = |cron_job: Option<&str>, at: i64, condition: &str| {
            let created = Timestamp::from_second(at).unwrap();
            let job = serde_json::json!({
                "namespace": "default", "name": format!("j{at}"), "source": "/m/a.yaml",
                "cronJob": cron_job, "active": 0, "succeeded": 0, "failed": 1,
                "condition": condition, "createdAt": created,
            });
            serde_json::from_value::<JobReport>(job).unwrap()
        };
        let (a, b) = (Some("a"), Some("b"));
        for (jobs, expected) in [
            (vec![job(None, 1, "Failed"), job(None, 2, "Complete")], 1),
            (vec![job(a, 1, "Failed"), job(a, 2, "Running")], 1),
            (vec![job(a, 1, "Failed"), job(a, 2, "Complete")], 0),
            (vec![job(a, 1, "Failed"), job(b, 2, "Complete")], 1),
            (vec![job(a, 1, "Complete"), job(a, 2, "Failed")], 1),
        ] {
            assert_eq!(failed(&jobs), expected, "{jobs:?}");
        }
    }

    #[test]
    fn pods_of_workloads_that_are_not_ready_are_counted() {
        let text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  replicas: 3\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: i}]}\n";
        let set = set_of(text);
        let view = |at: usize, ready: &str| {
            let status = serde_json::json!({"conditions": [{"type": "Ready", "status": ready}]});
            view_of(&set, at, status)
        };
        // The third is not on the board yet.
        let views = vec![view(0, "True"), view(1, "False")];
        let counts = BTreeMap::from([(WorkloadKind::Deployment, 2)]);
        let none = Merged::default();
        assert_eq!(unready(&[&set, &set], &none, || views), counts);
        let stopped = annotated(&set, 1, keys::STOPPED, "true");
        let status = serde_json::json!({"phase": "Pending"});
        let views = vec![view(0, "True"), view_of(&stopped, 1, status)];
        let counts = BTreeMap::from([(WorkloadKind::Deployment, 1)]);
        // agent 13
        assert_eq!(unready(&[&set], &none, || views), counts);
        assert_eq!(unready(&[&set_of("")], &none, Vec::new), BTreeMap::new());
        // The document that has the name wants no pods, another one three.
        let owner = set_of(&text.replace("replicas: 3", "replicas: 0"));
        let mut other = SourceSet::clone(&set);
        "/m/b.yaml".clone_into(&mut other.workloads[0].origin.location);
        let other = Arc::new(other);
        let workload = &owner.workloads[0];
        let key = workload.key().unwrap();
        let merged = Merged {
            workloads: BTreeMap::from([(key, workload.origin.clone())]),
            ..Merged::default()
        };
        let counts = BTreeMap::from([(WorkloadKind::Deployment, 0)]);
        for sets in [[&owner, &other], [&other, &owner]] {
            // workloads 5b
            assert_eq!(unready(&sets, &merged, Vec::new), counts);
        }
        // The merge has seen neither: the first counts.
        for (sets, number) in [([&owner, &other], 0), ([&other, &owner], 3)] {
            let counts = BTreeMap::from([(WorkloadKind::Deployment, number)]);
            assert_eq!(unready(&sets, &none, Vec::new), counts);
        }
    }
}
