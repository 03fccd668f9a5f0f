//! The agent's own data: its pods, its settings, its metrics.
//!
//! Upstream: `getPods`, `getRunningPods` of `pkg/kubelet/server/server.go`.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use serde_json::json;

use super::Shared;
use crate::server::stats::PROMETHEUS_TEXT;
use mirrorlet_core::api::Pod;
use mirrorlet_host::telemetry::prometheus_text;

/// The routes. Endpoints that can be disabled in a kubelet are disabled here.
pub(super) fn routes() -> Router<Shared> {
    let disabled =
        |words: &'static str| any(move || async move { (StatusCode::METHOD_NOT_ALLOWED, words) });
    let no_logs = || disabled("logs endpoint is disabled.\n");
    let no_profiles = || disabled("profiling endpoint is disabled.\n");
    Router::new()
        // Others than `/healthz` itself, which is open, are not.
        .route("/healthz/{check}", get(healthz))
        .route("/pods", get(pods))
        .route("/pods/", get(pods))
        .route("/runningpods", get(running_pods))
        .route("/runningpods/", get(running_pods))
        .route("/configz", get(configz))
        .route("/metrics", get(metrics))
        .route("/logs/", no_logs())
        .route("/logs/{*path}", no_logs())
        .route("/debug/pprof/", no_profiles())
        .route("/debug/pprof/{*path}", no_profiles())
        .route("/debug/flags/v", disabled("flags endpoint is disabled.\n"))
}

/// The agent answers, which is all that the kubelet's checks `ping`, `log` and `syncloop` report.
pub(super) async fn healthz() -> &'static str {
    "ok"
}

/// The pods of this Node including static pods, with their status.
async fn pods(State(shared): State<Shared>) -> Response {
    pod_list(&shared.view.pods())
}

/// The pods with running containers, as reported by the Engine.
async fn running_pods(State(shared): State<Shared>) -> Response {
    pod_list(&shared.view.running_pods())
}

fn pod_list(pods: &[Pod]) -> Response {
    // The items of a typed list don't say their kind.
    let list = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods});
    axum::Json(list).into_response()
}

async fn configz(State(shared): State<Shared>) -> Response {
    let config = &*shared.configz;
    axum::Json(json!({"kubeletconfig": config})).into_response()
}

async fn metrics(State(shared): State<Shared>) -> Response {
    let pods = shared.view.pod_samples();
    let text = prometheus_text(&shared.metrics.encode_with(pods.as_ref()));
    ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response()
}
