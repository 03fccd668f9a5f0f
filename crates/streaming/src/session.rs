//! The process behind an exec or attach: its streams, and the operations on it.

use std::fmt::{self, Display};
use std::pin::Pin;

use bytes::Bytes;
use futures::stream::BoxStream;
use tokio::io::{AsyncRead, AsyncWrite};

/// A connection in both directions. Shutting down the write side leaves the read side open.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub width: u16,
    /// Rows.
    pub height: u16,
}

impl TerminalSize {
    /// Whether a terminal can have this size. Clients without a terminal send zeroes.
    #[must_use]
    pub fn is_usable(self) -> bool {
        self.width > 0 && self.height > 0
    }
}

/// The streams of a process that a client requests.
#[expect(
    clippy::struct_excessive_bools,
    reason = "the four flags of the Kubernetes API"
)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamOptions {
    /// The client writes to standard input.
    pub stdin: bool,
    /// The client reads standard output.
    pub stdout: bool,
    /// The client reads standard error. A process with a TTY has none.
    pub stderr: bool,
    /// The process has a TTY: its single raw stream counts as standard output.
    pub tty: bool,
}

/// A piece of a process's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// From standard output, or from the TTY if the process has one.
    Stdout(Bytes),
    /// From standard error.
    Stderr(Bytes),
}

impl Chunk {
    /// The bytes of either stream.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        let (Self::Stdout(bytes) | Self::Stderr(bytes)) = self;
        bytes
    }
}

/// The streams of a process.
///
/// The server holds at most a few reads of each direction, so that a slow client slows down the
/// process, and a slow process its client. The session is dropped when the process has ended or
/// the client is gone; an implementation that must end the process then does so in `Drop`.
pub struct Session<P: Process> {
    /// Standard input, if the client requested it. Shutting it down closes it for the process; dropping
    /// it does not.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// Standard output and standard error, until all writers have closed them.
    pub output: BoxStream<'static, Result<Chunk, P::Error>>,
    /// The process itself.
    pub process: P,
}

impl<P: Process> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// A process, apart from its streams.
pub trait Process: Send + Sync {
    /// Why output or exit code can't be read; its text is sent to the client.
    type Error: Display + Send;

    /// Sets the size of the TTY. A process without one ignores it.
    fn resize(&self, size: TerminalSize) -> impl Future<Output = ()> + Send;

    /// Returns the exit code; called once the output has ended. `None` counts as success: the process
    /// continues, or its code is unknown.
    ///
    /// # Errors
    /// The exit code can't be read.
    fn exit_code(&self) -> impl Future<Output = Result<Option<i32>, Self::Error>> + Send;
}
