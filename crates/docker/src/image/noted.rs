//! A small file in the root directory that keeps data about images over restarts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, OwnedMutexGuard};

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

/// A value that is stored in a file. One writer at a time.
#[derive(Debug, Default)]
pub(super) struct NotedFile<T> {
    /// None to remember only as long as the agent runs.
    path: Option<PathBuf>,
    /// None before the file was read. Reads and writes of the file hold the lock to their end, even if
    /// the caller is gone.
    known: Arc<Mutex<Option<Known<T>>>>,
}

/// The value.
#[derive(Debug, Default)]
struct Known<T> {
    images: T,
    /// Whether the file is to be written though nothing changes: it was set aside, or the last
    /// write failed.
    is_due: bool,
}

impl<T> NotedFile<T>
where
    T: Clone + PartialEq + Default + Serialize + DeserializeOwned + Send + 'static,
{
    pub(super) fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            known: Arc::default(),
        }
    }

    /// Changes the value, and the file if the value differs then. `unreadable` is the value if the file
    /// can't be used; the file is renamed then. The change applies to this agent even if the file can't
    /// be written, and is written with the next change, or by [`write_due`](Self::write_due). Once
    /// made, it is written even if the future is dropped.
    pub(super) async fn change<R>(
        &self,
        unreadable: impl FnOnce(&io::Error) -> T + Send + 'static,
        change: impl FnOnce(&mut T) -> R,
    ) -> (R, io::Result<()>) {
        let mut guard = self.lock(unreadable).await;
        let known = guard.get_or_insert_default();
        let before = known.images.clone();
        let result = change(&mut known.images);
        let is_due = std::mem::take(&mut known.is_due) || known.images != before;
        let Some(path) = self.path.clone().filter(|_| is_due) else {
            return (result, Ok(()));
        };
        // Nothing is awaited between the change and this, which runs to its end.
        let written = disk::blocking(move || {
            let stored = Stored {
                version: VERSION,
                images: guard.as_ref().map(|known| &known.images),
            };
            let written = write(&path, &stored);
            if let (Err(_), Some(known)) = (&written, guard.as_mut()) {
                known.is_due = true;
            }
            written
        });
        (result, written.await)
    }

    /// Retries a failed write, if there was one.
    pub(super) async fn write_due(&self) -> io::Result<()> {
        let known = Arc::clone(&self.known).lock_owned().await;
        let is_due = known.as_ref().is_some_and(|known| known.is_due);
        drop(known);
        if !is_due {
            return Ok(());
        }
        let ((), written) = self.change(|_| T::default(), |_| ()).await;
        written
    }

    /// Waits for earlier operations, and reads the file if that has not been done.
    async fn lock(
        &self,
        unreadable: impl FnOnce(&io::Error) -> T + Send + 'static,
    ) -> OwnedMutexGuard<Option<Known<T>>> {
        let mut guard = Arc::clone(&self.known).lock_owned().await;
        if guard.is_some() {
            return guard;
        }
        let Some(path) = self.path.clone() else {
            return guard;
        };
        let reading = disk::blocking(move || {
            let found = read(&path);
            // The file is gone by now.
            let is_due = found.is_err();
            let images = found.unwrap_or_else(|error| unreadable(&error));
            *guard = Some(Known { images, is_due });
            guard
        });
        reading.await
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
        return Err(unusable(format!(
            "the file is too large: {} bytes",
            found.len()
        )));
    }
    let text = fs::read(path)?;
    let stored: Stored<T> = match serde_json::from_slice(&text) {
        Ok(stored) => stored,
        Err(error) => return Err(unusable(format!("can't be decoded: {error}"))),
    };
    if stored.version != VERSION {
        return Err(unusable(format!(
            "the file has an unknown format version: {}",
            stored.version
        )));
    }
    Ok(stored.images)
}

/// Renamed in for good.
fn write<T: Serialize>(path: &Path, stored: &Stored<T>) -> io::Result<()> {
    disk::replace(path, &serde_json::to_vec(stored)?)?;
    path.parent().map_or(Ok(()), disk::sync_directory)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::{Condvar, Mutex as Gate};
    use std::time::Duration;

    use futures::poll;
    use serde::Serializer;

    use super::*;

    /// A value that takes long to write if it is 1.
    #[derive(Debug, Clone, PartialEq, Default, Deserialize)]
    struct Slow(u32);

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Disk {
        Idle,
        Hangs,
        Answers,
    }

    static DISK: Gate<Disk> = Gate::new(Disk::Idle);
    static NEWS: Condvar = Condvar::new();

    impl Serialize for Slow {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if self.0 == 1 {
                let mut disk = DISK.lock().unwrap();
                *disk = Disk::Hangs;
                drop(NEWS.wait_while(disk, |disk| *disk == Disk::Hangs));
            }
            serializer.serialize_u32(self.0)
        }
    }

    #[tokio::test]
    async fn a_change_that_nobody_waits_for_is_written_before_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("images.json");
        let file = NotedFile::<Slow>::new(Some(path.clone()));
        let mut dropped = Box::pin(file.change(|_| Slow(0), |known| known.0 = 1));
        loop {
            assert!(poll!(&mut dropped).is_pending());
            let disk = *DISK.lock().unwrap();
            if disk == Disk::Hangs {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(dropped);
        let is_changed = Cell::new(false);
        let mut next = Box::pin(file.change(
            |_| Slow(0),
            |known| {
                is_changed.set(true);
                known.0 = 2;
            },
        ));
        assert!(poll!(&mut next).is_pending());
        assert!(!is_changed.get(), "it waits for the write before");
        *DISK.lock().unwrap() = Disk::Answers;
        NEWS.notify_all();
        let ((), written) = next.await;
        written.unwrap();
        let anew = NotedFile::<Slow>::new(Some(path));
        let (found, _) = anew.change(|_| Slow(0), |known| known.0).await;
        assert_eq!(found, 2);
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_written_with_the_next_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let path = root.join("images.json");
        let file = NotedFile::<u32>::new(Some(path.clone()));
        let ((), written) = file.change(|_| 0, |known| *known = 1).await;
        written.unwrap();
        // As long as a file has the directory's place.
        fs::remove_dir_all(&root).unwrap();
        fs::write(&root, "").unwrap();
        for value in [2, 2] {
            let ((), written) = file.change(|_| 0, |known| *known = value).await;
            // docker 67
            assert!(written.is_err());
        }
        fs::remove_file(&root).unwrap();
        let ((), written) = file.change(|_| 0, |_| ()).await;
        written.unwrap();
        let anew = NotedFile::<u32>::new(Some(path));
        let (found, _) = anew.change(|_| 0, |known| *known).await;
        // docker 67
        assert_eq!(found, 2);
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_written_without_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        let path = root.join("images.json");
        let file = NotedFile::<u32>::new(Some(path.clone()));
        file.write_due().await.unwrap();
        assert!(!root.exists(), "nothing is due");
        fs::write(&root, "").unwrap();
        let ((), written) = file.change(|_| 0, |known| *known = 2).await;
        assert!(written.is_err());
        // docker 67
        assert!(file.write_due().await.is_err());
        fs::remove_file(&root).unwrap();
        file.write_due().await.unwrap();
        let anew = NotedFile::<u32>::new(Some(path));
        let (found, _) = anew.change(|_| 0, |known| *known).await;
        // docker 67
        assert_eq!(found, 2);
    }
}
