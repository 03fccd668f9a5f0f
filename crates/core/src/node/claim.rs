//! Decides whether the Node of our name is ours.
//!
//! A kubelet deletes mirror pods that it has no static pod for, and both would write one status:
//! so a Node that a kubelet owns, or that another mirrorlet keeps alive, is left alone.

use std::time::Duration;

use super::{NodeFacts, VERSION_MARK};
use crate::api::core::Node;
use crate::api::{Timestamp, keys};
use crate::spec::annotation;

/// The relevant fields of a Node's Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSeen {
    /// When it was renewed last.
    pub renewed: Timestamp,
    /// How long that holds.
    pub duration: Duration,
}

/// Whether a Node that exists may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is ours, or nobody's.
    Ours,
    /// It isn't, and what to do about it.
    Foreign(String),
}

/// Decides whether the Node that has our name is ours.
pub fn claim(
    existing: &Node,
    facts: &NodeFacts,
    lease: Option<LeaseSeen>,
    now: Timestamp,
) -> Claim {
    let metadata = &existing.metadata;
    let name = facts.name.as_str();
    let version = existing
        .status
        .as_ref()
        .and_then(|status| status.node_info.as_ref())
        .map_or("", |info| info.kubelet_version.as_str());
    let label = metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(keys::NODE_LABEL));
    if !version.is_empty() && !version.contains(VERSION_MARK) {
        return Claim::Foreign(format!(
            "the Node {name} belongs to a kubelet ({version}); choose another name with --node-name, or delete that Node if its kubelet was removed"
        ));
    }
    if annotation(metadata, keys::OWNER) == Some(facts.owner.as_str()) {
        return Claim::Ours;
    }
    let is_alive = lease.is_some_and(|lease| {
        let held = jiff_span(lease.duration);
        lease.renewed.saturating_add(held).unwrap_or(lease.renewed) > now
    });
    if !is_alive {
        return Claim::Ours;
    }
    let whose = if label {
        "another mirrorlet, with another root directory,"
    } else {
        "somebody"
    };
    Claim::Foreign(format!(
        "{whose} renews the Lease of the Node {name}; choose another name with --node-name, or stop the other agent, and run `mirrorlet cleanup` with its root directory: its containers would run beside those that this one starts, which takes over within a minute"
    ))
}

fn jiff_span(duration: Duration) -> k8s_openapi::jiff::SignedDuration {
    k8s_openapi::jiff::SignedDuration::try_from(duration).unwrap_or_default()
}
