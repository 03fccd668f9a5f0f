//! A body → the document that is stored: checked as any manifest is, and defaulted. Pure.

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::FieldValidation;
use mirrorlet_apimachinery::resources::{NAMESPACES, PODS};
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_core::api::{Code, Diagnostic, NodeName};
use mirrorlet_core::desired::PodSource;
use mirrorlet_core::manifest::{Accepted, ParseContext, is_qualified, parse_manifest};
use serde_json::Value;

/// The finalizers whose names have no domain.
///
/// Upstream: `pkg/apis/core/helper/helpers.go`.
const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];

/// An object that may be stored.
pub(super) struct Prepared {
    /// The document.
    pub(super) object: Value,
    /// The warnings for its author.
    pub(super) warnings: Vec<String>,
}

/// Checks an object and fills in its defaults. `raw` is the body as the client sent it, if that was
/// a whole object in a text: a key that it has twice is seen only there.
///
/// # Errors
/// It is no valid object, or can't be honoured here.
pub(super) fn prepare(
    mut object: Value,
    key: &Key,
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
    let context = ParseContext {
        node_name: node,
        source: PodSource::Embedded,
        location,
    };
    let text = serde_json::to_vec(&object).map_err(|e| Status::internal(e.to_string()))?;
    let parsed = parse_manifest(&text, &context);
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
        .map(|raw| parse_manifest(raw, &context))
        .unwrap_or_default();
    let twice = twice
        .documents
        .into_iter()
        .flat_map(|document| document.problems);
    let twice = twice.filter(|problem| problem.code == Code::DuplicateName && !problem.is_error());
    let problems = problems.into_iter().chain(twice).collect::<Vec<_>>();

    let errors = problems.iter().filter(|p| p.is_error()).map(cause);
    let errors: Vec<Cause> = errors.chain(mistaken_references(&object)).collect();
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
        prepare(
            object,
            &key,
            raw,
            validation,
            "/r/api/default/pods/web.yaml",
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
