//! The server side of `kubectl exec`, `attach` and `port-forward`, over SPDY/3.1 and WebSockets,
//! compatible with the kubelet and the CRI streaming server. It works on any upgraded connection; the
//! caller provides the HTTP server.
//!
//! 1. Choose the protocol from the request: [`RemoteCommand::parse`] and
//!    [`RemoteCommand::negotiate`] for an exec or attach, [`PortForward::negotiate`] for a
//!    port-forward. Each returns the headers of the answer, or a [`Refusal`].
//! 2. Answer 101 with those headers.
//! 3. Give the upgraded connection to [`serve_session`] or [`serve_port_forward`]. The future ends
//!    with the connection; dropping it ends what it serves. The crate spawns no task.
//!
//! ```
//! use futures::{StreamExt, stream};
//! use http::HeaderMap;
//! use mirrorlet_streaming::{
//!     Chunk, Duplex, Kind, Limits, Process, Refusal, RemoteCommand, Session, TerminalSize,
//!     serve_session,
//! };
//!
//! /// A process that has written `hello` and ended with 0.
//! struct Done;
//!
//! impl Process for Done {
//!     type Error = std::io::Error;
//!
//!     async fn resize(&self, _size: TerminalSize) {}
//!
//!     async fn exit_code(&self) -> std::io::Result<Option<i32>> {
//!         Ok(Some(0))
//!     }
//! }
//!
//! /// Decides about a request. On success, answer 101 with the headers, and await the future with
//! /// the upgraded connection.
//! fn exec<S: Duplex>(
//!     query: &str,
//!     headers: &HeaderMap,
//! ) -> Result<(HeaderMap, impl AsyncFnOnce(S) + use<S>), Refusal> {
//!     let asked = RemoteCommand::parse(query)?;
//!     let negotiated = RemoteCommand::negotiate(headers)?;
//!     let answer = negotiated.headers.clone();
//!     let serve = async move |stream: S| {
//!         let start = || async {
//!             let output = stream::iter([Ok(Chunk::Stdout("hello".into()))]).boxed();
//!             Ok::<_, std::io::Error>(Session { stdin: None, output, process: Done })
//!         };
//!         let limits = Limits::default();
//!         serve_session(stream, &negotiated, asked.streams, Kind::Exec, start, limits).await;
//!     };
//!     Ok((answer, serve))
//! }
//!
//! let refused = exec::<tokio::io::DuplexStream>("command=true&output=1", &HeaderMap::new());
//! assert_eq!(refused.err().map(|refusal| refusal.status.as_u16()), Some(400));
//! ```
//!
//! `examples/shell.rs` is a complete server with hyper.
//!
//! The supported protocols are SPDY with `v4.channel.k8s.io` and older, WebSockets with
//! `v5.channel.k8s.io`, `v4.channel.k8s.io`, `channel.k8s.io` and their base64 forms, and for
//! port-forward also the SPDY tunnel of `SPDY/3.1+portforward.k8s.io`. Flow control is back-pressure:
//! while a stream's data is not consumed, nothing more is read from its client, and while a client
//! reads nothing, nothing more is read for it. Payloads are passed on as they arrive, so that
//! unfinished messages and frames hold no memory; a [`Budget`] limits the data that all connections
//! together buffer for slow processes and clients.
//!
//! Upstream: `kubelet/pkg/cri/streaming`, `apimachinery/pkg/util/httpstream`, and
//! `github.com/moby/spdystream` for the dialect of SPDY.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use budget::Held;
use command::{Inputs, Output};
use drive::{PIECES_MAX, drive};
use spdy::{Connection, Opened, Reset};
use websocket::Channels;

mod budget;
mod command;
mod drive;
pub mod gather;
mod negotiate;
mod port_forward;
mod resize;
mod session;
mod spdy;
mod status;
mod websocket;

pub use budget::Budget;
pub use negotiate::{
    Carrier, Codec, Negotiated, PortForward, Refusal, RemoteCommand, Version, is_websocket,
    websocket_protocols,
};
pub use session::{Chunk, Duplex, Process, Session, StreamOptions, TerminalSize};

/// The timeouts of a connection, and its shared buffer budget.
#[derive(Debug, Clone)]
pub struct Limits {
    /// A connection without data in either direction is closed after this time; never without a value.
    pub idle: Option<Duration>,
    /// A client must open all streams of a command, or both of a forwarded connection, within this
    /// time.
    pub stream_creation: Duration,
    /// Interval of the server's pings, which detect a client that is gone.
    pub ping: Duration,
    /// Clones share one budget: give all connections clones of the same [`Limits`].
    pub budget: Budget,
}

impl Default for Limits {
    /// The kubelet's (`streamingConnectionIdleTimeout`, `DefaultStreamCreationTimeout`), and the
    /// period in which kubectl and API servers ping. Its budget is a new one.
    fn default() -> Self {
        Self {
            idle: Some(Duration::from_hours(4)),
            stream_creation: Duration::from_secs(30),
            ping: Duration::from_secs(5),
            budget: Budget::default(),
        }
    }
}

/// The request that a session belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A command: the client receives its exit code.
    Exec,
    /// The main process of a container: the client learns only that the streams ended, as with a
    /// kubelet.
    Attach,
    /// As `Attach`, but the client also receives the exit code, which a kubelet does not send.
    AttachWithExitCode,
}

/// Serves an exec or attach on an upgraded connection until the process has ended and its result is
/// sent, or the client is gone. Calls `start` once the client has opened its streams; an error from
/// `start` is sent on the error stream.
///
/// # Cancel safety
/// Dropping the future drops the [`Session`] and closes the connection without a result.
pub async fn serve_session<S, F, P, E>(
    stream: S,
    negotiated: &Negotiated,
    streams: StreamOptions,
    kind: Kind,
    start: impl FnOnce() -> F + Send,
    limits: Limits,
) where
    S: Duplex,
    F: Future<Output = Result<Session<P>, E>> + Send,
    P: Process,
    E: Display + Send,
{
    let version = negotiated.version;
    match negotiated.carrier {
        // No client offers a tunnel for commands, so none is negotiated.
        Carrier::Spdy | Carrier::Tunnel => {
            let (read, write) = tokio::io::split(stream);
            let mut parts = spdy::accept(read, write, &limits);
            let connection = Arc::clone(&parts.connection);
            let mut opened = parts.opened;
            let work = async move {
                let accepted = accept_command(&connection, &mut opened, streams, version);
                match timeout(limits.stream_creation, accepted).await {
                    Ok(Some((client, inputs))) => {
                        // Further streams are refused.
                        drop(opened);
                        command::run(client, inputs, version, kind, start, &limits.budget).await;
                    }
                    // It opened too few streams, in time or at all.
                    Ok(None) | Err(_) => connection.go_away().await,
                }
            };
            let reading = async { end_of_reading(parts.reader.run().await) };
            let idle = parts.connection.activity.idle(limits.idle);
            drive(reading, parts.writer.run(), work, idle).await;
        }
        Carrier::WebSocket(codec) => {
            let (read, write) = tokio::io::split(stream);
            let channel = || mpsc::channel(PIECES_MAX);
            let (to_stdin, stdin) = channel();
            let (to_resize, resize) = channel();
            let stdin_wanted = streams.stdin.then_some(to_stdin);
            let inbound = vec![stdin_wanted, None, None, None, Some(to_resize)];
            let mut parts = websocket::accept(read, write, inbound, codec, version, &limits);
            let client = ChannelClient {
                channels: parts.channels,
                streams,
            };
            let work = async move {
                client.hello().await;
                let inputs = Inputs {
                    stdin: streams.stdin.then_some(stdin),
                    resize: Some(resize),
                };
                command::run(client, inputs, version, kind, start, &limits.budget).await;
            };
            let idle = parts.activity.idle(limits.idle);
            drive(parts.reader.run(), parts.writer.run(), work, idle).await;
        }
    }
}

/// Serves forwarded ports on an upgraded connection until the client is gone. Calls `connect` with the
/// port for every connection that the client opens; an error is sent on the error stream of that
/// connection.
///
/// # Cancel safety
/// Dropping the future closes all connections.
pub async fn serve_port_forward<S, C, F, T, E>(
    stream: S,
    asked: &PortForward,
    connect: C,
    limits: Limits,
) where
    S: Duplex,
    C: Fn(u16) -> F + Send + Sync,
    F: Future<Output = Result<T, E>> + Send,
    T: Duplex,
    E: Display + Send,
{
    let connect = |port| {
        let failed = move |error| format!("error forwarding port {port}: {error}");
        connect(port).map_err(failed).boxed()
    };
    match asked.negotiated.carrier {
        Carrier::Spdy => {
            let (read, write) = tokio::io::split(stream);
            forward_over_spdy(spdy::accept(read, write, &limits), &connect, limits).await;
        }
        Carrier::Tunnel => {
            let (read, write) = tokio::io::split(stream);
            let (bytes, write) = websocket::tunnel(read, write);
            let read = StreamReader::new(bytes);
            forward_over_spdy(spdy::accept(read, write, &limits), &connect, limits).await;
        }
        Carrier::WebSocket(codec) => {
            let (read, write) = tokio::io::split(stream);
            let mut inbound = Vec::new();
            let mut wanted = Vec::new();
            for port in &asked.ports {
                let (pieces, data) = mpsc::channel(PIECES_MAX);
                inbound.extend([Some(pieces), None]);
                wanted.push((*port, data));
            }
            let version = asked.negotiated.version;
            let mut parts = websocket::accept(read, write, inbound, codec, version, &limits);
            let work =
                port_forward::over_channels(parts.channels, wanted, &connect, &limits.budget);
            let idle = parts.activity.idle(limits.idle);
            drive(parts.reader.run(), parts.writer.run(), work, idle).await;
        }
    }
}

async fn forward_over_spdy<R, W, T>(
    mut parts: spdy::Parts<R, W>,
    connect: &port_forward::Connect<'_, T>,
    limits: Limits,
) where
    R: tokio::io::AsyncRead + Unpin,
    W: spdy::ByteSink,
    T: Duplex,
{
    let connection = Arc::clone(&parts.connection);
    let work = async {
        let (creation, budget) = (limits.stream_creation, &limits.budget);
        let served = Arc::clone(&connection);
        port_forward::over_spdy(served, parts.opened, connect, creation, budget).await;
        connection.go_away().await;
    };
    let reading = async { end_of_reading(parts.reader.run().await) };
    let idle = parts.connection.activity.idle(limits.idle);
    drive(reading, parts.writer.run(), work, idle).await;
}

/// Logs why reading from a client ended, for debugging a client.
fn end_of_reading(end: Result<(), spdy::ReadError>) {
    if let Err(error) = end {
        tracing::debug!(error = %error, "a streaming client disconnected");
    }
}

/// Waits until a client has opened all streams of a command; none if it opens no more before.
async fn accept_command(
    connection: &Arc<Connection>,
    opened: &mut mpsc::Receiver<Opened>,
    streams: StreamOptions,
    version: Version,
) -> Option<(SpdyClient, Inputs)> {
    let mut client = SpdyClient {
        connection: Arc::clone(connection),
        error: None,
        stdout: None,
        stderr: None,
        inputs: Vec::new(),
    };
    let mut inputs = Inputs::default();
    let resized = streams.tty && version >= Version::V3;
    loop {
        let complete = client.error.is_some()
            && (inputs.stdin.is_some() || !streams.stdin)
            && (client.stdout.is_some() || !streams.stdout)
            && (client.stderr.is_some() || !streams.stderr)
            && (inputs.resize.is_some() || !resized);
        if complete {
            return Some((client, inputs));
        }
        let Opened {
            id, headers, data, ..
        } = opened.recv().await?;
        match headers.get("streamtype") {
            Some("error") => client.error = Some(id),
            Some("stdout") => client.stdout = Some(id),
            Some("stderr") => client.stderr = Some(id),
            Some("stdin") => {
                client.inputs.push(id);
                inputs.stdin = Some(data);
            }
            Some("resize") => {
                client.inputs.push(id);
                inputs.resize = Some(data);
            }
            _ => connection.reset(id, Reset::Cancel).await,
        }
    }
}

/// A command's client on a SPDY connection.
struct SpdyClient {
    connection: Arc<Connection>,
    error: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    inputs: Vec<u32>,
}

impl command::Client for SpdyClient {
    async fn send(&self, to: Output, bytes: Bytes, held: Option<Held>) {
        let stream = match to {
            Output::Stdout => self.stdout,
            Output::Stderr => self.stderr,
            Output::Error => self.error,
        };
        if let Some(stream) = stream {
            // A stream that was reset needs nothing; one whose client is gone is not served for long.
            let _ = self.connection.data(stream, bytes, held).await;
        }
    }

    async fn finish(&self) {
        let outputs = [self.stdout, self.stderr, self.error];
        for stream in outputs.into_iter().flatten() {
            self.connection.finish(stream).await;
        }
        for stream in &self.inputs {
            self.connection.finish(*stream).await;
        }
        self.connection.go_away().await;
    }
}

/// A command's client on a WebSocket.
struct ChannelClient {
    channels: Channels,
    streams: StreamOptions,
}

impl ChannelClient {
    /// Signals that the connection is established, with an empty message on the first channel that is
    /// written.
    async fn hello(&self) {
        let first = [
            (self.streams.stdout, 1),
            (self.streams.stderr, 2),
            (true, 3),
        ];
        let first = first.into_iter().find(|(wanted, _)| *wanted);
        // A client that is gone is not greeted.
        let _ = self
            .channels
            .message(first.map_or(3, |(_, at)| at), Bytes::new())
            .await;
    }
}

impl command::Client for ChannelClient {
    async fn send(&self, to: Output, bytes: Bytes, held: Option<Held>) {
        let (wanted, channel) = match to {
            Output::Stdout => (self.streams.stdout, 1),
            Output::Stderr => (self.streams.stderr, 2),
            Output::Error => (true, 3),
        };
        if wanted {
            let _ = self.channels.send(channel, bytes, held).await;
        }
    }

    async fn finish(&self) {
        self.channels.close().await;
    }
}

#[cfg(test)]
mod tests;
