//! A WebSocket on an upgraded connection: channels of messages, or the bytes of a tunnel.
//!
//! Messages are not reassembled: their parts are passed on as they arrive.
//!
//! Upstream: `wsstream/conn.go` of `apimachinery/pkg/util/httpstream`, and
//! `client-go/tools/portforward/tunneling_connection.go`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, stream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::Limits;
use super::budget::{ConnectionBudget, Held};
use super::drive::{
    Activity, LINGER_MAX, OUTGOING_MAX, Outgoing, PIECE_BYTES_MAX, Piece, READ_BYTES, WRITE_BYTES,
};
use super::negotiate::{Codec, Version};
use super::spdy::ByteSink;
use frame::{Decoder, Event, FrameError, NORMAL, Send, binary_head};
use message::{Decoded, Messages};

mod frame;
mod message;

/// First byte of a message by which either side closes a channel since `v5`.
const CLOSE_CHANNEL: u8 = 255;

/// Why a client is not read any more.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Reads frames, and has control frames answered.
struct Frames<R> {
    read: R,
    decoder: Decoder,
    /// The queue of responses; closed when the writer ends.
    answers: mpsc::Sender<Outgoing<Send>>,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    fn new(read: R, answers: mpsc::Sender<Outgoing<Send>>) -> Self {
        let decoder = Decoder::default();
        Self {
            read,
            decoder,
            answers,
        }
    }

    /// The next event that is not a close, which is answered; none after it, or when the client is
    /// gone.
    async fn next(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            match self.decoder.next_event()? {
                Some(Event::Close(payload)) => {
                    // The reason is for users; the code is enough to be sent back.
                    let code = payload.slice(..payload.len().min(2));
                    if self.answers.send(Send::Close(code).into()).await.is_ok() {
                        // Written, or given up.
                        let _ = timeout(LINGER_MAX, self.answers.closed()).await;
                    }
                    return Ok(None);
                }
                Some(Event::Ping(payload)) => {
                    // After our close nothing is answered; what comes is still read.
                    let _ = self.answers.send(Send::Pong(payload.clone()).into()).await;
                    return Ok(Some(Event::Ping(payload)));
                }
                Some(event) => return Ok(Some(event)),
                None => {
                    self.decoder.buffer.reserve(READ_BYTES);
                    if self.read.read_buf(&mut self.decoder.buffer).await? == 0 {
                        return Ok(None);
                    }
                }
            }
        }
    }
}

/// The parts of a WebSocket of channels.
pub(super) struct Parts<R, W> {
    pub(super) channels: Channels,
    pub(super) reader: Reader<R>,
    pub(super) writer: Writer<W>,
    pub(super) activity: Arc<Activity>,
}

/// Creates the parts of a WebSocket with channels from a connection that was just upgraded. `inbound`
/// has the receiver of each channel; data on a channel without one is discarded.
pub(super) fn accept<R: AsyncRead + Unpin, W>(
    read: R,
    write: W,
    inbound: Vec<Option<mpsc::Sender<Piece>>>,
    codec: Codec,
    version: Version,
    limits: &Limits,
) -> Parts<R, W> {
    let (out, frames) = mpsc::channel(OUTGOING_MAX);
    let activity = Arc::new(Activity::new());
    Parts {
        reader: Reader {
            frames: Frames::new(read, out.clone()),
            messages: Messages::new(codec, version),
            inbound,
            purse: ConnectionBudget::new(limits.budget.clone()),
            activity: Arc::clone(&activity),
        },
        channels: Channels {
            out,
            purse: Arc::new(ConnectionBudget::new(limits.budget.clone())),
            codec,
            version,
        },
        writer: Writer {
            write,
            frames,
            activity: Arc::clone(&activity),
            ping: limits.ping,
        },
        activity,
    }
}

/// Writes to the channels.
#[derive(Clone)]
pub(super) struct Channels {
    out: mpsc::Sender<Outgoing<Send>>,
    /// That of what is sent.
    purse: Arc<ConnectionBudget>,
    codec: Codec,
    version: Version,
}

/// Nothing can be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

impl Channels {
    /// Sends bytes on a channel. `held` is their reservation in the budget; without one they are sent
    /// as the budget allows, in lean pieces if necessary.
    pub(super) async fn send(
        &self,
        channel: u8,
        mut bytes: Bytes,
        mut held: Option<Held>,
    ) -> Result<(), Closed> {
        while !bytes.is_empty() {
            let piece = self.purse.piece(&mut bytes, &mut held, PIECE_BYTES_MAX);
            let (bytes, held) = piece.await.into_parts();
            let frame = self.frame(channel, bytes);
            let sent = self.out.send(Outgoing { frame, held }).await;
            sent.map_err(|_| Closed)?;
        }
        Ok(())
    }

    /// Sends one short message, which may be empty.
    pub(super) async fn message(&self, channel: u8, bytes: Bytes) -> Result<(), Closed> {
        let frame = self.frame(channel, bytes);
        self.out.send(frame.into()).await.map_err(|_| Closed)
    }

    fn frame(&self, channel: u8, bytes: Bytes) -> Send {
        match self.codec {
            Codec::Binary => Send::Binary(channel, bytes),
            Codec::Base64 => {
                let mut message = String::new();
                message.push(char::from(b'0'.wrapping_add(channel)));
                BASE64_STANDARD.encode_string(bytes, &mut message);
                Send::Text(message.into())
            }
        }
    }

    /// Closes a channel; returns whether the protocol supports that and the connection is still open.
    pub(super) async fn close_channel(&self, channel: u8) -> bool {
        let closed = Bytes::copy_from_slice(&[channel]);
        self.version == Version::V5 && self.message(CLOSE_CHANNEL, closed).await.is_ok()
    }

    /// Closes the connection, once everything sent before is written.
    pub(super) async fn close(&self) {
        // A client that is gone needs no end.
        let _ = self.out.send(NORMAL.into()).await;
    }
}

/// Writes outgoing messages, and pings at intervals.
pub(super) struct Writer<W> {
    write: W,
    frames: mpsc::Receiver<Outgoing<Send>>,
    activity: Arc<Activity>,
    ping: Duration,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    /// Writes until a close.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let mut bytes = BytesMut::new();
        // The parts of the budget of what is written.
        let mut held = Vec::new();
        let mut pings = interval_at(Instant::now() + self.ping, self.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both arms are cancel-safe.
            let mut next = tokio::select! {
                frame = self.frames.recv() => Some(frame.unwrap_or_else(|| NORMAL.into())),
                _ = pings.tick() => {
                    // A burst of output is no reason to keep a large buffer for good.
                    bytes = BytesMut::new();
                    Some(Send::Ping.into())
                }
            };
            if next.as_ref().is_some_and(Outgoing::is_lean) {
                bytes = BytesMut::new();
            }
            let mut last = false;
            let mut data = false;
            while let Some(Outgoing { frame, held: part }) = next {
                frame.encode(&mut bytes);
                held.extend(part);
                last = matches!(frame, Send::Close(_));
                data |= matches!(frame, Send::Binary(..) | Send::Text(_));
                next = if last || bytes.len() >= WRITE_BYTES {
                    None
                } else {
                    self.frames.try_recv().ok()
                };
            }
            self.write.write_all_buf(&mut bytes).await?;
            self.write.flush().await?;
            held.clear();
            if data {
                self.activity.note();
            }
            if last {
                return Ok(());
            }
        }
    }
}

/// Reads what a client sends.
pub(super) struct Reader<R> {
    frames: Frames<R>,
    messages: Messages,
    inbound: Vec<Option<mpsc::Sender<Piece>>>,
    purse: ConnectionBudget,
    activity: Arc<Activity>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Reads until the client has closed the connection, or violates the protocol. While a channel's
    /// pieces are not consumed, nothing is read.
    pub(super) async fn run(&mut self) {
        loop {
            let event = match self.frames.next().await {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(error = %error, "a streaming client disconnected");
                    return;
                }
            };
            let (bytes, last) = match event {
                Event::Data { bytes, last, .. } => (bytes, last),
                Event::Ping(_) => {
                    self.activity.note();
                    continue;
                }
                Event::Pong | Event::Close(_) => continue,
            };
            self.activity.note();
            match self.messages.take(bytes, last) {
                Some(Decoded::Data(channel, bytes)) => self.data(channel, bytes).await,
                Some(Decoded::Close(channel)) => {
                    if usize::from(channel) >= self.inbound.len() {
                        return;
                    }
                    self.hand_out(channel, Piece::End).await;
                    self.inbound[usize::from(channel)] = None;
                }
                Some(Decoded::Nothing) => {}
                None => return,
            }
        }
    }

    async fn data(&mut self, channel: u8, mut bytes: Bytes) {
        let at = usize::from(channel);
        while !bytes.is_empty() && matches!(self.inbound.get(at), Some(Some(_))) {
            let piece = self.purse.charge(&mut bytes).await;
            self.hand_out(channel, Piece::Data(piece)).await;
        }
    }

    async fn hand_out(&mut self, channel: u8, piece: Piece) {
        let Some(inbound) = self.inbound.get_mut(usize::from(channel)) else {
            return;
        };
        let taken = match inbound {
            Some(pieces) => pieces.send(piece).await.is_ok(),
            None => return,
        };
        if !taken {
            *inbound = None;
        }
    }
}

/// Creates a tunnel from a connection that was just upgraded: its incoming bytes, and a sink for
/// outgoing ones.
pub(super) fn tunnel<R: AsyncRead + Unpin + std::marker::Send, W>(
    read: R,
    write: W,
) -> (
    impl Stream<Item = io::Result<Bytes>> + Unpin + std::marker::Send,
    Tunnel<W>,
) {
    let (answering, answers) = mpsc::channel(OUTGOING_MAX);
    let frames = Frames::new(read, answering);
    let bytes = stream::try_unfold(frames, |mut frames| async {
        loop {
            match frames.next().await.map_err(io::Error::other)? {
                Some(Event::Data { text: true, .. }) => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                Some(Event::Data { bytes, .. }) if !bytes.is_empty() => {
                    return Ok(Some((bytes, frames)));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    });
    let end = Tunnel {
        write,
        answers,
        wire: BytesMut::new(),
    };
    (Box::pin(bytes), end)
}

/// The end of a tunnel where bytes go in.
pub(super) struct Tunnel<W> {
    write: W,
    answers: mpsc::Receiver<Outgoing<Send>>,
    /// The buffer of what the tunnel adds to the bytes that go in: the heads of frames.
    wire: BytesMut,
}

impl<W: AsyncWrite + Unpin> Tunnel<W> {
    async fn frame(&mut self, frame: Send) -> io::Result<()> {
        frame.encode(&mut self.wire);
        self.write.write_all_buf(&mut self.wire).await?;
        self.write.flush().await
    }
}

impl<W: AsyncWrite + Unpin + std::marker::Send> ByteSink for Tunnel<W> {
    type Own = Send;

    async fn write(&mut self, bytes: &mut BytesMut) -> io::Result<()> {
        binary_head(bytes.len(), &mut self.wire);
        let mut whole = Buf::chain(&mut self.wire, bytes);
        self.write.write_all_buf(&mut whole).await?;
        self.write.flush().await
    }

    async fn own(&mut self) -> Send {
        match self.answers.recv().await {
            Some(answer) => answer.frame,
            None => std::future::pending().await,
        }
    }

    async fn write_own(&mut self, answer: Send) -> io::Result<()> {
        let last = matches!(answer, Send::Close(_));
        self.frame(answer).await?;
        if last {
            // The reader waits for this.
            self.answers.close();
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }

    async fn end(&mut self) -> io::Result<()> {
        self.frame(NORMAL).await
    }
}
