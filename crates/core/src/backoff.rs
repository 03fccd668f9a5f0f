//! Back-off of crashing containers and failing pulls: 0, 10 s, 20 s, 40 s … 300 s.
//!
//! A value, not a service: its owner passes it to the planner, and advances it on each retry. Nothing
//! is kept across restarts of the agent.
//!
//! Upstream: `client-go/util/flowcontrol/backoff.go`.

mod exponential;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::api::Timestamp;
use crate::clock::{elapsed, since};
use crate::observed::ContainerHash;

pub use self::exponential::ExponentialBackoff;

/// Delay after the first retry (upstream's `containerBackOffPeriod` and image back-off).
pub const INITIAL_DELAY: Duration = Duration::from_secs(10);

/// Longest delay (upstream's `MaxContainerBackOff`).
pub const MAX_DELAY: Duration = Duration::from_mins(5);

/// How long a container has to run for its crash loop to count as over, whatever the longest delay
/// is (upstream's `HasExpiredFunc` in `pkg/kubelet/kubelet.go`).
const CONTAINER_STABLE_AFTER: Duration = Duration::from_mins(10);

/// The key of a container of one pod: name in the spec and hash of its definition, so that an edited
/// container starts without back-off. The pod's sandbox has a key of its own
/// ([`sandbox_key`](crate::plan::sandbox_key)).
pub type ContainerKey = (Arc<str>, ContainerHash);

/// Retry delays by key: of one pod's containers by default, of images with `Backoff<String>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff<K: Ord = ContainerKey> {
    initial: Duration,
    max: Duration,
    /// Something that failed later than this after its last retry was stable: its sequence begins
    /// again.
    stable_after: Duration,
    entries: BTreeMap<K, Entry>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    delay: Duration,
    last_update: Timestamp,
}

impl<K: Ord> Default for Backoff<K> {
    fn default() -> Self {
        Self::new(INITIAL_DELAY, MAX_DELAY)
    }
}

impl Backoff {
    /// Returns the back-off of a pod's containers, with delays of at most `max`. A crash loop is over
    /// after ten minutes without a crash, even if `max` is shorter.
    pub fn of_containers(max: Duration) -> Self {
        Self {
            stable_after: CONTAINER_STABLE_AFTER,
            ..Self::new(INITIAL_DELAY.min(max), max)
        }
    }
}

impl<K: Ord> Backoff<K> {
    /// Returns a back-off without failures. A key is stable after twice the maximum delay.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            stable_after: max.saturating_mul(2),
            entries: BTreeMap::new(),
        }
    }

    /// How long a retry of something that failed at `event_time` still has to wait; none if it may be
    /// tried now. Upstream: `IsInBackOffSince`.
    pub fn is_in_backoff_since(
        &self,
        key: &K,
        event_time: Timestamp,
        now: Timestamp,
    ) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        if self.has_expired(entry, event_time) {
            return None;
        }
        remaining(entry.delay, event_time, now)
    }

    /// How long a retry still has to wait, counted from the last [`next`](Self::next). For failures
    /// without a recorded time, such as pulls. Upstream: `IsInBackOffSinceUpdate`.
    pub fn is_in_backoff_since_update(&self, key: &K, now: Timestamp) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        if self.has_expired(entry, now) {
            return None;
        }
        remaining(entry.delay, entry.last_update, now)
    }

    /// Records a retry, at `now`, of something that failed at `event_time`: sets the initial delay, or
    /// doubles the current one up to the maximum. A key that was stable before it failed starts again
    /// with the initial delay. Upstream: `Next`.
    pub fn next(&mut self, key: K, event_time: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(&key) {
            Some(entry) if !self.has_expired(entry, event_time) => {
                entry.delay.saturating_mul(2).min(self.max)
            }
            Some(_) | None => self.initial,
        };
        self.entries.insert(
            key,
            Entry {
                delay,
                last_update: now,
            },
        );
    }

    /// The current delay of a key; zero if it never failed. Upstream: `Get`.
    pub fn delay(&self, key: &K) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |e| e.delay)
    }

    /// Forgets a key, as after a success. Upstream: `DeleteEntry`.
    pub fn reset(&mut self, key: &K) {
        self.entries.remove(key);
    }

    /// Removes all keys that have been stable since their last retry. Upstream: `GC`.
    pub fn gc(&mut self, now: Timestamp) {
        let stable = self.stable_after;
        self.entries
            .retain(|_, entry| elapsed(entry.last_update, now) <= stable);
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn has_expired(&self, entry: &Entry, event_time: Timestamp) -> bool {
        elapsed(entry.last_update, event_time) > self.stable_after
    }
}

fn remaining(delay: Duration, from: Timestamp, now: Timestamp) -> Option<Duration> {
    delay
        .checked_sub(since(from, now))
        .filter(|left| !left.is_zero())
}

/// A duration in whole seconds in Go's format: `10s`, `1m20s`, `5m0s`, `1h0m0s`.
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn key(hash: u32) -> ContainerKey {
        ("web".into(), ContainerHash(hash))
    }

    #[test]
    fn delays_are_0_10_20_up_to_300_seconds() {
        let mut backoff = Backoff::default();
        let mut now = 0;
        let mut delays = Vec::new();
        for _ in 0..8 {
            // It crashes as soon as it is started, and is started as soon as allowed.
            let crashed = at(now);
            let wait = backoff
                .is_in_backoff_since(&key(1), crashed, crashed)
                .unwrap_or_default();
            delays.push(wait.as_secs());
            now += i64::try_from(wait.as_secs()).unwrap();
            assert_eq!(backoff.is_in_backoff_since(&key(1), crashed, at(now)), None);
            backoff.next(key(1), crashed, at(now));
        }
        // pods 57, docker 7
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn ten_stable_minutes_reset_the_sequence() {
        let mut backoff = Backoff::default();
        backoff.next(key(1), at(0), at(0));
        backoff.next(key(1), at(0), at(10));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 20);
        // Exactly 600 s after the last retry is not stable yet, one more second is.
        assert!(
            backoff
                .is_in_backoff_since(&key(1), at(610), at(610))
                .is_some()
        );
        // pods 57
        assert_eq!(backoff.is_in_backoff_since(&key(1), at(611), at(611)), None);
        backoff.next(key(1), at(611), at(611));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 10);
    }

    #[test]
    fn containers_are_stable_after_ten_minutes_whatever_the_longest_delay_is() {
        let short = Duration::from_secs(20);
        let mut backoff = Backoff::of_containers(short);
        backoff.next(key(1), at(0), at(0));
        backoff.next(key(1), at(0), at(0));
        // It ran for ten minutes, much longer than twice the longest delay.
        backoff.next(key(1), at(600), at(600));
        // pods 57
        assert_eq!(backoff.delay(&key(1)), short);
        backoff.next(key(1), at(1201), at(1201));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 10);

        let mut shortest = Backoff::of_containers(Duration::from_secs(1));
        shortest.next(key(1), at(0), at(0));
        assert_eq!(shortest.delay(&key(1)).as_secs(), 1);
    }

    #[test]
    fn waiting_does_not_count_as_stability() {
        let mut backoff = Backoff::default();
        for _ in 0..7 {
            backoff.next(key(1), at(0), at(0));
        }
        // It ran for 400 s, then waited for 300 s: 700 s since the last retry, yet not stable.
        backoff.next(key(1), at(400), at(700));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 300);
    }

    #[test]
    fn a_changed_definition_is_another_key() {
        let mut backoff = Backoff::default();
        backoff.next(key(1), at(0), at(0));
        assert_eq!(
            backoff.is_in_backoff_since(&key(1), at(1), at(3)),
            Some(Duration::from_secs(8))
        );
        // docker 7
        assert_eq!(backoff.is_in_backoff_since(&key(2), at(1), at(3)), None);
    }

    #[test]
    fn pulls_count_from_their_last_try() {
        let mut backoff: Backoff<String> = Backoff::new(10 * MS, 30 * MS);
        let image = "img".to_owned();
        assert_eq!(backoff.is_in_backoff_since_update(&image, at(0)), None);
        backoff.next(image.clone(), at(0), at(0));
        assert_eq!(
            backoff.is_in_backoff_since_update(&image, at(0)),
            Some(10 * MS)
        );
        assert_eq!(backoff.is_in_backoff_since_update(&image, at(1)), None);
        backoff.next(image.clone(), at(0), at(0));
        backoff.next(image.clone(), at(0), at(0));
        assert_eq!(backoff.delay(&image), 30 * MS);
        backoff.reset(&image);
        assert!(backoff.is_empty());
    }

    #[test]
    fn gc_forgets_what_was_quiet_for_twice_the_maximum() {
        let mut backoff = Backoff::default();
        backoff.next(key(1), at(0), at(0));
        backoff.next(key(2), at(100), at(100));
        backoff.gc(at(600));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 10);
        backoff.gc(at(601));
        assert_eq!(backoff.delay(&key(1)).as_secs(), 0);
        assert_eq!(backoff.delay(&key(2)).as_secs(), 10);
    }

    #[test]
    fn a_clock_that_jumps_back_makes_nothing_wait_until_it_has_caught_up() {
        let mut backoff = Backoff::default();
        backoff.next(key(1), at(1000), at(1000));
        for (now, left) in [(1002, Some(8)), (998, Some(8)), (990, None), (0, None)] {
            let waits = backoff.is_in_backoff_since(&key(1), at(1000), at(now));
            assert_eq!(waits, left.map(Duration::from_secs), "{now}");
        }
    }

    #[test]
    fn durations_print_as_in_go() {
        for (seconds, text) in [
            (0, "0s"),
            (10, "10s"),
            (80, "1m20s"),
            (300, "5m0s"),
            (3600, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_secs(seconds)), text);
        }
    }
}
