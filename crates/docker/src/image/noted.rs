//! A small file in the root directory with what is remembered of images over restarts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use mirrorlet_host::disk::{self, IfThere as _};

/// Version of the files' format. A file of another version is set aside.
const VERSION: u32 = 1;
/// Largest file that is read, in bytes: room for tens of thousands of images.
const FILE_MAX: u64 = 16 << 20;
/// Suffix of an unusable file.
pub(super) const SET_ASIDE: &str = ".set-aside";

/// The file.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    version: u32,
    images: T,
}

/// A value that is kept in a file. One writer at a time.
#[derive(Debug, Default)]
pub(super) struct NotedFile<T> {
    /// None to remember only as long as the agent runs.
    path: Option<PathBuf>,
    /// None before the file was read.
    known: Mutex<Option<T>>,
}

impl<T> NotedFile<T>
where
    T: Clone + PartialEq + Default + Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            known: Mutex::default(),
        }
    }

    /// Changes what is known, and the file if that is something else then. `unreadable` is what is
    /// known where the file can't be used, which is renamed. The change counts for this agent, too,
    /// where the file can't be written.
    pub(super) async fn change<R>(
        &self,
        unreadable: impl FnOnce(&io::Error) -> T,
        change: impl FnOnce(&mut T) -> R,
    ) -> (R, io::Result<()>) {
        let mut known = self.known.lock().await;
        let mut changed = false;
        let before = match known.take() {
            Some(before) => before,
            None => self.read().await.unwrap_or_else(|error| {
                // The file is gone by now.
                changed = true;
                unreadable(&error)
            }),
        };
        let mut images = before.clone();
        let result = change(&mut images);
        changed |= images != before;
        let images = known.insert(images);
        if changed && let Some(path) = self.path.clone() {
            let stored = Stored {
                version: VERSION,
                images: images.clone(),
            };
            let written = disk::blocking(move || write(&path, &stored)).await;
            return (result, written);
        }
        (result, Ok(()))
    }

    async fn read(&self) -> io::Result<T> {
        match self.path.clone() {
            Some(path) => disk::blocking(move || read(&path)).await,
            None => Ok(T::default()),
        }
    }
}

fn read<T: DeserializeOwned + Default>(path: &Path) -> io::Result<T> {
    let Some(found) = fs::metadata(path).if_there()? else {
        return Ok(T::default());
    };
    let unusable = |cause: String| {
        let aside = PathBuf::from(format!("{}{SET_ASIDE}", path.display()));
        let fate = match fs::rename(path, &aside) {
            Ok(()) => format!("renamed to {}", aside.display()),
            Err(error) => format!("failed to rename it: {error}"),
        };
        io::Error::other(format!("{}: {cause}; {fate}", path.display()))
    };
    if found.len() > FILE_MAX {
        return Err(unusable(format!("has {} bytes", found.len())));
    }
    let text = fs::read(path)?;
    let stored: Stored<T> = match serde_json::from_slice(&text) {
        Ok(stored) => stored,
        Err(error) => return Err(unusable(format!("can't be decoded: {error}"))),
    };
    if stored.version != VERSION {
        return Err(unusable(format!("is of version {}", stored.version)));
    }
    Ok(stored.images)
}

/// Renamed in for good.
fn write<T: Serialize>(path: &Path, stored: &Stored<T>) -> io::Result<()> {
    disk::replace(path, &serde_json::to_vec(stored)?)?;
    path.parent().map_or(Ok(()), disk::sync_directory)
}
