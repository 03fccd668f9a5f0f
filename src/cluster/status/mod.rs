//! Statuses in the API server: written when they change, newest wins.
//!
//! [`StatusTask`] compares the workers' statuses with those of the API server, whenever either changes,
//! and sends the difference: one write per pod at a time, several pods concurrently, computed only when
//! it is sent. Objects of pods that have ended and are being deleted are finally deleted.
//!
//! Upstream: `pkg/kubelet/status/status_manager.go`.

mod entry;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::attempts::Attempts;
use crate::cluster::client::ClusterClient;
use crate::cluster::error::ApiError;
use crate::cluster::node::NodeRegistration;
use crate::cluster::reach::ApiReach;
use crate::store::board::{Board, Phase, PodView};
use crate::store::cell::Reader;
use crate::store::pods::PodManager;
use entry::{Entry, Seen};
use mirrorlet_core::api::{Pod, PodUid};
use mirrorlet_core::desired::{ApiPods, ApiPodsState};
use mirrorlet_core::manager::{PodTable, is_mirror_pod_of, is_static_pod};
use mirrorlet_core::small::SmallSort;
use mirrorlet_host::telemetry::{PodTelemetry, Telemetry, occurrences};
use write::{Done, Outcome, write};

/// Maximum number of concurrent writes; the client limits their rate.
const WRITES_MAX: usize = 8;
/// Time that a change waits for others of the same pod: changes in quick succession become one write,
/// without a visible difference.
const SETTLE: Duration = Duration::from_millis(30);
/// The same for a step of a start that no client waits for: an address, a container that is created. If
/// the pod runs by then, they become one write.
const SETTLE_STEP: Duration = Duration::from_secs(2);

/// Readers of the inputs of status writes.
#[derive(Debug, Clone)]
pub struct StatusInputs {
    /// The workers' views of their pods.
    pub board: Board,
    /// The mirrors, and the API server's other pods of our Node.
    pub manager: PodManager,
    /// The registration of our Node. While it is another agent's, that one writes the statuses of its
    /// pods; after an outage of the API server it may be.
    pub standing: Reader<NodeRegistration>,
}

/// Keeps statuses in the API server in sync with the workers' views.
pub struct StatusTask {
    cluster: ClusterClient,
    inputs: StatusInputs,
    /// The API server's pods of our Node.
    api: Reader<ApiPodsState>,
    board_changed: watch::Receiver<u64>,
    reach: Reader<ApiReach>,
    telemetry: Telemetry,
    /// By the UID that the API server gave.
    entries: BTreeMap<PodUid, Entry>,
    writes: Attempts<PodUid, Done>,
    was_up: bool,
}

impl StatusTask {
    /// The task.
    pub fn new(cluster: ClusterClient, inputs: StatusInputs, telemetry: Telemetry) -> Self {
        Self {
            board_changed: inputs.board.changed(),
            api: inputs.manager.api_pods(),
            reach: cluster.reach(),
            cluster,
            inputs,
            telemetry,
            entries: BTreeMap::new(),
            writes: Attempts::new(WRITES_MAX),
            was_up: false,
        }
    }

    /// Runs until cancelled. Writes in progress are abandoned; missing ones are found after a restart.
    pub async fn run(mut self, cancel: CancellationToken) {
        loop {
            let look_again = self.look();
            let timer = tokio::time::sleep_until(look_again.unwrap_or_else(Instant::now));
            tokio::select! {
                () = cancel.cancelled() => break,
                changed = self.board_changed.changed() => if changed.is_err() { break },
                changed = self.api.changed() => if changed.is_err() { break },
                changed = self.reach.changed() => if changed.is_err() { break },
                changed = self.inputs.standing.changed() => if changed.is_err() { break },
                (uid, done) = self.writes.next() => self.note(&uid, done),
                () = timer, if look_again.is_some() => {}
            }
        }
        self.writes.shutdown().await;
    }

    /// Compares, and begins the writes that are due. Returns when to check again though nothing
    /// changes.
    fn look(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let is_up = self.reach.get().is_up();
        if !std::mem::replace(&mut self.was_up, is_up) && is_up {
            self.entries.values_mut().for_each(Entry::api_is_back);
        }
        if !self.inputs.standing.get().may_write() {
            return None;
        }
        let api_pods = (*self.api.get()).clone()?;
        let pods = self.inputs.manager.get();
        self.entries
            .retain(|uid, _| self.writes.is_busy(uid) || api_pods.pods.contains_key(uid));
        for (uid, api, view) in pairs(&api_pods, &pods, self.inputs.board.all()) {
            if !self.writes.is_busy(&uid) {
                let entry = self.entries.entry(uid).or_default();
                entry.look(api, &view, &self.telemetry, now);
            }
        }
        let mut due: Vec<_> = self
            .entries
            .iter()
            .filter(|(uid, _)| !self.writes.is_busy(uid))
            .filter_map(|(uid, entry)| Some((entry.due()?, uid, entry)))
            .collect();
        due.small_sort_by_key(|(at, _, _)| *at);
        let lapses = self.entries.values().flat_map(Entry::lapses);
        let lapse = lapses.filter(|at| *at > now).min();
        for (at, uid, entry) in due {
            if at > now {
                return Some(lapse.map_or(at, |lapse| lapse.min(at)));
            }
            if !self.writes.has_room() {
                return lapse;
            }
            if let Some(seen) = entry.seen().cloned() {
                let (cluster, board) = (self.cluster.clone(), self.inputs.board.clone());
                let write = write(cluster, board, uid.clone(), seen);
                self.writes.begin(uid.clone(), write);
            }
        }
        lapse
    }

    /// Notes what came of a write.
    fn note(&mut self, api_uid: &PodUid, done: Option<Done>) {
        let Some(entry) = self.entries.get_mut(api_uid) else {
            return;
        };
        let Some(done) = done else {
            // The panic hook has logged it.
            return entry.panicked();
        };
        let Done {
            uid,
            full_name,
            read,
            outcome,
            deletion,
        } = done;
        let of = self.telemetry.pod(&full_name, &uid);
        let api_pods = self.api.get();
        let api_pods = api_pods.as_ref().as_ref();
        let object = api_pods.and_then(|api_pods| api_pods.pods.get(api_uid));
        let object = object.map(|object| &**object);
        let before = entry.failures();
        let failures = before.0;
        let is_set_back = read.is_some_and(|read| entry.read(read));
        let mut is_missing = note(entry, of, api_uid, object, outcome);
        if matches!(deletion, Some(Outcome::Failed(_))) {
            entry.failed_before(before);
        }
        if let Some(deletion) = deletion {
            is_missing |= note(entry, of, api_uid, object, deletion);
        }
        if is_set_back {
            entry.set_back(failures);
        }
        if is_missing {
            occurrences::pod_object_missing(of);
        }
        if is_missing || is_set_back {
            self.inputs.manager.list_again();
        }
    }
}

/// Notes an outcome in the entry of that object, which the API server has last shown like this. Returns
/// whether the watch shows an object that isn't there, and doesn't correct it.
fn note(
    entry: &mut Entry,
    of: PodTelemetry<'_>,
    api_uid: &PodUid,
    object: Option<&Pod>,
    outcome: Outcome,
) -> bool {
    let is_missing = match &outcome {
        Outcome::Missing => true,
        Outcome::ObjectDeleted { by_us } | Outcome::MirrorDeleted { by_us } => !by_us,
        Outcome::Nothing | Outcome::Written { .. } | Outcome::Failed(_) => false,
    };
    match outcome {
        Outcome::Nothing => entry.done(),
        Outcome::Written { patch, object } => {
            let changed = write::changed(&patch);
            let status = object.status.as_ref();
            let phase = status.and_then(|s| s.phase.as_deref()).unwrap_or_default();
            occurrences::status_written(of, phase, &changed);
            entry.written(patch, object);
        }
        Outcome::ObjectDeleted { by_us } => {
            if by_us {
                occurrences::pod_object_deleted(of);
            }
            entry.deleted();
        }
        Outcome::MirrorDeleted { by_us } => {
            if by_us {
                let why = "its pod has ended and was started again";
                let finalizers = object.and_then(|mirror| mirror.metadata.finalizers.as_deref());
                occurrences::mirror_deleted(of, api_uid, why, finalizers.unwrap_or_default());
            }
            entry.deleted();
        }
        Outcome::Missing => entry.not_found(),
        Outcome::Failed(error) => {
            let words = error.to_string();
            let changed = matches!(error, ApiError::NotFound(_) | ApiError::Conflict(_));
            let reported = entry.failed(&error);
            // It was changed or deleted since it was read.
            if !reported && !changed {
                occurrences::status_failed(of, &words);
            }
        }
    }
    is_missing && entry.found_missing()
}

/// Each worker's view with the object of the API server that shows it: its mirror's for a static
/// pod, that of its own UID for any other.
fn pairs(
    api_pods: &ApiPods,
    pods: &PodTable,
    views: Vec<PodView>,
) -> impl Iterator<Item = (PodUid, Arc<Pod>, PodView)> {
    views.into_iter().filter_map(|view| {
        let pod = view.pod.as_ref().filter(|_| view.status.is_some())?;
        let api = if is_static_pod(pod) {
            let mirror = pods.get_mirror_pod_by_pod(pod);
            mirror.filter(|mirror| is_mirror_pod_of(mirror, pod))
        } else {
            api_pods.pods.get(&view.uid).cloned()
        }?;
        // A pod that waits for its turn has no status of its own yet.
        let status = api.status.as_ref();
        let begun = status.is_some_and(|s| s.phase.as_deref() != Some("Pending"));
        let waits = view.phase == Phase::WaitingToStart;
        (!(waits && begun)).then(|| (PodUid::of(&api), api, view))
    })
}

/// Returns the input of a write, when its turn has come.
fn seen_of(view: &PodView, api: Arc<Pod>) -> Option<Seen> {
    let may_run = match view.phase {
        Phase::Syncing | Phase::Terminating => view
            .observed
            .containers
            .iter()
            .any(mirrorlet_core::observed::ContainerStatus::may_be_running),
        Phase::WaitingToStart | Phase::Terminated | Phase::Finished => false,
    };
    Some(Seen {
        api,
        uid: view.uid.clone(),
        full_name: view.full_name.clone(),
        pod: view.pod.clone()?,
        status: view.status.clone()?,
        may_run,
        finished: view.phase == Phase::Finished,
    })
}
