use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use mirrorlet_core::api::{FullName, PodUid};
use mirrorlet_host::telemetry::Metrics;
use mirrorlet_host::telemetry::journal::Kind;
use tokio_util::sync::CancellationToken;

/// An API server that knows nothing but events, and does as it is told.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Nobody answers.
    away: bool,
    /// Answers to give instead, first to last.
    refuse: Vec<(StatusCode, &'static str)>,
    /// Namespaces that don't exist.
    missing: Vec<&'static str>,
    /// Namespaces whose requests are never answered.
    stuck: Vec<&'static str>,
    /// The requests: `POST reason/message×count`.
    asked: Vec<String>,
    events: Vec<Value>,
}

impl Api {
    fn client(&self) -> ClusterClient {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let path = parts.uri.path();
                let answer = api.answer(&parts.method, path, body);
                if api.is_stuck(path) {
                    std::future::pending::<()>().await;
                }
                answer
            }
        });
        ClusterClient::over_service(service, Metrics::new())
    }

    fn is_stuck(&self, path: &str) -> bool {
        let namespace = path.split('/').nth(4).unwrap_or_default();
        self.0.lock().stuck.contains(&namespace)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "tables read better with values"
    )]
    fn answer(
        &self,
        method: &Method,
        path: &str,
        body: Value,
    ) -> Result<Response<Full<Bytes>>, tower::BoxError> {
        let mut state = self.0.lock();
        if state.away {
            return Err("connection refused".into());
        }
        let segments: Vec<&str> = path.split('/').collect();
        let namespace = segments[4];
        let shown = |event: &Value| {
            let text = |key: &str| event[key].as_str().unwrap_or("-").to_owned();
            format!(
                "{method} {namespace} {}: {} ×{}",
                text("reason"),
                text("message"),
                event["count"]
            )
        };
        state.asked.push(shown(&body));
        if !state.refuse.is_empty() {
            let (code, reason) = state.refuse.remove(0);
            return Ok(status(code, reason));
        }
        if state.missing.contains(&namespace) {
            return Ok(status(StatusCode::NOT_FOUND, "NotFound"));
        }
        let name = |event: &Value| event["metadata"]["name"].as_str().map(str::to_owned);
        if *method == Method::POST {
            state.events.push(body.clone());
            return Ok(json_answer(StatusCode::CREATED, &body));
        }
        let wanted = segments.last().copied();
        let known = state
            .events
            .iter_mut()
            .find(|event| name(event).as_deref() == wanted);
        let Some(event) = known else {
            return Ok(status(StatusCode::NOT_FOUND, "NotFound"));
        };
        for key in ["count", "lastTimestamp", "message"] {
            event[key] = body[key].clone();
        }
        Ok(json_answer(StatusCode::OK, event))
    }
}

fn json_answer(code: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let body = Bytes::from(body.to_string());
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = code;
    response
}

fn status(code: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code.as_u16(), "reason": reason, "message": "no",
        "details": {"retryAfterSeconds": 5},
    });
    json_answer(code, &body)
}

struct Bed {
    api: Api,
    client: ClusterClient,
    telemetry: Telemetry,
    cancel: CancellationToken,
    running: tokio::task::JoinHandle<Option<()>>,
}

impl Bed {
    fn start() -> Self {
        let api = Api::default();
        let telemetry = Telemetry::new();
        let cancel = CancellationToken::new();
        let client = api.client();
        let task = EventTask::new(client.clone(), telemetry.clone(), NodeName::from("box"));
        Self {
            client,
            running: tokio::spawn(cancel.clone().run_until_cancelled_owned(task.run())),
            api,
            telemetry,
            cancel,
        }
    }

    fn tell(&self, namespace: &str, reason: &str, message: &str) {
        let name = FullName::new("web", namespace);
        let (uid, kind) = (PodUid::from("u"), Kind::Normal);
        self.telemetry
            .journal
            .pod(&name, &uid, Some("main"), kind, reason, message);
    }

    /// Waits until nothing more happens: paused time moves only when all tasks wait.
    async fn quiet(&self) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.api.0.lock().asked)
    }

    fn counted(&self, outcome: &str) -> Option<String> {
        let text = self.telemetry.metrics.encode();
        let series = format!("mirrorlet_events_total{{outcome=\"{outcome}\"}} ");
        text.lines()
            .find_map(|line| line.strip_prefix(&series).map(str::to_owned))
    }

    async fn stop(self) {
        self.cancel.cancel();
        self.running.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_story_is_written_in_its_order_and_a_repeat_only_counts_up() {
    let bed = Bed::start();
    for (reason, message) in [("Created", "a"), ("Started", "b"), ("Created", "a")] {
        bed.tell("default", reason, message);
        bed.quiet().await;
    }
    bed.telemetry.journal.node(Kind::Warning, "Rebooted", "c");
    bed.quiet().await;
    // events 2
    assert_eq!(
        bed.asked(),
        [
            "POST default Created: a ×1",
            "POST default Started: b ×1",
            "PATCH default -: a ×2",
            "POST default Rebooted: c ×1",
        ]
    );
    let events = bed.api.0.lock().events.clone();
    assert_eq!(events[0]["involvedObject"]["uid"], "u");
    assert_eq!(
        events[0]["involvedObject"]["fieldPath"],
        "spec.containers{main}"
    );
    assert_eq!(events[2]["involvedObject"]["uid"], "box");
    assert_eq!(bed.counted("created").as_deref(), Some("3"));
    assert_eq!(bed.counted("updated").as_deref(), Some("1"));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_the_server_and_repeats_meanwhile_only_count() {
    let bed = Bed::start();
    bed.tell("default", "A", "first");
    bed.quiet().await;
    bed.api.0.lock().away = true;
    for _ in 0..3 {
        bed.tell("default", "A", "first");
        bed.tell("default", "B", "second");
        bed.quiet().await;
    }
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(bed.asked(), ["POST default A: first ×1"]);
    bed.api.0.lock().away = false;
    tokio::time::sleep(Duration::from_mins(1)).await;
    // events 3
    assert_eq!(
        bed.asked(),
        ["PATCH default -: first ×4", "POST default B: second ×3"]
    );
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn too_many_lose_the_oldest() {
    let bed = Bed::start();
    bed.api.0.lock().away = true;
    for i in 0..mirrorlet_core::events::SPOOL_MAX + 20 {
        let name = FullName::new(format!("p{i}"), "default");
        let kind = Kind::Normal;
        bed.telemetry
            .journal
            .pod(&name, &"u".into(), None, kind, "R", i.to_string());
        if i % 100 == 0 {
            bed.quiet().await;
        }
    }
    bed.quiet().await;
    bed.api.0.lock().away = false;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let asked = bed.asked();
    assert_eq!(asked.len(), mirrorlet_core::events::SPOOL_MAX);
    // events 3
    assert_eq!(asked[0], "POST default R: 20 ×1");
    assert_eq!(bed.counted("lost").as_deref(), Some("20"));
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_holds_up_nobody() {
    let bed = Bed::start();
    bed.api.0.lock().missing = vec!["nowhere"];
    bed.tell("nowhere", "A", "x");
    bed.quiet().await;
    bed.tell("nowhere", "A", "x");
    bed.tell("default", "B", "y");
    bed.quiet().await;
    assert_eq!(
        bed.asked(),
        [
            "POST nowhere A: x ×1",
            // Not known to be there: patched, and then made.
            "PATCH nowhere -: x ×2",
            "POST nowhere A: x ×2",
            "POST default B: y ×1",
        ]
    );
    // events 4
    assert_eq!(bed.counted("dropped").as_deref(), Some("2"));
    bed.api.0.lock().missing.clear();
    bed.tell("nowhere", "A", "x");
    bed.quiet().await;
    assert_eq!(bed.asked().last().unwrap(), "POST nowhere A: x ×3");
    bed.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_told_apart() {
    for (code, reason, tries) in [
        (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", 2),
        (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", 2),
        (StatusCode::UNAUTHORIZED, "Unauthorized", 2),
        (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", 2),
        (StatusCode::CONFLICT, "AlreadyExists", 1),
        (StatusCode::FORBIDDEN, "Forbidden", 1),
        (StatusCode::UNPROCESSABLE_ENTITY, "Invalid", 1),
    ] {
        let bed = Bed::start();
        bed.api.0.lock().refuse = vec![(code, reason)];
        bed.tell("default", "A", "x");
        bed.quiet().await;
        assert_eq!(bed.asked().len(), 1, "{reason}: no pause before a retry");
        tokio::time::sleep(Duration::from_mins(1)).await;
        // events 4
        assert_eq!(1 + bed.asked().len(), tries, "{reason}");
        bed.stop().await;
    }
    // A server that fails on the same event for ever.
    let bed = Bed::start();
    bed.api.0.lock().refuse = vec![(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"); 3];
    bed.tell("default", "A", "x");
    bed.tell("default", "B", "y");
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = bed.asked();
    assert_eq!(asked.len(), 4, "{asked:?}");
    assert_eq!(asked[3], "POST default B: y ×1");
    bed.stop().await;
}

/// A webhook that hangs, and takes its time: 30 s are allowed.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_not_answered_holds_up_no_other() {
    let bed = Bed::start();
    bed.api.0.lock().stuck = vec!["stuck"];
    // What shows that the API server is there: the Lease, which is renewed every ten seconds.
    let client = bed.client.clone();
    let lease = tokio::spawn(async move {
        let events: kube::Api<core::Event> = kube::Api::namespaced(client.client(), "lease");
        loop {
            let _ = client
                .heartbeat(Duration::from_secs(4), events.get("x"))
                .await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    });
    bed.quiet().await;
    for message in ["a", "b", "c"] {
        bed.tell("stuck", "A", message);
    }
    bed.tell("default", "B", "y");
    tokio::time::sleep(Duration::from_mins(3)).await;
    let asked: Vec<String> = bed.asked();
    let of = |namespace: &str| asked.iter().filter(|one| one.contains(namespace)).count();
    // events 4
    assert_eq!(
        (of(" stuck "), of(" default ")),
        (3 + 1 + 1, 1),
        "{asked:?}"
    );
    assert_eq!(bed.counted("dropped").as_deref(), Some("3"));
    // Once it is answered again, its events are tried as all are.
    bed.api.0.lock().stuck.clear();
    bed.tell("stuck", "A", "d");
    bed.quiet().await;
    let asked = bed.asked();
    assert!(
        asked.contains(&"POST stuck A: d ×1".to_owned()),
        "{asked:?}"
    );
    // The API server itself hangs: nothing is lost.
    bed.api.0.lock().stuck = vec!["stuck", "default", "lease"];
    tokio::time::sleep(Duration::from_mins(1)).await;
    bed.tell("default", "C", "z");
    tokio::time::sleep(Duration::from_mins(10)).await;
    bed.asked();
    bed.api.0.lock().stuck.clear();
    tokio::time::sleep(Duration::from_mins(1)).await;
    let asked = bed.asked();
    assert!(
        asked.contains(&"POST default C: z ×1".to_owned()),
        "{asked:?}"
    );
    assert_eq!(bed.counted("dropped").as_deref(), Some("3"));
    lease.abort();
    bed.stop().await;
}
