//! Converts a body to the document to store: checked like any manifest, and defaulted. Pure.

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

use super::jobs;

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

/// Checks an object and fills in its defaults. `before` is the one that it replaces, if pods can refer
/// to it. `raw` is the body that the client sent, if that was a complete object as text: only there a
/// repeated key can be detected.
///
/// # Errors
/// The object is invalid, is not supported here, or changes an immutable field.
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
    jobs::take_selector(&mut object, key);
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
        return Err(Status::invalid(key.resource, &key.name, &errors));
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
    fields
        .map(|(field, why)| Cause::forbidden(field, why))
        .collect()
}

/// The mistakes in finalizers and references to owners.
///
/// Upstream: `apimachinery/pkg/api/validation/objectmeta.go`, `pkg/apis/core/validation/validation.go`
/// (`validateKubeFinalizerName`).
fn mistaken_references(object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut add = |field: String, value: &Value, why: &str| {
        let (field, why) = (format!("metadata.{field}"), format!("{value}: {why}"));
        causes.push(Cause::invalid(field, why));
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
            let why = format!("{name:?}: the only node here is {node}");
            let cause = Cause::invalid("spec.nodeName", why);
            Err(Status::invalid(key.resource, &key.name, &[cause]))
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
mod tests;
