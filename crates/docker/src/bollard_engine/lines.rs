//! Streams of JSON, one message a line: events, pulls, loads.

use std::io;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt};
use http_body_util::BodyStream;
use hyper::body::Incoming;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tokio_util::io::StreamReader;

/// Longest line taken from the Engine, in bytes. An event carries all labels of its container,
/// which a manifest can make large, but not that large.
const MAX_LINE_BYTES: usize = 4 << 20;

/// The data of a body, chunk by chunk as it comes.
pub(super) fn chunks(body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Send + Unpin {
    Box::pin(
        BodyStream::new(body)
            .map_err(io::Error::other)
            .try_filter_map(async |frame| Ok(frame.into_data().ok())),
    )
}

/// The lines of a body, empty ones left out.
pub(super) fn lines(body: Incoming) -> impl Stream<Item = io::Result<String>> + Send + Unpin {
    let codec = LinesCodec::new_with_max_length(MAX_LINE_BYTES);
    Box::pin(
        FramedRead::new(StreamReader::new(chunks(body)), codec)
            .map(|line| {
                line.map_err(|error| match error {
                    LinesCodecError::Io(error) => error,
                    LinesCodecError::MaxLineLengthExceeded => {
                        io::Error::new(io::ErrorKind::InvalidData, "a line is too long")
                    }
                })
            })
            .try_filter(|line| std::future::ready(!line.trim().is_empty())),
    )
}
