//! The streams of a process: of a command, or of a container's main process.

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::io::{AsyncRead, split};
use tokio::time::{Instant, sleep};
use tokio_util::codec::FramedRead;
use tokio_util::io::ReaderStream;

use super::super::containers::not_running;
use super::super::engine::SharedEngine;
use super::super::logs::FrameDecoder;
use super::{Exec, Execs, found_within};
use mirrorlet_core::api::ContainerId;
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_runtime::exec::DuplexStream;
use mirrorlet_runtime::{
    ExecOptions, LogChunk, Result, RuntimeError, Session, SessionControl, StreamOptions,
    TerminalSize,
};

/// Bytes read at a time.
const READ_BYTES: usize = 32 << 10;
/// How often, and with which pauses, the terminal of a command that is just starting is given its
/// size: the Engine answers the start before there is a process.
const RESIZES_MAX: u32 = 8;
const RESIZES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(5), Duration::from_secs(1));
/// How long after its output a container may still count as running.
const CONTAINER_END_WAIT: Duration = Duration::from_secs(2);

impl Execs {
    /// See [`ContainerAccess::exec_in_container`](mirrorlet_runtime::ContainerAccess::exec_in_container).
    pub(crate) async fn exec(&self, id: &ContainerId, options: &ExecOptions) -> Result<Session> {
        let exec = self.create_exec(id, options, Instant::now()).await?;
        let tty = options.streams.tty;
        let stream = exec.engine.start_exec(&exec.id, tty).await?;
        if let Some(size) = options.size.filter(|_| tty) {
            exec.resize(size).await;
        }
        Ok(session(stream, options.streams, Box::new(exec)))
    }

    /// See [`ContainerAccess::attach_container`](mirrorlet_runtime::ContainerAccess::attach_container).
    pub(crate) async fn attach(&self, id: &ContainerId, streams: StreamOptions) -> Result<Session> {
        self.containers.check_running(id)?;
        let found = self.containers.engine.inspect_container(&id.id).await?;
        let running = found.state.and_then(|state| state.running);
        if running != Some(true) {
            return Err(not_running(&id.id));
        }
        let config = found.config.unwrap_or_default();
        if streams.stdin && config.open_stdin != Some(true) {
            return Err(RuntimeError::Conflict(
                "the container has no standard input: its manifest does not set stdin: true"
                    .to_owned(),
            ));
        }
        let streams = StreamOptions {
            tty: config.tty.unwrap_or(false),
            ..streams
        };
        let stream = self
            .containers
            .engine
            .attach_container(&id.id, streams)
            .await?;
        let control = Attached {
            engine: self.containers.engine.clone(),
            id: id.id.to_string(),
        };
        Ok(session(stream, streams, Box::new(control)))
    }
}

fn session(
    stream: DuplexStream,
    streams: StreamOptions,
    control: Box<dyn SessionControl>,
) -> Session {
    let (read, write) = split(stream);
    Session {
        tty: streams.tty,
        stdin: streams.stdin.then(|| Box::pin(write) as _),
        output: chunks(read, streams.tty),
        control,
    }
}

/// The output of a process, as it arrives.
fn chunks(
    read: impl AsyncRead + Send + Unpin + 'static,
    tty: bool,
) -> BoxStream<'static, Result<LogChunk>> {
    let broken = |error: std::io::Error| {
        RuntimeError::Unavailable(format!("lost the connection to the process: {error}"))
    };
    if tty {
        return ReaderStream::with_capacity(read, READ_BYTES)
            .map_ok(LogChunk::Stdout)
            .map_err(broken)
            .boxed();
    }
    FramedRead::with_capacity(read, FrameDecoder, READ_BYTES)
        .map_err(broken)
        .boxed()
}

#[async_trait]
impl SessionControl for Exec {
    async fn resize(&self, size: TerminalSize) {
        if !size.is_usable() {
            return;
        }
        let mut backoff = RESIZES;
        for _ in 0..RESIZES_MAX {
            if self.engine.resize_exec(&self.id, size).await.is_ok() {
                return;
            }
            sleep(backoff.pause()).await;
        }
    }

    async fn exit_code(&self) -> Result<Option<i32>> {
        self.ended().await.map(Some)
    }
}

/// The main process of a container, which continues without us.
struct Attached {
    engine: SharedEngine,
    id: String,
}

#[async_trait]
impl SessionControl for Attached {
    async fn resize(&self, size: TerminalSize) {
        if size.is_usable() {
            // One that has ended needs no size.
            let _ = self.engine.resize_container(&self.id, size).await;
        }
    }

    async fn exit_code(&self) -> Result<Option<i32>> {
        let look = || async {
            match self.engine.inspect_container(&self.id).await {
                Ok(found) => {
                    let state = found.state.unwrap_or_default();
                    let code = state.exit_code.and_then(|code| i32::try_from(code).ok());
                    Ok((state.running == Some(false)).then_some(code))
                }
                Err(error) if error.is_not_found() => Ok(Some(None)),
                Err(error) => Err(RuntimeError::from(error)),
            }
        };
        // A process that closed its output and continues has none.
        Ok(found_within(CONTAINER_END_WAIT, look).await?.flatten())
    }
}
