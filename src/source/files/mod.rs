//! The manifest directory as a source of pods.
//!
//! inotify events wake the task, a short quiet window lets writers finish (a renamed file is complete),
//! then the whole directory is read; an infrequent re-read is the safety net. Whatever happens, only
//! removing a file or a document removes a pod ([`hold`](mirrorlet_core::hold)). Fed by the file
//! system; read by the merge.

mod directory;
mod scan;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use self::directory::{Directory, FilesMissing, Look};
use self::watch::{Changes, Watch};
use crate::config::Config;
use crate::source::SourceWriter;
use crate::store::refresh::Refreshes;
use mirrorlet_core::api::{Code, Diagnostic, NodeName, Timestamp};
use mirrorlet_core::desired::{PodSource, SourceSet};
use mirrorlet_core::merge::SourceName;
use mirrorlet_host::disk;

/// How long a file must be missing to be gone: editors that save by renaming leave a gap of
/// microseconds, slow ones of milliseconds.
const MISSING_CONFIRM: Duration = Duration::from_millis(50);

/// How often a directory is looked for that isn't there, or that the kernel won't watch.
const UNWATCHED_PERIOD: Duration = Duration::from_secs(1);

/// How long the API must write nothing before the last good versions of its objects are stored.
const KEEP_QUIET: Duration = Duration::from_millis(50);
/// How long they may wait for that.
const KEEP_BY: Duration = Duration::from_secs(1);

/// A manifest directory.
#[derive(Debug)]
pub struct FileSource {
    /// Absolute path of the directory.
    pub directory: PathBuf,
    /// The kind of the directory: that of manifests ([`PodSource::File`]), or the one in which the
    /// embedded API stores objects.
    pub source: PodSource,
    /// Root directory of the agent, in which the last good versions are stored.
    pub root: PathBuf,
    /// Node the pods are bound to.
    pub node_name: NodeName,
    /// How long the directory must be quiet before it is read, unless all new files were renamed into
    /// it.
    pub settle: Duration,
    /// How often it is read though nothing changed.
    pub rescan_period: Duration,
}

/// The state of a look; on its own thread while one is in progress.
#[derive(Debug)]
struct Scanner {
    watch: Watch,
    directory: Directory,
    /// Why changes don't wake us.
    blind: Option<Diagnostic>,
}

/// Name of the directory under the root where the embedded API stores objects.
const EMBEDDED_DIRECTORY: &str = "api";

/// The directory where the embedded API stores objects, `NAMESPACE/RESOURCE/NAME.yaml`.
pub fn embedded_directory(root: &Path) -> PathBuf {
    root.join(EMBEDDED_DIRECTORY)
}

/// Whether there may be a directory at that path: an unreadable one may contain objects that must not
/// be stopped.
pub fn may_be_directory(path: &Path) -> bool {
    let found = std::fs::metadata(path).map(|metadata| metadata.is_dir());
    found.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
}

impl FileSource {
    /// Returns the source for a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            // Only an empty path or a lost working directory can't be made absolute; such a path
            // is reported when it can't be read.
            directory: std::path::absolute(&config.manifests)
                .unwrap_or_else(|_| config.manifests.clone()),
            source: PodSource::File,
            root: config.root.clone(),
            node_name: config.node_name.clone(),
            settle: config.settle,
            rescan_period: config.rescan_period,
        }
    }

    /// The source of what the embedded API stores.
    pub fn embedded(config: &Config) -> Self {
        let directory = embedded_directory(&config.root);
        Self {
            directory: std::path::absolute(&directory).unwrap_or(directory),
            source: PodSource::Embedded,
            ..Self::new(config)
        }
    }

    /// Its name.
    pub fn name(&self) -> SourceName {
        SourceName::new(self.source, &*self.directory.to_string_lossy())
    }

    /// Delivers sets until cancelled. The first one follows the first read of the directory, even if
    /// that fails. A refresh triggers a read as soon as the directory is quiet; for the embedded API's
    /// directory, immediately.
    ///
    /// # Cancel safety
    /// After cancellation nothing of this source is used any more, and a look in progress only reads,
    /// or renames complete files into place.
    pub async fn run(self, mut writer: SourceWriter, mut refreshes: Refreshes) {
        let changes = Arc::new(Changes::default());
        let mut eye = {
            let (path, root, node) = (
                self.directory.clone(),
                self.root.clone(),
                self.node_name.clone(),
            );
            let (changes, source) = (Arc::clone(&changes), self.source);
            disk::blocking(move || Scanner {
                watch: Watch::new(&path, source == PodSource::Embedded, changes),
                directory: Directory::new(path, &root, node, source),
                blind: None,
            })
            .await
        };
        // When last good versions are stored at the latest; none while all are.
        let mut keep_by = None;
        loop {
            let (seen_by, next) = self.look(eye, &mut writer).await;
            eye = seen_by;
            // The pods come first: keeping their manifests waits for the disk. Clients of the API wait
            // for a look, and what they wrote is on disk: there, those of many writes are kept at once.
            if self.source == PodSource::Embedded {
                keep_by.get_or_insert_with(|| Instant::now() + KEEP_BY);
            } else {
                eye = keep(eye, &mut writer).await;
            }
            refreshes.done();
            loop {
                let quiet = Instant::now() + KEEP_QUIET;
                let keep_at = keep_by.map(|by: Instant| by.min(quiet));
                // Cancel safety: a wake-up or a request not taken here stays stored.
                tokio::select! {
                    () = changes.come() => {
                        self.settle(&changes, &mut refreshes).await;
                        break;
                    }
                    () = refreshes.requested() => {
                        if self.source != PodSource::Embedded {
                            changes.settle(self.settle).await;
                        }
                        break;
                    }
                    () = sleep_until(keep_at.unwrap_or(next)), if keep_at.is_some() => {
                        eye = keep(eye, &mut writer).await;
                        keep_by = None;
                    }
                    () = sleep_until(next) => break,
                }
            }
        }
    }

    /// Waits until the directory is quiet. A write of the embedded API ends the wait: the API renames
    /// whole files in, and its client waits for the look.
    async fn settle(&self, changes: &Changes, refreshes: &mut Refreshes) {
        // Cancel safety: changes that were noticed while settling are read now.
        tokio::select! {
            () = changes.settle(self.settle) => {}
            () = refreshes.requested(), if self.source == PodSource::Embedded => {}
        }
    }

    /// Looks and publishes. Returns when to look again.
    async fn look(&self, mut eye: Scanner, writer: &mut SourceWriter) -> (Scanner, Instant) {
        let seen = loop {
            let (seen_by, look) = disk::blocking(move || {
                let look = eye.look();
                (eye, look)
            })
            .await;
            eye = seen_by;
            if let Ok(look) = look {
                break look;
            }
            sleep(MISSING_CONFIRM).await;
        };
        let Look {
            set,
            unavailable,
            again,
        } = seen;
        let unwatched = unavailable.is_some() || eye.blind.is_some();
        match unavailable {
            None => writer.succeeded(Timestamp::now()),
            Some(problem) => writer.failed(problem),
        }
        writer.publish(set);
        let period = if unwatched {
            UNWATCHED_PERIOD
        } else {
            self.rescan_period
        };
        let usual = Instant::now() + period;
        let next = again.map_or(usual, |again| usual.min(Instant::from_std(again)));
        (eye, next)
    }
}

/// Stores the last good versions of the files that were read.
async fn keep(mut eye: Scanner, writer: &mut SourceWriter) -> Scanner {
    let (eye, later) = disk::blocking(move || {
        let later = eye.flush();
        (eye, later)
    })
    .await;
    if let Some(set) = later {
        writer.publish(set);
    }
    eye
}

impl Scanner {
    fn look(&mut self) -> Result<Look, FilesMissing> {
        self.blind = self.watch.ensure().err().map(|error| {
            let place = self.directory.path().display().to_string();
            let message = format!(
                "the directory is checked only once a second, because inotify is unavailable: {error}"
            );
            Diagnostic::warning(Code::SourceUnavailable, place, message)
                .help("raise fs.inotify.max_user_watches and fs.inotify.max_user_instances")
        });
        let mut look = self.directory.look()?;
        look.set.problems.extend(self.blind.clone());
        Ok(look)
    }

    /// The set again, if storing the last good versions changed what is wrong.
    fn flush(&mut self) -> Option<SourceSet> {
        let mut set = self.directory.flush().then(|| self.directory.set())?;
        set.problems.extend(self.blind.clone());
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_looked_at_may_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "x").unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        for (name, expected) in [
            ("", true),
            ("absent", false),
            ("file", false),
            ("loop", true),
        ] {
            assert_eq!(may_be_directory(&at(name)), expected, "{name}");
        }
    }
}
