//! Environment variables. Their values never get into a message.

use std::collections::HashSet;

use crate::api::core::{
    Container, EnvVar, FileKeySelector, ObjectFieldSelector, ResourceFieldSelector,
};
use crate::api::quantity::Quantity;
use crate::manifest::problems::At;

use super::{names, objects, values};

/// Fields of the pod a variable can take.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Resources a variable can take.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
];

/// Checks a container's variables. `containers` are the names of all containers of the pod,
/// `empty_dirs` those of its emptyDir volumes.
pub(super) fn check_env(
    container: &Container,
    containers: &HashSet<&str>,
    empty_dirs: &HashSet<&str>,
    at: &At<'_>,
) {
    for (index, variable) in container.env.iter().flatten().enumerate() {
        let path = at.key("env").index(index);
        if variable.name.is_empty() {
            path.key("name").required("a variable needs a name");
        } else if !names::is_env_name(&variable.name) {
            path.key("name")
                .invalid("a variable's name must be printable ASCII without `=`");
        }
        check_source(variable, containers, &path);
        let from = variable.value_from.as_ref();
        if let Some(file) = from.and_then(|from| from.file_key_ref.as_ref()) {
            check_file(file, empty_dirs, &path.dotted("valueFrom.fileKeyRef"));
        }
    }
    for (index, source) in container.env_from.iter().flatten().enumerate() {
        if source.config_map_ref.is_none() && source.secret_ref.is_none() {
            let path = at.key("envFrom").index(index);
            path.invalid("must have configMapRef or secretRef");
        }
        let at = at.key("envFrom").index(index);
        if let Some(from) = &source.config_map_ref {
            objects::check_reference(Some(&from.name), &at.dotted("configMapRef.name"));
        }
        if let Some(from) = &source.secret_ref {
            objects::check_reference(Some(&from.name), &at.dotted("secretRef.name"));
        }
    }
}

fn check_file(file: &FileKeySelector, empty_dirs: &HashSet<&str>, at: &At<'_>) {
    if file.key.is_empty() {
        at.key("key")
            .required("the name of a variable in the file is needed");
    } else if !names::is_env_name(&file.key) {
        let rule = "a variable's name must be printable ASCII without `=`";
        at.key("key").invalid(rule);
    }
    if !empty_dirs.contains(file.volume_name.as_str()) {
        let rule = "must be the name of an emptyDir volume of the pod";
        at.key("volumeName").invalid(rule);
    }
    values::check_path(&file.path, &mut HashSet::new(), at);
}

fn check_source(variable: &EnvVar, containers: &HashSet<&str>, at: &At<'_>) {
    let Some(from) = &variable.value_from else {
        return;
    };
    let path = at.key("valueFrom");
    if variable.value.as_deref().is_some_and(|v| !v.is_empty()) {
        path.invalid("a variable can't have both value and valueFrom");
    }
    let sources = usize::from(from.field_ref.is_some())
        + usize::from(from.resource_field_ref.is_some())
        + usize::from(from.config_map_key_ref.is_some())
        + usize::from(from.secret_key_ref.is_some())
        + usize::from(from.file_key_ref.is_some());
    if sources != 1 {
        path.invalid("must name exactly one source");
    }
    if let Some(field) = &from.field_ref {
        check_field(field, &FIELDS, &path.key("fieldRef"));
    }
    if let Some(wanted) = &from.config_map_key_ref {
        let path = path.key("configMapKeyRef");
        objects::check_reference(Some(&wanted.name), &path.key("name"));
        objects::check_key(&wanted.key, &path.key("key"));
    }
    if let Some(wanted) = &from.secret_key_ref {
        let path = path.key("secretKeyRef");
        objects::check_reference(Some(&wanted.name), &path.key("name"));
        objects::check_key(&wanted.key, &path.key("key"));
    }
    if let Some(resource) = &from.resource_field_ref {
        check_resource(resource, containers, &path.key("resourceFieldRef"));
    }
}

/// Checks a field selector. `fields` are the allowed paths, besides single labels and annotations.
pub(super) fn check_field(field: &ObjectFieldSelector, fields: &[&str], at: &At<'_>) {
    if field.api_version.as_deref() != Some("v1") {
        at.key("apiVersion").invalid("must be v1");
    }
    let path = at.key("fieldPath");
    let subscript = ["metadata.labels['", "metadata.annotations['"]
        .iter()
        .find_map(|start| field.field_path.strip_prefix(start))
        .and_then(|rest| rest.strip_suffix("']"));
    if field.field_path.is_empty() {
        path.required("the path of a field is needed");
    } else if let Some(key) = subscript {
        if !names::is_qualified(key) {
            path.invalid("this is not the key of a label or annotation");
        }
    } else if !fields.contains(&field.field_path.as_str()) {
        path.invalid("this field is not available");
        path.help(format!(
            "use one of {}, metadata.labels['<key>'], metadata.annotations['<key>']",
            fields.join(", ")
        ));
    }
}

/// Checks a resource selector. `containers` are the names of all containers of the pod.
pub(super) fn check_resource(
    resource: &ResourceFieldSelector,
    containers: &HashSet<&str>,
    at: &At<'_>,
) {
    if !RESOURCES.contains(&resource.resource.as_str()) {
        at.key("resource")
            .invalid(format!("must be one of: {}", RESOURCES.join(", ")));
    }
    let name = resource.container_name.as_deref().unwrap_or_default();
    if !name.is_empty() && !containers.contains(name) {
        at.key("containerName")
            .invalid("no container has this name");
    }
    if let Some(divisor) = resource.divisor.as_ref().filter(|d| !d.0.is_empty()) {
        let fine = Quantity::try_from(divisor).is_ok_and(|d| !d.is_negative());
        if !fine {
            at.key("divisor").invalid("this is not a positive quantity");
        }
    }
}
