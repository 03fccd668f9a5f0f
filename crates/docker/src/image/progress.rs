//! The progress of pulls, for users.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::engine::PullProgress;

pub use mirrorlet_core::api::report::{PullPhase, PullReport as PullProgressReport};

#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    done: u64,
    total: u64,
    complete: bool,
}

#[derive(Debug, Default)]
struct Pull {
    phase: PullPhase,
    layers: BTreeMap<String, Layer>,
}

impl Pull {
    fn note(&mut self, message: &PullProgress) {
        // The first message carries the tag where layers have their id.
        if message.layer.is_empty() || message.status.starts_with("Pulling from") {
            return;
        }
        let layer = self.layers.entry(message.layer.clone()).or_default();
        match message.status.as_str() {
            "Downloading" => {
                layer.done = message.current.unwrap_or(layer.done);
                layer.total = message.total.unwrap_or(layer.total);
                if self.phase == PullPhase::Waiting {
                    self.phase = PullPhase::Downloading;
                }
            }
            "Download complete" | "Verifying Checksum" => layer.done = layer.total,
            "Extracting" => {
                layer.done = layer.total;
                self.phase = PullPhase::Extracting;
            }
            "Pull complete" | "Already exists" => {
                layer.done = layer.total;
                layer.complete = true;
            }
            _ => {}
        }
    }

    fn report(&self, image: &str) -> PullProgressReport {
        let layers = || self.layers.values();
        PullProgressReport {
            image: image.to_owned(),
            phase: self.phase,
            layers_done: layers().filter(|l| l.complete).count(),
            layers_total: self.layers.len(),
            bytes_done: layers().map(|l| l.done.min(l.total)).sum(),
            bytes_total: layers().map(|l| l.total).sum(),
        }
    }
}

/// The pulls in progress, by image and number: two pods may pull one image with different credentials.
/// Only the pull itself writes its entry.
#[derive(Debug, Default)]
pub(super) struct ProgressBoard {
    pulls: Mutex<BTreeMap<(String, u64), Pull>>,
    next: AtomicU64,
    /// Counts the times when a report changed.
    changes: watch::Sender<u64>,
}

impl ProgressBoard {
    /// Begins to report a pull, until the entry is dropped.
    pub(super) fn begin(&self, image: &str) -> BoardEntry<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let key = (image.to_owned(), number);
        self.pulls.lock().insert(key.clone(), Pull::default());
        self.notify();
        BoardEntry { board: self, key }
    }

    /// Changes whenever a report does.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn notify(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    pub(super) fn reports(&self) -> Vec<PullProgressReport> {
        let pulls = self.pulls.lock();
        pulls
            .iter()
            .map(|((image, _), pull)| pull.report(image))
            .collect()
    }
}

/// One pull's place on the board.
#[derive(Debug)]
pub(super) struct BoardEntry<'a> {
    board: &'a ProgressBoard,
    key: (String, u64),
}

impl BoardEntry<'_> {
    /// The pull has started, or restarts with other credentials.
    pub(super) fn started(&self) {
        self.change(|pull| {
            *pull = Pull {
                phase: PullPhase::Downloading,
                ..Pull::default()
            };
        });
    }

    pub(super) fn note(&self, message: &PullProgress) {
        self.change(|pull| pull.note(message));
    }

    fn change(&self, change: impl FnOnce(&mut Pull)) {
        if let Some(pull) = self.board.pulls.lock().get_mut(&self.key) {
            change(pull);
        }
        self.board.notify();
    }

    /// How far it is.
    pub(super) fn report(&self) -> Option<PullProgressReport> {
        let pulls = self.board.pulls.lock();
        pulls.get(&self.key).map(|pull| pull.report(&self.key.0))
    }
}

impl Drop for BoardEntry<'_> {
    fn drop(&mut self) {
        self.board.pulls.lock().remove(&self.key);
        self.board.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(layer: &str, status: &str, current: u64, total: u64) -> PullProgress {
        PullProgress {
            layer: layer.into(),
            status: status.into(),
            current: (total > 0).then_some(current),
            total: (total > 0).then_some(total),
        }
    }

    #[test]
    fn layers_and_bytes_are_counted() {
        let board = ProgressBoard::default();
        let entry = board.begin("a:1");
        assert_eq!(board.reports()[0].phase, PullPhase::Waiting);
        entry.started();
        for m in [
            message("1", "Pulling from library/a", 0, 0),
            message("l1", "Pulling fs layer", 0, 0),
            message("l2", "Already exists", 0, 0),
            message("l1", "Downloading", 30, 100),
        ] {
            entry.note(&m);
        }
        let report = board.reports().remove(0);
        assert_eq!((report.layers_done, report.layers_total), (1, 2));
        assert_eq!((report.bytes_done, report.bytes_total), (30, 100));
        entry.note(&message("l1", "Extracting", 5, 100));
        entry.note(&message("l1", "Pull complete", 0, 0));
        let report = board.reports().remove(0);
        assert_eq!((report.bytes_done, report.layers_done), (100, 2));
        assert_eq!(report.phase, PullPhase::Extracting);
        let mut changes = board.changed();
        assert!(!changes.has_changed().unwrap());
        drop(entry);
        assert!(changes.has_changed().unwrap());
        assert!(board.reports().is_empty());
        changes.mark_unchanged();
        let first = board.begin("a:1");
        let second = board.begin("a:1");
        first.started();
        drop(second);
        assert_eq!(first.report().unwrap().phase, PullPhase::Downloading);
        assert_eq!(board.reports().len(), 1);
    }
}
