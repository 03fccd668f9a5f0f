//! Turns: how many calls, or sandboxes, begin together.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

/// How long unfinished work counts towards the limit. Longer than an Engine on slow storage takes for a
/// create or a start, and short enough that hanging calls delay others only by seconds.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);

/// How many pieces of work may hang without a turn, per turn; any further ones keep their turn. With
/// the 16 turns of `--engine-concurrency` by default, an Engine that is slow with everything has at
/// most 16 + 128 calls in progress, not 16 more every 10 s; and all others wait only when as many calls
/// hang, until the first one ends, at its deadline after 2 min.
const HANGING_PER_TURN: usize = 8;

/// So many turns.
pub(crate) struct Turns {
    free: Semaphore,
    /// Bounds the work that hangs and has given its turn back.
    hanging: Semaphore,
}

impl Turns {
    pub(crate) fn new(count: usize) -> Self {
        let hanging = count.saturating_mul(HANGING_PER_TURN);
        Self {
            free: Semaphore::new(count),
            hanging: Semaphore::new(hanging.min(Semaphore::MAX_PERMITS)),
        }
    }

    /// Turns that are free.
    #[cfg(test)]
    pub(crate) fn available(&self) -> usize {
        self.free.available_permits()
    }
}

/// The time since when the work of a turn waits for no other turn; none while it does.
#[derive(Clone)]
pub(crate) struct Since(Arc<Mutex<Option<Instant>>>);

impl Since {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock() = since;
    }

    /// When the work will have taken too long; none once it has.
    fn end(&self) -> Option<Instant> {
        let now = Instant::now();
        let since = *self.0.lock();
        let end = since.unwrap_or(now) + UNANSWERED_MAX;
        (end > now).then_some(end)
    }
}

/// One turn of a limited number. It is released when dropped, or when its work hangs: one pod's hanging
/// call must not block all others.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// Of a turn, or of what hangs without one.
    permit: Option<SemaphorePermit<'a>>,
    hangs: bool,
    since: Since,
}

impl<'a> Turn<'a> {
    /// Waits for a turn, in the order of requests.
    pub(crate) async fn begin(turns: &'a Turns) -> Self {
        // They are never closed.
        let permit = turns.free.acquire().await.ok();
        Self {
            turns,
            permit,
            hangs: false,
            since: Since(Arc::default()),
        }
    }

    /// Waits for a turn within the work of another one, towards which that wait doesn't count.
    pub(crate) async fn begin_within(turns: &'a Turns, other: Option<&Since>) -> Self {
        let set = |since| {
            if let Some(other) = other {
                other.set(since);
            }
        };
        set(None);
        let turn = Self::begin(turns).await;
        set(Some(Instant::now()));
        turn
    }

    /// A handle for turns that are waited for within the work of this one.
    pub(crate) fn since(&self) -> Since {
        self.since.clone()
    }

    /// Awaits work to its end. The turn is released early if that takes too long, unless too much hangs
    /// already.
    pub(crate) async fn bound<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        if self.hangs {
            return work.await;
        }
        self.since.set(Some(Instant::now()));
        while let Some(end) = self.since.end() {
            if let Ok(done) = timeout_at(end, work.as_mut()).await {
                return done;
            }
        }
        let turns = self.turns;
        let permit = tokio::select! {
            biased;
            done = work.as_mut() => return done,
            permit = turns.hanging.acquire() => permit,
        };
        self.permit = permit.ok();
        self.hangs = true;
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use futures::future::join_all;
    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;

    /// The clock is paused.
    const LONG: Duration = Duration::from_hours(1);

    #[tokio::test(start_paused = true)]
    async fn a_wait_for_another_turn_does_not_count() {
        let (turns, others) = (Turns::new(1), Turns::new(1));
        let held = Turn::begin(&others).await;
        let mut turn = Turn::begin(&turns).await;
        let since = turn.since();
        let work = async {
            let _other = Turn::begin_within(&others, Some(&since)).await;
            pending::<()>().await;
        };
        let mut bound = Box::pin(turn.bound(work));
        assert!(timeout(LONG, bound.as_mut()).await.is_err());
        // docker 60b
        assert_eq!(turns.available(), 0, "it only waits");
        drop(held);
        assert!(timeout(LONG, bound.as_mut()).await.is_err());
        // docker 60b
        assert_eq!(turns.available(), 1, "it hangs");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_without_a_turn_has_a_bound() {
        let turns = Turns::new(2);
        let (began, answer) = (Cell::new(0), Notify::new());
        let call = || async {
            let mut turn = Turn::begin(&turns).await;
            began.set(began.get() + 1);
            turn.bound(answer.notified()).await;
        };
        let mut calls = Box::pin(join_all((0..50).map(|_| call())));
        for (answered, expected) in [(0, 18), (1, 19), (3, 22)] {
            for _ in 0..answered {
                answer.notify_one();
            }
            assert!(timeout(LONG, calls.as_mut()).await.is_err());
            // docker 60b
            assert_eq!(began.get(), expected);
        }
    }
}
