//! Patches: JSON patch, JSON merge patch and strategic merge patch.
//!
//! Upstream: `apimachinery/pkg/util/strategicpatch/patch.go`. The keys of lists are those of the
//! `patchMergeKey` tags of `k8s.io/api`, by the names of their fields.

mod strategic;

use json_patch::PatchOperation;
use serde_json::Value;

use self::strategic::merge_map;

use crate::bounds::{self, CopyBudget};
use crate::status::Status;

/// Most operations of a JSON patch.
const OPERATIONS_MAX: usize = 10_000;
/// Deepest nesting of a strategic patch, and of what a JSON patch puts into an object. Kubernetes' own objects are a third as deep.
const DEPTH_MAX: usize = 64;

/// Content type of a JSON patch.
pub const JSON: &str = "application/json-patch+json";
/// Content type of a JSON merge patch.
pub const MERGE: &str = "application/merge-patch+json";
/// Content type of a strategic merge patch.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Returns the object after a patch of that content type.
///
/// # Errors
/// The patch is malformed, doesn't apply, or has an unknown content type.
pub fn apply(object: &Value, content_type: &str, body: &[u8]) -> Result<Value, Status> {
    bounds::check_json(body)?;
    let mut patched = object.clone();
    match content_type {
        JSON => {
            let patch: json_patch::Patch =
                serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
            if patch.0.len() > OPERATIONS_MAX {
                return Err(Status::too_costly(format!(
                    "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
                    patch.0.len()
                )));
            }
            apply_operations(&mut patched, &patch.0)?;
        }
        MERGE => json_patch::merge(&mut patched, &object_of(body)?),
        STRATEGIC => {
            let Value::Object(patch) = object_of(body)? else {
                return Err(Status::bad_request("the patch is not an object"));
            };
            if let Value::Object(target) = &mut patched {
                merge_map(target, patch, DEPTH_MAX)?;
            }
        }
        _ => {
            let accepted = [JSON, MERGE, STRATEGIC].join(", ");
            return Err(Status::unsupported_media_type(&accepted));
        }
    }
    Ok(patched)
}

/// Applies the operations of a JSON patch. As upstream, a missing field is `null` to a test: clients
/// add a list only if there is none yet.
///
/// Upstream: `evanphx/json-patch`, `Patch.test`.
fn apply_operations(object: &mut Value, operations: &[PatchOperation]) -> Result<(), Status> {
    let mut budget = CopyBudget::default();
    for operation in operations {
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && let Some((parent, _)) = test.path.as_str().rsplit_once('/')
            && object.pointer(parent).is_some_and(Value::is_object)
            && object.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        check_operation(object, operation, &mut budget)?;
        json_patch::patch(object, std::slice::from_ref(operation))
            .map_err(|error| inapplicable(&error))?;
    }
    Ok(())
}

/// Refuses an operation whose result is nested too deeply, or that copies too much: a few `copy`
/// operations that double a value would take all memory.
fn check_operation(
    object: &Value,
    operation: &PatchOperation,
    budget: &mut CopyBudget,
) -> Result<(), Status> {
    // A pointer to a value that isn't there is refused when the operation is applied.
    let (path, value) = match operation {
        PatchOperation::Add(add) => (&add.path, Some(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, Some(&replace.value)),
        PatchOperation::Copy(copy) => {
            let source = object.pointer(copy.from.as_str());
            source.map_or(Ok(()), |source| budget.copy(source))?;
            (&copy.path, source)
        }
        PatchOperation::Move(moved) => {
            let source = object.pointer(moved.from.as_str());
            source.map_or(Ok(()), |source| budget.shift(source))?;
            (&moved.path, source)
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    let above = path.as_str().matches('/').count();
    let levels = DEPTH_MAX.checked_sub(above).ok_or_else(too_deep)?;
    if value.is_some_and(|value| bounds::is_deeper(value, levels)) {
        return Err(too_deep());
    }
    Ok(())
}

fn inapplicable(error: &json_patch::PatchError) -> Status {
    Status {
        code: 422,
        reason: "Invalid",
        message: format!("the server rejected our request due to an error in our request: {error}"),
        details: None,
        token: None,
    }
}

/// An object out of a body.
fn object_of(body: &[u8]) -> Result<Value, Status> {
    let value: Value = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    if value.is_object() {
        Ok(value)
    } else {
        Err(Status::bad_request("the patch is not an object"))
    }
}

fn unreadable(error: &serde_json::Error) -> Status {
    Status::bad_request(format!("error decoding patch: {error}"))
}

/// The merge key of a list's elements; none if the list is replaced.
pub(crate) fn merge_key(list: &str, element: Option<&Value>) -> Option<&'static str> {
    Some(match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        // Those of a container, or of a Service.
        "ports" => match element.map(|element| element.get("containerPort").is_some()) {
            Some(true) => "containerPort",
            Some(false) | None => "port",
        },
        "hostAliases" | "podIPs" | "hostIPs" => "ip",
        "topologySpreadConstraints" => "topologyKey",
        "conditions" | "addresses" => "type",
        "ownerReferences" => "uid",
        _ => return None,
    })
}

/// The merge keys of a list's elements in a server-side apply; none if the list is replaced. Unlike
/// strategic patches, they distinguish two ports with the same number.
///
/// Upstream: `x-kubernetes-list-map-keys` of the schemas of `k8s.io/api`.
pub(crate) fn apply_keys(list: &str, element: Option<&Value>) -> Option<Vec<&'static str>> {
    let key = merge_key(list, element)?;
    Some(match key {
        "containerPort" | "port" => vec![key, "protocol"],
        "topologyKey" => vec![key, "whenUnsatisfiable"],
        _ => vec![key],
    })
}

/// The value of a merge key of a list's element. As in upstream's schemas, a port without a protocol
/// has TCP.
pub(crate) fn key_value(element: &Value, key: &str) -> Value {
    match &element[key] {
        Value::Null if key == "protocol" => "TCP".into(),
        value => value.clone(),
    }
}

/// Refuses a value that is nested too deeply to merge.
pub(crate) fn check_depth(value: &Value) -> Result<(), Status> {
    if bounds::is_deeper(value, DEPTH_MAX) {
        return Err(too_deep());
    }
    Ok(())
}

/// Whether a list of strings is merged as a set.
pub(crate) fn is_set(list: &str) -> bool {
    list == "finalizers"
}

fn too_deep() -> Status {
    Status::bad_request(format!(
        "the patch or its result is nested deeper than {DEPTH_MAX} levels"
    ))
}

#[cfg(test)]
mod tests;
