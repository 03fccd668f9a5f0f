//! The probe results of all pods: written by the probe manager, read by the workers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;

use mirrorlet_core::api::{ContainerId, PodUid};
use mirrorlet_core::probe::{ProbeKind, ProbeResult, ProbeResults};
use mirrorlet_core::small::SmallCollect;

type Entries = HashMap<PodUid, watch::Sender<Arc<ProbeResults>>>;

#[derive(Debug)]
struct Inner {
    entries: RwLock<Entries>,
    version: watch::Sender<u64>,
}

/// Writes the results. There is one, and it is not `Clone`.
#[derive(Debug)]
pub struct ProbeWriter(Arc<Inner>);

/// Reads the results.
#[derive(Debug, Clone)]
pub struct ProbeReader(Arc<Inner>);

/// An empty store: nothing was probed.
pub fn probe_results() -> (ProbeWriter, ProbeReader) {
    let inner = Arc::new(Inner {
        entries: RwLock::default(),
        version: watch::Sender::new(0),
    });
    (ProbeWriter(Arc::clone(&inner)), ProbeReader(inner))
}

impl ProbeWriter {
    /// Adds a pod: before that, and after it is removed, nothing is stored for it.
    pub fn begin(&self, uid: &PodUid) {
        self.0.entries.write().entry(uid.clone()).or_default();
    }

    /// Changes the results of a pod. Its subscribers are woken if `change` returns true.
    pub fn change(&self, uid: &PodUid, change: impl FnOnce(&mut ProbeResults) -> bool) {
        let is_news = {
            let entries = self.0.entries.read();
            let Some(entry) = entries.get(uid) else {
                return;
            };
            entry.send_if_modified(|results| {
                // Most looks find nothing new: nothing is copied for those.
                let mut changed = ProbeResults::clone(results);
                let is_news = change(&mut changed);
                if is_news {
                    *results = Arc::new(changed);
                }
                is_news
            })
        };
        if is_news {
            self.0.version.send_modify(|version| *version += 1);
        }
    }

    /// Keeps a result of an instance.
    pub fn set(&self, uid: &PodUid, id: &ContainerId, kind: ProbeKind, result: ProbeResult) {
        self.change(uid, |results| results.set(id, kind, result));
    }

    /// Forgets a pod that is gone.
    pub fn forget(&self, uid: &PodUid) {
        {
            let mut entries = self.0.entries.write();
            let Some(entry) = entries.get(uid) else {
                return;
            };
            entry.send_replace(Arc::default());
            // A worker that is still subscribed is about to add it again.
            if entry.receiver_count() == 0 {
                entries.remove(uid);
            }
        }
        self.0.version.send_modify(|version| *version += 1);
    }

    /// A reader of these results.
    pub fn reader(&self) -> ProbeReader {
        ProbeReader(Arc::clone(&self.0))
    }
}

impl ProbeReader {
    /// Returns the current probe results of a pod.
    pub fn get(&self, uid: &PodUid) -> Arc<ProbeResults> {
        let entries = self.0.entries.read();
        let known = entries.get(uid).map(|entry| Arc::clone(&entry.borrow()));
        known.unwrap_or_default()
    }

    /// Returns the current probe results of all pods.
    pub fn all(&self) -> BTreeMap<PodUid, Arc<ProbeResults>> {
        let entries = self.0.entries.read();
        let all = entries.iter();
        all.map(|(uid, entry)| (uid.clone(), Arc::clone(&entry.borrow())))
            .collect_map()
    }

    /// A receiver that changes with a pod's probe results.
    pub fn subscribe(&self, uid: &PodUid) -> watch::Receiver<Arc<ProbeResults>> {
        self.0
            .entries
            .write()
            .entry(uid.clone())
            .or_default()
            .subscribe()
    }

    /// Removes a pod without results and subscribers.
    pub fn leave(&self, uid: &PodUid) {
        let mut entries = self.0.entries.write();
        let is_idle = |entry: &watch::Sender<Arc<ProbeResults>>| {
            entry.receiver_count() == 0 && **entry.borrow() == ProbeResults::default()
        };
        if entries.get(uid).is_some_and(is_idle) {
            entries.remove(uid);
        }
    }

    /// A receiver that changes with the probe results of any pod.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_woken_by_news_only_and_a_pod_is_forgotten_whole() {
        let (writer, reader) = probe_results();
        let (uid, id) = (PodUid::from("a"), ContainerId::docker("1"));
        let mut changed = reader.subscribe(&uid);
        writer.set(&uid, &id, ProbeKind::Liveness, ProbeResult::Success);
        assert!(changed.has_changed().unwrap());
        changed.mark_unchanged();
        writer.set(&uid, &id, ProbeKind::Liveness, ProbeResult::Success);
        writer.begin(&"b".into());
        writer.set(&"b".into(), &id, ProbeKind::Liveness, ProbeResult::Failure);
        assert!(!changed.has_changed().unwrap());
        let known = reader.get(&uid).get(&id, ProbeKind::Liveness);
        assert_eq!(known, Some(ProbeResult::Success));
        writer.forget(&uid);
        assert!(changed.has_changed().unwrap());
        assert_eq!(*reader.get(&uid), ProbeResults::default());
        drop(changed);
        writer.forget(&uid);
        writer.forget(&"b".into());
        assert!(reader.all().is_empty());
        // Without results a pod is left by who listened last; with some it stays.
        let listening = reader.subscribe(&uid);
        reader.leave(&uid);
        assert_eq!(reader.all().len(), 1, "it is listened for");
        drop(listening);
        reader.leave(&uid);
        assert!(reader.all().is_empty());
        writer.begin(&uid);
        writer.set(&uid, &id, ProbeKind::Liveness, ProbeResult::Success);
        reader.leave(&uid);
        assert_eq!(reader.all().len(), 1);
        writer.forget(&uid);
        // A late result belongs to no worker.
        writer.set(&"b".into(), &id, ProbeKind::Liveness, ProbeResult::Failure);
        assert!(reader.all().is_empty());
    }
}
