use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mirrorlet::source::http::{HttpOptions, HttpSource};
use mirrorlet::source::{SourceHealth, SourceReader, source};
use mirrorlet_core::desired::SourceState;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::{PATIENCE, expect, pod};

/// The answer of a server to a request for one path.
#[derive(Debug, Clone)]
enum Answer {
    Body(String),
    /// With an entity tag, and 304 for whoever sends it.
    Tagged(&'static str, String),
    Status(StatusCode),
    Redirect(String),
    /// Never.
    Silence,
}

type Seen = (String, HeaderMap);

/// A server whose answer can be changed, and which remembers requests.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    /// Stops it: from then on connections are refused.
    stop: CancellationToken,
    answer: Arc<Mutex<Answer>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    async fn start(answer: Answer, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            stop: CancellationToken::new(),
            answer: Arc::new(Mutex::new(answer)),
            seen: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Some(accepted) = serving.stop.run_until_cancelled(listener.accept()).await {
                let (stream, _) = accepted.unwrap();
                let (serving, tls) = (serving.clone(), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serving.serve(stream).await,
                        // A client that doesn't trust us hangs up in the handshake.
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serving.serve(stream).await;
                            }
                        }
                    }
                });
            }
        });
        server
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(move |request| self.clone().reply(request));
        let mut connection = hyper::server::conn::http1::Builder::new();
        connection.keep_alive(false);
        // A client that gives up closes the connection: no fault of the server.
        let _ = connection
            .serve_connection(TokioIo::new(stream), service)
            .await;
    }

    async fn reply(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let headers = request.headers().clone();
        let known_tag = headers.get("if-none-match").cloned();
        self.seen.lock().unwrap().push((path, headers));
        let answer = self.answer.lock().unwrap().clone();
        let builder = Response::builder();
        let response = match answer {
            Answer::Body(text) => builder.body(text.into()),
            Answer::Tagged(tag, _) if known_tag.is_some_and(|known| known == tag) => builder
                .status(StatusCode::NOT_MODIFIED)
                .body(Full::default()),
            Answer::Tagged(tag, text) => builder.header("etag", tag).body(text.into()),
            Answer::Status(status) => builder.status(status).body(pod("wrong", "a:1").into()),
            Answer::Redirect(to) => builder
                .status(StatusCode::FOUND)
                .header("location", to)
                .body(Full::default()),
            Answer::Silence => std::future::pending().await,
        };
        Ok(response.unwrap())
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn requests(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// Waits until so many more requests came in that one began after this call.
    async fn asked_again(&self) {
        let wanted = self.requests() + 2;
        let poll = async {
            while self.requests() < wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, poll).await.unwrap();
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}/pods", self.address.port())
    }
}

/// An agent's source for one URL.
struct Bench {
    root: TempDir,
    reader: SourceReader,
    cancel: CancellationToken,
    task: JoinHandle<Option<()>>,
}

impl Bench {
    fn start(url: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), url, &[], None)
    }

    fn start_in(root: TempDir, url: &str, headers: &[(&str, &str)], ca: Option<&Path>) -> Self {
        let headers = headers
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let options = HttpOptions {
            url: url.to_owned(),
            headers: headers.collect(),
            ca: ca.map(Path::to_owned),
            root: root.path().to_owned(),
            node_name: "node".into(),
            period: Duration::from_millis(20),
            // Far more than a server in this process needs on a loaded machine.
            deadline: Duration::from_secs(4),
        };
        let http = HttpSource::new(options).unwrap();
        let (writer, reader) = source(http.name());
        let cancel = CancellationToken::new();
        let task = tokio::spawn(cancel.clone().run_until_cancelled_owned(http.run(writer)));
        Self {
            root,
            reader,
            cancel,
            task,
        }
    }

    async fn expect(&mut self, pods: &[&str], problems: &[&str]) {
        expect(&mut self.reader, pods, problems).await;
    }

    /// Waits for a failure that says `text`, and returns its code.
    async fn expect_failure(&mut self, text: &str) -> String {
        let says = |health: &SourceHealth| {
            health
                .last_error
                .as_ref()
                .is_some_and(|error| error.message.contains(text))
        };
        let waiting = self.reader.health.wait_for(says);
        match tokio::time::timeout(PATIENCE, waiting).await {
            Ok(health) => health
                .unwrap()
                .last_error
                .as_ref()
                .unwrap()
                .code
                .to_string(),
            Err(elapsed) => panic!(
                "wanted {text:?}, {elapsed}, but it stays at {:?}",
                self.reader.health.get()
            ),
        }
    }

    async fn stop(self) -> TempDir {
        self.cancel.cancel();
        self.task.await.unwrap();
        self.root
    }
}

fn list(items: &[(&str, &str)]) -> String {
    let item = |(name, image): &(&str, &str)| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "main", "image": image}]},
        })
    };
    let items: Vec<_> = items.iter().map(item).collect();
    serde_json::json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
}

#[tokio::test]
async fn a_pod_and_a_list_are_delivered() {
    let server = Server::start(Answer::Body(pod("web", "a:1")), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&["web-node a:1"], &[]).await;
    server.set(Answer::Body(list(&[("one", "a:1"), ("two", "a:2")])));
    // pods 7
    bench.expect(&["one-node a:1", "two-node a:2"], &[]).await;
    let report = bench.reader.report();
    assert_eq!(
        (report.kind.as_str(), report.synced, report.pods),
        ("http", true, 2)
    );
    // One bad item holds itself alone.
    let bad = list(&[("one", "a:9"), ("two", "BAD")]).replace("\"BAD\"", "[]");
    server.set(Answer::Body(bad));
    bench
        .expect(&["one-node a:9", "two-node a:2 held invalid-type"], &[])
        .await;
    // An empty answer is a mistake, an empty list is a wish.
    server.set(Answer::Body(String::new()));
    bench
        .expect(&["one-node a:9 held empty", "two-node a:2 held empty"], &[])
        .await;
    server.set(Answer::Body(list(&[])));
    // pods 10
    bench.expect(&[], &[]).await;
}

#[tokio::test]
async fn objects_of_a_url_are_delivered_and_stay_while_it_is_wrong() {
    let object = |kind: &str, data: &str| {
        format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: o}}, data: {data}}}\n")
    };
    let secret = object("Secret", "{k: eA==}");
    let both = format!("{}---\n{secret}", object("ConfigMap", "{k: v}"));
    let server = Server::start(
        Answer::Body(format!("{both}---\n{}", pod("web", "a:1"))),
        None,
    )
    .await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&["web-node a:1"], &[]).await;
    let keys = |bench: &Bench| -> Vec<String> {
        let state = bench.reader.state.get();
        let objects = state.set().unwrap().objects.iter();
        objects
            .map(|known| known.object.key().to_string())
            .collect()
    };
    let expected = ["configmap \"default/o\"", "secret \"default/o\""];
    // box 1
    assert_eq!(keys(&bench), expected);
    server.set(Answer::Body(String::new()));
    bench.expect(&["web-node a:1 held empty"], &[]).await;
    // box 1
    assert_eq!(keys(&bench), expected);
    server.set(Answer::Body(secret));
    bench.expect(&[], &[]).await;
    assert_eq!(keys(&bench), expected[1..]);
}

#[tokio::test]
async fn a_failing_url_changes_nothing() {
    let server = Server::start(Answer::Status(StatusCode::NOT_FOUND), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect_failure("404 Not Found").await;
    server.asked_again().await;
    assert_eq!(*bench.reader.state.get(), SourceState::NotSynced);
    assert!(!bench.reader.report().synced);
    assert_eq!(bench.reader.report().problems.len(), 1);

    server.set(Answer::Body(pod("web", "a:1")));
    bench.expect(&["web-node a:1"], &[]).await;
    for (answer, text, code) in [
        (Answer::Status(StatusCode::NOT_FOUND), "404", "fetch-failed"),
        (
            Answer::Status(StatusCode::INTERNAL_SERVER_ERROR),
            "500",
            "fetch-failed",
        ),
        (
            Answer::Status(StatusCode::NOT_MODIFIED),
            "304",
            "fetch-failed",
        ),
        (
            Answer::Status(StatusCode::NO_CONTENT),
            "204",
            "fetch-failed",
        ),
        (
            Answer::Silence,
            "no complete response within 4s",
            "fetch-failed",
        ),
        (
            Answer::Body("x".repeat(11 << 20)),
            "larger than 10485760 bytes",
            "too-large",
        ),
    ] {
        server.set(answer);
        assert_eq!(bench.expect_failure(text).await, code);
        // pods 10
        bench.expect(&["web-node a:1"], &[code]).await;
    }
    server.set(Answer::Body(pod("web", "a:1")));
    bench.expect(&["web-node a:1"], &[]).await;
    assert_eq!(bench.reader.health.get().last_error, None);
}

#[tokio::test]
async fn an_unchanged_body_is_no_news() {
    let server = Server::start(Answer::Tagged("\"1\"", pod("web", "a:1")), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&["web-node a:1"], &[]).await;
    server.asked_again().await;
    let last = server.seen.lock().unwrap().last().unwrap().1.clone();
    assert_eq!(last["if-none-match"], "\"1\"");
    let before = bench.reader.state.get();
    server.asked_again().await;
    server.set(Answer::Body(pod("web", "a:1")));
    server.asked_again().await;
    // pods 11
    assert!(Arc::ptr_eq(&before, &bench.reader.state.get()));
    assert_eq!(bench.reader.health.get().failures, 0);
    server.set(Answer::Tagged("\"2\"", pod("web", "a:2")));
    bench.expect(&["web-node a:2"], &[]).await;
}

#[tokio::test]
async fn headers_are_sent_and_stay_with_their_host() {
    let elsewhere = Server::start(Answer::Body(pod("web", "a:1")), None).await;
    let server = Server::start(Answer::Redirect(elsewhere.url("http")), None).await;
    let url = format!("http://me:secret@localhost:{}/pods", server.address.port());
    let headers = [("x-a", "1"), ("x-a", "2"), ("x-b", "3")];
    let mut bench = Bench::start_in(tempfile::tempdir().unwrap(), &url, &headers, None);
    bench.expect(&["web-node a:1"], &[]).await;
    let sent = server.seen.lock().unwrap()[0].1.clone();
    // pods 11
    assert_eq!(sent.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(sent["x-b"], "3");
    assert_eq!(sent["authorization"], "Basic bWU6c2VjcmV0");
    let leaked = elsewhere.seen.lock().unwrap()[0].1.clone();
    assert!(!leaked.contains_key("x-a") && !leaked.contains_key("authorization"));
    assert!(!format!("{:?}", bench.reader.report()).contains("secret"));
}

#[tokio::test]
async fn redirects_end() {
    let server = Server::start(Answer::Redirect("again?x=1".into()), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect_failure("more than 10 redirects").await;
    assert_eq!(server.seen.lock().unwrap()[1].0, "/again");
    server.set(Answer::Redirect("file:///etc/passwd".into()));
    bench.expect_failure("is not an http or https URL").await;
}

#[tokio::test]
async fn what_was_delivered_survives_the_url_and_the_agent() {
    let server = Server::start(Answer::Body(pod("web", "a:1")), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&["web-node a:1"], &[]).await;
    // A second version, stored before the reader can see the third.
    server.set(Answer::Body(pod("web", "a:2")));
    bench.expect(&["web-node a:2"], &[]).await;
    server.asked_again().await;
    server.set(Answer::Status(StatusCode::BAD_GATEWAY));
    bench.expect_failure("502").await;
    let root = bench.stop().await;
    let mut bench = Bench::start_in(root, &server.url("http"), &[], None);
    bench
        .expect(&["web-node a:2 held fetch-failed"], &["fetch-failed"])
        .await;
    server.set(Answer::Body(pod("web", "a:2")));
    bench.expect(&["web-node a:2"], &[]).await;
}

#[tokio::test]
async fn a_refused_connection_is_told() {
    // A port that is taken and on which nobody listens.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut bench = Bench::start(&format!("http://127.0.0.1:{port}/"));
    assert_eq!(bench.expect_failure("refused").await, "fetch-failed");
    assert_eq!(*bench.reader.state.get(), SourceState::NotSynced);

    // Pods that were delivered stay.
    let server = Server::start(Answer::Body(pod("web", "a:1")), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&["web-node a:1"], &[]).await;
    server.stop.cancel();
    assert_eq!(bench.expect_failure("refused").await, "fetch-failed");
    // pods 10
    bench.expect(&["web-node a:1"], &["fetch-failed"]).await;
}

#[tokio::test]
async fn a_first_empty_set_counts_once() {
    let server = Server::start(Answer::Body(list(&[])), None).await;
    let mut bench = Bench::start(&server.url("http"));
    bench.expect(&[], &[]).await;
    let first = bench.reader.state.get();
    // The same set in another text.
    server.set(Answer::Body(format!("{}\n", list(&[]))));
    server.asked_again().await;
    server.asked_again().await;
    // pods 15
    assert!(Arc::ptr_eq(&first, &bench.reader.state.get()));
}

#[tokio::test]
async fn tls_needs_a_trusted_certificate() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::start(Answer::Body(pod("web", "a:1")), Some(acceptor)).await;

    let mut stranger = Bench::start(&server.url("https"));
    stranger.expect_failure("certificate").await;
    assert_eq!(*stranger.reader.state.get(), SourceState::NotSynced);

    let root = tempfile::tempdir().unwrap();
    let ca = root.path().join("ca.pem");
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    let mut bench = Bench::start_in(root, &server.url("https"), &[], Some(&ca));
    bench.expect(&["web-node a:1"], &[]).await;
}
