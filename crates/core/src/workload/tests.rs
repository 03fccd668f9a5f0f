use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::{NodeName, PodUid, keys};
use crate::desired::PodSource;
use crate::manifest::{Accepted, Document, ParseContext, parse_manifest};

pub(super) fn parse(documents: &[&Value]) -> Vec<Document> {
    let texts = documents.iter().map(ToString::to_string);
    let text = texts.collect::<Vec<_>>().join("\n---\n");
    let node_name = NodeName::from("Box");
    let ctx = ParseContext {
        node_name: &node_name,
        source: PodSource::File,
        location: "/m/web.yaml",
    };
    parse_manifest(text.as_bytes(), &ctx).documents
}

/// The pods that a document wants.
pub(super) fn pods(document: &Value) -> Vec<Pod> {
    let documents = parse(&[document]);
    let accepted = documents[0].accepted.as_ref();
    let accepted = accepted.unwrap_or_else(|| panic!("{:?}", documents[0].problems));
    accepted.pods().iter().map(|pod| (**pod).clone()).collect()
}

pub(super) fn names(pods: &[Pod]) -> Vec<&str> {
    let names = pods.iter().map(|pod| pod.metadata.name.as_deref());
    names.map(Option::unwrap).collect()
}

pub(super) fn uids(pods: &[Pod]) -> Vec<PodUid> {
    pods.iter().map(PodUid::of).collect()
}

/// A workload of one kind, with more of its spec.
pub(super) fn workload(kind: &str, more: &Value) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
        },
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "web"}, "spec": spec})
}

fn deployment(replicas: i32) -> Value {
    workload("Deployment", &json!({"replicas": replicas}))
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(key).map(String::as_str)
}

#[test]
fn a_workload_wants_pods_of_its_name() {
    for (document, expected) in [
        (deployment(0), &[][..]),
        (deployment(1), &["web-0-box"]),
        (deployment(3), &["web-0-box", "web-1-box", "web-2-box"]),
        (workload("Deployment", &json!({})), &["web-0-box"]),
        (workload("DaemonSet", &json!({})), &["web-box"]),
    ] {
        // workloads 1
        assert_eq!(names(&pods(&document)), expected, "{document}");
    }
    let document = deployment(1);
    let pod = &pods(&document)[0];
    assert_eq!(annotation(pod, keys::WORKLOAD), Some("Deployment/web"));
    let key = WorkloadKey::of(pod).unwrap();
    assert_eq!(key.to_string(), "Deployment default/web");
    assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
    let labels = pod.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["app"], "web");
    assert_eq!(annotation(pod, keys::CONFIG_SOURCE), Some("file"));
    assert_eq!(WorkloadKey::of(&Pod::default()), None);
}

#[test]
fn uids_of_pods_of_workloads_are_pinned_for_ever() {
    let of = |document: &Value| uids(&pods(document))[0].to_string();
    let mut named = deployment(1);
    named["metadata"]["namespace"] = "shop".into();
    let pinned = [
        of(&deployment(1)),
        of(&named),
        of(&workload("DaemonSet", &json!({}))),
    ];
    // workloads 2
    assert_eq!(
        pinned,
        [
            "a3df524046110a39eb5cae93f3e22a64",
            "029a844a3d336a03658c7b5122528d2d",
            "82f06167af00e1c28bf7fccadf3042ce",
        ]
    );
}

#[test]
fn a_pod_of_a_workload_is_the_pod_that_a_document_of_its_own_describes() {
    let mut document = deployment(1);
    let template = document["spec"]["template"].clone();
    document["metadata"]["namespace"] = "shop".into();
    let mut alone = json!({"apiVersion": "v1", "kind": "Pod"});
    alone["metadata"] = template["metadata"].clone();
    alone["metadata"]["name"] = "web-0".into();
    alone["metadata"]["namespace"] = "shop".into();
    alone["spec"] = template["spec"].clone();
    let (mut wanted, alone) = (pods(&document).remove(0), pods(&alone).remove(0));
    assert_eq!(PodUid::of(&wanted), PodUid::of(&alone));
    let annotations = wanted.metadata.annotations.as_mut().unwrap();
    for key in [
        keys::WORKLOAD,
        keys::TEMPLATE,
        keys::UPDATES,
        ROLLOUT,
        PROGRESS_DEADLINE_SECONDS,
    ] {
        assert!(annotations.remove(key).is_some(), "{key}");
    }
    assert_eq!(wanted, alone);
}

#[test]
fn only_what_pods_are_made_of_changes_them() {
    let base = deployment(2);
    let edited = |pointer: &str, value: Value| {
        let mut document = base.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        document.pointer_mut(parent).unwrap()[key] = value;
        uids(&pods(&document))
    };
    let before = uids(&pods(&base));
    for (pointer, value, stays) in [
        ("/metadata/labels", json!({"team": "a"}), true),
        ("/metadata/annotations", json!({"a": "b"}), true),
        ("/metadata/uid", json!("given"), true),
        ("/spec/strategy", json!({"type": "Recreate"}), true),
        ("/spec/minReadySeconds", json!(3), true),
        ("/spec/progressDeadlineSeconds", json!(30), true),
        ("/spec/replicas", json!(3), true),
        (
            "/spec/selector",
            json!({"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
            true,
        ),
        ("/spec/template/metadata/name", json!("other"), true),
        ("/spec/template/metadata/uid", json!("given"), true),
        (
            "/spec/template/metadata/annotations",
            json!({"mirrorlet.dev/rollout": "Recreate"}),
            true,
        ),
        (
            "/spec/template/metadata/annotations",
            json!({"a": "b"}),
            false,
        ),
        (
            "/spec/template/metadata/labels",
            json!({"app": "web", "a": "b"}),
            false,
        ),
        (
            "/spec/template/spec/containers/0/image",
            json!("nginx:2"),
            false,
        ),
        ("/metadata/name", json!("other"), false),
        ("/metadata/namespace", json!("shop"), false),
    ] {
        let after = edited(pointer, value);
        let kept = before.iter().filter(|uid| after.contains(uid)).count();
        // workloads 2
        assert_eq!(kept, if stays { 2 } else { 0 }, "{pointer}");
    }
}

#[test]
fn the_strategy_is_the_order_of_the_pods_rollouts() {
    let rolling = |max_unavailable: Value| json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": max_unavailable}}});
    let recreate = json!({"strategy": {"type": "Recreate"}});
    let surge = |surge: Value, unavailable: Value| json!({"updateStrategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}});
    let volume = json!({"hostPath": {"path": "/srv"}, "name": "v"});
    for (kind, spec, shares, expected) in [
        ("Deployment", json!({}), false, "StartFirst"),
        ("Deployment", json!({}), true, "Recreate"),
        ("Deployment", recreate.clone(), false, "Recreate"),
        ("Deployment", recreate, true, "Recreate"),
        ("Deployment", rolling(json!(0)), false, "StartFirst"),
        ("Deployment", rolling(json!(0)), true, "StartFirst"),
        ("Deployment", rolling(json!("0%")), true, "StartFirst"),
        // A quarter of one pod, rounded down, is none.
        ("Deployment", rolling(json!("25%")), true, "StartFirst"),
        ("Deployment", rolling(json!("100%")), true, "Recreate"),
        ("Deployment", rolling(json!(1)), true, "Recreate"),
        ("Deployment", rolling(json!(1)), false, "StartFirst"),
        ("DaemonSet", json!({}), false, "Recreate"),
        ("DaemonSet", surge(json!(0), json!(1)), false, "Recreate"),
        ("DaemonSet", surge(json!(1), json!(0)), false, "StartFirst"),
        (
            "DaemonSet",
            surge(json!("10%"), json!(0)),
            false,
            "StartFirst",
        ),
        ("DaemonSet", surge(json!(1), json!(0)), true, "StartFirst"),
    ] {
        let mut document = workload(kind, &spec);
        if shares {
            let pod = &mut document["spec"]["template"]["spec"];
            pod["volumes"] = json!([volume]);
            pod["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        }
        let order = |document: &Value| {
            let pods = pods(document);
            annotation(&pods[0], ROLLOUT).unwrap().to_owned()
        };
        // workloads 3
        assert_eq!(order(&document), expected, "{document}");
        // An annotation of the template wins.
        for written in ["Recreate", "StartFirst"] {
            document["spec"]["template"]["metadata"]["annotations"] = json!({ROLLOUT: written});
            assert_eq!(order(&document), written);
        }
    }
}

#[test]
fn seconds_of_the_document_judge_each_pod() {
    for (kind, spec, ready, deadline) in [
        ("Deployment", json!({}), None, Some("600")),
        (
            "Deployment",
            json!({"minReadySeconds": 0}),
            Some("0"),
            Some("600"),
        ),
        (
            "Deployment",
            json!({"minReadySeconds": 4, "progressDeadlineSeconds": 60}),
            Some("4"),
            Some("60"),
        ),
        ("DaemonSet", json!({}), None, None),
        (
            "DaemonSet",
            json!({"minReadySeconds": 400}),
            Some("400"),
            Some("700"),
        ),
    ] {
        let pods = pods(&workload(kind, &spec));
        // workloads 3
        assert_eq!(annotation(&pods[0], MIN_READY_SECONDS), ready, "{spec}");
        let told = annotation(&pods[0], PROGRESS_DEADLINE_SECONDS);
        assert_eq!(told, deadline, "{spec}");
    }
}

#[test]
fn percentages_are_rounded_down() {
    let text = |text: &str| IntOrString::String(text.to_owned());
    for (value, total, expected) in [
        (IntOrString::Int(3), 10, Some(3)),
        (IntOrString::Int(-1), 10, Some(-1)),
        (text("25%"), 3, Some(0)),
        (text("25%"), 4, Some(1)),
        (text("99%"), 100, Some(99)),
        (text("0%"), 9, Some(0)),
        (text("25"), 4, None),
        (text("-5%"), 4, None),
        (text("%"), 4, None),
        (text("4294967295%"), i32::MAX, None),
    ] {
        assert_eq!(scaled(&value, total), expected, "{value:?} of {total}");
    }
}

#[test]
fn texts_name_workloads() {
    for (text, expected) in [
        ("deployment/web", Some((None, "Deployment/web"))),
        ("deploy/web", Some((None, "Deployment/web"))),
        ("DaemonSet/web", Some((None, "DaemonSet/web"))),
        ("ds/a/b", Some((Some("a"), "DaemonSet/b"))),
        ("pod/web", None),
        ("web", None),
        ("default/web", None),
    ] {
        let expected = expected.map(|(namespace, owner)| (namespace, owner.to_owned()));
        assert_eq!(WorkloadKind::named(text), expected, "{text}");
    }
}

#[test]
fn a_thousand_documents_are_one_file() {
    let documents: Vec<Value> = (0..1000)
        .map(|number| {
            let mut document = deployment(1);
            document["metadata"]["name"] = format!("web-{number}").into();
            document
        })
        .collect();
    let documents: Vec<&Value> = documents.iter().collect();
    let parsed = parse(&documents);
    let wanted = parsed.iter().flat_map(Document::pods);
    let uids: BTreeSet<PodUid> = wanted.map(|pod| PodUid::of(pod)).collect();
    assert_eq!(uids.len(), 1000);
}

#[test]
fn no_workload_is_larger_than_a_node() {
    let rejected = |document: &Value| {
        let documents = parse(&[document]);
        let field = documents[0]
            .problems
            .iter()
            .find(|problem| problem.is_error());
        field.and_then(|problem| problem.field.clone())
    };
    let replicas = Some("spec.replicas".to_owned());
    assert_eq!(rejected(&deployment(REPLICAS_MAX)), None);
    // workloads 4
    assert_eq!(rejected(&deployment(REPLICAS_MAX + 1)), replicas);
    assert_eq!(rejected(&deployment(i32::MAX)), replicas);
    let mut large = deployment(REPLICAS_MAX);
    let args = json!(["x".repeat(100_000)]);
    large["spec"]["template"]["spec"]["containers"][0]["args"] = args;
    assert_eq!(rejected(&large), replicas);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn scaling_touches_no_other_pod(before in 0..30, after in 0..30) {
        let (old, new) = (pods(&deployment(before)), pods(&deployment(after)));
        let kept = usize::try_from(before.min(after)).unwrap();
        // workloads 1
        prop_assert_eq!(&old[..kept], &new[..kept]);
        let all: BTreeSet<PodUid> = uids(&old).into_iter().chain(uids(&new)).collect();
        prop_assert_eq!(all.len(), usize::try_from(before.max(after)).unwrap());
    }

    #[test]
    fn every_pod_names_its_workload_and_has_a_name_of_its_own(
        replicas in 0..30,
        name in "[a-z]([-a-z0-9]{0,20}[a-z0-9])?",
        namespace in "[a-z]{1,10}",
        is_daemon in any::<bool>(),
    ) {
        let mut document = if is_daemon {
            workload("DaemonSet", &json!({}))
        } else {
            deployment(replicas)
        };
        document["metadata"] = json!({"name": name, "namespace": namespace});
        let documents = parse(&[&document]);
        let Some(Accepted::Workload(accepted)) = &documents[0].accepted else {
            return Err(TestCaseError::fail("rejected"));
        };
        let wanted = if is_daemon { 1 } else { usize::try_from(replicas).unwrap() };
        prop_assert_eq!(accepted.pods.len(), wanted);
        let mut seen = BTreeSet::new();
        for pod in &accepted.pods {
            prop_assert_eq!(WorkloadKey::of(pod), Some(accepted.key.clone()));
            prop_assert!(seen.insert(pod.metadata.name.clone()));
        }
    }
}
