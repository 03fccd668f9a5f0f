//! Occurrences between the agent and the API server: mirror pods, statuses, our Node.

use super::{PodTelemetry, Shown, Telemetry};
use crate::telemetry::journal::Kind;
use crate::telemetry::{CertificateDecision, EventOutcome, Metrics};
use mirrorlet_core::api::{PodUid, Timestamp};
use mirrorlet_core::node::{NodeEvent, NodeEventKind};

/// A mirror of a static pod was created; `uid` is the static pod's, `mirror` the mirror's own.
pub fn mirror_created(of: PodTelemetry<'_>, mirror: &PodUid) {
    let message = format!("mirror pod created with UID {mirror}");
    of.event(None, Kind::Trace, "MirrorCreated", message);
    of.telemetry.metrics.mirror_written("created");
    log!(info: of, "mirror pod created with UID {mirror}");
}

/// A mirror pod was deleted, or will be once its `finalizers` are removed. `uid` is that of its static
/// pod (the value of its annotation), `mirror` its own.
pub fn mirror_deleted(of: PodTelemetry<'_>, mirror: &PodUid, reason: &str, finalizers: &[String]) {
    let done = if finalizers.is_empty() {
        "deleted".to_owned()
    } else {
        format!(
            "is being deleted, until its finalizers are removed ({})",
            finalizers.join(", ")
        )
    };
    let message = format!("mirror pod with UID {mirror} {done}: {reason}");
    of.event(None, Kind::Trace, "MirrorDeleted", message);
    of.telemetry.metrics.mirror_written("deleted");
    log!(info: of, reason, "mirror pod with UID {mirror} {done}");
}

/// A mirror pod can't be created. Call it once per problem: when it begins, or its kind changes. `kind`
/// is the problem's word, for example `NamespaceMissing`. The event is about the Node, because a pod
/// without a mirror has no object that users would look at.
pub fn mirror_refused(of: PodTelemetry<'_>, kind: &str, message: &str) {
    let story = format!("mirror pod not created, {kind}: {message}");
    of.event(None, Kind::Trace, "MirrorRefused", story);
    let event_message = format!(
        "Mirror pod of {} not created, {kind}: {message}",
        Shown(of.name)
    );
    of.telemetry
        .node_event(Kind::Warning, "MirrorPodRefused", event_message);
    of.telemetry.metrics.mirror_written("refused");
    log!(warn: of, reason = kind, error = message, "failed to create the mirror pod; retrying");
}

/// The last reported problem of a pod's mirror is resolved.
pub fn mirror_mended(of: PodTelemetry<'_>, kind: &str) {
    let story = format!("mirror pod problem resolved: {kind}");
    of.event(None, Kind::Trace, "MirrorMended", story);
    let event_message = format!("Mirror pod of {} exists again", Shown(of.name));
    of.telemetry
        .node_event(Kind::Normal, "MirrorPodRecovered", event_message);
    log!(info: of, reason = kind, "mirror pod problem resolved");
}

/// A pod's status was written to its object in the API. `uid` is the resolved one; `phase` and
/// `changed` (for example conditions or containers by name) are recorded in its history.
pub fn status_written(of: PodTelemetry<'_>, phase: &str, changed: &str) {
    let message = if changed.is_empty() {
        format!("status written: {phase}")
    } else {
        format!("status written: {phase}; {changed}")
    };
    of.event(None, Kind::Trace, "StatusWritten", message);
    of.telemetry.metrics.status_written("written");
    log!(debug: of, "status written: {phase}");
}

/// A pod's status could not be written; the agent retries. Call it when that begins, or its cause
/// changes.
pub fn status_failed(of: PodTelemetry<'_>, error: &str) {
    let message = format!("failed to write the status: {error}");
    of.event(None, Kind::Trace, "StatusFailed", message);
    of.telemetry.metrics.status_written("failed");
    log!(warn: of, error, "failed to write the pod's status; retrying");
}

/// A pod's object was deleted from the API because nothing of the pod is left.
pub fn pod_object_deleted(of: PodTelemetry<'_>) {
    let message = "deleted the Pod from the API server";
    of.event(None, Kind::Trace, "ObjectDeleted", message);
    log!(info: of, "deleted the Pod from the API server");
}

/// The API server doesn't have a pod's object, though its watch shows it. All pods are listed again.
pub fn pod_object_missing(of: PodTelemetry<'_>) {
    log!(warn: of, "the API server's watch shows a Pod that it doesn't have; listing its Pods again");
}

/// Events were sent, dropped or otherwise processed. Not logged: there may be many.
pub fn events(telemetry: &Telemetry, outcome: EventOutcome, number: u64) {
    telemetry.metrics.events(outcome, number);
}

/// Events are lost because too many wait for the API server. Call it when that begins.
pub fn events_lost() {
    tracing::warn!("too many events are waiting for the API server; the oldest are dropped");
}

/// The API server refuses events in a namespace. Call it once per cause.
pub fn events_refused(namespace: &str, error: &str) {
    tracing::warn!(
        error,
        "the API server rejects events in namespace {namespace}; they are dropped"
    );
}

/// An event of our Node in the words of upstream's kubelet, for example `Starting`, `NodeReady` or
/// `Rebooted`.
pub fn node_event(telemetry: &Telemetry, event: &NodeEvent) {
    let kind = match event.kind {
        NodeEventKind::Normal => Kind::Normal,
        NodeEventKind::Warning => Kind::Warning,
    };
    let message = event.message.as_str();
    telemetry.node_event(kind, event.reason, message);
    tracing::info!(reason = event.reason, "{message}");
}

/// The agent starts to report for its Node.
pub fn node_starting(telemetry: &Telemetry) {
    telemetry.node_event(Kind::Normal, "Starting", "Starting mirrorlet.");
}

/// Our Node can't be registered. Call it when that begins, or its cause changes.
pub fn node_refused(name: &str, error: &str) {
    tracing::error!(error, "failed to register the Node {name}");
}

/// Our Node was deleted; it is registered again.
pub fn node_gone(name: &str) {
    tracing::warn!("the Node {name} was deleted; registering it again");
}

/// The machine has other addresses than before.
pub fn addresses_changed(addresses: &str) {
    tracing::info!("the addresses of the machine are now {addresses}");
}

/// Another agent or a kubelet owns the Node now; this agent no longer writes it.
pub fn node_taken(name: &str, cause: &str) {
    tracing::error!(
        error = cause,
        "the Node {name} was taken over; this agent no longer writes its status, Lease, mirror pods and \
         the statuses of its pods, and does not start new pods that are bound to it"
    );
}

/// Our Node can't be read after an outage of the API server. Call it when the reason changes.
pub fn node_unread(name: &str, error: &str) {
    tracing::warn!(
        error,
        "failed to read the Node {name} after the API server was unreachable; nothing is written for it \
         until it can be read, because another agent may have taken it over"
    );
}

/// The API server refused the status of our Node; the agent writes it again later.
pub fn node_status_failed(error: &str) {
    tracing::warn!(error, "failed to write the Node's status");
}

/// The Lease of our Node can't be renewed. Call it when that begins.
pub fn lease_failed(error: &str) {
    tracing::warn!(error, "failed to renew the Node's Lease");
}

/// The Lease of our Node is renewed again.
pub fn lease_back() {
    tracing::info!("the Node's Lease is renewed again");
}

/// A watch is refused or broken though the API server answers; it is restarted. Call it when that
/// begins. `resource` is the plural name.
pub fn watch_failed(resource: &str, error: &str) {
    tracing::warn!(error, "failed to watch {resource}; retrying");
}

/// Our Node is registered: created, or found from an earlier start.
pub fn node_registered(telemetry: &Telemetry, node: &str, created: bool) {
    let how = if created { "created" } else { "found" };
    telemetry.node_event(Kind::Trace, "Registered", format!("Node {node} was {how}"));
    tracing::info!("registered: Node {node} was {how}");
}

/// A client certificate was requested; it may need approval. Call it once per request.
pub fn client_certificate_requested(request: &str) {
    tracing::info!(
        "requested a client certificate; {request} must be approved: kubectl certificate approve {request}"
    );
}

/// There is a new client certificate.
pub fn client_certificate_issued(telemetry: &Telemetry, ends: Timestamp) {
    let event_message = format!("The client certificate was issued; it is valid until {ends}");
    telemetry.node_event(Kind::Normal, "ClientCertificateIssued", event_message);
    tracing::info!("the client certificate was issued; it is valid until {ends}");
}

/// A new client certificate is due and was not issued; the agent keeps requesting it. Call it when that
/// begins, or its cause changes. `is_needed` says whether there is no certificate at all.
pub fn client_certificate_unissued(telemetry: &Telemetry, error: &str, is_needed: bool) {
    let event_message = format!("Failed to obtain a client certificate: {error}");
    telemetry.node_event(Kind::Warning, "ClientCertificateNotIssued", event_message);
    if is_needed {
        tracing::error!(
            error,
            "no client certificate for the API server; only static pods run"
        );
    } else {
        tracing::warn!(
            error,
            "failed to renew the client certificate; keeping the current one"
        );
    }
}

/// The client certificate has expired and must be replaced by hand, as `help` says. Call it once.
pub fn client_certificate_expired(telemetry: &Telemetry, ended: Timestamp, help: &str) {
    let event_message = format!("The client certificate expired at {ended}; {help}");
    telemetry.node_event(Kind::Warning, "ClientCertificateExpired", event_message);
    tracing::error!("the client certificate expired at {ended}; {help}");
}

/// An approver decided a user's certificate signing request, with that reason.
pub fn certificate_request_decided(
    metrics: &Metrics,
    decision: CertificateDecision,
    request: &str,
    user: &str,
    reason: &str,
) {
    metrics.certificate_request(decision);
    match decision {
        CertificateDecision::Denied => {
            tracing::warn!(reason, "denied {request} of {user}");
        }
        CertificateDecision::Approved | CertificateDecision::Ignored => {
            let decision = decision.as_str();
            tracing::info!(reason, "{decision} {request} of {user}");
        }
    }
}

/// A certificate signing request can't be decided before its Node exists. Call it once per request.
pub fn certificate_request_waits(request: &str, user: &str, node: &str) {
    tracing::info!("{request} of {user} waits until Node {node} exists");
}

/// The decision on a certificate signing request could not be written; the approver retries. Call it
/// once per request.
pub fn certificate_request_failed(request: &str, user: &str, error: &str) {
    tracing::warn!(
        error = error,
        "failed to decide {request} of {user}; retrying"
    );
}

/// This approver has acquired the Lease, and decides requests from now on.
pub fn approver_leads(lease: &str) {
    tracing::info!("deciding certificate signing requests: holder of Lease {lease}");
}

/// This approver doesn't hold the Lease any more.
pub fn approver_lost(lease: &str) {
    tracing::warn!("not deciding certificate signing requests any more: lost Lease {lease}");
}

/// An approver can't try to get its Lease. Call it when that begins, or its cause changes.
pub fn approver_kept_waiting(lease: &str, error: &str) {
    tracing::warn!(error, "failed to acquire Lease {lease}; retrying");
}
