//! Resource usage of pods and the machine in the kubelet's formats. `app` passes the provider.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Content type of Prometheus' text format.
pub(super) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Provides the usage of pods and the machine.
#[async_trait]
pub trait NodeStats: Send + Sync + 'static {
    /// The JSON of `/stats/summary`.
    ///
    /// # Errors
    /// Why the machine can't be read.
    async fn summary(&self, only_cpu_and_memory: bool) -> Result<String, String>;

    /// The page of `/metrics/resource`.
    async fn resource_metrics(&self) -> String;

    /// The page of `/metrics/cadvisor`.
    async fn cadvisor_metrics(&self) -> String;

    /// The page of `/metrics/probes`.
    fn probe_metrics(&self) -> String;
}

/// The routes of `/stats/summary`, and of the metrics of containers, resources and probes, for
/// `metrics-server` and Prometheus.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(stats: Arc<dyn NodeStats>) -> Router<S> {
    Router::new()
        .route("/stats/summary", get(summary))
        .route("/metrics/cadvisor", get(cadvisor))
        .route("/metrics/resource", get(resource))
        .route("/metrics/probes", get(probes))
        .with_state(stats)
}

/// The provider, as the handlers take it.
type Provider = State<Arc<dyn NodeStats>>;

/// Upstream: `pkg/kubelet/server/stats/handler.go` (`handleSummary`).
async fn summary(State(stats): Provider, RawQuery(query): RawQuery) -> Response {
    match stats.summary(only_cpu_and_memory(query.as_deref())).await {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("Internal Error: {error}"),
        )
            .into_response(),
    }
}

async fn resource(State(stats): Provider) -> Response {
    page(stats.resource_metrics().await)
}

async fn cadvisor(State(stats): Provider) -> Response {
    page(stats.cadvisor_metrics().await)
}

async fn probes(State(stats): Provider) -> Response {
    page(stats.probe_metrics())
}

fn page(text: String) -> Response {
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response()
}

/// Whether the only parameter is set: once, and to `true`.
fn only_cpu_and_memory(query: Option<&str>) -> bool {
    let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let said: Vec<_> = pairs
        .filter(|(name, _)| name == "only_cpu_and_memory")
        .map(|(_, value)| value)
        .collect();
    matches!(&said[..], [value] if value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_asked_for_once_and_in_one_word() {
        for (query, expected) in [
            (None, false),
            (Some("only_cpu_and_memory=true"), true),
            (Some("x=y&only_cpu_and_memory=true"), true),
            (Some("only_cpu_and_memory=True"), false),
            (
                Some("only_cpu_and_memory=true&only_cpu_and_memory=true"),
                false,
            ),
            (Some("only_cpu_and_memory"), false),
        ] {
            assert_eq!(only_cpu_and_memory(query), expected, "{query:?}");
        }
    }
}
