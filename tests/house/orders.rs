//! A person's order is answered once the merge that carries it out is published: whoever asks next is
//! told of what was ordered.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use mirrorlet::app::desired::{MergeOutputs, MergeTask};
use mirrorlet::jobs::{JobHandle, JobOptions, Jobs, Order, OrderError};
use mirrorlet::rollout::Rollouts;
use mirrorlet::source::{SourceHealth, SourceReader};
use mirrorlet::store::board::board;
use mirrorlet::store::cell::cell;
use mirrorlet::store::claims::ClaimStore;
use mirrorlet::store::pods::pod_manager;
use mirrorlet::worker::Wanted;
use mirrorlet_core::api::NodeName;
use mirrorlet_core::desired::{PodSource, SourceSet, SourceState};
use mirrorlet_core::hold::{NewFile, with_files};
use mirrorlet_core::job::JobName;
use mirrorlet_core::merge::{Merged, SourceName, merge_sources};
use mirrorlet_core::observed::Pods;
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio::sync::watch;
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
    let options = JobOptions {
        board: board().1,
        telemetry: Telemetry::new(),
        clock: Arc::new(move || clock.now()),
    };
    Jobs::load(root, options)
}

#[tokio::test]
async fn a_run_that_was_ordered_is_known_to_whoever_asks_next() {
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (rollouts, _rollout_handle) = Rollouts::load(root.path(), options(&fake));
    let (jobs, handle) = jobs(root.path(), &fake);
    let (_state_writer, state) = cell(delivered());
    let (_health_writer, health) = cell(SourceHealth::default());
    let source = SourceReader {
        name: source_name(),
        state,
        health,
    };
    let (_listed_sender, listed) = watch::channel(Some(Arc::new(Pods::default())));
    let (pods, _api_pods, _manager) = pod_manager();
    let (merged_writer, merged) = cell(Merged::default());
    let (wanted, _wanted_reader) = watch::channel(Arc::new(Wanted::default()));
    let (task, _handles) = MergeTask::new(
        vec![source],
        listed,
        MergeOutputs {
            pods,
            merged: merged_writer,
            wanted,
            objects: Arc::default(),
        },
        rollouts,
        jobs,
        ClaimStore::default(),
        Telemetry::new(),
    );
    let cancel = CancellationToken::new();
    let merging = tokio::spawn(task.run(cancel.clone()));

    let cron = JobName::new("default", "backup");
    let job = handle.order(Order::Run(cron)).await.unwrap();
    let (states, merged) = (handle.states(), merged.get());
    // workloads 10
    assert!(
        states.jobs.iter().any(|known| known.name == job.name),
        "{states:?}"
    );
    let mut names = merged.pods.values().map(|pod| pod.full_name().name);
    // workloads 10
    assert!(names.any(|name| name.starts_with(&job.name)), "{merged:?}");
    cancel.cancel();
    merging.await.unwrap();
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

/// A source that has delivered a Job with that command.
fn with_job(command: &str) -> BTreeMap<SourceName, SourceState> {
    let text = format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata: {{name: work}}\nspec:\n  template: {{spec: {{restartPolicy: Never, containers: [{{name: c, image: i, command: [{command}]}}]}}}}\n"
    );
    let file = NewFile {
        location: "/m/work.yaml".to_owned(),
        bytes: text.into_bytes(),
    };
    let node = NodeName::from("box");
    let set = with_files(&SourceSet::default(), &[file], true, &node);
    BTreeMap::from([(source_name(), SourceState::Synced(Arc::new(set)))])
}

#[tokio::test]
async fn an_edited_job_runs_on_as_it_was_while_its_record_cannot_be_written() {
    async fn merge(jobs: &mut Jobs, command: &str) -> Merged {
        let (states, none) = (with_job(command), Merged::default());
        let mut merged = merge_sources(&states, &none.incumbents(), &none.objects);
        jobs.apply(&mut merged, &states, true).await;
        merged
    }
    let root = tempfile::tempdir().unwrap();
    let fake = FakeRuntime::new();
    let (mut jobs, _handle) = jobs(root.path(), &fake);
    let first = merge(&mut jobs, "old").await;
    assert_eq!(first.pods.len(), 1);
    assert_eq!(first.conflicts, []);
    let records = root.path().join("jobs");
    std::fs::remove_dir_all(&records).unwrap();
    std::fs::write(&records, "in the way").unwrap();
    for _ in 0..2 {
        let edited = merge(&mut jobs, "new").await;
        // workloads 7
        assert_eq!(edited.pods, first.pods);
        assert_eq!(edited.conflicts.len(), 1, "{:?}", edited.conflicts);
    }
    std::fs::remove_file(&records).unwrap();
    let edited = merge(&mut jobs, "new").await;
    let pods: Vec<_> = edited.pods.into_values().collect();
    let container = &pods[0].pod.spec.as_ref().unwrap().containers[0];
    assert_eq!(container.command, Some(vec!["new".to_owned()]));
    assert_eq!(pods.len(), 1);
    assert_eq!(edited.conflicts, []);
}
