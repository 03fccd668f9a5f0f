//! The journal: the history of each pod, of workloads and of the node, in memory, newest last.
//!
//! It has two readers. `mirrorlet explain` and `events` read the histories; the event recorder takes
//! the entries for users of a cluster. Both get the same entries, so an event can't contradict the
//! history. Its size is bounded: a pod that crashes for weeks keeps its newest entries, long messages
//! are cut as in events, the longest history is cut when all together are too long, and a recorder that
//! is too slow loses the oldest entries and gets their number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use super::refs::RefManager;
use mirrorlet_core::api::{FullName, NodeName, Pod, PodUid, Timestamp, shortened};
use mirrorlet_core::events::{
    EventType, Happening, WorkloadEvent, node_ref, pod_ref, workload_ref,
};
use mirrorlet_core::small::SmallSort;
use mirrorlet_core::status::trouble::{Failed, Trouble};
use mirrorlet_core::workload::WorkloadKey;

/// The number of entries by which the capacity of a history grows at a time.
const ROOM: usize = 4;
/// Most entries kept of one full name.
const STORY_MAX: usize = 200;
/// Longest message, in bytes. Events are cut at as many characters; here memory counts.
const MESSAGE_BYTES_MAX: usize = 1024;
/// Approximate maximum size of all pods' histories together, in bytes: enough for seventy pods whose
/// probes fail with a different long message each time.
const BYTES_MAX: usize = 16 << 20;
/// Maximum number of names with a history; the one without entries for the longest time is dropped
/// first.
const STORIES_MAX: usize = 1_000;
/// The number of newest entries among which a repeated one is merged. Otherwise a pod whose probes fail
/// every second would have no other history left after some minutes.
const AGAIN_WITHIN: usize = 8;
/// Among how many newest entries the subject of a new one is looked for, to be shared.
const SHARED_WITHIN: usize = 16;
/// Most reasons that are shared; Kubernetes and this agent have fewer.
const REASONS_MAX: usize = 256;
/// Maximum number of entries that wait for the recorder: hours of a busy node during an outage of the
/// API server.
const PENDING_MAX: usize = 2_000;

/// Reason of the entries about failed attempts of probes.
pub const UNHEALTHY: &str = "Unhealthy";
/// Reason of the entries about failed `postStart` hooks.
pub const POST_START_FAILED: &str = "FailedPostStartHook";

/// The subject of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A pod, or one of its containers.
    Pod {
        /// Its full name.
        full_name: FullName,
        /// Its resolved UID: a static pod's own, never its mirror's.
        uid: PodUid,
        /// Name of the container concerned, if it is about one.
        container: Option<Arc<str>>,
        /// The container's field in the pod's spec.
        field_path: Option<Arc<str>>,
    },
    /// A workload of a manifest.
    Workload(WorkloadKey),
    /// Our Node.
    Node,
}

/// The audience of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Shown only in the complete history.
    Trace,
    /// Everybody: a normal event.
    Normal,
    /// Everybody: something is wrong.
    Warning,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Position in the journal; a later entry has a higher one.
    pub number: u64,
    /// When.
    pub at: Timestamp,
    /// To whom. Entries of one history share it.
    pub subject: Arc<Subject>,
    /// The audience of an entry.
    pub kind: Kind,
    /// The reason, one word in Kubernetes' spelling.
    pub reason: Arc<str>,
    /// One sentence; no secret, no environment value.
    pub message: Arc<str>,
}

impl Entry {
    /// The event for users that corresponds to it; none for an entry of the complete history only.
    pub fn happening(&self, node: &NodeName) -> Option<Happening> {
        let event_type = match self.kind {
            Kind::Trace => return None,
            Kind::Normal => EventType::Normal,
            Kind::Warning => EventType::Warning,
        };
        let involved = match &*self.subject {
            Subject::Node => node_ref(node.as_str()),
            Subject::Workload(key) => workload_ref(key),
            Subject::Pod {
                full_name,
                uid,
                field_path,
                ..
            } => pod_ref(full_name, uid, field_path.as_deref()),
        };
        Some(Happening {
            involved,
            event_type,
            reason: self.reason.to_string(),
            message: self.message.to_string(),
            at: self.at,
        })
    }
}

#[derive(Debug, Default)]
struct Inner {
    next: AtomicU64,
    stories: Mutex<Stories>,
    changed: watch::Sender<u64>,
    pending: Mutex<Pending>,
    arrived: Notify,
    refs: Mutex<RefManager>,
}

#[derive(Debug, Default)]
struct Stories {
    all: BTreeMap<Named, Story>,
    node: Story,
    /// Bytes of the histories of pods and workloads.
    bytes: usize,
    /// Reasons of entries: they are few, and each is that of many entries.
    reasons: BTreeSet<Arc<str>>,
}

/// A name that has a history.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Named {
    Pod(FullName),
    Workload(WorkloadKey),
}

/// The entries of one name, or of the node.
#[derive(Debug, Default)]
struct Story {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Whether it once had older entries.
    is_cut: bool,
}

#[derive(Debug, Default)]
struct Pending {
    /// Whether there is a subscriber. Without an API server there is none, and nothing is kept.
    wanted: bool,
    entries: VecDeque<Entry>,
    lost: u64,
}

/// The journal. Cheap to clone: clones share it.
#[derive(Debug, Clone, Default)]
pub struct Journal(Arc<Inner>);

impl Journal {
    /// Records an entry about a pod or one of its containers.
    pub fn pod(
        &self,
        full_name: &FullName,
        uid: &PodUid,
        container: Option<&str>,
        kind: Kind,
        reason: &str,
        message: impl AsRef<str>,
    ) {
        let subject = Subject::Pod {
            full_name: full_name.clone(),
            uid: uid.clone(),
            container: container.map(Arc::from),
            field_path: container.map(|name| self.0.refs.lock().get(uid, name)),
        };
        self.note(subject, kind, reason, message.as_ref());
    }

    /// Records the spec field of each of a pod's containers, until the pod is forgotten.
    pub fn set_refs(&self, pod: &Pod) {
        self.0.refs.lock().set(pod);
    }

    /// Forgets a pod's containers: no more entries about them will be recorded.
    pub fn clear_refs(&self, uid: &PodUid) {
        self.0.refs.lock().clear(uid);
    }

    /// Notes an event of a workload.
    pub fn workload(&self, event: &WorkloadEvent) {
        let kind = match event.event_type {
            EventType::Normal => Kind::Normal,
            EventType::Warning => Kind::Warning,
        };
        let subject = Subject::Workload(event.key.clone());
        self.note(subject, kind, &event.reason, &event.message);
    }

    /// Notes something about our Node.
    pub fn node(&self, kind: Kind, reason: &str, message: impl AsRef<str>) {
        self.note(Subject::Node, kind, reason, message.as_ref());
    }

    fn note(&self, subject: Subject, kind: Kind, reason: &str, message: &str) {
        let mut stories = self.0.stories.lock();
        // Numbered under the lock: a reader of one entry has seen all before it.
        let entry = Entry {
            number: self.0.next.fetch_add(1, Ordering::Relaxed),
            at: Timestamp::now(),
            subject: stories.shared(subject),
            kind,
            reason: stories.reason(reason),
            message: shortened(message.to_owned(), MESSAGE_BYTES_MAX).into(),
        };
        match &*entry.subject {
            Subject::Pod { full_name, .. } => {
                stories.append(Named::Pod(full_name.clone()), &entry);
            }
            Subject::Workload(key) => stories.append(Named::Workload(key.clone()), &entry),
            Subject::Node => stories.node.append(&entry),
        }
        drop(stories);
        self.0.changed.send_modify(|count| *count += 1);
        // A cluster doesn't have the workloads of manifests; one of that name there is another one.
        let is_workload = matches!(*entry.subject, Subject::Workload(_));
        if kind != Kind::Trace && !is_workload {
            self.submit(entry);
        }
    }

    fn submit(&self, entry: Entry) {
        {
            let mut pending = self.0.pending.lock();
            if !pending.wanted {
                return;
            }
            if pending.entries.len() == PENDING_MAX {
                pending.entries.pop_front();
                pending.lost += 1;
            }
            pending.entries.push_back(entry);
        }
        self.0.arrived.notify_one();
    }

    /// The history of all pods that had this full name, oldest entry first.
    pub fn story(&self, full_name: &FullName) -> Vec<Entry> {
        let stories = self.0.stories.lock();
        let story = stories.all.get(&Named::Pod(full_name.clone()));
        let entries = story.into_iter().flat_map(|story| &story.entries);
        entries.cloned().collect()
    }

    /// The failed probes and hooks of a pod's containers in its history, oldest first.
    pub fn troubles(&self, full_name: &FullName, of: &PodUid) -> Vec<Trouble> {
        let stories = self.0.stories.lock();
        let story = stories.all.get(&Named::Pod(full_name.clone()));
        let entries = story.into_iter().flat_map(|story| &story.entries);
        let troubles = entries.filter_map(|entry| {
            let what = match &*entry.reason {
                UNHEALTHY => Failed::Probe,
                POST_START_FAILED => Failed::PostStart,
                _ => return None,
            };
            let Subject::Pod { uid, container, .. } = &*entry.subject else {
                return None;
            };
            Some(Trouble {
                container: container.clone().filter(|_| uid == of)?,
                what,
                at: entry.at,
                message: Arc::clone(&entry.message),
            })
        });
        troubles.collect()
    }

    /// Whether older entries of that history were dropped.
    pub fn is_cut(&self, full_name: &FullName) -> bool {
        let stories = self.0.stories.lock();
        let story = stories.all.get(&Named::Pod(full_name.clone()));
        story.is_some_and(|story| story.is_cut)
    }

    /// Full names of pods that have a history.
    pub fn names(&self) -> Vec<FullName> {
        let stories = self.0.stories.lock();
        let pods = stories.all.keys().filter_map(|name| match name {
            Named::Pod(name) => Some(name.clone()),
            Named::Workload(_) => None,
        });
        pods.collect()
    }

    /// The entries of all pods, workloads and the node with at least that number, oldest first.
    pub fn entries(&self, from: u64) -> Vec<Entry> {
        let stories = self.0.stories.lock();
        let all = stories.all.values().chain([&stories.node]);
        let new = |entry: &&Entry| entry.number >= from;
        let mut entries: Vec<Entry> = all
            .flat_map(|story| story.entries.iter().rev().take_while(new))
            .cloned()
            .collect();
        entries.small_sort_by_key(|entry| entry.number);
        entries
    }

    /// Number that the next entry gets.
    pub fn next(&self) -> u64 {
        self.0.next.load(Ordering::Relaxed)
    }

    /// Changes value with each entry.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Subscribes the event recorder. From now on entries are kept for it.
    pub fn subscribe(&self) -> Submissions {
        self.0.pending.lock().wanted = true;
        Submissions(Arc::clone(&self.0))
    }
}

impl Story {
    /// Appends an entry. A warning that repeats one of a moment ago moves to the end.
    fn append(&mut self, entry: &Entry) {
        let again = |known: &&Entry| {
            known.kind == Kind::Warning
                && known.kind == entry.kind
                && known.subject == entry.subject
                && known.reason == entry.reason
                && known.message == entry.message
        };
        let mut newest = self.entries.iter().rev().take(AGAIN_WITHIN);
        if let Some(repeated) = newest.find(again).map(|known| known.number) {
            self.entries.retain(|known| known.number != repeated);
            self.bytes -= bytes(entry);
        }
        if self.entries.len() == STORY_MAX {
            self.forget_oldest();
        }
        // Most histories are short, and there are many.
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(ROOM);
        }
        self.entries.push_back(entry.clone());
        self.bytes += bytes(entry);
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.entries.pop_front() {
            self.bytes -= bytes(&oldest);
            self.is_cut = true;
        }
    }
}

impl Stories {
    /// The subject from a newer entry of its history, if there is one.
    fn shared(&self, subject: Subject) -> Arc<Subject> {
        let story = match &subject {
            Subject::Pod { full_name, .. } => self.all.get(&Named::Pod(full_name.clone())),
            Subject::Workload(key) => self.all.get(&Named::Workload(key.clone())),
            Subject::Node => Some(&self.node),
        };
        let newest = story
            .into_iter()
            .flat_map(|story| story.entries.iter().rev());
        let mut subjects = newest.take(SHARED_WITHIN).map(|entry| &entry.subject);
        let known = subjects.find(|known| ***known == subject);
        known.map_or_else(|| Arc::new(subject), Arc::clone)
    }

    /// The reason as other entries have it.
    fn reason(&mut self, reason: &str) -> Arc<str> {
        if let Some(known) = self.reasons.get(reason) {
            return Arc::clone(known);
        }
        let new: Arc<str> = reason.into();
        if self.reasons.len() < REASONS_MAX {
            self.reasons.insert(Arc::clone(&new));
        }
        new
    }

    fn append(&mut self, name: Named, entry: &Entry) {
        let story = self.all.entry(name).or_default();
        self.bytes -= story.bytes;
        story.append(entry);
        self.bytes += story.bytes;
        if self.all.len() > STORIES_MAX {
            self.forget_most_silent();
        }
        while self.bytes > BYTES_MAX
            && let Some(longest) = self.all.values_mut().max_by_key(|story| story.bytes)
        {
            self.bytes -= longest.bytes;
            longest.forget_oldest();
            self.bytes += longest.bytes;
        }
    }

    fn forget_most_silent(&mut self) {
        let newest = |story: &Story| story.entries.back().map(|entry| entry.number);
        let silent = self.all.iter().min_by_key(|(_, story)| newest(story));
        if let Some(name) = silent.map(|(name, _)| name.clone())
            && let Some(story) = self.all.remove(&name)
        {
            self.bytes -= story.bytes;
        }
    }
}

/// Bytes that an entry holds, about.
fn bytes(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.reason.len() + entry.message.len()
}

/// The entries that wait for the event recorder.
#[derive(Debug)]
pub struct Submissions(Arc<Inner>);

impl Submissions {
    /// Returns the next entries, at least one, oldest first, and the number of entries lost before
    /// them. Safe to cancel.
    pub async fn next(&mut self) -> (Vec<Entry>, u64) {
        loop {
            {
                let mut pending = self.0.pending.lock();
                if !pending.entries.is_empty() {
                    let lost = std::mem::take(&mut pending.lost);
                    return (pending.entries.drain(..).collect(), lost);
                }
            }
            self.0.arrived.notified().await;
        }
    }
}

impl Drop for Submissions {
    fn drop(&mut self) {
        *self.0.pending.lock() = Pending::default();
    }
}

#[cfg(test)]
mod tests;
