//! Forwarded connections on whatever carries their streams.
//!
//! Upstream: `kubelet/pkg/cri/streaming/portforward`.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::budget::{Budget, Held, LEAN_BYTES};
use super::drive::{PIECE_BYTES_MAX, Piece};
use super::session::Duplex;
use super::spdy::{Connection, Headers, Opened, Reset};
use super::websocket::Channels;

/// Most connections forwarded at a time; further ones wait until one has ended.
const FORWARDED_MAX: usize = 256;

/// Maximum number of streams that wait for the other one of their connection.
const WAITING_MAX: usize = 256;

/// How a forwarded connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Both sides have closed, or the pod's side has.
    Done,
    /// The pod's side broke off.
    Broken,
    /// The client gave up.
    Unwanted,
}

/// The purpose of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Half {
    Data,
    Error,
}

/// The headers of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StreamHeaders {
    port: u16,
    half: Half,
    /// The two streams of a connection have the same.
    request: String,
}

impl StreamHeaders {
    /// Parses a stream's headers; none if it must be refused.
    fn parse(id: u32, headers: &Headers) -> Option<Self> {
        let port = headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
        let half = match headers.get("streamtype")? {
            "data" => Half::Data,
            "error" => Half::Error,
            _ => return None,
        };
        let request = match headers.get("requestid") {
            Some(request) if !request.is_empty() => request.to_owned(),
            // Old clients don't name their requests; they open the error stream, then this one.
            _ => match half {
                Half::Error => id.to_string(),
                Half::Data => id.saturating_sub(2).to_string(),
            },
        };
        Some(Self {
            port,
            half,
            request,
        })
    }
}

/// Connects to a port of the pod, or returns the reason why it can't.
pub(super) type Connect<'a, T> = dyn Fn(u16) -> BoxFuture<'a, Result<T, String>> + Send + Sync + 'a;

/// The first stream of a connection, that waits for the other.
struct Waiting {
    opened: Opened,
    half: Half,
    until: Instant,
}

/// Serves the connections that a client opens on a SPDY connection, until the client opens no more.
pub(super) async fn over_spdy<T: Duplex>(
    connection: Arc<Connection>,
    mut opened: mpsc::Receiver<Opened>,
    connect: &Connect<'_, T>,
    creation: Duration,
    budget: &Budget,
) {
    let mut waiting: HashMap<String, Waiting> = HashMap::new();
    let mut forwarded = FuturesUnordered::new();
    let mut more = true;
    while more || !forwarded.is_empty() {
        let overdue = waiting.values().map(|first| first.until).min();
        // All arms are cancel-safe.
        tokio::select! {
            next = opened.recv(), if more && forwarded.len() < FORWARDED_MAX => {
                let Some(stream) = next else {
                    more = false;
                    continue;
                };
                let Some(asked) = StreamHeaders::parse(stream.id, &stream.headers) else {
                    connection.reset(stream.id, Reset::Cancel).await;
                    continue;
                };
                match waiting.remove(&asked.request) {
                    // A client could open and reset streams endlessly.
                    None if waiting.len() >= WAITING_MAX => {
                        connection.reset(stream.id, Reset::Refused).await;
                    }
                    None => {
                        let until = Instant::now() + creation;
                        let half = asked.half;
                        waiting.insert(asked.request, Waiting { opened: stream, half, until });
                    }
                    // The first of two is as good as the second.
                    Some(first) if first.half == asked.half => {
                        connection.reset(stream.id, Reset::Cancel).await;
                        waiting.insert(asked.request, first);
                    }
                    Some(first) => {
                        let (data, error) = match asked.half {
                            Half::Data => (stream, first.opened),
                            Half::Error => (first.opened, stream),
                        };
                        let (connection, port) = (Arc::clone(&connection), asked.port);
                        let served = over_streams(connection, data, error.id, port, connect, budget);
                        forwarded.push(served.boxed());
                    }
                }
            }
            Some(()) = forwarded.next(), if !forwarded.is_empty() => {}
            () = sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => {
                let now = Instant::now();
                let late: Vec<_> = waiting.extract_if(|_, first| first.until <= now).collect();
                for (request, first) in late {
                    if first.half == Half::Error {
                        let words = format!("request {request} timed out waiting for streams");
                        let _ = connection.data(first.opened.id, words.into(), None).await;
                        connection.finish(first.opened.id).await;
                    }
                    connection.reset(first.opened.id, Reset::Cancel).await;
                }
            }
        }
    }
}

/// The destination of a pod's data.
trait ToClient: Sync {
    /// Sends bytes with their reservation in the budget, if they have one. Returns whether there is
    /// still a receiver.
    fn send(&self, bytes: Bytes, held: Option<Held>) -> impl Future<Output = bool> + Send;

    /// Sends the end of the data; returns whether the client may continue to send.
    fn end(&self) -> impl Future<Output = bool> + Send;
}

/// A stream of a SPDY connection.
struct ToStream<'a> {
    connection: &'a Connection,
    id: u32,
}

impl ToClient for ToStream<'_> {
    async fn send(&self, bytes: Bytes, held: Option<Held>) -> bool {
        self.connection.data(self.id, bytes, held).await.is_ok()
    }

    /// The client may continue to send: it ends its side of the stream by itself.
    async fn end(&self) -> bool {
        self.connection.finish(self.id).await;
        true
    }
}

/// A channel of a WebSocket.
struct ToChannel {
    channels: Channels,
    channel: u8,
}

impl ToClient for ToChannel {
    async fn send(&self, bytes: Bytes, held: Option<Held>) -> bool {
        self.channels.send(self.channel, bytes, held).await.is_ok()
    }

    /// Until `v5` a channel has no end of its own, so that the pod's is the connection's.
    async fn end(&self) -> bool {
        self.channels.close_channel(self.channel).await
    }
}

/// Serves one connection over two streams.
async fn over_streams<T: Duplex>(
    connection: Arc<Connection>,
    data: Opened,
    error: u32,
    port: u16,
    connect: &Connect<'_, T>,
    budget: &Budget,
) {
    let Opened {
        id,
        mut data,
        reset,
        ..
    } = data;
    let reset = async {
        let _ = reset.await;
    };
    match connect(port).await {
        Ok(target) => {
            let client = ToStream {
                connection: &connection,
                id,
            };
            match forward(target, &mut data, &client, reset, budget).await {
                Ended::Done => connection.finish(id).await,
                Ended::Broken | Ended::Unwanted => connection.reset(id, Reset::Cancel).await,
            }
        }
        // Any data on the error stream makes newer clients close the whole connection, so
        // that nothing but this is written there.
        Err(words) => {
            let _ = connection.data(error, words.into(), None).await;
            connection.finish(id).await;
        }
    }
    connection.finish(error).await;
}

/// Serves one connection for each port on a WebSocket, until all have ended.
pub(super) async fn over_channels<T: Duplex>(
    channels: Channels,
    ports: Vec<(u16, mpsc::Receiver<Piece>)>,
    connect: &Connect<'_, T>,
    budget: &Budget,
) {
    let mut forwarded = FuturesUnordered::new();
    // Channels are numbered in the order of the ports: data, error, data, error.
    for (channel, (port, data)) in (0..=u8::MAX).step_by(2).zip(ports) {
        for channel in [channel, channel + 1] {
            let name = Bytes::copy_from_slice(&port.to_le_bytes());
            if channels.message(channel, name).await.is_err() {
                return;
            }
        }
        let channels = channels.clone();
        let served = over_channel(ToChannel { channels, channel }, port, data, connect, budget);
        forwarded.push(served.boxed());
    }
    while forwarded.next().await.is_some() {}
    channels.close().await;
}

async fn over_channel<T: Duplex>(
    client: ToChannel,
    port: u16,
    mut data: mpsc::Receiver<Piece>,
    connect: &Connect<'_, T>,
    budget: &Budget,
) {
    match connect(port).await {
        Ok(target) => {
            // What resets a channel ends the whole connection.
            let reset = std::future::pending();
            forward(target, &mut data, &client, reset, budget).await;
        }
        Err(words) => {
            let error = client.channel + 1;
            let _ = client.channels.send(error, words.into(), None).await;
        }
    }
}

/// Copies bytes in both directions until both sides have closed, one is gone, or `reset` completes:
/// that is how a client gives up after its last data, or while the pod reads none of it.
async fn forward(
    target: impl Duplex,
    from_client: &mut mpsc::Receiver<Piece>,
    to_client: &impl ToClient,
    reset: impl Future<Output = ()>,
    budget: &Budget,
) -> Ended {
    let (from_pod, to_pod) = tokio::io::split(target);
    let carried = async {
        let mut up = pin!(upwards(from_client, to_pod));
        let mut down = pin!(downwards(from_pod, to_client, budget));
        // Both arms continue below.
        tokio::select! {
            ended = &mut up => match ended {
                Ended::Done => down.await,
                other => other,
            },
            ended = &mut down => match ended {
                Ended::Done if to_client.end().await => up.await,
                other => other,
            },
        }
    };
    // Both arms end it.
    tokio::select! {
        ended = carried => ended,
        () = reset => Ended::Unwanted,
    }
}

/// Passes on what a client sends, and its end.
async fn upwards(from: &mut mpsc::Receiver<Piece>, mut to: impl AsyncWrite + Unpin) -> Ended {
    loop {
        match from.recv().await {
            Some(Piece::Data(bytes)) => {
                if to.write_all(&bytes).await.is_err() {
                    // A pod that takes no more may still have something to say.
                    return Ended::Done;
                }
            }
            Some(Piece::End) => {
                let _ = to.shutdown().await;
                return Ended::Done;
            }
            None => return Ended::Unwanted,
        }
    }
}

/// Passes on data from a pod: in large pieces while the budget allows, otherwise in lean ones, so that
/// an idle connection holds little memory.
async fn downwards(mut from: impl AsyncRead + Unpin, to: &impl ToClient, budget: &Budget) -> Ended {
    let mut more = false;
    loop {
        let large = if more {
            budget.try_take(PIECE_BYTES_MAX)
        } else {
            None
        };
        let mut buffer = BytesMut::new();
        let ready = large.as_ref().and_then(|_| {
            buffer.reserve(PIECE_BYTES_MAX);
            from.read_buf(&mut buffer).now_or_never()
        });
        // The buffer's, however much comes.
        let (read, held) = if let Some(read) = ready {
            (read, large)
        } else {
            // Nothing was read.
            drop(large);
            buffer = BytesMut::with_capacity(LEAN_BYTES);
            (from.read_buf(&mut buffer).await, None)
        };
        match read {
            Ok(0) => return Ended::Done,
            Ok(bytes) => {
                more = bytes >= LEAN_BYTES;
                if !to.send(buffer.freeze(), held).await {
                    return Ended::Unwanted;
                }
            }
            Err(_) => return Ended::Broken,
        }
    }
}
