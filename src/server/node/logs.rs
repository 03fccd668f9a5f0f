//! `GET /containerLogs/{namespace}/{pod}/{container}`.
//!
//! Upstream: `getContainerLogs` of `pkg/kubelet/server/server.go`, with its statuses and words.

use std::io;

use axum::body::Body;
use axum::extract::{Extension, Path, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use mirrorlet_streaming::Chunk;
use mirrorlet_streaming::gather::gathered;

use super::Shared;
use super::shares::Resource;
use crate::server::cut::cut_off;
use crate::server::view::ViewErrorKind;
use mirrorlet_core::access::User;
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::logs::Instance;
use mirrorlet_core::spec::all_container_names;
use mirrorlet_runtime::{LogOptions, LogSource};

/// Why a query can't be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BadQuery {
    /// A value is of the wrong form.
    Undecodable,
    /// The values are out of range, or can't be combined.
    Invalid,
}

impl IntoResponse for BadQuery {
    fn into_response(self) -> Response {
        match self {
            Self::Undecodable => {
                let words = r#"{"message": "Unable to decode query."}"#;
                (StatusCode::BAD_REQUEST, words).into_response()
            }
            Self::Invalid => {
                let words = r#"{"message": "Invalid request."}"#;
                (StatusCode::UNPROCESSABLE_ENTITY, words).into_response()
            }
        }
    }
}

/// The parameters of a query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Asked {
    options: LogOptions,
    previous: bool,
}

/// Reads a query as upstream decodes a `PodLogOptions`: of a key that is given twice the first
/// counts, one that is not known is passed over.
fn asked(query: &str, now: Timestamp) -> Result<Asked, BadQuery> {
    let pairs: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
    let value = |key: &str| {
        let mut found = pairs.iter().filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value.as_ref())
    };
    let on = |key: &str| match value(key) {
        None => false,
        Some(value) => !value.eq_ignore_ascii_case("false") && value != "0",
    };
    let number = |key: &str| {
        let number = value(key).map(str::parse::<i64>);
        number.transpose().map_err(|_| BadQuery::Undecodable)
    };
    // The name that `tailLines` had once.
    let tail = match value("tail") {
        None | Some("") => number("tailLines")?,
        Some("all") => None,
        Some(_) => number("tail")?,
    };
    let limit = number("limitBytes")?;
    let seconds = number("sinceSeconds")?;
    let since = match value("sinceTime") {
        None | Some("" | "null") => None,
        Some(time) => Some(
            time.parse::<Timestamp>()
                .map_err(|_| BadQuery::Undecodable)?,
        ),
    };
    let source = match value("stream") {
        None | Some("All") => LogSource::All,
        Some("Stdout") => LogSource::Stdout,
        Some("Stderr") => LogSource::Stderr,
        Some(_) => return Err(BadQuery::Invalid),
    };
    let is_valid = limit.is_none_or(|limit| limit > 0)
        && seconds.is_none_or(|seconds| seconds > 0)
        && (seconds.is_none() || since.is_none())
        && (source == LogSource::All || tail.is_none());
    if !is_valid {
        return Err(BadQuery::Invalid);
    }
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| BadQuery::Invalid);
    let ago = |seconds: i64| {
        let seconds = std::time::Duration::from_secs(seconds.unsigned_abs());
        now.checked_sub(seconds).unwrap_or(Timestamp::UNIX_EPOCH)
    };
    Ok(Asked {
        options: LogOptions {
            follow: on("follow"),
            tail: tail.map(unsigned).transpose()?,
            since: since.or(seconds.map(ago)),
            timestamps: on("timestamps"),
            limit_bytes: limit.map(unsigned).transpose()?,
            source,
        },
        previous: on("previous"),
    })
}

/// The log of a container.
pub(super) async fn container_logs(
    State(shared): State<Shared>,
    Path((namespace, name, container)): Path<(String, String, String)>,
    Extension(user): Extension<User>,
    uri: Uri,
) -> Result<Response, Response> {
    let not_found = |words: String| (StatusCode::NOT_FOUND, words).into_response();
    // As upstream, a wrong query is said before a wrong name.
    asked(uri.query().unwrap_or_default(), Timestamp::now())
        .map_err(IntoResponse::into_response)?;
    let pod = shared.view.pod_by_name(&namespace, &name);
    let pod = pod.ok_or_else(|| {
        let is_settled = shared.view.is_settled(&namespace, &name);
        not_found(if is_settled {
            format!("pod {name:?} has finished, and its containers were removed from this node")
        } else {
            format!("pod {name:?} does not exist")
        })
    })?;
    if !all_container_names(&pod).any(|known| known == container) {
        let words = format!("container {container:?} not found in pod {name:?}");
        return Err(not_found(words));
    }
    log_of(&shared, &pod, &container, &user.name, &uri).await
}

/// The log of a pod's container, with the options of a query.
pub(in crate::server) async fn log_of(
    shared: &Shared,
    pod: &Pod,
    container: &str,
    user: &str,
    uri: &Uri,
) -> Result<Response, Response> {
    let asked = asked(uri.query().unwrap_or_default(), Timestamp::now())
        .map_err(IntoResponse::into_response)?;
    let uid = PodUid::of(pod);
    let reading = shared
        .shares
        .take(Resource::Log, &uid, &FullName::of(pod), user)
        .map_err(IntoResponse::into_response)?;
    let instance = if asked.previous {
        Instance::Previous
    } else {
        Instance::Newest
    };
    let log = shared
        .view
        .logs(&uid, Some(container), &asked.options, instance)
        .await
        .map_err(|error| {
            let status = match error.kind {
                // Whatever there is no log for, it is the question that is wrong.
                ViewErrorKind::NotFound | ViewErrorKind::Invalid | ViewErrorKind::Conflict => {
                    StatusCode::BAD_REQUEST
                }
                ViewErrorKind::Unavailable | ViewErrorKind::Failed => {
                    StatusCode::INTERNAL_SERVER_ERROR
                }
            };
            (status, error.to_string()).into_response()
        })?;
    // An empty piece first: the head of the answer goes out before the first line comes.
    let begin = stream::iter([Ok(Bytes::new())]);
    let budget = reading.limits().budget;
    let pieces = gathered(log, budget, joined).map(move |bytes| {
        let _held = &reading;
        Ok::<_, io::Error>(bytes)
    });
    let body = cut_off(begin.chain(pieces), shared.cancel.clone());
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Pieces as one. An error can only be written among them: the answer has long begun.
fn joined(chunks: Vec<mirrorlet_runtime::Result<Chunk>>) -> Bytes {
    let mut joined = BytesMut::new();
    for chunk in chunks {
        match chunk {
            Ok(chunk) => joined.extend_from_slice(chunk.bytes()),
            Err(error) => joined.extend_from_slice(error.to_string().as_bytes()),
        }
    }
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn read(query: &str) -> Result<Asked, BadQuery> {
        asked(query, NOW.parse().unwrap())
    }

    #[test]
    fn queries_are_read_as_upstream_decodes_them() {
        assert_eq!(read(""), Ok(Asked::default()));
        let time = |text: &str| Some(text.parse().unwrap());
        let all = "follow=true&previous=1&timestamps=&tailLines=5&limitBytes=7&sinceSeconds=60&x=y";
        let expected = Asked {
            options: LogOptions {
                follow: true,
                tail: Some(5),
                since: time("2026-01-02T03:03:05Z"),
                timestamps: true,
                limit_bytes: Some(7),
                source: LogSource::All,
            },
            previous: true,
        };
        // node-api 3
        assert_eq!(read(all), Ok(expected));
        let options = |query| read(query).unwrap().options;
        assert!(!options("follow=False&follow=true").follow);
        assert!(!options("timestamps=0").timestamps);
        assert_eq!(options("tailLines=0").tail, Some(0));
        assert_eq!(options("tail=3&tailLines=4").tail, Some(3));
        assert_eq!(options("tail=all&tailLines=4").tail, None);
        assert_eq!(options("tail=&tailLines=4").tail, Some(4));
        assert_eq!(options("stream=Stderr").source, LogSource::Stderr);
        let since = options("sinceTime=2026-01-02T05%3A04%3A05%2B02%3A00").since;
        assert_eq!(since, time(NOW));
        assert_eq!(options("sinceTime=").since, None);
        // Before time began there was nothing either.
        let long = options(&format!("sinceSeconds={}", i64::MAX)).since;
        assert_eq!(long, Some(Timestamp::UNIX_EPOCH));
    }

    #[test]
    fn what_makes_no_sense_is_refused_as_upstream_refuses_it() {
        for query in [
            "tailLines=x",
            "limitBytes=",
            "sinceSeconds=1.5",
            "sinceTime=now",
            "tail=x",
        ] {
            // node-api 3
            assert_eq!(read(query), Err(BadQuery::Undecodable), "{query}");
        }
        for query in [
            "tailLines=-1",
            "limitBytes=0",
            "limitBytes=-1",
            "sinceSeconds=0",
            "sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z",
            "stream=stdout",
            "stream=Stdout&tailLines=1",
        ] {
            assert_eq!(read(query), Err(BadQuery::Invalid), "{query}");
        }
    }
}
