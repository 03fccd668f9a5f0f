//! The sources of pods on this machine: the manifest directory, the embedded API's store, and URLs.

use std::path::Path;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use super::embedded;
use super::parts::{Parts, spawn_until};
use crate::config::Config;
use crate::source::files::{FileSource, embedded_directory, may_be_directory};
use crate::source::http::{HttpOptions, HttpSource};
use crate::source::last_good;
use crate::source::{SourceReader, source};
use crate::store::refresh::{RefreshHandle, refreshes};

/// Creates the default manifest directory with its root; a configured one must exist. A directory that
/// was removed later is not created again: an empty one would mean that all its pods must be stopped, a
/// missing one only that something is wrong.
pub(super) fn make_default_manifests_dir(config: &Config) -> anyhow::Result<()> {
    let had_manifests = last_good::may_hold_any(&config.root);
    if config.manifests.parent() == Some(config.root.as_path()) && !had_manifests {
        std::fs::create_dir_all(&config.manifests)
            .with_context(|| format!("failed to create {}", config.manifests.display()))?;
    }
    Ok(())
}

/// Handles that have the directories read.
pub(super) struct Directories {
    /// The directory of manifests.
    pub(super) manifests: RefreshHandle,
    /// The directory of the objects that the embedded API stores, where it may exist.
    pub(super) stored: Option<RefreshHandle>,
}

/// Starts the manifest directory, what the embedded API stores, and the URLs.
pub(super) fn start_sources(
    config: &Config,
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<(Vec<SourceReader>, Directories)> {
    let mut readers = Vec::new();
    let stored = embedded_directory(&config.root);
    // Stored objects keep running while the API is off; if there are none, nothing is read.
    if embedded::is_wanted(config) {
        make_private(&stored)?;
    }
    let mut start = |files: FileSource| {
        let (writer, reader) = source(files.name());
        readers.push(reader);
        let (handle, refreshes) = refreshes();
        let reading = files.run(writer, refreshes);
        spawn_until(parts, cancel, "file source", reading);
        handle
    };
    let directories = Directories {
        manifests: start(FileSource::new(config)),
        stored: may_be_directory(&stored).then(|| start(FileSource::embedded(config))),
    };
    for url in &config.manifest_urls {
        let http = HttpSource::new(HttpOptions::new(config, url))?;
        let (writer, reader) = source(http.name());
        readers.push(reader);
        spawn_until(parts, cancel, "URL source", http.run(writer));
    }
    Ok((readers, directories))
}

/// Makes a directory that only we can enter.
pub(super) fn make_private(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory);
    made.with_context(|| format!("failed to create {}", directory.display()))
}
