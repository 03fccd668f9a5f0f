//! Pods in a Docker network of their choice, what they resolve names by, and host ports that
//! somebody else holds, under a whole agent on a real Engine.

use std::collections::BTreeSet;
use std::net::{IpAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use crate::common::network::Network;
use crate::common::{Bed, IMAGE, eventually, free_port};
use mirrorlet::config::Resolved;
use mirrorlet_core::api::report::PodReport;
use mirrorlet_host::nat::{self, Detour, Forward, HeldPort, Protocol};

fn in_network(bed: &Bed, network: &str) -> Resolved {
    let mut resolved = bed.resolved();
    resolved.config.network = Some(network.to_owned());
    resolved
}

fn pod(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  terminationGracePeriodSeconds: 0\n{spec}  containers:\n  - name: {name}\n    image: {IMAGE}\n    command: [sleep, \"1000000\"]\n"
    )
}

const OWN_DNS: &str = "  dnsPolicy: None\n  dnsConfig:\n    nameservers: [192.0.2.53, \"2001:db8::53\"]\n    searches: [a.example, b.example]\n    options: [{name: ndots, value: \"3\"}, {name: edns0}]\n";
const OWN_DNS_FILE: &str = "nameserver 192.0.2.53\nnameserver 2001:db8::53\nsearch a.example b.example\noptions ndots:3 edns0";

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_addresses_of_the_network_named_and_their_own_resolvers() {
    let bed = Bed::new();
    let network = Network::dual("dual");
    let agent = bed.agent_as(in_network(&bed, &network.name)).await;
    bed.write("own.yaml", &pod("own", OWN_DNS));
    bed.write("node.yaml", &pod("node", "  dnsPolicy: Default\n"));
    let report = agent.until_running("own").await;
    // Both families are in the first status that says it runs.
    let [v4, v6]: [IpAddr; 2] = report.ips.try_into().unwrap();
    assert!(v4.is_ipv4() && network.contains(v4), "{v4}");
    assert!(v6.is_ipv6() && network.contains(v6), "{v6}");
    let (v4, v6) = (v4.to_string(), v6.to_string());
    let shown = bed.exec("own", "ip addr show eth0");
    // docker 22
    assert!(shown.contains(&v4) && shown.contains(&v6), "{shown}");
    let hosts = bed.exec("own", "cat /etc/hosts");
    assert!(hosts.contains(&format!("{v4}\town-box")), "{hosts}");
    assert!(hosts.contains(&format!("{v6}\town-box")), "{hosts}");
    assert_eq!(bed.exec("own", "cat /etc/resolv.conf"), OWN_DNS_FILE);

    // The node's DNS settings go through the Engine's resolver, which asks the node's.
    agent.until_running("node").await;
    let resolvers = bed.exec("node", "cat /etc/resolv.conf");
    assert!(resolvers.contains("nameserver 127.0.0.11"), "{resolvers}");

    // A restarted container, and one in a new sandbox, see the same.
    bed.docker(&["kill", &bed.running_id("own")]);
    agent
        .until_pod("own", |pod| pod.restarts == 1 && pod.ready == 1)
        .await;
    assert_eq!(bed.exec("own", "cat /etc/resolv.conf"), OWN_DNS_FILE);
    let sandbox = bed.running_id("POD_own-box");
    bed.docker(&["kill", &sandbox]);
    agent
        .until_pod("own", |pod| pod.restarts == 2 && pod.ready == 1)
        .await;
    assert_eq!(bed.exec("own", "cat /etc/resolv.conf"), OWN_DNS_FILE);
    for name in ["own", "node"] {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_missing_is_named_and_pods_start_once_it_is_there() {
    let bed = Bed::new();
    let name = Network::full_name("late");
    let agent = bed.agent_as(in_network(&bed, &name)).await;
    bed.write("late.yaml", &pod("late", ""));
    bed.write("host.yaml", &pod("host", "  hostNetwork: true\n"));
    let told = agent
        .until_pod("late", |pod| pod.message.contains("does not exist"))
        .await;
    let advice = format!("docker network create {name}");
    // docker 22a
    assert!(told.message.contains(&advice), "{}", told.message);
    // A pod in the host's network needs none.
    agent.until_running("host").await;
    let network = Network::dual("late");
    let report = agent.until_running("late").await;
    assert!(network.contains(report.ips[0]), "{:?}", report.ips);
    for name in ["late", "host"] {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    agent.stop().await;
}

fn publishing(name: &str, port: u16) -> String {
    pod(name, "").replace(
        "    command:",
        &format!("    ports: [{{containerPort: 80, hostPort: {port}}}]\n    command:"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_port_that_a_foreign_container_holds_is_told_and_taken_when_it_is_free() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    // Both at once: each waits until its pod is tried again.
    let held = [("tcp", "80"), ("udp", "80/udp")].map(|(protocol, publish)| {
        let port = free_port();
        let holder = format!("holder-{port}");
        let publish = format!("{port}:{publish}");
        bed.docker(&[
            "run", "-d", "--name", &holder, "-p", &publish, IMAGE, "sleep", "1000000",
        ]);
        let spelled = format!("protocol: {}, hostPort", protocol.to_uppercase());
        let web = publishing(protocol, port).replace("hostPort", &spelled);
        bed.write(&format!("{protocol}.yaml"), &web);
        (protocol, port, holder)
    });
    let mut told = Vec::new();
    for (protocol, _, holder) in &held {
        let pod = agent
            .until_pod(protocol, |pod| pod.message.contains("is in use by"))
            .await;
        bed.docker(&["rm", "-f", holder]);
        told.push(pod.message);
    }
    for ((protocol, port, holder), told) in held.iter().zip(&told) {
        let in_use = format!("host port {port} is in use by container {holder:?}");
        // docker 22b
        assert!(told.contains(&in_use), "{told}");
        agent.until_running(protocol).await;
        bed.remove(&format!("{protocol}.yaml"));
    }
    for (protocol, ..) in &held {
        agent.until_gone(protocol).await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_port_that_a_process_holds_is_told() {
    let bed = Bed::new();
    let agent = bed.agent().await;
    let port = free_port();
    let socket = TcpListener::bind(("0.0.0.0", port)).unwrap();
    bed.write("web.yaml", &publishing("web", port));
    let told = agent
        .until_pod("web", |pod| pod.message.contains("is in use by"))
        .await;
    let in_use = format!("host port {port}/tcp is in use by process ");
    // docker 22b
    assert!(told.message.contains(&in_use), "{}", told.message);
    let pid = format!("(pid {})", std::process::id());
    assert!(told.message.contains(&pid), "{}", told.message);
    drop(socket);
    agent.until_running("web").await;
    bed.remove("web.yaml");
    agent.until_gone("web").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_wants_a_port_in_use_names_who_has_it() {
    let bed = Bed::new();
    let (foreign, own) = (free_port(), free_port());
    let holder = format!("holder-{foreign}");
    let publish = format!("{foreign}:80");
    let agent = bed.agent().await;
    bed.write("web.yaml", &pod("web", ""));
    bed.write("other.yaml", &publishing("other", own));
    for name in ["web", "other"] {
        agent.until_running(name).await;
    }
    bed.docker(&[
        "run", "-d", "--name", &holder, "-p", &publish, IMAGE, "sleep", "1000000",
    ]);
    let told = async |port: u16, reason: &str| {
        bed.write("web.yaml", &publishing("web", port));
        let edited = |pod: &PodReport| pod.held && pod.problems[0].message.contains(reason);
        let pod = agent.until_pod("web", edited).await;
        pod.problems[0].message.clone()
    };
    let by_container = told(foreign, "CreatePodSandboxError").await;
    let by_pod = told(own, "NodePorts").await;
    bed.docker(&["rm", "-f", &holder]);
    // docker 22b
    assert!(
        by_container.ends_with(&format!(
            "host port {foreign}/tcp is in use by container {holder:?}"
        )),
        "{by_container}"
    );
    // docker 22b
    assert!(
        by_pod.ends_with(&format!(
            "host port {own}/tcp is in use by pod default/other-box"
        )),
        "{by_pod}"
    );
    bed.write("web.yaml", &publishing("web", foreign));
    agent
        .until_pod("web", |pod| !pod.held && pod.is_ready())
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn resolver_settings_of_the_node_are_those_of_the_file_named_as_it_is_now() {
    let bed = Bed::new();
    let file = bed.path().join("resolv.conf");
    let write = |path: &Path, server: &str| {
        let text = format!("nameserver {server}\nsearch node.example\n");
        std::fs::write(path, text).unwrap();
    };
    write(&file, "192.0.2.1");
    let mut resolved = bed.resolved();
    resolved.config.resolv_conf.clone_from(&file);
    let agent = bed.agent_as(resolved).await;
    bed.write("one.yaml", &pod("one", "  dnsPolicy: Default\n"));
    agent.until_running("one").await;
    let seen = bed.exec("one", "cat /etc/resolv.conf");
    // docker 22a
    assert!(seen.contains("nameserver 192.0.2.1"), "{seen}");
    assert!(seen.contains("search node.example"), "{seen}");
    write(&file, "192.0.2.2");
    bed.write("two.yaml", &pod("two", "  dnsPolicy: Default\n"));
    agent.until_running("two").await;
    eventually("the second pod to have the new server", || {
        let seen = bed.exec("two", "cat /etc/resolv.conf");
        seen.contains("nameserver 192.0.2.2").then_some(())
    })
    .await;
    for name in ["one", "two"] {
        bed.remove(&format!("{name}.yaml"));
        agent.until_gone(name).await;
    }
    agent.stop().await;
}

/// It refuses a message that is longer than a socket's buffer, which has room for a hundred ports.
#[test]
fn the_kernel_takes_rules_for_thousands_of_host_ports() {
    /// Two for each port, and two for its detour.
    const RULES: usize = 4;
    let forward = |host_port: u16| Forward {
        protocol: Protocol::Tcp,
        host_ip: None,
        host_port,
        pod: "192.0.2.1:8080".parse().unwrap(),
        detour: Detour::Proxy {
            loopback: host_port,
            bridge: "docker0".to_owned(),
            port: host_port,
        },
        comment: "default/web".to_owned(),
    };
    let held = |host_port: u16| HeldPort {
        host_ip: None,
        host_port,
    };
    #[expect(
        deprecated,
        reason = "sharing no network is safe; only sharing no files is not"
    )]
    let unshare = || rustix::thread::unshare(rustix::thread::UnshareFlags::NEWNET);
    // In a network of its own, whose rules are gone with the thread.
    let thread = std::thread::spawn(move || {
        unshare().unwrap();
        let ports = 1..=3000_u16;
        let forwards: BTreeSet<Forward> = ports.clone().map(forward).collect();
        let made = nat::replace("thousands", &forwards).unwrap();
        // rollouts S13
        assert_eq!(made.map(|rules| rules.len()), Some(ports.len() * RULES));
        let held: BTreeSet<HeldPort> = ports.map(held).collect();
        nat::hold("thousands", &held, Duration::from_mins(1)).unwrap();
    });
    thread.join().unwrap();
}
