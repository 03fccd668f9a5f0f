//! The Engine with an agent's containers, as recorded in its root directory.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use mirrorlet_core::api::keys;
use mirrorlet_host::disk::{self, IfThere as _};

/// Name of the file.
const FILE: &str = "engine.json";
/// Largest file that is read, in MiB.
const MIB_MAX: u64 = 1;

/// An Engine, and the owner id of an agent's containers there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UsedEngine {
    /// Its address.
    pub(super) address: String,
    /// The Engine's own id; empty if it has none.
    #[serde(default)]
    pub(super) id: String,
    /// The owner id of the containers.
    pub(super) owner: String,
}

impl UsedEngine {
    /// The Engine that the last agent used; none if no agent has reached one.
    ///
    /// # Errors
    /// The file can't be read, or has invalid content.
    pub(super) fn read(root: &Path) -> io::Result<Option<Self>> {
        let path = file(root);
        let failed = |error: io::Error| {
            let path = path.display();
            io::Error::new(error.kind(), format!("failed to read {path}: {error}"))
        };
        let bytes = disk::read_small(&path, MIB_MAX).if_there();
        let parse = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(io::Error::from);
        bytes
            .and_then(|bytes| bytes.map(parse).transpose())
            .map_err(failed)
    }

    /// Whether no agent has reached an Engine with that root directory. Call it before the first call
    /// to the Engine, too.
    pub(super) fn is_unknown(root: &Path) -> bool {
        matches!(Self::read(root), Ok(None))
    }

    /// The address of the Engine that the last agent used, if it differs from `address`. Call it before
    /// the first call to the Engine, which updates the file.
    pub(super) fn other_address(root: &Path, address: &str) -> Option<String> {
        let used = Self::read(root).ok().flatten()?;
        (used.address != address).then_some(used.address)
    }

    /// Stores it, unless it is stored already.
    ///
    /// # Errors
    /// The file can't be written.
    pub(super) fn keep(&self, root: &Path) -> io::Result<()> {
        // A file that can't be read is replaced.
        if Self::read(root).is_ok_and(|known| known.as_ref() == Some(self)) {
            return Ok(());
        }
        disk::replace(&file(root), &serde_json::to_vec(self)?)
    }

    /// Why nothing may be removed for an agent whose containers are on this Engine, if the Engine that
    /// was asked, or the owner id, differs: volumes of running containers would be removed.
    pub(super) fn refusal(&self, asked: &Self, root: &Path) -> Option<String> {
        let (path, shown) = (file(root), root.display());
        let is_same = if self.id.is_empty() || asked.id.is_empty() {
            self.address == asked.address
        } else {
            self.id == asked.id
        };
        let there = &self.address;
        if !is_same && there != &asked.address {
            let here = &asked.address;
            return Some(format!(
                "the containers of the agent on {shown} are at the Docker Engine {there}, not at {here}; name it with --docker {there}"
            ));
        }
        if !is_same {
            return Some(format!(
                "the Docker Engine at {there} has a different ID than the Engine that runs the containers of the agent on {shown}; if the old Engine no longer exists, remove {} and run the command again",
                path.display()
            ));
        }
        (self.owner != asked.owner).then(|| {
            let (own, other) = (&self.owner, &asked.owner);
            format!(
                "{shown}/owner was replaced: it contains {other}, but the agent's containers have owner ID {own}. Remove any containers with ID {other} (docker rm -fv $(docker ps -aq --filter name=^k8s_ --filter label={}={other})), write {own} to the file and run the command again",
                keys::OWNER
            )
        })
    }
}

fn file(root: &Path) -> PathBuf {
    root.join(FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(address: &str, id: &str, owner: &str) -> UsedEngine {
        UsedEngine {
            address: address.to_owned(),
            id: id.to_owned(),
            owner: owner.to_owned(),
        }
    }

    #[test]
    fn the_engine_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(UsedEngine::read(dir.path()).unwrap(), None);
        // node 6p
        assert!(UsedEngine::is_unknown(dir.path()));
        assert_eq!(UsedEngine::other_address(dir.path(), "unix:///a"), None);
        for engine in [used("unix:///a", "A", "o"), used("unix:///b", "", "o")] {
            engine.keep(dir.path()).unwrap();
            assert_eq!(UsedEngine::read(dir.path()).unwrap(), Some(engine));
        }
        let other = |address: &str| UsedEngine::other_address(dir.path(), address);
        assert_eq!(other("unix:///b"), None);
        assert_eq!(other("unix:///a").as_deref(), Some("unix:///b"));
        std::fs::write(file(dir.path()), "{").unwrap();
        assert!(UsedEngine::read(dir.path()).is_err());
        assert!(!UsedEngine::is_unknown(dir.path()));
        assert_eq!(other("unix:///a"), None);
        used("unix:///a", "A", "o").keep(dir.path()).unwrap();
        assert!(UsedEngine::read(dir.path()).is_ok());
    }

    #[test]
    fn nothing_is_removed_for_containers_of_another_engine() {
        let refused = |known: UsedEngine, asked: UsedEngine| {
            known.refusal(&asked, Path::new("/r")).unwrap_or_default()
        };
        for (known, asked, words) in [
            (("a", "A", "o"), ("a", "A", "o"), ""),
            // The socket has moved.
            (("a", "A", "o"), ("b", "A", "o"), ""),
            (
                ("a", "A", "o"),
                ("b", "B", "o"),
                "; name it with --docker a",
            ),
            (
                ("a", "A", "o"),
                ("a", "B", "o"),
                ", remove /r/engine.json and ",
            ),
            // Engines that have no id.
            (("a", "", "o"), ("a", "", "o"), ""),
            (("a", "", "o"), ("b", "", "o"), "; name it with --docker a"),
            (("a", "A", "o"), ("b", "", "o"), "; name it with --docker a"),
            (
                ("a", "A", "o"),
                ("a", "A", "p"),
                " (docker rm -fv $(docker ps -aq --filter name=^k8s_ --filter label=mirrorlet.dev/owner=p)), write o to the file and ",
            ),
        ] {
            let made = |(address, id, owner): (&str, &str, &str)| used(address, id, owner);
            let found = refused(made(known), made(asked));
            // rollouts S5
            assert_eq!(
                found.is_empty(),
                words.is_empty(),
                "{known:?} {asked:?}: {found}"
            );
            assert!(found.contains(words), "{known:?} {asked:?}: {found}");
        }
    }
}
