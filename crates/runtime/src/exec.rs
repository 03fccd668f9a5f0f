//! Commands in containers, and the streams of processes there.
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

/// Maximum size of the output that is kept of each of a command's streams; the rest is read and
/// discarded. Hundreds of probes run at once, and no more of their output is ever shown.
///
/// Upstream: `maxReadLength` of `pkg/probe/exec/exec.go`.
pub const COMMAND_OUTPUT_MAX: usize = 10 << 10;

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct CommandOutput {
    /// Its exit code: 126 or 127 if it could not be run, 137 if it was killed.
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
/// Nothing is buffered beyond one read: a reader that stops blocks the process. Dropping the session
/// ends what it started: the command of an exec with its whole process group, nothing for an attach.
pub struct Session {
    /// Whether the process has a TTY: one raw stream in each direction.
    pub tty: bool,
    /// Standard input, if requested. Shutting it down closes it for the process; dropping it does not.
    pub stdin: Option<Pin<Box<dyn AsyncWrite + Send>>>,
    /// The output of the process, until it and all other processes that share its streams have ended.
    pub output: BoxStream<'static, Result<LogChunk>>,
    /// The rest.
    pub control: Box<dyn SessionControl>,
}

mirrorlet_core::partial_debug!(Session);

/// Controls a process, besides its streams.
#[async_trait]
pub trait SessionControl: Send + Sync {
    /// Resizes the terminal; an impossible size is ignored. Failures are not reported: a process
    /// without a terminal, or one that has ended, can't be resized.
    async fn resize(&self, size: TerminalSize);

    /// Returns the exit code once the output has ended; none if the process continues, or its exit code
    /// is unknown.
    ///
    /// # Errors
    /// The command had not ended after all, or the runtime did not know its exit code.
    async fn exit_code(&self) -> Result<Option<i32>>;
}
