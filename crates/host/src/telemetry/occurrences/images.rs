//! Occurrences of image garbage collection.

use std::time::Duration;

use super::{Telemetry, millis};
use crate::telemetry::ImageGcCause;
use crate::telemetry::journal::Kind;
use mirrorlet_core::api::report::PullReport;

/// The progress of a pull. Call it seldom.
pub fn image_pull_progress(report: &PullReport) {
    let done = report.bytes_done.min(report.bytes_total);
    tracing::info!(
        "pulling image {}: {:?}, {} of {} layers, {done} of {} bytes",
        report.image,
        report.phase,
        report.layers_done,
        report.layers_total,
        report.bytes_total
    );
}

/// An image was removed.
pub fn image_collected(
    telemetry: &Telemetry,
    image: &str,
    cause: ImageGcCause,
    bytes: u64,
    took: Duration,
) {
    telemetry.metrics.image_collected(cause, bytes);
    tracing::info!(
        reason = cause.as_str(),
        elapsed_ms = millis(took),
        "removed image {image}, {bytes} bytes"
    );
}

/// An image that was selected for removal stays, for example because it came into use.
pub fn image_not_collected(image: &str, error: &str) {
    tracing::warn!(error, "failed to remove image {image}");
}

/// A pass failed. Upstream reports it only if the previous pass failed too.
///
/// Upstream: `StartGarbageCollection` of `pkg/kubelet/kubelet.go`.
pub fn image_gc_failed(telemetry: &Telemetry, error: &str, repeatedly: bool) {
    telemetry.metrics.image_gc_errors.inc();
    if repeatedly {
        telemetry.node_event(Kind::Warning, "ImageGCFailed", error);
    }
    tracing::warn!(error, "image garbage collection failed");
}

/// Not enough could be removed.
pub fn free_disk_space_failed(telemetry: &Telemetry, message: &str) {
    telemetry.node_event(Kind::Warning, "FreeDiskSpaceFailed", message);
}

/// The disk reports a capacity of zero.
pub fn invalid_disk_capacity(telemetry: &Telemetry, message: &str) {
    telemetry.node_event(Kind::Warning, "InvalidDiskCapacity", message);
}

/// Pulled images can't be recorded: after a restart, some will not be recognized as the agent's, and
/// stay.
pub fn pulled_images_not_noted(error: &str) {
    tracing::warn!(error, "failed to record which images were pulled");
}

/// Reports that the record of pulled images is unusable.
pub fn pulled_images_forgotten(error: &str) {
    tracing::warn!(
        error,
        "the record of pulled images is unreadable; images pulled earlier are kept"
    );
}

/// The credentials that pulled an image could not be recorded.
pub fn image_access_not_noted(error: &str) {
    tracing::warn!(
        error,
        "failed to record which credentials pulled an image; after a restart its pods pull it again"
    );
}

/// Reports that the record of the credentials that pulled images is unusable.
pub fn image_access_lost(error: &str) {
    tracing::warn!(
        error,
        "the record of the credentials that pulled images is unreadable; every image counts as pulled by unknown credentials, so pods pull images again. Remove image-access.json while the agent is stopped to use the images on this machine without verification"
    );
}
