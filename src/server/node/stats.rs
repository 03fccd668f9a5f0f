//! What is used: `/stats/summary`, and the metrics of containers, resources and probes.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;

use super::Shared;

/// The routes.
pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/stats/summary", get(not_yet))
        .route("/metrics/cadvisor", get(not_yet))
        .route("/metrics/resource", get(not_yet))
        .route("/metrics/probes", get(not_yet))
}

async fn not_yet() -> StatusCode {
    StatusCode::NOT_IMPLEMENTED
}
