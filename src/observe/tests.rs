//! The observer on the runtime in memory, on paused time.

use super::*;
use crate::store::cache::{CacheReader, Entry, cache};
use crate::store::looks::{LookRequests, look_requests};
use mirrorlet_core::api::{Pod, Timestamp};
use mirrorlet_core::observed::{
    ContainerState, ContainerStatus, Role, UserAction, UserActionRecord,
};
use mirrorlet_testing::fake_runtime::FakeRuntime;
use tokio_util::sync::CancellationToken;

const SWEEP: Duration = Duration::from_mins(5);

struct Bed {
    fake: FakeRuntime,
    cache: CacheReader,
    looks: LookRequests,
    reach: watch::Receiver<RuntimeReach>,
    listed: watch::Receiver<Option<Arc<Pods>>>,
    telemetry: Telemetry,
    cancel: CancellationToken,
}

impl Bed {
    fn start() -> Self {
        let fake = FakeRuntime::new();
        let (writer, reader) = cache();
        let (looks, requests) = look_requests();
        let telemetry = Telemetry::new();
        let runtime: Arc<dyn Runtime> = Arc::new(fake.clone());
        let (observer, reach, listed) =
            Observer::new(runtime, writer, requests, SWEEP, telemetry.clone());
        let cancel = CancellationToken::new();
        tokio::spawn(cancel.clone().run_until_cancelled_owned(observer.run()));
        Self {
            fake,
            cache: reader,
            looks,
            reach,
            listed,
            telemetry,
            cancel,
        }
    }

    /// Waits until the cache shows that of a pod.
    async fn sees(&self, uid: &PodUid, holds: impl Fn(&Entry) -> bool) -> Entry {
        let mut entry = self.cache.subscribe(uid);
        let waits = async { entry.wait_for(|e| holds(e)).await.unwrap().clone() };
        tokio::time::timeout(SWEEP * 3, waits)
            .await
            .expect("it is never seen")
    }

    /// Whether the runtime is soon reached, or not, as that says.
    async fn is_soon(&mut self, holds: fn(&RuntimeReach) -> bool) -> bool {
        let waits = self.reach.wait_for(holds);
        let found = tokio::time::timeout(DOUBT_DEADLINE + Duration::from_secs(1), waits).await;
        found.is_ok_and(|found| found.is_ok())
    }

    fn series(&self, line: &str) -> bool {
        self.telemetry.metrics.encode().lines().any(|l| l == line)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// A pod with one running container.
fn running(fake: &FakeRuntime, uid: &str) -> PodUid {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": uid, "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "app", "image": "app:1"}]},
    }))
    .unwrap();
    let now: Timestamp = fake.now();
    let id = |what: &str| mirrorlet_core::api::ContainerId::docker(format!("{what}-{uid}"));
    fake.adopt(PodStatus {
        uid: uid.into(),
        full_name: FullName::of(&pod),
        ips: Vec::new(),
        containers: vec![ContainerStatus {
            by_hand: None,
            id: id("app"),
            name: "app".into(),
            role: Role::App,
            state: ContainerState::Running,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            exit_code: None,
            image: "app:1".into(),
            image_id: "".into(),
            hash: mirrorlet_core::spec::container_hash(&pod.spec.as_ref().unwrap().containers[0]),
            restart_count: 0,
            pod_restarts: 0,
            reason: "".into(),
            message: "".into(),
        }],
        sandboxes: vec![mirrorlet_core::observed::SandboxStatus {
            by_hand: None,
            id: id("pause"),
            attempt: 0,
            state: ContainerState::Running,
            created_at: now,
            pod_started_at: None,
            host_network: true,
            ips: Vec::new(),
        }],
    });
    uid.into()
}

fn is_up(reach: &RuntimeReach) -> bool {
    *reach == RuntimeReach::Up
}

fn is_down(reach: &RuntimeReach) -> bool {
    matches!(reach, RuntimeReach::Down(_))
}

fn runs(entry: &Entry) -> bool {
    entry.status.running_containers().next().is_some()
}

fn ended(entry: &Entry) -> bool {
    !entry.status.is_empty() && !runs(entry)
}

#[tokio::test(start_paused = true)]
async fn it_begins_with_a_list_and_a_gap_asks_for_another() {
    let mut bed = Bed::start();
    bed.listed.wait_for(Option::is_some).await.unwrap();
    assert_eq!(*bed.reach.borrow_and_update(), RuntimeReach::Up);
    assert!(bed.series("mirrorlet_event_stream_up 1"));
    bed.fake.assert_call_counts("get_pods", 1);
    let a = running(&bed.fake, "a");
    bed.fake.send(&PodEvent::Gap {
        cause: "test".to_owned(),
    });
    bed.sees(&a, runs).await;
    bed.fake.assert_call_counts("get_pods", 2);
    assert!(bed.series("mirrorlet_event_gaps_total 2"));
}

#[tokio::test(start_paused = true)]
async fn an_event_has_its_pod_looked_at_and_deaths_are_told_once() {
    let bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    bed.fake.exit_container(&a, "app", 3);
    bed.sees(&a, ended).await;
    assert!(bed.series("mirrorlet_container_deaths_total 1"));
    bed.fake.assert_call_counts("get_pods", 1);
    bed.looks.look(&a).await;
    tokio::time::sleep(SWEEP * 2).await;
    // pods 55
    assert!(bed.series("mirrorlet_container_deaths_total 1"));
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_keeps_silent_is_away_until_it_gives_a_word() {
    let mut bed = Bed::start();
    bed.listed.wait_for(Option::is_some).await.unwrap();
    let silence = bed.fake.block("status", None);
    bed.looks.doubt();
    let away = |reach: &RuntimeReach| matches!(reach, RuntimeReach::Down(cause) if cause.contains("has not answered"));
    bed.reach.wait_for(away).await.unwrap();
    assert!(bed.series("mirrorlet_engine_up 0"));
    silence.release();
    bed.reach
        .wait_for(|reach| *reach == RuntimeReach::Up)
        .await
        .unwrap();
    assert!(bed.series("mirrorlet_engine_up 1"));
    bed.fake.assert_call_counts("get_pods", 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_event_is_made_up_for_by_the_sweep() {
    let bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    bed.fake.lose_events(1);
    bed.fake.exit_container(&a, "app", 0);
    tokio::time::sleep(SWEEP / 2).await;
    assert!(runs(&bed.cache.get(&a)), "nobody told");
    bed.sees(&a, ended).await;
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_holds_back_only_its_own_pod() {
    let bed = Bed::start();
    let (a, b) = (running(&bed.fake, "a"), running(&bed.fake, "b"));
    bed.sees(&a, runs).await;
    bed.sees(&b, runs).await;
    let mut hold = bed.fake.block("get_pod_status", Some(&a));
    bed.fake.exit_container(&a, "app", 1);
    hold.arrived(1).await;
    bed.fake.exit_container(&b, "app", 1);
    bed.sees(&b, ended).await;
    assert!(runs(&bed.cache.get(&a)));
    // A second event while the look hangs is looked into after it.
    bed.fake.lose_sandbox(&a);
    hold.release();
    bed.sees(&a, |e| !e.status.anything_running()).await;
}

#[tokio::test(start_paused = true)]
async fn looks_that_hang_hold_back_no_other_pod_however_many_they_are() {
    let bed = Bed::start();
    let names = (0..LOOKS_MAX + 4).map(|n| format!("h{n}"));
    let hung: Vec<PodUid> = names.map(|name| running(&bed.fake, &name)).collect();
    let other = running(&bed.fake, "other");
    for uid in hung.iter().chain([&other]) {
        bed.sees(uid, runs).await;
    }
    let mut holds = Vec::new();
    for uid in &hung {
        holds.push(bed.fake.block("get_pod_status", Some(uid)));
        bed.fake.exit_container(uid, "app", 1);
    }
    bed.fake.exit_container(&other, "app", 1);
    bed.sees(&other, ended).await;
    // docker 60
    assert!(hung.iter().all(|uid| runs(&bed.cache.get(uid))));
    drop(holds);
    for uid in &hung {
        bed.sees(uid, ended).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_look_keeps_what_was_seen_and_is_taken_again() {
    let bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    let error = RuntimeError::Local("no".to_owned());
    bed.fake.refuse_next("get_pod_status", 1, error.clone());
    bed.looks.look(&a).await;
    let failed = bed.sees(&a, |e| e.error.is_some()).await;
    // pods 55
    assert!(runs(&failed));
    bed.sees(&a, |e| e.error.is_none()).await;
    bed.fake.assert_call_counts("get_pods", 1);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_goes_and_comes_back_is_listed_anew() {
    let mut bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    bed.reach.mark_unchanged();
    bed.fake
        .set_err(Some(RuntimeError::Unavailable("gone".to_owned())));
    bed.fake.break_watches();
    bed.reach
        .wait_for(|reach| matches!(reach, RuntimeReach::Down(cause) if cause.contains("gone")))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(bed.series("mirrorlet_engine_up 0"));
    assert!(bed.series("mirrorlet_event_stream_up 0"));
    // pods 55
    assert!(runs(&bed.cache.get(&a)), "what was seen stays");
    // It ended while nobody listened.
    bed.fake.exit_container(&a, "app", 255);
    bed.fake.set_err(None);
    bed.sees(&a, ended).await;
    bed.reach
        .wait_for(|reach| *reach == RuntimeReach::Up)
        .await
        .unwrap();
    assert!(bed.series("mirrorlet_engine_up 1"));
}

#[tokio::test(start_paused = true)]
async fn streams_that_end_soon_are_opened_with_pauses_and_are_no_loss() {
    let mut bed = Bed::start();
    let up = |reach: &RuntimeReach| *reach == RuntimeReach::Up;
    bed.reach.wait_for(up).await.unwrap();
    let ends = async {
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            bed.fake.break_watches();
        }
    };
    let minute = tokio::time::timeout(Duration::from_mins(1), ends).await;
    assert!(minute.is_err());
    let lists = bed.fake.call_count("get_pods");
    // docker 61
    assert!((20..=60).contains(&lists), "{lists} lists in a minute");
    // docker 61
    assert!(
        !bed.reach.has_changed().unwrap(),
        "{:?}",
        *bed.reach.borrow()
    );
    assert!(bed.series("mirrorlet_engine_up 1"));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_after_a_quiet_minute_is_a_gap() {
    let mut bed = Bed::start();
    let up = |reach: &RuntimeReach| *reach == RuntimeReach::Up;
    bed.reach.wait_for(up).await.unwrap();
    for minute in 1..=5 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        bed.fake.break_watches();
        // The first pause, each time.
        tokio::time::sleep(Duration::from_millis(150)).await;
        // docker 61
        bed.fake.assert_call_counts("get_pods", 1 + minute);
        assert!(bed.series("mirrorlet_event_stream_up 1"));
    }
    // docker 61
    assert!(
        !bed.reach.has_changed().unwrap(),
        "{:?}",
        *bed.reach.borrow()
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_silent_after_the_end_of_its_events_is_away() {
    let mut bed = Bed::start();
    bed.listed.wait_for(Option::is_some).await.unwrap();
    let silence = bed.fake.block("status", None);
    bed.fake.break_watches();
    let away = |reach: &RuntimeReach| matches!(reach, RuntimeReach::Down(_));
    let told = tokio::time::timeout(Duration::from_secs(3), bed.reach.wait_for(away));
    // docker 61
    assert!(told.await.is_ok_and(|told| told.is_ok()));
    silence.release();
    let up = |reach: &RuntimeReach| *reach == RuntimeReach::Up;
    bed.reach.wait_for(up).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_answers_and_shows_no_events_is_away() {
    let mut bed = Bed::start();
    bed.listed.wait_for(Option::is_some).await.unwrap();
    let silence = bed.fake.block("watch", None);
    bed.fake.break_watches();
    // docker 61
    assert!(bed.is_soon(is_down).await);
    silence.release();
    assert!(bed.is_soon(is_up).await);
}

#[tokio::test(start_paused = true)]
async fn a_busy_runtime_that_shows_its_events_is_there_as_long_as_it_answers() {
    let mut bed = Bed::start();
    bed.listed.wait_for(Option::is_some).await.unwrap();
    let busy = bed.fake.block("learn_facts", None);
    bed.fake.break_watches();
    // docker 61
    assert!(!bed.is_soon(is_down).await);
    busy.release();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.fake.assert_call_counts("get_pods", 2);
    let _busy = bed.fake.block("learn_facts", None);
    bed.fake.break_watches();
    // It has answered after the end of its events, and does so no more.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let _silence = bed.fake.block("status", None);
    let away = tokio::time::timeout(DOUBT_DEADLINE * 3, bed.reach.wait_for(is_down));
    // docker 61
    assert!(away.await.is_ok_and(|away| away.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn pods_are_looked_at_while_a_busy_runtime_says_its_facts() {
    let mut bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    let mut busy = bed.fake.block("learn_facts", None);
    bed.fake.break_watches();
    busy.arrived(1).await;
    bed.fake.exit_container(&a, "app", 1);
    let second = Duration::from_secs(1);
    let seen = tokio::time::timeout(second, bed.sees(&a, ended)).await;
    // docker 61
    assert!(seen.is_ok());
    // A runtime that can't say them is away, and is asked again.
    let error = RuntimeError::Unavailable("gone".to_owned());
    bed.fake.refuse_next("learn_facts", 1, error);
    busy.release();
    // docker 61
    assert!(bed.is_soon(is_down).await);
    assert!(bed.is_soon(is_up).await);
}

#[tokio::test(start_paused = true)]
async fn a_restart_is_seen_however_soon_the_runtime_answers() {
    let restarts: [fn(&FakeRuntime); 2] = [FakeRuntime::restart, |fake| {
        fake.set_version("2");
        fake.break_watches();
    }];
    for (case, restart) in restarts.into_iter().enumerate() {
        let mut bed = Bed::start();
        let a = running(&bed.fake, "a");
        bed.sees(&a, runs).await;
        // Between its loss and its return it is asked for its version.
        bed.fake.set_latency(Duration::from_millis(10));
        restart(&bed.fake);
        // docker 61
        assert!(bed.is_soon(is_down).await, "{case}");
        assert!(bed.is_soon(is_up).await, "{case}");
        assert!(bed.series("mirrorlet_engine_up 1"));
        // It is told once.
        bed.fake.break_watches();
        assert!(!bed.is_soon(is_down).await, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_pod_is_no_restart_of_the_runtime() {
    // It ended by itself or by the agent; or by the runtime, which reports that as a user's stop.
    for (by_hand, seconds, is_restart) in [
        (None, 30, false),
        (None, 1, false),
        (Some(UserAction::Stopped), 30, false),
        (Some(UserAction::Stopped), 1, true),
        (Some(UserAction::Signalled), 1, true),
    ] {
        let mut bed = Bed::start();
        let a = running(&bed.fake, "a");
        bed.fake.send(&PodEvent::Gap {
            cause: "test".to_owned(),
        });
        let entry = bed.sees(&a, runs).await;
        let mut status = PodStatus::clone(&entry.status);
        let at = bed.fake.now();
        let by_hand = by_hand.map(|what| UserActionRecord { what, at });
        status.containers[0].state = ContainerState::Exited;
        status.containers[0].by_hand = by_hand;
        status.sandboxes[0].state = ContainerState::Exited;
        status.sandboxes[0].by_hand = by_hand;
        bed.fake.adopt(status);
        bed.looks.look(&a).await;
        bed.sees(&a, ended).await;
        // The last list still has it running.
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        // Between a loss and the return it is asked for its version.
        bed.fake.set_latency(Duration::from_millis(10));
        bed.fake.break_watches();
        // docker 61
        assert_eq!(bed.is_soon(is_down).await, is_restart, "{by_hand:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_ends_beside_its_container_is_no_restart() {
    let mut bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    // Between a loss and the return it would be asked for its version.
    bed.fake.set_latency(Duration::from_millis(10));
    bed.fake.break_watches();
    bed.fake.lose_sandbox(&a);
    // docker 61
    assert!(!bed.is_soon(is_down).await);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_forgotten() {
    let bed = Bed::start();
    let a = running(&bed.fake, "a");
    bed.sees(&a, runs).await;
    bed.fake.adopt(PodStatus::empty(a.clone()));
    bed.looks.look(&a).await;
    bed.sees(&a, |e| e.status.is_empty()).await;
    tokio::time::sleep(SWEEP * 2).await;
    // pods 55
    assert_eq!(bed.cache.all().len(), 0);
}
