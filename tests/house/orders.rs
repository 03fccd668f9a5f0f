//! A user's order is answered once the merge that carries it out is published, so the next caller sees
//! its effect. A Job stays its document's, in whichever order a new agent gets its sources' and its
//! runtime's first reports. Failed writes to disk are counted.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::app::desired::{MergeHandles, MergeOutputs, MergeTask};
use mirrorlet::jobs::{JobHandle, JobOptions, Jobs, Order, OrderError};
use mirrorlet::rollout::Rollouts;
use mirrorlet::source::{SourceHealth, SourceReader};
use mirrorlet::store::board::board;
use mirrorlet::store::cache::cache;
use mirrorlet::store::cell::{Reader, Writer, cell};
use mirrorlet::store::claims::ClaimStore;
use mirrorlet::store::pods::pod_manager;
use mirrorlet::store::workloads::WorkloadStore;
use mirrorlet_core::api::NodeName;
use mirrorlet_core::desired::{PodSource, SourceSet, SourceState};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::job::JobName;
use mirrorlet_core::merge::{Merged, SourceName, merge_sources};
use mirrorlet_core::observed::Pods;
use mirrorlet_host::disk::TEMP_SUFFIX;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::plans::options;

const CRON_JOB: &str = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: backup}\nspec:\n  schedule: \"0 3 * * *\"\n  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n";

/// The state of a source that has delivered one CronJob.
fn delivered() -> SourceState {
    let file = NewFile {
        location: "/m/backup.yaml".to_owned(),
        bytes: CRON_JOB.as_bytes().to_vec(),
    };
    let files = [file];
    let set = with_files(&SourceSet::default(), &files, true, &NodeName::from("box"));
    assert_eq!(set.problems, []);
    SourceState::Synced(Arc::new(set))
}

fn source_name() -> SourceName {
    SourceName::new(PodSource::File, "/m")
}

fn jobs(root: &Path, fake: &FakeRuntime) -> (Jobs, JobHandle) {
    let clock = fake.clone();
    let (seen, cache) = cache();
    // All is known that runs: nothing.
    seen.update_time(Instant::now());
    let options = JobOptions {
        board: board().1,
        cache,
        telemetry: Telemetry::new(),
        clock: Arc::new(move || clock.now()),
    };
    Jobs::load(root, options)
}

/// What a merge task is reached by.
struct Merging {
    /// The states of its sources.
    states: Vec<Writer<SourceState>>,
    merged: Reader<Merged>,
    handles: MergeHandles,
    cancel: CancellationToken,
    task: JoinHandle<()>,
    list: watch::Sender<Option<Arc<Pods>>>,
    telemetry: Telemetry,
    /// The other ends of its channels.
    _ends: Box<dyn Any>,
}

impl Merging {
    /// Merges sources whose states are these by now, after the runtime was listed.
    fn begin(
        root: &Path,
        fake: &FakeRuntime,
        jobs: Jobs,
        sources: BTreeMap<SourceName, SourceState>,
    ) -> Self {
        Self::begin_with(root, fake, jobs, sources, Some(Pods::default()))
    }

    /// Merges them; `listed` is what the runtime is known to hold.
    fn begin_with(
        root: &Path,
        fake: &FakeRuntime,
        jobs: Jobs,
        sources: BTreeMap<SourceName, SourceState>,
        listed: Option<Pods>,
    ) -> Self {
        let (rollouts, rollout_handle) = Rollouts::load(root, options(fake));
        let mut states = Vec::new();
        let mut readers = Vec::new();
        for (name, state) in sources {
            let (writer, state) = cell(state);
            let (_, health) = cell(SourceHealth::default());
            states.push(writer);
            readers.push(SourceReader {
                name,
                state,
                health,
            });
        }
        let (list, listed) = watch::channel(listed.map(Arc::new));
        let (pods, api_pods, manager) = pod_manager();
        let (merged_writer, merged) = cell(Merged::default());
        let outputs = MergeOutputs {
            pods,
            merged: merged_writer,
            wanted: watch::Sender::default(),
            objects: Arc::default(),
            workloads: WorkloadStore::load(root),
        };
        let (claims, telemetry) = (ClaimStore::default(), Telemetry::new());
        let told = telemetry.clone();
        let (task, handles) =
            MergeTask::new(readers, listed, outputs, rollouts, jobs, claims, told);
        let cancel = CancellationToken::new();
        Self {
            states,
            merged,
            handles,
            cancel: cancel.clone(),
            task: tokio::spawn(task.run(cancel)),
            list,
            telemetry,
            _ends: Box::new((rollout_handle, api_pods, manager)),
        }
    }

    /// The merge of what the sources have delivered.
    async fn newest(&self) -> Arc<Merged> {
        self.handles.refresh.refresh().await;
        self.merged.get()
    }

    async fn end(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_run_that_was_ordered_is_known_to_whoever_asks_next() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (jobs, handle) = jobs(root.path(), &fake);
    let sources = BTreeMap::from([(source_name(), delivered())]);
    let merging = Merging::begin(root.path(), &fake, jobs, sources);

    let cron = JobName::new("default", "backup");
    let job = handle.order(Order::Run(cron)).await.unwrap();
    let (states, merged) = (handle.states(), merging.merged.get());
    // workloads 10
    assert!(
        states.jobs.iter().any(|known| known.name == job.name),
        "{states:?}"
    );
    let mut names = merged.pods.values().map(|pod| pod.full_name().name);
    // workloads 10
    assert!(names.any(|name| name.starts_with(&job.name)), "{merged:?}");
    merging.end().await;
}

#[tokio::test]
async fn an_order_waits_for_its_answer_until_the_merge_is_published() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut jobs, handle) = jobs(root.path(), &fake);
    let states = BTreeMap::from([(source_name(), delivered())]);
    let none = Merged::default();
    let name = |name: &str| JobName::new("default", name);
    let unknown = || OrderError::Unknown(name("other"));
    for (order, expected) in [
        (Order::Run(name("backup")), None),
        (Order::Run(name("other")), Some(unknown())),
        (Order::Restart(name("other")), Some(unknown())),
        (Order::Delete(name("other")), Some(unknown())),
    ] {
        let what = format!("{order:?}");
        let handle = handle.clone();
        let asking = tokio::spawn(async move { handle.order(order).await });
        jobs.changed().await;
        let mut merged = merge_sources(&states, &none.incumbents(), &none.objects);
        jobs.apply(&mut merged, &states, true).await;
        tokio::task::yield_now().await;
        // workloads 10
        assert!(!asking.is_finished(), "{what}");
        jobs.answer();
        assert_eq!(asking.await.unwrap().err(), expected, "{what}");
    }
}

/// The state of a source that has delivered Jobs of one name: where, and with which command.
fn with_jobs(documents: &[(&str, &str)]) -> SourceState {
    let file = |(location, command): &(&str, &str)| {
        let text = format!(
            "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i, command: [{command}]}}]}}}}\n"
        );
        NewFile {
            location: (*location).to_owned(),
            bytes: text.into_bytes(),
        }
    };
    let files: Vec<NewFile> = documents.iter().map(file).collect();
    let node = NodeName::from("box");
    let set = with_files(&SourceSet::default(), &files, true, &node);
    assert_eq!(set.problems, []);
    SourceState::Synced(Arc::new(set))
}

/// A source that has delivered a Job with that command.
fn with_job(command: &str) -> BTreeMap<SourceName, SourceState> {
    let state = with_jobs(&[("/m/work.yaml", command)]);
    BTreeMap::from([(source_name(), state)])
}

/// The pods of Jobs that have been begun, after a merge of that state alone.
async fn merge(jobs: &mut Jobs, states: &BTreeMap<SourceName, SourceState>) -> Merged {
    let none = Merged::default();
    let mut merged = merge_sources(states, &none.incumbents(), &none.objects);
    jobs.apply(&mut merged, states, true).await;
    merged
}

/// The documents of the pods that are wanted.
fn places(merged: &Merged) -> Vec<&str> {
    let pods = merged.pods.values();
    pods.map(|pod| &*pod.origin.location).collect()
}

#[tokio::test]
async fn a_job_stays_its_documents_where_sources_are_heard_after_the_runtime() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut before, _handle) = jobs(root.path(), &fake);
    let first = merge(&mut before, &with_job("old")).await;
    assert_eq!(places(&first), ["/m/work.yaml"]);
    let (jobs, _handle) = jobs(root.path(), &fake);
    let silent = BTreeMap::from([(source_name(), SourceState::NotSynced)]);
    let mut merging = Merging::begin(root.path(), &fake, jobs, silent);
    let merged = merging.newest().await;
    assert_eq!(places(&merged), [""; 0]);
    // A file that sorts first, and has another command.
    merging.states[0].publish(with_jobs(&[
        ("/m/again.yaml", "new"),
        ("/m/work.yaml", "old"),
    ]));
    let merged = merging.newest().await;
    // workloads 7
    assert!(
        merged.pods.keys().eq(first.pods.keys()),
        "{:?}",
        places(&merged)
    );
    // workloads 7
    assert_eq!(places(&merged), ["/m/work.yaml"]);
    assert_eq!(merged.conflicts.len(), 1, "{:?}", merged.conflicts);
    merging.end().await;
}

#[tokio::test]
async fn an_edited_job_stays_its_documents_before_the_runtime_is_listed() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut before, _handle) = jobs(root.path(), &fake);
    let first = merge(&mut before, &with_job("old")).await;
    let (jobs, _handle) = jobs(root.path(), &fake);
    let state = |command| with_jobs(&[("/m/again.yaml", "new"), ("/m/work.yaml", command)]);
    let sources = BTreeMap::from([(source_name(), state("old"))]);
    let mut merging = Merging::begin_with(root.path(), &fake, jobs, sources, None);
    let merged = merging.newest().await;
    assert!(merged.pods.keys().eq(first.pods.keys()), "{merged:?}");
    merging.states[0].publish(state("edited"));
    let merged = merging.newest().await;
    let told: Vec<String> = merged.conflicts.iter().map(ToString::to_string).collect();
    // workloads 7
    assert!(
        told.len() == 1 && told[0].starts_with("/m/again.yaml"),
        "{told:?}"
    );
    merging.list.send_replace(Some(Arc::default()));
    let merged = merging.newest().await;
    // workloads 7
    assert_eq!(places(&merged), ["/m/work.yaml"]);
    merging.end().await;
}

/// The state of a source that has delivered a Deployment in each of these files, of that many pods.
fn with_deployments(documents: &[(&str, u32)]) -> SourceState {
    let file = |(location, replicas): &(&str, u32)| {
        let text = format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: web}}}}\n  template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}\n"
        );
        NewFile {
            location: (*location).to_owned(),
            bytes: text.into_bytes(),
        }
    };
    let files: Vec<NewFile> = documents.iter().map(file).collect();
    let node = NodeName::from("box");
    let set = with_files(&SourceSet::default(), &files, true, &node);
    assert_eq!(set.problems, []);
    SourceState::Synced(Arc::new(set))
}

#[tokio::test]
async fn a_workload_without_pods_keeps_its_name_over_agents() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let begin = |state: SourceState| {
        let (jobs, handle) = jobs(root.path(), &fake);
        let sources = BTreeMap::from([(source_name(), state)]);
        (Merging::begin(root.path(), &fake, jobs, sources), handle)
    };
    let (merging, _handle) = begin(with_deployments(&[("/m/web.yaml", 0)]));
    merging.newest().await;
    merging.end().await;
    // A file that sorts first.
    let both = |replicas| with_deployments(&[("/m/again.yaml", 2), ("/m/web.yaml", replicas)]);
    let (mut merging, _handle) = begin(both(0));
    let merged = merging.newest().await;
    // workloads 5a
    assert_eq!(places(&merged), [""; 0]);
    merging.states[0].publish(both(1));
    let merged = merging.newest().await;
    // workloads 5a
    assert_eq!(places(&merged), ["/m/web.yaml"]);
    merging.end().await;
}

#[tokio::test]
async fn a_merge_knows_which_versions_run_once_the_runtime_was_listed() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (jobs, _handle) = jobs(root.path(), &fake);
    let sources = BTreeMap::from([(source_name(), delivered())]);
    let merging = Merging::begin_with(root.path(), &fake, jobs, sources, None);
    let merged = merging.newest().await;
    // embedded 67
    assert!(merged.delivered.manifests && !merged.settled);
    merging.list.send_replace(Some(Arc::default()));
    // embedded 67
    assert!(merging.newest().await.settled);
    merging.end().await;
}

/// A URL that has delivered these documents.
fn of_url(documents: &[(&str, &str)]) -> SourceState {
    let state = with_jobs(documents);
    let mut set = SourceSet::clone(state.set().unwrap());
    for pod in &mut set.pods {
        pod.origin.source = PodSource::Http;
    }
    for workload in &mut set.workloads {
        workload.origin.source = PodSource::Http;
    }
    SourceState::Synced(Arc::new(set))
}

#[tokio::test]
async fn a_begun_job_waits_for_a_source_that_may_have_its_document() {
    const URL: &str = "http://a";
    let url = SourceName::new(PodSource::Http, URL);
    for (delivered, expected) in [(&[(URL, "old")][..], URL), (&[][..], "/m/work.yaml")] {
        let root = tempfile::tempdir().unwrap();
        let fake = FakeRuntime::new();
        let (mut before, _handle) = jobs(root.path(), &fake);
        let sources = BTreeMap::from([(url.clone(), of_url(&[(URL, "old")]))]);
        let first = merge(&mut before, &sources).await;
        assert_eq!(places(&first), [URL]);
        let (jobs, handle) = jobs(root.path(), &fake);
        let sources = BTreeMap::from([
            (source_name(), with_jobs(&[("/m/work.yaml", "new")])),
            (url.clone(), SourceState::NotSynced),
        ]);
        let mut merging = Merging::begin(root.path(), &fake, jobs, sources);
        for _ in 0..2 {
            let merged = merging.newest().await;
            // workloads 7
            assert_eq!(places(&merged), [""; 0]);
            let told = merged.conflicts.iter().map(ToString::to_string);
            let told: Vec<String> = told.collect();
            assert!(
                told.len() == 1 && told[0].contains("have not been read"),
                "{told:?}"
            );
        }
        // Its pod may run, and can't be stopped yet.
        let job = JobName::new("default", "work");
        let refused = handle.order(Order::Restart(job.clone())).await;
        // workloads 7
        assert_eq!(refused, Err(OrderError::Awaited(job)));
        merging.states[1].publish(of_url(delivered));
        // Another run begins once nothing runs of the one before.
        merging.newest().await;
        let merged = merging.newest().await;
        // workloads 7
        assert_eq!(places(&merged), [expected]);
        let is_same = merged.pods.keys().eq(first.pods.keys());
        // workloads 7
        assert_eq!(is_same, expected == URL);
        merging.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_edited_job_runs_on_as_it_was_while_its_record_cannot_be_written() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut jobs, _handle) = jobs(root.path(), &fake);
    let first = merge(&mut jobs, &with_job("old")).await;
    assert_eq!(first.pods.len(), 1);
    assert_eq!(first.conflicts, []);
    let records = root.path().join("jobs");
    let record = std::fs::read_dir(&records).unwrap().next().unwrap();
    let mut in_the_way = record.unwrap().path().into_os_string();
    in_the_way.push(TEMP_SUFFIX);
    std::fs::create_dir(&in_the_way).unwrap();
    for _ in 0..2 {
        let edited = merge(&mut jobs, &with_job("new")).await;
        // workloads 7
        assert_eq!(edited.pods, first.pods);
        assert_eq!(edited.conflicts.len(), 1, "{:?}", edited.conflicts);
        assert!(jobs.spared().is_empty());
        // It is not written as often as a pod that stops is looked at.
        let began = Instant::now();
        jobs.changed().await;
        // workloads 7
        assert_eq!(began.elapsed().as_secs(), 30);
    }
    // The next agent doesn't know the pod as it was, and has its workers leave it as it is.
    let (mut jobs, _handle) = self::jobs(root.path(), &fake);
    for _ in 0..2 {
        let edited = merge(&mut jobs, &with_job("new")).await;
        // workloads 7
        assert!(jobs.spared().iter().eq(first.pods.keys()));
        assert_eq!(edited.pods, BTreeMap::new());
        assert_eq!(edited.conflicts.len(), 1, "{:?}", edited.conflicts);
    }
    std::fs::remove_dir(&in_the_way).unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let edited = merge(&mut jobs, &with_job("new")).await;
    // workloads 7
    assert!(jobs.spared().is_empty());
    // The new run begins once nothing runs of the old one.
    assert_eq!(edited.pods, BTreeMap::new());
    let edited = merge(&mut jobs, &with_job("new")).await;
    let pods: Vec<_> = edited.pods.into_values().collect();
    let container = &pods[0].pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(container.command, Some(vec!["new".to_owned()]));
    assert_eq!(pods.len(), 1);
    assert_eq!(edited.conflicts, []);
}

#[tokio::test]
async fn what_the_disk_does_not_take_or_give_is_counted_with_the_problems() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    // Files in the places of directories.
    let [versions, crons] = ["rollouts", "cronjobs"].map(|name| root.path().join(name));
    for directory in [&versions, &crons] {
        std::fs::write(directory, "").unwrap();
    }
    let (jobs, _handle) = jobs(root.path(), &fake);
    let web = with_deployments(&[("/n/web.yaml", 1)]);
    let sources = BTreeMap::from([
        (source_name(), delivered()),
        (SourceName::new(PodSource::File, "/n"), web),
    ]);
    let merging = Merging::begin(root.path(), &fake, jobs, sources);
    let counted = async |number: usize| {
        let merged = merging.newest().await;
        let line = format!("mirrorlet_manifest_problems{{code=\"unreadable\"}} {number}\n");
        let metrics = merging.telemetry.metrics.encode();
        (metrics.contains(&line), merged.conflicts.clone())
    };
    let (is_counted, conflicts) = counted(2).await;
    // agent 12
    assert!(is_counted, "{conflicts:?}");
    std::fs::remove_file(&versions).unwrap();
    let (is_counted, conflicts) = counted(1).await;
    // agent 12
    assert!(is_counted, "{conflicts:?}");
    merging.end().await;
}
