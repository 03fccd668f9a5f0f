//! The files in which the API stores objects.
//!
//! `<root>/api/NAMESPACE/RESOURCE/NAME.yaml`, each replaced by renaming and synced before its write is
//! answered. They are ordinary manifests, and a source reads them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::status::{Cause, Status};
use mirrorlet_host::disk;
use serde_json::Value;

use super::store::CLUSTER_DIRECTORY;

/// The first line of each file.
const HEAD: &str = "# Stored by the API of mirrorlet. It may be edited like any manifest.\n";
/// The last line of each file: it is missing in a truncated one.
const END: &str = "# end\n";

/// The end of the name of a file.
const SUFFIX: &str = ".yaml";
/// Longest name of an object, in bytes: the names of its file, and of the file that is written next
/// door and renamed, have at most 255 (`NAME_MAX` of Linux).
const NAME_BYTES_MAX: usize = 255 - SUFFIX.len() - disk::TEMP_SUFFIX.len();
/// Maximum size of an object's text in bytes: patches can't grow one beyond the maximum of a created
/// one.
///
/// Upstream: etcd's `--max-request-bytes`, 1.5 MiB.
pub(super) const TEXT_BYTES_MAX: usize = 3 << 19;

/// Checks that the name of an object is valid for a file.
///
/// # Errors
/// It is too long.
pub(super) fn check_name(key: &Key) -> Result<(), Status> {
    if key.name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let cause = Cause {
        reason: "FieldValueTooLong",
        message: format!("Too long: may not be more than {NAME_BYTES_MAX} bytes"),
        field: "metadata.name".to_owned(),
    };
    Err(Status::invalid(key.resource, &key.name, &[cause]))
}

/// The file of an object.
pub(super) fn path(directory: &Path, key: &Key) -> PathBuf {
    let namespace = match key.namespace.as_str() {
        "" => CLUSTER_DIRECTORY,
        namespace => namespace,
    };
    let file = format!("{}{SUFFIX}", key.name);
    directory
        .join(namespace)
        .join(key.resource.plural)
        .join(file)
}

/// The text of a file.
pub(super) fn text(object: &Value) -> Result<String, serde_saphyr::ser::Error> {
    let yaml = serde_saphyr::to_string(object)?;
    Ok(format!("{HEAD}{}\n{END}", yaml.trim_end()))
}

/// The bytes of all stored files. Blocks on the disk.
///
/// # Errors
/// The system's error.
pub(super) fn bytes(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            // The state of the API and what has ended are not manifests.
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else if let Ok(metadata) = entry.metadata() {
                bytes += metadata.len();
            }
        }
    }
    Ok(bytes)
}

/// Stores an object. Blocks on the disk.
///
/// # Errors
/// The system's error; the file is unchanged.
pub(super) fn write(directory: &Path, key: &Key, text: &str) -> io::Result<()> {
    let path = path(directory, key);
    let parent = path.parent().unwrap_or(directory);
    let is_first = !parent.exists();
    disk::replace(&path, text.as_bytes())?;
    if is_first {
        sync_up(directory, &path)
    } else {
        disk::sync_directory(parent)
    }
}

/// Makes all directories durable: a killed agent may have created one without syncing it. Blocks on the
/// disk.
///
/// # Errors
/// The system's error.
pub(super) fn sync_all(directory: &Path) -> io::Result<()> {
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        disk::sync_directory(&directory)?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(())
}

/// Removes the file of an object. Blocks on the disk.
///
/// # Errors
/// The system's error.
pub(super) fn remove(directory: &Path, key: &Key) -> io::Result<()> {
    let path = path(directory, key);
    disk::remove(&path)?;
    sync_up(directory, &path)?;
    // The directories of what is gone. One with other files in it stays.
    for parent in path.ancestors().skip(1).take(2) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
    Ok(())
}

/// Makes what happened to a file last, and the making of its directories.
fn sync_up(directory: &Path, path: &Path) -> io::Result<()> {
    for parent in path.ancestors().skip(1) {
        disk::sync_directory(parent)?;
        if parent == directory {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::resources::{PODS, VOLUMES};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_comes_and_goes_with_its_directories() {
        let root = tempfile::tempdir().unwrap();
        let (web, db) = (Key::new(&PODS, "a", "web"), Key::new(&PODS, "a", "db"));
        let object = text(&json!({"kind": "Pod", "metadata": {"name": "web"}})).unwrap();
        for key in [&web, &db] {
            write(root.path(), key, &object).unwrap();
        }
        let file = root.path().join("a/pods/web.yaml");
        assert_eq!(fs::read_to_string(&file).unwrap(), object);
        assert!(object.ends_with("\n# end\n"), "{object}");
        remove(root.path(), &web).unwrap();
        assert!(!file.exists() && root.path().join("a/pods").exists());
        remove(root.path(), &db).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        // What is gone is gone.
        remove(root.path(), &db).unwrap();
        let volume = Key::new(&VOLUMES, "", "disk");
        let expected = root.path().join("_cluster/persistentvolumes/disk.yaml");
        assert_eq!(path(root.path(), &volume), expected);
    }

    #[test]
    fn a_name_is_refused_if_no_file_can_have_it() {
        let root = tempfile::tempdir().unwrap();
        for (bytes, fits) in [(NAME_BYTES_MAX, true), (NAME_BYTES_MAX + 1, false)] {
            let key = Key::new(&PODS, "a", "n".repeat(bytes));
            let refused = check_name(&key).err();
            // embedded 52
            assert_eq!(
                refused.map(|status| status.code),
                (!fits).then_some(422),
                "{bytes}"
            );
            let written = write(root.path(), &key, "{}");
            assert_eq!(written.is_ok(), fits, "{written:?}");
        }
    }
}
