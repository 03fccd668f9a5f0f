//! A SPDY/3.1 connection on which a client opens streams.
//!
//! [`accept`] creates its parts: a [`Reader`] that returns incoming events and sends the replies that
//! the protocol requires, a [`Writer`] that does all writes, and the [`Connection`] through which
//! streams are written. No task is spawned: the parts are futures of one task, see
//! [`drive`](super::drive).
//!
//! [`frame`] encodes and decodes frames, [`headers`] compresses header blocks, [`streams`] has the
//! protocol's state; all three are pure.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::Limits;
use super::budget::{ConnectionBudget, Held};
use super::drive::{
    Activity, OUTGOING_MAX, Outgoing, PIECE_BYTES_MAX, PIECES_MAX, Piece, READ_BYTES, WRITE_BYTES,
};
use frame::{Decoder, Encoder, FrameError, Send};
use streams::{Event, Received, Streams};

mod frame;
mod headers;
mod streams;

/// For tests that play the client.
#[cfg(test)]
pub(super) mod frames {
    pub(crate) use super::frame::{Decoder, Frame};
}

pub(super) use frame::Reset;
pub(super) use headers::Headers;

/// Opened streams that wait for whoever serves them.
const OPENED_MAX: usize = 16;

/// A stream can't be written any more, or the whole connection can't.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

/// A stream that a client has opened.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: u32,
    pub(super) headers: Headers,
    /// Incoming data. After drop, incoming data for this stream is discarded.
    pub(super) data: mpsc::Receiver<Piece>,
    /// Ends, with an error, once the client has reset the stream, also after the end of its data.
    pub(super) reset: oneshot::Receiver<()>,
}

/// The parts of a connection.
pub(super) struct Parts<R, W> {
    pub(super) connection: Arc<Connection>,
    pub(super) reader: Reader<R>,
    pub(super) writer: Writer<W>,
    /// Ends when no more streams will be opened.
    pub(super) opened: mpsc::Receiver<Opened>,
}

/// Makes the parts of a connection that was just upgraded.
pub(super) fn accept<R, W>(read: R, write: W, limits: &Limits) -> Parts<R, W> {
    let (out, frames) = mpsc::channel(OUTGOING_MAX);
    let (opening, opened) = mpsc::channel(OPENED_MAX);
    let connection = Arc::new(Connection {
        streams: Mutex::default(),
        out,
        purse: ConnectionBudget::new(limits.budget.clone()),
        activity: Activity::new(),
    });
    Parts {
        reader: Reader {
            read,
            decoder: Decoder::new(),
            connection: Arc::clone(&connection),
            inbound: HashMap::new(),
            opened: Some(opening),
            purse: ConnectionBudget::new(limits.budget.clone()),
        },
        writer: Writer {
            write,
            frames,
            connection: Arc::clone(&connection),
            ping: limits.ping,
        },
        connection,
        opened,
    }
}

/// Writes to the channels.
pub(super) struct Connection {
    streams: Mutex<Streams>,
    out: mpsc::Sender<Outgoing<Send>>,
    /// That of what is sent.
    purse: ConnectionBudget,
    pub(super) activity: Activity,
}

impl Connection {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends bytes on a stream. `held` is their part of the budget; without one they go as the
    /// budget allows, in lean pieces if need be.
    ///
    /// # Cancel safety
    /// Dropped, it has sent some of them.
    pub(super) async fn data(
        &self,
        id: u32,
        mut bytes: Bytes,
        mut held: Option<Held>,
    ) -> Result<(), Closed> {
        while !bytes.is_empty() {
            if !self.streams().writable(id) {
                return Err(Closed);
            }
            let piece = self.purse.piece(&mut bytes, &mut held, PIECE_BYTES_MAX);
            let (bytes, held) = piece.await.into_parts();
            let fin = false;
            let frame = Send::Data { id, fin, bytes };
            self.send(Outgoing { frame, held }).await?;
        }
        Ok(())
    }

    /// Sends no more on a stream.
    pub(super) async fn finish(&self, id: u32) {
        if self.streams().finish(id) {
            let (fin, bytes) = (true, Bytes::new());
            // A client that is gone needs no end.
            let _ = self.send(Send::Data { id, fin, bytes }.into()).await;
        }
    }

    /// Ends a stream in both directions.
    pub(super) async fn reset(&self, id: u32, reset: Reset) {
        if self.streams().reset(id) {
            let _ = self.send(Send::RstStream { id, reset }.into()).await;
        }
    }

    /// Ends the connection, once all that was sent before is written.
    pub(super) async fn go_away(&self) {
        let last = self.streams().go_away();
        let _ = self.send(Send::GoAway { last }.into()).await;
    }

    async fn send(&self, frame: Outgoing<Send>) -> Result<(), Closed> {
        self.out.send(frame).await.map_err(|_| Closed)
    }
}

/// Reads what a client sends.
pub(super) struct Reader<R> {
    read: R,
    decoder: Decoder,
    connection: Arc<Connection>,
    inbound: HashMap<u32, Inbound>,
    opened: Option<mpsc::Sender<Opened>>,
    purse: ConnectionBudget,
}

/// The other ends of an [`Opened`] stream.
struct Inbound {
    /// None after the end of its data.
    pieces: Option<mpsc::Sender<Piece>>,
    /// Dropped when the stream is reset.
    open: oneshot::Sender<()>,
}

impl Inbound {
    /// Whether somebody still listens for its data or its reset.
    fn is_wanted(&self) -> bool {
        let pieces = self.pieces.as_ref();
        pieces.is_some_and(|pieces| !pieces.is_closed()) || !self.open.is_closed()
    }
}

/// Why a client is not read any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Read(#[from] io::Error),
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads until the client has closed the connection. While a stream's pieces are not taken,
    /// nothing is read.
    ///
    /// # Errors
    /// The connection broke, or what came is no SPDY.
    pub(super) async fn run(&mut self) -> Result<(), ReadError> {
        loop {
            while let Some(frame) = self.decoder.next_frame()? {
                let Received {
                    answer,
                    events,
                    active,
                } = self.connection.streams().receive(frame);
                if active {
                    self.connection.activity.note();
                }
                if let Some(answer) = answer {
                    // After our GOAWAY nothing is answered; what comes is still read.
                    let _ = self.connection.send(answer.into()).await;
                }
                for event in events {
                    self.hand_out(event).await;
                }
            }
            self.decoder.buffer.reserve(READ_BYTES);
            if self.read.read_buf(&mut self.decoder.buffer).await? == 0 {
                return Ok(());
            }
        }
    }

    async fn hand_out(&mut self, event: Event) {
        match event {
            Event::Opened { id, headers } => {
                // A client may open streams for ever.
                self.inbound.retain(|_, inbound| inbound.is_wanted());
                let (pieces, data) = mpsc::channel(PIECES_MAX);
                let (open, reset) = oneshot::channel();
                let opened = Opened {
                    id,
                    headers,
                    data,
                    reset,
                };
                let taken = match &self.opened {
                    Some(opening) => opening.send(opened).await.is_ok(),
                    None => false,
                };
                if taken {
                    let pieces = Some(pieces);
                    self.inbound.insert(id, Inbound { pieces, open });
                } else {
                    self.connection.reset(id, Reset::Cancel).await;
                }
            }
            Event::Data { id, mut bytes } => {
                let Some(inbound) = self.inbound.get_mut(&id) else {
                    return;
                };
                while !bytes.is_empty() {
                    let Some(pieces) = &inbound.pieces else {
                        return;
                    };
                    let piece = self.purse.charge(&mut bytes).await;
                    if pieces.send(Piece::Data(piece)).await.is_err() {
                        inbound.pieces = None;
                    }
                }
            }
            Event::End { id } => {
                let inbound = self.inbound.get_mut(&id);
                if let Some(pieces) = inbound.and_then(|inbound| inbound.pieces.take()) {
                    // Nobody may want to know.
                    let _ = pieces.send(Piece::End).await;
                }
            }
            Event::Reset { id } => {
                self.inbound.remove(&id);
            }
            Event::GoAway => self.opened = None,
        }
    }
}

/// Writes what is sent, and a ping now and then.
pub(super) struct Writer<W> {
    write: W,
    frames: mpsc::Receiver<Outgoing<Send>>,
    connection: Arc<Connection>,
    ping: Duration,
}

/// Where bytes go.
pub(super) trait ByteSink {
    /// Frames that it writes by itself.
    type Own: std::marker::Send;

    /// Waits for something that it has to write by itself.
    ///
    /// # Cancel safety
    /// Dropped, it loses nothing.
    fn own(&mut self) -> impl Future<Output = Self::Own> + std::marker::Send;

    /// Writes that.
    fn write_own(
        &mut self,
        own: Self::Own,
    ) -> impl Future<Output = io::Result<()>> + std::marker::Send;

    /// Writes the bytes, which are none afterwards.
    fn write(
        &mut self,
        bytes: &mut BytesMut,
    ) -> impl Future<Output = io::Result<()>> + std::marker::Send;

    /// Writes no more.
    fn end(&mut self) -> impl Future<Output = io::Result<()>> + std::marker::Send;
}

impl<W: AsyncWrite + Unpin + std::marker::Send> ByteSink for W {
    type Own = Infallible;

    async fn own(&mut self) -> Infallible {
        std::future::pending().await
    }

    async fn write_own(&mut self, own: Infallible) -> io::Result<()> {
        match own {}
    }

    async fn write(&mut self, bytes: &mut BytesMut) -> io::Result<()> {
        self.write_all_buf(bytes).await?;
        self.flush().await
    }

    async fn end(&mut self) -> io::Result<()> {
        self.shutdown().await
    }
}

impl<W: ByteSink> Writer<W> {
    /// Writes until [`Connection::go_away`].
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let mut encoder = Encoder::default();
        let mut bytes = BytesMut::new();
        // The parts of the budget of what is written.
        let mut held = Vec::new();
        let mut pings = interval_at(Instant::now() + self.ping, self.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Ours are even.
        let mut ping = 0_u32;
        loop {
            // All arms are cancel-safe.
            let mut next = tokio::select! {
                own = self.write.own() => {
                    self.write.write_own(own).await?;
                    continue;
                }
                frame = self.frames.recv() => frame,
                _ = pings.tick() => {
                    ping = (ping + 2) & 0x7fff_fffe;
                    // A burst of output is no reason to keep a large buffer for good.
                    bytes = BytesMut::new();
                    Some(Send::Ping { id: ping.max(2) }.into())
                }
            };
            if next.as_ref().is_some_and(Outgoing::is_lean) {
                bytes = BytesMut::new();
            }
            let mut last = next.is_none();
            let mut data = false;
            while let Some(Outgoing { frame, held: part }) = next {
                encoder.encode(&frame, &mut bytes);
                held.extend(part);
                last = matches!(frame, Send::GoAway { .. });
                data |= matches!(frame, Send::Data { .. });
                next = if last || bytes.len() >= WRITE_BYTES {
                    None
                } else {
                    self.frames.try_recv().ok()
                };
            }
            self.write.write(&mut bytes).await?;
            held.clear();
            if data {
                self.connection.activity.note();
            }
            if last {
                return self.write.end().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[tokio::test]
    async fn a_stream_is_known_as_long_as_somebody_serves_it() {
        let parts = accept(tokio::io::empty(), tokio::io::sink(), &Limits::default());
        let (mut reader, mut opened) = (parts.reader, parts.opened);
        let open = |id| {
            let headers = Headers::default();
            Event::Opened { id, headers }
        };
        for id in (1..100).step_by(2) {
            reader.hand_out(open(id)).await;
            // It is of no use.
            drop(opened.recv().await);
            // streams 3
            assert_eq!(reader.inbound.len(), 1, "{id}");
        }
        reader.hand_out(open(101)).await;
        let mut served = opened.recv().await.unwrap();
        reader.hand_out(Event::End { id: 101 }).await;
        assert!(matches!(served.data.recv().await, Some(Piece::End)));
        reader.hand_out(open(103)).await;
        assert_eq!(served.reset.try_recv(), Err(TryRecvError::Empty));
        reader.hand_out(Event::Reset { id: 101 }).await;
        assert_eq!(served.reset.try_recv(), Err(TryRecvError::Closed));
    }
}
