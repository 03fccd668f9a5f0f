//! An HTTP server that runs commands of this machine for clients of the Kubernetes streaming
//! protocols, and forwards its ports. It authenticates nobody, so it listens on loopback only.
//!
//! ```text
//! cargo run --example shell
//! ```

#![expect(clippy::print_stdout, reason = "an example says where it listens")]

use std::convert::Infallible;
use std::io;
use std::process::Stdio;
use std::sync::LazyLock;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use http::{HeaderMap, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use mirrorlet_streaming::{
    Chunk, Kind, Limits, PortForward, Process, Refusal, RemoteCommand, Session, TerminalSize,
    serve_port_forward, serve_session,
};
use tokio::io::AsyncRead;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::Mutex;
use tokio_util::io::ReaderStream;

/// One budget for all connections.
static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .with_upgrades();
        tokio::spawn(connection);
    }
}

/// Answers with 101 and serves the streams, or with the refusal.
async fn answer(mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, headers, body) = match take_over(&mut request) {
        Ok(headers) => (StatusCode::SWITCHING_PROTOCOLS, headers, String::new()),
        Err(refusal) => (refusal.status, *refusal.headers, refusal.message),
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

fn take_over(request: &mut Request<Incoming>) -> Result<HeaderMap, Refusal> {
    let upgrade = hyper::upgrade::on(&mut *request);
    let query = request.uri().query().unwrap_or_default();
    let limits = LIMITS.clone();
    if request.uri().path() == "/portForward" {
        let asked = PortForward::negotiate(request.headers(), query)?;
        let headers = asked.negotiated.headers.clone();
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let connect = |port| TcpStream::connect(("127.0.0.1", port));
                serve_port_forward(TokioIo::new(upgraded), &asked, connect, limits).await;
            }
        });
        return Ok(headers);
    }
    let asked = RemoteCommand::parse(query)?;
    let negotiated = RemoteCommand::negotiate(request.headers())?;
    let headers = negotiated.headers.clone();
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let (stream, streams) = (TokioIo::new(upgraded), asked.streams);
            let start = || async { start(&asked) };
            serve_session(stream, &negotiated, streams, Kind::Exec, start, limits).await;
        }
    });
    Ok(headers)
}

/// Starts a command. It gets pipes even where the client asks for a TTY.
fn start(asked: &RemoteCommand) -> io::Result<Session<Running>> {
    let (program, arguments) = asked
        .command
        .split_first()
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(if asked.streams.stdin {
            Stdio::piped()
        } else {
            Stdio::null()
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = child.stdin.take().map(|stdin| Box::pin(stdin) as _);
    let stdout = pieces(child.stdout.take()).map_ok(Chunk::Stdout);
    let stderr = pieces(child.stderr.take()).map_ok(Chunk::Stderr);
    Ok(Session {
        stdin,
        output: stream::select(stdout, stderr).boxed(),
        process: Running(Mutex::new(child)),
    })
}

fn pieces(
    pipe: Option<impl AsyncRead + Send + 'static>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::iter(pipe).flat_map(ReaderStream::new)
}

struct Running(Mutex<Child>);

impl Process for Running {
    type Error = io::Error;

    async fn resize(&self, _size: TerminalSize) {}

    async fn exit_code(&self) -> io::Result<Option<i32>> {
        Ok(self.0.lock().await.wait().await?.code())
    }
}
