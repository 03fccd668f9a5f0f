//! A body → the document that is stored: checked as any manifest is, and defaulted. Pure.

use std::borrow::Cow;

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::FieldValidation;
use mirrorlet_apimachinery::resources::{NAMESPACES, PODS};
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_core::api::{Code, Diagnostic, NodeName};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Accepted, ParseContext, is_qualified, parse_manifest};
use mirrorlet_core::objects::Object;
use serde::de::IgnoredAny;
use serde_json::Value;

/// The finalizers whose names have no domain.
///
/// Upstream: `pkg/apis/core/helper/helpers.go`.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// The object that a write changes.
pub(super) struct Before<'a> {
    /// The object as the API shows it.
    pub(super) shown: &'a Value,
    /// The content of the document that defines it, which may have fewer fields.
    pub(super) document: &'a Object,
}

/// An object that may be stored.
pub(super) struct Prepared {
    /// The document.
    pub(super) object: Value,
    /// The warnings for its author.
    pub(super) warnings: Vec<String>,
}

/// Checks an object and fills in its defaults. `before` is the one that it replaces, if that is one
/// that pods refer to. `raw` is the body as the client sent it, if that was a whole object in a text:
/// a key that it has twice is seen only there.
///
/// # Errors
/// It is no valid object, can't be honoured here, or changes a field that stays as it is.
pub(super) fn prepare(
    mut object: Value,
    key: &Key,
    before: Option<&Before<'_>>,
    raw: Option<&[u8]>,
    validation: FieldValidation,
    location: &str,
    node: &NodeName,
) -> Result<Prepared, Status> {
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    let metadata = meta::metadata(&mut object);
    for own in ["resourceVersion", "selfLink"] {
        metadata.remove(own);
    }
    if key.resource == &NAMESPACES
        && let Some(map) = object.as_object_mut()
    {
        map.remove("spec");
    }
    if key.resource == &PODS {
        unbind(&mut object, key, node)?;
    }
    if let Some(before) = before {
        take_out_binding(&mut object, before);
    }
    let context = ParseContext {
        node_name: node,
        source: PodSource::Embedded,
        location,
    };
    let text = serde_json::to_vec(&object).map_err(|e| Status::internal(e.to_string()))?;
    let parsed = parse_manifest(&readable(&text), &context);
    let documents = parsed.documents.into_iter();
    let (accepted, problems): (Vec<_>, Vec<_>) = documents
        .map(|document| (document.accepted, document.problems))
        .unzip();
    let problems: Vec<Diagnostic> = parsed
        .problems
        .into_iter()
        .chain(problems.into_iter().flatten())
        .collect();
    let twice = raw
        .map(|raw| parse_manifest(&readable(raw), &context))
        .unwrap_or_default();
    let twice = twice
        .documents
        .into_iter()
        .flat_map(|document| document.problems);
    let twice = twice.filter(|problem| problem.code == Code::DuplicateName && !problem.is_error());
    let problems = problems.into_iter().chain(twice).collect::<Vec<_>>();

    let errors = problems.iter().filter(|p| p.is_error()).map(cause);
    let errors = errors.chain(mistaken_references(&object));
    let new = accepted.first().and_then(Option::as_ref);
    let errors: Vec<Cause> = errors.chain(forbidden_changes(before, new)).collect();
    if !errors.is_empty() {
        let resource = key.resource;
        return Err(Status::invalid(
            resource.kind,
            resource.group,
            &key.name,
            &errors,
        ));
    }
    let warnings = validated(&problems, validation).map_err(|status| undecoded(status, key))?;
    if let Some(Some(Accepted::Pod(pod))) = accepted.first() {
        // Defaulted, so that a patch of what a client reads is no other version of the pod.
        let spec = pod.pod.spec.as_ref().map(serde_json::to_value);
        if let Some(Ok(mut spec)) = spec {
            if let Some(map) = spec.as_object_mut() {
                map.remove("nodeName");
            }
            object["spec"] = spec;
        }
    }
    Ok(Prepared { object, warnings })
}

/// The text, for a reader of YAML: if it is JSON, with escapes for the characters that JSON has in its
/// strings as they are, and YAML has not.
fn readable(text: &[u8]) -> Cow<'_, [u8]> {
    let is_readable = |c: char| {
        matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
            && c != '\u{feff}'
    };
    let Ok(characters) = str::from_utf8(text) else {
        return text.into();
    };
    if characters.chars().all(is_readable)
        || serde_json::from_str::<IgnoredAny>(characters).is_err()
    {
        return text.into();
    }
    let escaped = characters.chars().map(|c| {
        if is_readable(c) {
            c.to_string()
        } else {
            format!("\\u{:04x}", u32::from(c))
        }
    });
    escaped.collect::<String>().into_bytes().into()
}

/// Takes the binding of a claim or volume out of a client's object, unless the document has it: the
/// API shows it there, and it is stored elsewhere.
fn take_out_binding(object: &mut Value, before: &Before<'_>) {
    let field = match before.document {
        Object::Claim(claim) => {
            let spec = claim.spec.as_ref();
            let is_written = spec.is_some_and(|spec| spec.volume_name.is_some());
            (!is_written).then_some("volumeName")
        }
        Object::Volume(volume) => volume.spec.claim_ref.is_none().then_some("claimRef"),
        Object::ConfigMap(_) | Object::Secret(_) | Object::Service(_) => None,
    };
    let (Some(field), Some(Value::Object(spec))) = (field, object.get_mut("spec")) else {
        return;
    };
    if spec.get(field) == Some(&before.shown["spec"][field]) {
        spec.remove(field);
    }
}

/// The fields that a write changes and that stay as they are.
fn forbidden_changes(before: Option<&Before<'_>>, new: Option<&Accepted>) -> Vec<Cause> {
    let (Some(before), Some(Accepted::Object(new))) = (before, new) else {
        return Vec::new();
    };
    let fields = before.document.forbidden_fields(new).into_iter();
    let causes = fields.map(|(field, why)| Cause {
        reason: "FieldValueForbidden",
        message: format!("Forbidden: {why}"),
        field,
    });
    causes.collect()
}

/// The mistakes in finalizers and references to owners.
///
/// Upstream: `apimachinery/pkg/api/validation/objectmeta.go`, `pkg/apis/core/validation/validation.go`
/// (`validateKubeFinalizerName`).
fn mistaken_references(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut add = |field: String, value: &Value, why: &str| {
        causes.push(Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {value}: {why}"),
            field: format!("metadata.{field}"),
        });
    };
    let list = |key: &str| object["metadata"][key].as_array().into_iter().flatten();
    for (at, finalizer) in list("finalizers").enumerate() {
        let name = finalizer.as_str().unwrap_or_default();
        let is_qualified = name.contains('/') && is_qualified(name);
        if !is_qualified && !STANDARD_FINALIZERS.contains(&name) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            add(format!("finalizers[{at}]"), finalizer, why);
        }
    }
    for reference in list("ownerReferences") {
        for (key, why) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            let value = &reference[key];
            if value.as_str().unwrap_or_default().is_empty() {
                add(
                    format!("ownerReferences.{key}"),
                    &value.as_str().into(),
                    why,
                );
            }
        }
    }
    let controllers = list("ownerReferences").filter(|one| one["controller"] == true);
    let controllers: Vec<_> = controllers.map(|one| &one["name"]).collect();
    if let [first, second, ..] = controllers[..] {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        add("ownerReferences".to_owned(), &Value::Null, &why);
    }
    causes
}

/// The error of a whole object in a text that is decoded strictly.
///
/// Upstream: `apimachinery/pkg/runtime/error.go`.
fn undecoded(mut status: Status, key: &Key) -> Status {
    let (kind, version) = (key.resource.kind, key.resource.version);
    status.message = format!(
        "{kind} in version {version:?} cannot be handled as a {kind}: {}",
        status.message
    );
    status
}

/// Takes a pod off this node: whatever is stored here runs here.
fn unbind(object: &mut Value, key: &Key, node: &NodeName) -> Result<(), Status> {
    let Some(Value::Object(spec)) = object.get_mut("spec") else {
        return Ok(());
    };
    match spec.get("nodeName").and_then(Value::as_str) {
        None => Ok(()),
        Some(name) if name.is_empty() || name == node.as_str() => {
            spec.remove("nodeName");
            Ok(())
        }
        Some(name) => {
            let cause = Cause {
                reason: "FieldValueInvalid",
                message: format!("Invalid value: {name:?}: the only node here is {node}"),
                field: "spec.nodeName".to_owned(),
            };
            Err(Status::invalid("Pod", "", &key.name, &[cause]))
        }
    }
}

fn cause(problem: &Diagnostic) -> Cause {
    let reason = match problem.code {
        Code::Required => "FieldValueRequired",
        Code::UnsupportedField => "FieldValueForbidden",
        Code::DuplicateName => "FieldValueDuplicate",
        Code::InvalidType => "FieldValueTypeInvalid",
        _ => "FieldValueInvalid",
    };
    let begin = match problem.code {
        Code::Required => "Required value: ",
        Code::UnsupportedField => "Forbidden: ",
        Code::DuplicateName => "Duplicate value: ",
        _ => "Invalid value: ",
    };
    let help = problem.help.as_ref().map(|help| format!("; {help}"));
    Cause {
        reason,
        message: format!("{begin}{}{}", problem.message, help.unwrap_or_default()),
        field: problem.field.clone().unwrap_or_default(),
    }
}

/// The problems that don't make the object invalid: warnings, or with strict validation an error for
/// fields that are unknown or given twice.
fn validated(problems: &[Diagnostic], validation: FieldValidation) -> Result<Vec<String>, Status> {
    let strict: Vec<String> = problems
        .iter()
        .filter_map(|problem| {
            let field = problem.field.as_deref().unwrap_or_default();
            match problem.code {
                Code::UnknownField => Some(format!("unknown field {field:?}")),
                Code::DuplicateName if !problem.is_error() => {
                    Some(format!("duplicate field {field:?}"))
                }
                _ => None,
            }
        })
        .collect();
    if validation == FieldValidation::Strict && !strict.is_empty() {
        let message = format!("strict decoding error: {}", strict.join(", "));
        return Err(Status::bad_request(message));
    }
    let others = problems
        .iter()
        .filter(|problem| !matches!(problem.code, Code::UnknownField | Code::DuplicateName));
    let others = others.map(|problem| match &problem.field {
        Some(field) => format!("{field}: {}", problem.message),
        None => problem.message.clone(),
    });
    Ok(match validation {
        FieldValidation::Ignore => others.collect(),
        FieldValidation::Warn | FieldValidation::Strict => others.chain(strict).collect(),
    })
}

#[cfg(test)]
mod tests {
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
}
