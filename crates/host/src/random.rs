//! Random numbers, for names and pauses; not for secrets.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// A random number.
pub fn number() -> u64 {
    // Every `RandomState` has keys of its own.
    RandomState::new().hash_one(())
}

/// A random number from 0 to below 1.
pub fn fraction() -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "both have 53 bits")]
    let fraction = (number() >> 11) as f64 / (1_u64 << 53) as f64;
    fraction
}

/// The period, or up to `share` of it longer.
pub fn stretched(period: Duration, share: f64) -> Duration {
    period.mul_f64(1.0 + fraction() * share)
}

/// Returns the pause, lengthened by up to half of it, so that agents that lost a server don't all
/// return at once.
pub fn spread(pause: Duration) -> Duration {
    stretched(pause, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_differ_within_their_bounds() {
        let all: std::collections::BTreeSet<_> = (0..20)
            .map(|_| stretched(Duration::from_secs(10), 0.04))
            .collect();
        assert!(all.len() > 10);
        let bounds = Duration::from_secs(10)..=Duration::from_millis(10_400);
        assert!(all.iter().all(|pause| bounds.contains(pause)));
        let pause = spread(Duration::from_secs(10));
        assert!((Duration::from_secs(10)..=Duration::from_secs(15)).contains(&pause));
    }
}
