//! The formats of answers: JSON, tables, metadata only, errors.
//!
//! Upstream: `apiserver/pkg/endpoints/handlers/negotiation`, `responsewriters`.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::paging::Page;
use mirrorlet_apimachinery::resources::Resource;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_apimachinery::table::{Include, definitions, row, table};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::sizes::json_size;
use serde_json::{Value, json};

use super::header_text;
use super::texts::{self, TextForm, Texts};

/// Bytes of a list that are encoded before they are handed out.
const PIECE_BYTES: usize = 32 << 10;

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

/// The first available format in the client's `Accept` header.
///
/// # Errors
/// It accepts none.
pub(super) fn form(headers: &HeaderMap, include: Include) -> Result<Form, Status> {
    let accept = header_text(headers, header::ACCEPT);
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

/// A JSON answer; indented for users at a terminal.
pub(super) fn json(code: u16, value: &Value, headers: &HeaderMap) -> Response {
    let text = if is_person(headers) {
        serde_json::to_string_pretty(value).map(|text| text + "\n")
    } else {
        serde_json::to_string(value).map(|text| text + "\n")
    };
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [json_type()], text.unwrap_or_default()).into_response()
}

/// Whether the client shows the answer to a user as it is (curl, wget, a browser).
fn is_person(headers: &HeaderMap) -> bool {
    let agent = header_text(headers, header::USER_AGENT);
    ["curl", "Wget", "Mozilla"]
        .iter()
        .any(|a| agent.starts_with(a))
}

fn json_type() -> (header::HeaderName, HeaderValue) {
    (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    )
}

/// An error as an answer.
pub(super) fn refused(status: &Status) -> Response {
    let mut answer = json(status.code, &status.to_value(), &HeaderMap::new());
    let seconds = status
        .details
        .as_ref()
        .and_then(|d| d["retryAfterSeconds"].as_u64());
    if let Some(seconds) = seconds.filter(|_| [429, 503].contains(&status.code)) {
        answer
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    answer
}

/// A list in that format, which is encoded while the client reads it: a list may be many times larger
/// than an object, and many clients may request one.
///
/// Upstream: `StreamingCollectionEncodingToJSON` of
/// `staging/src/k8s.io/apimachinery/pkg/runtime/serializer/json/collections.go`.
pub(super) fn list(
    resource: &'static Resource,
    page: Page,
    form: Form,
    headers: &HeaderMap,
    texts: &Texts,
) -> Response {
    let mut metadata = json!({"resourceVersion": page.revision.to_string()});
    if let Some(token) = page.token {
        metadata["continue"] = token.into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    let mut head = json!({"metadata": metadata});
    let (kind, version, items, item): (_, _, _, Item) = match form {
        Form::Table(include) => {
            head["columnDefinitions"] = definitions(resource);
            let now = Timestamp::now();
            let item = move |object: &Value| row(resource, object, include, now);
            let version = "meta.k8s.io/v1".to_owned();
            ("Table".to_owned(), version, "rows", Box::new(item))
        }
        Form::Partial => (
            "PartialObjectMetadataList".to_owned(),
            "meta.k8s.io/v1".to_owned(),
            "items",
            Box::new(meta::partial),
        ),
        Form::Whole => (
            format!("{}List", resource.kind),
            resource.api_version(),
            "items",
            Box::new(bare),
        ),
    };
    head["kind"] = kind.into();
    head["apiVersion"] = version.into();
    if is_person(headers) {
        let all = page.objects.iter().map(|object| item(object));
        head[items] = all.collect::<Vec<_>>().into();
        return json(200, &head, headers);
    }
    let mut piece = head.to_string();
    piece.pop();
    let pieces = ListPieces {
        piece: format!(r#"{piece},"{items}":["#).into_bytes(),
        objects: page.objects.into_iter(),
        item,
        // Those of other forms are short, or seldom requested.
        texts: (form == Form::Whole).then(|| texts.clone()),
        long: None,
        is_first: true,
        is_over: false,
    };
    let pieces = pieces.flat_map(texts::slices).map(Ok::<_, Infallible>);
    let body = Body::from_stream(stream::iter(pieces));
    (StatusCode::OK, [json_type()], body).into_response()
}

/// Makes an item of a list from an object.
type Item = Box<dyn Fn(&Value) -> Value + Send>;

/// The pieces of an encoded list.
struct ListPieces {
    /// Encoded text that the next piece begins with.
    piece: Vec<u8>,
    objects: std::vec::IntoIter<Arc<Value>>,
    item: Item,
    texts: Option<Texts>,
    /// A text that is a piece by itself, the next one.
    long: Option<Bytes>,
    is_first: bool,
    is_over: bool,
}

impl ListPieces {
    fn text(&self, object: &Arc<Value>) -> Bytes {
        let encode = || {
            let item = (self.item)(object);
            texts::encoded(&item, json_size(&item).bytes)
        };
        match &self.texts {
            Some(texts) => texts.of(TextForm::Item, object, encode),
            None => encode().into(),
        }
    }
}

impl Iterator for ListPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if let Some(text) = self.long.take() {
            return Some(text);
        }
        while !self.is_over && self.piece.len() < PIECE_BYTES {
            let Some(object) = self.objects.next() else {
                self.piece.extend_from_slice(b"]}\n");
                self.is_over = true;
                break;
            };
            if !std::mem::replace(&mut self.is_first, false) {
                self.piece.push(b',');
            }
            let text = self.text(&object);
            if text.len() > PIECE_BYTES {
                self.long = Some(text);
                break;
            }
            self.piece.extend_from_slice(&text);
        }
        // Not empty before a long text: the head of the list or a comma is.
        let piece = std::mem::take(&mut self.piece);
        (!piece.is_empty()).then(|| piece.into())
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
            let (revision, now) = (meta::revision(object), Timestamp::now());
            table(
                resource,
                &[Arc::clone(object)],
                revision,
                include,
                true,
                now,
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
    use http_body_util::BodyExt as _;
    use mirrorlet_apimachinery::resources::CONFIG_MAPS;

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

    #[tokio::test]
    async fn a_list_is_encoded_as_it_is_read() {
        let object = |number: usize| {
            let name = format!("m{number}");
            let metadata = json!({"name": name, "resourceVersion": "1"});
            Arc::new(json!({
                "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata,
                "data": {"a": "x".repeat(PIECE_BYTES / 4)},
            }))
        };
        let page = |count: usize| Page {
            objects: (0..count).map(object).collect(),
            revision: 7,
            token: (count == 9).then(|| "t".to_owned()),
            remaining: (count == 9).then_some(3),
        };
        let read = async |count: usize, form: Form, agent: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, HeaderValue::from_static(agent));
            let texts = Texts::default();
            let answer = list(&CONFIG_MAPS, page(count), form, &headers, &texts);
            assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/json");
            let (mut body, mut all, mut most) = (answer.into_body(), Vec::new(), 0);
            while let Some(frame) = body.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                most = data.len().max(most);
                all.extend(data);
            }
            (serde_json::from_slice::<Value>(&all).unwrap(), most)
        };
        for count in [0, 1, 9] {
            for (form, kind) in [
                (Form::Whole, "ConfigMapList"),
                (Form::Partial, "PartialObjectMetadataList"),
                (Form::Table(Include::Object), "Table"),
            ] {
                let (program, most) = read(count, form, "kubectl/v1.35.4").await;
                let (person, _) = read(count, form, "curl/8").await;
                assert_eq!(program, person);
                assert!(most < 2 * PIECE_BYTES, "{most}");
                assert_eq!(program["kind"], kind);
                let is_table = kind == "Table";
                let items = &program[if is_table { "rows" } else { "items" }];
                assert_eq!(items.as_array().unwrap().len(), count);
                assert_eq!(program["columnDefinitions"].is_array(), is_table);
                assert_eq!(program["metadata"].get("continue").is_some(), count == 9);
            }
        }
        let (program, _) = read(9, Form::Whole, "kubectl").await;
        assert_eq!(program["items"][8]["metadata"]["name"], "m8");
        assert_eq!(program["items"][8].get("kind"), None);
    }
}
