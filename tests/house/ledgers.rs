//! The ledgers of Jobs and CronJobs, beside what the runtime is seen to hold: nothing begins while pods run
//! that it comes after, and what can't be read is left alone until it can be.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mirrorlet::jobs::{JobHandle, JobOptions, Jobs, Order, OrderError};
use mirrorlet::store::board::{BoardWriter, Phase, PodView, board};
use mirrorlet::store::cache::{CacheWriter, cache};
use mirrorlet_core::api::{ContainerId, NodeName, PodUid, Timestamp};
use mirrorlet_core::desired::{PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::job::JobName;
use mirrorlet_core::merge::{Merged, SourceName, merge_sources};
use mirrorlet_core::observed::{ContainerState, PodStatus, SandboxStatus};
use mirrorlet_host::disk::TEMP_SUFFIX;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::RuntimeError;
use tempfile::TempDir;
use tokio::time::Instant;

/// A CronJob that is due each minute, and whose runs may take half of one.
const CRON_JOB: &str = "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: backup}\nspec:\n  schedule: \"* * * * *\"\n  concurrencyPolicy: Forbid\n  jobTemplate: {spec: {activeDeadlineSeconds: 30, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}\n";
const JOB: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n";
/// Another Job, of which a pod could be one of the first's by its name: index 1, second attempt.
const NUMBERED: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work-1}\nspec: {completions: 2, parallelism: 2, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n";

/// A root directory, a source, what is seen of the runtime, and the Jobs that go by these.
struct Bed {
    root: TempDir,
    states: BTreeMap<SourceName, SourceState>,
    seen: CacheWriter,
    workers: BoardWriter,
    now: Arc<Mutex<Timestamp>>,
    jobs: Jobs,
    handle: JobHandle,
}

impl Bed {
    fn new(documents: &[&str]) -> Self {
        let root = tempfile::tempdir().unwrap();
        let (seen, _) = cache();
        seen.update_time(Instant::now());
        let now: Timestamp = "2026-01-01T00:00:30Z".parse().unwrap();
        let now = Arc::new(Mutex::new(now));
        let (jobs, handle, workers) = load(&root, &seen, &now);
        Self {
            root,
            states: states(documents),
            seen,
            workers,
            now,
            jobs,
            handle,
        }
    }

    /// The next agent on the same root.
    fn restart(&mut self) {
        (self.jobs, self.handle, self.workers) = load(&self.root, &self.seen, &self.now);
    }

    async fn merge(&mut self) -> Merged {
        self.merge_when(true).await
    }

    /// Merges; `listed` says whether the runtime's pods were listed.
    async fn merge_when(&mut self, listed: bool) -> Merged {
        let none = Merged::default();
        let mut merged = merge_sources(&self.states, &none.incumbents(), &none.objects);
        self.jobs.apply(&mut merged, &self.states, listed).await;
        merged
    }

    fn at(&mut self, now: &str) -> &mut Self {
        *self.now.lock().unwrap() = now.parse().unwrap();
        self
    }

    /// Gives an order, and merges what comes of it.
    async fn order(&mut self, order: Order) -> Merged {
        let (merged, answer) = self.order_when(true, order).await;
        answer.unwrap();
        merged
    }

    /// The same with the answer; `listed` says whether the runtime's pods were listed.
    async fn order_when(
        &mut self,
        listed: bool,
        order: Order,
    ) -> (Merged, Result<JobName, OrderError>) {
        let handle = self.handle.clone();
        let asking = tokio::spawn(async move { handle.order(order).await });
        self.jobs.changed().await;
        let merged = self.merge_when(listed).await;
        self.jobs.answer();
        (merged, asking.await.unwrap())
    }

    /// The pods of a merge run.
    fn runs(&self, merged: &Merged) {
        for pod in merged.pods.values() {
            self.seen.set(&pod.uid(), Ok(running(pod)), Instant::now());
        }
    }

    /// Nothing is left of the pods of a merge.
    fn stopped(&self, merged: &Merged) {
        self.gone(merged.pods.keys());
    }

    /// Nothing is left of these pods.
    fn gone<'a>(&self, uids: impl IntoIterator<Item = &'a PodUid>) {
        for uid in uids {
            let empty = PodStatus::empty(uid.clone());
            self.seen.set(uid, Ok(empty), Instant::now());
            self.seen.delete(uid);
        }
    }

    /// The files of a directory under the root.
    fn files(&self, directory: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.root.path().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Damages the only file of a directory, and returns it as it was.
    fn damage(&self, directory: &str) -> (PathBuf, Vec<u8>) {
        let files = self.files(directory);
        assert_eq!(files.len(), 1);
        let was = std::fs::read(&files[0]).unwrap();
        std::fs::write(&files[0], "{").unwrap();
        (files[0].clone(), was)
    }

    /// The file with the record of the Job of that name.
    fn file_of(&self, name: &str) -> PathBuf {
        let quoted = format!("\"{name}\"");
        let is_its = |file: &PathBuf| std::fs::read_to_string(file).unwrap().contains(&quoted);
        self.files("jobs").into_iter().find(is_its).unwrap()
    }

    /// Damages the record of the Job of that name.
    fn damage_job(&self, name: &str) {
        std::fs::write(self.file_of(name), "{").unwrap();
    }
}

fn load(
    root: &TempDir,
    seen: &CacheWriter,
    now: &Arc<Mutex<Timestamp>>,
) -> (Jobs, JobHandle, BoardWriter) {
    let now = Arc::clone(now);
    let (workers, board) = board();
    let options = JobOptions {
        board,
        cache: seen.reader(),
        telemetry: Telemetry::new(),
        clock: Arc::new(move || *now.lock().unwrap()),
    };
    let (jobs, handle) = Jobs::load(root.path(), options);
    (jobs, handle, workers)
}

fn states(documents: &[&str]) -> BTreeMap<SourceName, SourceState> {
    let files = documents.iter().enumerate();
    let files = files.map(|(number, text)| NewFile {
        location: format!("/m/{number}.yaml"),
        bytes: text.as_bytes().to_vec(),
    });
    let files: Vec<NewFile> = files.collect();
    let set = with_files(&SourceSet::default(), &files, true, &NodeName::from("box"));
    assert_eq!(set.problems, []);
    let name = SourceName::new(PodSource::File, "/m");
    BTreeMap::from([(name, SourceState::Synced(Arc::new(set)))])
}

fn running(pod: &SourcePod) -> PodStatus {
    let sandbox = SandboxStatus {
        by_hand: None,
        id: ContainerId::docker("pause"),
        attempt: 0,
        state: ContainerState::Running,
        created_at: Timestamp::UNIX_EPOCH,
        pod_started_at: None,
        host_network: false,
        ips: Vec::new(),
    };
    PodStatus {
        full_name: pod.full_name(),
        sandboxes: vec![sandbox],
        ..PodStatus::empty(pod.uid())
    }
}

fn uids(merged: &Merged) -> Vec<&PodUid> {
    merged.pods.keys().collect()
}

#[tokio::test]
async fn a_job_that_is_put_back_waits_until_nothing_of_it_runs() {
    let mut bed = Bed::new(&[JOB]);
    let first = bed.merge().await;
    assert_eq!(first.pods.len(), 1);
    bed.runs(&first);
    bed.states = states(&[]);
    for _ in 0..2 {
        assert_eq!(bed.merge().await.pods, BTreeMap::new());
    }
    bed.states = states(&[JOB]);
    bed.at("2026-01-01T00:00:40Z");
    // Also over agents.
    for _ in 0..2 {
        // workloads 7
        assert_eq!(bed.merge().await.pods, BTreeMap::new());
        bed.restart();
    }
    bed.stopped(&first);
    let again = bed.merge().await;
    // workloads 7
    assert_eq!(again.pods.len(), 1);
    assert_ne!(uids(&again), uids(&first));
    // Removed once more, it leaves nothing behind.
    bed.states = states(&[]);
    for _ in 0..2 {
        bed.merge().await;
    }
    assert!(bed.files("jobs").is_empty());
}

/// The Engine doesn't remove a container whose start is under way: its worker has stopped the pod, and it
/// may run yet.
#[tokio::test]
async fn a_run_waits_for_a_container_of_the_one_before_that_may_still_start() {
    let mut bed = Bed::new(&[JOB]);
    let first = bed.merge().await;
    let pod = first.pods.values().next().unwrap();
    let mut created = running(pod);
    created.sandboxes[0].state = ContainerState::Created;
    bed.seen
        .set(&pod.uid(), Ok(created.clone()), Instant::now());
    bed.workers.publish(PodView {
        uid: pod.uid(),
        full_name: pod.full_name(),
        pod: Some(Arc::clone(&pod.pod)),
        phase: Phase::Terminated,
        status: None,
        observed: Arc::new(created),
        error: "".into(),
        failed_probe: None,
        awaits: Arc::default(),
    });
    for documents in [states(&[]), states(&[JOB])] {
        bed.states = documents;
        // workloads 7
        assert_eq!(bed.merge().await.pods, BTreeMap::new());
    }
    // It exits, and is not removed.
    let mut exited = running(pod);
    exited.sandboxes[0].state = ContainerState::Exited;
    bed.seen.set(&pod.uid(), Ok(exited), Instant::now());
    // workloads 7
    assert_eq!(bed.merge().await.pods.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_removed_job_whose_record_cannot_be_written_is_tried_again_later() {
    let mut bed = Bed::new(&[NUMBERED]);
    let first = bed.merge().await;
    assert_eq!(first.pods.len(), 2);
    bed.runs(&first);
    bed.states = states(&[]);
    bed.merge().await;
    let mut in_the_way = bed.files("jobs")[0].clone().into_os_string();
    in_the_way.push(TEMP_SUFFIX);
    // Its pods are looked at after a second, until the disk does not take what is seen.
    for (stopped, seconds) in [(None, 1), (first.pods.keys().next(), 30)] {
        if stopped.is_some() {
            bed.gone(stopped);
            std::fs::create_dir(&in_the_way).unwrap();
        }
        bed.merge().await;
        let began = Instant::now();
        bed.jobs.changed().await;
        // workloads 7
        assert_eq!(began.elapsed().as_secs(), seconds);
    }
    std::fs::remove_dir(&in_the_way).unwrap();
    bed.stopped(&first);
    bed.merge().await;
    assert!(bed.files("jobs").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_written_is_tried_no_sooner_while_another_job_waits() {
    let mut bed = Bed::new(&[JOB, NUMBERED]);
    let first = bed.merge().await;
    bed.runs(&first);
    let mut in_the_way = bed.file_of("work").into_os_string();
    in_the_way.push(TEMP_SUFFIX);
    std::fs::create_dir(&in_the_way).unwrap();
    // One is edited; the other one is removed, and its pods are looked at meanwhile.
    let edited = JOB.replace("image: i", "image: j");
    bed.states = states(&[&edited]);
    let is_written = |merged: &Merged| merged.conflicts.is_empty();
    assert!(!is_written(&bed.merge().await));
    let began = Instant::now();
    std::fs::remove_dir(&in_the_way).unwrap();
    let mut looks = 0;
    while !is_written(&bed.merge().await) {
        bed.jobs.changed().await;
        looks += 1;
    }
    // workloads 7
    assert_eq!(began.elapsed().as_secs(), 30);
    assert!(looks > 4, "{looks}");
    // An order is obeyed at once.
    std::fs::create_dir(&in_the_way).unwrap();
    bed.states = states(&[JOB]);
    assert!(!is_written(&bed.merge().await));
    std::fs::remove_dir(&in_the_way).unwrap();
    let restart = Order::Restart(JobName::new("default", "work"));
    let restarted = bed.order(restart).await;
    // workloads 7
    assert!(is_written(&restarted), "{:?}", restarted.conflicts);
}

#[tokio::test]
async fn a_run_that_is_due_waits_until_nothing_of_the_one_before_runs() {
    let mut bed = Bed::new(&[CRON_JOB]);
    assert_eq!(bed.merge().await.pods, BTreeMap::new());
    let first = bed.at("2026-01-01T00:01:00Z").merge().await;
    assert_eq!(first.pods.len(), 1);
    bed.runs(&first);
    // It has taken longer than it may, and is being stopped.
    bed.at("2026-01-01T00:01:31Z").merge().await;
    for now in ["2026-01-01T00:02:00Z", "2026-01-01T00:02:01Z"] {
        let merged = bed.at(now).merge().await;
        // workloads 10
        assert_eq!(uids(&merged), uids(&first));
    }
    bed.stopped(&first);
    bed.merge().await;
    let merged = bed.merge().await;
    // workloads 10
    assert_eq!(merged.pods.len(), 2, "the first one stays for its log");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_cannot_be_read_keeps_its_pods_and_goes_on_once_it_can() {
    let mut bed = Bed::new(&[JOB]);
    let first = bed.merge().await;
    bed.runs(&first);
    let (file, was) = bed.damage("jobs");
    bed.restart();
    for _ in 0..2 {
        let merged = bed.merge().await;
        // workloads 7
        assert!(bed.jobs.spared().iter().eq(first.pods.keys()));
        assert_eq!(merged.pods, BTreeMap::new());
        assert_eq!(merged.conflicts.len(), 1, "{:?}", merged.conflicts);
    }
    std::fs::write(&file, &was).unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    let merged = bed.merge().await;
    // workloads 7
    assert_eq!(merged.pods, first.pods);
    assert_eq!(merged.conflicts, []);
    assert!(bed.jobs.spared().is_empty());

    // A user orders another run: it begins once nothing of the Job runs.
    std::fs::write(&file, "{").unwrap();
    bed.at("2026-01-01T00:00:40Z").restart();
    let restarted = bed
        .order(Order::Restart(JobName::new("default", "work")))
        .await;
    // workloads 7
    assert_eq!(restarted.pods, BTreeMap::new());
    assert!(bed.jobs.spared().is_empty());
    bed.stopped(&first);
    let again = bed.merge().await;
    // workloads 7
    assert_eq!(again.pods.len(), 1);
}

#[tokio::test]
async fn a_job_whose_record_cannot_be_read_runs_again_once_its_pods_are_known() {
    let mut bed = Bed::new(&[JOB]);
    let first = bed.merge().await;
    bed.damage("jobs");
    // The next agent has seen nothing yet.
    bed.seen = cache().0;
    bed.at("2026-01-01T00:00:40Z").restart();
    let job = JobName::new("default", "work");
    let order = || Order::Restart(job.clone());
    for listed in [false, true] {
        let (merged, answer) = bed.order_when(listed, order()).await;
        // workloads 7
        assert_eq!(answer, Err(OrderError::Unseen(job.clone())));
        assert_eq!(merged.pods, BTreeMap::new());
        // The list has its pod next, and the look at it fails.
        let gone = RuntimeError::Unavailable("gone".to_owned());
        for uid in first.pods.keys() {
            bed.seen.set(uid, Err(gone.clone()), Instant::now());
        }
        bed.seen.update_time(Instant::now());
    }
    bed.runs(&first);
    let restarted = bed.order(order()).await;
    // workloads 7
    assert_eq!(restarted.pods, BTreeMap::new());
    bed.stopped(&first);
    // workloads 7
    assert_eq!(bed.merge().await.pods.len(), 1);
}

#[tokio::test]
async fn a_job_whose_record_cannot_be_read_takes_no_pod_of_another() {
    let mut bed = Bed::new(&[JOB, NUMBERED]);
    let first = bed.merge().await;
    assert_eq!(first.pods.len(), 3);
    bed.runs(&first);
    let pods = first.pods.iter();
    let (work, numbered): (Vec<_>, Vec<_>) =
        pods.partition(|(_, pod)| *pod.full_name().name == *"work-0-box");
    let work: Vec<&PodUid> = work.into_iter().map(|(uid, _)| uid).collect();
    let numbered: Vec<&PodUid> = numbered.into_iter().map(|(uid, _)| uid).collect();
    bed.damage_job("work");
    // The other one is edited while no agent runs.
    bed.states = states(&[JOB, &NUMBERED.replace("image: i", "image: j")]);
    bed.at("2026-01-01T00:00:40Z").restart();
    for _ in 0..2 {
        let merged = bed.merge().await;
        assert_eq!(merged.pods, BTreeMap::new());
        // workloads 7
        assert!(bed.jobs.spared().iter().eq(work.iter().copied()));
    }
    bed.gone(numbered);
    let edited = bed.merge().await;
    // workloads 7
    assert_eq!(edited.pods.len(), 2);
    assert!(bed.jobs.spared().iter().eq(work.iter().copied()));
    bed.runs(&edited);

    // A user runs the first one again: it waits for its own pod alone.
    bed.gone(work);
    let restarted = bed
        .order(Order::Restart(JobName::new("default", "work")))
        .await;
    // workloads 7
    assert_eq!(restarted.pods.len(), 3);
    assert!(
        edited
            .pods
            .keys()
            .all(|uid| restarted.pods.contains_key(uid))
    );
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_once_the_record_of_its_cron_job_can_be_read() {
    let mut bed = Bed::new(&[CRON_JOB, JOB]);
    let work = bed.merge().await;
    assert_eq!(work.pods.len(), 1);
    let first = bed
        .order(Order::Run(JobName::new("default", "backup")))
        .await;
    assert_eq!(first.pods.len(), 2);
    bed.runs(&first);
    let (file, was) = bed.damage("cronjobs");
    bed.restart();
    let merged = bed.merge().await;
    // workloads 10
    assert_eq!(uids(&merged), uids(&work));
    let run = first
        .pods
        .keys()
        .filter(|uid| !work.pods.contains_key(*uid));
    // workloads 10
    assert!(bed.jobs.spared().iter().eq(run.clone()));
    // Another Job's record is forgotten all the same, and this one's isn't.
    bed.states = states(&[CRON_JOB]);
    bed.stopped(&work);
    for _ in 0..2 {
        bed.merge().await;
    }
    assert_eq!(bed.files("jobs").len(), 1);
    std::fs::write(&file, &was).unwrap();
    tokio::time::advance(Duration::from_secs(30)).await;
    let merged = bed.merge().await;
    // workloads 10
    assert!(merged.pods.keys().eq(run));
    assert!(bed.jobs.spared().is_empty());
}
