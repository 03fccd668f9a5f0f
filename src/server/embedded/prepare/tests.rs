use mirrorlet_apimachinery::resources::{CONFIG_MAPS, Resource};
use serde_json::json;

use super::*;

fn check(
    object: Value,
    raw: Option<&str>,
    validation: FieldValidation,
) -> Result<Prepared, Status> {
    let key = Key::new(&PODS, "default", "web");
    let node = NodeName::from("box");
    let raw = raw.map(str::as_bytes);
    let location = "/r/api/default/pods/web.yaml";
    prepare(object, &key, None, raw, validation, location, &node)
}

/// The object of a document that the API stores.
fn stored(object: &Value) -> Object {
    stored_text(&object.to_string())
}

fn stored_text(text: &str) -> Object {
    let node = NodeName::from("box");
    let context = ParseContext {
        node_name: &node,
        source: PodSource::Embedded,
        location: "/r/api/x.yaml",
    };
    let parsed = parse_manifest(text.as_bytes(), &context);
    let document = parsed.documents.into_iter().next().unwrap();
    let Some(Accepted::Object(object)) = document.accepted else {
        panic!("{:?}", document.problems);
    };
    object
}

/// Checks an object in the place of `document`, which is shown as `shown`.
fn replace(document: &Value, shown: &Value, object: Value) -> Result<Prepared, Status> {
    let resource = Resource::of_kind(object["kind"].as_str().unwrap()).unwrap();
    let namespace = meta::namespace(&object).to_owned();
    let key = Key::new(resource, namespace, meta::name(&object));
    let document = stored(document);
    let before = Before {
        shown,
        document: &document,
    };
    let validation = FieldValidation::Strict;
    let node = NodeName::from("box");
    let before = Some(&before);
    prepare(
        object,
        &key,
        before,
        None,
        validation,
        "/r/api/x.yaml",
        &node,
    )
}

fn pod(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "default", "uid": "u-1"}, "spec": spec})
}

#[test]
fn what_is_stored_is_whole_and_valid() {
    let container = json!({"name": "web", "image": "example/web:1"});
    let spec = json!({"containers": [container], "nodeName": "box"});
    let stored = check(pod(&spec), None, FieldValidation::Strict).unwrap();
    assert_eq!(stored.object["spec"]["restartPolicy"], "Always");
    assert_eq!(stored.object["spec"]["nodeName"], Value::Null);
    assert_eq!(stored.object["metadata"]["uid"], "u-1");
    // An object that is read back and stored again is the same.
    let again = check(stored.object.clone(), None, FieldValidation::Strict).unwrap();
    assert_eq!(again.object, stored.object);
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
}

/// The fields of an error, and its message.
fn refusal(refused: Result<Prepared, Status>) -> (Vec<String>, String) {
    let Some(status) = refused.err() else {
        return (Vec::new(), String::new());
    };
    assert_eq!(status.code, 422, "{status}");
    let details = status.details.clone().unwrap();
    let causes = details["causes"].as_array().unwrap();
    let fields = causes.iter().map(|c| c["field"].as_str().unwrap());
    (fields.map(str::to_owned).collect(), status.message)
}

#[test]
fn what_is_immutable_is_not_changed() {
    let metadata = json!({"name": "cfg", "namespace": "default"});
    let map = |immutable: bool, data: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": immutable, "data": {"a": data}});
    let secret = |data: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": true, "stringData": {"a": data}});
    let claim = |class: &str, size: &str| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
    let volume = |path: &str| json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": path}}});
    for (before, after, fields) in [
        (map(false, "1"), map(true, "2"), vec![]),
        (map(true, "1"), map(true, "2"), vec!["data"]),
        (map(true, "1"), map(false, "1"), vec!["immutable"]),
        (secret("1"), secret("1"), vec![]),
        (secret("1"), secret("2"), vec!["data"]),
        (claim("", "1Gi"), claim("", "2Gi"), vec![]),
        (claim("", "1Gi"), claim("fast", "1Gi"), vec!["spec"]),
        (volume("/a"), volume("/a"), vec![]),
        (
            volume("/a"),
            volume("/b"),
            vec!["spec.persistentvolumesource"],
        ),
    ] {
        let (found, _) = refusal(replace(&before, &before, after.clone()));
        // embedded 49
        assert_eq!(found, fields, "{before} {after}");
    }
    let (_, words) = refusal(replace(&map(true, "1"), &map(true, "1"), map(true, "2")));
    assert_eq!(
        words,
        "ConfigMap \"cfg\" is invalid: data: Forbidden: field is immutable when `immutable` is set"
    );
}

#[test]
fn every_character_of_json_is_stored() {
    let map = |data: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cfg", "namespace": "default"}, "data": {"a": data}});
    let key = Key::new(&CONFIG_MAPS, "default", "cfg");
    let node = NodeName::from("box");
    let odd = "\u{7f}\u{80}\u{85}\u{9f}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}\u{1f600}\u{10ffff}\t\r\n\u{1}";
    for character in odd.chars() {
        let object = map(&format!("a{character}b"));
        let raw = object.to_string();
        let raw = Some(raw.as_bytes());
        let validation = FieldValidation::Strict;
        let checked = prepare(
            object.clone(),
            &key,
            None,
            raw,
            validation,
            "/r/x.yaml",
            &node,
        );
        // embedded 54
        assert!(checked.is_ok(), "{character:?}: {:?}", checked.err());
        // The file is read as it was written.
        let text = super::super::files::text(&object).unwrap();
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read, object, "{character:?}");
        let Object::ConfigMap(read) = stored_text(&text) else {
            panic!("{text}");
        };
        assert_eq!(read.data.as_ref().unwrap()["a"], format!("a{character}b"));
    }
}

#[test]
fn the_binding_that_is_shown_is_not_stored() {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let mut bound = claim.clone();
    bound["spec"]["volumeName"] = "disk".into();
    let mut labelled = bound.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let kept = replace(&claim, &bound, labelled.clone()).unwrap();
    // embedded 49
    assert_eq!(kept.object["spec"], claim["spec"]);
    // Another volume is another wish; one that the document names stays in it.
    labelled["spec"]["volumeName"] = "other".into();
    let (fields, _) = refusal(replace(&claim, &bound, labelled));
    assert_eq!(fields, ["spec"]);
    let kept = replace(&bound, &bound, bound.clone()).unwrap();
    assert_eq!(kept.object["spec"]["volumeName"], "disk");
}

#[test]
fn finalizers_have_names_and_owners_are_whole() {
    let causes = |metadata: Value| {
        let causes = mistaken_references(&json!({"metadata": metadata}));
        let fields = causes.into_iter().map(|cause| cause.field);
        fields.collect::<Vec<_>>()
    };
    let owner = |controller: bool| json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "u", "controller": controller});
    for (metadata, expected) in [
        (
            json!({"finalizers": ["orphan", "example.com/keep"]}),
            vec![],
        ),
        (
            json!({"finalizers": ["orphan", "keep", "example.com/a b"]}),
            vec!["metadata.finalizers[1]", "metadata.finalizers[2]"],
        ),
        (
            json!({"ownerReferences": [owner(true), owner(false)]}),
            vec![],
        ),
        (
            json!({"ownerReferences": [owner(true), owner(true)]}),
            vec!["metadata.ownerReferences"],
        ),
        (
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]}),
            vec![
                "metadata.ownerReferences.name",
                "metadata.ownerReferences.uid",
            ],
        ),
    ] {
        // embedded 44
        assert_eq!(causes(metadata.clone()), expected, "{metadata}");
    }
    let unnamed = causes(json!({"finalizers": ["keep"]}));
    // embedded 46
    assert_eq!(unnamed, ["metadata.finalizers[0]"]);
}

#[test]
fn mistakes_are_named_by_their_fields() {
    let container = json!({"name": "web", "image": "example/web:1"});
    let fields = |status: Status| {
        let details = status.details.unwrap();
        let causes = details["causes"].as_array().unwrap();
        causes
            .iter()
            .map(|c| c["field"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let missing = check(
        pod(&json!({"containers": [{"name": "web"}]})),
        None,
        FieldValidation::Strict,
    );
    let missing = missing.err().unwrap();
    assert_eq!(
        (missing.code, fields(missing)),
        (422, vec!["spec.containers[0].image".to_owned()])
    );
    let elsewhere = json!({"containers": [container], "nodeName": "other"});
    let elsewhere = check(pod(&elsewhere), None, FieldValidation::Strict)
        .err()
        .unwrap();
    assert_eq!(
        (elsewhere.code, fields(elsewhere)),
        (422, vec!["spec.nodeName".to_owned()])
    );

    let unknown = json!({"containers": [container], "colour": "red"});
    let strict = check(pod(&unknown), None, FieldValidation::Strict)
        .err()
        .unwrap();
    // embedded 14
    assert_eq!(
        (strict.code, strict.to_string().as_str()),
        (
            400,
            "Pod in version \"v1\" cannot be handled as a Pod: strict decoding error: unknown field \"spec.colour\""
        )
    );
    let warned = check(pod(&unknown), None, FieldValidation::Warn).unwrap();
    assert_eq!(warned.warnings, ["unknown field \"spec.colour\""]);
    let good = pod(&json!({"containers": [container]}));
    let raw = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","name":"web"},"spec":{"containers":[{"name":"web","image":"x"}]}}"#;
    let twice = check(good, Some(raw), FieldValidation::Strict)
        .err()
        .unwrap();
    assert_eq!(twice.code, 400, "{twice}");
}
