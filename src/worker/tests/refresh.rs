//! Volumes that are kept up to date, and pods that start when what they lack is there.

use serde_json::json;
use tokio::time::Instant;

use super::super::*;
use super::bed::{Bed, api, changed};
use mirrorlet_runtime::{RuntimeError, SyncError, SyncErrorReason};

const A: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: Duration = Duration::from_secs(1);

/// A pod of the API server whose volume may change.
fn mounting() -> Arc<Pod> {
    let volume = json!({"name": "v", "configMap": {"name": "c"}});
    api(A, json!({"spec": {"volumes": [volume]}}))
}

async fn refreshed(bed: &Bed, times: usize) {
    bed.until(&format!("refresh {times}"), |fake| {
        fake.call_count("refresh_volumes") >= times
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_was_missing_ends_the_pause_when_it_comes() {
    let bed = Bed::start();
    let error = SyncError::new(SyncErrorReason::FailedMount, "configmap \"c\" not found");
    bed.fake.fail_next_starts("app", 3, error);
    bed.want(&[&mounting()]);
    // With a sandbox there is other work to do than before it, so the second round follows at once.
    for rounds in 2..=3 {
        bed.until("a round", |fake| fake.call_count("sync_pod") == rounds)
            .await;
        tokio::time::sleep(SECOND).await;
        bed.fake.assert_call_counts("sync_pod", rounds);
        let came = Instant::now();
        bed.fake.change_references();
        bed.until("another", |fake| fake.call_count("sync_pod") > rounds)
            .await;
        // pods 48, docker 44
        assert!(came.elapsed() < SECOND, "{:?}", came.elapsed());
    }
    bed.until_runs(A).await;
    bed.fake.assert_call_counts("sync_pod", 4);
}

#[tokio::test(start_paused = true)]
async fn volumes_follow_news_edits_and_their_due_time() {
    let bed = Bed::start();
    let a = mounting();
    bed.want(&[&a]);
    bed.until_runs(A).await;
    // Once by itself: the agent may have been away.
    refreshed(&bed, 1).await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    // docker 44
    bed.fake.assert_call_counts("refresh_volumes", 1);

    bed.fake.change_references();
    refreshed(&bed, 2).await;
    bed.want(&[&changed(&a, json!({"metadata": {"labels": {"a": "b"}}}))]);
    refreshed(&bed, 3).await;
    tokio::time::sleep(SECOND).await;
    bed.fake.assert_call_counts("refresh_volumes", 3);

    bed.fake.set_refresh_after(Some(Duration::from_mins(50)));
    bed.fake.change_references();
    refreshed(&bed, 4).await;
    let began = Instant::now();
    refreshed(&bed, 5).await;
    let pause = began.elapsed();
    assert!((50..=51).contains(&(pause.as_secs() / 60)), "{pause:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_refresh_is_tried_again_less_and_less_often() {
    let bed = Bed::start();
    bed.want(&[&mounting()]);
    bed.until_runs(A).await;
    refreshed(&bed, 1).await;
    tokio::time::sleep(SECOND).await;
    let gone = RuntimeError::Local("no answer".to_owned());
    bed.fake.refuse_next("refresh_volumes", 6, gone);
    bed.fake.change_references();
    let mut pauses = Vec::new();
    refreshed(&bed, 2).await;
    for times in 3..=8 {
        let began = Instant::now();
        refreshed(&bed, times).await;
        pauses.push(began.elapsed().as_secs());
    }
    // docker 44
    assert_eq!(pauses, [10, 20, 40, 80, 120, 120]);
    tokio::time::sleep(Duration::from_hours(1)).await;
    bed.fake.assert_call_counts("refresh_volumes", 8);
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_costs_a_refresh_only_for_objects() {
    let downward = json!([{"name": "v", "downwardAPI": {"items": []}}]);
    let of_objects = json!([{"name": "v", "configMap": {"name": "c"}}]);
    let claim = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    for (volumes, refreshes) in [(downward, 0), (of_objects, 2), (claim, 2)] {
        let bed = Bed::start();
        let from_file = json!({
            "metadata": {"annotations": {"kubernetes.io/config.source": "file"}},
            "spec": {"volumes": volumes},
        });
        bed.want(&[&changed(&mounting(), from_file)]);
        bed.until_runs(A).await;
        tokio::time::sleep(SECOND).await;
        bed.fake.change_references();
        tokio::time::sleep(Duration::from_hours(1)).await;
        // docker 44, box 2
        bed.fake.assert_call_counts("refresh_volumes", refreshes);
    }
}
