//! The whole server over real TLS on a loopback port, with people whom a made-up API server knows.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::ServiceExt;

use super::auth::Shown;
use super::auth::fake::FakeReviewer;
use super::auth::tests::{Authority, Bed as GateBed};
use super::*;
use crate::server::fake::FakeView;

/// Every path that leads to a handler, and what it may be asked with.
const ROUTES: &[(&str, &[Method])] = &[
    ("/healthz/ping", &[Method::GET]),
    ("/pods", &[Method::GET]),
    ("/pods/", &[Method::GET]),
    ("/runningpods", &[Method::GET]),
    ("/runningpods/", &[Method::GET]),
    ("/configz", &[Method::GET]),
    ("/metrics", &[Method::GET]),
    ("/metrics/cadvisor", &[Method::GET]),
    ("/metrics/resource", &[Method::GET]),
    ("/metrics/probes", &[Method::GET]),
    ("/stats/summary", &[Method::GET]),
    ("/containerLogs/ns/web/c", &[Method::GET]),
    ("/exec/ns/web/c", &[Method::GET, Method::POST]),
    ("/exec/ns/web/web/c", &[Method::GET, Method::POST]),
    ("/attach/ns/web/c", &[Method::GET, Method::POST]),
    ("/attach/ns/web/web/c", &[Method::GET, Method::POST]),
    ("/portForward/ns/web", &[Method::GET, Method::POST]),
    ("/portForward/ns/web/web", &[Method::GET, Method::POST]),
    ("/logs/", &[Method::GET]),
    ("/debug/pprof/heap", &[Method::GET]),
    ("/debug/flags/v", &[Method::PUT]),
];

struct Bed {
    view: Arc<FakeView>,
    reviewer: Arc<FakeReviewer>,
    authority: Authority,
    gate: Arc<Gate>,
    metrics: Metrics,
    cancel: CancellationToken,
}

impl Bed {
    /// `admin` may everything.
    fn new() -> Self {
        let GateBed {
            gate,
            reviewer,
            authority,
            metrics,
        } = GateBed::new();
        Self {
            view: Arc::new(FakeView::new()),
            gate: Arc::new(gate),
            reviewer,
            authority,
            metrics,
            cancel: CancellationToken::new(),
        }
    }

    fn shared(&self) -> Shared {
        let view = Arc::clone(&self.view) as Arc<dyn AgentView>;
        Shared {
            configz: Arc::new(serde_json::json!({"maxPods": 7})),
            ..Shared::new(view, Metrics::new(), self.cancel.clone())
        }
    }

    fn router(&self) -> Router {
        let stats = Arc::new(crate::server::fake::FakeStats);
        router(self.shared(), stats, Arc::clone(&self.gate))
    }

    /// Asks without a socket, as whoever shows that certificate and token.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        shown: &Shown,
        headers: HeaderMap,
    ) -> (StatusCode, String) {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        *request.headers_mut() = headers;
        request.extensions_mut().insert(shown.clone());
        let answer = self.router().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let admin = self.authority.shown("admin", |_| {});
        self.ask(Method::GET, path, &admin, HeaderMap::new()).await
    }

    /// Serves on a port of its own.
    async fn serve(&self, origin: Origin) -> Served {
        let names = Names {
            node: "box".to_owned(),
            hostname: "localhost".to_owned(),
            addresses: vec![[127, 0, 0, 1].into()],
        };
        let (certificate, certificates) =
            CertificateTask::begin(origin, names, Metrics::new()).unwrap();
        let api = NodeApi {
            tls: Arc::new(tls::config(Arc::clone(&certificate))),
            certificates,
            gate: Arc::clone(&self.gate),
            view: Arc::clone(&self.view) as Arc<dyn AgentView>,
            stats: Arc::new(crate::server::fake::FakeStats),
            metrics: self.metrics.clone(),
            configz: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(api.serve(listener, self.cancel.clone()));
        Served {
            address,
            certificate,
            serving,
        }
    }
}

struct Served {
    address: SocketAddr,
    certificate: Arc<tls::Served>,
    serving: JoinSet<()>,
}

impl Served {
    /// Connects as the holder of that certificate, or of none, offering these protocols; and says
    /// which certificate the server showed.
    async fn connect(&self, holder: Option<&Holder>, protocols: &[&str]) -> TlsStream<TcpStream> {
        self.connect_from(1, holder, protocols).await
    }

    /// The same from the loopback address that ends so.
    async fn connect_from(
        &self,
        source: u8,
        holder: Option<&Holder>,
        protocols: &[&str],
    ) -> TlsStream<TcpStream> {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, source], 0).into()).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connector = connector(holder, protocols);
        connector.connect(name, stream).await.unwrap()
    }
}

/// A client certificate and its key.
struct Holder {
    certificate: rustls::pki_types::CertificateDer<'static>,
    key: Vec<u8>,
}

fn connector(holder: Option<&Holder>, protocols: &[&str]) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(rustls::DEFAULT_VERSIONS)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)));
    let mut config = match holder {
        None => builder.with_no_client_auth(),
        Some(holder) => {
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(holder.key.clone()));
            let key = rustls::crypto::ring::sign::any_supported_type(&key).unwrap();
            let shown = rustls::sign::CertifiedKey::new(vec![holder.certificate.clone()], key);
            builder.with_client_cert_resolver(Arc::new(Shows(Arc::new(shown))))
        }
    };
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    TlsConnector::from(Arc::new(config))
}

/// A client that shows a certificate, whether it has its key or not.
#[derive(Debug)]
struct Shows(Arc<rustls::sign::CertifiedKey>);

impl rustls::client::ResolvesClientCert for Shows {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// A client that takes any server.
#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &[rustls::pki_types::CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &rustls::pki_types::CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn bearer(token: &str) -> HeaderMap {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    HeaderMap::from_iter([(axum::http::header::AUTHORIZATION, value)])
}

#[tokio::test]
async fn no_route_is_reached_by_who_may_not() {
    let bed = Bed::new();
    let nobody = Shown::default();
    let stranger = Authority::new().shown("admin", |_| {});
    let alice = bed.authority.shown("alice", |_| {});
    let admin = bed.authority.shown("admin", |_| {});
    let none = HeaderMap::new();
    for (path, methods) in ROUTES {
        for method in *methods {
            let ask = async |shown: &Shown, headers: &HeaderMap| {
                bed.ask(method.clone(), path, shown, headers.clone()).await
            };
            let unauthorized = (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned());
            for (what, shown, headers) in [
                ("no credential", &nobody, &none),
                ("wrong CA", &stranger, &none),
                ("forged token", &nobody, &bearer("forged")),
                ("both", &stranger, &bearer("forged")),
            ] {
                // node-api 4
                assert_eq!(
                    ask(shown, headers).await,
                    unauthorized,
                    "{method} {path}: {what}"
                );
            }
            for (what, shown, headers) in [
                ("certificate", &alice, &none),
                ("token", &nobody, &bearer("token-of-alice")),
            ] {
                let (status, words) = ask(shown, headers).await;
                assert_eq!(
                    status,
                    StatusCode::FORBIDDEN,
                    "{method} {path}: denied {what}"
                );
                assert!(words.starts_with("Forbidden (user=alice, verb="), "{words}");
            }
            for (what, shown, headers) in [
                ("certificate", &admin, &none),
                ("token", &nobody, &bearer("token-of-admin")),
            ] {
                let (status, _) = ask(shown, headers).await;
                let is_let_in = !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
                assert!(
                    is_let_in && status != StatusCode::NOT_FOUND,
                    "{method} {path}: allowed {what}: {status}"
                );
            }
        }
    }
    // Of all these only what was allowed asked for a log.
    assert_eq!(bed.view.asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn only_healthz_itself_is_open() {
    let bed = Bed::new();
    let ask = async |path: &str| {
        bed.ask(Method::GET, path, &Shown::default(), HeaderMap::new())
            .await
    };
    assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok".to_owned()));
    for path in [
        "/healthz/",
        "/healthz/ping",
        "//healthz",
        "/",
        "/nowhere",
        "/pods?x=/healthz",
    ] {
        // node-api 4
        assert_eq!(ask(path).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(bed.reviewer.asked.lock().unwrap().len(), 0);
}

mod hostile {
    use proptest::prelude::*;

    use super::*;

    fn paths() -> impl Strategy<Value = String> {
        let words = prop::sample::select(vec![
            "",
            ".",
            "..",
            "%2e%2e",
            "%2f",
            "pods",
            "PODS",
            "healthz",
            "%68ealthz",
            "healthz;",
            "metrics",
            "stats",
            "summary",
            "exec",
            "attach",
            "run",
            "portForward",
            "containerLogs",
            "ns",
            "web",
            "c",
            "configz",
            "logs",
            "debug",
            "pprof",
            "checkpoint",
        ]);
        let query = prop::option::of("[a-z=&/%]{0,12}");
        (prop::collection::vec(words, 0..7), query).prop_map(|(words, query)| {
            let query = query.map_or_else(String::new, |query| format!("?{query}"));
            format!("/{}{query}", words.join("/"))
        })
    }

    fn headers() -> impl Strategy<Value = HeaderMap> {
        let names = prop::sample::select(vec![
            "authorization",
            "sec-websocket-protocol",
            "x-remote-user",
            "x-remote-group",
            "x-forwarded-for",
            "impersonate-user",
            "connection",
            "upgrade",
            "x-original-url",
            "x-http-method-override",
            "cookie",
            "host",
        ]);
        let values = prop::sample::select(vec![
            "admin",
            "system:masters",
            "Bearer",
            "Bearer forged",
            "Basic YWRtaW46eA==",
            "Upgrade",
            "websocket",
            "base64url.bearer.authorization.k8s.io.Zm9yZ2Vk, v5.channel.k8s.io",
            "SPDY/3.1",
            "/healthz",
            "GET",
            "127.0.0.1",
        ]);
        prop::collection::vec((names, values), 0..5).prop_map(|pairs| {
            let pair = |(name, value): (&'static str, &'static str)| {
                (name.parse().unwrap(), HeaderValue::from_static(value))
            };
            pairs.into_iter().map(pair).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Requests without a credential have no answer but these, for any path, verb and header.
        #[test]
        fn no_path_verb_or_header_opens_the_gate(
            path in paths(),
            method in "GET|POST|PUT|HEAD|DELETE|PATCH|OPTIONS|CONNECT|TRACE|BREW",
            headers in headers(),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let bed = Bed::new();
            let method: Method = method.parse().unwrap();
            let Ok(_) = path.parse::<axum::http::Uri>() else { return Ok(()) };
            let is_open = path.split('?').next() == Some("/healthz");
            let (status, _) =
                runtime.block_on(bed.ask(method.clone(), &path, &Shown::default(), headers));
            if is_open {
                prop_assert!(status == StatusCode::OK || status == StatusCode::METHOD_NOT_ALLOWED);
            } else {
                // node-api 4
                prop_assert_eq!(status, StatusCode::UNAUTHORIZED, "{} {}", method, path);
            }
            prop_assert!(bed.view.asked.lock().unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn answers_are_upstreams() {
    let bed = Bed::new();
    let logs = |name: &str, query: &str| format!("/containerLogs/ns/{name}/c{query}");
    for (path, status, words) in [
        (logs("web", ""), StatusCode::OK, "out\nerr\n"),
        (
            logs("broken", ""),
            StatusCode::OK,
            "out\nerr\nthe container runtime is not reachable: socket gone",
        ),
        (
            logs("gone", ""),
            StatusCode::NOT_FOUND,
            "pod \"gone\" does not exist",
        ),
        (
            "/containerLogs/other/web/c".to_owned(),
            StatusCode::NOT_FOUND,
            "pod \"web\" does not exist",
        ),
        (
            "/containerLogs/ns/web/x".to_owned(),
            StatusCode::NOT_FOUND,
            "container \"x\" not found in pod \"web\"",
        ),
        (
            logs("web", "?tailLines=x"),
            StatusCode::BAD_REQUEST,
            "{\"message\": \"Unable to decode query.\"}",
        ),
        (
            logs("web", "?tailLines=-1"),
            StatusCode::UNPROCESSABLE_ENTITY,
            "{\"message\": \"Invalid request.\"}",
        ),
        (
            "/exec/ns/gone/c?output=1".to_owned(),
            StatusCode::NOT_FOUND,
            "pod does not exist",
        ),
        (
            "/exec/ns/web/c".to_owned(),
            StatusCode::BAD_REQUEST,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            "/exec/ns/web/c?output=1".to_owned(),
            StatusCode::BAD_REQUEST,
            "Upgrade request required",
        ),
        (
            "/exec/ns/web/x?output=1".to_owned(),
            StatusCode::NOT_FOUND,
            "container not found (\"x\")",
        ),
        (
            "/attach/ns/web/other-uid/c?output=1".to_owned(),
            StatusCode::NOT_FOUND,
            "pod not found",
        ),
        (
            "/portForward/ns/web/other-uid".to_owned(),
            StatusCode::NOT_FOUND,
            "pod not found",
        ),
        (
            "/logs/messages".to_owned(),
            StatusCode::METHOD_NOT_ALLOWED,
            "logs endpoint is disabled.\n",
        ),
        (
            "/debug/pprof/".to_owned(),
            StatusCode::METHOD_NOT_ALLOWED,
            "profiling endpoint is disabled.\n",
        ),
        (
            "/nowhere".to_owned(),
            StatusCode::NOT_FOUND,
            "404 page not found\n",
        ),
        (
            "/configz".to_owned(),
            StatusCode::OK,
            "{\"kubeletconfig\":{\"maxPods\":7}}",
        ),
    ] {
        // node-api 3
        assert_eq!(bed.get(&path).await, (status, words.to_owned()), "{path}");
    }
    // Either UID will do.
    for uid in ["web", "mirror-web"] {
        let (status, _) = bed.get(&format!("/portForward/ns/web/{uid}")).await;
        assert_ne!(status, StatusCode::NOT_FOUND, "{uid}");
    }
    let (_, pods) = bed.get("/pods").await;
    let pods: serde_json::Value = serde_json::from_str(&pods).unwrap();
    assert_eq!(
        (&pods["kind"], &pods["items"][0]["metadata"]["name"]),
        (&"PodList".into(), &"web".into())
    );
    let samples = mirrorlet_host::telemetry::PodSamples::default();
    *bed.view.samples.lock().unwrap() = Some(samples);
    let (_, metrics) = bed.get("/metrics").await;
    assert!(metrics.contains("mirrorlet_pod_metrics_left_out 0\n"));
    assert!(
        metrics.contains("# TYPE kubelet_http_requests_total counter\n"),
        "{metrics}"
    );
    assert!(!metrics.contains("# EOF"));
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_refused() {
    let bed = Bed::new();
    let admin = bed.authority.shown("admin", |_| {});
    let length = |text| HeaderMap::from_iter([(CONTENT_LENGTH, HeaderValue::from_static(text))]);
    let ask = async |headers| {
        bed.ask(Method::POST, "/exec/ns/gone/c?output=1", &admin, headers)
            .await
            .0
    };
    // node-api 11
    assert_eq!(ask(length("1048577")).await, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(ask(length("1048576")).await, StatusCode::NOT_FOUND);
}

/// Reads from a stream until it holds that text.
async fn until_text(stream: &mut (impl AsyncReadExt + Unpin), text: &str) -> String {
    let mut bytes = Vec::new();
    loop {
        let read = String::from_utf8_lossy(&bytes).into_owned();
        if read.contains(text) {
            return read;
        }
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).await.unwrap();
        assert!(length > 0, "{text:?} never came: {read}");
        bytes.extend_from_slice(&piece[..length]);
    }
}

async fn send(stream: &mut TlsStream<TcpStream>, path: &str) {
    send_with(stream, path, "").await;
}

/// The same with that token, if it is not empty.
async fn send_with(stream: &mut TlsStream<TcpStream>, path: &str, token: &str) {
    let token = match token {
        "" => String::new(),
        token => format!("authorization: Bearer {token}\r\n"),
    };
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

#[tokio::test]
async fn both_versions_of_http_are_spoken_to_the_holder_of_a_certificate() {
    let bed = Bed::new();
    let served = bed.serve(Origin::Own).await;
    let (certificate, key) = bed.authority.holder("admin");
    let admin = Holder { certificate, key };
    let mut stream = served.connect(Some(&admin), &["http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    send(&mut stream, "/containerLogs/ns/web/c").await;
    let answer = until_text(&mut stream, "err\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let stream = served.connect(Some(&admin), &["h2", "http/1.1"]).await;
    // node-api 10
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut client, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    let mut driving = JoinSet::new();
    driving.spawn(connection);
    for path in ["https://x/pods", "https://x/containerLogs/ns/web/c"] {
        let request = hyper::Request::get(path)
            .body(Empty::<Bytes>::new())
            .unwrap();
        assert_eq!(
            client.send_request(request).await.unwrap().status(),
            200,
            "{path}"
        );
    }

    // Without a certificate, or with another authority's, the connection stands, and is worth
    // nothing.
    let (certificate, key) = Authority::new().holder("admin");
    let stranger = Holder { certificate, key };
    for holder in [None, Some(&stranger)] {
        let mut stream = served.connect(holder, &["http/1.1"]).await;
        send(&mut stream, "/pods").await;
        until_text(&mut stream, "401 Unauthorized").await;
    }
    // Who shows a certificate without its key doesn't even get that far.
    let other = rcgen::KeyPair::generate().unwrap();
    let thief = Holder {
        certificate: admin.certificate.clone(),
        key: other.serialize_der(),
    };
    let stream = TcpStream::connect(served.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let shaken = connector(Some(&thief), &["http/1.1"])
        .connect(name, stream)
        .await;
    // With TLS 1.3 the client is done before the server has looked.
    if let Ok(mut stream) = shaken {
        let _ = stream
            .write_all(b"GET /pods HTTP/1.1\r\nhost: x\r\n\r\n")
            .await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        assert!(
            read.is_err() && answer.is_empty(),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
}

#[tokio::test]
async fn a_replaced_certificate_drops_no_stream() {
    let bed = Bed::new();
    let served = bed.serve(Origin::Own).await;
    let shown =
        |stream: &TlsStream<TcpStream>| stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    let (certificate, key) = bed.authority.holder("admin");
    let admin = Holder { certificate, key };
    let mut following = served.connect(Some(&admin), &["http/1.1"]).await;
    let first = shown(&following);
    send(&mut following, "/containerLogs/ns/endless/c?follow=true").await;
    until_text(&mut following, "err\n").await;

    let (next, _) = certificate::tests::pair_of("next");
    served.certificate.replace(next);
    let other = served.connect(Some(&admin), &["http/1.1"]).await;
    assert_ne!(shown(&other), first);
    // The log goes on.
    bed.view.say("more\n");
    // node-api 9
    until_text(&mut following, "more\n").await;
}

#[tokio::test]
async fn who_goes_away_is_let_go_and_the_end_waits_for_nobody() {
    let bed = Bed::new();
    let mut served = bed.serve(Origin::Own).await;
    let (certificate, key) = bed.authority.holder("admin");
    let admin = Holder { certificate, key };
    let mut readers = Vec::new();
    for _ in 0..50 {
        let mut reader = served.connect(Some(&admin), &["http/1.1"]).await;
        send(&mut reader, "/containerLogs/ns/endless/c?follow=true").await;
        until_text(&mut reader, "err\n").await;
        readers.push(reader);
    }
    let mut open = bed.view.logs_open.subscribe();
    assert_eq!(*open.borrow_and_update(), 50);
    drop(readers.pop());
    open.wait_for(|open| *open == 49).await.unwrap();
    bed.cancel.cancel();
    assert!(served.serving.join_next().await.unwrap().is_ok());
    // node-api 11
    assert_eq!(*open.borrow_and_update(), 0);
}

#[tokio::test]
async fn a_log_does_not_end_with_the_agent() {
    let bed = Bed::new();
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = "/containerLogs/ns/endless/c?follow=true".parse().unwrap();
    let admin = bed.authority.shown("admin", |_| {});
    request.extensions_mut().insert(admin);
    let mut body = bed.router().oneshot(request).await.unwrap().into_body();
    let mut text = Vec::new();
    while !text.ends_with(b"err\n") {
        text.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    bed.cancel.cancel();
    // node-api 16
    assert!(body.frame().await.unwrap().is_err(), "it looks complete");
}

#[tokio::test]
async fn who_never_speaks_is_let_go() {
    let bed = Bed::new();
    let served = bed.serve(Origin::Own).await;
    let mut silent = vec![TcpStream::connect(served.address).await.unwrap()];
    let (certificate, key) = bed.authority.holder("admin");
    let admin = Holder { certificate, key };
    let mut shaken = Vec::new();
    for protocols in [&["http/1.1"][..], &["h2"]] {
        shaken.push(served.connect(Some(&admin), protocols).await);
    }
    // From here on time passes as fast as nothing happens.
    tokio::time::pause();
    let mut bytes = Vec::new();
    for stream in &mut silent {
        let _ = stream.read_to_end(&mut bytes).await;
    }
    for stream in &mut shaken {
        let ended = tokio::time::timeout(Duration::from_mins(10), stream.read_to_end(&mut bytes));
        // node-api 11
        assert!(ended.await.is_ok(), "still connected");
    }
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let bed = Bed::new();
    let served = bed.serve(Origin::Own).await;
    let mut stream = served.connect(None, &["http/1.1"]).await;
    stream.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
    // The server may close while the flood is on its way.
    let _ = stream.write_all(&vec![b'a'; 512 << 10]).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let words = String::from_utf8_lossy(&answer);
    // node-api 11
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"),
        "{words}"
    );
}

mod strangers {
    use super::*;

    impl Bed {
        fn admin(&self) -> Holder {
            let (certificate, key) = self.authority.holder("admin");
            Holder { certificate, key }
        }

        fn refused(&self, reason: &str) -> usize {
            let series = format!("mirrorlet_node_api_refusals_total{{reason=\"{reason}\"}} ");
            let text = self.metrics.encode();
            let value = text.lines().find_map(|line| line.strip_prefix(&series));
            value.map_or(0, |value| value.parse().unwrap())
        }
    }

    async fn is_answered(stream: &mut TlsStream<TcpStream>) {
        send(stream, "/pods").await;
        let answer = until_text(stream, "\"web\"").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    /// More descriptors than many a machine allows without asking.
    fn many_connections() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let maximum = getrlimit(Resource::Nofile).maximum;
        let all = Rlimit {
            current: maximum,
            maximum,
        };
        setrlimit(Resource::Nofile, all).unwrap();
    }

    #[tokio::test]
    async fn idle_connections_of_one_source_lock_out_nobody() {
        many_connections();
        let bed = Bed::new();
        let served = bed.serve(Origin::Own).await;
        let admin = bed.admin();
        let mut proven = served.connect_from(2, Some(&admin), &["http/1.1"]).await;
        is_answered(&mut proven).await;
        let mut idle = Vec::new();
        for _ in 0..1100 {
            idle.push(served.connect_from(2, None, &["http/1.1"]).await);
        }
        for source in [2, 3] {
            let mut stream = served
                .connect_from(source, Some(&admin), &["http/1.1"])
                .await;
            is_answered(&mut stream).await;
        }
        is_answered(&mut proven).await;
        // The newest 128 are open still, less one for the client of the same source.
        let displaced = bed.refused("displaced");
        // node-api 14
        assert_eq!(displaced, 1100 - 128 + 1);
        let mut bytes = Vec::new();
        for mut stream in idle.drain(..displaced) {
            let _ = stream.read_to_end(&mut bytes).await;
        }
        assert!(bytes.is_empty());
    }

    #[tokio::test]
    async fn a_client_that_proves_nothing_is_let_go_within_seconds() {
        let bed = Bed::new();
        let served = bed.serve(Origin::Own).await;
        let admin = bed.admin();
        let mut proven = served.connect(Some(&admin), &["http/1.1"]).await;
        is_answered(&mut proven).await;
        let mut strangers = Vec::new();
        for protocol in ["http/1.1", "h2"] {
            // A certificate proves nothing either, before its holder was let in.
            for holder in [None, Some(&admin)] {
                strangers.push(served.connect(holder, &[protocol]).await);
            }
        }
        let mut refused = served.connect(None, &["http/1.1"]).await;
        send(&mut refused, "/pods").await;
        until_text(&mut refused, "401 Unauthorized").await;
        strangers.push(refused);
        let mut half = served.connect(None, &["http/1.1"]).await;
        half.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        strangers.push(half);
        let count = strangers.len();
        let mut silent = TcpStream::connect(served.address).await.unwrap();
        // From here on time passes as fast as nothing happens.
        tokio::time::pause();
        let mut bytes = Vec::new();
        for stream in &mut strangers {
            let _ = stream.read_to_end(&mut bytes).await;
        }
        let _ = silent.read_to_end(&mut bytes).await;
        // node-api 14
        assert_eq!((bed.refused("idle"), bed.refused("handshake")), (count, 1));
        is_answered(&mut proven).await;
    }

    #[tokio::test]
    async fn a_flood_of_tokens_is_refused_and_who_was_let_in_is_answered() {
        let bed = Bed::new();
        let served = bed.serve(Origin::Own).await;
        let mut friend = served.connect(None, &["http/1.1"]).await;
        send_with(&mut friend, "/pods", "token-of-admin").await;
        until_text(&mut friend, "\"web\"").await;
        bed.reviewer.asked.lock().unwrap().clear();

        // The API server answers no more, for now.
        bed.reviewer.holds.send_replace(true);
        let mut asking = JoinSet::new();
        for n in 0..100 {
            let mut stream = served.connect_from(2, None, &["http/1.1"]).await;
            send_with(&mut stream, "/pods", &format!("forged-{n}")).await;
            asking.spawn(async move {
                let head = until_text(&mut stream, "\r\n\r\n").await;
                head.to_ascii_lowercase()
            });
        }
        // 16 of one source wait.
        for _ in 16..100 {
            let answer = asking.join_next().await.unwrap().unwrap();
            // node-api 15
            assert!(answer.starts_with("http/1.1 429 "), "{answer}");
            assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        }
        assert_eq!(bed.refused("token_reviews"), 84);
        assert_eq!(bed.reviewer.asked.lock().unwrap().len(), 8);
        let mut again = served.connect(None, &["http/1.1"]).await;
        for stream in [&mut friend, &mut again] {
            send_with(stream, "/pods", "token-of-admin").await;
            until_text(stream, "\"web\"").await;
        }
        // Those that wait are refused in the end, and then there is room again.
        bed.reviewer.holds.send_replace(false);
        while let Some(answer) = asking.join_next().await {
            let answer = answer.unwrap();
            assert!(answer.starts_with("http/1.1 401 "), "{answer}");
        }
        let mut late = served.connect_from(2, None, &["http/1.1"]).await;
        send_with(&mut late, "/pods", "token-of-alice").await;
        until_text(&mut late, "403 Forbidden").await;
    }

    /// Returns the server's limits on a new connection: most streams, largest window and head.
    async fn announced(stream: &mut TlsStream<TcpStream>) -> [Option<u32>; 3] {
        // The preface, and settings without any.
        stream
            .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await
            .unwrap();
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(head[3], 4, "settings come first");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut settings = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut settings).await.unwrap();
        [3, 4, 6].map(|id| {
            settings.chunks(6).find_map(|setting| {
                let (of, value) = setting.split_at(2);
                (of == [0, id]).then(|| u32::from_be_bytes(value.try_into().unwrap()))
            })
        })
    }

    #[tokio::test]
    async fn http2_is_small_for_who_is_not_known() {
        let bed = Bed::new();
        let served = bed.serve(Origin::Own).await;
        let (certificate, key) = Authority::new().holder("admin");
        let (foreign, admin) = (Holder { certificate, key }, bed.admin());
        let window = Some(65_535);
        let small = [Some(16), window, Some(16 << 10)];
        for holder in [None, Some(&foreign), Some(&admin)] {
            let mut stream = served.connect(holder, &["h2"]).await;
            // node-api 14
            assert_eq!(announced(&mut stream).await, small);
        }
        let mut proven = served.connect(Some(&admin), &["http/1.1"]).await;
        is_answered(&mut proven).await;
        let mut stream = served.connect(Some(&admin), &["h2"]).await;
        let large = [Some(250), window, Some(64 << 10)];
        assert_eq!(announced(&mut stream).await, large);
        let mut stream = served.connect(Some(&foreign), &["h2"]).await;
        assert_eq!(announced(&mut stream).await, small);
    }

    #[tokio::test]
    async fn hundreds_of_large_heads_are_refused_and_kept_nowhere() {
        let bed = Bed::new();
        let served = bed.serve(Origin::Own).await;
        let mut driving = JoinSet::new();
        let mut clients = Vec::new();
        for _ in 0..2 {
            let io = TokioIo::new(served.connect(None, &["h2"]).await);
            let shaken = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
            let (client, connection) = shaken.await.unwrap();
            driving.spawn(connection);
            clients.push(client);
        }
        let ask = |client: usize, bytes: usize, token: usize| {
            let request = hyper::Request::get("https://x/pods")
                .header("authorization", format!("Bearer forged-{token}"))
                .header("x-large", "x".repeat(bytes))
                .body(Empty::<Bytes>::new())
                .unwrap();
            let mut client = clients[client].clone();
            async move { client.send_request(request).await.unwrap().status() }
        };
        // The API server is slow. As many as may wait for it …
        bed.reviewer.holds.send_replace(true);
        let mut waiting = JoinSet::new();
        for n in 0..16 {
            waiting.spawn(ask(0, 15 << 10, n));
        }
        let all = r#"_inflight_requests{method="GET",path="pods",server_type="readwrite",long_running="false"} 16"#;
        while !bed.metrics.encode().contains(all) {
            tokio::task::yield_now().await;
        }
        // … are all whose heads are kept; those past the limit are not even looked at.
        for n in 16..216 {
            // node-api 14
            assert_eq!(ask(1, 15 << 10, n).await, StatusCode::TOO_MANY_REQUESTS);
            let status = ask(1, 16 << 10, n).await;
            assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        assert!(waiting.try_join_next().is_none());
    }
}
