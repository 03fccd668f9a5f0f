//! The places of watches, and the lines of their events.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use mirrorlet_apimachinery::cache::ChangeKind;
use mirrorlet_apimachinery::status::Status;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Most watches at a time. kubectl has one, a controller one for each kind.
const WATCHES_MAX: usize = 512;
/// Most lines that are kept, and the longest of them, in bytes: together a megabyte at most.
const LINES_MAX: usize = 16;
const LINE_BYTES_MAX: usize = 64 << 10;

/// The state that all watches share; it limits their number.
#[derive(Clone)]
pub(super) struct Watches {
    places: Arc<Semaphore>,
    pub(super) lines: Lines,
    pub(super) cancel: CancellationToken,
}

/// A place of a watch.
pub(super) struct Place(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Watches {
    /// Watches that end with `cancel`.
    pub(super) fn new(cancel: CancellationToken) -> Self {
        Self {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
            lines: Lines::default(),
            cancel,
        }
    }

    /// Takes a place.
    pub(super) fn begin(&self) -> Result<Place, Status> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        place.map(Place).map_err(|_| {
            Status::too_many_requests(&format!("there are {WATCHES_MAX} watches already"), 5)
        })
    }
}

/// An event of a watch. Its type comes first, as upstream: clients read the object as what it is.
#[derive(Serialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    object: &'a Value,
}

/// The line of an event.
pub(super) fn line(kind: &str, object: &Value) -> Option<Bytes> {
    let mut line = serde_json::to_vec(&Event { kind, object }).ok()?;
    line.push(b'\n');
    Some(line.into())
}

/// A change, and its line.
struct Written {
    kind: ChangeKind,
    object: Arc<Value>,
    line: Bytes,
}

/// The latest lines of whole objects: a change is written once for all that watch it.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Mutex<VecDeque<Written>>>);

impl Lines {
    /// The line of a change.
    pub(super) fn of(&self, kind: ChangeKind, object: &Arc<Value>) -> Option<Bytes> {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = lines.iter();
        // An object that is held here can't have given its place to another.
        let known = known.find(|known| known.kind == kind && Arc::ptr_eq(&known.object, object));
        if let Some(known) = known {
            return Some(known.line.clone());
        }
        let line = line(kind.as_str(), object)?;
        if line.len() <= LINE_BYTES_MAX {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(Written {
                kind,
                object: Arc::clone(object),
                line: line.clone(),
            });
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_has_one_line_for_all_that_watch_it() {
        let lines = Lines::default();
        let object = |name: &str| Arc::new(json!({"metadata": {"name": name}}));
        let web = object("web");
        let first = lines.of(ChangeKind::Added, &web).unwrap();
        assert_eq!(
            first,
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"web\"}}}\n"
        );
        let again = lines.of(ChangeKind::Added, &web).unwrap();
        assert_eq!(again.as_ptr(), first.as_ptr());
        let changed = lines.of(ChangeKind::Modified, &web).unwrap();
        assert!(changed.starts_with(b"{\"type\":\"MODIFIED\""));
        // An equal object is another change.
        let other = lines.of(ChangeKind::Added, &object("web")).unwrap();
        assert_eq!((&other, other.as_ptr() == first.as_ptr()), (&first, false));
        for n in 0..2 * LINES_MAX {
            lines.of(ChangeKind::Added, &object(&n.to_string()));
        }
        let long = object(&"x".repeat(LINE_BYTES_MAX));
        lines.of(ChangeKind::Added, &long).unwrap();
        let kept = lines.0.lock().unwrap();
        assert_eq!(kept.len(), LINES_MAX);
        assert!(kept.iter().all(|kept| kept.line.len() <= LINE_BYTES_MAX));
    }
}
