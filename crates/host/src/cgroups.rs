//! The hierarchies of cgroups of this machine.

use std::path::{Path, PathBuf};

use mirrorlet_core::stats::cgroup::{Controller, Version};

/// The file that only the hierarchy of version 2 has at its root.
const V2_MARK: &str = "cgroup.controllers";

/// Where cgroups are.
#[derive(Debug, Clone)]
pub struct Hierarchies {
    root: PathBuf,
    version: Version,
}

impl Hierarchies {
    /// Finds the cgroup hierarchies mounted at `root`: that of version 2, or one directory per
    /// hierarchy of version 1.
    pub fn at(root: &Path) -> Self {
        let version = if root.join(V2_MARK).exists() {
            Version::V2
        } else {
            Version::V1
        };
        Self {
            root: root.to_owned(),
            version,
        }
    }

    /// Where they are mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Their version.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The directory of the hierarchy that has a controller.
    pub fn of(&self, controller: Controller) -> PathBuf {
        match self.version {
            Version::V1 => self.root.join(controller.directory()),
            Version::V2 => self.root.clone(),
        }
    }
}
