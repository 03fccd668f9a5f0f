//! The index of our containers, built from lists, events and our own calls.
//!
//! A container of ours is never started twice: it only ever moves from created to running to exited to
//! removed. So all reports about it can be merged by taking the later state, and events that are lost,
//! duplicated, late or out of order do no harm. The one exception, a user who starts an exited
//! container by hand, is settled by an inspect: a container that runs and has ended before was started
//! again.
//!
//! The index answers `get_pod_status` without calls to the Engine; if a list or an event lacks data
//! (addresses, exact times, the OOM flag), the record becomes *stale*, and a stale record is inspected
//! once, on its first use. It is one file because all reports change the same records.

mod record;
mod records;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::translate::{Kind, OurContainer};
use mirrorlet_core::api::{ContainerId, PodUid, Timestamp};
use mirrorlet_core::observed::{
    ContainerState, ContainerStatus, PodStatus, RunningPod, SandboxStatus, UserAction,
    UserActionRecord,
};
use mirrorlet_core::small::SmallSort;
pub(crate) use record::{Record, network_of, sandbox_mode};
use record::{
    advance_by_list, from_summary, is_pause, listed_state, merge_inspect, needs_address,
    needs_ending, shown_state,
};
use records::Records;

/// Facts about a new container from our own create call.
#[derive(Debug, Clone)]
pub(crate) struct Created {
    pub(crate) id: Arc<str>,
    pub(crate) ours: OurContainer,
    pub(crate) image: Arc<str>,
    pub(crate) at: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    clock: u64,
    complete: bool,
    records: Records,
    /// Ids that are gone, with the time they went: a list that began before must not bring
    /// them back.
    gone: HashMap<Arc<str>, u64>,
}

/// The index. Internally synchronised; no lock is held across a call. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    state: Arc<Mutex<State>>,
}

/// Mark of the moment a list began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListBegan(u64);

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Index {
    /// Call it before a list is requested.
    pub(crate) fn begin_list(&self) -> ListBegan {
        ListBegan(self.state.lock().tick())
    }

    /// Merges a complete list. A container that is not in it is gone, unless an event about it came
    /// since the list was requested.
    pub(crate) fn apply_list(
        &self,
        began: ListBegan,
        listed: Vec<(ContainerSummary, OurContainer)>,
    ) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let now = state.tick();
        state.complete = true;
        state.gone.retain(|_, when| *when >= began.0);
        let mut seen: std::collections::HashSet<Arc<str>> = std::collections::HashSet::new();
        for (summary, ours) in listed {
            let Some(id) = summary.id.as_deref().map(Arc::<str>::from) else {
                continue;
            };
            seen.insert(Arc::clone(&id));
            if state.gone.contains_key(&id) {
                continue;
            }
            let listed = listed_state(summary.state);
            if listed == ContainerState::Exited && state.records.is_known_ended(&id, now) {
                continue;
            }
            let known = state.records.change(&id, |record| {
                record.touched = now;
                record.name_image(summary.image_id.as_deref());
                advance_by_list(record, listed);
            });
            if known.is_none() {
                let record = from_summary(id, ours, &summary, listed, now);
                state.records.insert(record);
            }
        }
        let is_kept = |id: &str, touched| seen.contains(id) || touched > began.0;
        state.records.retain(is_kept);
    }

    /// Our own create call succeeded.
    pub(crate) fn created(&self, created: Created) {
        let mut state = self.state.lock();
        let now = state.tick();
        if state.gone.contains_key(&created.id) {
            return;
        }
        let id = Arc::clone(&created.id);
        if !state.records.contains(&id) {
            let record = Record::new(created.id, created.ours, created.at);
            state.records.insert(record);
        }
        state.records.change(&id, |record| {
            record.touched = now;
            if record.image.is_empty() {
                record.image = created.image;
            }
            // Only after a list does it take an inspect to distinguish "never started" from "start failed".
            if record.state == ContainerState::Created {
                record.stale = false;
            }
        });
    }

    /// Records the file of the termination message of a container that was just created or adopted,
    /// unless another one is known. Returns whether it is this one.
    pub(crate) fn has_termination_log(&self, id: &str, path: &Path) -> bool {
        let mut state = self.state.lock();
        let is_its = state.records.change(id, |record| {
            record.termination_log.get_or_insert_with(|| path.into()) == path
        });
        is_its.unwrap_or_default()
    }

    /// Handles a `create` event: a container of ours was created, most likely by this process.
    pub(crate) fn note_created(&self, id: &str, ours: OurContainer, image: &str, at: Timestamp) {
        let mut state = self.state.lock();
        let now = state.tick();
        if state.gone.contains_key(id) {
            return;
        }
        if !state.records.contains(id) {
            state.records.insert(Record::new(id.into(), ours, at));
        }
        state.records.change(id, |record| {
            record.touched = now;
            if record.image.is_empty() {
                record.image = image.into();
            }
        });
    }

    /// Records that it runs: our own start call succeeded, or an event reported it.
    pub(crate) fn started(&self, id: &str, at: Timestamp) {
        let mut state = self.state.lock();
        let now = state.tick();
        state.records.change(id, |record| {
            record.touched = now;
            match record.state {
                ContainerState::Created => {
                    record.state = ContainerState::Running;
                    record.started_at = Some(at);
                    record.stale = needs_address(&record.ours);
                }
                // It was about to be started again when it was inspected.
                ContainerState::Running => record.stale |= record.started_at.is_none(),
                // Late news, or started by hand: only the Engine knows.
                ContainerState::Exited | ContainerState::Unknown => {
                    record.stale |= record.finished_at.is_none_or(|finished| finished < at);
                }
            }
        });
    }

    /// It ended.
    pub(crate) fn died(&self, id: &str, exit_code: Option<i32>, at: Timestamp) {
        let mut state = self.state.lock();
        let now = state.tick();
        state.records.change(id, |record| {
            record.touched = now;
            let known = record.state == ContainerState::Exited && !record.stale;
            // Its start was not observed.
            record.ran_before |= record.state == ContainerState::Created;
            if !known {
                record.state = ContainerState::Exited;
                record.exit_code = exit_code.or(record.exit_code);
                record.finished_at.get_or_insert(at);
                record.by_hand = record.by_hand.filter(|by_hand| !is_pause(by_hand.what));
                if let Some(by_hand) = &mut record.by_hand {
                    by_hand.at = Timestamp::now();
                }
                record.stale = needs_ending(&record.ours);
                record.ips.clear();
            }
        });
    }

    /// This agent is about to stop it.
    pub(crate) fn stopping(&self, id: &str) {
        let mut state = self.state.lock();
        let stopped = |record: &mut Record| {
            record.stopped_by_us = true;
            record.signalled = None;
        };
        state.records.change(id, stopped);
    }

    /// Handles a `kill` or `stop` event: returns whether a user was the cause; `begins` if a stop may
    /// begin with it. Uses this agent's clock, because the time that follows is measured by it.
    ///
    /// If a stop was in progress when this agent subscribed, its cause is unknown: most likely the
    /// earlier agent. It counts as an exit.
    pub(crate) fn handled(&self, id: &str, what: UserAction, begins: bool) -> bool {
        let mut state = self.state.lock();
        let now = state.tick();
        let by_hand = state.records.change(id, |record| {
            if record.stopped_by_us && begins {
                record.signalled.get_or_insert_with(Instant::now);
            }
            let has_hand = record.by_hand.is_some_and(|b| !is_pause(b.what));
            if record.stopped_by_us || (record.ran_before && !begins && !has_hand) {
                return false;
            }
            record.touched = now;
            let runs = record.state == ContainerState::Running;
            let begun = record.by_hand.map(|b| b.what);
            // A late report: it runs again, and an inspect shows since when. Or Docker Engine 29
            // reports the stop before the end, and an inspect shows that it has ended.
            record.stale |= what == UserAction::Stopped && runs;
            match what {
                UserAction::Stopped if runs && begun != Some(UserAction::Signalled) => {}
                UserAction::Signalled if runs && has_hand => {}
                UserAction::Signalled
                | UserAction::Stopped
                | UserAction::Restarted
                | UserAction::Started
                | UserAction::Paused
                | UserAction::Unpaused => {
                    let at = Timestamp::now();
                    record.by_hand = Some(UserActionRecord { what, at });
                }
            }
            true
        });
        by_hand.unwrap_or_default()
    }

    /// Handles the end of the event stream, most likely because the Engine ended. An Engine that ends
    /// stops its containers, and reports that like `docker stop`: a stop that was not acted on yet is
    /// therefore not attributed to a user. A stop that a user ordered in that moment counts as an exit.
    pub(crate) fn events_ended(&self) {
        for record in self.state.lock().records.whole_mut() {
            record.by_hand = record.by_hand.filter(|by_hand| match by_hand.what {
                UserAction::Signalled | UserAction::Stopped => false,
                UserAction::Restarted
                | UserAction::Started
                | UserAction::Paused
                | UserAction::Unpaused => true,
            });
        }
    }

    /// Something about it can't be known without asking.
    pub(crate) fn doubt(&self, id: &str) {
        let mut state = self.state.lock();
        let now = state.tick();
        state.records.change(id, |record| {
            record.touched = now;
            record.stale = true;
        });
    }

    /// Handles a disconnect from a network. Returns the pod if this is a sandbox whose addresses must
    /// be read again; a sandbox that ends loses its networks too.
    pub(crate) fn disconnected(&self, id: &str) -> Option<PodUid> {
        let mut state = self.state.lock();
        let now = state.tick();
        let lost = state.records.change(id, |record| {
            let runs = record.state == ContainerState::Running && !record.stopped_by_us;
            if !runs || !needs_address(&record.ours) {
                return None;
            }
            record.touched = now;
            record.stale = true;
            Some(record.ours.uid.clone())
        });
        lost.flatten()
    }

    /// It is gone.
    pub(crate) fn removed(&self, id: &str) {
        let mut state = self.state.lock();
        let now = state.tick();
        state.records.remove(id);
        state.gone.insert(id.into(), now);
    }

    /// Handles a 404: the Engine was asked about it when the record was last touched at `asked`, and
    /// finds no such container.
    ///
    /// A container that is being created is listed a moment before it can be found (moby's
    /// `daemon/create.go`: `setHostConfig` saves what `Register` makes known). It is forgotten until
    /// its `create` event, and kept if that came meanwhile. Any other container is gone.
    pub(crate) fn not_found(&self, id: &str, asked: u64) {
        let mut state = self.state.lock();
        let now = state.tick();
        let Some(record) = state.records.get(id) else {
            return;
        };
        if record.state == ContainerState::Created && record.touched > asked {
            state.records.change(id, |record| record.stale = true);
            return;
        }
        if record.state != ContainerState::Created {
            state.gone.insert(id.into(), now);
        }
        state.records.remove(id);
    }

    /// Merges an inspect that was requested when the record was last touched at `asked`. If an event
    /// came later and the inspect knows less, it is dropped: the record stays stale.
    pub(crate) fn inspected(
        &self,
        id: &str,
        asked: u64,
        found: &ContainerInspectResponse,
        message: &str,
    ) {
        let mut state = self.state.lock();
        let now = state.tick();
        state.records.change(id, |record| {
            let outdated = record.touched > asked && shown_state(record, found) < record.state;
            if !outdated {
                record.touched = now;
                merge_inspect(record, found, message);
            }
        });
    }

    /// Whether a complete list was merged since the last [`begin_gap`](Self::begin_gap).
    pub(crate) fn is_complete(&self) -> bool {
        self.state.lock().complete
    }

    /// Marks that events may have been missed: only a list shows which containers exist, and only an
    /// inspect shows that a running container ran all the time.
    pub(crate) fn begin_gap(&self) {
        let mut state = self.state.lock();
        state.complete = false;
        let running = |record: &&mut Record| record.state == ContainerState::Running;
        for record in state.records.whole_mut().filter(running) {
            record.stale = true;
        }
    }

    /// The record of that id.
    pub(crate) fn get(&self, id: &str) -> Option<Record> {
        self.state.lock().records.get(id)
    }

    /// All records of that pod.
    pub(crate) fn of_pod(&self, uid: &PodUid) -> Vec<Record> {
        self.state.lock().records.of_pod(uid)
    }

    /// The records of running containers that satisfy the condition.
    pub(crate) fn running(&self, is_it: impl Fn(&Record) -> bool) -> Vec<Record> {
        let is_it = |record: &Record| record.state == ContainerState::Running && is_it(record);
        self.whole(is_it)
    }

    fn whole(&self, is_it: impl Fn(&Record) -> bool) -> Vec<Record> {
        let state = self.state.lock();
        let records = state.records.whole();
        records.filter(|record| is_it(record)).cloned().collect()
    }

    /// Whether a running container's record satisfies the condition.
    pub(crate) fn any_runs(&self, is_it: impl Fn(&Record) -> bool) -> bool {
        !self.running(is_it).is_empty()
    }

    /// Returns the status of every pod that has a record, by UID.
    pub(crate) fn statuses(&self) -> Vec<PodStatus> {
        let mut by_uid: BTreeMap<PodUid, Vec<Record>> = BTreeMap::new();
        for record in self.state.lock().records.all() {
            let uid = record.ours.uid.clone();
            by_uid.entry(uid).or_default().push(record);
        }
        by_uid
            .into_iter()
            .map(|(uid, records)| pod_status(&uid, records))
            .collect()
    }

    /// The sandboxes to which rules of ours can forward host ports, unless they are known to have
    /// ended.
    pub(crate) fn led_sandboxes(&self) -> Vec<Record> {
        self.whole(|record| {
            matches!(&record.ours.kind, Kind::Sandbox { forwarded_ports, .. } if !forwarded_ports.is_empty())
                && record.state != ContainerState::Exited
        })
    }

    /// All pods with a record; with `all`, also dead ones.
    pub(crate) fn pods(&self, all: bool) -> Vec<RunningPod> {
        let mut pods: Vec<RunningPod> = self
            .statuses()
            .into_iter()
            .filter(|status| all || status.anything_running())
            .map(|status| {
                let mut pod = status.to_running_pod();
                if all {
                    pod.containers = status.containers.iter().map(Into::into).collect();
                }
                pod
            })
            .collect();
        pods.small_sort_by(|a, b| {
            b.created_at
                .cmp(&a.created_at)
                .then_with(|| a.uid.cmp(&b.uid))
        });
        pods
    }
}

/// How many instances came before.
fn attempt(ours: &OurContainer) -> u32 {
    match &ours.kind {
        Kind::Sandbox { attempt, .. } => *attempt,
        Kind::Container { restart_count, .. } => *restart_count,
    }
}

/// Builds a pod's `PodStatus` from its records, newest instances first.
pub(crate) fn pod_status(uid: &PodUid, mut records: Vec<Record>) -> PodStatus {
    records.small_sort_by(|a, b| {
        (attempt(&b.ours), b.created_at, &b.id).cmp(&(attempt(&a.ours), a.created_at, &a.id))
    });
    let mut status = PodStatus::empty(uid.clone());
    for record in records {
        status.full_name = record.ours.full_name.clone();
        match &record.ours.kind {
            Kind::Sandbox {
                attempt,
                host_network,
                pod_started_at,
                ..
            } => status.sandboxes.push(SandboxStatus {
                id: ContainerId::docker(record.id),
                attempt: *attempt,
                state: record.state,
                created_at: record.created_at,
                pod_started_at: *pod_started_at,
                host_network: *host_network,
                ips: record.ips,
                by_hand: record.by_hand,
            }),
            Kind::Container {
                name,
                role,
                restart_count,
                pod_restarts,
                hash,
                ..
            } => {
                status.containers.push(ContainerStatus {
                    id: ContainerId::docker(record.id),
                    name: name.as_str().into(),
                    role: *role,
                    state: record.state,
                    created_at: record.created_at,
                    started_at: record.started_at,
                    finished_at: record.finished_at,
                    exit_code: record.exit_code,
                    image: record.image,
                    image_id: record.image_id,
                    hash: *hash,
                    restart_count: *restart_count,
                    pod_restarts: *pod_restarts,
                    reason: record.reason,
                    message: record.message,
                    by_hand: record.by_hand,
                });
            }
        }
    }
    // Only the newest sandbox counts, and only while it runs.
    status.ips = status
        .sandboxes
        .first()
        .filter(|s| s.state == ContainerState::Running)
        .map(|s| s.ips.clone())
        .unwrap_or_default();
    status
}
