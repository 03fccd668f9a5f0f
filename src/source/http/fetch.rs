//! One GET of a manifest URL: headers, redirects, limits. Independent of pods.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::header::{AUTHORIZATION, ETAG, IF_NONE_MATCH, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use url::Url;

use mirrorlet_core::api::with_causes;
use mirrorlet_core::manifest::MANIFEST_BYTES_MAX;

/// Most redirects followed, as Go's HTTP client.
const REDIRECTS_MAX: usize = 10;

/// A URL source that can't be set up as configured. Never contains a header's value or a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpSourceError {
    /// Not a URL this source can fetch.
    #[error("the manifest URL can't be used: {reason}")]
    Url {
        /// The problem.
        reason: String,
    },
    /// Not a header.
    #[error("the manifest URL header {name:?} has an invalid name or value")]
    Header {
        /// Name of the header.
        name: String,
    },
    /// The CA file contains no certificate, or can't be read.
    #[error("the manifest URL CA {path} can't be used: {reason}")]
    Ca {
        /// Path of the file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// TLS can't be set up.
    #[error("TLS can't be set up for the manifest URL")]
    Tls(#[source] rustls::Error),
}

/// Why a URL gave no manifest.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0}")]
    Transport(String),
    #[error("the server responded with {0}")]
    Status(StatusCode),
    #[error("the body is larger than {MANIFEST_BYTES_MAX} bytes")]
    TooLarge,
    #[error("more than {REDIRECTS_MAX} redirects")]
    Redirects,
    #[error("the redirect's location is not an http or https URL")]
    RedirectTarget,
}

/// The response of a URL.
#[derive(Debug)]
pub(super) enum Fetched {
    /// Unchanged since the response with that entity tag.
    NotModified,
    /// A body, and its entity tag.
    Body(Bytes, Option<HeaderValue>),
}

/// Fetches one URL again and again.
#[derive(Debug)]
pub(super) struct Fetcher {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    url: Url,
    headers: HeaderMap,
}

impl Fetcher {
    pub(super) fn new(
        url: &str,
        headers: &[(String, String)],
        ca: Option<&Path>,
    ) -> Result<Self, HttpSourceError> {
        let mut url = parse_url(url)?;
        let mut map = header_map(headers)?;
        if let Some(credentials) = take_credentials(&mut url)
            && !map.contains_key(AUTHORIZATION)
        {
            map.insert(AUTHORIZATION, credentials);
        }
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls_config(ca)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(plain);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self {
            client,
            url,
            headers: map,
        })
    }

    /// The URL, without credentials.
    pub(super) fn location(&self) -> &str {
        self.url.as_str()
    }

    /// Fetches the URL, following redirects. The caller sets the deadline.
    pub(super) async fn fetch(&self, etag: Option<&HeaderValue>) -> Result<Fetched, FetchError> {
        let mut url = self.url.clone();
        let mut trusted = true;
        for _ in 0..=REDIRECTS_MAX {
            let request = self.request(&url, trusted, etag)?;
            let answer = self.client.request(request).await;
            let response = answer.map_err(|error| FetchError::Transport(with_causes(&error)))?;
            match response.status() {
                StatusCode::OK => return read(response).await,
                StatusCode::NOT_MODIFIED if etag.is_some() => return Ok(Fetched::NotModified),
                status if status.is_redirection() => {
                    let target = response.headers().get(LOCATION);
                    let target = target.ok_or(FetchError::Status(status))?;
                    url = follow(&url, target)?;
                    // Once away, headers stay behind even if the way leads back.
                    trusted &= may_see_headers(&self.url, &url);
                }
                status => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::Redirects)
    }

    fn request(
        &self,
        url: &Url,
        trusted: bool,
        etag: Option<&HeaderValue>,
    ) -> Result<Request<Empty<Bytes>>, FetchError> {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = Method::GET;
        let uri = url.as_str().parse();
        *request.uri_mut() = uri.map_err(|_| FetchError::RedirectTarget)?;
        let headers = request.headers_mut();
        let agent = HeaderValue::from_static(concat!("mirrorlet/", env!("CARGO_PKG_VERSION")));
        headers.insert(USER_AGENT, agent);
        if trusted {
            headers.extend(self.headers.clone());
        }
        if let Some(etag) = etag {
            headers.insert(IF_NONE_MATCH, etag.clone());
        }
        Ok(request)
    }
}

async fn read(response: Response<Incoming>) -> Result<Fetched, FetchError> {
    let etag = response.headers().get(ETAG).cloned();
    let body = Limited::new(response.into_body(), MANIFEST_BYTES_MAX);
    match body.collect().await {
        Ok(body) => Ok(Fetched::Body(body.to_bytes(), etag)),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge),
        Err(error) => Err(FetchError::Transport(with_causes(&*error))),
    }
}

fn parse_url(text: &str) -> Result<Url, HttpSourceError> {
    let unusable = |reason: String| HttpSourceError::Url { reason };
    let mut url = Url::parse(text).map_err(|error| unusable(error.to_string()))?;
    if !is_http(&url) {
        return Err(unusable(format!(
            "its scheme is {}, not http or https",
            url.scheme()
        )));
    }
    url.set_fragment(None);
    Ok(url)
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Takes user and password out of a URL, as the header that carries them.
fn take_credentials(url: &mut Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let decode = |part: &str| -> Vec<u8> { percent_decode(part.as_bytes()) };
    let mut credentials = decode(url.username());
    credentials.push(b':');
    credentials.extend(decode(url.password().unwrap_or_default()));
    // Fails only for URLs without a host, which were refused.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let mut value = HeaderValue::try_from(format!("Basic {}", BASE64.encode(credentials))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn percent_decode(text: &[u8]) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let pair = (digit(text.get(at + 1)), digit(text.get(at + 2)));
        if let (b'%', (Some(high), Some(low))) = (byte, pair) {
            decoded.push(u8::try_from(high * 16 + low).unwrap_or_default());
            at += 3;
        } else {
            decoded.push(*byte);
            at += 1;
        }
    }
    decoded
}

fn header_map(headers: &[(String, String)]) -> Result<HeaderMap, HttpSourceError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let invalid = || HttpSourceError::Header { name: name.clone() };
        let mut parsed = HeaderValue::try_from(value).map_err(|_| invalid())?;
        parsed.set_sensitive(true);
        map.append(HeaderName::try_from(name).map_err(|_| invalid())?, parsed);
    }
    Ok(map)
}

/// Trusts the system's CAs, and those of `ca`.
fn tls_config(ca: Option<&Path>) -> Result<ClientConfig, HttpSourceError> {
    let mut roots = RootCertStore::empty();
    // A host without CAs is fine as long as the URL needs none; a handshake fails otherwise.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca {
        let unusable = |reason: String| HttpSourceError::Ca {
            path: path.to_owned(),
            reason,
        };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| unusable(error.to_string()))?;
        if certificates.is_empty() {
            return Err(unusable("it contains no certificate".to_owned()));
        }
        for certificate in certificates {
            roots
                .add(certificate)
                .map_err(|error| unusable(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(HttpSourceError::Tls)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The target of a redirect.
fn follow(from: &Url, location: &HeaderValue) -> Result<Url, FetchError> {
    let target = location.to_str().map_err(|_| FetchError::RedirectTarget)?;
    let mut target = from.join(target).map_err(|_| FetchError::RedirectTarget)?;
    if !is_http(&target) {
        return Err(FetchError::RedirectTarget);
    }
    target.set_fragment(None);
    take_credentials(&mut target);
    Ok(target)
}

/// Whether the configured headers may be sent to the target of a redirect: to the same host and port or
/// from http to https on its default ports, never to another host or back from https. Stricter than
/// Go's client, which trusts sub-domains and only drops a few headers.
fn may_see_headers(configured: &Url, target: &Url) -> bool {
    let usual_upgrade = configured.scheme() == "http"
        && target.scheme() == "https"
        && configured.port().is_none()
        && target.port().is_none();
    let same_service = configured.scheme() == target.scheme()
        && configured.port_or_known_default() == target.port_or_known_default();
    configured.host() == target.host() && (same_service || usual_upgrade)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stay_with_their_host() {
        for (configured, target, expected) in [
            ("http://a/x", "http://a/y", true),
            ("http://a/x", "http://A:80/y", true),
            ("http://a/x", "https://a/x", true),
            ("https://a/x", "http://a/x", false),
            ("http://a/x", "http://a:81/x", false),
            ("http://a:81/x", "https://a/x", false),
            ("http://a/x", "http://b/x", false),
            ("http://a/x", "http://sub.a/x", false),
        ] {
            let parse = |text: &str| Url::parse(text).unwrap();
            let told = may_see_headers(&parse(configured), &parse(target));
            // pods 11
            assert_eq!(told, expected, "{configured} → {target}");
        }
    }

    #[test]
    fn credentials_become_a_header_and_leave_the_url() {
        let fetcher = Fetcher::new("http://us%40er:p%3Aw@host/x?y=1#z", &[], None).unwrap();
        assert_eq!(fetcher.location(), "http://host/x?y=1");
        // "us@er:p:w"
        assert_eq!(fetcher.headers[AUTHORIZATION], "Basic dXNAZXI6cDp3");
        assert!(!format!("{fetcher:?}").contains("dXNAZXI6cDp3"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_telling_secrets() {
        let refused = |url: &str, name: &str, value: &str, ca: Option<&Path>| {
            let headers = [(name.to_owned(), value.to_owned())];
            Fetcher::new(url, &headers, ca).unwrap_err().to_string()
        };
        assert_eq!(
            refused("ftp://a/x", "a", "b", None),
            "the manifest URL can't be used: its scheme is ftp, not http or https"
        );
        assert_eq!(
            refused("http://a", "X-Token", "s3cret\n", None),
            "the manifest URL header \"X-Token\" has an invalid name or value"
        );
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("ca.pem");
        std::fs::write(&empty, "nothing").unwrap();
        assert!(
            refused("http://a", "a", "b", Some(&empty)).ends_with("it contains no certificate")
        );
        assert!(refused("http://a", "a", "b", Some(Path::new("/absent"))).contains("/absent"));
    }
}
