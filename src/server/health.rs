//! `/metrics`, `/healthz` and `/readyz`, and what pods use (`/stats/summary`, `/metrics/resource`,
//! `/metrics/cadvisor`, `/metrics/probes`), on a loopback port by default: so a machine
//! without an API server has the kubelet's numbers, too.
//!
//! Nothing served here is secret, and nothing changes anything.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::stats::NodeStats;
use super::view::{AgentView, Check};
use super::{listen, stats};
use mirrorlet_host::telemetry::Metrics;

/// Content type of the metrics: `OpenMetrics` text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `cancel`.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    cancel: CancellationToken,
) -> io::Result<()> {
    listen::serve(listener, router(served), cancel).await
}

/// Serves metrics and health of a program that runs no pods, until `cancel`.
///
/// # Errors
/// The listener failed for good.
pub async fn serve_metrics(
    listener: TcpListener,
    metrics: Metrics,
    cancel: CancellationToken,
) -> io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(async move || encoded(&metrics)))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ready\n" }));
    listen::serve(listener, router, cancel).await
}

/// The data to serve.
#[derive(Clone)]
pub struct Served {
    /// The agent.
    pub view: Arc<dyn AgentView>,
    /// The resource usage of pods and the machine.
    pub stats: Arc<dyn NodeStats>,
    /// Its metrics.
    pub metrics: Metrics,
}

/// The routes; can be called without a socket.
pub fn router(served: Served) -> Router {
    Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .merge(stats::routes(Arc::clone(&served.stats)))
        .with_state(served)
}

async fn scrape(State(shared): State<Served>) -> Response {
    encoded(&shared.metrics)
}

fn encoded(metrics: &Metrics) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.encode()).into_response()
}

async fn ready(State(shared): State<Served>) -> Response {
    let checks = shared.view.checks();
    let status = if checks.iter().all(|check| check.failing.is_none()) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, render(&checks)).into_response()
}

/// One line a check, in the form of Kubernetes' own `/readyz?verbose`.
fn render(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let written = match &check.failing {
            None => writeln!(text, "[+] {} ok", check.name),
            Some(why) => writeln!(text, "[-] {} failed: {why}", check.name),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    let ready = checks.iter().all(|check| check.failing.is_none());
    text.push_str(if ready { "ready\n" } else { "not ready\n" });
    text
}

#[cfg(test)]
mod tests;
