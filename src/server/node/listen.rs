//! Accepts TLS connections and serves a router on them, over HTTP/1.1 and HTTP/2, within limits,
//! until cancelled.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::{Gate, Shown};
use super::connections::{CONNECTIONS_MAX, Claim, Connections, UNPROVEN_MAX};
use mirrorlet_host::socket::keep_alive;
use mirrorlet_host::telemetry::{Metrics, NodeApiRefusal};

/// How long a client may take for its part of the TLS handshake: a few packets.
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request.
const HEAD_DEADLINE: Duration = Duration::from_secs(30);
/// How long an unproven connection may be idle, including the time for sending the headers of a
/// request: a client connects because it has a request.
const UNPROVEN_IDLE_MAX: Duration = Duration::from_secs(10);
/// How long a proven connection may be idle.
///
/// Upstream: `IdleTimeout` in `pkg/kubelet/server/server.go`.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// Largest head of a request, in bytes. A command can be a script; the `http` crate takes no
/// longer path than this anyway.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most requests at a time over one HTTP/2 connection: as many as Go's servers take.
const STREAMS_MAX: u32 = 250;
/// Maximum size of headers over HTTP/2, and maximum number of concurrent requests, on connections of
/// clients without a known permission: compressed, a kilobyte on the network can become headers of this
/// size, and each of [`UNPROVEN_MAX`] connections can send as many at once.
const UNPROVEN_HEAD_BYTES_MAX: usize = 16 << 10;
const UNPROVEN_STREAMS_MAX: u32 = 16;
/// Bytes of bodies that an HTTP/2 connection, and each of its requests, accepts in advance: HTTP's
/// minimum window, because no served path reads a body.
const WINDOW_BYTES: u32 = 65_535;
/// Bytes that an answer over HTTP/2 may have waiting for a client that does not read.
const SEND_BYTES_MAX: usize = 64 << 10;
/// The interval of pings to a silent HTTP/2 client, and the timeout of its answer.
const PING_PERIOD: Duration = Duration::from_secs(30);
const PING_DEADLINE: Duration = Duration::from_secs(20);
/// A connection that is silent that long is probed, then every [`KEEPALIVE_INTERVAL`], and closed after
/// [`KEEPALIVE_RETRIES`] probes without an answer. Over HTTP/1.1 nothing else detects that the client of
/// a followed log has vanished.
///
/// Upstream: Go's defaults for listeners (`net.KeepAliveConfig`): 15 s, 15 s, 9 probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// See [`KEEPALIVE`].
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// See [`KEEPALIVE`].
const KEEPALIVE_RETRIES: u32 = 4;
/// Most tasks of connections, those that were displaced a moment ago included.
const TASKS_MAX: usize = CONNECTIONS_MAX + UNPROVEN_MAX;
/// How long answers in progress may continue after the agent began to stop; well below the second
/// within which it must exit.
const DRAIN_MAX: Duration = Duration::from_millis(300);
/// Pause after a connection could not be accepted: usually because file descriptors are exhausted,
/// which does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves until `cancel`, then lets answers in progress end, for at most [`DRAIN_MAX`].
pub(in crate::server) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    gate: Arc<Gate>,
    metrics: Metrics,
    cancel: CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let open = Connections::new(metrics);
    // Tasks that hyper spawns beside a connection: one for each HTTP/2 response.
    let beside = TaskTracker::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = cancel.cancelled() => break,
            // Cancel-safe: accept loses no connection. Those that were displaced end on their own
            // tasks; there are never more of them than of the unproven.
            accepted = listener.accept(), if connections.len() < TASKS_MAX => match accepted {
                Ok((stream, from)) => {
                    // Without room it is closed at once.
                    let Some(claim) = open.open(from.ip()) else { continue };
                    let connection = Connection {
                        acceptor: acceptor.clone(),
                        router: router.clone(),
                        gate: Arc::clone(&gate),
                        beside: beside.clone(),
                        open: open.clone(),
                        claim,
                        cancel: cancel.clone(),
                    };
                    connections.spawn(connection.run(stream));
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) => tokio::select! {
                    () = cancel.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                },
            },
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        connections.shutdown().await;
    }
    // They end with their connections.
    beside.close();
    beside.wait().await;
}

/// Sets the options of a connection: small pieces of a log or a terminal are not held back, and the
/// kernel detects that a client has vanished.
fn tune(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    keep_alive(stream, KEEPALIVE, KEEPALIVE_INTERVAL, KEEPALIVE_RETRIES)
}

/// Whether only the connection that was to be accepted is lost.
fn is_of_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

struct Connection {
    acceptor: TlsAcceptor,
    router: Router,
    gate: Arc<Gate>,
    beside: TaskTracker,
    open: Connections,
    claim: Claim,
    cancel: CancellationToken,
}

impl Connection {
    /// Serves one connection. How it ends is the client's business: answers carry no state.
    async fn run(self, stream: TcpStream) {
        // A connection without these options only sends and ends later.
        let _ = tune(&stream);
        let claim = self.claim.clone();
        tokio::select! {
            () = claim.displaced() => {}
            () = self.serve(stream) => {}
        }
    }

    async fn serve(self, stream: TcpStream) {
        let shaking = tokio::time::timeout(HANDSHAKE_DEADLINE, self.acceptor.accept(stream));
        let stream = tokio::select! {
            () = self.cancel.cancelled() => return,
            shaken = shaking => match shaken {
                Ok(Ok(stream)) => stream,
                // A client that doesn't use TLS, or a port scan.
                Ok(Err(_)) => return,
                Err(_) => return self.open.refused(NodeApiRefusal::Handshake),
            },
        };
        let (_, session) = stream.get_ref();
        let shown = session.peer_certificates().unwrap_or_default();
        let shown = Shown(shown.iter().map(|one| one.clone().into_owned()).collect());
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let (streams_max, head_bytes_max) = if is_http2 && self.gate.knows(&shown) {
            (STREAMS_MAX, HEAD_BYTES_MAX)
        } else {
            (UNPROVEN_STREAMS_MAX, UNPROVEN_HEAD_BYTES_MAX)
        };

        let mut builder = auto::Builder::new(Beside(self.beside));
        builder = if is_http2 {
            builder.http2_only()
        } else {
            builder.http1_only()
        };
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_DEADLINE)
            .max_buf_size(HEAD_BYTES_MAX);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams_max)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            .keep_alive_interval(PING_PERIOD)
            .keep_alive_timeout(PING_DEADLINE);
        let busy = watch::Sender::new(0_usize);
        let (router, claim) = (self.router, self.claim.clone());
        let answering = busy.clone();
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            let extensions = request.extensions_mut();
            extensions.insert(shown.clone());
            extensions.insert(claim.clone());
            let busy = Busy::begin(&answering);
            let answered = tower::ServiceExt::oneshot(router.clone(), request);
            async move { answered.await.map(|answer| busy.until_the_end_of(answer)) }
        });
        let serving = builder.serve_connection_with_upgrades(
            TokioIo::new(stream),
            TowerToHyperService::new(service),
        );
        let mut serving = std::pin::pin!(serving);
        tokio::select! {
            // All arms only borrow the connection, which continues below.
            _ = serving.as_mut() => return,
            () = self.cancel.cancelled() => {}
            () = idle(busy.subscribe(), &self.claim) => if !self.claim.is_proven() {
                return self.open.refused(NodeApiRefusal::Idle);
            }
        }
        serving.as_mut().graceful_shutdown();
        // A client that does not take leave is left.
        let _ = tokio::time::timeout(HEAD_DEADLINE, serving).await;
    }
}

/// Completes when there was no request for as long as a connection may be idle.
async fn idle(mut busy: watch::Receiver<usize>, claim: &Claim) {
    loop {
        if busy.wait_for(|answers| *answers == 0).await.is_err() {
            return;
        }
        // Only a request proves a connection, so this doesn't change while there is none.
        let max = if claim.is_proven() {
            IDLE_MAX
        } else {
            UNPROVEN_IDLE_MAX
        };
        if tokio::time::timeout(max, busy.changed()).await.is_err() {
            return;
        }
    }
}

/// One answer in progress, counted until its body has ended.
struct Busy(watch::Sender<usize>);

impl Busy {
    fn begin(answers: &watch::Sender<usize>) -> Self {
        answers.send_modify(|answers| *answers += 1);
        Self(answers.clone())
    }

    fn until_the_end_of(self, answer: Response) -> Response {
        answer.map(|body| Body::new(Held { body, _busy: self }))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|answers| *answers -= 1);
    }
}

/// A body, and what is to be held as long as it is sent.
struct Held {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs what hyper wants to run beside a connection, where it is waited for.
#[derive(Clone)]
struct Beside(TaskTracker);

impl<F> hyper::rt::Executor<F> for Beside
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt;

    use super::*;

    #[tokio::test]
    async fn the_kernel_detects_that_a_client_has_vanished() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let _client = client.unwrap();
        let (stream, _) = accepted.unwrap();
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        tune(&stream).unwrap();
        // node-api 11
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert!(stream.nodelay().unwrap());
        let found_after = sockopt::tcp_keepidle(&stream).unwrap()
            + sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        // node-api 11
        assert_eq!(found_after, Duration::from_secs(75));
    }
}
