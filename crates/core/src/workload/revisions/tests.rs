use std::collections::BTreeSet;

use serde_json::json;

use super::*;
use crate::desired::{Origin, PodSource, SourcePod};

/// A pod of a Deployment made of a template with that image; `written` tells apart texts that mean
/// the same.
fn pod(number: u32, image: &str, written: &str) -> SourcePod {
    let pod = json!({
        "metadata": {
            "name": format!("web-{number}-box"),
            "namespace": "default",
            "uid": format!("{number}{image}{written}"),
            "labels": {"app": "web"},
            "annotations": {
                keys::WORKLOAD: "Deployment/web",
                keys::TEMPLATE: format!("{image}{written}"),
                keys::CONFIG_HASH: format!("{number}{image}{written}"),
            },
        },
        "spec": {"nodeName": "box", "containers": [{"name": "web", "image": image}]},
    });
    let pod = Arc::new(serde_json::from_value(pod).unwrap());
    SourcePod {
        template: Some(template(image, written)),
        ..SourcePod::new(pod, Origin::whole(PodSource::File, "/m/web.yaml"))
    }
}

fn template(image: &str, written: &str) -> Arc<Value> {
    Arc::new(json!({"image": image, "written": written}))
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

/// The history of a pod that had these versions one after the other.
fn history(number: u32, versions: &[(&str, &str)]) -> History {
    let mut history = History::default();
    for (at_second, (image, written)) in (0..).zip(versions) {
        history.take_newest(&pod(number, image, written), at(at_second));
    }
    history
}

fn told(image: &str, written: &str, histories: &[History]) -> Vec<(u64, String, bool)> {
    let document = SourceWorkload {
        namespace: "default".to_owned(),
        owner: "Deployment/web".to_owned(),
        document: Arc::new(json!({"spec": {"template": *template(image, written)}})),
        pods: BTreeSet::new(),
        set: None,
        template_hash: format!("{image}{written}"),
        origin: Origin::whole(PodSource::File, "/m/web.yaml"),
        held: false,
    };
    let found = revisions(&document, histories.iter(), &[]);
    found
        .into_iter()
        .map(|revision| {
            let image = revision.template["image"].as_str().unwrap();
            assert!(revision.template_hash.starts_with(image));
            (revision.number, image.to_owned(), revision.is_newest)
        })
        .collect()
}

#[test]
fn versions_of_a_workload_are_those_of_its_first_pod() {
    let of = |number: u64, image: &str, newest: bool| (number, image.to_owned(), newest);
    let three = [("a", ""), ("b", ""), ("c", "")];
    // Pods that came later know fewer.
    let histories = [history(1, &three[2..]), history(0, &three)];
    let expected = vec![of(1, "a", false), of(2, "b", false), of(3, "c", true)];
    // embedded 40
    assert_eq!(told("c", "", &histories), expected);
    // A version that comes back has the next number, also where its text differs.
    for written in ["", "resources: {}"] {
        let back = history(0, &[("a", ""), ("b", ""), ("a", written)]);
        let expected = vec![of(2, "b", false), of(3, "a", true)];
        assert_eq!(told("a", written, &[back]), expected);
    }
    // No pod has the version of the document yet, or there is none at all.
    let expected = vec![of(1, "a", false), of(2, "b", true)];
    assert_eq!(told("b", "", &[history(0, &three[..1])]), expected);
    assert_eq!(told("a", "", &[]), vec![of(1, "a", true)]);
    // Pods of a workload that was scaled down to nothing are known for a while.
    let mut gone = history(0, &three[..2]);
    gone.end(at(9));
    let expected = vec![of(1, "a", false), of(2, "b", true)];
    assert_eq!(told("b", "", &[gone]), expected);
    // Histories of an older agent have no templates.
    let mut older = history(0, &three[..2]);
    older.revisions[0].template = None;
    assert_eq!(told("b", "", &[older]), vec![of(2, "b", true)]);
}

#[test]
fn a_pod_that_stays_for_its_turn_keeps_its_template() {
    let mut known = history(0, &[("a", "")]);
    let stays = SourcePod {
        template: None,
        ..pod(0, "a", "")
    };
    known.take_newest(&stays, at(1));
    // embedded 40
    assert_eq!(known.revisions[0].template, Some(template("a", "")));
}
