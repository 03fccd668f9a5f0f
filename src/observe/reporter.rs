//! Logs how containers ended, and what a user did to them, between two looks at a pod.

use std::collections::HashMap;

use crate::store::cache::Entry;
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::observed::{ContainerState, ContainerStatus, PodStatus, UserAction};
use mirrorlet_host::telemetry::{Telemetry, occurrences};

/// Reports the containers that ended since the last read. Those that had ended at the first read are
/// not new.
pub(super) fn report_deaths(telemetry: &Telemetry, before: &Entry, seen: &PodStatus) {
    if before.modified.is_none() {
        return;
    }
    let exited = |c: &&ContainerStatus| c.state == ContainerState::Exited;
    for container in seen.containers.iter().filter(exited) {
        let mut known = before.status.containers.iter().filter(exited);
        if !known.any(|c| c.id == container.id) {
            occurrences::container_died(
                telemetry.pod(&seen.full_name, &seen.uid),
                &container.name,
                &container.id,
                container.exit_code.unwrap_or_default(),
                &container.reason,
            );
        }
    }
}

/// Reports what a user did to containers and sandboxes since the last look.
pub(super) fn report_user_actions(telemetry: &Telemetry, before: &Entry, seen: &PodStatus) {
    if before.modified.is_none() {
        return;
    }
    let known = hands(&before.status);
    for (id, (container, hand)) in hands(seen) {
        if known.get(id).is_none_or(|(_, known)| *known != hand) {
            let (full_name, uid) = (&seen.full_name, &seen.uid);
            occurrences::handled(telemetry.pod(full_name, uid), container, hand);
        }
    }
}

/// Users' actions on a pod's containers, and on its sandboxes, which have no name.
fn hands(status: &PodStatus) -> HashMap<&ContainerId, (Option<&str>, UserAction)> {
    let actions = status.by_hand();
    let actions = actions.filter(|(_, _, by_hand)| by_hand.what != UserAction::Signalled);
    actions
        .map(|(id, container, by_hand)| (id, (container, by_hand.what)))
        .collect()
}
