//! Patches: JSON patch, JSON merge patch and strategic merge patch.
//!
//! Upstream: `apimachinery/pkg/util/strategicpatch/patch.go`. The keys of lists are those of the
//! `patchMergeKey` tags of `k8s.io/api`, by the names of their fields.

use json_patch::PatchOperation;
use serde_json::{Map, Value};

use crate::status::Status;
use mirrorlet_core::small::SmallSort;

/// Most operations of a JSON patch.
const OPERATIONS_MAX: usize = 10_000;
/// Deepest nesting of a patch. Kubernetes' own objects are a third as deep.
const DEPTH_MAX: usize = 64;

/// Content type of a JSON patch.
pub const JSON: &str = "application/json-patch+json";
/// Content type of a JSON merge patch.
pub const MERGE: &str = "application/merge-patch+json";
/// Content type of a strategic merge patch.
pub const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The object after a patch of that content type.
///
/// # Errors
/// The patch is none, doesn't apply, or is of a type that isn't known.
pub fn apply(object: &Value, content_type: &str, body: &[u8]) -> Result<Value, Status> {
    let mut patched = object.clone();
    match content_type {
        JSON => {
            let patch: json_patch::Patch =
                serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
            if patch.0.len() > OPERATIONS_MAX {
                let message = format!(
                    "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
                    patch.0.len()
                );
                return Err(Status {
                    code: 413,
                    reason: "RequestEntityTooLarge",
                    message,
                    details: None,
                    token: None,
                });
            }
            apply_operations(&mut patched, &patch.0).map_err(|error| {
                let message = format!(
                    "the server rejected our request due to an error in our request: {error}"
                );
                Status {
                    code: 422,
                    reason: "Invalid",
                    message,
                    details: None,
                    token: None,
                }
            })?;
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

/// Applies the operations of a JSON patch. As upstream, a field that isn't there is `null` to a test:
/// clients add a list only if there is none yet.
///
/// Upstream: `evanphx/json-patch`, `Patch.test`.
fn apply_operations(
    object: &mut Value,
    operations: &[PatchOperation],
) -> Result<(), json_patch::PatchError> {
    for operation in operations {
        if let PatchOperation::Test(test) = operation
            && test.value.is_null()
            && let Some((parent, _)) = test.path.as_str().rsplit_once('/')
            && object.pointer(parent).is_some_and(Value::is_object)
            && object.pointer(test.path.as_str()).is_none()
        {
            continue;
        }
        json_patch::patch(object, std::slice::from_ref(operation))?;
    }
    Ok(())
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

/// The field by which the elements of a list are told apart; none of a list that is replaced.
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

/// Whether a list of texts is merged as a set.
pub(crate) fn is_set(list: &str) -> bool {
    list == "finalizers"
}

fn too_deep() -> Status {
    Status::bad_request(format!(
        "the patch is nested deeper than {DEPTH_MAX} levels"
    ))
}

fn merge_map(
    target: &mut Map<String, Value>,
    mut patch: Map<String, Value>,
    depth: usize,
) -> Result<(), Status> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    match patch.remove("$patch").as_ref().and_then(Value::as_str) {
        Some("replace") => {
            *target = patch;
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => {
            let message = format!("Unknown patch type found: {other}");
            return Err(Status::bad_request(message));
        }
    }
    if let Some(Value::Array(keys)) = patch.remove("$retainKeys") {
        target.retain(|key, _| keys.iter().any(|kept| kept.as_str() == Some(key)));
    }
    let (directives, fields): (Vec<_>, Vec<_>) =
        patch.into_iter().partition(|(key, _)| key.starts_with('$'));
    for (key, value) in fields {
        merge_field(target, key, value, depth)?;
    }
    for (key, value) in directives {
        let Value::Array(items) = value else { continue };
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            if let Some(Value::Array(known)) = target.get_mut(list) {
                known.retain(|item| !items.contains(item));
            }
        } else if let Some(list) = key.strip_prefix("$setElementOrder/")
            && let Some(Value::Array(known)) = target.get_mut(list)
        {
            set_order(list, known, &items);
        }
    }
    Ok(())
}

fn merge_field(
    target: &mut Map<String, Value>,
    key: String,
    value: Value,
    depth: usize,
) -> Result<(), Status> {
    match (target.get_mut(&key), value) {
        (_, Value::Null) => drop(target.remove(&key)),
        (Some(Value::Object(known)), Value::Object(patch)) => merge_map(known, patch, depth)?,
        (Some(Value::Array(known)), Value::Array(patch)) => {
            merge_list(&key, known, patch, depth)?;
        }
        (_, Value::Object(patch)) => {
            let mut made = Map::new();
            merge_map(&mut made, patch, depth)?;
            target.insert(key, Value::Object(made));
        }
        (_, Value::Array(patch)) => {
            let mut made = Vec::new();
            merge_list(&key, &mut made, patch, depth)?;
            target.insert(key, Value::Array(made));
        }
        (_, value) => drop(target.insert(key, value)),
    }
    Ok(())
}

fn merge_list(
    list: &str,
    known: &mut Vec<Value>,
    patch: Vec<Value>,
    depth: usize,
) -> Result<(), Status> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    if is_set(list) {
        for item in patch {
            if !known.contains(&item) {
                known.push(item);
            }
        }
        return Ok(());
    }
    let element = patch.iter().chain(known.iter()).find(|e| e.is_object());
    let Some(key) = merge_key(list, element) else {
        *known = patch;
        return Ok(());
    };
    let directive = |item: &Value| {
        item.get("$patch")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    if patch
        .iter()
        .any(|item| directive(item).as_deref() == Some("replace"))
    {
        known.clear();
        let kept = patch.into_iter();
        known.extend(kept.filter(|item| directive(item).as_deref() != Some("replace")));
        return Ok(());
    }
    for item in patch {
        let Value::Object(mut fields) = item else {
            return Err(Status::bad_request(format!(
                "an element of {list} is not an object"
            )));
        };
        let Some(id) = fields.get(key).cloned() else {
            let message = format!("map: {list} does not contain declared merge key: {key}");
            return Err(Status::bad_request(message));
        };
        let is_it = |element: &Value| element.get(key) == Some(&id);
        if fields.get("$patch").and_then(Value::as_str) == Some("delete") {
            known.retain(|element| !is_it(element));
            continue;
        }
        let same = known.iter_mut().find(|element| is_it(element));
        if let Some(Value::Object(element)) = same {
            merge_map(element, fields, depth)?;
        } else {
            fields.remove("$patch");
            let mut made = Map::new();
            merge_map(&mut made, fields, depth)?;
            known.push(Value::Object(made));
        }
    }
    Ok(())
}

/// Puts the elements that an order names into that order, where the first of them was; others stay
/// behind those that they followed.
fn set_order(list: &str, known: &mut [Value], order: &[Value]) {
    let key = merge_key(list, known.first());
    let id = |item: &Value| match key {
        Some(key) => item.get(key).cloned().unwrap_or(Value::Null),
        None => item.clone(),
    };
    let order: Vec<_> = order.iter().map(id).collect();
    let rank = |item: &Value| order.iter().position(|other| *other == id(item));
    let mut before = 0;
    let mut ranks: Vec<(usize, usize)> = Vec::new();
    for (index, item) in known.iter().enumerate() {
        before = rank(item).unwrap_or(before);
        ranks.push((before, index));
    }
    let mut ordered: Vec<_> = ranks.into_iter().zip(known.iter().cloned()).collect();
    ordered.small_sort_by_key(|(rank, _)| *rank);
    for (place, (_, item)) in known.iter_mut().zip(ordered) {
        *place = item;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn strategic(object: &Value, patch: &Value) -> Result<Value, u16> {
        apply(object, STRATEGIC, &serde_json::to_vec(patch).unwrap()).map_err(|e| e.code)
    }

    #[test]
    fn strategic_patches_merge_lists_by_their_keys() {
        let pod = json!({"metadata": {"finalizers": ["a"]}, "spec": {
            "containers": [{"name": "web", "image": "a", "env": [{"name": "X", "value": "1"}], "args": ["x", "y"], "ports": [{"containerPort": 80}]}, {"name": "side", "image": "b"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }});
        for (patch, at, expected) in [
            (
                json!({"spec": {"containers": [{"name": "web", "image": "c"}]}}),
                "/spec/containers/0",
                json!({"name": "web", "image": "c", "env": [{"name": "X", "value": "1"}], "args": ["x", "y"], "ports": [{"containerPort": 80}]}),
            ),
            (
                json!({"spec": {"containers": [{"name": "web", "env": [{"name": "Y", "value": "2"}, {"name": "X", "$patch": "delete"}], "args": ["z"]}]}}),
                "/spec/containers/0/env",
                json!([{"name": "Y", "value": "2"}]),
            ),
            (
                json!({"spec": {"containers": [{"name": "web", "args": ["z"]}]}}),
                "/spec/containers/0/args",
                json!(["z"]),
            ),
            (
                json!({"spec": {"containers": [{"name": "web", "ports": [{"containerPort": 81}]}]}}),
                "/spec/containers/0/ports",
                json!([{"containerPort": 80}, {"containerPort": 81}]),
            ),
            (
                json!({"spec": {"$setElementOrder/containers": [{"name": "new"}, {"name": "side"}, {"name": "web"}], "containers": [{"name": "new", "image": "n"}, {"name": "web", "$patch": "delete"}]}}),
                "/spec/containers",
                json!([{"name": "new", "image": "n"}, {"name": "side", "image": "b"}]),
            ),
            (
                json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}}),
                "/spec/volumes",
                json!([{"name": "v", "hostPath": {"path": "/x"}}]),
            ),
            (
                json!({"metadata": {"finalizers": ["b", "a"]}}),
                "/metadata/finalizers",
                json!(["a", "b"]),
            ),
            (
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}),
                "/metadata/finalizers",
                json!([]),
            ),
            (
                json!({"spec": {"volumes": [{"$patch": "replace"}, {"name": "w"}]}}),
                "/spec/volumes",
                json!([{"name": "w"}]),
            ),
            (
                json!({"spec": {"volumes": null}}),
                "/spec/volumes",
                Value::Null,
            ),
        ] {
            let patched = strategic(&pod, &patch).unwrap();
            let found = patched.pointer(at).cloned().unwrap_or_default();
            // embedded 20
            assert_eq!(found, expected, "{patch}");
        }
        // Without the key of its list an element can't be found.
        assert_eq!(
            strategic(&pod, &json!({"spec": {"containers": [{"image": "x"}]}})),
            Err(400)
        );
    }

    #[test]
    fn patches_that_do_not_apply_are_told_from_those_that_are_none() {
        let object = json!({"metadata": {"name": "web"}, "data": {"a": "1"}});
        for (content_type, body, expected) in [
            (
                JSON,
                r#"[{"op": "replace", "path": "/data/a", "value": "2"}]"#,
                Ok("2"),
            ),
            (
                JSON,
                r#"[{"op": "test", "path": "/data/a", "value": "3"}]"#,
                Err(422),
            ),
            // As kube-rs adds the first finalizer.
            (
                JSON,
                r#"[{"op": "test", "path": "/data/b", "value": null}, {"op": "add", "path": "/data/b", "value": "1"}]"#,
                Ok("1"),
            ),
            (
                JSON,
                r#"[{"op": "test", "path": "/data/a", "value": null}]"#,
                Err(422),
            ),
            (
                JSON,
                r#"[{"op": "test", "path": "/spec/a", "value": null}]"#,
                Err(422),
            ),
            (JSON, r#"[{"op": "remove", "path": "/data/x"}]"#, Err(422)),
            (JSON, "{", Err(400)),
            (MERGE, r#"{"data": {"a": "4"}}"#, Ok("4")),
            (MERGE, r#"{"data": {"a": null}}"#, Ok("")),
            (MERGE, "[]", Err(400)),
            (STRATEGIC, "nonsense", Err(400)),
            ("application/apply-patch+yaml", "{}", Err(415)),
        ] {
            let patched = apply(&object, content_type, body.as_bytes());
            let value = patched
                .as_ref()
                .map(|o| o["data"]["a"].as_str().unwrap_or_default())
                .map_err(|status| status.code);
            // embedded 20
            assert_eq!(value, expected, "{body}");
        }
        let mut deep = json!({"a": 1});
        for _ in 0..100 {
            deep = json!({"a": deep});
        }
        assert_eq!(strategic(&object, &deep), Err(400));
    }
}
