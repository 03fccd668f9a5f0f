//! Critical pods that wait for the pods that they preempt.

use serde_json::json;

use super::super::*;
use super::admission::{A, B, node, refused};
use super::bed::{Bed, api, changed, deleted, left_behind, named, pod, runs};
use mirrorlet_runtime::RuntimeError;
use mirrorlet_testing::fake_runtime::{CallFault, FakeRuntime};

const C: &str = "cccc0000-0000-4000-8000-000000000003";

/// The pod, requesting that much of the CPU.
pub(super) fn requesting(pod: &Arc<Pod>, cpu: &str) -> Arc<Pod> {
    let resources = json!({"requests": {"cpu": cpu}});
    let container = json!({"name": "app", "image": "app:1", "resources": resources});
    changed(pod, json!({"spec": {"containers": [container]}}))
}

/// A node of two CPUs on which a pod runs that requests one and a half; with that pod, and a critical one that
/// doesn't fit beside it.
async fn full() -> (Bed, Arc<Pod>, Arc<Pod>) {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let a = requesting(&api(A, json!({})), "1500m");
    let critical = requesting(&pod("static"), "1");
    bed.want(&[&a]);
    bed.until_runs(A).await;
    (bed, a, critical)
}

fn waits(view: Option<&PodView>, words: &str) -> bool {
    let view = view.filter(|view| view.phase == Phase::WaitingToStart);
    view.is_some_and(|view| view.error.contains(words))
}

const WAITS: &str =
    "waiting for pod ns/pod-aaaa to stop, which was preempted to make room for this pod";

#[tokio::test(start_paused = true)]
async fn a_critical_pod_starts_once_the_pods_that_it_preempts_have_stopped() {
    let (bed, a, critical) = full().await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&a, &critical]);
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, WAITS)).await;
    // One that fits beside it waits for nobody.
    let other = pod("other");
    bed.want(&[&a, &critical, &other]);
    bed.until_runs("other").await;
    // pods 61c
    bed.fake.assert_started_pods(&[A, "other"]);
    hold.release();
    let released = tokio::time::Instant::now();
    bed.until("it runs, and not beside the other", |fake| {
        let is_started = runs(fake, "static");
        // pods 61c
        assert!(!(is_started && runs(fake, A)));
        is_started
    })
    .await;
    // By an event: a retry comes after ten seconds.
    // pods 61c
    assert!(released.elapsed() < Duration::from_secs(1));
    bed.until_view("static", |view| {
        view.is_some_and(|view| view.error.is_empty() && view.phase == Phase::Syncing)
    })
    .await;
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn another_version_of_a_critical_pod_waits_for_what_the_first_one_preempted() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let a = requesting(&api(A, json!({})), "1500m");
    let first = requesting(&named("first", "web"), "1");
    let second = requesting(&named("second", "web"), "800m");
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&a, &first]);
    hold.arrived(1).await;
    bed.until_view("first", |view| waits(view, WAITS)).await;
    bed.want(&[&a, &second]);
    bed.until_view("first", |view| view.is_none()).await;
    bed.until_view("second", |view| waits(view, WAITS)).await;
    // Nobody wants it any more, and somebody does again.
    bed.want(&[&a]);
    bed.until_view("second", |view| view.is_none()).await;
    bed.want(&[&a, &second]);
    bed.until_view("second", |view| waits(view, WAITS)).await;
    // pods 61c
    bed.fake.assert_started_pods(&[A]);
    hold.release();
    bed.until_runs("second").await;
    // pods 61c
    bed.fake.assert_started_pods(&[A, "second"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_started_again_finds_the_pods_that_are_to_make_room() {
    let fake = FakeRuntime::new();
    let a = requesting(&api(A, json!({})), "1500m");
    let critical = requesting(&pod("static"), "1");
    left_behind(&fake, &a);
    let mut hold = fake.block("kill_pod", None);
    let mut bed = Bed::on(fake);
    bed.node_is(node(&[], "2"));
    bed.want(&[&a, &critical]);
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, WAITS)).await;
    // pods 61c
    bed.fake.assert_started_pods(&[]);
    hold.release();
    bed.until_runs("static").await;
    // pods 61c
    assert!(!runs(&bed.fake, A));
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_that_comes_back_waits_though_an_old_list_has_it_running() {
    let fake = FakeRuntime::new();
    let critical = requesting(&pod("static"), "1");
    left_behind(&fake, &critical);
    let mut bed = Bed::on(fake);
    bed.node_is(node(&[], "2"));
    bed.want(&[&critical]);
    bed.until_view("static", |view| {
        view.is_some_and(|view| view.phase == Phase::Syncing)
    })
    .await;
    bed.evict("static", Duration::from_secs(1)).await;
    bed.until_gone("static").await;
    let a = requesting(&api(A, json!({})), "1500m");
    bed.want(&[&a, &critical]);
    bed.until_runs(A).await;
    let mut hold = bed.fake.block("kill_pod", None);
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, WAITS)).await;
    // pods 61c
    bed.fake.assert_started_pods(&[A]);
    hold.release();
    bed.until_runs("static").await;
    // pods 61c
    assert!(!runs(&bed.fake, A));
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_names_the_preempted_pod_that_can_not_be_stopped() {
    let (bed, a, critical) = full().await;
    let fault = CallFault::Refused(RuntimeError::Conflict("no such luck".to_owned()));
    bed.fake.fail_next_calls("kill_pod", usize::MAX, fault);
    bed.want(&[&a, &critical]);
    let told = "pod ns/pod-aaaa, which was preempted to make room for this pod, can't be stopped";
    bed.until_view("static", |view| waits(view, told)).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let story = bed.telemetry.journal.story(&FullName::of(&critical));
    let failures = story
        .iter()
        .filter(|entry| &*entry.reason == "FailedPreemption");
    // pods 61c
    assert_eq!(failures.count(), 1, "{story:?}");
    bed.fake.assert_started_pods(&[A]);
    bed.fake.end_faults();
    bed.until_runs("static").await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_starts_beside_a_preempted_one_that_takes_too_long_to_stop() {
    for (grace, waited) in [(1, 10), (20, 30), (31_536_000, 300)] {
        let mut bed = Bed::start();
        bed.node_is(node(&[], "2"));
        let a = api(A, json!({"spec": {"terminationGracePeriodSeconds": grace}}));
        let a = requesting(&a, "1500m");
        let critical = requesting(&pod("static"), "1");
        bed.want(&[&a]);
        bed.until_runs(A).await;
        let mut hold = bed.fake.block("kill_pod", None);
        bed.want(&[&a, &critical]);
        hold.arrived(1).await;
        bed.until_view("static", |view| waits(view, WAITS)).await;
        let began = tokio::time::Instant::now();
        bed.until_runs("static").await;
        let seconds = began.elapsed().as_secs();
        // pods 62a
        assert!((waited - 1..waited + 2).contains(&seconds), "{seconds}");
        assert!(runs(&bed.fake, A));
        // Nor does another one wait for it.
        let later = requesting(&pod("later"), "1");
        bed.want(&[&a, &critical, &later]);
        let began = tokio::time::Instant::now();
        bed.until_runs("later").await;
        // pods 62a
        assert!(began.elapsed() < Duration::from_secs(1));
        let story = bed.telemetry.journal.story(&FullName::of(&a));
        let told = story
            .iter()
            .filter(|entry| &*entry.reason == "ExceededGracePeriod");
        // pods 62a
        assert_eq!(told.count(), 1, "{story:?}");
        hold.release();
        bed.until("the preempted pod stops", |fake| !runs(fake, A))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_names_the_preempted_pod_that_can_not_be_looked_at() {
    let (bed, a, critical) = full().await;
    let fault = CallFault::Refused(RuntimeError::Conflict("no such luck".to_owned()));
    bed.fake
        .fail_next_calls("get_pod_status", usize::MAX, fault);
    bed.want(&[&a, &critical]);
    let told = "pod ns/pod-aaaa, which was preempted to make room for this pod, can't be stopped";
    bed.until_view("static", |view| waits(view, told)).await;
    let view = bed.board.get(&"static".into()).unwrap();
    // pods 61c
    assert!(view.error.contains("no such luck"), "{}", view.error);
    assert_eq!(*view.awaits, [PodUid::from(A)]);
    // It can be looked at again, and takes its time to stop.
    let mut hold = bed.fake.block("kill_pod", None);
    bed.fake.end_faults();
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, WAITS)).await;
    // pods 61c
    bed.fake.assert_started_pods(&[A]);
    hold.release();
    bed.until_runs("static").await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_critical_pod_that_is_edited_starts_if_it_fits_beside_the_preempted_one() {
    let (bed, a, critical) = full().await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&a, &critical]);
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, WAITS)).await;
    let edited = tokio::time::Instant::now();
    bed.want(&[&a, &requesting(&critical, "500m")]);
    bed.until_runs("static").await;
    // pods 61c
    assert!(edited.elapsed() < Duration::from_secs(1));
    // pods 61c
    assert!(runs(&bed.fake, A));
    hold.release();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_critical_pod_that_is_edited_preempts_more_pods_if_it_needs_their_room() {
    for (cpu, fits) in [("1500m", true), ("64", false)] {
        let mut bed = Bed::start();
        bed.node_is(node(&[], "2"));
        let a = requesting(&api(A, json!({})), "800m");
        let b = requesting(&api(B, json!({})), "1");
        let critical = requesting(&pod("static"), "500m");
        bed.want(&[&a, &b]);
        bed.until_runs(A).await;
        bed.until_runs(B).await;
        let mut hold = bed.fake.block("kill_pod", None);
        bed.want(&[&a, &b, &critical]);
        hold.arrived(1).await;
        bed.until_view("static", |view| waits(view, WAITS)).await;
        bed.want(&[&a, &b, &requesting(&critical, cpu)]);
        if !fits {
            bed.until_view("static", |view| refused(view, "OutOfcpu"))
                .await;
            hold.release();
            bed.until("the preempted pod stops", |fake| !runs(fake, A))
                .await;
            // pods 61c
            assert!(runs(&bed.fake, B) && !runs(&bed.fake, "static"));
            continue;
        }
        let arrived = tokio::time::timeout(Duration::from_mins(1), hold.arrived(2)).await;
        // pods 61c
        assert!(arrived.is_ok(), "it preempts the other pod, too");
        hold.release();
        bed.until("it runs, and not beside the others", |fake| {
            let is_started = runs(fake, "static");
            // pods 61c
            assert!(!(is_started && (runs(fake, A) || runs(fake, B))));
            is_started
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_starts_beside_a_preempted_one_as_soon_as_there_is_room() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let a = requesting(&api(A, json!({})), "1500m");
    let b = requesting(&api(B, json!({})), "500m");
    let critical = requesting(&pod("static"), "500m");
    bed.want(&[&a, &b]);
    bed.until_runs(A).await;
    bed.until_runs(B).await;
    let mut hold = bed.fake.block("kill_pod", Some(&B.into()));
    bed.want(&[&a, &b, &critical]);
    hold.arrived(1).await;
    bed.until_view("static", |view| waits(view, "pod ns/pod-bbbb"))
        .await;
    bed.want(&[&b, &critical]);
    bed.until_runs("static").await;
    // pods 61c
    assert!(runs(&bed.fake, B) && !runs(&bed.fake, A));
    hold.release();
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_of_the_api_server_waits_too_and_may_be_deleted_meanwhile() {
    let mut bed = Bed::start();
    bed.node_is(node(&[], "2"));
    let a = requesting(&api(A, json!({})), "1500m");
    let important = api(C, json!({"spec": {"priority": 2_000_000_000}}));
    let important = requesting(&important, "1");
    bed.want(&[&a]);
    bed.until_runs(A).await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&a, &important]);
    hold.arrived(1).await;
    bed.until_view(C, |view| waits(view, WAITS)).await;
    bed.want(&[&a, &deleted(&important, 0)]);
    bed.until_view(C, |view| {
        view.is_some_and(|view| view.phase == Phase::Finished)
    })
    .await;
    bed.want(&[&a]);
    bed.until_view(C, |view| view.is_none()).await;
    // pods 61c
    bed.fake.assert_started_pods(&[A]);
    hold.release();
}
