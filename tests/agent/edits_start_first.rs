//! Edits of pods with host ports. Under `StartFirst` the new version is judged beside the old one,
//! and host ports change hands without a gap; under `Recreate` connections wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use super::containers::memory_limit_of_pod;
use crate::common::traffic::{self, Traffic};
use crate::common::{Bed, IMAGE, PATIENCE, TestAgent, ask, free_port, http, sleeper};
use mirrorlet::app::cleanup::{Leftovers, cleanup};
use mirrorlet_core::api::report::{PodReport, StatusReport};
use mirrorlet_host::nat::{self, Detour, Forward, Protocol};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A web server that answers `says`, with a host port.
fn web(says: &str, port: u16, rollout: &str) -> String {
    web_with(says, port, rollout, IMAGE, "")
}

fn web_with(says: &str, port: u16, rollout: &str, image: &str, container: &str) -> String {
    let script = traffic::server(says);
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    mirrorlet.dev/rollout: {rollout}
    mirrorlet.dev/min-ready-seconds: "1"
    mirrorlet.dev/max-restarts: "1"
    mirrorlet.dev/progress-deadline-seconds: "600"
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - name: web
    image: {image}
    command: ["sh", "-c", {script:?}]
    ports: [{{containerPort: 8080, hostPort: {port}}}]
    readinessProbe: {{httpGet: {{path: /x, port: 8080}}, periodSeconds: 1}}
{container}
"#
    )
}

async fn until_says(agent: &mut TestAgent, at: SocketAddr, says: &str) -> PodReport {
    crate::common::eventually(&format!("{at} to say {says}"), || {
        ask(at).ok().filter(|body| body == says)
    })
    .await;
    agent
        .until_pod("web", |pod| {
            pod.status == "Running" && pod.rollout.is_none() && !pod.held
        })
        .await
}

/// The host's own address in the Engine's default network. An Engine that has just made its bridge
/// names no gateway: it is the first address of the subnet then.
fn gateway(bed: &Bed) -> Ipv4Addr {
    let of = "{{(index .IPAM.Config 0).Subnet}} {{(index .IPAM.Config 0).Gateway}}";
    let printed = bed.docker(&["network", "inspect", "bridge", "--format", of]);
    let mut words = printed.split_whitespace();
    let (network, _) = words.next().unwrap().split_once('/').unwrap();
    words.next().map_or_else(
        || Ipv4Addr::from_bits(network.parse::<Ipv4Addr>().unwrap().to_bits() + 1),
        |gateway| gateway.parse().unwrap(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn host_ports_change_hands_without_a_failed_request() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    // Another agent's, on the same Engine.
    let (other_bed, other_port) = (Bed::new(), free_port());
    let other: SocketAddr = (Ipv4Addr::LOCALHOST, other_port).into();
    let mut other_agent = other_bed.agent().await;
    other_bed.write("web.yaml", &web("old", other_port, "StartFirst"));
    until_says(&mut other_agent, other, "old").await;
    other_bed.write("web.yaml", &web("new", other_port, "StartFirst"));
    bed.write("web.yaml", &web("one", port, "StartFirst"));
    let own: Ipv4Addr = gateway(&bed);
    let own: SocketAddr = (own, port).into();
    let loopback = (Ipv4Addr::LOCALHOST, port).into();
    until_says(&mut agent, loopback, "one").await;
    let traffic = [Traffic::to(loopback), Traffic::to(own)];
    bed.write("web.yaml", &web("two", port, "StartFirst"));
    until_says(&mut agent, loopback, "two").await;
    assert_eq!(ask(own).as_deref(), Ok("two"));
    // From led ports to led ports.
    bed.write("web.yaml", &web("three", port, "StartFirst"));
    until_says(&mut agent, loopback, "three").await;
    // Without an agent, too.
    agent.kill();
    assert_eq!(ask(own).as_deref(), Ok("three"));
    let mut agent = bed.agent().await;
    agent.until_running("web").await;
    crate::common::eventually("the version before to be gone", || {
        let all = bed.running();
        let webs = all.keys().filter(|name| name.starts_with("k8s_web_"));
        (webs.count() == 1).then_some(())
    })
    .await;
    // From the pod itself, too.
    let says = bed.exec("web", &format!("wget -qO- http://{own}/x"));
    assert_eq!(says, "three");
    for traffic in traffic {
        // rollouts S1
        assert_eq!(traffic.failures(), [""; 0]);
    }
    bed.write("web.yaml", &web("four", port, "Recreate"));
    until_says(&mut agent, loopback, "four").await;
    assert_eq!(ask(own).as_deref(), Ok("four"));
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    assert!(ask(own).is_err());
    until_says(&mut other_agent, other, "new").await;
    // rollouts 18
    assert_eq!(ask(other).as_deref(), Ok("new"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_put_back_while_it_ends_is_judged_by_its_new_life() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    bed.write("web.yaml", &web("one", port, "StartFirst"));
    until_says(&mut agent, at, "one").await;
    let traffic = Traffic::to(at);
    bed.write("web.yaml", &web("two", port, "StartFirst"));
    until_says(&mut agent, at, "two").await;
    // The first one has not ended yet, and its status still says that it is ready.
    bed.write("web.yaml", &web("one", port, "StartFirst"));
    until_says(&mut agent, at, "one").await;
    crate::common::eventually("the second version to be gone", || {
        let all = bed.running();
        let webs = all.keys().filter(|name| name.starts_with("k8s_web_"));
        (webs.count() == 1).then_some(())
    })
    .await;
    assert_eq!(ask(at).as_deref(), Ok("one"));
    // rollouts 32
    assert_eq!(traffic.failures(), [""; 0]);
}

/// Connections to a version that is stopping go on when one that was replaced earlier ends.
#[tokio::test(flavor = "multi_thread")]
async fn connections_stay_with_a_version_that_stops_while_an_older_one_ends() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let addresses = [Ipv4Addr::LOCALHOST, gateway(&bed)].map(|ip| SocketAddr::from((ip, port)));
    let text = |says: &str| {
        let text = slow("web", port).replace("Recreate", "StartFirst");
        text.replace("echo web", &format!("echo {says}"))
    };
    let mut ids = Vec::new();
    let mut under_way = Vec::new();
    for says in ["one", "two", "three"] {
        if says == "three" {
            under_way.extend(addresses.map(|at| TcpStream::connect(at).unwrap()));
        }
        bed.write("web.yaml", &text(says));
        until_says(&mut agent, addresses[0], says).await;
        let mut all = bed.running().into_iter();
        let new = all.find(|(name, id)| name.starts_with("k8s_web_") && !ids.contains(id));
        ids.push(new.unwrap().1);
    }
    let end = |i: usize| bed.docker(&["exec", &ids[i], "touch", "/w/go"]);
    end(0);
    let is_gone = |report: &StatusReport| report.pods.len() == 2;
    agent.until("the first version to be gone", is_gone).await;
    for stream in under_way {
        // rollouts S1
        assert_eq!(http::ask_on(stream, PATIENCE).as_deref(), Ok("two"));
    }
    end(1);
    agent.stop().await;
}

/// The network namespace of a container.
fn network_of(bed: &Bed, container: &str) -> File {
    let pid = bed.inspect(&bed.running_id(container))["State"]["Pid"].to_string();
    File::open(format!("/proc/{pid}/ns/net")).unwrap()
}

/// Answers every datagram at a pod's port 8080 with `says`, from within its network.
fn answer_datagrams(network: File, says: &'static str) {
    use std::os::fd::AsFd as _;
    std::thread::spawn(move || {
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(network.as_fd(), kind).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 8080)).unwrap();
        let mut buffer = [0; 9];
        while let Ok((_, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(says.as_bytes(), from);
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_udp_flow_follows_the_host_port_once_the_old_pod_has_ended() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let text = |says: &str| {
        let udp = format!(", {{containerPort: 8080, hostPort: {port}, protocol: UDP}}]");
        web(says, port, "StartFirst").replace(
            &format!("hostPort: {port}}}]"),
            &format!("hostPort: {port}}}{udp}"),
        )
    };
    let addresses = [Ipv4Addr::LOCALHOST, gateway(&bed)];
    let clients = addresses.map(|address| {
        let client = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        client.connect((address, port)).unwrap();
        client
    });
    for says in ["one", "two", "three"] {
        bed.write("web.yaml", &text(says));
        until_says(&mut agent, (Ipv4Addr::LOCALHOST, port).into(), says).await;
        crate::common::eventually("the version before to be gone", || {
            let all = bed.running();
            let webs = all.keys().filter(|name| name.starts_with("k8s_web_"));
            (webs.count() == 1).then_some(())
        })
        .await;
        answer_datagrams(network_of(&bed, "web"), says);
        for client in &clients {
            // rollouts S9
            crate::common::eventually(&format!("{client:?} to be answered {says}"), || {
                // Refused until there is somebody.
                let _ = client.send(b"who");
                let mut buffer = [0; 9];
                let read = client.recv(&mut buffer).ok()?;
                (buffer[..read] == *says.as_bytes()).then_some(())
            })
            .await;
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_wait_for_the_version_that_takes_the_place_of_another() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    bed.write("web.yaml", &web("one", port, "Recreate"));
    bed.write("client.yaml", &sleeper("client"));
    agent.until_running("client").await;
    let loopback = (Ipv4Addr::LOCALHOST, port).into();
    let own = (gateway(&bed), port).into();
    until_says(&mut agent, loopback, "one").await;
    let traffic = [
        Traffic::to(loopback),
        Traffic::to(own),
        Traffic::from(Some(network_of(&bed, "client")), own),
    ];
    for says in ["two", "three"] {
        bed.write("web.yaml", &web(says, port, "Recreate"));
        until_says(&mut agent, loopback, says).await;
    }
    for traffic in traffic {
        // rollouts S7
        assert_eq!(traffic.failures(), [""; 0]);
    }
    // A port that its successor doesn't have is nobody's.
    bed.write("web.yaml", &web("four", free_port(), "Recreate"));
    crate::common::eventually("the old port to refuse", || {
        ask(loopback).is_err().then_some(())
    })
    .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_wait_though_the_agent_is_killed_between_two_versions() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let recorder = bed.record();
    let at = (Ipv4Addr::LOCALHOST, port).into();
    bed.write("web.yaml", &web("one", port, "Recreate"));
    until_says(&mut agent, at, "one").await;
    let traffic = Traffic::to(at);
    // It begins to listen later than a killed agent's hold ends.
    let slow = web("two", port, "Recreate").replace("mkdir -p /w;", "mkdir -p /w; sleep 6;");
    bed.write("web.yaml", &slow);
    recorder.until("die", "k8s_web_web-box_").await;
    agent.kill();
    let mut agent = bed.agent().await;
    until_says(&mut agent, at, "two").await;
    // rollouts S8
    assert_eq!(traffic.failures(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_wait_for_a_version_that_is_put_back_before_it_has_stopped() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    let text = slow("web", port);
    bed.write("web.yaml", &text);
    until_says(&mut agent, at, "web").await;
    let traffic = Traffic::to(at);
    bed.write("web.yaml", &text.replace("echo web", "echo two"));
    let ends = |pod: &PodReport| pod.status == "Terminating";
    agent.until_pod("web", ends).await;
    let waits = |report: &StatusReport| {
        let mut pods = report.pods.iter();
        pods.any(|pod| pod.message.contains("the previous pod of this name"))
    };
    agent.until("the second version to wait", waits).await;
    bed.write("web.yaml", &text);
    let wanted = |report: &StatusReport| !waits(report);
    agent
        .until("the first version to be wanted again", wanted)
        .await;
    let before = bed.running_id("web");
    bed.exec("web", "touch /w/go");
    crate::common::eventually("another life", || {
        let mut running = bed.running().into_iter();
        running.find(|(name, id)| name.starts_with("k8s_web_") && *id != before)
    })
    .await;
    until_says(&mut agent, at, "web").await;
    // rollouts S7
    assert_eq!(traffic.failures(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_dies_leaves_no_port_that_waits() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    let deaf = |says: &str| {
        let text = web(says, port, "Recreate").replace(traffic::END, ":; sleep 1000");
        text.replace("GracePeriodSeconds: 5", "GracePeriodSeconds: 300")
    };
    bed.write("web.yaml", &deaf("one"));
    until_says(&mut agent, at, "one").await;
    bed.write("web.yaml", &deaf("two"));
    let waits = || TcpStream::connect_timeout(&at, Duration::from_millis(100)).is_err();
    crate::common::eventually("connections to wait", || waits().then_some(())).await;
    agent.kill();
    // rollouts S8
    let answer = crate::common::eventually("an answer", || ask(at).ok()).await;
    assert_eq!(answer, "one");
    cleanup(&bed.resolved().config, true).await.unwrap();
}

/// The name of a bad edit, the script that its container runs, and more of its spec and container.
type BadEdit = (&'static str, &'static str, &'static str, &'static str);

const BAD_EDITS: [BadEdit; 6] = [
    ("crash", "exit 3", "", ""),
    ("later", "sleep 3; exit 3", "", ""),
    ("unready", "sleep 1000", "", ""),
    (
        "init",
        "sleep 1000",
        "  initContainers: [{name: i, image: IMAGE, command: [\"false\"]}]",
        "",
    ),
    (
        "memory",
        "exec tail /dev/zero",
        "",
        "    resources: {limits: {memory: 16Mi}}",
    ),
    ("tag", "sleep 1000", "", "    imagePullPolicy: Never"),
];

/// A pod like [`web`]'s of another name, that runs `script` if there is one.
fn bad(edit: &BadEdit, port: u16) -> String {
    let (name, script, spec, container) = edit;
    let image = if *name == "tag" {
        "mirrorlet.test/nowhere:1"
    } else {
        IMAGE
    };
    let text = web_with("bad", port, "StartFirst", image, container);
    let text = text.replace("mkdir -p /w;", &format!("{script}; mkdir -p /w;"));
    let text = text.replace(
        "spec:\n",
        &format!("spec:\n{}\n", spec.replace("IMAGE", IMAGE)),
    );
    let text = text.replace(
        "progress-deadline-seconds: \"600\"",
        "progress-deadline-seconds: \"10\"",
    );
    text.replace("name: web", &format!("name: {name}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_bad_edit_fails_a_request() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let mut pods = Vec::new();
    for edit in BAD_EDITS {
        let (name, ..) = edit;
        let port = free_port();
        let file = format!("{name}.yaml");
        let good = web("good", port, "StartFirst").replace("name: web", &format!("name: {name}"));
        bed.write(&file, &good);
        pods.push((edit, port, file));
    }
    let mut running = Vec::new();
    for ((name, ..), port, _) in &pods {
        let at: SocketAddr = (Ipv4Addr::LOCALHOST, *port).into();
        agent
            .until_pod(name, |pod| pod.status == "Running" && pod.rollout.is_none())
            .await;
        crate::common::eventually(&format!("{name} to answer"), || ask(at).ok()).await;
        running.push((bed.running_id(name), Traffic::to(at)));
    }
    for (edit, port, file) in &pods {
        bed.write(file, &bad(edit, *port));
    }
    for ((name, ..), (id, traffic)) in BAD_EDITS.iter().zip(running) {
        let pod = agent.until_pod(name, |pod| pod.held).await;
        // A container that crashed is away for a moment before it is started again: only with its
        // sandbox gone, too, it stays away.
        crate::common::eventually(&format!("the bad {name} to be gone"), || {
            let all = bed.running();
            let of_pod = format!("_{name}-box_");
            let of = all.keys().filter(|container| container.contains(&of_pod));
            (of.count() == 2).then_some(())
        })
        .await;
        // rollouts S2
        assert_eq!(bed.running_id(name), id, "{pod:?}");
        assert_eq!(traffic.failures(), [""; 0], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_left_is_cleaned_up() {
    let (bed, port, logs) = (Bed::new(), free_port(), crate::common::tempdir());
    let mut resolved = bed.resolved();
    resolved.config.pod_logs_dir = Some(logs.path().join("pods"));
    let config = resolved.config.clone();
    let mut agent = bed.agent_as(resolved).await;
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    for says in ["one", "two"] {
        let limited = "  resources: {limits: {memory: 128Mi}}";
        bed.write(
            "web.yaml",
            &web_with(says, port, "StartFirst", IMAGE, limited),
        );
        until_says(&mut agent, at, says).await;
    }
    // rollouts S5
    assert!(cleanup(&config, true).await.is_err(), "an agent runs");
    agent.stop().await;
    // A container of an image that was made of a pod's container has all its labels.
    let all = bed.containers();
    let mut webs = all.iter().filter(|(name, _)| name.starts_with("k8s_web_"));
    let image = format!("mirrorlet.test/kept:{}", std::process::id());
    bed.docker(&["commit", webs.next().unwrap().1, &image]);
    let mine = format!("mine-{port}");
    let entry = ["--network=none", "--entrypoint=sleep", &image, "1000000"];
    bed.docker(&[&["run", "-d", "--name", &mine][..], &entry].concat());
    // Another Engine answers than the one that has the containers.
    let record = bed.path().join("engine.json");
    let used = std::fs::read_to_string(&record).unwrap();
    let mut other: serde_json::Value = serde_json::from_str(&used).unwrap();
    assert_eq!(other["address"], config.docker);
    other["address"] = "unix:///run/other.sock".into();
    other["id"] = "OTHER".into();
    std::fs::write(&record, other.to_string()).unwrap();
    for remove in [false, true] {
        let refused = cleanup(&config, remove).await.unwrap_err().to_string();
        // rollouts S5
        assert!(
            refused.ends_with("; name it with --docker unix:///run/other.sock"),
            "{refused}"
        );
    }
    std::fs::write(&record, used).unwrap();
    let left = cleanup(&config, false).await.unwrap().unwrap();
    assert_eq!(ask(at).as_deref(), Ok("two"), "nothing was asked for yet");
    let pods = left.pods.clone();
    let has_cgroup = || {
        let mut uids = pods.iter();
        uids.any(|uid| memory_limit_of_pod(uid.as_str()).is_some())
    };
    let links = || {
        let dirs = ["pods", "containers"].map(|name| logs.path().join(name));
        let found = dirs.map(|dir| std::fs::read_dir(dir).unwrap().count());
        found.iter().sum::<usize>()
    };
    assert!(has_cgroup() && links() > 0);
    // rollouts S5
    assert_eq!(left.others, [mine.as_str()]);
    assert_eq!(cleanup(&config, true).await.unwrap(), Some(left));
    // rollouts S5
    assert!(!has_cgroup());
    assert_eq!(links(), 0);
    assert!(ask(at).is_err());
    assert_eq!(bed.running().into_keys().collect::<Vec<_>>(), [&*mine]);
    assert_eq!(bed.containers().len(), 1);
    let left = cleanup(&config, true).await.unwrap().unwrap();
    let nothing = Leftovers {
        others: vec![mine.clone()],
        ..Leftovers::default()
    };
    // rollouts S5
    assert_eq!(left, nothing);
    bed.docker(&["rm", "-f", &mine]);
    bed.docker(&["image", "rm", &image]);
}

/// As a restart of `nftables` does, by its configuration or a saved one.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_another_program_removes_or_changes_are_put_back() {
    let (bed, port) = (Bed::new(), free_port());
    let mut agent = bed.agent().await;
    let at: SocketAddr = (Ipv4Addr::LOCALHOST, port).into();
    let own: SocketAddr = (gateway(&bed), port).into();
    for says in ["one", "two"] {
        bed.write("web.yaml", &web(says, port, "StartFirst"));
        until_says(&mut agent, at, says).await;
    }
    crate::common::eventually("the version before to be gone", || {
        let all = bed.running();
        let webs = all.keys().filter(|name| name.starts_with("k8s_web_"));
        (webs.count() == 1).then_some(())
    })
    .await;
    let table = mirrorlet_docker::host_ports_table(&bed.owner().unwrap());
    assert!(!nat::rules(&table).unwrap().is_empty());
    let under_way = TcpStream::connect(at).unwrap();
    let other = Forward {
        protocol: Protocol::Tcp,
        host_ip: None,
        host_port: free_port(),
        pod: "192.0.2.1:1".parse().unwrap(),
        detour: Detour::None,
        comment: "other".to_owned(),
    };
    for rules in [BTreeSet::new(), BTreeSet::from([other])] {
        let before = nat::rules(&table).unwrap();
        nat::replace(&table, &rules).unwrap();
        for at in [at, own] {
            // rollouts S12
            crate::common::eventually("the rules to be back", || {
                let is_changed = nat::rules(&table).unwrap() != before;
                ask(at).ok().filter(|says| is_changed && says == "two")
            })
            .await;
        }
    }
    assert_eq!(http::ask_on(under_way, PATIENCE).as_deref(), Ok("two"));
    let event = "HostPortsRestored the kernel's rules for its host ports were removed or changed by another program, and are restored";
    // rollouts S12
    agent.until_event("web-box", event).await;
    agent.stop().await;
}

/// Two pods of one file, with these host ports.
fn two(a: u16, b: u16) -> String {
    let one = |name: &str, port: u16| {
        web(name, port, "Recreate").replace("  name: web\n", &format!("  name: {name}\n"))
    };
    format!("{}---\n{}", one("a", a), one("b", b))
}

async fn until_port_says(port: u16, name: &str) {
    crate::common::eventually(&format!("{port} to say {name}"), || {
        let says = ask((Ipv4Addr::LOCALHOST, port).into()).ok();
        says.filter(|body| body == name)
    })
    .await;
}

/// Waits until the rollouts of both pods are over. A server may answer before the Engine says that its
/// container runs.
async fn until_both_are_over(agent: &TestAgent) {
    for name in ["a", "b"] {
        let is_over = |pod: &PodReport| {
            pod.status == "Running" && pod.is_ready() && pod.rollout.is_none() && !pod.held
        };
        agent.until_pod(name, is_over).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_port_goes_from_pod_to_pod_and_pods_swap_theirs() {
    let (bed, ports) = (Bed::new(), [free_port(), free_port(), free_port()]);
    let agent = bed.agent().await;
    let [first, second, third] = ports;
    bed.write("two.yaml", &two(first, second));
    until_port_says(first, "a").await;
    until_port_says(second, "b").await;
    // In one save.
    bed.write("two.yaml", &two(third, first));
    until_port_says(third, "a").await;
    // rollouts 31
    until_port_says(first, "b").await;
    until_both_are_over(&agent).await;
    // Each has the other's port. One that can't be started holds both.
    let before = bed.running();
    let swapped = two(first, third);
    let nowhere = format!("image: {IMAGE}\n");
    let (a, b) = swapped.split_once("---").unwrap();
    let missing = b.replace(
        &nowhere,
        "image: mirrorlet.test/nowhere:1\n    imagePullPolicy: Never\n",
    );
    bed.write("two.yaml", &format!("{a}---{missing}"));
    for name in ["a", "b"] {
        let named = |pod: &PodReport| {
            let mut problems = pod.problems.iter();
            pod.held && problems.any(|p| p.message.contains("ErrImageNeverPull"))
        };
        // rollouts 31
        agent.until_pod(name, named).await;
    }
    assert_eq!(bed.running(), before);
    bed.write("two.yaml", &swapped);
    until_port_says(first, "a").await;
    // rollouts 31
    until_port_says(third, "b").await;
    until_both_are_over(&agent).await;
}

/// A failed version runs on while another pod has the port of the healthy one.
#[tokio::test(flavor = "multi_thread")]
async fn a_swap_of_host_ports_that_fails_stops_no_healthy_pod() {
    let (bed, [first, second]) = (Bed::new(), [free_port(), free_port()]);
    let agent = bed.agent().await;
    let good = two(first, second);
    bed.write("two.yaml", &good);
    until_port_says(first, "a").await;
    until_port_says(second, "b").await;
    until_both_are_over(&agent).await;
    let crash = |text: &str| text.replace("mkdir -p /w;", "sleep 1; exit 3; mkdir -p /w;");
    let swapped = two(second, first);
    let (a, b) = swapped.split_once("---").unwrap();
    bed.write("two.yaml", &format!("{}---{b}", crash(a)));
    until_port_says(first, "b").await;
    let named = |pod: &PodReport| {
        let mut problems = pod.problems.iter();
        problems.any(|p| p.message.contains("restored once its host port is free"))
    };
    agent.until_pod("a", named).await;
    let of_b = || {
        let all = bed.running().into_iter();
        all.filter(|(name, _)| name.contains("_b-box_"))
            .collect::<BTreeMap<_, _>>()
    };
    let b_runs = of_b();
    let is_over = |pod: &PodReport| pod.is_ready() && pod.rollout.is_none() && !pod.held;
    agent.until_pod("b", is_over).await;
    // rollouts 31d
    assert_eq!(of_b(), b_runs);
    assert_eq!(ask((Ipv4Addr::LOCALHOST, first).into()).as_deref(), Ok("b"));
    // Back, again in one save.
    bed.write("two.yaml", &good);
    until_port_says(first, "a").await;
    until_port_says(second, "b").await;
    until_both_are_over(&agent).await;
    // Both fail: each has the port that the other needs to be restored.
    bed.write("two.yaml", &crash(&swapped).replace("echo", "echo x; echo"));
    for name in ["a", "b"] {
        let is_restored = |pod: &PodReport| pod.held && pod.is_ready();
        agent.until_pod(name, is_restored).await;
    }
    // rollouts 31d
    until_port_says(first, "a").await;
    until_port_says(second, "b").await;
}

/// A web server of that name, which answers its name and ends once told to, `/w/go`.
fn slow(name: &str, port: u16) -> String {
    let hook = r#"    lifecycle: {preStop: {exec: {command: ["sh", "-c", "while [ ! -e /w/go ]; do sleep 0.1; done"]}}}"#;
    web_with(name, port, "Recreate", IMAGE, hook)
        .replace("  name: web\n", &format!("  name: {name}\n"))
        .replace("PeriodSeconds: 5", "PeriodSeconds: 300")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_pod_takes_the_host_port_of_one_that_goes_in_the_same_save() {
    let (bed, port) = (Bed::new(), free_port());
    let agent = bed.agent().await;
    let recorder = bed.record();
    let until = |name: &'static str| async move {
        crate::common::eventually(&format!("{name} to answer"), || {
            let says = ask((Ipv4Addr::LOCALHOST, port).into()).ok();
            says.filter(|body| body == name)
        })
        .await;
    };
    bed.write("web.yaml", &slow("old", port));
    until("old").await;
    agent.until_running("old").await;
    // The same file, with another pod.
    bed.write("web.yaml", &slow("new", port));
    bed.write("other.yaml", &sleeper("other"));
    let waits = |pod: &PodReport| pod.message.contains("waiting for pod default/old-");
    agent.until_pod("new", waits).await;
    agent.until_running("other").await;
    agent.kill();
    // The next one finds a pod without a manifest.
    let agent = bed.agent().await;
    agent.until_pod("new", waits).await;
    let ends = |pod: &PodReport| pod.status == "Terminating" && pod.containers_total == 1;
    // rollouts 31c
    agent.until_pod("old", ends).await;
    bed.exec("web", "touch /w/go");
    until("new").await;
    agent.until_running("new").await;
    let events = agent.events("new");
    // rollouts 31c
    assert!(
        !events
            .iter()
            .any(|event| event.contains("HostPortConflict")),
        "{events:?}"
    );
    let (ended, created) = (
        recorder.until("die", "k8s_POD_old").await.at,
        recorder.until("create", "k8s_POD_new").await.at,
    );
    assert!(ended < created, "it was started while the port was taken");
}
