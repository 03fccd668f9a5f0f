//! Occurrences of a whole pod. One piece: a function for each of them.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Shown, Telemetry, millis};
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
/// Most Engine calls of a round that its story names.
const CALLS_TOLD: usize = 30;

fn trace(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &str, message: String) {
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, reason, message);
}

/// A pod as upstream's messages show it: `name_namespace(uid)`.
///
/// Upstream: `pkg/kubelet/util/format/pod.go`.
pub(super) fn format_pod(pod: &FullName, uid: &PodUid) -> String {
    format!("{pod}({uid})")
}

/// A pod's manifest was read: it is new, or changed. The pod's containers are known from now on.
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
    trace(telemetry, &pod.full_name(), &uid, "ManifestRead", message);
}

/// The manifest of a pod that goes on can't be used any more: its last good version stands in.
pub fn manifest_held(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, problem: &str) {
    let message = format!("the last good version keeps running: {problem}");
    trace(telemetry, pod, uid, "ManifestHeld", message);
}

/// The manifest of a pod can be used again.
pub fn manifest_released(telemetry: &Telemetry, pod: &FullName, uid: &PodUid) {
    let message = "the manifest is valid again".to_owned();
    trace(telemetry, pod, uid, "ManifestGood", message);
}

/// The newest version of a pod is being prepared; the one of `uid` runs on.
pub fn rollout_started(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, newest: &PodUid) {
    telemetry.metrics.rollout(RolloutOutcome::Started);
    let message = format!("preparing version {newest}; version {uid} keeps running");
    trace(telemetry, pod, uid, "RolloutStarted", message);
    tracing::info!(pod = %Shown(pod), uid = %uid, newest = %newest, "preparing a new version");
}

/// Outcomes of a rollout that leave the manifest's version not running, or running badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutSetback {
    /// The new version can't be started; the one before runs on.
    Held,
    /// The new version failed and runs on.
    Failed,
    /// The new version failed; the last healthy one runs again.
    Restored,
}

/// Records a setback in the rollout of a pod; `uid` is that of the version that runs.
pub fn rollout_setback(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    setback: RolloutSetback,
    reason: &str,
    message: &str,
) {
    let (outcome, event, words) = match setback {
        RolloutSetback::Held => (
            RolloutOutcome::Held,
            "RolloutHeld",
            "the new version can't be started, the previous one keeps running",
        ),
        RolloutSetback::Failed => (
            RolloutOutcome::Failed,
            "RolloutFailed",
            "the new version failed and runs on",
        ),
        RolloutSetback::Restored => (
            RolloutOutcome::Restored,
            "RolloutRestored",
            "the new version failed, the last healthy one runs",
        ),
    };
    telemetry.metrics.rollout(outcome);
    let message = format!("{words}: {reason}: {message}");
    note(telemetry, pod, uid, event, &message);
}

/// The newest version of a pod, `uid`, is healthy.
pub fn rollout_succeeded(telemetry: &Telemetry, pod: &FullName, uid: &PodUid) {
    telemetry.metrics.rollout(RolloutOutcome::Succeeded);
    let message = "the new version is healthy";
    let kind = Kind::Normal;
    let journal = &telemetry.journal;
    journal.pod(pod, uid, None, kind, "RolloutSucceeded", message);
    tracing::info!(pod = %Shown(pod), uid = %uid, "{message}");
}

/// Somebody asked for something about the rollouts of the pod that runs as `uid`.
pub fn rollout_commanded(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    reason: &'static str,
    message: String,
) {
    tracing::info!(pod = %Shown(pod), uid = %uid, "{message}");
    let journal = &telemetry.journal;
    journal.pod(pod, uid, None, Kind::Normal, reason, message);
}

/// A pod isn't run, since another has its full name.
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
    telemetry.journal.pod(
        &name,
        &uid,
        None,
        Kind::Warning,
        "FailedValidation",
        message,
    );
}

/// A pod is wanted from now on.
pub fn pod_added(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, source: &str) {
    let message = format!("wanted by {source}");
    trace(telemetry, pod, uid, "Added", message);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        source = source,
        "pod added"
    );
}

/// A pod is no longer wanted.
pub fn pod_removed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &str) {
    let message = format!("no longer wanted: {reason}");
    trace(telemetry, pod, uid, "Removed", message);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        reason = reason,
        "pod removed; stopping it"
    );
}

/// Nothing of a removed pod is left.
pub fn pod_gone(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, took: Duration) {
    let message = format!("all resources removed after {} ms", millis(took));
    trace(telemetry, pod, uid, "Gone", message);
    telemetry.journal.clear_refs(uid);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        elapsed_ms = millis(took),
        "removed the pod"
    );
}

/// The runtime doesn't know what a pod does, though it answers. Call it when that begins, or its
/// cause changes.
///
/// Upstream: `podWorkerLoop` of `pkg/kubelet/pod_workers.go`.
pub fn status_unknown(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, error: &str) {
    telemetry.journal.pod(
        pod,
        uid,
        None,
        Kind::Warning,
        "FailedSync",
        format!("error determining status: {error}"),
    );
    tracing::warn!(pod = %Shown(pod), uid = %uid, error = error, "failed to determine the pod's state");
}

/// A plan is about to be walked.
pub fn plan_decided(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, plan: &Plan) {
    let steps: Vec<String> = plan.steps.iter().map(shown_step).collect();
    let mut message = steps.join(", then ");
    for (name, waiting) in &plan.waiting {
        let _ = write!(message, "; container {name} waits: {}", waiting.reason);
    }
    trace(telemetry, pod, uid, "Planned", message);
    let replaced = plan.steps.iter().any(
        |step| matches!(step, Step::CreateSandbox { reason, .. } if *reason != Reason::NoSandbox),
    );
    if replaced {
        telemetry.journal.pod(
            pod,
            uid,
            None,
            Kind::Normal,
            "SandboxChanged",
            "Pod sandbox changed, it will be killed and re-created.",
        );
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
pub fn engine_called(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, calls: &[EngineCall]) {
    if calls.is_empty() {
        return;
    }
    let told = calls.iter().take(CALLS_TOLD).map(ToString::to_string);
    let mut message = told.collect::<Vec<_>>().join(", ");
    if let Some(more) = calls.len().checked_sub(CALLS_TOLD).filter(|more| *more > 0) {
        let _ = write!(message, " and {more} more");
    }
    trace(telemetry, pod, uid, "EngineCalls", message);
}

/// A sandbox runs.
pub fn sandbox_created(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    id: &ContainerId,
    ips: &[std::net::IpAddr],
) {
    let mut message = format!("sandbox {} runs", id.short());
    for (index, ip) in ips.iter().enumerate() {
        let _ = write!(message, "{}{ip}", if index == 0 { " at " } else { ", " });
    }
    trace(telemetry, pod, uid, "SandboxCreated", message);
}

/// A round of a pod is done. Logged only if it had something to do: as a warning when it failed.
pub fn sync_done(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    plan_steps: usize,
    result: &PodSyncResult,
    took: Duration,
) {
    telemetry.metrics.synced(took);
    for error in result.errors() {
        telemetry.metrics.sync_failed(error.reason);
    }
    let at_once = |error: &SyncError| error.retry_after == Some(Duration::ZERO);
    if let Some(error) = result.error() {
        if result.errors().all(at_once) {
            // The cause is known and mended; the next sync follows at once.
            let message = format!("retried immediately: {error}");
            trace(telemetry, pod, uid, "Round", message);
            tracing::debug!(pod = %Shown(pod), uid = %uid, error = error, "sync retried");
            return;
        }
        tell_failures(telemetry, pod, uid, result);
        let message = format!("failed after {} ms: {error}", millis(took));
        trace(telemetry, pod, uid, "Round", message);
        tracing::warn!(
            pod = %Shown(pod),
            uid = %uid,
            elapsed_ms = millis(took),
            error = error,
            "sync failed; retrying"
        );
    } else if plan_steps > 0 {
        let ending = if plan_steps == 1 { "" } else { "s" };
        let message = format!("completed {plan_steps} step{ending} in {} ms", millis(took));
        trace(telemetry, pod, uid, "Round", message);
        tracing::info!(
            pod = %Shown(pod),
            uid = %uid,
            elapsed_ms = millis(took),
            "sync completed: {plan_steps} step{ending}"
        );
    }
}

/// Reports a failure, as upstream's kubelet does where it happens. That the Engine is away is reported
/// of the Node, not of every pod; what is wrong with an image was reported by its puller.
fn tell_failures(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, result: &PodSyncResult) {
    let warn = |container: Option<&str>, reason: &str, message: String| {
        telemetry
            .journal
            .pod(pod, uid, container, Kind::Warning, reason, message);
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

/// Volumes of a running pod were written anew.
pub fn volumes_refreshed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, volumes: &[String]) {
    let message = format!("updated volumes: {}", volumes.join(", "));
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, "VolumesRefreshed", message);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        "updated volumes: {}",
        volumes.join(", ")
    );
}

/// Volumes of a running pod could not be brought up to date; they stay as they were.
pub fn volumes_not_refreshed(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    error: &SyncError,
) {
    let (kind, message) = (Kind::Warning, error.message.as_str());
    let reason = error.reason.to_string();
    telemetry
        .journal
        .pod(pod, uid, None, kind, &reason, message);
    telemetry.metrics.sync_failed(error.reason);
    tracing::warn!(
        pod = %Shown(pod),
        uid = %uid,
        reason = %error.reason,
        error = error.message.as_str(),
        "failed to update volumes; retrying"
    );
}

/// The plan stops a whole pod.
pub fn pod_killed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &Reason) {
    if *reason == Reason::DeadlineExceeded {
        telemetry.journal.pod(
            pod,
            uid,
            None,
            Kind::Normal,
            "DeadlineExceeded",
            "Pod was active on the node longer than the specified deadline",
        );
    }
    let message = format!("stopping its containers: {reason}");
    trace(telemetry, pod, uid, "Stopping", message);
    tracing::info!(pod = %Shown(pod), uid = %uid, reason = %reason, "stopping the pod's containers");
}

/// Something of a pod could not be removed; it will be tried again.
pub fn remove_failed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, error: &str) {
    trace(telemetry, pod, uid, "RemoveFailed", error.to_owned());
    tracing::warn!(
        pod = %Shown(pod),
        uid = %uid,
        error = error,
        "failed to remove the pod's remains; retrying"
    );
}

/// The cgroups of a pod that is gone could not be removed.
pub fn cgroups_left(uid: &PodUid, error: &str) {
    tracing::debug!(uid = %uid, error = error, "failed to remove empty cgroups");
}

/// Reports that the directory of a removed pod could not be deleted.
pub fn orphan_left(uid: &PodUid, error: &str) {
    tracing::warn!(uid = %uid, error = error, "failed to remove a directory");
}

/// A pod is evicted. `signal` is what for.
pub fn pod_evicted(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    signal: &'static str,
    message: &str,
) {
    telemetry.metrics.pod_evicted(signal);
    note(telemetry, pod, uid, "Evicted", message);
}

/// The node is short of something, and what is left of it is reclaimed.
///
/// Upstream: `pkg/kubelet/eviction/eviction_manager.go`.
pub fn eviction_threshold_met(telemetry: &Telemetry, resource: &str) {
    let message = format!("Attempting to reclaim {resource}");
    let journal = &telemetry.journal;
    journal.node(Kind::Warning, "EvictionThresholdMet", message.as_str());
    tracing::warn!(reason = "EvictionThresholdMet", "{message}");
}

/// Something is done otherwise than the manifest asks.
pub fn note(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &str, message: &str) {
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Warning, reason, message);
    tracing::warn!(pod = %Shown(pod), uid = %uid, reason = reason, "{message}");
}

/// Something is done otherwise than the manifest asks, as is usual on a machine like this.
pub fn usual_note(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    reason: &str,
    message: &str,
) {
    trace(telemetry, pod, uid, reason, message.to_owned());
    tracing::debug!(pod = %Shown(pod), uid = %uid, reason = reason, "{message}");
}

/// Something became of a pod of a Job.
pub fn job_pod(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &str, message: &str) {
    trace(telemetry, pod, uid, reason, message.to_owned());
    tracing::info!(pod = %Shown(pod), uid = %uid, reason = reason, "{message}");
}

/// Something became of a workload that its users see.
pub fn workload(telemetry: &Telemetry, event: &WorkloadEvent) {
    telemetry.journal.workload(event);
    tracing::debug!(reason = event.reason, "{}: {}", event.key, event.message);
}

/// Something became of a Job.
pub fn job(job: &str, message: &str, is_bad: bool) {
    if is_bad {
        tracing::warn!(job, "{message}");
    } else {
        tracing::info!(job, "{message}");
    }
}
