//! The calls whose answer is a stream: events, pulls and logs.
//!
//! Not through bollard: it doesn't report when a subscription was accepted, fails a whole stream over
//! an unknown enum value, drops the code of a pull's error, encodes credentials in the wrong alphabet
//! and guesses at the framing of terminals.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use bollard::errors::Error;
use bollard::models::{EventActor, EventMessage, EventMessageTypeEnum};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use tokio_util::codec::FramedRead;
use tokio_util::io::StreamReader;

use super::errors::{STREAM_ERROR_STATUS, unavailable};
use super::lines::{chunks, lines};
use super::{BollardEngine, owned};
use crate::engine::{
    CALL_DEADLINE, EngineError, LogFrames, OtherEvent, PullProgress, READ_DEADLINE, RegistryAuth,
    Result,
};
use crate::logs::FrameDecoder;
use crate::operation::Operation;
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_runtime::{LogChunk, LogOptions, LogSource};

/// Largest error text read from an answer, in bytes.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// Bytes of a log decoded at a time.
const LOG_READ_BYTES: usize = 64 << 10;

/// The container events that change our index. Renames and execs don't.
const EVENTS: [&str; 9] = [
    "create", "start", "kill", "die", "stop", "oom", "pause", "unpause", "destroy",
];

/// The image events that change the image of a name, and the network event after which a pod may have
/// no address.
const OTHER_EVENTS: [&str; 7] = [
    "delete", "import", "load", "pull", "tag", "untag", DISCONNECT,
];

/// The event of a network that a container was disconnected from.
const DISCONNECT: &str = "disconnect";

/// Header with the credentials for the registry that is pulled from.
const REGISTRY_AUTH: &str = "X-Registry-Auth";

impl BollardEngine {
    /// Sends a request and waits for the headers of a successful answer.
    pub(super) async fn open(
        &self,
        operation: Operation,
        target: &str,
        after: Duration,
        request: http::request::Builder,
    ) -> Result<Response<Incoming>> {
        let work = async {
            let request: Request<Full<Bytes>> = request.body(Full::default())?;
            let response = self.transport.send(request).await?;
            if response.status().is_success() {
                return Ok(response);
            }
            Err(refused(response).await)
        };
        self.call(operation, target, after, work).await
    }

    pub(super) async fn open_events(
        &self,
        owner: &str,
        since: Option<Timestamp>,
    ) -> Result<BoxStream<'static, Result<EventMessage>>> {
        let request = Request::get(format!("/events?{}", event_query(owner, since)));
        let response = self
            .open(Operation::Events, "", READ_DEADLINE, request)
            .await?;
        let (endpoint, transport) = (self.endpoint.clone(), self.transport.clone());
        Ok(lines(response.into_body())
            .map_err(move |e| {
                transport.disagree();
                unavailable(&endpoint, &e)
            })
            .try_filter_map(async |line| Ok(event(&line)))
            .boxed())
    }

    pub(super) async fn open_other_events(&self) -> Result<BoxStream<'static, Result<OtherEvent>>> {
        let filters = json!({ "type": ["image", "network"], "event": OTHER_EVENTS });
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("filters", &filters.to_string())
            .finish();
        let request = Request::get(format!("/events?{query}"));
        let response = self
            .open(Operation::Events, "", READ_DEADLINE, request)
            .await?;
        let endpoint = self.endpoint.clone();
        Ok(lines(response.into_body())
            .map_err(move |e| unavailable(&endpoint, &e))
            .try_filter_map(async |line| Ok(event(&line).and_then(other_event)))
            .boxed())
    }

    pub(super) async fn open_pull(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
    ) -> Result<BoxStream<'static, Result<PullProgress>>> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("fromImage", image)
            .finish();
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(format!("/images/create?{query}"));
        if let Some(auth) = auth {
            request = request.header(REGISTRY_AUTH, registry_auth(auth));
        }
        let response = self
            .open(Operation::PullImage, image, CALL_DEADLINE, request)
            .await?;
        let endpoint = self.endpoint.clone();
        Ok(lines(response.into_body())
            .map(move |line| match line {
                Ok(line) => pull_message(&line),
                Err(error) => Err(unavailable(&endpoint, &error)),
            })
            .boxed())
    }

    pub(super) async fn open_logs(
        &self,
        id: &str,
        options: &LogOptions,
        tty: bool,
    ) -> Result<LogFrames> {
        let request = Request::get(format!("/containers/{id}/logs?{}", log_query(options)));
        let response = self
            .open(Operation::Logs, id, READ_DEADLINE, request)
            .await?;
        let endpoint = self.endpoint.clone();
        let body = chunks(response.into_body());
        if tty {
            return Ok(body
                .map_ok(LogChunk::Stdout)
                .map_err(move |e| unavailable(&endpoint, &e))
                .boxed());
        }
        Ok(
            FramedRead::with_capacity(StreamReader::new(body), FrameDecoder, LOG_READ_BYTES)
                .map_err(move |e| unavailable(&endpoint, &e))
                .boxed(),
        )
    }
}

/// Returns the error of an unexpected answer.
pub(super) async fn refused(response: Response<Incoming>) -> Error {
    Error::DockerResponseServerError {
        status_code: response.status().as_u16(),
        message: error_text(response).await,
    }
}

/// The Engine's words in an answer that reports an error.
async fn error_text(response: Response<Incoming>) -> String {
    #[derive(Deserialize)]
    struct Words {
        message: String,
    }
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ERROR_BYTES)
        .collect()
        .await;
    let bytes = body
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default();
    let text = match serde_json::from_slice::<Words>(&bytes) {
        Ok(words) => words.message,
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    if text.trim().is_empty() {
        status.to_string()
    } else {
        text
    }
}

/// A time as the Engine's queries take it: seconds and nanoseconds with a dot between.
fn engine_time(time: Timestamp) -> String {
    let nanoseconds = time.as_nanosecond().max(0);
    format!(
        "{}.{:09}",
        nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000
    )
}

fn event_query(owner: &str, since: Option<Timestamp>) -> String {
    let mut filters = owned(owner);
    filters.insert("type".to_owned(), vec!["container".to_owned()]);
    filters.insert("event".to_owned(), EVENTS.map(str::to_owned).to_vec());
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("filters", &json!(filters).to_string());
    if let Some(since) = since {
        query.append_pair("since", &engine_time(since));
    }
    query.finish()
}

fn log_query(options: &LogOptions) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if options.source != LogSource::Stderr {
        query.append_pair("stdout", "1");
    }
    if options.source != LogSource::Stdout {
        query.append_pair("stderr", "1");
    }
    if options.follow {
        query.append_pair("follow", "1");
    }
    if options.timestamps {
        query.append_pair("timestamps", "1");
    }
    if let Some(tail) = options.tail {
        query.append_pair("tail", &tail.to_string());
    }
    if let Some(since) = options.since {
        query.append_pair("since", &engine_time(since));
    }
    query.finish()
}

/// Credentials as the Engine decodes them: base64 of JSON in the URL-safe alphabet. In the
/// standard one it silently pulls without them. A server with a wildcard is left out: an Engine with
/// containerd's images compares it with the registry, and would pull without credentials.
fn registry_auth(auth: &RegistryAuth) -> String {
    let fields = [
        ("username", &auth.username),
        ("password", &auth.password),
        ("identitytoken", &auth.identity_token),
        ("registrytoken", &auth.registry_token),
        ("serveraddress", &auth.server),
    ];
    let is_pattern = |value: &str| value.contains(['*', '?', '[', '@']);
    let given = fields.iter().filter(|(name, value)| {
        let is_refused = *name == "serveraddress" && is_pattern(value);
        !value.is_empty() && !is_refused
    });
    let given: BTreeMap<_, _> = given.copied().collect_map();
    URL_SAFE.encode(json!(given).to_string())
}

/// An event as the Engine writes it; values that later Engines invent are no reason to fail.
#[derive(Deserialize)]
struct WireEvent {
    #[serde(rename = "Action")]
    action: Option<String>,
    #[serde(rename = "Actor")]
    actor: Option<EventActor>,
    time: Option<i64>,
    #[serde(rename = "timeNano")]
    time_nano: Option<i64>,
}

/// Parses the event in a line. An invalid one is skipped: the infrequent list finds the change.
pub(super) fn event(line: &str) -> Option<EventMessage> {
    match serde_json::from_str::<WireEvent>(line) {
        Ok(wire) => Some(EventMessage {
            typ: Some(EventMessageTypeEnum::CONTAINER),
            action: wire.action,
            actor: wire.actor,
            scope: None,
            time: wire.time,
            time_nano: wire.time_nano,
        }),
        Err(error) => {
            tracing::warn!(%error, "failed to decode an event of the Docker Engine");
            None
        }
    }
}

/// The change that an event of an image or a network reports, if it is of use.
fn other_event(event: EventMessage) -> Option<OtherEvent> {
    if event.action.as_deref() != Some(DISCONNECT) {
        return Some(OtherEvent::Image);
    }
    let id = event.actor?.attributes?.remove("container")?;
    Some(OtherEvent::Disconnected(id))
}

/// A message of a pull as the Engine writes it.
#[derive(Deserialize)]
struct WirePull {
    #[serde(default)]
    id: String,
    #[serde(default)]
    status: String,
    #[serde(rename = "progressDetail", default)]
    detail: Option<WireDetail>,
    #[serde(rename = "errorDetail", default)]
    error_detail: Option<WireError>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
struct WireDetail {
    current: Option<u64>,
    total: Option<u64>,
}

#[derive(Deserialize)]
struct WireError {
    #[serde(default)]
    code: Option<u16>,
    #[serde(default)]
    message: String,
}

pub(super) fn pull_message(line: &str) -> Result<PullProgress> {
    let wire: WirePull = serde_json::from_str(line).map_err(|e| EngineError::Decode {
        operation: Operation::PullImage.as_str(),
        cause: e.to_string(),
    })?;
    let failed = wire
        .error_detail
        .map(|e| (e.code, e.message))
        .or(wire.error.map(|message| (None, message)));
    if let Some((code, message)) = failed {
        return Err(EngineError::api(
            code.filter(|c| *c != 0).unwrap_or(STREAM_ERROR_STATUS),
            message,
        ));
    }
    Ok(PullProgress {
        layer: wire.id,
        status: wire.status,
        current: wire.detail.as_ref().and_then(|d| d.current),
        total: wire.detail.as_ref().and_then(|d| d.total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds() {
        let time = |text: &str| engine_time(text.parse().unwrap());
        assert_eq!(
            time("2026-01-02T03:04:05.000000006Z"),
            "1767323045.000000006"
        );
        assert_eq!(time("1969-01-01T00:00:00Z"), "0.000000000");
    }

    #[test]
    fn credentials_use_the_url_safe_alphabet() {
        let auth = RegistryAuth {
            username: "u".into(),
            password: "~~~???>>>ÿÿÿ".into(),
            server: "r.example".into(),
            ..RegistryAuth::default()
        };
        let text = registry_auth(&auth);
        assert!(!text.contains(['+', '/']), "{text}");
        let json: serde_json::Value =
            serde_json::from_slice(&URL_SAFE.decode(text).unwrap()).unwrap();
        assert_eq!(json["password"], "~~~???>>>ÿÿÿ");
        assert_eq!(json["serveraddress"], "r.example");
        assert_eq!(json.as_object().unwrap().len(), 3);
        assert!(!format!("{auth:?}").contains("~~~"));
        for server in ["*.azurecr.io", "r[0-9].example", "user@r.example"] {
            let auth = RegistryAuth {
                server: server.into(),
                ..auth.clone()
            };
            let sent = URL_SAFE.decode(registry_auth(&auth)).unwrap();
            let json: serde_json::Value = serde_json::from_slice(&sent).unwrap();
            // docker 49b
            assert!(json.get("serveraddress").is_none(), "{server}");
            assert_eq!(json["username"], "u");
        }
    }

    #[test]
    fn an_event_with_unknown_values_is_read() {
        let line = r#"{"Type":"hologram","Action":"die","scope":"galactic","novelty":{},
            "Actor":{"ID":"abc","Attributes":{"exitCode":"3"}},"time":5,"timeNano":5000000001}"#;
        let event = event(line).unwrap();
        assert_eq!(event.action.as_deref(), Some("die"));
        let attributes = event.actor.unwrap().attributes.unwrap();
        assert_eq!(attributes["exitCode"], "3");
        assert!(super::event("{").is_none());
    }

    #[test]
    fn a_pull_error_is_one_though_the_answer_was_200() {
        let api = |status, message: &str| {
            Err(EngineError::Api {
                status,
                message: message.into(),
            })
        };
        for (line, expected) in [
            (
                r#"{"errorDetail":{"code":503,"message":"try later"},"error":"try later"}"#,
                api(503, "try later"),
            ),
            (
                r#"{"errorDetail":{"message":"manifest unknown"},"error":"manifest unknown"}"#,
                api(500, "manifest unknown"),
            ),
            (r#"{"error":"old"}"#, api(500, "old")),
            (
                r#"{"status":"Downloading","progressDetail":{"current":3,"total":9},"id":"l1"}"#,
                Ok(PullProgress {
                    layer: "l1".into(),
                    status: "Downloading".into(),
                    current: Some(3),
                    total: Some(9),
                }),
            ),
            (
                r#"{"status":"Waiting","progressDetail":{},"id":"l1"}"#,
                Ok(PullProgress {
                    layer: "l1".into(),
                    status: "Waiting".into(),
                    ..PullProgress::default()
                }),
            ),
        ] {
            // docker 49
            assert_eq!(pull_message(line), expected, "{line}");
        }
        assert!(matches!(pull_message("x"), Err(EngineError::Decode { .. })));
    }

    #[test]
    fn the_words_of_a_registry_have_a_bound() {
        let line = json!({"error": format!("denied: {}", "ä".repeat(1 << 20))}).to_string();
        let Err(EngineError::Api { message, .. }) = pull_message(&line) else {
            panic!("it is an error");
        };
        assert!(message.len() <= 4096, "{}", message.len());
        assert!(message.starts_with("denied: ä") && message.ends_with('…'));
    }
}
