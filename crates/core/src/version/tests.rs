use serde_json::Value;

use super::*;
use crate::desired::{Origin, PodSource};
use crate::objects::ObjectSet;

fn pod(spec: &Value) -> SourcePod {
    let pod = json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "m",
            "annotations": {"mirrorlet.dev/restart-on": "config", "kubernetes.io/config.hash": "m"},
        },
        "spec": spec,
    });
    SourcePod::new(
        Arc::new(serde_json::from_value(pod).unwrap()),
        Origin::whole(PodSource::File, "/m/web.yaml"),
    )
}

fn spec(optional: bool) -> Value {
    json!({
        "imagePullSecrets": [{"name": "pull"}],
        "containers": [{"name": "c", "envFrom": [
            {"configMapRef": {"name": "a", "optional": optional}}, {"secretRef": {"name": "b"}},
        ]}],
    })
}

fn map(value: &str) -> Object {
    let object = json!({
        "metadata": {"name": "a", "labels": {"value": value}},
        "data": {"k": value}, "binaryData": {"x.png": "AAA="},
    });
    Object::ConfigMap(Arc::new(serde_json::from_value(object).unwrap()))
}

fn login() -> Object {
    let object = json!({"metadata": {"name": "b"}, "data": {"password": "aHVudGVyMg=="}});
    Object::Secret(Arc::new(serde_json::from_value(object).unwrap()))
}

fn of(spec: &Value, salt: &str, objects: &[Object], complete: bool) -> SourcePod {
    let find = |key: &ObjectKey| {
        let mut known = objects.iter();
        known
            .find(|o| o.kind() == key.kind && o.key().name == key.name)
            .cloned()
    };
    let pod = pod(spec);
    with_config(&pod, salt, find, complete, |_| None).unwrap_or(pod)
}

#[test]
fn the_uid_of_a_pod_with_its_objects_is_pinned_for_ever() {
    let uid = |salt, value: &str| of(&spec(false), salt, &[map(value), login()], true).uid();
    // rollouts 26
    assert_eq!(uid("s", "1").as_str(), "9b983fa9828b4edd128baa274a2bcd6a");
    assert_ne!(uid("s", "1"), uid("s", "2"));
    assert_ne!(uid("s", "1"), uid("t", "1"));
    let version = of(&spec(false), "s", &[map("1"), login()], true);
    assert_eq!(version.manifest_uid().as_str(), "m");
    let annotations = version.pod.metadata.annotations.clone().unwrap();
    assert_eq!(annotations[keys::CONFIG_HASH], version.uid().to_string());
}

#[test]
fn pods_without_the_annotation_or_objects_are_what_their_manifest_says() {
    let mut plain = pod(&spec(false));
    Arc::make_mut(&mut plain.pod).metadata.annotations = None;
    let find = |_: &ObjectKey| Some(map("1"));
    // rollouts 26
    assert_eq!(with_config(&plain, "s", find, true, |_| None), None);
    let pulls = json!({"containers": [], "imagePullSecrets": [{"name": "pull"}]});
    let none = pod(&pulls);
    assert_eq!(with_config(&none, "s", find, true, |_| None), None);
}

#[test]
fn a_missing_object_leaves_the_version_as_it_was() {
    let waits = pod(&spec(false));
    assert_eq!(of(&spec(false), "s", &[login()], true), waits);
    assert_eq!(of(&spec(true), "s", &[login()], false), pod(&spec(true)));
    // An optional object may be missing for ever.
    let without = of(&spec(true), "s", &[login()], true);
    let with = of(&spec(true), "s", &[map("1"), login()], true);
    assert!(without.config.is_some() && without.uid() != with.uid());
    let known = with_config(
        &waits,
        "s",
        |_| None,
        true,
        |manifest| {
            assert_eq!(manifest.as_str(), "m");
            Some((Arc::clone(&with.pod), with.config.clone()?))
        },
    );
    let known = known.unwrap();
    // rollouts 26
    assert_eq!((known.uid(), known.config), (with.uid(), with.config));
}

#[test]
fn a_version_has_its_own_data_of_every_object() {
    let version = of(&spec(true), "s", &[login()], true).config.unwrap();
    let text = serde_json::to_string(&*version).unwrap();
    let version: Config = serde_json::from_str(&text).unwrap();
    let mut set = ObjectSet::default();
    let Object::ConfigMap(newer) = map("2") else {
        unreachable!("a ConfigMap")
    };
    set.config_maps.insert("a".to_owned(), Ok(newer));
    version.pin(&mut set, "ns");
    assert!(set.config_map("a").unwrap_err().is_not_found());
    let password = &set.secret("b").unwrap().data.as_ref().unwrap()["password"];
    // rollouts 25
    assert_eq!(password.0, b"hunter2");
    assert_eq!(version.bytes(), 7);
    assert!(!format!("{version:?}").contains("hunter2"));
}
