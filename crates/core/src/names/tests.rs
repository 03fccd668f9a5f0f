//! Tables and properties of names.

use serde_json::json;

use super::*;
use crate::api::keys;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod of a manifest on node `Box`.
fn pod(namespace: &str, name: &str, extra: &serde_json::Value) -> Arc<Pod> {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "namespace": namespace,
            "name": format!("{name}-box"),
            "labels": {"app": name.trim_end_matches(char::is_numeric)},
            "annotations": {keys::CONFIG_SOURCE: "file"},
        },
        "spec": extra,
    }))
    .unwrap();
    pod.spec.get_or_insert_default().node_name = Some("Box".into());
    Arc::new(pod)
}

fn named(namespace: &str, name: &str, address: &str) -> NamedPod {
    NamedPod {
        pod: pod(namespace, name, &json!({"containers": []})),
        addresses: vec![ip(address)],
        ready: true,
    }
}

fn service(namespace: &str, name: &str, spec: &serde_json::Value) -> Service {
    serde_json::from_value(json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": spec,
    }))
    .unwrap()
}

/// The addresses of a name in the hosts file of a pod of that namespace.
fn resolve(names: &Names, namespace: &str, name: &str) -> Vec<String> {
    let lines = names.lines(namespace, "");
    let found = lines.lines().filter(|line| !line.starts_with('#'));
    found
        .filter(|line| line.split('\t').skip(1).any(|word| word == name))
        .filter_map(|line| line.split('\t').next().map(str::to_owned))
        .collect()
}

#[test]
fn a_pod_is_known_by_its_names() {
    let pods = [
        named("a", "cache", "10.0.0.1"),
        named("b", "web", "10.0.0.2"),
    ];
    let names = Names::new(&pods, [].into_iter(), "cluster.local");
    // names 1
    assert_eq!(
        names.lines("a", ""),
        "\n# Pods and Services of manifests.\n\
         10.0.0.1\tcache\tcache.a\tcache.a.svc\tcache.a.svc.cluster.local\tcache-box\n\
         10.0.0.2\tweb.b\tweb.b.svc\tweb.b.svc.cluster.local\n"
    );
    // Short names are those of the namespace.
    assert_eq!(resolve(&names, "a", "web"), Vec::<String>::new());
    assert_eq!(resolve(&names, "b", "web"), ["10.0.0.2"]);
    assert_eq!(Names::default().lines("a", ""), "");
}

#[test]
fn names_that_the_file_has_are_left_out() {
    let pods = [
        named("a", "cache", "10.0.0.1"),
        named("a", "localhost", "10.0.0.2"),
    ];
    let names = Names::new(&pods, [].into_iter(), "d");
    let text = "127.0.0.1\tlocalhost # not cache\n192.0.2.1  other cache\n";
    let lines = names.lines("a", text);
    let words: Vec<&str> = lines.split_whitespace().collect();
    // names 2
    assert!(
        !words.contains(&"cache") && !words.contains(&"localhost"),
        "{lines}"
    );
    assert!(
        words.contains(&"cache.a") && words.contains(&"localhost.a"),
        "{lines}"
    );
}

#[test]
fn a_service_leads_to_the_ready_pods_that_it_selects() {
    let mut pods = vec![
        named("a", "web2", "10.0.0.2"),
        named("a", "web1", "10.0.0.1"),
        named("a", "other", "10.0.0.3"),
        named("b", "web1", "10.0.0.4"),
    ];
    let web = service("a", "web", &json!({"selector": {"app": "web"}}));
    let of = |pods: &[NamedPod], service: &Service| {
        resolve(
            &Names::new(pods, [service].into_iter(), "d"),
            "b",
            "web.a.svc.d",
        )
    };
    // names 3
    assert_eq!(of(&pods, &web), ["10.0.0.1", "10.0.0.2"]);
    pods[0].ready = false;
    assert_eq!(of(&pods, &web), ["10.0.0.1"]);
    let all = json!({"selector": {"app": "web"}, "publishNotReadyAddresses": true});
    assert_eq!(of(&pods, &service("a", "web", &all)).len(), 2);
    let none = service("a", "web", &json!({"selector": {}}));
    assert_eq!(of(&pods, &none), Vec::<String>::new());
}

#[test]
fn a_service_goes_before_a_pod_of_its_name() {
    let pods = [named("a", "web", "10.0.0.1"), named("a", "db", "10.0.0.2")];
    let web = service("a", "web", &json!({"selector": {"app": "db"}}));
    let names = Names::new(&pods, [&web].into_iter(), "d");
    // names 4
    assert_eq!(resolve(&names, "a", "web"), ["10.0.0.2"]);
    assert_eq!(resolve(&names, "a", "web-box"), ["10.0.0.1"]);
    // Also where it leads to nobody.
    let web = service("a", "web", &json!({"selector": {"app": "gone"}}));
    let names = Names::new(&pods, [&web].into_iter(), "d");
    assert_eq!(resolve(&names, "a", "web"), Vec::<String>::new());
}

#[test]
fn a_host_name_in_a_subdomain_is_known_below_its_service() {
    let of = |hostname: &str, address: &str| {
        let spec = json!({"containers": [], "hostname": hostname, "subdomain": "db"});
        NamedPod {
            pod: pod("a", &format!("db{address}"), &spec),
            addresses: vec![ip(&format!("10.0.0.{address}"))],
            ready: true,
        }
    };
    let pods = [of("db-0", "1"), of("db-1", "2")];
    let db = service(
        "a",
        "db",
        &json!({"selector": {"app": "db"}, "clusterIP": "None"}),
    );
    let names = Names::new(&pods, [&db].into_iter(), "d");
    // names 5
    assert_eq!(resolve(&names, "a", "db-0.db"), ["10.0.0.1"]);
    assert_eq!(resolve(&names, "b", "db-1.db.a.svc.d"), ["10.0.0.2"]);
    assert_eq!(resolve(&names, "b", "db.a").len(), 2);
}

/// The named ports of a Service of these fields in namespace `a`, of these pods.
fn ports_of(pods: &[NamedPod], spec: &serde_json::Value) -> Vec<(String, String, u16)> {
    let service = service("a", "web", spec);
    let names = Names::new(pods, [&service].into_iter(), "d");
    let ports = names.ports().iter();
    let row = |port: &NamedPort| (port.name.clone(), port.target.clone(), port.port);
    ports.map(row).collect()
}

#[test]
fn the_first_hundred_named_ports_of_a_service_have_records() {
    let ports = (1..=101).map(|port| json!({"name": format!("p{port}"), "port": port}));
    let spec = json!({"selector": {"app": "web"}, "ports": ports.collect::<Vec<_>>()});
    let known = ports_of(&[], &spec);
    assert_eq!(known.len(), 100);
    assert!(known.iter().all(|(_, _, port)| *port <= 100));
}

#[test]
fn named_ports_lead_to_the_service_or_to_each_pod_of_a_headless_one() {
    let row = |name: &str, target: &str, port: u16| {
        let (name, target) = (
            format!("{name}.web.a.svc.d"),
            format!("{target}web.a.svc.d"),
        );
        (name, target, port)
    };
    let of = |name: &str, addresses: &[&str], spec: &serde_json::Value| NamedPod {
        pod: pod("a", name, spec),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        ready: true,
    };
    let container =
        |port: u16| json!([{"name": "c", "ports": [{"name": "http", "containerPort": port}]}]);
    let in_service = json!({"containers": container(8080), "hostname": "h", "subdomain": "web"});
    let mut pods = [
        of("web1", &["10.0.0.1", "fd00::1"], &in_service),
        of(
            "web2",
            &["10.0.0.2", "fd00::2"],
            &json!({"containers": container(8081)}),
        ),
        of("web3", &["10.0.0.3"], &json!({"containers": []})),
        of(
            "web4",
            &["10.0.0.4"],
            &json!({"containers": container(8080)}),
        ),
        of(
            "other",
            &["10.0.0.5"],
            &json!({"containers": container(8080)}),
        ),
    ];
    pods[3].ready = false;
    let ports = json!([
        {"name": "http", "port": 80, "targetPort": "http"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"port": 9},
    ]);
    let mut spec = json!({"selector": {"app": "web"}, "ports": ports});
    let of_service = [row("_dns._udp", "", 53), row("_http._tcp", "", 80)];
    // names 21
    assert_eq!(ports_of(&pods, &spec), of_service);
    assert_eq!(ports_of(&[], &spec), of_service);
    // All serve it at one number, which isn't the Service's.
    let of_one = [row("_dns._udp", "", 53), row("_http._tcp", "", 8080)];
    assert_eq!(ports_of(&pods[..1], &spec), of_one);
    spec["clusterIP"] = json!("None");
    let headless = [
        row("_dns._udp", "10-0-0-2.", 53),
        row("_dns._udp", "10-0-0-3.", 53),
        row("_dns._udp", "fd00--2.", 53),
        row("_dns._udp", "h.", 53),
        row("_http._tcp", "10-0-0-2.", 8081),
        row("_http._tcp", "fd00--2.", 8081),
        row("_http._tcp", "h.", 8080),
    ];
    // names 21
    assert_eq!(ports_of(&pods, &spec), headless);
    assert!(ports_of(&[], &spec).is_empty());
    let service = service("a", "web", &spec);
    let names = Names::new(&pods, [&service].into_iter(), "d");
    for (_, target, _) in headless {
        let known = names.all().find(|known| known.name == target);
        // names 21
        assert!(
            known.is_some_and(|known| known.namespace.is_none()),
            "{target}"
        );
    }
    let address = names
        .all()
        .find(|known| known.name == "fd00--2.web.a.svc.d");
    assert_eq!(address.unwrap().addresses, [ip("fd00::2")]);
    // They are nothing for hosts files.
    assert!(!names.lines("a", "").contains("10-0-0-2"));
}

#[test]
fn pods_that_share_an_address_are_one_place() {
    let on_host = |name: &str| named("a", name, "192.0.2.1");
    let spec = json!({
        "selector": {"app": "web"}, "clusterIP": "None", "ports": [{"name": "http", "port": 80}],
    });
    let ports = ports_of(&[on_host("web1"), on_host("web2")], &spec);
    // names 21
    assert_eq!(ports.len(), 1, "{ports:?}");
}

#[test]
fn a_line_is_short_enough_for_every_reader() {
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(60)].join(".");
    let mut both = named("a", &long, "10.0.0.1");
    both.addresses.push(ip("fd00::1"));
    let lines = Names::new(&[both], [].into_iter(), "cluster.local").lines("a", "");
    // names 6
    assert!(lines.lines().all(|line| line.len() < 512), "{lines}");
    for address in ["10.0.0.1", "fd00::1"] {
        let of = lines.lines().filter(|line| line.starts_with(address));
        let words: usize = of.map(|line| line.split('\t').count() - 1).sum();
        assert_eq!(words, 5, "{lines}");
    }
}

/// As many as a large machine runs, half of them Ready.
#[test]
fn two_hundred_pods_have_their_names_and_a_service_of_them() {
    let address = |number: usize| format!("10.0.{}.{}", number / 100, number % 100 + 1);
    let name = |number: usize| format!("web{number}");
    let pods: Vec<NamedPod> = (0..200)
        .map(|number: usize| NamedPod {
            ready: number.is_multiple_of(2),
            ..named("a", &name(number), &address(number))
        })
        .collect();
    let services = [service("a", "web", &json!({"selector": {"app": "web"}}))];
    let names = Names::new(&pods, services.iter(), "cluster.local");
    for number in 0..200 {
        // box 5
        assert_eq!(resolve(&names, "a", &name(number)), [address(number)]);
    }
    let ready: Vec<String> = (0..200).step_by(2).map(address).collect();
    let mut found = resolve(&names, "b", "web.a.svc");
    found.sort_by_key(|found| ready.iter().position(|ready| ready == found));
    // box 5
    assert_eq!(found, ready);
    let lines = names.lines("a", "");
    assert!(lines.lines().all(|line| line.len() < LINE_MAX));
}

#[test]
fn a_pod_of_the_api_server_has_no_manifest() {
    let mut pod = (*pod("a", "web", &json!({"containers": []}))).clone();
    assert_eq!(manifest_name(&pod), "web");
    let source = (keys::CONFIG_SOURCE.to_owned(), "api".to_owned());
    pod.metadata.annotations = Some([source].into());
    assert_eq!(manifest_name(&pod), "web-box");
    // Known by its containers alone.
    pod.metadata.annotations = None;
    assert_eq!(manifest_name(&pod), "web");
}

#[test]
fn a_port_that_would_be_translated_is_a_problem() {
    let spec = json!({"containers": [{"name": "c", "ports": [
        {"name": "http", "containerPort": 8080}, {"name": "dns", "containerPort": 53, "protocol": "UDP"}
    ]}]});
    let web = pod("a", "web", &spec);
    let cases = [
        (json!({"port": 8080, "targetPort": "http"}), None),
        (
            json!({"port": 80, "targetPort": "http"}),
            Some(
                "port \"http\" of pod a/web-box is 8080, not 80; names resolve to the addresses of pods, and ports are not translated: set port: 8080",
            ),
        ),
        (
            json!({"port": 80, "targetPort": "none"}),
            Some(
                "pod a/web-box has no TCP port named \"none\"; names resolve to the addresses of pods",
            ),
        ),
        (
            json!({"port": 53, "targetPort": "dns"}),
            Some(
                "pod a/web-box has no TCP port named \"dns\"; names resolve to the addresses of pods",
            ),
        ),
        (
            json!({"port": 53, "targetPort": "dns", "protocol": "UDP"}),
            None,
        ),
        (json!({"port": 80}), None),
    ];
    for (port, message) in cases {
        let spec = json!({"selector": {"app": "web"}, "ports": [port]});
        let service = service("a", "web", &spec);
        let found = port_problems(&service, "/m/web.yaml", [&*web].into_iter());
        let found = found.first();
        let field = message.map(|_| "spec.ports[0].targetPort");
        // names 7
        assert_eq!(found.and_then(|p| p.field.as_deref()), field, "{port}");
        let told = found.map_or("", |p| &p.message);
        assert!(told.starts_with(message.unwrap_or_default()), "{told}");
        let fields: Vec<String> = target_ports(&service)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(field.is_none_or(|field| fields == [field]), "{fields:?}");
    }
}
