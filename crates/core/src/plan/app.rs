//! Regular containers: keep, start or replace, in a sandbox that is fine.
//!
//! Upstream: the second half of `kuberuntime_manager.go` (`computePodActions`) and
//! `pkg/kubelet/container/helpers.go` (`ShouldContainerBeRestarted`).

use crate::api::Pod;
use crate::api::core::Container;
use crate::observed::{ContainerState, ContainerStatus, UserAction};
use crate::probe::{ProbeKind, ProbeResults};
use crate::restart::{self, should_restart};
use crate::spec::{self, RestartPolicy, container_hash};

use super::Reason;

/// The decision about one container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs, as it should.
    Keep,
    /// It must be started, for that reason; a running instance with its name is stopped first.
    Start(Reason),
    /// It must be stopped for that reason, and not started again.
    Stop(Reason),
    /// It is done.
    Done,
}

/// Decides about one regular container by its newest instance.
pub(super) fn judge(
    pod: &Pod,
    container: &Container,
    newest: Option<&ContainerStatus>,
    probes: &ProbeResults,
) -> Verdict {
    let name = container.name.as_str().into();
    let Some(seen) = newest else {
        return Verdict::Start(Reason::NeverStarted { container: name });
    };
    match seen.state {
        ContainerState::Running | ContainerState::Exited if spec::to_restart(pod, &seen.id) => {
            Verdict::Start(requested(&container.name))
        }
        ContainerState::Running if definition_changed(container, seen) => {
            Verdict::Start(Reason::DefinitionChanged { container: name })
        }
        ContainerState::Running => {
            // Rules that want it back are asked when its exit code is known.
            let for_good = restart::policy(pod, container) == RestartPolicy::Never;
            let by_hand = by_hand(seen.started_by_hand(), &container.name, for_good);
            match by_hand.or_else(|| failed_probe(container, seen, probes, for_good)) {
                None => Verdict::Keep,
                Some(reason) if for_good => Verdict::Stop(reason),
                Some(reason) => Verdict::Start(reason),
            }
        }
        ContainerState::Created => Verdict::Start(Reason::CreatedOnly { container: name }),
        ContainerState::Unknown => Verdict::Start(Reason::UnknownState { container: name }),
        ContainerState::Exited => {
            let exit_code = seen.exit_code.unwrap_or_default();
            if should_restart(pod, container, exit_code) {
                Verdict::Start(exited(seen))
            } else {
                Verdict::Done
            }
        }
    }
}

/// The reason for restarting an ended instance.
pub(super) fn exited(seen: &ContainerStatus) -> Reason {
    by_hand(seen.hand(), &seen.name, false).unwrap_or_else(|| Reason::Exited {
        container: seen.name.clone(),
        exit_code: seen.exit_code.unwrap_or_default(),
    })
}

/// The reason for replacing an instance on a user's request.
pub(super) fn requested(name: &str) -> Reason {
    Reason::Requested {
        container: name.into(),
    }
}

/// The reason for replacing an instance that a user handled. An instance that a user started runs
/// without its hooks and without probe results, and its restart isn't counted: it must be replaced.
pub(super) fn by_hand(what: Option<UserAction>, name: &str, for_good: bool) -> Option<Reason> {
    what.map(|what| Reason::ByHand {
        container: name.into(),
        what,
        for_good,
    })
}

/// Why a running instance must be stopped, if one of its probes requires it; `for_good` if it isn't
/// started again.
pub(super) fn failed_probe(
    container: &Container,
    seen: &ContainerStatus,
    probes: &ProbeResults,
    for_good: bool,
) -> Option<Reason> {
    let name = container.name.as_str().into();
    if probes.has_failed(container, seen, ProbeKind::Liveness) {
        Some(Reason::LivenessFailed {
            container: name,
            for_good,
        })
    } else if probes.has_failed(container, seen, ProbeKind::Startup) {
        Some(Reason::StartupFailed {
            container: name,
            for_good,
        })
    } else {
        None
    }
}

/// Whether an instance was created from another definition. An unknown hash counts as unchanged:
/// adopted containers are not restarted because a label is missing.
pub(super) fn definition_changed(container: &Container, seen: &ContainerStatus) -> bool {
    seen.hash.0 != 0 && seen.hash != container_hash(container)
}
