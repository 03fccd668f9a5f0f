//! Which rules there are, and who is asked about them.

use std::collections::HashMap;

use super::*;
use crate::engine::Engine;
use crate::fake_engine::{FakeEngine, FakeImage};
use crate::operation::Operation;
use crate::sandbox_image::SANDBOX_IMAGE;
use crate::translate::labels::sandbox_labels;
use crate::translate::sandbox_name;
use bollard::models::{ContainerCreateBody, PortBinding};
use mirrorlet_core::api::keys;
use mirrorlet_core::observed::RunningPod;
use mirrorlet_host::nat::Protocol;

fn sandbox(name: &str, uid: &str, created: i64) -> ForwardedSandbox {
    let address = Ipv4Addr::new(172, 17, 0, u8::try_from(created).unwrap());
    ForwardedSandbox {
        full_name: FullName::new(name, "default"),
        uid: uid.into(),
        created_at: Timestamp::from_second(created).unwrap(),
        forwards: vec![Forward {
            protocol: Protocol::Tcp,
            host_ip: None,
            host_port: 80,
            pod: SocketAddrV4::new(address, 8080),
            detour: Detour::None,
            comment: uid.to_owned(),
        }],
    }
}

/// The sandbox that the rules lead to, of `a` (older) and `b` of one pod.
fn led(serving: Option<&str>, beside: &[&str], there: &[&str]) -> Vec<String> {
    led_beside(None, serving, beside, there)
}

/// The same where the Engine publishes the ports of `published`.
fn led_beside(
    published: Option<&str>,
    serving: Option<&str>,
    beside: &[&str],
    there: &[&str],
) -> Vec<String> {
    let pod = |uid: &str| {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.to_owned());
        Arc::new(pod)
    };
    let pods = ServingPods {
        serving: serving
            .map(|uid| (FullName::new("web", "default"), pod(uid)))
            .into_iter()
            .collect(),
        beside: beside.iter().copied().map(PodUid::from).collect(),
        successors: BTreeSet::new(),
    };
    let all = [sandbox("web", "a", 1), sandbox("web", "b", 2)];
    let there = all.into_iter().filter(|s| there.contains(&s.uid.as_str()));
    let is_published = |pod: &Pod| published == Some(PodUid::of(pod).as_str());
    let rules = forwards(&pods, is_published, there.collect());
    rules.into_iter().map(|forward| forward.comment).collect()
}

#[test]
fn ports_lead_to_what_serves_or_stay_where_they_are() {
    assert_eq!(led(Some("a"), &["b"], &["a", "b"]), ["a"], "judged");
    assert_eq!(led(Some("b"), &[], &["a", "b"]), ["b"], "handed over");
    assert_eq!(
        led(Some("a"), &["b"], &["b"]),
        [""; 0],
        "the Engine publishes a's"
    );
    assert_eq!(
        led(Some("c"), &[], &["b"]),
        ["b"],
        "its successor waits for its end"
    );
    assert_eq!(
        led_beside(Some("a"), Some("a"), &[], &["b"]),
        [""; 0],
        "it has failed beside a"
    );
    assert_eq!(led(None, &[], &["b"]), ["b"], "it ends in its grace");
    assert_eq!(led(Some("a"), &[], &[]), [""; 0]);
}

#[test]
fn the_detour_is_the_proxy_of_the_sandbox() {
    let binding = |ip: &str, port: &str| PortBinding {
        host_ip: Some(ip.to_owned()),
        host_port: Some(port.to_owned()),
    };
    let port: ForwardedPort = "80/tcp=8080".parse().unwrap();
    let both = vec![
        binding("172.17.0.1", "32769"),
        binding("127.0.0.1", "32768"),
    ];
    let published: HashMap<_, _> = [("8080/tcp".to_owned(), Some(both))].into();
    let side = |bridge: Option<&str>| HostSide {
        bridge: bridge.map(str::to_owned),
        ..HostSide::default()
    };
    let by_proxy = Detour::Proxy {
        loopback: 32768,
        bridge: "no-such-bridge".to_owned(),
        port: 32769,
    };
    assert_eq!(
        detour(Some(&published), &port, &side(Some("no-such-bridge"))),
        by_proxy
    );
    assert_eq!(detour(Some(&published), &port, &side(None)), Detour::None);
    // The loopback interface takes what is the machine's own, whatever the switch says.
    assert_eq!(detour(None, &port, &side(Some("lo"))), Detour::None);
}

#[test]
fn a_table_has_a_name_that_can_be_typed() {
    assert_eq!(table_name("0a1b"), "mirrorlet-0a1b");
    assert_eq!(table_name("a b/c"), "mirrorlet-a_b_c");
    assert_eq!(table_name(&"x".repeat(300)).len(), TABLE_NAME_MAX);
}

/// A pod whose host ports are led to it.
fn led_pod(name: &str) -> Arc<Pod> {
    let pod = serde_json::json!({
        "metadata": {
            "name": name, "namespace": "default", "uid": name,
            "annotations": {(keys::BESIDE): "true"},
        },
        "spec": {"containers": [{
            "name": "c", "ports": [{"containerPort": 8080, "hostPort": 80}],
        }]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// Starts the sandbox of a pod, and returns its id.
async fn started(engine: &FakeEngine, pod: &Pod) -> String {
    let name = sandbox_name(&FullName::of(pod), &PodUid::of(pod), 0);
    let body = ContainerCreateBody {
        image: Some(SANDBOX_IMAGE.to_owned()),
        labels: Some(sandbox_labels("me", pod, 0)),
        ..ContainerCreateBody::default()
    };
    let id = engine.create_container(&name, body).await.unwrap();
    engine.start_container(&id).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_whose_inspect_hangs_holds_up_no_other_pod_and_keeps_its_host_ports() {
    let engine = Arc::new(FakeEngine::new());
    engine.add_image(SANDBOX_IMAGE, FakeImage::default());
    let containers = Containers::new(engine.clone(), "me".to_owned(), 4);
    let containers = Arc::new(containers);
    let pod = led_pod("web");
    let id = started(&engine, &pod).await;
    containers.list(false).await.unwrap();
    containers.freshen(&id).await.unwrap();
    let ports = HostPorts::new(Arc::clone(&containers), None);
    let record = containers.index.get(&id).unwrap();
    let led = led_sandbox(&record, &HostSide::default()).unwrap();
    let rules: BTreeSet<Forward> = led.forwards.into_iter().collect_set();
    assert_eq!(rules.len(), 1);
    ports.state.lock().await.applied = Some(rules.clone());

    // The Engine was away, and an inspect of it hangs since.
    containers.index.begin_gap();
    containers.list(true).await.unwrap();
    engine.hold(Operation::InspectContainer);
    let pods = ServingPods {
        serving: [(FullName::of(&pod), Arc::clone(&pod))].into(),
        ..ServingPods::default()
    };
    let others = async {
        // A sandbox is about to start, and another pod has stopped.
        ports.refresh().await.unwrap();
        ports.ended(&RunningPod::default()).await.unwrap();
    };
    let handed_over = ports.serve(pods);
    let (others, handed_over) = tokio::join!(
        timeout(LOOK_MAX * 3, others),
        timeout(LOOK_MAX * 3, handed_over)
    );
    // docker 60c
    assert!(others.is_ok(), "they wait for an inspect of another");
    assert_eq!(handed_over.unwrap(), Ok(()), "where it leads to is known");
    assert_eq!(ports.state.lock().await.applied, Some(rules));
}

#[tokio::test(start_paused = true)]
async fn host_ports_wait_for_the_address_of_what_they_lead_to() {
    let engine = Arc::new(FakeEngine::new());
    engine.add_image(SANDBOX_IMAGE, FakeImage::default());
    let containers = Containers::new(engine.clone(), "me".to_owned(), 4);
    let containers = Arc::new(containers);
    started(&engine, &led_pod("web")).await;
    containers.list(false).await.unwrap();
    let ports = HostPorts::new(Arc::clone(&containers), None);
    engine.hold(Operation::InspectContainer);
    // An agent before this one may have made rules that lead to it.
    let served = ports.serve(ServingPods::default()).await;
    // docker 60c
    assert_eq!(
        served.unwrap_err().reason,
        SyncErrorReason::RuntimeUnavailable
    );
    assert_eq!(ports.state.lock().await.applied, None);
}
