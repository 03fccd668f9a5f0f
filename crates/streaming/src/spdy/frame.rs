//! Decodes and encodes the frames of SPDY/3.1, in pieces of any size. Pure.
//!
//! The payload of a DATA frame is passed on as it arrives, so its length costs no memory; all other
//! frames, and the size of their inflated headers, are limited.
//!
//! Upstream: `spdy/read.go`, `spdy/write.go` and `spdy/types.go` of `github.com/moby/spdystream`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::drive::READ_BYTES;

use super::headers::{EmptyBlocks, Headers, Inflater};

/// Largest payload of a control frame, in bytes. A stream's headers take a hundred.
const CONTROL_BYTES_MAX: usize = 64 << 10;

/// Payloads up to this size are copied, so that they hold at most twice their size in memory: a longer
/// payload keeps the whole read buffer alive that it arrived in.
const COPIED_BYTES_MAX: usize = READ_BYTES / 2;

const HEAD_BYTES: usize = 8;
const CONTROL: u16 = 0x8000;
const VERSION: u16 = 3;
const STREAM_ID: u32 = 0x7fff_ffff;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

/// Why a stream was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reset {
    /// It can't be opened so.
    Protocol = 1,
    /// There are too many.
    Refused = 3,
    /// The stream is no longer needed.
    Cancel = 5,
}

/// A frame that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A stream is opened.
    SynStream {
        id: u32,
        /// The sender sends nothing on it.
        fin: bool,
        /// The receiver sends nothing on it.
        unidirectional: bool,
        headers: Headers,
    },
    /// A stream was accepted, or got more headers. A side that only accepts streams needs only the FIN
    /// flag of it.
    Headers { id: u32, fin: bool },
    /// A stream is ended in both directions.
    RstStream { id: u32 },
    /// To be sent back.
    Ping { id: u32 },
    /// No stream is opened any more.
    GoAway,
    /// Bytes of a stream; `fin` if the sender sends no more.
    Data { id: u32, fin: bool, bytes: Bytes },
    /// Settings and window updates, which this dialect ignores.
    Ignored,
}

/// A frame to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Send {
    SynReply { id: u32 },
    RstStream { id: u32, reset: Reset },
    Ping { id: u32 },
    GoAway { last: u32 },
    Data { id: u32, fin: bool, bytes: Bytes },
}

/// Invalid SPDY, or more than our limits allow. The connection can't be used afterwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("received a SPDY frame of version {0}")]
    Version(u16),
    #[error("received a SPDY frame of unknown type {0}")]
    Kind(u16),
    #[error("received a SPDY frame of {0} bytes")]
    TooLong(usize),
    #[error("received a malformed SPDY frame of type {0}")]
    Payload(u16),
    #[error("received a SPDY frame for an unknown stream")]
    NoStream,
    #[error("received headers that can't be decompressed")]
    Compression,
    #[error("received malformed or too large headers")]
    Headers,
}

/// The rest of a DATA frame.
struct Rest {
    id: u32,
    fin: bool,
    bytes: usize,
}

/// Takes bytes, gives frames.
pub(crate) struct Decoder {
    /// Received bytes that are not decoded yet.
    pub(crate) buffer: BytesMut,
    data: Option<Rest>,
    inflater: Inflater,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            buffer: BytesMut::new(),
            data: None,
            inflater: Inflater::new(),
        }
    }

    /// Returns the next frame, if it is complete, or the next piece of a DATA frame.
    ///
    /// # Errors
    /// The received bytes are not a frame; the decoder can't be used afterwards.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(rest) = self.data.take() {
                return Ok(self.piece(rest));
            }
            let Some(head) = self.buffer.first_chunk::<HEAD_BYTES>() else {
                return Ok(None);
            };
            let mut head = &head[..];
            let (first, kind, flags) = (head.get_u16(), head.get_u16(), head.get_u8());
            let length = usize::try_from(head.get_uint(3)).unwrap_or(usize::MAX);
            if first & CONTROL == 0 {
                let id = u32::from(first) << 16 | u32::from(kind);
                if id == 0 {
                    return Err(FrameError::NoStream);
                }
                self.buffer.advance(HEAD_BYTES);
                let fin = flags & FIN != 0;
                if length == 0 && !fin {
                    continue;
                }
                self.data = Some(Rest {
                    id,
                    fin,
                    bytes: length,
                });
                continue;
            }
            if first & !CONTROL != VERSION {
                return Err(FrameError::Version(first & !CONTROL));
            }
            if length > CONTROL_BYTES_MAX {
                return Err(FrameError::TooLong(length));
            }
            if self.buffer.len() < HEAD_BYTES + length {
                return Ok(None);
            }
            self.buffer.advance(HEAD_BYTES);
            let payload = self.buffer.split_to(length);
            return self.control(kind, flags, &payload).map(Some);
        }
    }

    /// Takes the received part of a DATA frame's payload.
    fn piece(&mut self, mut rest: Rest) -> Option<Frame> {
        let (id, wanted) = (rest.id, rest.bytes);
        let length = wanted.min(self.buffer.len());
        if length == 0 && wanted > 0 {
            self.data = Some(rest);
            return None;
        }
        let bytes = if length <= COPIED_BYTES_MAX {
            let copied = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(length);
            copied
        } else {
            self.buffer.split_to(length).freeze()
        };
        rest.bytes -= length;
        let fin = rest.fin && rest.bytes == 0;
        if rest.bytes > 0 {
            self.data = Some(rest);
        }
        Some(Frame::Data { id, fin, bytes })
    }

    fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> Result<Frame, FrameError> {
        let wrong = FrameError::Payload(kind);
        // Two numbers, which is what most hold.
        let pair = || match payload.split_first_chunk::<4>() {
            Some((first, rest)) => {
                let second = <[u8; 4]>::try_from(rest).map_err(|_| FrameError::Payload(kind))?;
                Ok((u32::from_be_bytes(*first), u32::from_be_bytes(second)))
            }
            None => Err(FrameError::Payload(kind)),
        };
        match kind {
            SYN_STREAM => {
                let (head, block) = payload.split_first_chunk::<10>().ok_or(wrong)?;
                let headers = self.inflater.block(block)?;
                let [a, b, c, d, ..] = *head;
                Ok(Frame::SynStream {
                    id: stream_id([a, b, c, d])?,
                    fin: flags & FIN != 0,
                    unidirectional: flags & UNIDIRECTIONAL != 0,
                    headers,
                })
            }
            SYN_REPLY | HEADERS => {
                let (id, block) = payload.split_first_chunk::<4>().ok_or(wrong)?;
                self.inflater.block(block)?;
                Ok(Frame::Headers {
                    id: stream_id(*id)?,
                    fin: flags & FIN != 0,
                })
            }
            RST_STREAM => {
                let (id, status) = pair()?;
                if status == 0 {
                    return Err(wrong);
                }
                let id = stream_id(id.to_be_bytes())?;
                Ok(Frame::RstStream { id })
            }
            PING => {
                let id = <[u8; 4]>::try_from(payload).map_err(|_| FrameError::Payload(kind))?;
                let id = u32::from_be_bytes(id);
                if id == 0 || flags != 0 {
                    return Err(wrong);
                }
                Ok(Frame::Ping { id })
            }
            GOAWAY => {
                pair()?;
                Ok(Frame::GoAway)
            }
            SETTINGS => {
                let (count, rest) = payload.split_first_chunk::<4>().ok_or(wrong)?;
                let count = usize::try_from(u32::from_be_bytes(*count)).unwrap_or(usize::MAX);
                if count != rest.len() / 8 || !rest.len().is_multiple_of(8) {
                    return Err(FrameError::Payload(kind));
                }
                Ok(Frame::Ignored)
            }
            WINDOW_UPDATE => {
                pair()?;
                Ok(Frame::Ignored)
            }
            unknown => Err(FrameError::Kind(unknown)),
        }
    }
}

fn stream_id(bytes: [u8; 4]) -> Result<u32, FrameError> {
    match u32::from_be_bytes(bytes) & STREAM_ID {
        0 => Err(FrameError::NoStream),
        id => Ok(id),
    }
}

/// Takes frames, gives bytes.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    blocks: EmptyBlocks,
}

impl Encoder {
    /// Encodes a frame. A payload must not exceed the maximum length of a frame.
    pub(super) fn encode(&mut self, frame: &Send, out: &mut BytesMut) {
        match frame {
            Send::SynReply { id } => {
                let mut block = Vec::new();
                self.blocks.next_block(&mut block);
                control(out, SYN_REPLY, 4 + block.len());
                out.put_u32(*id);
                out.put_slice(&block);
            }
            Send::RstStream { id, reset } => {
                control(out, RST_STREAM, 8);
                out.put_u32(*id);
                out.put_u32(*reset as u32);
            }
            Send::Ping { id } => {
                control(out, PING, 4);
                out.put_u32(*id);
            }
            Send::GoAway { last } => {
                control(out, GOAWAY, 8);
                out.put_u32(*last);
                out.put_u32(0);
            }
            Send::Data { id, fin, bytes } => {
                out.put_u32(*id);
                out.put_u8(if *fin { FIN } else { 0 });
                length(out, bytes.len());
                out.put_slice(bytes);
            }
        }
    }
}

fn control(out: &mut BytesMut, kind: u16, payload: usize) {
    out.put_u16(CONTROL | VERSION);
    out.put_u16(kind);
    out.put_u8(0);
    length(out, payload);
}

/// Three bytes.
fn length(out: &mut BytesMut, length: usize) {
    out.put_uint(length as u64, 3);
}

#[cfg(test)]
mod tests;
