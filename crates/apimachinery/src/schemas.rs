//! The schemas of Kubernetes' kinds, compressed in the binary and decompressed for each request.
//!
//! `schemas/README.md` says where they come from.

use std::collections::{BTreeMap, BTreeSet};

use mirrorlet_core::small::SmallCollect;

use crate::resources::Resource;

static OPENAPI: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.deflate"));
static PROTOBUF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/protobuf.deflate"));

/// The prefix of a reference to another schema.
const REFERENCE: &str = "#/components/schemas/";

/// The OpenAPI v3 schemas as text. About 550 KB; it is not kept in memory.
pub(crate) fn openapi_text() -> String {
    text(OPENAPI)
}

/// The fields of messages as text.
pub(crate) fn protobuf_text() -> String {
    text(PROTOBUF)
}

fn text(compressed: &[u8]) -> String {
    // They are compressed by the build; a test reads all of both.
    let bytes = miniz_oxide::inflate::decompress_to_vec(compressed).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Schemas by their names, each as JSON.
pub(crate) struct Schemas<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Schemas<'a> {
    /// Reads the lines of [`openapi_text`].
    pub(crate) fn of(text: &'a str) -> Self {
        Self(
            text.lines()
                .filter_map(|l| l.split_once('\t'))
                .collect_map(),
        )
    }

    /// The JSON of a schema.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied()
    }

    /// The schemas that a text refers to, directly or through other schemas.
    pub(crate) fn referred(&self, text: &str) -> BTreeMap<&'a str, &'a str> {
        let mut known: BTreeSet<&'a str> = BTreeSet::new();
        let mut found = BTreeMap::new();
        let mut waiting: Vec<&'a str> = self.references(text).collect();
        while let Some(name) = waiting.pop() {
            let Some(schema) = self.get(name).filter(|_| known.insert(name)) else {
                continue;
            };
            found.insert(name, schema);
            waiting.extend(self.references(schema));
        }
        found
    }

    fn references(&self, text: &str) -> impl Iterator<Item = &'a str> {
        text.split(REFERENCE).skip(1).filter_map(|rest| {
            let name = rest.split('"').next()?;
            self.0.get_key_value(name).map(|(name, _)| *name)
        })
    }
}

/// A reference to a schema.
pub(crate) fn reference(name: &str) -> String {
    format!("{REFERENCE}{name}")
}

/// The name of the schema for a kind of that group and version.
pub(crate) fn name_of(group: &str, version: &str, kind: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "metrics.k8s.io" => format!("io.k8s.metrics.pkg.apis.metrics.{version}.{kind}"),
        group => {
            let first = group.split('.').next().unwrap_or_default();
            format!("io.k8s.api.{first}.{version}.{kind}")
        }
    }
}

/// The name of a type of `k8s.io/apimachinery/pkg/apis/meta/v1`.
pub(crate) fn meta_name(kind: &str) -> String {
    format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")
}

/// The name of the schema of a resource's objects.
pub(crate) fn name_of_resource(resource: &Resource) -> String {
    name_of(resource.group, resource.version, resource.kind)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::resources::RESOURCES;

    #[test]
    fn every_resource_has_its_schema_and_every_schema_all_that_it_refers_to() {
        let text = openapi_text();
        let schemas = Schemas::of(&text);
        assert_eq!(text.lines().count(), schemas.0.len());
        for resource in RESOURCES {
            let name = name_of_resource(resource);
            let schema: Value = serde_json::from_str(schemas.get(&name).unwrap()).unwrap();
            let kind = &schema["x-kubernetes-group-version-kind"][0];
            // embedded 22
            assert_eq!(
                (&kind["group"], &kind["version"], &kind["kind"]),
                (
                    &resource.group.into(),
                    &resource.version.into(),
                    &resource.kind.into()
                )
            );
        }
        for (name, schema) in &schemas.0 {
            serde_json::from_str::<Value>(schema).unwrap();
            for rest in schema.split(REFERENCE).skip(1) {
                let other = rest.split('"').next().unwrap();
                assert!(schemas.get(other).is_some(), "{name} refers to {other}");
            }
        }
    }
}
