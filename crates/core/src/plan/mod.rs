//! The planner: the next steps for one pod, and their reasons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{ContainerId, Pod, Timestamp, core};
use crate::backoff::{Backoff, ContainerKey};
use crate::gc::ContainerGcPolicy;
use crate::observed::{ContainerState, ContainerStatus, PodStatus, Role, UserAction};
use crate::probe::{ProbeKind, ProbeResults};
use crate::spec;

mod app;
mod compute;
pub(crate) mod deadline;
mod draft;
pub(crate) mod in_place;
mod init;
mod prune;
mod sandbox;
#[cfg(test)]
mod tests;

use self::in_place::PodRestarts;

pub use compute::compute_pod_actions;
pub use sandbox::sandbox_key;
pub(crate) use sandbox::{is_over_without_sandbox, sandbox_changed};

/// The grace period of one container, and why it may differ from its pod's: a failed liveness or
/// startup probe may have a grace period of its own, unless the pod is being deleted, and a restart in
/// place has none: preStop hooks don't run then.
///
/// Upstream: `killContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`
/// (`setTerminationGracePeriod`), `SyncPod` of `kuberuntime_manager.go` (`ContainersToReset`).
pub fn kill_grace(pod: &Pod, container: &str, reason: &Reason) -> Duration {
    if matches!(reason, Reason::RestartAll { .. }) {
        return Duration::ZERO;
    }
    let found = spec::find_container(pod, container).map(|(_, container)| container);
    let kind = reason.failed_probe();
    kind.zip(found)
        .and_then(|(kind, container)| kind.of(container))
        .filter(|_| pod.metadata.deletion_grace_period_seconds.is_none())
        .and_then(|probe| probe.termination_grace_period_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or_else(|| spec::termination_grace(pod), Duration::from_secs)
}

/// The input of the planner.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The pod as wanted.
    pub pod: &'a Pod,
    /// The pod as seen.
    pub status: &'a PodStatus,
    /// Crash counters of the pod's containers.
    pub backoff: &'a Backoff,
    /// Results of its probes.
    pub probes: &'a ProbeResults,
    /// How many dead instances are kept.
    pub gc: ContainerGcPolicy,
    /// The present time.
    pub now: Timestamp,
}

/// One thing to do to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Stop the whole pod: containers with their grace period, then sandboxes.
    KillPod {
        /// Why.
        reason: Reason,
    },
    /// Stop one container instance with its grace.
    KillContainer {
        /// The instance.
        id: ContainerId,
        /// Its name in the spec.
        name: Arc<str>,
        /// Why.
        reason: Reason,
    },
    /// Create and start a sandbox.
    CreateSandbox {
        /// How many sandboxes the pod had before.
        attempt: u32,
        /// Why.
        reason: Reason,
    },
    /// Create and start a container. With [`Reason::CreatedOnly`] an instance with that restart count
    /// exists already and only has to be started.
    StartContainer {
        /// Its name in the spec.
        name: Arc<str>,
        /// Its role.
        role: Role,
        /// How many instances of that name came before.
        restart_count: u32,
        /// How many times all containers of the pod were restarted in place before.
        pod_restarts: u32,
        /// Why.
        reason: Reason,
    },
    /// Remove a dead instance that is no longer needed.
    RemoveContainer {
        /// The instance.
        id: ContainerId,
        /// Its name in the spec.
        name: Arc<str>,
    },
}

/// Why a step is taken, or why nothing is done. Goes to the log, to events and to `explain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Reason {
    /// The pod has no sandbox.
    #[error("the pod has no sandbox")]
    NoSandbox,
    /// The newest sandbox does not run.
    #[error("the sandbox is not running")]
    SandboxDead,
    /// A user stopped the newest sandbox, or started it again: its network is another one now.
    #[error("a user {what} the sandbox with docker")]
    SandboxByHand {
        /// The action.
        what: UserAction,
    },
    /// More than one sandbox runs.
    #[error("more than one sandbox is running")]
    SandboxDuplicated,
    /// The sandbox is in the wrong network for the spec.
    #[error("the network mode of the sandbox differs from the pod spec")]
    SandboxNetworkChanged,
    /// The sandbox runs without an address.
    #[error("the sandbox has no address")]
    SandboxWithoutAddress,
    /// The container has never been started.
    #[error("container {container} has not been started yet")]
    NeverStarted {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// The container was created and never started.
    #[error("container {container} was created but never started")]
    CreatedOnly {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// The container ended and its restart policy wants it back.
    #[error("container {container} exited with {exit_code}")]
    Exited {
        /// Name in the spec.
        container: Arc<str>,
        /// Its exit code.
        exit_code: i32,
    },
    /// A user stopped the container, or started an instance of it again, with docker.
    #[error("a user {what} container {container} with docker")]
    ByHand {
        /// Name in the spec.
        container: Arc<str>,
        /// The action.
        what: UserAction,
        /// Whether its policy doesn't want it back.
        #[serde(default)]
        for_good: bool,
    },
    /// The runtime doesn't know what the container does.
    #[error("container {container} is in an unknown state")]
    UnknownState {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// The container's image changed.
    #[error("container {container} definition changed")]
    DefinitionChanged {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// The container's liveness probe failed.
    #[error("container {container} failed liveness probe")]
    LivenessFailed {
        /// Name in the spec.
        container: Arc<str>,
        /// Whether its policy doesn't want it back.
        #[serde(default)]
        for_good: bool,
    },
    /// The container's startup probe failed.
    #[error("container {container} failed startup probe")]
    StartupFailed {
        /// Name in the spec.
        container: Arc<str>,
        /// Whether its policy doesn't want it back.
        #[serde(default)]
        for_good: bool,
    },
    /// The container's postStart hook failed.
    #[error("the postStart hook of container {container} failed")]
    PostStartFailed {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// The container starts anew with its sandbox.
    #[error("container {container} restarts with its sandbox")]
    SandboxRecreated {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// All containers of the pod are restarted in place.
    #[error("{why}")]
    RestartAll {
        /// The container whose exit required it, with its exit code, as far as that is known.
        why: Arc<str>,
    },
    /// A regular init container failed, and the pod is never restarted.
    #[error("init container {container} failed and restartPolicy is Never")]
    InitFailed {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// A user wants the container restarted.
    #[error("a user restarted container {container}")]
    Requested {
        /// Name in the spec.
        container: Arc<str>,
    },
    /// A user stopped the pod.
    #[error("a user stopped the pod")]
    Stopped,
    /// Every container is done: nothing keeps the pod alive.
    #[error("all containers of the pod have ended")]
    Completed,
    /// The pod's status says that the pod is over, while some of it runs: its Job has ended, for
    /// example.
    #[error("{why}")]
    Over {
        /// The reason and the message of the status.
        why: Arc<str>,
    },
    /// The pod's `activeDeadlineSeconds` passed.
    #[error("the pod was active longer than activeDeadlineSeconds")]
    DeadlineExceeded,
}

impl Reason {
    /// The probe that failed, if it is for that.
    pub fn failed_probe(&self) -> Option<ProbeKind> {
        if matches!(self, Self::LivenessFailed { .. }) {
            Some(ProbeKind::Liveness)
        } else if matches!(self, Self::StartupFailed { .. }) {
            Some(ProbeKind::Startup)
        } else {
            None
        }
    }
}

/// Why a container waits, as its status says it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// For example `CrashLoopBackOff`.
    pub reason: Arc<str>,
    /// For users.
    pub message: Arc<str>,
}

/// The next steps for one pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Steps in order. A failed step ends the round, except that regular containers and sidecars start
    /// independently of later steps.
    pub steps: Vec<Step>,
    /// Containers that would be started except for their back-off, or their sandbox's.
    pub waiting: BTreeMap<Arc<str>, Waiting>,
    /// When to decide again though nothing happens: the only way to set a timer.
    pub look_again: Option<Duration>,
    /// Whether the pod has ended: every container is done, or it failed for good.
    pub finished: bool,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether the pod, with that status, has ended and nothing of it is left to stop or to clean up.
    pub fn is_over(&self, status: &PodStatus) -> bool {
        self.finished && self.is_empty() && !status.anything_running()
    }

    /// Advances the back-off of every container that this plan restarts, and that of a sandbox that
    /// died and is replaced. Call it once, with the status from which the plan was made, when the plan
    /// is executed. Containers that restart with their sandbox don't count: they did not end by
    /// themselves.
    ///
    /// Upstream does this in `kuberuntime_manager.go` (`doBackOff`).
    pub fn record_backoff(
        &self,
        pod: &Pod,
        status: &PodStatus,
        backoff: &mut Backoff,
        now: Timestamp,
    ) {
        let replaced = self.steps.iter().find_map(|step| {
            if let Step::CreateSandbox { reason, .. } = step {
                Some(reason)
            } else {
                None
            }
        });
        if let Some(reason) = replaced {
            if sandbox::has_died(reason) {
                backoff.next(sandbox_key(), now, now);
            }
            return;
        }
        for step in &self.steps {
            if let Step::StartContainer { name, .. } = step
                && let Some((_, container)) = spec::find_container(pod, name)
                && let Some((key, finished_at)) = backoff_event(pod, status, container)
            {
                backoff.next(key, finished_at, now);
            }
        }
    }
}

/// Under which key, and since when, a container is in back-off: since its newest ended instance
/// ended. What a user did to it is no crash, nor is its end if another container restarted all.
fn backoff_event(
    pod: &Pod,
    status: &PodStatus,
    container: &core::Container,
) -> Option<(ContainerKey, Timestamp)> {
    let instances = || {
        let all = status.containers.iter();
        all.filter(|c| *c.name == *container.name)
    };
    let is_wanted = |c: &ContainerStatus| c.hand().is_some() || spec::to_restart(pod, &c.id);
    let newest_by_hand = instances().next().is_some_and(is_wanted);
    if newest_by_hand || instances().any(|c| c.started_by_hand().is_some()) {
        return None;
    }
    if PodRestarts::of(pod, status).took_along(container, instances().next()) {
        return None;
    }
    let ended = instances().find(|c| c.state == ContainerState::Exited)?;
    let key = (
        Arc::from(container.name.as_str()),
        spec::container_hash(container),
    );
    Some((key, ended.finished_at.unwrap_or(ended.created_at)))
}
