//! Lifecycle hooks on the Engine in memory.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::fake_engine::ExecScript;
use crate::hooks::{HandlerRunner, HookTime};
use mirrorlet_core::api::core::Container;
use mirrorlet_host::shortage::WORDS;
use mirrorlet_host::telemetry::journal::Kind;

fn app(name: &str, lifecycle: &Value) -> Value {
    json!({
        "name": name, "image": "app:1", "imagePullPolicy": "IfNotPresent", "lifecycle": lifecycle,
    })
}

fn exec(program: &str) -> Value {
    json!({"exec": {"command": [program]}})
}

fn sleep(seconds: u64) -> Value {
    json!({"sleep": {"seconds": seconds}})
}

fn exits(code: i32) -> ExecScript {
    ExecScript {
        exit_code: code,
        ..ExecScript::default()
    }
}

/// The grace that a container was stopped with, in seconds.
async fn stopped_with(bed: &Bed, container: &str) -> u64 {
    let prefix = format!("k8s_{container}_");
    for (id, grace) in bed.engine.stops() {
        if bed.name_of(&id).await.starts_with(&prefix) {
            return grace.as_secs();
        }
    }
    panic!("{container} was not stopped");
}

/// Reasons of the pod's events.
fn events(manager: &DockerManager, pod: &Pod) -> Vec<String> {
    let story = manager.telemetry.journal.story(&FullName::of(pod));
    let told = story.iter().filter(|entry| entry.kind == Kind::Warning);
    told.map(|entry| format!("{} {}", entry.reason, entry.message))
        .collect()
}

/// Starts a pod with that preStop hook. The command `hangs` ends with its container only.
async fn up_with_hook(bed: &Bed, hook: &Value) -> Arc<Pod> {
    let hangs = ExecScript {
        hangs: true,
        ..ExecScript::default()
    };
    bed.engine.script_exec("hangs", hangs);
    let container = app("app", &json!({"preStop": hook}));
    let pod = pod("a", &json!({"containers": [container]}));
    bed.up(&pod).await;
    pod
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_uses_up_the_grace() {
    let none = Duration::ZERO;
    for (hook, given, stop, commands, warning) in [
        (sleep(15), None, 30, 0, ""),
        (sleep(44), None, 2, 0, ""),
        // Longer than the grace: it ends with its container, which has its minimum still. What
        // slept has not failed, and a command has.
        (sleep(1000), None, 2, 0, ""),
        (
            exec("hangs"),
            None,
            2,
            1,
            "FailedPreStopHook PreStopHook failed",
        ),
        (exec("good"), None, 45, 1, ""),
        (
            exec("bad"),
            None,
            45,
            1,
            "FailedPreStopHook PreStopHook failed",
        ),
        (
            json!({"tcpSocket": {"port": 80}}),
            None,
            45,
            0,
            "FailedPreStopHook PreStopHook failed",
        ),
        // No time, no hook.
        (exec("good"), Some(none), 2, 0, ""),
        (exec("good"), Some(Duration::from_secs(7)), 7, 1, ""),
    ] {
        let bed = Bed::warm().await;
        bed.engine.script_exec("bad", exits(3));
        let pod = up_with_hook(&bed, &hook).await;
        bed.engine.clear_calls();
        bed.kill(&pod, given).await;
        // docker 32
        assert_eq!(stopped_with(&bed, "app").await, stop, "{hook}");
        assert_eq!(bed.engine.count(Operation::StartExec), commands, "{hook}");
        let warnings = events(&bed.manager, &pod);
        let expected = Some(warning.to_owned()).filter(|text| !text.is_empty());
        assert_eq!(warnings.first().cloned(), expected, "{hook}");
    }
}

#[tokio::test]
async fn no_grace_is_too_long_for_a_pre_stop_hook() {
    let (port, serving) = answering(["200 OK"]).await;
    let request = json!({"httpGet": {"host": "127.0.0.1", "port": port}});
    for (hook, commands) in [(exec("good"), 1), (request, 0)] {
        let bed = Bed::warm().await;
        bed.engine.script_exec("good", exits(0));
        let spec = json!({
            "terminationGracePeriodSeconds": i64::MAX,
            "containers": [app("app", &json!({"preStop": hook}))],
        });
        let pod = pod("a", &spec);
        bed.up(&pod).await;
        bed.engine.clear_calls();
        bed.kill(&pod, None).await;
        // pods 44a
        assert_eq!(events(&bed.manager, &pod), [""; 0], "{hook}");
        assert_eq!(bed.engine.count(Operation::StartExec), commands, "{hook}");
        assert!(!bed.status(&pod).await.anything_running(), "{hook}");
    }
    assert_eq!(serving.await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_ends_with_its_container_and_with_a_stop_that_fails() {
    // Accepts connections and answers none.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let silent = json!({"httpGet": {"host": "127.0.0.1", "port": port}});
    let failed = ["FailedPreStopHook PreStopHook failed"];
    for (hook, away, warnings) in [
        (exec("hangs"), false, &failed[..]),
        (exec("hangs"), true, &[]),
        (silent, false, &failed),
        (sleep(1000), true, &[]),
    ] {
        let bed = Bed::warm().await;
        let pod = up_with_hook(&bed, &hook).await;
        if away {
            let error = EngineError::Unavailable {
                endpoint: "e".to_owned(),
                cause: "c".to_owned(),
                is_shortage: false,
            };
            let operation = Operation::StopContainer;
            bed.engine.fail(operation, None, FaultPoint::Before, error);
        }
        let began = Instant::now();
        let running = bed.status(&pod).await.to_running_pod();
        let killed = bed.manager.kill_pod(Some(&pod), &running, None).await;
        assert_eq!(killed.error().is_some(), away, "{hook}");
        assert_eq!(began.elapsed().as_secs(), 45, "{hook}");
        assert_eq!(events(&bed.manager, &pod), warnings, "{hook}");
    }
}

/// Longer than a walk that is given up may take.
const PATIENCE: Duration = Duration::from_mins(10);

/// Of one container and of the whole pod, in the hook or in the stop itself.
#[tokio::test(start_paused = true)]
async fn a_cancelled_walk_gives_its_stop_up_and_the_next_one_has_its_own_grace() {
    let edits = [
        ("/spec/containers/0/image", json!("app:2")),
        ("/spec/hostNetwork", json!(true)),
    ];
    for (at, value) in edits {
        for in_the_hook in [true, false] {
            let bed = Bed::warm().await;
            let hook = if in_the_hook { "hangs" } else { "ends" };
            bed.engine.script_exec("ends", exits(0));
            let before = up_with_hook(&bed, &exec(hook)).await;
            let mut edited = serde_json::to_value(&*before).unwrap();
            edited["spec"]["hostNetwork"] = json!(false);
            *edited.pointer_mut(at).unwrap() = value.clone();
            let pod: Arc<Pod> = Arc::new(serde_json::from_value(edited).unwrap());
            bed.engine.clear_calls();
            bed.engine.hold(Operation::StopContainer);
            let cancel = CancellationToken::new();
            let began = Instant::now();
            let interrupt = async {
                tokio::time::sleep(Duration::from_secs(10)).await;
                cancel.cancel();
            };
            let walk = tokio::time::timeout(PATIENCE, bed.round_until(&pod, &cancel));
            let (result, ()) = futures::future::join(walk, interrupt).await;
            assert_eq!(result.unwrap().error(), None, "{at} {hook}");
            // pods 44
            assert_eq!(began.elapsed().as_secs(), 10, "{at} {hook}");
            assert_eq!(bed.engine.count(Operation::CreateContainer), 0);
            bed.engine.release(Operation::StopContainer);
            bed.engine.clear_calls();
            bed.kill(&pod, Some(Duration::from_secs(3))).await;
            let grace = stopped_with(&bed, "app").await;
            assert!(grace <= 3, "{at} {hook}: {grace}");
            let status = bed.status(&pod).await;
            assert!(!status.anything_running(), "{at} {hook}");
            // The end that came is ours.
            assert!(status.containers.iter().all(|c| c.by_hand.is_none()));
            bed.manager.delete_pod(&PodUid::of(&pod)).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn without_its_pod_a_containers_hook_is_what_its_labels_say() {
    let bed = Bed::warm().await;
    let lifecycle = json!({"preStop": sleep(15)});
    let pod = pod("a", &json!({"containers": [app("app", &lifecycle)]}));
    bed.up(&pod).await;
    bed.engine.clear_calls();
    let anew = manager(&bed.engine, bed.root.path());
    let listed = anew.get_pods(false).await.unwrap();
    let running = listed.find_pod_by_id(&PodUid::of(&pod));
    assert_eq!(anew.kill_pod(None, &running, None).await.error(), None);
    assert_eq!(stopped_with(&bed, "app").await, 30);
}

#[tokio::test(start_paused = true)]
async fn sidecars_wait_within_their_grace_for_those_before_them() {
    let bed = Bed::warm().await;
    let sidecar = |name: &str, seconds| {
        let mut sidecar = app(name, &json!({"preStop": sleep(seconds)}));
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let pod = pod(
        "a",
        &json!({
            "initContainers": [sidecar("first", 1), sidecar("second", 20)],
            "containers": [app("x", &json!({"preStop": sleep(10)}))],
        }),
    );
    bed.up(&pod).await;
    bed.engine.clear_calls();
    let began = Instant::now();
    bed.kill(&pod, None).await;
    // All hooks run at once: the longest one is all that they take.
    assert_eq!(began.elapsed().as_secs(), 20);
    assert_eq!(stopped_with(&bed, "x").await, 35);
    assert_eq!(stopped_with(&bed, "second").await, 25);
    assert_eq!(stopped_with(&bed, "first").await, 25);
}

#[tokio::test(start_paused = true)]
async fn a_post_start_hook_holds_back_later_starts_only() {
    let bed = Bed::warm().await;
    let pod = pod(
        "a",
        &json!({"containers": [
            app("x", &json!({})),
            app("y", &json!({"postStart": sleep(5)})),
            app("z", &json!({})),
        ]}),
    );
    let began = Instant::now();
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        let count = |operation| bed.engine.count(operation);
        (
            count(Operation::CreateContainer),
            count(Operation::StartContainer),
        )
    };
    let (result, meanwhile) = tokio::join!(bed.round(&pod), meanwhile);
    assert_eq!(result.error(), None);
    // docker 33
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!(
        meanwhile,
        (4, 3),
        "all are created, and the last one not started"
    );
    let calls = bed.engine.calls();
    let starts: Vec<(usize, &Call)> = calls
        .iter()
        .enumerate()
        .filter(|(_, c)| c.operation == Operation::StartContainer)
        .collect();
    let mut started = HashMap::new();
    for (position, call) in starts {
        let name = bed.name_of(&call.target).await;
        started.insert(name.split('_').nth(1).unwrap().to_owned(), position);
    }
    assert!(started["y"] < started["z"]);
    assert!(started["x"] < started["z"]);
}

#[tokio::test(start_paused = true)]
async fn a_container_whose_post_start_hook_failed_is_stopped_and_no_other() {
    let bed = Bed::warm().await;
    bed.engine.script_exec("bad", exits(3));
    let hooks = json!({"postStart": exec("bad"), "preStop": sleep(3)});
    let pod = pod(
        "a",
        &json!({"containers": [app("x", &hooks), app("y", &json!({}))]}),
    );
    let result = bed.round(&pod).await;
    assert_eq!(failures(&result), [SyncErrorReason::PostStartHookError]);
    assert_eq!(stopped_with(&bed, "x").await, 42, "its preStop hook ran");
    let status = bed.status(&pod).await;
    let state = |name| status.find_container_status_by_name(name).unwrap().state;
    assert_eq!(state("x"), ContainerState::Exited);
    assert_eq!(state("y"), ContainerState::Running);
    assert_eq!(
        events(&bed.manager, &pod),
        ["FailedPostStartHook PostStartHook failed"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_told_to_stop_waits_for_no_post_start_hook() {
    let bed = Bed::warm().await;
    let slow = app("x", &json!({"postStart": sleep(500)}));
    let pod = pod("a", &json!({"containers": [slow]}));
    let cancel = CancellationToken::new();
    let began = Instant::now();
    let told = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    };
    let (result, ()) = tokio::join!(bed.round_until(&pod, &cancel), told);
    assert_eq!(result.error(), None);
    assert_eq!(began.elapsed().as_secs(), 1);
    assert_eq!(bed.containers().len(), 2, "it is stopped with its pod");
}

/// A server with an answer for each connection in turn. Returns its port, and the heads of the requests
/// once all are answered.
async fn answering<const N: usize>(answers: [&'static str; N]) -> (u16, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await.unwrap();
            head.truncate(length);
            let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            heads.push(String::from_utf8_lossy(&head).into_owned());
        }
        heads
    });
    (port, serving)
}

#[tokio::test]
async fn an_http_hook_is_answered_by_anybody_and_falls_back_to_plain_text() {
    let (port, serving) = answering(["400 Bad Request", "500 Internal Server Error"]).await;
    let bed = Bed::warm().await;
    let hook = json!({"httpGet": {
        "scheme": "HTTPS", "host": "127.0.0.1", "port": port, "path": "/bye",
        "httpHeaders": [{"name": "Authorization", "value": "secret"}],
    }});
    let pod = pod(
        "a",
        &json!({"containers": [app("x", &json!({"postStart": hook}))]}),
    );
    assert_eq!(bed.round(&pod).await.error(), None);
    let heads = serving.await.unwrap();
    // pods 60
    assert!(heads[1].starts_with("GET /bye HTTP/1.1"), "{}", heads[1]);
    assert!(
        heads[1].contains("User-Agent: kube-lifecycle/1.35"),
        "{}",
        heads[1]
    );
    assert!(!heads[1].contains("secret"));
    assert_eq!(
        events(&bed.manager, &pod),
        [format!(
            "LifecycleHTTPFallback request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
        )]
    );
}

/// Lets that many calls of an operation fail, as this machine has nothing left to make them with.
fn run_short(bed: &Bed, operation: Operation, calls: usize) {
    for _ in 0..calls {
        let error = EngineError::Unavailable {
            endpoint: "e".to_owned(),
            cause: WORDS.to_owned(),
            is_shortage: true,
        };
        bed.engine.fail(operation, None, FaultPoint::Before, error);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hooks_command_runs_once_whatever_the_node_is_short_of() {
    for operation in [
        Operation::CreateExec,
        Operation::StartExec,
        Operation::InspectExec,
    ] {
        let bed = Bed::warm().await;
        bed.engine.script_exec("good", exits(0));
        run_short(&bed, operation, 5);
        let lifecycle = json!({"postStart": exec("good")});
        let pod = pod("a", &json!({"containers": [app("x", &lifecycle)]}));
        let result = bed.round(&pod).await;
        // pods 60
        assert_eq!(result.error(), None, "{operation}");
        let calls = |of| bed.engine.count(of) - if of == operation { 5 } else { 0 };
        // pods 60
        assert_eq!(calls(Operation::CreateExec), 1, "{operation}");
        assert_eq!(calls(Operation::StartExec), 1, "{operation}");
        assert_eq!(calls(Operation::InspectExec), 1, "{operation}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_fails_once_the_node_was_short_for_its_whole_time() {
    let bed = Bed::warm().await;
    run_short(&bed, Operation::CreateExec, 1000);
    let lifecycle = json!({"postStart": exec("good")});
    let up = pod("a", &json!({"containers": [app("x", &lifecycle)]}));
    let began = Instant::now();
    let result = bed.round(&up).await;
    let failed = result.sync_results.iter().find_map(|r| r.error.as_ref());
    let failed = failed.unwrap();
    assert_eq!(failed.reason, SyncErrorReason::PostStartHookError);
    // pods 60
    assert!(failed.message.contains(WORDS), "{}", failed.message);
    assert_eq!(bed.engine.count(Operation::StartExec), 0);
    // Up to its time but for the last pause.
    assert!(began.elapsed() > Duration::from_mins(59));

    let bed = Bed::warm().await;
    let pod = up_with_hook(&bed, &exec("good")).await;
    run_short(&bed, Operation::CreateExec, 1000);
    let began = Instant::now();
    bed.kill(&pod, None).await;
    // pods 60
    assert_eq!(
        events(&bed.manager, &pod),
        ["FailedPreStopHook PreStopHook failed"]
    );
    assert!(began.elapsed() < Duration::from_secs(45), "its grace");
}

/// The hooks of a bed, in a world where names are resolved so.
fn resolving(
    bed: &Bed,
    look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> Hooks {
    let hooks = &bed.manager.starter.hooks;
    Hooks {
        containers: Arc::clone(&hooks.containers),
        execs: Arc::clone(&hooks.execs),
        probe: Client::resolving_by(look_up),
        files: Arc::clone(&hooks.files),
        telemetry: hooks.telemetry.clone(),
    }
}

/// The server that sends the request on may have done something for it: it is asked once.
#[tokio::test]
async fn a_hooks_request_that_was_sent_on_goes_on_from_there() {
    let (port, serving) = answering(["302 Found\r\nLocation: /next", "200 OK"]).await;
    let hook = json!({"httpGet": {"host": "db", "port": port, "path": "/start"}});
    let container = app("x", &json!({"postStart": hook}));
    let pod = pod("a", &json!({"containers": [container]}));
    let container: &Container = &pod.spec.as_ref().unwrap().containers[0];
    let bed = Bed::warm().await;
    let asked = AtomicUsize::new(0);
    let hooks = resolving(&bed, move |_| match asked.fetch_add(1, Ordering::SeqCst) {
        1 | 2 => Err(Errno::MFILE.into()),
        _ => Ok(vec![[127, 0, 0, 1].into()]),
    });
    // pods 60
    assert_eq!(hooks.post_start(&pod, container, "x").await, Ok(()));
    let heads = serving.await.unwrap();
    // pods 60
    assert!(heads[0].starts_with("GET /start "), "{}", heads[0]);
    assert!(heads[1].starts_with("GET /next "), "{}", heads[1]);
}

#[tokio::test]
async fn a_hooks_request_is_sent_once_the_node_can() {
    let (port, serving) = answering(["200 OK"]).await;
    let hook = json!({"httpGet": {"host": "db", "port": port}});
    let container = app("x", &json!({"postStart": hook}));
    let pod = pod("a", &json!({"containers": [container]}));
    let container: &Container = &pod.spec.as_ref().unwrap().containers[0];
    let bed = Bed::warm().await;
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let hooks = resolving(&bed, move |_| match count.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Err(Errno::MFILE.into()),
        _ => Ok(vec![[127, 0, 0, 1].into()]),
    });
    // pods 60
    assert_eq!(hooks.post_start(&pod, container, "x").await, Ok(()));
    // pods 60
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    assert_eq!(serving.await.unwrap().len(), 1);

    let hooks = resolving(&bed, |_| Err(Errno::MFILE.into()));
    let runner = HandlerRunner {
        hooks: &hooks,
        full_name: &FullName::of(&pod),
        uid: &PodUid::of(&pod),
        container,
        id: "x",
    };
    let lifecycle = container.lifecycle.as_ref().unwrap();
    let time = HookTime {
        max: PATIENCE,
        retries: Duration::ZERO,
    };
    let ran = runner.run(lifecycle.post_start.as_ref().unwrap(), time);
    let failed = ran.await.unwrap_err().to_string();
    // pods 60
    assert!(failed.contains(WORDS), "{failed}");
}
