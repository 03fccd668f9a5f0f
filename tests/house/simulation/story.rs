//! The story of a life, turn by turn.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// The events of a life so far. Clones share it, so that it outlives a life that fails.
#[derive(Debug, Clone, Default)]
pub(super) struct Story(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    text: String,
    began: Option<Instant>,
}

impl Story {
    /// Adds a line, with the virtual time since the first.
    pub(super) fn note(&self, line: &str) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let began = *told.began.get_or_insert_with(Instant::now);
        let at = began.elapsed().as_secs_f64();
        writeln!(told.text, "{at:10.3} s  {line}").unwrap();
    }

    /// All lines.
    pub(super) fn text(&self) -> String {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.text.clone()
    }
}
