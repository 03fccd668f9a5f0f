//! The bytes that the files of pods take in memory: those of secret, downwardAPI and projected volumes.
//!
//! The kernel charges what we write into a tmpfs to our own cgroup, whose limit one tenant could use up
//! for all others. Counted are the pods that were looked at since the agent's start.

use std::collections::BTreeMap;
use std::sync::Arc;

use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::payload::{Kind, Medium, Payload, Payloads};
use mirrorlet_core::shares::ShareLimits;
use mirrorlet_core::spec;
use parking_lot::Mutex;

use super::{Result, VolumeError};

/// Most bytes of the pods of a namespace, and of all.
const LIMITS: ShareLimits = ShareLimits {
    namespace: 24 << 20,
    all: 64 << 20,
};

/// Namespace and bytes of each pod. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct InMemory(Arc<Mutex<BTreeMap<PodUid, (String, usize)>>>);

impl InMemory {
    /// Counts the files of a pod in the place of those that were counted before.
    ///
    /// # Errors
    /// The pods of the namespace, or all together, would take too much. What was counted before stays.
    pub(super) fn charge(&self, pod: &Pod, payloads: &Payloads) -> Result<()> {
        let (uid, name) = (PodUid::of(pod), FullName::of(pod));
        let bytes = bytes_in_memory(pod, payloads);
        let mut pods = self.0.lock();
        let before = pods.get(&uid).map_or(0, |(_, bytes)| *bytes);
        if bytes > before {
            let others = pods.iter().filter(|(other, _)| **other != uid);
            let others = others.map(|(_, (namespace, bytes))| (namespace.as_str(), *bytes));
            let checked = LIMITS.check(&name.namespace, bytes, others);
            checked.map_err(|excess| VolumeError::MemoryFull {
                whose: if excess.of_namespace {
                    format!("the pods of namespace {}", name.namespace)
                } else {
                    "all pods".to_owned()
                },
                bytes: excess.bytes,
                max: excess.max,
            })?;
        }
        if bytes == 0 {
            pods.remove(&uid);
        } else {
            pods.insert(uid, (name.namespace.to_string(), bytes));
        }
        Ok(())
    }

    /// The files of a pod are gone.
    pub(super) fn forget(&self, uid: &PodUid) {
        let mut pods = self.0.lock();
        pods.remove(uid);
    }
}

fn bytes_in_memory(pod: &Pod, payloads: &Payloads) -> usize {
    let volumes = spec::spec(pod).volumes.iter().flatten();
    let in_memory = volumes.filter_map(|volume| {
        Kind::of(volume).filter(|kind| kind.medium() == Medium::Memory)?;
        payloads.get(&volume.name)?.as_ref().ok()
    });
    in_memory.map(Payload::size).sum()
}

#[cfg(test)]
mod tests {
    use mirrorlet_core::payload::PayloadFile;
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

    #[test]
    fn a_namespace_and_all_pods_have_a_bound() {
        let memory = InMemory::default();
        let charge = |namespace: &str, name: &str, mebibytes: usize| {
            let charged = memory.charge(&pod(namespace, name), &files(mebibytes));
            charged.map_err(|error| error.to_string())
        };
        assert_eq!(charge("a", "1", 16), Ok(()));
        assert_eq!(charge("a", "2", 8), Ok(()));
        // tenants M9
        assert!(charge("a", "3", 1).unwrap_err().contains("namespace a "));
        // What has grown is refused, and counts as before; what has shrunk is not.
        assert!(charge("a", "2", 9).is_err());
        assert_eq!(charge("a", "2", 8), Ok(()));
        assert_eq!(charge("a", "1", 15), Ok(()));
        assert_eq!(charge("a", "3", 1), Ok(()));
        assert_eq!(charge("b", "1", 24), Ok(()));
        assert!(charge("c", "1", 17).unwrap_err().contains("of all pods "));
        assert_eq!(charge("c", "1", 16), Ok(()));
        memory.forget(&PodUid::of(&pod("b", "1")));
        assert_eq!(charge("c", "1", 17), Ok(()));
    }
}
