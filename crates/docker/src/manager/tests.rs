//! The manager on the Engine in memory: plans walked, call by call.

mod env_files;
mod gc;
mod hung;
mod node_ips;
mod unstarted;

use std::collections::HashMap;

use bollard::models::ContainerCreateBody;
use serde_json::{Value, json};

use super::*;
use crate::containers::in_other_networks;
use crate::engine::{Engine as _, EngineError};
use crate::fake_engine::{Call, FakeEngine, FakeImage, FaultPoint, PullScript, StartScript};
use crate::image::PullerOptions;
use crate::operation::Operation;
use crate::sandbox_image::SANDBOX_IMAGE;
use crate::translate::labels::{Restarts, container_labels};
use crate::translate::{container_name, parse_ours, sandbox_name};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::backoff::Backoff;
use mirrorlet_core::gc::ContainerGcPolicy;
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::plan::{PlanInput, compute_pod_actions};
use mirrorlet_core::probe::ProbeResults;
use mirrorlet_host::telemetry::journal::Kind as Told;
use mirrorlet_runtime::objects::{ManifestObjects, PodObjects};
use mirrorlet_runtime::{SyncAction, SyncErrorReason, SyncResult};

mod hooks;

const OWNER: &str = "me";

struct Bed {
    engine: Arc<FakeEngine>,
    manager: DockerManager,
    root: tempfile::TempDir,
}

fn manager(engine: &Arc<FakeEngine>, root: &std::path::Path) -> DockerManager {
    manager_of(engine, root, HostFacts::default())
}

fn manager_of(engine: &Arc<FakeEngine>, root: &std::path::Path, node: HostFacts) -> DockerManager {
    manager_with(engine, options(root, node))
}

fn manager_with(engine: &Arc<FakeEngine>, options: DockerManagerOptions) -> DockerManager {
    let shared: SharedEngine = engine.clone();
    DockerManager::new(
        Arc::clone(&shared),
        Arc::new(ImagePuller::new(shared, PullerOptions::default())),
        Telemetry::new(),
        options,
    )
}

fn options(root: &std::path::Path, node: HostFacts) -> DockerManagerOptions {
    DockerManagerOptions {
        owner: OWNER.to_owned(),
        root: root.to_owned(),
        node,
        pod_infra_image: None,
        engine_concurrency: 4,
        objects: PodObjects::new(Arc::new(ManifestObjects::none())),
        host_files: mirrorlet_host::volume::HostFiles::default(),
        pod_logs_dir: None,
    }
}

/// A manager whose pods are in that network.
fn manager_in(engine: &Arc<FakeEngine>, root: &std::path::Path, network: &str) -> DockerManager {
    let node = HostFacts {
        network: Some(network.to_owned()),
        ..HostFacts::default()
    };
    manager_of(engine, root, node)
}

fn api_error(status: u16, message: &str) -> EngineError {
    EngineError::Api {
        status,
        message: message.to_owned(),
    }
}

impl Bed {
    /// A manager that has started a pod before: images and facts are known.
    async fn warm() -> Self {
        let engine = Arc::new(FakeEngine::new());
        engine.add_image("app:1", FakeImage::default());
        let root = tempfile::tempdir().unwrap();
        let bed = Self {
            manager: manager(&engine, root.path()),
            engine,
            root,
        };
        let warm = pod("warm", &json!({}));
        bed.up(&warm).await;
        bed.down(&warm).await;
        bed.engine.clear_calls();
        bed
    }

    async fn status(&self, pod: &Arc<Pod>) -> PodStatus {
        let (uid, full_name) = (PodUid::of(pod), FullName::of(pod));
        self.manager.get_pod_status(&uid, &full_name).await.unwrap()
    }

    /// One round, as a worker does it.
    async fn round(&self, pod: &Arc<Pod>) -> PodSyncResult {
        self.round_until(pod, &CancellationToken::new()).await
    }

    async fn round_until(&self, pod: &Arc<Pod>, cancel: &CancellationToken) -> PodSyncResult {
        let status = self.status(pod).await;
        let plan = compute_pod_actions(&PlanInput {
            pod,
            status: &status,
            backoff: &Backoff::default(),
            probes: &ProbeResults::default(),
            gc: ContainerGcPolicy::default(),
            now: Timestamp::now(),
        });
        self.manager.sync_pod(pod, &status, &plan, cancel).await
    }

    /// Rounds until there is nothing to do.
    async fn up(&self, pod: &Arc<Pod>) {
        for _ in 0..8 {
            let result = self.round(pod).await;
            assert_eq!(result.error(), None);
            if result.sync_results.is_empty() {
                return;
            }
        }
        panic!("the pod never comes to rest: {:?}", self.engine.calls());
    }

    async fn kill(&self, pod: &Arc<Pod>, grace: Option<Duration>) {
        let running = self.status(pod).await.to_running_pod();
        let result = self.manager.kill_pod(Some(pod), &running, grace).await;
        assert_eq!(result.error(), None);
    }

    async fn down(&self, pod: &Arc<Pod>) {
        self.kill(pod, None).await;
        self.manager.delete_pod(&PodUid::of(pod)).await.unwrap();
    }

    /// Names with states, in the order of creation.
    fn containers(&self) -> Vec<(String, String)> {
        self.engine.containers()
    }

    fn operations(&self) -> Vec<Operation> {
        self.engine.calls().iter().map(|c| c.operation).collect()
    }

    async fn name_of(&self, id: &str) -> String {
        use crate::engine::Engine;
        let found = self.engine.inspect_container(id).await.unwrap();
        found.name.unwrap().trim_start_matches('/').to_owned()
    }
}

fn pod(uid: &str, spec: &Value) -> Arc<Pod> {
    let mut whole = json!({
        "terminationGracePeriodSeconds": 45,
        "containers": [{"name": "app", "image": "app:1", "imagePullPolicy": "IfNotPresent"}],
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let pod = json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": whole,
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn app_name(pod: &Arc<Pod>) -> String {
    container_name("app", &FullName::of(pod), &PodUid::of(pod), 0)
}

fn pause_name(pod: &Arc<Pod>) -> String {
    sandbox_name(&FullName::of(pod), &PodUid::of(pod), 0)
}

fn running(name: String) -> (String, String) {
    (name, "running".to_owned())
}

fn failures(result: &PodSyncResult) -> Vec<SyncErrorReason> {
    let errors = result
        .sync_results
        .iter()
        .filter_map(|r: &SyncResult| r.error.as_ref());
    errors.map(|e| e.reason).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_a_known_image_costs_five_calls() {
    use Operation::{CreateContainer, InspectContainer, StartContainer};
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let result = bed.round(&pod).await;
    assert_eq!(result.error(), None);
    let calls = bed.engine.calls();
    // docker 64
    assert_eq!(calls.len(), 5, "{calls:?}");
    let nth = |operation, n: usize| {
        let mut all = calls
            .iter()
            .enumerate()
            .filter(|(_, c)| c.operation == operation);
        all.nth(n)
            .map(|(i, c): (usize, &Call)| (i, c.target.clone()))
            .unwrap()
    };
    let (sandbox, app) = (nth(CreateContainer, 0), nth(CreateContainer, 1));
    assert_eq!((sandbox.0, sandbox.1), (0, pause_name(&pod)));
    assert_eq!(app.1, app_name(&pod));
    let (pause_starts, app_starts) = (nth(StartContainer, 0).0, nth(StartContainer, 1).0);
    let inspect = nth(InspectContainer, 0).0;
    assert!(pause_starts < inspect && inspect < app_starts && app.0 < app_starts);
    // And to see that all is well costs none.
    bed.engine.clear_calls();
    assert!(bed.round(&pod).await.sync_results.is_empty());
    assert_eq!(bed.operations(), Vec::new());
    assert_eq!(bed.status(&pod).await.ips.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_counts_as_a_reconnect() {
    let bed = Bed::warm().await;
    let reconnects = bed.manager.reconnects();
    for subscriptions in 1..=2 {
        let events = bed.manager.watch().await;
        assert!(events.is_ok());
        // docker 51
        assert_eq!(reconnects.count(), subscriptions);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_engine_shows_its_events_before_it_says_its_facts() {
    let bed = Bed::warm().await;
    bed.engine.hold(Operation::Info);
    let second = Duration::from_secs(1);
    let events = tokio::time::timeout(second, bed.manager.watch()).await;
    // docker 61
    assert!(events.is_ok_and(|events| events.is_ok()));
    let facts = tokio::time::timeout(second, bed.manager.learn_facts());
    assert!(facts.await.is_err(), "they are asked for");
    bed.engine.release(Operation::Info);
    assert!(bed.manager.learn_facts().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_image_that_was_pruned_is_loaded_again() {
    let bed = Bed::warm().await;
    bed.engine.prune_image(SANDBOX_IMAGE);
    let pod = pod("a", &json!({}));
    assert_eq!(bed.round(&pod).await.error(), None);
    assert_eq!(bed.engine.count(Operation::LoadImage), 1);
    assert_eq!(bed.engine.count(Operation::CreateContainer), 3);
    assert_eq!(
        bed.containers(),
        [running(pause_name(&pod)), running(app_name(&pod))]
    );
}

#[tokio::test(start_paused = true)]
async fn an_app_image_that_was_pruned_is_pulled_again() {
    let bed = Bed::warm().await;
    bed.engine.prune_image("app:1");
    let script = PullScript {
        image: Some(FakeImage::default()),
        ..PullScript::default()
    };
    bed.engine.script_pull("app:1", script);
    let pod = pod("a", &json!({}));
    assert_eq!(bed.round(&pod).await.error(), None);
    assert_eq!(bed.engine.count(Operation::PullImage), 1);
    assert_eq!(
        bed.containers(),
        [running(pause_name(&pod)), running(app_name(&pod))]
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_creation_was_not_answered_is_there_once() {
    for lost in ["k8s_POD", "k8s_app"] {
        let bed = Bed::warm().await;
        let timeout = EngineError::Timeout {
            operation: "create_container",
            after: Duration::from_secs(1),
        };
        bed.engine.fail(
            Operation::CreateContainer,
            Some(lost),
            FaultPoint::After,
            timeout,
        );
        let pod = pod("a", &json!({}));
        assert!(bed.round(&pod).await.error().is_some());
        assert_eq!(bed.round(&pod).await.error(), None);
        assert_eq!(
            bed.containers(),
            [running(pause_name(&pod)), running(app_name(&pod))],
            "{lost}"
        );
    }
}

/// A request for a container of that pod in another sandbox than it has.
fn stale(pod: &Arc<Pod>) -> ContainerCreateBody {
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let role = mirrorlet_core::observed::Role::App;
    ContainerCreateBody {
        image: Some("app:1".to_owned()),
        labels: Some(container_labels(
            OWNER,
            pod,
            container,
            role,
            Restarts::default(),
            "another",
            "",
        )),
        ..ContainerCreateBody::default()
    }
}

/// The files of termination messages of a pod's container.
fn termination_logs(bed: &Bed, pod: &Arc<Pod>) -> usize {
    let uid = PodUid::of(pod);
    let path = bed
        .manager
        .files
        .volumes
        .ensure_termination_log(&uid, "app");
    let path = path.unwrap();
    std::fs::remove_file(&path).unwrap();
    let files = std::fs::read_dir(path.parent().unwrap()).unwrap();
    let names = files.map(|file| file.unwrap().file_name());
    names.filter(|name| name != "restarts").count()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_not_created_leaves_no_termination_message() {
    let bed = Bed::warm().await;
    let refused = pod("a", &json!({}));
    for _ in 0..3 {
        let create = Operation::CreateContainer;
        let error = api_error(400, "invalid mount");
        bed.engine
            .fail(create, Some("k8s_app"), FaultPoint::Before, error);
        let failed = bed.round(&refused).await;
        assert_eq!(failures(&failed), [SyncErrorReason::CreateContainerError]);
    }
    assert_eq!(termination_logs(&bed, &refused), 0);
    bed.up(&refused).await;
    assert_eq!(termination_logs(&bed, &refused), 1);

    let invalid = pod("b", &json!({"securityContext": {"runAsNonRoot": true}}));
    let failed = bed.round(&invalid).await;
    let reason = SyncErrorReason::CreateContainerConfigError;
    assert_eq!(failures(&failed), [reason]);
    assert_eq!(termination_logs(&bed, &invalid), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_is_made_anew_has_one_termination_message() {
    let lost = EngineError::Unavailable {
        endpoint: "the Engine".to_owned(),
        cause: "connection reset".to_owned(),
        is_shortage: false,
    };
    has_one_termination_message_after(lost).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_was_created_late_has_one_termination_message() {
    let late = EngineError::Timeout {
        operation: "create_container",
        after: Duration::from_secs(1),
    };
    has_one_termination_message_after(late).await;
}

/// Starts a pod whose container is created by a call that ends with that error.
async fn has_one_termination_message_after(error: EngineError) {
    let bed = Bed::warm().await;
    let create = Operation::CreateContainer;
    bed.engine
        .fail(create, Some("k8s_app"), FaultPoint::After, error);
    let pod = pod("a", &json!({}));
    assert!(bed.round(&pod).await.error().is_some());
    assert_eq!(termination_logs(&bed, &pod), 1, "it may be mounted");
    bed.up(&pod).await;
    let host = bed.engine.created(&app_name(&pod)).unwrap().host_config;
    let mounts = host.and_then(|host| host.mounts).unwrap_or_default();
    let mut mounts = mounts.into_iter();
    let message = mounts.find(|m| m.target.as_deref() == Some("/dev/termination-log"));
    let message = message.and_then(|mount| mount.source).unwrap();
    assert!(std::path::Path::new(&message).exists());
    assert_eq!(termination_logs(&bed, &pod), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stale_holder_of_a_name_is_removed() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let name = app_name(&pod);
    let old = bed
        .engine
        .create_container(&name, stale(&pod))
        .await
        .unwrap();
    assert_eq!(bed.round(&pod).await.error(), None);
    assert!(bed.engine.inspect_container(&old).await.is_err());
    assert_eq!(bed.containers(), [running(pause_name(&pod)), running(name)]);
}

#[tokio::test(start_paused = true)]
async fn a_running_holder_in_another_sandbox_is_neither_adopted_nor_removed() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let name = app_name(&pod);
    let old = bed
        .engine
        .create_container(&name, stale(&pod))
        .await
        .unwrap();
    bed.engine.start_container(&old).await.unwrap();
    let failed = bed.round(&pod).await;
    assert_eq!(failures(&failed), [SyncErrorReason::CreateContainerError]);
    assert!(bed.engine.inspect_container(&old).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_foreign_holder_is_left_alone() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let name = app_name(&pod);
    let foreign = ContainerCreateBody {
        image: Some("app:1".to_owned()),
        ..ContainerCreateBody::default()
    };
    bed.engine.create_container(&name, foreign).await.unwrap();
    assert_eq!(bed.round(&pod).await.error(), None);
    let names = bed.containers();
    assert_eq!(names[0], (name.clone(), "created".to_owned()));
    assert!(names[2].0.starts_with(&format!("{name}_")), "{names:?}");
    assert_eq!(names[2].1, "running");
    assert_eq!(
        bed.status(&pod).await.containers.len(),
        1,
        "known by its labels"
    );
    assert!(bed.round(&pod).await.sync_results.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_another_agent_runs_is_warned_of() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let warnings = |pod: &Pod| {
        let story = bed.manager.telemetry.journal.story(&FullName::of(pod));
        let warned = story.iter().filter(|told| &*told.reason == "RunsTwice");
        warned.count()
    };
    for (name, runs) in [("a", true), ("b", false)] {
        let pod = pod(name, &json!({}));
        let twin = ContainerCreateBody {
            image: Some("app:1".to_owned()),
            labels: Some(crate::translate::labels::sandbox_labels("other", &pod, 0)),
            ..ContainerCreateBody::default()
        };
        let twin_name = sandbox_name(&FullName::of(&pod), &PodUid::of(&pod), 0);
        let id = bed.engine.create_container(&twin_name, twin).await.unwrap();
        if runs {
            bed.engine.start_container(&id).await.unwrap();
        }
        assert_eq!(bed.round(&pod).await.error(), None);
        assert_eq!(warnings(&pod), usize::from(runs), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_the_engine_does_not_know_is_got_around() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let name = app_name(&pod);
    let ghost = format!(
        "Conflict. The container name \"/{name}\" is already in use by container \"{}\".",
        "e".repeat(64)
    );
    // For longer than a create that is under way would take.
    for _ in 0..51 {
        let conflict = api_error(409, &ghost);
        bed.engine.fail(
            Operation::CreateContainer,
            Some(&name),
            FaultPoint::Before,
            conflict,
        );
    }
    assert_eq!(bed.round(&pod).await.error(), None);
    let names = bed.containers();
    assert!(names[1].0.starts_with(&format!("{name}_")), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_oom_score_is_learnt_and_tried_without_at_once() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let words = "OCI runtime create failed: can't get final child's PID from pipe: EOF: unknown";
    bed.engine.fail(
        Operation::StartContainer,
        None,
        FaultPoint::Before,
        api_error(500, words),
    );
    let refused = bed.round(&pod).await;
    assert_eq!(
        refused.errors().next().and_then(|e| e.retry_after),
        Some(Duration::ZERO)
    );
    assert_eq!(bed.containers(), [], "nothing is left of the attempt");
    bed.up(&pod).await;
    let score = |name: &str| {
        let body = bed.engine.created(name).unwrap();
        body.host_config.unwrap().oom_score_adj.unwrap_or(0)
    };
    assert!(score(&pause_name(&pod)) >= 0);
    assert!(score(&app_name(&pod)) >= 0);
}

/// A pod whose containers have an OOM score below 0.
fn guaranteed(uid: &str) -> Arc<Pod> {
    let amounts = json!({"cpu": "1", "memory": "64Mi"});
    let app = json!({
        "name": "app", "image": "app:1", "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": amounts, "limits": amounts},
    });
    pod(uid, &json!({"containers": [app]}))
}

#[tokio::test(start_paused = true)]
async fn a_command_that_names_the_oom_score_is_an_ordinary_failure() {
    for words in [
        "exec: \"oom_score_adj\": executable file not found in $PATH",
        "exec: \"/oom_score_adj\": stat /oom_score_adj: permission denied",
        "exec: \"can't get final child's PID from pipe\": executable file not found in $PATH",
    ] {
        let bed = Bed::warm().await;
        let script = StartScript::Fails {
            status: 400,
            exit_code: 127,
            message: words.to_owned(),
        };
        bed.engine.script_start("app:1", script);
        let burstable = pod("a", &json!({}));
        for pod in [&burstable, &guaranteed("b")] {
            let failed = bed.round(pod).await;
            assert_eq!(failures(&failed), [SyncErrorReason::RunContainerError]);
            let error = failed.errors().next().unwrap();
            assert_eq!((error.retry_after, error.passing), (None, false), "{words}");
        }
        // And nothing was learnt from it.
        let other = pod("c", &json!({}));
        bed.round(&other).await;
        assert_eq!(oom_score(&bed, &pause_name(&other)), -998, "{words}");
    }
}

fn oom_score(bed: &Bed, name: &str) -> i64 {
    let body = bed.engine.created(name).unwrap();
    body.host_config.unwrap().oom_score_adj.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_learns_of_a_refused_oom_score_from_a_container() {
    let mut bed = Bed::warm().await;
    let pod = guaranteed("a");
    let refuse = |bed: &Bed, name: Option<&str>| {
        let words = "write /proc/self/oom_score_adj: permission denied: unknown";
        let error = api_error(500, words);
        let (start, before) = (Operation::StartContainer, FaultPoint::Before);
        bed.engine.fail(start, name, before, error);
    };
    refuse(&bed, None);
    bed.round(&pod).await;
    bed.up(&pod).await;
    bed.manager = manager(&bed.engine, bed.root.path());
    bed.engine.exit(&app_name(&pod), 1);
    refuse(&bed, None);
    let refused = bed.round(&pod).await;
    let error = refused.errors().next().unwrap();
    assert_eq!(
        (error.retry_after, error.passing),
        (Some(Duration::ZERO), true)
    );
    bed.up(&pod).await;
    let again = container_name("app", &FullName::of(&pod), &PodUid::of(&pod), 1);
    assert_eq!(oom_score(&bed, &again), 0);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_does_not_start_leaves_nothing() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.engine.fail(
        Operation::StartContainer,
        None,
        FaultPoint::Before,
        api_error(500, "no network"),
    );
    let failed = bed.round(&pod).await;
    assert_eq!(failures(&failed), [SyncErrorReason::CreatePodSandboxError]);
    assert_eq!(bed.containers(), []);
    bed.up(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_can_not_run_says_why() {
    let bed = Bed::warm().await;
    let words = "exec: \"nope\": executable file not found in $PATH";
    let script = StartScript::Fails {
        status: 400,
        exit_code: 127,
        message: words.to_owned(),
    };
    bed.engine.script_start("app:1", script);
    let pod = pod("a", &json!({}));
    let failed = bed.round(&pod).await;
    assert_eq!(failures(&failed), [SyncErrorReason::RunContainerError]);
    let status = bed.status(&pod).await;
    let app = &status.containers[0];
    assert_eq!(
        (app.state, app.exit_code, &*app.reason, &*app.message),
        (
            ContainerState::Exited,
            Some(127),
            "ContainerCannotRun",
            words
        )
    );
    assert_eq!(app.started_at, Some(app.created_at));
}

#[tokio::test(start_paused = true)]
async fn sidecars_are_stopped_last_and_in_reverse() {
    let bed = Bed::warm().await;
    let sidecar = |name: &str| json!({"name": name, "image": "app:1", "imagePullPolicy": "IfNotPresent", "restartPolicy": "Always"});
    let app =
        |name: &str| json!({"name": name, "image": "app:1", "imagePullPolicy": "IfNotPresent"});
    let pod = pod(
        "a",
        &json!({
            "initContainers": [sidecar("first"), sidecar("second")],
            "containers": [app("x"), app("y")],
        }),
    );
    bed.up(&pod).await;
    bed.engine.clear_calls();
    bed.kill(&pod, None).await;
    let mut order = Vec::new();
    for (id, _) in bed.engine.stops() {
        let name = bed.name_of(&id).await;
        order.push(name.split('_').nth(1).unwrap().to_owned());
    }
    order[..2].sort();
    assert_eq!(order, ["x", "y", "second", "first", "POD"]);
}

#[tokio::test(start_paused = true)]
async fn grace_comes_from_the_pod_its_labels_or_an_override() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let grace = |engine: &FakeEngine| engine.stops()[0].1.as_secs();
    for (given, expected) in [
        (None, 45),
        (Some(Duration::from_secs(5)), 5),
        (Some(Duration::ZERO), 2),
    ] {
        bed.up(&pod).await;
        bed.engine.clear_calls();
        bed.kill(&pod, given).await;
        // pods 44
        assert_eq!(grace(&bed.engine), expected);
        bed.manager.delete_pod(&PodUid::of(&pod)).await.unwrap();
    }
    // The agent was restarted and the manifest is gone.
    bed.up(&pod).await;
    bed.engine.clear_calls();
    let anew = manager(&bed.engine, bed.root.path());
    let listed = anew.get_pods(false).await.unwrap();
    let running = listed.find_pod_by_id(&PodUid::of(&pod));
    let result = anew.kill_pod(None, &running, None).await;
    assert_eq!(result.error(), None);
    assert_eq!(grace(&bed.engine), 45);
}

#[tokio::test(start_paused = true)]
async fn only_a_stopped_pod_is_deleted_and_nothing_stays() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let uid = PodUid::of(&pod);
    bed.up(&pod).await;
    assert!(matches!(
        bed.manager.delete_pod(&uid).await,
        Err(RuntimeError::Conflict(_))
    ));
    assert_eq!(bed.containers().len(), 2);
    bed.kill(&pod, None).await;
    bed.manager.delete_pod(&uid).await.unwrap();
    bed.manager.delete_pod(&uid).await.unwrap();
    assert_eq!(bed.containers(), []);
    assert_eq!(bed.manager.files.volumes.list_pod_dirs().unwrap(), []);
    assert!(bed.status(&pod).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stopping_what_is_gone_is_success() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    bed.up(&pod).await;
    let running = bed.status(&pod).await.to_running_pod();
    for id in [app_name(&pod), pause_name(&pod)] {
        bed.engine.remove_container(&id, true).await.unwrap();
    }
    let result = bed.manager.kill_pod(Some(&pod), &running, None).await;
    assert_eq!(result.error(), None);
    bed.manager.delete_pod(&PodUid::of(&pod)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_step_begins_once_cancelled() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let cancel = CancellationToken::new();
    cancel.cancel();
    bed.round_until(&pod, &cancel).await;
    assert_eq!(bed.operations(), []);

    let cancel = CancellationToken::new();
    bed.engine.hold(Operation::StartContainer);
    let walk = bed.round_until(&pod, &cancel);
    let interrupt = async {
        while bed.engine.count(Operation::StartContainer) == 0
            || bed.engine.count(Operation::CreateContainer) < 2
        {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
        bed.engine.release(Operation::StartContainer);
    };
    futures::future::join(walk, interrupt).await;
    assert_eq!(
        bed.containers(),
        [running(pause_name(&pod))],
        "what was on its way is finished, no more is started"
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_too_many_sub_paths_starts_nothing() {
    let bed = Bed::warm().await;
    let mount = |n: usize| json!({"name": "v", "mountPath": format!("/m/{n}"), "subPath": "s"});
    let mounts: Vec<Value> = (0..257).map(mount).collect();
    let pod = pod(
        "a",
        &json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "app",
                "image": "app:1",
                "imagePullPolicy": "IfNotPresent",
                "volumeMounts": mounts,
            }],
        }),
    );
    let error = bed.round(&pod).await.error().unwrap();
    // docker 41
    assert!(error.contains("FailedMount: 257 volumeMounts"), "{error}");
    assert_eq!(bed.operations(), []);
}

/// A release before this one started it.
#[tokio::test(start_paused = true)]
async fn what_runs_with_too_many_sub_paths_is_started_again() {
    let bed = Bed::warm().await;
    let few = pod("a", &json!({}));
    bed.up(&few).await;
    bed.engine.exit(&app_name(&few), 1);
    // The event is lost; the list tells.
    bed.manager.get_pods(true).await.unwrap();
    let mount = |n: usize| json!({"name": "v", "mountPath": format!("/m/{n}"), "subPath": "s"});
    let mounts: Vec<Value> = (0..257).map(mount).collect();
    let many = pod(
        "a",
        &json!({
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{
                "name": "app",
                "image": "absent:1",
                "imagePullPolicy": "Never",
                "volumeMounts": mounts,
            }],
        }),
    );
    let result = bed.round(&many).await;
    // It has come as far as the image, which isn't there: nothing is mounted.
    let error = result.error().unwrap_or_default();
    // docker 41
    assert!(error.contains("ErrImageNeverPull"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_container_in_its_sandboxs_network_names_no_network_of_its_own() {
    let bed = Bed::warm().await;
    let pod = pod(
        "a",
        &json!({
            "hostname": "named",
            "dnsPolicy": "None",
            "dnsConfig": {"nameservers": ["192.0.2.53"], "searches": ["example.org"]},
            "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["alias"]}],
            "containers": [{
                "name": "app",
                "image": "app:1",
                "imagePullPolicy": "IfNotPresent",
                "ports": [{"containerPort": 80, "hostPort": 8080}],
            }],
        }),
    );
    bed.up(&pod).await;
    let body = bed.engine.created(&app_name(&pod)).unwrap();
    let host = body.host_config.unwrap();
    assert!(host.network_mode.unwrap().starts_with("container:"));
    assert_eq!(body.hostname.unwrap_or_default(), "");
    assert_eq!(body.domainname.unwrap_or_default(), "");
    assert!(body.exposed_ports.unwrap_or_default().is_empty());
    assert!(host.port_bindings.unwrap_or_default().is_empty());
    assert!(host.dns.unwrap_or_default().is_empty());
    assert!(host.dns_search.unwrap_or_default().is_empty());
    assert!(host.dns_options.unwrap_or_default().is_empty());
    assert!(host.extra_hosts.unwrap_or_default().is_empty());
}

#[tokio::test(start_paused = true)]
async fn containers_of_others_are_never_touched() {
    use crate::engine::Engine;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let labels = stale(&pod).labels.unwrap();
    let body = |labels: Option<HashMap<String, String>>| ContainerCreateBody {
        image: Some("app:1".to_owned()),
        labels,
        ..ContainerCreateBody::default()
    };
    let mut others = labels.clone();
    others.insert(
        mirrorlet_core::api::keys::OWNER.to_owned(),
        "other".to_owned(),
    );
    for (name, labels) in [
        ("k8s_app_pod-a_ns_a_7".to_owned(), None),
        ("forged".to_owned(), Some(labels)),
        (app_name(&pod), Some(others)),
    ] {
        let id = bed
            .engine
            .create_container(&name, body(labels))
            .await
            .unwrap();
        bed.engine.start_container(&id).await.unwrap();
    }
    let before = bed.containers();
    let listed = bed.manager.get_pods(true).await.unwrap();
    assert_eq!(listed, Pods::default());
    let running = bed.status(&pod).await.to_running_pod();
    bed.manager.kill_pod(Some(&pod), &running, None).await;
    bed.manager.delete_pod(&PodUid::of(&pod)).await.unwrap();
    assert_eq!(bed.containers(), before);
}

#[tokio::test(start_paused = true)]
async fn a_termination_message_goes_with_its_container() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({"restartPolicy": "Never"}));
    bed.up(&pod).await;
    let body = bed.engine.created(&app_name(&pod)).unwrap();
    let mounts = body.host_config.unwrap().mounts.unwrap();
    let is_log = |m: &&bollard::models::Mount| m.target.as_deref() == Some("/dev/termination-log");
    let path = mounts.iter().find(is_log).unwrap().source.clone().unwrap();
    std::fs::write(&path, "out of beans").unwrap();
    bed.engine.exit(&app_name(&pod), 3);
    // The event is lost; the list tells.
    bed.manager.get_pods(true).await.unwrap();
    let status = bed.status(&pod).await;
    let app = &status.containers[0];
    assert_eq!((app.exit_code, &*app.message), (Some(3), "out of beans"));
    bed.manager.remains.remove(&app.id.id).await.unwrap();
    assert!(!std::path::Path::new(&path).exists());
}

/// A log driver may answer and then say nothing, for ever.
#[tokio::test(start_paused = true)]
async fn a_log_that_hangs_holds_no_look_back_for_ever() {
    let bed = Bed::warm().await;
    let app = json!({
        "name": "app",
        "image": "app:1",
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let pod = pod("a", &json!({"restartPolicy": "Never", "containers": [app]}));
    bed.up(&pod).await;
    let name = app_name(&pod);
    let said = mirrorlet_runtime::LogChunk::Stderr("out of beans".into());
    bed.engine.set_logs(&name, vec![said]);
    bed.engine.hang_logs(&name);
    bed.engine.exit(&name, 3);
    bed.manager.get_pods(true).await.unwrap();
    let look = tokio::time::timeout(Duration::from_mins(1), bed.status(&pod));
    let status = look.await.unwrap();
    let app = &status.containers[0];
    // docker 46
    assert_eq!((app.exit_code, &*app.message), (Some(3), "out of beans"));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_begins_with_a_gap_and_keeps_the_index() {
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let mut events = bed.manager.watch().await.unwrap();
    assert!(matches!(events.next().await, Some(PodEvent::Gap { .. })));
    bed.up(&pod).await;
    bed.engine.exit(&app_name(&pod), 4);
    loop {
        let told = events.next().await.unwrap();
        if let PodEvent::Changed { uid, what } = told
            && what == mirrorlet_runtime::PodEventKind::ContainerDied
        {
            assert_eq!(uid, PodUid::of(&pod));
            break;
        }
    }
    let status = bed.status(&pod).await;
    assert_eq!(status.containers[0].exit_code, Some(4));
    bed.engine.cut_events();
    while events.next().await.is_some() {}
}

#[tokio::test(start_paused = true)]
async fn the_end_of_either_stream_of_events_ends_the_subscription() {
    let bed = Bed::warm().await;
    let cuts: [fn(&FakeEngine); 2] = [FakeEngine::cut_events, FakeEngine::cut_other_events];
    for cut in cuts {
        let mut events = bed.manager.watch().await.unwrap();
        assert!(matches!(events.next().await, Some(PodEvent::Gap { .. })));
        let quiet = tokio::time::timeout(Duration::from_hours(1), events.next());
        assert!(quiet.await.is_err(), "nothing happens");
        cut(&bed.engine);
        let end = tokio::time::timeout(Duration::from_secs(1), events.next());
        // docker 61
        assert_eq!(end.await, Ok(None));
    }
}

fn actions(result: &PodSyncResult) -> Vec<(SyncAction, bool)> {
    let results = result.sync_results.iter();
    results.map(|r| (r.action, r.error.is_none())).collect()
}

#[tokio::test(start_paused = true)]
async fn networks_are_set_up_and_torn_down_unless_they_are_the_hosts() {
    use SyncAction as A;
    let bed = Bed::warm().await;
    let pod = pod("a", &json!({}));
    let result = bed.round(&pod).await;
    // docker 22a
    assert_eq!(
        actions(&result),
        [
            (A::CreatePodSandbox, true),
            (A::SetupNetwork, true),
            (A::StartContainer, true)
        ]
    );
    let running = bed.status(&pod).await.to_running_pod();
    let result = bed.manager.kill_pod(Some(&pod), &running, None).await;
    assert_eq!(
        actions(&result),
        [
            (A::KillContainer, true),
            (A::TeardownNetwork, true),
            (A::KillPodSandbox, true)
        ]
    );
    let host = self::pod("b", &json!({"hostNetwork": true}));
    let result = bed.round(&host).await;
    assert_eq!(
        actions(&result),
        [(A::CreatePodSandbox, true), (A::StartContainer, true)]
    );
    let running = bed.status(&host).await.to_running_pod();
    let result = bed.manager.kill_pod(Some(&host), &running, None).await;
    assert_eq!(
        actions(&result),
        [(A::KillContainer, true), (A::KillPodSandbox, true)]
    );
}

#[tokio::test(start_paused = true)]
async fn running_pods_in_another_network_than_new_ones_are_counted() {
    let bed = Bed::warm().await;
    let pods = [
        pod("a", &json!({})),
        pod("b", &json!({})),
        pod("host", &json!({"hostNetwork": true})),
        pod("ended", &json!({})),
    ];
    for pod in &pods {
        bed.up(pod).await;
    }
    bed.kill(&pods[3], None).await;
    let listed = bed.engine.list_containers(OWNER).await.unwrap();
    let ours = listed.into_iter().filter_map(|summary| {
        let names = summary.names.iter().flatten().map(String::as_str);
        let ours = parse_ours(OWNER, names, summary.labels.as_ref()?)?;
        Some((summary, ours))
    });
    let mut ours: Vec<_> = ours.collect();
    for mode in ["default", "bridge"] {
        // docker 22a
        assert!(in_other_networks(&ours, mode).is_empty(), "{mode}");
    }
    // docker 22a
    assert_eq!(
        in_other_networks(&ours, "pods"),
        [("bridge".to_owned(), 2)].into()
    );
    // The id of the same network, now and when they were created.
    for (summary, _) in &mut ours {
        let settings = summary.network_settings.as_mut().unwrap();
        for network in settings.networks.iter_mut().flat_map(HashMap::values_mut) {
            network.network_id = Some("b00".to_owned());
        }
    }
    // docker 22a
    assert!(in_other_networks(&ours, "b00").is_empty());
    for (summary, _) in &mut ours {
        summary.host_config.as_mut().unwrap().network_mode = Some("b00".to_owned());
    }
    // docker 22a
    assert!(in_other_networks(&ours, "default").is_empty());
    // docker 22a
    assert_eq!(
        in_other_networks(&ours, "pods"),
        [("b00".to_owned(), 2)].into()
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_made_for_a_pod_whose_network_is_missing() {
    let mut bed = Bed::warm().await;
    bed.manager = manager_in(&bed.engine, bed.root.path(), "pods");
    let pod = pod("a", &json!({}));
    let result = bed.round(&pod).await;
    assert_eq!(failures(&result), [SyncErrorReason::CreatePodSandboxError]);
    assert!(
        result
            .error()
            .unwrap()
            .contains("docker network create pods")
    );
    // docker 22a
    assert_eq!(bed.containers(), []);
    bed.engine.add_network("pods", "bridge");
    bed.up(&pod).await;
    let sandbox = bed.engine.created(&pause_name(&pod)).unwrap();
    let mode = sandbox.host_config.unwrap().network_mode;
    assert_eq!(mode.as_deref(), Some("pods"));
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_network_can_not_be_set_up_leaves_nothing() {
    let mut bed = Bed::warm().await;
    bed.engine.add_network("pods", "bridge");
    bed.manager = manager_in(&bed.engine, bed.root.path(), "pods");
    // The Engine in memory keeps no files, as if the agent did not see the real one's.
    let pod = pod(
        "a",
        &json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]}}),
    );
    let result = bed.round(&pod).await;
    assert_eq!(failures(&result), [SyncErrorReason::SetupNetworkError]);
    assert!(result.error().unwrap().contains("resolv.conf"));
    let setup = (SyncAction::SetupNetwork, false);
    assert_eq!(
        actions(&result)[..2],
        [(SyncAction::CreatePodSandbox, true), setup]
    );
    // docker 22a
    assert_eq!(bed.containers(), []);
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_in_a_network_that_gives_no_address() {
    let bed = Bed::warm().await;
    bed.engine.give_addresses(false);
    let pod = pod("a", &json!({}));
    let result = bed.round(&pod).await;
    assert_eq!(failures(&result), [SyncErrorReason::SetupNetworkError]);
    let told = result.error().unwrap();
    assert!(told.contains("docker network inspect bridge"), "{told}");
    // docker 22a
    assert_eq!(bed.containers(), []);
    // One in the host's network needs none.
    bed.up(&self::pod("b", &json!({"hostNetwork": true}))).await;
    bed.engine.give_addresses(true);
    bed.up(&pod).await;
}

#[tokio::test(start_paused = true)]
async fn an_image_that_is_too_large_keeps_its_own_pods_from_starting_alone() {
    let bed = Bed::warm().await;
    bed.engine.add_image("large:1", FakeImage::default());
    let large = EngineError::TooLarge {
        what: "the configuration of the image",
        max: 2 << 20,
    };
    let inspect = Operation::InspectImage;
    bed.engine
        .fail(inspect, Some("large:1"), FaultPoint::Before, large);
    let container = json!({"name": "app", "image": "large:1", "imagePullPolicy": "IfNotPresent"});
    let failed = bed
        .round(&pod("a", &json!({"containers": [container]})))
        .await;
    // tenants H3
    assert_eq!(failures(&failed), [SyncErrorReason::ImageInspectError]);
    assert!(failed.error().unwrap().contains("is larger than 2 MiB"));
    assert_eq!(bed.engine.count(Operation::PullImage), 0);
    bed.up(&pod("b", &json!({}))).await;
}

/// A disk that hangs for a pod: whoever reads its restart count waits.
struct HungDisk(std::path::PathBuf);

impl HungDisk {
    fn of(bed: &Bed, pod: &Pod) -> Self {
        let volumes = &bed.manager.files.volumes;
        let path = volumes.ensure_termination_log(&PodUid::of(pod), "app");
        let pipe = path.unwrap().with_file_name("restarts");
        // One of an earlier start, which may not have been noted.
        let _ = std::fs::remove_file(&pipe);
        // Whoever opens a pipe waits for its other end.
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        Self(pipe)
    }

    fn answers(self) {
        let mut other_end = std::fs::OpenOptions::new();
        let other_end = other_end.write(true).read(true).open(&self.0).unwrap();
        std::io::Write::write_all(&mut &other_end, b"4294967295").unwrap();
        // Never closed: a thread that comes late would wait for ever.
        std::mem::forget(other_end);
    }
}

/// On real time: threads wait for the disk.
#[tokio::test]
async fn pods_whose_disk_hangs_delay_no_other() {
    let bed = Bed::warm().await;
    let cancel = CancellationToken::new();
    let hung: Vec<_> = (0..8).map(|n| pod(&format!("h{n}"), &json!({}))).collect();
    let disks: Vec<_> = hung.iter().map(|pod| HungDisk::of(&bed, pod)).collect();
    let rounds = hung.iter().map(|pod| bed.round_until(pod, &cancel));
    let mut rounds = Box::pin(futures::future::join_all(rounds));
    let other = pod("a", &json!({}));
    let patience = Duration::from_mins(1);
    let up = tokio::time::timeout(patience, async {
        tokio::select! {
            _ = &mut rounds => panic!("their disk hangs"),
            () = bed.up(&other) => {}
        }
    });
    let up = up.await;
    // And those that are removed meanwhile end.
    cancel.cancel();
    let ended = tokio::time::timeout(patience, rounds).await;
    for disk in disks {
        disk.answers();
    }
    // docker 60a
    assert!(up.is_ok(), "it waited for the others");
    assert!(ended.is_ok(), "they did not end");
    assert_eq!(
        bed.containers(),
        [running(pause_name(&other)), running(app_name(&other))]
    );
}

/// On real time, too.
#[tokio::test]
async fn a_pod_that_is_removed_while_its_disk_hangs_at_a_restart_ends() {
    let bed = Bed::warm().await;
    let a = pod("a", &json!({}));
    bed.up(&a).await;
    bed.engine.exit(&app_name(&a), 1);
    // The event is lost; the list tells.
    bed.manager.get_pods(true).await.unwrap();
    let disk = HungDisk::of(&bed, &a);
    let cancel = CancellationToken::new();
    let patience = Duration::from_mins(1);
    let mut round = Box::pin(bed.round_until(&a, &cancel));
    let other = pod("b", &json!({}));
    let up = tokio::time::timeout(patience, async {
        tokio::select! {
            _ = &mut round => panic!("its disk hangs"),
            () = bed.up(&other) => {}
        }
    });
    let up = up.await;
    cancel.cancel();
    let ended = tokio::time::timeout(patience, round).await;
    disk.answers();
    assert!(up.is_ok(), "another one waited for it");
    // docker 60a
    assert!(ended.is_ok(), "it did not end");
    bed.down(&a).await;
}

#[tokio::test(start_paused = true)]
async fn only_host_ports_that_would_be_bound_hold_an_edit() {
    let bed = Bed::warm().await;
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = json!({
        "containerPort": 80, "hostIP": "127.0.0.1", "protocol": "TCP",
        "hostPort": socket.local_addr().unwrap().port(),
    });
    let container = |name: &str, more: Value| {
        let mut whole = json!({
            "name": name, "image": "app:1", "imagePullPolicy": "IfNotPresent", "ports": [port],
        });
        let more = more.as_object().unwrap().clone();
        whole.as_object_mut().unwrap().extend(more);
        whole
    };
    let (old, cancel) = (pod("a", &json!({})), CancellationToken::new());
    for (spec, is_held) in [
        (
            json!({"initContainers": [container("i", json!({}))]}),
            false,
        ),
        (
            json!({"initContainers": [container("i", json!({"restartPolicy": "Always"}))]}),
            true,
        ),
        (json!({"containers": [container("app", json!({}))]}), true),
    ] {
        let new = pod("b", &spec);
        let prepared = bed
            .manager
            .prepare_pod(&new, &[Arc::clone(&old)], &cancel)
            .await;
        assert_eq!(prepared.is_err(), is_held, "{spec}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_port_that_is_taken_is_told_with_its_holder() {
    let bed = Bed::warm().await;
    let holder = pod(
        "a",
        &json!({"containers": [{
            "name": "app", "image": "app:1", "imagePullPolicy": "IfNotPresent",
            "ports": [{"containerPort": 80, "hostPort": 8080}],
        }]}),
    );
    bed.up(&holder).await;
    let other = pod("b", &json!({}));
    let taken = api_error(
        500,
        "driver failed programming external connectivity on endpoint x: Bind for 0.0.0.0:8080 failed: port is already allocated",
    );
    let sandbox = pause_name(&other);
    let fault = FaultPoint::Before;
    bed.engine
        .fail(Operation::StartContainer, None, fault, taken);
    let result = bed.round(&other).await;
    let error = result.error().unwrap();
    // docker 22b
    assert!(
        error.contains("host port 8080 is in use by pod ns/pod-a"),
        "{error}"
    );
    assert!(!bed.containers().iter().any(|(name, _)| *name == sandbox));
    let told = bed.manager.telemetry.journal.story(&FullName::of(&other));
    assert!(
        told.iter()
            .any(|entry| &*entry.reason == "HostPortConflict")
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_cluster_is_told_that_the_clusters_dns_is_missing() {
    let bed = Bed::warm().await;
    for (uid, source, expected) in [("a", "file", Told::Trace), ("b", "api", Told::Warning)] {
        let mut pod = Pod::clone(&pod(uid, &json!({"dnsPolicy": "ClusterFirst"})));
        let annotation = ("kubernetes.io/config.source".to_owned(), source.to_owned());
        pod.metadata.annotations = Some([annotation].into());
        let pod = Arc::new(pod);
        bed.up(&pod).await;
        let story = bed.manager.telemetry.journal.story(&FullName::of(&pod));
        let told = story.iter().find(|e| &*e.reason == "MissingClusterDNS");
        // docker 20
        assert_eq!(told.map(|entry| entry.kind), Some(expected), "{source}");
    }
}
