//! Plans that failed: what ends the pause before they are tried again.

use serde_json::json;
use tokio::time::Instant;

use super::super::*;
use super::bed::{Bed, api, changed, pod};
use mirrorlet_core::api::keys;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

const A: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: Duration = Duration::from_secs(1);
/// The rest of a back-off after many failed pulls of an image.
const LONG_PAUSE: Duration = Duration::from_mins(5);

/// Its first `starts` starts fail with that reason, and advise a long pause.
async fn held(bed: &Bed, pod: &Arc<Pod>, starts: usize, reason: SyncErrorReason) {
    let error = SyncError {
        retry_after: Some(LONG_PAUSE),
        ..SyncError::new(reason, "no")
    };
    bed.fake.fail_next_starts("app", starts, error);
    bed.want(&[pod]);
    // With a sandbox there is other work to do than before it, so the second round follows at once.
    bed.until("two rounds", |fake| fake.call_count("sync_pod") == 2)
        .await;
    tokio::time::sleep(SECOND).await;
    bed.fake.assert_call_counts("sync_pod", 2);
}

#[tokio::test(start_paused = true)]
async fn an_edit_or_an_order_ends_the_pause_of_a_start_that_failed() {
    let image = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
    let order = json!({"metadata": {"annotations": {keys::RESTART: "all"}}});
    let other = json!({"metadata": {"labels": {"a": "b"}}});
    for (before, edit, is_tried) in [
        (api(A, json!({})), &image, true),
        (pod("static"), &image, true),
        (pod("static"), &order, true),
        (api(A, json!({})), &other, false),
        (pod("static"), &other, false),
    ] {
        let bed = Bed::start();
        held(&bed, &before, 2, SyncErrorReason::ImagePullBackOff).await;
        let began = Instant::now();
        bed.want(&[&changed(&before, edit.clone())]);
        bed.until_runs(PodUid::of(&before).as_str()).await;
        let pause = began.elapsed();
        // pods 48
        assert_eq!(pause < SECOND, is_tried, "{edit}: {pause:?}");
        bed.fake.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_during_a_start_that_fails_is_tried_at_once() {
    let bed = Bed::start();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let error = SyncError {
        retry_after: Some(LONG_PAUSE),
        ..SyncError::new(SyncErrorReason::ErrImagePull, "no")
    };
    bed.fake.fail_next_starts("app", 1, error);
    let mut pull = bed.fake.block("sync_pod", None);
    bed.fake.exit_container(&A.into(), "app", 1);
    pull.arrived(1).await;
    let image = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
    bed.want(&[&changed(&a, image)]);
    tokio::time::sleep(SECOND).await;
    let began = Instant::now();
    pull.release();
    bed.until_runs(A).await;
    // pods 48
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn images_that_come_shorten_the_pause_of_a_pod_that_lacks_one() {
    for (reason, is_tried) in [
        (SyncErrorReason::ErrImagePull, true),
        (SyncErrorReason::ImagePullBackOff, true),
        (SyncErrorReason::RegistryUnavailable, true),
        (SyncErrorReason::CreateContainerError, false),
    ] {
        let bed = Bed::start();
        held(&bed, &pod("a"), 2, reason).await;
        bed.fake.change_images();
        let began = Instant::now();
        bed.until_runs("a").await;
        let pause = began.elapsed();
        // docker 48a
        assert_eq!(pause <= Duration::from_secs(15), is_tried, "{pause:?}");
    }
}

/// Whoever builds images changes them all the time.
#[tokio::test(start_paused = true)]
async fn images_that_come_and_go_have_nobody_tried_all_the_time() {
    let bed = Bed::start();
    held(&bed, &pod("a"), 100, SyncErrorReason::ImagePullBackOff).await;
    for _ in 0..600 {
        bed.fake.change_images();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let rounds = bed.fake.call_count("sync_pod") - 2;
    // docker 48a
    assert!((3..=6).contains(&rounds), "{rounds} in a minute");
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_container_from_being_started_is_no_crash_of_its() {
    let failures = |bed: &Bed, reason: SyncErrorReason| {
        let error = SyncError::new(reason, "no");
        if reason == SyncErrorReason::CreateContainerConfigError {
            bed.fake.fail_next_starts("app", 20, error);
        } else {
            bed.fake.fail_next_plans(20, error);
        }
    };
    for reason in [
        SyncErrorReason::CreateContainerConfigError,
        SyncErrorReason::FailedMount,
        SyncErrorReason::KillContainerError,
    ] {
        let bed = Bed::start();
        bed.want(&[&pod("a")]);
        bed.until_runs("a").await;
        failures(&bed, reason);
        bed.fake.exit_container(&"a".into(), "app", 1);
        let died = Instant::now();
        bed.until("it is tried", |fake| fake.call_count("sync_pod") == 5)
            .await;
        tokio::time::sleep(SECOND).await;
        let view = bed.board.get(&"a".into()).unwrap();
        assert!(view.error.contains("no"), "{reason}: {:?}", view.error);
        let told = format!("{:?}", view.status);
        assert!(!told.contains("CrashLoopBackOff"), "{reason}: {told}");
        bed.until_runs("a").await;
        // 20 attempts of 10 to 15 s each; counted as crashes they would take over an hour.
        let took = died.elapsed().as_secs();
        // api 15
        assert!((200..=310).contains(&took), "{reason}: {took}");
        bed.fake.exit_container(&"a".into(), "app", 1);
        let died = Instant::now();
        bed.until_runs("a").await;
        assert_eq!(died.elapsed().as_secs(), 10, "the second crash");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_finds_no_runtime_is_no_crash() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    let gone = SyncError::new(SyncErrorReason::RuntimeUnavailable, "gone");
    bed.fake.fail_next_starts("app", 3, gone);
    for pause in [30, 10] {
        bed.fake.exit_container(&"a".into(), "app", 1);
        let died = Instant::now();
        bed.until_runs("a").await;
        let took = died.elapsed().as_secs();
        // The first crash alone has no back-off, and three attempts find no runtime.
        // api 15
        assert!(took <= pause, "{pause}: {took}");
    }
}

/// A storage driver that keeps the files of a dead container busy fails each removal at once.
#[tokio::test(start_paused = true)]
async fn a_dead_instance_that_can_not_be_removed_is_tried_seldom() {
    let bed = Bed::start();
    bed.fake.refuse_removals();
    let volume = json!({"name": "v", "configMap": {"name": "c"}});
    bed.want(&[&api(A, json!({"spec": {"volumes": [volume]}}))]);
    for _ in 0..3 {
        bed.until_runs(A).await;
        tokio::time::sleep(SECOND).await;
        bed.fake.exit_container(&A.into(), "app", 1);
    }
    bed.until_runs(A).await;
    tokio::time::sleep(SECOND).await;
    let before = bed.fake.call_count("sync_pod");
    tokio::time::sleep(Duration::from_mins(1)).await;
    let rounds = bed.fake.call_count("sync_pod") - before;
    // pods 48
    assert!((3..=6).contains(&rounds), "{rounds} in a minute");
    assert!(bed.fake.call_count("remove_container") > 0);
    // What runs is none the worse for it.
    let refreshes = bed.fake.call_count("refresh_volumes");
    bed.fake.change_references();
    bed.until("its volumes are brought up to date", |fake| {
        fake.call_count("refresh_volumes") > refreshes
    })
    .await;
    bed.fake.end_faults();
    bed.until("what is dead is removed", |fake| {
        fake.pod(&A.into()).containers.len() == 2
    })
    .await;
    bed.fake.assert_no_violations();
}
