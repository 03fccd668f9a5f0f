//! Mirror pods: decides which of them must be created, replaced or deleted now.
//!
//! A *mirror pod* represents a static pod in the API server: the pod that *holds* its full name. While
//! an edited pod's old version is being stopped, the mirror is the old one's. Only mirrors bound to our
//! Node are considered, and a pod without the mirror annotation is never touched, whatever its name.
//!
//! Upstream: `pkg/kubelet/kubelet.go` (`tryReconcileMirrorPods`) and the orphans of
//! `pkg/kubelet/kubelet_pods.go` (`HandlePodCleanups`).

mod copy;
mod problem;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use copy::{NodeRef, mirror_copy};
pub use problem::{
    MirrorProblem, MirrorState, ProblemKind, Refusal, classify, problem_lines, retry_after,
};
pub use standing::{AtWork, Standing, standings};

use crate::api::{FullName, MirrorPodUid, NodeName, Pod, PodUid, core, keys, meta};
use crate::manager::{PodTable, is_mirror_pod, is_mirror_pod_of};
use crate::small::SmallCollect;
use crate::spec::{self, annotation};

/// The inputs of the decision about mirrors.
#[derive(Debug, Clone, Copy)]
pub struct MirrorInput<'a> {
    /// Name of our Node.
    pub node_name: &'a NodeName,
    /// Our Node as the API server has it.
    pub node: Option<&'a core::Node>,
    /// The pod behind each full name of a static pod; see [`standings`].
    pub standings: &'a BTreeMap<FullName, Standing>,
    /// The wanted pods and the mirrors.
    pub pods: &'a PodTable,
    /// The API server's pods of our Node, by the UID that it assigned.
    pub api: &'a BTreeMap<PodUid, Arc<Pod>>,
    /// Whether a mirror without a static pod may be deleted: every source has delivered, and the
    /// running pods are known.
    pub orphans_may_go: bool,
}

crate::words! {
    /// Why a mirror is deleted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum DeleteReason {
        /// No static pod with its full name is wanted or still exists.
        Orphaned = "its static pod no longer exists",
        /// It is being deleted, and the agent must complete the deletion.
        BeingDeleted = "it is being deleted",
        /// It is the mirror of another version of the pod.
        OtherVersion = "it is the mirror of another version of the pod",
        /// It belongs to a deleted Node with our name.
        OtherNode = "it belongs to a deleted Node",
    }
    /// The reason in a few words.
    pub fn as_str;
}

/// The reason why a mirror that should exist has to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Our Node is not registered, or is being deleted.
    NodeMissing,
    /// An ordinary pod bound to our Node has the name.
    NameTaken {
        /// UID of that pod.
        by: PodUid,
    },
}

/// The action for one full name.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Nothing: its mirror exists.
    Synced {
        /// UID of the mirror.
        uid: MirrorPodUid,
    },
    /// Nothing for now: an existing mirror stays until its static pod is known.
    Wait,
    /// Nothing can be done before this obstacle is removed.
    Blocked(Obstacle),
    /// Create the pod's mirror.
    Create {
        /// The static pod.
        pod: Arc<Pod>,
    },
    /// Delete this mirror, and create the pod's at once.
    Replace {
        /// UID of the mirror to delete.
        uid: MirrorPodUid,
        /// Why.
        why: DeleteReason,
        /// The static pod.
        pod: Arc<Pod>,
    },
    /// Delete this mirror.
    Delete {
        /// UID of the mirror to delete.
        uid: MirrorPodUid,
        /// Why.
        why: DeleteReason,
    },
}

impl Verdict {
    /// Whether there is an action.
    pub fn acts(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Replace { .. } | Self::Delete { .. } => true,
            Self::Synced { .. } | Self::Wait | Self::Blocked(_) => false,
        }
    }

    /// The static pod whose mirror must be created.
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        match self {
            Self::Create { pod } | Self::Replace { pod, .. } => Some(pod),
            Self::Synced { .. } | Self::Wait | Self::Blocked(_) | Self::Delete { .. } => None,
        }
    }
}

/// Whether the API server's pod is a mirror bound to our Node.
pub fn is_ours(pod: &Pod, node_name: &NodeName) -> bool {
    is_mirror_pod(pod) && spec::spec(pod).node_name.as_deref() == Some(node_name.as_str())
}

/// Returns the action to take now for every full name of a static pod or of a mirror of ours.
pub fn verdicts(input: &MirrorInput<'_>) -> BTreeMap<FullName, Verdict> {
    let orphans = input.pods.get_orphaned_mirror_pod_names();
    let names: BTreeSet<&FullName> = input.standings.keys().chain(&orphans).collect_set();
    let verdicts = names.into_iter();
    verdicts
        .filter_map(|name| Some((name.clone(), verdict(input, name)?)))
        .collect_map()
}

/// Returns the action for one full name; none if a mirror must be left alone for now.
fn verdict(input: &MirrorInput<'_>, name: &FullName) -> Option<Verdict> {
    let standing = input.standings.get(name);
    let pod = standing.and_then(Standing::pod);
    let mirror = input.pods.get_mirror_pod_by_full_name(name);
    let Some(mirror) = mirror.filter(|mirror| is_ours(mirror, input.node_name)) else {
        let Some(pod) = pod else {
            return standing.map(|_| Verdict::Wait);
        };
        return Some(match (foreign(input, name), usable(input.node)) {
            (Some(by), _) => Verdict::Blocked(Obstacle::NameTaken { by: by.clone() }),
            (None, None) => Verdict::Blocked(Obstacle::NodeMissing),
            (None, Some(_)) => Verdict::Create {
                pod: Arc::clone(pod),
            },
        });
    };
    let fits = pod.is_some_and(|pod| is_mirror_pod_of(&mirror, pod));
    let uid: MirrorPodUid = PodUid::of(&mirror).into();
    let Some(standing) = standing else {
        if waits_for_finalizers(&mirror) {
            return None;
        }
        let why = if mirror.metadata.deletion_timestamp.is_some() {
            DeleteReason::BeingDeleted
        } else {
            DeleteReason::Orphaned
        };
        return input.orphans_may_go.then_some(Verdict::Delete { uid, why });
    };
    let why = if mirror.metadata.deletion_timestamp.is_some() {
        DeleteReason::BeingDeleted
    } else if pod.is_some() && !fits {
        if matches!(standing, Standing::Successor(_)) {
            return Some(Verdict::Wait);
        }
        DeleteReason::OtherVersion
    } else if pod.is_some() && usable(input.node).is_some_and(|node| is_others(&mirror, node)) {
        DeleteReason::OtherNode
    } else if pod.is_some() {
        return Some(Verdict::Synced { uid });
    } else {
        return Some(Verdict::Wait);
    };
    Some(match (pod, usable(input.node)) {
        (Some(pod), Some(_)) => Verdict::Replace {
            uid,
            why,
            pod: Arc::clone(pod),
        },
        // Without a Node none can be made; one that is on its way out goes all the same.
        (_, _) if why == DeleteReason::BeingDeleted => Verdict::Delete { uid, why },
        (_, _) => Verdict::Blocked(Obstacle::NodeMissing),
    })
}

/// Whether only finalizers keep a mirror: it was deleted with grace period 0, and disappears with the
/// last of them. Deleting it again changes nothing.
fn waits_for_finalizers(mirror: &Pod) -> bool {
    let of = &mirror.metadata;
    let has_finalizers = of.finalizers.as_ref().is_some_and(|list| !list.is_empty());
    of.deletion_timestamp.is_some() && of.deletion_grace_period_seconds == Some(0) && has_finalizers
}

/// The ordinary pod of the API server that has a full name.
fn foreign<'a>(input: &MirrorInput<'a>, name: &FullName) -> Option<&'a PodUid> {
    let mut pods = input.api.iter();
    let found = pods.find(|(_, pod)| !is_mirror_pod(pod) && FullName::of(pod) == *name);
    found.map(|(uid, _)| uid)
}

/// The Node, if mirrors can belong to it: the API server knows it, and isn't deleting it.
fn usable(node: Option<&core::Node>) -> Option<&core::Node> {
    node.filter(|node| {
        node.metadata.deletion_timestamp.is_none()
            && node
                .metadata
                .uid
                .as_ref()
                .is_some_and(|uid| !uid.is_empty())
    })
}

/// Whether a mirror belongs to a Node with another UID. One without an owner is left alone: a webhook
/// may have removed the owner, and would do so again.
fn is_others(mirror: &Pod, node: &core::Node) -> bool {
    let owners = mirror.metadata.owner_references.iter().flatten();
    let mut nodes = owners.filter(|owner: &&meta::OwnerReference| owner.kind == "Node");
    nodes.any(|owner| Some(&owner.uid) != node.metadata.uid.as_ref())
}

/// Hash of the static pod whose mirror this is, or of a static pod itself: it distinguishes versions.
pub fn hash(pod: &Pod) -> Option<&str> {
    let of = |key| annotation(&pod.metadata, key);
    of(keys::CONFIG_MIRROR).or_else(|| of(keys::CONFIG_HASH))
}
