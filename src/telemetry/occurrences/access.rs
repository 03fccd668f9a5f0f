//! What happens when somebody, or a probe, enters a container.

use crate::api::ContainerId;

/// A link to a log could not be made or removed.
pub fn log_link_failed(container: Option<&ContainerId>, why: &str) {
    tracing::warn!(
        container_id = container.map(ContainerId::short),
        "a link under --pod-logs-dir could not be made or removed: {why}"
    );
}

/// The process of an exec that nobody waits for any more could not be ended.
pub fn exec_goes_on(container: &ContainerId, why: &str) {
    tracing::warn!(
        container_id = container.short(),
        "a command in the container goes on though nobody waits for it any more: {why}"
    );
}
