//! The memory that pods' files take: those of secret, downwardAPI and projected volumes.
//!
//! The kernel charges our writes to a tmpfs to our own cgroup, whose limit one tenant could use up for
//! all others. The pods whose volumes were created or updated since the agent's start are counted, with
//! the content of these volumes, including files of deleted Secrets.

use std::collections::BTreeMap;
use std::sync::Arc;

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::payload::{Kind, Medium, Payloads, nested_mount_points};
use mirrorlet_core::shares::ShareLimits;
use mirrorlet_core::spec;
use parking_lot::Mutex;

use super::{Result, VolumeError};

/// Most bytes of the pods of a namespace, and of all.
const LIMITS: ShareLimits = ShareLimits {
    namespace: 24 << 20,
    all: 64 << 20,
};

/// The bytes of a volume's files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Those that it holds.
    held: usize,
    /// The size once its files are written. A volume whose files can't be computed keeps its content.
    wanted: usize,
}

/// The sizes of a pod's volumes in memory, by volume name.
#[derive(Debug, Default)]
pub(super) struct Sizes(BTreeMap<String, Size>);

impl Sizes {
    /// The sizes of all volumes in memory of a pod. `held` measures the current size of one.
    pub(super) fn of(
        pod: &Pod,
        payloads: &Payloads,
        mut held: impl FnMut(&str, Kind) -> Result<usize>,
    ) -> Result<Self> {
        let mut sizes = BTreeMap::new();
        for volume in spec::spec(pod).volumes.iter().flatten() {
            let Some(kind) = Kind::of(volume).filter(|kind| kind.medium() == Medium::Memory) else {
                continue;
            };
            let held = held(&volume.name, kind)?;
            let payload = payloads
                .get(&volume.name)
                .and_then(|made| made.as_ref().ok());
            let wanted = payload.map_or(held, |made| {
                let points = nested_mount_points(pod, &volume.name);
                made.size().saturating_add(made.mount_point_bytes(&points))
            });
            sizes.insert(volume.name.clone(), Size { held, wanted });
        }
        Ok(Self(sizes))
    }

    /// Whether that volume needs more memory than it takes.
    pub(super) fn grows(&self, volume: &str) -> bool {
        let size = self.0.get(volume);
        size.is_some_and(|size| size.wanted > size.held)
    }

    fn sum(&self, bytes: impl Fn(&Size) -> usize) -> usize {
        self.0.values().map(bytes).sum()
    }
}

/// Namespace and bytes of each pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct InMemory(Arc<Mutex<BTreeMap<PodUid, (String, usize)>>>);

impl InMemory {
    /// Counts the files of a pod, replacing its earlier count. Until [`settle`](Self::settle), each
    /// volume counts with its current or its new size, whichever is larger, because writing its files
    /// may fail.
    ///
    /// # Errors
    /// The pods of the namespace, or all together, would take too much. The pod's current content still
    /// counts.
    pub(super) fn reserve(&self, pod: &Pod, sizes: &Sizes) -> Result<()> {
        let (uid, name) = (PodUid::of(pod), FullName::of(pod));
        let bytes = sizes.sum(|size| size.held.max(size.wanted));
        let mut pods = self.0.lock();
        let counted = pods.get(&uid).map_or(0, |(_, bytes)| *bytes);
        // After a start of the agent, existing files were not counted yet.
        let before = counted.max(sizes.sum(|size| size.held));
        let mut checked = Ok(());
        if bytes > before {
            let others = pods.iter().filter(|(other, _)| **other != uid);
            let others = others.map(|(_, (namespace, bytes))| (namespace.as_str(), *bytes));
            checked = LIMITS.check(&name.namespace, bytes, others);
        }
        let bytes = if checked.is_ok() { bytes } else { before };
        count(&mut pods, uid, &name.namespace, bytes);
        checked.map_err(|excess| VolumeError::MemoryFull {
            whose: if excess.of_namespace {
                format!("the pods of namespace {}", name.namespace)
            } else {
                "all pods".to_owned()
            },
            bytes: excess.bytes,
            max: excess.max,
        })
    }

    /// All files of a pod were written.
    pub(super) fn settle(&self, pod: &Pod, sizes: &Sizes) {
        let namespace = FullName::of(pod).namespace;
        let bytes = sizes.sum(|size| size.wanted);
        count(&mut self.0.lock(), PodUid::of(pod), &namespace, bytes);
    }

    /// The files of a pod are gone.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut pods = self.0.lock();
        pods.remove(uid);
    }
}

fn count(pods: &mut BTreeMap<PodUid, (String, usize)>, uid: PodUid, namespace: &str, bytes: usize) {
    if bytes == 0 {
        pods.remove(&uid);
    } else {
        pods.insert(uid, (namespace.to_owned(), bytes));
    }
}

#[cfg(test)]
mod tests {
    use mirrorlet_core::payload::{Payload, PayloadFile};
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "uid": format!("{namespace}-{name}")},
            "spec": {"containers": [], "volumes": [
                {"name": "s", "secret": {"secretName": "s"}},
                {"name": "c", "configMap": {"name": "c"}},
            ]},
        }))
        .unwrap()
    }

    /// Files of that many MiB in the Secret, and more in the `ConfigMap`, which is on disk.
    fn files(mebibytes: usize) -> Payloads {
        let payload = |mebibytes: usize| {
            let mut payload = Payload::default();
            let file = PayloadFile {
                data: vec![0; mebibytes << 20],
                mode: 0o644,
                user: None,
            };
            payload.insert("f", file).unwrap();
            Ok(payload)
        };
        let all = [("s", mebibytes), ("c", 90)];
        all.map(|(name, mebibytes)| (name.to_owned(), payload(mebibytes)))
            .into()
    }

    /// Pods that are started as with a [`VolumeManager`](super::super::VolumeManager), and what each holds.
    #[derive(Default)]
    struct Node {
        memory: InMemory,
        held: BTreeMap<PodUid, usize>,
    }

    impl Node {
        /// Writes the files of a pod, or keeps those that it has where its Secret is gone.
        fn write(
            &mut self,
            (namespace, name): (&str, &str),
            mebibytes: Option<usize>,
        ) -> std::result::Result<(), String> {
            let pod = self.reserve((namespace, name), mebibytes)?;
            self.memory.settle(&pod.0, &pod.1);
            let held = self.held.entry(PodUid::of(&pod.0)).or_default();
            *held = pod.1.sum(|size| size.wanted);
            Ok(())
        }

        /// Writes none, although there is room.
        fn reserve(
            &mut self,
            (namespace, name): (&str, &str),
            mebibytes: Option<usize>,
        ) -> std::result::Result<(Pod, Sizes), String> {
            let pod = pod(namespace, name);
            let mut payloads = files(mebibytes.unwrap_or_default());
            if mebibytes.is_none() {
                let file = payloads["s"].as_ref().unwrap().files()["f"].clone();
                let gone = Payload::default().insert("", file).unwrap_err();
                payloads.insert("s".to_owned(), Err(gone));
            }
            let held = self.held.get(&PodUid::of(&pod)).copied().unwrap_or(0);
            let sizes = Sizes::of(&pod, &payloads, |_, _| Ok(held)).unwrap();
            match self.memory.reserve(&pod, &sizes) {
                Ok(()) => Ok((pod, sizes)),
                Err(error) => Err(error.to_string()),
            }
        }
    }

    #[test]
    fn a_namespace_and_all_pods_have_a_bound() {
        let mut node = Node::default();
        let mut write = |namespace, name, mebibytes| node.write((namespace, name), Some(mebibytes));
        assert_eq!(write("a", "1", 16), Ok(()));
        assert_eq!(write("a", "2", 8), Ok(()));
        // tenants M9
        assert!(write("a", "3", 1).unwrap_err().contains("namespace a "));
        // What has grown is refused, and counts as before; what has shrunk is not.
        assert!(write("a", "2", 9).is_err());
        assert_eq!(write("a", "2", 8), Ok(()));
        assert_eq!(write("a", "1", 15), Ok(()));
        assert_eq!(write("a", "3", 1), Ok(()));
        assert_eq!(write("b", "1", 24), Ok(()));
        assert!(write("c", "1", 17).unwrap_err().contains("of all pods "));
        assert_eq!(write("c", "1", 16), Ok(()));
        node.memory.forget(&PodUid::of(&pod("b", "1")));
        assert_eq!(node.write(("c", "1"), Some(17)), Ok(()));
    }

    #[test]
    fn the_files_of_a_deleted_secret_count() {
        let mut node = Node::default();
        node.write(("a", "1"), Some(16)).unwrap();
        node.write(("a", "1"), None).unwrap();
        // tenants M9
        assert!(node.write(("a", "2"), Some(16)).is_err());
        assert_eq!(node.write(("a", "2"), Some(8)), Ok(()));
        // An agent that was started since counts them, too, and refuses nothing that is there.
        node.memory = InMemory::default();
        node.write(("a", "1"), None).unwrap();
        node.write(("a", "2"), Some(8)).unwrap();
        assert!(node.write(("a", "3"), Some(1)).is_err());
        node.memory.forget(&PodUid::of(&pod("a", "1")));
        assert_eq!(node.write(("a", "3"), Some(16)), Ok(()));
    }

    #[test]
    fn files_that_could_not_be_replaced_count() {
        let mut node = Node::default();
        node.write(("a", "1"), Some(16)).unwrap();
        node.reserve(("a", "1"), Some(1)).unwrap();
        // tenants M9
        assert!(node.write(("a", "2"), Some(16)).is_err());
        node.write(("a", "1"), Some(1)).unwrap();
        assert_eq!(node.write(("a", "2"), Some(16)), Ok(()));
    }
}
