//! Durations between two readings of a clock that may be set.

use std::time::Duration;

use crate::api::Timestamp;

/// Maximum wait before the next decision. A deadline may be further away than a timer can count; each
/// decision computes the rest.
pub const LOOK_MAX: Duration = Duration::from_hours(24);

/// Least step of a clock that counts: between reading it and reading a timer, the agent may have to wait
/// for the processor.
const STEP_MIN: Duration = Duration::from_secs(5);

/// Returns by how much the clock was set forward between two readings, if it was. `passed` is the time
/// between them on a monotonic timer, which stops while the machine is suspended.
pub fn set_forward(from: Timestamp, to: Timestamp, passed: Duration) -> Option<Duration> {
    let step = elapsed(from, to).saturating_sub(passed);
    (step > STEP_MIN).then_some(step)
}

/// Time from one reading to a later one; zero if the second is earlier.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// Time since an earlier reading of the clock. If it is in the future, the clock was set back after it:
/// it counts as equally long ago, so that nothing waits until the clock has caught up.
pub fn since(moment: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(moment).unsigned_abs()
}

/// Time since then in kubectl's format for ages: at most two units, less exact the longer it is.
///
/// Upstream: `k8s.io/apimachinery/pkg/util/duration/duration.go` (`HumanDuration`).
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second());
    // A clock that was set back a little is no reason for a negative age.
    let seconds = seconds.max(0);
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: i64, large_unit: &str, small: i64, small_unit: &str| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        two(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        two(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 192 {
        two(days, "d", hours % 24, "h")
    } else if years < 2 {
        format!("{days}d")
    } else if years < 8 {
        two(years, "y", days % 365, "d")
    } else {
        format!("{years}y")
    }
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

    #[test]
    fn ages_are_kubectls() {
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (86_400, "24h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(age(at(0), at(seconds)), text, "{seconds}");
        }
    }
}
