//! The effects of a plan's steps and of stops on a [`FakeRuntime`].

use std::sync::Arc;
use std::time::Duration;

use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::observed::{Role, RunningPod};
use mirrorlet_core::plan::Step;
use mirrorlet_core::spec;
use mirrorlet_runtime::{
    PodEventKind, RuntimeError, SyncAction, SyncError, SyncErrorReason, SyncResult,
};

use super::{FakeRuntime, State};

impl FakeRuntime {
    /// Takes the time a container takes to stop.
    async fn stop(&self, grace: Duration) {
        let time = self.shared.state.lock().stop_takes.min(grace);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    /// Stops what a list names, within its grace.
    pub(super) async fn kill(&self, running: &RunningPod, grace: Duration) -> Vec<SyncResult> {
        if !running.containers.is_empty() {
            self.stop(grace).await;
        }
        let now = self.now();
        self.change(|s| {
            s.witness(&format!("{}: killed", running.uid));
            let outcome = s.model.kill(running, now);
            for event in outcome.events {
                s.emit(&running.uid, event);
            }
            outcome.results
        })
    }

    /// Awaits a call, which continues without its caller if calls are set to outlive callers.
    pub(super) async fn outliving(
        &self,
        call: impl Future<Output = Vec<SyncResult>> + Send + 'static,
    ) -> Vec<SyncResult> {
        if !self.shared.state.lock().calls_outlive_callers {
            return call.await;
        }
        match tokio::spawn(call).await {
            Ok(results) => results,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime of the test goes down.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Carries out one step of a plan.
    pub(super) async fn step(&self, pod: &Arc<Pod>, step: &Step) -> Vec<SyncResult> {
        if let Err(error) = self.refuse("step").await {
            return vec![failed_step(pod, step, unavailable(&error))];
        }
        let caller = Arc::new(());
        let alive = Arc::downgrade(&caller);
        let call = {
            let (fake, pod, step) = (self.clone(), Arc::clone(pod), step.clone());
            async move {
                fake.carry_out(&pod, &step, || alive.strong_count() > 0)
                    .await
            }
        };
        let results = self.outliving(call).await;
        drop(caller);
        match self.lost_answer("step") {
            Some(error) => vec![failed_step(pod, step, unavailable(&error))],
            None => results,
        }
    }

    async fn carry_out(
        &self,
        pod: &Arc<Pod>,
        step: &Step,
        is_awaited: impl Fn() -> bool + Send + Sync,
    ) -> Vec<SyncResult> {
        let uid = PodUid::of(pod);
        let takes = self.shared.state.lock().step_takes;
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        // A stop that continues without its caller stops the containers that existed when it began.
        let mut named = None;
        match step {
            Step::KillPod { .. } => {
                named = Some(self.pod(&uid).to_running_pod());
                self.stop(spec::termination_grace(pod)).await;
            }
            Step::KillContainer { .. } => self.stop(spec::termination_grace(pod)).await,
            Step::CreateSandbox { .. }
            | Step::StartContainer { .. }
            | Step::RemoveContainer { .. } => {}
        }
        let now = self.now();
        let results = self.change(|s| {
            let named = named.as_ref();
            s.carry_out(pod, step, named, is_awaited(), now)
        });
        for result in results.iter().filter(|r| r.error.is_none()) {
            if result.action == SyncAction::StartContainer {
                self.crash_later(&uid, &result.target);
            }
        }
        results
    }
}

impl State {
    fn carry_out(
        &mut self,
        pod: &Arc<Pod>,
        step: &Step,
        named: Option<&RunningPod>,
        is_awaited: bool,
        now: Timestamp,
    ) -> Vec<SyncResult> {
        let uid = PodUid::of(pod);
        if let Step::StartContainer {
            name,
            role,
            restart_count,
            pod_restarts,
            ..
        } = step
            && let Some(error) = self.start_fault(name)
        {
            if error.reason == SyncErrorReason::RunContainerError && !error.passing {
                let restarts = (*restart_count, *pod_restarts);
                self.model.fail_start(pod, name, *role, restarts, now);
                self.emit(&uid, PodEventKind::ContainerDied);
            }
            let action = SyncAction::StartContainer;
            return vec![SyncResult::failed(action, &**name, error)];
        }
        self.model.note_versions(pod, step, is_awaited);
        let outcome = match named {
            Some(running) => self.model.kill(running, now),
            None => self.model.apply(pod, step, now),
        };
        let failed = outcome.results.iter().any(|r| r.error.is_some());
        self.witness(&format!(
            "{uid}: {}{}{}",
            described(step),
            if failed { ", in vain" } else { "" },
            if is_awaited {
                ""
            } else {
                ", which nobody awaits"
            },
        ));
        for result in outcome.results.iter().filter(|r| r.error.is_none()) {
            match result.action {
                SyncAction::StartContainer => self.started_containers.push(result.target.clone()),
                SyncAction::KillContainer => self.killed_containers.push(result.target.clone()),
                SyncAction::SetupNetwork
                | SyncAction::TeardownNetwork
                | SyncAction::InitContainer
                | SyncAction::CreatePodSandbox
                | SyncAction::KillPodSandbox => {}
            }
        }
        for event in outcome.events {
            self.emit(&uid, event);
        }
        outcome.results
    }
}

fn described(step: &Step) -> String {
    match step {
        Step::KillPod { .. } => "stop of all".to_owned(),
        Step::KillContainer { name, .. } => format!("stop of {name}"),
        Step::CreateSandbox { attempt, .. } => format!("start of sandbox {attempt}"),
        Step::StartContainer {
            name,
            restart_count,
            ..
        } => format!("start {restart_count} of {name}"),
        Step::RemoveContainer { name, .. } => format!("removal of {name}"),
    }
}

/// The result of a step that fails as a whole.
fn failed_step(pod: &Pod, step: &Step, error: SyncError) -> SyncResult {
    let (action, target) = match step {
        Step::StartContainer { name, .. } => (SyncAction::StartContainer, name.to_string()),
        Step::KillContainer { name, .. } | Step::RemoveContainer { name, .. } => {
            (SyncAction::KillContainer, name.to_string())
        }
        Step::CreateSandbox { .. } => (SyncAction::CreatePodSandbox, FullName::of(pod).to_string()),
        Step::KillPod { .. } => (SyncAction::KillPodSandbox, FullName::of(pod).to_string()),
    };
    SyncResult::failed(action, target, error)
}

/// Whether the round continues when this step fails.
pub(super) fn is_independent(step: &Step) -> bool {
    match step {
        Step::StartContainer { role, .. } => *role != Role::Init,
        Step::KillPod { .. }
        | Step::KillContainer { .. }
        | Step::CreateSandbox { .. }
        | Step::RemoveContainer { .. } => false,
    }
}

pub(super) fn unavailable(error: &RuntimeError) -> SyncError {
    SyncError::new(SyncErrorReason::RuntimeUnavailable, error.to_string())
}
