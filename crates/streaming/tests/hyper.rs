//! The whole way through the public API: a hyper server on a socket, requests with real headers, and
//! WebSocket and SPDY clients.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail loudly, as tests do"
)]

use std::convert::Infallible;

use bytes::Bytes;
use futures::{SinkExt, StreamExt, TryStreamExt, stream};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::{
    Chunk, Kind, Limits, PortForward, Process, Refusal, RemoteCommand, Session, StreamOptions,
    TerminalSize, serve_port_forward, serve_session,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_util::io::ReaderStream;

/// Most bytes on their way through an echo.
const ECHO_BYTES: usize = 1 << 10;

/// A process that writes its arguments, then its input to standard error, and ends with the number
/// of columns that its TTY has.
struct Echo(watch::Sender<u16>);

impl Process for Echo {
    type Error = std::io::Error;

    async fn resize(&self, size: TerminalSize) {
        self.0.send_replace(size.width);
    }

    async fn exit_code(&self) -> std::io::Result<Option<i32>> {
        let mut columns = self.0.subscribe();
        let columns = columns.wait_for(|columns| *columns > 0).await;
        Ok(columns.ok().map(|columns| i32::from(*columns)))
    }
}

fn start(command: &[String], streams: StreamOptions) -> Result<Session<Echo>, String> {
    let Some(program) = command.first().filter(|program| *program != "missing") else {
        return Err("executable file not found".to_owned());
    };
    let (input, echo) = duplex(ECHO_BYTES);
    let output = stream::iter([Ok(Chunk::Stdout(program.clone().into()))]);
    let echo = ReaderStream::new(echo).map_ok(Chunk::Stderr);
    Ok(Session {
        stdin: streams.stdin.then(|| Box::pin(input) as _),
        output: output.chain(echo).boxed(),
        process: Echo(watch::Sender::new(0)),
    })
}

/// Every port but 1 echoes.
async fn connect(port: u16) -> Result<DuplexStream, String> {
    if port == 1 {
        return Err("connection refused".to_owned());
    }
    let (ours, theirs) = duplex(ECHO_BYTES);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(ours);
        tokio::io::copy(&mut read, &mut write).await.unwrap();
        write.shutdown().await.unwrap();
    });
    Ok(theirs)
}

async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let upgrade = hyper::upgrade::on(&mut request);
    let upgraded = async { TokioIo::new(upgrade.await.unwrap()) };
    let query = request.uri().query().unwrap_or_default();
    let headers = request.headers();
    let decided: Result<_, Refusal> = if request.uri().path() == "/forward" {
        PortForward::negotiate(headers, query).map(|asked| {
            let headers = asked.negotiated.headers.clone();
            tokio::spawn(async move {
                serve_port_forward(upgraded.await, &asked, connect, Limits::default()).await;
            });
            headers
        })
    } else {
        RemoteCommand::parse(query).and_then(|asked| {
            let how = RemoteCommand::negotiate(headers)?;
            let headers = how.headers.clone();
            tokio::spawn(async move {
                let (streams, limits) = (asked.streams, Limits::default());
                let start = || async { start(&asked.command, streams) };
                serve_session(upgraded.await, &how, streams, Kind::Exec, start, limits).await;
            });
            Ok(headers)
        })
    };
    let mut response = Response::new(Full::default());
    match decided {
        Ok(headers) => {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            *response.headers_mut() = headers;
        }
        Err(refusal) => {
            *response.status_mut() = refusal.status;
            *response.headers_mut() = *refusal.headers;
            *response.body_mut() = refusal.message.into();
        }
    }
    Ok(response)
}

struct Server {
    address: std::net::SocketAddr,
    _serving: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .with_upgrades();
                tokio::spawn(connection);
            }
        });
        Self {
            address,
            _serving: serving,
        }
    }

    /// A WebSocket of a protocol that the server takes.
    async fn websocket(&self, path: &str, protocol: &'static str) -> WebSocketStream<TcpStream> {
        let address = self.address;
        let url = format!("ws://{address}{path}");
        let mut request = url.into_client_request().unwrap();
        let name = "sec-websocket-protocol";
        let offered = HeaderValue::from_static(protocol);
        request.headers_mut().insert(name, offered);
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, response) = tokio_tungstenite::client_async(request, stream)
            .await
            .unwrap();
        assert_eq!(response.headers()[name], protocol);
        socket
    }
}

async fn send(socket: &mut WebSocketStream<TcpStream>, channel: u8, payload: &[u8]) {
    let message = [&[channel], payload].concat();
    socket.send(Message::Binary(message.into())).await.unwrap();
}

/// Returns the data of each channel until the server closed.
async fn received(socket: &mut WebSocketStream<TcpStream>) -> [String; 5] {
    let mut channels: [Vec<u8>; 5] = Default::default();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    channels.map(|bytes| String::from_utf8(bytes).unwrap())
}

#[tokio::test]
async fn an_exec_over_v5_carries_input_size_output_and_code() {
    let server = Server::start().await;
    let path = "/exec?command=hello&input=1&output=1&error=1";
    let mut socket = server.websocket(path, "v5.channel.k8s.io").await;
    send(&mut socket, 0, b"typed").await;
    send(&mut socket, 4, br#"{"Width":80,"Height":24}"#).await;
    // The client closes channel 0, standard input.
    send(&mut socket, 255, &[0]).await;
    let [_, stdout, stderr, status, _] = received(&mut socket).await;
    assert_eq!((&*stdout, &*stderr), ("hello", "typed"));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    // streams 5
    assert_eq!(status["details"]["causes"][0]["message"], "80");
}

#[tokio::test]
async fn an_exec_that_does_not_start_has_a_status() {
    let server = Server::start().await;
    let path = "/exec?command=missing&output=1";
    let mut socket = server.websocket(path, "v4.channel.k8s.io").await;
    let [.., status, _] = received(&mut socket).await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["status"], "Failure");
    let message = status["message"].as_str().unwrap();
    // streams 5
    assert!(
        message.ends_with(": executable file not found"),
        "{message}"
    );
}

#[tokio::test]
async fn ports_are_forwarded_over_channels() {
    let server = Server::start().await;
    let path = "/forward?port=80&port=1";
    let mut socket = server.websocket(path, "v4.channel.k8s.io").await;
    send(&mut socket, 0, b"ping").await;
    let mut data = Vec::new();
    let mut refused = Vec::new();
    // Each channel begins with its port, little endian.
    while data.len() < 2 + 4 || refused.len() <= 2 {
        match &socket.next().await.unwrap().unwrap().into_data()[..] {
            [0, bytes @ ..] => data.extend_from_slice(bytes),
            [3, bytes @ ..] => refused.extend_from_slice(bytes),
            _ => {}
        }
    }
    assert_eq!(data, b"\x50\0ping");
    // streams 5
    assert_eq!(
        refused,
        b"\x01\0error forwarding port 1: connection refused"
    );
}

/// Sends the head of a request and returns the head of its answer.
async fn head(server: &Server, request: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    (String::from_utf8(head).unwrap(), stream)
}

#[tokio::test]
async fn a_spdy_client_is_answered_and_its_pings_come_back() {
    let server = Server::start().await;
    let request = "POST /exec?command=x&output=1 HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\n\
        upgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\r\n";
    let (head, mut stream) = head(&server, request).await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert!(
        head.contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"),
        "{head}"
    );
    let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1];
    stream.write_all(&ping).await.unwrap();
    let mut echoed = [0; 12];
    stream.read_exact(&mut echoed).await.unwrap();
    // streams 5
    assert_eq!(echoed, ping);
}

#[tokio::test]
async fn a_request_that_is_no_upgrade_is_refused() {
    let server = Server::start().await;
    for (request, status) in [
        (
            "GET /exec?command=x&output=1 HTTP/1.1\r\nhost: x\r\n\r\n",
            400,
        ),
        ("GET /exec?command=x HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (
            "POST /exec?command=x&output=1 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n\
             upgrade: SPDY/3.1\r\nx-stream-protocol-version: v9.channel.k8s.io\r\n\r\n",
            403,
        ),
    ] {
        let (head, _) = head(&server, request).await;
        // streams 5
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
    }
}
