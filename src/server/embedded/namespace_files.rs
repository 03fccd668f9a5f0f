//! The stored namespaces, from their files. No source delivers them, because namespaces have no effect
//! on pods.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mirrorlet_apimachinery::resources::NAMESPACES;
use mirrorlet_core::api::{self, Timestamp, core::Namespace};
use mirrorlet_core::small::SmallCollect;
use mirrorlet_host::disk;
use serde_json::{Map, Value};

use super::body;
use super::store::CLUSTER_DIRECTORY;

/// Largest file that is read, in MiB: that of the largest object that is stored.
const MIB_MAX: u64 = 2;
/// The metadata that are shown as they are stored.
const SHOWN: [&str; 5] = [
    "annotations",
    "creationTimestamp",
    "labels",
    "managedFields",
    "uid",
];

/// The attributes of a file that change with its content: inode, size, and the times of its last
/// changes.
type Identity = [i128; 6];

/// A namespace that is stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StoredNamespace {
    /// When its file was first seen: its age, if the file doesn't contain it.
    pub(super) since: Timestamp,
    /// Its metadata.
    pub(super) metadata: Map<String, Value>,
    /// The file that was read; none of what was read elsewhere.
    identity: Option<Identity>,
}

/// A namespace that is being deleted.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ending {
    /// Since when.
    pub(super) since: Timestamp,
    /// The stored namespace, if it was stored: its file is removed before it is.
    pub(super) stored: Option<StoredNamespace>,
}

impl Ending {
    /// A namespace that is being deleted, from its shown object.
    pub(super) fn of(object: &Value) -> Self {
        let since = object["metadata"]["deletionTimestamp"].as_str();
        let since = since.and_then(|since| since.parse().ok());
        let since = since.unwrap_or_else(Timestamp::now);
        let stored = StoredNamespace {
            since,
            metadata: metadata_of(object),
            identity: None,
        };
        Self {
            since,
            stored: Some(stored),
        }
    }
}

/// The stored namespaces, by name. `known` are the earlier ones: only changed files are read. If a file
/// can't be read, its namespace stays as it was. Blocks on the disk.
pub(super) fn stored_namespaces(
    directory: &Path,
    known: &BTreeMap<String, StoredNamespace>,
) -> BTreeMap<String, StoredNamespace> {
    let files = directory.join(CLUSTER_DIRECTORY).join(NAMESPACES.plural);
    let mut stored = BTreeMap::new();
    for entry in fs::read_dir(files).into_iter().flatten().flatten() {
        let Ok(file) = entry.file_name().into_string() else {
            continue;
        };
        let name = file.strip_suffix(".yaml").filter(|n| !n.starts_with('.'));
        let (Some(name), Ok(metadata)) = (name, entry.metadata()) else {
            continue;
        };
        let namespace = look(&entry.path(), name, &metadata, known.get(name));
        stored.extend(namespace.map(|namespace| (name.to_owned(), namespace)));
    }
    stored
}

fn look(
    path: &Path,
    name: &str,
    metadata: &Metadata,
    known: Option<&StoredNamespace>,
) -> Option<StoredNamespace> {
    let identity = Some(identity(metadata));
    if let Some(same) = known.filter(|known| known.identity == identity) {
        return Some(same.clone());
    }
    let since = match known {
        Some(known) => known.since,
        None => Timestamp::try_from(metadata.modified().ok()?).ok()?,
    };
    let former = || known.map(|known| known.metadata.clone());
    Some(StoredNamespace {
        since,
        metadata: read(path, name).or_else(former).unwrap_or_default(),
        identity,
    })
}

fn identity(metadata: &Metadata) -> Identity {
    [
        metadata.ino().into(),
        metadata.size().into(),
        metadata.mtime().into(),
        metadata.mtime_nsec().into(),
        metadata.ctime().into(),
        metadata.ctime_nsec().into(),
    ]
}

/// The metadata in the file of the namespace of that name; none if it is no such file.
fn read(path: &Path, name: &str) -> Option<Map<String, Value>> {
    let bytes = disk::read_small(path, MIB_MAX).ok()?;
    let object = body::yaml(&bytes).ok()?;
    // A user may have edited it, and clients need valid types.
    let namespace: Namespace = api::read(&object).ok()?;
    (namespace.metadata.name.as_deref() == Some(name)).then(|| metadata_of(&object))
}

fn metadata_of(object: &Value) -> Map<String, Value> {
    let fields = object["metadata"].as_object().into_iter().flatten();
    let shown = fields.filter(|(key, value)| SHOWN.contains(&key.as_str()) && !value.is_null());
    shown
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect_object()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mirrorlet_apimachinery::cache::Key;
    use serde_json::json;

    use super::*;
    use crate::server::embedded::bed::Bed;
    use crate::server::embedded::files;
    use crate::server::embedded::store::Store;
    use crate::server::view::ShownPod;

    const NAME_LABEL: &str = "kubernetes.io/metadata.name";
    const PATH: &str = "/api/v1/namespaces/shop";

    async fn with_shop(bed: &Bed) -> Value {
        let shop = json!({"metadata": {"name": "shop", "annotations": {"a": "1"}}});
        let (code, created) = bed.ask("POST", "/api/v1/namespaces", &shop).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    #[tokio::test]
    async fn a_namespace_is_shown_as_it_is_stored() {
        let bed = Bed::new();
        let created = with_shop(&bed).await;
        let key = Key::new(&NAMESPACES, "", "shop");
        let edit = json!({"metadata": {"labels": {"team": "a", NAME_LABEL: "other"}}});
        let (code, edited) = bed.ask("PATCH", PATH, &edit).await;
        let labels = json!({"team": "a", NAME_LABEL: "shop"});
        // embedded 65
        assert_eq!((code, &edited["metadata"]["labels"]), (200, &labels));
        for field in ["uid", "creationTimestamp", "annotations"] {
            assert_eq!(edited["metadata"][field], created["metadata"][field]);
        }
        assert!(edited["metadata"]["managedFields"].is_array(), "{edited}");
        let (_, again) = bed.ask("PATCH", PATH, &edit).await;
        assert_eq!(again, edited);
        // The next agent shows it so, whatever the time of the file.
        let file = fs::File::options().write(true).open(bed.file(&key));
        let at: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        file.unwrap().set_modified(at.into()).unwrap();
        let (view, directory) = (bed.api.store.view(), bed.api.store.directory());
        let next = Store::new(Arc::clone(view), directory.to_owned(), "box").unwrap();
        let shown = next.read(|cache| cache.get(&key)).unwrap();
        let mut metadata = shown["metadata"].clone();
        metadata["resourceVersion"] = edited["metadata"]["resourceVersion"].clone();
        // embedded 65
        assert_eq!(metadata, edited["metadata"]);
        // A file that a user broke changes nothing; a file without metadata is as old as its
        // modification time.
        fs::write(bed.file(&key), "{").unwrap();
        let by_hand = Key::new(&NAMESPACES, "", "byhand");
        fs::write(
            bed.file(&by_hand),
            "apiVersion: v1\nkind: Namespace\nmetadata: {name: byhand}\n",
        )
        .unwrap();
        bed.api.store.touch();
        let look = |key| bed.api.store.read(|cache| cache.get(key)).unwrap();
        assert_eq!(look(&key)["metadata"]["labels"], labels);
        assert_eq!(
            look(&by_hand)["metadata"]["labels"],
            json!({NAME_LABEL: "byhand"})
        );
    }

    /// Deletes the namespace, with a pod in it that stops.
    async fn without_shop(bed: &Bed) -> Value {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u-1"}, "spec": {"containers": [{"name": "c"}]}});
        bed.view.shown.lock().unwrap().pods.push(ShownPod {
            pod: serde_json::from_value(pod).unwrap(),
            newest: None,
            origin: None,
            terminating: true,
        });
        bed.api.store.touch();
        let (code, deleted) = bed.ask("DELETE", PATH, &json!({})).await;
        assert_eq!(code, 200, "{deleted}");
        deleted
    }

    #[tokio::test]
    async fn a_namespace_that_is_being_deleted_is_the_same() {
        let bed = Bed::new();
        let created = with_shop(&bed).await;
        let deleted = without_shop(&bed).await;
        let key = Key::new(&NAMESPACES, "", "shop");
        assert!(!bed.file(&key).exists());
        let (_, shown) = bed.ask("GET", PATH, &Value::Null).await;
        assert_eq!(shown["status"]["phase"], "Terminating");
        for shown in [&deleted, &shown] {
            for field in ["uid", "creationTimestamp", "annotations"] {
                // embedded 65
                assert_eq!(shown["metadata"][field], created["metadata"][field]);
            }
        }
        let ending = Ending::of(&deleted).stored.unwrap();
        assert_eq!(ending.metadata["uid"], created["metadata"]["uid"]);
    }

    #[tokio::test]
    async fn a_namespace_that_is_edited_while_it_is_being_deleted_stays_so() {
        let bed = Bed::new();
        let created = with_shop(&bed).await;
        let deleted = without_shop(&bed).await;
        let (key, held) = (
            Key::new(&NAMESPACES, "", "shop"),
            bed.api.store.held_directory(),
        );
        files::write(held, &key, &files::text(&deleted).unwrap()).unwrap();
        let edit = json!({"metadata": {"labels": {"team": "a"}}});
        let (code, edited) = bed.ask("PATCH", PATH, &edit).await;
        assert_eq!(code, 200, "{edited}");
        assert!(files::path(held, &key).exists());
        assert!(!bed.file(&key).exists());
        // The next agent goes on with it.
        let (view, directory) = (bed.api.store.view(), bed.api.store.directory());
        let next = Store::new(Arc::clone(view), directory.to_owned(), "box").unwrap();
        let again = next.read(|cache| cache.get(&key)).unwrap();
        let metadata = [&edited["metadata"], &again["metadata"]];
        let phases = [&edited["status"]["phase"], &again["status"]["phase"]];
        // embedded 65
        assert_eq!(phases, ["Terminating"; 2]);
        for metadata in metadata {
            // embedded 65
            assert_eq!(metadata["labels"], json!({"team": "a", NAME_LABEL: "shop"}));
            assert_eq!(
                metadata["deletionTimestamp"],
                deleted["metadata"]["deletionTimestamp"]
            );
            for field in ["uid", "creationTimestamp", "annotations"] {
                assert_eq!(metadata[field], created["metadata"][field]);
            }
        }
    }

    #[tokio::test]
    async fn a_namespace_that_is_made_again_is_not_being_deleted() {
        let bed = Bed::new();
        let first = with_shop(&bed).await;
        let deleted = without_shop(&bed).await;
        let (key, held) = (
            Key::new(&NAMESPACES, "", "shop"),
            bed.api.store.held_directory(),
        );
        files::write(held, &key, &files::text(&deleted).unwrap()).unwrap();
        // Its pod has stopped, and a manifest URL hasn't answered.
        {
            let mut shown = bed.view.shown.lock().unwrap();
            shown.pods.clear();
            shown.complete = false;
        }
        bed.api.store.touch();
        let (code, gone) = bed.ask("GET", PATH, &Value::Null).await;
        assert_eq!(code, 404, "{gone}");
        let second = with_shop(&bed).await;
        // embedded 65
        assert_eq!(second["status"]["phase"], "Active");
        assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
        assert!(!files::path(held, &key).exists());
        bed.view.shown.lock().unwrap().complete = true;
        bed.api.store.touch();
        let (_, shown) = bed.ask("GET", PATH, &Value::Null).await;
        // embedded 65
        assert_eq!(shown, second);
    }
}
