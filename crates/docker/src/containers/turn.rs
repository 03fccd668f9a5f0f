//! Turns: how many calls, or sandboxes, begin together.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// How long work that has no end counts among what goes on together. Longer than an Engine on slow
/// storage takes for a create or a start, and so short that calls that hang delay others by seconds.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);

/// One of so many turns. It is given back when dropped, or when the work that it is for hangs: what
/// one pod waits for is no reason to let all others wait.
pub(crate) struct Turn<'a> {
    permit: Option<SemaphorePermit<'a>>,
}

impl<'a> Turn<'a> {
    /// Waits for a turn, in the order asked.
    pub(crate) async fn begin(turns: &'a Semaphore) -> Self {
        // They are never closed.
        let permit = turns.acquire().await.ok();
        Self { permit }
    }

    /// Awaits work to its end. The turn is given back early where that takes too long.
    pub(crate) async fn bound<F: Future>(&mut self, work: F) -> F::Output {
        let mut work = pin!(work);
        if let Ok(done) = timeout(UNANSWERED_MAX, work.as_mut()).await {
            return done;
        }
        self.permit = None;
        work.await
    }
}
