//! Rollouts and Jobs look at their pods again, however far away their deadlines are and however the
//! clock is set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mirrorlet::jobs::{JobHandle, JobOptions, Jobs};
use mirrorlet::rollout::{RolloutHandle, RolloutOptions, Rollouts};
use mirrorlet::store::board::{BoardWriter, Phase, PodView, board};
use mirrorlet::store::cache::{CacheWriter, cache};
use mirrorlet_core::api::{NodeName, PodUid, Timestamp};
use mirrorlet_core::desired::{PodSource, SourcePod, SourceSet, SourceState};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::merge::{Merged, SourceName, merge_sources};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::plans::{listed, merged_of, options, pod};

/// Longer than any look is put off.
const BEYOND: Duration = Duration::from_hours(25);

/// The rollouts of one pod, whose statuses a test makes.
struct Bed {
    fake: FakeRuntime,
    board: BoardWriter,
    rollouts: Rollouts,
    before: Merged,
    /// Where commands would come from.
    _handle: RolloutHandle,
    _root: TempDir,
}

impl Bed {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let fake = FakeRuntime::new();
        let (writer, board) = board();
        let options = RolloutOptions {
            board,
            ..options(&fake)
        };
        let (rollouts, handle) = Rollouts::load(root.path(), options);
        Self {
            fake,
            board: writer,
            rollouts,
            before: Merged::default(),
            _handle: handle,
            _root: root,
        }
    }

    /// Has a version be seen with that status.
    fn show(&self, pod: &SourcePod, status: Value) {
        self.board.publish(PodView {
            uid: pod.uid(),
            full_name: pod.full_name(),
            pod: Some(Arc::clone(&pod.pod)),
            phase: Phase::Syncing,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::default(),
            error: Arc::from(""),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }

    /// A look at the pod while that version is the newest one. Returns the version that runs.
    async fn look(&mut self, newest: &SourcePod) -> PodUid {
        let mut merged = merged_of(vec![newest.clone()], &self.before);
        let listed = listed(&self.before);
        let looked = self.rollouts.apply(&mut merged, &self.before, &listed);
        looked.await;
        self.before = merged;
        self.before.pods.values().next().unwrap().uid()
    }
}

/// The status of a pod that is Ready since then, in whole seconds.
fn ready(since: Timestamp) -> Value {
    let since = Timestamp::from_second(since.as_second()).unwrap();
    json!({
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": since.to_string()},
        ],
    })
}

/// The status of a pod that runs and is not Ready.
fn unready() -> Value {
    json!({"phase": "Running"})
}

#[tokio::test(start_paused = true)]
async fn no_deadline_is_too_long_for_a_rollout() {
    for (setting, is_ready) in [
        ("mirrorlet.dev/progress-deadline-seconds", false),
        ("mirrorlet.dev/min-ready-seconds", true),
    ] {
        let mut bed = Bed::new();
        let mut newest = pod(0, 0);
        let annotations = &mut Arc::make_mut(&mut newest.pod).metadata.annotations;
        annotations
            .get_or_insert_default()
            .insert(setting.to_owned(), u64::MAX.to_string());
        let status = if is_ready {
            ready(bed.fake.now())
        } else {
            unready()
        };
        bed.show(&newest, status);
        bed.look(&newest).await;
        let again = tokio::time::timeout(BEYOND, bed.rollouts.changed()).await;
        // rollouts 5a
        assert!(again.is_ok(), "{setting}");
    }
}

/// The clock is set forward by an hour while a new version is judged, which has been Ready for a second
/// or not at all.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_forward_fails_no_version_and_passes_none() {
    let (old, new) = (pod(0, 0), pod(0, 1));
    // The version that runs in the end, where the new one fails that many seconds after the step.
    for (is_ready, seconds, runs) in [
        (false, 299, &new),
        (false, 301, &old),
        (true, 5, &old),
        (true, 15, &new),
    ] {
        let mut bed = Bed::new();
        bed.show(&old, ready(bed.fake.now()));
        bed.look(&old).await;
        tokio::time::advance(Duration::from_secs(20)).await;
        bed.look(&old).await;
        bed.look(&new).await;
        // It is prepared.
        bed.rollouts.changed().await;
        assert_eq!(bed.look(&new).await, new.uid());
        let status = if is_ready {
            ready(bed.fake.now())
        } else {
            unready()
        };
        bed.show(&new, status);
        tokio::time::advance(Duration::from_secs(1)).await;
        bed.look(&new).await;
        bed.fake.jump_clock(3600);
        // rollouts S15a
        assert_eq!(bed.look(&new).await, new.uid(), "{is_ready}");
        tokio::time::advance(Duration::from_secs(seconds)).await;
        bed.look(&new).await;
        if is_ready {
            bed.show(&new, json!({"phase": "Failed"}));
        }
        // rollouts S15a
        assert_eq!(bed.look(&new).await, runs.uid(), "{is_ready} {seconds}");
    }
}

/// The state of a source of these documents.
fn states(documents: &[String]) -> BTreeMap<SourceName, SourceState> {
    let files = documents.iter().map(|text| NewFile {
        location: "/m/work.yaml".to_owned(),
        bytes: text.clone().into_bytes(),
    });
    let files: Vec<NewFile> = files.collect();
    let set = with_files(&SourceSet::default(), &files, true, &NodeName::from("box"));
    assert_eq!(set.problems, []);
    let name = SourceName::new(PodSource::File, "/m");
    BTreeMap::from([(name, SourceState::Synced(Arc::new(set)))])
}

/// A Job that may take that many seconds.
fn job(seconds: i64) -> String {
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  activeDeadlineSeconds: {seconds}\n  template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i}}]}}}}\n"
    )
}

/// Jobs of a node of which nothing is seen.
struct JobBed {
    jobs: Jobs,
    before: Merged,
    // Jobs whose board has lost its writer, or that nobody can order anything, wait for ever.
    _handle: JobHandle,
    _workers: BoardWriter,
    _seen: CacheWriter,
    _root: TempDir,
}

impl JobBed {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let fake = FakeRuntime::new();
        let (workers, board) = board();
        let (seen, cache) = cache();
        let options = JobOptions {
            board,
            cache,
            telemetry: Telemetry::new(),
            clock: Arc::new(move || fake.now()),
        };
        let (jobs, handle) = Jobs::load(root.path(), options);
        Self {
            jobs,
            before: Merged::default(),
            _handle: handle,
            _workers: workers,
            _seen: seen,
            _root: root,
        }
    }

    /// A merge. Returns the number of pods that are to exist.
    async fn merge(&mut self, states: &BTreeMap<SourceName, SourceState>) -> usize {
        let before = &self.before;
        let mut merged = merge_sources(states, &before.incumbents(), &before.objects);
        self.jobs.apply(&mut merged, states, true).await;
        self.before = merged;
        self.before.pods.len()
    }
}

#[tokio::test(start_paused = true)]
async fn no_deadline_is_too_long_for_a_job() {
    let mut bed = JobBed::new();
    // workloads 9a
    assert_eq!(bed.merge(&states(&[job(i64::MAX)])).await, 1, "it starts");
    let again = tokio::time::timeout(BEYOND, bed.jobs.changed()).await;
    // workloads 9a
    assert!(again.is_ok());
}

/// The grace period of a pod may be hours, and a container that waits in the kernel can't be stopped.
#[tokio::test(start_paused = true)]
async fn pods_that_do_not_stop_are_looked_at_less_and_less_often() {
    let mut bed = JobBed::new();
    assert_eq!(bed.merge(&states(&[job(60)])).await, 1, "it starts");
    // It is removed, and nobody knows whether its pod runs.
    let removed = states(&[]);
    let began = Instant::now();
    let mut looks = Vec::new();
    while began.elapsed() < Duration::from_hours(1) {
        assert_eq!(bed.merge(&removed).await, 0);
        let look = tokio::time::timeout(BEYOND, bed.jobs.changed()).await;
        assert!(look.is_ok(), "{looks:?}");
        looks.push(began.elapsed().as_secs());
    }
    // workloads 7
    assert_eq!(looks[..6], [1, 2, 4, 8, 16, 32]);
    // workloads 7
    assert!((100..=130).contains(&looks.len()), "{looks:?}");
}
