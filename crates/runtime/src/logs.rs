//! Container logs: what can be asked for, and what comes.

use bytes::Bytes;
use futures::stream::BoxStream;

use super::Result;
use mirrorlet_core::api::Timestamp;

/// The requested outputs of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogSource {
    /// Both.
    #[default]
    All,
    /// Standard output; of a container with a terminal, all there is.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The requested part and form of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Go on with new lines until the container ends.
    pub follow: bool,
    /// Only that many of the last lines; none for all.
    pub tail: Option<u64>,
    /// Only lines written at or after this time.
    pub since: Option<Timestamp>,
    /// Begin every line with its time (RFC 3339, nanoseconds).
    pub timestamps: bool,
    /// End after that many bytes.
    pub limit_bytes: Option<u64>,
    /// Of which output.
    pub source: LogSource,
}

/// A piece of a container's output, never cut inside of a line's time stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogChunk {
    /// From standard output, or from the terminal of a container that has one.
    Stdout(Bytes),
    /// From standard error.
    Stderr(Bytes),
}

impl LogChunk {
    /// The bytes, of either stream.
    pub fn bytes(&self) -> &Bytes {
        let (Self::Stdout(bytes) | Self::Stderr(bytes)) = self;
        bytes
    }
}

/// A log as it comes.
pub type LogStream = BoxStream<'static, Result<LogChunk>>;
