//! Changes of the Node: labels, annotations and `kubectl cordon`. The agent sets everything else.

use std::collections::BTreeMap;

use axum::response::Response;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::options::WriteOptions;
use mirrorlet_apimachinery::resources::NODES;
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_apimachinery::table::Include;
use mirrorlet_core::node::NodeEdits;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;
use serde_json::Value;

use super::stored::unstored;
use super::{Api, Call, answer, body};

impl Api {
    /// Answers `update` and `patch` of the Node, in its turn.
    pub(super) async fn change_node(&self, call: &Call, bytes: &[u8]) -> Result<Response, Status> {
        let options = WriteOptions::parse(&call.query)?;
        let form = answer::form(&call.headers, Include::Metadata)?;
        let key = call.key();
        let before = self.find(&key)?;
        let mut object = body::changed(call, &before, bytes)?;
        meta::place(&mut object, key.resource, &key.namespace)?;
        meta::succeed(&mut object, &before, key.resource)?;
        let known = self.store.view().node_edits();
        let edits = edits(&before, &object, &known)?;
        if edits != *known && !options.dry_run {
            let view = std::sync::Arc::clone(self.store.view());
            let kept = disk::blocking(move || view.edit_node(edits)).await;
            kept.map_err(|error| unstored(&error))?;
            self.loaded().await?;
            object = self.find(&key)?;
        }
        Ok(call.object(200, key.resource, object, form))
    }
}

/// The changes of a Node that make `before` into `after`, where `known` are those made so far.
///
/// # Errors
/// Something else than labels, annotations and `spec.unschedulable` differs.
fn edits(before: &Value, after: &Value, known: &NodeEdits) -> Result<NodeEdits, Status> {
    let mut causes = Vec::new();
    let mut forbidden = |field: String, why: &str| {
        causes.push(Cause::forbidden(field, why));
    };
    let mut added = |map: &str, known: &BTreeMap<String, String>| {
        let texts = |object: &Value| -> BTreeMap<String, String> {
            let fields = object["metadata"][map].as_object().into_iter().flatten();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            fields
                .map(|(key, value)| (key.clone(), text(value)))
                .collect_map()
        };
        let (own, mut wanted) = (texts(before), texts(after));
        for (key, value) in own.iter().filter(|(key, _)| !known.contains_key(*key)) {
            if wanted.remove(key).as_ref() != Some(value) {
                forbidden(format!("metadata.{map}[{key}]"), "the agent sets it itself");
            }
        }
        wanted
    };
    let edits = NodeEdits {
        labels: added("labels", &known.labels),
        annotations: added("annotations", &known.annotations),
        unschedulable: after["spec"]["unschedulable"] == true,
    };
    if after["spec"]["taints"] != before["spec"]["taints"] {
        let why = "pods are not scheduled here, so taints have no effect; use kubectl cordon to keep new pods from starting";
        forbidden("spec.taints".to_owned(), why);
    }
    let rest = |object: &Value| {
        let mut spec = object["spec"].clone();
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("unschedulable");
            spec.remove("taints");
        }
        if spec == Value::Object(serde_json::Map::new()) {
            Value::Null
        } else {
            spec
        }
    };
    if rest(before) != rest(after) {
        forbidden("spec".to_owned(), "only unschedulable can be changed");
    }
    if causes.is_empty() {
        Ok(edits)
    } else {
        Err(Status::invalid(&NODES, meta::name(before), &causes))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_and_cordon_are_a_persons_and_all_else_is_the_agents() {
        let node = json!({"metadata": {"name": "box", "labels": {"kubernetes.io/os": "linux", "disk": "fast"}}, "spec": {"podCIDR": "10.0.0.0/8"}});
        let known = NodeEdits {
            labels: [("disk".to_owned(), "fast".to_owned())].into(),
            ..NodeEdits::default()
        };
        let change = |pointer: &str, value: Value| {
            let mut after = node.clone();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            after.pointer_mut(parent).unwrap()[key] = value;
            edits(&node, &after, &known)
        };
        assert_eq!(edits(&node, &node, &known).unwrap(), known);
        // embedded 30
        assert!(
            change("/spec/unschedulable", true.into())
                .unwrap()
                .unschedulable
        );
        let labelled = change("/metadata/labels/disk", "slow".into()).unwrap();
        assert_eq!(labelled.labels["disk"], "slow");
        assert_eq!(labelled.labels.len(), 1);
        let annotated = change("/metadata/annotations", json!({"a": "b"})).unwrap();
        assert_eq!(annotated.annotations["a"], "b");
        for (pointer, value, field) in [
            (
                "/spec/taints",
                json!([{"key": "a", "effect": "NoSchedule"}]),
                "spec.taints",
            ),
            ("/spec/podCIDR", "10.1.0.0/16".into(), "spec"),
            (
                "/metadata/labels",
                json!({"disk": "fast"}),
                "metadata.labels[kubernetes.io/os]",
            ),
        ] {
            let refused = change(pointer, value).unwrap_err();
            assert_eq!(refused.code, 422);
            assert_eq!(refused.details.unwrap()["causes"][0]["field"], field);
        }
    }
}
