//! Events that wait for the API server.

use std::collections::VecDeque;

use super::Write;

/// Most events that wait: a day of a node with a few crashing pods, each event a few hundred
/// bytes. An event that repeats while it waits takes no more room.
pub const SPOOL_MAX: usize = 1_000;

/// Most events for which there is room when none waits: that of a burst, a kilobyte for each event, is
/// given back.
const ROOM_KEPT: usize = 16;

/// Events in the order they are to be written.
#[derive(Debug, Clone, Default)]
pub struct EventQueue {
    writes: VecDeque<Write>,
}

impl EventQueue {
    /// Appends an event, or replaces the one it repeats. Returns how many were lost to make room:
    /// the oldest.
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

    /// Puts an event back that could not be written, before all others; or forgets it, if a
    /// repeat of it waits by now. Returns how many were lost.
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
