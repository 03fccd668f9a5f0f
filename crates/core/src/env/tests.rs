use super::*;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::api::core::{ConfigMap, Secret};
use crate::objects::{ServiceFacts, ServicePortFacts};

fn pod(fields: &Value) -> Pod {
    let mut container = json!({
        "name": "c",
        "resources": {
            "limits": {"cpu": "1500m", "memory": "100Mi"},
            "requests": {"cpu": "250m"},
        },
    });
    for (key, value) in fields.as_object().unwrap() {
        container[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {
            "name": "web", "namespace": "prod", "uid": "u-1",
            "labels": {"app": "shop"}, "annotations": {"note.example/x": "hi"},
        },
        "spec": {
            "nodeName": "box", "serviceAccountName": "sa",
            "initContainers": [{"name": "init", "resources": {"limits": {"memory": "1Gi"}}}],
            "containers": [container, {"name": "bare"}],
        },
    }))
    .unwrap()
}

fn resolved(env: &Value) -> Result<Vec<(String, String)>, EnvError> {
    resolved_with(&json!({"env": env}), &ObjectSet::default())
}

/// The environment of a container with those fields.
fn resolved_with(fields: &Value, objects: &ObjectSet) -> Result<Vec<(String, String)>, EnvError> {
    let pod = pod(fields);
    let context = EnvContext {
        pod: &pod,
        host_ips: &["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        pod_ips: &["172.17.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        allocatable: Amounts {
            cpu_milli: 2500,
            memory_bytes: 8 << 30,
            ephemeral_storage_bytes: 10 << 30,
        },
        objects,
        files: None,
    };
    resolve(&spec::spec(&pod).containers[0], &context).map(|resolved| resolved.ordered)
}

fn value(source: &Value) -> Result<String, EnvError> {
    let env = resolved(&json!([{"name": "X", "valueFrom": source}]))?;
    Ok(env.into_iter().map(|(_, value)| value).collect())
}

fn pairs(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn literals_see_what_comes_before_them_and_later_ones_replace() {
    let env = json!([
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)-$(C)"},
        {"name": "C", "value": "3"},
        {"name": "A", "value": "$(A)$(C)"},
        {"name": "EMPTY", "value": ""},
        {"name": "NONE"},
        {"name": "QUOTED", "value": "$$(A)"},
    ]);
    // docker 4
    assert_eq!(
        resolved(&env).unwrap(),
        pairs(&[
            ("A", "13"),
            ("B", "1-$(C)"),
            ("C", "3"),
            ("EMPTY", ""),
            ("NONE", ""),
            ("QUOTED", "$(A)"),
        ])
    );
}

#[test]
fn downward_fields() {
    for (path, expected) in [
        ("metadata.name", Some("web")),
        ("metadata.namespace", Some("prod")),
        ("metadata.uid", Some("u-1")),
        ("metadata.labels['app']", Some("shop")),
        ("metadata.labels['missing']", Some("")),
        ("metadata.annotations['note.example/x']", Some("hi")),
        ("spec.nodeName", Some("box")),
        ("spec.serviceAccountName", Some("sa")),
        ("status.hostIP", Some("192.0.2.1")),
        ("status.hostIPs", Some("192.0.2.1,2001:db8::1")),
        ("status.podIP", Some("172.17.0.2")),
        ("status.podIPs", Some("172.17.0.2,fd00::2")),
        ("metadata.labels", None),
        ("spec.containers", None),
    ] {
        let got = value(&json!({"fieldRef": {"fieldPath": path}}));
        assert_eq!(got.ok().as_deref(), expected, "{path}");
    }
}

#[test]
fn resource_fields_round_up_and_limits_fall_back_to_the_node() {
    let own = |resource: &str, divisor: &str| json!({"resource": resource, "divisor": divisor});
    let of =
        |container: &str, resource: &str| json!({"containerName": container, "resource": resource});
    for (selector, expected) in [
        (own("limits.cpu", "1"), Some("2")),
        (own("limits.cpu", "1m"), Some("1500")),
        (own("limits.cpu", "0"), Some("2")),
        (own("requests.cpu", "1m"), Some("250")),
        (own("limits.memory", "3Mi"), Some("34")),
        (own("requests.memory", "1Mi"), Some("100")),
        (of("bare", "limits.cpu"), Some("3")),
        (of("bare", "limits.memory"), Some("8589934592")),
        (of("bare", "limits.ephemeral-storage"), Some("10737418240")),
        (of("bare", "limits.hugepages-2Mi"), Some("0")),
        (of("bare", "requests.cpu"), Some("0")),
        (of("bare", "requests.memory"), Some("0")),
        (of("init", "limits.memory"), Some("1073741824")),
        (of("nobody", "limits.cpu"), None),
        (own("limits.gpu", "1"), None),
        (own("cpu", "1"), None),
        (own("limits.cpu", "many"), None),
    ] {
        let got = value(&json!({"resourceFieldRef": selector}));
        // docker 38
        assert_eq!(got.ok().as_deref(), expected, "{selector}");
    }
}

/// A config map `conf`, a secret `keys`, and one the node can't get at now.
fn objects() -> ObjectSet {
    let config_map: ConfigMap = serde_json::from_value(json!({
        "data": {"A": "conf-a", "b.c": "conf-bc", "=": "skipped"},
    }))
    .unwrap();
    // "secret", "\xff\xfe"
    let secret: Secret = serde_json::from_value(json!({
        "data": {"A": "c2VjcmV0", "RAW": "//4="},
    }))
    .unwrap();
    let away = ObjectError::Away {
        what: "secret \"prod/away\"".to_owned(),
        cause: "no answer".to_owned(),
    };
    ObjectSet {
        config_maps: [("conf".to_owned(), Ok(Arc::new(config_map)))].into(),
        secrets: [
            ("keys".to_owned(), Ok(Arc::new(secret))),
            ("away".to_owned(), Err(away)),
        ]
        .into(),
        ..ObjectSet::default()
    }
}

#[test]
fn objects_become_variables() {
    let fields = json!({
        "envFrom": [
            {"configMapRef": {"name": "conf"}},
            {"prefix": "S_", "secretRef": {"name": "keys"}},
            {"configMapRef": {"name": "none", "optional": true}},
        ],
        "env": [
            {"name": "A", "value": "$(A)!"},
            {"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "b.c"}}},
            {"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "A"}}},
            {"name": "BOTH", "value": "$(S_A)-$(KEY)"},
            {"name": "GONE", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k", "optional": true}}},
            {"name": "NOKEY", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "k", "optional": true}}},
        ],
    });
    // docker 39
    assert_eq!(
        resolved_with(&fields, &objects()).unwrap(),
        pairs(&[
            ("A", "conf-a!"),
            ("b.c", "conf-bc"),
            ("S_A", "secret"),
            ("S_RAW", "\u{fffd}\u{fffd}"),
            ("KEY", "conf-bc"),
            ("PASS", "secret"),
            ("BOTH", "secret-conf-bc"),
        ])
    );
    let (pod, objects) = (pod(&fields), objects());
    let context = EnvContext {
        pod: &pod,
        host_ips: &[],
        pod_ips: &[],
        allocatable: Amounts::default(),
        objects: &objects,
        files: None,
    };
    let resolved = resolve(&spec::spec(&pod).containers[0], &context).unwrap();
    assert_eq!(resolved.skipped, BTreeSet::from(["=".to_owned()]));
}

#[test]
fn what_is_missing_is_told_as_upstream_tells_it() {
    let config_map = |name: &str, key: &str, optional: bool| json!({"env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": name, "key": key, "optional": optional}}}]});
    let secret = |name: &str, key: &str, optional: bool| json!({"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": name, "key": key, "optional": optional}}}]});
    let from = |source: Value| json!({"envFrom": [source]});
    for (fields, expected) in [
        (config_map("x", "k", false), "configmap \"x\" not found"),
        (secret("x", "k", false), "secret \"x\" not found"),
        (
            config_map("conf", "k", false),
            "couldn't find key k in ConfigMap prod/conf",
        ),
        (
            secret("keys", "k", false),
            "couldn't find key k in Secret prod/keys",
        ),
        (
            from(json!({"configMapRef": {"name": "x"}})),
            "configmap \"x\" not found",
        ),
        (
            from(json!({"secretRef": {"name": "x"}})),
            "secret \"x\" not found",
        ),
        // Optional is what doesn't exist, not what can't be asked for.
        (
            secret("away", "k", true),
            "failed to get secret \"prod/away\": no answer",
        ),
        (
            from(json!({"secretRef": {"name": "away", "optional": true}})),
            "failed to get secret \"prod/away\": no answer",
        ),
    ] {
        let error = resolved_with(&fields, &objects()).unwrap_err();
        // docker 39
        assert_eq!(error.to_string(), expected, "{fields}");
    }
}

#[test]
fn services_come_last_and_replace_nothing() {
    let services: Arc<[ServiceFacts]> = Arc::new([ServiceFacts {
        namespace: "default".to_owned(),
        name: "kubernetes".to_owned(),
        cluster_ip: "10.0.0.1".to_owned(),
        ports: vec![ServicePortFacts {
            name: String::new(),
            protocol: "TCP".to_owned(),
            port: 443,
        }],
    }]);
    let known = ObjectSet {
        services: Some(Ok(services)),
        ..ObjectSet::default()
    };
    let fields = json!({"env": [
        {"name": "API", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
        {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"},
        {"name": "AGAIN", "value": "$(KUBERNETES_SERVICE_HOST)"},
    ]});
    let found = resolved_with(&fields, &known).unwrap();
    // docker 39
    assert_eq!(
        found[..3],
        pairs(&[
            ("API", "https://10.0.0.1"),
            ("KUBERNETES_SERVICE_HOST", "mine"),
            ("AGAIN", "mine"),
        ])
    );
    let port = ("KUBERNETES_SERVICE_PORT".to_owned(), "443".to_owned());
    assert!(found[3..].contains(&port), "{found:?}");

    let unknown = ObjectSet {
        services: Some(Err(ObjectError::Away {
            what: "services".to_owned(),
            cause: "no answer".to_owned(),
        })),
        ..ObjectSet::default()
    };
    assert_eq!(
        resolved_with(&json!({}), &unknown).unwrap_err().to_string(),
        "services have not yet been read at least once, cannot construct envvars (failed to get services: no answer)"
    );
}

/// Manifests of a few KB ask for gigabytes: of strings in strings, of one object many times.
#[test]
fn an_environment_is_as_large_as_a_process_may_be_started_with() {
    let doubled =
        |name: &str, of: &str| json!({"name": name, "value": format!("$({of})").repeat(56)});
    let value = |name: &str, bytes: usize| json!({"name": name, "value": "x".repeat(bytes)});
    let large: ConfigMap =
        serde_json::from_value(json!({"data": {"K": "x".repeat(1 << 20)}})).unwrap();
    let objects = ObjectSet {
        config_maps: [("large".to_owned(), Ok(Arc::new(large)))].into(),
        ..ObjectSet::default()
    };
    let from = |count: usize| {
        let entry =
            |n: usize| json!({"prefix": format!("P{n}_"), "configMapRef": {"name": "large"}});
        json!({"envFrom": (0..count).map(entry).collect::<Vec<_>>()})
    };
    let many = |count: usize| {
        let mut env = vec![value("V", 120 << 10)];
        env.extend((1..count).map(|n| json!({"name": format!("V{n}"), "value": "$(V)"})));
        json!({"env": env})
    };
    let again = json!({"env": vec![value("V", 120 << 10); 100]});
    for (fields, problem) in [
        (
            json!({"env": [value("A", 56), doubled("B", "A"), doubled("C", "B"), doubled("D", "C"), doubled("E", "D")]}),
            Some(r#"env "C" is longer than 131072 bytes once expanded"#),
        ),
        (from(1), None),
        (
            from(10_000),
            Some(r#"environment and command exceed 2097152 bytes in total at env "P1_K""#),
        ),
        (many(17), None),
        (
            many(10_000),
            Some(r#"environment and command exceed 2097152 bytes in total at env "V17""#),
        ),
        // One that replaces another takes its room.
        (again, None),
    ] {
        let error = resolved_with(&fields, &objects)
            .err()
            .map(|e| e.to_string());
        // tenants H1
        assert_eq!(error.as_deref(), problem);
    }
}

#[test]
fn a_variable_of_a_file_is_there_once_the_file_is() {
    let source = |optional: bool| {
        let from = json!({"volumeName": "v", "path": "a.env", "key": "K", "optional": optional});
        json!({"env": [{"name": "X", "valueFrom": {"fileKeyRef": from}}, {"name": "Y", "value": "$(X)"}]})
    };
    let with = |optional: bool, files: Option<&EnvFiles>| {
        let pod = pod(&source(optional));
        let context = EnvContext {
            pod: &pod,
            host_ips: &[],
            pod_ips: &[],
            allocatable: Amounts::default(),
            objects: &ObjectSet::default(),
            files,
        };
        resolve(&spec::spec(&pod).containers[0], &context).map(|resolved| resolved.ordered)
    };
    let file = |text: &str| EnvFiles::from([(("v".into(), "a.env".into()), Ok(text.to_owned()))]);
    let without = pairs(&[("Y", "$(X)")]);
    // docker 4a
    assert_eq!(
        with(false, Some(&file("K='1'"))).unwrap(),
        pairs(&[("X", "1"), ("Y", "1")])
    );
    assert_eq!(with(false, None).unwrap(), without);
    for files in [file("A='1'"), EnvFiles::new()] {
        assert_eq!(with(true, Some(&files)).unwrap(), without);
        assert!(with(false, Some(&files)).is_err());
    }
    let error = with(true, Some(&file("K=hunter2")))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "env \"X\": file \"a.env\" of volume \"v\": line 1: the value must be in single quotes"
    );
}
