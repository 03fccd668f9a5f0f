//! `kubectl debug`: ephemeral containers in a running pod.
//!
//! They belong to the running version of the pod, whichever file defines it: nothing is stored in that
//! file, and the next version doesn't have them.
//!
//! Upstream: `pkg/registry/core/pod/storage/ephemeralcontainers.go`,
//! `pkg/apis/core/validation/validation.go` (`validateEphemeralContainers`).

use axum::response::Response;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::WriteOptions;
use mirrorlet_apimachinery::resources::PODS;
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_apimachinery::table::Include;
use mirrorlet_core::api::{self, core::EphemeralContainer};
use mirrorlet_core::rollout::Command;
use serde_json::Value;

use super::writes::of_view;
use super::{Api, Call, answer, body};

/// The fields that an added container can't have.
///
/// Upstream: `allowedEphemeralContainerFields` has those that it can.
const FORBIDDEN: [&str; 8] = [
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "resources",
    "restartPolicy",
    "resizePolicy",
];

impl Api {
    /// Answers `update` and `patch` of a pod's `ephemeralcontainers`, in its turn.
    pub(super) async fn debug(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = WriteOptions::parse(&call.query)?;
        let form = answer::form(&call.headers, Include::Metadata)?;
        let key = call.key();
        let before = self.find(&key)?;
        let mut object = body::changed(call, &before, bytes)?;
        meta::place(&mut object, key.resource, &key.namespace)?;
        meta::succeed(&mut object, &before, key.resource)?;
        let added = added(&before, &object)?;
        if !added.is_empty() && !options.dry_run {
            let pod = format!("{}/{}", key.namespace, key.name);
            for container in added {
                let command = Command::Debug(Box::new(container));
                let obeyed = self.store.view().command_rollout(&pod, command).await;
                obeyed.map_err(|error| of_view(&error))?;
            }
            self.loaded().await?;
            object = self.find(&key)?;
        }
        Ok(call.object(200, key.resource, object, form))
    }
}

/// The containers that a pod has in addition to its earlier ones.
///
/// # Errors
/// An earlier one is missing or changed, or a new one is invalid.
fn added(before: &Value, after: &Value) -> Result<Vec<EphemeralContainer>, Status> {
    let of = |pod: &Value| -> Vec<Value> {
        let all = pod["spec"]["ephemeralContainers"].as_array();
        all.cloned().unwrap_or_default()
    };
    let (known, wanted) = (of(before), of(after));
    let mut causes = Vec::new();
    let place = |index: usize| format!("spec.ephemeralContainers[{index}]");
    for (index, container) in known.iter().enumerate() {
        let same = wanted
            .iter()
            .find(|other| other["name"] == container["name"]);
        let why = match same {
            None => "existing ephemeral containers may not be removed",
            Some(same) if same != container => "existing ephemeral containers may not be changed",
            Some(_) => continue,
        };
        causes.push(Cause::forbidden(place(index), why));
    }
    let mut added = Vec::new();
    for (index, container) in wanted.iter().enumerate() {
        if !container.is_object() {
            causes.push(Cause::invalid(place(index), "must be an object"));
            continue;
        }
        if known.iter().any(|other| other["name"] == container["name"]) {
            continue;
        }
        let place = place(index);
        causes.extend(check(container, before, &place));
        match api::read(&with_defaults(container.clone())) {
            Ok(container) => added.push(container),
            Err(error) => causes.push(Cause::invalid(place, error)),
        }
    }
    if causes.is_empty() {
        Ok(added)
    } else {
        Err(Status::invalid(&PODS, meta::name(before), &causes))
    }
}

/// The mistakes in a new container of a pod, at that place.
fn check(container: &Value, pod: &Value, place: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut cause = |reason: &'static str, field: &str, message: String| {
        let field = format!("{place}.{field}");
        causes.push(Cause {
            reason,
            message,
            field,
        });
    };
    let names = |list: &str| {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.map(|container| container["name"].clone())
            .collect::<Vec<_>>()
    };
    let targets = names("containers");
    for field in ["name", "image"] {
        if container[field].as_str().unwrap_or_default().is_empty() {
            cause("FieldValueRequired", field, "Required value".to_owned());
        }
    }
    let name = &container["name"];
    if targets.contains(name) || names("initContainers").contains(name) {
        cause(
            "FieldValueDuplicate",
            "name",
            format!("Duplicate value: {name}"),
        );
    }
    for field in FORBIDDEN
        .iter()
        .filter(|field| !is_none(&container[**field]))
    {
        let why = "Forbidden: cannot be set for an Ephemeral Container".to_owned();
        cause("FieldValueForbidden", field, why);
    }
    let target = &container["targetContainerName"];
    if !is_none(target) && !targets.contains(target) {
        let message = format!("Not found: {target}");
        cause("FieldValueNotFound", "targetContainerName", message);
    }
    causes
}

/// Removes the ephemeral containers from a pod that will be stored.
///
/// # Errors
/// They differ from the earlier ones: only [`Api::debug`] adds some.
pub(super) fn take_out(object: &mut Value, before: Option<&Value>) -> Result<(), Status> {
    const LIST: &str = "ephemeralContainers";
    let known = before.map(|before| before["spec"][LIST].clone());
    let taken = object["spec"]
        .as_object_mut()
        .and_then(|spec| spec.remove(LIST));
    let taken = taken.filter(|taken| !is_none(taken));
    if taken.is_none() || taken == known {
        return Ok(());
    }
    let why = "containers are added with kubectl debug";
    let cause = Cause::forbidden(format!("spec.{LIST}"), why);
    Err(Status::invalid(&PODS, meta::name(object), &[cause]))
}

/// Whether a field is empty.
fn is_none(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Upstream: `SetDefaults_Container`.
fn with_defaults(mut container: Value) -> Value {
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    let pull = if is_latest { "Always" } else { "IfNotPresent" };
    for (field, default) in [
        ("imagePullPolicy", pull),
        ("terminationMessagePath", "/dev/termination-log"),
        ("terminationMessagePolicy", "File"),
    ] {
        if is_none(&container[field]) {
            container[field] = default.into();
        }
    }
    container
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_only_added() {
        let known = json!({"name": "old", "image": "example/tools:1"});
        let pod = |added: Vec<Value>| {
            json!({"metadata": {"name": "web"}, "spec": {
                "initContainers": [{"name": "init"}],
                "containers": [{"name": "web"}],
                "ephemeralContainers": added,
            }})
        };
        let before = pod(vec![known.clone()]);
        let new = json!({"name": "look", "image": "example/tools", "targetContainerName": "web"});
        let found = added(&before, &pod(vec![known.clone(), new.clone()])).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].image_pull_policy.as_deref(), Some("Always"));
        assert!(added(&before, &before).unwrap().is_empty());
        let with = |field: &str, value: Value| {
            let mut changed = new.clone();
            changed[field] = value;
            vec![known.clone(), changed]
        };
        for (containers, field) in [
            (vec![], "spec.ephemeralContainers[0]"),
            (
                vec![json!({"name": "old", "image": "other"})],
                "spec.ephemeralContainers[0]",
            ),
            (
                with("image", Value::Null),
                "spec.ephemeralContainers[1].image",
            ),
            (
                with("name", "init".into()),
                "spec.ephemeralContainers[1].name",
            ),
            (
                with("ports", json!([{"containerPort": 1}])),
                "spec.ephemeralContainers[1].ports",
            ),
            (
                with("targetContainerName", "init".into()),
                "spec.ephemeralContainers[1].targetContainerName",
            ),
            (
                vec![known.clone(), "look".into()],
                "spec.ephemeralContainers[1]",
            ),
            (vec![known.clone(), 1.into()], "spec.ephemeralContainers[1]"),
            (
                vec![known.clone(), Value::Null],
                "spec.ephemeralContainers[1]",
            ),
        ] {
            let refused = added(&before, &pod(containers)).unwrap_err();
            // embedded 31
            assert_eq!(refused.details.unwrap()["causes"][0]["field"], field);
        }
    }
}
