//! Streams of JSON with one message per line: events, pulls, loads.

use std::io;

use bytes::{Bytes, BytesMut};
use futures::{Stream, TryStreamExt};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use tokio::io::AsyncRead;
use tokio_util::codec::{Decoder, FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

/// Longest line taken from the Engine, in bytes. An event carries all labels of its container,
/// which a manifest can make large, but not that large; those of its image have no bound.
const MAX_LINE_BYTES: usize = 4 << 20;

/// Cuts text into lines. One that is too long is empty: it must not end the stream, which would
/// begin with it again.
struct Lines(LinesCodec);

impl Lines {
    fn new() -> Self {
        Self(LinesCodec::new_with_max_length(MAX_LINE_BYTES))
    }

    fn read(decoded: Result<Option<String>, LinesCodecError>) -> io::Result<Option<String>> {
        match decoded {
            Ok(line) => Ok(line),
            Err(LinesCodecError::Io(error)) => Err(error),
            Err(LinesCodecError::MaxLineLengthExceeded) => {
                tracing::warn!(
                    max = MAX_LINE_BYTES,
                    "skipped a line of the Docker Engine's response that is too long"
                );
                Ok(Some(String::new()))
            }
        }
    }
}

impl Decoder for Lines {
    type Item = String;
    type Error = io::Error;

    fn decode(&mut self, source: &mut BytesMut) -> io::Result<Option<String>> {
        Self::read(self.0.decode(source))
    }

    fn decode_eof(&mut self, source: &mut BytesMut) -> io::Result<Option<String>> {
        Self::read(self.0.decode_eof(source))
    }
}

/// The data of a body, chunk by chunk as it arrives.
pub(super) fn chunks(body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
    Box::pin(
        BodyStream::new(body)
            .map_err(io::Error::other)
            .try_filter_map(async |frame| Ok(frame.into_data().ok())),
    )
}

/// The lines of a body, empty ones left out.
pub(super) fn lines(body: Incoming) -> impl Stream<Item = io::Result<String>> + Send + Unpin {
    lines_of(StreamReader::new(chunks(body)))
}

fn lines_of(
    text: impl AsyncRead + Send + Unpin,
) -> impl Stream<Item = io::Result<String>> + Send + Unpin {
    FramedRead::new(text, Lines::new())
        .try_filter(|line| std::future::ready(!line.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The labels of an image are whatever its author wants, and no reason to lose sight of what
    /// others run.
    #[tokio::test]
    async fn a_line_too_long_is_left_out_and_the_next_one_read() {
        let text = format!("one\n{}\ntwo\n", "x".repeat(MAX_LINE_BYTES + 1));
        let lines: Vec<String> = lines_of(text.as_bytes()).try_collect().await.unwrap();
        // tenants H3
        assert_eq!(lines, ["one", "two"]);
    }
}
