//! Decides which fields of our Node are written, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::{Map, Value, json};

use super::NodeFacts;
use super::describe::{annotations, labels};
use crate::api::Timestamp;
use crate::api::core::{Node, NodeCondition, NodeStatus};
use crate::api::quantity::Quantity;
use crate::small::SmallCollect;

/// How often a status is written without changes: upstream's `nodeStatusReportFrequency`.
pub const REPORT_PERIOD: Duration = Duration::from_mins(5);

/// The patch that sets the status of the Node with that UID to `desired`; none while only heartbeats
/// differ and the last write is younger than [`REPORT_PERIOD`].
///
/// A strategic merge patch. It contains the UID, so that a Node that was replaced meanwhile is left
/// alone. Addresses are replaced as a whole: merged by type, two with the same type would be lost.
pub fn decide_write(
    uid: &str,
    base: &NodeStatus,
    desired: &NodeStatus,
    written: Option<Timestamp>,
    now: Timestamp,
) -> Option<Value> {
    let mut status = Map::new();
    if base.addresses != desired.addresses {
        let addresses = desired
            .addresses
            .iter()
            .flatten()
            .map(|address| json!(address));
        let replace = json!({ "$patch": "replace" });
        let list: Vec<Value> = addresses.chain([replace]).collect();
        status.insert("addresses".to_owned(), list.into());
    }
    for (field, base, desired) in [
        ("capacity", &base.capacity, &desired.capacity),
        ("allocatable", &base.allocatable, &desired.allocatable),
    ] {
        let changed = changed_amounts(base.as_ref(), desired.as_ref());
        if !changed.is_empty() {
            status.insert(field.to_owned(), changed.into());
        }
    }
    if base.node_info != desired.node_info {
        status.insert("nodeInfo".to_owned(), json!(desired.node_info));
    }
    // If there is none of ours, the API server shows one with port 0.
    if desired.daemon_endpoints.is_some() && base.daemon_endpoints != desired.daemon_endpoints {
        let endpoints = json!(desired.daemon_endpoints);
        status.insert("daemonEndpoints".to_owned(), endpoints);
    }
    if base.images != desired.images {
        status.insert("images".to_owned(), json!(desired.images));
    }
    let old = base.conditions.as_deref().unwrap_or_default();
    let new = desired.conditions.as_deref().unwrap_or_default();
    let is_fresh = written.is_some_and(|at| now.duration_since(at).unsigned_abs() < REPORT_PERIOD);
    if status.is_empty() && !differ(old, new) && is_fresh {
        return None;
    }
    // No reason to write: an API server that does not know the field would never have it.
    if base.features != desired.features {
        status.insert("features".to_owned(), json!(desired.features));
    }
    if base.declared_features != desired.declared_features {
        let features = json!(desired.declared_features);
        status.insert("declaredFeatures".to_owned(), features);
    }
    let order: Vec<Value> = new.iter().map(|c| json!({ "type": c.type_ })).collect();
    status.insert("conditions".to_owned(), json!(new));
    status.insert("$setElementOrder/conditions".to_owned(), order.into());
    Some(json!({ "metadata": { "uid": uid }, "status": status }))
}

/// Those of the desired amounts that the base doesn't have, whatever their spelling.
fn changed_amounts(
    base: Option<&BTreeMap<String, ApiQuantity>>,
    desired: Option<&BTreeMap<String, ApiQuantity>>,
) -> Map<String, Value> {
    let value = |quantity: &ApiQuantity| Quantity::try_from(quantity).ok();
    desired
        .into_iter()
        .flatten()
        .filter(|(resource, amount)| {
            let present = base.and_then(|base| base.get(*resource));
            present.and_then(value) != value(amount)
        })
        .map(|(resource, amount)| (resource.clone(), json!(amount.0)))
        .collect_object()
}

/// Whether conditions differ in more than their heartbeat.
fn differ(old: &[NodeCondition], new: &[NodeCondition]) -> bool {
    new.iter().any(|new| {
        !old.iter().any(|old| {
            old.type_ == new.type_
                && old.status == new.status
                && old.reason == new.reason
                && old.message == new.message
        })
    })
}

/// The patch that gives an existing Node our labels and annotations; none if it has them. Others are
/// left alone, and so are taints: they may have been changed on purpose, and a node's own identity may
/// not set them.
///
/// It is for the version that was read: of two agents, one of them with older labels, the later write
/// fails.
///
/// Upstream: `updateDefaultLabels`, `reconcileCMADAnnotationWithExistingNode`.
pub fn decide_metadata(existing: &Node, facts: &NodeFacts) -> Option<Value> {
    let missing = |have: Option<&BTreeMap<String, String>>, want: BTreeMap<String, String>| {
        let missing = want
            .into_iter()
            .filter(|(key, value)| have.and_then(|have| have.get(key)) != Some(value));
        missing.collect_map()
    };
    let labels = missing(existing.metadata.labels.as_ref(), labels(facts));
    let annotations = missing(existing.metadata.annotations.as_ref(), annotations(facts));
    if labels.is_empty() && annotations.is_empty() {
        return None;
    }
    Some(json!({ "metadata": {
        "uid": existing.metadata.uid,
        "resourceVersion": existing.metadata.resource_version,
        "labels": labels,
        "annotations": annotations,
    } }))
}

/// How serious an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEventKind {
    /// It is informational.
    Normal,
    /// It warns.
    Warning,
}

/// An event about our Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEvent {
    /// How serious it is.
    pub kind: NodeEventKind,
    /// Its reason, for example `NodeReady`.
    pub reason: &'static str,
    /// Its words.
    pub message: String,
}

impl NodeEvent {
    /// An event without consequence.
    pub fn normal(reason: &'static str, message: String) -> Self {
        Self {
            kind: NodeEventKind::Normal,
            reason,
            message,
        }
    }
}

/// Events of the change from one status to the next, in upstream's words.
pub fn transitions(name: &str, before: &NodeStatus, after: &NodeStatus) -> Vec<NodeEvent> {
    let mut events = Vec::new();
    let boot_id = |status: &NodeStatus| {
        let id = status.node_info.as_ref().map(|info| info.boot_id.clone());
        id.unwrap_or_default()
    };
    let (old_boot, new_boot) = (boot_id(before), boot_id(after));
    if !old_boot.is_empty() && old_boot != new_boot {
        events.push(NodeEvent {
            kind: NodeEventKind::Warning,
            reason: "Rebooted",
            message: format!("Node {name} has been rebooted, boot id: {new_boot}"),
        });
    }
    let old = before.conditions.as_deref().unwrap_or_default();
    for new in after.conditions.iter().flatten() {
        let old = old.iter().find(|old| old.type_ == new.type_);
        let is_flip = old.map(|old| &old.status) != Some(&new.status);
        let reason = match (new.type_.as_str(), new.status.as_str()) {
            // Readiness at the first registration is not a change.
            ("Ready", _) if old.is_none() => continue,
            ("Ready", "True") => "NodeReady",
            ("Ready", _) => "NodeNotReady",
            ("MemoryPressure", "True") => "NodeHasInsufficientMemory",
            ("MemoryPressure", _) => "NodeHasSufficientMemory",
            ("DiskPressure", "True") => "NodeHasDiskPressure",
            ("DiskPressure", _) => "NodeHasNoDiskPressure",
            ("PIDPressure", "True") => "NodeHasInsufficientPID",
            ("PIDPressure", _) => "NodeHasSufficientPID",
            (_, _) => continue,
        };
        if is_flip {
            let message = format!("Node {name} status is now: {reason}");
            events.push(NodeEvent::normal(reason, message));
        }
    }
    events
}
