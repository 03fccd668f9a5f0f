use proptest::prelude::*;

use super::super::tests::{names, parse, pods, uids, workload};
use super::*;
use crate::api::PodUid;
use crate::manifest::Accepted;
use crate::rollout::{MIN_READY_SECONDS, PROGRESS_DEADLINE_SECONDS, ROLLOUT};

/// A `StatefulSet` with a claim for each pod, and more of its spec.
fn stateful(more: &Value) -> Value {
    let mut document = workload("StatefulSet", more);
    let spec = &mut document["spec"];
    if spec["serviceName"].is_null() {
        spec["serviceName"] = "web".into();
    }
    spec["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}]);
    if spec["volumeClaimTemplates"].is_null() {
        spec["volumeClaimTemplates"] = json!([{
            "metadata": {"name": "data", "labels": {"of": "web"}, "annotations": {"a": "b"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }]);
    }
    document
}

fn set(document: &Value) -> Arc<StatefulSet> {
    let documents = parse(&[document]);
    match &documents[0].accepted {
        Some(Accepted::Workload(workload)) => workload.set.clone().unwrap(),
        other => panic!("{other:?}: {:?}", documents[0].problems),
    }
}

#[test]
fn each_pod_has_a_name_a_host_name_labels_and_claims_of_its_own() {
    let document = stateful(&json!({"replicas": 2, "ordinals": {"start": 3}}));
    let pods = pods(&document);
    // workloads 21
    assert_eq!(names(&pods), ["web-3-box", "web-4-box"]);
    for (pod, name, index) in [(&pods[0], "web-3", "3"), (&pods[1], "web-4", "4")] {
        let labels = pod.metadata.labels.as_ref().unwrap();
        assert_eq!(labels[keys::STATEFUL_POD_NAME], name);
        assert_eq!(labels[keys::POD_INDEX], index);
        assert_eq!(labels["app"], "web");
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(spec.hostname.as_deref(), Some(name));
        assert_eq!(spec.subdomain.as_deref(), Some("web"));
        let volumes = spec.volumes.as_ref().unwrap();
        assert_eq!(volumes.len(), 1);
        assert_eq!(volumes[0].name, "data");
        let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
        // workloads 21
        assert_eq!(claim.claim_name, format!("data-{name}"));
    }
    let set = set(&document);
    let claims: Vec<&ObjectMeta> = set.claims.iter().map(|claim| &claim.metadata).collect();
    let names: Vec<_> = claims
        .iter()
        .filter_map(|claim| claim.name.as_deref())
        .collect();
    assert_eq!(names, ["data-web-3", "data-web-4"]);
    assert_eq!(claims[0].namespace.as_deref(), Some("default"));
    let labels = claims[0].labels.as_ref().unwrap();
    assert_eq!(
        (labels["of"].as_str(), labels["app"].as_str()),
        ("web", "web")
    );
    assert_eq!(claims[0].annotations.as_ref().unwrap()["a"], "b");
    assert_eq!(set.ordinals, 3..5);
}

#[test]
fn a_claim_takes_the_place_of_the_templates_volume_of_its_name() {
    let mut document = stateful(&json!({}));
    document["spec"]["template"]["spec"]["volumes"] =
        json!([{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]);
    let pod = pods(&document).remove(0);
    let volumes = pod.spec.unwrap().volumes.unwrap();
    let names: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    // workloads 21
    assert_eq!(names, ["tmp", "data"]);
    assert!(volumes[1].persistent_volume_claim.is_some());
}

#[test]
fn a_pod_is_the_pod_that_a_document_of_its_own_describes() {
    for subdomain in [Some("web"), None] {
        let mut document = stateful(&json!({"replicas": 2}));
        document["spec"]["serviceName"] = subdomain.into();
        let template = document["spec"]["template"].clone();
        let mut alone = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1"}});
        alone["metadata"]["labels"] = json!({
            "app": "web", keys::STATEFUL_POD_NAME: "web-1", keys::POD_INDEX: "1",
        });
        alone["spec"] = template["spec"].clone();
        alone["spec"]["hostname"] = "web-1".into();
        if let Some(subdomain) = subdomain {
            alone["spec"]["subdomain"] = subdomain.into();
        }
        alone["spec"]["volumes"] =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-1"}}]);
        let (mut wanted, alone) = (pods(&document).remove(1), pods(&alone).remove(0));
        // workloads 21
        assert_eq!(PodUid::of(&wanted), PodUid::of(&alone));
        let annotations = wanted.metadata.annotations.as_mut().unwrap();
        for key in [keys::WORKLOAD, keys::TEMPLATE, keys::UPDATES, ROLLOUT] {
            assert!(annotations.remove(key).is_some(), "{key}");
        }
        assert_eq!(wanted, alone);
    }
}

#[test]
fn uids_are_pinned_for_ever_and_only_what_pods_are_made_of_changes_them() {
    let base = stateful(&json!({"replicas": 2}));
    let before = uids(&pods(&base));
    // workloads 2
    assert_eq!(before[0].to_string(), "c51ff35faf7d5970aff9df809629f41b");
    for (key, value, stays) in [
        ("replicas", json!(5), true),
        ("minReadySeconds", json!(5), true),
        ("podManagementPolicy", json!("Parallel"), true),
        ("updateStrategy", json!({"type": "RollingUpdate"}), true),
        ("revisionHistoryLimit", json!(10), true),
        (
            "persistentVolumeClaimRetentionPolicy",
            json!({"whenScaled": "Retain"}),
            true,
        ),
        ("serviceName", json!("other"), false),
        ("volumeClaimTemplates", json!([]), false),
    ] {
        let mut document = base.clone();
        document["spec"][key] = value;
        if key == "volumeClaimTemplates" {
            document["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = json!([]);
        }
        let after = uids(&pods(&document));
        let kept = before.iter().filter(|uid| after.contains(uid)).count();
        // workloads 2
        assert_eq!(kept, if stays { 2 } else { 0 }, "{key}");
    }
    // Another first number is another row.
    let shifted = stateful(&json!({"replicas": 2, "ordinals": {"start": 1}}));
    assert_eq!(uids(&pods(&shifted))[0], before[1]);
}

#[test]
fn policies_and_seconds_are_those_of_the_document() {
    for (more, ordered, seconds) in [
        (json!({}), true, 0),
        (json!({"podManagementPolicy": "OrderedReady"}), true, 0),
        (
            json!({"podManagementPolicy": "Parallel", "minReadySeconds": 7}),
            false,
            7,
        ),
    ] {
        let document = stateful(&more);
        let set = set(&document);
        assert_eq!((set.ordered, set.min_ready.as_secs()), (ordered, seconds));
        let pod = pods(&document).remove(0);
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!(annotations[ROLLOUT], "Recreate");
        let of = |key: &str| annotations.get(key).map(String::as_str);
        let (ready, deadline) = if seconds == 7 {
            (Some("7"), Some("307"))
        } else {
            (None, None)
        };
        assert_eq!(of(MIN_READY_SECONDS), ready);
        assert_eq!(of(PROGRESS_DEADLINE_SECONDS), deadline);
    }
    // None wanted: it is one all the same.
    let none = stateful(&json!({"replicas": 0}));
    assert!(pods(&none).is_empty());
    assert!(set(&none).ordinals.is_empty());
}

/// A fault in a field that pods take from their set is reported at the set's field alone.
#[test]
fn a_fault_of_the_set_is_reported_once_at_its_own_field() {
    let claim = |name: &str| {
        json!([
            {"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
            {"metadata": {"name": name}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
        ])
    };
    for (more, field) in [
        (json!({"serviceName": "Web_1"}), "spec.serviceName"),
        (json!({"ordinals": {"start": -3}}), "spec.ordinals.start"),
        (
            json!({"volumeClaimTemplates": claim("")}),
            "spec.volumeClaimTemplates[1].metadata.name",
        ),
        (
            json!({"volumeClaimTemplates": claim("data.x")}),
            "spec.volumeClaimTemplates[1].metadata.name",
        ),
    ] {
        let documents = parse(&[&stateful(&more)]);
        assert_eq!(documents[0].accepted, None, "{field}");
        let problems = documents[0].problems.iter();
        let fields: Vec<_> = problems.map(|p| p.field.as_deref().unwrap()).collect();
        // workloads 21
        assert_eq!(fields, [field]);
    }
    // A fault of the template is the template's.
    let mut document = stateful(&json!({}));
    document["spec"]["template"]["spec"]["volumes"] = json!([{"name": "A", "emptyDir": {}}]);
    let documents = parse(&[&document]);
    let fields = documents[0]
        .problems
        .iter()
        .filter_map(|p| p.field.as_deref());
    assert_eq!(
        fields.collect::<Vec<_>>(),
        ["spec.template.spec.volumes[0].name"]
    );
}

#[test]
fn the_claim_of_any_pod_is_known_by_its_name() {
    let set = set(&stateful(&json!({"replicas": 0})));
    assert!(set.claims.is_empty());
    let claim = set.claim("data-web-7").unwrap();
    assert_eq!(claim.metadata.name.as_deref(), Some("data-web-7"));
    assert!(claim.spec.unwrap().resources.is_some());
    for other in ["data-web-07", "data-web", "data-website-0", "logs-web-0"] {
        assert_eq!(set.claim(other), None, "{other}");
    }
}

#[test]
fn names_are_read_back() {
    let set = set(&stateful(&json!({})));
    for (name, ordinal) in [
        ("web-0", Some(0)),
        ("web-17", Some(17)),
        ("web-01", None),
        ("web--1", None),
        ("web-", None),
        ("web", None),
        ("website-0", None),
        ("web-0-box", None),
    ] {
        assert_eq!(set.ordinal(name), ordinal, "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn scaling_touches_no_other_pod_or_claim(before in 0..20, after in 0..20) {
        let scaled = |replicas: i32| stateful(&json!({"replicas": replicas}));
        let (old, new) = (scaled(before), scaled(after));
        let kept = usize::try_from(before.min(after)).unwrap();
        // workloads 22
        prop_assert_eq!(&pods(&old)[..kept], &pods(&new)[..kept]);
        prop_assert_eq!(&set(&old).claims[..kept], &set(&new).claims[..kept]);
    }
}
