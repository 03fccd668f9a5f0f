//! Commands run in containers, and the streams of what runs there: what can be asked for, and
//! what comes.
//!
//! Upstream: `pkg/kubelet/container/runtime.go` (`CommandRunner`, `StreamingRuntime`) and the
//! early kubelet's `ExecInContainer`, `AttachContainer`, `PortForward`.

use std::fmt;
use std::pin::Pin;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use mirrorlet_streaming::Duplex;
use tokio::io::AsyncWrite;

use super::{LogChunk, Result, StreamOptions, TerminalSize};

/// Most bytes kept of each of a command's streams; what comes beyond is read and dropped. Hundreds
/// of probes run at once, and no more of their output is ever shown.
///
/// Upstream: `maxReadLength` of `pkg/probe/exec/exec.go`.
pub const COMMAND_OUTPUT_MAX: usize = 10 << 10;

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct CommandOutput {
    /// Its exit code: 126 and 127 where it could not be run, 137 where it was killed.
    pub exit_code: i32,
    /// Standard output and then standard error, each of at most [`COMMAND_OUTPUT_MAX`] bytes.
    pub output: Bytes,
}

impl fmt::Debug for CommandOutput {
    /// Without the output, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandOutput")
            .field("exit_code", &self.exit_code)
            .field("output_bytes", &self.output.len())
            .finish()
    }
}

/// A command to run in a container, as the container's user, in its environment and directory.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ExecOptions {
    /// Program and arguments; no shell is involved.
    pub command: Vec<String>,
    /// Its streams.
    pub streams: StreamOptions,
    /// First size of its terminal.
    pub size: Option<TerminalSize>,
}

impl fmt::Debug for ExecOptions {
    /// Without the arguments, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecOptions")
            .field("program", &self.command.first())
            .field("streams", &self.streams)
            .finish_non_exhaustive()
    }
}

/// A [`Duplex`] handed around.
pub type DuplexStream = Box<dyn Duplex>;

/// The streams of a process in a container.
///
/// Nothing is buffered beyond one read: whoever doesn't read holds up the process.
/// Dropping the session ends what it started: the command of an exec with its whole process
/// group, nothing of an attach.
pub struct Session {
    /// Whether it is a terminal's: one raw stream in each direction.
    pub tty: bool,
    /// Standard input, where asked for. Shutting it down is its end for the process; dropping it
    /// is not.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// The output of the process, until it and all processes with its streams have ended.
    pub output: BoxStream<'static, Result<LogChunk>>,
    /// The rest.
    pub control: Box<dyn SessionControl>,
}

mirrorlet_core::partial_debug!(Session);

/// Controls a process, besides its streams.
#[async_trait]
pub trait SessionControl: Send + Sync {
    /// Gives its terminal another size; a size that no terminal has is ignored. A failure is not
    /// told: a process without a terminal, or one that has ended, has no size.
    async fn resize(&self, size: TerminalSize);

    /// The exit code, once the output has ended; none where the process goes on without us, or
    /// nobody knows any more.
    ///
    /// # Errors
    /// The command had not ended after all, or the runtime did not know.
    async fn exit_code(&self) -> Result<Option<i32>>;
}
