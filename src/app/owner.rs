//! Random ids stored in the root directory: the owner id of our containers, and the salt.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use mirrorlet_host::disk;

/// Length of an owner id, in hexadecimal digits: 128 bits.
const ID_DIGITS: usize = 32;

/// Name of the file of the salt.
const SALT: &str = "salt";

/// The owner id of a root directory; made up and kept there when it has none. Call it with the
/// root's lock held.
///
/// # Errors
/// The file can't be read or written, or holds something else: losing the id would orphan every
/// container, so it is never replaced silently.
pub fn owner_id(root: &Path) -> io::Result<String> {
    let path = root.join("owner");
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
        Err(e) if e.kind() == io::ErrorKind::NotFound => create(root, "owner").map_err(named),
        Err(e) => Err(named(e)),
    }
}

/// A text that only this machine knows, unlike the owner id, which the Node has as well. Made up and
/// kept when there is none; a damaged one costs a restart of the pods whose UID it is a part of.
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
