//! Tests of the fake.

use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::*;
use mirrorlet_core::api::{FullName, Pod, core, meta};
use mirrorlet_core::backoff::Backoff;
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::plan::{Plan, PlanInput, compute_pod_actions};
use mirrorlet_core::probe::ProbeResults;
use mirrorlet_runtime::{LogOptions, PodSyncResult, Runtime, SyncErrorReason};

fn pod(uid: &str) -> Arc<Pod> {
    let container = |name: &str| core::Container {
        name: name.into(),
        image: Some(format!("{name}:1")),
        ..core::Container::default()
    };
    Arc::new(Pod {
        metadata: meta::ObjectMeta {
            name: Some(format!("pod-{uid}")),
            namespace: Some("ns".into()),
            uid: Some(uid.into()),
            ..meta::ObjectMeta::default()
        },
        spec: Some(core::PodSpec {
            init_containers: Some(vec![container("init")]),
            containers: vec![container("web"), container("log")],
            ..core::PodSpec::default()
        }),
        status: None,
    })
}

fn uid(text: &str) -> PodUid {
    text.into()
}

/// One round as a worker does it.
async fn round(fake: &FakeRuntime, pod: &Arc<Pod>) -> (Plan, PodSyncResult) {
    let uid = PodUid::of(pod);
    let status = fake.get_pod_status(&uid, &FullName::of(pod)).await.unwrap();
    let plan = compute_pod_actions(&PlanInput {
        pod,
        status: &status,
        backoff: &Backoff::default(),
        probes: &ProbeResults::default(),
        gc: ContainerGcPolicy::default(),
        now: fake.now(),
    });
    let result = fake
        .sync_pod(pod, &status, &plan, &CancellationToken::new())
        .await;
    (plan, result)
}

async fn start(fake: &FakeRuntime, pod: &Arc<Pod>) {
    round(fake, pod).await;
    fake.exit_container(&PodUid::of(pod), "init", 0);
    round(fake, pod).await;
    assert!(round(fake, pod).await.0.is_empty());
}

fn refused() -> RuntimeError {
    RuntimeError::Refused {
        status: 500,
        message: "not today".to_owned(),
    }
}

#[tokio::test(start_paused = true)]
async fn plans_bring_a_pod_up_and_kill_pod_takes_it_down() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    start(&fake, &pod).await;
    fake.assert_started_pods(&["a", "a"]);
    fake.assert_started_containers(&["init", "web", "log"]);
    fake.assert_call_counts("sync_pod", 3);
    let seen = fake.pod(&uid("a"));
    assert_eq!(seen.ips.len(), 1);
    assert_eq!(seen.running_containers().count(), 2);

    fake.clear_calls();
    let running = fake
        .get_pods(false)
        .await
        .unwrap()
        .find_pod_by_id(&uid("a"));
    assert!(fake.delete_pod(&uid("a")).await.is_err());
    let result = fake.kill_pod(Some(&pod), &running, None).await;
    assert_eq!(result.error(), None);
    fake.assert_calls(&["get_pods", "delete_pod", "kill_pod"]);
    fake.assert_killed_pods(&["a"]);
    fake.assert_killed_containers(&["log", "web"]);
    assert!(!fake.pod(&uid("a")).anything_running());
    assert_eq!(fake.get_pods(false).await.unwrap(), Pods::default());
    assert_eq!(fake.get_pods(true).await.unwrap().0[0].containers.len(), 3);
    fake.delete_pod(&uid("a")).await.unwrap();
    assert!(fake.pod(&uid("a")).is_empty());
    fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn watchers_get_a_gap_first_and_then_what_happens() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    let mut events = fake.watch().await.unwrap();
    assert!(matches!(events.next().await, Some(PodEvent::Gap { .. })));
    round(&fake, &pod).await;
    let changed = |what| PodEvent::Changed {
        uid: uid("a"),
        what,
    };
    let started = changed(PodEventKind::ContainerStarted);
    assert_eq!(events.next().await, Some(started.clone()));
    assert_eq!(events.next().await, Some(started));
    fake.lose_events(1);
    fake.exit_container(&uid("a"), "init", 0);
    fake.lose_sandbox(&uid("a"));
    assert_eq!(
        events.next().await,
        Some(changed(PodEventKind::ContainerDied))
    );
    fake.break_watches();
    assert_eq!(events.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn a_blocked_pod_does_not_hold_up_another() {
    let fake = FakeRuntime::new();
    let (a, b) = (pod("a"), pod("b"));
    let mut hold = fake.block("sync_pod", Some(&uid("a")));
    let blocked = tokio::spawn({
        let (fake, a) = (fake.clone(), Arc::clone(&a));
        async move { round(&fake, &a).await.1 }
    });
    hold.arrived(1).await;
    round(&fake, &b).await;
    fake.assert_started_pods(&["b"]);
    hold.release();
    assert_eq!(blocked.await.unwrap().error(), None);
    fake.assert_started_pods(&["b", "a"]);
    // It holds nobody any more.
    round(&fake, &a).await;
}

#[tokio::test(start_paused = true)]
async fn scripted_errors() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    fake.refuse_next("sync_pod", 1, refused());
    let (_, result) = round(&fake, &pod).await;
    let error = result.sync_error.unwrap();
    assert_eq!(error.reason, SyncErrorReason::RuntimeUnavailable);
    assert_eq!(round(&fake, &pod).await.1.error(), None);

    fake.set_err(Some(refused()));
    assert_eq!(fake.version().await, Err(refused()));
    assert_eq!(fake.get_pods(true).await, Err(refused()));
    assert_eq!(fake.status().await, Err(refused()));
    fake.set_err(None);
    assert_eq!(fake.status().await, Ok(()));
    fake.set_version("1.44");
    assert_eq!(fake.api_version().await.unwrap().to_string(), "1.44");
}

#[tokio::test(start_paused = true)]
async fn failed_starts_leave_what_an_engine_leaves() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    let error = |reason| SyncError::new(reason, "no");
    fake.fail_next_starts("init", 1, error(SyncErrorReason::ErrImagePull));
    let (_, result) = round(&fake, &pod).await;
    assert_eq!(result.errors().count(), 1);
    assert!(fake.pod(&uid("a")).containers.is_empty());
    fake.fail_next_starts("init", 1, error(SyncErrorReason::RunContainerError));
    round(&fake, &pod).await;
    let seen = fake.pod(&uid("a"));
    assert_eq!(seen.containers[0].state, ContainerState::Exited);
    assert_eq!(&*seen.containers[0].reason, "ContainerCannotRun");
    round(&fake, &pod).await;
    assert_eq!(fake.pod(&uid("a")).containers[0].restart_count, 1);
    // A regular container's failure doesn't stop the next one.
    fake.exit_container(&uid("a"), "init", 0);
    fake.fail_next_starts("web", 1, error(SyncErrorReason::ErrImagePull));
    round(&fake, &pod).await;
    fake.assert_started_containers(&["init", "log"]);
    fake.assert_no_violations();
}

#[tokio::test(start_paused = true)]
async fn canned_answers_overrule_the_model() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    start(&fake, &pod).await;
    fake.set_pod_list(Pods::default());
    assert_eq!(fake.get_pods(false).await.unwrap(), Pods::default());
    assert_eq!(fake.get_pods(true).await.unwrap().0.len(), 1);
    fake.set_all_pod_list(Pods::default());
    assert_eq!(fake.get_pods(true).await.unwrap(), Pods::default());
    let canned = PodStatus::empty(uid("a"));
    fake.set_pod_status(canned.clone());
    let name = FullName::of(&pod);
    assert_eq!(fake.get_pod_status(&uid("a"), &name).await.unwrap(), canned);
    let other = FakeRuntime::new();
    other.adopt(fake.pod(&uid("a")));
    assert!(round(&other, &pod).await.0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_takes_its_time_but_not_more_than_the_grace() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    start(&fake, &pod).await;
    fake.set_stop_takes(Duration::from_secs(20));
    let running = fake.pod(&uid("a")).to_running_pod();
    let before = fake.now();
    let grace = Some(Duration::from_secs(5));
    fake.kill_pod(Some(&pod), &running, grace).await;
    let took = fake.now().duration_since(before);
    assert_eq!(took.as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_value_ends_when_it_is_there() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    let waiter = tokio::spawn({
        let fake = fake.clone();
        async move {
            let runs = |f: &FakeRuntime| f.pod(&uid("a")).running_containers().count() == 2;
            fake.wait_until(runs).await;
        }
    });
    start(&fake, &pod).await;
    waiter.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_must_never_be_is_noticed() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    start(&fake, &pod).await;
    let status = fake.pod(&uid("a"));
    let web = status.find_container_status_by_name("web").unwrap();
    let plan = Plan {
        steps: vec![mirrorlet_core::plan::Step::RemoveContainer {
            id: web.id.clone(),
            name: web.name.clone(),
        }],
        ..Plan::default()
    };
    fake.sync_pod(&pod, &status, &plan, &CancellationToken::new())
        .await;
    assert_eq!(fake.pod(&uid("a")), status);
    let noticed =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fake.assert_no_violations()));
    assert!(noticed.is_err());
}

#[tokio::test(start_paused = true)]
async fn logs_are_of_containers_alone() {
    let fake = FakeRuntime::new();
    let pod = pod("a");
    start(&fake, &pod).await;
    let seen = fake.pod(&uid("a"));
    let sandbox = seen.sandboxes[0].id.clone();
    let init = seen.find_container_status_by_name("init").unwrap();
    fake.set_logs(&init.id, "hello\n");
    let options = LogOptions::default();
    let mut logs = fake.get_container_logs(&init.id, &options).await.unwrap();
    let chunk = logs.next().await.unwrap().unwrap();
    assert_eq!(chunk, mirrorlet_runtime::LogChunk::Stdout("hello\n".into()));
    let none = fake.get_container_logs(&sandbox, &options).await;
    assert!(none.is_err_and(|e| e.is_not_found()));
}
