//! Workers, the observer and the cache on the runtime in memory, on paused time.

mod admission;
mod api;
mod bed;
mod early;
mod evictions;
mod hold;
mod ports;
mod preemption;
mod refresh;
mod sources;
mod tidy;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::store::board::board;
use bed::{Bed, SWEEP, changed, left_behind, named, phase_of, pod, runs};
use mirrorlet_core::api::keys;
use mirrorlet_core::observed::{ContainerHash, ContainerState, ContainerStatus, PodStatus, Role};
use mirrorlet_runtime::{PodEvent, PodEventKind, RuntimeError, SyncError, SyncErrorReason};
use mirrorlet_testing::fake_runtime::FakeRuntime;

#[tokio::test(start_paused = true)]
async fn a_pod_comes_up_and_goes_without_a_trace() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    bed.until_view("a", |v| {
        let phase = v.and_then(|v| v.status.as_ref()?.phase.clone());
        phase.as_deref() == Some("Running")
    })
    .await;
    tokio::time::sleep(SWEEP * 2).await;
    // pods 48
    bed.fake.assert_call_counts("sync_pod", 1);
    bed.want(&[]);
    bed.until_gone("a").await;
    bed.until_view("a", |v| v.is_none()).await;
    // It is not taken for one that runs unwanted, though the last list still has it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.want(&[&pod("b")]);
    bed.until_runs("b").await;
    bed.fake.assert_killed_pods(&["a"]);
    bed.fake.assert_call_counts("delete_pod", 1);
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_kill_is_never_lost_and_the_same_pod_starts_again_after_it() {
    let bed = Bed::start();
    let a = pod("a");
    bed.want(&[&a]);
    bed.until_runs("a").await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[]);
    hold.arrived(1).await;
    bed.want(&[&a]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    hold.release();
    let restarted = |fake: &FakeRuntime| fake.started_containers().len() == 2 && runs(fake, "a");
    bed.until("it runs again", restarted).await;
    // pods 41
    bed.fake.assert_killed_pods(&["a"]);
    let again = bed.fake.pod(&"a".into());
    assert_eq!(again.containers[0].restart_count, 1, "its history goes on");
    bed.fake.assert_no_violations();
}

/// An agent was killed while a version was judged beside another: both run. An edit follows before
/// the next agent has stopped the one beside.
#[tokio::test(start_paused = true)]
async fn what_runs_at_the_start_is_stopped_before_another_version_starts() {
    let fake = FakeRuntime::new();
    let [old, beside, next] = ["old", "beside", "next"].map(|uid| named(uid, "web"));
    left_behind(&fake, &old);
    left_behind(&fake, &beside);
    fake.set_stop_takes(Duration::from_secs(3));
    let bed = Bed::on(fake);
    bed.want(&[&old]);
    bed.until("the one beside is being stopped", |fake| {
        fake.killed_pods() == ["beside".into()]
    })
    .await;
    bed.want(&[&next]);
    bed.until_runs("next").await;
    // rollouts 19
    bed.fake.assert_no_violations();
    assert!(bed.fake.pod(&"old".into()).is_empty());
    assert!(bed.fake.pod(&"beside".into()).is_empty());
}

/// A create that an agent before this one had sent is carried out while the pod is being removed, or
/// after it: nobody wants the pod any more, and nothing may be left of it. Each moment is tried, from
/// the first step of the stop to long after the worker has ended.
#[tokio::test(start_paused = true)]
async fn what_a_create_of_an_agent_before_leaves_is_removed_whenever_it_comes() {
    /// Half of a call of the runtime: before, during and after each.
    const STEP: Duration = Duration::from_micros(500);
    const STEPS: u32 = 60;
    for step in 0..STEPS {
        let late = STEP * step;
        let fake = FakeRuntime::new();
        let a = pod("a");
        left_behind(&fake, &a);
        let bed = Bed::on(fake);
        bed.want(&[&a]);
        bed.until_runs("a").await;
        bed.want(&[]);
        tokio::time::sleep(late).await;
        let mut status = bed.fake.pod(&"a".into());
        status.uid = "a".into();
        status.full_name = FullName::of(&a);
        status.containers.push(created_late());
        bed.fake.adopt(status);
        bed.fake.send(&PodEvent::Changed {
            uid: "a".into(),
            what: PodEventKind::ContainerCreated,
        });
        let came = Instant::now();
        bed.until_gone("a").await;
        // docker 57
        assert!(
            came.elapsed() < SWEEP / 10,
            "{late:?}: {:?}",
            came.elapsed()
        );
        bed.until_view("a", |view| view.is_none()).await;
        // Its full name is free.
        bed.want(&[&named("b", "pod-a")]);
        bed.until_runs("b").await;
    }
}

/// A second container of a pod, never started.
fn created_late() -> ContainerStatus {
    ContainerStatus {
        by_hand: None,
        id: mirrorlet_core::api::ContainerId::docker("late"),
        name: "late".into(),
        role: Role::App,
        state: ContainerState::Created,
        created_at: mirrorlet_core::api::Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: None,
        image: "app:1".into(),
        image_id: "".into(),
        hash: ContainerHash(0),
        restart_count: 0,
        pod_restarts: 0,
        reason: "".into(),
        message: "".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_unwanted_before_it_started_leaves_nothing() {
    let bed = Bed::start();
    let mut hold = bed.fake.block("sync_pod", None);
    bed.want(&[&pod("a")]);
    hold.arrived(1).await;
    bed.want(&[]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    hold.release();
    bed.until_view("a", |v| v.is_none()).await;
    assert!(bed.fake.pod(&"a".into()).is_empty());
    // pods 41
    bed.fake.assert_started_containers(&[]);
}

/// The list that is left of the observer has pods that are gone.
#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_reports_no_pod_as_removed() {
    // Which of several ends a worker sees first is left to chance.
    for _ in 0..16 {
        let a = pod("a");
        let fake = FakeRuntime::new();
        left_behind(&fake, &a);
        let mut bed = Bed::on(fake);
        bed.want(&[&a]);
        bed.until_runs("a").await;
        bed.want(&[]);
        bed.until_gone("a").await;
        bed.until_view("a", |view| view.is_none()).await;
        let journal = bed.telemetry.journal.clone();
        let before = journal.story(&FullName::of(&a));
        bed.cancel.cancel();
        while bed.parts.join_next().await.is_some() {}
        // agent 8
        assert_eq!(journal.story(&FullName::of(&a)), before);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_hangs_does_not_hold_back_another() {
    let bed = Bed::start();
    let mut hold = bed.fake.block("sync_pod", Some(&"a".into()));
    bed.want(&[&pod("a")]);
    hold.arrived(1).await;
    bed.want(&[&pod("a"), &pod("b")]);
    bed.until_runs("b").await;
    assert!(!runs(&bed.fake, "a"));
    hold.release();
    bed.until_runs("a").await;
}

#[tokio::test(start_paused = true)]
async fn versions_of_one_name_run_one_after_the_other() {
    let bed = Bed::start();
    let [two, three, four] = ["2", "3", "4"].map(|uid| named(uid, "web"));
    bed.want(&[&two]);
    bed.until_runs("2").await;
    let mut hold = bed.fake.block("kill_pod", None);
    bed.want(&[&three]);
    hold.arrived(1).await;
    bed.until_view("3", |v| v.is_some_and(|v| v.phase == Phase::WaitingToStart))
        .await;
    bed.want(&[&four]);
    bed.until_view("3", |v| v.is_none()).await;
    bed.until_view("4", |v| v.is_some_and(|v| v.phase == Phase::WaitingToStart))
        .await;
    hold.release();
    bed.until_runs("4").await;
    bed.until_gone("2").await;
    bed.fake.assert_started_pods(&["2", "4"]);
    bed.fake.assert_killed_pods(&["2"]);
    bed.fake.assert_call_counts("delete_pod", 1);
}

/// As on a mount that hangs: who waits for the stop, as the next run of a Job, learns of it.
#[tokio::test(start_paused = true)]
async fn a_stop_is_told_while_the_remains_are_still_being_removed() {
    let bed = Bed::start();
    let never = changed(&pod("b"), json!({"spec": {"restartPolicy": "Never"}}));
    bed.want(&[&pod("a"), &never]);
    bed.until_runs("a").await;
    bed.until_runs("b").await;
    let stopped = |view: Option<&PodView>, phase: Phase| {
        view.is_some_and(|view| view.phase == phase && !view.observed.anything_running())
    };
    let mut remains = bed.fake.block("delete_pod", Some(&"a".into()));
    bed.want(&[&never]);
    remains.arrived(1).await;
    // workloads 7
    assert!(stopped(
        bed.board.get(&"a".into()).as_ref(),
        Phase::Terminated
    ));
    remains.release();
    bed.until_view("a", |view| view.is_none()).await;
    // Of one that has done its work, while its volumes are released.
    let mut volumes = bed.fake.block("release_volumes", Some(&"b".into()));
    bed.fake.exit_container(&"b".into(), "app", 0);
    volumes.arrived(1).await;
    let view = bed.board.get(&"b".into());
    // workloads 7
    assert!(stopped(view.as_ref(), Phase::Syncing));
    assert_eq!(view.as_ref().and_then(phase_of), Some("Succeeded"));
    volumes.release();
    bed.fake.assert_no_violations();
}

/// As where a storage driver keeps the files of a dead container busy.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_remains_stay_gives_its_name_to_the_next() {
    let bed = Bed::start();
    let [old, new] = ["old", "new"].map(|uid| named(uid, "web"));
    bed.want(&[&old]);
    bed.until_runs("old").await;
    let busy = RuntimeError::Local("device or resource busy".to_owned());
    bed.fake.refuse_next("delete_pod", usize::MAX, busy);
    bed.want(&[&new]);
    bed.until_runs("new").await;
    // pods 43
    bed.fake.assert_killed_pods(&["old"]);
    bed.fake.assert_call_counts("release_volumes", 1);
    assert!(!bed.fake.pod(&"old".into()).is_empty());
    // Wanted again, it waits for the other one to stop.
    bed.want(&[&old]);
    bed.until_runs("old").await;
    bed.fake.assert_killed_pods(&["old", "new"]);
    bed.fake.end_faults();
    bed.until_gone("new").await;
    bed.until_view("new", |view| view.is_none()).await;
    assert!(runs(&bed.fake, "old"));
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn what_nobody_wants_is_left_alone_until_all_sources_have_delivered() {
    let fake = FakeRuntime::new();
    left_behind(&fake, &named("old", "web"));
    left_behind(&fake, &pod("kept"));
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    let new = named("new", "web");
    bed.tell(&[&new, &pod("kept")], Delivered::default());
    tokio::time::sleep(SWEEP * 3).await;
    assert!(runs(&bed.fake, "old"));
    assert!(!runs(&bed.fake, "new"), "its name is taken");
    bed.fake.assert_call_counts("kill_pod", 0);
    bed.fake.assert_call_counts("sync_pod", 0);
    bed.want(&[&new, &pod("kept")]);
    bed.until_runs("new").await;
    bed.until_gone("old").await;
    bed.fake.assert_killed_pods(&["old"]);
    bed.fake.assert_started_pods(&["new"]);
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_spared_is_left_alone_until_it_is_not() {
    let fake = FakeRuntime::new();
    for name in ["old", "other"] {
        left_behind(&fake, &named(name, name));
    }
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.spare(&[], "old");
    bed.until_gone("other").await;
    tokio::time::sleep(SWEEP * 3).await;
    // workloads 7
    assert!(runs(&bed.fake, "old"));
    let new = named("new", "old");
    bed.want(&[&new]);
    bed.until_runs("new").await;
    bed.until_gone("old").await;
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn an_unwanted_pod_that_goes_by_itself_gives_its_name_back() {
    let fake = FakeRuntime::new();
    left_behind(&fake, &named("old", "web"));
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.tell(&[&named("new", "web")], Delivered::default());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(!runs(&bed.fake, "new"));
    // Somebody removes it by hand.
    bed.fake.adopt(PodStatus::empty("old".into()));
    bed.fake.send(&PodEvent::Changed {
        uid: "old".into(),
        what: PodEventKind::ContainerRemoved,
    });
    bed.until_runs("new").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_already_is_not_started_again() {
    let fake = FakeRuntime::new();
    left_behind(&fake, &pod("a"));
    let clock = fake.clone();
    let bed = Bed::with(fake, Clock::new(move || clock.now()));
    bed.want(&[&pod("a")]);
    let phase = |view: &PodView| view.status.as_ref()?.phase.clone();
    let is_running = |v: Option<&PodView>| v.and_then(phase).as_deref() == Some("Running");
    bed.until_view("a", is_running).await;
    tokio::time::sleep(SWEEP * 2).await;
    bed.fake.assert_call_counts("sync_pod", 0);
    bed.fake.assert_call_counts("kill_pod", 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_round_is_tried_again_after_ten_to_fifteen_seconds() {
    let bed = Bed::start();
    let error = SyncError::new(SyncErrorReason::CreateContainerError, "no");
    bed.fake.fail_next_starts("app", 2, error);
    bed.want(&[&pod("a")]);
    let mut last = None;
    for round in 1..=3 {
        bed.until("a round", |fake| fake.call_count("sync_pod") >= round)
            .await;
        let now = Instant::now();
        if let Some(last) = last {
            let pause = now - last;
            let expected = Duration::from_secs(10)..=Duration::from_secs(15);
            // pods 48
            assert!(round == 2 || expected.contains(&pause), "{pause:?}");
        }
        last = Some(now);
    }
    bed.until_runs("a").await;
    bed.fake.assert_call_counts("sync_pod", 3);
}

#[tokio::test(start_paused = true)]
async fn what_says_nothing_about_a_pod_is_no_reason_of_its_containers() {
    let bed = Bed::start();
    let refused = SyncError::new(SyncErrorReason::RunContainerError, "no");
    for (error, reason) in [
        (refused.clone(), "RunContainerError"),
        (refused.passing(), "ContainerCreating"),
    ] {
        bed.fake.fail_next_starts("app", 1, error);
        bed.want(&[&pod("a")]);
        let waits = |view: &PodView| {
            let status = view.status.as_ref()?.container_statuses.as_ref()?.first()?;
            let waiting = status.state.as_ref()?.waiting.as_ref()?;
            let is_it = waiting.message.as_deref() == Some("no");
            waiting.reason.clone().filter(|_| is_it)
        };
        // rollouts M7
        bed.until_view("a", |view| view.and_then(waits).as_deref() == Some(reason))
            .await;
        bed.want(&[]);
        bed.until_gone("a").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_runtime_that_is_away() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    let gone = RuntimeError::Unavailable("gone".to_owned());
    bed.fake.refuse_next("kill_pod", 2, gone);
    bed.want(&[]);
    bed.until("two attempts", |fake| fake.call_count("kill_pod") == 2)
        .await;
    assert!(runs(&bed.fake, "a"));
    // As long as its worker has it, its mirror stays.
    // pods 33
    bed.until_view("a", |v| v.is_some_and(|v| v.phase == Phase::Terminating))
        .await;
    bed.until_gone("a").await;
    bed.until_view("a", |v| v.is_none()).await;
    bed.fake.assert_killed_pods(&["a"]);
}

#[tokio::test(start_paused = true)]
async fn the_runtimes_return_ends_the_pause_after_its_absence() {
    let bed = Bed::start();
    let gone = RuntimeError::Unavailable("gone".to_owned());
    bed.fake.refuse_next("sync_pod", 1, gone);
    bed.want(&[&pod("a")]);
    bed.until("a round", |fake| fake.call_count("sync_pod") == 1)
        .await;
    bed.until_view("a", |v| v.is_some_and(|v| !v.error.is_empty()))
        .await;
    let lost = Instant::now();
    bed.fake.break_watches();
    bed.until_runs("a").await;
    // pods 48
    assert!(
        lost.elapsed() < Duration::from_secs(1),
        "{:?}",
        lost.elapsed()
    );
}

/// On paused time a worker that doesn't wait would keep the time from passing.
#[tokio::test(start_paused = true)]
async fn a_status_that_is_unknown_after_the_runtimes_return_is_waited_for() {
    let bed = Bed::start();
    let gone = RuntimeError::Unavailable("gone".to_owned());
    bed.fake.refuse_next("sync_pod", 1, gone);
    let refused = RuntimeError::Refused {
        status: 500,
        message: "no".to_owned(),
    };
    bed.want(&[&pod("a")]);
    bed.until("a round", |fake| fake.call_count("sync_pod") == 1)
        .await;
    bed.fake.refuse_next("get_pod_status", 5, refused);
    bed.fake.break_watches();
    bed.until_runs("a").await;
}

#[tokio::test(start_paused = true)]
async fn a_crashing_container_is_held_back_longer_and_longer() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    let mut delays = Vec::new();
    for crash in 0..5 {
        bed.until("it runs", |fake| {
            fake.started_containers().len() == crash + 1 && runs(fake, "a")
        })
        .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        bed.fake.exit_container(&"a".into(), "app", 1);
        let died = Instant::now();
        bed.until("it runs again", |fake| runs(fake, "a")).await;
        delays.push(died.elapsed().as_secs());
    }
    assert_eq!(delays, [0, 10, 20, 40, 80]);
    let deaths = "mirrorlet_container_deaths_total 5";
    assert!(bed.telemetry.metrics.encode().lines().any(|l| l == deaths));
}

/// As of a container with `shareProcessNamespace` whose command is `kill 1`.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_again_and_again_is_replaced_less_and_less_often() {
    let bed = Bed::start();
    let a = pod("a");
    bed.want(&[&a]);
    let began = Instant::now();
    let mut sandboxes = 0;
    while began.elapsed() < Duration::from_mins(2) {
        sandboxes += 1;
        bed.until_runs("a").await;
        bed.fake.lose_sandbox(&"a".into());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // At 0, 0, 10, 30, 70 and 150 s.
    // pods 57a
    assert_eq!(sandboxes, 6);
    bed.until_view("a", |view| {
        let waits = |view: &PodView| {
            let status = view.status.as_ref()?.container_statuses.as_ref()?.first()?;
            status.state.as_ref()?.waiting.as_ref()?.reason.clone()
        };
        view.and_then(waits).as_deref() == Some("CrashLoopBackOff")
    })
    .await;
    // A user's order doesn't wait.
    let ordered = json!({"metadata": {"annotations": {keys::RESTART: "all"}}});
    let began = Instant::now();
    bed.want(&[&changed(&a, ordered)]);
    bed.until_runs("a").await;
    assert!(began.elapsed() < Duration::from_secs(1));
    bed.fake.assert_no_violations();
}

/// Sandboxes that can't be made wait for their own pause alone.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_could_not_be_replaced_is_not_one_that_died() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    let refused = RuntimeError::Local("no network".to_owned());
    bed.fake.refuse_next("step", 20, refused);
    bed.fake.restart();
    let died = Instant::now();
    bed.until_runs("a").await;
    let took = died.elapsed().as_secs();
    // pods 57a
    assert!((190..=310).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_pods_start_and_not_from_its_sandboxs() {
    let mut bed = Bed::start();
    let mut a = Pod::clone(&pod("a"));
    a.spec.as_mut().unwrap().active_deadline_seconds = Some(100);
    let a = Arc::new(a);
    bed.want(&[&a]);
    bed.until_runs("a").await;
    let began = Instant::now();
    tokio::time::sleep(Duration::from_mins(1)).await;
    // The sandbox is replaced, and what is left of the old one is removed by hand.
    bed.fake.lose_sandbox(&"a".into());
    bed.until("it runs anew", |fake| {
        fake.started_containers().len() == 2 && runs(fake, "a")
    })
    .await;
    let mut seen = bed.fake.pod(&"a".into());
    seen.sandboxes.truncate(1);
    seen.containers.truncate(1);
    bed.fake.adopt(seen);
    bed.until("it is stopped", |fake| {
        !fake.pod(&"a".into()).anything_running()
    })
    .await;
    let lived = began.elapsed().as_secs();
    // agent 3
    assert!((99..=101).contains(&lived), "{lived}");
    // The next agent has nothing but that sandbox, which keeps when its pod was started.
    bed.cancel.cancel();
    while bed.parts.join_next().await.is_some() {}
    let next = Bed::on(bed.fake.clone());
    next.want(&[&a]);
    next.until_view("a", |view| {
        view.and_then(|v| v.status.as_ref()?.phase.as_deref()) == Some("Failed")
    })
    .await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(next.fake.started_containers().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_done_gives_back_its_volumes_and_has_new_ones_when_it_runs_again() {
    let bed = Bed::start();
    let policy = |policy: &str, image: &str| {
        let mut pod = Pod::clone(&pod("a"));
        let spec = pod.spec.as_mut().unwrap();
        spec.restart_policy = Some(policy.to_owned());
        spec.containers[0].image = Some(image.to_owned());
        Arc::new(pod)
    };
    bed.want(&[&policy("OnFailure", "app:1")]);
    bed.until_runs("a").await;
    bed.fake.assert_call_counts("release_volumes", 0);
    let refused = RuntimeError::Local("still mounted".to_owned());
    bed.fake.refuse_next("release_volumes", 1, refused);
    bed.fake.exit_container(&"a".into(), "app", 0);
    let released = |count| move |fake: &FakeRuntime| fake.call_count("release_volumes") == count;
    // A failed sync is tried again.
    bed.until("its volumes are released", released(2)).await;
    // docker 44
    assert!(!bed.fake.pod(&"a".into()).containers.is_empty());
    tokio::time::sleep(SWEEP * 2).await;
    bed.fake.assert_call_counts("release_volumes", 2);
    // The manifest is edited in place: it runs again, and is done again.
    bed.want(&[&policy("Always", "app:2")]);
    bed.until_runs("a").await;
    bed.want(&[&policy("OnFailure", "app:2")]);
    bed.fake.exit_container(&"a".into(), "app", 0);
    bed.until("its volumes are released again", released(3))
        .await;
    bed.fake.assert_no_violations();
}

/// `docker container prune` removes the dead containers of such a pod.
#[tokio::test(start_paused = true)]
async fn a_pod_that_has_done_its_work_does_it_again_only_for_a_person() {
    for (policy, code, phase) in [("OnFailure", 0, "Succeeded"), ("Never", 1, "Failed")] {
        let bed = Bed::start();
        let a = changed(&pod("a"), json!({"spec": {"restartPolicy": policy}}));
        let is_over = |view: Option<&PodView>| view.is_some_and(|v| phase_of(v) == Some(phase));
        let done =
            |count: usize| move |fake: &FakeRuntime| fake.call_count("release_volumes") == count;
        bed.want(&[&a]);
        bed.until_runs("a").await;
        bed.fake.exit_container(&"a".into(), "app", code);
        bed.until("it is done", done(1)).await;
        bed.until_view("a", is_over).await;
        bed.fake.delete_pod(&"a".into()).await.unwrap();
        tokio::time::sleep(SWEEP * 2).await;
        // pods 46a
        assert_eq!(bed.fake.started_containers().len(), 1, "{policy}");
        bed.until_view("a", is_over).await;
        let view = bed.board.get(&"a".into()).unwrap();
        let told = view.status.as_ref().unwrap().container_statuses.as_ref();
        assert!(
            told.unwrap()[0]
                .state
                .as_ref()
                .unwrap()
                .terminated
                .is_some()
        );
        // What a rollout writes beside it is no edit.
        let a = changed(
            &a,
            json!({"metadata": {"annotations": {"mirrorlet.dev/held-reason": "x"}}}),
        );
        bed.want(&[&a]);
        tokio::time::sleep(SWEEP).await;
        assert_eq!(bed.fake.started_containers().len(), 1, "{policy}");
        // A user's order, and an edit in place.
        let ordered = changed(
            &a,
            json!({"metadata": {"annotations": {keys::RESTART: "all"}}}),
        );
        bed.want(&[&ordered]);
        bed.until_runs("a").await;
        bed.fake.exit_container(&"a".into(), "app", code);
        bed.until("it is done again", done(2)).await;
        bed.fake.delete_pod(&"a".into()).await.unwrap();
        tokio::time::sleep(SWEEP * 2).await;
        assert_eq!(bed.fake.started_containers().len(), 2, "{policy}");
        let edit = json!({"spec": {"containers": [{"name": "app", "image": "app:2"}]}});
        bed.want(&[&changed(&ordered, edit)]);
        bed.until_runs("a").await;
        bed.fake.assert_no_violations();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_nobodys_pod_is_removed_and_tried_again_less_and_less_often() {
    let bed = Bed::start();
    for uid in ["left", "stuck"] {
        bed.fake.leave_orphan(&uid.into());
    }
    bed.tell(&[&pod("a")], Delivered::MANIFESTS);
    bed.until_runs("a").await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    bed.fake.assert_call_counts("delete_pod", 0);
    let refused = RuntimeError::Local("still mounted".to_owned());
    bed.fake.refuse_next("delete_pod", 4, refused);
    bed.want(&[&pod("a")]);
    let began = Instant::now();
    let tried = |count| move |fake: &FakeRuntime| fake.call_count("delete_pod") == count;
    // docker 44
    bed.until("both are tried", tried(2)).await;
    bed.until("both are tried again", tried(4)).await;
    assert_eq!(began.elapsed().as_secs() / 60, 2);
    bed.until("both are removed", tried(6)).await;
    assert_eq!(began.elapsed().as_secs() / 60, 6);
    // Each time the runtime was asked what runs, and is not asked while there is nothing to remove.
    let asked = bed.fake.call_count("get_pods");
    tokio::time::sleep(SWEEP / 2).await;
    bed.fake.assert_call_counts("delete_pod", 6);
    assert!(bed.fake.call_count("get_pods") <= asked + 1);
    assert!(runs(&bed.fake, "a"));
}

#[tokio::test(start_paused = true)]
async fn a_directory_stays_while_its_pod_runs_or_nobody_can_tell() {
    let bed = Bed::start();
    bed.fake.leave_orphan(&"x".into());
    let running = mirrorlet_core::observed::RunningPod {
        uid: "x".into(),
        ..Default::default()
    };
    bed.fake
        .set_pod_list(mirrorlet_core::observed::Pods(vec![running]));
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    tokio::time::sleep(Duration::from_mins(3)).await;
    // docker 44
    bed.fake.assert_call_counts("delete_pod", 0);
    bed.fake
        .set_pod_list(mirrorlet_core::observed::Pods::default());
    bed.until("it is removed", |fake| fake.call_count("delete_pod") == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_panics_is_replaced() {
    let fake = FakeRuntime::new();
    let (clock, armed) = (fake.clone(), Arc::new(AtomicBool::new(false)));
    let trap = Arc::clone(&armed);
    let bed = Bed::with(
        fake,
        Clock::new(move || {
            assert!(!trap.swap(false, Ordering::Relaxed), "on purpose");
            clock.now()
        }),
    );
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    armed.store(true, Ordering::Relaxed);
    bed.fake.exit_container(&"a".into(), "app", 1);
    bed.until("it runs again", |fake| runs(fake, "a")).await;
    assert!(!armed.load(Ordering::Relaxed));
    // Told to stop, it panics again: what is left is found and stopped.
    armed.store(true, Ordering::Relaxed);
    bed.want(&[]);
    bed.until_gone("a").await;
    bed.fake.assert_no_violations();
}

/// As of a defect that each stop of the pod meets.
#[tokio::test(start_paused = true)]
async fn an_unwanted_pod_whose_workers_panic_gets_the_next_one_later_each_time() {
    const PANICS: u32 = 5;
    let fake = FakeRuntime::new();
    let (clock, left) = (fake.clone(), Arc::new(AtomicU32::new(0)));
    let trap = Arc::clone(&left);
    let bed = Bed::with(
        fake,
        Clock::new(move || {
            let (order, less) = (Ordering::Relaxed, |left: u32| left.checked_sub(1));
            assert!(trap.fetch_update(order, order, less).is_err(), "on purpose");
            clock.now()
        }),
    );
    let a = pod("a");
    // The workers that only have to stop it tell its status, too.
    bed.knows(&a);
    bed.want(&[&a]);
    bed.until_runs("a").await;
    left.store(PANICS, Ordering::Relaxed);
    let began = Instant::now();
    bed.want(&[]);
    bed.until_gone("a").await;
    assert_eq!(left.load(Ordering::Relaxed), 0);
    let pauses = Duration::from_secs(1 + 2 + 4 + 8 + 16);
    // pods 48a
    assert!(began.elapsed() >= pauses, "{:?}", began.elapsed());
    bed.fake.assert_no_violations();
}

/// Workers that panic while the first of these is set; the second counts them.
fn bed_with_panics() -> (Bed, Arc<AtomicBool>, Arc<AtomicU32>) {
    let fake = FakeRuntime::new();
    let (clock, panics) = (fake.clone(), Arc::new(AtomicU32::new(0)));
    let (trap, armed) = (Arc::clone(&panics), Arc::new(AtomicBool::new(false)));
    let is_armed = Arc::clone(&armed);
    let bed = Bed::with(
        fake,
        Clock::new(move || {
            if is_armed.load(Ordering::Relaxed) {
                trap.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose");
            }
            clock.now()
        }),
    );
    (bed, armed, panics)
}

/// The API server returns each status that it is sent, as a new version of the pod.
#[tokio::test(start_paused = true)]
async fn a_changed_status_does_not_end_the_pause_after_a_panic() {
    const A: &str = "aaaa0000-0000-4000-8000-000000000001";
    let (bed, armed, panics) = bed_with_panics();
    let a = bed::api(A, json!({}));
    bed.want(&[&a]);
    bed.until_runs(A).await;
    armed.store(true, Ordering::Relaxed);
    bed.fake.exit_container(&A.into(), "app", 1);
    // After 1, 2, 4 … 128 seconds; the next pause takes 256.
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(panics.load(Ordering::Relaxed), 9);
    for n in 0..9 {
        let status = json!({"status": {"message": n.to_string()}});
        bed.want(&[&changed(&a, status)]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // pods 48a
    assert_eq!(panics.load(Ordering::Relaxed), 9);
    armed.store(false, Ordering::Relaxed);
    let ordered = Instant::now();
    bed.want(&[]);
    bed.until_gone(A).await;
    // pods 48a
    assert!(
        ordered.elapsed() < Duration::from_mins(1),
        "{:?}",
        ordered.elapsed()
    );
}

/// A pod that has to go doesn't wait for the next worker of a pod that stays.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_pause_after_a_panic() {
    let (bed, armed, panics) = bed_with_panics();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    armed.store(true, Ordering::Relaxed);
    bed.fake.exit_container(&"a".into(), "app", 1);
    // After 1, 2, 4 … 128 seconds; the next pause takes 256.
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(panics.load(Ordering::Relaxed), 9);
    armed.store(false, Ordering::Relaxed);
    let ordered = Instant::now();
    bed.want(&[]);
    bed.until_gone("a").await;
    // pods 48a
    assert!(
        ordered.elapsed() < Duration::from_mins(1),
        "{:?}",
        ordered.elapsed()
    );
    bed.fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn pods_outlive_the_agent() {
    let mut bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    bed.cancel.cancel();
    while bed.parts.join_next().await.is_some() {}
    assert!(runs(&bed.fake, "a"));
    bed.fake.assert_call_counts("kill_pod", 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_of_a_pod_before_a_look_at_it_has_succeeded() {
    let (fake, pod) = (FakeRuntime::new(), pod("a"));
    left_behind(&fake, &pod);
    let refused = || RuntimeError::Refused {
        status: 500,
        message: "no".to_owned(),
    };
    fake.refuse_next("get_pod_status", 5, refused());
    let bed = Bed::on(fake);
    bed.want(&[&pod]);
    bed.until_view("a", |view| view.is_some_and(|view| !view.error.is_empty()))
        .await;
    let view = bed.board.get(&"a".into()).unwrap();
    assert_eq!(view.status, None, "it is not known whether it runs");
    bed.until_view("a", |view| {
        view.is_some_and(|view| phase_of(view) == Some("Running"))
    })
    .await;
    bed.fake.assert_started_pods(&[]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_fails_is_tried_again() {
    let bed = Bed::start();
    bed.want(&[&pod("a")]);
    bed.until_runs("a").await;
    let refused = || RuntimeError::Refused {
        status: 500,
        message: "no".to_owned(),
    };
    bed.fake.refuse_next("kill_pod", 3, refused());
    bed.fake.refuse_next("delete_pod", 2, refused());
    bed.want(&[]);
    bed.until_gone("a").await;
    bed.fake.assert_call_counts("kill_pod", 4);
    bed.fake.assert_call_counts("delete_pod", 3);
    bed.until_view("a", |v| v.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_pod_follows_the_addresses_of_the_node() {
    let mut bed = Bed::start();
    let a = pod("a");
    bed.want(&[&a]);
    bed.until_runs("a").await;
    let began = Instant::now();
    for address in [[10, 0, 0, 1], [10, 0, 0, 2]] {
        bed.has_address(address.into());
        let host_ip = IpAddr::from(address).to_string();
        let is_shown = |view: Option<&PodView>| {
            let status = view.and_then(|view| view.status.as_deref());
            status.and_then(|status| status.host_ip.as_deref()) == Some(&*host_ip)
        };
        bed.until_view("a", is_shown).await;
    }
    // node 6m
    assert!(began.elapsed() < SWEEP, "nothing else woke it");
}

#[test]
fn the_board_lists_by_name() {
    let (writer, board) = board();
    for (uid, name) in [("2", "b"), ("1", "a")] {
        writer.publish(PodView {
            uid: uid.into(),
            full_name: FullName::new(name, "ns"),
            pod: None,
            phase: Phase::Syncing,
            status: None,
            observed: Arc::new(PodStatus::empty(uid.into())),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }
    let names: BTreeMap<usize, String> = board
        .all()
        .iter()
        .map(|v| v.full_name.to_string())
        .enumerate()
        .collect();
    assert_eq!(names.into_values().collect::<Vec<_>>(), ["a_ns", "b_ns"]);
}
