//! Combines small pieces of output before they are sent.
//!
//! Container runtimes deliver a log line by line, and the output of a process a page at a time. Each
//! message costs every hop up to the client, so many small ones take several times as long as a few
//! large ones.

use std::iter;
use std::mem::discriminant;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream, StreamExt as _};
use tokio::time::sleep;

use crate::Chunk;
use crate::budget::{Budget, ConnectionBudget, Held};

/// How long the first piece waits for more. Too short for a user to notice.
const WAIT: Duration = Duration::from_millis(2);

/// Pieces of this many bytes together are sent without further wait.
const BYTES: usize = 64 << 10;

/// Output of a process waits for more only after this many bytes came together: one page, the least
/// that comes from a process that writes much. Interactive output is smaller and is not delayed.
const MUCH: usize = 4 << 10;

/// Pieces that are sent together; never none.
pub(crate) struct Batch<E> {
    pub(crate) pieces: Vec<Result<Chunk, E>>,
    /// Their reservation in the budget. None if the budget is used up; the batch is a single piece
    /// then.
    pub(crate) held: Option<Held>,
}

/// Batches the pieces of a log for one client: pieces that arrive within two milliseconds of each other
/// form one batch, up to 64 KiB. `write` converts each piece to the bytes for the client. They count in
/// the budget until they are dropped; when the budget is used up, the client gets 4 KiB at a time, and
/// reading of the log continues once those are dropped.
pub fn gathered<E>(
    log: impl Stream<Item = Result<Chunk, E>> + Unpin,
    budget: Budget,
    mut write: impl FnMut(Vec<Result<Chunk, E>>) -> Bytes,
) -> impl Stream<Item = Bytes> {
    let purse = Arc::new(ConnectionBudget::new(budget.clone()));
    gathered_after(0, log, budget).flat_map(move |batch| {
        let begin = (write(batch.pieces), batch.held, Arc::clone(&purse));
        stream::unfold(begin, |(mut bytes, mut held, purse)| async move {
            if bytes.is_empty() {
                return None;
            }
            let piece = purse.piece(&mut bytes, &mut held, usize::MAX).await;
            Some((Bytes::from_owner(piece), (bytes, held, purse)))
        })
    })
}

/// Batches the output of a process: pieces are passed on immediately until a page or more arrives
/// together; from then on they are batched like a log's.
pub(crate) fn gathered_output<E>(
    output: impl Stream<Item = Result<Chunk, E>> + Unpin,
    budget: Budget,
) -> impl Stream<Item = Batch<E>> {
    gathered_after(MUCH, output, budget)
}

/// Takes all pieces that are ready, and waits for more if the previous batch had `much` bytes. Without
/// budget it takes one.
fn gathered_after<E>(
    much: usize,
    pieces: impl Stream<Item = Result<Chunk, E>> + Unpin,
    budget: Budget,
) -> impl Stream<Item = Batch<E>> {
    let begin = (pieces.fuse(), 0, budget);
    stream::unfold(begin, move |(mut log, before, budget)| async move {
        let first = log.next().await?;
        let mut bytes = length(&first);
        let mut pieces = vec![first];
        // Before anything is read for it.
        let mut held = budget.try_take(bytes.max(BYTES));
        if let Some(held) = &mut held {
            let mut end = pin!(async {
                if before >= much {
                    sleep(WAIT).await;
                }
            });
            while bytes < BYTES {
                // Ready pieces are taken even after the wait. Both arms are cancel-safe.
                let next = tokio::select! {
                    biased;
                    piece = log.next() => piece,
                    () = &mut end => None,
                };
                let Some(piece) = next else { break };
                bytes += length(&piece);
                pieces.push(piece);
            }
            held.fit(bytes, &budget);
        }
        Some((Batch { pieces, held }, (log, bytes, budget)))
    })
}

/// Bytes that a piece counts for; at least one, since an empty piece takes memory, too.
fn length<E>(piece: &Result<Chunk, E>) -> usize {
    match piece {
        Ok(piece) => piece.bytes().len().max(1),
        Err(_) => 1,
    }
}

/// Merges adjacent pieces of the same stream.
pub fn joined<E>(pieces: Vec<Result<Chunk, E>>) -> impl Iterator<Item = Result<Chunk, E>> {
    let mut pieces = pieces.into_iter().peekable();
    iter::from_fn(move || {
        let first = match pieces.next()? {
            Ok(first) => first,
            error @ Err(_) => return Some(error),
        };
        let stream = discriminant(&first);
        let same = |piece: &Result<Chunk, E>| {
            piece
                .as_ref()
                .is_ok_and(|piece| discriminant(piece) == stream)
        };
        let more: Vec<_> = iter::from_fn(|| pieces.next_if(same)?.ok()).collect();
        if more.is_empty() {
            return Some(Ok(first));
        }
        let all = || iter::once(&first).chain(&more).map(Chunk::bytes);
        // No more than is charged for.
        let mut bytes = BytesMut::with_capacity(all().map(Bytes::len).sum());
        for piece in all() {
            bytes.extend_from_slice(piece);
        }
        let bytes = bytes.freeze();
        Some(Ok(match first {
            Chunk::Stdout(_) => Chunk::Stdout(bytes),
            Chunk::Stderr(_) => Chunk::Stderr(bytes),
        }))
    })
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::budget::LEAN_BYTES;

    /// Why a log breaks off.
    type Cause = &'static str;

    fn line(text: &'static str) -> Chunk {
        Chunk::Stdout(Bytes::from_static(text.as_bytes()))
    }

    fn count(pieces: &[Result<Chunk, Cause>]) -> usize {
        pieces.len()
    }

    /// The batches of a log, or of the output of a process, while there is budget.
    fn batches(
        much: usize,
        pieces: impl Stream<Item = Result<Chunk, Cause>> + Unpin,
    ) -> impl Stream<Item = Vec<Result<Chunk, Cause>>> {
        gathered_after(much, pieces, Budget::default()).map(|batch| batch.pieces)
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_together_is_sent_together() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut gathered = Box::pin(batches(0, receiver.boxed()));
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
        let pieces = [(); 5].map(|()| Ok(Chunk::Stderr(long.clone())));
        let gathered: Vec<_> = batches(0, stream::iter(pieces).boxed()).collect().await;
        let counts: Vec<_> = gathered.iter().map(|pieces| count(pieces)).collect();
        assert_eq!(counts, [2, 2, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_keeps_its_place() {
        let failed = Err("away");
        let all = stream::iter([Ok(line("a\n")), failed]).boxed();
        let gathered: Vec<_> = batches(0, all).collect().await;
        assert!(matches!(&gathered[0][..], [Ok(_), Err(_)]), "{gathered:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_process_writes_waits_only_once_it_writes_much() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut gathered = Box::pin(batches(MUCH, receiver.boxed()));
        let began = Instant::now();
        let write = |bytes: usize| {
            let piece = Chunk::Stdout(Bytes::from(vec![b'x'; bytes]));
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
        // docker 53
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

    /// The bytes that a client of a log receives, which asked for standard output alone.
    fn written(pieces: Vec<Result<Chunk, Cause>>) -> Bytes {
        let pieces = pieces.into_iter().map(Result::unwrap);
        let bytes = pieces.map(|piece| piece.bytes().to_vec());
        bytes.collect::<Vec<_>>().concat().into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_counts_until_its_client_has_it() {
        let page = Bytes::from(vec![b'x'; 16 << 10]);
        let log = stream::iter([(); 8].map(|()| Ok(Chunk::Stdout(page.clone()))));
        let budget = Budget::new(2 * BYTES);
        let mut sent = Box::pin(gathered(log.boxed(), budget.clone(), written));
        let first = sent.next().await.unwrap();
        assert_eq!((first.len(), budget.left()), (BYTES, BYTES));
        // Parts of it, as an HTTP server makes them, are it.
        let rest = first.slice(1..);
        drop(first);
        let second = sent.next().await.unwrap();
        // streams 7
        assert_eq!((second.len(), budget.left()), (BYTES, 0));
        drop(rest);
        assert_eq!(budget.left(), BYTES);
        drop(second);
        assert!(sent.next().await.is_none());
        assert_eq!(budget.left(), 2 * BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn without_budget_a_log_is_read_as_its_client_takes_it() {
        const PIECE: usize = 6 << 10;
        let read = std::cell::Cell::new(0);
        let log = stream::repeat_with(|| {
            read.set(read.get() + 1);
            Ok::<_, Cause>(Chunk::Stdout(vec![b'x'; PIECE].into()))
        });
        let mut sent = Box::pin(gathered(log.boxed_local(), Budget::new(0), written));
        let lean = sent.next().await.unwrap();
        assert_eq!((lean.len(), read.get()), (LEAN_BYTES, 1));
        // Its client doesn't take that.
        let next = tokio::time::timeout(Duration::from_hours(1), sent.next());
        // streams 7, tenants S1
        assert!(next.await.is_err());
        drop(lean);
        assert_eq!(sent.next().await.unwrap().len(), PIECE - LEAN_BYTES);
        assert_eq!(read.get(), 1);
        assert_eq!(sent.next().await.unwrap().len(), LEAN_BYTES);
        assert_eq!(read.get(), 2);
    }

    #[test]
    fn neighbours_of_one_stream_are_joined() {
        let out = |text: &'static str| Ok(line(text));
        let err = |text: &'static str| Ok(Chunk::Stderr(text.into()));
        let failed = || Err("away");
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
            // docker 53
            assert_eq!(joined, expected);
        }
    }
}
