//! The cgroups of pods: limits for all containers of a pod together, and removal of leftovers.
//!
//! The Engine creates the cgroups of containers below the given parent, their pod's, and limits only
//! these. A pod with resources of its own has the parent limited before: through its files if the
//! Engine's driver is cgroupfs, through a unit file of the slice if it is systemd, which would revert
//! direct writes. An Engine without systemd never removes a pod's cgroup. It is removed with `rmdir`,
//! which the kernel refuses while anything runs in it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mirrorlet_core::api::PodUid;
use mirrorlet_core::resources::{
    CgroupLimits, QUOTA_PERIOD, QosClass, limited_root, pod_cgroup, slice_name,
};
use mirrorlet_core::stats::cgroup::{Controller, Version};
use mirrorlet_core::stats::place;

use super::{Result, VolumeError};
use crate::cgroups::Hierarchies;

/// The controllers that the cgroups below one get, of version 2.
const SUBTREE: &str = "cgroup.subtree_control";
/// Whether a cgroup of version 1 limits those below it: "1". Old kernels make others.
const HIERARCHICAL: &str = "memory.use_hierarchy";
/// The difference at most between a memory limit and the number of whole pages that the kernel
/// makes of it, in bytes.
const PAGE_MAX: i64 = 64 << 10;
/// The files of CPU shares.
const SHARES: [&str; 2] = ["cpu.shares", "cpu.weight"];

/// The directories that cgroups are made in.
#[derive(Debug, Clone)]
pub(super) struct Cgroups {
    hierarchies: Hierarchies,
    /// Where systemd reads units from until the next boot.
    units: PathBuf,
}

/// A file of a cgroup, and what it is to say.
type Setting = (Controller, &'static str, String);

impl Cgroups {
    /// Those of this machine.
    pub(super) fn of_machine() -> Self {
        Self::at(
            Path::new("/sys/fs/cgroup"),
            Path::new("/run/systemd/system"),
        )
    }

    fn at(hierarchies: &Path, units: &Path) -> Self {
        Self {
            hierarchies: Hierarchies::at(hierarchies),
            units: units.to_owned(),
        }
    }

    /// Makes the cgroup at that path and limits it.
    pub(super) fn limit(&self, parts: &[String], limits: CgroupLimits) -> Result<()> {
        let version = self.hierarchies.version();
        let settings = settings(version, limits);
        for controller in controllers(&settings) {
            let mut path = self.hierarchies.of(controller);
            for part in parts {
                if version == Version::V2 {
                    write(&path.join(SUBTREE), "+cpu +memory")?;
                }
                path.push(part);
                make(&path)?;
                let hierarchical = path.join(HIERARCHICAL);
                if version == Version::V1 && read(&hierarchical).is_some_and(|text| text == "0") {
                    write(&hierarchical, "1")?;
                }
            }
            for (_, file, value) in settings.iter().filter(|(of, ..)| *of == controller) {
                write(&path.join(file), value)?;
            }
        }
        Ok(())
    }

    /// Sets the limits of the slice at that path in systemd; the slice is created with the first cgroup
    /// in it.
    pub(super) fn limit_slice(&self, parts: &[String], limits: CgroupLimits) -> Result<()> {
        let path = self.units.join(slice_name(parts));
        let unit = slice_unit(limits);
        // Without systemd here, a directory created for it would have no effect.
        let written = fs::read_dir(&self.units).and_then(|_| fs::write(&path, unit));
        written.map_err(|e| VolumeError::io("write", &path, e))
    }

    /// Fails unless the cgroup of a container is below the one at that path, as the agent sees it, and
    /// that has these limits. CPU shares are not compared: systemd converts the weight that it is
    /// given.
    pub(super) fn check(&self, parts: &[String], limits: CgroupLimits, id: &str) -> Result<()> {
        let settings = settings(self.hierarchies.version(), limits);
        for controller in controllers(&settings) {
            let hierarchy = self.hierarchies.of(controller);
            let has_child = |directory: &String| {
                let mut names = place::names(directory, id).into_iter();
                names.any(|name| hierarchy.join(name).is_dir())
            };
            let found = place::directories(parts).into_iter().find(has_child);
            let Some(directory) = found else {
                return Err(VolumeError::NotInCgroup {
                    path: hierarchy.join(parts.join("/")),
                });
            };
            let is_limit = |(of, file, _): &&Setting| *of == controller && !SHARES.contains(file);
            for (_, file, value) in settings.iter().filter(is_limit) {
                let path = hierarchy.join(&directory).join(file);
                if !read(&path).is_some_and(|text| says(&text, value, controller)) {
                    return Err(VolumeError::NotLimited { path });
                }
            }
        }
        Ok(())
    }

    /// Removes a pod's cgroups of every `QoS` class, in every hierarchy, and its systemd settings: below
    /// the root of all pods, or of those with resources of their own if `cgroup_root` is empty.
    pub(super) fn remove(&self, cgroup_root: &str, uid: &PodUid) -> Result<()> {
        let cgroup_root = limited_root(cgroup_root);
        for class in QosClass::ALL {
            if let Some(parts) = pod_cgroup(cgroup_root, class, uid) {
                remove(self.hierarchies.root(), &parts)?;
                let unit = self.units.join(slice_name(&parts));
                match fs::remove_file(&unit) {
                    // A mount that is read-only refuses before it looks.
                    Err(e) if !is_missing(&e) && unit.exists() => {
                        return Err(VolumeError::io("remove", &unit, e));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// The files of a pod's cgroup that are written, in this order.
///
/// Upstream: `pkg/kubelet/cm/cgroup_manager_linux.go`, `v1` and `v2`.
fn settings(version: Version, limits: CgroupLimits) -> Vec<Setting> {
    use Controller::{Cpu, Memory};
    let CgroupLimits {
        cpu_shares,
        cpu_quota,
        memory,
    } = limits;
    let memory = memory.map(|bytes| bytes.to_string());
    let (cpu, memory) = match version {
        Version::V1 => (
            [
                Some((Cpu, "cpu.shares", cpu_shares.to_string())),
                cpu_quota.map(|_| (Cpu, "cpu.cfs_period_us", QUOTA_PERIOD.to_string())),
                cpu_quota.map(|quota| (Cpu, "cpu.cfs_quota_us", quota.to_string())),
            ],
            memory.map(|bytes| (Memory, "memory.limit_in_bytes", bytes)),
        ),
        Version::V2 => (
            [
                Some((Cpu, "cpu.weight", weight(cpu_shares).to_string())),
                cpu_quota.map(|quota| (Cpu, "cpu.max", format!("{quota} {QUOTA_PERIOD}"))),
                None,
            ],
            memory.map(|bytes| (Memory, "memory.max", bytes)),
        ),
    };
    cpu.into_iter().flatten().chain(memory).collect()
}

/// The controllers that these files belong to.
fn controllers(settings: &[Setting]) -> impl Iterator<Item = Controller> {
    let has = |controller: &Controller| settings.iter().any(|(of, ..)| of == controller);
    [Controller::Cpu, Controller::Memory]
        .into_iter()
        .filter(has)
}

/// The unit of a slice with these limits.
fn slice_unit(limits: CgroupLimits) -> String {
    let mut text = format!(
        "# Written by mirrorlet, for the resources of a pod.\n[Slice]\nCPUWeight={}\n",
        weight(limits.cpu_shares)
    );
    if let Some(quota) = limits.cpu_quota {
        // Percent of one CPU, to two places.
        let parts = quota.saturating_mul(10_000) / QUOTA_PERIOD;
        let _ = writeln!(text, "CPUQuota={}.{:02}%", parts / 100, parts % 100);
    }
    if let Some(bytes) = limits.memory {
        let _ = writeln!(text, "MemoryMax={bytes}");
    }
    text
}

/// The weight of version 2 that stands for CPU shares. Newer Engines have another formula for those of
/// containers. This one is for pods: weights are relative to those of the cgroups beside, and it keeps
/// the proportions of pods' shares.
///
/// Upstream: `getCPUWeight` of `pkg/kubelet/cm/cgroup_manager_linux.go`.
fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

/// Whether a file's text means the value that was written to it: numbers of bytes are rounded.
fn says(text: &str, value: &str, controller: Controller) -> bool {
    let numbers = text.parse::<i64>().ok().zip(value.parse::<i64>().ok());
    let is_rounded = |(is, written)| (0..PAGE_MAX).contains(&(written - is));
    text == value || controller == Controller::Memory && numbers.is_some_and(is_rounded)
}

fn make(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(VolumeError::io("make", path, e)),
        _ => Ok(()),
    }
}

/// Writes to a file of the kernel, which makes none.
fn write(path: &Path, value: &str) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path);
    file.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|e| VolumeError::io("write", path, e))
}

/// The text of a file of the kernel: one value.
fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end().to_owned())
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Removes the cgroups at that path, in every hierarchy.
fn remove(hierarchies: &Path, parts: &[String]) -> Result<()> {
    let mut roots = vec![hierarchies.to_owned()];
    match fs::read_dir(hierarchies) {
        Ok(entries) => roots.extend(entries.flatten().map(|entry| entry.path())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(VolumeError::io("read directory", hierarchies, e)),
    }
    for root in roots {
        remove_one(&parts.iter().fold(root, |path, part| path.join(part)))?;
    }
    Ok(())
}

fn remove_one(path: &Path) -> Result<()> {
    match std::fs::remove_dir(path) {
        Ok(()) => Ok(()),
        Err(e) => match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(()),
            io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty => {
                Err(VolumeError::Busy {
                    path: path.to_owned(),
                    cause: e.to_string(),
                })
            }
            // A mount that is read-only refuses before it looks.
            _ if !path.exists() => Ok(()),
            _ => Err(VolumeError::io("remove", path, e)),
        },
    }
}

#[cfg(test)]
mod tests;
