//! Tests against real servers on loopback.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::*;
use mirrorlet_core::handler::Scheme;

/// Longer than anything that answers needs.
const LONG: Duration = Duration::from_mins(2);

/// A server that is gone with its test.
struct Server {
    address: SocketAddr,
    /// The heads of the requests it got.
    heads: mpsc::UnboundedReceiver<String>,
    _tasks: JoinSet<()>,
}

/// The answer of a server to a connection whose request's head was read.
type Answer = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

fn tls_config(protocols: &[&[u8]]) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["nobody.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}

/// An HTTP server that answers one request per connection.
async fn serve(on: &str, tls: Option<TlsAcceptor>, answer: Answer) -> Server {
    let listener = TcpListener::bind(on).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heads) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Some(tls) = &tls else {
                if let Some(head) = read_head(&mut stream).await {
                    let _ = stream.write_all(&answer(&head)).await;
                    let _ = told.send(head);
                }
                continue;
            };
            if let Ok(mut stream) = tls.accept(stream).await
                && let Some(head) = read_head(&mut stream).await
            {
                let _ = stream.write_all(&answer(&head)).await;
                let _ = stream.shutdown().await;
                let _ = told.send(head);
            }
        }
    });
    Server {
        address,
        heads,
        _tasks: tasks,
    }
}

async fn answering(text: &'static str) -> Server {
    serve("127.0.0.1:0", None, Arc::new(|_| text.into())).await
}

fn get(address: SocketAddr, path: &str) -> HttpGet {
    HttpGet {
        scheme: Scheme::Http,
        host: address.ip().to_string(),
        port: address.port(),
        path: path.to_owned(),
        headers: Vec::new(),
    }
}

fn over_tls(get: HttpGet) -> HttpGet {
    HttpGet {
        scheme: Scheme::Https,
        ..get
    }
}

async fn ask(get: &HttpGet) -> Result<u16, ProbeError> {
    let answer = Client::new().http_get(get, LONG).await?;
    Ok(answer.status)
}

#[tokio::test]
async fn the_request_is_the_authors_and_nothing_is_kept_open() {
    let mut server = answering("HTTP/1.1 204 No Content\r\n\r\n").await;
    let request = HttpGet {
        headers: vec![
            ("Host".to_owned(), "shop.example".to_owned()),
            ("X-Twice".to_owned(), "1".to_owned()),
            ("X-Twice".to_owned(), "2".to_owned()),
        ],
        ..get(server.address, "/a b?x=1&y=%20#part")
    };
    assert_eq!(ask(&request).await, Ok(204));
    let head = server.heads.recv().await.unwrap();
    let mut lines: Vec<&str> = head.trim_end().lines().collect();
    assert_eq!(lines.remove(0), "GET /a%20b?x=1&y=%20 HTTP/1.1");
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "Connection: close",
            "Host: shop.example",
            "X-Twice: 1",
            "X-Twice: 2"
        ]
    );
    // Without a leading slash, and without a host of its own.
    assert_eq!(ask(&get(server.address, "health")).await, Ok(204));
    let head = server.heads.recv().await.unwrap();
    assert!(head.starts_with("GET /health HTTP/1.1\r\n"), "{head}");
    assert!(
        head.contains(&format!("Host: {}\r\n", server.address)),
        "{head}"
    );
}

#[tokio::test]
async fn statuses_are_returned_as_they_are() {
    for (answer, status) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200),
        ("HTTP/1.0 200 OK\r\n\r\nuntil the end", 200),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", 404),
        ("HTTP/1.1 503 \r\nContent-Length: 0\r\n\r\n", 503),
        // A redirect to nowhere.
        ("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", 302),
        ("HTTP/1.1 304 Not Modified\r\nLocation: /x\r\n\r\n", 304),
    ] {
        let server = answering(answer).await;
        assert_eq!(ask(&get(server.address, "/")).await, Ok(status));
    }
}

#[tokio::test]
async fn of_a_long_answer_only_the_beginning_is_read() {
    const BODY: usize = 10 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_head(&mut stream).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BODY}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut sent = 0;
        while sent < BODY && stream.write_all(&[b'x'; 4096]).await.is_ok() {
            sent += 4096;
        }
        sent
    });
    assert_eq!(ask(&get(address, "/")).await, Ok(200));
    // The rest is what the kernel buffers for two sockets.
    let sent = server.await.unwrap();
    // pods 56a
    assert!(sent < BODY, "all {sent} bytes were taken");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_its_timeout_and_no_more() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    let timeout = Duration::from_millis(100);
    let client = Client::new();
    for request in [get(address, "/"), over_tls(get(address, "/"))] {
        let (answer, accepted) =
            tokio::join!(client.http_get(&request, timeout), listener.accept());
        // pods 56a
        assert_eq!(answer, Err(ProbeError::Timeout(timeout)));
        held.push(accepted.unwrap());
    }
    let check = GrpcCheck {
        host: address.ip().to_string(),
        port: address.port(),
        service: String::new(),
        tls: false,
    };
    assert_eq!(
        client.grpc(&check, timeout).await,
        Err(ProbeError::Timeout(timeout))
    );
    // One that stops in the middle of its body, too.
    let stalls = serve(
        "127.0.0.1:0",
        None,
        Arc::new(|_| b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal".to_vec()),
    )
    .await;
    let ended = ask(&get(stalls.address, "/")).await;
    assert!(matches!(ended, Err(ProbeError::Broken(_))), "{ended:?}");
}

#[tokio::test]
async fn a_closed_port_is_told_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = Client::new();
    let host = address.ip().to_string();
    assert_eq!(client.tcp_socket(&host, address.port(), LONG).await, Ok(()));
    // Taken, so that no other test listens there.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = taken.local_addr().unwrap();
    let refused = ProbeError::Connect {
        address: address.to_string(),
        why: "connect: connection refused".to_owned(),
    };
    assert_eq!(
        client.tcp_socket(&host, address.port(), LONG).await,
        Err(refused.clone())
    );
    assert_eq!(ask(&get(address, "/")).await, Err(refused));
}

/// A machine on which no file can be opened any more: also the resolver needs one.
#[tokio::test]
async fn a_machine_with_nothing_left_has_asked_nobody() {
    for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
        let client = Client {
            names: Names::new(move |_| Err(errno.into())),
            ..Client::new()
        };
        let exhausted = ProbeError::Exhausted {
            address: "db:1".to_owned(),
            why: io::Error::from(errno).to_string(),
        };
        let asked = client.tcp_socket("db", 1, LONG).await;
        // pods 56a
        assert_eq!(asked, Err(exhausted), "{errno:?}");
        let of_server = not_connected("db:1".to_owned(), &Errno::CONNREFUSED.into());
        // pods 56a
        assert!(matches!(of_server, ProbeError::Connect { .. }));
    }
}

#[tokio::test]
async fn senseless_answers_and_requests_are_told_without_their_values() {
    let server = answering("hello\r\n\r\n").await;
    let answer = ask(&get(server.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
    let silent = answering("").await;
    let answer = ask(&get(silent.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
    let request = HttpGet {
        headers: vec![("X-Key".to_owned(), "secret\n".to_owned())],
        ..get(server.address, "/")
    };
    let error = ask(&request).await.unwrap_err().to_string();
    assert_eq!(error, "invalid request: header \"X-Key\" is invalid");
}

#[tokio::test]
async fn ipv6_is_spoken_too() {
    let mut server = serve(
        "[::1]:0",
        None,
        Arc::new(|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
    )
    .await;
    // pods 56a
    assert_eq!(ask(&get(server.address, "/")).await, Ok(200));
    let head = server.heads.recv().await.unwrap();
    assert!(
        head.contains(&format!("Host: {}\r\n", server.address)),
        "{head}"
    );
    let port = server.address.port();
    assert_eq!(Client::new().tcp_socket("::1", port, LONG).await, Ok(()));
}

#[tokio::test]
async fn nobodys_certificate_is_verified() {
    let server = serve(
        "127.0.0.1:0",
        Some(tls_config(&[])),
        Arc::new(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
    )
    .await;
    let request = over_tls(get(server.address, "/"));
    // pods 56a
    assert_eq!(ask(&request).await, Ok(200));
    let by_name = HttpGet {
        host: "localhost".to_owned(),
        ..request
    };
    assert_eq!(ask(&by_name).await, Ok(200));
}

#[tokio::test]
async fn plain_http_where_tls_was_asked_for_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).await.unwrap();
        let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        stream
    });
    let answer = ask(&over_tls(get(address, "/"))).await;
    assert_eq!(answer, Err(ProbeError::PlainAnswer));
    serving.await.unwrap();
}

/// A server that sends everybody on, as often as it is asked to.
async fn redirecting(times: usize, to: impl Fn(usize) -> String + Send + Sync + 'static) -> Server {
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| {
        let n = asked.fetch_add(1, Ordering::SeqCst);
        if n < times {
            let to = to(n);
            format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 3\r\n\r\n<a>").into()
        } else {
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
    };
    serve("127.0.0.1:0", None, Arc::new(answer)).await
}

#[tokio::test]
async fn redirects_to_the_same_host_are_followed_ten_requests_long() {
    let mut server = redirecting(9, |n| format!("/{n}?q")).await;
    let request = HttpGet {
        headers: vec![("Host".to_owned(), "shop.example".to_owned())],
        ..get(server.address, "/start")
    };
    assert_eq!(ask(&request).await, Ok(200));
    let mut asked = Vec::new();
    while asked.len() < 10 {
        asked.push(server.heads.recv().await.unwrap());
    }
    assert!(asked[9].starts_with("GET /8?q "), "{}", asked[9]);
    assert!(asked[9].contains("Host: shop.example"), "{}", asked[9]);
    let server = redirecting(10, |n| format!("/{n}")).await;
    // pods 56a
    assert_eq!(
        ask(&get(server.address, "/")).await,
        Err(ProbeError::TooManyRedirects(10))
    );
}

#[tokio::test]
async fn a_redirect_to_another_port_of_the_host_is_followed_and_to_another_host_is_not() {
    let mut target = answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = target.address.port();
    let server = redirecting(1, move |_| format!("http://127.0.0.1:{port}/there")).await;
    let request = HttpGet {
        headers: vec![("Host".to_owned(), "shop.example".to_owned())],
        ..get(server.address, "/")
    };
    assert_eq!(ask(&request).await, Ok(200));
    let head = target.heads.recv().await.unwrap();
    assert!(
        head.contains(&format!("Host: {}\r\n", target.address)),
        "{head}"
    );
    let away = redirecting(1, move |_| format!("http://localhost:{port}/")).await;
    let answer = Client::new().http_get(&get(away.address, "/"), LONG).await;
    let answer = answer.unwrap();
    assert_eq!(
        (answer.status, answer.body.as_ref()),
        (302, b"<a>".as_ref())
    );
    // pods 56a
    assert!(target.heads.try_recv().is_err(), "somebody was asked");
    let elsewhere = redirecting(1, |_| "gopher://127.0.0.1/".to_owned()).await;
    let answer = ask(&get(elsewhere.address, "/")).await;
    assert!(matches!(answer, Err(ProbeError::Broken(_))), "{answer:?}");
}

/// A gRPC server with one answer for all.
async fn grpc_server(tls: Option<TlsAcceptor>, answer: GrpcAnswer) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, heads) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            match &tls {
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        answer_grpc(stream, &answer, &told).await;
                    }
                }
                None => answer_grpc(stream, &answer, &told).await,
            }
        }
    });
    Server {
        address,
        heads,
        _tasks: tasks,
    }
}

#[derive(Clone)]
enum GrpcAnswer {
    /// This message, then trailers with status 0.
    Message(&'static [u8]),
    /// A refusal with that status and message, and nothing else.
    Refusal(&'static str, &'static str),
}

async fn answer_grpc<S>(stream: S, answer: &GrpcAnswer, told: &mpsc::UnboundedSender<String>)
where
    S: AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((mut request, mut respond))) = connection.accept().await {
        let mut body = Vec::new();
        while let Some(Ok(chunk)) = request.body_mut().data().await {
            body.extend_from_slice(&chunk);
        }
        let agent = request.headers()["user-agent"].to_str().unwrap();
        let _ = told.send(format!("{} {agent} {body:?}", request.uri().path()));
        let head = ::http::Response::builder().header("content-type", "application/grpc");
        match answer {
            GrpcAnswer::Message(message) => {
                let mut send = respond
                    .send_response(head.body(()).unwrap(), false)
                    .unwrap();
                send.send_data(Bytes::from_static(message), false).unwrap();
                let mut trailers = ::http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                send.send_trailers(trailers).unwrap();
            }
            GrpcAnswer::Refusal(status, message) => {
                let head = head
                    .header("grpc-status", *status)
                    .header("grpc-message", *message);
                respond.send_response(head.body(()).unwrap(), true).unwrap();
            }
        }
    }
}

fn check(server: &Server, service: &str, tls: bool) -> GrpcCheck {
    GrpcCheck {
        host: server.address.ip().to_string(),
        port: server.address.port(),
        service: service.to_owned(),
        tls,
    }
}

#[tokio::test]
async fn a_grpc_health_service_is_asked_and_understood() {
    let serving = GrpcAnswer::Message(&[0, 0, 0, 0, 2, 8, 1]);
    for tls in [false, true] {
        let acceptor = tls.then(|| tls_config(&[b"h2"]));
        let mut server = grpc_server(acceptor, serving.clone()).await;
        let asked = Client::new().grpc(&check(&server, "db", tls), LONG).await;
        // pods 56a
        assert_eq!(asked, Ok(Health::Serving));
        assert_eq!(
            server.heads.recv().await.unwrap(),
            "/grpc.health.v1.Health/Check kube-probe/1.35 [0, 0, 0, 0, 4, 10, 2, 100, 98]"
        );
    }
    let sick = grpc_server(None, GrpcAnswer::Message(&[0, 0, 0, 0, 2, 8, 2])).await;
    let asked = Client::new().grpc(&check(&sick, "", false), LONG).await;
    assert_eq!(asked, Ok(Health::NotServing));
}

#[tokio::test]
async fn what_is_no_grpc_health_service_is_told() {
    let refused = |status, message| grpc_server(None, GrpcAnswer::Refusal(status, message));
    for (server, words) in [
        (
            refused("12", "unknown service").await,
            "this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service",
        ),
        (
            refused("5", "unknown").await,
            "health rpc failed: rpc error: code = 5 desc = unknown",
        ),
    ] {
        let asked = Client::new().grpc(&check(&server, "", false), LONG).await;
        assert_eq!(asked, Err(ProbeError::Broken(words.to_owned())));
    }
    let http = answering("HTTP/1.1 200 OK\r\n\r\n").await;
    let asked = Client::new().grpc(&check(&http, "", false), LONG).await;
    assert!(matches!(asked, Err(ProbeError::Broken(_))), "{asked:?}");
}

/// Lookups that last until the test lets them end.
#[derive(Default)]
struct Silent {
    asked: Mutex<Vec<String>>,
    most: AtomicUsize,
    under_way: AtomicUsize,
    over: AtomicBool,
}

impl Silent {
    fn look_up(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if !host.starts_with("silent") {
            return Ok(vec![[127, 0, 0, 1].into()]);
        }
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        self.asked.lock().unwrap().push(host.to_owned());
        while !self.over.load(Ordering::SeqCst) {
            std::thread::park_timeout(Duration::from_millis(1));
        }
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        Err(io::Error::other("nobody answers"))
    }

    /// Waits until so many lookups have begun: a thread that was started runs when the machine has time
    /// for it.
    async fn until_asked(&self, count: usize) {
        while self.asked.lock().unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Names that no server answers for hold up nothing but those who ask for them.
#[tokio::test]
async fn names_nobody_answers_for_are_asked_on_few_threads_of_their_own() {
    let silent = Arc::new(Silent::default());
    let client = Client {
        names: {
            let silent = Arc::clone(&silent);
            Names::new(move |host| silent.look_up(host))
        },
        ..Client::new()
    };
    let [client, other] = ["one", "two"].map(|name| client.of_namespace(&name.into()));
    let short = Duration::from_millis(10);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    client.tcp_socket("there", port, LONG).await.unwrap();
    let ask_many = async |client: &Client, names: &str| {
        let mut asking = JoinSet::new();
        for n in 0..100 {
            let (client, host) = (client.clone(), format!("silent-{names}-{n}"));
            asking.spawn(async move { client.tcp_socket(&host, 1, short).await });
        }
        while let Some(asked) = asking.join_next().await {
            // tenants M4
            assert_eq!(asked.unwrap(), Err(ProbeError::Timeout(short)));
        }
    };
    ask_many(&client, "a").await;
    silent.until_asked(names::LOOKUPS_OF_NAMESPACE_MAX).await;
    // The next attempt of the same probe waits for the answer to the first one; addresses and the
    // machine's own name need no answer, and names of another namespace have theirs.
    let first = silent.asked.lock().unwrap()[0].clone();
    let again = client.tcp_socket(&first, 1, short).await;
    assert_eq!(again, Err(ProbeError::Timeout(short)));
    for host in ["127.0.0.1", "localhost", "LocalHost."] {
        let asked = client.tcp_socket(host, port, LONG).await;
        // tenants M4
        assert_eq!(asked, Ok(()), "{host}");
    }
    let localhost = client.names.resolve("localhost").await.unwrap();
    let in_order = ["127.0.0.1", "::1"].map(|address| address.parse::<IpAddr>().unwrap());
    // tenants M4
    assert_eq!(*localhost, in_order);
    let asked = other.tcp_socket("there", port, LONG).await;
    // tenants M4
    assert_eq!(asked, Ok(()), "of another namespace");
    let asked = |host: &String| {
        silent
            .asked
            .lock()
            .unwrap()
            .iter()
            .filter(|h| *h == host)
            .count()
    };
    assert_eq!(asked(&first), 1);
    let most = || silent.most.load(Ordering::SeqCst);
    assert_eq!(most(), names::LOOKUPS_OF_NAMESPACE_MAX);
    ask_many(&other, "b").await;
    silent.until_asked(names::LOOKUPS_MAX).await;
    assert_eq!(most(), names::LOOKUPS_MAX);
    silent.over.store(true, Ordering::SeqCst);
    let failed = client
        .tcp_socket("silent-again", 1, LONG)
        .await
        .unwrap_err();
    assert_eq!(
        failed.to_string(),
        "dial tcp silent-again:1: nobody answers"
    );
    client.tcp_socket("there", port, LONG).await.unwrap();
}
