//! Stopping pods: containers in parallel, sidecars after the others, sandboxes last.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_container.go` (`killContainersWithSyncResult`)
//! and `kuberuntime_termination_order.go`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, join_all, maybe_done, select};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::containers::Containers;
use super::engine::EngineError;
use super::hooks::Hooks;
use super::index::Record;
use super::network::Networks;
use super::translate::{Kind, OurContainer};
use mirrorlet_core::api::{ContainerId, FullName, Pod};
use mirrorlet_core::observed::{Container, Role, RunningPod};
use mirrorlet_core::plan::Reason;
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::spec;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_runtime::{PodSyncResult, SyncAction, SyncError, SyncErrorReason, SyncResult};

/// Minimum time between SIGTERM and SIGKILL, regardless of the time already used.
const GRACE_MIN: Duration = Duration::from_secs(2);
/// Grace period of a sandbox: ours ends at once, another's may take its time.
pub(super) const SANDBOX_GRACE: Duration = Duration::from_secs(10);

/// Reason of a container's stop, for the log, when all of its pod stops.
const POD_STOPS: &str = "the pod is being stopped";

/// A container to stop.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop<'a> {
    /// Its pod, if known; otherwise its hook comes from its labels.
    pub(super) pod: Option<&'a Arc<Pod>>,
    /// Id of the instance.
    pub(super) id: &'a str,
    /// Name in the spec.
    pub(super) name: &'a str,
    /// The grace period for the whole stop.
    pub(super) grace: Duration,
    /// The reason for stopping it alone; none if its whole pod is stopped.
    pub(super) reason: Option<&'a Reason>,
    /// Whether its version of the pod no longer served when its stop began.
    pub(super) is_replaced: bool,
    /// Those that stop before it.
    pub(super) after: &'a [CancellationToken],
}

/// Stops pods and single containers.
pub(super) struct Killer {
    pub(super) containers: Arc<Containers>,
    pub(super) networks: Arc<Networks>,
    pub(super) hooks: Arc<Hooks>,
    pub(super) telemetry: Telemetry,
}

impl Killer {
    /// See [`Runtime::kill_pod`](mirrorlet_runtime::Runtime::kill_pod).
    pub(super) async fn stop_pod(
        &self,
        pod: Option<&Arc<Pod>>,
        running: &RunningPod,
        grace_override: Option<Duration>,
    ) -> PodSyncResult {
        let mut result = PodSyncResult::default();
        let (sidecars, regular): (Vec<_>, Vec<_>) = running
            .containers
            .iter()
            .partition(|c| self.role(c) == Role::Sidecar);
        // Sidecars stop last, in the reverse order of their start; each waits, when its hook is
        // done and within its grace, for all before it.
        let host_ports = &self.networks.host_ports;
        let is_replaced = !host_ports.holds.serves(&running.full_name, &running.uid);
        let mut stopped: Vec<CancellationToken> = Vec::new();
        let mut kills = Vec::new();
        for container in &regular {
            let done = CancellationToken::new();
            kills.push((*container, Vec::new(), done.clone()));
            stopped.push(done);
        }
        for sidecar in in_stop_order(pod, &sidecars) {
            let done = CancellationToken::new();
            kills.push((sidecar, stopped.clone(), done.clone()));
            stopped.push(done);
        }
        let kills = kills
            .into_iter()
            .map(|(container, after, done)| async move {
                let _done = done.drop_guard();
                let grace = grace_override.unwrap_or_else(|| self.grace(pod, container));
                let stop = Stop {
                    pod,
                    id: &container.id.id,
                    name: &container.name,
                    grace,
                    reason: None,
                    is_replaced,
                    after: &after,
                };
                self.stop_container(stop).await
            });
        let kills = join_all(kills);
        result.add_sync_result(if is_replaced {
            host_ports.while_ending(&running.full_name, kills).await
        } else {
            kills.await
        });
        let sandboxes = running
            .sandboxes
            .iter()
            .filter(|sandbox| sandbox.state == mirrorlet_core::observed::ContainerState::Running);
        let kills = sandboxes.map(|sandbox| async move {
            let torn_down = self.torn_down(&sandbox.id.id, &running.full_name);
            let stopped = self.containers.stop(&sandbox.id.id, SANDBOX_GRACE).await;
            let mut result =
                SyncResult::new(SyncAction::KillPodSandbox, running.full_name.to_string());
            if let Err(error) = stopped {
                result.fail(SyncError::new(
                    reason_of(&error, SyncErrorReason::KillPodSandboxError),
                    error.to_string(),
                ));
            }
            torn_down.into_iter().chain([result])
        });
        let stopped: Vec<SyncResult> = join_all(kills).await.into_iter().flatten().collect();
        if !stopped.is_empty() {
            // A step that fails here is repeated before the next sandbox starts.
            let _ = host_ports.ended(running).await;
        }
        result.add_sync_result(stopped);
        result
    }

    /// The result for a sandbox's network, unless it is the host's: the Engine tears it down when
    /// it stops the sandbox.
    fn torn_down(&self, id: &str, full_name: &FullName) -> Option<SyncResult> {
        let record = self.containers.index.get(id)?;
        let Kind::Sandbox {
            host_network: false,
            ..
        } = record.ours.kind
        else {
            return None;
        };
        let action = SyncAction::TeardownNetwork;
        Some(SyncResult::new(action, full_name.to_string()))
    }

    /// Stops one container: with its whole pod, or alone for a reason. Its preStop hook runs first and,
    /// like waiting for others, counts towards its grace period. A hook that takes longer continues
    /// until the container has stopped.
    pub(super) async fn stop_container(&self, stop: Stop<'_>) -> SyncResult {
        let Stop {
            pod,
            id,
            name,
            grace,
            reason,
            ..
        } = stop;
        let mut result = SyncResult::new(SyncAction::KillContainer, name);
        let record = self.containers.index.get(id);
        let began = Instant::now();
        if let Some(record) = &record {
            let ours = &record.ours;
            occurrences::container_stopping(
                self.telemetry.pod(&ours.full_name, &ours.uid),
                name,
                reason,
            );
        }
        let over = CancellationToken::new();
        let hook = async {
            if !grace.is_zero() {
                // On the heap: it is large, and most containers have no hook.
                Box::pin(self.hooks.pre_stop(pod, name, id, grace, &over)).await;
            }
        };
        let mut hook = pin!(maybe_done(hook));
        let _ = timeout(grace, &mut hook).await;
        let stopping = pin!(self.stop_in_turn(&stop, record.as_ref(), began));
        let stopped = match select(stopping, hook).await {
            Either::Left((Ok(()), hook)) => {
                over.cancel();
                hook.await;
                Ok(())
            }
            // The next attempt runs the hook again.
            Either::Left((failed, _)) => failed,
            Either::Right(((), stopping)) => stopping.await,
        };
        match stopped {
            Ok(()) => {
                if let Some(record) = &record {
                    let reason = reason.map_or_else(|| POD_STOPS.to_owned(), ToString::to_string);
                    occurrences::container_killed(
                        self.telemetry.pod(&record.ours.full_name, &record.ours.uid),
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

    /// Waits within the grace for those that stop before it, and stops it with what is left.
    async fn stop_in_turn(
        &self,
        stop: &Stop<'_>,
        record: Option<&Record>,
        began: Instant,
    ) -> Result<(), EngineError> {
        let turn = join_all(stop.after.iter().map(CancellationToken::cancelled));
        let _ = timeout(stop.grace.saturating_sub(began.elapsed()), turn).await;
        let left = stop.grace.saturating_sub(began.elapsed()).max(GRACE_MIN);
        let holds = &self.networks.host_ports.holds;
        let is_replaced =
            |ours: &OurContainer| stop.is_replaced || !holds.serves(&ours.full_name, &ours.uid);
        let held = match (record, stop.reason) {
            (Some(record), None) if is_replaced(&record.ours) => {
                holds.begin(record, stop.pod, stop.name, left).await
            }
            _ => None,
        };
        let stopped = self.containers.stop(stop.id, left).await;
        if let (Err(_), Some(held)) = (&stopped, held) {
            held.failed();
        }
        stopped
    }

    /// Grace period of a container: the pod's if known, otherwise the one in its labels.
    pub(super) fn grace(&self, pod: Option<&Arc<Pod>>, container: &Container) -> Duration {
        pod.map_or_else(
            || {
                self.containers
                    .index
                    .get(&container.id.id)
                    .map_or(spec::DEFAULT_GRACE, |record| record.ours.grace)
            },
            |pod| spec::termination_grace(pod),
        )
    }

    fn role(&self, container: &Container) -> Role {
        match self
            .containers
            .index
            .get(&container.id.id)
            .map(|record| record.ours.kind.clone())
        {
            Some(Kind::Container { role, .. }) => role,
            Some(Kind::Sandbox { .. }) | None => Role::App,
        }
    }
}

/// Sidecars in the reverse order of the spec; ones the spec doesn't know (any more) first.
fn in_stop_order<'a>(pod: Option<&Arc<Pod>>, sidecars: &[&'a Container]) -> Vec<&'a Container> {
    let position = |container: &Container| {
        pod.and_then(|pod| spec::containers(pod).position(|(_, c)| c.name == *container.name))
    };
    let mut ordered: Vec<&Container> = sidecars.to_vec();
    ordered.small_sort_by_key(|container| {
        // Without a spec, the one created last is stopped first.
        (
            position(container).map_or(i64::MIN, |p| -i64::try_from(p).unwrap_or(0)),
            { std::cmp::Reverse(container.created_at) },
        )
    });
    ordered
}

/// The reason of a failed call: an unavailable runtime is not the container's fault.
pub(super) fn reason_of(error: &EngineError, otherwise: SyncErrorReason) -> SyncErrorReason {
    match error {
        EngineError::Unavailable { .. } => SyncErrorReason::RuntimeUnavailable,
        EngineError::Timeout { .. }
        | EngineError::Api { .. }
        | EngineError::Decode { .. }
        | EngineError::TooLarge { .. } => otherwise,
    }
}
