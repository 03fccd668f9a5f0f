//! The input: the command's arguments, the environment, and the files that were read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A path's content, as the caller found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The bytes of the file.
    Bytes(Vec<u8>),
    /// The path does not exist.
    Missing,
    /// It can't be read; the reason, without the path.
    Failed(String),
}

/// The content of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathKind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A Unix socket.
    Socket,
    /// A device.
    Device,
    /// The path is missing or can't be read.
    Missing,
}

/// A path on disk that an import needs from its caller.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// The content of a file.
    Content(PathBuf),
    /// The content of a path.
    Kind(PathBuf),
}

/// The parts of the disk that were requested so far. Paths are absolute.
#[derive(Debug, Clone, Default)]
pub struct Disk {
    /// Contents of files.
    pub contents: BTreeMap<PathBuf, Content>,
    /// The contents of paths.
    pub kinds: BTreeMap<PathBuf, PathKind>,
}

/// The arguments of an import, and the environment.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The compose files, as absolute paths; later ones override earlier ones.
    pub files: Vec<PathBuf>,
    /// Prefix of paths that messages omit: the current directory.
    pub current_dir: PathBuf,
    /// The home directory, which `~` means.
    pub home: Option<String>,
    /// Variables of the environment.
    pub environment: BTreeMap<String, String>,
    /// Files of variables, as absolute paths; `.env` beside the first file if there are none.
    pub env_files: Vec<PathBuf>,
    /// The active profiles; `*` is every one.
    pub profiles: BTreeSet<String>,
    /// The project's name, overriding the one in the files.
    pub project_name: Option<String>,
    /// Namespace of the manifests; none omits the field.
    pub namespace: Option<String>,
}
