//! Commands on the Engine in memory: what is asked of it, and what its faults become.

use std::sync::Arc;

use bollard::models::ContainerCreateBody;
use bytes::Bytes;
use tokio::time::timeout;

use super::*;
use crate::engine::Engine;
use crate::fake_engine::{ExecScript, FakeEngine, FakeImage, FaultPoint};
use crate::manager::DockerManager;
use crate::translate::HostFacts;
use crate::{DockerManagerOptions, ImagePuller, Operation, PullerOptions};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::exec::COMMAND_OUTPUT_MAX;
use mirrorlet_runtime::objects::{ManifestObjects, PodObjects};
use mirrorlet_runtime::{LogChunk, Runtime};

const LONG: Duration = Duration::from_secs(30);

struct Bed {
    engine: Arc<FakeEngine>,
    manager: DockerManager,
    container: ContainerId,
    _root: tempfile::TempDir,
}

impl Bed {
    async fn new() -> Self {
        let engine = Arc::new(FakeEngine::new());
        engine.add_image("app:1", FakeImage::default());
        let body = ContainerCreateBody {
            image: Some("app:1".to_owned()),
            ..ContainerCreateBody::default()
        };
        let id = engine.create_container("app", body).await.unwrap();
        engine.start_container(&id).await.unwrap();
        engine.clear_calls();
        let root = tempfile::tempdir().unwrap();
        let shared: SharedEngine = engine.clone();
        let manager = DockerManager::new(
            Arc::clone(&shared),
            Arc::new(ImagePuller::new(shared, PullerOptions::default())),
            Telemetry::new(),
            DockerManagerOptions {
                owner: "me".to_owned(),
                root: root.path().to_owned(),
                node: HostFacts::default(),
                pod_infra_image: None,
                engine_concurrency: 4,
                objects: PodObjects::new(Arc::new(ManifestObjects::none())),
                host_files: mirrorlet_host::volume::HostFiles::default(),
                pod_logs_dir: None,
            },
        );
        Self {
            container: ContainerId::docker(id),
            engine,
            manager,
            _root: root,
        }
    }

    async fn run(
        &self,
        program: &str,
        after: Duration,
    ) -> Result<mirrorlet_runtime::CommandOutput> {
        let command = vec![program.to_owned(), "-x".to_owned()];
        let container = &self.container;
        self.manager
            .run_in_container(container, command, after)
            .await
    }

    fn operations(&self) -> Vec<Operation> {
        self.engine.calls().iter().map(|c| c.operation).collect()
    }
}

fn out(text: &'static str) -> LogChunk {
    LogChunk::Stdout(Bytes::from(text))
}

fn err(text: &'static str) -> LogChunk {
    LogChunk::Stderr(Bytes::from(text))
}

#[tokio::test(start_paused = true)]
async fn a_command_costs_three_calls_and_its_output_is_stdout_and_then_stderr() {
    let bed = Bed::new().await;
    bed.engine.script_exec(
        "probe",
        ExecScript {
            output: vec![out("a"), err("1"), out("b"), err("2")],
            exit_code: 3,
            ..ExecScript::default()
        },
    );
    let done = bed.run("probe", LONG).await.unwrap();
    assert_eq!(done.exit_code, 3);
    assert_eq!(done.output, "ab12");
    // docker 53
    assert_eq!(
        bed.operations(),
        [
            Operation::CreateExec,
            Operation::StartExec,
            Operation::InspectExec
        ]
    );
    assert!(!format!("{done:?}").contains("ab12"), "output is not shown");
}

#[tokio::test(start_paused = true)]
async fn too_much_output_is_cut_and_no_error() {
    let bed = Bed::new().await;
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    bed.engine.script_exec(
        "chatter",
        ExecScript {
            output: vec![LogChunk::Stdout(piece); 17],
            ..ExecScript::default()
        },
    );
    let done = bed.run("chatter", LONG).await.unwrap();
    assert_eq!(done.exit_code, 0);
    // tenants H3
    assert_eq!(done.output.len(), COMMAND_OUTPUT_MAX);
    // Hundreds may run at once.
    assert!(done.output.len() <= 10 << 10);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_does_not_run_is_refused() {
    let bed = Bed::new().await;
    bed.engine.exit(&bed.container.id, 0);
    let refused = bed.run("probe", LONG).await.unwrap_err();
    assert!(
        matches!(&refused, RuntimeError::Conflict(why) if why.contains("not running")),
        "{refused}"
    );
    assert_eq!(bed.operations(), [Operation::CreateExec]);
}

#[tokio::test(start_paused = true)]
async fn a_command_that_can_not_be_ended_is_told_of() {
    let bed = Bed::new().await;
    let hangs = ExecScript {
        hangs: true,
        // No process of this number, nor of that container, is there.
        pid: Some(i32::MAX),
        ..ExecScript::default()
    };
    bed.engine.script_exec("hang", hangs);
    let after = Duration::from_secs(1);
    let late = bed.run("hang", after).await.unwrap_err();
    assert_eq!(
        late,
        RuntimeError::Timeout {
            operation: EXEC_GOES_ON,
            after
        }
    );
    // docker 53
    assert_eq!(
        late.to_string(),
        "exec, whose process could not be killed and keeps running, got no answer within 1 s"
    );
}

#[tokio::test(start_paused = true)]
async fn an_exec_that_was_dropped_is_looked_after() {
    let bed = Bed::new().await;
    bed.engine.hold(Operation::StartExec);
    let dropped = timeout(Duration::from_secs(1), bed.run("probe", LONG)).await;
    assert!(dropped.is_err());
    let cancel = CancellationToken::new();
    cancel.cancel();
    // Waits for the look at what was dropped, and finds that it was never started.
    bed.manager.exec_sessions().run(cancel).await;
    assert!(bed.engine.count(Operation::InspectExec) > 1);
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_fails_is_told_of() {
    let bed = Bed::new().await;
    for operation in [
        Operation::CreateExec,
        Operation::StartExec,
        Operation::InspectExec,
    ] {
        let away = EngineError::Unavailable {
            endpoint: "e".to_owned(),
            cause: "c".to_owned(),
            is_shortage: false,
        };
        bed.engine.fail(operation, None, FaultPoint::Before, away);
        let failed = bed.run("probe", LONG).await.unwrap_err();
        assert!(failed.is_unavailable(), "{operation}: {failed}");
    }
}

/// It is not the command that is late: a probe is not to fail for that.
#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_answer_says_nothing_of_the_command() {
    let operations = [
        Operation::CreateExec,
        Operation::StartExec,
        Operation::InspectExec,
    ];
    for operation in operations {
        let bed = Bed::new().await;
        let late = EngineError::Timeout {
            operation: operation.as_str(),
            after: LONG,
        };
        bed.engine.fail(operation, None, FaultPoint::Before, late);
        let failed = bed.run("probe", LONG).await.unwrap_err();
        // docker 53
        assert!(failed.is_unavailable(), "{operation}: {failed}");
    }
    for operation in &operations[1..] {
        let bed = Bed::new().await;
        bed.engine.hold(*operation);
        let failed = bed.run("probe", Duration::from_secs(1)).await;
        let failed = failed.unwrap_err();
        assert!(failed.is_unavailable(), "{operation}: {failed}");
    }
}

/// The Engine answers a start before there is a process.
#[tokio::test(start_paused = true)]
async fn a_command_that_never_began_is_not_late() {
    let bed = Bed::new().await;
    let hangs = ExecScript {
        hangs: true,
        pid: None,
        ..ExecScript::default()
    };
    bed.engine.script_exec("hang", hangs);
    let failed = bed.run("hang", Duration::from_secs(1)).await.unwrap_err();
    // docker 53
    assert!(failed.is_unavailable(), "{failed}");
    assert!(
        failed.to_string().contains("exec got no answer within 1 s"),
        "{failed}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_not_seen_in_time_is_an_error() {
    let bed = Bed::new().await;
    let engine: SharedEngine = bed.engine.clone();
    let hangs = ExecScript {
        hangs: true,
        ..ExecScript::default()
    };
    bed.engine.script_exec("hang", hangs);
    let options = ExecOptions {
        command: vec!["hang".to_owned()],
        ..ExecOptions::default()
    };
    let containers = Containers::new(engine.clone(), "me".to_owned(), 1);
    let execs = Execs::new(Arc::new(containers));
    let exec = execs.create_exec(&bed.container, &options, Instant::now());
    let exec = exec.await.unwrap();
    drop(engine.start_exec(&exec.id, false).await.unwrap());
    let error = exec.ended().await.unwrap_err();
    assert!(
        error.to_string().contains("still reports it as running"),
        "{error}"
    );
}
