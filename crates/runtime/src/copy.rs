//! Files in containers: what is there, and tar streams out of and into them.

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
    /// The target of a link in the container, all links on the way followed; else empty.
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

/// A tar archive as it comes out of a container.
pub type TarStream = BoxStream<'static, Result<Bytes>>;

/// A tar archive on its way into a container. One that fails is broken off.
pub type TarInput = BoxStream<'static, io::Result<Bytes>>;
