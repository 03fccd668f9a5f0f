//! A container's environment: literals, downward fields, values of API objects, services.
//!
//! Upstream: `makeEnvironmentVariables` of `pkg/kubelet/kubelet_pods.go`.

mod file;
mod services;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::api::core::{Container, EnvFromSource, EnvVar, EnvVarSource, FileKeySelector};
use crate::api::{FullName, Pod};
use crate::downward::{self, DownwardError};
use crate::expand::{Budget, ExpandError, TooLong, Variables, expand, expand_words};
use crate::objects::{ObjectError, ObjectKind, ObjectSet};
use crate::small::SmallCollect;
use crate::spec;

use crate::amounts::Amounts;
pub use file::{EnvFiles, FILES_BYTES_MAX, FileError, env_files};
pub use services::service_variables;

/// The inputs of an environment, besides the container itself.
#[derive(Debug, Clone, Copy)]
pub struct EnvContext<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Addresses of the node, primary first.
    pub host_ips: &'a [IpAddr],
    /// Addresses of the pod, primary first; empty while it has none.
    pub pod_ips: &'a [IpAddr],
    /// The values of absent limits.
    pub allocatable: Amounts,
    /// The objects that the pod refers to.
    pub objects: &'a ObjectSet,
    /// The files with variables. Before the pod runs there are none: such variables are skipped.
    pub files: Option<&'a EnvFiles>,
}

/// Why an environment can't be computed. Names variables, fields and objects, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A field or resource has no value.
    #[error("env {variable:?}: {error}")]
    Downward {
        /// Variable.
        variable: String,
        /// Why.
        error: DownwardError,
    },
    /// It would be larger than the limit for starting a process.
    #[error(transparent)]
    Expand(#[from] ExpandError),
    /// An object is unavailable.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// An object lacks a key.
    #[error("couldn't find key {key} in {} {namespace}/{name}", .kind.as_str())]
    NoSuchKey {
        /// The key.
        key: String,
        /// The object's kind.
        kind: ObjectKind,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A file has no value for it.
    #[error("env {variable:?}: file {path:?} of volume {volume:?}: {error}")]
    File {
        /// Variable.
        variable: String,
        /// The file's path in the volume.
        path: String,
        /// The volume.
        volume: String,
        /// Why.
        error: FileError,
    },
    /// Services are not known, so the container could not find the API server.
    #[error("services have not yet been read at least once, cannot construct envvars ({0})")]
    NoServices(ObjectError),
}

/// A container's environment: the variables of `envFrom`, then the spec's variables in their order,
/// then services. A later variable of the same name replaces the earlier one's value in its place;
/// services replace nothing.
#[derive(Default)]
pub struct Environment {
    ordered: Vec<(String, String)>,
    /// The index of each name in `ordered`.
    at: BTreeMap<String, usize>,
    /// The bytes left for its command.
    budget: Budget,
    /// Keys of objects in `envFrom` that are not valid variable names, and so are skipped.
    pub skipped: BTreeSet<String>,
}

impl Environment {
    /// Names and values, in their order.
    pub fn variables(&self) -> &[(String, String)] {
        &self.ordered
    }

    /// The same by name, for `subPathExpr`.
    pub fn by_name(&self) -> Variables {
        self.ordered.iter().cloned().collect_map()
    }

    /// The container's `command` and `args`, expanded.
    ///
    /// # Errors
    /// They are too long, alone or beside the environment.
    pub fn command_and_args(
        &self,
        container: &Container,
    ) -> Result<(Vec<String>, Vec<String>), ExpandError> {
        let mut budget = self.budget;
        let mut words = |words: &Option<Vec<String>>, field| {
            expand_words(words.as_deref(), field, &mut budget, |name| self.get(name))
        };
        Ok((
            words(&container.command, "command")?,
            words(&container.args, "args")?,
        ))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.at.get(name).map(|at| self.ordered[*at].1.as_str())
    }

    fn set(&mut self, name: String, value: String) -> Result<(), ExpandError> {
        if let Some(at) = self.at.get(&name) {
            let replaced = &mut self.ordered[*at].1;
            self.budget.give_back(length(&name, replaced));
            self.budget.take(length(&name, &value), || place(&name))?;
            *replaced = value;
        } else {
            self.budget.take(length(&name, &value), || place(&name))?;
            self.at.insert(name.clone(), self.ordered.len());
            self.ordered.push((name, value));
        }
        Ok(())
    }
}

/// Length of a variable as `NAME=value`.
fn length(name: &str, value: &str) -> usize {
    name.len() + 1 + value.len()
}

/// The location of a variable, for errors.
fn place(variable: &str) -> String {
    format!("env {variable:?}")
}

/// The container's environment.
///
/// # Errors
/// An input is missing, or the environment is too large.
pub fn resolve(container: &Container, context: &EnvContext<'_>) -> Result<Environment, EnvError> {
    let services = services_of(context)?;
    let mut environment = Environment::default();
    for from in container.env_from.iter().flatten() {
        add_object(from, context, &mut environment)?;
    }
    for variable in container.env.iter().flatten() {
        let value = value_of(variable, container, context, &environment, &services)?;
        if let Some(value) = value {
            environment.set(variable.name.clone(), value)?;
        }
    }
    for (name, value) in services {
        if !environment.at.contains_key(&name) {
            environment.set(name, value)?;
        }
    }
    Ok(environment)
}

/// Reports whether a process can read it as `NAME=value`.
fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

fn services_of(context: &EnvContext<'_>) -> Result<Variables, EnvError> {
    let services = match &context.objects.services {
        None => return Ok(Variables::new()),
        Some(Ok(services)) => services,
        Some(Err(error)) => return Err(EnvError::NoServices(error.clone())),
    };
    let links = spec::spec(context.pod).enable_service_links.unwrap_or(true);
    let namespace = FullName::of(context.pod).namespace;
    Ok(service_variables(services, &namespace, links))
}

/// Adds the variables of one entry of `envFrom`, one key at a time: many entries may refer to one
/// object.
fn add_object(
    from: &EnvFromSource,
    context: &EnvContext<'_>,
    environment: &mut Environment,
) -> Result<(), EnvError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    let mut add = |key: &str, value: Cow<'_, str>| {
        let name = format!("{prefix}{key}");
        if is_variable_name(&name) {
            return environment.set(name, value.into_owned());
        }
        environment.skipped.insert(name);
        Ok(())
    };
    if let Some(reference) = &from.config_map_ref {
        let object = context.objects.config_map(&reference.name);
        let found = unless_optional(object, reference.optional)?;
        for (key, value) in found.iter().flat_map(|found| found.data.iter().flatten()) {
            add(key, value.into())?;
        }
    }
    if let Some(reference) = &from.secret_ref {
        let object = context.objects.secret(&reference.name);
        let found = unless_optional(object, reference.optional)?;
        for (key, value) in found.iter().flat_map(|found| found.data.iter().flatten()) {
            add(key, String::from_utf8_lossy(&value.0))?;
        }
    }
    Ok(())
}

/// The object; none where it is optional and known not to exist.
fn unless_optional<T>(
    object: Result<T, ObjectError>,
    optional: Option<bool>,
) -> Result<Option<T>, ObjectError> {
    match object {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() && optional == Some(true) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Bytes as a variable's value: what is not UTF-8 can't be sent to the Engine.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The variable's value; none when it is to be left out.
fn value_of(
    variable: &EnvVar,
    container: &Container,
    context: &EnvContext<'_>,
    known: &Environment,
    services: &Variables,
) -> Result<Option<String>, EnvError> {
    match (&variable.value, &variable.value_from) {
        (Some(value), _) if !value.is_empty() => {
            let service = |name: &str| services.get(name).map(String::as_str);
            let expanded = expand(value, |name| known.get(name).or_else(|| service(name)));
            expanded.map(Some).map_err(|TooLong| {
                let place = place(&variable.name);
                ExpandError::String { place }.into()
            })
        }
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
    let downward = |error| EnvError::Downward {
        variable: variable.to_owned(),
        error,
    };
    let pod = context.pod;
    if let Some(field) = &source.field_ref {
        let (host_ips, pod_ips) = (context.host_ips, context.pod_ips);
        return downward::variable_value(pod, &field.field_path, host_ips, pod_ips)
            .map(Some)
            .map_err(downward);
    }
    if let Some(selector) = &source.resource_field_ref {
        return downward::resource_value(pod, selector, Some(container), context.allocatable)
            .map(Some)
            .map_err(downward);
    }
    if let Some(wanted) = &source.config_map_key_ref {
        let object = context.objects.config_map(&wanted.name);
        let Some(found) = unless_optional(object, wanted.optional)? else {
            return Ok(None);
        };
        let value = found.data.as_ref().and_then(|data| data.get(&wanted.key));
        let kind = ObjectKind::ConfigMap;
        return key_of(
            value.cloned(),
            pod,
            kind,
            &wanted.name,
            &wanted.key,
            wanted.optional,
        );
    }
    if let Some(wanted) = &source.secret_key_ref {
        let object = context.objects.secret(&wanted.name);
        let Some(found) = unless_optional(object, wanted.optional)? else {
            return Ok(None);
        };
        let value = found.data.as_ref().and_then(|data| data.get(&wanted.key));
        let value = value.map(|bytes| text(&bytes.0));
        let kind = ObjectKind::Secret;
        return key_of(value, pod, kind, &wanted.name, &wanted.key, wanted.optional);
    }
    match (&source.file_key_ref, context.files) {
        (Some(wanted), Some(files)) => of_file(variable, wanted, files),
        _ => Ok(None),
    }
}

fn of_file(
    variable: &str,
    wanted: &FileKeySelector,
    files: &EnvFiles,
) -> Result<Option<String>, EnvError> {
    let found = files.get(&(wanted.volume_name.clone(), wanted.path.clone()));
    let text = found.cloned().unwrap_or(Err(FileError::Missing));
    let value = text.and_then(|text| file::value_in(&text, &wanted.key));
    let value = match value {
        Err(FileError::Missing | FileError::NoKey(_)) if wanted.optional == Some(true) => {
            return Ok(None);
        }
        value => value,
    };
    value.map(Some).map_err(|error| EnvError::File {
        variable: variable.to_owned(),
        path: wanted.path.clone(),
        volume: wanted.volume_name.clone(),
        error,
    })
}

fn key_of(
    value: Option<String>,
    pod: &Pod,
    kind: ObjectKind,
    name: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<String>, EnvError> {
    if value.is_some() || optional == Some(true) {
        return Ok(value);
    }
    Err(EnvError::NoSuchKey {
        key: key.to_owned(),
        kind,
        namespace: FullName::of(pod).namespace.to_string(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests;
