//! Occurrences of a whole pod. In one file: a function for each of them.

use std::fmt::Write as _;
use std::time::Duration;

use super::{PodTelemetry, Shown, Telemetry, millis};
use crate::telemetry::calls::EngineCall;
use crate::telemetry::journal::Kind;
use crate::telemetry::metrics::RolloutOutcome;
use mirrorlet_core::api::{ContainerId, FullName, PodUid};
use mirrorlet_core::desired::SourcePod;
use mirrorlet_core::events::{WorkloadEvent, without_ids};
use mirrorlet_core::plan::{Plan, Reason, Step};
use mirrorlet_runtime::{PodSyncResult, SyncAction, SyncError, SyncErrorReason};

/// The name of a sandbox in messages.
const SANDBOX: &str = "the pod's sandbox";
/// Maximum number of a round's Engine calls that the pod's history lists by name.
const NAMED_CALLS_MAX: usize = 30;

fn trace(of: PodTelemetry<'_>, reason: &str, message: String) {
    of.event(None, Kind::Trace, reason, message);
}

/// A pod in the format of upstream's messages: `name_namespace(uid)`.
///
/// Upstream: `pkg/kubelet/util/format/pod.go`.
pub(super) fn format_pod(pod: &FullName, uid: &PodUid) -> String {
    format!("{pod}({uid})")
}

/// A pod's manifest was read: it is new, or changed. Records the pod's containers.
pub fn manifest_read(telemetry: &Telemetry, pod: &SourcePod) {
    telemetry.journal.set_refs(&pod.pod);
    let document = match pod.origin.document {
        0 => String::new(),
        number => format!(", document {}", u64::from(number) + 1),
    };
    let held = if pod.held { "; last good version" } else { "" };
    let (uid, location) = (pod.uid(), &pod.origin.location);
    let message = if pod.origin.source == mirrorlet_core::desired::PodSource::Api {
        "read from the API server".to_owned()
    } else {
        format!("read from {location}{document}, hash {uid}{held}")
    };
    trace(
        telemetry.pod(&pod.full_name(), &uid),
        "ManifestRead",
        message,
    );
}

/// The manifest of a running pod has become invalid: its last valid version stays in use.
pub fn manifest_held(of: PodTelemetry<'_>, problem: &str) {
    let message = format!("the last good version keeps running: {problem}");
    trace(of, "ManifestHeld", message);
}

/// The manifest of a pod can be used again.
pub fn manifest_released(of: PodTelemetry<'_>) {
    let message = "the manifest is valid again".to_owned();
    trace(of, "ManifestGood", message);
}

/// The newest version of a pod is being prepared; the version `uid` keeps running.
pub fn rollout_started(of: PodTelemetry<'_>, newest: &PodUid) {
    of.telemetry.metrics.rollout(RolloutOutcome::Started);
    let message = format!(
        "preparing version {newest}; version {} keeps running",
        of.uid
    );
    trace(of, "RolloutStarted", message);
    log!(info: of, newest = %newest, "preparing a new version");
}

/// Rollout outcomes in which the manifest's version does not run, or runs badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutSetback {
    /// The new version can't be started; the previous one keeps running.
    Held,
    /// The new version failed and keeps running.
    Failed,
    /// The new version failed; the last healthy one runs again.
    Restored,
}

/// Records a setback in the rollout of a pod; `uid` is that of the running version.
pub fn rollout_setback(of: PodTelemetry<'_>, setback: RolloutSetback, reason: &str, message: &str) {
    let (outcome, event, words) = match setback {
        RolloutSetback::Held => (
            RolloutOutcome::Held,
            "RolloutHeld",
            "the new version can't be started, the previous one keeps running",
        ),
        RolloutSetback::Failed => (
            RolloutOutcome::Failed,
            "RolloutFailed",
            "the new version failed and keeps running",
        ),
        RolloutSetback::Restored => (
            RolloutOutcome::Restored,
            "RolloutRestored",
            "the new version failed; the last healthy version is running",
        ),
    };
    of.telemetry.metrics.rollout(outcome);
    let message = format!("{words}: {reason}: {message}");
    note(of, event, &message);
}

/// The newest version of a pod, `uid`, is healthy.
pub fn rollout_succeeded(of: PodTelemetry<'_>) {
    of.telemetry.metrics.rollout(RolloutOutcome::Succeeded);
    let message = "the new version is healthy";
    of.event(None, Kind::Normal, "RolloutSucceeded", message);
    log!(info: of, "{message}");
}

/// A user gave an order about the rollout of the pod that runs as `uid`.
pub fn rollout_commanded(of: PodTelemetry<'_>, reason: &'static str, message: String) {
    log!(info: of, "{message}");
    of.event(None, Kind::Normal, reason, message);
}

/// A pod isn't run because another has its full name.
///
/// Upstream: `filterInvalidPods` of `pkg/kubelet/config/config.go`.
pub fn pod_duplicate(telemetry: &Telemetry, pod: &SourcePod) {
    let (name, uid) = (pod.full_name(), pod.uid());
    let message = format!(
        "Error validating pod {} from {} due to duplicate pod name {:?}, ignoring",
        format_pod(&name, &uid),
        pod.origin.location,
        &*name.name,
    );
    let of = telemetry.pod(&name, &uid);
    of.event(None, Kind::Warning, "FailedValidation", message);
}

/// A pod is wanted from now on.
pub fn pod_added(of: PodTelemetry<'_>, source: &str) {
    let message = format!("wanted by {source}");
    trace(of, "Added", message);
    log!(info: of, source, "pod added");
}

/// A pod is no longer wanted.
pub fn pod_removed(of: PodTelemetry<'_>, reason: &str) {
    let message = format!("no longer wanted: {reason}");
    trace(of, "Removed", message);
    log!(info: of, reason, "pod removed; stopping it");
}

/// Nothing of a removed pod is left.
pub fn pod_gone(of: PodTelemetry<'_>, took: Duration) {
    let message = format!("all resources removed after {} ms", millis(took));
    trace(of, "Gone", message);
    of.telemetry.journal.clear_refs(of.uid);
    log!(info: of, elapsed_ms = millis(took), "removed the pod");
}

/// The runtime can't report a pod's status, though it answers. Call it when that begins, or its cause
/// changes.
///
/// Upstream: `podWorkerLoop` of `pkg/kubelet/pod_workers.go`.
pub fn status_unknown(of: PodTelemetry<'_>, error: &str) {
    let message = format!("error determining status: {error}");
    of.event(None, Kind::Warning, "FailedSync", message);
    log!(warn: of, error, "failed to determine the pod's state");
}

/// A plan is about to be walked.
pub fn plan_decided(of: PodTelemetry<'_>, plan: &Plan) {
    let steps: Vec<String> = plan.steps.iter().map(shown_step).collect();
    let mut message = steps.join(", then ");
    for (name, waiting) in &plan.waiting {
        let _ = write!(message, "; container {name} waits: {}", waiting.reason);
    }
    trace(of, "Planned", message);
    let replaced = plan.steps.iter().any(
        |step| matches!(step, Step::CreateSandbox { reason, .. } if *reason != Reason::NoSandbox),
    );
    if replaced {
        let message = "Pod sandbox changed, it will be killed and re-created.";
        of.event(None, Kind::Normal, "SandboxChanged", message);
    }
}

fn shown_step(step: &Step) -> String {
    match step {
        Step::KillPod { reason } => format!("stop its containers ({reason})"),
        Step::KillContainer { name, reason, .. } => format!("stop container {name} ({reason})"),
        Step::CreateSandbox { reason, .. } => format!("create a sandbox ({reason})"),
        Step::StartContainer { name, reason, .. } => {
            format!("start container {name} ({reason})")
        }
        Step::RemoveContainer { name, .. } => format!("remove a dead instance of {name}"),
    }
}

/// Records the Engine calls of a sync, in order.
pub fn engine_called(of: PodTelemetry<'_>, calls: &[EngineCall]) {
    if calls.is_empty() {
        return;
    }
    let named = calls.iter().take(NAMED_CALLS_MAX).map(ToString::to_string);
    let mut message = named.collect::<Vec<_>>().join(", ");
    if let Some(more) = calls
        .len()
        .checked_sub(NAMED_CALLS_MAX)
        .filter(|more| *more > 0)
    {
        let _ = write!(message, " and {more} more");
    }
    trace(of, "EngineCalls", message);
}

/// A sandbox runs.
pub fn sandbox_created(of: PodTelemetry<'_>, id: &ContainerId, ips: &[std::net::IpAddr]) {
    let mut message = format!("sandbox {} runs", id.short());
    for (index, ip) in ips.iter().enumerate() {
        let _ = write!(message, "{}{ip}", if index == 0 { " at " } else { ", " });
    }
    trace(of, "SandboxCreated", message);
}

/// A pod's sync round is complete. Logged only if it had work to do, and as a warning if it failed.
pub fn sync_done(of: PodTelemetry<'_>, plan_steps: usize, result: &PodSyncResult, took: Duration) {
    of.telemetry.metrics.synced(took);
    for error in result.errors() {
        of.telemetry.metrics.sync_failed(error.reason);
    }
    let at_once = |error: &SyncError| error.retry_after == Some(Duration::ZERO);
    if let Some(error) = result.error() {
        if result.errors().all(at_once) {
            // The cause is known and removed; the next sync follows at once.
            let message = format!("retried immediately: {error}");
            trace(of, "Round", message);
            log!(debug: of, error, "sync retried");
            return;
        }
        report_failures(of, result);
        let message = format!("failed after {} ms: {error}", millis(took));
        trace(of, "Round", message);
        log!(warn: of, elapsed_ms = millis(took), error, "sync failed; retrying");
    } else if plan_steps > 0 {
        let ending = if plan_steps == 1 { "" } else { "s" };
        let message = format!("completed {plan_steps} step{ending} in {} ms", millis(took));
        trace(of, "Round", message);
        log!(info: of, elapsed_ms = millis(took), "sync completed: {plan_steps} step{ending}");
    }
}

/// Reports a failure, as upstream's kubelet does where it happens. That the Engine is away is reported
/// of the Node, not of every pod; what is wrong with an image was reported by its puller.
fn report_failures(of: PodTelemetry<'_>, result: &PodSyncResult) {
    let warn = |container: Option<&str>, reason: &str, message: String| {
        of.event(container, Kind::Warning, reason, message);
    };
    let mut kills = Vec::new();
    for failed in &result.sync_results {
        let Some(error) = &failed.error else { continue };
        if error.reason == SyncErrorReason::RuntimeUnavailable || is_of_image(error.reason) {
            continue;
        }
        let words = |name: &str| without_ids(&error.message, name);
        match failed.action {
            SyncAction::StartContainer | SyncAction::InitContainer => {
                let name = failed.target.as_str();
                warn(Some(name), "Failed", format!("Error: {}", words(name)));
            }
            SyncAction::CreatePodSandbox | SyncAction::SetupNetwork => {
                let message = format!("Failed to create pod sandbox: {}", words(SANDBOX));
                warn(None, "FailedCreatePodSandBox", message);
            }
            SyncAction::KillContainer => kills.push(words(&failed.target)),
            SyncAction::KillPodSandbox | SyncAction::TeardownNetwork => kills.push(words(SANDBOX)),
        }
    }
    if !kills.is_empty() {
        let message = format!("error killing pod: {}", kills.join(", "));
        warn(None, "FailedKillPod", message);
    }
    if let Some(error) = &result.sync_error
        && error.reason != SyncErrorReason::RuntimeUnavailable
    {
        let reason = match error.reason {
            SyncErrorReason::FailedMount => "FailedMount",
            SyncErrorReason::FailedMapVolume => "FailedMapVolume",
            _ => "FailedSync",
        };
        warn(None, reason, without_ids(&error.message, SANDBOX));
    }
}

/// Whether a failure is one of an image, which is reported where it happens.
fn is_of_image(reason: SyncErrorReason) -> bool {
    matches!(
        reason,
        SyncErrorReason::ErrImagePull
            | SyncErrorReason::ImagePullBackOff
            | SyncErrorReason::ImageInspectError
            | SyncErrorReason::ErrImageNeverPull
            | SyncErrorReason::InvalidImageName
            | SyncErrorReason::RegistryUnavailable
    )
}

/// Volumes of a running pod were updated.
pub fn volumes_refreshed(of: PodTelemetry<'_>, volumes: &[String]) {
    let message = format!("updated volumes: {}", volumes.join(", "));
    of.event(None, Kind::Trace, "VolumesRefreshed", message);
    log!(info: of, "updated volumes: {}", volumes.join(", "));
}

/// Volumes of a running pod could not be updated; they keep their content.
pub fn volumes_not_refreshed(of: PodTelemetry<'_>, error: &SyncError) {
    let (reason, message) = (error.reason.as_str(), &error.message);
    of.event(None, Kind::Warning, reason, message);
    of.telemetry.metrics.sync_failed(error.reason);
    log!(
        warn: of, reason = %error.reason, error = error.message.as_str(),
        "failed to update volumes; retrying"
    );
}

/// The plan stops a whole pod.
pub fn pod_killed(of: PodTelemetry<'_>, reason: &Reason) {
    if *reason == Reason::DeadlineExceeded {
        let message = "Pod was active on the node longer than the specified deadline";
        of.event(None, Kind::Normal, "DeadlineExceeded", message);
    }
    let message = format!("stopping its containers: {reason}");
    trace(of, "Stopping", message);
    log!(info: of, reason = %reason, "stopping the pod's containers");
}

/// A part of a pod could not be removed; the agent retries.
pub fn remove_failed(of: PodTelemetry<'_>, error: &str) {
    trace(of, "RemoveFailed", error.to_owned());
    log!(warn: of, error, "failed to remove resources of the pod; retrying");
}

/// The cgroups of a removed pod could not be deleted.
pub fn cgroups_left(uid: &PodUid, error: &str) {
    tracing::debug!(uid = %uid, error, "failed to remove empty cgroups");
}

/// Reports that the directory of a removed pod could not be deleted.
pub fn orphan_left(uid: &PodUid, error: &str) {
    tracing::warn!(uid = %uid, error, "failed to remove a directory");
}

/// A pod is evicted. `signal` is what for.
pub fn pod_evicted(of: PodTelemetry<'_>, signal: &'static str, message: &str) {
    of.telemetry.metrics.pod_evicted(signal);
    note(of, "Evicted", message);
}

/// The node is short of a resource, which is being reclaimed.
///
/// Upstream: `pkg/kubelet/eviction/eviction_manager.go`.
pub fn eviction_threshold_met(telemetry: &Telemetry, resource: &str) {
    let message = format!("Attempting to reclaim {resource}");
    telemetry.node_event(Kind::Warning, "EvictionThresholdMet", message.as_str());
    tracing::warn!(reason = "EvictionThresholdMet", "{message}");
}

/// The pod runs differently from its manifest in some respect.
pub fn note(of: PodTelemetry<'_>, reason: &str, message: &str) {
    of.event(None, Kind::Warning, reason, message);
    log!(warn: of, reason, "{message}");
}

/// The same for a difference that is common on a machine like this.
pub fn usual_note(of: PodTelemetry<'_>, reason: &str, message: &str) {
    trace(of, reason, message.to_owned());
    log!(debug: of, reason, "{message}");
}

/// The state of a Job's pod has changed.
pub fn job_pod(of: PodTelemetry<'_>, reason: &str, message: &str) {
    trace(of, reason, message.to_owned());
    log!(info: of, reason, "{message}");
}

/// A workload has an event for its users.
pub fn workload(telemetry: &Telemetry, event: &WorkloadEvent) {
    telemetry.journal.workload(event);
    tracing::debug!(reason = event.reason, "{}: {}", event.key, event.message);
}

/// The state of a Job has changed.
pub fn job(job: &str, message: &str, is_bad: bool) {
    if is_bad {
        tracing::warn!(job, "{message}");
    } else {
        tracing::info!(job, "{message}");
    }
}
