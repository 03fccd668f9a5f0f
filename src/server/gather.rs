//! Pieces of a log, or of what a process writes, that are sent together.
//!
//! The Engine sends each line of a log by itself, and of what a process writes a page or so to who
//! reads as fast as it is written. Each piece that is sent costs everybody up to the client, so
//! that many small ones take several times as long as few large ones.

use std::iter;
use std::mem::discriminant;
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::time::sleep;

use super::frame::{Frame, FrameWriter};
use crate::runtime::{LogChunk, LogStream, Result};

/// How long the first piece waits for others. Nobody sees so short a pause.
const WAIT: Duration = Duration::from_millis(2);

/// So many bytes wait no longer.
const BYTES: usize = 64 << 10;

/// What a process writes waits only after so many bytes together, which nobody types or answers to:
/// one page, the least that comes where much is written.
const MUCH: usize = 4 << 10;

/// The pieces of a log, those together that come soon after one another. None is empty.
pub(super) fn gathered(log: LogStream) -> impl Stream<Item = Vec<Result<LogChunk>>> {
    gathered_after(0, log)
}

/// The pieces of what a process writes: as they come, until much comes; then those together that
/// come soon after one another. None is empty.
pub(super) fn gathered_output(output: LogStream) -> impl Stream<Item = Vec<Result<LogChunk>>> {
    gathered_after(MUCH, output)
}

/// What is there goes together; more is waited for where `much` went together before.
fn gathered_after(much: usize, log: LogStream) -> impl Stream<Item = Vec<Result<LogChunk>>> {
    stream::unfold((log.fuse(), 0), move |(mut log, before)| async move {
        let first = log.next().await?;
        let mut end = pin!(async {
            if before >= much {
                sleep(WAIT).await;
            }
        });
        let mut bytes = length(&first);
        let mut pieces = vec![first];
        while bytes < BYTES {
            // What is there is taken, however late it is. Both arms are cancel-safe.
            let next = tokio::select! {
                biased;
                piece = log.next() => piece,
                () = &mut end => None,
            };
            let Some(piece) = next else { break };
            bytes += length(&piece);
            pieces.push(piece);
        }
        Some((pieces, (log, bytes)))
    })
}

/// Bytes that a piece holds in memory, roughly: an empty one takes room too.
fn length(piece: &Result<LogChunk>) -> usize {
    match piece {
        Ok(piece) => piece.bytes().len().max(1),
        Err(_) => 1,
    }
}

/// Pieces with those as one that follow one another on the same stream.
pub(super) fn joined(pieces: Vec<Result<LogChunk>>) -> impl Iterator<Item = Result<LogChunk>> {
    let mut pieces = pieces.into_iter().peekable();
    iter::from_fn(move || {
        let first = match pieces.next()? {
            Ok(first) => first,
            error @ Err(_) => return Some(error),
        };
        let stream = discriminant(&first);
        let same = |piece: &Result<LogChunk>| {
            piece
                .as_ref()
                .is_ok_and(|piece| discriminant(piece) == stream)
        };
        let more: Vec<_> = iter::from_fn(|| pieces.next_if(same)?.ok()).collect();
        if more.is_empty() {
            return Some(Ok(first));
        }
        let mut bytes = BytesMut::with_capacity(BYTES);
        for piece in iter::once(&first).chain(&more) {
            bytes.extend_from_slice(piece.bytes());
        }
        let bytes = bytes.freeze();
        Some(Ok(match first {
            LogChunk::Stdout(_) => LogChunk::Stdout(bytes),
            LogChunk::Stderr(_) => LogChunk::Stderr(bytes),
        }))
    })
}

/// Pieces as frames of the agent's socket, those as one that follow one another on the same stream.
pub(super) fn framed(pieces: Vec<Result<LogChunk>>) -> Bytes {
    let mut frames = FrameWriter::default();
    for piece in pieces {
        frames.push(&match piece {
            Ok(LogChunk::Stdout(bytes)) => Frame::Stdout(bytes),
            Ok(LogChunk::Stderr(bytes)) => Frame::Stderr(bytes),
            Err(error) => Frame::Failed(error.to_string()),
        });
    }
    frames.finish()
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

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

    #[tokio::test(start_paused = true)]
    async fn what_a_process_writes_waits_only_once_it_writes_much() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut gathered = Box::pin(gathered_output(receiver.boxed()));
        let began = Instant::now();
        let write = |bytes: usize| {
            let piece = LogChunk::Stdout(Bytes::from(vec![b'x'; bytes]));
            sender.unbounded_send(Ok(piece)).unwrap();
        };
        // Somebody types.
        for _ in 0..3 {
            write(1);
            assert_eq!(gathered.next().await.as_deref().map(count), Some(1));
        }
        // The first page, and what is there with it.
        write(4096);
        write(4096);
        assert_eq!(gathered.next().await.as_deref().map(count), Some(2));
        assert_eq!(began.elapsed(), Duration::ZERO);
        // Others follow: the first is there already when the others come.
        write(4096);
        let later = async {
            tokio::task::yield_now().await;
            write(4096);
            write(4096);
        };
        let (pieces, ()) = tokio::join!(gathered.next(), later);
        assert_eq!(pieces.as_deref().map(count), Some(3));
        // A prompt after that comes alone, and the next one at once.
        write(2);
        assert_eq!(gathered.next().await.as_deref().map(count), Some(1));
        let waited = began.elapsed();
        assert!(waited <= 3 * WAIT, "{waited:?}");
        write(2);
        assert_eq!(gathered.next().await.as_deref().map(count), Some(1));
        assert_eq!(began.elapsed(), waited);
    }

    #[test]
    fn neighbours_of_one_stream_are_joined() {
        let out = |text: &'static str| Ok(line(text));
        let err = |text: &'static str| Ok(LogChunk::Stderr(text.into()));
        let failed = || Err(RuntimeError::Unavailable("away".into()));
        for (pieces, expected) in [
            (vec![], vec![]),
            (vec![out("a")], vec![out("a")]),
            (vec![out("a"), out("b"), out("c")], vec![out("abc")]),
            (
                vec![out("a"), err("b"), err("c"), out("d")],
                vec![out("a"), err("bc"), out("d")],
            ),
            (
                vec![err("a"), err("b"), failed()],
                vec![err("ab"), failed()],
            ),
        ] {
            let joined: Vec<_> = joined(pieces).collect();
            assert_eq!(joined, expected);
        }
    }
}
