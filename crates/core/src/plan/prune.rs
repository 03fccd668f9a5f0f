//! Dead instances that are no longer needed.
//!
//! Of each container the newest instance stays, and as many dead ones as the garbage collector would
//! keep (`pod::gc` has the rule): they provide its state, its last state and its restart count. Of the
//! sandboxes the newest stays.
//!
//! Upstream: `pkg/kubelet/pod_container_deletor.go`.

use std::collections::BTreeMap;

use crate::api::keys::SANDBOX_NAME;
use crate::gc::to_prune;
use crate::observed::{ContainerState, ContainerStatus, PodStatus};

use super::draft::Draft;

/// Plans the removals, after everything else.
pub(super) fn prune(draft: &mut Draft<'_>) {
    let input = draft.input;
    let status: &PodStatus = draft.all;
    let mut by_name: BTreeMap<&str, Vec<&ContainerStatus>> = BTreeMap::new();
    for seen in &status.containers {
        by_name.entry(&seen.name).or_default().push(seen);
    }
    for instances in by_name.values() {
        for seen in to_prune(instances, input.gc, input.now) {
            if status.shows_pod_restart(seen) {
                continue;
            }
            draft.remove_after(&seen.id, &seen.name);
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
