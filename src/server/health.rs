//! `/metrics`, `/healthz` and `/readyz`, and the pods' usage (`/stats/summary`, `/metrics/resource`,
//! `/metrics/cadvisor`, `/metrics/probes`), on a loopback port by default: so a machine without an API
//! server has the kubelet's metrics, too.
//!
//! Nothing served here is secret, and no request changes anything.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::listen::Answers;
use super::stats::NodeStats;
use super::view::{AgentView, Check};
use super::{listen, stats};
use mirrorlet_host::telemetry::{Metrics, prometheus_text};

/// Media type of `OpenMetrics` text.
const OPEN_METRICS: &str = "application/openmetrics-text";
/// Content type of the metrics as `OpenMetrics` text.
const OPEN_METRICS_TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves until `cancel`.
///
/// # Errors
/// The listener failed for good.
pub async fn serve(
    listener: TcpListener,
    served: Served,
    cancel: CancellationToken,
) -> io::Result<()> {
    listen::serve(listener, router(served), Answers::Short, cancel).await
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
        .route(
            "/metrics",
            get(async move |headers: HeaderMap| answer(metrics.encode(), &headers)),
        )
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ready\n" }));
    listen::serve(listener, router, Answers::Short, cancel).await
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

async fn scrape(State(shared): State<Served>, headers: HeaderMap) -> Response {
    let pods = shared.view.pod_samples();
    answer(shared.metrics.encode_with(pods.as_ref()), &headers)
}

/// The metrics, which are given as `OpenMetrics` text, in the form that the client prefers; the text
/// format 0.0.4, which every scraper reads, if it has no preference.
fn answer(open: String, headers: &HeaderMap) -> Response {
    let accepted = headers.get_all(header::ACCEPT).iter();
    let accepted: Vec<&str> = accepted.filter_map(|value| value.to_str().ok()).collect();
    if prefers_open_metrics(&accepted) {
        ([(header::CONTENT_TYPE, OPEN_METRICS_TEXT)], open).into_response()
    } else {
        let content_type = [(header::CONTENT_TYPE, stats::PROMETHEUS_TEXT)];
        (content_type, prometheus_text(&open)).into_response()
    }
}

/// Whether headers `Accept` name `OpenMetrics`, and the older text format with no higher weight. A
/// wildcard names neither.
///
/// Upstream: `prometheus/common`, `expfmt/encode.go` (`NegotiateIncludingOpenMetrics`).
fn prefers_open_metrics(accepted: &[&str]) -> bool {
    let weight = |media_type: &str| {
        let ranges = accepted.iter().flat_map(|value| value.split(','));
        let weights = ranges.filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            if !parts.next()?.eq_ignore_ascii_case(media_type) {
                return None;
            }
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            weight.map_or(Some(1.0), |weight| weight.parse::<f32>().ok())
        });
        weights.fold(0.0, f32::max)
    };
    let open = weight(OPEN_METRICS);
    open > 0.0 && open >= weight("text/plain")
}

/// Answers for all checks but those that the query excludes, by `exclude=NAME`, repeatedly.
///
/// Upstream: `apiserver/pkg/server/healthz/healthz.go` (`getExcludedChecks`).
async fn ready(State(shared): State<Served>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let pairs = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "exclude");
    let excluded: Vec<String> = pairs.map(|(_, name)| name.into_owned()).collect();
    let checks = shared.view.checks();
    let checks: Vec<_> = checks
        .iter()
        .map(|check| (check, excluded.contains(&check.name)))
        .collect();
    let is_ready = checks
        .iter()
        .all(|(check, is_excluded)| *is_excluded || check.failing.is_none());
    let status = if is_ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, render(&checks, is_ready)).into_response()
}

/// One line a check, each with whether it is excluded, in the form of Kubernetes' own
/// `/readyz?verbose`.
fn render(checks: &[(&Check, bool)], is_ready: bool) -> String {
    let mut text = String::new();
    for (check, is_excluded) in checks {
        let written = match &check.failing {
            _ if *is_excluded => writeln!(text, "[+] {} excluded: ok", check.name),
            None => writeln!(text, "[+] {} ok", check.name),
            Some(why) => writeln!(text, "[-] {} failed: {why}", check.name),
        };
        debug_assert!(written.is_ok(), "a String takes everything");
    }
    text.push_str(if is_ready { "ready\n" } else { "not ready\n" });
    text
}

#[cfg(test)]
mod tests;
