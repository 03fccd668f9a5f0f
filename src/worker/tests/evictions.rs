//! Evicted pods, and their return.

use serde_json::json;

use super::super::*;
use super::bed::{Bed, SWEEP, api, changed, phase_of, pod, runs};
use crate::store::settled::Left;
use mirrorlet_core::eviction::{Pressure, Pressures};

const A: &str = "aaaa0000-0000-4000-8000-000000000001";
const SECOND: Duration = Duration::from_secs(1);

fn evicted(view: Option<&PodView>) -> bool {
    view.is_some_and(|view| {
        let status = view.status.as_ref().unwrap();
        let condition = status.conditions.iter().flatten();
        view.phase == Phase::Finished
            && phase_of(view) == Some("Failed")
            && status.reason.as_deref() == Some("Evicted")
            && status.message.as_deref() == Some("no memory. ")
            && condition.clone().any(|c| c.type_ == "DisruptionTarget")
    })
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_of_the_api_server_has_failed_for_good_and_holds_nothing() {
    let bed = Bed::start();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.evict(A, SECOND).await;
    // eviction 9
    bed.until_view(A, evicted).await;
    // eviction 8
    bed.until_gone(A).await;
    tokio::time::sleep(SWEEP).await;
    bed.until_view(A, evicted).await;
    bed.fake.assert_call_counts("sync_pod", 1);
    let metrics = bed.telemetry.metrics.encode();
    assert!(metrics.contains("evictions_total{eviction_signal=\"memory.available\"} 1"));
    // A second order changes nothing.
    bed.evict(A, SECOND).await;
    bed.want(&[]);
    bed.until_view(A, |view| view.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_pod_settles_once_its_object_shows_how_it_ended() {
    let bed = Bed::start();
    bed.takes_ends.send_replace(false);
    let settled = bed.settled();
    let a = api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    bed.evict(A, SECOND).await;
    bed.until_view(A, evicted).await;
    bed.until_gone(A).await;
    tokio::time::sleep(SWEEP).await;
    assert!(bed.cache.get(&A.into()).status.is_empty());
    // The first of its two last statuses has arrived.
    bed.want(&[&changed(&a, json!({"status": {"phase": "Failed"}}))]);
    // eviction 9
    assert_eq!(settled.next().await, [(A.into(), Left::Unreported)].into());
    let view = bed.board.get(&A.into()).unwrap();
    let status = view.status.as_deref().unwrap();
    bed.want(&[&changed(&a, json!({"status": status}))]);
    // eviction 9
    assert_eq!(settled.next().await, [(A.into(), Left::Nothing)].into());
}

#[tokio::test(start_paused = true)]
async fn an_evicted_static_pod_comes_back_after_a_growing_pause() {
    let bed = Bed::start();
    let a = pod("a");
    bed.want(&[&a]);
    bed.until_runs("a").await;
    for seconds in [10, 20, 40] {
        bed.evict("a", SECOND).await;
        bed.until_view("a", evicted).await;
        let began = tokio::time::Instant::now();
        bed.until_runs("a").await;
        let paused = began.elapsed().as_secs();
        // eviction 8
        assert!(
            paused.abs_diff(seconds) <= 1,
            "{paused} instead of {seconds}"
        );
    }
    bed.want(&[]);
    bed.until_gone("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_static_pod_comes_back_whatever_is_done_as_its_pause_ends() {
    let bed = Bed::start();
    let a = pod("a");
    bed.want(&[&a]);
    bed.until_runs("a").await;
    bed.evict("a", SECOND).await;
    bed.until_view("a", evicted).await;
    // The pause ends, and the workers handle this before their timer fires.
    bed.want(&[&a]);
    tokio::time::advance(Duration::from_secs(11)).await;
    // eviction 8
    bed.until_runs("a").await;
}

#[tokio::test(start_paused = true)]
async fn an_evicted_static_pod_waits_for_the_pressure_to_end() {
    let mut bed = Bed::start();
    let (a, b) = (pod("a"), pod("b"));
    bed.want(&[&a]);
    bed.until_runs("a").await;
    let short = AdmitNode::default().under(Pressures::from([Pressure::Memory]));
    bed.node_is(short);
    bed.evict("a", SECOND).await;
    bed.until_view("a", evicted).await;
    tokio::time::sleep(SWEEP).await;
    // eviction 8
    assert!(!runs(&bed.fake, "a"));
    // Another one starts all the same: upstream calls all static pods critical.
    bed.want(&[&a, &b]);
    bed.until_runs("b").await;
    bed.node_is(AdmitNode::default());
    // eviction 8
    bed.until_runs("a").await;
    // A pod whose manifest was removed does not come back.
    bed.evict("a", SECOND).await;
    bed.until_view("a", evicted).await;
    bed.want(&[&b]);
    bed.until_view("a", |view| view.is_none()).await;
    tokio::time::sleep(SWEEP).await;
    assert!(!runs(&bed.fake, "a"));
}

/// The disk is measured once the end of an evicted pod is told: no other pod goes for what it held.
#[tokio::test(start_paused = true)]
async fn the_end_of_an_evicted_pod_is_told_once_its_files_are_removed() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    let mut hold = bed.fake.block("delete_pod", Some(&"a".into()));
    bed.evict("a", SECOND).await;
    hold.arrived(1).await;
    let view = bed.board.get(&"a".into()).unwrap();
    // eviction 9
    assert_eq!(view.phase, Phase::Terminating);
    assert_eq!(phase_of(&view), Some("Failed"));
    hold.release();
    bed.until_view("a", evicted).await;
    bed.until_runs("a").await;
    // A volume that can't be released keeps nobody waiting for the end.
    let busy = mirrorlet_runtime::RuntimeError::Conflict("busy".to_owned());
    bed.fake.refuse_next("release_volumes", 1, busy);
    bed.evict("a", SECOND).await;
    let began = tokio::time::Instant::now();
    bed.until_view("a", evicted).await;
    // eviction 9
    assert!(began.elapsed() < Duration::from_secs(15));
}

/// An agent that starts on a node that is short evicts whom it ranks first, not whoever it finds.
#[tokio::test(start_paused = true)]
async fn pressure_stops_nothing_that_runs_when_the_agent_starts() {
    let fake = mirrorlet_testing::fake_runtime::FakeRuntime::new();
    let a = api(A, json!({}));
    super::bed::left_behind(&fake, &a);
    let mut bed = Bed::on(fake);
    bed.node_is(AdmitNode::default().under(Pressures::from([Pressure::Disk])));
    bed.want(&[&a]);
    tokio::time::sleep(SWEEP).await;
    // eviction 10
    assert!(runs(&bed.fake, A));
}
