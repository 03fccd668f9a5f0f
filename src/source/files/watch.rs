//! Wakes the file source when its directory may have changed.
//!
//! Events carry no meaning beyond "look again". The parent is watched too, for the day the
//! directory, or the symbolic link that leads to it, is replaced.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;

/// A watch on the manifest directory that follows it through removal and replacement.
#[derive(Debug)]
pub(super) struct Watch {
    dir: Spot,
    parent: Option<Spot>,
    /// Whether the directories below it are watched, too.
    recursive: bool,
    wake: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
}

/// A path, and the directory that is watched under it.
#[derive(Debug)]
struct Spot {
    path: PathBuf,
    /// Device and inode.
    watched: Option<(u64, u64)>,
}

impl Watch {
    /// A watch that will wake `wake`; [`ensure`](Self::ensure) starts it.
    pub(super) fn new(dir: &Path, recursive: bool, wake: Arc<Notify>) -> Self {
        let spot = |path: &Path| Spot {
            path: path.to_owned(),
            watched: None,
        };
        Self {
            dir: spot(dir),
            parent: dir.parent().map(spot),
            recursive,
            wake,
            watcher: None,
        }
    }

    /// Makes sure that what is at the path now is watched. To be called before each read of the
    /// directory, so that no change falls between the two.
    ///
    /// # Errors
    /// When the kernel gives no (more) watches; nothing wakes the source then.
    pub(super) fn ensure(&mut self) -> Result<(), notify::Error> {
        if self.watcher.is_none() {
            self.watcher = Some(start(&self.dir.path, Arc::clone(&self.wake))?);
            self.dir.watched = None;
        }
        let Some(watcher) = &mut self.watcher else {
            return Ok(());
        };
        if let Some(parent) = &mut self.parent {
            // Only an aid for replacements, which the seldom re-read finds as well.
            let _ = parent.follow(watcher, false);
        }
        let followed = self.dir.follow(watcher, self.recursive);
        if followed.is_err() {
            self.watcher = None;
        }
        followed
    }
}

impl Spot {
    /// Moves the watch to the directory that is at the path now; to none if there is none.
    fn follow(
        &mut self,
        watcher: &mut RecommendedWatcher,
        recursive: bool,
    ) -> Result<(), notify::Error> {
        let present = fs::metadata(&self.path).ok();
        let present = present
            .filter(fs::Metadata::is_dir)
            .map(|m| (m.dev(), m.ino()));
        if present == self.watched {
            return Ok(());
        }
        if self.watched.take().is_some() {
            // The kernel has dropped the watch already if the directory is gone.
            let _ = watcher.unwatch(&self.path);
        }
        if present.is_some() {
            let mode = if recursive {
                RecursiveMode::Recursive
            } else {
                RecursiveMode::NonRecursive
            };
            match watcher.watch(&self.path, mode) {
                Ok(()) => self.watched = present,
                // Gone again: the read that follows will find out.
                Err(_) if !self.path.exists() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn start(dir: &Path, wake: Arc<Notify>) -> Result<RecommendedWatcher, notify::Error> {
    let dir = dir.to_owned();
    notify::recommended_watcher(move |event: Result<Event, notify::Error>| {
        if event.map_or(true, |event| concerns(&event, &dir)) {
            wake.notify_one();
        }
    })
}

/// Whether an event can mean that the directory holds something else now. Reading, our own
/// included, doesn't; nor does a change of the directory's siblings.
fn concerns(event: &Event, dir: &Path) -> bool {
    let changes = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => true,
    };
    changes && (event.paths.is_empty() || event.paths.iter().any(|path| path.starts_with(dir)))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, ModifyKind};

    use super::*;

    #[test]
    fn only_changes_below_the_directory_concern() {
        let event = |kind, path: &str| Event::new(kind).add_path(path.into());
        let dir = Path::new("/m");
        let write = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        let open = EventKind::Access(AccessKind::Open(AccessMode::Any));
        for (event, expected) in [
            (event(write, "/m/a.yaml"), true),
            (event(read, "/m/a.yaml"), false),
            (event(open, "/m/a.yaml"), false),
            (event(EventKind::Create(CreateKind::Any), "/m/..data"), true),
            (event(EventKind::Modify(ModifyKind::Any), "/m"), true),
            (event(EventKind::Modify(ModifyKind::Any), "/n"), false),
            (event(EventKind::Modify(ModifyKind::Any), "/mm/x"), false),
            (Event::new(EventKind::Other), true),
        ] {
            assert_eq!(concerns(&event, dir), expected, "{event:?}");
        }
    }
}
