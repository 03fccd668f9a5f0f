use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::ServiceExt;

use super::*;
use crate::server::fake::{FakeStats, FakeView};
use mirrorlet_host::telemetry::PodSamples;

fn served(view: Arc<dyn AgentView>) -> Served {
    Served {
        view,
        stats: Arc::new(FakeStats),
        metrics: Metrics::new(),
    }
}

async fn get_path(view: &Arc<FakeView>, path: &str) -> (StatusCode, String) {
    let app = router(served(Arc::clone(view) as Arc<dyn AgentView>));
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
async fn readiness_leaves_out_what_is_excluded() {
    let view = Arc::new(FakeView::new());
    let failing = |name: &str| Check {
        name: name.to_owned(),
        failing: Some("away".to_owned()),
    };
    *view.checks.lock().unwrap() = vec![failing("engine"), failing("source /etc/a b")];
    let (engine, source) = (
        "[-] engine failed: away\n",
        "[-] source /etc/a b failed: away\n",
    );
    let no_engine = "[+] engine excluded: ok\n";
    let no_source = "[+] source /etc/a b excluded: ok\n";
    for (query, lines, is_ready) in [
        ("", [engine, source], false),
        ("?exclude=", [engine, source], false),
        ("?exclude=eng", [engine, source], false),
        ("?verbose&exclude=engine", [no_engine, source], false),
        (
            "?exclude=engine&exclude=source%20/etc/a+b",
            [no_engine, no_source],
            true,
        ),
    ] {
        let (status, last) = if is_ready {
            (StatusCode::OK, "ready\n")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
        };
        let answer = get_path(&view, &format!("/readyz{query}")).await;
        assert_eq!(answer, (status, lines.concat() + last), "{query}");
    }
    view.checks.lock().unwrap().pop();
    let answer = get_path(&view, "/readyz?exclude=engine").await;
    assert_eq!(answer, (StatusCode::OK, format!("{no_engine}ready\n")));
}

#[tokio::test]
async fn metrics_are_in_the_form_that_is_asked_for() {
    let open = "application/openmetrics-text";
    // The second and third are of Prometheus 2.55 and 2.4.
    for (accepted, is_open) in [
        (None, false),
        (
            Some(
                "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            ),
            true,
        ),
        (Some("text/plain;version=0.0.4;q=1,*/*;q=0.1"), false),
        (Some("*/*"), false),
        (Some(open), true),
        (Some("text/plain, Application/OpenMetrics-Text"), true),
        (
            Some("text/plain;q=0.9,application/openmetrics-text;q=0.5"),
            false,
        ),
        (Some("application/openmetrics-text;q=0"), false),
        (Some("application/openmetrics-text;q=x"), false),
    ] {
        let app = router(served(Arc::new(FakeView::new())));
        let mut request = Request::get("/metrics");
        if let Some(accepted) = accepted {
            request = request.header(header::ACCEPT, accepted);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let content_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
        let expected = if is_open {
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        } else {
            "text/plain; version=0.0.4; charset=utf-8"
        };
        assert_eq!(content_type, expected, "{accepted:?}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("mirrorlet_build_info{version="), "{body}");
        assert_eq!(body.ends_with("# EOF\n"), is_open, "{body}");
        let family = if is_open {
            "mirrorlet_rollouts"
        } else {
            "mirrorlet_rollouts_total"
        };
        assert!(
            body.contains(&format!("# TYPE {family} counter\n")),
            "{body}"
        );
    }
}

#[tokio::test]
async fn serving_ends_with_the_agent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let view: Arc<dyn AgentView> = Arc::new(FakeView::new());
    let cancel = CancellationToken::new();
    let serving = tokio::spawn(serve(listener, served(view), cancel.clone()));
    let get = async || {
        let mut client = TcpStream::connect(address).await?;
        client.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").await?;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.map(|_| answer)
    };
    let answer = get().await.unwrap();
    assert!(answer.contains(" 200 "), "{answer}");
    cancel.cancel();
    serving.await.unwrap().unwrap();
    assert!(get().await.is_err());
}

#[tokio::test]
async fn what_pods_use_is_served_as_a_kubelet_does() {
    let view = Arc::new(FakeView::new());
    let get = async |path: &str| get_path(&view, path).await;
    let ok = |text: &str| (StatusCode::OK, text.to_owned());
    assert_eq!(get("/stats/summary").await, ok("{}"));
    let less = "/stats/summary?only_cpu_and_memory=true";
    assert_eq!(
        get(less).await,
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal Error: no".to_owned()
        )
    );
    assert_eq!(get("/metrics/resource").await, ok("resource"));
    assert_eq!(get("/metrics/cadvisor").await, ok("cadvisor"));
    assert_eq!(get("/metrics/probes").await, ok("probes"));
}

#[tokio::test]
async fn a_scrape_has_the_series_of_pods_if_they_are_asked_for() {
    let view = Arc::new(FakeView::new());
    let left_out = "mirrorlet_pod_metrics_left_out 3\n";
    for is_on in [false, true] {
        let samples = is_on.then_some(PodSamples {
            pods: Vec::new(),
            left_out: 3,
        });
        *view.samples.lock().unwrap() = samples;
        let (status, text) = get_path(&view, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        // agent 15
        assert_eq!(text.contains(left_out), is_on, "{text}");
    }
}
