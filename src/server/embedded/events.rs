//! The limits of watches, and the lines of their events.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use mirrorlet_apimachinery::cache::ChangeKind;
use mirrorlet_apimachinery::status::Status;
use mirrorlet_core::sizes::json_size;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::texts::{self, TextForm, Texts};

/// Most watches at a time. kubectl has one, a controller one for each kind.
const WATCHES_MAX: usize = 512;
/// Most short lines that are kept: together a megabyte at most.
const LINES_MAX: usize = 16;

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
            Status::too_many_requests(
                &format!("the limit of {WATCHES_MAX} concurrent watches is reached"),
                5,
            )
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
pub(super) fn line(kind: &str, object: &Value) -> Vec<u8> {
    let mut line = texts::encoded(&Event { kind, object }, json_size(object).bytes);
    line.push(b'\n');
    line
}

/// A change, and its line.
struct Written {
    kind: ChangeKind,
    object: Arc<Value>,
    line: Bytes,
}

/// The lines of complete objects: a change is encoded once for all that watch it. The latest short
/// lines are cached, long ones while they are being sent.
#[derive(Clone, Default)]
pub(super) struct Lines {
    latest: Arc<Mutex<VecDeque<Written>>>,
    pub(super) texts: Texts,
}

impl Lines {
    /// The line of a change.
    pub(super) fn of(&self, kind: ChangeKind, object: &Arc<Value>) -> Bytes {
        let mut latest = self.latest.lock();
        let mut known = latest.iter();
        // An object that is held here can't have given its place to another.
        let known = known.find(|known| known.kind == kind && Arc::ptr_eq(&known.object, object));
        if let Some(known) = known {
            return known.line.clone();
        }
        let form = TextForm::Event(kind.as_str());
        let line = self.texts.of(form, object, || line(kind.as_str(), object));
        if line.len() <= texts::SHORT_BYTES_MAX {
            if latest.len() == LINES_MAX {
                latest.pop_front();
            }
            latest.push_back(Written {
                kind,
                object: Arc::clone(object),
                line: line.clone(),
            });
        }
        line
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
        let first = lines.of(ChangeKind::Added, &web);
        assert_eq!(
            first,
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"web\"}}}\n"
        );
        let again = lines.of(ChangeKind::Added, &web);
        assert_eq!(again.as_ptr(), first.as_ptr());
        let changed = lines.of(ChangeKind::Modified, &web);
        assert!(changed.starts_with(b"{\"type\":\"MODIFIED\""));
        // An equal object is another change.
        let other = lines.of(ChangeKind::Added, &object("web"));
        assert_eq!((&other, other.as_ptr() == first.as_ptr()), (&first, false));
        for n in 0..2 * LINES_MAX {
            lines.of(ChangeKind::Added, &object(&n.to_string()));
        }
        let long = object(&"x".repeat(texts::SHORT_BYTES_MAX));
        lines.of(ChangeKind::Added, &long);
        let kept = lines.latest.lock();
        assert_eq!(kept.len(), LINES_MAX);
        assert!(
            kept.iter()
                .all(|kept| kept.line.len() <= texts::SHORT_BYTES_MAX)
        );
    }
}
