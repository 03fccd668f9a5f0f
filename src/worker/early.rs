//! New static pods that wait after the agent's start, until admission can count the running pods.
//!
//! The Node and the API pods are known later than manifests, and containers don't show the requests of
//! their pods. A critical pod that started earlier would run beside the pods that it preempts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{PodWorkers, Wanted};
use mirrorlet_core::admit::{AdmitNode, pod_requests};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::desired::Delivered;
use mirrorlet_core::ending::is_api_pod;

/// How long pods wait at most. Manifests don't wait for an API server that is away.
const EARLY_MAX: Duration = Duration::from_secs(5);

/// The pods that wait.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The time from which on no pod waits.
    until: Option<Instant>,
    /// Whether a pod waits.
    any_waits: bool,
}

impl Early {
    /// Begins the time: the containers were listed.
    pub(super) fn begin(&mut self) {
        self.until = Some(Instant::now() + EARLY_MAX);
    }

    /// No pod waits, for now.
    pub(super) fn reset(&mut self) {
        self.any_waits = false;
    }

    /// The maximum remaining wait; none if no pod waits.
    pub(super) fn left(&self) -> Option<Duration> {
        let until = self.until.filter(|_| self.any_waits)?;
        Some(until.saturating_duration_since(Instant::now()))
    }
}

impl PodWorkers {
    /// Removes the pods that have to wait from the new ones: static pods with resource requests, while
    /// API pods run that can't be counted. Another version of an existing pod doesn't wait.
    pub(super) fn hold_early(
        &mut self,
        pods: &mut Vec<&Arc<Pod>>,
        wanted: &Wanted,
        node: &AdmitNode,
        held: &BTreeMap<PodUid, FullName>,
    ) {
        let is_late = self.early.until.is_none_or(|until| Instant::now() >= until);
        let is_uncounted = |uid: &PodUid| {
            let is_unknown = !wanted.delivered.api && !wanted.has(uid);
            let may_be_api = !Delivered::MANIFESTS.may_stop(uid);
            may_be_api && (is_unknown || node.allocatable.is_none()) && self.runs(uid)
        };
        if is_late || !held.keys().any(is_uncounted) {
            return;
        }
        let is_here = |pod: &Pod| held.values().any(|name| *name == FullName::of(pod));
        let all = pods.len();
        pods.retain(|pod| is_api_pod(pod) || is_here(pod) || pod_requests(pod).is_empty());
        self.early.any_waits = pods.len() < all;
    }
}
