//! The agent's identity in the root directory: the owner id of its containers, the salt, and the Node's
//! name.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::used_engine::UsedEngine;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;
use mirrorlet_host::volume::VolumeManager;

/// Length of an owner id, in hexadecimal digits: 128 bits.
const ID_DIGITS: usize = 32;

/// Name of the file of the owner id.
const OWNER: &str = "owner";
/// Name of the file of the salt.
const SALT: &str = "salt";
/// Name of the file of the Node's name.
const NODE_NAME: &str = "node-name";

/// The owner id of a root directory; created and stored if there is none. Call it with the root's lock
/// held.
///
/// # Errors
/// The file can't be read or written, or has invalid content: losing the id would orphan every
/// container, so it is never replaced silently.
pub fn owner_id(root: &Path) -> io::Result<String> {
    let path = root.join(OWNER);
    let named = |e: io::Error| {
        io::Error::new(
            e.kind(),
            format!("failed to use the owner file {}: {e}", path.display()),
        )
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(&text).ok_or_else(|| {
            named(io::Error::new(
                io::ErrorKind::InvalidData,
                "it does not contain 32 hexadecimal digits; restore it, or remove it and the containers labelled mirrorlet.dev/owner",
            ))
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => create(root, OWNER).map_err(named),
        Err(e) => Err(named(e)),
    }
}

/// The pods of an earlier agent on a root directory whose owner file was lost or replaced since; none
/// if it is the same. Call it before [`owner_id`].
pub fn orphans(root: &Path) -> BTreeSet<PodUid> {
    let path = root.join(OWNER);
    let present = std::fs::read_to_string(&path).ok();
    let present = present.as_deref().map(str::trim);
    let used = UsedEngine::read(root).ok().flatten();
    let is_same = used.is_none_or(|used| present == Some(used.owner.as_str()));
    if path.exists() && is_same {
        return BTreeSet::new();
    }
    // A directory that can't be read fails the start later, with its name.
    let pods = VolumeManager::new(root).list_pod_dirs();
    pods.unwrap_or_default().into_iter().collect_set()
}

/// Stores the Node's name for the next agent. Returns the previous name, if it differed.
///
/// # Errors
/// The file can't be read or written.
pub fn keep_node_name(root: &Path, name: &str) -> io::Result<Option<String>> {
    let path = root.join(NODE_NAME);
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text.trim().to_owned()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(e),
    };
    if before.as_deref() == Some(name) {
        return Ok(None);
    }
    disk::replace(&path, format!("{name}\n").as_bytes())?;
    Ok(before)
}

/// A random text that only this machine has, unlike the owner id, which the Node also has. Created and
/// stored if there is none; a damaged one costs a restart of the pods whose UID contains it.
///
/// # Errors
/// The file can't be read or written.
pub fn salt(root: &Path) -> io::Result<String> {
    match std::fs::read_to_string(root.join(SALT)) {
        Ok(text) => parse(&text).map_or_else(|| create(root, SALT), Ok),
        Err(e) if e.kind() == io::ErrorKind::NotFound => create(root, SALT),
        Err(e) => Err(e),
    }
}

fn parse(text: &str) -> Option<String> {
    let id = text.trim();
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    (id.len() == ID_DIGITS && id.chars().all(hex)).then(|| id.to_owned())
}

fn create(root: &Path, file: &str) -> io::Result<String> {
    let mut bytes = [0_u8; ID_DIGITS / 2];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let id = format!("{:032x}", u128::from_be_bytes(bytes));
    // A crash leaves either no id or a whole one.
    disk::replace(&root.join(file), format!("{id}\n").as_bytes())?;
    disk::sync_directory(root)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let id = owner_id(dir.path()).unwrap();
        assert_eq!(id.len(), ID_DIGITS);
        assert_eq!(owner_id(dir.path()).unwrap(), id);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(owner_id(other.path()).unwrap(), id);
    }

    #[test]
    fn pods_without_an_owner_or_of_another_one_are_orphans() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(orphans(dir.path()), BTreeSet::new());
        std::fs::create_dir_all(dir.path().join("pods/u")).unwrap();
        assert_eq!(orphans(dir.path()), BTreeSet::from(["u".into()]));
        let owner = owner_id(dir.path()).unwrap();
        // No Engine was reached with it, or an agent that didn't keep that.
        assert_eq!(orphans(dir.path()), BTreeSet::new());
        let used = UsedEngine {
            address: "unix:///a".to_owned(),
            id: String::new(),
            owner,
        };
        used.keep(dir.path()).unwrap();
        assert_eq!(orphans(dir.path()), BTreeSet::new());
        // The one of a backup was put in its place after an agent had run.
        std::fs::write(dir.path().join(OWNER), format!("{:032x}\n", 7)).unwrap();
        assert_eq!(orphans(dir.path()), BTreeSet::from(["u".into()]));
    }

    #[test]
    fn another_name_of_the_node_is_news_once() {
        let dir = tempfile::tempdir().unwrap();
        let kept = |name: &str| keep_node_name(dir.path(), name).unwrap();
        assert_eq!(kept("a"), None);
        assert_eq!(kept("a"), None);
        assert_eq!(kept("b").as_deref(), Some("a"));
        assert_eq!(kept("b"), None);
    }

    #[test]
    fn the_salt_is_another_one_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let made = salt(dir.path()).unwrap();
        assert_ne!(made, owner_id(dir.path()).unwrap());
        assert_eq!(salt(dir.path()).unwrap(), made);
        std::fs::write(dir.path().join(SALT), "abc").unwrap();
        assert_ne!(salt(dir.path()).unwrap(), made);
    }

    #[test]
    fn a_damaged_id_is_an_error_not_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("owner"), "abc").unwrap();
        let error = owner_id(dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
