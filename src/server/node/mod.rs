//! The node API: what the API server asks a node, over HTTPS on a port of its own.
//!
//! `kubectl logs`, `exec`, `attach`, `port-forward` and `top` come here. Everything but `/healthz`
//! passes the `Gate` of [`auth`] first: there is no route beside it, since it wraps the whole router, what is not
//! there included. Anonymous requests, a read-only port and switches to turn the guard off don't
//! exist.
//!
//! Upstream: `pkg/kubelet/server/server.go`.

pub mod auth;
pub mod certificate;
mod listen;
mod logs;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::auth::{ClientAuthorities, Gate, Reviewer};
use self::certificate::{CertificateError, CertificateTask, Names};
use super::view::AgentView;
use crate::config::ServingCertificate;

/// Why the node API can't be served.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to serve the node API on {address}; choose another port with --node-api-port, or 0 for none"
)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The system's words.
    pub source: io::Error,
}

/// Binds the address.
///
/// # Errors
/// The address is in use, or not one of this machine.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, BindError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| BindError { address, source })
}

/// What the node API is made of.
pub struct NodeApiParts {
    /// What it tells.
    pub view: Arc<dyn AgentView>,
    /// Whom it asks who may.
    pub reviewer: Arc<dyn Reviewer>,
    /// Whose client certificates it believes.
    pub authorities: Arc<ClientAuthorities>,
    /// Where its own certificate is from.
    pub certificate: ServingCertificate,
    /// For whom that is.
    pub names: Names,
}

/// The node API, ready to be served.
pub struct NodeApi {
    tls: Arc<rustls::ServerConfig>,
    certificates: CertificateTask,
    view: Arc<dyn AgentView>,
    gate: Arc<Gate>,
}

impl NodeApi {
    /// Puts it together. Reads the certificate, if it is in files.
    ///
    /// # Errors
    /// There is no certificate to begin with.
    pub fn new(parts: NodeApiParts) -> Result<Self, CertificateError> {
        let (served, certificates) = CertificateTask::begin(&parts.certificate, parts.names)?;
        Ok(Self {
            tls: Arc::new(tls::config(served)),
            certificates,
            view: parts.view,
            gate: Arc::new(Gate::new(parts.reviewer, parts.authorities)),
        })
    }

    /// Serves until `cancel`; streams end then.
    pub async fn serve(self, listener: TcpListener, cancel: CancellationToken) {
        let router = router(self.view, self.gate, cancel.clone());
        tokio::join!(
            listen::serve(listener, self.tls, router, cancel.clone()),
            self.certificates.run(cancel),
        );
    }
}

#[derive(Clone)]
struct Shared {
    view: Arc<dyn AgentView>,
    cancel: CancellationToken,
}

/// The routes behind their gate; can be called without a socket.
fn router(view: Arc<dyn AgentView>, gate: Arc<Gate>, cancel: CancellationToken) -> Router {
    let guarded = Router::new()
        .route(
            "/containerLogs/{namespace}/{pod}/{container}",
            get(logs::container_logs),
        )
        .fallback(|| async { (StatusCode::NOT_FOUND, "404 page not found\n") })
        .layer(middleware::from_fn_with_state(gate, auth::guard))
        .with_state(Shared { view, cancel });
    guarded
}
