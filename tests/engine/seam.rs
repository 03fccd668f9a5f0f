//! The real Engine seam against a real Docker Engine, the one at `DOCKER_HOST` or at the default
//! socket. Without an Engine these tests fail: they are the only proof that the seam holds.
//!
//! Every test owns what it creates by a label of its own and removes it at its end.

use crate::common::image::image_archive;
use crate::common::reaper;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bollard::models::{
    ContainerCreateBody, ContainerStateStatusEnum, ContainerSummaryStateEnum, EventMessage,
    HostConfig,
};
use futures::StreamExt;
use futures::stream::BoxStream;
use mirrorlet_core::api::{Timestamp, keys};
use mirrorlet_docker::BollardEngine;
use mirrorlet_docker::engine::{Engine, EngineError, READ_DEADLINE};
use mirrorlet_docker::image::{ImagePuller, PullerOptions};
use mirrorlet_docker::logs::container_logs;
use mirrorlet_docker::sandbox_image::{SANDBOX_IMAGE, archive, ensure_sandbox_image};
use mirrorlet_runtime::{LogChunk, LogOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

/// Image with a static busybox, made from the machine's own.
const BUSYBOX: &str = "mirrorlet-test/engine-busybox:1";

/// How long a test waits for something that is about to happen, before it fails.
const PATIENCE: Duration = Duration::from_mins(4);

fn endpoint() -> String {
    std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".to_owned())
}

/// A connection and everything a test created over it.
struct Bed {
    engine: BollardEngine,
    owner: String,
}

impl Bed {
    async fn new(test: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let engine = BollardEngine::connect(&endpoint()).unwrap();
        engine.version().await.expect("a Docker Engine is needed");
        let owner = format!("test-{test}-{}-{number}", std::process::id());
        reaper::remember("owner", &[&endpoint(), &owner]);
        Self { engine, owner }
    }

    async fn with_busybox(test: &str) -> Self {
        let bed = Self::new(test).await;
        bed.engine
            .load_image(busybox_archive().unwrap().into())
            .await
            .unwrap();
        bed
    }

    fn body(&self, script: &str) -> ContainerCreateBody {
        ContainerCreateBody {
            image: Some(BUSYBOX.to_owned()),
            entrypoint: Some(vec!["/busybox".into(), "sh".into(), "-c".into()]),
            cmd: Some(vec![script.to_owned()]),
            labels: Some(HashMap::from([(
                keys::OWNER.to_owned(),
                self.owner.clone(),
            )])),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        }
    }

    /// Creates and starts a container that runs a script.
    async fn run(&self, name: &str, body: ContainerCreateBody) -> String {
        let name = format!("{}-{name}", self.owner);
        let id = self.engine.create_container(&name, body).await.unwrap();
        self.engine.start_container(&id).await.unwrap();
        id
    }

    /// Waits until a container has ended, and returns its exit code.
    async fn ended(&self, id: &str) -> i64 {
        let ended = async {
            loop {
                let seen = self.engine.inspect_container(id).await.unwrap();
                let state = seen.state.unwrap();
                if state.status == Some(ContainerStateStatusEnum::EXITED) {
                    return state.exit_code.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap()
    }

    /// Waits until the first process of a container is as wanted, by its `/proc/PID/status`.
    async fn until_process(&self, id: &str, wanted: impl Fn(&HashMap<&str, &str>) -> bool) {
        let seen = self.engine.inspect_container(id).await.unwrap();
        let pid = seen.state.unwrap().pid.unwrap();
        let is_so = || {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let fields = status.lines().filter_map(|line| line.split_once(':'));
            wanted(&fields.map(|(name, value)| (name, value.trim())).collect())
        };
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap();
    }

    async fn log(&self, id: &str, options: &LogOptions, tty: bool) -> (Vec<u8>, Vec<u8>) {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut log = container_logs(&self.engine, id, options, tty)
            .await
            .unwrap();
        while let Some(chunk) = tokio::time::timeout(PATIENCE, log.next()).await.unwrap() {
            match chunk.unwrap() {
                LogChunk::Stdout(data) => stdout.extend(data),
                LogChunk::Stderr(data) => stderr.extend(data),
            }
        }
        (stdout, stderr)
    }
}

impl Drop for Bed {
    /// Removes what the test created, also when it failed. A runtime of its own, since the
    /// test's may be going down.
    fn drop(&mut self) {
        let owner = self.owner.clone();
        let sweep = async move {
            let engine = BollardEngine::connect(&endpoint()).unwrap();
            for container in engine.list_containers(&owner).await.unwrap() {
                let id = container.id.unwrap();
                engine.remove_container(&id, true).await.unwrap();
            }
        };
        let runtime = || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
        };
        let swept = std::thread::spawn(move || runtime().unwrap().block_on(sweep)).join();
        assert!(
            swept.is_ok() || std::thread::panicking(),
            "leftovers of {}",
            self.owner
        );
    }
}

/// Makes an empty file in a container.
fn touch(id: &str, file: &str) {
    let done = std::process::Command::new("docker")
        .args(["-H", &endpoint(), "exec", id, "/busybox", "touch", file])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

fn busybox_archive() -> io::Result<Vec<u8>> {
    image_archive(BUSYBOX, &serde_json::json!({ "User": "0" }))
}

fn what(event: &EventMessage) -> (String, Option<String>) {
    let attributes = event.actor.as_ref().unwrap().attributes.as_ref().unwrap();
    (
        event.action.clone().unwrap(),
        attributes.get("exitCode").cloned(),
    )
}

async fn next(events: &mut BoxStream<'static, Result<EventMessage, EngineError>>) -> EventMessage {
    let event = tokio::time::timeout(PATIENCE, events.next()).await;
    event
        .expect("no event came")
        .expect("the stream ended")
        .unwrap()
}

#[tokio::test]
async fn a_container_lives_its_whole_life() {
    let bed = Bed::with_busybox("life").await;
    let version = bed.engine.version().await.unwrap();
    assert!(!version.version.is_empty() && version.api_version.0 == 1);
    assert!(bed.engine.info().await.unwrap().ncpu.unwrap() > 0);
    let mut events = bed.engine.events(&bed.owner, None).await.unwrap();

    let id = bed
        .run(
            "a",
            bed.body("trap 'exit 5' TERM; while :; do /busybox sleep 0.05; done"),
        )
        .await;
    bed.engine
        .start_container(&id)
        .await
        .expect("one that runs already is success");
    let listed = bed.engine.list_containers(&bed.owner).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].state, Some(ContainerSummaryStateEnum::RUNNING));
    let taken = bed
        .engine
        .create_container(&format!("{}-a", bed.owner), bed.body("true"))
        .await
        .unwrap_err();
    assert!(
        taken.is_conflict() && taken.to_string().contains(&id),
        "{taken}"
    );
    assert!(
        bed.engine
            .remove_container(&id, false)
            .await
            .unwrap_err()
            .is_conflict()
    );

    // Before it has set its trap, the first process of a namespace would not notice SIGTERM.
    let traps = |field: &HashMap<&str, &str>| {
        u64::from_str_radix(field["SigCgt"], 16).unwrap() & (1 << 14) != 0
    };
    bed.until_process(&id, traps).await;
    bed.engine
        .stop_container(&id, Duration::from_mins(1))
        .await
        .unwrap();
    bed.engine
        .stop_container(&id, Duration::ZERO)
        .await
        .expect("one that ended is success");
    assert_eq!(bed.ended(&id).await, 5);
    bed.engine.remove_container(&id, false).await.unwrap();
    for result in [
        bed.engine.start_container(&id).await,
        bed.engine.stop_container(&id, Duration::ZERO).await,
        bed.engine.remove_container(&id, false).await,
        bed.engine.inspect_container(&id).await.map(|_| ()),
    ] {
        assert!(result.unwrap_err().is_not_found());
    }
    let mut seen = Vec::new();
    while seen.last() != Some(&("destroy".to_owned(), None)) {
        seen.push(what(&next(&mut events).await));
    }
    let none = |action: &str| (action.to_owned(), None);
    let died = ("die".to_owned(), Some("5".to_owned()));
    let (created, started) = (none("create"), none("start"));
    let stopped = [none("kill"), died, none("stop"), none("destroy")];
    // Engine 29 may report the stop before the end.
    if seen.get(3) == Some(&none("stop")) {
        seen.swap(3, 4);
    }
    assert_eq!(seen, [&[created, started], &stopped[..]].concat());
}

#[tokio::test]
async fn absences_and_failed_starts_are_told_apart() {
    let bed = Bed::with_busybox("faults").await;
    let mut absent = bed.body("true");
    absent.image = Some("mirrorlet-test/absent:1".to_owned());
    let error = bed
        .engine
        .create_container(&format!("{}-x", bed.owner), absent)
        .await;
    assert!(error.unwrap_err().is_not_found());
    let image = bed.engine.inspect_image("mirrorlet-test/absent:1").await;
    assert!(image.unwrap_err().is_not_found());
    assert_eq!(
        bed.engine
            .inspect_image("a/../b")
            .await
            .unwrap_err()
            .status(),
        Some(400)
    );

    let mut missing = bed.body("");
    missing.entrypoint = Some(vec!["/no-such-program".to_owned()]);
    let name = format!("{}-y", bed.owner);
    let id = bed.engine.create_container(&name, missing).await.unwrap();
    assert_eq!(
        bed.engine.start_container(&id).await.unwrap_err().status(),
        Some(400)
    );
    let state = bed
        .engine
        .inspect_container(&name)
        .await
        .unwrap()
        .state
        .unwrap();
    assert_eq!(state.status, Some(ContainerStateStatusEnum::CREATED));
    // docker 59
    assert_eq!(state.exit_code, Some(127));
}

#[tokio::test]
async fn an_image_with_large_labels_is_refused_and_its_containers_are_seen() {
    let bed = Bed::new("labels").await;
    let image = "mirrorlet-test/engine-labels:1";
    reaper::remember("image", &[&endpoint(), image]);
    let load = async |label: &str| {
        let config = serde_json::json!({ "User": "0", "Labels": { "of.image": label } });
        let archive = image_archive(image, &config).unwrap();
        bed.engine.load_image(archive.into()).await.unwrap();
    };
    load("small").await;
    let found = bed.engine.inspect_image(image).await.unwrap();
    assert_eq!(found.config.unwrap().user.as_deref(), Some("0"));
    bed.engine.remove_image(image).await.unwrap();

    load(&"x".repeat(3 << 20)).await;
    let refused = bed.engine.inspect_image(image).await;
    // tenants H3
    assert!(
        matches!(refused, Err(EngineError::TooLarge { .. })),
        "{refused:?}"
    );
    let all = bed.engine.list_images(true).await.unwrap();
    assert!(
        all.iter()
            .any(|i| i.repo_tags.iter().any(|tag| tag == image))
    );
    // As an agent of an earlier release may have left it.
    let mut body = bed.body("true");
    body.image = Some(image.to_owned());
    let id = bed.run("large", body).await;
    assert_eq!(bed.ended(&id).await, 0);
    let listed = bed.engine.list_containers(&bed.owner).await.unwrap();
    let labels = listed[0].labels.clone().unwrap();
    assert_eq!(listed[0].id.as_deref(), Some(id.as_str()));
    assert_eq!(labels.into_keys().collect::<Vec<_>>(), [keys::OWNER]);
    let used = bed.engine.images_in_use().await.unwrap();
    assert!(used.contains(listed[0].image_id.as_deref().unwrap()));
    bed.engine.remove_container(&id, true).await.unwrap();
    bed.engine.remove_image(image).await.unwrap();
}

#[tokio::test]
async fn events_are_ours_alone_and_past_ones_can_be_asked_for() {
    let bed = Bed::with_busybox("events").await;
    let other = Bed::new("events-other").await;
    let mut events = bed.engine.events(&bed.owner, None).await.unwrap();
    let foreign = other.run("f", other.body("exit 0")).await;
    other.ended(&foreign).await;
    let id = bed.run("m", bed.body("exit 9")).await;
    let created = next(&mut events).await;
    assert_eq!(
        created.actor.as_ref().unwrap().id.as_deref(),
        Some(id.as_str())
    );
    bed.ended(&id).await;
    drop(events);

    let since = Timestamp::from_nanosecond(i128::from(created.time_nano.unwrap()) + 1).unwrap();
    let mut past = bed.engine.events(&bed.owner, Some(since)).await.unwrap();
    assert_eq!(
        what(&next(&mut past).await).0,
        "start",
        "since is exact to the nanosecond"
    );
    assert_eq!(
        what(&next(&mut past).await),
        ("die".to_owned(), Some("9".to_owned()))
    );
}

#[tokio::test]
async fn the_sandbox_image_is_loaded_runs_and_comes_back() {
    let bed = Bed::new("sandbox").await;
    let engine = Arc::new(BollardEngine::connect(&endpoint()).unwrap());
    let images = ImagePuller::new(engine, PullerOptions::default());
    assert_eq!(
        ensure_sandbox_image(&bed.engine, &images, None)
            .await
            .unwrap(),
        SANDBOX_IMAGE
    );
    ensure_sandbox_image(&bed.engine, &images, None)
        .await
        .expect("loading twice changes nothing");
    let image = bed.engine.inspect_image(SANDBOX_IMAGE).await.unwrap();
    let layers = image.root_fs.unwrap().layers.unwrap();
    assert_eq!(layers.len(), 1);
    let classic = image.id.unwrap() == archive().unwrap().id;
    let api = bed.engine.version().await.unwrap().api_version;
    assert!(classic || api != (1, 41), "the classic store keeps our id");
    let mut body = bed.body("");
    body.image = Some(SANDBOX_IMAGE.to_owned());
    (body.entrypoint, body.cmd) = (None, None);
    let id = bed.run("pod", body).await;
    let state = bed
        .engine
        .inspect_container(&id)
        .await
        .unwrap()
        .state
        .unwrap();
    assert_eq!(state.status, Some(ContainerStateStatusEnum::RUNNING));
    // It sleeps nowhere but where it waits for its signals.
    let waits =
        |field: &HashMap<&str, &str>| field["Name"] == "pause" && field["State"].starts_with('S');
    bed.until_process(&id, waits).await;
    bed.engine
        .stop_container(&id, Duration::from_mins(1))
        .await
        .unwrap();
    assert_eq!(
        bed.ended(&id).await,
        0,
        "SIGTERM ends it well, without a kill"
    );
    let present = ensure_sandbox_image(&bed.engine, &images, Some(SANDBOX_IMAGE))
        .await
        .unwrap();
    // agent 5
    assert_eq!(present, SANDBOX_IMAGE);
}

#[tokio::test]
async fn logs_are_demultiplexed_joined_cut_and_followed() {
    let bed = Bed::with_busybox("logs").await;
    let script = "/busybox head -c 40000 /dev/zero | /busybox tr '\\0' x; echo; \
        echo err >&2; until [ -e /go ]; do /busybox sleep 0.1; done; echo last; \
        exec /busybox sleep 600";
    let id = bed.run("l", bed.body(script)).await;
    let follow = LogOptions {
        follow: true,
        ..LogOptions::default()
    };
    let mut log = container_logs(&bed.engine, &id, &follow, false)
        .await
        .unwrap();
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut told = false;
    while !stdout.ends_with(b"last\n") || stderr.is_empty() {
        // The last line is written once the others are in the log.
        if !told && stdout.ends_with(b"\n") && !stderr.is_empty() {
            touch(&id, "/go");
            told = true;
        }
        let chunk = tokio::time::timeout(PATIENCE, log.next()).await.unwrap();
        match chunk.unwrap().unwrap() {
            LogChunk::Stdout(data) => stdout.extend(data),
            LogChunk::Stderr(data) => stderr.extend(data),
        }
    }
    drop(log);
    assert_eq!(stdout.len(), 40_001 + 5);
    // docker 52
    assert_eq!(stderr, b"err\n");

    let stamped = LogOptions {
        timestamps: true,
        ..LogOptions::default()
    };
    let (stdout, _) = bed.log(&id, &stamped, false).await;
    let text = String::from_utf8(stdout).unwrap();
    let lines: Vec<(&str, &str)> = text.lines().map(|l| l.split_once(' ').unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(
        lines[0].1,
        "x".repeat(40_000),
        "one stamp, at the beginning of the line"
    );
    let last: Timestamp = lines[1].0.parse().unwrap();

    let since = |time| LogOptions {
        since: Some(time),
        ..LogOptions::default()
    };
    assert_eq!(bed.log(&id, &since(last), false).await.0, b"last\n");
    let after = Timestamp::from_nanosecond(last.as_nanosecond() + 1).unwrap();
    assert_eq!(
        bed.log(&id, &since(after), false).await.0,
        b"",
        "since has nanoseconds"
    );
    let tail = LogOptions {
        tail: Some(1),
        ..LogOptions::default()
    };
    assert_eq!(bed.log(&id, &tail, false).await.0, b"last\n");
    let limited = LogOptions {
        limit_bytes: Some(100),
        ..LogOptions::default()
    };
    let (stdout, stderr) = bed.log(&id, &limited, false).await;
    assert_eq!(stdout.len() + stderr.len(), 100);
    let gone = container_logs(&bed.engine, "0000000000000000", &tail, false).await;
    assert!(gone.err().unwrap().is_not_found());
}

#[tokio::test]
async fn a_terminals_output_is_left_as_it_is() {
    let bed = Bed::with_busybox("tty").await;
    let mut body = bed.body("/busybox printf '\\001\\002\\000first\\n\\001no line break'");
    body.tty = Some(true);
    let id = bed.run("t", body).await;
    // Once it has ended, its log is complete; one that is followed meanwhile may miss the rest.
    assert_eq!(bed.ended(&id).await, 0);
    let (stdout, stderr) = bed.log(&id, &LogOptions::default(), true).await;
    let text = String::from_utf8(stdout).unwrap();
    assert_eq!(text, "\x01\x02\0first\r\n\x01no line break");
    assert_eq!(stderr, b"", "a terminal has one stream");
}

#[tokio::test]
async fn an_absent_engine_is_unavailable_and_found_once_it_is_there() {
    let directory = crate::common::tempdir();
    let socket = directory.path().join("docker.sock");
    let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
    assert!(matches!(
        engine.version().await,
        Err(EngineError::Unavailable { .. })
    ));
    assert!(matches!(
        engine.events("me", None).await,
        Err(EngineError::Unavailable { .. })
    ));

    std::os::unix::fs::symlink(endpoint().trim_start_matches("unix://"), &socket).unwrap();
    // No call to version in between: it is negotiated on the way.
    assert_eq!(
        engine.list_containers("nobody-at-all").await,
        Ok(Vec::new())
    );

    std::fs::remove_file(&socket).unwrap();
    assert!(matches!(
        engine.info().await,
        Err(EngineError::Unavailable { .. })
    ));
    let refused = BollardEngine::connect("tcp://127.0.0.1:1").unwrap();
    assert!(matches!(
        refused.info().await,
        Err(EngineError::Unavailable { .. })
    ));
    assert!(BollardEngine::connect("ssh://x").is_err());
}

/// An Engine that answers `/version` with the given API, and everything else as told; it keeps
/// the request lines it saw.
async fn scripted_engine(
    listener: UnixListener,
    api: &'static str,
    answer: &'static str,
    seen: tokio::sync::mpsc::UnboundedSender<String>,
) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.windows(4).any(|w| w == b"\r\n\r\n") {
            if stream.read_buf(&mut request).await.unwrap() == 0 {
                break;
            }
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        let line = text.lines().next().unwrap_or_default().to_owned();
        let version = format!("{{\"Version\":\"9\",\"ApiVersion\":\"{api}\"}}");
        let reply = if line.contains(" /version ") {
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{version}",
                version.len()
            )
        } else {
            answer.to_owned()
        };
        seen.send(line).unwrap();
        // The client may have gone away; the next one is what matters.
        let _ = stream.write_all(reply.as_bytes()).await;
    }
}

#[tokio::test]
async fn the_version_is_agreed_on_and_paths_carry_it() {
    for (api, agreed) in [("1.41", "1.41"), ("1.47", "1.47"), ("1.56", "1.53")] {
        let directory = crate::common::tempdir();
        let socket = directory.path().join("s");
        let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = "HTTP/1.1 304 Not Modified\r\n\r\n";
        let server = tokio::spawn(scripted_engine(listener, api, answer, sender));
        let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
        engine.start_container("abc").await.unwrap();
        engine
            .stop_container("abc", Duration::from_millis(1500))
            .await
            .unwrap();
        assert!(seen.recv().await.unwrap().contains(" /version "));
        let start = format!("POST /v{agreed}/containers/abc/start HTTP/1.1");
        assert_eq!(seen.recv().await.unwrap(), start);
        let stop = seen.recv().await.unwrap();
        assert!(
            stop.starts_with(&format!("POST /v{agreed}/containers/abc/stop?")),
            "{stop}"
        );
        assert!(stop.contains("t=2"), "the grace is rounded up: {stop}");
        server.abort();
    }
}

#[tokio::test]
async fn broken_answers_are_told_apart() {
    for (api, answer, check) in [
        (
            "1.41",
            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[",
            (|e| matches!(e, EngineError::Unavailable { .. })) as fn(&EngineError) -> bool,
        ),
        ("1.41", "", |e| matches!(e, EngineError::Unavailable { .. })),
        (
            "1.41",
            "HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n[{\"State\":\"enchanted\"}]",
            |e| matches!(e, EngineError::Decode { .. }),
        ),
        (
            "1.41",
            "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\ndisk",
            |e| {
                *e == EngineError::Api {
                    status: 500,
                    message: "disk".into(),
                }
            },
        ),
        ("1.40", "", |e| {
            e.status() == Some(400) && e.to_string().contains("1.41 is required")
        }),
    ] {
        let directory = crate::common::tempdir();
        let socket = directory.path().join("s");
        let (sender, _seen) = tokio::sync::mpsc::unbounded_channel();
        let listener = UnixListener::bind(&socket).unwrap();
        let server = tokio::spawn(scripted_engine(listener, api, answer, sender));
        let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
        let error = engine.list_containers("me").await.unwrap_err();
        assert!(check(&error), "{answer:?}: {error:?}");
        server.abort();
    }
}

#[tokio::test]
async fn an_answer_that_stops_halfway_is_given_up_at_the_deadline() {
    let directory = crate::common::tempdir();
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 1024];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        let half = b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{";
        stream.write_all(half).await.unwrap();
        // From here on only the clock can end the call; closing comes after it.
        tokio::time::pause();
        stream.read(&mut request).await.unwrap()
    };
    let (result, closed) = tokio::join!(engine.list_containers("me"), server);
    let expected = EngineError::Timeout {
        operation: "list_containers",
        after: READ_DEADLINE,
    };
    assert_eq!(result, Err(expected));
    assert_eq!(closed, 0, "a call that is given up closes its connection");
}

#[tokio::test]
async fn a_dropped_stream_closes_its_connection_and_a_broken_one_says_so() {
    let directory = crate::common::tempdir();
    let socket = directory.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    let engine = BollardEngine::connect(&format!("unix://{}", socket.display())).unwrap();
    let event = "{\"Type\":\"container\",\"Action\":\"start\"}\n";
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let stream_head = format!("{head}{:x}\r\n{event}\r\n", event.len());
    let answer = async |body: &str| {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.write_all(body.as_bytes()).await.unwrap();
        stream
    };
    let version = "HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{\"ApiVersion\":\"1.41\"}";
    let server = async {
        drop(answer(version).await);
        let mut dropped = answer(&stream_head).await;
        let end = dropped.read(&mut [0; 16]).await.unwrap();
        drop(answer(&stream_head).await);
        end
    };
    let client = async {
        let mut events = engine.events("me", None).await.unwrap();
        assert_eq!(next(&mut events).await.action.as_deref(), Some("start"));
        drop(events);
        let mut events = engine.events("me", None).await.unwrap();
        assert_eq!(next(&mut events).await.action.as_deref(), Some("start"));
        let end = events.next().await;
        assert!(
            matches!(end, Some(Err(EngineError::Unavailable { .. }))),
            "{end:?}"
        );
    };
    let (end, ()) = tokio::join!(server, client);
    assert_eq!(end, 0);
}
