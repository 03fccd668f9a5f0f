//! The number of times that another Engine may have begun to answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the reconnects to an Engine. What was asked before the last one may have another answer now: an
/// Engine is restarted with other settings. Clones count together.
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
