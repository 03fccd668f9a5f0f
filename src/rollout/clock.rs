//! Whether the clock was set forward between two looks.

use tokio::time::Instant;

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::clock::set_forward;

/// The time of the last check, by the clock and by a monotonic timer. The timer stops while the machine
/// is suspended.
#[derive(Debug, Default)]
pub(super) struct LastLook(Option<(Timestamp, Instant)>);

impl LastLook {
    /// Records the time of a check. Returns whether the clock was set forward since the previous one.
    pub(super) fn was_set_forward(&mut self, now: Timestamp, timer: Instant) -> bool {
        let last = self.0.replace((now, timer));
        last.is_some_and(|(clock, before)| {
            let passed = timer.saturating_duration_since(before);
            set_forward(clock, now, passed).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_of_the_clock_is_told_from_time_that_passes() {
        let began = Instant::now();
        let mut last = LastLook::default();
        // The seconds by the clock and by the timer.
        for (by_clock, by_timer, expected) in [
            (1_000, 0, false),
            (1_200, 200, false),
            (1_206, 201, false),
            (1_213, 202, true),
            (4_813, 202, true),
            // It is set back.
            (300, 300, false),
            (600, 600, false),
        ] {
            let now = Timestamp::from_second(by_clock).unwrap();
            let timer = began + Duration::from_secs(by_timer);
            // rollouts S15a
            assert_eq!(last.was_set_forward(now, timer), expected, "{by_clock}");
        }
    }
}
