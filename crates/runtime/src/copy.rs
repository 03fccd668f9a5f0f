//! Files in containers: their metadata, and tar streams from and into containers.

use std::io;

use bytes::Bytes;
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use super::Result;

/// The metadata of a path in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStat {
    /// Its type, without following links.
    pub kind: PathKind,
    /// The target of a link in the container, with all links on the way resolved; empty for other
    /// files.
    #[serde(default)]
    pub link_target: String,
}

/// The type of a file system entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A device, a socket or a pipe.
    Other,
}

/// A tar archive that is read from a container.
pub type TarStream = BoxStream<'static, Result<Bytes>>;

/// A tar archive that is written into a container. If it fails, the copy is aborted.
pub type TarInput = BoxStream<'static, io::Result<Bytes>>;
