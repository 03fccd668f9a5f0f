//! Requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::{PodSpec, ResourceRequirements};
use crate::api::quantity::Quantity;
use crate::api::{Code, Pod, Severity};
use crate::manifest::problems::At;
use crate::resources::{CPU, MEMORY, container_requests, limit, limit_in, request_in};

/// A kind of object that requests resources, and the names of those that it may request.
type Asker = (&'static str, &'static [&'static str]);
const CONTAINER: Asker = ("a container", &[CPU, MEMORY, "ephemeral-storage"]);
const POD: Asker = ("a pod", &[CPU, MEMORY]);
/// Prefix of resources that another table already covers.
const HUGE_PAGES: &str = "hugepages-";
/// Least memory limit the Docker Engine accepts, in bytes.
const ENGINE_MEMORY_MIN: i64 = 6 * 1024 * 1024;

pub(super) fn check_resources(resources: &ResourceRequirements, at: &At<'_>) {
    check_asked(resources, CONTAINER, at);
}

/// Checks the pod-level resources, by themselves and against those of the containers.
///
/// Upstream: `validatePodResources` of `pkg/apis/core/validation/validation.go`.
pub(super) fn check_pod_resources(pod: &Pod, spec: &PodSpec, at: &At<'_>) {
    let Some(own) = &spec.resources else {
        return;
    };
    let at_own = at.key("resources");
    check_asked(own, POD, &at_own);
    for name in [CPU, MEMORY] {
        if request_in(own, name).is_some_and(|own| own < container_requests(pod, name)) {
            at_own
                .key("requests")
                .key(name)
                .invalid(format!("the containers request more {name} than the pod"));
        }
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let lists = [("initContainers", init), ("containers", &*spec.containers)];
    for (key, list) in lists {
        for (index, container) in list.iter().enumerate() {
            for name in [CPU, MEMORY] {
                let limits = limit(container, name).zip(limit_in(own, name));
                if limits.is_some_and(|(of_container, of_pod)| of_container > of_pod) {
                    let at = at.key(key).index(index).dotted("resources.limits");
                    at.key(name).invalid(format!(
                        "the limit is larger than the pod's limit of {name}"
                    ));
                }
            }
        }
    }
}

fn check_asked(resources: &ResourceRequirements, asker: Asker, at: &At<'_>) {
    let limits = resources.limits.as_ref();
    let limits = check_list(limits, None, asker, &at.key("limits"));
    let requests = check_list(
        resources.requests.as_ref(),
        resources.limits.as_ref(),
        asker,
        &at.key("requests"),
    );
    for (name, request) in &requests {
        if limits.get(name).is_some_and(|limit| request > limit) {
            at.key("requests")
                .key(name)
                .invalid(format!("the request is larger than the limit of {name}"));
        }
    }
    if let Some(memory) = limits.get(MEMORY)
        && (1..ENGINE_MEMORY_MIN).contains(&memory.ceil())
    {
        at.key("limits")
            .key(MEMORY)
            .invalid("the Docker Engine needs a memory limit of at least 6Mi");
    }
}

/// Checks each quantity that isn't the same in `checked`, and returns those that are fine.
fn check_list<'a>(
    list: Option<&'a BTreeMap<String, ApiQuantity>>,
    checked: Option<&BTreeMap<String, ApiQuantity>>,
    asker: Asker,
    at: &At<'_>,
) -> BTreeMap<&'a str, Quantity> {
    let mut good = BTreeMap::new();
    for (name, quantity) in list.into_iter().flatten() {
        if checked.and_then(|other| other.get(name)) == Some(quantity) {
            continue;
        }
        let path = at.key(name);
        check_resource_name(name, asker, &path);
        match Quantity::try_from(quantity) {
            Ok(value) if value.is_negative() => path.invalid("must not be negative"),
            Ok(value) => {
                good.insert(name.as_str(), value);
            }
            Err(error) => {
                path.invalid("this is not a quantity");
                path.help(error.to_string());
            }
        }
    }
    good
}

fn check_resource_name(name: &str, (asker, resources): Asker, at: &At<'_>) {
    if resources.contains(&name) || name.starts_with(HUGE_PAGES) {
        return;
    }
    if name.contains('/') {
        let message = "extended resources are not supported, because there are no device plugins";
        at.report_key(Severity::Error, Code::UnsupportedField, message.to_owned());
    } else {
        at.invalid("unknown resource");
        at.help(format!(
            "the resources of {asker} are {}",
            resources.join(", ")
        ));
    }
}
