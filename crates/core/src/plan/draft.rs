//! A plan under construction: collects steps by phase, so that deciders can add them in any order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::api::core::Container;
use crate::api::{ContainerId, FullName, PodUid};
use crate::backoff::go_duration;
use crate::observed::{ContainerState, ContainerStatus, PodStatus, Role};
use crate::spec::container_hash;

use super::in_place::PodRestarts;
use super::sandbox::sandbox_key;
use super::{Plan, PlanInput, Reason, Step, Waiting};

/// Why what ended often lately isn't started at once.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The result of trying to start a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It is among the steps.
    Planned,
    /// Its back-off isn't over.
    Waits,
}

/// A plan in the making.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// The input of the deciders, without the instances from before the last restart in place.
    pub(super) input: &'a PlanInput<'a>,
    /// The pod as seen, with all instances.
    pub(super) all: &'a PodStatus,
    pub(super) restarts: &'a PodRestarts<'a>,
    /// Kills, removals that free space, and the sandbox: everything before the first start.
    pub(super) before: Vec<Step>,
    /// Starts, in order.
    pub(super) starts: Vec<Step>,
    /// Removals that no step waits for.
    pub(super) after: Vec<Step>,
    /// Instances some step before `after` removes.
    removed: BTreeSet<ContainerId>,
    plan: Plan,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        input: &'a PlanInput<'a>,
        all: &'a PodStatus,
        restarts: &'a PodRestarts<'a>,
    ) -> Self {
        Self {
            input,
            all,
            restarts,
            before: Vec::new(),
            starts: Vec::new(),
            after: Vec::new(),
            removed: BTreeSet::new(),
            plan: Plan::default(),
        }
    }

    /// The plan: kills and removals that free space, sandbox, starts, other removals.
    pub(super) fn into_plan(self) -> Plan {
        let mut plan = self.plan;
        plan.steps = self.before;
        plan.steps.extend(self.starts);
        plan.steps.extend(self.after);
        plan
    }

    /// Stops everything of the pod, if anything runs.
    pub(super) fn kill_pod(&mut self, reason: Reason) {
        if self.all.anything_running() {
            self.before.push(Step::KillPod { reason });
        }
    }

    /// The pod has ended: replaces the plan so far by stops of everything that still runs.
    pub(super) fn finish(&mut self, reason: Reason) {
        self.before.clear();
        self.starts.clear();
        self.removed.clear();
        self.plan = Plan {
            finished: true,
            ..Plan::default()
        };
        self.kill_pod(reason);
    }

    /// Requests the next call after that time at the latest.
    pub(super) fn look_again(&mut self, after: Duration) {
        self.plan.look_again = Some(self.plan.look_again.map_or(after, |t| t.min(after)));
    }

    /// Says why a container isn't started.
    pub(super) fn hold(&mut self, container: &Container, reason: &str, message: &str) {
        let waiting = Waiting {
            reason: reason.into(),
            message: message.into(),
        };
        let name = container.name.as_str().into();
        self.plan.waiting.insert(name, waiting);
    }

    /// Stops one instance.
    pub(super) fn kill(&mut self, seen: &ContainerStatus, reason: Reason) {
        let is_same =
            |step: &Step| matches!(step, Step::KillContainer { id, .. } if *id == seen.id);
        if self.before.iter().any(is_same) {
            return;
        }
        self.before.push(Step::KillContainer {
            id: seen.id.clone(),
            name: seen.name.clone(),
            reason,
        });
    }

    /// Removes an instance before anything is started.
    pub(super) fn remove_before(&mut self, seen: &ContainerStatus) {
        self.removed.insert(seen.id.clone());
        self.before.push(Step::RemoveContainer {
            id: seen.id.clone(),
            name: seen.name.clone(),
        });
    }

    /// Removes an instance after all other steps, unless it is gone by then.
    pub(super) fn remove_after(&mut self, id: &ContainerId, name: &Arc<str>) {
        if self.removed.insert(id.clone()) {
            self.after.push(Step::RemoveContainer {
                id: id.clone(),
                name: name.clone(),
            });
        }
    }

    /// Starts a container in the current sandbox, unless it is in back-off. Running instances with its
    /// name are stopped in any case: there are never two of them.
    pub(super) fn start(&mut self, role: Role, container: &Container, reason: Reason) -> Start {
        let status = self.all;
        let namesakes = || {
            status
                .containers
                .iter()
                .filter(|c| *c.name == *container.name)
        };
        for seen in namesakes().filter(|c| c.may_be_running()) {
            self.kill(seen, reason.clone());
        }
        let newest = namesakes().next();
        let by_hand = newest
            .filter(|c| c.state == ContainerState::Exited)
            .and_then(|c| c.by_hand);
        if let Some(left) = by_hand.and_then(|by| by.settles(self.input.now)) {
            self.look_again(left);
            return Start::Waits;
        }
        if self.waits(container) {
            return Start::Waits;
        }
        // The name of an instance that was never started is that of the new one. The runtime makes room
        // for that, unless the spec has changed since, or all containers were restarted.
        if let Some(newest) = namesakes().next()
            && newest.state == ContainerState::Created
            && (self.restarts.is_before(newest)
                || (newest.hash != container_hash(container) && newest.hash.0 != 0))
        {
            self.remove_before(newest);
        }
        self.push_start(role, container, reason);
        Start::Planned
    }

    /// Starts a container in the sandbox that this plan creates. Its own back-off doesn't apply: its
    /// end was not the container's fault.
    pub(super) fn start_in_new_sandbox(&mut self, role: Role, container: &Container) {
        let name: Arc<str> = container.name.as_str().into();
        let seen = self.input.status.find_container_status_by_name(&name);
        let reason = if seen.is_some() {
            Reason::SandboxRecreated { container: name }
        } else {
            Reason::NeverStarted { container: name }
        };
        self.push_start(role, container, reason);
    }

    fn push_start(&mut self, role: Role, container: &Container, reason: Reason) {
        let newest = self.all.find_container_status_by_name(&container.name);
        let restart_count = newest.map_or(0, |newest| match newest.state {
            ContainerState::Created => newest.restart_count,
            ContainerState::Running | ContainerState::Exited | ContainerState::Unknown => {
                newest.restart_count.saturating_add(1)
            }
        });
        let is_restarted = newest.is_some_and(|newest| self.restarts.is_before(newest));
        let reason = if is_restarted {
            self.restarts.reason()
        } else {
            reason
        };
        let pod_restarts = match role {
            Role::Ephemeral => 0,
            Role::Init | Role::Sidecar | Role::App => self.restarts.count,
        };
        self.starts.push(Step::StartContainer {
            name: container.name.as_str().into(),
            role,
            restart_count,
            pod_restarts,
            reason,
        });
    }

    /// Whether a container is in back-off; records that in the plan.
    ///
    /// Upstream: `kuberuntime_manager.go` (`doBackOff`).
    pub(super) fn waits(&mut self, container: &Container) -> bool {
        let Some((key, finished_at)) = super::backoff_event(self.input.pod, self.all, container)
        else {
            return false;
        };
        let backoff = self.input.backoff;
        let Some(remaining) = backoff.is_in_backoff_since(&key, finished_at, self.input.now) else {
            return false;
        };
        let message = format!(
            "back-off {} restarting failed container={} pod={}({})",
            go_duration(backoff.delay(&key)),
            container.name,
            FullName::of(self.input.pod),
            PodUid::of(self.input.pod),
        );
        self.hold(container, CRASH_LOOP, &message);
        self.look_again(remaining);
        true
    }

    /// Whether the pod's sandbox is in back-off, and containers wait for a new one; records that in the
    /// plan. It counts from the last new sandbox, so that one that lived longer than that is replaced
    /// immediately.
    ///
    /// Upstream creates the sandbox immediately, and delays the containers that ended with the last one
    /// (`kuberuntime_manager.go`, `doBackOff`).
    pub(super) fn sandbox_waits<'c>(
        &mut self,
        containers: impl Iterator<Item = &'c Container>,
    ) -> bool {
        let (backoff, key) = (self.input.backoff, sandbox_key());
        let Some(remaining) = backoff.is_in_backoff_since_update(&key, self.input.now) else {
            return false;
        };
        let message = format!(
            "back-off {} restarting failed sandbox of pod={}({})",
            go_duration(backoff.delay(&key)),
            FullName::of(self.input.pod),
            PodUid::of(self.input.pod),
        );
        for container in containers {
            self.hold(container, CRASH_LOOP, &message);
        }
        self.look_again(remaining);
        true
    }
}
