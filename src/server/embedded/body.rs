//! Bodies of requests: JSON, YAML, or the few that kubectl sends in protobuf.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use mirrorlet_apimachinery::protobuf::{self, PROTOBUF};
use mirrorlet_apimachinery::status::Status;
use serde_json::Value;

/// Largest body, in bytes.
///
/// Upstream: `MaxRequestBodyBytes` of `apiserver/pkg/server/config.go`.
const BYTES_MAX: usize = 3 << 20;
/// The types that are read.
const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads a body whole, if it isn't too large.
pub(super) async fn read(body: Body) -> Result<Bytes, Status> {
    match Limited::new(body, BYTES_MAX).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(BYTES_MAX)),
        Err(_) => Err(Status::bad_request("the body of the request was cut off")),
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
            serde_json::from_slice(body).map_err(|error| malformed(&error))
        }
        "application/yaml" => {
            let text = str::from_utf8(body).map_err(|error| malformed(&error))?;
            serde_saphyr::from_str(text).map_err(|_| malformed(&"it is not YAML"))
        }
        PROTOBUF => protobuf::to_json(body).map_err(|error| match error {
            protobuf::ProtobufError::Malformed => malformed(&error),
            protobuf::ProtobufError::Kind(_) => Status::unsupported_media_type(ACCEPTED),
        }),
        _ => Err(Status::unsupported_media_type(ACCEPTED)),
    }
}

/// The object in a body of YAML, or of JSON, whose strings have characters that YAML has not.
pub(super) fn yaml(body: &[u8]) -> Result<Value, Status> {
    if let Ok(object) = serde_json::from_slice(body) {
        return Ok(object);
    }
    let malformed = || Status::bad_request("error decoding YAML");
    let text = str::from_utf8(body).map_err(|_| malformed())?;
    serde_saphyr::from_str(text).map_err(|_| malformed())
}

/// The options of a deletion, of which there may be none.
pub(super) fn options(headers: &HeaderMap, body: &[u8]) -> Result<Value, Status> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    object(headers, body)
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
}
