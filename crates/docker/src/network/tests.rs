//! Networks of the Engine in memory, and who holds a port.

use std::time::Duration;

use bollard::models::{ContainerSummary, PortSummary, PortSummaryTypeEnum};
use tokio::time::Instant;

use super::super::fake_engine::FakeEngine;
use super::super::operation::Operation;
use super::holds::kill_at;
use super::ports::{HostPort, conflict, listener, process, publisher};
use super::*;
use mirrorlet_core::api::{FullName, PodUid};

#[tokio::test]
async fn a_named_network_must_be_there_and_give_addresses() {
    let fake = Arc::new(FakeEngine::new());
    let network = |name: &str| EngineNetwork::new(fake.clone(), Some(name.to_owned()));
    let pods = network("pods");
    // docker 22a
    assert_eq!(
        pods.status().await.unwrap_err().to_string(),
        "the Docker network \"pods\" does not exist: create it with \"docker network create pods\", or choose another with --network"
    );
    fake.add_network("pods", "bridge");
    assert_eq!(pods.status().await, Ok(()));
    // Known from then on, until the Engine was away.
    let asked = fake.count(Operation::InspectNetwork);
    assert_eq!(pods.status().await, Ok(()));
    assert_eq!(fake.count(Operation::InspectNetwork), asked);
    pods.forget();
    assert_eq!(pods.status().await, Ok(()));
    assert_eq!(fake.count(Operation::InspectNetwork), asked + 1);

    fake.add_network("nothing", "null");
    let error = network("nothing").status().await.unwrap_err();
    assert!(matches!(error, NetworkError::Unsuitable { .. }), "{error}");
}

#[tokio::test]
async fn the_default_bridge_is_never_asked_for() {
    let fake = Arc::new(FakeEngine::new());
    let network = EngineNetwork::new(fake.clone(), None);
    assert_eq!(network.status().await, Ok(()));
    assert_eq!(network.sandbox_mode(), "default");
    assert!(!network.has_own_resolver());
    // docker 22a
    assert_eq!(fake.count(Operation::InspectNetwork), 0);
}

#[tokio::test(start_paused = true)]
async fn no_grace_is_too_long_for_a_hold() {
    let now = Instant::now();
    let minute = Duration::from_mins(1);
    for (left, expected) in [
        (Duration::ZERO, Duration::ZERO),
        (minute, minute),
        (
            Duration::from_secs(i64::MAX.unsigned_abs()),
            spec::GRACE_MAX,
        ),
    ] {
        // pods 44a
        assert_eq!(kill_at(left) - now, expected);
    }
}

#[test]
fn port_conflicts_are_read_from_the_engines_words() {
    let port = |number, protocol| Some(HostPort { number, protocol });
    for (words, expected) in [
        (
            "driver failed programming external connectivity on endpoint k8s_POD_a (5f): Bind for 0.0.0.0:8080 failed: port is already allocated",
            port(8080, None),
        ),
        (
            "driver failed programming external connectivity on endpoint x: Bind for :::443 failed: port is already allocated",
            port(443, None),
        ),
        (
            "driver failed programming external connectivity on endpoint x: Error starting userland proxy: listen tcp4 0.0.0.0:8080: bind: address already in use",
            port(8080, Some("tcp")),
        ),
        (
            "failed to bind host port for 127.0.0.1:53:172.17.0.2:53/udp: listen udp 127.0.0.1:53: bind: address already in use",
            port(53, Some("udp")),
        ),
        (
            "failed to set up container networking: driver failed programming external connectivity on endpoint x (83): failed to bind host port 0.0.0.0:34749/tcp: address already in use",
            port(34749, Some("tcp")),
        ),
        (
            "failed to bind host port [::]:53/udp: address already in use",
            port(53, Some("udp")),
        ),
        // Of Docker Engine 28.
        (
            "failed to bind host port for 0.0.0.0:8080:172.17.0.2:80/tcp: address already in use",
            port(8080, Some("tcp")),
        ),
        (
            "failed to bind host port for [::]:53:[fd00::2]:5353/udp: address already in use",
            port(53, Some("udp")),
        ),
        ("failed to bind host port: address already in use", None),
        ("address already in use", None),
        ("no such image", None),
        ("Bind for nowhere failed: port is already allocated", None),
    ] {
        // docker 22b
        assert_eq!(conflict(words), expected, "{words}");
    }
}

#[test]
fn a_port_is_told_to_be_a_pods_or_a_foreign_containers() {
    let container = |name: &str, number, typ| ContainerSummary {
        names: Some(vec![format!("/{name}")]),
        ports: Some(vec![PortSummary {
            public_port: Some(number),
            private_port: 80,
            typ: Some(typ),
            ip: None,
        }]),
        ..ContainerSummary::default()
    };
    let (tcp, udp) = (PortSummaryTypeEnum::TCP, PortSummaryTypeEnum::UDP);
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
        "spec": {"containers": [{"name": "c"}]},
    }))
    .unwrap();
    let (full_name, uid) = (FullName::of(&pod), PodUid::of(&pod));
    let ours = super::super::translate::sandbox_name(&full_name, &uid, 0);
    let mut ours = container(&ours, 8080, tcp);
    ours.labels = Some(super::super::translate::labels::sandbox_labels(
        "me", &pod, 0,
    ));
    let listed = [container("proxy", 53, udp), ours];
    let holder =
        |number, protocol, owner| publisher(&listed, &HostPort { number, protocol }, owner);
    // docker 22b
    assert_eq!(
        holder(53, None, "me").as_deref(),
        Some("container \"proxy\"")
    );
    assert_eq!(holder(53, Some("tcp"), "me"), None);
    assert_eq!(
        holder(8080, Some("tcp"), "me").as_deref(),
        Some("pod shop/web")
    );
    let foreign = holder(8080, None, "other").unwrap();
    assert!(
        foreign.starts_with("container \"k8s_POD_web_shop_u_0")
            && foreign.ends_with("\" of another agent's pod shop/web"),
        "{foreign}"
    );
    assert_eq!(holder(1, None, "me"), None);
}

#[test]
fn the_process_that_listens_is_found() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1\n   1: 0100007F:1F91 0100007F:0001 01 00000000:00000000 00:00000000 00000000     0        0 4243 1\n";
    // docker 22b
    assert_eq!(listener(table.as_bytes(), 8080), Some(4242));
    assert_eq!(
        listener(table.as_bytes(), 8081),
        None,
        "it is connected, and listens not"
    );
    assert_eq!(listener(&b""[..], 80), None);

    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = HostPort {
        number: socket.local_addr().unwrap().port(),
        protocol: Some("tcp"),
    };
    let found = process(&port).unwrap();
    let pid = std::process::id();
    assert!(found.ends_with(&format!("(pid {pid})")), "{found}");
}
