use std::fs;

use mirrorlet_apimachinery::resources::{CLAIMS, CONFIG_MAPS};

use super::*;
use crate::server::embedded::bed::Bed;
use crate::server::view::ShownPod;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"a": data}})
}

#[tokio::test]
async fn a_forbidden_edit_leaves_the_file_as_it_was() {
    let bed = Bed::new();
    let key = Key::new(&CONFIG_MAPS, "default", "cfg");
    let mut stays = map("cfg", "1");
    stays["immutable"] = true.into();
    bed.store(&key, &stays);
    let before = fs::read_to_string(bed.file(&key)).unwrap();
    let path = format!("{MAPS}/cfg");
    let edit = json!({"data": {"a": "2"}});
    let (code, refused) = bed.ask("PATCH", &path, &edit).await;
    // embedded 49
    assert_eq!(code, 422, "{refused}");
    assert_eq!(fs::read_to_string(bed.file(&key)).unwrap(), before);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, changed) = bed.ask("PATCH", &path, &label).await;
    assert_eq!(code, 200, "{changed}");
    let after = fs::read_to_string(bed.file(&key)).unwrap();
    assert!(after.contains("labels:"), "{after}");
}

#[tokio::test]
async fn what_is_applied_to_another_version_is_a_conflict() {
    let path = format!("{MAPS}/cfg?fieldManager=ci");
    for (is_stale, says, code, stored) in [
        (true, true, 409, "1"),
        (false, true, 200, "2"),
        (false, false, 200, "2"),
    ] {
        let bed = Bed::new();
        let key = Key::new(&CONFIG_MAPS, "default", "cfg");
        bed.store(&key, &map("cfg", "1"));
        let before = fs::read_to_string(bed.file(&key)).unwrap();
        let (_, shown) = bed.ask("GET", &path, &Value::Null).await;
        let mut applied = map("cfg", "2");
        if says {
            applied["metadata"]["resourceVersion"] = if is_stale {
                "999".into()
            } else {
                shown["metadata"]["resourceVersion"].clone()
            };
        }
        let (found, answer) = bed.ask_with("PATCH", &path, apply::APPLY, &applied).await;
        // embedded 21
        assert_eq!(found, code, "{answer}");
        let text = fs::read_to_string(bed.file(&key)).unwrap();
        let document: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(document["data"]["a"], stored);
        if is_stale {
            assert_eq!(text, before);
            assert_eq!(answer["reason"], "Conflict", "{answer}");
            let words = "the object has been modified; please apply your changes";
            assert!(
                answer["message"].as_str().unwrap().contains(words),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn an_object_whose_name_is_too_long_for_a_file_is_refused() {
    let bed = Bed::new();
    let (code, refused) = bed.ask("POST", MAPS, &map(&"n".repeat(253), "1")).await;
    // embedded 52
    assert_eq!(code, 422, "{refused}");
    assert_eq!(refused["details"]["causes"][0]["field"], "metadata.name");
}

#[tokio::test]
async fn a_pod_that_stops_is_not_changed() {
    let bed = Bed::new();
    let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u-1"}, "spec": {"containers": [{"name": "c"}]}});
    bed.view.shown.lock().unwrap().pods.push(ShownPod {
        pod: serde_json::from_value(pod).unwrap(),
        newest: None,
        origin: None,
        terminating: true,
    });
    let path = "/api/v1/namespaces/default/pods/web";
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, refused) = bed.ask("PATCH", path, &label).await;
    let words = "Operation cannot be fulfilled on pods \"web\": it is being deleted, and can't be changed any more";
    // embedded 53
    assert_eq!((code, &refused["message"]), (409, &words.into()));
}

#[tokio::test]
async fn a_status_is_only_read() {
    let bed = Bed::new();
    let path = "/apis/apps/v1/namespaces/default/deployments/web/status";
    for (method, verb) in [("PATCH", "patch"), ("PUT", "update")] {
        let (code, refused) = bed.ask(method, path, &json!({})).await;
        let words = format!(
            "{verb} is not supported on the status of deployments.apps: the agent sets it, and it can only be read"
        );
        assert_eq!((code, &refused["message"]), (405, &words.into()));
    }
}

#[tokio::test]
async fn a_dry_run_shows_what_the_document_does_not_have() {
    let bed = Bed::new();
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let key = Key::new(&CLAIMS, "default", "data");
    bed.store(&key, &claim);
    let path = "/api/v1/namespaces/default/persistentvolumeclaims/data";
    let (_, before) = bed.ask("GET", path, &Value::Null).await;
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let (code, dry) = bed
        .ask("PATCH", &format!("{path}?dryRun=All"), &label)
        .await;
    assert_eq!((code, &dry["metadata"]["labels"]["a"]), (200, &"b".into()));
    assert!(before["status"].is_object(), "{before}");
    assert_eq!(dry["status"], before["status"]);
}

#[test]
fn a_dry_run_is_shown_as_the_object_is() {
    let before = json!({"kind": "Job", "metadata": {"resourceVersion": "7"}, "spec": {"selector": {"a": "b"}}, "status": {"active": 1}});
    let template = json!({"spec": {"containers": [{"ports": [{"containerPort": 1}]}]}});
    let next = json!({"kind": "Job", "metadata": {}, "spec": {"template": template}});
    let shown = dry(next, &before);
    let spec = &shown["spec"];
    assert_eq!(shown["metadata"], before["metadata"]);
    assert_eq!(shown["status"], before["status"]);
    assert_eq!(spec["selector"], before["spec"]["selector"]);
    let port = &spec["template"]["spec"]["containers"][0]["ports"][0];
    assert_eq!(port["protocol"], "TCP");
}

#[tokio::test]
async fn a_copy_of_a_pod_is_created_without_the_agents_annotations() {
    let bed = Bed::new();
    let annotations = json!({"mirrorlet.dev/workload": "Deployment/web", "mirrorlet.dev/pod-template-hash": "x", "a": "b"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy", "annotations": annotations},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let path = "/api/v1/namespaces/default/pods?dryRun=All";
    let (code, created) = bed.ask("POST", path, &pod).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["metadata"]["annotations"], json!({"a": "b"}));
    let mut pod = pod;
    let dropped = drop_own_annotations(&mut pod, &PODS, None);
    assert_eq!(dropped.len(), 2, "{dropped:?}");
}

/// A pod that the API stores with image `b`, while its version with image `a` runs.
fn held_pod(bed: &Bed) -> Key {
    let key = Key::new(&PODS, "default", "web");
    let pod = |image: &str, uid: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "web", "namespace": "default", "uid": uid, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": image}]},
        })
    };
    bed.store(&key, &pod("b", "o-1", json!({"x": "y"})));
    let held = json!({
        keys::CONFIG_SOURCE: "embedded", keys::OBJECT_UID: "o-1",
        keys::HELD_REVISION: "u-2", keys::HELD_REASON: "ErrImagePull", keys::HELD_MESSAGE: "not found",
    });
    let mut runs = pod("a", "u-1", held);
    runs["status"] = json!({"phase": "Running", "podIP": "10.0.0.2"});
    let mut shown = bed.view.shown.lock().unwrap();
    let stored = shown.pods.pop().unwrap();
    shown.pods.push(ShownPod {
        pod: serde_json::from_value(runs).unwrap(),
        newest: Some(stored.pod.into()),
        ..stored
    });
    key
}

#[tokio::test]
async fn a_write_keeps_the_newest_version_while_another_runs() {
    let path = "/api/v1/namespaces/default/pods/web";
    let labels = json!({"labels": {"a": "b"}});
    let applied = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"a": "b"}},
    });
    for (method, kind) in [
        ("PATCH", "application/merge-patch+json"),
        ("PATCH", apply::APPLY),
        ("PUT", "application/json"),
    ] {
        let bed = Bed::new();
        let key = held_pod(&bed);
        let (_, shown) = bed.ask("GET", path, &Value::Null).await;
        let annotations = &shown["metadata"]["annotations"];
        // embedded 66
        assert_eq!(shown["spec"]["containers"][0]["image"], "b");
        assert_eq!(shown["status"]["podIP"], "10.0.0.2");
        assert_eq!(annotations[keys::HELD_REASON], "ErrImagePull");
        assert_eq!(shown["metadata"]["uid"], "o-1");
        let body = match (method, kind) {
            ("PUT", _) => {
                let mut shown = shown.clone();
                shown["metadata"]["labels"] = labels["labels"].clone();
                shown
            }
            (_, apply::APPLY) => applied.clone(),
            _ => json!({"metadata": labels}),
        };
        let path = format!("{path}?fieldManager=ci");
        let (code, changed) = bed.ask_with(method, &path, kind, &body).await;
        assert_eq!(code, 200, "{changed}");
        let text = fs::read_to_string(bed.file(&key)).unwrap();
        let stored: Value = serde_saphyr::from_str(&text).unwrap();
        // embedded 66
        assert_eq!(stored["spec"]["containers"][0]["image"], "b", "{kind}");
        assert_eq!(stored["metadata"]["annotations"], json!({"x": "y"}));
        assert_eq!(stored["metadata"]["labels"], labels["labels"]);
    }
}

fn service(target: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": target}]}})
}

#[tokio::test]
async fn a_service_whose_named_port_no_pod_has_is_stored_with_a_warning() {
    let bed = Bed::new();
    let pod = json!({"metadata": {"name": "web", "namespace": "default", "uid": "u-1", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 80}]}]}});
    bed.view.shown.lock().unwrap().pods.push(ShownPod {
        pod: serde_json::from_value(pod).unwrap(),
        newest: None,
        origin: None,
        terminating: false,
    });
    for (target, warned) in [
        (json!("metrics"), true),
        (json!("http"), false),
        (json!(80), false),
    ] {
        let request = axum::http::Request::builder()
            .method("POST")
            .uri("/api/v1/namespaces/default/services?dryRun=All")
            .header("content-type", "application/json")
            .body(service(&target).to_string().into());
        let answered = bed.api.answer(request.unwrap()).await;
        let answer = answered.unwrap_or_else(|status| answer::refused(&status));
        assert_eq!(answer.status(), 201, "{target}");
        let warnings = answer.headers().get_all("warning").iter();
        let warnings: Vec<_> = warnings.map(|value| value.to_str().unwrap()).collect();
        let words = "spec.ports[0].targetPort: pod default/web has no TCP port named";
        assert_eq!(warnings.len(), usize::from(warned), "{warnings:?}");
        assert!(
            warnings.iter().all(|text| text.contains(words)),
            "{warnings:?}"
        );
    }
}

#[tokio::test]
async fn a_service_is_shown_with_the_defaults_of_upstream() {
    let bed = Bed::new();
    let key = Key::new(&SERVICES, "default", "web");
    bed.store(&key, &service(&json!(80)));
    let path = "/api/v1/namespaces/default/services/web";
    let (code, shown) = bed.ask("GET", path, &Value::Null).await;
    assert_eq!(code, 200, "{shown}");
    for (field, expected) in [
        ("type", json!("ClusterIP")),
        ("clusterIP", json!("None")),
        ("clusterIPs", json!(["None"])),
        ("ipFamilies", json!(["IPv4"])),
        ("ipFamilyPolicy", json!("SingleStack")),
        ("sessionAffinity", json!("None")),
        ("internalTrafficPolicy", json!("Cluster")),
    ] {
        assert_eq!(shown["spec"][field], expected, "{field}");
    }
    // What a client reads, it can write.
    let (code, written) = bed.ask("PUT", &format!("{path}?dryRun=All"), &shown).await;
    assert_eq!(code, 200, "{written}");
}

fn deployment(replicas: Option<i64>) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "uid": "u-1"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "busybox:1.36"}]},
            },
        },
    });
    if let Some(replicas) = replicas {
        object["spec"]["replicas"] = replicas.into();
    }
    object
}

/// The code of the answer to a write of a Deployment's scale, and the number of pods that is stored
/// then.
async fn scale_to(
    before: Option<i64>,
    method: &str,
    metadata: Value,
    spec: Value,
) -> (u16, Option<i64>) {
    let bed = Bed::new();
    let key = Key::new(&DEPLOYMENTS, "default", "web");
    bed.store(&key, &deployment(before));
    let mut scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1"});
    scale["metadata"] = metadata;
    scale["spec"] = spec;
    let path = "/apis/apps/v1/namespaces/default/deployments/web/scale";
    let (code, _) = bed.ask(method, path, &scale).await;
    let text = fs::read_to_string(bed.file(&key)).unwrap();
    let stored: Value = serde_saphyr::from_str(&text).unwrap();
    (code, stored["spec"]["replicas"].as_i64())
}

#[tokio::test]
async fn a_scale_that_is_put_says_all_of_it() {
    for (spec, code, stored) in [
        (json!({"replicas": 5}), 200, 5),
        // As clients in Go send 0.
        (json!({}), 200, 0),
        (json!({"replicas": null}), 200, 0),
        (json!({"replicas": 0}), 200, 0),
        (json!({"replicas": "2"}), 422, 3),
        (json!({"replicas": 1.5}), 422, 3),
        (json!({"replicas": 1_u64 << 40}), 422, 3),
        (json!({"replicas": -1}), 422, 3),
        (json!("none"), 422, 3),
    ] {
        let metadata = json!({"name": "web", "namespace": "default"});
        let scaled = scale_to(Some(3), "PUT", metadata, spec.clone()).await;
        // embedded 63
        assert_eq!(scaled, (code, Some(stored)), "{spec}");
    }
    for (metadata, code) in [
        (json!({"name": "web", "resourceVersion": "999"}), 409),
        (json!({"name": "web", "uid": "u-2"}), 409),
        (json!({"name": "other"}), 400),
        (json!({"name": "web", "namespace": "other"}), 400),
    ] {
        let scaled = scale_to(Some(3), "PUT", metadata.clone(), json!({"replicas": 5})).await;
        // embedded 63
        assert_eq!(scaled, (code, Some(3)), "{metadata}");
    }
}

#[tokio::test]
async fn a_patch_of_a_scale_keeps_the_number_that_it_does_not_have() {
    let labels = json!({"labels": {"a": "b"}});
    for (before, metadata, spec, code, stored) in [
        (Some(3), labels.clone(), json!({}), 200, Some(3)),
        (None, labels.clone(), json!({}), 200, None),
        (None, json!({}), json!({"replicas": 1}), 200, None),
        (Some(3), json!({}), json!({"replicas": 0}), 200, Some(0)),
        (
            Some(3),
            json!({"resourceVersion": "999"}),
            json!({"replicas": 5}),
            409,
            Some(3),
        ),
    ] {
        let scaled = scale_to(before, "PATCH", metadata, spec.clone()).await;
        // embedded 63
        assert_eq!(scaled, (code, stored), "{spec}");
    }
}

#[tokio::test]
async fn what_has_ended_keeps_its_content() {
    let metadata = json!({"name": "web", "namespace": "default", "uid": "u-1", "finalizers": ["example.com/keep"]});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    });
    let mut workload = deployment(Some(1));
    workload["metadata"] = metadata;
    let deployments = "/apis/apps/v1/namespaces/default/deployments/web";
    for (resource, object, path) in [
        (&PODS, pod, "/api/v1/namespaces/default/pods/web"),
        (&DEPLOYMENTS, workload, deployments),
    ] {
        let bed = Bed::new();
        let key = Key::new(resource, "default", "web");
        bed.store(&key, &object);
        let deletion = format!("{path}?propagationPolicy=Foreground");
        let (code, answer) = bed.ask("DELETE", &deletion, &Value::Null).await;
        assert_eq!((code, bed.file(&key).exists()), (200, false), "{answer}");
        // Its containers are gone.
        bed.view.shown.lock().unwrap().pods.clear();
        bed.view.shown.lock().unwrap().workloads.clear();
        bed.api.store.touch();
        let (_, before) = bed.ask("GET", path, &Value::Null).await;
        let mut released = before.clone();
        meta::metadata(&mut released).remove("finalizers");
        released["spec"] = "x".into();
        let dry_run = format!("{path}?dryRun=All");
        for (method, path, body) in [
            ("PUT", dry_run.as_str(), &released),
            ("PUT", path, &released),
            ("PATCH", path, &json!({"spec": "x"})),
            ("PATCH", path, &json!({"spec": {"replicas": 7}})),
        ] {
            let (code, refused) = bed.ask(method, path, body).await;
            // embedded 46
            assert_eq!(code, 422, "{refused}");
            assert_eq!(refused["details"]["causes"][0]["field"], "spec");
        }
        let (_, after) = bed.ask("GET", path, &Value::Null).await;
        assert_eq!(after, before);
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        let (code, labelled) = bed.ask("PATCH", path, &label).await;
        assert_eq!((code, &labelled["spec"]), (200, &before["spec"]));
        let none = json!({"metadata": {"finalizers": null}});
        let (code, answer) = bed.ask("PATCH", path, &none).await;
        // embedded 46
        assert_eq!(code, 200, "{answer}");
        let (code, _) = bed.ask("GET", path, &Value::Null).await;
        assert_eq!(code, 404);
    }
}

#[tokio::test]
async fn the_write_with_which_an_object_goes_is_checked() {
    let bed = Bed::new();
    let key = Key::new(&CONFIG_MAPS, "default", "cfg");
    let mut deleted = map("cfg", "1");
    let metadata = meta::metadata(&mut deleted);
    metadata.insert("finalizers".to_owned(), json!(["example.com/keep"]));
    metadata.insert(
        "deletionTimestamp".to_owned(),
        "2026-01-02T03:04:05Z".into(),
    );
    bed.store(&key, &deleted);
    let path = format!("{MAPS}/cfg");
    for (data, code) in [(json!("x"), 422), (json!({"a": "2"}), 200)] {
        let body = json!({"metadata": {"finalizers": null}, "data": data});
        let (found, answer) = bed.ask("PATCH", &path, &body).await;
        // embedded 46
        assert_eq!(found, code, "{answer}");
        assert_eq!(bed.file(&key).exists(), code != 200, "{data}");
    }
}
