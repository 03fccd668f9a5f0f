//! Resource usage: `/stats/summary`, and the metrics of containers, resources and probes, for
//! `metrics-server` and Prometheus.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::response::Response;
use axum::routing::get;

use super::Shared;
use crate::server::stats;

/// The routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/stats/summary", get(summary))
        .route("/metrics/cadvisor", get(cadvisor))
        .route("/metrics/resource", get(resource))
        .route("/metrics/probes", get(probes))
}

async fn summary(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Response {
    stats::summary(&*shared.stats, query.as_deref()).await
}

async fn cadvisor(State(shared): State<Shared>) -> Response {
    stats::cadvisor(&*shared.stats).await
}

async fn resource(State(shared): State<Shared>) -> Response {
    stats::resource(&*shared.stats).await
}

async fn probes(State(shared): State<Shared>) -> Response {
    stats::probes(&*shared.stats)
}
