use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tower::ServiceExt;

use super::*;
use crate::server::fake::FakeView;

async fn get_path(view: &Arc<FakeView>, path: &str) -> (StatusCode, String) {
    let app = router(Arc::clone(view) as Arc<dyn AgentView>, Metrics::new());
    let request = Request::get(path).body(Body::empty()).unwrap();
    let response = app.oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn readiness_names_the_checks_that_fail() {
    let view = Arc::new(FakeView::new());
    *view.checks.lock().unwrap() = vec![
        Check {
            name: "engine".to_owned(),
            failing: None,
        },
        Check {
            name: "source file".to_owned(),
            failing: Some("not read yet".to_owned()),
        },
    ];
    assert_eq!(
        get_path(&view, "/readyz").await,
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "[+] engine ok\n[-] source file failed: not read yet\nnot ready\n".to_owned()
        )
    );
    view.checks.lock().unwrap().pop();
    assert_eq!(
        get_path(&view, "/readyz").await,
        (StatusCode::OK, "[+] engine ok\nready\n".to_owned())
    );
    assert_eq!(get_path(&view, "/healthz").await.0, StatusCode::OK);
}

#[tokio::test]
async fn metrics_are_open_metrics() {
    let view = Arc::new(FakeView::new());
    let (status, body) = get_path(&view, "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    assert!(body.contains("mirrorlet_build_info{version="), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");
}

#[tokio::test]
async fn an_address_in_use_is_a_clear_error() {
    let first = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = first.local_addr().unwrap();
    let error = bind(address).await.unwrap_err();
    assert!(error.to_string().contains("--metrics-address"), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn serving_ends_with_the_agent() {
    let listener = bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let view: Arc<dyn AgentView> = Arc::new(FakeView::new());
    let cancel = CancellationToken::new();
    cancel.cancel();
    serve(listener, view, Metrics::new(), cancel).await.unwrap();
}
