//! The status `Cache`: the state of every pod in the runtime, with its age.
//!
//! Seed semantics (upstream `pkg/kubelet/container/cache.go`): a status or an error per UID with the
//! time it was read, one global time up to which *everything* is known, and
//! [`CacheReader::get_newer_than`], which waits. Its sole writer is `observe`; workers read it, and
//! never act on a status older than their own last action.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;

use mirrorlet_core::api::PodUid;
use mirrorlet_core::observed::PodStatus;
use mirrorlet_runtime::RuntimeError;

/// The cached state of one pod.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its status; empty if the runtime has nothing of it, the last valid one beside an error.
    pub status: Arc<PodStatus>,
    /// Why the newest read of it failed.
    pub error: Option<RuntimeError>,
    /// When the read began that this comes from; none before the first.
    pub modified: Option<Instant>,
}

impl Entry {
    fn empty(uid: &PodUid) -> Self {
        Self {
            status: Arc::new(PodStatus::empty(uid.clone())),
            error: None,
            modified: None,
        }
    }

    /// Whether nothing is known about the pod except that reading it failed.
    pub fn is_unknown(&self) -> bool {
        self.error.is_some() && self.status.is_empty()
    }
}

#[derive(Debug)]
struct Inner {
    entries: RwLock<HashMap<PodUid, watch::Sender<Entry>>>,
    floor: watch::Sender<Option<Instant>>,
    members: watch::Sender<u64>,
}

impl Inner {
    fn with<T>(&self, uid: &PodUid, f: impl FnOnce(&watch::Sender<Entry>) -> T) -> T {
        {
            let entries = self.entries.read();
            if let Some(sender) = entries.get(uid) {
                return f(sender);
            }
        }
        let mut entries = self.entries.write();
        let sender = entries
            .entry(uid.clone())
            .or_insert_with(|| watch::Sender::new(Entry::empty(uid)));
        f(sender)
    }
}

/// Writes the cache. There is one, and it is not `Clone`.
#[derive(Debug)]
pub struct CacheWriter(Arc<Inner>);

/// Reads the cache.
#[derive(Debug, Clone)]
pub struct CacheReader(Arc<Inner>);

/// An empty cache, nothing known.
pub fn cache() -> (CacheWriter, CacheReader) {
    let inner = Arc::new(Inner {
        entries: RwLock::default(),
        floor: watch::Sender::new(None),
        members: watch::Sender::new(0),
    });
    (CacheWriter(Arc::clone(&inner)), CacheReader(inner))
}

impl CacheWriter {
    /// Stores the result of a read of `uid` that began at `looked`. A read older than the stored one is
    /// refused. Returns whether status or error changed.
    #[expect(clippy::must_use_candidate, reason = "most writers only store")]
    pub fn set(
        &self,
        uid: &PodUid,
        found: Result<PodStatus, RuntimeError>,
        looked: Instant,
    ) -> bool {
        let (changed, news) = self.0.with(uid, |sender| {
            let mut changed = false;
            let mut news = false;
            sender.send_modify(|entry| {
                if entry.modified.is_some_and(|modified| modified > looked) {
                    return;
                }
                news = entry.modified.is_none();
                match found {
                    Ok(status) => {
                        let is_news = entry.error.is_some() || !status.is_empty();
                        news |= entry.status.is_empty() && is_news;
                        let is_same = *entry.status == status;
                        changed = entry.error.take().is_some() || !is_same;
                        // Workers keep the status that they saw last: one copy is enough.
                        if !is_same {
                            entry.status = Arc::new(status);
                        }
                    }
                    Err(error) => {
                        changed = entry.error.as_ref() != Some(&error);
                        entry.error = Some(error);
                    }
                }
                entry.modified = Some(looked);
            });
            (changed, news)
        });
        if news {
            self.0.members.send_modify(|version| *version += 1);
        }
        changed
    }

    /// Declares that everything that happened before `time` is in the cache, and wakes the readers that
    /// wait for that.
    pub fn update_time(&self, time: Instant) {
        self.0.floor.send_if_modified(|floor| {
            let newer = floor.is_none_or(|floor| floor < time);
            if newer {
                *floor = Some(time);
            }
            newer
        });
    }

    /// Removes a pod without containers in the runtime that no task reads.
    pub fn delete(&self, uid: &PodUid) {
        let mut entries = self.0.entries.write();
        if let Some(sender) = entries.get(uid) {
            if sender.receiver_count() == 0 {
                entries.remove(uid);
            } else {
                sender.send_if_modified(|entry| {
                    *entry = Entry {
                        modified: entry.modified,
                        ..Entry::empty(uid)
                    };
                    false
                });
            }
        }
    }

    /// Removes a pod that is not read, whatever the runtime has of it.
    pub fn forget(&self, uid: &PodUid) {
        let mut entries = self.0.entries.write();
        let is_idle = |sender: &watch::Sender<Entry>| sender.receiver_count() == 0;
        if entries.get(uid).is_some_and(is_idle) {
            entries.remove(uid);
        }
    }

    /// A reader of this cache.
    pub fn reader(&self) -> CacheReader {
        CacheReader(Arc::clone(&self.0))
    }
}

impl CacheReader {
    /// Returns the cached state of `uid`; an empty status for an unknown pod.
    pub fn get(&self, uid: &PodUid) -> Entry {
        let entries = self.0.entries.read();
        entries
            .get(uid)
            .map_or_else(|| Entry::empty(uid), |sender| sender.borrow().clone())
    }

    /// Returns the state of `uid` from a read that began at `time` or later. Waits for one, without a
    /// time limit: a worker that acted on older data could start something twice.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn get_newer_than(&self, uid: &PodUid, time: Instant) -> Entry {
        let mut entry = self.subscribe(uid);
        let mut floor = self.0.floor.subscribe();
        loop {
            let known = entry.borrow_and_update().clone();
            if known.modified.is_some_and(|modified| modified >= time)
                || floor.borrow_and_update().is_some_and(|floor| floor >= time)
            {
                return known;
            }
            // Neither sender can be gone while `self` holds the cache; if an entry was removed, the
            // reader subscribes again.
            tokio::select! {
                changed = entry.changed() => if changed.is_err() { entry = self.subscribe(uid) },
                _ = floor.changed() => {}
            }
        }
    }

    /// A receiver that changes whenever a read of `uid` is stored.
    pub fn subscribe(&self, uid: &PodUid) -> watch::Receiver<Entry> {
        self.0.with(uid, watch::Sender::subscribe)
    }

    /// Removes a pod that the runtime doesn't have and that no task reads any more: the last reader
    /// created an entry for it.
    pub fn release(&self, uid: &PodUid) {
        let mut entries = self.0.entries.write();
        let is_left = |sender: &watch::Sender<Entry>| {
            let entry = sender.borrow();
            sender.receiver_count() == 0 && entry.status.is_empty() && entry.error.is_none()
        };
        if entries.get(uid).is_some_and(is_left) {
            entries.remove(uid);
        }
    }

    /// A receiver that changes whenever a pod is seen for the first time, whenever the runtime has
    /// something again of a pod of which it had nothing, and whenever the first read of a pod succeeds
    /// after failures.
    pub fn members(&self) -> watch::Receiver<u64> {
        self.0.members.subscribe()
    }

    /// The time up to which everything is known; none before the first complete list.
    pub fn known_until(&self) -> Option<Instant> {
        *self.0.floor.borrow()
    }

    /// Whether all pods are known that existed at some time: they were listed, and each was read
    /// successfully.
    pub fn knows_all(&self) -> bool {
        let entries = self.0.entries.read();
        let mut entries = entries.values();
        self.known_until().is_some() && !entries.any(|entry| entry.borrow().is_unknown())
    }

    /// Waits until everything is known that existed at some time: the first complete list.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn listed(&self) {
        let mut floor = self.0.floor.subscribe();
        // The sender lives as long as `self`.
        let _ = floor.wait_for(Option::is_some).await;
    }

    /// Waits until everything that happened before `time` is known.
    pub async fn wait_until_known(&self, time: Instant) {
        let mut floor = self.0.floor.subscribe();
        // The sender lives as long as `self`.
        let _ = floor
            .wait_for(|floor| floor.is_some_and(|floor| floor >= time))
            .await;
    }

    /// Returns every pod with containers in the runtime, or that a task has read.
    pub fn all(&self) -> Vec<Entry> {
        let entries = self.0.entries.read();
        entries
            .values()
            .map(|sender| sender.borrow().clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use mirrorlet_core::api::{ContainerId, Timestamp};
    use mirrorlet_core::observed::{ContainerState, SandboxStatus};

    fn status(uid: &str, ip: &str) -> PodStatus {
        PodStatus {
            ips: vec![ip.parse().unwrap()],
            ..PodStatus::empty(uid.into())
        }
    }

    /// A pod of which the runtime holds a sandbox.
    fn holding(uid: &str) -> PodStatus {
        let sandbox = SandboxStatus {
            by_hand: None,
            id: ContainerId::docker("pause"),
            attempt: 0,
            state: ContainerState::Created,
            created_at: Timestamp::UNIX_EPOCH,
            pod_started_at: None,
            host_network: false,
            ips: Vec::new(),
        };
        PodStatus {
            sandboxes: vec![sandbox],
            ..PodStatus::empty(uid.into())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_pod_has_an_empty_status() {
        let (_writer, reader) = cache();
        // pods 54
        assert!(reader.get(&"a".into()).status.is_empty());
        assert_eq!(reader.get(&"a".into()).modified, None);
    }

    #[tokio::test(start_paused = true)]
    async fn get_newer_than_waits_for_a_set_of_that_pod() {
        let (writer, reader) = cache();
        let uid = PodUid::from("a");
        let start = Instant::now();
        writer.set(&uid, Ok(status("a", "10.0.0.1")), start);
        let later = start + Duration::from_secs(1);
        let waiting = tokio::spawn({
            let (reader, uid) = (reader.clone(), uid.clone());
            async move { reader.get_newer_than(&uid, later).await }
        });
        tokio::task::yield_now().await;
        writer.set(&"b".into(), Ok(status("b", "10.0.0.9")), later);
        tokio::task::yield_now().await;
        // pods 54
        assert!(!waiting.is_finished());
        writer.set(&uid, Ok(status("a", "10.0.0.2")), later);
        assert_eq!(
            waiting.await.unwrap().status.ips,
            vec!["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_nobody_asks_for_any_more_is_forgotten_unless_something_is_left_of_it() {
        let (writer, reader) = cache();
        let (gone, held, failed) = (PodUid::from("a"), PodUid::from("b"), PodUid::from("c"));
        let asks = [&gone, &held, &failed].map(|uid| reader.subscribe(uid));
        writer.set(&gone, Ok(PodStatus::empty(gone.clone())), Instant::now());
        writer.set(&held, Ok(holding("b")), Instant::now());
        let error = RuntimeError::Unavailable("no answer".to_owned());
        writer.set(&failed, Err(error), Instant::now());
        writer.delete(&gone);
        reader.release(&gone);
        assert_eq!(reader.all().len(), 3);
        drop(asks);
        for uid in [&gone, &held, &failed] {
            reader.release(uid);
        }
        let mut left: Vec<_> = reader.all().iter().map(|e| e.status.uid.clone()).collect();
        left.sort();
        // node 6i
        assert_eq!(left, [held, failed]);
    }

    #[tokio::test(start_paused = true)]
    async fn update_time_wakes_everybody_who_waits_for_no_more() {
        let (writer, reader) = cache();
        let start = Instant::now();
        let waiting = tokio::spawn({
            let reader = reader.clone();
            async move { reader.get_newer_than(&"gone".into(), start).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        writer.update_time(start);
        assert!(waiting.await.unwrap().status.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_look_is_refused_and_errors_keep_the_last_status() {
        let (writer, reader) = cache();
        let uid = PodUid::from("a");
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        assert!(writer.set(&uid, Ok(status("a", "10.0.0.2")), later));
        // pods 54
        assert!(!writer.set(&uid, Ok(status("a", "10.0.0.1")), start));
        assert!(!writer.set(&uid, Ok(status("a", "10.0.0.2")), later));
        let error = RuntimeError::Unavailable("x".into());
        assert!(writer.set(&uid, Err(error.clone()), later));
        let entry = reader.get(&uid);
        assert_eq!(entry.error, Some(error));
        assert_eq!(entry.status.ips.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_was_gone_and_is_seen_again_is_news() {
        let (writer, reader) = cache();
        let uid = PodUid::from("a");
        let mut members = reader.members();
        // Somebody still reads the entry, so it isn't forgotten.
        let _held = reader.subscribe(&uid);
        let mut news = |found: PodStatus| {
            writer.set(&uid, Ok(found), Instant::now());
            let changed = members.has_changed().unwrap();
            members.mark_unchanged();
            changed
        };
        assert!(news(holding("a")));
        assert!(!news(holding("a")));
        assert!(!news(PodStatus::empty("a".into())));
        writer.delete(&uid);
        assert!(!news(PodStatus::empty("a".into())));
        // docker 57
        assert!(news(holding("a")));
    }

    #[tokio::test(start_paused = true)]
    async fn not_all_is_known_while_looks_at_a_pod_fail() {
        let (writer, reader) = cache();
        let uid = PodUid::from("a");
        let failed = || Err(RuntimeError::Unavailable("x".into()));
        assert!(!reader.knows_all());
        writer.update_time(Instant::now());
        assert!(reader.knows_all());
        // It runs, or is gone.
        for found in [holding("a"), PodStatus::empty("a".into())] {
            writer.delete(&uid);
            writer.set(&uid, failed(), Instant::now());
            // box 13
            assert!(!reader.knows_all());
            let members = reader.members();
            writer.set(&uid, Ok(found), Instant::now());
            // box 13
            assert!(reader.knows_all());
            assert!(members.has_changed().unwrap());
            // What it was is known.
            writer.set(&uid, Ok(holding("a")), Instant::now());
            writer.set(&uid, failed(), Instant::now());
            assert!(reader.knows_all());
            writer.set(&uid, Ok(PodStatus::empty("a".into())), Instant::now());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn delete_forgets() {
        let (writer, reader) = cache();
        writer.set(&"a".into(), Ok(status("a", "10.0.0.2")), Instant::now());
        writer.delete(&"a".into());
        assert!(reader.get(&"a".into()).status.is_empty());
        assert!(reader.all().is_empty());
    }
}
