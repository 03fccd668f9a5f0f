use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::Timestamp;
use crate::api::core::{ConfigMap, Secret};
use crate::objects::{Token, TokenKey, references};

fn pod(volume: &Value, more: &Value) -> Pod {
    let mut spec = json!({
        "serviceAccountName": "sa",
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "1500m"}}}],
        "volumes": [volume],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "prod", "uid": "u-1",
            "labels": {"app": "shop", "tier": "a \"b\""},
        },
        "spec": spec,
    }))
    .unwrap()
}

fn objects(pod: &Pod) -> ObjectSet {
    let config_map: ConfigMap = serde_json::from_value(json!({
        "data": {"a": "text a", "both": "text"}, "binaryData": {"b": "//4=", "both": "Ynl0ZXM="},
    }))
    .unwrap();
    let secret: Secret = serde_json::from_value(json!({"data": {"pass": "c2VjcmV0"}})).unwrap();
    let token = Token {
        secret: "t0ken".to_owned(),
        expires_at: Timestamp::UNIX_EPOCH,
        refresh_at: Timestamp::UNIX_EPOCH,
    };
    let away = ObjectError::Away {
        what: "secret \"prod/away\"".to_owned(),
        cause: "no answer".to_owned(),
    };
    let tokens: BTreeMap<TokenKey, _> = references(pod)
        .tokens
        .into_iter()
        .map(|key| (key, Ok(token.clone())))
        .collect();
    ObjectSet {
        config_maps: [("conf".to_owned(), Ok(Arc::new(config_map)))].into(),
        secrets: [
            ("keys".to_owned(), Ok(Arc::new(secret))),
            ("away".to_owned(), Err(away)),
        ]
        .into(),
        tokens,
        ..ObjectSet::default()
    }
}

fn of(volume: &Value, more: &Value) -> Result<Payload, PayloadError> {
    let mut volume = volume.clone();
    volume["name"] = json!("v");
    let pod = pod(&volume, more);
    let mut all = payloads(&PayloadContext {
        pod: &pod,
        objects: &objects(&pod),
        allocatable: Amounts {
            memory_bytes: 8 << 30,
            ..Amounts::default()
        },
    });
    all.remove("v").unwrap()
}

/// Lines `path mode[:user] content`.
fn listed(payload: &Payload) -> Vec<String> {
    let line = |(path, file): (&String, &PayloadFile)| {
        let user = file.user.map(|user| format!(":{user}")).unwrap_or_default();
        let content = String::from_utf8_lossy(&file.data);
        format!("{path} {:04o}{user} {content}", file.mode)
    };
    payload.files().iter().map(line).collect()
}

fn lines(volume: &Value) -> Vec<String> {
    listed(&of(volume, &json!({})).unwrap())
}

fn problem(volume: &Value) -> String {
    of(volume, &json!({})).unwrap_err().to_string()
}

#[test]
fn config_maps() {
    // docker 44
    assert_eq!(
        lines(&json!({"configMap": {"name": "conf"}})),
        [
            "a 0644 text a",
            "b 0644 \u{fffd}\u{fffd}",
            "both 0644 bytes"
        ]
    );
    assert_eq!(
        lines(&json!({"configMap": {
            "name": "conf", "defaultMode": 0o400,
            "items": [
                {"key": "a", "path": "x//./y"}, {"key": "a", "path": "z", "mode": 0o755},
                {"key": "both", "path": "w"},
            ],
        }})),
        ["w 0400 text", "x/y 0400 text a", "z 0755 text a"]
    );
    assert_eq!(
        problem(&json!({"configMap": {"name": "none"}})),
        "configmap \"none\" not found"
    );
    let missing_key = |optional: bool| json!({"configMap": {"name": "conf", "optional": optional, "items": [{"key": "k", "path": "k"}]}});
    assert_eq!(
        problem(&missing_key(false)),
        "configmap references non-existent config key: k"
    );
    assert!(lines(&missing_key(true)).is_empty());
    assert!(lines(&json!({"configMap": {"name": "none", "optional": true}})).is_empty());
}

#[test]
fn secrets() {
    assert_eq!(
        lines(&json!({"secret": {"secretName": "keys", "defaultMode": 0o440}})),
        ["pass 0440 secret"]
    );
    assert_eq!(
        problem(&json!({"secret": {"secretName": "keys", "items": [{"key": "k", "path": "k"}]}})),
        "references non-existent secret key: k"
    );
    assert_eq!(
        problem(&json!({"secret": {"secretName": "none"}})),
        "secret \"none\" not found"
    );
    assert!(lines(&json!({"secret": {"secretName": "none", "optional": true}})).is_empty());
    // Optional is what doesn't exist, not what can't be asked for.
    assert_eq!(
        problem(&json!({"secret": {"secretName": "away", "optional": true}})),
        "failed to get secret \"prod/away\": no answer"
    );
}

#[test]
fn downward_fields() {
    let field = |path: &str, field: &str| json!({"path": path, "fieldRef": {"fieldPath": field}});
    let resource = |path: &str, name: &str| json!({"path": path, "mode": 0o400, "resourceFieldRef": {"containerName": "c", "resource": name}});
    assert_eq!(
        lines(&json!({"downwardAPI": {"items": [
            field("labels", "metadata.labels"), field("name", "metadata.name"),
            resource("cpu", "limits.cpu"), resource("mem/limit", "limits.memory"),
        ]}})),
        [
            "cpu 0400 2",
            "labels 0644 app=\"shop\"\ntier=\"a \\\"b\\\"\"",
            "mem/limit 0400 8589934592",
            "name 0644 web",
        ]
    );
    assert_eq!(
        problem(&json!({"downwardAPI": {"items": [
            field("x", "status.podIP"),
            {"path": "y", "resourceFieldRef": {"resource": "limits.cpu"}},
        ]}})),
        "[unsupported fieldPath: status.podIP, container  not found]"
    );
}

#[test]
fn a_projected_volume_merges_its_sources_in_order() {
    let volume = json!({"projected": {"sources": [
        {"configMap": {"name": "conf"}},
        {"secret": {"name": "keys", "items": [{"key": "pass", "path": "a", "mode": 0o600}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
    ]}});
    // docker 44
    assert_eq!(
        lines(&volume),
        [
            "a 0600 secret",
            "b 0644 \u{fffd}\u{fffd}",
            "both 0644 bytes",
            "namespace 0644 prod",
            "token 0644 t0ken",
        ]
    );
    assert_eq!(
        problem(&json!({"projected": {"sources": [
            {"configMap": {"name": "none"}}, {"secret": {"name": "none"}},
            {"clusterTrustBundle": {"path": "x"}},
        ]}})),
        "[configmap \"none\" not found, secret \"none\" not found, a projected source other than configMap, secret, downwardAPI and serviceAccountToken is not supported]"
    );
}

#[test]
fn tokens_are_for_the_pods_user_and_group_only() {
    let volume = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}});
    let own = |user: Value| json!([{"name": "c", "securityContext": {"runAsUser": user}}]);
    for (more, expected) in [
        (json!({}), "token 0644 t0ken"),
        (
            json!({"securityContext": {"runAsUser": 1000}}),
            "token 0600:1000 t0ken",
        ),
        (
            json!({"securityContext": {"fsGroup": 2000}}),
            "token 0600 t0ken",
        ),
        (
            json!({"securityContext": {"runAsUser": 1000, "fsGroup": 2000}}),
            "token 0600:1000 t0ken",
        ),
        (
            json!({"securityContext": {"runAsUser": 1}, "containers": own(json!(2))}),
            "token 0600:2 t0ken",
        ),
        (
            json!({"securityContext": {"runAsUser": 1}, "initContainers": own(json!(2))}),
            "token 0644 t0ken",
        ),
        (
            json!({"containers": own(json!(2)), "initContainers": [{"name": "i"}]}),
            "token 0644 t0ken",
        ),
    ] {
        // docker 44
        assert_eq!(listed(&of(&volume, &more).unwrap()), [expected], "{more}");
    }
}

#[test]
fn paths_stay_in_their_volume() {
    for (path, expected) in [
        ("a", Some("a")),
        ("./a//b/", Some("a/b")),
        ("a..b", Some("a..b")),
        ("a/..b", Some("a/..b")),
        ("", None),
        (".", None),
        ("/a", None),
        ("..", None),
        ("a/../b", None),
        ("..data", None),
        ("./..data", None),
        ("a\0b", None),
    ] {
        assert_eq!(clean_path(path).ok().as_deref(), expected, "{path:?}");
    }
    assert!(clean_path(&"x".repeat(256)).is_err());
    assert!(clean_path(&"x/".repeat(2049)).is_err());
    assert!(clean_path(&"x".repeat(255)).is_ok());
}

/// A pod may refer to an object as often as it likes.
#[test]
fn the_files_of_a_pod_have_a_bound() {
    let mut pod = pod(&json!({"name": "v"}), &json!({}));
    let note = "x".repeat(200_000);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("note".to_owned(), note);
    let mut objects = objects(&pod);
    let secret: Secret =
        serde_json::from_value(json!({"data": {"k": "QUFB".repeat(300_000)}})).unwrap();
    let map: ConfigMap =
        serde_json::from_value(json!({"data": {"k": "x".repeat(900_000)}})).unwrap();
    objects
        .secrets
        .insert("large".to_owned(), Ok(Arc::new(secret)));
    objects
        .config_maps
        .insert("large".to_owned(), Ok(Arc::new(map)));
    let items: Vec<Value> = (0..20)
        .map(|n| json!({"key": "k", "path": format!("f{n}")}))
        .collect();
    let notes = (0..100).map(|n| {
        let field = json!({"fieldPath": "metadata.annotations['note']"});
        json!({"path": format!("f{n}"), "fieldRef": field})
    });
    let notes: Vec<Value> = notes.collect();
    let source = json!({"secret": {"name": "large"}});
    // Files of no length take something, too.
    let empty: ConfigMap = serde_json::from_value(json!({"data": {"k": ""}})).unwrap();
    objects
        .config_maps
        .insert("empty".to_owned(), Ok(Arc::new(empty)));
    let many: Vec<Value> = (0..5000)
        .map(|n| json!({"key": "k", "path": format!("f{n}")}))
        .collect();
    for volume in [
        json!({"configMap": {"name": "empty", "items": many}}),
        json!({"secret": {"secretName": "large", "items": items}}),
        json!({"configMap": {"name": "large", "items": items}}),
        json!({"downwardAPI": {"items": notes}}),
        json!({"projected": {"sources": vec![source; 20]}}),
    ] {
        let with = |volumes: Value| -> Payloads {
            let mut pod = pod.clone();
            pod.spec.as_mut().unwrap().volumes = serde_json::from_value(volumes).unwrap();
            payloads(&PayloadContext {
                pod: &pod,
                objects: &objects,
                allocatable: Amounts::default(),
            })
        };
        let mut volume = volume.clone();
        volume["name"] = json!("v");
        let error = with(json!([volume]))["v"].clone().unwrap_err();
        // tenants M9
        assert!(error.to_string().contains("more than 16 MiB"), "{error}");
    }
    // So has each volume alone, and all together.
    let volumes: Vec<Value> = (0..20)
        .map(|n| json!({"name": format!("v{n}"), "secret": {"secretName": "large"}}))
        .collect();
    pod.spec.as_mut().unwrap().volumes = serde_json::from_value(json!(volumes)).unwrap();
    let all = payloads(&PayloadContext {
        pod: &pod,
        objects: &objects,
        allocatable: Amounts::default(),
    });
    assert_eq!(all.values().filter(|payload| payload.is_ok()).count(), 18);
}

/// Each file may have two thousand directories of its own.
#[test]
fn the_directories_of_a_pod_have_a_bound() {
    let items = |item: Value, is_apart: bool| -> Vec<Value> {
        let each = (0..30).map(|n| {
            let mut item = item.clone();
            let dirs = "d/".repeat(1900);
            let path = if is_apart {
                format!("{n}/{dirs}f")
            } else {
                format!("{dirs}{n}")
            };
            item["path"] = json!(path);
            item
        });
        each.collect()
    };
    for is_apart in [true, false] {
        let keys = items(json!({"key": "a"}), is_apart);
        let passes = items(json!({"key": "pass"}), is_apart);
        let fields = items(
            json!({"fieldRef": {"fieldPath": "metadata.name"}}),
            is_apart,
        );
        for volume in [
            json!({"configMap": {"name": "conf", "items": keys}}),
            json!({"secret": {"secretName": "keys", "items": passes}}),
            json!({"downwardAPI": {"items": fields}}),
        ] {
            let made = of(&volume, &json!({}));
            // tenants M9
            assert_eq!(made.is_err(), is_apart, "{volume}");
        }
    }
    let tokens = items(json!({}), true).into_iter();
    let tokens = tokens.map(|token| json!({"serviceAccountToken": token}));
    let tokens: Vec<Value> = tokens.collect();
    let error = of(&json!({"projected": {"sources": tokens}}), &json!({})).unwrap_err();
    assert!(error.to_string().contains("more than 16 MiB"));
}

/// So may each mount point inside a volume.
#[test]
fn mount_points_in_a_volume_have_a_bound() {
    for (mounts, is_refused) in [(1, false), (30, true)] {
        let mut all = vec![json!({"name": "v", "mountPath": "/conf"})];
        all.extend((0..mounts).map(|n| {
            let path = format!("/conf/{n}{}", "/d".repeat(1900));
            json!({"name": "other", "mountPath": path})
        }));
        let more = json!({"containers": [{"name": "c", "volumeMounts": all}]});
        let made = of(&json!({"configMap": {"name": "conf"}}), &more);
        // tenants M9
        assert_eq!(made.is_err(), is_refused, "{mounts}");
    }
}

#[test]
fn directories_of_mount_points_count_unless_files_have_them() {
    let mut payload = Payload::default();
    for path in ["a", "sub/b"] {
        let file = PayloadFile {
            data: Vec::new(),
            mode: 0o644,
            user: None,
        };
        payload.insert(path, file).unwrap();
    }
    for (points, pages) in [
        (&["sub/c", "x/y/z", "x/y0"][..], 5),
        (&["a", "sub", "sub/b"], 0),
        (&[], 0),
    ] {
        let points: Vec<String> = points.iter().map(|point| (*point).to_owned()).collect();
        let bytes = payload.mount_point_bytes(&points);
        assert_eq!(bytes, pages * PAGE_BYTES, "{points:?}");
    }
}

#[test]
fn nothing_secret_is_in_a_debug_text() {
    let volume = json!({"secret": {"secretName": "keys"}});
    assert!(!format!("{:?}", of(&volume, &json!({}))).contains("secret"));
}

proptest! {
    #[test]
    fn directories_count_once(paths in prop::collection::vec("[ab-](/[ab-]){0,4}", 0..8)) {
        let mut payload = Payload::default();
        let mut directories = BTreeSet::new();
        let mut added = 0;
        for path in &paths {
            added += payload.directories_for(path);
            let file = PayloadFile { data: Vec::new(), mode: 0o644, user: None };
            payload.insert(path, file).unwrap();
            directories.extend(path.match_indices('/').map(|(end, _)| &path[..end]));
        }
        prop_assert_eq!(added, directories.len());
        let pages = payload.files().len() + directories.len();
        prop_assert_eq!(payload.size(), pages * PAGE_BYTES);
    }

    #[test]
    fn a_clean_path_is_clean(path in "[./a]{0,12}") {
        if let Ok(clean) = clean_path(&path) {
            prop_assert_eq!(clean_path(&clean).ok(), Some(clean.clone()));
            prop_assert!(!clean.starts_with(".."));
            prop_assert!(clean.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }
    }
}
