//! Executes a plan: its steps in order; a failed one ends the round.
//!
//! A stop in progress is abandoned on cancellation: its pod is stopped next, with a grace period that
//! may be shorter. The Engine continues the first stop, which does no harm: the next stop of the same
//! container takes effect in addition.
//!
//! Consecutive starts are executed together: a new sandbox and the containers that follow it overlap
//! (see [`start`](super::start)), and regular containers start independently of one another.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_manager.go` (`SyncPod`).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::kill::Stop;
use super::start::{Sandbox, Start, Starter};
use mirrorlet_core::api::{ContainerId, Pod};
use mirrorlet_core::observed::PodStatus;
use mirrorlet_core::plan::{Plan, Reason, Step, kill_grace};
use mirrorlet_host::telemetry::{calls, occurrences};
use mirrorlet_runtime::{PodSyncResult, SyncResult};

impl Starter {
    /// See [`Runtime::sync_pod`](mirrorlet_runtime::Runtime::sync_pod).
    pub(super) async fn walk(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        self.telemetry
            .about(pod, |of| occurrences::plan_decided(of, plan));
        // On the heap: the state of a whole round is large.
        let walking = Box::pin(self.walk_steps(pod, status, plan, cancel));
        let (result, made) = calls::noted(walking).await;
        self.telemetry
            .about(pod, |of| occurrences::engine_called(of, &made));
        result
    }

    async fn walk_steps(
        &self,
        pod: &Arc<Pod>,
        status: &PodStatus,
        plan: &Plan,
        cancel: &CancellationToken,
    ) -> PodSyncResult {
        let mut result = PodSyncResult::default();
        let mut steps = plan.steps.as_slice();
        while let [step, rest @ ..] = steps {
            if cancel.is_cancelled() {
                break;
            }
            steps = rest;
            match step {
                Step::KillPod { reason } => {
                    self.telemetry
                        .about(pod, |of| occurrences::pod_killed(of, reason));
                    let running = status.to_running_pod();
                    let killing = self.killer.stop_pod(Some(pod), &running, None);
                    if let Some(killed) = cancel.run_until_cancelled(killing).await {
                        result.add_pod_sync_result(killed);
                    }
                }
                Step::KillContainer { id, name, reason } => {
                    let killing = self.kill_container(pod, id, name, reason);
                    let killed = cancel.run_until_cancelled(killing).await;
                    result.add_sync_result(killed);
                }
                Step::CreateSandbox { .. } | Step::StartContainer { .. } => {
                    let mut starts: Vec<Start<'_>> = Start::of(step).into_iter().collect();
                    starts.append(&mut take_starts(&mut steps));
                    if let Some(sandbox) = Sandbox::of(step, status) {
                        match Box::pin(self.start_all(pod, sandbox, &starts, cancel)).await {
                            Ok(started) => result.add_sync_result(started),
                            Err(error) => result.fail(error),
                        }
                    }
                }
                Step::RemoveContainer { id, name } => {
                    let is_gone = self.tidy_up(pod, id, name).await;
                    result.left_behind |= !is_gone;
                }
            }
            if result.errors().next().is_some() {
                break;
            }
        }
        result
    }

    async fn kill_container(
        &self,
        pod: &Arc<Pod>,
        id: &ContainerId,
        name: &str,
        reason: &Reason,
    ) -> SyncResult {
        let why = reason.to_string();
        self.telemetry
            .about(pod, |of| occurrences::container_killing(of, name, &why));
        let stop = Stop {
            pod: Some(pod),
            id: &id.id,
            name,
            grace: kill_grace(pod, name, reason),
            reason: Some(reason),
            is_replaced: false,
            after: &[],
        };
        self.killer.stop_container(stop).await
    }

    /// Removes an ended container, and returns whether it is gone. If not, a later round removes it.
    async fn tidy_up(&self, pod: &Pod, id: &ContainerId, name: &str) -> bool {
        let Err(error) = self.remains.remove(&id.id).await else {
            return true;
        };
        let message = format!("container {name}: {error}");
        self.telemetry
            .about(pod, |of| occurrences::remove_failed(of, &message));
        false
    }
}

/// Takes the starts off the front of `steps`.
fn take_starts<'a>(steps: &mut &'a [Step]) -> Vec<Start<'a>> {
    let mut starts = Vec::new();
    while let [step, rest @ ..] = *steps
        && let Some(start) = Start::of(step)
    {
        starts.push(start);
        *steps = rest;
    }
    starts
}
