//! The Docker daemon is restarted, killed, paused, started late and cut off, and the disk runs
//! full: the agent keeps going, says what it waits for, and converges without harm.
use crate::common::dockerd::{Dockerd, run};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::common::{Bed, IMAGE, TestAgent, ask, eventually, free_port, sleeper};
use mirrorlet_core::api::report::{PodReport, RolloutPhase};

/// Waits until the agent reports that it has lost the Engine, for itself and for each pod.
async fn until_lost(agent: &TestAgent) {
    let waits = |pod: &PodReport| pod.message.contains("waiting for the Docker Engine");
    agent
        .until("the loss of the Engine to be reported", |report| {
            !report.engine.reachable
                && report.engine.error.is_some()
                && report.pods.iter().all(waits)
        })
        .await;
}

async fn until_back(agent: &TestAgent) {
    agent
        .until("the Engine to be back", |report| report.engine.reachable)
        .await;
}

/// The process of the running instance of a container, and the shim that waits for its end.
fn process_and_shim(bed: &Bed, container: &str) -> [String; 2] {
    let process = bed.inspect(&bed.running_id(container))["State"]["Pid"].to_string();
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mut lines = status.lines();
    let shim = lines.find_map(|line| line.strip_prefix("PPid:")).unwrap();
    let shim = shim.trim().to_owned();
    let command = std::fs::read_to_string(format!("/proc/{shim}/cmdline")).unwrap();
    assert!(command.contains("containerd-shim"), "{command:?}");
    [process, shim]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_daemon_takes_the_containers_down_and_they_come_back() {
    let mut dockerd = Dockerd::new(false);
    let bed = Bed::on(&dockerd.host());
    let pods = ["web", "lost"];
    let agent = bed
        .agent_running(&pods.map(|name| (name, sleeper(name))))
        .await;
    // One that is told to end stops its containers first. After a kill they run on, and the next one
    // stops them: each has ended with its own code then. That of a container whose shim is gone, too,
    // nobody knows any more: the Engine says 255 (`restoredProcess.Delete` in moby 20.10).
    for (signal, restarts, codes) in [("TERM", 1, [0, 0]), ("KILL", 2, [0, 255])] {
        let before = bed.running_id("web");
        for name in pods {
            bed.until_traps(name).await;
        }
        let [process, shim] = process_and_shim(&bed, "lost");
        dockerd.end(signal);
        until_lost(&agent).await;
        if signal == "KILL" {
            run("kill", &["-KILL", &shim, &process]);
        }
        dockerd.start();
        until_back(&agent).await;
        for (name, code) in pods.into_iter().zip(codes) {
            let is_back = |pod: &PodReport| pod.restarts == restarts && pod.ready == 1;
            let pod = agent.until_pod(name, is_back).await;
            let last = pod.containers[0].last.as_ref().map(|last| last.exit_code);
            // docker 61
            assert_eq!(last, Some(code), "{signal}: {pod:?}");
            assert_eq!(pod.ips.len(), 1, "{pod:?}");
        }
        // docker 61
        assert_ne!(bed.running_id("web"), before);
        assert_eq!(bed.running().len(), 4, "{:?}", bed.running());
        // It stopped them itself.
        let events = agent.events("web-box");
        let by_hand = events.iter().find(|event| event.starts_with("ByHand"));
        assert_eq!(by_hand, None, "{signal}");
    }
    for name in pods {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    assert!(bed.containers().is_empty(), "{:?}", bed.containers());
    agent.stop().await;
}

/// An edit that is held, one that is judged and one that was undone, each while the Engine restarts.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_daemon_changes_no_verdict() {
    let mut dockerd = Dockerd::new(false);
    let bed = Bed::on(&dockerd.host());
    let gate = bed.path().join("gate");
    std::fs::create_dir(&gate).unwrap();
    let good = |name: &str| {
        let annotations = r#"  annotations: {mirrorlet.dev/min-ready-seconds: "1"}"#;
        sleeper(name).replace("spec:", &format!("{annotations}\nspec:"))
    };
    let ready_once_open = format!(
        "    readinessProbe: {{exec: {{command: [test, -e, /gate/open]}}, periodSeconds: 1, timeoutSeconds: 60}}
    volumeMounts: [{{name: gate, mountPath: /gate}}]
  volumes: [{{name: gate, hostPath: {{path: {}}}}}]
",
        gate.display()
    );
    let edits = [
        ("held", good("held") + "    imagePullPolicy: Never\n"),
        ("judged", good("judged") + &ready_once_open),
        (
            "undone",
            good("undone").replace("trap 'exit 0' TERM;", "exit 3;"),
        ),
    ];
    let agent = bed.agent().await;
    let mut uids = std::collections::BTreeMap::new();
    for (name, _) in &edits {
        bed.write(&format!("{name}.yaml"), &good(name));
    }
    for (name, _) in &edits {
        uids.insert(*name, agent.until_running(name).await.uid);
    }
    bed.until_healthy(edits.len()).await;
    for (name, edit) in &edits {
        let edit = edit
            .replace("min-ready-seconds: \"1\"", "min-ready-seconds: \"5\"")
            .replace(
                &format!("name: held\n    image: {IMAGE}"),
                "name: held\n    image: mirrorlet.test/nowhere:1",
            );
        bed.write(&format!("{name}.yaml"), &edit);
    }
    let phase = |pod: &PodReport| pod.rollout.as_ref().map(|rollout| rollout.phase);
    let as_decided = |name: &'static str, wanted: RolloutPhase, ready: usize, restarts: u32| {
        let first = uids[name].clone();
        move |pod: &PodReport| {
            let is_first = pod.uid == first;
            phase(pod) == Some(wanted)
                && (pod.ready, pod.restarts) == (ready, restarts)
                && is_first == (ready == 1)
        }
    };
    for restarts in [0, 1] {
        for (name, wanted, ready) in [
            ("held", RolloutPhase::Held, 1),
            ("judged", RolloutPhase::Judging, 0),
            ("undone", RolloutPhase::Restored, 1),
        ] {
            let pod = agent
                .until_pod(name, as_decided(name, wanted, ready, restarts))
                .await;
            // rollouts 16
            assert_eq!(pod.uid == uids[name], ready == 1, "{pod:?}");
        }
        if restarts == 0 {
            dockerd.end("TERM");
            until_lost(&agent).await;
            dockerd.start();
            until_back(&agent).await;
        }
    }
    // The judgement goes on, and the restart of its container is no failure of the version.
    std::fs::write(gate.join("open"), "").unwrap();
    agent
        .until_pod("judged", |pod| {
            pod.rollout.is_none() && pod.ready == 1 && pod.uid != uids["judged"]
        })
        .await;
    agent.stop().await;
}

/// A web server with a host port that is Ready while `gate` has a file named as what it says, and
/// takes its time to end.
fn gated(name: &str, says: &str, port: u16, rollout: &str, gate: &Path) -> String {
    let script = format!(
        "mkdir -p /w; echo {says} > /w/x; trap 'sleep 6; exit 0' TERM; httpd -f -p 8080 -h /w & wait $!; wait"
    );
    let gate = gate.display();
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {{mirrorlet.dev/rollout: {rollout}, mirrorlet.dev/min-ready-seconds: "1"}}
spec:
  terminationGracePeriodSeconds: 10
  volumes: [{{name: gate, hostPath: {{path: {gate}}}}}]
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", {script:?}]
    ports: [{{containerPort: 8080, hostPort: {port}}}]
    readinessProbe: {{exec: {{command: [test, -e, /gate/{says}]}}, periodSeconds: 1, timeoutSeconds: 60}}
    volumeMounts: [{{name: gate, mountPath: /gate, readOnly: true}}]
"#
    )
}

/// Waits until the pod of that one container runs once, has no rollout under way, and answers.
async fn until_only(agent: &TestAgent, bed: &Bed, name: &str, at: SocketAddr, says: &str) {
    agent
        .until_pod(name, |pod| pod.ready == 1 && pod.rollout.is_none())
        .await;
    eventually(&format!("{name} to say {says}"), || {
        ask(at).ok().filter(|body| body == says)
    })
    .await;
    eventually(&format!("one {name} to be left"), || {
        let all = bed.running();
        let of_pod = format!("_{name}-box_");
        let left = all.keys().filter(|container| container.contains(&of_pod));
        (left.count() == 2).then_some(())
    })
    .await;
}

/// The Engine restarts, told to or killed.
async fn restart(dockerd: &mut Dockerd, agent: &TestAgent, signal: &str) {
    dockerd.end(signal);
    until_lost(agent).await;
    dockerd.start();
    until_back(agent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_daemon_in_any_phase_of_an_edit_comes_to_its_end() {
    let mut dockerd = Dockerd::new(false);
    let bed = Bed::on(&dockerd.host());
    let gate = bed.path().join("gate");
    std::fs::create_dir(&gate).unwrap();
    let open = |says: &str| std::fs::write(gate.join(says), "").unwrap();
    let (first_port, recreate_port) = (free_port(), free_port());
    let first = |says: &str| gated("first", says, first_port, "StartFirst", &gate);
    let recreate = |says: &str| gated("recreate", says, recreate_port, "Recreate", &gate);
    let first_at: SocketAddr = (Ipv4Addr::LOCALHOST, first_port).into();
    let recreate_at: SocketAddr = (Ipv4Addr::LOCALHOST, recreate_port).into();
    let agent = bed.agent().await;
    open("one");
    bed.write("first.yaml", &first("one"));
    bed.write("recreate.yaml", &recreate("one"));
    until_only(&agent, &bed, "first", first_at, "one").await;
    until_only(&agent, &bed, "recreate", recreate_at, "one").await;
    bed.until_healthy(2).await;

    // While one is judged beside the old version, and the other in its place.
    bed.write("first.yaml", &first("two"));
    bed.write("recreate.yaml", &recreate("two"));
    eventually("the new version", || {
        ask(recreate_at).ok().filter(|body| body == "two")
    })
    .await;
    let judged = |pod: &PodReport| {
        let rollout = pod.rollout.as_ref();
        rollout.is_some_and(|rollout| rollout.phase == RolloutPhase::Judging)
    };
    agent.until_pod("first", judged).await;
    restart(&mut dockerd, &agent, "TERM").await;
    eventually("the old version to serve again", || {
        ask(first_at).ok().filter(|body| body == "one")
    })
    .await;
    agent.until_pod("first", judged).await;
    agent.until_pod("recreate", judged).await;
    open("two");
    until_only(&agent, &bed, "first", first_at, "two").await;
    until_only(&agent, &bed, "recreate", recreate_at, "two").await;

    // While the old version ends: of one whose ports were handed over, of one whose aren't.
    open("three");
    bed.write("first.yaml", &first("three"));
    eventually("the hand-over", || {
        ask(first_at).ok().filter(|body| body == "three")
    })
    .await;
    bed.write("recreate.yaml", &recreate("three"));
    eventually("connections to wait", || {
        let patience = Duration::from_millis(100);
        TcpStream::connect_timeout(&recreate_at, patience)
            .is_err()
            .then_some(())
    })
    .await;
    restart(&mut dockerd, &agent, "KILL").await;
    until_only(&agent, &bed, "first", first_at, "three").await;
    until_only(&agent, &bed, "recreate", recreate_at, "three").await;
    // rollouts 16
    assert_eq!(bed.running().len(), 4, "{:?}", bed.running());
    for name in ["first", "recreate"] {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_live_restore_containers_do_not_notice_a_restart_of_the_daemon() {
    let mut dockerd = Dockerd::new(true);
    let bed = Bed::on(&dockerd.host());
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    bed.write("ends.yaml", &sleeper("ends"));
    agent.until_running("web").await;
    agent.until_running("ends").await;
    let before = bed.running();
    let ends = bed.running_id("ends");
    let process = bed.inspect(&ends)["State"]["Pid"].to_string();

    dockerd.end("TERM");
    until_lost(&agent).await;
    // An end that no event tells of.
    run("kill", &["-KILL", &process]);
    dockerd.start();
    until_back(&agent).await;
    agent
        .until_pod("ends", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    let pod = agent.until_running("web").await;
    // docker 61
    assert_eq!(pod.restarts, 0);
    let after = bed.running();
    for (name, id) in before.iter().filter(|(_, id)| **id != ends) {
        assert_eq!(after.get(name), Some(id), "{name}");
    }
    assert_eq!(after.len(), before.len(), "{after:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_daemon_is_waited_for() {
    let dockerd = Dockerd::new(false);
    let bed = Bed::on(&dockerd.host());
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    let before = bed.running_id("web");
    dockerd.signal("STOP");
    bed.write("new.yaml", &sleeper("new"));
    // A call that isn't answered makes the agent ask for a word; without one it is said.
    agent
        .until_pod("new", |pod| {
            pod.message.contains("waiting for the Docker Engine")
        })
        .await;
    until_lost(&agent).await;
    let web = agent.pod("web").unwrap();
    assert_eq!((web.ready, web.restarts), (1, 0), "what is known stays");
    dockerd.signal("CONT");
    agent.until_running("new").await;
    let pod = agent.until_running("web").await;
    assert_eq!((pod.restarts, bed.running_id("web")), (0, before));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_driver_without_files_is_sent_no_limits() {
    let mut dockerd = Dockerd::new(false);
    dockerd.end("TERM");
    // Of all drivers that need no server it is the one that refuses options it doesn't know.
    dockerd.config =
        r#"{"log-driver": "syslog", "log-opts": {"syslog-address": "udp://127.0.0.1:9"}}"#;
    dockerd.start();
    let bed = Bed::on(&dockerd.host());
    let agent = bed.agent().await;
    bed.write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    let log = &bed.inspect(&bed.running_id("web"))["HostConfig"]["LogConfig"];
    // tenants M6
    assert_eq!(log["Type"], "syslog");
    assert!(log["Config"].get("max-size").is_none(), "{log}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_comes_late_or_hides_its_socket_is_waited_for() {
    let mut dockerd = Dockerd::new(false);
    let bed = Bed::on(&dockerd.host());
    dockerd.end("TERM");
    let _ = std::fs::remove_file(dockerd.socket());
    bed.write("web.yaml", &sleeper("web"));
    let agent = bed.agent().await;
    agent
        .until_pod("web", |pod| {
            pod.message.contains("waiting for the Docker Engine")
        })
        .await;
    until_lost(&agent).await;
    dockerd.start();
    agent.until_running("web").await;
    let before = bed.running_id("web");

    // Open connections stay; every new one fails.
    let away = dockerd.socket().with_extension("away");
    std::fs::rename(dockerd.socket(), &away).unwrap();
    for number in 0..4 {
        bed.write(
            &format!("new{number}.yaml"),
            &sleeper(&format!("new{number}")),
        );
    }
    agent
        .until("a pod to say what it waits for", |report| {
            report.pods.iter().any(|pod| {
                pod.message.contains("not reachable")
                    || pod.message.contains("waiting for the Docker Engine")
            })
        })
        .await;
    std::fs::rename(&away, dockerd.socket()).unwrap();
    for number in 0..4 {
        agent.until_running(&format!("new{number}")).await;
    }
    let pod = agent.until_running("web").await;
    assert_eq!((pod.restarts, bed.running_id("web")), (0, before));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_reported_and_pods_go_on() {
    let bed = Bed::new();
    run(
        "mount",
        &[
            "-t",
            "tmpfs",
            "-o",
            "size=1m",
            "tmpfs",
            &bed.path().display().to_string(),
        ],
    );
    let manifests = crate::common::tempdir();
    let write = |file: &str, content: &str| {
        std::fs::write(manifests.path().join(file), content).unwrap();
    };
    let mut resolved = bed.resolved();
    resolved.config.manifests = manifests.path().to_owned();
    let engine = mirrorlet_docker::BollardEngine::connect(&bed.docker).unwrap();
    let agent = bed.agent_with(resolved, std::sync::Arc::new(engine)).await;
    write("web.yaml", &sleeper("web"));
    agent.until_running("web").await;
    let before = bed.running();

    let filler = bed.path().join("filler");
    let full = std::fs::write(&filler, vec![1_u8; 2 << 20]);
    assert!(full.is_err(), "the disk is not full");
    write(
        "web.yaml",
        &format!("# An edit of no consequence.\n{}", sleeper("web")),
    );
    agent
        .until("the full disk to be reported", |report| {
            report.problems.iter().any(|problem| {
                problem.message.contains("to disk: ") && problem.message.contains("No space left")
            })
        })
        .await;
    write("new.yaml", &sleeper("new"));
    agent
        .until_pod("new", |pod| pod.message.contains("No space left"))
        .await;
    assert_eq!(bed.running().len(), before.len(), "{:?}", bed.running());
    for (name, id) in &before {
        assert_eq!(bed.running().get(name), Some(id));
    }

    std::fs::remove_file(&filler).unwrap();
    agent.until_running("new").await;
    write("web.yaml", &format!("# Another one.\n{}", sleeper("web")));
    agent
        .until("the report to be clean", |report| {
            report.problems.is_empty()
        })
        .await;
    let pod = agent.until_running("web").await;
    assert_eq!(pod.restarts, 0);
    agent.stop().await;
}
