//! The pods of a [`FakeRuntime`](super::FakeRuntime), and the effects of steps on them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use mirrorlet_core::api::{ContainerId, FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::observed::{
    ContainerState, ContainerStatus, PodStatus, Pods, Role, RunningPod, SandboxStatus,
};
use mirrorlet_core::plan::Step;
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::spec;
use mirrorlet_runtime::{PodEventKind, SyncAction, SyncError, SyncErrorReason, SyncResult};

/// Exit code of a container ended by SIGTERM.
pub(super) const TERMINATED: i32 = 143;
/// Exit code of a container ended by SIGKILL.
const KILLED: i32 = 137;
/// Exit code the Engine gives a container whose command can't be run.
const CANNOT_RUN: i32 = 127;

/// The first address handed out; a sandbox's own number is added.
const FIRST_IP: u32 = u32::from_be_bytes([10, 88, 0, 2]);

/// The outcome of a step: results for the caller, events for the watchers.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) results: Vec<SyncResult>,
    pub(super) events: Vec<PodEventKind>,
}

impl Outcome {
    fn done(action: SyncAction, target: impl Into<String>, event: PodEventKind) -> Self {
        Self {
            results: vec![SyncResult::new(action, target)],
            events: vec![event],
        }
    }

    fn failed(action: SyncAction, target: impl Into<String>, error: SyncError) -> Self {
        Self {
            results: vec![SyncResult::failed(action, target, error)],
            events: Vec::new(),
        }
    }
}

/// Everything held.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) pods: BTreeMap<PodUid, PodStatus>,
    /// Violations found: calls that no runtime should ever get.
    pub(super) violations: Vec<String>,
    /// Whether starting a running container succeeds and does nothing.
    pub(super) starts_are_idempotent: bool,
    /// Pods that run beside another of their full name, or did when they started, until they are
    /// deleted.
    pub(super) beside: BTreeSet<PodUid>,
    /// Pods that were started by an abandoned call.
    posthumous: BTreeSet<PodUid>,
    next_id: u32,
}

impl Model {
    pub(super) fn list(&self, all: bool) -> Pods {
        let pods = self
            .pods
            .values()
            .filter(|status| !status.is_empty() && (all || status.anything_running()))
            .map(|status| {
                let mut pod = status.to_running_pod();
                if all {
                    pod.containers = status.containers.iter().map(Into::into).collect();
                } else {
                    pod.sandboxes.retain(|s| s.state == ContainerState::Running);
                }
                pod
            })
            .collect();
        Pods(pods)
    }

    fn pod(&mut self, uid: &PodUid, full_name: FullName) -> &mut PodStatus {
        self.pods.entry(uid.clone()).or_insert_with(|| PodStatus {
            full_name,
            ..PodStatus::empty(uid.clone())
        })
    }

    fn new_id(&mut self) -> ContainerId {
        self.next_id += 1;
        ContainerId::docker(format!("{:064x}", self.next_id))
    }

    /// Records a start beside another version, and one without a caller. A version that may not run
    /// beside another must not be started while another runs.
    pub(super) fn note_versions(&mut self, pod: &Pod, step: &Step, is_awaited: bool) {
        if !matches!(
            step,
            Step::CreateSandbox { .. } | Step::StartContainer { .. }
        ) {
            return;
        }
        let (uid, full_name) = (PodUid::of(pod), FullName::of(pod));
        let runs = self.pods.get(&uid).is_some_and(PodStatus::anything_running);
        if !is_awaited {
            self.posthumous.insert(uid.clone());
        }
        if is_beside(pod) {
            self.beside.insert(uid);
            return;
        }
        // A running one was checked when it started. One that was started beside another is restarted
        // even while that one is still being stopped.
        if runs || self.posthumous.contains(&uid) || self.beside.contains(&uid) {
            return;
        }
        let other = self.pods.values().find(|other| {
            other.full_name == full_name
                && other.uid != uid
                && other.anything_running()
                && !self.beside.contains(&other.uid)
                && !self.posthumous.contains(&other.uid)
        });
        if let Some(other) = other {
            let violation = format!("started {uid} while {} runs", other.uid);
            self.violations.push(violation);
        }
    }

    /// Every container and sandbox ends.
    pub(super) fn end_everything(&mut self, now: Timestamp) {
        let all: Vec<(PodUid, Vec<ContainerId>)> = self
            .pods
            .values()
            .map(|pod| {
                (
                    pod.uid.clone(),
                    pod.running_containers().map(|c| c.id.clone()).collect(),
                )
            })
            .collect();
        for (uid, ids) in all {
            for id in ids {
                self.end(&uid, &id, KILLED, now);
            }
            self.lose_sandbox(&uid);
        }
    }

    /// Carries out a step that takes no time.
    pub(super) fn apply(&mut self, pod: &Pod, step: &Step, now: Timestamp) -> Outcome {
        let uid = PodUid::of(pod);
        match step {
            Step::KillPod { .. } => {
                let everything = self.pods.get(&uid).map(PodStatus::to_running_pod);
                everything.map_or_else(Outcome::default, |running| self.kill(&running, now))
            }
            Step::KillContainer { id, name, .. } => {
                let ended = self.end(&uid, id, TERMINATED, now);
                Outcome {
                    results: vec![SyncResult::new(SyncAction::KillContainer, &**name)],
                    events: ended
                        .then_some(PodEventKind::ContainerDied)
                        .into_iter()
                        .collect(),
                }
            }
            Step::CreateSandbox { attempt, .. } => self.create_sandbox(pod, *attempt, now),
            Step::StartContainer {
                name,
                role,
                restart_count,
                pod_restarts,
                ..
            } => self.start(pod, name, *role, (*restart_count, *pod_restarts), now),
            Step::RemoveContainer { id, name } => {
                let event = self.remove(&uid, id);
                Outcome {
                    // There is no action for a removal; only its failure is recorded, by the model.
                    results: Vec::new(),
                    events: event
                        .map_err(|()| {
                            self.violations
                                .push(format!("removed a running instance of {name} of {uid}"));
                        })
                        .ok()
                        .flatten()
                        .into_iter()
                        .collect(),
                }
            }
        }
    }

    fn create_sandbox(&mut self, pod: &Pod, attempt: u32, now: Timestamp) -> Outcome {
        let idempotent = self.starts_are_idempotent;
        let id = self.new_id();
        let uid = PodUid::of(pod);
        let full_name = FullName::of(pod);
        let host_network = spec::is_host_network(pod);
        let address = IpAddr::V4(Ipv4Addr::from(FIRST_IP + self.next_id));
        let ips = if host_network {
            Vec::new()
        } else {
            vec![address]
        };
        let seen = self.pod(&uid, full_name.clone());
        // A container that was only created is adopted.
        let taken_over =
            |s: &SandboxStatus| s.attempt == attempt && s.state == ContainerState::Created;
        seen.sandboxes.retain(|s| !taken_over(s));
        if let Some(known) = seen.sandboxes.iter().find(|s| s.attempt == attempt) {
            if idempotent && known.state == ContainerState::Running {
                return Outcome {
                    results: vec![SyncResult::new(
                        SyncAction::CreatePodSandbox,
                        full_name.to_string(),
                    )],
                    events: Vec::new(),
                };
            }
            let message = format!("the name of sandbox {attempt} of {full_name} is in use");
            let error = SyncError::new(SyncErrorReason::CreatePodSandboxError, message);
            return Outcome::failed(SyncAction::CreatePodSandbox, full_name.to_string(), error);
        }
        let duplicate = seen
            .sandboxes
            .iter()
            .any(|s| s.state == ContainerState::Running);
        seen.ips.clone_from(&ips);
        seen.sandboxes.insert(
            0,
            SandboxStatus {
                by_hand: None,
                id,
                attempt,
                state: ContainerState::Running,
                created_at: now,
                pod_started_at: spec::started_at(pod),
                host_network,
                ips,
            },
        );
        if duplicate {
            self.violations
                .push(format!("created a second sandbox of {uid}"));
        }
        Outcome::done(
            SyncAction::CreatePodSandbox,
            full_name.to_string(),
            PodEventKind::ContainerStarted,
        )
    }

    /// `restarts`: those of the container, and those of all of its pod.
    fn start(
        &mut self,
        pod: &Pod,
        name: &Arc<str>,
        role: Role,
        restarts: (u32, u32),
        now: Timestamp,
    ) -> Outcome {
        let (restart_count, _) = restarts;
        let uid = PodUid::of(pod);
        let target = name.to_string();
        let runs_already = |pod: &PodStatus| {
            let mut running = pod.running_containers();
            running.any(|c| c.name == *name && c.restart_count == restart_count)
        };
        if self.starts_are_idempotent && self.pods.get(&uid).is_some_and(runs_already) {
            return Outcome {
                results: vec![SyncResult::new(SyncAction::StartContainer, target)],
                events: Vec::new(),
            };
        }
        if let Err(error) = self.may_start(&uid, name) {
            return Outcome::failed(SyncAction::StartContainer, target, error);
        }
        let seen = self.pod(&uid, FullName::of(pod));
        let same = seen
            .containers
            .iter_mut()
            .find(|c| c.name == *name && c.restart_count == restart_count);
        if let Some(instance) = same {
            if instance.state != ContainerState::Created {
                let message = format!("the name of instance {restart_count} of {name} is in use");
                let error = SyncError::new(SyncErrorReason::CreateContainerError, message);
                return Outcome::failed(SyncAction::StartContainer, target, error);
            }
            instance.state = ContainerState::Running;
            instance.started_at = Some(now);
        } else {
            let instance = self.instance(pod, name, role, restarts, now);
            self.pod(&uid, FullName::of(pod))
                .containers
                .insert(0, instance);
        }
        Outcome::done(
            SyncAction::StartContainer,
            target,
            PodEventKind::ContainerStarted,
        )
    }

    /// A container runs in a running sandbox, and never twice.
    fn may_start(&mut self, uid: &PodUid, name: &str) -> Result<(), SyncError> {
        let seen = self.pods.get(uid);
        let sandbox_runs = seen
            .and_then(|p| p.sandboxes.first())
            .is_some_and(|s| s.state == ContainerState::Running);
        if !sandbox_runs {
            return Err(SyncError::new(
                SyncErrorReason::RunContainerError,
                "cannot join the network of a non running container",
            )
            .passing());
        }
        let namesake_runs = seen.is_some_and(|p| {
            p.containers
                .iter()
                .any(|c| &*c.name == name && c.may_be_running())
        });
        if namesake_runs {
            self.violations
                .push(format!("started {name} of {uid} while a namesake runs"));
        }
        Ok(())
    }

    fn instance(
        &mut self,
        pod: &Pod,
        name: &Arc<str>,
        role: Role,
        restarts: (u32, u32),
        now: Timestamp,
    ) -> ContainerStatus {
        let container = spec::find_container(pod, name).map(|(_, c)| c);
        let image: Arc<str> = container
            .and_then(|c| c.image.as_deref())
            .unwrap_or_default()
            .into();
        ContainerStatus {
            by_hand: None,
            id: self.new_id(),
            name: name.clone(),
            role,
            state: ContainerState::Running,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            exit_code: None,
            image_id: format!("docker-pullable://{image}").into(),
            image,
            hash: container.map(spec::container_hash).unwrap_or_default(),
            restart_count: restarts.0,
            pod_restarts: restarts.1,
            reason: "".into(),
            message: "".into(),
        }
    }

    /// A start that fails: the instance stays behind, as in the Engine.
    pub(super) fn fail_start(
        &mut self,
        pod: &Pod,
        name: &Arc<str>,
        role: Role,
        restarts: (u32, u32),
        now: Timestamp,
    ) {
        let mut instance = self.instance(pod, name, role, restarts, now);
        instance.state = ContainerState::Exited;
        instance.finished_at = Some(now);
        instance.exit_code = Some(CANNOT_RUN);
        instance.reason = "ContainerCannotRun".into();
        let seen = self.pod(&PodUid::of(pod), FullName::of(pod));
        seen.containers
            .retain(|c| c.name != *name || c.restart_count != restarts.0);
        seen.containers.insert(0, instance);
    }

    /// Stops what a list names: containers, then sandboxes.
    pub(super) fn kill(&mut self, running: &RunningPod, now: Timestamp) -> Outcome {
        let mut outcome = Outcome::default();
        for container in &running.containers {
            if self.end(&running.uid, &container.id, TERMINATED, now) {
                outcome.events.push(PodEventKind::ContainerDied);
            }
            outcome
                .results
                .push(SyncResult::new(SyncAction::KillContainer, &*container.name));
        }
        let Some(pod) = self.pods.get_mut(&running.uid) else {
            return outcome;
        };
        for sandbox in &mut pod.sandboxes {
            let named = running.sandboxes.iter().any(|s| s.id == sandbox.id);
            if named && sandbox.state != ContainerState::Exited {
                sandbox.state = ContainerState::Exited;
                sandbox.ips.clear();
                outcome.events.push(PodEventKind::ContainerDied);
                outcome
                    .results
                    .push(SyncResult::new(SyncAction::KillPodSandbox, &*sandbox.id.id));
            }
        }
        refresh_ips(pod);
        outcome
    }

    /// Ends one container; whether there was anything to end.
    pub(super) fn end(
        &mut self,
        uid: &PodUid,
        id: &ContainerId,
        exit_code: i32,
        now: Timestamp,
    ) -> bool {
        let instance = self
            .pods
            .get_mut(uid)
            .and_then(|pod| pod.containers.iter_mut().find(|c| c.id == *id))
            .filter(|c| c.may_be_running());
        let Some(instance) = instance else {
            return false;
        };
        instance.state = ContainerState::Exited;
        instance.finished_at = Some(now);
        instance.exit_code = Some(exit_code);
        instance.reason = if exit_code == 0 { "Completed" } else { "Error" }.into();
        true
    }

    /// Every sandbox of a pod ends; whether one ran.
    pub(super) fn lose_sandbox(&mut self, uid: &PodUid) -> bool {
        let Some(pod) = self.pods.get_mut(uid) else {
            return false;
        };
        let mut any = false;
        for sandbox in &mut pod.sandboxes {
            any |= sandbox.state == ContainerState::Running;
            sandbox.state = ContainerState::Exited;
            sandbox.ips.clear();
        }
        refresh_ips(pod);
        any
    }

    /// Removes a dead container or sandbox. A missing one is success; one that may be running is
    /// refused.
    pub(super) fn remove(
        &mut self,
        uid: &PodUid,
        id: &ContainerId,
    ) -> Result<Option<PodEventKind>, ()> {
        let Some(pod) = self.pods.get_mut(uid) else {
            return Ok(None);
        };
        let runs = pod
            .containers
            .iter()
            .any(|c| c.id == *id && c.may_be_running())
            || pod
                .sandboxes
                .iter()
                .any(|s| s.id == *id && s.state == ContainerState::Running);
        if runs {
            return Err(());
        }
        let before = pod.containers.len() + pod.sandboxes.len();
        pod.containers.retain(|c| c.id != *id);
        pod.sandboxes.retain(|s| s.id != *id);
        let removed = before != pod.containers.len() + pod.sandboxes.len();
        Ok(removed.then_some(PodEventKind::ContainerRemoved))
    }
}

/// A pod's addresses are those of its newest sandbox, while it runs.
fn refresh_ips(pod: &mut PodStatus) {
    pod.ips = pod
        .sandboxes
        .first()
        .filter(|s| s.state == ContainerState::Running)
        .map(|s| s.ips.clone())
        .unwrap_or_default();
}
