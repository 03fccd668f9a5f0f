//! Pauses between attempts at one thing.

use std::time::Duration;

/// Pauses after consecutive failures: the first one is doubled each time, up to a maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExponentialBackoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl ExponentialBackoff {
    /// Before the first failure.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Counts a failure, and returns the pause after it.
    pub fn pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.after(self.failures)
    }

    /// Resets the series: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The pause after that many failures in a row.
    pub fn after(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.longest)
    }

    /// The longest pause.
    pub const fn longest(&self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_begin_again() {
        let mut backoff =
            ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(7));
        let pauses: Vec<_> = (0..9).map(|_| backoff.pause().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 7000, 7000]);
        backoff.reset();
        assert_eq!(backoff.pause(), Duration::from_millis(100));
        assert_eq!(backoff.after(0), Duration::from_millis(100));
        assert_eq!(backoff.after(3), Duration::from_millis(400));
        assert_eq!(backoff.after(u32::MAX), backoff.longest());
    }
}
