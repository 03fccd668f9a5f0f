//! Reads the table's file and follows its changes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::Table;

/// Pause between reads while the file does not exist yet.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// Pause between reads if nothing is reported: the kernel may drop a watch without notice.
const NEXT_LOOK: Duration = Duration::from_secs(30);
/// Most bytes of a table, about a hundred thousand names; a guess that bounds memory.
const TABLE_MAX: u64 = 16 << 20;

/// Follows the table's file.
pub(crate) struct Follower {
    path: PathBuf,
    dir: PathBuf,
    /// The bytes that were parsed last.
    bytes: Option<Vec<u8>>,
    has_warned: bool,
    has_changed: Arc<Notify>,
    watcher: Option<RecommendedWatcher>,
}

impl Follower {
    pub(crate) fn new(path: PathBuf) -> Self {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        Self {
            dir: dir.unwrap_or(Path::new(".")).to_owned(),
            path,
            bytes: None,
            has_warned: false,
            has_changed: Arc::default(),
            watcher: None,
        }
    }

    /// Returns the first table. Waits for its file to exist.
    ///
    /// # Errors
    /// When the file exists but can't be read or is not a table.
    pub(crate) async fn first(&mut self) -> io::Result<Table> {
        loop {
            match self.look().await {
                Ok(Some(table)) => return Ok(table),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        warn!("waiting for {}, which does not exist", self.path.display());
                    }
                }
                Ok(None) => {}
                Err(error) => return Err(error),
            }
            let _ = timeout(FIRST_LOOK, self.has_changed.notified()).await;
        }
    }

    /// Waits for a table that differs from the last one. A file that is no table is reported once
    /// and changes nothing. Cancel safety: a table that is read when this is dropped may be lost.
    pub(crate) async fn next(&mut self) -> Table {
        loop {
            let _ = timeout(NEXT_LOOK, self.has_changed.notified()).await;
            match self.look().await {
                Ok(Some(table)) => return table,
                Ok(None) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.has_warned, true) {
                        let path = self.path.display();
                        warn!("cannot read {path}, the last table stays in use: {error}");
                    }
                }
            }
        }
    }

    /// Reads the file; returns none if it is the one that was read last.
    async fn look(&mut self) -> io::Result<Option<Table>> {
        self.watch();
        let path = self.path.clone();
        let bytes = tokio::task::spawn_blocking(move || read(&path)).await??;
        let table = if self.bytes.as_ref() == Some(&bytes) {
            None
        } else {
            let table = serde_json::from_slice(&bytes);
            Some(table.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?)
        };
        self.bytes = Some(bytes);
        self.has_warned = false;
        Ok(table)
    }

    /// Makes sure that the directory is watched that is at the path now. Without a watch, changes
    /// are found at the next look.
    fn watch(&mut self) {
        if self.watcher.is_none() {
            let watcher = watcher(self.path.file_name(), Arc::clone(&self.has_changed));
            self.watcher = watcher
                .inspect_err(|error| warn!("changes of the table are found late: {error}"))
                .ok();
        }
        // The kernel ignores a watch that it has already.
        if let Some(watcher) = &mut self.watcher
            && let Err(error) = watcher.watch(&self.dir, RecursiveMode::NonRecursive)
        {
            debug!("cannot watch {}: {error}", self.dir.display());
        }
    }
}

fn watcher(
    name: Option<&std::ffi::OsStr>,
    has_changed: Arc<Notify>,
) -> notify::Result<RecommendedWatcher> {
    let name = name.map(OsString::from);
    notify::recommended_watcher(move |event: notify::Result<Event>| {
        let is_change = event.map_or(true, |event| {
            // Our own reads are reported, too.
            let is_read = matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write));
            let is_ours = |path: &PathBuf| path.file_name() == name.as_deref();
            !is_read && (event.paths.is_empty() || event.paths.iter().any(is_ours))
        });
        if is_change {
            has_changed.notify_one();
        }
    })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(TABLE_MAX + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TABLE_MAX {
        return Err(io::Error::other(format!(
            "it is larger than {TABLE_MAX} bytes"
        )));
    }
    Ok(bytes)
}
