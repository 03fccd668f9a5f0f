//! `/openapi/v3` and `/openapi/v2`, which clients cache by their hashes.
//!
//! Upstream: `kube-openapi/pkg/handler3/handler.go`.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use mirrorlet_apimachinery::openapi;
use mirrorlet_apimachinery::options::Query;
use mirrorlet_apimachinery::status::Status;

use super::header_text;

/// A document never changes under its hash; upstream has a year.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// The format of version 2 that kubectl requests.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
/// The content type of that form.
///
/// Upstream: `kube-openapi/pkg/handler/handler.go`.
const PROTOBUF_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// A document of version 2 without paths and definitions, in protobuf: `swagger` (1), `info` (2) with
/// `title` (1) and `version` (2), and `paths` (8). kubectl looks there for a kind that version 3 hasn't,
/// and does not find it, which is so.
///
/// Upstream: `Document` of `google/gnostic-models/openapiv2/OpenAPIv2.proto`.
const EMPTY: &[u8] = b"\x0a\x032.0\x12\x10\x0a\x0aKubernetes\x12\x02v1\x42\x00";

/// Answers a request for a document; none for an unknown path.
pub(super) fn answer(parts: &[&str], query: &Query, headers: &HeaderMap) -> Option<Response> {
    let answer = match parts {
        ["openapi", "v3"] => {
            let text = openapi::root().to_string();
            let hash = openapi::hash(&text);
            whole(text, &hash, headers)
        }
        ["openapi", "v3", place @ ..] => {
            let place = place.join("/");
            let (text, hash) = openapi::document(&place)?;
            match query.iter().find(|(key, _)| key == "hash") {
                Some((_, wanted)) if wanted != hash && !wanted.is_empty() => {
                    moved(&openapi::url(&place, hash))
                }
                Some(_) => {
                    let mut answer = whole(text, hash, headers);
                    let value = HeaderValue::from_static(IMMUTABLE);
                    answer.headers_mut().insert(header::CACHE_CONTROL, value);
                    answer
                }
                None => whole(text, hash, headers),
            }
        }
        ["openapi", "v2"] if !takes_json(headers) && takes(headers, &[PROTOBUF]) => {
            let headers = [
                (header::CONTENT_TYPE, PROTOBUF_TYPE),
                (header::VARY, "Accept"),
            ];
            (StatusCode::OK, headers, EMPTY).into_response()
        }
        ["openapi", "v2"] => {
            let text = openapi::version_2();
            let hash = openapi::hash(&text);
            whole(text, &hash, headers)
        }
        _ => return None,
    };
    Some(answer)
}

fn moved(url: &str) -> Response {
    (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, url)]).into_response()
}

/// A document, unless the client has it.
fn whole(text: String, hash: &str, headers: &HeaderMap) -> Response {
    if !takes_json(headers) {
        return super::answer::refused(&Status::not_acceptable());
    }
    let tag = format!("\"{hash}\"");
    let mut known = header_text(headers, header::IF_NONE_MATCH).split(',');
    let has_it = known.any(|one| one.trim() == tag);
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, "application/json"),
        (header::ETAG, &tag),
        (header::VARY, "Accept"),
    ];
    if has_it {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (StatusCode::OK, headers, text).into_response()
}

/// Whether a client takes JSON: whole documents have no other form.
fn takes_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept.is_none_or(HeaderValue::is_empty)
        || takes(headers, &["application/json", "application/*", "*/*"])
}

/// Whether a client takes one of these types.
fn takes(headers: &HeaderMap, types: &[&str]) -> bool {
    let accept = header_text(headers, header::ACCEPT).split(',');
    let mut kinds = accept.filter_map(|one| one.split(';').next());
    kinds.any(|kind| types.contains(&kind.trim()))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn ask(path: &str, hash: Option<&str>, headers: &[(HeaderName, &str)]) -> Option<Response> {
        let query = hash.map(|hash| ("hash".to_owned(), hash.to_owned()));
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name, value.parse().unwrap());
        }
        let query: Vec<_> = query.into_iter().collect();
        let parts: Vec<_> = path.split('/').collect();
        answer(&parts, &query, &map)
    }

    #[test]
    fn documents_are_kept_by_their_hashes() {
        let first = ask("openapi/v3/apis/batch/v1", None, &[]).unwrap();
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        let hash = tag.trim_matches('"');
        assert!(first.headers().get(header::CACHE_CONTROL).is_none());
        let by_hash = ask("openapi/v3/apis/batch/v1", Some(hash), &[]).unwrap();
        assert_eq!(by_hash.headers()[header::CACHE_CONTROL], IMMUTABLE);
        // An older program's hash leads to the document of this one.
        let older = ask("openapi/v3/apis/batch/v1", Some("ABC"), &[]).unwrap();
        assert_eq!(older.status(), 301);
        let place = older.headers()[header::LOCATION].to_str().unwrap();
        assert_eq!(place, format!("/openapi/v3/apis/batch/v1?hash={hash}"));
        for (path, headers, expected) in [
            ("openapi/v3", vec![], Some(200)),
            ("openapi/v2", vec![(header::ACCEPT, "*/*")], Some(200)),
            (
                "openapi/v3/apis/batch/v1",
                vec![(header::IF_NONE_MATCH, tag.as_str())],
                Some(304),
            ),
            (
                "openapi/v2",
                vec![(header::ACCEPT, "application/xml")],
                Some(406),
            ),
            ("openapi/v3", vec![(header::ACCEPT, PROTOBUF)], Some(406)),
            ("openapi/v3/apis/none/v1", vec![], None),
            ("openapi/v4", vec![], None),
        ] {
            let answer = ask(path, None, &headers);
            // embedded 22
            assert_eq!(answer.map(|a| a.status().as_u16()), expected, "{path}");
        }
    }

    #[tokio::test]
    async fn kubectl_finds_no_kind_in_version_2() {
        let answer = ask("openapi/v2", None, &[(header::ACCEPT, PROTOBUF)]).unwrap();
        // embedded 50
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], PROTOBUF_TYPE);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let info = b"\x0a\x0aKubernetes\x12\x02v1";
        let length = [0x12, u8::try_from(info.len()).unwrap()];
        let expected = [b"\x0a\x032.0".as_slice(), &length, info, b"\x42\x00"].concat();
        assert_eq!(body, expected);
    }
}
