//! The paths of a pod's files, as values: the layout that `volume` creates and the Engine mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::api::core::{Volume, VolumeMount};
use crate::api::{Pod, PodUid};
use crate::spec;

/// Directory name of the emptyDir plugin in the kubelet's layout.
const EMPTY_DIR_PLUGIN: &str = "kubernetes.io~empty-dir";

/// Whether the files of a volume count as the pod's ephemeral storage: they are on the node's disk, and
/// belong to the pod.
///
/// Upstream: `IsLocalEphemeralVolume` of `pkg/volume/util/util.go`.
pub fn is_local_ephemeral(volume: &Volume) -> bool {
    let empty_dir = volume.empty_dir.as_ref();
    let medium = empty_dir.map(|source| source.medium.as_deref().unwrap_or_default());
    medium == Some("") || volume.config_map.is_some()
}

/// The names of a pod's emptyDir volumes. Their files are removed with the pod, and so by an edit of
/// its manifest that replaces the pod.
pub fn empty_dirs(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    let empty_dirs = volumes.filter(|volume| volume.empty_dir.is_some());
    empty_dirs.map(|volume| &*volume.name)
}

/// Maximum number of mounts with a sub-path in a pod: each is a mount on the node, which every later
/// read of its mount table includes.
pub const SUBPATHS_MAX: usize = 256;

/// Whether the mount is of a part of its volume.
pub fn has_sub_path(mount: &VolumeMount) -> bool {
    mount.sub_path.is_some() || mount.sub_path_expr.is_some()
}

/// Too many mounts of a pod have a sub-path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{count} volumeMounts of the pod's containers have subPath or subPathExpr, more than {SUBPATHS_MAX}"
)]
pub struct TooManySubPaths {
    /// The number of these mounts.
    pub count: usize,
    /// The first container with one too many.
    pub container: String,
}

/// Checks the number of mounts with a sub-path in a pod.
///
/// # Errors
/// There are more than [`SUBPATHS_MAX`].
pub fn check_sub_paths(pod: &Pod) -> Result<(), TooManySubPaths> {
    let (mut count, mut first) = (0, None);
    for (_, container) in spec::containers(pod) {
        let mounts = container.volume_mounts.iter().flatten();
        count += mounts.filter(|mount| has_sub_path(mount)).count();
        if count > SUBPATHS_MAX {
            first.get_or_insert(&container.name);
        }
    }
    first.map_or(Ok(()), |container| {
        Err(TooManySubPaths {
            count,
            container: container.clone(),
        })
    })
}

/// The layout of one pod's directory, `<root>/pods/<uid>`, the kubelet's own.
///
/// Upstream: `pkg/kubelet/kubelet_getters.go`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodPaths {
    dir: PathBuf,
}

impl PodPaths {
    /// The layout of that pod under that root directory.
    pub fn new(root: &Path, uid: &PodUid) -> Self {
        Self {
            dir: Self::pods_dir(root).join(uid.as_str()),
        }
    }

    /// The directory of all pods' directories.
    pub fn pods_dir(root: &Path) -> PathBuf {
        root.join("pods")
    }

    /// The pod's directory.
    pub fn pod_dir(&self) -> &Path {
        &self.dir
    }

    /// The file mounted at `/etc/hosts` into the pod's containers.
    pub fn etc_hosts(&self) -> PathBuf {
        self.dir.join("etc-hosts")
    }

    /// The directory of a container's termination messages.
    pub fn termination_dir(&self, container: &str) -> PathBuf {
        self.dir.join("containers").join(container)
    }

    /// The directory of an emptyDir volume; for the Memory medium a tmpfs is mounted on it.
    pub fn empty_dir(&self, volume: &str) -> PathBuf {
        self.volume(EMPTY_DIR_PLUGIN, volume)
    }

    /// The directory of a volume of that plugin.
    pub fn volume(&self, plugin: &str, volume: &str) -> PathBuf {
        self.volumes_dir().join(plugin).join(volume)
    }

    /// The directory of all volumes, by plugin and name.
    pub fn volumes_dir(&self) -> PathBuf {
        self.dir.join("volumes")
    }

    /// The file that marks an emptyDir volume as set up.
    pub fn empty_dir_ready(&self, volume: &str) -> PathBuf {
        self.plugins_dir()
            .join(EMPTY_DIR_PLUGIN)
            .join(volume)
            .join("ready")
    }

    /// The file that records the storage of a volume of a claim.
    pub fn claim_note(&self, volume: &str) -> PathBuf {
        self.claim_notes_dir().join(volume)
    }

    /// The directory of these files.
    pub fn claim_notes_dir(&self) -> PathBuf {
        self.plugins_dir().join("mirrorlet.dev~claim")
    }

    /// The directory of what plugins note about volumes.
    pub fn plugins_dir(&self) -> PathBuf {
        self.dir.join("plugins")
    }

    /// The directory below which sub-paths of volumes are bound.
    pub fn subpaths_dir(&self) -> PathBuf {
        self.dir.join("volume-subpaths")
    }

    /// The path at which the sub-path of a container's mount `index` is bind-mounted.
    pub fn subpath(&self, volume: &str, container: &str, index: usize) -> PathBuf {
        self.subpaths_dir()
            .join(volume)
            .join(container)
            .join(index.to_string())
    }
}

/// Host paths of a pod's mounts and devices, ready to be used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeMap {
    /// Host path by name of the volume.
    pub volumes: BTreeMap<String, PathBuf>,
    /// Host path of mounts with a sub-path, by container name and index of the mount.
    pub subpaths: BTreeMap<(String, usize), PathBuf>,
    /// Host path of each volume that is a block device, by its name.
    pub devices: BTreeMap<String, PathBuf>,
    /// Volumes that containers must not write to, whatever their mounts set.
    pub read_only: BTreeSet<String>,
    /// Names on the Engine of the volumes that it manages.
    pub engine_volumes: BTreeMap<String, String>,
    /// Ids on the Engine of the images that volumes are made of.
    pub images: BTreeMap<String, String>,
    /// Volumes whose directory the Engine creates if it is missing, because the agent can't.
    pub made_by_engine: BTreeSet<String>,
    /// Volumes with outdated content, and why they could not be updated.
    pub kept: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn sub_paths_of_a_pod_have_a_bound() {
        let container = |name: &str, key: &str, count: usize| {
            let plain = json!({"name": "v", "mountPath": "/m"});
            let mounts =
                (0..count).map(|n| json!({"name": "v", "mountPath": format!("/m/{n}"), key: "s"}));
            let mounts: Vec<Value> = mounts.chain([plain]).collect();
            json!({"name": name, "volumeMounts": mounts})
        };
        let check = |init: usize, first: usize, second: usize| {
            let pod = json!({"spec": {
                "initContainers": [container("init", "subPath", init)],
                "containers": [
                    container("a", "subPathExpr", first),
                    container("b", "subPath", second),
                ],
            }});
            let pod: Pod = serde_json::from_value(pod).unwrap();
            check_sub_paths(&pod)
        };
        assert_eq!(check(0, 0, 0), Ok(()));
        assert_eq!(check(100, 100, 56), Ok(()));
        let error = check(100, 157, 40).unwrap_err();
        assert_eq!((error.count, error.container.as_str()), (297, "a"));
        assert_eq!(
            error.to_string(),
            "297 volumeMounts of the pod's containers have subPath or subPathExpr, more than 256"
        );
    }

    #[test]
    fn files_in_memory_and_of_others_are_no_ephemeral_storage() {
        for (source, expected) in [
            (json!({"emptyDir": {}}), true),
            (json!({"emptyDir": {"medium": ""}}), true),
            (json!({"configMap": {"name": "c"}}), true),
            (json!({"emptyDir": {"medium": "Memory"}}), false),
            (json!({"secret": {"secretName": "s"}}), false),
            (json!({"downwardAPI": {}}), false),
            (json!({"projected": {}}), false),
            (json!({"hostPath": {"path": "/p"}}), false),
            (json!({"persistentVolumeClaim": {"claimName": "c"}}), false),
        ] {
            let mut volume = source.clone();
            volume["name"] = json!("v");
            let volume = serde_json::from_value(volume).unwrap();
            // eviction 7
            assert_eq!(is_local_ephemeral(&volume), expected, "{source}");
        }
    }
}
