//! Container logs: what can be asked for, and what comes.

use futures::stream::BoxStream;

use super::{LogChunk, Result};
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

/// A log as it comes. No piece is cut inside of a line's time stamp.
pub type LogStream = BoxStream<'static, Result<LogChunk>>;
