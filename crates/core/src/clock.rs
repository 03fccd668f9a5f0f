//! Times between two moments of a clock that may be set.

use std::time::Duration;

use crate::api::Timestamp;

/// Time from one moment to a later one; zero when the second is the earlier one.
#[must_use]
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Time since a moment that was the present once. If it is still to come, the clock was set back
/// after it: it counts as past by as much, so that nobody waits until the clock has caught up.
#[must_use]
pub fn since(moment: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(moment).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_makes_nobody_wait() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        for (moment, now, expected_elapsed, expected_since) in [
            (100, 160, 60, 60),
            (100, 100, 0, 0),
            // Set back by an hour, ten seconds after the moment.
            (3700, 110, 0, 3590),
        ] {
            let (moment, now) = (at(moment), at(now));
            let seconds = (elapsed(moment, now).as_secs(), since(moment, now).as_secs());
            assert_eq!(seconds, (expected_elapsed, expected_since));
        }
    }
}
