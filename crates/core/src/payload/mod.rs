//! Files of configMap, secret, downwardAPI and projected volumes, as values.
//!
//! The content of volumes is computed here from the pod and the objects it refers to; `volume` writes
//! it, atomically.
//!
//! Upstream: `pkg/volume/{configmap,secret,downwardapi,projected}`,
//! `pkg/volume/util/atomic_writer.go` (`validatePath`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use crate::amounts::Amounts;
use crate::api::Pod;
use crate::api::core::Volume;
use crate::objects::{ObjectError, ObjectSet, is_static, references};
use crate::small::SmallCollect;
use crate::spec;

mod making;
mod mounts;

use making::Making;
pub use mounts::nested_mount_points;

/// Longest path of a file, and longest part of one, in bytes.
const PATH_MAX: usize = 4096;
const NAME_MAX: usize = 255;

/// Bytes of a page. A file takes whole ones of memory or of a disk's blocks.
const PAGE_BYTES: usize = 4096;

/// The bytes that a file of that length takes, also if it is empty: a million files of one byte take
/// more than a megabyte.
pub fn bytes_of_file(length: usize) -> usize {
    length
        .max(1)
        .div_ceil(PAGE_BYTES)
        .saturating_mul(PAGE_BYTES)
}

/// The bytes that a directory counts as: each takes kernel memory or a block, even if it is empty.
pub const DIRECTORY_BYTES: usize = PAGE_BYTES;

/// The storage medium of a volume's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// In a directory.
    Disk,
    /// In memory only, because they may be secret.
    Memory,
}

crate::words! {
    /// The kind of a volume with generated content.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        /// Of a `ConfigMap`.
        ConfigMap = "kubernetes.io~configmap",
        /// Of a `Secret`.
        Secret = "kubernetes.io~secret",
        /// Of the pod's own fields.
        DownwardApi = "kubernetes.io~downward-api",
        /// Of several of these.
        Projected = "kubernetes.io~projected",
    }
    /// Directory name of its plugin in the kubelet's layout.
    pub fn plugin;
}

impl Kind {
    /// The kind of a volume; none if it has no generated content.
    pub fn of(volume: &Volume) -> Option<Self> {
        if volume.config_map.is_some() {
            Some(Self::ConfigMap)
        } else if volume.secret.is_some() {
            Some(Self::Secret)
        } else if volume.downward_api.is_some() {
            Some(Self::DownwardApi)
        } else if volume.projected.is_some() {
            Some(Self::Projected)
        } else {
            None
        }
    }

    /// The medium of its files.
    #[must_use]
    pub fn medium(self) -> Medium {
        match self {
            Self::ConfigMap => Medium::Disk,
            Self::Secret | Self::DownwardApi | Self::Projected => Medium::Memory,
        }
    }
}

/// One file. Its `Debug` text doesn't contain its content.
#[derive(Clone, PartialEq, Eq)]
pub struct PayloadFile {
    /// Its content.
    pub data: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Its owner; ours when none.
    pub user: Option<u32>,
}

impl fmt::Debug for PayloadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadFile")
            .field("bytes", &self.data.len())
            .field("mode", &format_args!("{:04o}", self.mode))
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// Files of one volume by path. Paths are relative, normalized, and stay inside the volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload(BTreeMap<String, PayloadFile>);

impl Payload {
    /// Files by path.
    pub fn files(&self) -> &BTreeMap<String, PayloadFile> {
        &self.0
    }

    /// The bytes that all files take, with their directories.
    pub fn size(&self) -> usize {
        let files = self.0.values();
        let files: usize = files.map(|file| bytes_of_file(file.data.len())).sum();
        files.saturating_add(directories(self.0.keys()).saturating_mul(DIRECTORY_BYTES))
    }

    /// The bytes of the directories that are created among these files as mount points.
    pub fn mount_point_bytes(&self, points: &[String]) -> usize {
        if points.is_empty() {
            return 0;
        }
        let points = points.iter().filter(|point| !self.0.contains_key(*point));
        let points = points.map(|point| format!("{point}/"));
        let all: BTreeSet<String> = self.0.keys().cloned().chain(points).collect_set();
        let made = directories(all.iter()).saturating_sub(directories(self.0.keys()));
        made.saturating_mul(DIRECTORY_BYTES)
    }

    /// The number of directories that a file at that clean path would add.
    fn directories_for(&self, path: &str) -> usize {
        let before = (Bound::Unbounded, Bound::Excluded(path));
        let after = (Bound::Included(path), Bound::Unbounded);
        let neighbours = [
            self.0.range::<str, _>(before).next_back(),
            self.0.range::<str, _>(after).next(),
        ];
        let neighbours = neighbours.into_iter().flatten();
        let known = neighbours.map(|(known, _)| known.as_str()).chain([""]);
        known
            .map(|known| directories_beyond(known, path))
            .min()
            .unwrap_or_default()
    }

    /// Adds a file; replaces one with the same path.
    pub fn insert(&mut self, path: &str, file: PayloadFile) -> Result<(), PayloadError> {
        self.0.insert(clean_path(path)?, file);
        Ok(())
    }

    /// First components of the files' paths: the entries of the volume's own directory.
    pub fn visible(&self) -> BTreeSet<&str> {
        let firsts = self.0.keys();
        firsts
            .map(|path| {
                path.split_once('/')
                    .map_or(path.as_str(), |(first, _)| first)
            })
            .collect_set()
    }
}

/// Why a volume's files can't be computed. Contains no value of an object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct PayloadError(Vec<String>);

impl fmt::Display for PayloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => f.write_str(one),
            all => write!(f, "[{}]", all.join(", ")),
        }
    }
}

impl PayloadError {
    fn new(problem: impl Into<String>) -> Self {
        Self(vec![problem.into()])
    }
}

impl From<ObjectError> for PayloadError {
    fn from(error: ObjectError) -> Self {
        Self::new(error.to_string())
    }
}

/// The inputs of generated files, besides the volume itself.
#[derive(Debug, Clone, Copy)]
pub struct PayloadContext<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The objects that the pod refers to.
    pub objects: &'a ObjectSet,
    /// The values of absent limits.
    pub allocatable: Amounts,
}

/// The files of each generated volume of a pod, or why they can't be computed.
pub type Payloads = BTreeMap<String, Result<Payload, PayloadError>>;

/// Computes the files of each generated volume of a pod.
pub fn payloads(context: &PayloadContext<'_>) -> Payloads {
    let volumes = spec::spec(context.pod).volumes.iter().flatten();
    let making = Making::new(context);
    volumes
        .filter_map(|volume| Some((volume.name.clone(), making.payload(volume)?)))
        .collect_map()
}

/// Whether a running pod has volumes that may need updates: files that may have to be rewritten, or a
/// claim whose binding may not record yet that its volume exists.
pub fn is_live(pod: &Pod) -> bool {
    let mut volumes = spec::spec(pod).volumes.iter().flatten();
    let is_static = is_static(pod);
    // The fields of a static pod never change.
    let may_change = !is_static || !references(pod).is_empty();
    let is_claim = |volume: &Volume| is_static && volume.persistent_volume_claim.is_some();
    may_change && volumes.any(|volume| Kind::of(volume).is_some() || is_claim(volume))
}

/// The group that a pod's volumes belong to.
pub fn fs_group(pod: &Pod) -> Option<i64> {
    spec::spec(pod).security_context.as_ref()?.fs_group
}

/// The user of all containers of a pod; none if they differ or one doesn't set it.
///
/// Upstream: `FsUserFrom` of `pkg/volume/util/util.go`.
pub fn fs_user(pod: &Pod) -> Option<i64> {
    let context = spec::spec(pod).security_context.as_ref();
    let of_pod = context.and_then(|context| context.run_as_user);
    let mut users = spec::containers(pod).map(|(_, container)| {
        let context = container.security_context.as_ref();
        context.and_then(|context| context.run_as_user).or(of_pod)
    });
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first)
}

/// The number of directories of sorted paths.
fn directories<'a>(paths: impl Iterator<Item = &'a String>) -> usize {
    let (mut count, mut before) = (0, "");
    for path in paths {
        count += directories_beyond(before, path);
        before = path;
    }
    count
}

/// The number of directories of a clean path that `known` is not in. Where paths are sorted, those of
/// one directory are side by side, so a neighbour is in every directory that the path shares with any.
fn directories_beyond(known: &str, path: &str) -> usize {
    let pairs = known.bytes().zip(path.bytes());
    let shared = pairs.take_while(|(known, own)| known == own).count();
    let rest = path.bytes().skip(shared);
    rest.filter(|byte| *byte == b'/').count()
}

/// A path as a file may have it in a volume, cleaned.
fn clean_path(path: &str) -> Result<String, PayloadError> {
    let invalid = |problem: &str| {
        Err(PayloadError::new(format!(
            "invalid path: {problem}: {path:?}"
        )))
    };
    if path.is_empty() {
        return invalid("must not be empty");
    }
    if path.starts_with('/') {
        return invalid("must be relative path");
    }
    if path.contains('\0') {
        return invalid("must not contain NUL");
    }
    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    if path.len() > PATH_MAX {
        return Err(PayloadError::new(format!(
            "invalid path: must be less than or equal to {PATH_MAX} characters"
        )));
    }
    if parts.iter().any(|part| part.len() > NAME_MAX) {
        return Err(PayloadError::new(format!(
            "invalid path: filenames must be less than or equal to {NAME_MAX} characters"
        )));
    }
    if parts.contains(&"..") {
        return invalid("must not contain '..'");
    }
    match parts.first() {
        None => invalid("must not be the volume itself"),
        Some(first) if first.starts_with("..") => invalid("must not start with '..'"),
        Some(_) => Ok(parts.join("/")),
    }
}

#[cfg(test)]
mod tests;
