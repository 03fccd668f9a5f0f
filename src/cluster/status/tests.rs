//! The task against an API server in memory, on a paused clock.

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::fake::{FakeApi, NODE};
use crate::store::board::{BoardWriter, board};
use crate::store::cell::{Writer, cell};
use mirrorlet_core::api::{FullName, Timestamp, core, keys};
use mirrorlet_core::observed::{ContainerState, PodStatus};

/// Longest wait for anything, on the paused clock.
const PATIENCE: Duration = Duration::from_mins(10);

fn registered(is_certain: bool) -> NodeRegistration {
    NodeRegistration::Registered {
        uid: "node-uid".to_owned(),
        is_certain,
    }
}

struct Bed {
    api: FakeApi,
    cluster: ClusterClient,
    board: BoardWriter,
    standing: Writer<NodeRegistration>,
    telemetry: Telemetry,
    cancel: CancellationToken,
    task: JoinHandle<()>,
}

impl Bed {
    fn start() -> Self {
        let api = FakeApi::new();
        let (board, reader) = board();
        let cluster = api.client();
        let telemetry = Telemetry::new();
        let (standing, standing_reader) = cell(registered(true));
        let inputs = StatusInputs {
            board: reader,
            manager: api.manager(),
            standing: standing_reader,
        };
        let cancel = CancellationToken::new();
        let task = StatusTask::new(cluster.clone(), inputs, telemetry.clone());
        Self {
            api,
            cluster,
            board,
            standing,
            telemetry,
            task: tokio::spawn(task.run(cancel.clone())),
            cancel,
        }
    }

    fn tell(&self, pod: &Arc<Pod>, phase: Phase, status: Value) {
        let mut observed = PodStatus::empty(PodUid::of(pod));
        if status["phase"] == "Running" && phase != Phase::Terminated {
            observed.containers = vec![running()];
        }
        self.board.publish(PodView {
            uid: PodUid::of(pod),
            full_name: FullName::of(pod),
            pod: Some(Arc::clone(pod)),
            phase,
            status: Some(Arc::new(serde_json::from_value(status).unwrap())),
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }

    async fn until(&self, wanted: impl Fn(Option<&Pod>) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !wanted(self.api.pod("web").as_ref()) {
            assert!(Instant::now() < end, "{:?}", self.api.pod("web"));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn phase(&self, wanted: &str) {
        self.until(|pod| phase_of(pod) == Some(wanted)).await;
    }

    async fn sleep(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap();
    }
}

fn phase_of(pod: Option<&Pod>) -> Option<&str> {
    pod?.status.as_ref()?.phase.as_deref()
}

fn running() -> mirrorlet_core::observed::ContainerStatus {
    mirrorlet_core::observed::ContainerStatus {
        by_hand: None,
        id: mirrorlet_core::api::ContainerId::docker("1"),
        name: "web".into(),
        role: mirrorlet_core::observed::Role::App,
        state: ContainerState::Running,
        created_at: Timestamp::UNIX_EPOCH,
        started_at: None,
        finished_at: None,
        exit_code: None,
        image: "".into(),
        image_id: "".into(),
        hash: mirrorlet_core::observed::ContainerHash(0),
        restart_count: 0,
        pod_restarts: 0,
        reason: "".into(),
        message: "".into(),
    }
}

fn pod(annotations: &[(&str, &str)]) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("ns".into());
    let annotations = annotations.iter();
    let annotations = annotations.map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    pod.metadata.annotations = Some(annotations.collect());
    pod.spec = Some(core::PodSpec {
        node_name: Some(NODE.into()),
        restart_policy: Some("Always".into()),
        ..core::PodSpec::default()
    });
    pod
}

fn static_pod() -> Arc<Pod> {
    let mut pod = pod(&[(keys::CONFIG_SOURCE, "file"), (keys::CONFIG_HASH, "v1")]);
    pod.metadata.uid = Some("v1".into());
    Arc::new(pod)
}

fn mirror(version: &str) -> Pod {
    pod(&[
        (keys::CONFIG_SOURCE, "file"),
        (keys::CONFIG_MIRROR, version),
    ])
}

/// An ordinary pod, in the API server.
fn ordinary(bed: &Bed) -> Arc<Pod> {
    bed.api.with(|api| api.put(pod(&[])));
    Arc::new(bed.api.pod("web").unwrap())
}

fn status(phase: &str) -> Value {
    json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z", "conditions": [
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
    ]})
}

#[tokio::test(start_paused = true)]
async fn a_mirror_gets_its_static_pods_status_once() {
    let bed = Bed::start();
    let web = static_pod();
    bed.tell(&web, Phase::Syncing, status("Pending"));
    bed.sleep(1).await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.api.with(|api| api.put(mirror("v1")));
    bed.phase("Pending").await;
    // Changes in quick succession make one write.
    bed.tell(&web, Phase::Syncing, status("Pending"));
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.sleep(100).await;
    // pods 49
    assert_eq!(bed.api.calls(), ["PATCH web/status", "PATCH web/status"]);
    // A mirror made anew gets all of it.
    bed.api.with(|api| {
        api.remove("web");
        api.put(mirror("v1"));
    });
    bed.phase("Running").await;
    assert_eq!(bed.api.calls(), ["PATCH web/status"]);
    // Another version's mirror is not ours to write to.
    bed.api.with(|api| {
        api.remove("web");
        api.put(mirror("v0"));
    });
    bed.sleep(100).await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
    assert_eq!(story.len(), 3);
    assert_eq!(&*story[1].message, "status written: Running");
    assert_eq!(
        &*story[2].message,
        "status written: Running; Ready, startTime"
    );
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_is_corrected_and_a_quarrel_gets_pauses() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    let drift = |pod: &mut Pod| pod.status.as_mut().unwrap().phase = Some("Pending".into());
    bed.api.with(|api| api.change("web", drift));
    let began = Instant::now();
    bed.phase("Running").await;
    assert!(began.elapsed() < Duration::from_secs(10));
    bed.api.calls();
    let end = Instant::now() + Duration::from_mins(10);
    while Instant::now() < end {
        if phase_of(bed.api.pod("web").as_ref()) == Some("Running") {
            bed.api.with(|api| api.change("web", drift));
        }
        bed.sleep(1).await;
    }
    let calls = bed.api.calls().len();
    // pods 50
    assert!((5..=12).contains(&calls), "{calls}");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_restored_api_server_has_lost_is_written_again() {
    for lags in [false, true] {
        let bed = Bed::start();
        let web = ordinary(&bed);
        let backup = bed.api.pod("web").unwrap();
        bed.api.with(|api| api.lag(lags));
        bed.tell(&web, Phase::Syncing, status("Running"));
        bed.phase("Running").await;
        bed.sleep(5).await;
        assert_eq!(bed.api.calls(), ["PATCH web/status"]);
        bed.api.with(|api| {
            api.lag(false);
            api.restore(backup);
        });
        let began = Instant::now();
        bed.phase("Running").await;
        // pods 50, node 6n
        assert!(began.elapsed() < Duration::from_mins(1), "{lags}");
        assert_eq!(bed.api.calls(), ["PATCH web/status"]);
        bed.stop().await;
    }
}

/// Its versions begin again below the one from which the watch goes on: that brings no change.
#[tokio::test(start_paused = true)]
async fn a_watch_that_shows_what_a_restored_api_server_has_lost_is_followed_by_a_list() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    let backup = bed.api.pod("web").unwrap();
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    bed.api.with(|api| api.change("web", |_| {}));
    bed.sleep(5).await;
    assert!(!bed.api.is_outdated());
    bed.api.calls();
    bed.api.with(|api| {
        api.lag(true);
        api.restore(backup);
    });
    bed.tell(&web, Phase::Terminated, status("Failed"));
    bed.phase("Failed").await;
    bed.sleep(60).await;
    // pods 50a
    assert!(bed.api.is_outdated());
    // Until the list is there, what is written already is not tried all the time.
    let calls = bed.api.calls().len();
    // pods 50
    assert!((5..=25).contains(&calls), "{calls}");
    bed.stop().await;
}

/// A connection may hold a write back for longer than the pod lives.
#[tokio::test(start_paused = true)]
async fn a_status_that_arrives_after_a_later_one_changes_nothing() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.tell(&web, Phase::Syncing, status("Pending"));
    bed.phase("Pending").await;
    bed.api.with(|api| {
        api.delay();
    });
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.sleep(5).await;
    bed.tell(&web, Phase::Terminated, status("Failed"));
    bed.phase("Failed").await;
    // For the source a pod that is over stays so, whatever its object says: nobody would write again.
    bed.api.with(|api| {
        api.lag(true);
        api.delayed();
    });
    // pods 50
    assert_eq!(phase_of(bed.api.pod("web").as_ref()), Some("Failed"));
    bed.stop().await;
}

/// The watch is behind, and an answer was lost: the version that is known is not the newest.
#[tokio::test(start_paused = true)]
async fn no_status_is_written_for_any_version_of_an_object() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.api.with(|api| {
        api.lag(true);
        api.delay();
    });
    bed.tell(&web, Phase::Syncing, status("Pending"));
    tokio::time::sleep(Duration::from_millis(100)).await;
    bed.api.with(|api| {
        api.delayed();
    });
    tokio::time::sleep(Duration::from_millis(1400)).await;
    // It is tried again, and found to be written.
    let calls = ["PATCH web/status", "PATCH web/status", "GET web"];
    // pods 50
    assert_eq!(bed.api.calls(), calls);
    bed.api.with(|api| {
        api.delay();
    });
    bed.sleep(5).await;
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    bed.tell(&web, Phase::Terminated, status("Failed"));
    bed.phase("Failed").await;
    bed.api.with(|api| {
        api.delayed();
    });
    assert_eq!(phase_of(bed.api.pod("web").as_ref()), Some("Failed"));
    bed.stop().await;
}

/// Somebody labels the pod all the time, and the watch is behind.
#[tokio::test(start_paused = true)]
async fn an_object_that_changes_all_the_time_gets_its_status() {
    const TRIES: [&str; 3] = ["PATCH web/status", "GET web", "PATCH web/status"];
    for changes in [0, 2] {
        let bed = Bed::start();
        let web = ordinary(&bed);
        bed.api.with(|api| {
            api.lag(true);
            api.change_after_reads(changes);
        });
        bed.tell(&web, Phase::Syncing, status("Running"));
        bed.api.with(|api| api.change("web", |_| {}));
        let began = Instant::now();
        bed.phase("Running").await;
        // pods 50
        assert!(began.elapsed() < Duration::from_secs(10), "{changes}");
        let tries = usize::try_from(changes).unwrap() + 1;
        assert_eq!(bed.api.calls(), TRIES.repeat(tries));
        let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
        assert_eq!(story.len(), 1, "{story:?}");
        bed.stop().await;
    }
}

/// A webhook chooses its code itself.
#[tokio::test(start_paused = true)]
async fn a_denial_is_told_whatever_its_code() {
    for (code, reason) in [(404, "NotFound"), (409, "Conflict")] {
        let bed = Bed::start();
        let web = ordinary(&bed);
        let deny = |words| {
            let denied = (code, reason, "pods", words);
            bed.api.with(|api| api.refuse(Some(denied)));
        };
        let told = |words: &str| {
            let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
            let entries = story.iter();
            entries
                .filter(|entry| entry.message.contains(words))
                .count()
        };
        deny("it may not run");
        bed.tell(&web, Phase::Syncing, status("Running"));
        bed.sleep(60).await;
        // pods 50
        assert_eq!(told("it may not run"), 1, "{code}");
        bed.api.with(|api| api.refuse(None));
        bed.phase("Running").await;
        bed.api.with(|api| api.delete_gracefully("web"));
        bed.tell(&web, Phase::Terminated, status("Failed"));
        bed.phase("Failed").await;
        deny("it may not go");
        bed.tell(&web, Phase::Finished, status("Failed"));
        bed.sleep(60).await;
        // pods 51a
        assert_eq!(told("it may not go"), 1, "{code}");
        bed.api.with(|api| api.refuse(None));
        let began = Instant::now();
        bed.until(|pod| pod.is_none()).await;
        // pods 51a
        assert!(began.elapsed() < Duration::from_mins(2), "{code}");
        bed.stop().await;
    }
}

/// The deletion never comes by the watch.
#[tokio::test(start_paused = true)]
async fn a_watch_that_goes_on_showing_what_is_gone_is_followed_by_a_list() {
    for is_ended in [false, true] {
        let bed = Bed::start();
        let web = ordinary(&bed);
        bed.tell(&web, Phase::Syncing, status("Running"));
        bed.phase("Running").await;
        if is_ended {
            bed.api.with(|api| api.delete_gracefully("web"));
            bed.tell(&web, Phase::Terminated, status("Failed"));
            bed.phase("Failed").await;
        }
        bed.api.with(|api| {
            api.lag(true);
            api.remove("web");
        });
        let phase = if is_ended {
            Phase::Finished
        } else {
            Phase::Terminated
        };
        bed.tell(&web, phase, status("Failed"));
        bed.sleep(50).await;
        assert!(!bed.api.is_outdated(), "{is_ended}");
        bed.sleep(100).await;
        // pods 50a
        assert!(bed.api.is_outdated(), "{is_ended}");
        let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
        let reasons: Vec<&str> = story.iter().map(|entry| &*entry.reason).collect();
        assert!(!reasons.contains(&"StatusFailed"), "{reasons:?}");
        bed.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_back_gets_the_newest_only() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.api.with(|api| api.down(true));
    for phase in ["Pending", "Running", "Pending", "Running"] {
        bed.tell(&web, Phase::Syncing, status(phase));
        bed.sleep(70).await;
    }
    bed.api.with(|api| api.down(false));
    bed.api.calls();
    let began = Instant::now();
    // Somebody else's call finds it back.
    let pods: kube::Api<Pod> = kube::Api::namespaced(bed.cluster.client(), "ns");
    let _ = bed.cluster.read(PATIENCE, pods.get("nobody")).await;
    bed.phase("Running").await;
    assert!(began.elapsed() < Duration::from_secs(1));
    bed.sleep(100).await;
    assert_eq!(bed.api.calls(), ["GET nobody", "PATCH web/status"]);
    let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
    let reasons: Vec<&str> = story.iter().map(|entry| &*entry.reason).collect();
    assert_eq!(reasons, ["StatusFailed", "StatusWritten"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_being_deleted_goes_when_nothing_of_it_is_left() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    bed.api.with(|api| api.delete_gracefully("web"));
    bed.tell(&web, Phase::Terminating, status("Running"));
    bed.sleep(100).await;
    bed.tell(&web, Phase::Terminated, status("Failed"));
    bed.phase("Failed").await;
    bed.sleep(100).await;
    assert!(
        !bed.api
            .calls()
            .iter()
            .any(|call| call.starts_with("DELETE"))
    );
    bed.tell(&web, Phase::Finished, status("Failed"));
    bed.until(|pod| pod.is_none()).await;
    bed.sleep(100).await;
    // pods 51
    assert_eq!(bed.api.calls(), ["DELETE web"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn finished_at_first_sight_is_told_and_then_deleted() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.api.with(|api| api.delete_gracefully("web"));
    bed.tell(&web, Phase::Finished, status("Failed"));
    bed.until(|pod| pod.is_none()).await;
    // pods 53
    assert_eq!(bed.api.calls(), ["PATCH web/status", "DELETE web"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_successor_of_the_same_name_is_not_touched() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.api.with(|api| {
        api.lag(true);
        api.remove("web");
        api.put(pod(&[]));
    });
    let other = bed.api.pod("web").unwrap();
    bed.tell(&web, Phase::Finished, status("Failed"));
    bed.sleep(5).await;
    // pods 51
    assert_eq!(bed.api.pod("web").unwrap(), other);
    bed.api.with(|api| api.lag(false));
    bed.sleep(100).await;
    assert_eq!(bed.api.pod("web").unwrap(), other);
    let story = bed.telemetry.journal.story(&FullName::new("web", "ns"));
    assert!(story.is_empty(), "{story:?}");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_finished_mirror_of_a_pod_that_runs_again_is_replaced() {
    let bed = Bed::start();
    let web = static_pod();
    bed.api.with(|api| api.put(mirror("v1")));
    bed.tell(&web, Phase::Syncing, status("Succeeded"));
    bed.phase("Succeeded").await;
    bed.api.calls();
    // A look that has not seen the containers yet revives nobody.
    bed.tell(&web, Phase::Syncing, status("Pending"));
    bed.sleep(100).await;
    assert_eq!(phase_of(bed.api.pod("web").as_ref()), Some("Succeeded"));
    let mut again = status("Running");
    again["containerStatuses"] = json!([{"name": "web", "image": "", "imageID": "", "ready": true,
        "restartCount": 1, "state": {"running": {}}}]);
    bed.tell(&web, Phase::Syncing, again);
    // pods 32
    bed.until(|pod| pod.is_none()).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_does_not_take_is_seldom_sent_again() {
    let bed = Bed::start();
    bed.api.with(|api| {
        api.drop_ips();
    });
    let web = ordinary(&bed);
    let mut running = status("Running");
    running["containerStatuses"] = json!([{"name": "web", "image": "", "imageID": "",
        "ready": true, "restartCount": 0, "state": {"running": {}}}]);
    bed.tell(&web, Phase::Syncing, running.clone());
    bed.phase("Running").await;
    bed.sleep(100).await;
    assert_eq!(bed.api.calls(), ["PATCH web/status"]);
    running["podIP"] = json!("10.0.0.1");
    running["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    bed.tell(&web, Phase::Syncing, running);
    bed.sleep(600).await;
    let calls = bed.api.calls().len();
    // pods 50
    assert!((2..=7).contains(&calls), "{calls}");
    bed.stop().await;
}

/// The node controller marks the pods of a node that is away.
#[tokio::test(start_paused = true)]
async fn what_another_changed_behind_a_write_is_no_refusal_of_it() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    let mut running = status("Running");
    running["conditions"][0]["status"] = json!("True");
    bed.tell(&web, Phase::Syncing, running.clone());
    bed.phase("Running").await;
    bed.api.with(|api| {
        api.lag(true);
        api.change("web", |pod| {
            let status = pod.status.as_mut().unwrap();
            status.conditions.as_mut().unwrap()[0].status = "False".to_owned();
        });
    });
    running["message"] = json!("new");
    bed.tell(&web, Phase::Syncing, running);
    let is_ready = |pod: Option<&Pod>| {
        let status = pod.and_then(|pod| pod.status.clone()).unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.status == "True");
        ready && status.message.is_some()
    };
    let began = Instant::now();
    bed.until(is_ready).await;
    // pods 50
    assert!(began.elapsed() < Duration::from_secs(10));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_does_not_wait_for_what_the_api_server_does_not_take() {
    // How long before the end of the pod its phase is written.
    for before in [None, Some(1), Some(900)] {
        let bed = Bed::start();
        bed.api.with(|api| {
            api.drop_ips();
        });
        let web = ordinary(&bed);
        let mut running = status("Running");
        running["podIP"] = json!("10.0.0.1");
        running["podIPs"] = json!([{"ip": "10.0.0.1"}]);
        bed.tell(&web, Phase::Syncing, running.clone());
        bed.phase("Running").await;
        bed.sleep(300).await;
        bed.api.with(|api| api.delete_gracefully("web"));
        running["phase"] = json!("Failed");
        if let Some(seconds) = before {
            bed.tell(&web, Phase::Terminated, running.clone());
            bed.phase("Failed").await;
            bed.sleep(seconds).await;
        }
        bed.api.calls();
        bed.tell(&web, Phase::Finished, running);
        let began = Instant::now();
        bed.until(|pod| pod.is_none()).await;
        assert!(began.elapsed() < Duration::from_secs(10), "{before:?}");
        bed.sleep(900).await;
        // pods 51a
        assert_eq!(bed.api.calls(), ["PATCH web/status", "DELETE web"]);
        bed.stop().await;
    }
}

/// The API server doesn't take a part of the status, and is away when the object is to be deleted.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_failed_is_tried_again_soon() {
    let bed = Bed::start();
    bed.api.with(|api| {
        api.drop_ips();
        api.refuse_deletions(1);
    });
    let web = ordinary(&bed);
    bed.api.with(|api| api.delete_gracefully("web"));
    let mut ended = status("Failed");
    ended["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    bed.tell(&web, Phase::Finished, ended);
    let began = Instant::now();
    bed.until(|pod| pod.is_none()).await;
    // pods 51a
    assert!(began.elapsed() < Duration::from_secs(10));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_is_refused_for_good_is_tried_once_a_minute() {
    let bed = Bed::start();
    bed.api.with(|api| {
        api.drop_ips();
        api.refuse_deletions(u32::MAX);
    });
    let web = ordinary(&bed);
    bed.api.with(|api| api.delete_gracefully("web"));
    let mut ended = status("Failed");
    ended["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    bed.tell(&web, Phase::Finished, ended);
    bed.sleep(15 * 60).await;
    let deletions = bed.api.calls();
    let deletions = deletions.iter().filter(|call| call.starts_with("DELETE"));
    // pods 51a
    assert!((10..=25).contains(&deletions.count()));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_steps_of_a_start_are_one_write() {
    let bed = Bed::start();
    let mut pod = pod(&[]);
    pod.status = serde_json::from_value(json!({"phase": "Pending"})).unwrap();
    bed.api.with(|api| api.put(pod));
    let web = Arc::new(bed.api.pod("web").unwrap());
    bed.tell(&web, Phase::Syncing, status("Pending"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut addressed = status("Pending");
    addressed["podIP"] = json!("10.0.0.1");
    bed.tell(&web, Phase::Syncing, addressed);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    let began = Instant::now();
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    assert!(began.elapsed() < Duration::from_millis(100));
    // pods 50
    assert_eq!(bed.api.calls(), ["PATCH web/status"]);
    // One that takes its time is told of.
    let mut waits = status("Running");
    waits["message"] = json!("an image is pulled");
    bed.tell(&web, Phase::Syncing, waits);
    bed.sleep(5).await;
    assert_eq!(bed.api.calls(), ["PATCH web/status"]);
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn statuses_of_a_node_that_is_anothers_are_the_others_to_write() {
    let mut bed = Bed::start();
    let web = ordinary(&bed);
    let refused = |is_anothers| NodeRegistration::Refused {
        cause: "refused".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        is_anothers,
    };
    // It may be another's, and then it is.
    bed.standing.publish(registered(false));
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.sleep(100).await;
    bed.standing.publish(refused(true));
    bed.api.with(|api| api.delete_gracefully("web"));
    bed.tell(&web, Phase::Finished, status("Failed"));
    bed.sleep(100).await;
    // node 6l
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    // One that can't be registered for another reason is no one else's.
    bed.standing.publish(refused(false));
    bed.until(|pod| pod.is_none()).await;
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pod_says_nothing_of_its_predecessor() {
    let bed = Bed::start();
    let web = ordinary(&bed);
    bed.tell(&web, Phase::Syncing, status("Running"));
    bed.phase("Running").await;
    bed.api.calls();
    bed.tell(&web, Phase::WaitingToStart, status("Pending"));
    bed.sleep(100).await;
    assert_eq!(bed.api.calls(), Vec::<String>::new());
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_changes_of_many_pods_are_few_writes() {
    let bed = Bed::start();
    let pods: Vec<Arc<Pod>> = (0..100)
        .map(|i| {
            let mut pod = pod(&[]);
            let name = format!("p{i}");
            pod.metadata.name = Some(name.clone());
            bed.api.with(|api| {
                api.put(pod);
                api.change(&name, |_| {});
            });
            let mut told = Pod::default();
            bed.api
                .with(|api| api.change(&name, |pod| told = pod.clone()));
            Arc::new(told)
        })
        .collect();
    for phase in [
        "Pending", "Running", "Pending", "Running", "Pending", "Running",
    ] {
        for pod in &pods {
            bed.tell(pod, Phase::Syncing, status(phase));
        }
        bed.sleep(1).await;
    }
    bed.sleep(60).await;
    // The limit is 50 a second after 100: what is overtaken while it waits is never sent.
    let calls = bed.api.calls().len();
    // pods 50
    assert!((100..=400).contains(&calls), "{calls}");
    let told = bed.api.manager().api_pods().get();
    let told = told.as_ref().as_ref().unwrap();
    assert!(
        told.pods
            .values()
            .all(|pod| phase_of(Some(pod)) == Some("Running"))
    );
    bed.stop().await;
}
