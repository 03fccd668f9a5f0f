//! Probe workers on a paused clock: a board that tests write, a runtime in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::store::board::{BoardWriter, board};
use crate::store::probes::{ProbeReader, probe_results};
use mirrorlet_core::api::{ContainerId, FullName, core};
use mirrorlet_core::observed::{ContainerState, ContainerStatus, PodStatus, RunningPod};
use mirrorlet_core::probe::{ProbeResult, ProbeResults};
use mirrorlet_host::telemetry::journal::Kind;
use mirrorlet_runtime::{CommandOutput, RuntimeError};
use mirrorlet_testing::fake_runtime::FakeRuntime;

use ProbeKind::{Liveness, Readiness, Startup};
use ProbeResult::{Failure, Success, Unknown};

const UID: &str = "u";
/// Longer than anything that is waited for.
const LONG: Duration = Duration::from_hours(2);

struct Bed {
    fake: FakeRuntime,
    board: BoardWriter,
    listed: watch::Sender<Option<Arc<Pods>>>,
    results: ProbeReader,
    telemetry: Telemetry,
    cancel: CancellationToken,
    tasks: JoinSet<()>,
    pod: Arc<Pod>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn exec(name: &str, over: serde_json::Value) -> serde_json::Value {
    let mut probe = json!({"exec": {"command": [name]}});
    let (Some(base), serde_json::Value::Object(over)) = (probe.as_object_mut(), over) else {
        unreachable!("both are objects");
    };
    base.extend(over);
    probe
}

impl Bed {
    /// An agent that has been up for so long, and a pod with these probes.
    async fn new(uptime: Duration, container: serde_json::Value) -> Self {
        Self::keeping(uptime, container, None).await
    }

    /// The same with a file for what is left to the next agent.
    async fn keeping(
        uptime: Duration,
        container: serde_json::Value,
        kept: Option<std::path::PathBuf>,
    ) -> Self {
        let fake = FakeRuntime::new();
        let (board, reader) = board();
        let (writer, results) = probe_results();
        let telemetry = Telemetry::new();
        let (listed, lists) = watch::channel(None);
        let clock = fake.clone();
        let manager = ProbeManager::new(
            Arc::new(fake.clone()),
            Client::new(),
            reader,
            writer,
            telemetry.clone(),
            Arc::new(move || clock.now()),
            kept,
        )
        .following(lists);
        let cancel = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(manager.run(cancel.clone()));
        tokio::time::sleep(uptime).await;
        let mut app = json!({"name": "app", "image": "app:1"});
        if let (Some(app), serde_json::Value::Object(more)) = (app.as_object_mut(), container) {
            app.extend(more);
        }
        let pod = json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": UID},
            "spec": {"containers": [app]},
        });
        let bed = Self {
            fake,
            board,
            listed,
            results,
            telemetry,
            cancel,
            tasks,
            pod: Arc::new(serde_json::from_value(pod).unwrap()),
        };
        for command in ["live", "ready", "started"] {
            bed.answers(command, 0);
        }
        bed
    }

    fn answers(&self, command: &str, exit_code: i32) {
        let output = CommandOutput {
            exit_code,
            output: Bytes::from_static(b"words"),
        };
        self.fake.set_command_result(&[command], Ok(output));
    }

    /// How often a command was run in an instance.
    fn runs(&self, id: &str, command: &str) -> usize {
        let all = self.fake.commands();
        let is_it = |(on, words): &&(ContainerId, Vec<String>)| {
            *on.id == *id && words.first().is_some_and(|word| word == command)
        };
        all.iter().filter(is_it).count()
    }

    fn instance(&self, id: &str, state: ContainerState) -> ContainerStatus {
        let (role, container) = spec::find_container(&self.pod, "app").unwrap();
        ContainerStatus {
            by_hand: None,
            id: ContainerId::docker(id),
            name: "app".into(),
            role,
            state,
            created_at: self.fake.now(),
            started_at: Some(self.fake.now()),
            finished_at: None,
            exit_code: (state == ContainerState::Exited).then_some(1),
            image: "app:1".into(),
            image_id: "".into(),
            hash: spec::container_hash(container),
            restart_count: 0,
            pod_restarts: 0,
            reason: "".into(),
            message: "".into(),
        }
    }

    /// Publishes the worker's view of the pod: its instance, with the status that follows.
    fn tell(&self, phase: Phase, instance: Option<ContainerStatus>) {
        self.tell_with(phase, instance, None);
    }

    /// Publishes that the pod's only instance has ended, in that phase of the pod.
    fn tell_over(&self, exited: ContainerStatus, phase: Option<&str>) {
        self.tell_with(Phase::Syncing, Some(exited), phase);
    }

    fn tell_with(&self, phase: Phase, instance: Option<ContainerStatus>, of_pod: Option<&str>) {
        let uid = PodUid::from(UID);
        let results = self.results.get(&uid);
        let (_, container) = spec::find_container(&self.pod, "app").unwrap();
        let told = core::ContainerStatus {
            name: "app".to_owned(),
            started: instance
                .as_ref()
                .map(|seen| results.has_started(container, seen)),
            ready: instance
                .as_ref()
                .is_some_and(|seen| results.is_ready(container, seen)),
            container_id: instance.as_ref().map(|seen| seen.id.to_string()),
            ..core::ContainerStatus::default()
        };
        let status = core::PodStatus {
            phase: of_pod.map(str::to_owned),
            container_statuses: Some(vec![told]),
            ..core::PodStatus::default()
        };
        let observed = PodStatus {
            containers: instance.into_iter().collect(),
            ..PodStatus::empty(uid.clone())
        };
        self.board.publish(PodView {
            uid,
            full_name: FullName::new("web", "ns"),
            pod: Some(Arc::clone(&self.pod)),
            phase,
            status: Some(Arc::new(status)),
            observed: Arc::new(observed),
            error: "".into(),
            failed_probe: None,
            awaits: Arc::default(),
        });
    }

    fn runs_as(&self, id: &str) {
        let running = self.instance(id, ContainerState::Running);
        self.tell(Phase::Syncing, Some(running));
    }

    fn result(&self, id: &str, kind: ProbeKind) -> Option<ProbeResult> {
        let results = self.results.get(&UID.into());
        results.get(&ContainerId::docker(id), kind)
    }

    fn changed(&self) -> watch::Receiver<Arc<ProbeResults>> {
        self.results.subscribe(&UID.into())
    }

    async fn until(&self, id: &str, kind: ProbeKind, wanted: ProbeResult) {
        let id = ContainerId::docker(id);
        let mut changed = self.changed();
        let coming = changed.wait_for(|results| results.get(&id, kind) == Some(wanted));
        let came = tokio::time::timeout(LONG, coming).await;
        assert!(came.is_ok(), "never {kind} {wanted:?}");
    }

    async fn until_runs(&self, id: &str, command: &str, times: usize) {
        let coming = self.fake.wait_until(|_| self.runs(id, command) >= times);
        let came = tokio::time::timeout(LONG, coming).await;
        assert!(
            came.is_ok(),
            "{command} ran {} times",
            self.runs(id, command)
        );
    }

    /// Events of the pod, as `reason message`.
    fn events(&self) -> Vec<String> {
        let story = self.telemetry.journal.story(&FullName::new("web", "ns"));
        let told = story.iter().filter(|entry| entry.kind != Kind::Trace);
        told.map(|entry| format!("{} {}", entry.reason, entry.message))
            .collect()
    }

    async fn idle(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

const OLD: Duration = Duration::from_mins(5);

#[tokio::test(start_paused = true)]
async fn a_liveness_probe_fails_after_its_threshold_and_holds_for_the_next_instance() {
    let probes = json!({"livenessProbe": exec("live", json!({"periodSeconds": 5}))});
    let bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until("a", Liveness, Success).await;
    bed.until_runs("a", "live", 2).await;
    assert_eq!(bed.result("a", Liveness), Some(Success));
    bed.answers("live", 1);
    let began = tokio::time::Instant::now();
    bed.until("a", Liveness, Failure).await;
    // pods 56
    assert_eq!(began.elapsed().as_secs(), 15, "three periods");
    // Each is told; the story tells of it once.
    assert_eq!(bed.events(), ["Unhealthy Liveness probe failed: words"]);
    let counted = r#"result="failed",container="app",pod="web",namespace="ns",pod_uid="u"} 3"#;
    assert!(bed.telemetry.metrics.encode().contains(counted));
    let ran = bed.runs("a", "live");
    bed.idle(OLD).await;
    assert_eq!(bed.runs("a", "live"), ran, "it holds");
    // The next instance begins anew, and the results of the last one go with it.
    bed.runs_as("b");
    bed.until("b", Liveness, Success).await;
    assert_eq!(bed.result("a", Liveness), None);
    bed.until_runs("b", "live", 2).await;
    assert_eq!(bed.result("b", Liveness), Some(Success));
}

#[tokio::test(start_paused = true)]
async fn startup_holds_the_others_and_is_asked_no_more() {
    let probes = json!({
        "livenessProbe": exec("live", json!({})),
        "readinessProbe": exec("ready", json!({})),
        "startupProbe": exec("started", json!({"failureThreshold": 30, "periodSeconds": 1})),
    });
    let bed = Bed::new(OLD, probes).await;
    bed.answers("started", 1);
    bed.runs_as("a");
    bed.until_runs("a", "started", 5).await;
    assert_eq!(bed.result("a", Startup), Some(Unknown));
    // pods 56
    assert_eq!(bed.runs("a", "live") + bed.runs("a", "ready"), 0);
    bed.answers("started", 0);
    bed.until("a", Startup, Success).await;
    let asked = bed.runs("a", "started");
    // Its worker tells that it has started: readiness does not wait for its period.
    let told = tokio::time::Instant::now();
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    assert_eq!(told.elapsed().as_secs(), 0);
    bed.until_runs("a", "live", 1).await;
    assert_eq!(bed.runs("a", "started"), asked);
}

#[tokio::test(start_paused = true)]
async fn readiness_comes_and_goes_and_goes_on_while_the_pod_is_stopped() {
    let probes = json!({
        "livenessProbe": exec("live", json!({"periodSeconds": 1})),
        "readinessProbe": exec("ready", json!({"periodSeconds": 1})),
    });
    let bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    bed.answers("ready", 1);
    bed.until("a", Readiness, Failure).await;
    bed.answers("ready", 0);
    bed.until("a", Readiness, Success).await;
    // Stopped: nobody asks whether it lives any more.
    bed.answers("live", 1);
    let running = bed.instance("a", ContainerState::Running);
    bed.tell(Phase::Terminating, Some(running));
    bed.answers("ready", 1);
    // pods 56c
    bed.until("a", Readiness, Failure).await;
    let lived = bed.runs("a", "live");
    bed.idle(OLD).await;
    assert!(bed.runs("a", "live") <= lived + 1, "one may be under way");
    assert_eq!(bed.result("a", Liveness), Some(Success));
    // Down, and gone.
    let asked = bed.runs("a", "ready");
    let exited = bed.instance("a", ContainerState::Exited);
    bed.tell(Phase::Terminating, Some(exited));
    bed.idle(OLD).await;
    assert!(bed.runs("a", "ready") <= asked + 1, "one may be under way");
    let mut changed = bed.changed();
    bed.board.remove(&UID.into());
    changed
        .wait_for(|results| **results == ProbeResults::default())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_wanted_again_is_probed_again() {
    let probes = json!({"livenessProbe": exec("live", json!({"periodSeconds": 1}))});
    let bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until_runs("a", "live", 1).await;
    let running = bed.instance("a", ContainerState::Running);
    bed.tell(Phase::Terminating, Some(running));
    bed.idle(OLD).await;
    // Its worker left the board and came back between two looks at it.
    bed.runs_as("b");
    bed.until_runs("b", "live", 2).await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_for_good_is_probed_again_once_a_person_has_started_it() {
    let probes = json!({
        "livenessProbe": exec("live", json!({"failureThreshold": 1})),
        "readinessProbe": exec("ready", json!({})),
        "startupProbe": exec("started", json!({})),
    });
    let mut bed = Bed::new(OLD, probes).await;
    let mut never = Pod::clone(&bed.pod);
    never.spec.as_mut().unwrap().restart_policy = Some("Never".into());
    bed.pod = Arc::new(never);
    bed.runs_as("a");
    bed.until("a", Startup, Success).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    // It ends for good, which its pod's status says a moment later.
    let exited = bed.instance("a", ContainerState::Exited);
    for phase in [None, Some("Succeeded")] {
        bed.tell_over(exited.clone(), phase);
        bed.idle(OLD).await;
    }
    let ran = bed.fake.commands().len();
    bed.idle(OLD).await;
    assert_eq!(bed.fake.commands().len(), ran, "nothing is probed");
    let series = bed.telemetry.metrics.encode();
    assert!(!series.contains(r#"container="app""#), "{series}");
    // A user's order runs it again.
    bed.runs_as("b");
    bed.until("b", Startup, Success).await;
    bed.runs_as("b");
    // pods 56d
    bed.until("b", Readiness, Success).await;
    assert_eq!(bed.result("a", Readiness), None, "forgotten");
    bed.answers("live", 1);
    bed.until("b", Liveness, Failure).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_errs_is_made_three_times_and_changes_nothing() {
    let probes = json!({"readinessProbe": exec("ready", json!({"failureThreshold": 1}))});
    let bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    let before = bed.runs("a", "ready");
    let away = RuntimeError::Unavailable("gone".to_owned());
    bed.fake.set_command_result(&["ready"], Err(away));
    bed.until_runs("a", "ready", before + 3).await;
    bed.idle(Duration::from_secs(1)).await;
    assert_eq!(bed.runs("a", "ready"), before + 3);
    // pods 56
    assert_eq!(bed.result("a", Readiness), Some(Success));
    let erred = "Unhealthy Readiness probe errored: the container runtime is not reachable: gone";
    assert_eq!(bed.events(), [erred]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_outlives_its_time_is_a_failure() {
    let probes = json!({
        "readinessProbe": exec("ready", json!({"timeoutSeconds": 2, "failureThreshold": 1})),
    });
    let bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    let _hangs = bed.fake.block("run_in_container", None);
    bed.until("a", Readiness, Failure).await;
    let failed = "Unhealthy Readiness probe failed: command timed out after 2 s";
    assert!(
        bed.events().iter().any(|e| e == failed),
        "{:?}",
        bed.events()
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_not_ready_is_asked_when_something_changes() {
    let probes = json!({"readinessProbe": exec("ready", json!({"periodSeconds": 1000}))});
    let bed = Bed::new(LONG, probes).await;
    bed.answers("ready", 1);
    bed.runs_as("a");
    bed.until_runs("a", "ready", 1).await;
    bed.answers("ready", 0);
    let told = tokio::time::Instant::now();
    // The same again is no news.
    let mut other = bed.instance("a", ContainerState::Running);
    other.image_id = "told late".into();
    bed.tell(Phase::Syncing, Some(other));
    bed.until("a", Readiness, Success).await;
    // pods 56
    assert_eq!(told.elapsed().as_secs(), 0);
    // A ready one is asked in its time.
    let asked = bed.runs("a", "ready");
    bed.runs_as("a");
    bed.idle(Duration::from_secs(10)).await;
    assert_eq!(bed.runs("a", "ready"), asked);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_just_started_spreads_its_first_probes() {
    let probes = json!({"livenessProbe": exec("live", json!({"periodSeconds": 100}))});
    for (uptime, waits) in [(Duration::ZERO, true), (LONG, false)] {
        let bed = Bed::new(uptime, probes.clone()).await;
        bed.runs_as("a");
        let began = tokio::time::Instant::now();
        bed.until_runs("a", "live", 1).await;
        let waited = began.elapsed();
        // pods 56
        assert_eq!(waited > Duration::from_secs(1), waits, "{waited:?}");
        assert!(waited < Duration::from_secs(100), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_an_edit_took_away_is_not_run_any_more() {
    let probes = json!({"livenessProbe": exec("live", json!({"periodSeconds": 1}))});
    let mut bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until_runs("a", "live", 2).await;
    let mut edited = Pod::clone(&bed.pod);
    edited.spec.as_mut().unwrap().containers[0].liveness_probe = None;
    bed.pod = Arc::new(edited);
    bed.runs_as("a");
    bed.idle(OLD).await;
    let ran = bed.runs("a", "live");
    bed.idle(OLD).await;
    assert_eq!(bed.runs("a", "live"), ran);
}

#[tokio::test(start_paused = true)]
async fn what_was_ready_stays_so_over_a_restart_until_a_probe_says_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let file = || Some(dir.path().join(KEPT_FILE));
    let probes = json!({
        "readinessProbe": exec("ready", json!({"failureThreshold": 2})),
        "startupProbe": exec("started", json!({})),
    });
    let mut bed = Bed::keeping(OLD, probes.clone(), file()).await;
    bed.runs_as("a");
    bed.until("a", Startup, Success).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    bed.cancel.cancel();
    bed.tasks.join_next().await.unwrap().unwrap();
    drop(bed);
    let bed = Bed::keeping(Duration::ZERO, probes.clone(), file()).await;
    // pods 56c
    assert_eq!(bed.result("a", Readiness), Some(Success));
    bed.answers("ready", 1);
    bed.runs_as("a");
    bed.until_runs("a", "ready", 1).await;
    assert_eq!(bed.result("a", Readiness), Some(Success));
    assert_eq!(bed.runs("a", "started"), 0, "it has started");
    bed.until("a", Readiness, Failure).await;
    // Another instance has nothing from before.
    bed.runs_as("b");
    bed.until("b", Startup, Unknown).await;
    // A file that makes no sense is no file.
    std::fs::write(file().unwrap(), "{").unwrap();
    let bed = Bed::keeping(Duration::ZERO, probes, file()).await;
    assert_eq!(bed.result("a", Readiness), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_pods_that_are_gone_is_forgotten_once_all_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(KEPT_FILE);
    let left = || -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()
    };
    let probes = json!({"readinessProbe": exec("ready", json!({}))});
    let mut bed = Bed::keeping(OLD, probes.clone(), Some(file.clone())).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    bed.cancel.cancel();
    bed.tasks.join_next().await.unwrap().unwrap();
    drop(bed);
    // Another pod, which is removed while no agent runs.
    let mut both = left();
    both.insert("gone".to_owned(), both[UID].clone());
    std::fs::write(&file, serde_json::to_vec(&both).unwrap()).unwrap();

    let mut bed = Bed::keeping(OLD, probes, Some(file.clone())).await;
    let mut of_gone = bed.results.subscribe(&"gone".into());
    assert!(!of_gone.borrow_and_update().is_empty());
    let running = RunningPod {
        uid: UID.into(),
        ..RunningPod::default()
    };
    bed.listed.send_replace(Some(Arc::new(Pods(vec![running]))));
    let coming = of_gone.wait_for(|results| results.is_empty());
    let is_forgotten = tokio::time::timeout(LONG, coming).await.is_ok();
    // pods 56c
    assert!(is_forgotten);
    assert_eq!(bed.result("a", Readiness), Some(Success));
    bed.idle(KEEP_AFTER * 2).await;
    bed.cancel.cancel();
    bed.tasks.join_next().await.unwrap().unwrap();
    assert_eq!(left().keys().collect::<Vec<_>>(), [UID]);
}

#[tokio::test(start_paused = true)]
async fn all_workers_end_with_the_manager() {
    let probes = json!({
        "livenessProbe": exec("live", json!({})),
        "readinessProbe": exec("ready", json!({})),
    });
    let mut bed = Bed::new(OLD, probes).await;
    bed.runs_as("a");
    bed.until("a", Readiness, Success).await;
    bed.cancel.cancel();
    bed.tasks.join_next().await.unwrap().unwrap();
    let ran = bed.fake.commands().len();
    bed.idle(OLD).await;
    assert_eq!(bed.fake.commands().len(), ran);
}
