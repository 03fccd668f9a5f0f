//! New static pods at the start of an agent, beside pods that can't be counted yet.

use serde_json::json;
use tokio::time::Instant;

use super::super::*;
use super::admission::{A, node};
use super::bed::{Bed, api, left_behind, named, pod, runs};
use super::preemption::requesting;
use mirrorlet_testing::fake_runtime::FakeRuntime;

/// An agent that finds a pod of the API server running, which requests one and a half CPUs. With a static
/// pod that requests one.
fn restarted() -> (Bed, Arc<Pod>, Arc<Pod>) {
    let fake = FakeRuntime::new();
    let a = requesting(&api(A, json!({})), "1500m");
    left_behind(&fake, &a);
    (Bed::on(fake), a, requesting(&pod("static"), "1"))
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_waits_at_the_start_until_what_runs_can_be_counted() {
    for node_is_first in [false, true] {
        let (mut bed, a, critical) = restarted();
        let other = pod("other");
        // The last known pods come from the disk, the Node from the API server.
        if node_is_first {
            bed.node_is(node(&[], "2"));
            bed.tell(&[&critical, &other], Delivered::MANIFESTS);
        } else {
            bed.tell(&[&a, &critical, &other], Delivered::MANIFESTS);
        }
        // One that requests nothing doesn't wait.
        bed.until_runs("other").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        // pods 61d
        assert!(!runs(&bed.fake, "static"), "{node_is_first}");
        if node_is_first {
            bed.tell(&[&a, &critical, &other], Delivered::MANIFESTS);
        } else {
            bed.node_is(node(&[], "2"));
        }
        let known = Instant::now();
        bed.until("it runs, and not beside the other", |fake| {
            let is_started = runs(fake, "static");
            // pods 61d
            assert!(!(is_started && runs(fake, A)), "{node_is_first}");
            is_started
        })
        .await;
        // pods 61d
        assert!(known.elapsed() < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_waits_at_the_start_for_a_few_seconds_at_most() {
    let (bed, _, critical) = restarted();
    bed.tell(&[&critical], Delivered::MANIFESTS);
    let began = Instant::now();
    bed.until_runs("static").await;
    let waited = began.elapsed().as_secs();
    // pods 61d
    assert!((4..7).contains(&waited), "{waited}");
    // pods 61d
    assert!(runs(&bed.fake, A));
    // One that comes later doesn't wait.
    let later = requesting(&pod("later"), "1");
    bed.tell(&[&critical, &later], Delivered::MANIFESTS);
    let began = Instant::now();
    bed.until_runs("later").await;
    // pods 61d
    assert!(began.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn another_version_of_a_pod_that_is_here_does_not_wait_at_the_start() {
    let fake = FakeRuntime::new();
    left_behind(&fake, &api(A, json!({})));
    left_behind(&fake, &named("old", "web"));
    let bed = Bed::on(fake);
    let new = requesting(&named("new", "web"), "1");
    bed.tell(&[&new], Delivered::MANIFESTS);
    let began = Instant::now();
    bed.until_runs("new").await;
    // pods 61d
    assert!(began.elapsed() < Duration::from_secs(3));
}
