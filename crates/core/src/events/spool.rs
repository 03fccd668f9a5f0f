//! Events that wait for the API server.

use std::collections::VecDeque;

use super::Write;

/// Maximum number of waiting events: those of a node with a few crashing pods in a day, each a few
/// hundred bytes. An event that repeats while it waits takes no more room.
pub const SPOOL_MAX: usize = 1_000;

/// Capacity that is kept for waiting events when there are none: the memory of a burst, a kilobyte per
/// event, is released.
const ROOM_KEPT: usize = 16;

/// Events in the order they are to be written.
#[derive(Debug, Clone, Default)]
pub struct EventQueue {
    writes: VecDeque<Write>,
}

impl EventQueue {
    /// Appends an event, or replaces the one it repeats. Returns the number of events, the oldest ones,
    /// that were dropped to make room.
    pub fn push(&mut self, write: Write) -> usize {
        let same = |waiting: &&mut Write| {
            waiting.name() == write.name() && waiting.namespace() == write.namespace()
        };
        if write.update
            && let Some(waiting) = self.writes.iter_mut().rev().find(same)
        {
            waiting.event = write.event;
            return 0;
        }
        self.writes.push_back(write);
        self.shrink()
    }

    /// Puts an event back that could not be written, before all others, unless a repeat of it is
    /// waiting. Returns the number of dropped events.
    pub fn put_back(&mut self, mut write: Write) -> usize {
        let same = |waiting: &Write| {
            waiting.name() == write.name() && waiting.namespace() == write.namespace()
        };
        if let Some(at) = self.writes.iter().position(same)
            && let Some(repeat) = self.writes.remove(at)
        {
            write.event = repeat.event;
        }
        self.writes.push_front(write);
        self.shrink()
    }

    fn shrink(&mut self) -> usize {
        let lost = self.writes.len().saturating_sub(SPOOL_MAX);
        self.writes.drain(..lost);
        lost
    }

    /// The next to write.
    pub fn pop(&mut self) -> Option<Write> {
        let next = self.writes.pop_front();
        if self.writes.is_empty() {
            self.writes.shrink_to(ROOM_KEPT);
        }
        next
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_a_burst_is_given_back() {
        let mut spool = EventQueue::default();
        for number in 0..SPOOL_MAX {
            let mut event = crate::api::core::Event::default();
            event.metadata.name = Some(number.to_string());
            spool.push(Write {
                event,
                update: false,
            });
        }
        while spool.pop().is_some() {}
        assert!(spool.writes.capacity() <= ROOM_KEPT);
    }
}
