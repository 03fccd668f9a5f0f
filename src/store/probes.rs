//! What the probes of all pods say: written by the probe manager, read by the workers.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use crate::api::{ContainerId, PodUid};
use crate::pod::probe::{ProbeKind, ProbeResult, ProbeResults};

type Entries = HashMap<PodUid, watch::Sender<Arc<ProbeResults>>>;

/// Writes the results. There is one, and it is not `Clone`.
#[derive(Debug)]
pub struct ProbeWriter(Arc<RwLock<Entries>>);

/// Reads the results.
#[derive(Debug, Clone)]
pub struct ProbeReader(Arc<RwLock<Entries>>);

/// An empty store: nothing was probed.
#[must_use]
pub fn probe_results() -> (ProbeWriter, ProbeReader) {
    let entries = Arc::<RwLock<Entries>>::default();
    (ProbeWriter(Arc::clone(&entries)), ProbeReader(entries))
}

impl ProbeWriter {
    /// Changes what is known of a pod. Those who wait for it are woken if `change` says that it
    /// is news.
    pub fn change(&self, uid: &PodUid, change: impl FnOnce(&mut ProbeResults) -> bool) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(uid.clone()).or_default();
        entry.send_if_modified(|results| change(Arc::make_mut(results)));
    }

    /// Keeps a result of an instance.
    pub fn set(&self, uid: &PodUid, id: &ContainerId, kind: ProbeKind, result: ProbeResult) {
        self.change(uid, |results| results.set(id, kind, result));
    }

    /// Forgets every pod but those.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|uid, entry| {
            if keep(uid) {
                return true;
            }
            entry.send_if_modified(|results| {
                !std::mem::take(Arc::make_mut(results)).eq(&ProbeResults::default())
            });
            // Its worker may not be on the board yet.
            entry.receiver_count() > 0
        });
    }

    /// A reader of these results.
    #[must_use]
    pub fn reader(&self) -> ProbeReader {
        ProbeReader(Arc::clone(&self.0))
    }
}

impl ProbeReader {
    /// What the probes of a pod say now.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Arc<ProbeResults> {
        let entries = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let known = entries.get(uid).map(|entry| Arc::clone(&entry.borrow()));
        known.unwrap_or_default()
    }

    /// A receiver that changes with what the probes of a pod say.
    #[must_use]
    pub fn subscribe(&self, uid: &PodUid) -> watch::Receiver<Arc<ProbeResults>> {
        let mut entries = self.0.write().unwrap_or_else(PoisonError::into_inner);
        entries.entry(uid.clone()).or_default().subscribe()
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
        writer.set(&"b".into(), &id, ProbeKind::Liveness, ProbeResult::Failure);
        assert!(!changed.has_changed().unwrap());
        let known = reader.get(&uid).get(&id, ProbeKind::Liveness);
        assert_eq!(known, Some(ProbeResult::Success));
        writer.retain(|uid| uid.as_str() == "b");
        assert!(changed.has_changed().unwrap());
        assert_eq!(*reader.get(&uid), ProbeResults::default());
        drop(changed);
        writer.retain(|_| false);
        assert!(writer.0.read().unwrap().is_empty());
    }
}
