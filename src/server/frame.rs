//! Logs on the wire: frames that separate standard output, standard error and a late failure.
//!
//! A frame is one byte for its kind, four bytes for the length of its payload (big endian), and the
//! payload.

use std::fmt::Display;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use mirrorlet_streaming::Chunk;

/// Maximum payload that the reader accepts, in bytes. The Engine sends lines in pieces of 16 KiB; this
/// leaves room for timestamps and for a writer that joins some.
pub const PAYLOAD_MAX: usize = 1 << 20;

const HEADER_BYTES: usize = 5;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const FAILED: u8 = 3;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Standard output.
    Stdout(Bytes),
    /// Standard error.
    Stderr(Bytes),
    /// The log broke off, for this reason. Nothing follows.
    Failed(String),
}

/// Bytes that are not frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// No such kind.
    #[error("received a frame of unknown type {0}; the agent may be of another version")]
    Kind(u8),
    /// Longer than [`PAYLOAD_MAX`].
    #[error("received a frame of {0} bytes")]
    TooLong(usize),
}

impl Frame {
    /// The frame's bytes; a payload beyond [`PAYLOAD_MAX`] is cut into several frames.
    pub fn encode(&self) -> Bytes {
        let (kind, payload): (u8, &[u8]) = match self {
            Self::Stdout(bytes) => (STDOUT, bytes),
            Self::Stderr(bytes) => (STDERR, bytes),
            Self::Failed(words) => (FAILED, words.as_bytes()),
        };
        let mut out = BytesMut::with_capacity(HEADER_BYTES + payload.len());
        for piece in payload.chunks(PAYLOAD_MAX) {
            out.put_u8(kind);
            out.put_u32(u32::try_from(piece.len()).unwrap_or(u32::MAX));
            out.put_slice(piece);
        }
        out.freeze()
    }
}

/// Encodes frames one after the other. Consecutive output of the same stream shares a frame, as far as
/// it fits.
#[derive(Debug, Default)]
pub struct FrameWriter {
    wire: BytesMut,
    /// Kind of the last frame, where it begins, and the bytes it holds.
    last: Option<(u8, usize, usize)>,
}

impl FrameWriter {
    /// Adds a frame.
    pub fn push(&mut self, frame: &Frame) {
        let (kind, payload) = match frame {
            Frame::Stdout(bytes) => (STDOUT, bytes),
            Frame::Stderr(bytes) => (STDERR, bytes),
            Frame::Failed(_) => {
                self.last = None;
                self.wire.put_slice(&frame.encode());
                return;
            }
        };
        match self.last {
            Some((last, at, held)) if last == kind && held + payload.len() <= PAYLOAD_MAX => {
                let length = held + payload.len();
                self.wire.put_slice(payload);
                let header = header(kind, u32::try_from(length).unwrap_or(u32::MAX));
                self.wire[at..at + HEADER_BYTES].copy_from_slice(&header);
                self.last = Some((kind, at, length));
            }
            Some(_) | None => {
                self.last =
                    (payload.len() <= PAYLOAD_MAX).then(|| (kind, self.wire.len(), payload.len()));
                if payload.is_empty() {
                    self.wire.put_slice(&header(kind, 0));
                } else {
                    self.wire.put_slice(&frame.encode());
                }
            }
        }
    }

    /// The frames' bytes.
    #[must_use]
    pub fn finish(self) -> Bytes {
        self.wire.freeze()
    }
}

/// Encodes the pieces of a log. Neighbours of the same stream share frames.
pub(super) fn framed<E: Display>(pieces: Vec<Result<Chunk, E>>) -> Bytes {
    let mut frames = FrameWriter::default();
    for piece in pieces {
        frames.push(&match piece {
            Ok(Chunk::Stdout(bytes)) => Frame::Stdout(bytes),
            Ok(Chunk::Stderr(bytes)) => Frame::Stderr(bytes),
            Err(error) => Frame::Failed(error.to_string()),
        });
    }
    frames.finish()
}

/// Takes bytes in pieces of any size, returns frames.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: BytesMut,
}

impl FrameReader {
    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Whether an unfinished frame is left.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the next complete frame, if there is one.
    ///
    /// # Errors
    /// The bytes are not frames; the reader can't be used afterwards.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, length @ ..] = *header;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > PAYLOAD_MAX {
            return Err(FrameError::TooLong(length));
        }
        if !(STDOUT..=FAILED).contains(&kind) {
            return Err(FrameError::Kind(kind));
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        parse(kind, self.buffer.split_to(length).freeze()).map(Some)
    }
}

/// The beginning of a frame.
fn header(kind: u8, length: u32) -> BytesMut {
    let mut out = BytesMut::with_capacity(HEADER_BYTES);
    out.put_u8(kind);
    out.put_u32(length);
    out
}

fn parse(kind: u8, payload: Bytes) -> Result<Frame, FrameError> {
    Ok(match kind {
        STDOUT => Frame::Stdout(payload),
        STDERR => Frame::Stderr(payload),
        FAILED => Frame::Failed(String::from_utf8_lossy(&payload).into_owned()),
        unknown => return Err(FrameError::Kind(unknown)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Vec<Frame>> {
        let bytes = prop::collection::vec(any::<u8>(), 1..200).prop_map(Bytes::from);
        prop::collection::vec(
            prop_oneof![
                bytes.clone().prop_map(Frame::Stdout),
                bytes.prop_map(Frame::Stderr),
                "[a-z ]{1,20}".prop_map(Frame::Failed),
            ],
            0..10,
        )
    }

    /// The same with output that follows output of its stream put together.
    fn joined(frames: &[Frame]) -> Vec<Frame> {
        let mut all: Vec<Frame> = Vec::new();
        for frame in frames {
            match (all.last_mut(), frame) {
                (Some(Frame::Stdout(before)), Frame::Stdout(more))
                | (Some(Frame::Stderr(before)), Frame::Stderr(more)) => {
                    *before = [before.as_ref(), more.as_ref()].concat().into();
                }
                (_, frame) => all.push(frame.clone()),
            }
        }
        all
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(sent in frames(), cut in 1usize..50) {
            let bytes: Vec<u8> = sent.iter().flat_map(|f| f.encode().to_vec()).collect();
            let mut reader = FrameReader::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(cut) {
                reader.push(piece);
                while let Some(frame) = reader.next_frame().unwrap() {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, sent);
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn joined_frames_hold_the_same(sent in frames()) {
            let mut writer = FrameWriter::default();
            for frame in &sent {
                writer.push(frame);
            }
            let mut reader = FrameReader::default();
            reader.push(&writer.finish());
            let mut got = Vec::new();
            while let Some(frame) = reader.next_frame().unwrap() {
                got.push(frame);
            }
            prop_assert!(reader.is_empty());
            prop_assert_eq!(joined(&got), joined(&sent));
            let same = |pair: &[Frame]| {
                matches!(
                    pair,
                    [Frame::Stdout(_), Frame::Stdout(_)] | [Frame::Stderr(_), Frame::Stderr(_)]
                )
            };
            prop_assert!(!got.windows(2).any(same), "not joined: {got:?}");
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut reader = FrameReader::default();
            reader.push(&bytes);
            while let Ok(Some(_)) = reader.next_frame() {}
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        let mut reader = FrameReader::default();
        reader.push(b"HTTP/1.1");
        assert!(reader.next_frame().is_err());
        let mut reader = FrameReader::default();
        reader.push(&[9, 0, 0, 0, 0]);
        assert_eq!(reader.next_frame(), Err(FrameError::Kind(9)));
    }
}
