use serde_json::json;

use super::*;

#[test]
fn a_mirror_is_a_copy_with_one_owner() {
    let mut pod = Pod::clone(&static_pod("web", "v1"));
    pod.metadata.labels = Some(BTreeMap::from([("app".into(), "web".into())]));
    // Fields of `kubectl get -o yaml` that no new object may have.
    pod.metadata.resource_version = Some("7".into());
    pod.metadata.finalizers = Some(vec!["a/b".into()]);
    pod.status = Some(core::PodStatus::default());
    let mirror = mirror_copy(&pod, &reference("nu"));
    // pods 23
    assert_eq!(
        serde_json::to_value(&mirror).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "web",
                "namespace": "ns",
                "labels": {"app": "web"},
                "annotations": {
                    "kubernetes.io/config.hash": "v1",
                    "kubernetes.io/config.mirror": "v1",
                    "kubernetes.io/config.seen": "2026-01-01T00:00:00Z",
                    "kubernetes.io/config.source": "file",
                },
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": "n1",
                    "uid": "nu",
                    "controller": true,
                }],
            },
            "spec": {"containers": [], "nodeName": "n1"},
        })
    );
    assert!(is_mirror_pod_of(&mirror, &pod));
    assert!(is_ours(&mirror, &node_name()));
}

#[test]
fn references_to_the_api_are_left_out_and_told() {
    let mut pod = Pod::clone(&static_pod("web", "v1"));
    pod.spec = serde_json::from_value(json!({
        "nodeName": "n1",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "imagePullSecrets": [{"name": "regcred"}],
        "resourceClaims": [{"name": "gpu"}],
        "initContainers": [
            {"name": "init", "envFrom": [{"secretRef": {"name": "s"}}, {"prefix": "A"}]},
        ],
        "containers": [{
            "name": "web",
            "env": [
                {"name": "PLAIN", "value": "x"},
                {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}},
            ],
            "resources": {"claims": [{"name": "gpu"}], "limits": {"cpu": "1"}},
            "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
            "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
        }],
        "volumes": [
            {"name": "tls", "secret": {"secretName": "tls"}},
            {"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}},
            {"name": "data", "hostPath": {"path": "/data"}},
            {"name": "share", "cephfs": {"monitors": ["m"], "secretRef": {"name": "s"}}},
            {"name": "both", "projected": {"sources": [
                {"configMap": {"name": "m"}}, {"downwardAPI": {}},
            ]}},
            {"name": "token", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
            ]}},
        ],
    }))
    .unwrap();
    let mirror = mirror_copy(&pod, &reference("nu"));
    assert_eq!(
        serde_json::to_value(&mirror.spec).unwrap(),
        json!({
            "nodeName": "n1",
            "initContainers": [{"name": "init", "envFrom": [{"prefix": "A"}]}],
            "containers": [{
                "name": "web",
                "env": [
                    {"name": "PLAIN", "value": "x"},
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "KEY"},
                    {"name": "MAP"},
                ],
                "resources": {"limits": {"cpu": "1"}},
                "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
            }],
            "volumes": [
                {"name": "tls", "emptyDir": {}},
                {"name": "raw", "emptyDir": {}},
                {"name": "data", "hostPath": {"path": "/data"}},
                {"name": "share", "emptyDir": {}},
                {"name": "both", "projected": {"sources": [{"downwardAPI": {}}]}},
                {"name": "token", "emptyDir": {}},
            ],
        })
    );
    let annotations = mirror.metadata.annotations.unwrap();
    // pods 35, box 18
    assert_eq!(
        annotations[keys::SANITIZED],
        "spec.serviceAccountName,spec.serviceAccount,spec.imagePullSecrets,spec.resourceClaims,\
         spec.initContainers[init].envFrom,spec.containers[web].env[KEY].valueFrom,\
         spec.containers[web].env[MAP].valueFrom,spec.containers[web].volumeDevices,\
         spec.containers[web].resources.claims,spec.volumes[tls].secret,\
         spec.volumes[raw].persistentVolumeClaim,spec.volumes[share].cephfs,spec.volumes[both].projected.sources,\
         spec.volumes[token].projected.sources"
    );
    // The running pod is not touched.
    assert!(pod.spec.unwrap().service_account_name.is_some());
}

#[test]
fn a_whole_copy_is_not_marked() {
    let mirror = mirror_copy(&static_pod("web", "v1"), &reference("nu"));
    let annotations = mirror.metadata.annotations.unwrap();
    assert!(!annotations.contains_key(keys::SANITIZED));
}
