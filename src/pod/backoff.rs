//! Back-off of crashing containers and failing pulls.

use std::time::Duration;

/// Crash counters of one pod's containers.
#[derive(Debug, Clone, Default)]
pub struct Backoff {
    _initial: Duration,
}
