//! The client's own rate limit for writes.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Writes per second when there are many: upstream's `kubeAPIQPS`.
const PER_SECOND: u32 = 50;
/// Writes that may be made at once after a quiet while: upstream's `kubeAPIBurst`.
const BURST: u32 = 100;

/// Allows [`BURST`] writes at once, then [`PER_SECOND`].
#[derive(Debug, Default)]
pub(super) struct WriteLimit {
    /// When the bucket will be full again; in the past when it is.
    full_at: Mutex<Option<Instant>>,
}

impl WriteLimit {
    /// Waits for its turn. If the future is dropped, the turn is lost.
    pub(super) async fn turn(&self) {
        let turn = {
            let mut full_at = self.full_at.lock();
            let (turn, full) = reserve(*full_at, Instant::now());
            *full_at = Some(full);
            turn
        };
        tokio::time::sleep_until(turn).await;
    }
}

/// When a write requested at `now` may be made, and when the bucket is full after it.
fn reserve(full_at: Option<Instant>, now: Instant) -> (Instant, Instant) {
    let one = Duration::from_secs(1) / PER_SECOND;
    let full = full_at.map_or(now, |at| at.max(now)) + one;
    let turn = full.checked_sub(one * BURST).map_or(now, |at| at.max(now));
    (turn, full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_in_turn() {
        let limit = WriteLimit::default();
        // Long enough that an Instant can lie a whole burst back.
        tokio::time::advance(Duration::from_mins(1)).await;
        let began = Instant::now();
        for _ in 0..BURST {
            limit.turn().await;
        }
        // node 6h
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..PER_SECOND {
            limit.turn().await;
        }
        // Paused time moves in whole milliseconds.
        assert_eq!(began.elapsed().as_millis() / 10, 100);
        tokio::time::advance(Duration::from_secs(10)).await;
        let later = Instant::now();
        for _ in 0..BURST {
            limit.turn().await;
        }
        assert_eq!(later.elapsed(), Duration::ZERO);
    }
}
