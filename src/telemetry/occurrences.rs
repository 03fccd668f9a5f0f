//! What can happen, one function each: its log line and its count.
//!
//! Levels: info when something changed, warn when the agent will try again, error when a person
//! should look. Functions called again and again in a quiet node log at debug or not at all.

mod cluster;

use std::path::Path;
use std::time::Duration;

use super::journal::Kind;
use super::metrics::PullOutcome;
use super::{Metrics, Telemetry};
use crate::api::{ContainerId, Diagnostic, FullName, PodUid, Timestamp};
use crate::pod::desired::PodSource;
use crate::pod::node::{NodeEvent, NodeEventKind};
use crate::pod::plan::Reason;
use crate::runtime::{PodSyncResult, SyncError};

pub use cluster::*;

/// A pod as its log field shows it: `namespace/name`.
struct Shown<'a>(&'a FullName);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.0.namespace, self.0.name)
    }
}

fn millis(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
}

/// The agent has started.
pub fn agent_started(root: &Path, node_name: &str, docker: &str) {
    tracing::info!(
        "mirrorlet {} started: node {node_name}, root {}, Docker Engine {docker}",
        env!("CARGO_PKG_VERSION"),
        root.display()
    );
}

/// The agent stops; containers keep running.
pub fn agent_stopping(reason: &str) {
    tracing::info!(reason = reason, "stopping; containers keep running");
}

/// A source delivered a whole set. Logged only when `changed`.
pub fn source_read(
    telemetry: &Telemetry,
    source: PodSource,
    location: &str,
    pods: usize,
    changed: bool,
    at: Timestamp,
) {
    telemetry.metrics.source_read(source, at);
    if changed {
        tracing::info!(source = location, "read {pods} pods");
    }
}

/// A source can't be read. Call it when that begins, or its cause changes.
pub fn source_failed(location: &str, error: &str) {
    tracing::warn!(
        source = location,
        error = error,
        "the source can't be read; its pods stay as they are"
    );
}

/// A source can be read again.
pub fn source_back(location: &str) {
    tracing::info!(source = location, "the source can be read again");
}

/// A problem with a manifest, new since the last look.
pub fn manifest_problem(problem: &Diagnostic) {
    if problem.is_error() {
        tracing::error!(
            source = problem.file,
            reason = problem.code.as_str(),
            "{problem}"
        );
    } else {
        tracing::warn!(
            source = problem.file,
            reason = problem.code.as_str(),
            "{problem}"
        );
    }
}

/// A problem with a manifest is gone.
pub fn manifest_mended(problem: &Diagnostic) {
    tracing::info!(
        source = problem.file,
        reason = problem.code.as_str(),
        "no longer: {problem}"
    );
}

/// A pod is wanted from now on.
pub fn pod_added(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, source: &str) {
    telemetry.journal.pod(
        pod,
        uid,
        None,
        Kind::Trace,
        "Added",
        format!("wanted by {source}"),
    );
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        source = source,
        "pod added"
    );
}

/// A pod is no longer wanted.
pub fn pod_removed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &str) {
    telemetry.journal.pod(
        pod,
        uid,
        None,
        Kind::Trace,
        "Removed",
        format!("to be stopped: {reason}"),
    );
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        reason = reason,
        "pod removed; stopping it"
    );
}

/// Nothing of a removed pod is left.
pub fn pod_gone(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, took: Duration) {
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, "Gone", "nothing of it is left");
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        elapsed_ms = millis(took),
        "pod gone"
    );
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
            // What went wrong is known and put right; the next round follows at once.
            tracing::debug!(pod = %Shown(pod), uid = %uid, error = error, "round repeated");
            return;
        }
        tracing::warn!(
            pod = %Shown(pod),
            uid = %uid,
            elapsed_ms = millis(took),
            error = error,
            "round failed; will try again"
        );
    } else if plan_steps > 0 {
        tracing::info!(
            pod = %Shown(pod),
            uid = %uid,
            elapsed_ms = millis(took),
            "round done: {plan_steps} steps"
        );
    }
}

/// Volumes of a running pod were written anew.
pub fn volumes_refreshed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, volumes: &[String]) {
    let message = format!("volumes written anew: {}", volumes.join(", "));
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, "VolumesRefreshed", message);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        "volumes written anew: {}",
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
        "volumes could not be brought up to date; will try again"
    );
}

/// A container was started; `attempt` counts the instances before it.
pub fn container_started(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    id: &ContainerId,
    attempt: u32,
    reason: &str,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Normal,
        "Started",
        format!("Started container {container}"),
    );
    telemetry.metrics.container_started(attempt > 0);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        container_id = id.short(),
        attempt = attempt,
        reason = reason,
        "container started"
    );
}

/// A container ended, by itself or stopped.
pub fn container_died(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    id: &ContainerId,
    exit_code: i32,
    reason: &str,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Trace,
        "Died",
        format!("container {container} ended with exit code {exit_code}: {reason}"),
    );
    telemetry.metrics.container_died();
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        container_id = id.short(),
        reason = reason,
        "container ended with exit code {exit_code}"
    );
}

/// A container was stopped by the agent.
pub fn container_killed(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    id: &ContainerId,
    reason: &str,
    took: Duration,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Normal,
        "Killing",
        format!("Stopped container {container}"),
    );
    telemetry.metrics.container_killed();
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        container_id = id.short(),
        reason = reason,
        elapsed_ms = millis(took),
        "container stopped"
    );
}

/// The plan stops a whole pod.
pub fn pod_killed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, reason: &Reason) {
    telemetry.journal.pod(
        pod,
        uid,
        None,
        Kind::Trace,
        "Stopping",
        format!("stopping its containers: {reason}"),
    );
    tracing::info!(pod = %Shown(pod), uid = %uid, reason = %reason, "stopping the pod's containers");
}

/// The plan stops one container.
pub fn container_killing(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    reason: &str,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Trace,
        "Stopping",
        format!("stopping container {container}: {reason}"),
    );
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        reason = reason,
        "stopping the container"
    );
}

/// Something of a pod could not be removed; it will be tried again.
pub fn remove_failed(telemetry: &Telemetry, pod: &FullName, uid: &PodUid, error: &str) {
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, "RemoveFailed", error);
    tracing::warn!(
        pod = %Shown(pod),
        uid = %uid,
        error = error,
        "could not remove what is left of it; will try again"
    );
}

/// The cgroups of a pod that is gone could not be removed.
pub fn cgroups_left(uid: &PodUid, error: &str) {
    tracing::debug!(uid = %uid, error = error, "left empty cgroups behind");
}

/// What is left on disk of a pod that is long gone could not be removed.
pub fn orphan_left(uid: &PodUid, error: &str) {
    tracing::warn!(uid = %uid, error = error, "left a directory behind");
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
    telemetry
        .journal
        .pod(pod, uid, None, Kind::Trace, reason, message);
    tracing::debug!(pod = %Shown(pod), uid = %uid, reason = reason, "{message}");
}

/// A server of the agent ended by itself.
pub fn server_failed(server: &str, error: &str) {
    tracing::error!(error = error, "{server} can't be served any more");
}

/// The Engine can't give OOM scores below 0. Logged once.
pub fn negative_oom_score_refused() {
    tracing::warn!(
        "the Docker Engine can't set OOM scores below 0 (it lacks CAP_SYS_RESOURCE): sandboxes and guaranteed pods are not protected from the OOM killer"
    );
}

/// A container that crashes again and again waits. Call it once a wait.
pub fn backoff(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    attempt: u32,
    wait: Duration,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Warning,
        "BackOff",
        format!("Back-off restarting failed container {container}"),
    );
    tracing::warn!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        attempt = attempt,
        reason = "CrashLoopBackOff",
        "the container crashes; starting it again in {} s",
        wait.as_secs()
    );
}

/// An image pull begins, for all who wait for it.
pub fn image_pulling(image: &str) {
    tracing::info!("pulling image {image}");
}

/// An image was pulled.
pub fn image_pulled(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    image: &str,
    took: Duration,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Normal,
        "Pulled",
        format!(
            "Successfully pulled image \"{image}\" in {} ms",
            millis(took)
        ),
    );
    telemetry.metrics.pulled(PullOutcome::Pulled, took);
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        elapsed_ms = millis(took),
        "pulled image {image}"
    );
}

/// An image pull failed.
pub fn image_failed(
    telemetry: &Telemetry,
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    image: &str,
    took: Duration,
    error: &str,
) {
    telemetry.journal.pod(
        pod,
        uid,
        Some(container),
        Kind::Warning,
        "Failed",
        format!("Failed to pull image \"{image}\": {error}"),
    );
    telemetry.metrics.pulled(PullOutcome::Failed, took);
    tracing::warn!(
        pod = %Shown(pod),
        uid = %uid,
        container = container,
        elapsed_ms = millis(took),
        error = error,
        "failed to pull image {image}"
    );
}

/// The Engine no longer answers. Call it when that begins.
pub fn engine_lost(telemetry: &Telemetry, error: &str) {
    telemetry.metrics.set_engine_up(false);
    tracing::error!(error = error, "the Docker Engine is away; waiting for it");
}

/// The Engine answers: at the start (`away` is none), or again.
pub fn engine_back(telemetry: &Telemetry, version: &str, away: Option<Duration>) {
    telemetry.metrics.set_engine_up(true);
    match away {
        None => tracing::info!("connected to Docker Engine {version}"),
        Some(away) => tracing::info!(elapsed_ms = millis(away), "Docker Engine {version} is back"),
    }
}

/// Engine events may have been missed; everything is listed. Logged but for the first, which
/// every start has.
pub fn gap(telemetry: &Telemetry, cause: &str, first: bool) {
    telemetry.metrics.gap();
    if first {
        tracing::debug!(reason = cause, "listening to Engine events");
    } else {
        tracing::warn!(
            reason = cause,
            "Engine events may have been missed; listing everything"
        );
    }
}

/// The API server answers, for the first time or after a while of silence.
pub fn api_reached(metrics: &Metrics, away: Option<Duration>) {
    metrics.set_api_up(true);
    match away {
        None => tracing::info!("the API server answers"),
        Some(away) => tracing::info!(elapsed_ms = millis(away), "the API server answers again"),
    }
}

/// The API server no longer answers.
pub fn api_lost(metrics: &Metrics, error: &str) {
    metrics.set_api_up(false);
    tracing::warn!(
        error = error,
        "the API server doesn't answer; pods go on as they are"
    );
}

/// New requests to the API server use replaced credentials.
pub fn credentials_replaced() {
    tracing::info!("credentials for the API server were replaced; using the new ones");
}

/// Credentials were replaced by ones that can't be used.
pub fn credentials_unusable(error: &str) {
    tracing::error!(
        error = error,
        "credentials for the API server can't be used; going on with the old ones"
    );
}

/// The agent begins to speak for its Node.
pub fn node_starting(telemetry: &Telemetry) {
    let journal = &telemetry.journal;
    journal.node(Kind::Normal, "Starting", "Starting mirrorlet.");
}

/// Our Node is registered: made, or found as it was left.
pub fn node_registered(name: &str, uid: &str, was_there: bool) {
    if was_there {
        tracing::info!(uid = uid, "the Node {name} was there already; it is ours");
    } else {
        tracing::info!(uid = uid, "registered the Node {name}");
    }
}

/// Our Node can't be registered. Call it when that begins, or its cause changes.
pub fn node_refused(name: &str, error: &str) {
    tracing::error!(error = error, "the Node {name} can't be registered");
}

/// Our Node was deleted; it is registered again.
pub fn node_gone(name: &str) {
    tracing::warn!("the Node {name} was deleted; registering it again");
}

/// The API server refused the status of our Node; it is written again later.
pub fn node_status_failed(error: &str) {
    tracing::warn!(error = error, "the status of the Node can't be written");
}

/// Something happened to our Node.
pub fn node_event(telemetry: &Telemetry, event: &NodeEvent) {
    let kind = match event.kind {
        NodeEventKind::Normal => Kind::Normal,
        NodeEventKind::Warning => Kind::Warning,
    };
    let message = event.message.as_str();
    telemetry.journal.node(kind, event.reason, message);
    tracing::info!(reason = event.reason, "{message}");
}

/// The Lease of our Node can't be renewed. Call it when that begins.
pub fn lease_failed(error: &str) {
    tracing::warn!(error = error, "the Lease of the Node can't be renewed");
}

/// The Lease of our Node is renewed again.
pub fn lease_back() {
    tracing::info!("the Lease of the Node is renewed again");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::{SyncAction, SyncError, SyncErrorReason, SyncResult};

    #[test]
    fn every_occurrence_moves_its_series() {
        let telemetry = Telemetry::new();
        let (pod, uid) = (FullName::new("web", "default"), PodUid::from("u"));
        let id = ContainerId::docker("abc");
        let took = Duration::from_millis(5);
        container_started(&telemetry, &pod, &uid, "c", &id, 0, "NeverStarted");
        container_started(&telemetry, &pod, &uid, "c", &id, 1, "Exited");
        container_died(&telemetry, &pod, &uid, "c", &id, 1, "Error");
        container_killed(&telemetry, &pod, &uid, "c", &id, "removed", took);
        image_pulled(&telemetry, &pod, &uid, "c", "i", took);
        image_failed(&telemetry, &pod, &uid, "c", "i", took, "no");
        engine_back(&telemetry, "27", None);
        gap(&telemetry, "start", true);
        let mut result = PodSyncResult::default();
        result.add_sync_result([SyncResult::failed(
            SyncAction::StartContainer,
            "c",
            SyncError::new(SyncErrorReason::RunContainerError, "x"),
        )]);
        sync_done(&telemetry, &pod, &uid, 1, &result, took);
        let text = telemetry.metrics.encode();
        for line in [
            "mirrorlet_container_starts_total 2",
            "mirrorlet_container_restarts_total 1",
            "mirrorlet_container_deaths_total 1",
            "mirrorlet_container_kills_total 1",
            "mirrorlet_image_pulls_total{outcome=\"pulled\"} 1",
            "mirrorlet_image_pulls_total{outcome=\"failed\"} 1",
            "mirrorlet_engine_up 1",
            "mirrorlet_event_gaps_total 1",
            "mirrorlet_pod_sync_duration_seconds_count 1",
            "mirrorlet_pod_sync_errors_total{reason=\"RunContainerError\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
