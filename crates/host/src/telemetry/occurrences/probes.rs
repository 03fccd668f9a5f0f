//! Occurrences of probes and hooks.

use std::time::Duration;

use super::{PodTelemetry, Shown, Telemetry, millis};
use crate::telemetry::journal::{Kind, POST_START_FAILED, UNHEALTHY};
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_core::probe::{Outcome, ProbeKind, ProbeResult};

/// An attempt of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Probed<'a> {
    /// The pod.
    pub pod: &'a FullName,
    /// Its UID.
    pub uid: &'a PodUid,
    /// The container's name.
    pub container: &'a str,
    /// The kind of probe.
    pub kind: ProbeKind,
    /// How long it took.
    pub took: Duration,
}

impl Probed<'_> {
    fn report(&self, telemetry: &Telemetry, reason: &str, message: String) {
        let of = telemetry.pod(self.pod, self.uid);
        of.event(Some(self.container), Kind::Warning, reason, message);
    }

    fn count(&self, telemetry: &Telemetry, result: ProbeResult) {
        let Self {
            pod,
            uid,
            container,
            kind,
            took,
        } = *self;
        let metrics = &telemetry.metrics;
        metrics.probed(pod, uid, container, kind, result, took);
    }
}

/// A probe was attempted. Every failure is reported, not only those that count; a command's output is
/// included, as upstream's users expect.
///
/// Upstream: `probe` of `pkg/kubelet/prober/prober.go`.
pub fn probed(telemetry: &Telemetry, probe: &Probed<'_>, outcome: &Outcome) {
    probe.count(telemetry, outcome.result());
    let kind = probe.kind;
    match outcome {
        Outcome::Success => return,
        Outcome::Warning(why) => {
            probe.report(
                telemetry,
                "ProbeWarning",
                format!("{kind} probe warning: {why}"),
            );
        }
        Outcome::Failure(why) => {
            probe.report(telemetry, UNHEALTHY, format!("{kind} probe failed: {why}"));
        }
    }
    tracing::debug!(
        pod = %Shown(probe.pod),
        uid = %probe.uid,
        container = probe.container,
        elapsed_ms = millis(probe.took),
        "{kind} probe failed or has a warning"
    );
}

/// A probe could not be attempted, repeatedly: its last result stays in effect.
pub fn probe_erred(telemetry: &Telemetry, probe: &Probed<'_>, why: &str) {
    probe.count(telemetry, ProbeResult::Unknown);
    let kind = probe.kind;
    probe.report(telemetry, UNHEALTHY, format!("{kind} probe errored: {why}"));
    tracing::debug!(
        pod = %Shown(probe.pod),
        uid = %probe.uid,
        container = probe.container,
        error = why,
        "{kind} probe could not be attempted"
    );
}

/// Reports a changed probe result of a container.
pub fn probe_decided(
    pod: &FullName,
    uid: &PodUid,
    container: &str,
    kind: ProbeKind,
    result: ProbeResult,
) {
    let word = match result {
        ProbeResult::Success => "succeeds",
        ProbeResult::Failure => "fails",
        ProbeResult::Unknown => "has no result yet",
    };
    tracing::info!(
        pod = %Shown(pod),
        uid = %uid,
        container,
        "{kind} probe {word}"
    );
}

/// Reports that probe results could not be saved for the next agent.
pub fn probes_not_kept(error: &str) {
    tracing::warn!(
        error,
        "failed to save container readiness; after a restart of the agent, containers are not ready until they are probed again"
    );
}

/// A container's hook failed; `hook` is `PostStart` or `PreStop`. The hook's output or answer is not
/// reported.
///
/// Upstream: `startContainer` and `executePreStopHook` of
/// `pkg/kubelet/kuberuntime/kuberuntime_container.go`.
pub fn hook_failed(of: PodTelemetry<'_>, container: &str, hook: &'static str, why: &str) {
    let reason = match hook {
        "PostStart" => POST_START_FAILED,
        _ => "FailedPreStopHook",
    };
    let message = format!("{hook}Hook failed");
    of.event(Some(container), Kind::Warning, reason, message);
    log!(warn: of, container, error = why, "{hook} hook failed");
}

/// An HTTPS hook was answered in plain HTTP, and was repeated over HTTP.
///
/// Upstream: `runHTTPHandler` of `pkg/kubelet/lifecycle/handlers.go`.
pub fn hook_fell_back(of: PodTelemetry<'_>, container: &str, host: &str) {
    of.event(
        Some(container),
        Kind::Warning,
        "LifecycleHTTPFallback",
        format!(
            "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
        ),
    );
}
