//! Host ports of pods that are being stopped.

use serde_json::json;

use super::super::*;
use super::bed::{Bed, changed, left_behind, pod};
use mirrorlet_runtime::RuntimeError;
use mirrorlet_testing::fake_runtime::{CallFault, FakeRuntime};

/// The pod, with the host port 8080.
fn with_port(pod: &Arc<Pod>) -> Arc<Pod> {
    let port = json!({"containerPort": 80, "hostPort": 8080});
    let container = json!({"name": "app", "image": "app:1", "ports": [port]});
    changed(pod, json!({"spec": {"containers": [container]}}))
}

fn waits(view: Option<&PodView>, words: &str) -> bool {
    let view = view.filter(|view| view.phase == Phase::WaitingToStart);
    view.is_some_and(|view| view.error.contains(words))
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_takes_over_a_host_port_starts_once_it_is_free() {
    let bed = Bed::start();
    let [old, new] = ["old", "new"].map(|uid| with_port(&pod(uid)));
    bed.want(&[&old]);
    bed.until_runs("old").await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&new, &pod("other")]);
    hold.arrived(1).await;
    bed.until_runs("other").await;
    let told = "waiting for pod ns/pod-old to stop, which has host port 8080/tcp";
    bed.until_view("new", |view| waits(view, told)).await;
    hold.release();
    bed.until_runs("new").await;
    let view = bed.board.get(&"new".into()).unwrap();
    // pods 43b
    assert_eq!((&*view.error, view.phase), ("", Phase::Syncing));
    bed.fake.assert_no_violations();
    bed.until_gone("old").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_a_port_is_told_whose_stop_fails_and_ends_if_nobody_wants_it() {
    let bed = Bed::start();
    let [old, new] = ["old", "new"].map(|uid| with_port(&pod(uid)));
    bed.want(&[&old]);
    bed.until_runs("old").await;
    let fault = CallFault::Refused(RuntimeError::Conflict("no such luck".to_owned()));
    bed.fake.fail_next_calls("kill_pod", usize::MAX, fault);
    bed.want(&[&new]);
    let told = "host port 8080/tcp is in use by pod ns/pod-old, which can't be stopped";
    bed.until_view("new", |view| waits(view, told)).await;
    let story = bed.telemetry.journal.story(&FullName::of(&new));
    let conflicts = story
        .iter()
        .filter(|told| &*told.reason == "HostPortConflict");
    // pods 43b
    assert_eq!(conflicts.count(), 1, "{story:?}");
    bed.want(&[]);
    bed.until_view("new", |view| view.is_none()).await;
    bed.fake.assert_started_pods(&["old"]);
    bed.want(&[&new]);
    bed.until_view("new", |view| waits(view, told)).await;
    bed.fake.end_faults();
    bed.until_runs("new").await;
    bed.until_gone("old").await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_started_again_knows_the_ports_of_what_still_stops() {
    let fake = FakeRuntime::new();
    let [old, new] = ["old", "new"].map(|uid| with_port(&pod(uid)));
    left_behind(&fake, &old);
    let clock = fake.clone();
    let mut hold = fake.block("kill_pod", None);
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.knows(&old);
    bed.want(&[&new]);
    hold.arrived(1).await;
    bed.until_view("new", |view| waits(view, "pod-old")).await;
    let shown = bed.board.get(&"old".into()).unwrap();
    // pods 43b
    assert_eq!((shown.pod, shown.phase), (Some(old), Phase::Terminating));
    hold.release();
    bed.until_runs("new").await;
    bed.until_gone("old").await;
}
