//! A container's environment: literals, downward fields and resources, as values.
//!
//! Upstream: `makeEnvironmentVariables` of `pkg/kubelet/kubelet_pods.go`,
//! `pkg/fieldpath/fieldpath.go`, `pkg/api/v1/resource/helpers.go`.

use std::net::IpAddr;

use crate::api::Pod;
use crate::api::core::{Container, EnvVar, EnvVarSource, ResourceFieldSelector};
use crate::api::quantity::Quantity;
use crate::pod::expand::{Variables, expand};
use crate::pod::{resources, spec};

/// What downward fields are filled from, beside the pod itself.
#[derive(Debug, Clone, Copy)]
pub struct EnvContext<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [IpAddr],
    /// Addresses of the pod, primary first; empty while it has none.
    pub pod_ips: &'a [IpAddr],
    /// What an absent limit stands for.
    pub allocatable: Allocatable,
}

/// What the node can give to pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Allocatable {
    /// Thousandths of a CPU.
    pub cpu_milli: u64,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of ephemeral storage.
    pub ephemeral_storage_bytes: u64,
}

/// Why an environment can't be made. Names variables and fields, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The field has no value a container could be told.
    #[error("env {variable:?}: unsupported fieldPath: {path}")]
    UnsupportedField {
        /// Variable.
        variable: String,
        /// Field asked for.
        path: String,
    },
    /// The resource can't be asked for.
    #[error("env {variable:?}: unsupported container resource: {resource}")]
    UnsupportedResource {
        /// Variable.
        variable: String,
        /// Resource asked for.
        resource: String,
    },
    /// The pod has no such container.
    #[error("env {variable:?}: container {container} not found")]
    NoSuchContainer {
        /// Variable.
        variable: String,
        /// Container named.
        container: String,
    },
    /// A quantity can't be read.
    #[error("env {variable:?}: {resource} or its divisor is not a quantity")]
    InvalidQuantity {
        /// Variable.
        variable: String,
        /// Resource asked for.
        resource: String,
    },
    /// An object that only an API server has.
    #[error("{what} {name:?} not found: pods from manifests can't refer to API objects")]
    NoSuchObject {
        /// Kind of object.
        what: &'static str,
        /// Its name.
        name: String,
    },
}

/// The container's environment in the spec's order; a later variable of the same name replaces
/// the earlier one's value in its place.
pub fn resolve(
    container: &Container,
    context: &EnvContext<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    check_env_from(container)?;
    let mut ordered: Vec<(String, String)> = Vec::new();
    let mut known = Variables::new();
    for variable in container.env.iter().flatten() {
        let Some(value) = value_of(variable, container, context, &known)? else {
            continue;
        };
        known.insert(variable.name.clone(), value.clone());
        match ordered.iter_mut().find(|(name, _)| *name == variable.name) {
            Some(slot) => slot.1 = value,
            None => ordered.push((variable.name.clone(), value)),
        }
    }
    Ok(ordered)
}

/// The same environment by name, for expansion.
#[must_use]
pub fn by_name(env: &[(String, String)]) -> Variables {
    env.iter().cloned().collect()
}

/// A box has no `ConfigMap`s and `Secret`s: an optional one is empty, any other is missing.
fn check_env_from(container: &Container) -> Result<(), EnvError> {
    for from in container.env_from.iter().flatten() {
        if let Some(config_map) = &from.config_map_ref {
            required("ConfigMap", Some(&config_map.name), config_map.optional)?;
        }
        if let Some(secret) = &from.secret_ref {
            required("Secret", Some(&secret.name), secret.optional)?;
        }
    }
    Ok(())
}

fn required(
    what: &'static str,
    name: Option<&String>,
    optional: Option<bool>,
) -> Result<(), EnvError> {
    if optional == Some(true) {
        return Ok(());
    }
    Err(EnvError::NoSuchObject {
        what,
        name: name.cloned().unwrap_or_default(),
    })
}

/// The variable's value; none when it is to be left out.
fn value_of(
    variable: &EnvVar,
    container: &Container,
    context: &EnvContext<'_>,
    known: &Variables,
) -> Result<Option<String>, EnvError> {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) if !value.is_empty() => Ok(Some(expand(value, known))),
        (_, Some(source)) => from_source(&variable.name, source, container, context),
        (_, None) => Ok(Some(String::new())),
    }
}

fn from_source(
    variable: &str,
    source: &EnvVarSource,
    container: &Container,
    context: &EnvContext<'_>,
) -> Result<Option<String>, EnvError> {
    if let Some(field) = &source.field_ref {
        return field_value(&field.field_path, context)
            .map(Some)
            .ok_or_else(|| EnvError::UnsupportedField {
                variable: variable.to_owned(),
                path: field.field_path.clone(),
            });
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource_value(variable, selector, container, context).map(Some);
    }
    if let Some(key) = &source.config_map_key_ref {
        required("ConfigMap", Some(&key.name), key.optional)?;
    }
    if let Some(key) = &source.secret_key_ref {
        required("Secret", Some(&key.name), key.optional)?;
    }
    Ok(None)
}

/// Value of a downward field; none when a container can't be told that field. A label or
/// annotation the pod lacks is the empty text.
#[must_use]
pub fn field_value(path: &str, context: &EnvContext<'_>) -> Option<String> {
    let metadata = &context.pod.metadata;
    let spec = spec::spec(context.pod);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some(key) = subscript(path, "metadata.labels") {
        return Some(lookup(metadata.labels.as_ref(), key));
    }
    if let Some(key) = subscript(path, "metadata.annotations") {
        return Some(lookup(metadata.annotations.as_ref(), key));
    }
    Some(match path {
        "metadata.name" => text(&metadata.name),
        "metadata.namespace" => text(&metadata.namespace),
        "metadata.uid" => text(&metadata.uid),
        "spec.nodeName" => text(&spec.node_name),
        "spec.serviceAccountName" => text(&spec.service_account_name),
        "status.hostIP" => first(context.host_ips),
        "status.hostIPs" => joined(context.host_ips),
        "status.podIP" => first(context.pod_ips),
        "status.podIPs" => joined(context.pod_ips),
        _ => return None,
    })
}

fn subscript<'a>(path: &'a str, field: &str) -> Option<&'a str> {
    path.strip_prefix(field)?
        .strip_prefix("['")?
        .strip_suffix("']")
}

fn lookup(map: Option<&std::collections::BTreeMap<String, String>>, key: &str) -> String {
    map.and_then(|map| map.get(key))
        .cloned()
        .unwrap_or_default()
}

fn first(ips: &[IpAddr]) -> String {
    ips.first().map(ToString::to_string).unwrap_or_default()
}

fn joined(ips: &[IpAddr]) -> String {
    let texts: Vec<String> = ips.iter().map(ToString::to_string).collect();
    texts.join(",")
}

fn resource_value(
    variable: &str,
    selector: &ResourceFieldSelector,
    container: &Container,
    context: &EnvContext<'_>,
) -> Result<String, EnvError> {
    let container = match selector.container_name.as_deref() {
        None | Some("") => container,
        Some(name) => spec::find_container(context.pod, name)
            .map(|(_, container)| container)
            .ok_or_else(|| EnvError::NoSuchContainer {
                variable: variable.to_owned(),
                container: name.to_owned(),
            })?,
    };
    let unsupported = || EnvError::UnsupportedResource {
        variable: variable.to_owned(),
        resource: selector.resource.clone(),
    };
    let (side, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(
        resource,
        resources::CPU | resources::MEMORY | "ephemeral-storage"
    ) || resource.starts_with("hugepages-");
    let value = match side {
        _ if !known => return Err(unsupported()),
        "limits" => resources::limit(container, resource)
            .unwrap_or_else(|| fallback(resource, context.allocatable)),
        "requests" => resources::request(container, resource).unwrap_or_default(),
        _ => return Err(unsupported()),
    };
    let divisor = match selector.divisor.as_ref().map(Quantity::try_from) {
        None => Quantity::of(1),
        Some(Ok(divisor)) if divisor.is_zero() => Quantity::of(1),
        Some(Ok(divisor)) => divisor,
        Some(Err(_)) => {
            return Err(EnvError::InvalidQuantity {
                variable: variable.to_owned(),
                resource: selector.resource.clone(),
            });
        }
    };
    Ok(value.div_ceil(divisor).to_string())
}

/// What an absent limit stands for: all the node has, but no huge pages.
fn fallback(resource: &str, allocatable: Allocatable) -> Quantity {
    let whole = |units: u64| Quantity::of(i64::try_from(units).unwrap_or(i64::MAX));
    match resource {
        resources::CPU => Quantity::of_milli(allocatable.cpu_milli),
        resources::MEMORY => whole(allocatable.memory_bytes),
        "ephemeral-storage" => whole(allocatable.ephemeral_storage_bytes),
        _ => Quantity::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(env: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "prod", "uid": "u-1",
                "labels": {"app": "shop"}, "annotations": {"note.example/x": "hi"},
            },
            "spec": {
                "nodeName": "box", "serviceAccountName": "sa",
                "initContainers": [{"name": "init", "resources": {"limits": {"memory": "1Gi"}}}],
                "containers": [{
                    "name": "c", "env": env,
                    "resources": {
                        "limits": {"cpu": "1500m", "memory": "100Mi"},
                        "requests": {"cpu": "250m"},
                    },
                }, {"name": "bare"}],
            },
        }))
        .unwrap()
    }

    fn resolved(env: &Value) -> Result<Vec<(String, String)>, EnvError> {
        let pod = pod(env);
        let context = EnvContext {
            pod: &pod,
            host_ips: &["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            pod_ips: &["172.17.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            allocatable: Allocatable {
                cpu_milli: 2500,
                memory_bytes: 8 << 30,
                ephemeral_storage_bytes: 10 << 30,
            },
        };
        resolve(&spec::spec(&pod).containers[0], &context)
    }

    fn value(source: &Value) -> Result<String, EnvError> {
        let env = resolved(&json!([{"name": "X", "valueFrom": source}]))?;
        Ok(env.into_iter().map(|(_, value)| value).collect())
    }

    fn pairs(env: &[(&str, &str)]) -> Vec<(String, String)> {
        env.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn literals_see_what_comes_before_them_and_later_ones_replace() {
        let env = json!([
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(C)"},
            {"name": "C", "value": "3"},
            {"name": "A", "value": "$(A)$(C)"},
            {"name": "EMPTY", "value": ""},
            {"name": "NONE"},
            {"name": "QUOTED", "value": "$$(A)"},
        ]);
        assert_eq!(
            resolved(&env).unwrap(),
            pairs(&[
                ("A", "13"),
                ("B", "1-$(C)"),
                ("C", "3"),
                ("EMPTY", ""),
                ("NONE", ""),
                ("QUOTED", "$(A)"),
            ])
        );
    }

    #[test]
    fn downward_fields() {
        for (path, expected) in [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("prod")),
            ("metadata.uid", Some("u-1")),
            ("metadata.labels['app']", Some("shop")),
            ("metadata.labels['missing']", Some("")),
            ("metadata.annotations['note.example/x']", Some("hi")),
            ("spec.nodeName", Some("box")),
            ("spec.serviceAccountName", Some("sa")),
            ("status.hostIP", Some("192.0.2.1")),
            ("status.hostIPs", Some("192.0.2.1,2001:db8::1")),
            ("status.podIP", Some("172.17.0.2")),
            ("status.podIPs", Some("172.17.0.2,fd00::2")),
            ("metadata.labels", None),
            ("spec.containers", None),
        ] {
            let got = value(&json!({"fieldRef": {"fieldPath": path}}));
            assert_eq!(got.ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn resource_fields_round_up_and_limits_fall_back_to_the_node() {
        let own = |resource: &str, divisor: &str| json!({"resource": resource, "divisor": divisor});
        let of = |container: &str, resource: &str| json!({"containerName": container, "resource": resource});
        for (selector, expected) in [
            (own("limits.cpu", "1"), Some("2")),
            (own("limits.cpu", "1m"), Some("1500")),
            (own("limits.cpu", "0"), Some("2")),
            (own("requests.cpu", "1m"), Some("250")),
            (own("limits.memory", "3Mi"), Some("34")),
            (own("requests.memory", "1Mi"), Some("100")),
            (of("bare", "limits.cpu"), Some("3")),
            (of("bare", "limits.memory"), Some("8589934592")),
            (of("bare", "limits.ephemeral-storage"), Some("10737418240")),
            (of("bare", "limits.hugepages-2Mi"), Some("0")),
            (of("bare", "requests.cpu"), Some("0")),
            (of("bare", "requests.memory"), Some("0")),
            (of("init", "limits.memory"), Some("1073741824")),
            (of("nobody", "limits.cpu"), None),
            (own("limits.gpu", "1"), None),
            (own("cpu", "1"), None),
            (own("limits.cpu", "many"), None),
        ] {
            let got = value(&json!({"resourceFieldRef": selector}));
            assert_eq!(got.ok().as_deref(), expected, "{selector}");
        }
    }

    #[test]
    fn api_objects_are_missing_unless_optional() {
        for kind in ["configMapKeyRef", "secretKeyRef"] {
            let reference =
                |optional: bool| json!({kind: {"name": "n", "key": "k", "optional": optional}});
            assert_eq!(value(&reference(true)).as_deref(), Ok(""), "{kind}");
            assert_eq!(
                resolved(&json!([{"name": "X", "valueFrom": reference(true)}])),
                Ok(vec![]),
                "{kind}"
            );
            assert!(
                matches!(
                    value(&reference(false)),
                    Err(EnvError::NoSuchObject { name, .. }) if name == "n"
                ),
                "{kind}"
            );
        }
        let from: Container = serde_json::from_value(json!({
            "name": "c", "envFrom": [{"secretRef": {"name": "s"}}],
        }))
        .unwrap();
        let pod = Pod::default();
        let context = EnvContext {
            pod: &pod,
            host_ips: &[],
            pod_ips: &[],
            allocatable: Allocatable::default(),
        };
        assert_eq!(
            resolve(&from, &context).unwrap_err().to_string(),
            "Secret \"s\" not found: pods from manifests can't refer to API objects"
        );
    }
}
