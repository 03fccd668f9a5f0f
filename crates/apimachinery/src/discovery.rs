//! The discovery documents: the API groups, versions and resources that are served.
//!
//! Upstream: `apiserver/pkg/endpoints/discovery`, `k8s.io/api/apidiscovery/v2`.

use mirrorlet_core::small::SmallSort;
use serde_json::{Value, json};

use crate::resources::{RESOURCES, Resource, Subresource};

/// Media type of the aggregated documents.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether a client with this `Accept` header takes an aggregated document.
pub fn wants_aggregated(accept: &str) -> bool {
    accept.split(',').any(|one| {
        let has = |part: &str| one.split(';').any(|own| own.trim() == part);
        has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
    })
}

/// The groups that have a name, in order, each with its version.
fn groups() -> Vec<(&'static str, &'static str)> {
    let mut groups: Vec<_> = RESOURCES
        .iter()
        .filter(|resource| !resource.group.is_empty())
        .map(|resource| (resource.group, resource.version))
        .collect();
    groups.dedup();
    groups
}

/// The document of `/`: the served paths, in order.
pub fn root() -> Value {
    let fixed = [
        "/api",
        "/api/v1",
        "/apis",
        "/healthz",
        "/livez",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ];
    let mut paths: Vec<String> = fixed.map(str::to_owned).to_vec();
    for (group, version) in groups() {
        paths.extend([format!("/apis/{group}"), format!("/apis/{group}/{version}")]);
    }
    paths.small_sort();
    json!({"paths": paths})
}

/// The aggregated document of `/api`, or of `/apis`.
pub fn aggregated(core: bool) -> Value {
    let groups = if core { vec![("", "v1")] } else { groups() };
    let items: Vec<_> = groups
        .into_iter()
        .map(|(group, version)| {
            let resources: Vec<_> = of_group(group, version).map(aggregated_resource).collect();
            let metadata = if group.is_empty() {
                json!({})
            } else {
                json!({"name": group})
            };
            json!({
                "metadata": metadata,
                "versions": [{"version": version, "freshness": "Current", "resources": resources}],
            })
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    })
}

fn of_group(group: &str, version: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES
        .iter()
        .copied()
        .filter(move |resource| (resource.group, resource.version) == (group, version))
}

fn aggregated_resource(resource: &Resource) -> Value {
    let subresources: Vec<_> = resource
        .subresources
        .iter()
        .map(|sub| {
            let (group, version) = group_version(resource, sub);
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": sub.kind},
                "verbs": sub.verbs,
            })
        })
        .collect();
    let mut value = json!({
        "resource": resource.plural,
        "responseKind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": resource.verbs,
    });
    set_names(&mut value, resource);
    if !subresources.is_empty() {
        value["subresources"] = json!(subresources);
    }
    value
}

/// Sets the other names of a resource, where it has some.
fn set_names(entry: &mut Value, resource: &Resource) {
    for (key, names) in [
        ("shortNames", resource.short_names),
        ("categories", resource.categories),
    ] {
        if !names.is_empty() {
            entry[key] = json!(names);
        }
    }
}

fn group_version<'a>(resource: &Resource, sub: &'a Subresource) -> (&'a str, &'a str) {
    match sub.api_version.split_once('/') {
        Some((group, version)) => (group, version),
        None => (
            if sub.api_version.is_empty() {
                resource.group
            } else {
                ""
            },
            resource.version,
        ),
    }
}

/// `/api` for clients that take no aggregated document.
pub fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis` for clients that take no aggregated document.
pub fn group_list() -> Value {
    let groups: Vec<_> = groups()
        .into_iter()
        .map(|(group, version)| group_entry(group, version))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_entry(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

/// `/apis/GROUP`; none for a group that isn't served.
pub fn group(name: &str) -> Option<Value> {
    let (group, version) = groups().into_iter().find(|(group, _)| *group == name)?;
    let mut entry = group_entry(group, version);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// `/api/v1` or `/apis/GROUP/VERSION`; none for a group or version that isn't served.
pub fn resource_list(group: &str, version: &str) -> Option<Value> {
    let mut entries = Vec::new();
    for resource in of_group(group, version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": resource.verbs,
        });
        set_names(&mut entry, resource);
        entries.push(entry);
        for sub in resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, sub.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": sub.kind,
                "verbs": sub.verbs,
            });
            if let Some((group, version)) = sub.api_version.split_once('/') {
                entry["group"] = group.into();
                entry["version"] = version.into();
            }
            entries.push(entry);
        }
    }
    let group_version = of_group(group, version).next()?.api_version();
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": entries,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_name_every_resource() {
        let core = aggregated(true);
        let named = aggregated(false);
        let listed = |document: &Value, plural: &str, kind: &str| {
            let groups = document["items"].as_array().unwrap().iter();
            let mut resources =
                groups.flat_map(|g| g["versions"][0]["resources"].as_array().unwrap());
            resources.any(|r| r["resource"] == plural && r["responseKind"]["kind"] == kind)
        };
        for resource in RESOURCES {
            let document = if resource.group.is_empty() {
                &core
            } else {
                &named
            };
            // embedded 22
            assert!(
                listed(document, resource.plural, resource.kind),
                "{resource:?}"
            );
            let legacy = resource_list(resource.group, resource.version).unwrap();
            let entries = legacy["resources"].as_array().unwrap();
            assert!(entries.iter().any(|entry| entry["name"] == resource.plural));
        }
        assert_eq!(core["items"][0]["metadata"], json!({}));
        assert!(group("apps").is_some() && group("batch.example").is_none());
    }

    #[test]
    fn only_who_takes_it_gets_the_aggregated_form() {
        let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        // embedded 22
        assert!(wants_aggregated(kubectl));
        assert!(!wants_aggregated("application/json"));
        assert!(!wants_aggregated(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
        ));
    }
}
