//! The phase of a pod.
//!
//! Upstream: `pkg/kubelet/kubelet_pods.go` (`getPhase`).

use crate::api::core::{ContainerState, ContainerStatus};
use crate::observed::{Role, judged_exit_code};
use crate::spec;

use super::{StatusInput, runs_again};

/// Not all containers that must start have started.
pub(super) const PENDING: &str = "Pending";
/// It runs, or will be restarted.
pub(super) const RUNNING: &str = "Running";
/// It ended well, for good.
pub(super) const SUCCEEDED: &str = "Succeeded";
/// It ended badly, for good.
pub(super) const FAILED: &str = "Failed";

/// The phase, if it is final.
pub(super) fn terminal(phase: Option<&str>) -> Option<&'static str> {
    match phase {
        Some("Succeeded") => Some(SUCCEEDED),
        Some("Failed") => Some(FAILED),
        _ => None,
    }
}

/// The state of one container, in the API's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Missing,
    Running { started: bool },
    Stopped { code: i32 },
    Restarting { code: i32 },
    Waiting,
}

fn seen(statuses: &[ContainerStatus], name: &str, role: Role) -> Seen {
    let Some(status) = statuses.iter().find(|s| s.name == name) else {
        return Seen::Missing;
    };
    let exit_code = |state: Option<&ContainerState>| {
        let ended = state.and_then(|s| s.terminated.as_ref())?;
        let reason = ended.reason.as_deref().unwrap_or_default();
        Some(judged_exit_code(role, ended.exit_code, reason))
    };
    let state = status.state.as_ref();
    if state.is_some_and(|s| s.running.is_some()) {
        return Seen::Running {
            started: status.started == Some(true),
        };
    }
    if let Some(code) = exit_code(state) {
        return Seen::Stopped { code };
    }
    match (
        state.is_some_and(|s| s.waiting.is_some()),
        exit_code(status.last_state.as_ref()),
    ) {
        (true, Some(code)) => Seen::Restarting { code },
        (true, None) => Seen::Waiting,
        (false, _) => Seen::Missing,
    }
}

#[derive(Debug, Default)]
struct Count {
    pending_init: usize,
    pending_sidecar: usize,
    /// Init containers that failed for good.
    failed_init: usize,
    unknown: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    /// Those of them that are not started again.
    done: usize,
    succeeded: usize,
    /// Regular containers that run or have run.
    app_ran: bool,
}

impl Count {
    fn init(&mut self, seen: Seen, again: impl Fn(i32) -> bool) {
        match seen {
            Seen::Missing | Seen::Running { .. } | Seen::Waiting => self.pending_init += 1,
            Seen::Stopped { code } | Seen::Restarting { code } => {
                self.failed_init += usize::from(code != 0 && !again(code));
            }
        }
    }

    fn sidecar(&mut self, seen: Seen) {
        match seen {
            Seen::Missing => self.unknown += 1,
            Seen::Running { started } => {
                self.running += 1;
                self.pending_sidecar += usize::from(!started);
            }
            Seen::Stopped { .. } | Seen::Restarting { .. } => {}
            Seen::Waiting => {
                self.waiting += 1;
                self.pending_sidecar += 1;
            }
        }
    }

    fn app(&mut self, seen: Seen, again: impl Fn(i32) -> bool) {
        match seen {
            Seen::Missing => self.unknown += 1,
            Seen::Running { .. } => {
                self.running += 1;
                self.app_ran = true;
            }
            Seen::Stopped { code } => {
                self.stopped += 1;
                self.done += usize::from(!again(code));
                self.succeeded += usize::from(code == 0);
                self.app_ran = true;
            }
            Seen::Restarting { code } => {
                self.stopped += 1;
                self.done += usize::from(!again(code));
                self.app_ran = true;
            }
            Seen::Waiting => self.waiting += 1,
        }
    }
}

/// The phase of a pod without running containers, none of which will start.
pub(super) fn of_ended(apps: &[ContainerStatus]) -> &'static str {
    let has_succeeded =
        |app: &ContainerStatus| seen(apps, &app.name, Role::App) == Seen::Stopped { code: 0 };
    if apps.iter().all(has_succeeded) {
        SUCCEEDED
    } else {
        FAILED
    }
}

/// The phase that follows from container statuses, regardless of the previous one.
pub(super) fn phase(
    input: &StatusInput<'_>,
    init: &[ContainerStatus],
    apps: &[ContainerStatus],
) -> &'static str {
    let mut count = Count::default();
    for (role, container) in spec::containers(input.pod) {
        let again = |code| runs_again(input, container, code);
        match role {
            Role::Init => count.init(seen(init, &container.name, role), again),
            Role::Sidecar => count.sidecar(seen(init, &container.name, role)),
            Role::App => count.app(seen(apps, &container.name, role), again),
            Role::Ephemeral => {}
        }
    }
    if count.failed_init > 0 {
        return FAILED;
    }
    let initializing = count.pending_init > 0 || (count.pending_sidecar > 0 && !count.app_ran);
    if initializing || count.waiting > 0 || count.unknown > 0 {
        return PENDING;
    }
    if count.running > 0 {
        return RUNNING;
    }
    if count.stopped == 0 {
        return PENDING;
    }
    // A static pod is not forced into a phase it could not leave: it is its file that ends it.
    let forced = input.terminating && !input.is_static;
    if count.done < count.stopped && !forced {
        RUNNING
    } else if count.stopped == count.succeeded {
        SUCCEEDED
    } else {
        FAILED
    }
}
