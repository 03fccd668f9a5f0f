//! The streams of exec, attach and port-forward as Kubernetes' clients speak them: over SPDY/3.1
//! and over WebSockets.
//!
//! [`negotiate`] decides from the head of a request; the caller answers 101 with its headers, or
//! its refusal, and hands the upgraded connection to [`serve_session`] or [`serve_port_forward`],
//! which end with it. Dropping them ends what they serve.
//!
//! Upstream: `kubelet/pkg/cri/streaming`, `apimachinery/pkg/util/httpstream`, and
//! `github.com/moby/spdystream` for what SPDY means here.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use crate::runtime::exec::Duplex;
use crate::runtime::{DuplexStream, Session, StreamOptions};
use command::{Inputs, Output};
use drive::drive;
use spdy::{Connection, Opened, Reset};
use websocket::Channels;

mod command;
mod drive;
pub(in crate::server) mod negotiate;
mod port_forward;
mod resize;
mod spdy;
mod status;
mod websocket;

pub use negotiate::{Carrier, Codec, Negotiated, PortForward, Refusal, RemoteCommand, Version};

/// How long connections may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For anything to come or go; then the connection is given up.
    pub idle: Duration,
    /// For a client to open all streams of a command, or both of a forwarded connection.
    pub stream_creation: Duration,
    /// Between two of our pings, by which a client that is gone is noticed.
    pub ping: Duration,
}

impl Default for Limits {
    /// The kubelet's (`streamingConnectionIdleTimeout`, `DefaultStreamCreationTimeout`), and the
    /// period in which kubectl and API servers ping.
    fn default() -> Self {
        Self {
            idle: Duration::from_hours(4),
            stream_creation: Duration::from_secs(30),
            ping: Duration::from_secs(5),
        }
    }
}

/// Whose streams they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A command's: a client is told its exit code.
    Exec,
    /// A container's main process': a client is told only that they ended, as upstream does.
    Attach,
}

/// Serves a command or an attach on an upgraded connection, until the process has ended and the
/// client has heard so, or the client is gone. `start` is called once, when the client has opened
/// its streams; how it fails is told on the error stream.
///
/// # Cancel safety
/// Dropped, it ends the process of an exec, and closes the connection without a word.
pub async fn serve_session<S, F, E>(
    stream: S,
    negotiated: &Negotiated,
    streams: StreamOptions,
    kind: Kind,
    start: impl FnOnce() -> F + Send,
    limits: Limits,
) where
    S: Duplex,
    F: Future<Output = Result<Session, E>> + Send,
    E: Display + Send,
{
    let version = negotiated.version;
    match negotiated.carrier {
        // Nobody offers a tunnel for commands, so none is negotiated.
        Carrier::Spdy | Carrier::Tunnel => {
            let (read, write) = tokio::io::split(stream);
            let mut parts = spdy::accept(read, write, limits);
            let connection = Arc::clone(&parts.connection);
            let mut opened = parts.opened;
            let work = async move {
                let accepted = accept_command(&connection, &mut opened, streams, version);
                match timeout(limits.stream_creation, accepted).await {
                    Ok(Some((client, inputs))) => {
                        // Further streams are refused.
                        drop(opened);
                        command::run(client, inputs, version, kind, start).await;
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
            let socket = websocket::accept(stream).await;
            let channel = || mpsc::channel(websocket::MESSAGES_MAX);
            let (to_stdin, stdin) = channel();
            let (to_resize, resize) = channel();
            let stdin_wanted = streams.stdin.then_some(to_stdin);
            let inbound = vec![stdin_wanted, None, None, None, Some(to_resize)];
            let mut parts = websocket::parts(socket, inbound, codec, version, limits);
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
                command::run(client, inputs, version, kind, start).await;
            };
            let idle = parts.activity.idle(limits.idle);
            drive(parts.reader.run(), parts.writer.run(), work, idle).await;
        }
    }
}

/// Serves forwarded ports on an upgraded connection until the client is gone. `connect` is called
/// for every connection that a client makes; how it fails is told on that one's error stream.
///
/// # Cancel safety
/// Dropped, it closes all connections.
pub async fn serve_port_forward<S, C, F, E>(
    stream: S,
    asked: &PortForward,
    connect: C,
    limits: Limits,
) where
    S: Duplex,
    C: Fn(u16) -> F + Send + Sync,
    F: Future<Output = Result<DuplexStream, E>> + Send,
    E: Display + Send,
{
    match asked.negotiated.carrier {
        Carrier::Spdy => {
            let (read, write) = tokio::io::split(stream);
            forward_over_spdy(spdy::accept(read, write, limits), &connect, limits).await;
        }
        Carrier::Tunnel => {
            let (sink, stream) = futures::StreamExt::split(websocket::accept(stream).await);
            let read = StreamReader::new(websocket::tunnel_bytes(stream));
            let write = websocket::Tunnel(sink);
            forward_over_spdy(spdy::accept(read, write, limits), &connect, limits).await;
        }
        Carrier::WebSocket(codec) => {
            let socket = websocket::accept(stream).await;
            let mut inbound = Vec::new();
            let mut wanted = Vec::new();
            for port in &asked.ports {
                let (pieces, data) = mpsc::channel(websocket::MESSAGES_MAX);
                inbound.extend([Some(pieces), None]);
                wanted.push((*port, data));
            }
            let version = asked.negotiated.version;
            let mut parts = websocket::parts(socket, inbound, codec, version, limits);
            let work = port_forward::over_channels(parts.channels, wanted, &connect);
            let idle = parts.activity.idle(limits.idle);
            drive(parts.reader.run(), parts.writer.run(), work, idle).await;
        }
    }
}

async fn forward_over_spdy<R, W, C, F, E>(mut parts: spdy::Parts<R, W>, connect: &C, limits: Limits)
where
    C: Fn(u16) -> F + Send + Sync,
    R: tokio::io::AsyncRead + Unpin,
    W: spdy::ByteSink,
    F: Future<Output = Result<DuplexStream, E>> + Send,
    E: Display + Send,
{
    let connection = Arc::clone(&parts.connection);
    let work = async {
        let creation = limits.stream_creation;
        port_forward::over_spdy(Arc::clone(&connection), parts.opened, connect, creation).await;
        connection.go_away().await;
    };
    let reading = async { end_of_reading(parts.reader.run().await) };
    let idle = parts.connection.activity.idle(limits.idle);
    drive(reading, parts.writer.run(), work, idle).await;
}

/// Why a client is not read any more is of interest to whoever looks for a fault in a client.
fn end_of_reading(end: Result<(), spdy::ReadError>) {
    if let Err(error) = end {
        tracing::debug!(error = %error, "a streaming client broke off");
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
        let Opened { id, headers, data } = opened.recv().await?;
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
    async fn send(&self, to: Output, bytes: Bytes) {
        let stream = match to {
            Output::Stdout => self.stdout,
            Output::Stderr => self.stderr,
            Output::Error => self.error,
        };
        if let Some(stream) = stream {
            // One that was reset wants nothing; one whose client is gone is not served for long.
            let _ = self.connection.data(stream, bytes).await;
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
    /// Tells that the connection stands, with an empty message on the first channel that is
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
            .message(first.map_or(3, |(_, at)| at), &[])
            .await;
    }
}

impl command::Client for ChannelClient {
    async fn send(&self, to: Output, bytes: Bytes) {
        let (wanted, channel) = match to {
            Output::Stdout => (self.streams.stdout, 1),
            Output::Stderr => (self.streams.stderr, 2),
            Output::Error => (true, 3),
        };
        if wanted {
            let _ = self.channels.send(channel, bytes).await;
        }
    }

    async fn finish(&self) {
        self.channels.close().await;
    }
}

#[cfg(test)]
mod tests;
