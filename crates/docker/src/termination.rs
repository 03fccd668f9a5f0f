//! Termination messages: the files in which containers explain their end.
//!
//! Upstream: cri-dockerd and `pkg/kubelet/kuberuntime/kuberuntime_container.go`
//! (`getTerminationMessage`).

use bollard::models::ContainerInspectResponse;
use futures::StreamExt;
use tokio::time::timeout;

use super::engine::{Engine, READ_DEADLINE};
use super::logs::container_logs;
use mirrorlet_host::volume::read_termination_message;
use mirrorlet_runtime::{LogChunk, LogOptions};

/// Lines of the log's tail that replace a missing message.
const FALLBACK_LINES: u64 = 80;
/// Bytes of the log's tail that replace a missing message.
const FALLBACK_BYTES: usize = 2048;

/// The termination message of an ended container; empty if it runs or left none.
pub(super) async fn message(
    engine: &dyn Engine,
    id: &str,
    found: &ContainerInspectResponse,
    path: &str,
    fallback_to_logs: bool,
) -> String {
    let Some(state) = &found.state else {
        return String::new();
    };
    let ended = state
        .finished_at
        .as_deref()
        .is_some_and(|at| !at.is_empty() && !at.starts_with("0001-"));
    if !ended || state.running.unwrap_or(false) {
        return String::new();
    }
    let text = match source(found, path) {
        None => String::new(),
        Some(source) => {
            let source = source.to_owned();
            let read = tokio::task::spawn_blocking(move || {
                read_termination_message(std::path::Path::new(&source))
            });
            match read.await {
                Ok(Ok(text)) => text,
                Ok(Err(error)) => format!("Error on reading termination log: {error}"),
                Err(_) => String::new(),
            }
        }
    };
    let failed = state.exit_code.is_some_and(|code| code != 0);
    if text.is_empty() && fallback_to_logs && failed {
        let tty = found
            .config
            .as_ref()
            .and_then(|config| config.tty)
            .unwrap_or(false);
        return log_tail(engine, id, tty).await;
    }
    text
}

/// The path on the node of the file that is mounted at `path` in a container.
pub(super) fn source<'a>(found: &'a ContainerInspectResponse, path: &str) -> Option<&'a str> {
    found
        .mounts
        .iter()
        .flatten()
        .find(|mount| mount.destination.as_deref() == Some(path))
        .and_then(|mount| mount.source.as_deref())
}

/// The last lines of a container's log; what can't be read, or doesn't come in time, is left out.
async fn log_tail(engine: &dyn Engine, id: &str, tty: bool) -> String {
    let options = LogOptions {
        tail: Some(FALLBACK_LINES),
        ..LogOptions::default()
    };
    let Ok(mut log) = container_logs(engine, id, &options, tty).await else {
        return String::new();
    };
    let mut bytes: Vec<u8> = Vec::new();
    let reading = async {
        while let Some(Ok(LogChunk::Stdout(data) | LogChunk::Stderr(data))) = log.next().await {
            bytes.extend_from_slice(&data);
            let surplus = bytes.len().saturating_sub(FALLBACK_BYTES);
            bytes.drain(..surplus);
        }
    };
    // A log driver may answer and then be silent: the output until then is the message.
    let _ = timeout(READ_DEADLINE, reading).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
