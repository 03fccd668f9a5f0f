//! What pods and the node use, and what the agent counts, for `metrics-server` and Prometheus.
//!
//! Upstream: `InstallAuthNotRequiredHandlers` of `pkg/kubelet/server/server.go`.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::get;

use crate::server::health::{self, Served};
use crate::server::stats;

/// The routes.
pub(super) fn routes<S: Clone + Send + Sync + 'static>(served: Served) -> Router<S> {
    Router::new()
        // Upstream takes a POST, too.
        .route("/stats/summary", get(summary).post(summary))
        .route("/metrics", get(health::scrape))
        .route("/metrics/resource", get(resource))
        .route("/metrics/cadvisor", get(cadvisor))
        .route("/metrics/probes", get(probes))
        .with_state(served)
}

pub(in crate::server) async fn summary(
    State(served): State<Served>,
    RawQuery(query): RawQuery,
) -> Response {
    stats::summary(&*served.stats, query.as_deref()).await
}

pub(in crate::server) async fn resource(State(served): State<Served>) -> Response {
    stats::resource(&*served.stats).await
}

pub(in crate::server) async fn cadvisor(State(served): State<Served>) -> Response {
    stats::cadvisor(&*served.stats).await
}

pub(in crate::server) async fn probes(State(served): State<Served>) -> Response {
    stats::probes(&*served.stats)
}
