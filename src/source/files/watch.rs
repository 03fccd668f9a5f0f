//! Wakes the file source when its directory may have changed.
//!
//! Events say that it is time to look again, and whether a file may still be being written. The parent
//! is watched while there is no directory, or while the path is a symbolic link, whose target may
//! change; otherwise not, because every write beside the directory would wake the agent.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use mirrorlet_core::manifest::is_manifest_name;

/// Longest time that unquiet files put off a look: ten of the usual settle windows.
const SETTLE_MAX: Duration = Duration::from_millis(250);

/// Changes of the directory that were not looked at yet.
#[derive(Debug, Default)]
pub(super) struct Changes {
    changed: Notify,
    whole: AtomicBool,
    unfinished: AtomicBool,
}

/// A change of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// A manifest was renamed into place: it is complete.
    Whole,
    /// A manifest, or the directory itself, has changed, and may change further.
    Unfinished,
    /// Something else has changed, which may become a manifest.
    Other,
}

impl Changes {
    fn record(&self, change: Change) {
        match change {
            Change::Whole => self.whole.store(true, Ordering::Relaxed),
            Change::Unfinished => self.unfinished.store(true, Ordering::Relaxed),
            Change::Other => {}
        }
        self.changed.notify_one();
    }

    /// Waits for a change. Cancel safety: a change that was not returned stays.
    pub(super) async fn come(&self) {
        self.changed.notified().await;
    }

    /// Waits until nothing has changed for `quiet`, up to a limit; not at all if manifests were renamed
    /// into place and none was written to.
    pub(super) async fn settle(&self, quiet: Duration) {
        let deadline = Instant::now() + SETTLE_MAX.max(quiet);
        let mut unfinished = false;
        loop {
            unfinished |= self.unfinished.swap(false, Ordering::Relaxed);
            let is_whole = self.whole.swap(false, Ordering::Relaxed) && !unfinished;
            let remaining = deadline.saturating_duration_since(Instant::now());
            if is_whole
                || remaining.is_zero()
                || timeout(quiet.min(remaining), self.changed.notified())
                    .await
                    .is_err()
            {
                return;
            }
        }
    }
}

/// A watch on the manifest directory that follows it through removal and replacement.
#[derive(Debug)]
pub(super) struct Watch {
    dir: WatchedPath,
    parent: Option<WatchedPath>,
    /// Whether the directories below it are watched, too.
    recursive: bool,
    changes: Arc<Changes>,
    watcher: Option<RecommendedWatcher>,
}

/// A path, and the directory that is watched under it.
#[derive(Debug)]
struct WatchedPath {
    path: PathBuf,
    /// Device and inode.
    watched: Option<(u64, u64)>,
}

impl Watch {
    /// Returns a watch that notifies `changes`; [`ensure`](Self::ensure) starts it.
    pub(super) fn new(dir: &Path, recursive: bool, changes: Arc<Changes>) -> Self {
        let spot = |path: &Path| WatchedPath {
            path: path.to_owned(),
            watched: None,
        };
        Self {
            dir: spot(dir),
            parent: dir.parent().map(spot),
            recursive,
            changes,
            watcher: None,
        }
    }

    /// Ensures that the directory that is currently at the path is watched. Call it before each read of
    /// the directory, so that no change falls between the two.
    ///
    /// # Errors
    /// When the kernel provides no (more) watches; nothing wakes the source then.
    pub(super) fn ensure(&mut self) -> Result<(), notify::Error> {
        if self.watcher.is_none() {
            self.watcher = Some(start(&self.dir.path, Arc::clone(&self.changes))?);
            self.dir.watched = None;
        }
        let Some(watcher) = &mut self.watcher else {
            return Ok(());
        };
        let mut followed = self.dir.follow(watcher, self.recursive);
        if let Some(parent) = &mut self.parent {
            let own = fs::symlink_metadata(&self.dir.path);
            if own.is_ok_and(|own| own.is_dir()) {
                parent.leave(watcher);
            } else {
                // Only an aid, as the seldom re-read finds all that as well.
                let _ = parent.follow(watcher, false);
                // The directory may have been created in between.
                followed = followed.and_then(|()| self.dir.follow(watcher, self.recursive));
            }
        }
        if followed.is_err() {
            self.watcher = None;
        }
        followed
    }
}

impl WatchedPath {
    /// Moves the watch to the directory that is currently at the path; to none if there is none. Even
    /// an existing watch is requested again: the kernel drops it with a mount without a notification,
    /// and the same file system may be mounted again. Not so for directories that are watched
    /// recursively, which are many, and are the agent's own.
    fn follow(
        &mut self,
        watcher: &mut RecommendedWatcher,
        recursive: bool,
    ) -> Result<(), notify::Error> {
        let present = fs::metadata(&self.path).ok();
        let present = present
            .filter(fs::Metadata::is_dir)
            .map(|m| (m.dev(), m.ino()));
        if present != self.watched {
            self.leave(watcher);
        } else if recursive {
            return Ok(());
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

    /// Ends the watch.
    fn leave(&mut self, watcher: &mut RecommendedWatcher) {
        if self.watched.take().is_some() {
            // The kernel has dropped the watch already if the directory is gone.
            let _ = watcher.unwatch(&self.path);
        }
    }
}

fn start(dir: &Path, changes: Arc<Changes>) -> Result<RecommendedWatcher, notify::Error> {
    let dir = dir.to_owned();
    notify::recommended_watcher(move |event: Result<Event, notify::Error>| {
        let change = event.map_or(Some(Change::Unfinished), |event| meaning(&event, &dir));
        if let Some(change) = change {
            changes.record(change);
        }
    })
}

/// Returns the change in an event; none if files were only read, for example by the agent, or if it is
/// about a sibling of the directory.
fn meaning(event: &Event, dir: &Path) -> Option<Change> {
    let is_whole = match event.kind {
        // Both ends of a rename are also reported separately.
        EventKind::Modify(ModifyKind::Name(RenameMode::Both)) => return None,
        EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write) => return None,
        EventKind::Modify(ModifyKind::Name(RenameMode::To)) => true,
        EventKind::Access(_)
        | EventKind::Any
        | EventKind::Create(_)
        | EventKind::Modify(_)
        | EventKind::Remove(_)
        | EventKind::Other => false,
    };
    if event.paths.is_empty() {
        return Some(Change::Unfinished);
    }
    let path = event.paths.iter().find(|path| path.starts_with(dir))?;
    let name = path.file_name().and_then(|name| name.to_str());
    Some(if path == dir {
        Change::Unfinished
    } else if !name.is_some_and(is_manifest_name) {
        Change::Other
    } else if is_whole {
        Change::Whole
    } else {
        Change::Unfinished
    })
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
        let name = |mode| EventKind::Modify(ModifyKind::Name(mode));
        let (from, to) = (name(RenameMode::From), name(RenameMode::To));
        let any = EventKind::Modify(ModifyKind::Any);
        for (event, expected) in [
            (event(write, "/m/a.yaml"), Some(Change::Unfinished)),
            (event(read, "/m/a.yaml"), None),
            (event(open, "/m/a.yaml"), None),
            (
                event(EventKind::Create(CreateKind::Any), "/m/..data"),
                Some(Change::Other),
            ),
            (event(write, "/m/.a.yaml.swp"), Some(Change::Other)),
            (event(any, "/m"), Some(Change::Unfinished)),
            (event(to, "/m"), Some(Change::Unfinished)),
            (event(any, "/n"), None),
            (event(any, "/mm/x"), None),
            (event(from, "/m/a.yaml"), Some(Change::Unfinished)),
            (event(from, "/m/.new"), Some(Change::Other)),
            (event(to, "/m/a.yaml"), Some(Change::Whole)),
            (event(to, "/m/a.yaml~"), Some(Change::Other)),
            (
                event(name(RenameMode::Both), "/m/.new").add_path("/m/a.yaml".into()),
                None,
            ),
            (Event::new(EventKind::Other), Some(Change::Unfinished)),
        ] {
            assert_eq!(meaning(&event, dir), expected, "{event:?}");
        }
    }

    #[tokio::test]
    async fn the_parent_is_watched_while_the_directory_is_missing_or_a_link() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        let changes = Arc::new(Changes::default());
        let mut watch = Watch::new(&dir, false, Arc::clone(&changes));
        let mut watched = |what: &str, expected: (bool, bool)| {
            watch.ensure().unwrap();
            let parent = watch.parent.as_ref().unwrap().watched.is_some();
            assert_eq!((watch.dir.watched.is_some(), parent), expected, "{what}");
        };
        watched("missing", (false, true));
        fs::create_dir(&dir).unwrap();
        changes.come().await;
        watched("there", (true, false));
        fs::write(dir.join("a.yaml"), "").unwrap();
        changes.come().await;
        // Replaced by a link, and led elsewhere.
        for name in ["one", "two"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let link = |to: &str| {
            std::os::unix::fs::symlink(to, root.path().join("link")).unwrap();
            fs::rename(root.path().join("link"), &dir).unwrap();
        };
        fs::rename(&dir, root.path().join("old")).unwrap();
        changes.come().await;
        watched("moved away", (false, true));
        link("one");
        changes.come().await;
        watched("a link", (true, true));
        link("two");
        changes.come().await;
        watched("another link", (true, true));
        fs::remove_file(&dir).unwrap();
        fs::rename(root.path().join("old"), &dir).unwrap();
        changes.come().await;
        watched("back", (true, false));
        // Its own watch tells that it is gone.
        fs::remove_dir_all(&dir).unwrap();
        changes.come().await;
        watched("removed", (false, true));
    }

    #[tokio::test]
    async fn a_watch_that_the_kernel_has_dropped_is_renewed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("manifests");
        fs::create_dir(&dir).unwrap();
        let changes = Arc::new(Changes::default());
        let mut watch = Watch::new(&dir, false, Arc::clone(&changes));
        watch.ensure().unwrap();
        // As an unmount does, of which the watcher hears nothing.
        watch.watcher.as_mut().unwrap().unwatch(&dir).unwrap();
        watch.ensure().unwrap();
        // One that is there stays.
        watch.ensure().unwrap();
        fs::write(dir.join("a.yaml"), "").unwrap();
        let told = timeout(Duration::from_mins(2), changes.come()).await;
        // pods 4
        assert!(told.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_manifest_that_was_renamed_into_place_is_read_at_once() {
        const QUIET: Duration = Duration::from_millis(25);
        for (told, waits) in [
            (vec![Change::Whole], false),
            (vec![Change::Other, Change::Whole, Change::Other], false),
            (vec![Change::Other], true),
            (vec![Change::Unfinished, Change::Whole], true),
            (vec![Change::Whole, Change::Unfinished], true),
        ] {
            let changes = Changes::default();
            for change in &told {
                changes.record(*change);
            }
            changes.come().await;
            let began = Instant::now();
            changes.settle(QUIET).await;
            let waited = if waits { QUIET } else { Duration::ZERO };
            assert_eq!(began.elapsed(), waited, "{told:?}");
            // What was told belongs to that look.
            changes.record(Change::Other);
            changes.come().await;
            changes.settle(QUIET).await;
            assert_eq!(began.elapsed(), waited + QUIET, "{told:?}");
        }
        // A rename ends the wait for what was written beside it.
        let changes = Changes::default();
        changes.record(Change::Other);
        changes.come().await;
        let began = Instant::now();
        let later = async {
            tokio::time::sleep(QUIET / 5).await;
            changes.record(Change::Whole);
        };
        tokio::join!(changes.settle(QUIET), later);
        assert_eq!(began.elapsed(), QUIET / 5);
        // One that changes all the time is read all the same.
        let writes = async {
            loop {
                changes.record(Change::Unfinished);
                tokio::time::sleep(QUIET / 2).await;
            }
        };
        let began = Instant::now();
        tokio::select! {
            () = changes.settle(QUIET) => {}
            () = writes => {}
        }
        assert_eq!(began.elapsed(), SETTLE_MAX);
    }
}
