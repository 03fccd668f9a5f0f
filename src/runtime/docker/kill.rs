//! Stopping pods: containers in parallel, sidecars after the others, sandboxes last.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_container.go` (`killContainersWithSyncResult`)
//! and `kuberuntime_termination_order.go`.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::engine::EngineError;
use super::manager::DockerManager;
use super::translate::Kind;
use crate::api::{ContainerId, Pod, Timestamp};
use crate::pod::observed::{Container, Role, RunningPod};
use crate::pod::plan::Reason;
use crate::pod::spec;
use crate::runtime::{PodSyncResult, SyncAction, SyncError, SyncErrorReason, SyncResult};
use crate::telemetry::occurrences;

/// What every process is given between SIGTERM and SIGKILL, whatever time others used up.
const GRACE_MIN: Duration = Duration::from_secs(2);
/// Grace of a sandbox: ours ends at once, another's may take its time.
const SANDBOX_GRACE: Duration = Duration::from_secs(10);

/// Reason of a container's stop, for the log, when all of its pod stops.
const POD_STOPS: &str = "the pod is being stopped";

impl DockerManager {
    /// See [`Runtime::kill_pod`](crate::runtime::Runtime::kill_pod).
    pub(super) async fn stop_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult {
        let mut result = PodSyncResult::default();
        let began = Instant::now();
        let (sidecars, regular): (Vec<_>, Vec<_>) = running
            .containers
            .iter()
            .partition(|c| self.role(c) == Role::Sidecar);
        let grace = |container: &Container| {
            let whole = grace_override
                .unwrap_or_else(|| self.grace(pod, container))
                .saturating_sub(began.elapsed());
            whole.max(GRACE_MIN)
        };
        let kills = regular
            .iter()
            .map(|c| self.stop_container(&c.id.id, &c.name, grace(c), None));
        result.add_sync_result(join_all(kills).await);
        // Sidecars last, in the reverse order of their start. They wait within the grace.
        for sidecar in in_stop_order(pod, &sidecars) {
            let stopped = self
                .stop_container(&sidecar.id.id, &sidecar.name, grace(sidecar), None)
                .await;
            result.add_sync_result([stopped]);
        }
        let sandboxes = running
            .sandboxes
            .iter()
            .filter(|sandbox| sandbox.state == crate::pod::observed::ContainerState::Running);
        let kills = sandboxes.map(|sandbox| async move {
            let stopped = self.stop(&sandbox.id.id, SANDBOX_GRACE).await;
            let mut result =
                SyncResult::new(SyncAction::KillPodSandbox, running.full_name.to_string());
            if let Err(error) = stopped {
                result.fail(SyncError::new(
                    reason_of(&error, SyncErrorReason::KillPodSandboxError),
                    error.to_string(),
                ));
            }
            result
        });
        result.add_sync_result(join_all(kills).await);
        result
    }

    /// Stops one container: with its whole pod, or alone for a reason.
    pub(super) async fn stop_container(
        &self,
        id: &str,
        name: &str,
        grace: Duration,
        reason: Option<&Reason>,
    ) -> SyncResult {
        let mut result = SyncResult::new(SyncAction::KillContainer, name);
        let record = self.index.get(id);
        let began = Instant::now();
        if let Some(record) = &record {
            let ours = &record.ours;
            occurrences::container_stopping(
                &self.telemetry,
                &ours.full_name,
                &ours.uid,
                name,
                reason,
            );
        }
        match self.stop(id, grace).await {
            Ok(()) => {
                if let Some(record) = record {
                    let reason = reason.map_or_else(|| POD_STOPS.to_owned(), ToString::to_string);
                    occurrences::container_killed(
                        &self.telemetry,
                        &record.ours.full_name,
                        &record.ours.uid,
                        name,
                        &ContainerId::docker(id),
                        &reason,
                        began.elapsed(),
                    );
                }
            }
            Err(error) => result.fail(SyncError::new(
                reason_of(&error, SyncErrorReason::KillContainerError),
                error.to_string(),
            )),
        }
        result
    }

    /// Grace of a container: the pod's where it is known, else what its labels say.
    pub(super) fn grace(&self, pod: Option<&Arc<Pod>>, container: &Container) -> Duration {
        pod.map_or_else(
            || {
                self.index
                    .get(&container.id.id)
                    .map_or(spec::DEFAULT_GRACE, |record| record.ours.grace)
            },
            |pod| spec::termination_grace(pod),
        )
    }

    fn role(&self, container: &Container) -> Role {
        match self
            .index
            .get(&container.id.id)
            .map(|record| record.ours.kind.clone())
        {
            Some(Kind::Container { role, .. }) => role,
            Some(Kind::Sandbox { .. }) | None => Role::App,
        }
    }

    /// Stops a container; one that has ended or is gone is success.
    pub(super) async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        match self.engine.stop_container(id, grace).await {
            Ok(()) => {
                self.index.died(id, None, Timestamp::now());
                Ok(())
            }
            Err(error) if error.is_not_found() => {
                self.index.removed(id);
                Ok(())
            }
            Err(error) => {
                self.index.doubt(id);
                Err(error)
            }
        }
    }
}

/// Sidecars in the reverse order of the spec; ones the spec doesn't know (any more) first.
fn in_stop_order<'a>(pod: Option<&Arc<Pod>>, sidecars: &[&'a Container]) -> Vec<&'a Container> {
    let position = |container: &Container| {
        pod.and_then(|pod| spec::containers(pod).position(|(_, c)| c.name == *container.name))
    };
    let mut ordered: Vec<&Container> = sidecars.to_vec();
    ordered.sort_by_key(|container| {
        // Without a spec, the one created last is stopped first.
        (
            position(container).map_or(i64::MIN, |p| -i64::try_from(p).unwrap_or(0)),
            { std::cmp::Reverse(container.created_at) },
        )
    });
    ordered
}

/// The reason of a failed call: the runtime being away is not the container's fault.
pub(super) fn reason_of(error: &EngineError, otherwise: SyncErrorReason) -> SyncErrorReason {
    match error {
        EngineError::Unavailable { .. } => SyncErrorReason::RuntimeUnavailable,
        EngineError::Timeout { .. } | EngineError::Api { .. } | EngineError::Decode { .. } => {
            otherwise
        }
    }
}
