//! The cgroups of pods. An Engine without systemd never removes them: the agent does, and a bed does for
//! the pods that its agents leave running.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::reaper;

/// Where hierarchies of cgroups are mounted, or the only one.
const MOUNT: &str = "/sys/fs/cgroup";
/// The cgroups below the agent's that those of pods are in. Pods of the class Guaranteed are in its own.
const CLASSES: [&str; 3] = ["", "burstable", "besteffort"];

/// The UID of the pod that a container of that name belongs to.
pub fn pod_uid(container: &str) -> Option<&str> {
    container.strip_prefix("k8s_")?.split('_').nth(3)
}

/// Removes the cgroups of these pods, whose containers are gone.
pub fn remove<'a>(uids: impl Iterator<Item = &'a str>) {
    let mut names: Vec<String> = uids.map(|uid| format!("pod{uid}")).collect();
    names.sort();
    names.dedup();
    let mounts = fs::read_dir(MOUNT).into_iter().flatten().flatten();
    let mut hierarchies: Vec<PathBuf> = mounts.map(|mount| mount.path()).collect();
    hierarchies.push(MOUNT.into());
    for class in hierarchies.iter().flat_map(|path| classes(path)) {
        for cgroup in names.iter().map(|name| class.join(name)) {
            let removed = fs::remove_dir(&cgroup);
            // The last process of a container may not be buried yet.
            if removed.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
                reaper::remember("cgroup", &[&cgroup.display().to_string()]);
            }
        }
    }
}

/// The cgroups of one hierarchy that those of pods are in.
fn classes(hierarchy: &Path) -> Vec<PathBuf> {
    let agent = hierarchy.join("mirrorlet");
    let classes = CLASSES.into_iter().map(|class| agent.join(class));
    classes.filter(|class| class.is_dir()).collect()
}
