//! The cgroups that pods leave behind.
//!
//! An Engine without systemd makes the parent cgroup of a pod's containers and never removes it.
//! Removing a cgroup is `rmdir`, which the kernel refuses while anything runs in it.

use std::io;
use std::path::Path;

use mirrorlet_core::api::PodUid;
use mirrorlet_core::resources::{QosClass, pod_cgroup};

use super::{Result, VolumeError};

/// The mount point of cgroups: the hierarchy of version 2, or one directory per hierarchy of
/// version 1.
pub(super) const HIERARCHIES: &str = "/sys/fs/cgroup";

/// Removes a pod's cgroups of whatever class, in every hierarchy.
pub(super) fn remove(hierarchies: &Path, cgroup_root: &str, uid: &PodUid) -> Result<()> {
    let mut roots = vec![hierarchies.to_owned()];
    match std::fs::read_dir(hierarchies) {
        Ok(entries) => roots.extend(entries.flatten().map(|entry| entry.path())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(VolumeError::io("read directory", hierarchies, e)),
    }
    for class in QosClass::ALL {
        let Some(parts) = pod_cgroup(cgroup_root, class, uid) else {
            return Ok(());
        };
        for root in &roots {
            remove_one(
                &parts
                    .iter()
                    .fold(root.clone(), |path, part| path.join(part)),
            )?;
        }
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
            _ => Err(VolumeError::io("remove", path, e)),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_pods_cgroups_are_removed_in_every_hierarchy_unless_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let uid = PodUid::from("u1");
        let mine = [
            "root/burstable/podu1",
            "cpu/root/podu1",
            "memory/root/podu1",
        ];
        let others = ["root/burstable/podu2", "cpu/root", "other/podu1"];
        for path in mine.iter().chain(&others) {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(dir.path().join("file"), b"").unwrap();
        for _ in 0..2 {
            remove(dir.path(), "root", &uid).unwrap();
        }
        assert!(mine.iter().all(|path| !dir.path().join(path).exists()));
        assert!(others.iter().all(|path| dir.path().join(path).exists()));

        fs::create_dir_all(dir.path().join("cpu/root/podu1/container")).unwrap();
        let error = remove(dir.path(), "root", &uid).unwrap_err();
        assert!(matches!(error, VolumeError::Busy { .. }), "{error}");
        remove(dir.path(), "", &uid).unwrap();
        remove(&dir.path().join("missing"), "root", &uid).unwrap();
    }
}
