//! The forms of answers: JSON, tables, metadata alone, errors.
//!
//! Upstream: `apiserver/pkg/endpoints/handlers/negotiation`, `responsewriters`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::Resource;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_apimachinery::table::{Include, table};
use mirrorlet_core::api::Timestamp;
use serde_json::{Value, json};

/// The form of objects in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are.
    Whole,
    /// As rows of a table.
    Table(Include),
    /// Their metadata alone.
    Partial,
}

/// The form that a client accepts first of those that there are.
///
/// # Errors
/// It accepts none.
pub(super) fn form(headers: &HeaderMap, include: Include) -> Result<Form, Status> {
    let accept = headers.get(header::ACCEPT);
    let accept = accept
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if accept.trim().is_empty() {
        return Ok(Form::Whole);
    }
    for entry in accept.split(',') {
        let mut parts = entry.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        if !matches!(kind, "application/json" | "application/*" | "*/*") {
            continue;
        }
        let wanted = parts.find_map(|part| part.strip_prefix("as="));
        return match wanted {
            None => Ok(Form::Whole),
            Some("Table") => Ok(Form::Table(include)),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") => Ok(Form::Partial),
            Some(_) => continue,
        };
    }
    Err(Status::not_acceptable())
}

/// JSON as an answer; for people at a terminal with line breaks.
pub(super) fn json(code: u16, value: &Value, headers: &HeaderMap) -> Response {
    let agent = headers.get(header::USER_AGENT);
    let agent = agent
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    let is_person = ["curl", "Wget", "Mozilla"]
        .iter()
        .any(|a| agent.starts_with(a));
    let text = if is_person {
        serde_json::to_string_pretty(value).map(|text| text + "\n")
    } else {
        serde_json::to_string(value).map(|text| text + "\n")
    };
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    (code, [kind], text.unwrap_or_default()).into_response()
}

/// An error as an answer.
pub(super) fn refused(status: &Status) -> Response {
    let mut answer = json(status.code, &status.to_value(), &HeaderMap::new());
    let seconds = status
        .details
        .as_ref()
        .and_then(|d| d["retryAfterSeconds"].as_u64());
    if let Some(seconds) = seconds.filter(|_| status.code == 429) {
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

/// A list in that form.
pub(super) fn list(
    resource: &Resource,
    objects: &[Arc<Value>],
    revision: u64,
    form: Form,
) -> Value {
    match form {
        Form::Table(include) => {
            let now = Timestamp::now();
            table(resource, objects, Some(revision), include, true, now)
        }
        Form::Partial => {
            let items: Vec<_> = objects.iter().map(|object| meta::partial(object)).collect();
            json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": revision.to_string()},
                "items": items,
            })
        }
        Form::Whole => json!({
            "kind": format!("{}List", resource.kind),
            "apiVersion": resource.api_version(),
            "metadata": {"resourceVersion": revision.to_string()},
            "items": objects.iter().map(|object| bare(object)).collect::<Vec<_>>(),
        }),
    }
}

/// An item of a list: its kind is the list's.
fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}

/// One object in that form.
pub(super) fn one(resource: &Resource, object: &Arc<Value>, form: Form) -> Value {
    match form {
        Form::Whole => (**object).clone(),
        Form::Partial => meta::partial(object),
        Form::Table(include) => {
            let revision = meta::revision(object);
            let objects = [Arc::clone(object)];
            table(
                resource,
                &objects,
                revision,
                include,
                true,
                Timestamp::now(),
            )
        }
    }
}

/// Adds warnings to an answer, as kubectl prints them.
pub(super) fn with_warnings(mut answer: Response<Body>, warnings: &[String]) -> Response {
    for warning in warnings {
        let text: String = warning
            .chars()
            .flat_map(|c| match c {
                '"' | '\\' => vec!['\\', c],
                c if c.is_ascii() && !c.is_control() => vec![c],
                _ => vec![' '],
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            answer.headers_mut().append(header::WARNING, value);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_form_that_there_is_wins() {
        let form = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, accept.parse().unwrap());
            form(&headers, Include::Metadata).map_err(|status| status.code)
        };
        let table = Ok(Form::Table(Include::Metadata));
        for (accept, expected) in [
            ("", Ok(Form::Whole)),
            ("*/*", Ok(Form::Whole)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                table,
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Ok(Form::Whole),
            ),
            ("application/vnd.kubernetes.protobuf", Err(406)),
            (
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Ok(Form::Partial),
            ),
            (
                "application/json;as=Other,application/json",
                Ok(Form::Whole),
            ),
        ] {
            // embedded 23
            assert_eq!(form(accept), expected, "{accept}");
        }
    }
}
