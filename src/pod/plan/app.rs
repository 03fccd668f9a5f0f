//! Regular containers: keep, start or replace, in a sandbox that is fine.
//!
//! Upstream: the second half of `kuberuntime_manager.go` (`computePodActions`) and
//! `pkg/kubelet/container/helpers.go` (`ShouldContainerBeRestarted`).

use crate::api::Pod;
use crate::api::core::Container;
use crate::pod::observed::{ContainerState, ContainerStatus};
use crate::pod::restart::should_restart;
use crate::pod::spec::container_hash;

use super::Reason;

/// What to do about one container.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs, as it should.
    Keep,
    /// It is to be started, for that reason; whatever runs under its name is stopped first.
    Start(Reason),
    /// It is done.
    Done,
}

/// Decides about one regular container by its newest instance.
pub(super) fn judge(pod: &Pod, container: &Container, newest: Option<&ContainerStatus>) -> Verdict {
    let name = container.name.as_str().into();
    let Some(seen) = newest else {
        return Verdict::Start(Reason::NeverStarted { container: name });
    };
    match seen.state {
        // Failed liveness and startup probes are asked here.
        ContainerState::Running if definition_changed(container, seen) => {
            Verdict::Start(Reason::DefinitionChanged { container: name })
        }
        ContainerState::Running => Verdict::Keep,
        ContainerState::Created => Verdict::Start(Reason::CreatedOnly { container: name }),
        ContainerState::Unknown => Verdict::Start(Reason::UnknownState { container: name }),
        ContainerState::Exited => {
            let exit_code = seen.exit_code.unwrap_or_default();
            if should_restart(pod, container, exit_code) {
                Verdict::Start(Reason::Exited {
                    container: name,
                    exit_code,
                })
            } else {
                Verdict::Done
            }
        }
    }
}

/// Whether an instance was made from another definition. An unknown hash counts as unchanged:
/// adopted containers are not restarted for want of a label.
pub(super) fn definition_changed(container: &Container, seen: &ContainerStatus) -> bool {
    seen.hash.0 != 0 && seen.hash != container_hash(container)
}
