//! Decides whether the Node with our name is ours.
//!
//! A kubelet deletes mirror pods without a static pod of its own, and both would write the same status:
//! so a Node that a kubelet owns, or whose Lease another mirrorlet renews, is left alone. This is
//! checked before the Node is registered, and whenever it changes: another agent may have taken it
//! during an outage of the API server.

use std::time::Duration;

use super::{NodeFacts, VERSION_MARK};
use crate::api::core::Node;
use crate::api::{Timestamp, keys};
use crate::spec::annotation;

/// The relevant fields of a Node's Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseSeen {
    /// The time of the last renewal, by the clock of its writer.
    pub renewed: Timestamp,
    /// How long that holds.
    pub duration: Duration,
}

/// The last observed change of a Lease, and when. The Lease holds for its duration from then on, by our
/// clock: the clocks of other machines don't matter.
///
/// Upstream: `k8s.io/client-go/tools/leaderelection` (`observedTime`).
#[derive(Debug, Clone, Default)]
pub struct LeaseWatch {
    /// The Lease as it was seen last, and since when it is so.
    seen: Option<(LeaseSeen, Duration)>,
}

impl LeaseWatch {
    /// Processes the Lease as it is at `now`, a time since any fixed start. Returns whether it holds.
    pub fn holds(&mut self, lease: Option<LeaseSeen>, now: Duration) -> bool {
        let Some(lease) = lease else {
            self.seen = None;
            return false;
        };
        match self.seen {
            Some((seen, since)) if seen == lease => now.saturating_sub(since) <= lease.duration,
            Some(_) | None => {
                self.seen = Some((lease, now));
                true
            }
        }
    }
}

/// Whether a Node that exists may be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// It is ours, or has no owner.
    Ours,
    /// It isn't, and what to do about it.
    Foreign(String),
}

/// Decides whether the Node with our name may be taken. `is_held` says whether its Lease holds.
pub fn claim(existing: &Node, facts: &NodeFacts, is_held: bool) -> Claim {
    if let Some(version) = kubelet_of(existing) {
        return Claim::Foreign(kubelets(facts, version));
    }
    let is_ours = annotation(&existing.metadata, keys::OWNER) == Some(facts.owner.as_str());
    if is_ours || !is_held {
        return Claim::Ours;
    }
    Claim::Foreign(anothers(existing, facts))
}

/// Decides whether the Node that we registered is still ours. It is if it lost the annotation of its
/// owner: a user removed that.
pub fn still_claimed(node: &Node, facts: &NodeFacts) -> Claim {
    if let Some(version) = kubelet_of(node) {
        return Claim::Foreign(kubelets(facts, version));
    }
    match annotation(&node.metadata, keys::OWNER) {
        Some(owner) if owner != facts.owner => Claim::Foreign(anothers(node, facts)),
        Some(_) | None => Claim::Ours,
    }
}

/// The version of the kubelet that a Node belongs to, if it does.
fn kubelet_of(node: &Node) -> Option<&str> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let version = info.kubelet_version.as_str();
    (!version.is_empty() && !version.contains(VERSION_MARK)).then_some(version)
}

fn kubelets(facts: &NodeFacts, version: &str) -> String {
    let name = &facts.name;
    format!(
        "the Node {name} belongs to a kubelet ({version}); choose another name with --node-name, or delete that Node if its kubelet was removed"
    )
}

fn anothers(node: &Node, facts: &NodeFacts) -> String {
    let name = &facts.name;
    let labels = node.metadata.labels.as_ref();
    let whose = if labels.is_some_and(|labels| labels.contains_key(keys::NODE_LABEL)) {
        "another mirrorlet, with another root directory,"
    } else {
        "another agent"
    };
    format!(
        "{whose} holds the Lease of the Node {name}; choose another name with --node-name, or stop the other agent and run `mirrorlet cleanup` with its root directory, so that its containers don't run in addition to those of this agent, which takes over the Node within a minute"
    )
}
