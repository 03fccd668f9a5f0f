//! Failures of one container or pod that leave the others alone, under a whole agent; and the logs
//! people read then.

use std::net::TcpListener;

use crate::common::network::Network;
use crate::common::node::until;
use crate::common::{Bed, IMAGE, TestAgent, eventually, sleeper, sleeper_of};
use futures::TryStreamExt as _;
use mirrorlet_core::api::report::{ContainerReport, StatusReport};
use mirrorlet_core::logs::Instance;
use mirrorlet_runtime::{LogChunk, LogOptions, LogStream};
use tokio::net::TcpSocket;

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
    // A port that is taken and on which nobody listens: every pull is refused at once.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = taken.local_addr().unwrap();
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
        // Both in one report: a pull that is tried again has another reason meanwhile.
        let is_so = |c: &ContainerReport| match c.name.as_str() {
            "bad" => c.reason == first,
            _ => c.state == "running",
        };
        let pod = agent
            .until_pod(name, |pod| {
                !pod.containers.is_empty() && pod.containers.iter().all(is_so)
            })
            .await;
        let [bad, fine] = &pod.containers[..] else {
            panic!("{pod:?}")
        };
        assert_eq!(bad.state, "waiting");
        assert!(bad.message.contains(&image), "{bad:?}");
        // docker 31
        assert!(fine.ready && fine.restarts == 0);
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
    // docker 47
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
    // pods 42
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
    agent.stop().await;
    // It may just have been about to try again.
    let failed = |id: &String| (bed.look(id)?["State"]["ExitCode"] == 127).then_some(());
    eventually("an instance that could not start", || {
        bed.instances("bad").values().find_map(failed)
    })
    .await;

    // For good where it is not restarted.
    let agent = bed.agent().await;
    let once = beside("once", &lines).replace("spec:\n", "spec:\n  restartPolicy: Never\n");
    bed.write("once.yaml", &once);
    let bad = agent
        .until_container("once", "bad", |c| c.state == "terminated")
        .await;
    // pods 58, docker 59
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
    // docker 31
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
    // pods 58, docker 62
    let bad = agent
        // The Engine may learn of the end before it learns of the cause, and tells both.
        .until_container("greedy", "bad", |c| c.reason == "OOMKilled")
        .await;
    assert_eq!(bad.state, "terminated");
    assert_eq!(bad.exit_code, Some(137));
    agent.stop().await;
}

/// The text of a log: standard output, and standard error behind it. Which of two lines in
/// different streams was first is nobody's to say.
async fn log(agent: &TestAgent, pod: &str, options: &LogOptions, of: Instance<'_>) -> String {
    let stream = open(agent, pod, options, of).await;
    read(stream).await
}

async fn open(agent: &TestAgent, pod: &str, options: &LogOptions, of: Instance<'_>) -> LogStream {
    let uid = agent.pod(pod).unwrap().uid;
    let view = agent.view();
    let opened = view.logs(&uid, None, options, of).await;
    opened.unwrap()
}

async fn read(stream: LogStream) -> String {
    let chunks: Vec<LogChunk> = stream.try_collect().await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    for chunk in &chunks {
        match chunk {
            LogChunk::Stdout(bytes) => out += &String::from_utf8_lossy(bytes),
            LogChunk::Stderr(bytes) => {
                err.push('!');
                err += &String::from_utf8_lossy(bytes);
            }
        }
    }
    out + &err
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_of_this_instance_and_the_one_before() {
    use Instance::{Newest, Previous};
    let bed = Bed::new();
    let agent = bed.agent().await;
    let manifest = sleeper("talk").replace(
        "trap 'exit 0' TERM;",
        "trap 'echo bye; exit 0' TERM; \
         echo $(hostname) one; echo two >&2; echo three;",
    );
    bed.write("talk.yaml", &manifest);
    agent.until_running("talk").await;
    let spoken = || async {
        until("its words", async || {
            let words = log(&agent, "talk", &LogOptions::default(), Newest).await;
            let all = words.contains("three") && words.contains("two");
            if all { Ok(()) } else { Err(words) }
        })
        .await;
    };
    spoken().await;
    let uid = agent.pod("talk").unwrap().uid;
    let missing = agent
        .view()
        .logs(&uid, None, &LogOptions::default(), Previous)
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
    // docker 52
    assert_eq!(
        log(&agent, "talk", &all, Previous).await,
        "talk-box one\nthree\nbye\n!two\n"
    );
    let tail = LogOptions {
        tail: Some(1),
        ..all.clone()
    };
    assert_eq!(log(&agent, "talk", &tail, Previous).await, "bye\n");
    let stamped = LogOptions {
        timestamps: true,
        ..tail.clone()
    };
    let line = log(&agent, "talk", &stamped, Previous).await;
    let (time, text) = line.split_once(' ').unwrap();
    assert!(
        time.parse::<mirrorlet_core::api::Timestamp>().is_ok() && text == "bye\n",
        "{line}"
    );
    spoken().await;
    // A log that is followed ends with its container.
    let follow = LogOptions {
        follow: true,
        ..all
    };
    let following = open(&agent, "talk", &follow, Newest).await;
    bed.docker(&["kill", "--signal", "TERM", &bed.running_id("talk")]);
    let followed = read(following).await;
    assert!(followed.ends_with("bye\n!two\n"), "{followed}");
    agent.stop().await;
}

/// As a kubelet's admission, without an API server.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_machine_has_no_room_or_labels_for_is_refused() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    for (name, line, reason) in [
        (
            "cpu",
            "    resources: {requests: {cpu: 100000}}\n",
            "OutOfcpu",
        ),
        (
            "memory",
            "    resources: {limits: {memory: 100000Gi}}\n",
            "OutOfmemory",
        ),
        (
            "selector",
            "  nodeSelector: {disk: floppy}\n",
            "NodeAffinity",
        ),
    ] {
        let manifest = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n  - name: c\n    image: {IMAGE}\n{line}"
        );
        bed.write(&format!("{name}.yaml"), &manifest);
        let pod = agent.until_pod(name, |pod| pod.status == reason).await;
        // tenants A3, tenants A4
        assert!(
            pod.containers.iter().all(|c| c.state != "running"),
            "{pod:?}"
        );
    }
    let default = "  securityContext: {appArmorProfile: {type: RuntimeDefault}}\n";
    let profile = sleeper("profile").replace("spec:\n", &format!("spec:\n{default}"));
    bed.write("profile.yaml", &profile);
    let enabled = mirrorlet_host::app_armor_is_enabled();
    let status = if enabled { "Running" } else { "AppArmor" };
    // tenants A1
    agent.until_pod("profile", |pod| pod.status == status).await;
    bed.write("room.yaml", &sleeper("room"));
    agent.until_pod("room", |pod| pod.ready == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_missing_is_reported_before_any_pod_needs_it() {
    let bed = Bed::new();
    let name = Network::full_name("absent");
    let mut resolved = bed.resolved();
    resolved.config.network = Some(name.clone());
    let agent = bed.agent_as(resolved).await;
    let missing = |report: &StatusReport| {
        let mut missing_access = report.missing_access.iter();
        missing_access
            .any(|missing| missing.need == "PodNetwork" && missing.message.contains(&name))
    };
    agent.until("a missing network", missing).await;
    let _network = Network::new("absent");
    bed.write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    agent
        .until("an existing network", |report| !missing(report))
        .await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    agent.stop().await;
}
