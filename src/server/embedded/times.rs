//! Creation times of objects without their own: the times of files.

use std::collections::BTreeMap;
use std::path::Path;

use mirrorlet_core::api::Timestamp;
use mirrorlet_core::desired::{Origin, PodSource};

use crate::server::view::Shown;

/// When the files that define shown objects were first seen: their modification times at the first
/// look. An edit doesn't change that.
pub(super) fn times(
    shown: &Shown,
    known: &BTreeMap<String, Timestamp>,
) -> BTreeMap<String, Timestamp> {
    let objects = shown.objects.iter().map(|object| &object.origin);
    let workloads = shown.workloads.iter().map(|workload| &workload.origin);
    let files = objects
        .chain(workloads)
        .filter(|origin| matches!(origin.source, PodSource::File | PodSource::Embedded));
    let mut times = BTreeMap::new();
    for Origin { location, .. } in files {
        if times.contains_key(location) {
            continue;
        }
        let modified = || {
            let modified = Path::new(location).metadata().ok()?.modified().ok()?;
            Timestamp::try_from(modified).ok()
        };
        if let Some(at) = known.get(location).copied().or_else(modified) {
            times.insert(location.clone(), at);
        }
    }
    times
}

/// When an agent created the owner file beside the directory of stored files, which it does at its
/// first start. None if there is no such file.
pub(super) fn owner_since(directory: &Path) -> Option<Timestamp> {
    let owner = directory.parent()?.join("owner");
    Timestamp::try_from(owner.metadata().ok()?.modified().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::cache::Key;
    use mirrorlet_apimachinery::resources::CONFIG_MAPS;
    use serde_json::json;

    use super::*;
    use crate::server::embedded::bed::Bed;

    #[test]
    fn a_node_is_as_old_as_its_root_directory() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("api");
        assert_eq!(owner_since(&directory), None);
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let owner = std::fs::File::create(root.path().join("owner")).unwrap();
        owner.set_modified(at.into()).unwrap();
        assert_eq!(owner_since(&directory), Some(at));
    }

    #[test]
    fn what_a_file_defines_is_as_old_as_the_file_and_made_once() {
        let bed = Bed::new();
        let key = Key::new(&CONFIG_MAPS, "default", "cfg");
        let metadata = json!({"name": "cfg", "namespace": "default", "creationTimestamp": null});
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
        bed.store(&key, &object);
        let file = std::fs::File::options().write(true).open(bed.file(&key));
        let file = file.unwrap();
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        file.set_modified(at.into()).unwrap();
        let look = || bed.api.store.read(|cache| cache.get(&key)).unwrap();
        let first = look();
        assert_eq!(first["metadata"]["creationTimestamp"], at.to_string());
        // An edit makes no new object; what didn't change is not made again.
        file.set_modified(std::time::SystemTime::now()).unwrap();
        bed.api.store.touch();
        assert!(std::sync::Arc::ptr_eq(&first, &look()));
        bed.view.shown.lock().unwrap().objects.clear();
        bed.store(&key, &object);
        bed.api.store.touch();
        assert_eq!(first, look());
    }
}
