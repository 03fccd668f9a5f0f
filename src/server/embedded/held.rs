//! Objects that were deleted, have finalizers left, but end nevertheless: pods, and workloads that are
//! deleted after their pods.
//!
//! Their file is moved out of the directories that the source reads, so that their containers stop.
//! Until the last finalizer is removed, the object is shown from a file in a separate directory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind::NotADirectory, ErrorKind::NotFound};
use std::path::{Path, PathBuf};

use mirrorlet_apimachinery::cache::Key;
use mirrorlet_apimachinery::garbage;
use mirrorlet_apimachinery::meta;
use mirrorlet_apimachinery::resources::{NAMESPACES, PODS, RESOURCES, Resource};
use mirrorlet_core::workload::{WorkloadKey, WorkloadKind};
use mirrorlet_host::disk;
use serde_json::{Value, json};

use super::files;
use super::namespace_files::Ending;

/// The directory of their files, below that of all others. No source reads what begins with a dot.
const DIRECTORY: &str = ".held";
/// Largest file that is read, in MiB: an object as a client sends it, and its status.
const MIB_MAX: u64 = 8;
/// The exit code of a container whose own is unknown.
///
/// Upstream: `pkg/kubelet/kubelet_pods.go` (`convertStatusToAPIStatus`).
const EXIT_CODE_UNKNOWN: i32 = 137;

fn workload_kind(resource: &Resource) -> Option<WorkloadKind> {
    let mut kinds = WorkloadKind::ALL.into_iter();
    kinds.find(|kind| kind.as_str() == resource.kind)
}

/// Whether a resource's objects make pods.
pub(super) fn makes_pods(resource: &Resource) -> bool {
    workload_kind(resource).is_some()
}

/// Whether an object that is being deleted ends before its last finalizer is removed.
pub(super) fn ends_at_once(key: &Key, object: &Value) -> bool {
    key.resource == &PODS || (makes_pods(key.resource) && garbage::is_foreground(object))
}

/// The directory of the files of these objects.
pub(super) fn directory(stored: &Path) -> PathBuf {
    stored.join(DIRECTORY)
}

/// The objects, by their keys.
#[derive(Debug, Default)]
pub(super) struct Held(BTreeMap<Key, Value>);

/// The content of the files.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The objects.
    pub(super) held: Held,
    /// The namespaces that objects in them hold.
    pub(super) namespaces: BTreeMap<String, Ending>,
}

impl Held {
    /// Reads the files. If the object of a file is still stored, the file is ignored, and removed if
    /// the disk allows it: its deletion was never answered. Blocks on the disk.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn read(stored: &Path) -> io::Result<Read> {
        let directory = directory(stored);
        let mut read = Read::default();
        for path in files_in(&directory)? {
            let Some((key, object)) = read_object(&path) else {
                tracing::warn!(path = %path.display(), "this file does not hold a valid deleted object; it is ignored");
                continue;
            };
            if files::path(stored, &key).exists() {
                if let Err(error) = files::remove(&directory, &key) {
                    tracing::warn!(path = %path.display(), %error, "failed to remove the file of a deletion that was interrupted");
                }
            } else if key.resource == &NAMESPACES {
                read.namespaces.insert(key.name, Ending::of(&object));
            } else {
                read.held.insert(key, object);
            }
        }
        Ok(read)
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    pub(super) fn insert(&mut self, key: Key, object: Value) {
        self.0.insert(key, object);
    }

    pub(super) fn remove(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// The workloads among them, with their UIDs.
    pub(super) fn workloads(&self) -> impl Iterator<Item = (WorkloadKey, String)> {
        self.0.iter().filter_map(|(key, object)| {
            let known = WorkloadKey {
                kind: workload_kind(key.resource)?,
                namespace: key.namespace.clone(),
                name: key.name.clone(),
            };
            Some((known, meta::uid(object).to_owned()))
        })
    }

    /// The objects to show. `shown` returns the agent's object of a key, whose status is used while its
    /// containers stop; later the one that [`remember`](Self::remember) stored is used. `complete` says
    /// that the agent shows everything that exists, so that the containers of a missing pod are gone.
    pub(super) fn objects<'a>(
        &self,
        complete: bool,
        shown: impl Fn(&Key) -> Option<&'a Value>,
    ) -> Vec<(Key, Value)> {
        let of = |(key, object): (&Key, &Value)| {
            match shown(key) {
                Some(live) if meta::uid(live) == meta::uid(object) => {
                    let mut live = live.clone();
                    live["metadata"] = object["metadata"].clone();
                    Some((key.clone(), live))
                }
                // A manifest has its name now.
                Some(_) => None,
                None => {
                    let mut object = object.clone();
                    if key.resource == &PODS && complete {
                        end(&mut object);
                    }
                    Some((key.clone(), object))
                }
            }
        };
        self.0.iter().filter_map(of).collect()
    }

    /// Stores the states of pods whose containers are being stopped.
    pub(super) fn remember<'a>(&mut self, shown: impl Fn(&Key) -> Option<&'a Value>) {
        for (key, object) in self.0.iter_mut().filter(|(key, _)| key.resource == &PODS) {
            if let Some(live) = shown(key)
                && meta::uid(live) == meta::uid(object)
            {
                object["status"] = live["status"].clone();
            }
        }
    }
}

/// Removes remains of a failed deletion of an object: it would come back from them. Blocks on the disk.
///
/// # Errors
/// The system's error.
pub(super) fn forget(directory: &Path, key: &Key) -> io::Result<()> {
    if files::path(directory, key).exists() {
        files::remove(directory, key)
    } else {
        Ok(())
    }
}

fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![directory.to_owned()];
    // NAMESPACE, RESOURCE, NAME.yaml
    for _ in 0..3 {
        let mut below = Vec::new();
        for directory in found {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                // The directory is missing, or a user put a file in its place.
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => continue,
                Err(error) => return Err(error),
            };
            for entry in entries {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                if !name.starts_with('.') {
                    below.push(path);
                }
            }
        }
        found = below;
    }
    Ok(found)
}

fn read_object(path: &Path) -> Option<(Key, Value)> {
    let bytes = disk::read_small(path, MIB_MAX).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let object: Value = serde_saphyr::from_str(&text).ok()?;
    let plural = path.parent()?.file_name()?.to_str()?;
    let resource = RESOURCES.iter().find(|one| one.plural == plural)?;
    let key = Key::new(resource, meta::namespace(&object), meta::name(&object));
    garbage::is_deleted(&object).then_some((key, object))
}

/// Sets a pod whose containers are gone to the state in which a kubelet leaves one with finalizers.
///
/// Upstream: `pkg/kubelet/status/status_manager.go` (`TerminatePod`).
fn end(pod: &mut Value) {
    let finished = pod["metadata"]["deletionTimestamp"].clone();
    let status = &mut pod["status"];
    let mut all_succeeded = true;
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in status[list].as_array_mut().into_iter().flatten() {
            container["ready"] = false.into();
            container["started"] = false.into();
            if !container["state"]["terminated"].is_object() {
                container["state"] = json!({"terminated": {
                    "exitCode": EXIT_CODE_UNKNOWN,
                    "reason": "ContainerStatusUnknown",
                    "message": "The container could not be located when the pod was terminated",
                    "finishedAt": finished,
                }});
            }
            all_succeeded &= container["state"]["terminated"]["exitCode"] == 0;
        }
    }
    let phase = status["phase"].as_str().unwrap_or_default();
    let succeeded = phase == "Succeeded" || (phase != "Failed" && all_succeeded);
    let (phase, reason) = if succeeded {
        ("Succeeded", "PodCompleted")
    } else {
        ("Failed", "PodFailed")
    };
    status["phase"] = phase.into();
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if ["Ready", "ContainersReady"].contains(&condition["type"].as_str().unwrap_or_default()) {
            condition["status"] = "False".into();
            condition["reason"] = reason.into();
        }
    }
    meta::metadata(pod).insert("deletionGracePeriodSeconds".to_owned(), 0.into());
}

#[cfg(test)]
mod tests {
    use mirrorlet_apimachinery::garbage::Propagation;

    use super::*;

    fn pod(uid: &str, exit_code: Option<i32>) -> Value {
        let state = exit_code.map_or_else(
            || json!({"running": {}}),
            |code| json!({"terminated": {"exitCode": code}}),
        );
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "namespace": "a", "uid": uid, "finalizers": ["example.com/keep"]},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "web", "ready": true, "state": state}],
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        })
    }

    fn deleted(mut object: Value) -> Value {
        garbage::mark(
            &mut object,
            Propagation::Background,
            "2026-01-02T03:04:05Z",
            30,
        );
        object
    }

    #[test]
    fn a_pod_is_shown_as_it_stops_and_as_it_ended() {
        let key = Key::new(&PODS, "a", "web");
        let mut held = Held::default();
        held.insert(key.clone(), deleted(pod("u-1", None)));
        let shown_by = |complete: bool, held: &Held, live: Option<Value>| {
            let objects = held.objects(complete, |_| live.as_ref());
            objects.into_iter().next().map(|(_, object)| object)
        };
        let shown = |held: &Held, live| shown_by(true, held, live);
        // Its containers stop: their state is the agent's, the metadata are the object's.
        let stops = shown(&held, Some(pod("u-1", None))).unwrap();
        // embedded 47
        assert_eq!(
            stops["metadata"]["deletionTimestamp"],
            "2026-01-02T03:04:05Z"
        );
        assert_eq!(stops["status"]["phase"], "Running");
        // Its last state is known.
        let stopped = pod("u-1", Some(0));
        held.remember(|_| Some(&stopped));
        let ended = shown(&held, None).unwrap();
        assert_eq!(ended["status"]["phase"], "Succeeded");
        assert_eq!(ended["status"]["conditions"][0]["status"], "False");
        assert_eq!(ended["metadata"]["deletionGracePeriodSeconds"], 0);
        // After a restart of the agent it isn't. Until it is known what runs, it may not have ended.
        held.insert(key.clone(), deleted(pod("u-1", None)));
        let unseen = shown_by(false, &held, None).unwrap();
        // embedded 67
        assert_eq!(unseen["status"], pod("u-1", None)["status"]);
        let ended = shown(&held, None).unwrap();
        let container = &ended["status"]["containerStatuses"][0];
        assert_eq!(ended["status"]["phase"], "Failed");
        assert_eq!(container["state"]["terminated"]["exitCode"], 137);
        // A pod of a manifest has its name now.
        assert_eq!(shown(&held, Some(pod("u-2", None))), None);
    }

    #[test]
    fn files_of_deletions_are_read_and_those_that_were_never_answered_removed() {
        let root = tempfile::tempdir().unwrap();
        let keys = ["web", "db"].map(|name| Key::new(&PODS, "a", name));
        for key in &keys {
            let mut object = deleted(pod("u-1", None));
            object["metadata"]["name"] = key.name.as_str().into();
            let text = files::text(&object).unwrap();
            files::write(&directory(root.path()), key, &text).unwrap();
        }
        // The agent was killed before it removed the file of the pod.
        files::write(root.path(), &keys[1], "kind: Pod\n").unwrap();
        fs::write(directory(root.path()).join("a/pods/odd.yaml"), "{").unwrap();
        fs::write(directory(root.path()).join("odd"), "{").unwrap();
        let shop = Key::new(&NAMESPACES, "", "shop");
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "shop", "deletionTimestamp": "2026-01-02T03:04:05Z"}});
        let text = files::text(&namespace).unwrap();
        files::write(&directory(root.path()), &shop, &text).unwrap();
        let Read { held, namespaces } = Held::read(root.path()).unwrap();
        assert_eq!(namespaces.into_keys().collect::<Vec<_>>(), ["shop"]);
        // embedded 47
        assert_eq!((held.has(&keys[0]), held.has(&keys[1])), (true, false));
        assert!(!files::path(&directory(root.path()), &keys[1]).exists());
        assert_eq!(
            Held::read(&root.path().join("none")).unwrap().held.0.len(),
            0
        );
    }
}
