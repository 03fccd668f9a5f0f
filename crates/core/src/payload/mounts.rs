//! Mount points inside volumes, which a volume that is mounted read-only must contain beforehand.

use crate::api::Pod;
use crate::small::SmallSort;
use crate::spec;

/// Paths inside the volume at which containers mount something else, without those below another such
/// path.
///
/// Upstream: `GetNestedMountpoints` of `pkg/volume/util/nested_volumes.go`.
pub fn nested_mount_points(pod: &Pod, volume: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, container) in spec::containers(pod) {
        let mounts = || container.volume_mounts.iter().flatten();
        let mut all: Vec<Vec<&str>> = mounts().map(|mount| parts(&mount.mount_path)).collect();
        // A path that climbs could lead out of the volume.
        all.retain(|path| !path.contains(&".."));
        all.small_sort();
        for own in mounts().filter(|mount| mount.name == volume) {
            // The mount shows only a part of the volume.
            if [&own.sub_path, &own.sub_path_expr]
                .into_iter()
                .flatten()
                .any(|p| !p.is_empty())
            {
                continue;
            }
            let own = parts(&own.mount_path);
            let mut below: Vec<&[&str]> = Vec::new();
            for mount in &all {
                let Some(inside) = mount.strip_prefix(own.as_slice()) else {
                    continue;
                };
                if inside.is_empty() || below.iter().any(|known| inside.starts_with(known)) {
                    continue;
                }
                below.push(inside);
            }
            found.extend(below.iter().map(|inside| inside.join("/")));
        }
    }
    found.small_sort();
    found.dedup();
    found
}

/// A path's parts.
fn parts(path: &str) -> Vec<&str> {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(mounts: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "volumeMounts": mounts}]},
        }))
        .unwrap()
    }

    #[test]
    fn mount_points_inside_a_volume_are_found_once() {
        let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
        let pod = pod(&json!([
            mount("v", "/dir"),
            mount("a", "/dir/nested"),
            mount("b", "/dir/nested/double"),
            mount("c", "/dir/nested-vol"),
            mount("d", "/dir2/x"),
            mount("e", "/dir/p/./q/"),
            mount("g", "/dir/../../etc"),
            {"name": "v", "mountPath": "/sub", "subPath": "s"},
            mount("f", "/sub/x"),
        ]));
        assert_eq!(
            nested_mount_points(&pod, "v"),
            ["nested", "nested-vol", "p/q"]
        );
        assert_eq!(nested_mount_points(&pod, "a"), ["double"]);
        assert!(nested_mount_points(&pod, "d").is_empty());
    }
}
