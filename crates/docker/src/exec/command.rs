//! Runs a command to its end, for probes, hooks and callers that need its output.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::time::{Instant, timeout};
use tokio_util::codec::FramedRead;

use super::super::logs::FrameDecoder;
use super::{EXEC, EXEC_GOES_ON, End, Exec, Execs};
use mirrorlet_core::api::ContainerId;
use mirrorlet_runtime::exec::COMMAND_OUTPUT_MAX;
use mirrorlet_runtime::{
    CommandOutput, ExecOptions, LogChunk, Result, RuntimeError, StreamOptions,
};

impl Execs {
    /// See [`Runtime::run_in_container`](mirrorlet_runtime::Runtime::run_in_container). Calls that fail
    /// because this machine lacks a resource are retried for `retries`; the command runs once.
    pub(crate) async fn run_command(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        after: Duration,
        retries: Duration,
    ) -> Result<CommandOutput> {
        let options = ExecOptions {
            command,
            streams: StreamOptions {
                stdout: true,
                stderr: true,
                ..StreamOptions::default()
            },
            size: None,
        };
        let created = self.create_exec(id, &options, Instant::now() + retries);
        let exec = created.await.map_err(unanswered)?;
        // The Engine has it now. It may be large, and run for hours.
        drop(options);
        if let Ok(done) = timeout(after, exec.collect()).await {
            return done.map_err(unanswered);
        }
        if exec.asking.load(Ordering::Relaxed) {
            // What may have been started is ended once this is dropped.
            let operation = EXEC;
            return Err(unanswered(RuntimeError::Timeout { operation, after }));
        }
        let late = |operation| RuntimeError::Timeout { operation, after };
        Err(match exec.end().await {
            // The Engine is late, not the command.
            End::NeverBegan => unanswered(late(EXEC)),
            End::Ended => late(EXEC),
            End::GoesOn => late(EXEC_GOES_ON),
        })
    }
}

impl Exec {
    /// Starts it, reads all it writes and waits for its end.
    async fn collect(&self) -> Result<CommandOutput> {
        let start = || self.engine.start_exec(&self.id, false);
        let stream = self.answer(start).await?;
        let mut frames = FramedRead::new(stream, FrameDecoder);
        let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
        while let Some(frame) = frames.next().await {
            match frame.map_err(|error| broken(&error))? {
                LogChunk::Stdout(data) => keep(&mut stdout, &data),
                LogChunk::Stderr(data) => keep(&mut stderr, &data),
            }
        }
        let exit_code = self.ended().await?;
        stdout.unsplit(stderr);
        Ok(CommandOutput {
            exit_code,
            output: stdout.freeze(),
        })
    }
}

/// An Engine that doesn't answer says nothing about the command.
fn unanswered(error: RuntimeError) -> RuntimeError {
    if let RuntimeError::Timeout { .. } = error {
        return RuntimeError::Unavailable(error.to_string());
    }
    error
}

/// The stream ended within a frame, or with invalid data.
fn broken(error: &std::io::Error) -> RuntimeError {
    RuntimeError::Unavailable(format!("lost the connection to the command: {error}"))
}

/// Adds what there is room for.
fn keep(kept: &mut BytesMut, data: &Bytes) {
    let room = COMMAND_OUTPUT_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&data[..data.len().min(room)]);
}
