//! Init containers and sidecars: which of them to start next, in a sandbox that is fine.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_container.go` (`computeInitContainerActions`).

use crate::api::Pod;
use crate::api::core::Container;
use crate::observed::{ContainerState, ContainerStatus, PodStatus, Role};
use crate::probe::{ProbeKind, ProbeResults};
use crate::restart::{self, should_restart};
use crate::spec::{self, RestartPolicy};

use super::Reason;
use super::app::{by_hand, definition_changed, exited, failed_probe, requested};

/// One init container or sidecar to start.
#[derive(Debug)]
pub(super) struct InitStart<'a> {
    pub(super) role: Role,
    pub(super) container: &'a Container,
    pub(super) reason: Reason,
}

/// The progress of a pod's initialization.
#[derive(Debug)]
pub(super) enum Initialization<'a> {
    /// A regular init container failed, and the pod is never restarted.
    Failed(Reason),
    /// Initialization continues; regular containers wait.
    Running(Vec<InitStart<'a>>),
    /// It is done; stopped sidecars must be started.
    Done(Vec<InitStart<'a>>),
}

/// The decision about one init container or sidecar.
enum Verdict {
    /// Start it, for that reason.
    Start(Reason),
    /// It continues.
    Wait,
    /// It is in the desired state, so later containers may start. It may have to be replaced
    /// nevertheless, for that reason.
    Passed(Option<Reason>),
    /// It failed for good.
    Fatal(Reason),
}

/// Walks the init containers backwards: finished ones may have been removed, so the last existing one
/// shows the pod's progress.
pub(super) fn initialization<'a>(
    pod: &'a Pod,
    status: &PodStatus,
    probes: &ProbeResults,
) -> Initialization<'a> {
    let inits: Vec<(Role, &Container)> = spec::containers(pod)
        .filter(|(role, _)| *role != Role::App)
        .collect();
    if inits.is_empty() {
        return Initialization::Done(Vec::new());
    }
    let mut initialized = has_initialized(pod, status);
    // Whether the current container was completed before.
    let mut passed = initialized;
    let mut starts: Vec<InitStart<'a>> = Vec::new();
    let start = |index: usize, reason: Reason| {
        inits.get(index).map(|&(role, container)| InitStart {
            role,
            container,
            reason,
        })
    };
    for (index, &(role, container)) in inits.iter().enumerate().rev() {
        let seen = status.find_container_status_by_name(&container.name);
        let Some(seen) = seen else {
            if passed && role == Role::Sidecar {
                starts.extend(start(index, never_started(container)));
            }
            continue;
        };
        // After it was passed, a regular init container has nothing more to do.
        if passed && role == Role::Init {
            continue;
        }
        let verdict = match role {
            Role::Init => judge_init(pod, container, seen),
            Role::Sidecar | Role::App | Role::Ephemeral => {
                judge_sidecar(pod, container, seen, probes)
            }
        };
        let restart = match verdict {
            Verdict::Fatal(reason) => return Initialization::Failed(reason),
            Verdict::Wait => None,
            Verdict::Start(reason) => start(index, reason),
            Verdict::Passed(replace) => {
                match inits.get(index + 1) {
                    None => initialized = true,
                    Some((_, next)) if !passed => {
                        starts.extend(start(index + 1, never_started(next)));
                    }
                    Some(_) => {}
                }
                replace.and_then(|reason| start(index, reason))
            }
        };
        starts.extend(restart);
        passed = true;
    }
    if !passed {
        starts.extend(inits.first().map(|&(role, container)| InitStart {
            role,
            container,
            reason: never_started(container),
        }));
    }
    starts.reverse();
    if initialized {
        Initialization::Done(starts)
    } else {
        Initialization::Running(starts)
    }
}

/// Whether a regular container shows that all init containers are done. Exited ones don't count: they
/// may be from an earlier sandbox.
pub(super) fn has_initialized(pod: &Pod, status: &PodStatus) -> bool {
    spec::spec(pod).containers.iter().any(|container| {
        status
            .find_container_status_by_name(&container.name)
            .is_some_and(|seen| match seen.state {
                ContainerState::Created | ContainerState::Running => true,
                ContainerState::Exited | ContainerState::Unknown => false,
            })
    })
}

fn never_started(container: &Container) -> Reason {
    Reason::NeverStarted {
        container: container.name.as_str().into(),
    }
}

fn judge_init(pod: &Pod, container: &Container, seen: &ContainerStatus) -> Verdict {
    let name = container.name.as_str().into();
    let failed = |again: bool, reason| {
        if again {
            Verdict::Start(reason)
        } else {
            Verdict::Fatal(Reason::InitFailed {
                container: container.name.as_str().into(),
            })
        }
    };
    match seen.state {
        ContainerState::Created => Verdict::Start(Reason::CreatedOnly { container: name }),
        ContainerState::Running => {
            by_hand(seen.started_by_hand(), &seen.name, false).map_or(Verdict::Wait, Verdict::Start)
        }
        ContainerState::Exited if seen.succeeded() => Verdict::Passed(None),
        ContainerState::Exited => {
            let again = should_restart(pod, container, seen.judged_exit_code());
            failed(again, exited(seen))
        }
        // It may not have ended: there is no code that rules could go by.
        ContainerState::Unknown => failed(
            restart::policy(pod, container) != RestartPolicy::Never,
            Reason::UnknownState { container: name },
        ),
    }
}

fn judge_sidecar(
    pod: &Pod,
    container: &Container,
    seen: &ContainerStatus,
    probes: &ProbeResults,
) -> Verdict {
    let name = container.name.as_str().into();
    let wanted = by_hand(seen.started_by_hand(), &seen.name, false)
        .or_else(|| spec::to_restart(pod, &seen.id).then(|| requested(&seen.name)));
    match seen.state {
        ContainerState::Created => Verdict::Start(Reason::CreatedOnly { container: name }),
        ContainerState::Running if wanted.is_some() => {
            if probes.has_started(container, seen) {
                Verdict::Passed(wanted)
            } else {
                wanted.map_or(Verdict::Wait, Verdict::Start)
            }
        }
        // The next container waits until this one has started, not for its liveness.
        ContainerState::Running if !probes.has_started(container, seen) => {
            let failed = probes.has_failed(container, seen, ProbeKind::Startup);
            match failed_probe(container, seen, probes, false) {
                Some(reason) if failed => Verdict::Start(reason),
                Some(_) | None => Verdict::Wait,
            }
        }
        ContainerState::Running if definition_changed(container, seen) => {
            Verdict::Passed(Some(Reason::DefinitionChanged { container: name }))
        }
        ContainerState::Running => Verdict::Passed(failed_probe(container, seen, probes, false)),
        ContainerState::Exited => Verdict::Start(exited(seen)),
        ContainerState::Unknown => Verdict::Start(Reason::UnknownState { container: name }),
    }
}
