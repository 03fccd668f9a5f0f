//! The node API, which the API server calls: HTTPS on a port of its own.
//!
//! It serves `kubectl logs`, `exec`, `attach`, `port-forward` and `top`. Everything but `/healthz`
//! passes the gate of [`auth`] first: it wraps the whole router, including unknown paths. There are no
//! anonymous requests, there is no read-only port, and the gate can't be disabled.
//!
//! Upstream: `pkg/kubelet/server/server.go`.

mod agent;
pub mod auth;
pub mod certificate;
mod connections;
pub(super) mod listen;
pub(super) mod logs;
mod shares;
pub(super) mod streams;
#[cfg(test)]
mod tests;
pub(super) mod tls;

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::auth::{ClientAuthorities, Gate, Reviewer};
use self::certificate::{CertificateTask, Names, Origin};
use self::shares::Shares;
use super::stats::{self, NodeStats};
use super::view::AgentView;
use crate::certificate::CertificateError;
use crate::store::cell::Reader;
use mirrorlet_host::telemetry::Metrics;

/// Longest body that a request may announce, in bytes.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// The parts of the node API.
pub struct NodeApiParts {
    /// The view of the agent.
    pub view: Arc<dyn AgentView>,
    /// Resource usage of pods and the machine.
    pub stats: Arc<dyn NodeStats>,
    /// Metrics and the journal.
    pub metrics: Metrics,
    /// The response of `/configz`.
    pub configz: serde_json::Value,
    /// Reviews the permissions of callers.
    pub reviewer: Arc<dyn Reviewer>,
    /// The trusted authorities of client certificates.
    pub authorities: Arc<ClientAuthorities>,
    /// Where its own certificate is from.
    pub certificate: Origin,
    /// For whom that is.
    pub names: Names,
    /// The addresses among them, which may change.
    pub addresses: Reader<Vec<IpAddr>>,
}

/// The node API, ready to be served.
pub struct NodeApi {
    tls: Arc<rustls::ServerConfig>,
    certificates: CertificateTask,
    gate: Arc<Gate>,
    view: Arc<dyn AgentView>,
    stats: Arc<dyn NodeStats>,
    metrics: Metrics,
    configz: Arc<serde_json::Value>,
}

impl NodeApi {
    /// Creates the node API. Reads the certificate, if it is in files.
    ///
    /// # Errors
    /// There is no certificate to start with.
    pub fn new(parts: NodeApiParts) -> Result<Self, CertificateError> {
        let (served, certificates) =
            CertificateTask::begin(parts.certificate, parts.names, parts.metrics.clone())?;
        Ok(Self {
            tls: Arc::new(tls::config(served)),
            certificates: certificates.following(parts.addresses),
            gate: Arc::new(Gate::new(
                parts.reviewer,
                parts.authorities,
                parts.metrics.clone(),
            )),
            view: parts.view,
            stats: parts.stats,
            metrics: parts.metrics,
            configz: Arc::new(parts.configz),
        })
    }

    /// Serves until `cancel`; streams end then.
    pub async fn serve(self, listener: TcpListener, cancel: CancellationToken) {
        let metrics = self.metrics.clone();
        let shared = Shared {
            configz: self.configz,
            ..Shared::new(self.view, self.metrics, cancel.clone())
        };
        let streams = shared.clone();
        tokio::join!(
            listen::serve(
                listener,
                self.tls,
                router(shared, self.stats, Arc::clone(&self.gate)),
                self.gate,
                metrics,
                cancel.clone()
            ),
            cancel.run_until_cancelled(self.certificates.run()),
        );
        streams.ended().await;
    }
}

/// The state that requests are answered from.
#[derive(Clone)]
pub(super) struct Shared {
    view: Arc<dyn AgentView>,
    metrics: Metrics,
    configz: Arc<serde_json::Value>,
    shares: Shares,
    /// The sessions on upgraded connections.
    sessions: TaskTracker,
    cancel: CancellationToken,
}

impl Shared {
    /// Returns one for the streams only.
    pub(super) fn new(
        view: Arc<dyn AgentView>,
        metrics: Metrics,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            view,
            shares: Shares::new(metrics.clone()),
            metrics,
            configz: Arc::default(),
            sessions: TaskTracker::new(),
            cancel,
        }
    }

    /// Waits until the sessions have ended, which the token triggers; they hold nothing that takes long
    /// to release.
    pub(super) async fn ended(&self) {
        self.sessions.close();
        self.sessions.wait().await;
    }
}

/// The routes behind their gate; can be called without a socket.
///
/// Only `/healthz` itself lies outside, as a kubelet's does on its own port for health.
fn router(shared: Shared, stats: Arc<dyn NodeStats>, gate: Arc<Gate>) -> Router {
    let metrics = shared.metrics.clone();
    let guarded = Router::new()
        .route(
            "/containerLogs/{namespace}/{pod}/{container}",
            get(logs::container_logs),
        )
        .merge(agent::routes())
        .merge(streams::routes())
        .merge(stats::routes(stats))
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
        .with_state(shared)
        // Wraps what stands above it, the fallback included.
        .layer(middleware::from_fn_with_state(gate, auth::guard));
    Router::new()
        .route("/healthz", get(agent::healthz))
        .fallback_service(guarded)
        .layer(middleware::from_fn(bound))
        .layer(middleware::from_fn_with_state(metrics, count))
}

/// Refuses a request with a declared body that is too large: no served path takes a body, and an
/// undeclared one is not read.
async fn bound(request: Request, next: Next) -> Response {
    let length = request.headers().get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    }
    next.run(request).await
}

/// Counts requests, until their answers have begun.
async fn count(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let _under_way = metrics.node_api_asked(request.method().as_str(), request.uri().path());
    next.run(request).await
}
