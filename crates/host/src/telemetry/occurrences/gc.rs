//! Occurrences of container garbage collection.

use super::{Shown, Telemetry};
use crate::telemetry::journal::Kind;
use mirrorlet_core::gc::Removal;
use mirrorlet_runtime::gc::GcOutcome;

/// A dead container or sandbox was removed by garbage collection.
pub fn container_collected(telemetry: &Telemetry, removal: &Removal) {
    telemetry.metrics.container_collected(removal.cause);
    let message = format!(
        "removed a dead instance of {}: {}",
        removal.name, removal.cause
    );
    let of = telemetry.pod(&removal.full_name, &removal.uid);
    of.event(None, Kind::Trace, "Collected", message);
    log!(
        info: of, container = &*removal.name, container_id = removal.id.short(),
        reason = %removal.cause, "dead container removed"
    );
}

/// A collection is complete. `failed` stores whether the previous one failed.
///
/// Upstream: `StartGarbageCollection` of `pkg/kubelet/kubelet.go`.
pub fn containers_collected(telemetry: &Telemetry, outcome: &GcOutcome, failed: &mut bool) {
    let before = std::mem::replace(failed, false);
    let Some(error) = outcome.error() else {
        if before {
            tracing::info!("container garbage collection succeeded");
        }
        return;
    };
    *failed = true;
    telemetry.metrics.container_gc_failed(outcome.failed.len());
    telemetry.node_event(Kind::Warning, "ContainerGCFailed", error.as_str());
    tracing::warn!(error, "container garbage collection failed; will try again");
}
