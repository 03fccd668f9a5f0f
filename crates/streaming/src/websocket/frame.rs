//! Decodes and encodes the frames of a server's WebSocket, in pieces of any size. Pure.
//!
//! The payload of a message is passed on as it arrives, so an unfinished message holds no memory; only
//! control frames, of at most 125 bytes, are buffered.
//!
//! The standard: RFC 6455, section 5.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Largest message, in bytes: upstream's, `DefaultMaxPayloadBytes` of `golang.org/x/net/websocket`.
/// Some clients send a whole file as one.
const MESSAGE_BYTES_MAX: u64 = 32 << 20;

/// Largest payload of a control frame, in bytes: the standard's.
const CONTROL_BYTES_MAX: u64 = 125;

/// Longest head of a frame that is sent, in bytes.
const HEAD_BYTES_MAX: usize = 10;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
/// The length follows in two bytes.
const LENGTH_16: u8 = 126;
/// The length follows in eight bytes.
const LENGTH_64: u8 = 127;

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A received event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A part of a message, which may be empty.
    Data {
        /// The message is text.
        text: bool,
        bytes: Bytes,
        /// The message ends with it.
        last: bool,
    },
    /// Must be answered with a pong of the same payload.
    Ping(Bytes),
    Pong,
    /// Must be answered with the same payload; the connection is closed then.
    Close(Bytes),
}

/// A frame to send, whole and unmasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Send {
    /// A channel's bytes.
    Binary(u8, Bytes),
    Text(Bytes),
    Ping,
    Pong(Bytes),
    Close(Bytes),
}

/// A close without complaint.
pub(crate) const NORMAL: Send = Send::Close(Bytes::from_static(&1000_u16.to_be_bytes()));

/// Bytes that are not a client's frames, or a message that is too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("received a WebSocket frame with reserved bits set")]
    Reserved,
    #[error("received a WebSocket frame of unknown type {0}")]
    Kind(u8),
    #[error("received an unmasked WebSocket frame")]
    NoMask,
    #[error("received a WebSocket frame that does not continue the previous one")]
    Order,
    #[error("received a WebSocket message of {0} bytes or more")]
    TooLong(u64),
    #[error("received a WebSocket control frame that is too long or fragmented")]
    Control,
}

/// A data frame in progress.
struct Rest {
    bytes: u64,
    mask: [u8; 4],
    fin: bool,
}

/// A message in progress.
struct Message {
    text: bool,
    /// With all frames that have begun.
    bytes: u64,
}

/// Takes bytes, gives events.
#[derive(Default)]
pub(crate) struct Decoder {
    /// Received bytes that are not decoded yet.
    pub(crate) buffer: BytesMut,
    rest: Option<Rest>,
    message: Option<Message>,
}

impl Decoder {
    /// Returns the next event, if enough bytes have arrived.
    ///
    /// # Errors
    /// The received bytes are not a frame; the decoder can't be used afterwards.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, FrameError> {
        loop {
            if let Some(rest) = self.rest.take() {
                return Ok(self.piece(rest));
            }
            let Some((head, mut after)) = self.buffer.split_first_chunk::<2>() else {
                return Ok(None);
            };
            let [first, second] = *head;
            if first & RESERVED != 0 {
                return Err(FrameError::Reserved);
            }
            if second & MASKED == 0 {
                return Err(FrameError::NoMask);
            }
            let extended = match second & LENGTH {
                LENGTH_16 => 2,
                LENGTH_64 => 8,
                _ => 0,
            };
            if after.len() < extended + 4 {
                return Ok(None);
            }
            let length = match extended {
                2 => u64::from(after.get_u16()),
                8 => after.get_u64(),
                _ => u64::from(second & LENGTH),
            };
            let mut mask = [0; 4];
            after.copy_to_slice(&mut mask);
            let head_bytes = 2 + extended + 4;
            let (fin, kind) = (first & FIN != 0, first & OPCODE);
            if kind >= CLOSE {
                if !fin || length > CONTROL_BYTES_MAX {
                    return Err(FrameError::Control);
                }
                let payload = usize::try_from(length).unwrap_or(usize::MAX);
                if after.len() < payload {
                    return Ok(None);
                }
                self.buffer.advance(head_bytes);
                let bytes = self.unmasked(payload, mask);
                return Ok(Some(match kind {
                    CLOSE => Event::Close(bytes),
                    PING => Event::Ping(bytes),
                    PONG => Event::Pong,
                    unknown => return Err(FrameError::Kind(unknown)),
                }));
            }
            self.begin(kind, length)?;
            self.buffer.advance(head_bytes);
            self.rest = Some(Rest {
                bytes: length,
                mask,
                fin,
            });
        }
    }

    /// Notes that a data frame begins.
    fn begin(&mut self, kind: u8, length: u64) -> Result<(), FrameError> {
        let message = match (kind, &mut self.message) {
            (TEXT | BINARY, none @ None) => none.insert(Message {
                text: kind == TEXT,
                bytes: 0,
            }),
            (CONTINUATION, Some(message)) => message,
            (CONTINUATION | TEXT | BINARY, _) => return Err(FrameError::Order),
            (unknown, _) => return Err(FrameError::Kind(unknown)),
        };
        message.bytes = message.bytes.saturating_add(length);
        if message.bytes > MESSAGE_BYTES_MAX {
            return Err(FrameError::TooLong(message.bytes));
        }
        Ok(())
    }

    /// Takes the received part of a data frame's payload.
    fn piece(&mut self, mut rest: Rest) -> Option<Event> {
        let wanted = usize::try_from(rest.bytes).unwrap_or(usize::MAX);
        let length = wanted.min(self.buffer.len());
        if length == 0 && wanted > 0 {
            self.rest = Some(rest);
            return None;
        }
        let bytes = self.unmasked(length, rest.mask);
        rest.mask.rotate_left(length % 4);
        rest.bytes -= length as u64;
        let text = self.message.as_ref().is_some_and(|message| message.text);
        let last = rest.fin && rest.bytes == 0;
        if rest.bytes > 0 {
            self.rest = Some(rest);
        }
        if last {
            self.message = None;
        }
        Some(Event::Data { text, bytes, last })
    }

    /// Takes a payload off the buffer. It is a copy, so that few bytes don't hold a whole read.
    fn unmasked(&mut self, length: usize, mask: [u8; 4]) -> Bytes {
        let mut bytes = BytesMut::from(&self.buffer[..length]);
        self.buffer.advance(length);
        let [a, b, c, d] = mask;
        let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
        let (chunks, rest) = bytes.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        bytes.freeze()
    }
}

impl Send {
    /// Adds the frame's bytes.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        let (kind, channel, payload) = match self {
            Self::Binary(channel, payload) => (BINARY, Some(*channel), &payload[..]),
            Self::Text(payload) => (TEXT, None, &payload[..]),
            Self::Ping => (PING, None, &[][..]),
            Self::Pong(payload) => (PONG, None, &payload[..]),
            Self::Close(payload) => (CLOSE, None, &payload[..]),
        };
        let length = payload.len() + usize::from(channel.is_some());
        out.reserve(HEAD_BYTES_MAX + length);
        head(kind, length, out);
        out.extend(channel);
        out.put_slice(payload);
    }
}

/// Appends the header of a binary frame with a payload of `length` bytes.
pub(crate) fn binary_head(length: usize, out: &mut BytesMut) {
    head(BINARY, length, out);
}

fn head(kind: u8, length: usize, out: &mut BytesMut) {
    out.put_u8(FIN | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) if length < LENGTH_16 => out.put_u8(length),
        (_, Ok(length)) => {
            out.put_u8(LENGTH_16);
            out.put_u16(length);
        }
        _ => {
            out.put_u8(LENGTH_64);
            out.put_u64(length as u64);
        }
    }
}

#[cfg(test)]
mod tests;
