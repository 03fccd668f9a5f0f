//! Container logs: their options and streams.

use futures::stream::BoxStream;

use super::{LogChunk, Result};
use mirrorlet_core::api::Timestamp;

/// The requested outputs of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogSource {
    /// Both.
    #[default]
    All,
    /// Standard output; for a container with a TTY, all of its output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The requested part and form of a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogOptions {
    /// Continue with new lines until the container ends.
    pub follow: bool,
    /// The number of last lines to return; none for all.
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

/// The stream of a log. No piece is split inside a line's timestamp.
pub type LogStream = BoxStream<'static, Result<LogChunk>>;
