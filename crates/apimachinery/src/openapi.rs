//! The OpenAPI documents: the served paths, with Kubernetes' own schemas.
//!
//! A document is assembled when a client requests it and isn't kept: clients cache it by its hash.
//!
//! Upstream: `kube-openapi/pkg/handler3`, `kube-openapi/pkg/openapiconv`.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use mirrorlet_core::api::hex;
use mirrorlet_core::small::SmallCollect;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::patch;
use crate::resources::{RESOURCES, Resource, Subresource};
use crate::schemas::{self, Schemas};

/// Where the document of a group and version is, as the root names it: `api/v1`.
fn place(resource: &Resource) -> String {
    let root = if resource.group.is_empty() {
        "api"
    } else {
        "apis"
    };
    format!("{root}/{}", resource.api_version())
}

/// The hashes of all documents by their places. They are made once: the documents change with the
/// program alone.
fn hashes() -> &'static BTreeMap<String, String> {
    static HASHES: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    HASHES.get_or_init(|| {
        let text = schemas::openapi_text();
        let schemas = Schemas::of(&text);
        let mut hashes = BTreeMap::new();
        for resource in RESOURCES {
            let entry = hashes.entry(place(resource));
            entry.or_insert_with_key(|place| hash(&document_of(place, &schemas)));
        }
        hashes
    })
}

/// The hash of a document, for its `ETag`.
pub fn hash(document: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(document).into();
    hex(&digest).to_uppercase()
}

/// `/openapi/v3`. The first call makes all documents, some milliseconds.
pub fn root() -> Value {
    let paths: Map<_, _> = hashes()
        .iter()
        .map(|(place, hash)| {
            (
                place.clone(),
                json!({"serverRelativeURL": url(place, hash)}),
            )
        })
        .collect_object();
    json!({"paths": paths})
}

/// Where clients find a document that has that hash.
pub fn url(place: &str, hash: &str) -> String {
    format!("/openapi/v3/{place}?hash={hash}")
}

/// `/openapi/v3/PLACE` and its hash; none for a group or version that isn't served.
pub fn document(wanted: &str) -> Option<(String, &'static str)> {
    let hash = hashes().get(wanted)?;
    let text = schemas::openapi_text();
    Some((document_of(wanted, &Schemas::of(&text)), hash))
}

fn document_of(wanted: &str, schemas: &Schemas<'_>) -> String {
    let of_place = RESOURCES.iter().filter(|r| place(r) == wanted);
    let paths: Map<_, _> = of_place
        .flat_map(|r| paths(r, wanted, schemas))
        .collect_object();
    let paths = Value::Object(paths).to_string();
    let schemas: Vec<_> = schemas
        .referred(&paths)
        .iter()
        .map(|(name, schema)| format!("\"{name}\":{schema}"))
        .collect();
    format!(
        r#"{{"openapi":"3.0.0","info":{{"title":"Kubernetes","version":"v1"}},"paths":{paths},"components":{{"schemas":{{{}}}}}}}"#,
        schemas.join(",")
    )
}

/// The paths of a resource: its collection, its objects, their subresources.
fn paths(resource: &Resource, place: &str, schemas: &Schemas<'_>) -> Vec<(String, Value)> {
    let namespace = if resource.namespaced {
        "namespaces/{namespace}/"
    } else {
        ""
    };
    let collection = format!("/{place}/{namespace}{}", resource.plural);
    let object = format!("{collection}/{{name}}");
    let own = (resource.group, resource.version, resource.kind);
    let item = |verbs: &[(&str, &str, &str)], parameters: Value| {
        let mut operations = Map::new();
        for (verb, method, action) in verbs {
            if resource.verbs.contains(verb) {
                let operation = operation(own, action, schemas);
                operations.insert((*method).to_owned(), operation);
            }
        }
        if parameters != json!([]) {
            operations.insert("parameters".to_owned(), parameters);
        }
        Value::Object(operations)
    };
    let in_path = |with_name: bool| {
        let namespace = resource.namespaced.then_some((
            "namespace",
            "object name and auth scope, such as for teams and projects".to_owned(),
        ));
        let name = with_name.then(|| ("name", format!("name of the {}", resource.kind)));
        namespace.into_iter().chain(name).map(|(name, description)| json!({"name": name, "in": "path", "required": true, "description": description, "schema": {"type": "string", "uniqueItems": true}})).collect::<Value>()
    };
    let of_collection = [
        ("list", "get", "list"),
        ("create", "post", "post"),
        ("deletecollection", "delete", "deletecollection"),
    ];
    let of_object = [
        ("get", "get", "get"),
        ("update", "put", "put"),
        ("patch", "patch", "patch"),
        ("delete", "delete", "delete"),
    ];
    let mut all = vec![
        (collection, item(&of_collection, in_path(false))),
        (object.clone(), item(&of_object, in_path(true))),
    ];
    if resource.namespaced && resource.verbs.contains(&"list") {
        let everywhere = format!("/{place}/{}", resource.plural);
        all.push((everywhere, item(&of_collection[..1], json!([]))));
    }
    for sub in resource.subresources {
        let mut operations = Map::new();
        for verb in sub.verbs {
            let method = match *verb {
                "create" => "post",
                "update" => "put",
                other => other,
            };
            let action = if method == "post" && sub.kind.ends_with("Options") {
                "connect"
            } else {
                method
            };
            let operation = operation(kind_of(resource, sub), action, schemas);
            operations.insert(method.to_owned(), operation);
        }
        operations.insert("parameters".to_owned(), in_path(true));
        all.push((format!("{object}/{}", sub.name), operations.into()));
    }
    all
}

/// Group, version and kind of a subresource's objects.
fn kind_of<'a>(resource: &'a Resource, sub: &'a Subresource) -> (&'a str, &'a str, &'a str) {
    match sub.api_version.split_once('/') {
        Some((group, version)) => (group, version, sub.kind),
        None => (resource.group, resource.version, sub.kind),
    }
}

fn operation(
    (group, version, kind): (&str, &str, &str),
    action: &str,
    schemas: &Schemas<'_>,
) -> Value {
    let own = schemas::name_of(group, version, kind);
    let of = |name: String| match schemas.get(&name) {
        Some(_) => json!({"$ref": schemas::reference(&name)}),
        None => json!({"type": "string"}),
    };
    let content = |schema: Value, kinds: &[&str]| {
        let kinds = kinds.iter();
        let content: Map<_, _> = kinds
            .map(|kind| ((*kind).to_owned(), json!({"schema": schema})))
            .collect_object();
        json!({"content": content})
    };
    let json = &["application/json", "application/yaml"][..];
    let patches = &[
        crate::apply::APPLY,
        patch::JSON,
        patch::MERGE,
        patch::STRATEGIC,
    ][..];
    let (answer, body) = match action {
        "list" => (of(format!("{own}List")), None),
        "post" | "put" => (of(own.clone()), Some(content(of(own), json))),
        "patch" => {
            let patch = of(schemas::meta_name("Patch"));
            (of(own), Some(content(patch, patches)))
        }
        "delete" | "deletecollection" => {
            let options = of(schemas::meta_name("DeleteOptions"));
            (
                of(schemas::meta_name("Status")),
                Some(content(options, json)),
            )
        }
        _ => (of(own), None),
    };
    let mut answer = content(answer, json);
    answer["description"] = "OK".into();
    let parameters: Vec<_> = parameters(action)
        .iter()
        .map(|(name, kind)| json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}}))
        .collect();
    let mut operation = json!({
        "operationId": format!("{action}{kind}"),
        "responses": {"200": answer},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    });
    // Go's clients read an empty list and write none: a document has to survive that unchanged.
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if let Some(body) = body {
        operation["requestBody"] = body;
    }
    operation
}

/// The parameters of an action, and their types.
fn parameters(action: &str) -> &'static [(&'static str, &'static str)] {
    match action {
        "list" => &[
            ("allowWatchBookmarks", "boolean"),
            ("continue", "string"),
            ("fieldSelector", "string"),
            ("labelSelector", "string"),
            ("limit", "integer"),
            ("resourceVersion", "string"),
            ("resourceVersionMatch", "string"),
            ("sendInitialEvents", "boolean"),
            ("timeoutSeconds", "integer"),
            ("watch", "boolean"),
        ],
        "post" | "put" => &[
            ("dryRun", "string"),
            ("fieldManager", "string"),
            ("fieldValidation", "string"),
        ],
        "patch" => &[
            ("dryRun", "string"),
            ("fieldManager", "string"),
            ("fieldValidation", "string"),
            ("force", "boolean"),
        ],
        "delete" | "deletecollection" => &[
            ("dryRun", "string"),
            ("gracePeriodSeconds", "integer"),
            ("orphanDependents", "boolean"),
            ("propagationPolicy", "string"),
        ],
        _ => &[],
    }
}

/// `/openapi/v2`: the schemas alone, for clients that read nothing newer.
pub fn version_2() -> String {
    let text = schemas::openapi_text();
    let schemas = Schemas::of(&text);
    let roots = RESOURCES.iter().map(|resource| {
        let name = schemas::name_of_resource(resource);
        format!(
            "\"{}\" \"{}List\"",
            schemas::reference(&name),
            schemas::reference(&name)
        )
    });
    let definitions: Vec<_> = schemas
        .referred(&roots.collect::<String>())
        .iter()
        .filter_map(|(name, schema)| {
            let mut schema = serde_json::from_str(schema).ok()?;
            to_version_2(&mut schema, DEPTH_MAX);
            Some(format!("\"{name}\":{schema}"))
        })
        .collect();
    format!(
        r#"{{"swagger":"2.0","info":{{"title":"Kubernetes","version":"v1"}},"paths":{{}},"definitions":{{{}}}}}"#,
        definitions.join(",")
    )
}

/// Deepest nesting of a schema; those of Kubernetes are a fifth as deep.
const DEPTH_MAX: usize = 64;

/// A schema of version 3 as one of version 2.
fn to_version_2(schema: &mut Value, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                *reference = reference.replace("/components/schemas/", "/definitions/");
            }
            if map.contains_key("oneOf") {
                map.remove("oneOf");
                map.insert("type".to_owned(), "string".into());
            }
            // A reference with words of its own is wrapped in version 3 alone.
            if let Some(Value::Array(all)) = map.remove("allOf") {
                for one in all {
                    if let Value::Object(one) = one {
                        map.extend(one);
                    }
                }
                map.remove("default");
                if let Some(Value::String(reference)) = map.get_mut("$ref") {
                    *reference = reference.replace("/components/schemas/", "/definitions/");
                }
            }
            for value in map.values_mut() {
                to_version_2(value, depth);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| to_version_2(item, depth)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_finds_schemas_and_that_the_server_validates_fields() {
        let root = root();
        for (place, url) in root["paths"].as_object().unwrap() {
            let (text, hash) = document(place).unwrap();
            assert_eq!(url["serverRelativeURL"], super::url(place, hash));
            // The same each time, with everything that it refers to.
            assert_eq!(super::hash(&text), *hash);
            let read: Value = serde_json::from_str(&text).unwrap();
            for rest in text.split("#/components/schemas/").skip(1) {
                let name = rest.split('"').next().unwrap();
                assert!(read["components"]["schemas"][name].is_object(), "{name}");
            }
        }
        let apps: Value = serde_json::from_str(&document("apis/apps/v1").unwrap().0).unwrap();
        let patch =
            &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
        assert_eq!(
            patch["x-kubernetes-group-version-kind"]["kind"],
            "Deployment"
        );
        let bodies = &patch["requestBody"]["content"];
        // embedded 22
        assert!(bodies[patch::STRATEGIC].is_object(), "{bodies}");
        assert!(
            patch["parameters"]
                .as_array()
                .unwrap()
                .iter()
                .any(|p| p["name"] == "fieldValidation")
        );
        let container = &apps["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"];
        assert_eq!(
            container["properties"]["containers"]["x-kubernetes-patch-merge-key"],
            "name"
        );
        assert!(document("apis/none/v1").is_none());
    }

    #[test]
    fn no_list_is_empty_as_clients_of_go_would_not_write_it_again() {
        let root = root();
        for place in root["paths"].as_object().unwrap().keys() {
            let (text, _) = document(place).unwrap();
            assert!(!text.contains(r#""parameters":[]"#), "{place}");
        }
    }

    #[test]
    fn the_older_document_has_the_same_schemas() {
        let read: Value = serde_json::from_str(&version_2()).unwrap();
        let definitions = read["definitions"].as_object().unwrap();
        let pod = &definitions["io.k8s.api.core.v1.Pod"]["properties"];
        assert_eq!(
            pod["spec"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.PodSpec"
        );
        assert!(pod["spec"]["description"].is_string());
        let text = read.to_string();
        for left in ["components", "oneOf", "allOf"] {
            // embedded 22
            assert!(!text.contains(&format!("\"{left}")), "{left}");
        }
    }
}
