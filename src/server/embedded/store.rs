//! The objects of the API over time: rebuilt from the agent's state on request if something may have
//! changed, compared with the previous ones, and numbered.
//!
//! Without requests, nothing is built.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mirrorlet_apimachinery::cache::{Cache, Key};
use mirrorlet_apimachinery::garbage::{self, Member};
use mirrorlet_apimachinery::resources::{EVENTS, NAMESPACES};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::api::core::NodeCondition;
use mirrorlet_core::desired::{Origin, PodSource};
use mirrorlet_core::objects::Object;
use mirrorlet_host::disk::{self, IfThere as _};
use mirrorlet_host::telemetry::occurrences;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::files;
use super::happened::Events;
use super::held::{self, Held};
use super::leases::Leases;
use super::namespace_files::{Ending, StoredNamespace, stored_namespaces};
use super::pods::pod_uid;
use super::project::{Context, Deletion, namespace_uid, project};
use super::templates::Templates;
use super::times::{owner_since, times};
use crate::server::view::AgentView;
use crate::store::kept::{aside, set_aside};
use mirrorlet_core::small::SmallCollect;

/// The file with the revision that the next agent begins after.
const REVISION_FILE: &str = ".revision";
/// The number of revisions that are reserved at a time: the file is written once for so many changes.
const REVISIONS_RESERVED: u64 = 1_000_000;
/// The number of revisions that are skipped if the last used one is lost: earlier agents may have
/// reserved as many beyond the clock's number, by starting a million times in a short time.
const REVISIONS_LOST_MAX: u64 = 1_000_000 * REVISIONS_RESERVED;
/// Maximum revision after which an agent begins: no agent reaches it by counting, and beyond it,
/// revisions could run out.
const REVISION_MAX: u64 = u64::MAX / 2;
/// Maximum time after the start in which clients wait for manifest URLs and the runtime.
pub(super) const DELIVERY_MAX: Duration = Duration::from_secs(10);
/// The directory of objects without a namespace. No namespace has that name.
pub(super) const CLUSTER_DIRECTORY: &str = "_cluster";

/// The objects, and the subscribers of changes.
pub(super) struct Store {
    view: Arc<dyn AgentView>,
    directory: PathBuf,
    held_directory: PathBuf,
    has_objects: bool,
    node: String,
    started_at: Timestamp,
    /// The same on a monotonic clock.
    began: Instant,
    /// The first start with this root directory.
    first_started_at: Timestamp,
    state: Mutex<State>,
    /// Counts what was written through the API.
    written: watch::Sender<u64>,
}

struct State {
    cache: Cache,
    /// Revisions up to this one are the present agent's.
    reserved: u64,
    /// The agent's counters at the time when the objects were made last.
    seen: Option<[u64; 3]>,
    origins: BTreeMap<Key, Origin>,
    documents: BTreeMap<Key, Object>,
    templates: BTreeMap<Key, Templates>,
    /// When the files that define objects were there first.
    times: BTreeMap<String, Timestamp>,
    /// Whether everything that exists was known.
    complete: bool,
    deletions: BTreeMap<String, Deletion>,
    /// The namespaces that are stored, as their files were when the objects were made last.
    namespaces: BTreeMap<String, StoredNamespace>,
    /// The namespaces that are being deleted.
    ending: BTreeMap<String, Ending>,
    held: Held,
    /// Whether the collection of garbage may have something to do.
    collectable: bool,
    /// Whether something was stored that the agent may not have loaded yet.
    is_behind: bool,
    conditions: Vec<NodeCondition>,
    events: Events,
    leases: Leases,
}

impl Store {
    /// Returns a store over that view. A disk that can't be written doesn't prevent reads. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// The directory can't be read.
    pub(super) fn new(
        view: Arc<dyn AgentView>,
        directory: PathBuf,
        node: &str,
    ) -> io::Result<Self> {
        let started_at = Timestamp::now();
        let revision = first_revision(last_revision(&directory), started_at);
        let mut reserved = revision.saturating_add(REVISIONS_RESERVED);
        if let Err(error) = keep_revision(&directory, reserved) {
            tracing::warn!(%error, "failed to reserve revisions for the embedded API; retrying with its next changes");
            reserved = revision;
        }
        if let Err(error) = files::sync_all(&directory) {
            tracing::warn!(%error, "failed to sync the directories of stored objects");
        }
        let held::Read { held, namespaces } = Held::read(&directory)?;
        let held_directory = held::directory(&directory);
        let has_objects = has_directories(&directory)?;
        Ok(Self {
            first_started_at: owner_since(&directory).unwrap_or(started_at),
            view,
            held_directory,
            has_objects,
            directory,
            node: node.to_owned(),
            started_at,
            began: Instant::now(),
            state: Mutex::new(State {
                cache: Cache::new(revision).with_apart(&EVENTS),
                reserved,
                seen: None,
                origins: BTreeMap::new(),
                documents: BTreeMap::new(),
                templates: BTreeMap::new(),
                times: BTreeMap::new(),
                complete: false,
                deletions: BTreeMap::new(),
                namespaces: BTreeMap::new(),
                ending: namespaces,
                held,
                collectable: false,
                is_behind: false,
                conditions: Vec::new(),
                events: Events::new(node),
                leases: Leases::default(),
            }),
            written: watch::Sender::new(0),
        })
    }

    /// The directory of the stored files.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Name of the Node.
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The agent.
    pub(super) fn view(&self) -> &Arc<dyn AgentView> {
        &self.view
    }

    /// Reads the newest objects.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Cache) -> T) -> T {
        self.read_at(Timestamp::now(), look)
    }

    fn read_at<T>(&self, now: Timestamp, look: impl FnOnce(&Cache) -> T) -> T {
        let mut state = self.state.lock();
        self.renew(&mut state, now);
        look(&state.cache)
    }

    /// The document that defines an object.
    pub(super) fn origin(&self, key: &Key) -> Option<Origin> {
        self.state.lock().origins.get(key).cloned()
    }

    /// The document in force of an object that pods refer to.
    pub(super) fn document(&self, key: &Key) -> Option<Object> {
        self.state.lock().documents.get(key).cloned()
    }

    /// The templates of a workload: of its document in force, and of its versions.
    pub(super) fn templates(&self, key: &Key) -> Option<Templates> {
        self.state.lock().templates.get(key).cloned()
    }

    /// Shows an object as being deleted while its containers stop.
    pub(super) fn note_deletion(&self, uid: &str, deletion: Deletion) {
        self.state.lock().deletions.insert(uid.to_owned(), deletion);
    }

    /// Reverts a deletion that has failed.
    pub(super) fn forget_deletion(&self, uid: &str) {
        self.state.lock().deletions.remove(uid);
    }

    /// Shows a namespace as being deleted until it is empty.
    pub(super) fn note_end(&self, namespace: &str, at: Timestamp) {
        let mut state = self.state.lock();
        let stored = state.namespaces.get(namespace).cloned();
        let ending = Ending { since: at, stored };
        let name = namespace.to_owned();
        state.ending.entry(name).or_insert(ending);
    }

    /// Shows a namespace that is being deleted with the metadata of that object.
    pub(super) fn change_end(&self, namespace: &str, object: &serde_json::Value) {
        let mut state = self.state.lock();
        if let Some(ending) = state.ending.get_mut(namespace) {
            ending.stored = Ending::of(object).stored;
        }
    }

    /// The directory with the files of objects that finalizers hold after their end.
    pub(super) fn held_directory(&self) -> &Path {
        &self.held_directory
    }

    /// Reads or changes the objects that finalizers hold after their end.
    pub(super) fn held<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        change(&mut self.state.lock().held)
    }

    /// Whether objects were stored when the agent started.
    pub(super) fn has_objects(&self) -> bool {
        self.has_objects
    }

    /// Whether garbage collection may have work to do, or the newest objects are not all known yet.
    pub(super) fn is_collectable(&self) -> bool {
        let mut state = self.state.lock();
        self.renew(&mut state, Timestamp::now());
        state.collectable || !state.complete
    }

    /// Rebuilds the objects. Returns whether everything that exists is known, or manifest URLs and the
    /// runtime have had their time.
    pub(super) fn has_delivered(&self) -> bool {
        let mut state = self.state.lock();
        // The agent's news of what it has loaded may come later.
        state.seen = None;
        self.renew(&mut state, Timestamp::now());
        state.complete || self.began.elapsed() >= DELIVERY_MAX
    }

    /// Passes the newest objects to `look` as members for garbage collection; none while not everything
    /// that exists is known.
    pub(super) fn members<T: Default>(&self, look: impl FnOnce(&[Member<'_>]) -> T) -> T {
        let mut state = self.state.lock();
        self.renew(&mut state, Timestamp::now());
        let State {
            cache,
            origins,
            complete,
            ..
        } = &*state;
        if !complete {
            return T::default();
        }
        let members = cache.all().map(|(key, object)| {
            let origin = origins.get(key);
            let is_stored = origin.is_some_and(|origin| self.is_own_file(key, origin));
            Member {
                key,
                object,
                is_stored,
            }
        });
        look(&members.collect::<Vec<_>>())
    }

    /// Whether a document is the file of an object itself: a pod of a workload has none.
    pub(super) fn is_own_file(&self, key: &Key, origin: &Origin) -> bool {
        let is_in = |directory: &Path| Path::new(&origin.location) == files::path(directory, key);
        origin.source == PodSource::Embedded
            && (is_in(&self.directory) || is_in(&self.held_directory))
    }

    /// Whether something was stored that the agent may not have loaded yet, so that shown objects may
    /// be older.
    pub(super) fn is_behind(&self) -> bool {
        self.state.lock().is_behind
    }

    /// Records that something was stored, or that the agent has loaded everything that was.
    pub(super) fn set_behind(&self, is_behind: bool) {
        self.state.lock().is_behind = is_behind;
    }

    /// Reads or changes the leases that clients created.
    pub(super) fn leases<T>(&self, change: impl FnOnce(&mut Leases) -> T) -> T {
        change(&mut self.state.lock().leases)
    }

    /// Notifies all subscribers of a write.
    pub(super) fn touch(&self) {
        self.written.send_modify(|count| *count += 1);
    }

    /// Wakes its holder for whatever may change an object.
    pub(super) fn changes(&self) -> Changes {
        Changes([
            self.view.changed(),
            self.view.events_changed(),
            self.written.subscribe(),
        ])
    }

    /// Rebuilds the objects, unless nothing can have changed except for the age of events.
    fn renew(&self, state: &mut State, now: Timestamp) {
        // Read before the agent's state, so that later changes cause another read.
        let counters = self.changes().counters();
        if state.seen == Some(counters) {
            if state.events.has_old(now) {
                state.events.drop_old(now, &mut state.cache);
            }
            return;
        }
        state.seen = Some(counters);
        let shown = self.view.shown(&state.conditions);
        let conditions = shown.node.as_ref().and_then(|node| node.status.clone());
        state.conditions = conditions.and_then(|s| s.conditions).unwrap_or_default();
        state.namespaces = stored_namespaces(&self.directory, &state.namespaces);
        self.forget_former(state);
        state.times = times(&shown, &state.times);
        let context = Context {
            node: &self.node,
            started_at: self.started_at,
            first_started_at: self.first_started_at,
            namespaces: &state.namespaces,
            deletions: &state.deletions,
            ending: &state.ending,
            held: (&state.held, &self.held_directory),
            times: &state.times,
            before: (&state.cache, &state.documents),
        };
        let mut projection = project(&shown, &context);
        state.ending.retain(|name, _| {
            let key = Key::new(&NAMESPACES, "", name.as_str());
            // While not everything that exists is known, something may be in it.
            let is_left = !shown.complete || projection.objects.contains_key(&key);
            if !is_left {
                self.remove_end_of(&key);
            }
            is_left
        });
        let leases = state.leases.all(&self.node, self.started_at);
        let leases = leases.into_iter().map(|(key, lease)| (key, lease.into()));
        projection.objects.extend(leases);
        let leaving: BTreeSet<String> = shown.pods.iter().map(pod_uid).collect_set();
        state.deletions.retain(|uid, _| leaving.contains(uid));
        let objects = &projection.objects;
        state
            .held
            .remember(|key| objects.get(key).map(|object| &**object));
        state.collectable = projection.objects.iter().any(|(key, object)| {
            let origin = projection.origins.get(key);
            garbage::concerns(object) && origin.is_some_and(|origin| self.is_own_file(key, origin))
        });
        state.complete = shown.complete;
        state.cache.replace(projection.objects);
        state
            .events
            .take(&*self.view, &shown, now, &mut state.cache);
        state.origins = projection.origins;
        state.documents = projection.documents;
        state.templates = projection.templates;
        let left = state.reserved.saturating_sub(state.cache.revision());
        if left < REVISIONS_RESERVED / 2 {
            let reserved = state.cache.revision().saturating_add(REVISIONS_RESERVED);
            // Without it a restart might give out a revision again; it is tried again next time.
            if keep_revision(&self.directory, reserved).is_ok() {
                state.reserved = reserved;
            }
        }
    }

    /// Forgets the deletions of namespaces that were created again. While not everything that exists is
    /// known, a missing namespace counts as being deleted.
    fn forget_former(&self, state: &mut State) {
        let State {
            ending, namespaces, ..
        } = state;
        ending.retain(|name, ending| {
            let Some(stored) = namespaces.get(name) else {
                return true;
            };
            let former = namespace_uid(name, ending.stored.as_ref());
            let is_same = namespace_uid(name, Some(stored)) == former;
            if !is_same {
                self.remove_end_of(&Key::new(&NAMESPACES, "", name.as_str()));
            }
            is_same
        });
    }

    /// Removes the file that records the deletion of a namespace.
    fn remove_end_of(&self, namespace: &Key) {
        if let Err(error) = files::remove(&self.held_directory, namespace) {
            let namespace = namespace.name.as_str();
            tracing::warn!(namespace, %error, "failed to remove the file of a namespace that is gone");
        }
    }
}

/// The counters that change whenever an object may have changed.
pub(super) struct Changes([watch::Receiver<u64>; 3]);

impl Changes {
    fn counters(&self) -> [u64; 3] {
        [&self.0[0], &self.0[1], &self.0[2]].map(|counter| *counter.borrow())
    }

    /// Waits until something was written through the API. Cancel-safe.
    pub(super) async fn written(&mut self) {
        if self.0[2].changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        let [agent, events, written] = &mut self.0;
        let changed = tokio::select! {
            changed = agent.changed() => changed,
            changed = events.changed() => changed,
            changed = written.changed() => changed,
        };
        if changed.is_err() {
            // The agent ends.
            std::future::pending::<()>().await;
        }
    }
}

/// Whether objects are stored.
fn has_directories(directory: &Path) -> io::Result<bool> {
    let mut entries = std::fs::read_dir(directory)?;
    Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.path().is_dir())))
}

/// The revision after which an agent begins that starts now: no higher one was given out. `kept` is the
/// reservation of earlier agents, unless that is lost. An agent that could not store its reservation
/// began at the clock's number, as all do: there are fewer changes than milliseconds.
fn first_revision(kept: Option<u64>, now: Timestamp) -> u64 {
    let by_clock = u64::try_from(now.as_millisecond()).unwrap_or_default();
    let by_clock = by_clock.saturating_add(REVISIONS_RESERVED);
    kept.map_or(by_clock.saturating_add(REVISIONS_LOST_MAX), |kept| {
        kept.max(by_clock)
    })
}

/// The last revision that an earlier agent reserved. None if the file is invalid: it is set aside, and
/// the revision stays lost until another one is written. Blocks on the disk.
fn last_revision(directory: &Path) -> Option<u64> {
    let path = directory.join(REVISION_FILE);
    let why = match disk::read_small(&path, 1).if_there() {
        Ok(None) => {
            let was_damaged =
                !matches!(std::fs::symlink_metadata(aside(&path)).if_there(), Ok(None));
            return (!was_damaged).then_some(1);
        }
        Ok(Some(bytes)) => match String::from_utf8_lossy(&bytes).trim().parse::<u64>() {
            Ok(number) if number <= REVISION_MAX => return Some(number),
            Ok(_) => format!("its number is larger than {REVISION_MAX}"),
            Err(_) => "it holds no number".to_owned(),
        },
        Err(error) => error.to_string(),
    };
    occurrences::manifest_problem(&set_aside(&path, "last reserved revision", &why));
    None
}

fn keep_revision(directory: &Path, reserved: u64) -> io::Result<()> {
    let path = directory.join(REVISION_FILE);
    disk::replace(&path, format!("{reserved}\n").as_bytes())?;
    disk::sync_directory(directory)
}

#[cfg(test)]
mod tests;
