//! Pieces of a log that are sent together.

use std::time::Duration;

use futures::stream::{self, Stream, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use crate::runtime::{LogChunk, LogStream, Result};

/// How long the first piece waits for others. Most logs are many short lines, each of which the
/// Engine sends by itself; nobody who follows one sees so short a pause.
const WAIT: Duration = Duration::from_millis(2);

/// So many bytes wait no longer.
const BYTES: usize = 64 << 10;

/// The pieces of a log, those together that come soon after one another. None is empty.
pub(super) fn gathered(log: LogStream) -> impl Stream<Item = Vec<Result<LogChunk>>> {
    stream::unfold(log.fuse(), |mut log| async move {
        let first = log.next().await?;
        let end = Instant::now() + WAIT;
        let mut bytes = length(&first);
        let mut pieces = vec![first];
        while bytes < BYTES
            && let Ok(Some(piece)) = timeout_at(end, log.next()).await
        {
            bytes += length(&piece);
            pieces.push(piece);
        }
        Some((pieces, log))
    })
}

/// Bytes that a piece holds in memory, roughly: an empty one takes room too.
fn length(piece: &Result<LogChunk>) -> usize {
    match piece {
        Ok(LogChunk::Stdout(bytes) | LogChunk::Stderr(bytes)) => bytes.len().max(1),
        Err(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::runtime::RuntimeError;

    fn line(text: &'static str) -> LogChunk {
        LogChunk::Stdout(Bytes::from_static(text.as_bytes()))
    }

    fn count(pieces: &[Result<LogChunk>]) -> usize {
        pieces.len()
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_together_is_sent_together() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut gathered = Box::pin(gathered(receiver.boxed()));
        for text in ["a\n", "b\n", "c\n"] {
            sender.unbounded_send(Ok(line(text))).unwrap();
        }
        assert_eq!(gathered.next().await.as_deref().map(count), Some(3));
        // The next one comes alone, and is not kept waiting for a successor.
        sender.unbounded_send(Ok(line("d\n"))).unwrap();
        assert_eq!(gathered.next().await.as_deref().map(count), Some(1));
        sender.unbounded_send(Ok(line("e\n"))).unwrap();
        drop(sender);
        assert_eq!(gathered.next().await.as_deref().map(count), Some(1));
        assert!(gathered.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_bytes_wait_for_no_more() {
        let long = Bytes::from(vec![b'x'; BYTES / 2]);
        let pieces = [(); 5].map(|()| Ok(LogChunk::Stderr(long.clone())));
        let gathered: Vec<_> = gathered(stream::iter(pieces).boxed()).collect().await;
        let counts: Vec<_> = gathered.iter().map(|pieces| count(pieces)).collect();
        assert_eq!(counts, [2, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_keeps_its_place() {
        let failed = Err(RuntimeError::Unavailable("away".into()));
        let all = stream::iter([Ok(line("a\n")), failed]).boxed();
        let gathered: Vec<_> = gathered(all).collect().await;
        assert!(matches!(&gathered[0][..], [Ok(_), Err(_)]), "{gathered:?}");
    }
}
