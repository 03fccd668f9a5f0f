//! A container's log in the form that users request, from the Engine's frames.
//!
//! The log is read from the Engine, which also reads rotated and compressed files, and every log driver
//! that can be read. It splits long lines into frames of 16 KiB and repeats the timestamp on each: the
//! repeated ones are removed here.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use tokio_util::codec::Decoder;

use super::engine::{Engine, LogFrames};
use mirrorlet_runtime::{LogChunk, LogOptions, LogStream, Result, RuntimeError};

/// Bytes of a frame's header: stream, three zeroes, big-endian length.
const HEADER_BYTES: usize = 8;

/// Maximum length of a frame, in bytes. The Engine splits lines at 16 KiB; only its own error messages
/// may be longer.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Cuts the Engine's multiplexed stream into its frames.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder;

impl Decoder for FrameDecoder {
    type Item = LogChunk;
    type Error = io::Error;

    fn decode(&mut self, source: &mut BytesMut) -> io::Result<Option<LogChunk>> {
        let Some((header, _)) = source.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [kind, _, _, _, a, b, c, d] = *header;
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        if kind > 3 || length > MAX_FRAME_BYTES {
            return Err(invalid(format!(
                "not a log frame: kind {kind}, length {length}"
            )));
        }
        if source.len() < HEADER_BYTES + length {
            source.reserve(HEADER_BYTES + length - source.len());
            return Ok(None);
        }
        source.advance(HEADER_BYTES);
        let data = source.split_to(length).freeze();
        match kind {
            2 => Ok(Some(LogChunk::Stderr(data))),
            3 => Err(invalid(String::from_utf8_lossy(&data).into_owned())),
            _ => Ok(Some(LogChunk::Stdout(data))),
        }
    }
}

/// Returns the log of a container, limited and timestamped as the options say.
///
/// With `tty` the output is one raw stream; with timestamps, a line of more than 16 KiB has one per
/// piece, because the pieces can't be recognized.
pub async fn container_logs(
    engine: &dyn Engine,
    id: &str,
    options: &LogOptions,
    tty: bool,
) -> Result<LogStream> {
    let frames = engine.logs(id, options, tty).await?;
    let stamped = options.timestamps && !tty;
    Ok(shape(frames, stamped, options.limit_bytes))
}

/// The state kept between frames.
struct Shape {
    frames: LogFrames,
    /// Whether frames begin with a stamp, of which only a line's first is wanted.
    stamped: bool,
    /// Whether the last frame of stdout, stderr ended within a line.
    within_line: [bool; 2],
    /// Bytes still wanted.
    budget: Option<u64>,
}

fn shape(frames: LogFrames, stamped: bool, limit_bytes: Option<u64>) -> LogStream {
    let state = Shape {
        frames,
        stamped,
        within_line: [false; 2],
        budget: limit_bytes,
    };
    stream::unfold(state, |mut state| async move {
        if state.budget == Some(0) {
            return None;
        }
        let item = match state.frames.next().await? {
            Ok(LogChunk::Stdout(data)) => Ok(LogChunk::Stdout(state.take(data, 0))),
            Ok(LogChunk::Stderr(data)) => Ok(LogChunk::Stderr(state.take(data, 1))),
            Err(error) => Err(RuntimeError::from(error)),
        };
        Some((item, state))
    })
    .boxed()
}

impl Shape {
    /// The part of a frame that is wanted.
    fn take(&mut self, mut data: Bytes, stream: usize) -> Bytes {
        let ended = data.ends_with(b"\n");
        if self.stamped && self.within_line[stream] {
            data.advance(stamp_bytes(&data));
        }
        self.within_line[stream] = !ended;
        if let Some(budget) = &mut self.budget {
            let wanted = usize::try_from(*budget).unwrap_or(usize::MAX);
            data.truncate(wanted);
            *budget -= data.len() as u64;
        }
        data
    }
}

/// Bytes of the stamp and the space that a frame begins with; 0 when it has none.
fn stamp_bytes(data: &[u8]) -> usize {
    let Some(space) = data.iter().take(MAX_STAMP_BYTES).position(|b| *b == b' ') else {
        return 0;
    };
    let stamp = std::str::from_utf8(&data[..space]).unwrap_or_default();
    match stamp.parse::<mirrorlet_core::api::Timestamp>() {
        Ok(_) => space + 1,
        Err(_) => 0,
    }
}

/// Longest RFC 3339 stamp with its space: `2006-01-02T15:04:05.000000000+00:00 `.
const MAX_STAMP_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAMP: &str = "2026-01-02T03:04:05.000000006Z ";

    fn out(text: &str) -> LogChunk {
        LogChunk::Stdout(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn err(text: &str) -> LogChunk {
        LogChunk::Stderr(Bytes::copy_from_slice(text.as_bytes()))
    }

    async fn shaped(chunks: Vec<LogChunk>, stamped: bool, limit: Option<u64>) -> (String, String) {
        let frames = stream::iter(chunks.into_iter().map(Ok)).boxed();
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut log = shape(frames, stamped, limit);
        while let Some(item) = log.next().await {
            match item.unwrap() {
                LogChunk::Stdout(data) => stdout.extend(data),
                LogChunk::Stderr(data) => stderr.extend(data),
            }
        }
        (
            String::from_utf8(stdout).unwrap(),
            String::from_utf8(stderr).unwrap(),
        )
    }

    #[tokio::test]
    async fn a_line_of_several_frames_keeps_one_stamp() {
        let frames = vec![
            out(&format!("{STAMP}aaa")),
            err(&format!("{STAMP}err\n")),
            out(&format!("{STAMP}bbb")),
            out(&format!("{STAMP}ccc\n")),
            out(&format!("{STAMP}next\n")),
        ];
        let (stdout, stderr) = shaped(frames, true, None).await;
        assert_eq!(stdout, format!("{STAMP}aaabbbccc\n{STAMP}next\n"));
        assert_eq!(stderr, format!("{STAMP}err\n"));
    }

    #[tokio::test]
    async fn without_stamps_nothing_is_taken_out() {
        let frames = vec![
            out("2026-01-02T03:04:05Z a"),
            out("2026-01-02T03:04:05Z b\n"),
        ];
        let (stdout, _) = shaped(frames, false, None).await;
        assert_eq!(stdout, "2026-01-02T03:04:05Z a2026-01-02T03:04:05Z b\n");
    }

    #[tokio::test]
    async fn both_streams_share_the_limit_and_it_ends_the_log() {
        let frames = vec![out("12345"), err("67890"), out("never")];
        let (stdout, stderr) = shaped(frames.clone(), false, Some(7)).await;
        // docker 52
        assert_eq!((stdout.as_str(), stderr.as_str()), ("12345", "67"));
        let (stdout, stderr) = shaped(frames, false, Some(0)).await;
        assert_eq!((stdout.as_str(), stderr.as_str()), ("", ""));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        for bytes in [&b"\x09\0\0\0\0\0\0\0"[..], b"\x01\0\0\0\xff\xff\xff\xff"] {
            // tenants H3
            assert!(FrameDecoder.decode(&mut BytesMut::from(bytes)).is_err());
        }
        let mut system = BytesMut::from(&b"\x03\0\0\0\0\0\0\x02no"[..]);
        let error = FrameDecoder.decode(&mut system).unwrap_err();
        assert_eq!(error.to_string(), "no");
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            frames in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            cut in 1_usize..20,
        ) {
            let mut wire = Vec::new();
            for (stderr, data) in &frames {
                wire.extend([1 + u8::from(*stderr), 0, 0, 0, 0, 0, 0, u8::try_from(data.len()).unwrap()]);
                wire.extend(data);
            }
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for piece in wire.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(chunk) = FrameDecoder.decode(&mut buffer).unwrap() {
                    seen.push(match chunk {
                        LogChunk::Stdout(data) => (false, data.to_vec()),
                        LogChunk::Stderr(data) => (true, data.to_vec()),
                    });
                }
            }
            // docker 52
            prop_assert_eq!(seen, frames);
        }
    }
}
