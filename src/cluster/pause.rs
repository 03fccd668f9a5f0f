//! Pauses between tries: growing, and never the same on two machines.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A growing pause.
#[derive(Debug, Clone)]
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// Pauses from `min`, doubled each time, to `max`.
    pub(super) fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max,
            next: min,
        }
    }

    /// The next pause: up to half longer than its turn, so that agents that lost one server
    /// don't all come back at once.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(self.max);
        jittered(pause, 0.5)
    }

    /// The next pause is the first again.
    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }
}

/// That long, or up to `share` of it longer.
pub(super) fn jittered(period: Duration, share: f64) -> Duration {
    // Every `RandomState` has keys of its own.
    let random = RandomState::new().hash_one(()) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "both have 53 bits")]
    let unit = random as f64 / (1_u64 << 53) as f64;
    period.mul_f64(1.0 + unit * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound() {
        let (min, max) = (Duration::from_millis(100), Duration::from_secs(7));
        let mut backoff = Backoff::new(min, max);
        let pauses: Vec<_> = (0..10).map(|_| backoff.pause()).collect();
        for (turn, pause) in pauses.iter().enumerate() {
            let base = (min * 2_u32.pow(u32::try_from(turn).unwrap())).min(max);
            assert!(
                *pause >= base && *pause <= base.mul_f64(1.5),
                "{turn}: {pause:?}"
            );
        }
        backoff.reset();
        assert!(backoff.pause() < min * 2);
    }

    #[test]
    fn jitter_differs() {
        let all: std::collections::BTreeSet<_> = (0..20)
            .map(|_| jittered(Duration::from_secs(10), 0.04))
            .collect();
        assert!(all.len() > 10);
        let bounds = Duration::from_secs(10)..=Duration::from_millis(10_400);
        assert!(all.iter().all(|pause| bounds.contains(pause)));
    }
}
