//! One container's record, and how reports about it are merged into it.
//!
//! PURE: lists and inspects, in the Engine's models, become a state that only moves forward.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bollard::models::{
    ContainerInspectResponse, ContainerState as EngineState, ContainerStateStatusEnum,
    ContainerSummary, ContainerSummaryStateEnum, EndpointSettings, PortMap,
};
use tokio::time::Instant;

use super::super::image::id_of_local;
use super::super::termination;
use super::super::translate::{Kind, OurContainer};
use mirrorlet_core::api::Timestamp;
use mirrorlet_core::clock::elapsed;
use mirrorlet_core::observed::{ContainerState, UserAction, UserActionRecord};
use mirrorlet_core::small::SmallSort;

/// Longest time between the end of a container and its next start by the same `docker restart`, on
/// a slow Engine; only the words for it depend on this.
const RESTART_GAP: Duration = Duration::from_secs(5);

/// A container of ours, as far as it is known.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) id: Arc<str>,
    pub(crate) ours: Arc<OurContainer>,
    pub(crate) state: ContainerState,
    pub(crate) created_at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    pub(super) finished_at: Option<Timestamp>,
    pub(super) exit_code: Option<i32>,
    pub(super) image: Arc<str>,
    pub(super) image_id: Arc<str>,
    pub(super) reason: Arc<str>,
    pub(super) message: Arc<str>,
    pub(super) ips: Vec<IpAddr>,
    /// The ports that the Engine publishes for it while it runs; only for sandboxes to which rules of
    /// ours can forward host ports.
    pub(super) published: Option<Arc<PortMap>>,
    /// The last action of a user on it.
    pub(crate) by_hand: Option<UserActionRecord>,
    /// Whether this agent has stopped it, so that the Engine's reports about it are not about a user's
    /// action.
    pub(super) stopped_by_us: bool,
    /// When the Engine reported the first signal since this agent last ordered its stop.
    pub(crate) signalled: Option<Instant>,
    /// Whether it was started before this agent subscribed: an earlier agent may have begun to stop it.
    pub(super) ran_before: bool,
    /// Path of its termination message on the node.
    pub(crate) termination_log: Option<PathBuf>,
    /// Path of its `resolv.conf` on the Engine's disk.
    pub(crate) resolv_conf: Option<PathBuf>,
    /// Whether an inspect would show more than is known.
    pub(crate) stale: bool,
    /// When it was last reported, on the index's own logical clock.
    pub(crate) touched: u64,
    /// Locked during an inspect, so that concurrent callers share one.
    pub(crate) inspecting: Arc<tokio::sync::Mutex<()>>,
}

impl Record {
    pub(super) fn new(id: Arc<str>, ours: OurContainer, created_at: Timestamp) -> Self {
        let image_id = match &ours.kind {
            Kind::Container { image_id, .. } => Arc::clone(image_id),
            Kind::Sandbox { .. } => Arc::default(),
        };
        Self {
            id,
            ours: Arc::new(ours),
            state: ContainerState::Created,
            created_at,
            started_at: None,
            finished_at: None,
            exit_code: None,
            image: Arc::default(),
            image_id,
            reason: Arc::default(),
            message: Arc::default(),
            ips: Vec::new(),
            published: None,
            by_hand: None,
            stopped_by_us: false,
            signalled: None,
            ran_before: false,
            termination_log: None,
            resolv_conf: None,
            stale: false,
            touched: 0,
            inspecting: Arc::default(),
        }
    }

    /// Sets the image id that the Engine reports, unless a label has the image id for its status: then
    /// that stays, even if the image changes.
    pub(super) fn name_image(&mut self, id: Option<&str>) {
        if let Some(id) = id.filter(|id| self.image_id.is_empty() && !id.is_empty()) {
            self.image_id = id_of_local(id).into();
        }
    }

    /// The addresses known of it.
    pub(crate) fn ips(&self) -> &[IpAddr] {
        &self.ips
    }

    /// The ports that the Engine publishes for it, if rules of ours need them.
    pub(crate) fn published(&self) -> Option<&PortMap> {
        self.published.as_deref()
    }
}

/// Whether it will have an address once it runs.
pub(super) fn needs_address(ours: &OurContainer) -> bool {
    matches!(
        ours.kind,
        Kind::Sandbox {
            host_network: false,
            ..
        }
    )
}

pub(super) fn text(seen: Option<&str>, known: &Arc<str>) -> Arc<str> {
    match seen {
        Some(seen) if !seen.is_empty() => seen.into(),
        _ => Arc::clone(known),
    }
}

/// Whether an inspect shows more of its end than the fact: a sandbox's reason, message and time are
/// never needed.
pub(super) fn needs_ending(ours: &OurContainer) -> bool {
    matches!(ours.kind, Kind::Container { .. })
}

/// Converts the state in a list. `dead` and `removing` containers count as ended.
pub(super) fn listed_state(state: Option<ContainerSummaryStateEnum>) -> ContainerState {
    use ContainerSummaryStateEnum as S;
    match state {
        Some(S::CREATED) => ContainerState::Created,
        Some(S::RUNNING | S::PAUSED | S::RESTARTING) => ContainerState::Running,
        Some(S::EXITED | S::DEAD | S::REMOVING) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

pub(super) fn advance_by_list(record: &mut Record, listed: ContainerState) {
    use ContainerState as S;
    match (record.state, listed) {
        (S::Created, S::Running) => {
            record.state = S::Running;
            record.stale = true;
        }
        (S::Created | S::Running | S::Unknown, S::Exited) => {
            record.state = S::Exited;
            record.ips.clear();
            record.stale = needs_ending(&record.ours);
        }
        // The list is older than the record, or a user started it by hand: inspect it.
        (S::Exited, S::Running) | (S::Unknown, S::Running | S::Created) | (_, S::Unknown) => {
            record.stale = true;
        }
        (S::Created | S::Running | S::Exited, S::Created)
        | (S::Running, S::Running)
        | (S::Exited, S::Exited) => {}
    }
}

pub(super) fn from_summary(
    id: Arc<str>,
    ours: OurContainer,
    summary: &ContainerSummary,
    listed: ContainerState,
    now: u64,
) -> Record {
    let created_at = summary
        .created
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .unwrap_or(Timestamp::UNIX_EPOCH);
    let mut record = Record::new(id, ours, created_at);
    record.state = listed;
    record.ran_before = listed == ContainerState::Running;
    record.image = text(summary.image.as_deref(), &record.image);
    record.name_image(summary.image_id.as_deref());
    // A list says neither when it started or ended, nor whether a created one failed to start.
    record.stale = true;
    record.touched = now;
    record
}

/// Parses a time of the Engine; none for its zero time (year 1) and invalid texts.
fn time(text: Option<&str>) -> Option<Timestamp> {
    text.and_then(|text| text.parse::<Timestamp>().ok())
        .filter(|time| *time > Timestamp::UNIX_EPOCH)
}

/// The state of a container's process in an inspect.
enum Shown {
    Unknown,
    Created,
    Running {
        started_at: Option<Timestamp>,
    },
    Exited {
        started_at: Option<Timestamp>,
        finished_at: Option<Timestamp>,
        exit_code: i32,
        reason: &'static str,
    },
}

/// Upstream: cri-dockerd `core/convert.go`, dockershim `docker_container.go` (state and reason).
fn shown(record: &Record, found: &ContainerInspectResponse) -> Shown {
    use ContainerStateStatusEnum as S;
    let Some(state) = &found.state else {
        return Shown::Unknown;
    };
    let started_at = time(state.started_at.as_deref());
    let finished_at = time(state.finished_at.as_deref());
    // The Engine is about to start it again, as its restart policy says: since when it runs is not known.
    if state.restarting == Some(true) || state.status == Some(S::RESTARTING) {
        return Shown::Running { started_at: None };
    }
    // A paused one lives.
    if state.running.unwrap_or(false) || matches!(state.status, Some(S::RUNNING | S::PAUSED)) {
        return Shown::Running { started_at };
    }
    let exit_code = state
        .exit_code
        .and_then(|code| i32::try_from(code).ok())
        .unwrap_or(0);
    let created_at = Some(record.created_at);
    let (started_at, finished_at, reason) = if finished_at.is_some() {
        let reason = match exit_code {
            _ if state.oom_killed.unwrap_or(false) => "OOMKilled",
            0 => "Completed",
            _ => "Error",
        };
        (started_at, finished_at, reason)
    } else if exit_code != 0 && !was_given_up(state) {
        (created_at, created_at, "ContainerCannotRun")
    } else if state.status == Some(S::DEAD) {
        (record.started_at, created_at, "Error")
    } else {
        return Shown::Created;
    };
    Shown::Exited {
        started_at,
        finished_at,
        exit_code,
        reason,
    }
}

/// State that an inspect shows.
pub(super) fn shown_state(record: &Record, found: &ContainerInspectResponse) -> ContainerState {
    match shown(record, found) {
        Shown::Unknown => ContainerState::Unknown,
        Shown::Created => ContainerState::Created,
        Shown::Running { .. } => ContainerState::Running,
        Shown::Exited { .. } => ContainerState::Exited,
    }
}

/// Merges an inspect; `message` is the container's termination message.
pub(super) fn merge_inspect(record: &mut Record, found: &ContainerInspectResponse, message: &str) {
    if let Some(created) = time(found.created.as_ref().map(ToString::to_string).as_deref()) {
        record.created_at = created;
    }
    record.name_image(found.image.as_deref());
    if let Some(image) = found.config.as_ref().and_then(|c| c.image.as_deref()) {
        record.image = image.into();
    }
    if let Kind::Container {
        termination_path, ..
    } = &record.ours.kind
    {
        record.termination_log = termination::source(found, termination_path).map(PathBuf::from);
    }
    record.resolv_conf = found
        .resolv_conf_path
        .as_deref()
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    record.stale = false;
    record.state = shown_state(record, found);
    let (started_at, finished_at, exit_code, reason) = match shown(record, found) {
        Shown::Unknown => return,
        Shown::Created => (None, None, None, ""),
        Shown::Running { started_at } => (started_at, None, None, ""),
        Shown::Exited {
            started_at,
            finished_at,
            exit_code,
            reason,
        } => (started_at, finished_at, Some(exit_code), reason),
    };
    let known = record.by_hand.map(|known| known_of(known, record.state));
    record.by_hand = started_again(found).or_else(|| paused(known, found));
    record.started_at = started_at;
    record.finished_at = finished_at;
    record.exit_code = exit_code;
    record.reason = reason.into();
    record.message = match &found.state {
        Some(state) if exit_code.is_some() => {
            joined(state.error.as_deref().unwrap_or_default(), message)
        }
        _ => Arc::default(),
    };
    (record.ips, record.published) = match record.state {
        ContainerState::Running => (addresses(found), published(record, found)),
        _ => (Vec::new(), None),
    };
}

/// A user's action after an inspect found the container in that state. If it runs, the stop that was
/// reported was an earlier one, and only its signal counts.
fn known_of(known: UserActionRecord, state: ContainerState) -> UserActionRecord {
    let is_over = known.what == UserAction::Stopped && state == ContainerState::Running;
    let what = if is_over {
        UserAction::Signalled
    } else {
        known.what
    };
    UserActionRecord { what, ..known }
}

/// The start of a container that runs and had ended before: this agent starts none twice.
fn started_again(found: &ContainerInspectResponse) -> Option<UserActionRecord> {
    let state = found.state.as_ref().filter(|s| s.running == Some(true))?;
    let ended = time(state.finished_at.as_deref())?;
    let at = time(state.started_at.as_deref()).filter(|at| *at > ended)?;
    let what = if elapsed(ended, at) <= RESTART_GAP {
        UserAction::Restarted
    } else {
        UserAction::Started
    };
    Some(UserActionRecord { what, at })
}

/// The user's action after an inspect. The Engine doesn't report when a container was paused, so the
/// time is that of the inspect.
fn paused(
    known: Option<UserActionRecord>,
    found: &ContainerInspectResponse,
) -> Option<UserActionRecord> {
    let is_paused = found.state.as_ref().and_then(|s| s.paused) == Some(true);
    let was_paused = known.is_some_and(|known| known.what == UserAction::Paused);
    let what = match (was_paused, is_paused) {
        (false, true) => UserAction::Paused,
        (true, false) => UserAction::Unpaused,
        (true, true) | (false, false) => return known,
    };
    let at = Timestamp::now();
    Some(UserActionRecord { what, at })
}

/// Whether it is a pause or unpause of a container.
pub(super) fn is_pause(what: UserAction) -> bool {
    matches!(what, UserAction::Paused | UserAction::Unpaused)
}

/// Whether the Engine abandoned a start because its client disconnected, as current Engines do: an
/// earlier agent that was killed, or a call that took too long. It says nothing about the container,
/// which is started again as if it had not been tried.
fn was_given_up(state: &EngineState) -> bool {
    let never_ran =
        time(state.finished_at.as_deref()).is_none() && time(state.started_at.as_deref()).is_none();
    let error = state.error.as_deref().unwrap_or_default();
    never_ran && error.ends_with("context canceled")
}

fn joined(error: &str, message: &str) -> Arc<str> {
    match (error.is_empty(), message.is_empty()) {
        (true, _) => message.into(),
        (false, true) => error.into(),
        (false, false) => format!("{error}: {message}").into(),
    }
}

/// The ports that are published for a container, if rules of ours need them.
fn published(record: &Record, found: &ContainerInspectResponse) -> Option<Arc<PortMap>> {
    let Kind::Sandbox {
        forwarded_ports, ..
    } = &record.ours.kind
    else {
        return None;
    };
    let settings = found.network_settings.as_ref();
    let ports = settings.filter(|_| !forwarded_ports.is_empty());
    ports.and_then(|n| n.ports.clone()).map(Arc::new)
}

/// The network mode of sandboxes in a network of the Engine's; its default bridge if none.
pub(crate) fn sandbox_mode(network: Option<&str>) -> &str {
    network.unwrap_or("default")
}

/// The name or id of the network in a network mode.
pub(crate) fn network_of(mode: &str) -> &str {
    match mode {
        "" | "default" => "bridge",
        mode => mode,
    }
}

/// Addresses of a container, because the top-level fields are gone since API 1.52: those in the network
/// that it was created in, or else those in the networks that a user connected it to.
fn addresses(found: &ContainerInspectResponse) -> Vec<IpAddr> {
    let host = found.host_config.as_ref();
    let mode = host.and_then(|host| host.network_mode.as_deref());
    let mode = network_of(mode.unwrap_or_default());
    let settings = found.network_settings.as_ref();
    let networks = settings.and_then(|settings| settings.networks.as_ref());
    // The mode is the name of a network or its id.
    let (own, others): (Vec<_>, Vec<_>) = networks
        .into_iter()
        .flatten()
        .partition(|(name, network)| *name == mode || network.network_id.as_deref() == Some(mode));
    let ips = addresses_in(&own);
    if ips.is_empty() {
        addresses_in(&others)
    } else {
        ips
    }
}

/// Addresses of a container in some of its networks, IPv4 first.
fn addresses_in(networks: &[(&String, &EndpointSettings)]) -> Vec<IpAddr> {
    let mut ips: Vec<IpAddr> = networks
        .iter()
        .flat_map(|(_, network)| [&network.ip_address, &network.global_ipv6_address])
        .filter_map(|ip| ip.as_deref())
        .filter_map(|ip| ip.parse().ok())
        .collect();
    ips.small_sort();
    ips.dedup();
    ips
}
