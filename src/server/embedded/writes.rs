//! `create`, `update`, `patch` and server-side apply.

use axum::http::header;
use axum::response::Response;
use mirrorlet_apimachinery::bounds::check_lists;
use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::options::WriteOptions;
use mirrorlet_apimachinery::resources::{
    DEPLOYMENTS, LEASES, NAMESPACES, PODS, Resource, SCALES, SERVICES, STATEFUL_SETS,
};
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_apimachinery::table::Include;
use mirrorlet_apimachinery::{apply, garbage, meta};
use mirrorlet_core::api::core::Service;
use mirrorlet_core::api::{Timestamp, keys};
use mirrorlet_core::desired::{Origin, PodSource};
use mirrorlet_core::names::port_problems;
use mirrorlet_host::random;
use serde_json::{Value, json};

use super::prepare::{Before, Prepared, prepare};
use super::project::{BUILT_IN, seconds, uuid};
use super::{Api, Call, answer, body, debug, files, header_text, leases, templates};
use crate::server::view::{ViewError, ViewErrorKind};

/// The parameters of a write, except the object itself.
struct Next<'a> {
    key: &'a Key,
    /// The object as it is; none where it is created.
    before: Option<&'a Value>,
    /// The body as the client sent it, if that was a whole object in a text.
    raw: Option<&'a [u8]>,
    options: &'a WriteOptions,
}

/// A random UID.
fn new_uid() -> String {
    let [high, low] = [random::number(), random::number()].map(u128::from);
    uuid(((high << 64) | low).to_be_bytes(), 4)
}

/// Converts an error of the agent to an API status.
pub(super) fn of_view(error: &ViewError) -> Status {
    let message = error.message.clone();
    match error.kind {
        ViewErrorKind::NotFound | ViewErrorKind::Invalid | ViewErrorKind::Conflict => {
            Status::bad_request(message)
        }
        ViewErrorKind::Unavailable => Status::unavailable(message),
        ViewErrorKind::Failed => Status::internal(message),
    }
}

impl Api {
    pub(super) fn find(&self, key: &Key) -> Result<Value, Status> {
        let found = self.store.read(|cache| cache.get(key));
        let object = found.ok_or_else(|| Status::not_found(key.resource, &key.name))?;
        Ok((*object).clone())
    }

    /// Checks that an object is stored by the API.
    pub(super) fn check_stored(&self, key: &Key, object: &Value) -> Result<(), Status> {
        let forbidden = |why: &str| Err(Status::forbidden(key.resource, &key.name, why));
        match self.store.origin(key) {
            Some(origin) if origin.source == PodSource::Embedded => {
                let workload = object["metadata"]["annotations"][keys::WORKLOAD].as_str();
                let workload = workload.and_then(|workload| workload.split_once('/'));
                if let Some((kind, name)) = workload.filter(|_| key.resource == &PODS) {
                    return forbidden(&format!(
                        "it belongs to {} {name}; change that instead",
                        kind.to_lowercase()
                    ));
                }
                // A claim of a StatefulSet, or an object that a user wrote into a file with another
                // name.
                if !self.store.is_own_file(key, &origin) {
                    let location = origin.location;
                    return forbidden(&format!("it is defined by {location}; change it there"));
                }
                Ok(())
            }
            Some(Origin { location, .. }) => {
                forbidden(&format!("it is defined by {location}; change it there"))
            }
            None if key.resource == &LEASES && self.store.leases(|leases| leases.has(key)) => {
                Ok(())
            }
            None if key.resource == &NAMESPACES && !BUILT_IN.contains(&key.name.as_str()) => Ok(()),
            None if garbage::is_deleted(object) => {
                let why = "it is being deleted, and can't be changed any more";
                Err(Status::conflict(key.resource, &key.name, why))
            }
            None => forbidden("it is not an object that the API stores"),
        }
    }

    pub(super) fn prepared(
        &self,
        mut object: Value,
        key: &Key,
        before: Option<&Value>,
        raw: Option<&[u8]>,
        options: &WriteOptions,
    ) -> Result<Prepared, Status> {
        if key.resource == &LEASES {
            leases::check(&object)?;
            return Ok(Prepared {
                object,
                warnings: Vec::new(),
            });
        }
        files::check_name(key)?;
        let mut warnings = drop_own_annotations(&mut object, key.resource, before);
        if key.resource == &PODS {
            debug::take_out(&mut object, before)?;
        }
        let location = files::path(self.store.directory(), key);
        let location = location.to_string_lossy();
        let document = before.and_then(|_| self.store.document(key));
        let before = before.zip(document.as_ref());
        let before = before.map(|(shown, document)| Before { shown, document });
        let (before, validation) = (before.as_ref(), options.validation);
        let mut prepared = prepare(object, key, before, raw, validation, &location, &self.node)?;
        let known = self.store.templates(key);
        templates::store(&mut prepared.object, key, known.as_ref());
        warnings.append(&mut prepared.warnings);
        prepared.warnings = warnings;
        Ok(prepared)
    }

    /// Answers `create`, in its turn.
    pub(super) async fn create(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = WriteOptions::parse(&call.query)?;
        let form = answer::form(&call.headers, Include::Metadata)?;
        let resource = call.target.resource;
        // Decoded bodies are much larger than bytes: only the request whose turn it is has one.
        let mut object = body::object(&call.headers, bytes)?;
        check_lists(&object)?;
        meta::place(&mut object, resource, &call.target.namespace)?;
        let random = random::number().to_ne_bytes();
        let [first @ .., _, _, _] = random;
        meta::generate_name(&mut object, resource, first)?;
        let key = Key::new(
            resource,
            call.target.namespace.as_str(),
            meta::name(&object),
        );
        self.check_namespace(&key)?;
        if let Ok(known) = self.find(&key) {
            return Err(if garbage::is_deleted(&known) {
                Status::being_deleted(resource, &key.name)
            } else {
                Status::already_exists(resource, &key.name)
            });
        }
        let mut dropped = drop_own_annotations(&mut object, resource, None);
        let now = seconds(Timestamp::now());
        meta::begin(&mut object, resource, &new_uid(), &now);
        apply::note_update(&mut object, None, &manager(&options, call), &now);
        let next = Next {
            key: &key,
            before: None,
            raw: (!bytes.starts_with(b"k8s\0")).then_some(bytes),
            options: &options,
        };
        let (created, warnings) = self.succeed(object, &next).await?;
        dropped.extend(warnings);
        let answer = call.object(201, resource, created, form);
        Ok(answer::with_warnings(answer, &dropped))
    }

    /// Answers `update` and `patch`, of the object itself or of its scale, in its turn.
    pub(super) async fn change(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = WriteOptions::parse(&call.query)?;
        let form = answer::form(&call.headers, Include::Metadata)?;
        let resource = call.target.resource;
        let key = call.key();
        let is_patch = call.method == "PATCH";
        let scales = call.target.subresource.as_deref() == Some("scale");
        let before = self.find(&key)?;
        let mut object = if scales {
            scaled(call, &before, bytes)?
        } else {
            let object = body::changed(call, &before, bytes)?;
            check_lists(&object)?;
            object
        };
        let is_whole_text = !is_patch && !scales && !bytes.starts_with(b"k8s\0");
        meta::place(&mut object, resource, &key.namespace)?;
        meta::succeed(&mut object, &before, resource)?;
        let managed = before["metadata"].get("managedFields").cloned();
        // kubectl hands fields over from its older form of `apply` by a patch of their managers.
        let hands_over =
            is_patch && !scales && object["metadata"].get("managedFields") != managed.as_ref();
        if !hands_over {
            set_managed(&mut object, managed);
        }
        let shown_as = if scales { &SCALES } else { resource };
        if object == before {
            let shown = if scales { scale(&before) } else { before };
            return Ok(call.object(200, shown_as, shown, form));
        }
        self.check_stored(&key, &before)?;
        let now = seconds(Timestamp::now());
        if !hands_over {
            apply::note_update(&mut object, Some(&before), &manager(&options, call), &now);
        }
        let next = Next {
            key: &key,
            before: Some(&before),
            raw: is_whole_text.then_some(bytes),
            options: &options,
        };
        let (changed, warnings) = self.succeed(object, &next).await?;
        let shown = if scales { scale(&changed) } else { changed };
        let answer = call.object(200, shown_as, shown, form);
        Ok(answer::with_warnings(answer, &warnings))
    }

    /// Stores the next version of an object, unless that is a dry run. Returns what is answered, and
    /// warnings.
    async fn succeed(
        &self,
        mut object: Value,
        next: &Next<'_>,
    ) -> Result<(Value, Vec<String>), Status> {
        let &Next {
            key,
            before,
            raw,
            options,
        } = next;
        let deleted = before.filter(|before| garbage::is_deleted(before));
        // It goes with the last of what is in it, not with a finalizer.
        let is_ending = deleted.is_some() && key.resource == &NAMESPACES;
        if let Some(before) = deleted {
            garbage::check_finalizers(&object, before, key.resource)?;
            let is_last = !garbage::has_finalizers(&object);
            let is_held = self.store.held(|held| held.has(key));
            if !is_ending && (is_last || is_held) {
                if is_held {
                    garbage::keep_content(&mut object, before, key.resource)?;
                } else {
                    // As upstream, the final write must be valid, too.
                    self.prepared(object.clone(), key, Some(before), raw, options)?;
                }
                if options.dry_run {
                    return Ok((dry(object, before), Vec::new()));
                }
                return Ok((self.put(key, object).await?, Vec::new()));
            }
        }
        let mut prepared = self.prepared(object, key, before, raw, options)?;
        if key.resource == &SERVICES {
            let found = self.port_warnings(&prepared.object);
            prepared.warnings.extend(found);
        }
        let stored = match before {
            Some(before) if options.dry_run => dry(prepared.object, before),
            None if options.dry_run => prepared.object,
            _ if is_ending => self.store_end(key, &prepared.object).await?,
            _ => self.store(key, &prepared.object).await?,
        };
        Ok((stored, prepared.warnings))
    }

    /// The ports of a Service that the pods it selects now don't serve.
    fn port_warnings(&self, service: &Value) -> Vec<String> {
        let Ok(service) = serde_json::from_value::<Service>(service.clone()) else {
            return Vec::new();
        };
        let shown = self.store.view().shown(&[]);
        let pods = shown.pods.iter().filter(|shown| !shown.terminating);
        let problems = port_problems(&service, "", pods.map(|shown| &shown.pod)).into_iter();
        let words = problems.map(|problem| match problem.field {
            Some(field) => format!("{field}: {}", problem.message),
            None => problem.message,
        });
        words.collect()
    }

    /// Answers a server-side apply, which creates a missing object, in its turn.
    pub(super) async fn apply(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = WriteOptions::parse(&call.query)?;
        let form = answer::form(&call.headers, Include::Metadata)?;
        let resource = call.target.resource;
        let key = call.key();
        let mut applied = body::yaml(bytes)?;
        check_lists(&applied)?;
        meta::place(&mut applied, resource, &key.namespace)?;
        if meta::name(&applied) != key.name {
            return Err(Status::bad_request(
                "the name of the object does not match the name on the URL",
            ));
        }
        let before = self.find(&key).ok();
        if before.is_none() {
            self.check_namespace(&key)?;
        }
        let now = seconds(Timestamp::now());
        let (by, force) = (options.field_manager.as_str(), options.force);
        let mut object = apply::apply(before.as_ref(), &applied, by, force, &now)?;
        let managed = object["metadata"].get("managedFields").cloned();
        match &before {
            Some(before) => {
                // What is merged has the version of the object, not that of the body.
                meta::check_revision(&applied, before, resource)?;
                meta::succeed(&mut object, before, resource)?;
            }
            None => meta::begin(&mut object, resource, &new_uid(), &now),
        }
        set_managed(&mut object, managed);
        if let Some(before) = &before {
            if without_times(&object) == without_times(before) {
                return Ok(call.object(200, resource, before.clone(), form));
            }
            self.check_stored(&key, before)?;
        }
        let next = Next {
            key: &key,
            before: before.as_ref(),
            raw: Some(bytes),
            options: &options,
        };
        let (stored, warnings) = self.succeed(object, &next).await?;
        let code = if before.is_some() { 200 } else { 201 };
        let answer = call.object(code, resource, stored, form);
        Ok(answer::with_warnings(answer, &warnings))
    }

    /// Answers `get` of a scale.
    pub(super) fn get_scale(&self, call: &Call) -> Result<Response, Status> {
        let form = answer::form(&call.headers, Include::Metadata)?;
        let scale = scale(&self.find(&call.key())?);
        Ok(call.object(200, &SCALES, scale, form))
    }
}

/// The manager of a write: the one in the request, or the program that sends it.
///
/// Upstream: `managerOrUserAgent` of `apiserver/pkg/endpoints/handlers/create.go`.
fn manager(options: &WriteOptions, call: &Call) -> String {
    if !options.field_manager.is_empty() {
        return options.field_manager.clone();
    }
    let agent = header_text(&call.headers, header::USER_AGENT);
    let program = agent.split('/').next();
    program.unwrap_or_default().to_owned()
}

/// The answer to a dry run of a change: the object with what isn't its document's as it is.
fn dry(mut object: Value, before: &Value) -> Value {
    let version = before["metadata"]["resourceVersion"].clone();
    meta::metadata(&mut object).insert("resourceVersion".to_owned(), version);
    templates::show(&mut object);
    let kept = match object["kind"].as_str() {
        Some("Pod") => "nodeName",
        Some("Job") => "selector",
        Some("PersistentVolumeClaim") => "volumeName",
        Some("PersistentVolume") => "claimRef",
        _ => "",
    };
    if let Some(value) = before["spec"].get(kept)
        && object["spec"].get(kept).is_none()
    {
        object["spec"][kept] = value.clone();
    }
    if let Some(status) = before.get("status") {
        object["status"] = status.clone();
    }
    object
}

/// Removes annotations from a pod that only the agent sets: a copy of a pod, as by `kubectl debug
/// --copy-to`, has them, and so has one of which another version runs. Returns warnings about those
/// that `before`, the shown pod, doesn't have.
fn drop_own_annotations(
    object: &mut Value,
    resource: &Resource,
    before: Option<&Value>,
) -> Vec<String> {
    let annotations = object.pointer_mut("/metadata/annotations");
    let annotations = annotations.and_then(Value::as_object_mut);
    let Some(annotations) = annotations.filter(|_| resource == &PODS) else {
        return Vec::new();
    };
    let shown = before.map(|before| &before["metadata"]["annotations"]);
    let own = keys::BY_AGENT.into_iter().chain([keys::CONFIG_MIRROR]);
    let dropped = own.filter(|key| {
        let dropped = annotations.remove(*key);
        dropped.is_some_and(|value| shown.is_none_or(|shown| shown[*key] != value))
    });
    let warning = |key| {
        format!(
            "metadata.annotations[{key}]: only the agent sets this annotation, and it is dropped"
        )
    };
    let warnings = dropped.map(warning).collect();
    if annotations.is_empty() {
        meta::metadata(object).remove("annotations");
    }
    warnings
}

fn set_managed(object: &mut Value, managed: Option<Value>) {
    let metadata = meta::metadata(object);
    match managed {
        Some(managed) => drop(metadata.insert("managedFields".to_owned(), managed)),
        None => drop(metadata.remove("managedFields")),
    }
}

/// The object, whenever its managers wrote.
fn without_times(object: &Value) -> Value {
    let mut object = object.clone();
    let entries = object["metadata"]["managedFields"].as_array_mut();
    for entry in entries.into_iter().flatten() {
        if let Some(entry) = entry.as_object_mut() {
            entry.remove("time");
        }
    }
    object
}

/// The scale of a Deployment or `StatefulSet`.
fn scale(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let labels = object["spec"]["selector"]["matchLabels"].as_object();
    let labels = labels.into_iter().flatten();
    let selector: Vec<_> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    debug_assert!(
        [DEPLOYMENTS.kind, STATEFUL_SETS.kind]
            .contains(&object["kind"].as_str().unwrap_or_default())
    );
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        // A document that doesn't say it means one pod.
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(1)},
        "status": {
            "replicas": object["status"]["replicas"].as_i64().unwrap_or(0),
            "selector": selector.join(","),
        },
    })
}

/// The object as a write of its scale changes it: all of it stays but the number of pods.
///
/// Upstream: `scaleUpdatedObjectInfo` of `pkg/registry/apps/deployment/storage/storage.go`.
///
/// # Errors
/// The scale is for another version or another object, or its number of pods is invalid.
fn scaled(call: &Call, before: &Value, bytes: &[u8]) -> Result<Value, Status> {
    let shown = scale(before);
    let mut changed = body::changed(call, &shown, bytes)?;
    check_lists(&changed)?;
    meta::place(&mut changed, &SCALES, &call.target.namespace)?;
    meta::succeed(&mut changed, &shown, call.target.resource)?;
    let spec = &changed["spec"];
    let replicas = match &spec["replicas"] {
        // Clients in Go leave 0 out.
        Value::Null if spec.is_object() || spec.is_null() => Some(0),
        said => said.as_i64(),
    };
    let Some(replicas) = replicas.filter(|number| i32::try_from(*number).is_ok()) else {
        let cause = Cause::invalid("spec.replicas", "must be an integer of 32 bits");
        return Err(Status::invalid(&SCALES, call.name(), &[cause]));
    };
    let mut object = before.clone();
    if shown["spec"]["replicas"] != replicas {
        object["spec"]["replicas"] = replicas.into();
    }
    Ok(object)
}

#[cfg(test)]
mod tests;
