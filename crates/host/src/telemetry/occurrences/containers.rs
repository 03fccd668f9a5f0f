//! Occurrences of a container and its image.

use std::path::Path;
use std::time::Duration;

use super::pods::format_pod;
use super::{PodTelemetry, Shown, millis};
use crate::telemetry::journal::Kind;
use crate::telemetry::metrics::PullOutcome;
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::observed::UserAction;
use mirrorlet_core::plan::Reason;
use mirrorlet_runtime::{SyncError, SyncErrorReason};

/// A container was created.
pub fn container_created(of: PodTelemetry<'_>, container: &str, id: &ContainerId) {
    let message = "Container created";
    of.event(Some(container), Kind::Normal, "Created", message);
    log!(debug: of, container, container_id = id.short(), "container created");
}

/// A container was started; `attempt` counts the instances before it.
pub fn container_started(
    of: PodTelemetry<'_>,
    container: &str,
    id: &ContainerId,
    attempt: u32,
    reason: &str,
) {
    let message = "Container started";
    of.event(Some(container), Kind::Normal, "Started", message);
    of.telemetry.metrics.container_started(attempt > 0);
    log!(info: of, container, container_id = id.short(), attempt, reason, "container started");
}

/// A container ended, by itself or stopped.
pub fn container_died(
    of: PodTelemetry<'_>,
    container: &str,
    id: &ContainerId,
    exit_code: i32,
    reason: &str,
) {
    let message = format!("ended with exit code {exit_code}: {reason}");
    of.event(Some(container), Kind::Trace, "Died", message);
    of.telemetry.metrics.container_deaths.inc();
    log!(
        info: of, container, container_id = id.short(), reason,
        "container ended with exit code {exit_code}"
    );
}

/// A user stopped or started a container, or the sandbox when none, with docker.
pub fn handled(of: PodTelemetry<'_>, container: Option<&str>, what: UserAction) {
    let name = container.map_or_else(
        || "the sandbox".to_owned(),
        |container| format!("container {container}"),
    );
    let message = format!("A user {what} {name} with docker");
    log!(info: of, container, "{message}");
    of.event(container, Kind::Normal, "ByHand", message);
}

/// A container is about to be stopped: alone if there is a reason, otherwise with its whole pod.
///
/// Upstream: `killContainer` of `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
pub fn container_stopping(of: PodTelemetry<'_>, container: &str, reason: Option<&Reason>) {
    let failed_probe = |probe, for_good| {
        let next = if for_good { "" } else { ", will be restarted" };
        format!("Container {container} failed {probe} probe{next}")
    };
    let message = match reason {
        None => format!("Stopping container {container}"),
        Some(Reason::DefinitionChanged { .. }) => {
            format!("Container {container} definition changed, will be restarted")
        }
        Some(Reason::UnknownState { .. }) => {
            format!("Container {container} is in an unknown state, will be restarted")
        }
        Some(Reason::LivenessFailed { for_good, .. }) => failed_probe("liveness", *for_good),
        Some(Reason::StartupFailed { for_good, .. }) => failed_probe("startup", *for_good),
        Some(Reason::PostStartFailed { .. }) => "FailedPostStartHook".to_owned(),
        Some(reason) => format!("Stopping container {container}: {reason}"),
    };
    of.event(Some(container), Kind::Normal, "Killing", message.as_str());
}

/// A container was stopped by the agent.
pub fn container_killed(
    of: PodTelemetry<'_>,
    container: &str,
    id: &ContainerId,
    reason: &str,
    took: Duration,
) {
    let message = format!("stopped within {} ms", millis(took));
    of.event(Some(container), Kind::Trace, "Stopped", message);
    of.telemetry.metrics.container_kills.inc();
    log!(
        info: of, container, container_id = id.short(), reason, elapsed_ms = millis(took),
        "container stopped"
    );
}

/// The plan stops one container.
pub fn container_killing(of: PodTelemetry<'_>, container: &str, reason: &str) {
    let message = format!("no longer wanted: {reason}");
    of.event(Some(container), Kind::Trace, "Stopping", message);
    log!(info: of, container, reason, "stopping the container");
}

/// A crash-looping container waits in back-off. Call it once per wait.
///
/// Upstream: `doBackOff` of `pkg/kubelet/kuberuntime/kuberuntime_manager.go`.
pub fn backoff(of: PodTelemetry<'_>, container: &str, attempt: u32, wait: Duration) {
    let message = format!(
        "Back-off restarting failed container {container} in pod {}",
        format_pod(of.name, of.uid)
    );
    of.event(Some(container), Kind::Warning, "BackOff", message);
    log!(
        warn: of, container, attempt, reason = "CrashLoopBackOff",
        "the container keeps crashing; restarting it in {} s", wait.as_secs()
    );
}

/// Some of a pod's pull secrets can't be read; its images are pulled without them.
///
/// Upstream: `SyncPod` of `pkg/kubelet/kubelet.go` (`FailedToRetrieveImagePullSecret`).
pub fn pull_secrets_unreadable(of: PodTelemetry<'_>, names: &[String]) {
    let message = format!(
        "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not \
         succeed.",
        names.join(", ")
    );
    log!(warn: of, "{message}");
    of.event(
        None,
        Kind::Warning,
        "FailedToRetrieveImagePullSecret",
        message,
    );
}

/// The node's configuration of registries can't be used. Call it when that begins, or its cause
/// changes.
pub fn docker_config_unusable(error: &str) {
    tracing::warn!(
        error,
        "the docker config can't be used; images are pulled without its credentials"
    );
}

/// The node's configuration of registries can be used again, or is gone.
pub fn docker_config_mended(directory: &Path) {
    tracing::info!(
        "the Docker config in {} can be used again",
        directory.display()
    );
}

/// An image pull begins, for all containers that wait for it.
pub fn image_pulling(image: &str) {
    tracing::info!("pulling image {image}");
}

/// A container begins to wait for an image pull.
pub fn image_awaited(of: PodTelemetry<'_>, container: &str, image: &str) {
    let message = format!("Pulling image {image:?}");
    of.event(Some(container), Kind::Normal, "Pulling", message);
}

/// A container's image was present already.
pub fn image_present(of: PodTelemetry<'_>, container: &str, image: &str) {
    let message = format!("Container image {image:?} already present on machine");
    of.event(Some(container), Kind::Normal, "Pulled", message);
}

/// An image was pulled; `took` includes the time it waited for other pulls.
pub fn image_pulled(of: PodTelemetry<'_>, container: &str, image: &str, size: u64, took: Duration) {
    let message = format!(
        "Successfully pulled image {image:?} in {} (including waiting). Image size: {size} bytes.",
        go_millis(took)
    );
    of.event(Some(container), Kind::Normal, "Pulled", message);
    of.telemetry.metrics.pulled(PullOutcome::Pulled, took);
    log!(info: of, container, elapsed_ms = millis(took), "pulled image {image}");
}

/// A container's image is not available: its pull failed or waits, its policy forbids a pull, or its
/// presence can't be checked.
///
/// Upstream: `EnsureImageExists` of `pkg/kubelet/images/image_manager.go`.
pub fn image_failed(
    of: PodTelemetry<'_>,
    container: &str,
    image: &str,
    took: Duration,
    error: &SyncError,
) {
    let report = |kind, reason: &str, message: &str| {
        of.event(Some(container), kind, reason, message);
    };
    let failed = || {
        let message = format!("Error: {}", error.reason);
        report(Kind::Warning, "Failed", &message);
    };
    let backs_off = || {
        let message = format!("Back-off pulling image {image:?}");
        report(Kind::Normal, "BackOff", &message);
    };
    match error.reason {
        SyncErrorReason::ErrImagePull | SyncErrorReason::RegistryUnavailable => {
            report(Kind::Warning, "Failed", &error.message);
            failed();
            if error.retry_after.is_some_and(|wait| !wait.is_zero()) {
                backs_off();
            }
            of.telemetry.metrics.pulled(PullOutcome::Failed, took);
        }
        SyncErrorReason::ImagePullBackOff => {
            backs_off();
            return failed();
        }
        SyncErrorReason::ErrImageNeverPull => {
            report(Kind::Warning, "ErrImageNeverPull", &error.message);
            failed();
        }
        SyncErrorReason::InvalidImageName | SyncErrorReason::ImageInspectError => {
            report(Kind::Warning, "InspectFailed", &error.message);
            failed();
        }
        // The Engine is away, which is reported of the Node.
        _ => return,
    }
    log!(
        warn: of, container, elapsed_ms = millis(took), error = error.message,
        "failed to get image {image}"
    );
}

/// A duration in whole milliseconds as Go prints it: `5ms`, `1.2s`, `1m5.2s`.
fn go_millis(took: Duration) -> String {
    let millis = millis(took);
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let seconds = format!("{}{point}{fraction}s", rest / 1000);
    match (minutes / 60, minutes % 60) {
        (0, 0) => seconds,
        (0, minutes) => format!("{minutes}m{seconds}"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_as_go_does() {
        for (millis, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1000, "1s"),
            (1234, "1.234s"),
            (61_500, "1m1.5s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_millis(Duration::from_millis(millis)), text);
        }
    }
}
