//! Requests and limits.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::api::core::ResourceRequirements;
use crate::api::quantity::Quantity;
use crate::api::{Code, Severity};
use crate::manifest::problems::Problems;
use crate::path::Path;

/// The resources a container can ask for here.
const STANDARD: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Prefix of resources that another table already speaks of.
const HUGE_PAGES: &str = "hugepages-";
/// The resource the Engine has a bound for.
const MEMORY: &str = "memory";
/// Least memory limit the Docker Engine accepts, in bytes.
const ENGINE_MEMORY_MIN: i64 = 6 * 1024 * 1024;

pub(super) fn check_resources(
    resources: &ResourceRequirements,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    let limits = check_list(resources.limits.as_ref(), None, &at.key("limits"), problems);
    let requests = check_list(
        resources.requests.as_ref(),
        resources.limits.as_ref(),
        &at.key("requests"),
        problems,
    );
    for (name, request) in &requests {
        if limits.get(name).is_some_and(|limit| request > limit) {
            problems.invalid(
                &at.key("requests").key(name),
                format!("the request is larger than the limit of {name}"),
            );
        }
    }
    if let Some(memory) = limits.get(MEMORY)
        && (1..ENGINE_MEMORY_MIN).contains(&memory.ceil())
    {
        problems.invalid(
            &at.key("limits").key(MEMORY),
            "the Docker Engine needs a memory limit of at least 6Mi",
        );
    }
}

/// Checks each quantity that isn't the same in `checked`, and returns those that are fine.
fn check_list<'a>(
    list: Option<&'a BTreeMap<String, ApiQuantity>>,
    checked: Option<&BTreeMap<String, ApiQuantity>>,
    at: &Path,
    problems: &mut Problems<'_>,
) -> BTreeMap<&'a str, Quantity> {
    let mut good = BTreeMap::new();
    for (name, quantity) in list.into_iter().flatten() {
        if checked.and_then(|other| other.get(name)) == Some(quantity) {
            continue;
        }
        let path = at.key(name);
        check_resource_name(name, &path, problems);
        match Quantity::try_from(quantity) {
            Ok(value) if value.is_negative() => problems.invalid(&path, "must not be negative"),
            Ok(value) => {
                good.insert(name.as_str(), value);
            }
            Err(error) => {
                problems.invalid(&path, "this is not a quantity");
                problems.help(error.to_string());
            }
        }
    }
    good
}

fn check_resource_name(name: &str, path: &Path, problems: &mut Problems<'_>) {
    if STANDARD.contains(&name) || name.starts_with(HUGE_PAGES) {
        return;
    }
    if name.contains('/') {
        let message = "extended resources are not supported, because there are no device plugins";
        problems.add_at_key(
            Severity::Error,
            Code::UnsupportedField,
            path,
            message.to_owned(),
        );
    } else {
        problems.invalid(path, "unknown resource");
        problems.help(format!(
            "the resources of a container are {}",
            STANDARD.join(", ")
        ));
    }
}
