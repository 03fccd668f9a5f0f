//! The number of times that a different Engine may have started to answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the reconnects to an Engine. Answers from before the last one may be outdated: an Engine can
/// be restarted with other settings. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Reconnects(Arc<AtomicU64>);

impl Reconnects {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Counts one.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}
