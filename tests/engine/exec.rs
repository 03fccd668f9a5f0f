//! Commands in containers of the real Engine: their bytes, their exit codes, and their ends.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Bed as Root, IMAGE, PATIENCE, eventually};
use mirrorlet_core::api::ContainerId;
use mirrorlet_docker::translate::HostFacts;
use mirrorlet_docker::{
    BollardEngine, DockerManager, DockerManagerOptions, ImagePuller, PullerOptions,
};
use mirrorlet_host::telemetry::Telemetry;
use mirrorlet_runtime::objects::{ManifestObjects, PodObjects};
use mirrorlet_runtime::{CommandOutput, Runtime, RuntimeError};

/// A container of its own with a manager that can enter it.
struct Bed {
    root: Root,
    manager: DockerManager,
    id: ContainerId,
}

impl Bed {
    /// A container that runs until it is removed.
    fn new() -> Self {
        Self::running(&["sleep", "1000000"])
    }

    fn running(command: &[&str]) -> Self {
        Self::with(&[], command)
    }

    fn with(flags: &[&str], command: &[&str]) -> Self {
        let root = Root::new();
        let engine = Arc::new(BollardEngine::connect(&root.docker).unwrap());
        let manager = DockerManager::new(
            Arc::clone(&engine) as _,
            Arc::new(ImagePuller::new(engine, PullerOptions::default())),
            Telemetry::new(),
            DockerManagerOptions {
                owner: "test".to_owned(),
                root: root.path().to_owned(),
                node: HostFacts::default(),
                pod_infra_image: None,
                engine_concurrency: 4,
                objects: PodObjects::new(Arc::new(ManifestObjects::none())),
                host_files: mirrorlet_host::volume::HostFiles::default(),
                pod_logs_dir: None,
            },
        );
        let mut args = vec!["run", "-d", "--network", "none"];
        args.extend(flags);
        args.push(IMAGE);
        args.extend(command);
        let id = ContainerId::docker(root.docker(&args));
        Self { root, manager, id }
    }

    async fn run(&self, command: &[&str], after: Duration) -> Result<CommandOutput, RuntimeError> {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        self.manager
            .run_in_container(&self.id, command, after)
            .await
    }

    async fn sh(&self, script: &str) -> CommandOutput {
        self.run(&["sh", "-c", script], PATIENCE).await.unwrap()
    }

    /// Processes in the container whose command line holds a text.
    fn processes(&self, holding: &str) -> usize {
        let top = self.root.docker(&["top", &self.id.id, "-eo", "pid,args"]);
        top.lines().filter(|line| line.contains(holding)).count()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.root.docker(&["rm", "-fv", &self.id.id]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_are_the_commands() {
    let bed = Bed::new();
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("no-such-program", 127)] {
        // docker 53
        assert_eq!(bed.sh(script).await.exit_code, code, "{script}");
    }
    let missing = bed.run(&["/no/such/program"], PATIENCE).await.unwrap();
    assert!(
        matches!(missing.exit_code, 126 | 127),
        "{}",
        missing.exit_code
    );
    let said = String::from_utf8_lossy(&missing.output).into_owned();
    assert!(said.contains("no such file"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_delivered_as_they_were_written() {
    let bed = Bed::new();
    let done = bed
        .sh(r"printf '\000\001\002x'; printf 'e\001\n' >&2; printf '\002'")
        .await;
    // docker 53
    assert_eq!(done.output, &b"\0\x01\x02x\x02e\x01\n"[..]);
    assert_eq!(bed.sh("true").await.output, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_killed_has_137() {
    let bed = Bed::new();
    // docker 53
    assert_eq!(bed.sh("kill -9 $$").await.exit_code, 137);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_outlives_its_time_is_ended_with_all_it_started() {
    let bed = Bed::new();
    let script =
        "sleep 71717 & (sleep 71717 &) ; trap '' TERM INT HUP; while :; do sleep 71717; done";
    let after = Duration::from_secs(1);
    let late = bed.run(&["sh", "-c", script], after).await.unwrap_err();
    // docker 53
    assert_eq!(
        late,
        RuntimeError::Timeout {
            operation: "exec",
            after
        }
    );
    // All are killed by now; the kernel buries them in its own time.
    eventually("all of them to be gone", || {
        (bed.processes("71717") == 0).then_some(())
    })
    .await;
    assert_eq!(bed.processes("sleep 1000000"), 1, "the container runs on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_nobody_waits_for_is_ended() {
    let bed = Bed::new();
    let forgotten = bed.run(&["sleep", "72727"], PATIENCE);
    tokio::select! {
        done = forgotten => panic!("{done:?}"),
        () = eventually("its process", || (bed.processes("72727") == 1).then_some(())) => {}
    }
    // docker 53
    eventually("its end", || (bed.processes("72727") == 0).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_stops_ends_what_runs_in_it() {
    let bed = Bed::new();
    let (done, ()) = tokio::join!(bed.run(&["sleep", "73737"], PATIENCE), async {
        eventually("its process", || {
            (bed.processes("73737") == 1).then_some(())
        })
        .await;
        bed.root.docker(&["kill", &bed.id.id]);
    });
    // docker 53
    assert_eq!(done.unwrap().exit_code, 137);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_run_is_refused() {
    let bed = Bed::new();
    bed.root.docker(&["pause", &bed.id.id]);
    let paused = bed.run(&["true"], PATIENCE).await.unwrap_err();
    assert!(
        matches!(&paused, RuntimeError::Conflict(why) if why.contains("paused")),
        "{paused}"
    );
    bed.root.docker(&["unpause", &bed.id.id]);
    bed.root.docker(&["kill", &bed.id.id]);
    let stopped = bed.run(&["true"], PATIENCE).await.unwrap_err();
    // docker 53
    assert!(
        matches!(&stopped, RuntimeError::Conflict(why) if why.contains("not running")),
        "{stopped}"
    );
    let gone = ContainerId::docker("f".repeat(64));
    let command = vec!["true".to_owned()];
    let gone = bed.manager.run_in_container(&gone, command, PATIENCE).await;
    assert!(gone.unwrap_err().is_not_found());
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_get_each_its_own() {
    let bed = Bed::new();
    let commands = (0..50).map(|number| {
        let bed = &bed;
        async move {
            let done = bed.sh(&format!("echo {number}; exit {number}")).await;
            assert_eq!(done.exit_code, number);
            // docker 53
            assert_eq!(done.output, format!("{number}\n"));
        }
    });
    futures::future::join_all(commands).await;
}
