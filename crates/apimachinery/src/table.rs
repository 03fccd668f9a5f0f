//! Tables: the columns that kubectl prints, computed by the server.
//!
//! Upstream: `pkg/printers/internalversion/printers.go`.

mod cells;
mod columns;
mod pods;

use std::sync::Arc;

use mirrorlet_core::api::Timestamp;
use serde_json::{Value, json};

use columns::{cells, columns};

use crate::meta;
use crate::resources::{Resource, SCALES};

/// Which part of each object a row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Include {
    /// Its metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
    /// Nothing.
    None,
}

/// Returns the table of some objects. `revision` is that of the list; in a watch, only the first
/// event's table names its columns.
pub fn table(
    resource: &Resource,
    objects: &[Arc<Value>],
    revision: Option<u64>,
    include: Include,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let rows: Vec<_> = objects
        .iter()
        .map(|object| row(resource, object, include, now))
        .collect();
    let metadata = match revision {
        Some(revision) => json!({"resourceVersion": revision.to_string()}),
        None => json!({}),
    };
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": if with_columns { definitions(resource) } else { Value::Null },
        "rows": rows,
    })
}

/// The column definitions of a resource.
pub fn definitions(resource: &Resource) -> Value {
    // A scale has no names to complete.
    let is_scale = resource == &SCALES;
    let definitions: Vec<_> = columns(resource)
        .iter()
        .map(|column| column.0)
        .map(|column| {
            let name = column.trim_start_matches(['~', '#', '?']);
            let kind = match column.as_bytes().first() {
                Some(b'#') => "integer",
                Some(b'?') => "boolean",
                Some(_) | None => "string",
            };
            json!({
                "name": name,
                "type": kind,
                "format": if name == "Name" && !is_scale { "name" } else { "" },
                "description": "",
                "priority": i32::from(column.starts_with('~')),
            })
        })
        .collect();
    definitions.into()
}

/// The row of an object.
pub fn row(resource: &Resource, object: &Value, include: Include, now: Timestamp) -> Value {
    let shown = match include {
        Include::Metadata => meta::partial(object),
        Include::Object => object.clone(),
        Include::None => Value::Null,
    };
    json!({"cells": cells(resource, object, now), "object": shown})
}

/// A bookmark of a watch that prints a table.
pub fn bookmark(object: &Value) -> Value {
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": object["metadata"]["resourceVersion"]},
        "columnDefinitions": null,
        "rows": [{"cells": [], "object": object}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::{ENDPOINT_SLICES, ENDPOINTS, RESOURCES};

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        for resource in RESOURCES.iter().chain([&&SCALES]) {
            let object =
                json!({"metadata": {"name": "x", "creationTimestamp": "2026-01-02T03:03:05Z"}});
            let table = table(
                resource,
                &[Arc::new(object)],
                Some(7),
                Include::Metadata,
                true,
                now,
            );
            let columns = table["columnDefinitions"].as_array().unwrap();
            let cells = table["rows"][0]["cells"].as_array().unwrap();
            // embedded 3
            assert_eq!(columns.len(), cells.len(), "{}", resource.plural);
            let index = |name: &str| columns.iter().position(|c| c["name"] == name);
            assert_eq!(cells[index("Name").unwrap()], "x", "{}", resource.plural);
            if let Some(age) = index("Age") {
                assert_eq!(cells[age], "60s", "{}", resource.plural);
            }
        }
    }

    #[test]
    fn of_the_pods_of_a_service_three_are_printed() {
        let now = Timestamp::UNIX_EPOCH;
        let ips = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        let printed = |resource: &Resource, object: &Value| {
            let all = cells(resource, object, now).into_iter().skip(1);
            let without_age = all.filter(|cell| cell != "<unknown>");
            let texts = without_age.map(|cell| cell.as_str().unwrap().to_owned());
            texts.collect::<Vec<_>>()
        };
        let of = |addresses: Value, ports: Value| {
            let endpoints = json!({"subsets": [{"addresses": addresses, "ports": ports}]});
            printed(&ENDPOINTS, &endpoints)
        };
        let all = json!(ips.map(|ip| json!({"ip": ip})));
        // embedded 61
        assert_eq!(
            of(all.clone(), json!([{"port": 80}])),
            ["10.0.0.2:80,10.0.0.3:80,10.0.0.4:80 + 1 more..."]
        );
        assert_eq!(
            of(all, json!([])),
            ["10.0.0.2,10.0.0.3,10.0.0.4 + 1 more..."]
        );
        assert_eq!(
            of(json!([{"ip": "fd00::2"}]), json!([{"port": 80}])),
            ["[fd00::2]:80"]
        );
        assert_eq!(of(json!([]), json!([{"port": 80}])), [""]);
        assert_eq!(printed(&ENDPOINTS, &json!({})), ["<none>"]);
        let endpoints = ips.map(|ip| json!({"addresses": [ip]}));
        let ports = json!([{"port": 80}, {"name": "all"}]);
        let slice = json!({"addressType": "IPv4", "ports": ports, "endpoints": endpoints});
        assert_eq!(
            printed(&ENDPOINT_SLICES, &slice),
            ["IPv4", "80,all", "10.0.0.2,10.0.0.3,10.0.0.4 + 1 more..."]
        );
        assert_eq!(
            printed(&ENDPOINT_SLICES, &json!({"addressType": "IPv4"})),
            ["IPv4", "<unset>", "<unset>"]
        );
    }
}
