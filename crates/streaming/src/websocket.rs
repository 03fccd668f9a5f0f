//! A WebSocket that an upgraded connection has become: channels of messages, or the bytes of a
//! tunnel.
//!
//! Upstream: `wsstream/conn.go` of `apimachinery/pkg/util/httpstream`, and
//! `client-go/tools/portforward/tunneling_connection.go`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

use super::Limits;
use super::drive::{Activity, OUTGOING_MAX, PIECE_BYTES_MAX, Piece};
use super::negotiate::{Codec, Version};
use super::session::Duplex;
use super::spdy::ByteSink;

/// Largest message, in bytes: upstream's, `DefaultMaxPayloadBytes` of `golang.org/x/net/websocket`.
/// Some clients send a whole file as one.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Messages of one channel that wait for whoever takes them: few, since each can be that large.
pub(super) const MESSAGES_MAX: usize = 1;

/// Bytes that are read at a time.
const READ_BYTES: usize = 32 << 10;

/// First byte of a message by which either side closes a channel since `v5`.
const CLOSE_CHANNEL: u8 = 255;

/// Makes a WebSocket of a connection that was just upgraded.
pub(super) async fn accept<S: Duplex>(stream: S) -> WebSocketStream<S> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BYTES)
        .max_message_size(Some(MESSAGE_BYTES_MAX))
        .max_frame_size(Some(MESSAGE_BYTES_MAX));
    WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await
}

/// The parts of a WebSocket of channels.
pub(super) struct Parts<S> {
    pub(super) channels: Channels,
    pub(super) reader: Reader<S>,
    pub(super) writer: Writer<S>,
    pub(super) activity: Arc<Activity>,
}

/// Makes the parts of a WebSocket of channels. `inbound` has for every channel where what comes on
/// it goes; what comes on one that has none is dropped.
pub(super) fn parts<S: Duplex>(
    socket: WebSocketStream<S>,
    inbound: Vec<Option<mpsc::Sender<Piece>>>,
    codec: Codec,
    version: Version,
    limits: Limits,
) -> Parts<S> {
    let (sink, stream) = socket.split();
    let (out, messages) = mpsc::channel(OUTGOING_MAX);
    let activity = Arc::new(Activity::new());
    Parts {
        channels: Channels {
            out,
            codec,
            version,
        },
        reader: Reader {
            stream,
            inbound,
            codec,
            version,
            activity: Arc::clone(&activity),
        },
        writer: Writer {
            sink,
            messages,
            activity: Arc::clone(&activity),
            ping: limits.ping,
        },
        activity,
    }
}

/// What is written goes through this.
#[derive(Clone)]
pub(super) struct Channels {
    out: mpsc::Sender<Message>,
    codec: Codec,
    version: Version,
}

/// Nothing can be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Closed;

impl Channels {
    /// Sends bytes on a channel.
    pub(super) async fn send(&self, channel: u8, mut bytes: Bytes) -> Result<(), Closed> {
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES_MAX));
            self.message(channel, &piece).await?;
        }
        Ok(())
    }

    /// Sends one message, of no bytes if need be.
    pub(super) async fn message(&self, channel: u8, bytes: &[u8]) -> Result<(), Closed> {
        let message = match self.codec {
            Codec::Binary => {
                let mut message = BytesMut::with_capacity(1 + bytes.len());
                message.extend_from_slice(&[channel]);
                message.extend_from_slice(bytes);
                Message::Binary(message.freeze())
            }
            Codec::Base64 => {
                let mut message = String::new();
                message.push(char::from(b'0'.wrapping_add(channel)));
                BASE64_STANDARD.encode_string(bytes, &mut message);
                Message::Text(message.into())
            }
        };
        self.out.send(message).await.map_err(|_| Closed)
    }

    /// Closes a channel; whether the protocol can and somebody is there.
    pub(super) async fn close_channel(&self, channel: u8) -> bool {
        self.version == Version::V5 && self.message(CLOSE_CHANNEL, &[channel]).await.is_ok()
    }

    /// Ends the connection, once all that was sent before is written.
    pub(super) async fn close(&self) {
        // A client that is gone needs no end.
        let _ = self.out.send(normal_close()).await;
    }
}

fn normal_close() -> Message {
    Message::Close(Some(CloseFrame {
        code: CloseCode::Normal,
        reason: "".into(),
    }))
}

/// Writes what is sent, and a ping now and then.
pub(super) struct Writer<S> {
    sink: SplitSink<WebSocketStream<S>, Message>,
    messages: mpsc::Receiver<Message>,
    activity: Arc<Activity>,
    ping: Duration,
}

impl<S: Duplex> Writer<S> {
    /// Writes until [`Channels::close`].
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn run(mut self) -> Result<(), Error> {
        let mut pings = interval_at(Instant::now() + self.ping, self.ping);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Both arms are cancel-safe.
            let message = tokio::select! {
                message = self.messages.recv() => message,
                _ = pings.tick() => Some(Message::Ping(Bytes::new())),
            };
            let message = message.unwrap_or_else(normal_close);
            let (data, last) = (
                matches!(message, Message::Binary(_) | Message::Text(_)),
                matches!(message, Message::Close(_)),
            );
            self.sink.send(message).await?;
            if last {
                return Ok(());
            }
            if data {
                self.activity.note();
            }
        }
    }
}

/// Reads what a client sends.
pub(super) struct Reader<S> {
    stream: SplitStream<WebSocketStream<S>>,
    inbound: Vec<Option<mpsc::Sender<Piece>>>,
    codec: Codec,
    version: Version,
    activity: Arc<Activity>,
}

impl<S: Duplex> Reader<S> {
    /// Reads until the client has closed the connection, or breaks the rules. While a channel's
    /// pieces are not taken, nothing is read.
    pub(super) async fn run(&mut self) {
        while let Some(Ok(message)) = self.stream.next().await {
            let active = !matches!(message, Message::Pong(_));
            if active {
                self.activity.note();
            }
            let payload = match message {
                Message::Binary(bytes) => bytes,
                Message::Text(text) => text.into(),
                // Pings are answered, and a close is, when the next message is read.
                Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => {
                    continue;
                }
            };
            match decode(payload, self.codec, self.version) {
                Some(Decoded::Data(channel, bytes)) => {
                    self.hand_out(channel, Piece::Data(bytes)).await;
                }
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

/// What a message holds.
#[derive(Debug, PartialEq, Eq)]
enum Decoded {
    Data(u8, Bytes),
    Close(u8),
    /// Nothing, or nothing that can be read.
    Nothing,
}

/// Reads a message; none where the connection has to be closed for it.
fn decode(mut payload: Bytes, codec: Codec, version: Version) -> Option<Decoded> {
    let Some(first) = payload.first().copied() else {
        return Some(Decoded::Nothing);
    };
    let rest = payload.split_off(1);
    if version == Version::V5 && first == CLOSE_CHANNEL {
        return match rest[..] {
            [channel] => Some(Decoded::Close(channel)),
            _ => None,
        };
    }
    Some(match codec {
        Codec::Binary => Decoded::Data(first, rest),
        Codec::Base64 => match BASE64_STANDARD.decode(&rest) {
            Ok(bytes) => Decoded::Data(first.wrapping_sub(b'0'), bytes.into()),
            Err(_) => Decoded::Nothing,
        },
    })
}

/// The bytes that come through a tunnel.
pub(super) fn tunnel_bytes<S: Duplex>(
    stream: SplitStream<WebSocketStream<S>>,
) -> impl Stream<Item = io::Result<Bytes>> + Unpin + Send {
    let bytes = stream.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(_)) => Some(Err(io::ErrorKind::InvalidData.into())),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    Box::pin(bytes)
}

/// The end of a tunnel where bytes go in.
pub(super) struct Tunnel<S>(pub(super) SplitSink<WebSocketStream<S>, Message>);

impl<S: Duplex> ByteSink for Tunnel<S> {
    async fn write(&mut self, bytes: &mut BytesMut) -> io::Result<()> {
        let message = Message::Binary(bytes.split().freeze());
        self.0.send(message).await.map_err(io::Error::other)
    }

    async fn end(&mut self) -> io::Result<()> {
        self.0.send(normal_close()).await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_are_read_as_upstream_reads_them() {
        let read =
            |bytes: &'static [u8], codec, version| decode(Bytes::from(bytes), codec, version);
        let (binary, base64) = (Codec::Binary, Codec::Base64);
        let data = |channel, bytes: &'static str| Some(Decoded::Data(channel, bytes.into()));
        assert_eq!(read(b"", binary, Version::V5), Some(Decoded::Nothing));
        assert_eq!(read(b"\0hi", binary, Version::V5), data(0, "hi"));
        assert_eq!(
            read(b"\xff\0", binary, Version::V5),
            Some(Decoded::Close(0))
        );
        assert_eq!(
            read(b"\xff\x09", binary, Version::V5),
            Some(Decoded::Close(9))
        );
        assert_eq!(read(b"\xff", binary, Version::V5), None);
        assert_eq!(read(b"\xff\0\0", binary, Version::V5), None);
        // Only `v5` closes channels.
        let Some(Decoded::Data(255, _)) = read(b"\xff\0", binary, Version::V4) else {
            panic!("closed")
        };
        assert_eq!(read(b"0aGk=", base64, Version::V4), data(0, "hi"));
        assert_eq!(read(b"4", base64, Version::V4), data(4, ""));
        assert_eq!(read(b"0!", base64, Version::V4), Some(Decoded::Nothing));
    }

    proptest! {
        #[test]
        fn no_message_makes_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            for codec in [Codec::Binary, Codec::Base64] {
                for version in [Version::V3, Version::V4, Version::V5] {
                    let _ = decode(bytes.clone().into(), codec, version);
                }
            }
        }
    }
}
