//! Metadata of objects, and the parts of it that a write keeps.

use serde_json::{Map, Value, json};

use crate::resources::{NAMESPACES, Resource};
use crate::status::Status;

/// Longest base of a generated name.
///
/// Upstream: `apiserver/pkg/storage/names/generate.go`.
const GENERATED_BASE_MAX: usize = 58;
/// Letters of the random end of a generated name: no vowels, so that no word comes out.
const GENERATED_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The label with its name that every namespace has.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// A string field of the metadata; empty if it is missing.
fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

/// Name of an object.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// Namespace of an object; empty if it has none.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// UID of an object.
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// Revision of an object; none if it has no `resourceVersion`.
pub fn revision(object: &Value) -> Option<u64> {
    text(object, "resourceVersion").parse().ok()
}

/// Sets the revision of an object.
pub fn set_revision(object: &mut Value, revision: u64) {
    metadata(object).insert("resourceVersion".to_owned(), revision.to_string().into());
}

/// The metadata of an object; created if it is missing.
pub fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    map(map_of(object), "metadata")
}

/// Whether a value is the same as none, in a field that has no pointer in Go: there all are written.
pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn map<'a>(within: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    map_of(within.entry(key).or_insert_with(|| json!({})))
}

/// Checks that a body is an object of that resource in that namespace, and fills in the fields that are
/// given by its path.
///
/// # Errors
/// The object is of another kind or version, or in another namespace.
pub fn place(object: &mut Value, resource: &Resource, namespace: &str) -> Result<(), Status> {
    if !object.is_object() {
        return Err(Status::bad_request(
            "the body of the request is not an object",
        ));
    }
    let said = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let (version, kind) = (said("apiVersion"), said("kind"));
    let (own_version, own_kind) = (resource.api_version(), resource.kind);
    if (!version.is_empty() && version != own_version) || (!kind.is_empty() && kind != own_kind) {
        let message = format!(
            "the object provided is unrecognized (must be of type {own_kind}): it is a {kind} of {version}"
        );
        return Err(Status::bad_request(message));
    }
    object["apiVersion"] = own_version.into();
    object["kind"] = own_kind.into();
    let metadata = metadata(object);
    if resource.namespaced {
        let said = metadata.get("namespace").and_then(Value::as_str);
        if said.is_some_and(|said| !said.is_empty() && said != namespace) {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        metadata.insert("namespace".to_owned(), namespace.into());
    } else {
        metadata.remove("namespace");
    }
    Ok(())
}

/// Names an object without a name by its `generateName` and a suffix of letters from `random`.
///
/// # Errors
/// The object has neither name.
pub fn generate_name(
    object: &mut Value,
    resource: &Resource,
    random: [u8; 5],
) -> Result<(), Status> {
    if !name(object).is_empty() {
        return Ok(());
    }
    let base = text(object, "generateName");
    if base.is_empty() {
        let cause = crate::status::Cause {
            reason: "FieldValueRequired",
            message: "Required value: name or generateName is required".to_owned(),
            field: "metadata.name".to_owned(),
        };
        return Err(Status::invalid(resource, "", &[cause]));
    }
    let base: String = base.chars().take(GENERATED_BASE_MAX).collect();
    let letters = random.map(|byte| {
        let index = usize::from(byte) % GENERATED_LETTERS.len();
        GENERATED_LETTERS
            .get(index)
            .copied()
            .map_or('x', char::from)
    });
    let name = base + &String::from_iter(letters);
    metadata(object).insert("name".to_owned(), name.into());
    Ok(())
}

/// Removes empty maps and lists of the metadata, as upstream's decoder does.
fn tidy(metadata: &mut Map<String, Value>) {
    for key in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let is_empty = match metadata.get(key) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Null) => true,
            Some(_) | None => false,
        };
        if is_empty {
            metadata.remove(key);
        }
    }
}

/// Sets a namespace's `kubernetes.io/metadata.name` label to its name, whatever its author set.
///
/// Upstream: `SetDefaults_Namespace` of `pkg/apis/core/v1/defaults.go`.
pub fn label_namespace(object: &mut Value) {
    let name = name(object).to_owned();
    let metadata = metadata(object);
    let has_labels = metadata.get("labels").is_none_or(Value::is_object);
    // Invalid labels are refused later.
    if has_labels {
        map(metadata, "labels").insert(NAME_LABEL.to_owned(), name.into());
    }
}

/// Makes a body a new object: the server sets its identity and its status.
pub fn begin(object: &mut Value, resource: &Resource, uid: &str, now: &str) {
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    let has_generation = resource.generations && object.get("spec").is_some();
    let metadata = metadata(object);
    tidy(metadata);
    for key in [
        "resourceVersion",
        "selfLink",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "managedFields",
        "generation",
    ] {
        metadata.remove(key);
    }
    metadata.insert("uid".to_owned(), uid.into());
    metadata.insert("creationTimestamp".to_owned(), now.into());
    if has_generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
    if resource == &NAMESPACES {
        label_namespace(object);
    }
}

/// Checks that a body is based on the current version of an object, if it has a `resourceVersion`.
///
/// # Errors
/// The body is based on another version.
pub fn check_revision(object: &Value, before: &Value, resource: &Resource) -> Result<(), Status> {
    if revision(object).is_some() && revision(object) != revision(before) {
        return Err(Status::modified(resource, name(before)));
    }
    Ok(())
}

/// Makes a body the next version of an object: the fields that the server sets stay as they were, and a
/// changed spec increments the generation.
///
/// # Errors
/// The body is based on another version, is another object, or has another name.
pub fn succeed(object: &mut Value, before: &Value, resource: &Resource) -> Result<(), Status> {
    let known = name(before);
    if name(object) != known {
        let message = format!(
            "the name of the object ({}) does not match the name on the URL ({known})",
            name(object)
        );
        return Err(Status::bad_request(message));
    }
    check_revision(object, before, resource)?;
    if !uid(object).is_empty() && uid(object) != uid(before) {
        let why = format!(
            "Precondition failed: UID in precondition: {}, UID in object meta: {}",
            uid(object),
            uid(before)
        );
        return Err(Status::conflict(resource, known, &why));
    }
    let spec_changed = object.get("spec") != before.get("spec");
    let old = &before["metadata"];
    let generation = old["generation"].as_i64();
    let kept: Vec<_> = [
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generateName",
    ]
    .into_iter()
    .map(|key| (key, old.get(key).cloned()))
    .collect();
    let metadata = metadata(object);
    tidy(metadata);
    for (key, value) in kept {
        match value {
            Some(value) => metadata.insert(key.to_owned(), value),
            None => metadata.remove(key),
        };
    }
    match generation {
        Some(known) => {
            let next = if spec_changed { known + 1 } else { known };
            metadata.insert("generation".to_owned(), next.into());
        }
        None => drop(metadata.remove("generation")),
    }
    match before.get("status") {
        Some(status) => object["status"] = status.clone(),
        None => drop(object.as_object_mut().map(|map| map.remove("status"))),
    }
    if resource == &NAMESPACES {
        label_namespace(object);
    }
    Ok(())
}

/// Checks the preconditions of a deletion.
///
/// # Errors
/// The object is another one, or has changed.
pub fn check_preconditions(
    options: &Value,
    object: &Value,
    resource: &Resource,
) -> Result<(), Status> {
    let wanted = &options["preconditions"];
    for (key, words) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let asked = wanted[key].as_str().unwrap_or_default();
        let is = text(object, key);
        if !asked.is_empty() && asked != is {
            let why = format!(
                "Precondition failed: {words} in precondition: {asked}, {words} in object meta: {is}"
            );
            return Err(Status::conflict(resource, name(object), &why));
        }
    }
    Ok(())
}

/// The object's metadata alone, which clients request when they watch many kinds.
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{NODES, PODS};

    #[test]
    fn a_write_keeps_what_is_the_servers() {
        let mut new = json!({"metadata": {"name": "web", "uid": "mine", "generation": 7}, "spec": {"a": 1}, "status": {"x": 1}});
        begin(&mut new, &PODS, "u-1", "2026-01-02T03:04:05Z");
        assert_eq!(
            new,
            json!({"metadata": {"name": "web", "uid": "u-1", "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z"}, "spec": {"a": 1}})
        );
        let mut before = new.clone();
        before["status"] = json!({"phase": "Running"});
        set_revision(&mut before, 5);

        let mut same = json!({"metadata": {"name": "web", "labels": {"a": "b"}}, "spec": {"a": 1}});
        succeed(&mut same, &before, &PODS).unwrap();
        assert_eq!(same["metadata"]["generation"], 1);
        assert_eq!(same["status"]["phase"], "Running");
        let mut other =
            json!({"metadata": {"name": "web"}, "spec": {"a": 2}, "status": {"phase": "Mine"}});
        succeed(&mut other, &before, &PODS).unwrap();
        assert_eq!(other["metadata"]["generation"], 2);
        assert_eq!(other["status"]["phase"], "Running");

        for (metadata, code) in [
            (json!({"name": "web", "resourceVersion": "4"}), 409),
            (json!({"name": "web", "uid": "u-2"}), 409),
            (json!({"name": "other"}), 400),
        ] {
            let mut stale = json!({"metadata": metadata, "spec": {"a": 1}});
            // embedded 21
            assert_eq!(succeed(&mut stale, &before, &PODS).unwrap_err().code, code);
        }
        let options = json!({"preconditions": {"uid": "u-2"}});
        // embedded 21
        assert_eq!(
            check_preconditions(&options, &before, &PODS)
                .unwrap_err()
                .code,
            409
        );
    }

    #[test]
    fn a_namespace_has_the_label_with_its_name() {
        for labels in [json!(null), json!({}), json!({NAME_LABEL: "other"})] {
            let mut new = json!({"metadata": {"name": "shop", "labels": labels}});
            begin(&mut new, &NAMESPACES, "u-1", "2026-01-02T03:04:05Z");
            // embedded 65
            assert_eq!(new["metadata"]["labels"], json!({NAME_LABEL: "shop"}));
            let mut next = json!({"metadata": {"name": "shop", "labels": labels}});
            succeed(&mut next, &new, &NAMESPACES).unwrap();
            assert_eq!(next["metadata"]["labels"], json!({NAME_LABEL: "shop"}));
        }
        let mut odd = json!({"metadata": {"name": "shop", "labels": "none"}});
        label_namespace(&mut odd);
        assert_eq!(odd["metadata"]["labels"], "none");
    }

    #[test]
    fn a_body_belongs_where_it_is_sent() {
        let mut bare = json!({"metadata": {"name": "x"}});
        place(&mut bare, &PODS, "a").unwrap();
        // embedded 21
        assert_eq!(
            bare,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "namespace": "a"}})
        );
        for (body, resource) in [
            (json!({"metadata": {"namespace": "b"}}), &PODS),
            (json!({"kind": "Node"}), &PODS),
            (json!({"apiVersion": "v2"}), &NODES),
            (json!("text"), &PODS),
        ] {
            let mut body = body;
            assert_eq!(
                place(&mut body, resource, "a").unwrap_err().code,
                400,
                "{body}"
            );
        }
    }

    #[test]
    fn names_are_generated_without_vowels() {
        let mut object = json!({"metadata": {"generateName": "web-"}});
        generate_name(&mut object, &PODS, [0, 1, 26, 27, 255]).unwrap();
        assert_eq!(name(&object), "web-bc9bq");
        let mut nameless = json!({"metadata": {}});
        assert_eq!(
            generate_name(&mut nameless, &PODS, [0; 5])
                .unwrap_err()
                .code,
            422
        );
    }
}
