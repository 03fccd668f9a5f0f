//! Names, labels and whose containers are whose.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use mirrorlet_core::api::{FullName, PodUid, Timestamp, core, keys, meta};
use mirrorlet_core::observed::ContainerHash;

#[test]
fn names_are_the_shims() {
    let (full_name, uid) = (FullName::new("web", "prod"), PodUid::from("u1"));
    // docker 10
    assert_eq!(sandbox_name(&full_name, &uid, 2), "k8s_POD_web_prod_u1_2");
    let name = container_name("c", &full_name, &uid, 7);
    assert_eq!(name, "k8s_c_web_prod_u1_7");
    let conflict = names::conflict_name(&name, 0xab);
    assert_eq!(conflict, "k8s_c_web_prod_u1_7_000000ab");
    for text in [&name, &conflict, &format!("/{name}")] {
        assert_eq!(
            ContainerName::parse(text),
            Some(ContainerName {
                container: "c".to_owned(),
                full_name: full_name.clone(),
                uid: uid.clone(),
                attempt: 7,
            }),
            "{text}"
        );
    }
}

#[test]
fn other_names_are_nobodys() {
    for text in [
        "",
        "web",
        "k8s_c_web_prod_u1",
        "k8s_c_web_prod_u1_x",
        "k8s_c_web_prod_u1_-1",
        "k8s_c_web_prod_u1_1_short",
        "k8s_c_web_prod_u1_1_0000000g",
        "k8s_c_web_prod_u1_1_00000001_2",
        "k8s__web_prod_u1_1",
        "K8S_c_web_prod_u1_1",
        "//k8s_c_web_prod_u1_1",
        "other/k8s_c_web_prod_u1_1",
    ] {
        assert_eq!(ContainerName::parse(text), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_name_of_ours_parses_back(
        container in "[a-z0-9][a-z0-9-]{0,20}",
        pod in "[a-z0-9][a-z0-9.-]{0,20}",
        namespace in "[a-z0-9][a-z0-9-]{0,20}",
        uid in "[a-f0-9-]{1,36}",
        attempt: u32,
    ) {
        let full_name = FullName::new(pod, namespace);
        let uid = PodUid::from(uid);
        let parsed = ContainerName::parse(&container_name(&container, &full_name, &uid, attempt));
        // docker 10
        prop_assert_eq!(parsed, Some(ContainerName { container, full_name, uid, attempt }));
    }
}

fn ours(owner: &str, request: &Request) -> Option<OurContainer> {
    let labels = request.body.labels.clone().unwrap();
    parse_ours(owner, [format!("/{}", request.name).as_str()], &labels)
}

#[test]
fn what_is_created_is_read_back() {
    let grace = one(&json!({}), &json!({"terminationGracePeriodSeconds": 7}));
    for (pod, grace) in [(one(&json!({}), &json!({})), 30), (grace, 7)] {
        let seen = ours(OWNER, &sandbox_of(&pod).unwrap()).unwrap();
        // docker 10
        assert_eq!(
            seen,
            OurContainer {
                uid: "u1".into(),
                full_name: FullName::new("web", "prod"),
                grace: Duration::from_secs(grace),
                kind: Kind::Sandbox {
                    attempt: 0,
                    host_network: false,
                    pod_started_at: None,
                    forwarded_ports: Vec::new(),
                },
            }
        );
        let request = container_with(&pod, |input| ContainerInput {
            role: Role::Sidecar,
            restart_count: 3,
            pod_restarts: 2,
            ..input
        });
        let seen = ours(OWNER, &request.unwrap()).unwrap();
        assert_eq!(seen.grace, Duration::from_secs(grace));
        assert_eq!(
            seen.kind,
            Kind::Container {
                name: "c".to_owned(),
                role: Role::Sidecar,
                restart_count: 3,
                pod_restarts: 2,
                hash: spec::container_hash(&spec::spec(&pod).containers[0]),
                sandbox_id: SANDBOX.to_owned(),
                image_id: "docker://sha256:5678".into(),
                termination_path: "/dev/termination-log".to_owned(),
                fallback_to_logs: false,
                hooks: HookLabels::default(),
            }
        );
    }
    let mut host = one(
        &json!({
            "terminationMessagePath": "/t", "terminationMessagePolicy": "FallbackToLogsOnError",
        }),
        &json!({"hostNetwork": true}),
    );
    let started: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    host.status = Some(core::PodStatus {
        start_time: Some(meta::Time(started)),
        ..core::PodStatus::default()
    });
    let sandbox = ours(OWNER, &sandbox_of(&host).unwrap()).unwrap();
    assert_eq!(
        sandbox.kind,
        Kind::Sandbox {
            attempt: 0,
            host_network: true,
            pod_started_at: Some(started),
            forwarded_ports: Vec::new(),
        }
    );
    let container = ours(OWNER, &container_of(&host).unwrap()).unwrap();
    assert!(matches!(
        container.kind,
        Kind::Container { termination_path, fallback_to_logs: true, .. } if termination_path == "/t"
    ));
}

#[test]
fn a_long_hook_is_in_no_label() {
    for (length, is_kept) in [(10 << 10, true), (17 << 10, false)] {
        let command = json!(["sh", "-c", "x".repeat(length)]);
        let hook = json!({"lifecycle": {"preStop": {"exec": {"command": command}}}});
        let request = container_of(&one(&hook, &json!({}))).unwrap();
        let labels = request.body.labels.as_ref().unwrap();
        assert_eq!(!labels[keys::PRE_STOP_HANDLER].is_empty(), is_kept);
        let kind = ours(OWNER, &request).unwrap().kind;
        let Kind::Container { hooks, .. } = kind else {
            panic!("{kind:?}");
        };
        let lifecycle = hooks.container("c").lifecycle;
        assert_eq!(lifecycle.unwrap().pre_stop.is_some(), is_kept);
    }
}

#[test]
fn the_path_of_a_termination_message_is_the_one_that_the_engine_reports() {
    for (written, clean) in [
        ("/tmp//msg", "/tmp/msg"),
        ("tmp/msg", "/tmp/msg"),
        ("/tmp/msg/", "/tmp/msg"),
        ("/a/./b/../../../tmp/msg", "/tmp/msg"),
        ("", "/dev/termination-log"),
    ] {
        let pod = one(&json!({"terminationMessagePath": written}), &json!({}));
        let request = container_of(&pod).unwrap();
        let host = request.body.host_config.clone().unwrap();
        let mut mounts = host.mounts.iter().flatten();
        assert!(
            mounts.any(|m| m.target.as_deref() == Some(clean)),
            "{written}"
        );
        // An agent before this one wrote the label as the manifest has it.
        let mut before = request.clone();
        let labels = before.body.labels.as_mut().unwrap();
        labels.insert(keys::TERMINATION_PATH.to_owned(), written.to_owned());
        for request in [request, before] {
            let kind = ours(OWNER, &request).unwrap().kind;
            let Kind::Container {
                termination_path, ..
            } = kind
            else {
                panic!("{kind:?}");
            };
            assert_eq!(termination_path, clean, "{written}");
        }
    }
}

#[test]
fn a_pre_stop_hook_is_rebuilt_from_labels_and_not_shown() {
    let pod = one(
        &json!({
            "ports": [{"name": "http", "containerPort": 80}],
            "lifecycle": {"preStop": {"httpGet": {
                "port": "http", "httpHeaders": [{"name": "Authorization", "value": "secret"}],
            }}},
        }),
        &json!({}),
    );
    let seen = ours(OWNER, &container_of(&pod).unwrap()).unwrap();
    assert!(!format!("{seen:?}").contains("secret"), "{seen:?}");
    let Kind::Container { hooks, .. } = seen.kind else {
        panic!("{seen:?}");
    };
    let wanted = &spec::spec(&pod).containers[0];
    let rebuilt = hooks.container("c");
    assert_eq!(rebuilt.ports, wanted.ports);
    let mut lifecycle = wanted.lifecycle.clone().unwrap();
    let hook = lifecycle.pre_stop.as_mut().unwrap();
    // tenants L5
    assert!(
        hook.http_get
            .as_mut()
            .unwrap()
            .http_headers
            .take()
            .is_some()
    );
    assert_eq!(rebuilt.lifecycle, Some(lifecycle));
    let labels = container_of(&pod).unwrap().body.labels.unwrap();
    assert!(labels.values().all(|value| !value.contains("secret")));
    let none = HookLabels::default().container("c");
    assert_eq!(none.lifecycle.unwrap().pre_stop, None);
    // An image can't bring a hook along: both labels are always set.
    let plain = container_of(&one(&json!({}), &json!({}))).unwrap();
    let labels = plain.body.labels.unwrap();
    for key in [keys::PRE_STOP_HANDLER, keys::CONTAINER_PORTS] {
        assert_eq!(labels.get(key).map(String::as_str), Some(""), "{key}");
    }
}

#[test]
fn containers_of_others_are_not_ours() {
    let request = container_of(&one(&json!({}), &json!({}))).unwrap();
    assert!(ours(OWNER, &request).is_some());
    assert_eq!(ours("owner-2", &request), None);
    assert_eq!(ours("", &request), None);
    let labels = request.body.labels.clone().unwrap();
    for name in ["/web", "/k8s_c_web_prod_u2_0", "/k8s_POD_web_prod_u1_0"] {
        assert_eq!(parse_ours(OWNER, [name], &labels), None, "{name}");
    }
    // An image that carries our labels gives them to whatever is run from it.
    // docker 9
    assert_eq!(parse_ours(OWNER, ["/forged"], &labels), None);
    assert_eq!(parse_ours(OWNER, [], &labels), None);
    // Of several names the one that fits counts.
    assert!(parse_ours(OWNER, ["/peer/alias", "/k8s_c_web_prod_u1_0"], &labels).is_some());
}

#[test]
fn every_label_that_is_read_counts_towards_ownership() {
    let request = container_of(&one(&json!({}), &json!({}))).unwrap();
    let labels = request.body.labels.clone().unwrap();
    for (key, forged) in [
        (keys::OWNER, "other"),
        (keys::KIND, keys::KIND_SANDBOX),
        (keys::KIND, ""),
        (keys::POD_NAME, "x"),
        (keys::POD_NAMESPACE, "x"),
        (keys::POD_UID, "x"),
        (keys::CONTAINER_NAME, "x"),
        (keys::CONTAINER_NAME, keys::SANDBOX_NAME),
        (keys::ATTEMPT, "1"),
        (keys::RESTART_COUNT, "1"),
        (keys::ROLE, "boss"),
    ] {
        let mut forged_labels = labels.clone();
        forged_labels.insert(key.to_owned(), forged.to_owned());
        // docker 9
        assert_eq!(
            parse_ours(OWNER, [request.name.as_str()], &forged_labels),
            None,
            "{key}={forged}"
        );
        forged_labels.remove(key);
        assert_eq!(
            parse_ours(OWNER, [request.name.as_str()], &forged_labels),
            None,
            "{key}"
        );
    }
    // An unreadable label that doesn't decide ownership has a safe default.
    let mut vague = labels;
    vague.insert(keys::CONTAINER_HASH.to_owned(), "not hex".to_owned());
    vague.insert(keys::TERMINATION_GRACE.to_owned(), "soon".to_owned());
    vague.insert(keys::POD_RESTARTS.to_owned(), "-1".to_owned());
    let seen = parse_ours(OWNER, [request.name.as_str()], &vague).unwrap();
    assert_eq!(seen.grace, spec::DEFAULT_GRACE);
    assert!(matches!(
        seen.kind,
        Kind::Container {
            hash: ContainerHash(0),
            pod_restarts: 0,
            ..
        }
    ));
}

#[test]
fn users_labels_and_annotations_are_kept_unless_they_are_ours() {
    let mut pod = one(&json!({}), &json!({}));
    pod.metadata.labels = Some(
        [
            ("app", "shop"),
            (keys::SHIM_TYPE, "podsandbox"),
            (keys::OWNER, "thief"),
            (keys::POD_UID, "thief"),
            (keys::CONTAINER_HASH, "thief"),
            (keys::ROLE, "app"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into(),
    );
    pod.metadata.annotations = Some(
        [
            ("note", "hi"),
            ("io.kubernetes.pod.terminationGracePeriod", "9999"),
            ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into(),
    );
    let sandbox = sandbox_of(&pod).unwrap();
    let labels = sandbox.body.labels.clone().unwrap();
    let get = |key: &str| labels.get(key).map(String::as_str);
    assert_eq!(get("app"), Some("shop"));
    assert_eq!(get("annotation.note"), Some("hi"));
    assert_eq!(get(keys::SHIM_TYPE), None);
    assert_eq!(get(keys::OWNER), Some(OWNER));
    assert_eq!(get(keys::POD_UID), Some("u1"));
    assert_eq!(get(keys::TERMINATION_GRACE), Some("30"));
    assert_eq!(get(keys::CONTAINER_HASH), Some(""));
    assert!(!labels.keys().any(|key| key.contains("last-applied")));
    assert!(ours(OWNER, &sandbox).is_some());
    let container = container_of(&pod).unwrap().body.labels.unwrap();
    assert!(!container.contains_key("app"));
    assert!(!container.contains_key(keys::SHIM_TYPE));
}
