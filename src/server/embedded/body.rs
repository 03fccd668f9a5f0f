//! Bodies of requests: JSON, YAML, or the few that kubectl sends in protobuf.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use mirrorlet_apimachinery::bounds::{VALUES_MAX, check_json, too_many_values};
use mirrorlet_apimachinery::options::of_deletion;
use mirrorlet_apimachinery::patch;
use mirrorlet_apimachinery::protobuf::{self, PROTOBUF};
use mirrorlet_apimachinery::status::Status;
use serde_json::Value;
use serde_saphyr::Error as YamlError;
use serde_saphyr::budget::BudgetBreach;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Call;

/// Largest body, in bytes.
///
/// Upstream: `MaxRequestBodyBytes` of `apiserver/pkg/server/config.go`.
const BYTES_MAX: usize = 3 << 20;
/// Maximum size of the body with delete options, in bytes. Such a request keeps them until containers
/// have stopped.
const OPTIONS_BYTES_MAX: usize = 8 << 10;
/// Most bytes of all bodies that are held at the same time.
const HELD_BYTES_MAX: usize = 16 << 20;
/// How long a request may wait before its body is read, and how long the client may take to send it.
///
/// Upstream: `--request-timeout` of kube-apiserver.
const READ_FOR: Duration = Duration::from_mins(1);
/// Most YAML events that all aliases of a body replay together, and aliases inside aliases.
const ALIAS_EVENTS_MAX: usize = 20_000;
const ALIAS_DEPTH_MAX: usize = 8;
/// The types that are read.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads bodies; limits how many bytes of them are held at the same time.
#[derive(Clone)]
pub(super) struct Bodies(Arc<Semaphore>);

/// A body. Its space is released on drop.
pub(super) struct Held {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Default for Bodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(HELD_BYTES_MAX)))
    }
}

impl Bodies {
    /// Reads a complete body, if it isn't too large. Waits until there is room for it.
    pub(super) async fn read(&self, body: Body) -> Result<Held, Status> {
        let declared = body.size_hint().exact();
        let size = declared.and_then(|size| usize::try_from(size).ok());
        let size = size.unwrap_or(BYTES_MAX).min(BYTES_MAX);
        let busy = || Status::too_many_requests("too many large requests at the same time", 5);
        let permits = u32::try_from(size).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.0).acquire_many_owned(permits);
        let room = timeout(READ_FOR, room).await.map_err(|_| busy())?;
        let room = room.map_err(|_| busy())?;
        let reading = timeout(READ_FOR, Limited::new(body, BYTES_MAX).collect());
        match reading.await {
            Ok(Ok(collected)) => Ok(Held {
                bytes: collected.to_bytes(),
                _room: room,
            }),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Status::too_large(BYTES_MAX)),
            Ok(Err(_)) => Err(Status::bad_request("the body of the request was cut off")),
            Err(_) => Err(Status::bad_request(
                "the body of the request was not sent in time",
            )),
        }
    }
}

/// The content type of a body, without its parameters.
pub(super) fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.and_then(|value| value.to_str().ok());
    let kind = value.and_then(|value| value.split(';').next());
    kind.map_or("application/json", str::trim)
}

/// The object in a body.
pub(super) fn object(headers: &HeaderMap, body: &[u8]) -> Result<Value, Status> {
    let malformed = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!("the object provided is unrecognized: {error}"))
    };
    match content_type(headers) {
        "application/json" | "*/*" => {
            check_json(body)?;
            serde_json::from_slice(body).map_err(|error| malformed(&error))
        }
        "application/yaml" => {
            let text = str::from_utf8(body).map_err(|error| malformed(&error))?;
            from_yaml(text).unwrap_or_else(|| Err(malformed(&"it is not YAML")))
        }
        PROTOBUF => protobuf::to_json(body).map_err(|error| match error {
            protobuf::ProtobufError::Malformed => malformed(&error),
            protobuf::ProtobufError::TooManyValues => too_many_values(),
            protobuf::ProtobufError::Kind(_) => Status::unsupported_media_type(ACCEPTED),
        }),
        _ => Err(Status::unsupported_media_type(ACCEPTED)),
    }
}

/// The object after a write: the result of a patch, or the body itself.
pub(super) fn changed(call: &Call, before: &Value, body: &[u8]) -> Result<Value, Status> {
    if call.method == "PATCH" {
        patch::apply(before, content_type(&call.headers), body)
    } else {
        object(&call.headers, body)
    }
}

/// The object in a body of YAML, or of JSON, whose strings may have characters that YAML doesn't allow.
pub(super) fn yaml(body: &[u8]) -> Result<Value, Status> {
    // The count is that of JSON: YAML may have any number of these characters in its strings.
    let is_counted = check_json(body).is_ok();
    if is_counted && let Ok(object) = serde_json::from_slice(body) {
        return Ok(object);
    }
    let malformed = || Status::bad_request("error decoding YAML");
    let text = str::from_utf8(body).map_err(|_| malformed())?;
    from_yaml(text).unwrap_or_else(|| Err(malformed()))
}

/// The object in a text; none if that is not YAML.
fn from_yaml(text: &str) -> Option<Result<Value, Status>> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: ALIAS_EVENTS_MAX,
            max_replay_stack_depth: ALIAS_DEPTH_MAX,
        },
        budget: serde_saphyr::budget! {
            max_nodes: VALUES_MAX,
            max_recorded_anchor_events: VALUES_MAX,
        },
    };
    match serde_saphyr::from_str_with_options(text, options) {
        Ok(object) => Some(Ok(object)),
        Err(error) if has_too_many_values(&error) => Some(Err(too_many_values())),
        Err(_) => None,
    }
}

fn has_too_many_values(error: &YamlError) -> bool {
    match error {
        YamlError::AliasError { error, .. } => has_too_many_values(error),
        YamlError::AliasReplayLimitExceeded { .. } => true,
        YamlError::Budget { breach, .. } => matches!(
            breach,
            BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. }
        ),
        _ => false,
    }
}

/// The object in the body of a deletion or an eviction, which is small.
pub(super) fn small(headers: &HeaderMap, body: &[u8]) -> Result<Value, Status> {
    if body.len() > OPTIONS_BYTES_MAX {
        return Err(Status::too_large(OPTIONS_BYTES_MAX));
    }
    object(headers, body)
}

/// The options of a deletion: those in its body or, if that is empty, in its parameters.
///
/// Upstream: `DeleteResource` of `apiserver/pkg/endpoints/handlers/delete.go`.
pub(super) fn options(call: &Call, body: &[u8]) -> Result<Value, Status> {
    if body.is_empty() {
        return of_deletion(&call.query);
    }
    small(&call.headers, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_applied_may_be_json() {
        let texts = ["a: b", r#"{"a": "b"}"#, "{\"a\": \"b\u{7f}\"}"];
        let values = texts.map(|text| yaml(text.as_bytes()).map(|object| object["a"].clone()));
        // embedded 54
        assert_eq!(values, ["b", "b", "b\u{7f}"].map(|value| Ok(value.into())));
        assert_eq!(yaml(b"{").map_err(|status| status.code), Err(400));
    }

    #[test]
    fn bodies_of_too_many_values_are_refused() {
        let code = |kind: &str, body: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            let whole = object(&headers, body.as_bytes()).map_or_else(|s| s.code, |_| 200);
            let applied = yaml(body.as_bytes()).map_or_else(|s| s.code, |_| 200);
            (whole, applied)
        };
        let json = |values: usize| format!("[{}0]", r#"{"a":0},"#.repeat(values));
        let flow = |values: usize| format!("[{}0]", "{a: 0},".repeat(values));
        let aliases =
            |values: usize| format!("a: &a [{}]\nb: [{}]", "1,".repeat(values), "*a,".repeat(90));
        for (values, expected) in [(10, (200, 200)), (VALUES_MAX, (413, 413))] {
            assert_eq!(code("application/json", &json(values)), expected);
            assert_eq!(code("application/yaml", &json(values)), expected);
            assert_eq!(code("application/yaml", &flow(values)), expected);
        }
        assert_eq!(code("application/yaml", &aliases(10)), (200, 200));
        assert_eq!(code("application/yaml", &aliases(1000)), (413, 413));
        // The commas of a long text are no values.
        let text = format!("a: |\n  {}\n", ",".repeat(2 * VALUES_MAX));
        assert_eq!(code("application/yaml", &text), (200, 200));
        let options = format!(r#"{{"x": "{}"}}"#, "x".repeat(OPTIONS_BYTES_MAX));
        let refused = small(&HeaderMap::new(), options.as_bytes()).unwrap_err();
        // embedded 59
        assert_eq!(refused.code, 413);
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_for_room() {
        let bodies = Bodies::default();
        let body = || Body::from(vec![b'x'; BYTES_MAX]);
        let mut held = Vec::new();
        for _ in 0..HELD_BYTES_MAX / BYTES_MAX {
            held.push(bodies.read(body()).await.unwrap());
        }
        // A small one has room beside them.
        assert_eq!(&*bodies.read(Body::from("{}")).await.unwrap(), b"{}");
        let refused = bodies.read(body()).await.map(drop).unwrap_err();
        assert_eq!(refused.code, 429);
        let (read, ()) = tokio::join!(bodies.read(body()), async {
            tokio::task::yield_now().await;
            held.pop();
        });
        assert_eq!(read.unwrap().len(), BYTES_MAX);
        let never = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        held.clear();
        assert_eq!(bodies.read(never).await.map(drop).unwrap_err().code, 400);
        assert_eq!(bodies.0.available_permits(), HELD_BYTES_MAX);
        let large = Body::from(vec![b'x'; BYTES_MAX + 1]);
        // embedded 59
        assert_eq!(bodies.read(large).await.map(drop).unwrap_err().code, 413);
    }
}
