use serde_json::json;

use super::*;

fn pod(source: Option<&str>) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "prod", "uid": "u-1"},
        "spec": {
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}, {}, {"name": "s1"}],
            "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s1"}}]}],
            "containers": [{
                "name": "c",
                "envFrom": [{"configMapRef": {"name": "c1"}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}},
                ],
            }],
            "volumes": [
                {"name": "v1", "configMap": {"name": "c3"}},
                {"name": "v2", "secret": {"secretName": "s3"}},
                {"name": "v3", "projected": {"sources": [
                    {"configMap": {"name": "kube-root-ca.crt"}},
                    {"secret": {"name": "s4"}},
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                    {"serviceAccountToken": {"path": "vault", "audience": "vault"}},
                    {"downwardAPI": {"items": []}},
                ]}},
                {"name": "v4", "configMap": {"name": "c3"}},
            ],
        },
    }))
    .unwrap();
    pod.metadata.annotations =
        source.map(|source| [(keys::CONFIG_SOURCE.to_owned(), source.to_owned())].into());
    pod
}

#[test]
fn every_reference_of_an_api_pod_is_found_once() {
    for source in [None, Some("api")] {
        let found = references(&pod(source));
        let names: Vec<String> = found.objects.iter().map(ToString::to_string).collect();
        assert_eq!(
            names,
            [
                "configmap \"prod/c1\"",
                "configmap \"prod/c2\"",
                "configmap \"prod/c3\"",
                "configmap \"prod/kube-root-ca.crt\"",
                "secret \"prod/pull\"",
                "secret \"prod/s1\"",
                "secret \"prod/s2\"",
                "secret \"prod/s3\"",
                "secret \"prod/s4\"",
            ]
        );
        let tokens: Vec<_> = found.tokens.iter().collect();
        assert_eq!(tokens.len(), 2);
        assert!(
            tokens
                .iter()
                .all(|t| t.service_account == "sa" && t.pod_uid.as_str() == "u-1")
        );
        assert!(found.services);
    }
}

#[test]
fn a_static_pod_refers_to_objects_of_manifests_alone() {
    let of_api = references(&pod(Some("api")));
    for source in ["file", "http"] {
        let found = references(&pod(Some(source)));
        // box 1
        assert_eq!(found.objects, of_api.objects);
        assert!(found.tokens.is_empty() && !found.services);
    }
}

#[test]
fn tokens_are_renewed_in_time() {
    let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
    let day = 24 * 3600;
    for (lifetime, jitter, expected) in [
        (3600, 0, 2880),
        (3607, 10, 2875),
        (600, 0, 480),
        (365 * day, 0, day),
        (365 * day, 7, day - 7),
        (0, 10, 0),
        (-5, 0, 0),
    ] {
        let got = token_refresh_at(at(0), at(lifetime), Duration::from_secs(jitter));
        assert_eq!(got, at(expected), "{lifetime} {jitter}");
    }
}

#[test]
fn nothing_secret_is_in_a_debug_text() {
    let token = Token {
        secret: "hunter2".to_owned(),
        expires_at: Timestamp::UNIX_EPOCH,
        refresh_at: Timestamp::UNIX_EPOCH,
    };
    let secret: Secret = serde_json::from_value(json!({"stringData": {"k": "hunter2"}})).unwrap();
    let set = ObjectSet {
        secrets: [("s".to_owned(), Ok(Arc::new(secret)))].into(),
        tokens: [(token_key(&pod(None), None, None), Ok(token.clone()))].into(),
        ..ObjectSet::default()
    };
    assert!(!format!("{token:?} {set:?}").contains("hunter2"));
}
