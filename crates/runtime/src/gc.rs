//! Garbage collection of containers, through [`ContainerGc`].
//!
//! [`mirrorlet_core::gc`] decides the removals; a runtime only executes them. It asks
//! [`PodStateProvider`] for the known pods, and again just before it removes a pod's last remains: the
//! pod's manifest may be back by then.
//!
//! Upstream: `pkg/kubelet/container/container_gc.go`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Runtime, RuntimeError};
use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_core::gc::{Cause, ContainerGcPolicy, PodLife};

/// Reports which pods still exist.
///
/// Upstream: `podStateProvider` and `SourcesReadyProvider` of
/// `pkg/kubelet/kuberuntime/kuberuntime_gc.go` and `pkg/kubelet/container/container_gc.go`.
pub trait PodStateProvider: Send + Sync + 'static {
    /// Returns the current state of a pod.
    fn life(&self, uid: &PodUid) -> PodLife;

    /// Whether every source has delivered, so that a pod in no source is really gone.
    fn all_sources_ready(&self) -> bool;
}

/// The result of one collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GcOutcome {
    /// The number of removed containers and sandboxes, by the reason for their removal.
    pub removed: BTreeMap<Cause, usize>,
    /// The containers that could not be removed, with the errors. The next collection retries them.
    pub failed: Vec<(ContainerId, RuntimeError)>,
}

impl GcOutcome {
    /// One string with all failures, or none. An unavailable runtime is not a failure of a collection.
    pub fn error(&self) -> Option<String> {
        let texts: Vec<String> = self
            .failed
            .iter()
            .filter(|(_, error)| !error.is_unavailable())
            .map(|(id, error)| format!("failed to remove container {}: {error}", id.short()))
            .collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

/// Collects dead containers by a policy.
pub struct ContainerGc {
    runtime: Arc<dyn Runtime>,
    policy: ContainerGcPolicy,
    pods: Arc<dyn PodStateProvider>,
}

impl ContainerGc {
    /// Collects on that runtime.
    pub fn new(
        runtime: Arc<dyn Runtime>,
        policy: ContainerGcPolicy,
        pods: Arc<dyn PodStateProvider>,
    ) -> Self {
        Self {
            runtime,
            policy,
            pods,
        }
    }

    /// Removes the containers that the policy does not keep.
    pub async fn garbage_collect(&self) -> GcOutcome {
        self.collect(false).await
    }

    /// Also removes the remains of pods that have ended, because disk space is needed.
    pub async fn delete_all_unused_containers(&self) -> GcOutcome {
        self.collect(true).await
    }

    async fn collect(&self, evict_non_deleted: bool) -> GcOutcome {
        self.runtime
            .garbage_collect(self.policy, &*self.pods, evict_non_deleted)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_away_is_no_failure_of_a_collection() {
        let id = ContainerId::docker("0123456789abcdef");
        let away = RuntimeError::Unavailable("down".to_owned());
        let mut outcome = GcOutcome {
            failed: vec![(id.clone(), away)],
            ..GcOutcome::default()
        };
        assert_eq!(outcome.error(), None);
        let refused = RuntimeError::Conflict("busy".to_owned());
        outcome.failed.push((id, refused));
        assert_eq!(
            outcome.error().as_deref(),
            Some("failed to remove container 0123456789ab: busy")
        );
    }
}
