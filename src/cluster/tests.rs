//! The client over a server that misbehaves on purpose.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::Api;
use kube::api::WatchParams;
use kube::client::Body;
use kube::runtime::watcher::{self, watcher};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::service_fn;

use super::*;
use crate::store::cell::cell;
use mirrorlet_core::api::core::Node;
use mirrorlet_core::objects::{ObjectError, ObjectKey, ObjectKind, References};
use mirrorlet_host::telemetry::Metrics;
use mirrorlet_runtime::objects::Objects;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

fn answer(code: u16, text: String) -> Answer {
    let mut answer = Response::new(Full::from(text).boxed_unsync());
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

fn status(code: u16, reason: &str) -> Answer {
    let text = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": "no",
    });
    answer(code, text.to_string())
}

fn node() -> Answer {
    let text = serde_json::json!({
        "kind": "Node", "apiVersion": "v1", "metadata": { "name": "n" },
    });
    answer(200, text.to_string())
}

fn client<F, Fut>(serve: F) -> (ClusterClient, Metrics)
where
    F: Fn(Request<Body>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Answer, std::io::Error>> + Send + 'static,
{
    let metrics = Metrics::new();
    let client = ClusterClient::over_service(service_fn(serve), metrics.clone());
    (client, metrics)
}

async fn get(client: &ClusterClient) -> Result<Node, ApiError> {
    let nodes: Api<Node> = Api::all(client.client());
    client.read(client::CALL_DEADLINE, nodes.get("n")).await
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_away_at_the_deadline() {
    let (client, metrics) = client(|_| std::future::pending());
    let began = Instant::now();
    let error = get(&client).await.unwrap_err();
    assert_eq!(began.elapsed().as_secs(), client::CALL_DEADLINE.as_secs());
    // node 6e
    assert!(error.is_away(), "{error}");
    assert!(matches!(*client.reach().get(), ApiReach::Down { .. }));
    let counted = metrics.encode();
    let line = "mirrorlet_api_requests_total{verb=\"get\",resource=\"nodes\",code=\"none\"} 1";
    assert!(counted.contains(line), "{counted}");
    assert!(counted.contains("mirrorlet_api_up 0"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_gets_no_answer_ends() {
    let (client, _) = client(|_| std::future::pending());
    let nodes: Api<Node> = Api::all(client.client());
    // Nobody gives this call a deadline.
    let watch = nodes.watch(&WatchParams::default(), "0").await;
    assert!(watch.is_err());
    // node 6e
    assert!(matches!(*client.reach().get(), ApiReach::Down { .. }));
}

/// An answer whose body begins, and never ends.
fn half(code: u16) -> Answer {
    let first = Frame::data(Bytes::from_static(b"{\"kind\":"));
    let frames = stream::iter([Ok::<_, Infallible>(first)]).chain(stream::pending());
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    *answer.status_mut() = code.try_into().unwrap();
    answer
}

fn no_services() -> Answer {
    let text = serde_json::json!({
        "kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": [],
    });
    answer(200, text.to_string())
}

fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.contains("watch=")
}

/// Watches services, for a pod that refers to them, until the task is aborted.
fn watching_services(client: ClusterClient) -> tokio::task::JoinHandle<()> {
    let (objects, task) = ClusterObjects::new(client, cell(None).1);
    let references = References {
        services: true,
        ..References::default()
    };
    objects.hold(&"u".into(), &references);
    tokio::spawn(task.run())
}

#[tokio::test(start_paused = true)]
async fn objects_are_waited_for_as_soon_as_the_server_is_back() {
    /// More than are got at a time.
    const OBJECTS: usize = 12;
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let (client, _) = client(move |request| {
        let down = down.load(Ordering::Relaxed);
        let (watches, path) = (is_watch(&request), request.uri().path().to_owned());
        async move {
            if down {
                return Err(std::io::Error::other("connection refused"));
            }
            if watches {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            let Some((_, name)) = path.split_once("/configmaps/") else {
                return Ok(node());
            };
            let map = serde_json::json!({
                "kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"name": name, "namespace": "ns", "resourceVersion": "1"},
            });
            Ok(answer(200, map.to_string()))
        }
    });
    let keys = (0..OBJECTS).map(|n| ObjectKey {
        kind: ObjectKind::ConfigMap,
        namespace: "ns".to_owned(),
        name: format!("map-{n}"),
    });
    let references = References {
        objects: keys.collect(),
        ..References::default()
    };
    let (objects, task) = ClusterObjects::new(client.clone(), cell(None).1);
    objects.hold(&"u".into(), &references);
    let watching = tokio::spawn(task.run());
    for key in &references.objects {
        let error = objects.config_map(key).await.unwrap_err();
        assert!(matches!(error, ObjectError::Away { .. }), "{error}");
    }
    // Until every watch has failed for the same cause.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut news = objects.subscribe(&"u".into());
    news.borrow_and_update();
    is_down.store(false, Ordering::Relaxed);
    get(&client).await.unwrap();
    news.changed().await.unwrap();
    // That may have been the first answer, a moment before the errors are forgotten.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let began = Instant::now();
    for key in &references.objects {
        let found = objects.config_map(key).await;
        // node 6e
        assert!(found.is_ok(), "{key:?}: {found:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_half_way_is_given_up() {
    for code in [200, 403, 429, 500] {
        let (client, _) = client(move |_| async move { Ok(half(code)) });
        let nodes: Api<Node> = Api::all(client.client());
        let began = Instant::now();
        // Nobody gives this call a deadline.
        let error = nodes.get("n").await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 30, "{code}");
        // node 6e
        assert!(ApiError::from(error).is_away(), "{code}");
        assert!(
            matches!(*client.reach().get(), ApiReach::Down { .. }),
            "{code}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn services_are_asked_for_again_though_answers_stop_half_way() {
    let (asked, mut requests) = mpsc::unbounded_channel();
    let number = Arc::new(AtomicUsize::new(0));
    let (client, _) = client(move |request| {
        asked.send(is_watch(&request)).unwrap();
        let number = number.fetch_add(1, Ordering::Relaxed);
        async move {
            Ok(match number {
                1 => no_services(),
                2 => half(403),
                3 => half(429),
                4 => half(500),
                _ => half(200),
            })
        }
    });
    let watching = watching_services(client);
    for is_next_watch in [false, false, true, true, true, true] {
        let next = tokio::time::timeout(Duration::from_mins(2), requests.recv()).await;
        // node 6e
        assert_eq!(next, Ok(Some(is_next_watch)));
    }
    watching.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_each_watch_at_once_is_not_asked_in_a_loop() {
    const REQUESTS_MAX: usize = 100;
    // The second is what kube takes for an end.
    for failure in [None, Some(std::io::ErrorKind::UnexpectedEof)] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let service = service_fn(move |request: Request<Body>| {
            let number = counter.fetch_add(1, Ordering::Relaxed);
            let list = r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#;
            let part = if is_watch(&request) {
                failure.map(|kind| Err(std::io::Error::from(kind)))
            } else {
                Some(Ok(Frame::data(Bytes::from_static(list.as_bytes()))))
            };
            async move {
                if number >= REQUESTS_MAX {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::io::Error>(Response::new(StreamBody::new(stream::iter(part))))
            }
        });
        let client = ClusterClient::over_service(service, Metrics::new());
        let nodes: Api<Node> = Api::all(client.client());
        let events =
            watcher(nodes, watcher::Config::default()).for_each(|_| std::future::ready(()));
        let watched = tokio::time::timeout(Duration::from_mins(1), events).await;
        assert!(watched.is_err(), "a watch goes on for ever");
        let asked = asked.load(Ordering::Relaxed);
        // node 6e
        assert!((30..=65).contains(&asked), "{failure:?}: {asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn services_whose_watch_fails_after_each_list_are_asked_for_less_and_less() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let (client, _) = client(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        let expired = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","code":410,"reason":"Expired","message":"too old"}}"#;
        let answer = if is_watch(&request) {
            answer(200, format!("{expired}\n"))
        } else {
            no_services()
        };
        async move { Ok(answer) }
    });
    let watching = watching_services(client);
    tokio::time::sleep(Duration::from_mins(5)).await;
    let asked = asked.load(Ordering::Relaxed);
    // node 6e
    assert!((10..100).contains(&asked), "{asked}");
    watching.abort();
}

#[tokio::test]
async fn pages_of_a_proxy_are_told_in_short_and_alike() {
    let page = |request: u32| {
        let text = "x".repeat(100_000);
        format!("\n<!DOCTYPE html>\n<html>{text}, request {request}</html>").into_bytes()
    };
    let not_its_words = "HTTP 502 Bad Gateway, with a body that is not a Status of the API server";
    let long = format!("HTTP 502 Bad Gateway: {}…", "y".repeat(231));
    for (text, expected) in [
        (page(1), not_its_words),
        (page(2), not_its_words),
        // Not UTF-8.
        (b"<p>indispon\xedvel</p>".to_vec(), not_its_words),
        (br#"{"error": "request 3"}"#.to_vec(), not_its_words),
        (Vec::new(), not_its_words),
        (
            b"no healthy upstream\r\nrequest 4\r\n".to_vec(),
            "HTTP 502 Bad Gateway: no healthy upstream",
        ),
        ("y".repeat(100_000).into_bytes(), &*long),
    ] {
        let service = service_fn(move |_: Request<Body>| {
            let mut answer = Response::new(Full::<Bytes>::from(text.clone()));
            *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let client = ClusterClient::over_service(service, Metrics::new());
        let error = get(&client).await.unwrap_err();
        let told = format!("the API server is unreachable: {expected}");
        // node 6e
        assert_eq!(error.to_string(), told);
    }
}

/// As an ingress answers while it has no route to the API server.
#[tokio::test]
async fn a_proxy_does_not_say_whether_an_object_is_there() {
    for (code, words) in [
        (404, "404 Not Found"),
        (409, "409 Conflict"),
        (410, "410 Gone"),
    ] {
        let (client, _) =
            client(move |_| async move { Ok(answer(code, "default backend\n".to_owned())) });
        let nodes: Api<Node> = Api::all(client.client());
        let found = nodes.get_opt("n").await;
        // node 6e
        assert!(found.is_err(), "{code}: {found:?}");
        let error = get(&client).await.unwrap_err();
        let told = format!("the API server is unreachable: HTTP {words}: default backend");
        assert_eq!(error.to_string(), told);
        assert!(
            matches!(*client.reach().get(), ApiReach::Down { .. }),
            "{code}"
        );
    }
}

#[tokio::test]
async fn long_words_of_the_api_server_are_shortened() {
    for (length, reason, words) in [
        (20_000, "Invalid", "not valid: denied by xxx"),
        (100_000, "Invalid", "not valid: denied by xxx"),
        (
            2 << 20,
            "",
            "not valid: HTTP 422 Unprocessable Entity, with a body of more than 1 MiB",
        ),
    ] {
        let (client, _) = client(move |_| async move {
            let text = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": 422, "reason": "Invalid", "message": format!("denied by {}", "x".repeat(length)),
            });
            Ok(answer(422, text.to_string()))
        });
        let error = get(&client).await.unwrap_err();
        // node 6e
        assert_eq!(error.answer().map(|answer| &*answer.reason), Some(reason));
        let told = error.to_string();
        // node 6e
        assert!(told.starts_with(words), "{told}");
        assert!(told.len() < 4200, "{length}");
    }
}

#[tokio::test]
async fn refusals_are_answers_and_troubles_are_not() {
    for (code, reason, is_up) in [
        (403, "Forbidden", true),
        (401, "Unauthorized", false),
        (404, "NotFound", true),
        (409, "Conflict", true),
        (429, "TooManyRequests", true),
        // A webhook that can't be reached says nothing about the server.
        (500, "InternalError", true),
        (503, "ServiceUnavailable", false),
        (504, "Timeout", false),
    ] {
        let tries = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&tries);
        let (client, _) = client(move |_| {
            counter.fetch_add(1, Ordering::Relaxed);
            async move { Ok(status(code, reason)) }
        });
        let error = get(&client).await.unwrap_err();
        // One who isn't known is answered, but not served.
        assert_eq!(error.is_away(), !is_up && code != 401, "{code}: {error:?}");
        assert_eq!(client.reach().get().is_up(), is_up, "{code}");
        // Whether and when to try again is the caller's to say.
        assert_eq!(tries.load(Ordering::Relaxed), 1, "{code}");
    }
}

#[tokio::test]
async fn requests_name_the_program() {
    let (client, _) = client(|request| async move {
        let agent = request.headers()[http::header::USER_AGENT]
            .to_str()
            .unwrap();
        assert!(agent.starts_with("mirrorlet/"), "{agent}");
        Ok(node())
    });
    get(&client).await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_says_why_once() {
    let (client, _) = client(|_| async { Err(std::io::Error::other("connection refused")) });
    let error = get(&client).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the API server is unreachable: connection refused"
    );
}

#[tokio::test]
async fn watches_end_when_the_credentials_are_replaced() {
    let serve = |_| async {
        let line = r#"{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"n","resourceVersion":"1"}}}"#;
        let first = Frame::data(Bytes::from(format!("{line}\n")));
        let frames = stream::iter([Ok::<_, Infallible>(first)]).chain(stream::pending());
        Ok(Response::new(StreamBody::new(frames).boxed_unsync()))
    };
    let (client, _) = client(serve);
    let nodes: Api<Node> = Api::all(client.client());
    let watch = nodes.watch(&WatchParams::default(), "0").await.unwrap();
    let mut watch = watch.boxed();
    assert!(watch.try_next().await.unwrap().is_some());
    let other = service_fn(|_: Request<Body>| async { Ok::<_, std::io::Error>(node()) });
    client.shared.replace(client::boxed(other), "");
    // node 6c
    assert!(watch.try_next().await.unwrap().is_none(), "the watch ended");
    assert_eq!(
        get(&client).await.unwrap().metadata.name.as_deref(),
        Some("n")
    );
}

#[tokio::test(start_paused = true)]
async fn writes_wait_for_their_turn_and_heartbeats_do_not() {
    let (client, _) = client(|_| async { Ok(node()) });
    let nodes: Api<Node> = Api::all(client.client());
    tokio::time::advance(Duration::from_mins(1)).await;
    let began = Instant::now();
    for _ in 0..150 {
        let call = nodes.get("n");
        client.write(client::CALL_DEADLINE, call).await.unwrap();
    }
    // node 6h
    assert_eq!(
        began.elapsed().as_millis() / 100,
        10,
        "fifty a second after the burst"
    );
    let call = nodes.get("n");
    client.heartbeat(client::CALL_DEADLINE, call).await.unwrap();
    assert_eq!(began.elapsed().as_millis() / 100, 10);
}

#[test]
fn a_kubeconfig_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let cluster = "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]";
    for (path, word) in [
        (dir.path().join("missing"), "No such file"),
        (dir.path().to_owned(), "directory"),
        (write("broken", "a: ["), "YAML"),
        (write("empty", "{}"), "context"),
        (write("context", "current-context: nowhere"), "nowhere"),
        (
            write(
                "server",
                "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]",
            ),
            "cluster",
        ),
        (
            write(
                "certificate",
                &format!(
                    "current-context: x\ncontexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n{cluster}\nusers: [{{name: u, user: {{client-certificate: gone.crt, client-key: gone.key}}}}]"
                ),
            ),
            "gone.crt",
        ),
    ] {
        let access = crate::config::ApiAccess::Kubeconfig(path.clone());
        let Err(error) = ClusterClient::open(&access, Metrics::new()) else {
            panic!("{}", path.display())
        };
        let words = error.to_string();
        // node 6d
        assert!(words.contains(path.to_str().unwrap()), "{words}");
        assert!(words.contains(word), "{words}");
    }
    let proxied = write(
        "proxied",
        "current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', proxy-url: 'http://127.0.0.1:2'}}]",
    );
    let access = crate::config::ApiAccess::Kubeconfig(proxied);
    let refused = ClusterClient::open(&access, Metrics::new()).map(|_| ());
    let words = refused.unwrap_err().to_string();
    assert!(words.ends_with("its proxy-url is not supported"), "{words}");
    assert!(
        ClusterClient::open(&crate::config::ApiAccess::None, Metrics::new())
            .unwrap()
            .is_none()
    );
}
