//! The files that pods mount: volumes, sub-paths, termination messages, the hosts file. All calls
//! block; run them on threads that may block.
//!
//! Everything is created idempotently under `<root>/pods/<uid>` in the kubelet's layout ([`PodPaths`])
//! and found there after a restart: no state is kept in memory.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mirrorlet_core::api::core::{FileKeySelector, Volume};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::env::EnvFiles;
use mirrorlet_core::expand::Variables;
use mirrorlet_core::payload::{self, Kind, Medium, Payloads};
use mirrorlet_core::resources::CgroupLimits;
use mirrorlet_core::spec;
use mirrorlet_core::volumes::{PodPaths, VolumeMap};

mod atomic;
mod cgroup;
mod claim;
mod empty_dir;
mod env_file;
mod error;
mod files;
mod host_path;
mod host_root;
mod in_memory;
mod mountinfo;
mod remove;
mod subpath;
mod tmpfs;
mod trial;
mod values;

use crate::disk::IfThere as _;
use cgroup::Cgroups;
use in_memory::{InMemory, Sizes};
use mirrorlet_core::small::{SmallCollect, SmallSort};
use tmpfs::Limits;

pub use claim::ClaimVolume;
pub use error::{Result, VolumeError};
pub use files::{TERMINATION_MESSAGE_MAX, overwrite, read_termination_message};
pub use host_root::HostFiles;
pub use trial::TrialMount;

/// Mode of every directory of ours that is not itself mounted into containers.
const DIR_MODE: u32 = 0o750;

/// Pod directories under one root. Clones share them; calls for different pods may run in parallel.
#[derive(Debug, Clone)]
pub struct VolumeManager {
    root: PathBuf,
    host: HostFiles,
    /// Locked while a pod claims a volume, so that two pods can't both get an exclusive one.
    claiming: Arc<Mutex<()>>,
    in_memory: InMemory,
}

impl VolumeManager {
    /// The pod directories under that root directory.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            host: HostFiles::default(),
            claiming: Arc::default(),
            in_memory: InMemory::default(),
        }
    }

    /// The same, with that view of the host's files.
    #[must_use]
    pub fn with_host_files(mut self, host: HostFiles) -> Self {
        self.host = host;
        self
    }

    /// Creates all volumes of a pod, unless they exist. `payloads` are the files of volumes with
    /// generated content, `node_memory_bytes` limits volumes in memory.
    pub fn ensure(
        &self,
        pod: &Pod,
        payloads: &Payloads,
        node_memory_bytes: u64,
    ) -> Result<VolumeMap> {
        let paths = self.paths(&PodUid::of(pod))?;
        make_dir(paths.pod_dir())?;
        let sizes = sizes(pod, payloads, &paths)?;
        self.in_memory.reserve(pod, &sizes)?;
        let limits = limits(pod, node_memory_bytes);
        let mut map = VolumeMap::default();
        for volume in spec::spec(pod).volumes.iter().flatten() {
            self.ensure_volume(pod, volume, payloads, &paths, limits, &mut map)
                .map_err(|cause| set_up_failed(&volume.name, cause))?;
        }
        self.in_memory.settle(pod, &sizes);
        Ok(map)
    }

    /// Fails if volumes that don't exist yet can't be created because their files can't be computed.
    /// Changes nothing.
    pub fn check(&self, pod: &Pod, payloads: &Payloads) -> Result<()> {
        let paths = self.paths(&PodUid::of(pod))?;
        let mut failures = Vec::new();
        for volume in spec::spec(pod).volumes.iter().flatten() {
            let name = &volume.name;
            checked_name(name)?;
            let (Some(kind), Some(Err(error))) = (Kind::of(volume), payloads.get(name)) else {
                continue;
            };
            if !values::is_made(&paths.volume(kind.plugin(), name), kind)? {
                failures.push(set_up_failed(name, error.clone().into()));
            }
        }
        VolumeError::all(failures)
    }

    /// Fails if a host path doesn't match its volume's type, and creating it wouldn't help. Changes
    /// nothing.
    pub fn check_host_paths(&self, pod: &Pod) -> std::result::Result<(), (String, VolumeError)> {
        for volume in spec::spec(pod).volumes.iter().flatten() {
            if let Some(source) = &volume.host_path {
                host_path::check(&volume.name, source, &self.host)
                    .map_err(|error| (volume.name.clone(), error))?;
            }
        }
        Ok(())
    }

    /// Updates the files of a running pod's volumes, and returns those that were written. A missing
    /// volume is skipped, and so is one that would grow beyond the memory limit. All others are tried;
    /// the first failure is returned.
    pub fn refresh(
        &self,
        pod: &Pod,
        payloads: &Payloads,
        node_memory_bytes: u64,
    ) -> Result<Vec<String>> {
        let paths = self.paths(&PodUid::of(pod))?;
        let sizes = sizes(pod, payloads, &paths)?;
        let mut failed = self.in_memory.reserve(pod, &sizes);
        let is_full = failed.is_err();
        let limits = limits(pod, node_memory_bytes);
        let mut written = Vec::new();
        for volume in spec::spec(pod).volumes.iter().flatten() {
            if is_full && sizes.grows(&volume.name) {
                continue;
            }
            match refresh_volume(pod, volume, payloads, &paths, limits) {
                Ok(true) => written.push(volume.name.clone()),
                Ok(false) => {}
                Err(cause) => {
                    failed = failed.and(Err(set_up_failed(&volume.name, cause)));
                }
            }
        }
        failed.map(|()| {
            self.in_memory.settle(pod, &sizes);
            written
        })
    }

    /// Creates the sub-paths that a container mounts, unless they exist, and adds them to `map`.
    /// `subPathExpr` is expanded with `environment`.
    pub fn ensure_subpaths(
        &self,
        pod: &Pod,
        container: &str,
        environment: &Variables,
        map: &mut VolumeMap,
    ) -> Result<()> {
        let paths = self.paths(&PodUid::of(pod))?;
        subpath::ensure(pod, container, environment, &paths, &self.host, map)
    }

    /// Reads the files in emptyDir volumes for a container's variables, each once, up to the size
    /// limit.
    pub fn env_files(&self, uid: &PodUid, wanted: &[FileKeySelector]) -> Result<EnvFiles> {
        let paths = self.paths(uid)?;
        for FileKeySelector { volume_name, .. } in wanted {
            checked_name(volume_name)?;
        }
        let volume = |name: &str| paths.empty_dir(name);
        Ok(env_file::read_all(wanted, volume))
    }

    /// Creates an empty, world-writable file for the termination message of one more start.
    pub fn ensure_termination_log(&self, uid: &PodUid, container: &str) -> Result<PathBuf> {
        checked_name(container)?;
        files::new_termination_log(&self.paths(uid)?.termination_dir(container))
    }

    /// Removes the termination message's file of a removed container, so that a container that restarts
    /// for weeks does not fill the disk. A missing file is success.
    pub fn remove_termination_log(&self, uid: &PodUid, container: &str, path: &Path) -> Result<()> {
        checked_name(container)?;
        files::remove_termination_log(&self.paths(uid)?.termination_dir(container), path)
    }

    /// Records the restart count of a container's start, so that counting continues from there when all
    /// its instances are gone.
    pub fn note_restarts(&self, uid: &PodUid, container: &str, count: u32) -> Result<()> {
        checked_name(container)?;
        files::note_restarts(&self.paths(uid)?.termination_dir(container), count)
    }

    /// The restart counts of the last starts of the pod's containers, by name.
    pub fn noted_restarts(&self, pod: &Pod) -> Result<BTreeMap<String, u32>> {
        let paths = self.paths(&PodUid::of(pod))?;
        let noted = spec::containers(pod).filter_map(|(_, container)| {
            checked_name(&container.name).ok()?;
            let count = files::noted_restarts(&paths.termination_dir(&container.name))?;
            Some((container.name.clone(), count))
        });
        Ok(noted.collect_map())
    }

    /// Writes the pod's hosts file in place, so that running containers see it, and returns its
    /// path.
    pub fn write_hosts(&self, uid: &PodUid, content: &str) -> Result<PathBuf> {
        let paths = self.paths(uid)?;
        make_dir(paths.pod_dir())?;
        files::write_in_place(&paths.etc_hosts(), content)?;
        Ok(paths.etc_hosts())
    }

    /// Replaces the content of a pod's hosts file, if there is one.
    pub fn rewrite_hosts(&self, uid: &PodUid, content: &str) -> Result<()> {
        let path = self.paths(uid)?.etc_hosts();
        let written = files::rewrite(&path, content).if_there();
        written.map_err(|e| VolumeError::io("write", &path, e))?;
        Ok(())
    }

    /// Whether a pod has a hosts file.
    pub fn has_hosts(&self, uid: &PodUid) -> Result<bool> {
        let path = self.hosts_path(uid)?;
        Ok(path.symlink_metadata().is_ok())
    }

    /// The path of a pod's hosts file.
    pub fn hosts_path(&self, uid: &PodUid) -> Result<PathBuf> {
        Ok(self.paths(uid)?.etc_hosts())
    }

    /// Unmounts and removes the volumes of a pod without running containers; the hosts file,
    /// termination messages and restart counts stay. A missing volume is success; while anything else
    /// is mounted below the pod's directory, nothing is removed and the call fails.
    pub fn release(&self, uid: &PodUid) -> Result<()> {
        remove::release(&self.paths(uid)?)?;
        self.in_memory.forget(uid);
        Ok(())
    }

    /// Unmounts our mounts of a pod and removes its directory. A missing directory is success; while
    /// anything else is mounted below it, it stays and the call fails.
    pub fn remove_pod(&self, uid: &PodUid) -> Result<()> {
        remove::remove_pod(&self.root, &self.paths(uid)?)?;
        self.in_memory.forget(uid);
        Ok(())
    }

    /// Limits the cgroup of a pod before anything runs in it. `parts` is its path; `by_systemd` says
    /// that the Engine leaves cgroups to systemd.
    pub fn limit_pod_cgroup(
        &self,
        parts: &[String],
        limits: CgroupLimits,
        by_systemd: bool,
    ) -> Result<()> {
        parts.iter().try_for_each(|part| checked_name(part))?;
        let cgroups = Cgroups::of_machine();
        if by_systemd {
            cgroups.limit_slice(parts, limits)
        } else {
            cgroups.limit(parts, limits)
        }
    }

    /// Fails unless the container `id` runs in its pod's cgroup at that path, and that has these
    /// limits.
    pub fn check_pod_cgroup(&self, parts: &[String], limits: CgroupLimits, id: &str) -> Result<()> {
        Cgroups::of_machine().check(parts, limits, id)
    }

    /// Removes the cgroups left behind for a pod below `cgroup_root`. Call it when the pod's containers
    /// are gone; it fails while anything runs in one.
    pub fn remove_pod_cgroups(&self, cgroup_root: &str, uid: &PodUid) -> Result<()> {
        checked_name(uid.as_str())?;
        Cgroups::of_machine().remove(cgroup_root, uid)
    }

    /// UIDs of all pods that have a directory.
    pub fn list_pod_dirs(&self) -> Result<Vec<PodUid>> {
        let dir = PodPaths::pods_dir(&self.root);
        let fail = |e: io::Error| VolumeError::io("read directory", &dir, e);
        let entries = std::fs::read_dir(&dir).if_there().map_err(fail)?;
        let mut uids = Vec::new();
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(fail)?;
            let is_dir = entry.file_type().is_ok_and(|t| t.is_dir());
            if let (true, Ok(name)) = (is_dir, entry.file_name().into_string()) {
                uids.push(PodUid::from(name));
            }
        }
        uids.small_sort();
        Ok(uids)
    }

    fn ensure_volume(
        &self,
        pod: &Pod,
        volume: &Volume,
        payloads: &Payloads,
        paths: &PodPaths,
        limits: Limits,
        map: &mut VolumeMap,
    ) -> Result<()> {
        let name = &volume.name;
        checked_name(name)?;
        if spec::claim_name(pod, volume).is_some() {
            // See `ensure_claims`.
            return Ok(());
        }
        if volume.image.is_some() {
            // Mounted by the Engine.
            return Ok(());
        }
        let path = if let Some(host_path) = &volume.host_path {
            let found = host_path::ensure(name, host_path, &self.host)?;
            if found.made_by_engine {
                map.made_by_engine.insert(name.clone());
            }
            found.path
        } else if let Some(source) = &volume.empty_dir {
            if empty_dir::is_in_memory(source) {
                self.host
                    .check_mounts_seen(name, paths.pod_dir(), &paths.empty_dir(name))?;
            }
            empty_dir::ensure(name, source, paths, limits, payload::fs_group(pod))?
        } else if let (Some(kind), Some(files)) = (Kind::of(volume), payloads.get(name)) {
            if kind.medium() == Medium::Memory {
                let path = paths.volume(kind.plugin(), name);
                self.host.check_mounts_seen(name, paths.pod_dir(), &path)?;
            }
            let made = values::ensure(pod, name, kind, files, paths, limits)?;
            map.read_only.insert(name.clone());
            if let Some(error) = made.kept {
                map.kept.insert(name.clone(), error.to_string());
            }
            made.path
        } else {
            return Err(VolumeError::Volume {
                volume: name.clone(),
                problem: "volumes of this type are not supported".to_owned(),
            });
        };
        map.volumes.insert(name.clone(), path);
        Ok(())
    }

    fn paths(&self, uid: &PodUid) -> Result<PodPaths> {
        checked_name(uid.as_str())?;
        Ok(PodPaths::new(&self.root, uid))
    }
}

fn set_up_failed(volume: &str, cause: VolumeError) -> VolumeError {
    VolumeError::SetUp {
        volume: volume.to_owned(),
        cause: Box::new(cause),
    }
}

/// The size limits of a pod's memory-backed volumes.
fn limits(pod: &Pod, node_memory_bytes: u64) -> Limits {
    Limits {
        pod: mirrorlet_core::resources::pod_memory_limit(pod),
        node: node_memory_bytes,
    }
}

/// The sizes of a pod's volumes in memory.
fn sizes(pod: &Pod, payloads: &Payloads, paths: &PodPaths) -> Result<Sizes> {
    Sizes::of(pod, payloads, |volume, kind| {
        checked_name(volume)?;
        atomic::size(&paths.volume(kind.plugin(), volume))
    })
}

/// Updates a volume's files; returns whether they were rewritten.
fn refresh_volume(
    pod: &Pod,
    volume: &Volume,
    payloads: &Payloads,
    paths: &PodPaths,
    limits: Limits,
) -> Result<bool> {
    let name = &volume.name;
    checked_name(name)?;
    let (Some(kind), Some(files)) = (Kind::of(volume), payloads.get(name)) else {
        return Ok(false);
    };
    if !values::is_made(&paths.volume(kind.plugin(), name), kind)? {
        return Ok(false);
    }
    let made = values::ensure(pod, name, kind, files, paths, limits)?;
    match made.kept {
        Some(error) => Err(error.into()),
        None => Ok(made.changed),
    }
}

/// Checks a name from a manifest before it becomes part of a path: it must be a single component.
fn checked_name(name: &str) -> Result<()> {
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
        return Err(VolumeError::InvalidName(name.to_owned()));
    }
    Ok(())
}

/// Makes a directory of ours and its parents.
fn make_dir(path: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
        .map_err(|e| VolumeError::io("create directory", path, e))
}

/// Sets a mode whatever the umask was.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|e| VolumeError::io("set the mode of", path, e))
}

#[cfg(test)]
mod tests;
