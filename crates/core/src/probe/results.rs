//! The probe results of a pod, by container instance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::ContainerId;
use crate::api::core::Container;
use crate::observed::{ContainerState, ContainerStatus};

use super::{ProbeKind, ProbeResult};

/// The newest published result of each probe of a pod. Results are removed with their instance.
///
/// Upstream: `pkg/kubelet/prober/results/results_manager.go`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProbeResults(BTreeMap<ContainerId, BTreeMap<ProbeKind, ProbeResult>>);

impl ProbeResults {
    /// The result of an instance's probe; none before its worker has seen the instance.
    pub fn get(&self, id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        self.0.get(id)?.get(&kind).copied()
    }

    /// Stores a result, and returns whether it changed.
    pub fn set(&mut self, id: &ContainerId, kind: ProbeKind, result: ProbeResult) -> bool {
        let of_instance = self.0.entry(id.clone()).or_default();
        of_instance.insert(kind, result) != Some(result)
    }

    /// Removes a result, and returns whether there was one.
    pub fn remove(&mut self, id: &ContainerId, kind: ProbeKind) -> bool {
        let Some(of_instance) = self.0.get_mut(id) else {
            return false;
        };
        let removed = of_instance.remove(&kind).is_some();
        if of_instance.is_empty() {
            self.0.remove(id);
        }
        removed
    }

    /// The part that the next agent continues from: which instances had started, and which were ready.
    /// The rest is the initial state.
    ///
    /// Upstream: `ChangeContainerStatusOnKubeletRestart`, since 1.35.
    #[must_use]
    pub fn kept(&self) -> Self {
        let mut kept = Self::default();
        for (id, of_instance) in &self.0 {
            for kind in [ProbeKind::Readiness, ProbeKind::Startup] {
                if of_instance.get(&kind) == Some(&ProbeResult::Success) {
                    kept.set(id, kind, ProbeResult::Success);
                }
            }
        }
        kept
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the probe of that kind requires stopping a running instance. A probe without a result,
    /// for example after a restart of the agent, doesn't.
    pub fn has_failed(
        &self,
        container: &Container,
        seen: &ContainerStatus,
        kind: ProbeKind,
    ) -> bool {
        kind.of(container).is_some() && self.get(&seen.id, kind) == Some(ProbeResult::Failure)
    }

    /// Whether an instance has started: it runs, and its startup probe, if any, has succeeded.
    ///
    /// Upstream: `isContainerStarted` of `pkg/kubelet/prober/prober_manager.go`.
    pub fn has_started(&self, container: &Container, seen: &ContainerStatus) -> bool {
        seen.state == ContainerState::Running && self.succeeds(container, seen, ProbeKind::Startup)
    }

    /// Whether an instance serves requests: it has started, and its readiness probe, if any, succeeds.
    ///
    /// Upstream: `UpdatePodStatus` of `pkg/kubelet/prober/prober_manager.go`.
    pub fn is_ready(&self, container: &Container, seen: &ContainerStatus) -> bool {
        self.has_started(container, seen) && self.succeeds(container, seen, ProbeKind::Readiness)
    }

    fn succeeds(&self, container: &Container, seen: &ContainerStatus, kind: ProbeKind) -> bool {
        kind.of(container).is_none() || self.get(&seen.id, kind) == Some(ProbeResult::Success)
    }
}
