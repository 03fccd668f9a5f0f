//! What goes wrong with one container or pod, and leaves the others alone, under a whole agent;
//! and the logs people read then.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

mod common;

use std::net::TcpListener;

use common::{Bed, IMAGE, TestAgent, eventually, sleeper, sleeper_of};
use futures::TryStreamExt as _;
use mirrorlet::runtime::{LogChunk, LogOptions};

/// A pod of a container `bad` with those lines, and one `fine` beside it.
fn beside(name: &str, bad: &str) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: bad
{bad}  - name: fine
    image: {IMAGE}
    command: ["sleep", "1000000"]
"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cant_be_had_stops_nobody_else() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // A port on which nobody listens: the registry refuses every pull at once.
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    for (name, image, policy, first) in [
        (
            "never",
            "mirrorlet.test/absent:1".to_owned(),
            "Never",
            "ErrImageNeverPull",
        ),
        (
            "pull",
            format!("{closed}/absent:1"),
            "IfNotPresent",
            "ImagePullBackOff",
        ),
        (
            "always",
            format!("{closed}/absent"),
            "Always",
            "ImagePullBackOff",
        ),
    ] {
        let lines = format!("    image: {image}\n    imagePullPolicy: {policy}\n");
        bed.write(&format!("{name}.yaml"), &beside(name, &lines));
        let bad = agent
            .until_container(name, "bad", |c| c.reason == first)
            .await;
        assert_eq!(bad.state, "waiting");
        assert!(bad.message.contains(&image), "{bad:?}");
        let fine = agent
            .until_container(name, "fine", |c| c.state == "running")
            .await;
        assert!(fine.ready && fine.restarts == 0);
        let pod = agent.pod(name).unwrap();
        assert_eq!(
            (pod.status.as_str(), pod.phase.as_str()),
            (first, "Pending")
        );
        assert_eq!((pod.ready, pod.containers_total), (1, 2));
    }
    assert!(bed.instances("bad").is_empty());
    // The image appears: the pod goes on without being touched.
    let tag = format!("mirrorlet.test/late:{}", &bed.owner().unwrap()[..12]);
    let lines = format!(
        "    image: {tag}\n    imagePullPolicy: Never\n    command: [sleep, \"1000000\"]\n"
    );
    bed.write("late.yaml", &beside("late", &lines));
    agent
        .until_container("late", "bad", |c| c.reason == "ErrImageNeverPull")
        .await;
    let sandbox = agent
        .until_container("late", "fine", |c| c.state == "running")
        .await
        .id;
    bed.docker(&["tag", IMAGE, &tag]);
    let pod = agent.until_running("late").await;
    bed.docker(&["rmi", &tag]);
    assert_eq!(pod.containers[1].id, sandbox, "its sibling was left alone");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_pull_delays_no_other_pod() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // A registry that takes every connection and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let image = format!("{}/slow:1", silent.local_addr().unwrap());
    bed.write("blocked.yaml", &sleeper_of("blocked", &image));
    let (_held, _) = tokio::task::spawn_blocking(move || silent.accept().map(|s| (s, silent)))
        .await
        .unwrap()
        .unwrap();
    bed.write("free.yaml", &sleeper("free"));
    agent.until_running("free").await;
    bed.docker(&["kill", &bed.running_id("free")]);
    agent
        .until_pod("free", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    let blocked = agent.pod("blocked").unwrap();
    assert_eq!((blocked.phase.as_str(), blocked.ready), ("Pending", 0));
    // It can be removed while its pull hangs.
    bed.remove("blocked.yaml");
    agent.until_gone("blocked").await;
    assert_eq!(bed.instances("POD").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_program_is_told_and_retried_with_back_off() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let lines = format!("    image: {IMAGE}\n    command: [/no/such/program]\n");
    bed.write("absent.yaml", &beside("absent", &lines));
    let bad = agent
        .until_container("absent", "bad", |c| {
            c.reason == "CrashLoopBackOff" || c.reason == "RunContainerError"
        })
        .await;
    assert!(!bad.message.is_empty(), "{bad:?}");
    let fine = agent
        .until_container("absent", "fine", |c| c.state == "running")
        .await;
    assert_eq!(fine.restarts, 0);
    let waiting = agent
        .until_container("absent", "bad", |c| c.reason == "CrashLoopBackOff")
        .await;
    assert!(waiting.restarts <= 2, "{waiting:?}");
    let (_, newest) = bed.instances("bad").into_iter().next_back().unwrap();
    assert_eq!(bed.inspect(&newest)["State"]["ExitCode"], 127);
    agent.stop().await;

    // For good where it is not restarted.
    let agent = bed.agent().await;
    let once = beside("once", &lines).replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    bed.write("once.yaml", &once);
    let bad = agent
        .until_container("once", "bad", |c| c.state == "terminated")
        .await;
    assert_eq!(
        (bad.exit_code, bad.reason.as_str()),
        (Some(127), "ContainerCannotRun")
    );
    assert!(bad.message.contains("/no/such/program"), "{bad:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_crashing_container_leaves_its_siblings_running() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let lines = format!("    image: {IMAGE}\n    command: [\"false\"]\n");
    bed.write("half.yaml", &beside("half", &lines));
    let fine = agent
        .until_container("half", "fine", |c| c.state == "running")
        .await;
    agent
        .until_container("half", "bad", |c| {
            c.restarts >= 1 && c.reason == "CrashLoopBackOff"
        })
        .await;
    let pod = agent.pod("half").unwrap();
    assert_eq!(pod.phase, "Running");
    assert_eq!(pod.containers[1].id, fine.id);
    assert_eq!(pod.containers[1].restarts, 0);
    assert_eq!(bed.instances("POD").len(), 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_limit_kills_and_says_so() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let lines = format!(
        "    image: {IMAGE}\n    command: [sh, -c, \"tail /dev/zero\"]\n    resources: {{limits: {{memory: 16Mi}}}}\n"
    );
    let manifest = beside("greedy", &lines).replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    bed.write("greedy.yaml", &manifest);
    let bad = agent
        // The Engine may learn of the end before it learns of the cause, and tells both.
        .until_container("greedy", "bad", |c| c.reason == "OOMKilled")
        .await;
    assert_eq!(bad.state, "terminated");
    assert_eq!(bad.exit_code, Some(137));
    agent.stop().await;
}

/// The text of a log, both streams together.
async fn log(agent: &TestAgent, pod: &str, options: &LogOptions, previous: bool) -> String {
    let uid = agent.pod(pod).unwrap().uid;
    let stream = agent
        .view()
        .logs(&uid, None, options, previous)
        .await
        .unwrap();
    let chunks: Vec<LogChunk> = stream.try_collect().await.unwrap();
    chunks
        .iter()
        .map(|chunk| match chunk {
            LogChunk::Stdout(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            LogChunk::Stderr(bytes) => format!("!{}", String::from_utf8_lossy(bytes)),
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_this_instance_and_the_one_before() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let manifest = sleeper("talk").replace(
        "trap 'exit 0' TERM;",
        "trap 'echo bye; exit 0' TERM; \
         echo $(hostname) one; sleep 0.3; echo two >&2; sleep 0.3; echo three;",
    );
    bed.write("talk.yaml", &manifest);
    agent.until_running("talk").await;
    let spoken = || async {
        let id = bed.running_id("talk");
        eventually("its words", || {
            bed.output(&id).contains("three").then_some(())
        })
        .await;
    };
    spoken().await;
    let uid = agent.pod("talk").unwrap().uid;
    let missing = agent
        .view()
        .logs(&uid, None, &LogOptions::default(), true)
        .await;
    assert!(
        missing
            .err()
            .unwrap()
            .to_string()
            .contains("previous terminated container"),
        "there is no instance before the first"
    );
    bed.docker(&["kill", "--signal", "TERM", &bed.running_id("talk")]);
    agent
        .until_pod("talk", |pod| pod.restarts == 1 && pod.status == "Running")
        .await;
    let all = LogOptions::default();
    assert_eq!(
        log(&agent, "talk", &all, true).await,
        "talk-box one\n!two\nthree\nbye\n"
    );
    let tail = LogOptions {
        tail: Some(1),
        ..all.clone()
    };
    assert_eq!(log(&agent, "talk", &tail, true).await, "bye\n");
    let stamped = LogOptions {
        timestamps: true,
        ..tail.clone()
    };
    let line = log(&agent, "talk", &stamped, true).await;
    let (time, text) = line.split_once(' ').unwrap();
    assert!(
        time.parse::<mirrorlet::api::Timestamp>().is_ok() && text == "bye\n",
        "{line}"
    );
    spoken().await;
    // A log that is followed ends with its container.
    let follow = LogOptions {
        follow: true,
        ..all
    };
    let (followed, ()) = tokio::join!(log(&agent, "talk", &follow, false), async {
        bed.docker(&["kill", "--signal", "TERM", &bed.running_id("talk")]);
    });
    assert!(followed.ends_with("bye\n"), "{followed}");
    agent.stop().await;
}
