//! Dead instances nobody needs any more.
//!
//! Of each container the newest instance stays, and the newest dead one beside it: they are its
//! state and its last state, and carry its restart count. Of the sandboxes the newest stays.
//!
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_gc.go` with `MaxPerPodContainer: 1`.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::keys::SANDBOX_NAME;
use crate::pod::observed::{ContainerState, PodStatus};

use super::draft::Draft;

/// Plans the removals, after everything else.
pub(super) fn prune(draft: &mut Draft<'_>) {
    let status: &PodStatus = draft.input.status;
    let mut newest_seen: BTreeSet<&str> = BTreeSet::new();
    let mut dead_kept: BTreeMap<&str, bool> = BTreeMap::new();
    for seen in &status.containers {
        let is_newest = newest_seen.insert(&seen.name);
        let kept = dead_kept.entry(&seen.name).or_default();
        match seen.state {
            ContainerState::Running | ContainerState::Unknown => {}
            ContainerState::Exited if !*kept => *kept = true,
            ContainerState::Created if is_newest => {}
            ContainerState::Exited | ContainerState::Created => {
                draft.remove_after(&seen.id, &seen.name);
            }
        }
    }
    for sandbox in status.sandboxes.iter().skip(1) {
        match sandbox.state {
            ContainerState::Running | ContainerState::Unknown => {}
            ContainerState::Created | ContainerState::Exited => {
                draft.remove_after(&sandbox.id, &SANDBOX_NAME.into());
            }
        }
    }
}
