//! One GET request, and the redirects that it follows.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, HOST, HeaderName, LOCATION};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use url::Url;

use super::{Client, ProbeError, drive, tls};
use mirrorlet_core::api::with_causes;
use mirrorlet_core::handler::{HttpGet, authority};

/// Requests made for one attempt: the first one, and those that it is sent on to.
///
/// Upstream: `RedirectChecker` of `pkg/probe/http/http.go`.
const REQUESTS_MAX: usize = 10;
/// Most bytes that are read of an answer's body. The rest is left to the server.
///
/// Upstream: `maxRespBodyLength` of `pkg/probe/http/http.go`.
const BODY_MAX: usize = 10 * 1024;
/// Room for an answer's head: more than any server sends that can be called well.
const HEAD_MAX: usize = 64 * 1024;
/// Maximum number of header lines. A kubelet limits only the bytes; hyper's default limit is 100 lines.
const HEADERS_MAX: usize = 1024;

/// The last response of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAnswer {
    /// The answer's status.
    pub status: u16,
    /// The beginning of its body, kept for redirects only.
    pub body: Bytes,
}

/// An answer of one of the servers on the way.
struct Step {
    status: StatusCode,
    location: Option<String>,
    body: Bytes,
}

impl Client {
    /// Follows a request through its redirects to its last answer, and retries each as long as there is
    /// a pause.
    pub(super) async fn follow(
        &self,
        get: &HttpGet,
        mut pause: impl FnMut() -> Option<Duration>,
    ) -> Result<HttpAnswer, ProbeError> {
        let mut url = url_of(get)?;
        let mut headers = headers_of(get)?;
        let first_host = url.host_str().unwrap_or_default().to_owned();
        for _ in 0..REQUESTS_MAX {
            let step = self.step(&url, &headers, &mut pause).await?;
            let answer = HttpAnswer {
                status: step.status.as_u16(),
                body: step.body,
            };
            let Some(location) = step.location.filter(|_| is_redirect(step.status)) else {
                return Ok(answer);
            };
            let next = url.join(&location).map_err(|_| {
                ProbeError::Broken("the redirect's Location is not a URL".to_owned())
            })?;
            if next.host_str() != Some(first_host.as_str()) {
                return Ok(answer);
            }
            if Url::parse(&location).is_ok() {
                // An absolute redirect contains its host, which replaces the configured header.
                headers.remove(HOST);
            }
            url = next;
        }
        Err(ProbeError::TooManyRedirects(REQUESTS_MAX))
    }

    /// Sends one request, once there is something to connect with.
    async fn step(
        &self,
        url: &Url,
        headers: &HeaderMap,
        pause: &mut impl FnMut() -> Option<Duration>,
    ) -> Result<Step, ProbeError> {
        loop {
            let asked = self.ask(url, headers).await;
            let Err(ProbeError::Exhausted { .. }) = asked else {
                return asked;
            };
            let Some(pause) = pause() else { return asked };
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends one request.
    async fn ask(&self, url: &Url, headers: &HeaderMap) -> Result<Step, ProbeError> {
        let request = request(url, headers)?;
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port_or_known_default().unwrap_or_default();
        let answered = match url.scheme() {
            "http" => exchange(self.connect(host, port).await?, request).await,
            "https" => {
                let stream = self.connect(host, port).await?;
                let stream = tls::begin(&self.tls, host, stream).await?;
                exchange(stream, request).await
            }
            _ => return Err(ProbeError::Broken("unsupported protocol scheme".to_owned())),
        };
        answered.map_err(|error| ProbeError::Broken(with_causes(&error)))
    }
}

/// The statuses whose `Location` is followed.
fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn url_of(get: &HttpGet) -> Result<Url, ProbeError> {
    let base = format!(
        "{}://{}/",
        get.scheme.as_str(),
        authority(&get.host, get.port)
    );
    let mut url = Url::parse(&base).map_err(|error| ProbeError::Request(error.to_string()))?;
    let path = get.path.split('#').next().unwrap_or_default();
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    url.set_path(path);
    url.set_query(query);
    Ok(url)
}

fn headers_of(get: &HttpGet) -> Result<HeaderMap, ProbeError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &get.headers {
        let invalid = || ProbeError::Request(format!("header {name:?} is invalid"));
        let value = HeaderValue::from_str(value).map_err(|_| invalid())?;
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        headers.append(name, value);
    }
    Ok(headers)
}

fn request(url: &Url, headers: &HeaderMap) -> Result<Request<Empty<Bytes>>, ProbeError> {
    let target = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let failed = |error: &dyn std::fmt::Display| ProbeError::Request(error.to_string());
    let mut request = Request::get(target)
        .body(Empty::new())
        .map_err(|error| failed(&error))?;
    request.headers_mut().clone_from(headers);
    let host = url.host_str().unwrap_or_default();
    let usual = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    let usual = HeaderValue::from_str(&usual).map_err(|error| failed(&error))?;
    let headers = request.headers_mut();
    if headers.get(HOST).is_none_or(HeaderValue::is_empty) {
        headers.insert(HOST, usual);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

/// One request and its answer on a connection of its own.
async fn exchange<S>(stream: S, request: Request<Empty<Bytes>>) -> Result<Step, hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .ignore_invalid_headers_in_responses(true)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX)
        .handshake(TokioIo::new(stream))
        .await?;
    let answered = async move {
        let response = sender.send_request(request).await?;
        let status = response.status();
        let location = response.headers().get(LOCATION);
        let location = location.and_then(|value| value.to_str().ok());
        let location = location.filter(|text| !text.is_empty()).map(str::to_owned);
        let keep = status.is_redirection();
        let body = read_some(response.into_body(), keep).await?;
        Ok(Step {
            status,
            location,
            body,
        })
    };
    drive(answered, connection).await
}

/// Reads a body, so that its server need not see a broken connection; only the beginning of a long one.
/// Returns the bytes read if `keep` is set.
async fn read_some(mut body: Incoming, keep: bool) -> Result<Bytes, hyper::Error> {
    let (mut read, mut kept) = (0, BytesMut::new());
    while read < BODY_MAX
        && let Some(frame) = body.frame().await
    {
        if let Some(data) = frame?.data_ref() {
            read += data.len();
            if keep {
                kept.extend_from_slice(data);
            }
        }
    }
    Ok(kept.freeze())
}
