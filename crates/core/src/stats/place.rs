//! The possible cgroups of a container, without a call to the Engine.
//!
//! The Engine names it after the container's id: `<parent>/<id>` with the driver cgroupfs, and
//! `<parent>/docker-<id>.scope` with systemd. The parent is the pod's own, if the agent gives pods
//! cgroups, otherwise the Engine's.

use crate::api::PodUid;
use crate::resources::{QosClass, pod_cgroup, slice_name};

/// Parents that Engines use when they are given none.
const ENGINE_PARENTS: [&str; 2] = ["docker", "system.slice"];

/// Paths of a container's cgroup, below the root of a hierarchy, likeliest first. `root` is the agent's
/// parent cgroup for pods, or empty.
pub fn candidates(root: &str, class: Option<QosClass>, uid: &PodUid, id: &str) -> Vec<String> {
    let mut all: Vec<String> = pod_parents(root, class, uid)
        .into_iter()
        .flat_map(|parent| names(&parent, id))
        .collect();
    for parent in ENGINE_PARENTS {
        all.extend(names(parent, id));
    }
    all
}

/// Paths of a pod's own cgroup, below the root of a hierarchy.
pub fn pod_parents(root: &str, class: Option<QosClass>, uid: &PodUid) -> Vec<String> {
    let classes = class.map_or_else(|| QosClass::ALL.to_vec(), |class| vec![class]);
    classes
        .into_iter()
        .filter_map(|class| pod_cgroup(root, class, uid))
        .flat_map(|parts| directories(&parts))
        .collect()
}

/// Paths of the cgroup under either driver, below the root of a hierarchy: cgroupfs, systemd.
pub fn directories(parts: &[String]) -> [String; 2] {
    [parts.join("/"), slices(parts)]
}

/// The path that systemd makes of a slice: each one's name begins with its parent's.
fn slices(parts: &[String]) -> String {
    let names: Vec<String> = (1..=parts.len())
        .map(|depth| slice_name(&parts[..depth]))
        .collect();
    names.join("/")
}

/// Paths of a container's cgroup in that parent under either driver.
pub fn names(parent: &str, id: &str) -> [String; 2] {
    [
        format!("{parent}/{id}"),
        format!("{parent}/docker-{id}.scope"),
    ]
}

/// The container of a cgroup with that directory name, according to the name.
pub fn container_of(directory: &str) -> Option<&str> {
    let id = directory
        .strip_prefix("docker-")
        .and_then(|rest| rest.strip_suffix(".scope"))
        .unwrap_or(directory);
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

/// Whether the parent of that cgroup is the pod's own.
pub fn is_of_pod(parent: &str, uid: &PodUid) -> bool {
    let last = parent.rsplit('/').next().unwrap_or(parent);
    let systemd = format!("pod{}.slice", uid.as_str().replace('-', "_"));
    last == format!("pod{uid}") || last.ends_with(&format!("-{systemd}")) || last == systemd
}
