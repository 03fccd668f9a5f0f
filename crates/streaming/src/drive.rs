//! The parts of every connection: a reader, a writer, the work between them, and the shutdown.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::budget::{Charged, Held};

/// How long a client may take to close a connection that the server has closed. Until then, incoming
/// data is read and discarded: closing a connection with unread data makes the kernel discard what the
/// client has not read yet.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(30);

/// Maximum number of received pieces of one stream that wait to be processed. When it is reached,
/// nothing more is read from the client.
pub(super) const PIECES_MAX: usize = 4;

/// Maximum number of messages that wait to be sent. When it is reached, senders wait.
pub(super) const OUTGOING_MAX: usize = 4;

/// Largest piece of output in one frame or message, in bytes: as much as upstream's `io.Copy`
/// moves at once.
pub(super) const PIECE_BYTES_MAX: usize = 32 << 10;

/// Bytes read from a client at a time, at least.
pub(super) const READ_BYTES: usize = 64 << 10;

/// Frames are combined into one write until they reach this size.
pub(super) const WRITE_BYTES: usize = 64 << 10;

/// Data of one stream. A stream without an end was reset, or its client disconnected.
#[derive(Debug)]
pub(super) enum Piece {
    /// Bytes.
    Data(Charged),
    /// The client sends no more.
    End,
}

/// A frame that waits to be written, with its reservation in the budget, which is held until then.
#[derive(Debug)]
pub(super) struct Outgoing<F> {
    pub(super) frame: F,
    pub(super) held: Option<Held>,
}

impl<F> Outgoing<F> {
    /// Whether it is a lean piece. Lean pieces are written from a separate buffer, so that they don't
    /// keep the memory of large ones alive.
    pub(super) fn is_lean(&self) -> bool {
        self.held.as_ref().is_some_and(Held::is_lean)
    }
}

impl<F> From<F> for Outgoing<F> {
    /// A frame that does not count: it has few bytes, and there are few of them.
    fn from(frame: F) -> Self {
        let held = None;
        Self { frame, held }
    }
}

/// When a client last did something, or took something.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            last: AtomicU64::new(0),
        }
    }

    pub(super) fn note(&self) {
        let since = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since, Ordering::Relaxed);
    }

    /// Completes once there was no activity for `limit`; never without a limit.
    pub(super) async fn idle(&self, limit: Option<Duration>) {
        let Some(limit) = limit else {
            return std::future::pending().await;
        };
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let until = self.began + last + limit;
            if Instant::now() >= until {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// Runs the parts of a connection until `reading` or `writing` ends, because the client is gone then,
/// until it was idle for too long, or until `work` is done, which makes `writing` end too.
pub(super) async fn drive<E>(
    reading: impl Future<Output = ()>,
    writing: impl Future<Output = Result<(), E>>,
    work: impl Future<Output = ()>,
    idle: impl Future<Output = ()>,
) {
    let mut reading = pin!(reading);
    let done = async {
        let work = async {
            work.await;
            Ok(())
        };
        tokio::try_join!(work, writing).is_ok()
    };
    // Whichever arm is dropped, the connection is not used after it.
    let done = tokio::select! {
        () = &mut reading => false,
        () = idle => false,
        done = done => done,
    };
    if done {
        // A client that does not close in time is not waited for.
        let _ = timeout(LINGER_MAX, reading).await;
    }
}
