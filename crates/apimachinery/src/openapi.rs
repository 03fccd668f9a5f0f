//! The OpenAPI v3 documents. Their operations are what kubectl looks for before it leaves the
//! validation of fields to the server; schemas of objects are not in them.

use serde_json::{Map, Value, json};

use crate::resources::{RESOURCES, Resource};

/// Where the document of a group and version is, as the root names it: `api/v1`.
fn place(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

/// `/openapi/v3`. `hash` changes with the program, so that clients don't keep an older document.
#[must_use]
pub fn root(hash: &str) -> Value {
    let mut paths = Map::new();
    for resource in RESOURCES {
        let place = place(resource);
        let url = format!("/openapi/v3/{place}?hash={hash}");
        paths.insert(place, json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

/// `/openapi/v3/PLACE`; none for a group or version that isn't served.
#[must_use]
pub fn document(wanted: &str) -> Option<Value> {
    let mut paths = Map::new();
    for resource in RESOURCES {
        if place(resource) != wanted {
            continue;
        }
        let namespace = if resource.namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        let path = format!("/{wanted}/{namespace}{}/{{name}}", resource.plural);
        let mut operations = Map::new();
        for (verb, method) in [("get", "get"), ("patch", "patch"), ("update", "put")] {
            if resource.verbs.contains(&verb) {
                operations.insert(method.to_owned(), operation(resource, verb));
            }
        }
        paths.insert(path, operations.into());
    }
    if paths.is_empty() {
        return None;
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths,
        "components": {"schemas": {}},
    }))
}

fn operation(resource: &Resource, verb: &str) -> Value {
    let parameter = |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let parameters: Vec<_> = match verb {
        "get" => Vec::new(),
        _ => ["dryRun", "fieldManager", "fieldValidation"]
            .map(parameter)
            .into(),
    };
    json!({
        "operationId": format!("{verb}{}", resource.kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_finds_that_the_server_validates_fields() {
        let root = root("1");
        for (place, url) in root["paths"].as_object().unwrap() {
            assert!(url["serverRelativeURL"].as_str().unwrap().contains(place));
            assert!(document(place).is_some(), "{place}");
        }
        let apps = document("apis/apps/v1").unwrap();
        let patch =
            &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"]["kind"],
            "Deployment"
        );
        // embedded 22
        assert!(
            patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|p| p["name"] == "fieldValidation")
        );
        assert!(document("apis/none/v1").is_none());
    }
}
