//! Limits requests to the API server: a few at a time, a bounded number waits, others are refused.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::connections::Source;

/// How many may ask and wait.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Most that ask at a time.
    pub(super) asking: usize,
    /// Most that ask or wait.
    pub(super) all: usize,
    /// Most of one source that ask or wait.
    pub(super) of_source: usize,
}

/// The turns at one kind of question.
#[derive(Debug)]
pub(super) struct Turns {
    limits: Limits,
    asking: Semaphore,
    present: Mutex<Present>,
}

/// The callers that ask or wait.
#[derive(Debug, Default)]
struct Present {
    all: usize,
    /// Sources without anyone have no entry.
    of: HashMap<Source, usize>,
}

/// Too many wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

/// A place among the active and waiting requests.
struct Place<'a> {
    turns: &'a Turns,
    source: Source,
}

/// The permission to send a request; released on drop.
pub(super) struct Turn<'a> {
    _permit: Option<SemaphorePermit<'a>>,
    _place: Place<'a>,
}

impl Turns {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            asking: Semaphore::new(limits.asking),
            present: Mutex::default(),
        }
    }

    /// Waits for a turn, if there is room to wait.
    ///
    /// # Cancel safety
    /// The place is released.
    pub(super) async fn turn(&self, source: Source) -> Result<Turn<'_>, Full> {
        let place = self.place(source)?;
        // Never closed, so a permit always comes.
        let permit = self.asking.acquire().await.ok();
        Ok(Turn {
            _permit: permit,
            _place: place,
        })
    }

    fn place(&self, source: Source) -> Result<Place<'_>, Full> {
        let mut present = self.present.lock();
        let of = present.of.get(&source).copied().unwrap_or_default();
        if present.all >= self.limits.all || of >= self.limits.of_source {
            return Err(Full);
        }
        present.all += 1;
        present.of.insert(source, of + 1);
        Ok(Place {
            turns: self,
            source,
        })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut present = self.turns.present.lock();
        present.all -= 1;
        if let Some(of) = present.of.get_mut(&self.source) {
            *of -= 1;
            if *of == 0 {
                present.of.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_source_takes_all_places_and_who_leaves_makes_room() {
        let turns = Turns::new(Limits {
            asking: 1,
            all: 5,
            of_source: 3,
        });
        let source = |last| Source::of([192, 0, 2, last].into());
        let mut places = Vec::new();
        // The caller's source, and whether there is room for it.
        for (who, room) in [
            (1, true),
            (1, true),
            (1, true),
            (1, false),
            (2, true),
            (3, true),
            (2, false),
            (4, false),
        ] {
            let place = turns.place(source(who));
            assert_eq!(place.is_ok(), room, "{who}");
            places.extend(place);
        }
        places.remove(0);
        // node-api 15
        assert!(turns.place(source(4)).is_ok());
        assert!(turns.place(source(1)).is_ok());
        drop(places);
        let present = turns.present.lock();
        assert_eq!((present.all, present.of.len()), (0, 0));
    }
}
