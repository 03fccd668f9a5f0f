//! What is known of our containers, from lists, events and our own calls.
//!
//! A container of ours is never started twice: it only ever moves from created to running to
//! exited to removed. So everything that is told about it can be merged by taking the later
//! state, and events that are lost, doubled, late or out of order do no harm. The one exception,
//! a person starting an exited container by hand, is settled by an inspect.
//!
//! The index answers `get_pod_status` without asking the Engine; what a list or an event can't
//! tell (addresses, exact times, the OOM flag) marks its record *stale*, and a stale record is
//! inspected once, by whoever needs it first.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bollard::models::{
    ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary, ContainerSummaryStateEnum,
};

use super::termination;
use super::translate::{Kind, OurContainer};
use crate::api::{ContainerId, PodUid, Timestamp};
use crate::pod::observed::{ContainerState, ContainerStatus, PodStatus, RunningPod, SandboxStatus};

/// A container of ours, as far as it is known.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) id: Arc<str>,
    pub(super) ours: Arc<OurContainer>,
    pub(super) state: ContainerState,
    pub(super) created_at: Timestamp,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
    exit_code: Option<i32>,
    image: Arc<str>,
    image_id: Arc<str>,
    reason: Arc<str>,
    message: Arc<str>,
    ips: Vec<IpAddr>,
    /// Where its termination message is on the node's disk.
    pub(super) termination_log: Option<PathBuf>,
    /// Whether an inspect would tell more than is known.
    pub(super) stale: bool,
    /// When something was last told of it, on the index's own clock.
    pub(super) touched: u64,
    /// Held by whoever inspects it, so that two who need it ask once.
    pub(super) inspecting: Arc<tokio::sync::Mutex<()>>,
}

/// What our own create call knows of a new container.
#[derive(Debug, Clone)]
pub(super) struct Created {
    pub(super) id: Arc<str>,
    pub(super) ours: OurContainer,
    pub(super) image: Arc<str>,
    pub(super) image_id: Arc<str>,
    pub(super) at: Timestamp,
}

#[derive(Debug, Default)]
struct State {
    clock: u64,
    complete: bool,
    records: HashMap<Arc<str>, Record>,
    /// Ids that are gone, with the time they went: a list that began before must not bring
    /// them back.
    gone: HashMap<Arc<str>, u64>,
}

/// The index. Internally synchronised; no lock is held across a call. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    state: Arc<Mutex<State>>,
}

/// Mark of the moment a list began.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListBegan(u64);

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

impl Index {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before a list is asked for.
    pub(super) fn begin_list(&self) -> ListBegan {
        ListBegan(self.lock().tick())
    }

    /// Merges a complete list. What it lacks, and nobody has told of since it began, is gone.
    pub(super) fn apply_list(
        &self,
        began: ListBegan,
        listed: Vec<(ContainerSummary, OurContainer)>,
    ) {
        let mut state = self.lock();
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
            let told = listed_state(summary.state);
            if let Some(record) = state.records.get_mut(&id) {
                record.touched = now;
                record.image_id = text(summary.image_id.as_deref(), &record.image_id);
                advance_by_list(record, told);
            } else {
                state
                    .records
                    .insert(Arc::clone(&id), from_summary(id, ours, &summary, told, now));
            }
        }
        state
            .records
            .retain(|id, record| seen.contains(id) || record.touched > began.0);
    }

    /// Our own create call succeeded.
    pub(super) fn created(&self, created: Created) {
        let mut state = self.lock();
        let now = state.tick();
        if state.gone.contains_key(&created.id) {
            return;
        }
        let record = state
            .records
            .entry(Arc::clone(&created.id))
            .or_insert_with(|| Record::new(created.id, created.ours, created.at));
        record.touched = now;
        if record.image.is_empty() {
            record.image = created.image;
        }
        if record.image_id.is_empty() {
            record.image_id = created.image_id;
        }
        // Only a list needs an inspect to tell "never started" from "start failed".
        if record.state == ContainerState::Created {
            record.stale = false;
        }
    }

    /// A `create` event: somebody, most likely this process, created a container of ours.
    pub(super) fn told_created(&self, id: &str, ours: OurContainer, image: &str, at: Timestamp) {
        let mut state = self.lock();
        let now = state.tick();
        if state.gone.contains_key(id) {
            return;
        }
        let record = state
            .records
            .entry(id.into())
            .or_insert_with(|| Record::new(id.into(), ours, at));
        record.touched = now;
        if record.image.is_empty() {
            record.image = image.into();
        }
    }

    /// It runs: our own start call succeeded, or an event said so.
    pub(super) fn started(&self, id: &str, at: Timestamp) {
        let mut state = self.lock();
        let now = state.tick();
        if let Some(record) = state.records.get_mut(id) {
            record.touched = now;
            match record.state {
                ContainerState::Created => {
                    record.state = ContainerState::Running;
                    record.started_at = Some(at);
                    record.stale = needs_address(&record.ours);
                }
                ContainerState::Running => {}
                // Late news, or started by hand: only the Engine can tell.
                ContainerState::Exited | ContainerState::Unknown => {
                    record.stale |= record.finished_at.is_none_or(|finished| finished < at);
                }
            }
        }
    }

    /// It ended.
    pub(super) fn died(&self, id: &str, exit_code: Option<i32>, at: Timestamp) {
        let mut state = self.lock();
        let now = state.tick();
        if let Some(record) = state.records.get_mut(id) {
            record.touched = now;
            let known = record.state == ContainerState::Exited && !record.stale;
            if !known {
                record.state = ContainerState::Exited;
                record.exit_code = exit_code.or(record.exit_code);
                record.finished_at.get_or_insert(at);
                record.stale = needs_ending(&record.ours);
                record.ips.clear();
            }
        }
    }

    /// Something about it can't be known without asking.
    pub(super) fn doubt(&self, id: &str) {
        let mut state = self.lock();
        let now = state.tick();
        if let Some(record) = state.records.get_mut(id) {
            record.touched = now;
            record.stale = true;
        }
    }

    /// It is gone.
    pub(super) fn removed(&self, id: &str) {
        let mut state = self.lock();
        let now = state.tick();
        state.records.remove(id);
        state.gone.insert(id.into(), now);
    }

    /// Merges an inspect that was asked for when the record was last touched at `asked`. One
    /// that something was told after, and that knows less, is dropped: the record stays stale.
    pub(super) fn inspected(
        &self,
        id: &str,
        asked: u64,
        found: &ContainerInspectResponse,
        message: &str,
    ) {
        let mut state = self.lock();
        let now = state.tick();
        if let Some(record) = state.records.get_mut(id) {
            let outdated = record.touched > asked && shown_state(found) < record.state;
            if !outdated {
                record.touched = now;
                merge_inspect(record, found, message);
            }
        }
    }

    /// Whether a complete list was merged since the last [`begin_gap`](Self::begin_gap).
    pub(super) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    /// Events may have been missed: only a list can tell what there is.
    pub(super) fn begin_gap(&self) {
        self.lock().complete = false;
    }

    /// The record of that id.
    pub(super) fn get(&self, id: &str) -> Option<Record> {
        self.lock().records.get(id).cloned()
    }

    /// All records of that pod.
    pub(super) fn of_pod(&self, uid: &PodUid) -> Vec<Record> {
        self.lock()
            .records
            .values()
            .filter(|r| r.ours.uid == *uid)
            .cloned()
            .collect()
    }

    /// Every pod there is a record of; with `all`, dead ones too.
    pub(super) fn pods(&self, all: bool) -> Vec<RunningPod> {
        let mut by_uid: HashMap<PodUid, Vec<Record>> = HashMap::new();
        for record in self.lock().records.values() {
            by_uid
                .entry(record.ours.uid.clone())
                .or_default()
                .push(record.clone());
        }
        let mut pods: Vec<RunningPod> = by_uid
            .into_iter()
            .map(|(uid, records)| pod_status(&uid, records))
            .filter(|status| all || status.anything_running())
            .map(|status| {
                let mut pod = status.to_running_pod();
                if all {
                    pod.containers = status.containers.iter().map(Into::into).collect();
                }
                pod
            })
            .collect();
        pods.sort_by(|a, b| {
            b.created_at
                .cmp(&a.created_at)
                .then_with(|| a.uid.cmp(&b.uid))
        });
        pods
    }
}

impl Record {
    fn new(id: Arc<str>, ours: OurContainer, created_at: Timestamp) -> Self {
        Self {
            id,
            ours: Arc::new(ours),
            state: ContainerState::Created,
            created_at,
            started_at: None,
            finished_at: None,
            exit_code: None,
            image: "".into(),
            image_id: "".into(),
            reason: "".into(),
            message: "".into(),
            ips: Vec::new(),
            termination_log: None,
            stale: false,
            touched: 0,
            inspecting: Arc::default(),
        }
    }

    /// The addresses known of it.
    pub(super) fn ips(&self) -> &[IpAddr] {
        &self.ips
    }
}

/// Whether there is an address to ask for once it runs.
fn needs_address(ours: &OurContainer) -> bool {
    matches!(
        ours.kind,
        Kind::Sandbox {
            host_network: false,
            ..
        }
    )
}

/// Whether an inspect tells more of its end than that it ended: a sandbox's has no reason,
/// message or time that anybody asks for.
fn needs_ending(ours: &OurContainer) -> bool {
    matches!(ours.kind, Kind::Container { .. })
}

/// How many instances came before.
fn attempt(ours: &OurContainer) -> u32 {
    match &ours.kind {
        Kind::Sandbox { attempt, .. } => *attempt,
        Kind::Container { restart_count, .. } => *restart_count,
    }
}

fn text(told: Option<&str>, known: &Arc<str>) -> Arc<str> {
    match told {
        Some(told) if !told.is_empty() => told.into(),
        _ => Arc::clone(known),
    }
}

/// State of a list's entry. `dead` and `removing` are past their end.
fn listed_state(state: Option<ContainerSummaryStateEnum>) -> ContainerState {
    use ContainerSummaryStateEnum as S;
    match state {
        Some(S::CREATED) => ContainerState::Created,
        Some(S::RUNNING | S::PAUSED | S::RESTARTING) => ContainerState::Running,
        Some(S::EXITED | S::DEAD | S::REMOVING) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

fn advance_by_list(record: &mut Record, told: ContainerState) {
    use ContainerState as S;
    match (record.state, told) {
        (S::Created, S::Running) => {
            record.state = S::Running;
            record.stale = true;
        }
        (S::Created | S::Running | S::Unknown, S::Exited) => {
            record.state = S::Exited;
            record.ips.clear();
            record.stale = needs_ending(&record.ours);
        }
        // The list is older than what is known, or somebody started it by hand: ask.
        (S::Exited, S::Running) | (S::Unknown, S::Running | S::Created) | (_, S::Unknown) => {
            record.stale = true;
        }
        (S::Created | S::Running | S::Exited, S::Created)
        | (S::Running, S::Running)
        | (S::Exited, S::Exited) => {}
    }
}

fn from_summary(
    id: Arc<str>,
    ours: OurContainer,
    summary: &ContainerSummary,
    told: ContainerState,
    now: u64,
) -> Record {
    let created_at = summary
        .created
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH);
    let mut record = Record::new(id, ours, created_at);
    record.state = told;
    record.image = text(summary.image.as_deref(), &record.image);
    record.image_id = text(summary.image_id.as_deref(), &record.image_id);
    // A list tells neither when it started or ended, nor whether a created one failed to start.
    record.stale = true;
    record.touched = now;
    record
}

/// Reads a time of the Engine; its zero time (year 1) and unreadable texts are none.
fn time(text: Option<&str>) -> Option<Timestamp> {
    text.and_then(|text| text.parse::<Timestamp>().ok())
        .filter(|time| *time > Timestamp::UNIX_EPOCH)
}

/// Whether an inspect shows a live process; a paused one counts.
fn is_running(found: &ContainerInspectResponse) -> bool {
    use ContainerStateStatusEnum as S;
    found.state.as_ref().is_some_and(|state| {
        state.running.unwrap_or(false)
            || matches!(state.status, Some(S::RUNNING | S::PAUSED | S::RESTARTING))
    })
}

/// State that an inspect shows.
fn shown_state(found: &ContainerInspectResponse) -> ContainerState {
    let Some(state) = &found.state else {
        return ContainerState::Unknown;
    };
    let ended = time(state.finished_at.as_deref()).is_some()
        || state.exit_code.unwrap_or(0) != 0
        || state.status == Some(ContainerStateStatusEnum::DEAD);
    if is_running(found) {
        ContainerState::Running
    } else if ended {
        ContainerState::Exited
    } else {
        ContainerState::Created
    }
}

/// Upstream: cri-dockerd `core/convert.go`, dockershim `docker_container.go` (state and reason).
fn merge_inspect(record: &mut Record, found: &ContainerInspectResponse, message: &str) {
    if let Some(created) = time(found.created.as_ref().map(ToString::to_string).as_deref()) {
        record.created_at = created;
    }
    record.image_id = text(found.image.as_deref(), &record.image_id);
    if let Some(image) = found.config.as_ref().and_then(|c| c.image.as_deref()) {
        record.image = image.into();
    }
    if let Kind::Container {
        termination_path, ..
    } = &record.ours.kind
    {
        record.termination_log = termination::source(found, termination_path).map(PathBuf::from);
    }
    record.stale = false;
    let Some(state) = &found.state else {
        record.state = ContainerState::Unknown;
        return;
    };
    let started = time(state.started_at.as_deref());
    let finished = time(state.finished_at.as_deref());
    let exit_code = state
        .exit_code
        .and_then(|code| i32::try_from(code).ok())
        .unwrap_or(0);
    let error = state.error.as_deref().unwrap_or_default();
    record.message = joined(error, message);
    if is_running(found) {
        record.state = ContainerState::Running;
        record.started_at = started;
        record.finished_at = None;
        record.exit_code = None;
        record.reason = "".into();
        record.message = "".into();
        record.ips = addresses(found);
        return;
    }
    record.ips.clear();
    if finished.is_some() {
        record.state = ContainerState::Exited;
        record.started_at = started;
        record.finished_at = finished;
        record.exit_code = Some(exit_code);
        record.reason = if state.oom_killed.unwrap_or(false) {
            "OOMKilled".into()
        } else if exit_code == 0 {
            "Completed".into()
        } else {
            "Error".into()
        };
    } else if exit_code != 0 {
        record.state = ContainerState::Exited;
        record.started_at = Some(record.created_at);
        record.finished_at = Some(record.created_at);
        record.exit_code = Some(exit_code);
        record.reason = "ContainerCannotRun".into();
    } else if state.status == Some(ContainerStateStatusEnum::DEAD) {
        record.state = ContainerState::Exited;
        record.finished_at = Some(record.created_at);
        record.exit_code = Some(exit_code);
        record.reason = "Error".into();
    } else {
        record.state = ContainerState::Created;
        record.started_at = None;
        record.finished_at = None;
        record.exit_code = None;
    }
}

fn joined(error: &str, message: &str) -> Arc<str> {
    match (error.is_empty(), message.is_empty()) {
        (true, _) => message.into(),
        (false, true) => error.into(),
        (false, false) => format!("{error}: {message}").into(),
    }
}

/// Addresses of a container: of its networks, as the top-level fields are gone from API 1.52 on.
/// IPv4 first.
fn addresses(found: &ContainerInspectResponse) -> Vec<IpAddr> {
    let networks = found
        .network_settings
        .as_ref()
        .and_then(|n| n.networks.as_ref());
    let mut ips: Vec<IpAddr> = networks
        .into_iter()
        .flat_map(|networks| networks.values())
        .flat_map(|network| [&network.ip_address, &network.global_ipv6_address])
        .filter_map(|ip| ip.as_deref())
        .filter_map(|ip| ip.parse().ok())
        .collect();
    ips.sort();
    ips.dedup();
    ips
}

/// Builds the seeds' `PodStatus` of one pod from its records, newest instances first.
pub(super) fn pod_status(uid: &PodUid, mut records: Vec<Record>) -> PodStatus {
    records.sort_by(|a, b| {
        (attempt(&b.ours), b.created_at, &b.id).cmp(&(attempt(&a.ours), a.created_at, &a.id))
    });
    let mut status = PodStatus::empty(uid.clone());
    for record in records {
        status.full_name = record.ours.full_name.clone();
        match &record.ours.kind {
            Kind::Sandbox {
                attempt,
                host_network,
            } => status.sandboxes.push(SandboxStatus {
                id: ContainerId::docker(record.id),
                attempt: *attempt,
                state: record.state,
                created_at: record.created_at,
                host_network: *host_network,
                ips: record.ips,
            }),
            Kind::Container {
                name,
                role,
                restart_count,
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
                    reason: record.reason,
                    message: record.message,
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
