//! Checks the agent's access to its host, and reports missing access.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::sleep;

use super::used_engine::UsedEngine;
use crate::config::Config;
use mirrorlet_core::api::report::MissingAccessReport;
use mirrorlet_core::api::{PodUid, keys};
use mirrorlet_core::backoff::ExponentialBackoff;
use mirrorlet_core::host_access::{Found, HostAccess, MissingAccess, Need, missing_access};
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_docker::engine::{HostSide, SharedEngine, is_own};
use mirrorlet_docker::sees::engine_sees;
use mirrorlet_host::telemetry::{Telemetry, occurrences};
use mirrorlet_host::volume::{HostFiles, TrialMount};
use mirrorlet_host::{disk, nat};
use mirrorlet_runtime::RuntimeError;

/// How long a connection to a socket of this machine may take: the kernel makes it, at once.
const CONNECT_DEADLINE: Duration = Duration::from_secs(1);

/// The Engine's network of pods where none is named.
const DEFAULT_NETWORK: &str = "bridge";

/// Interval of checks for a missing network. Its creation is not reported, and a user who creates it
/// waits for pods to start.
const NETWORK_PERIOD: Duration = Duration::from_secs(5);

/// Pauses after failed checks though the Engine answers: one that has just started may refuse its first
/// calls, and doesn't report when that ends.
const FAILED_PAUSES: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(5), Duration::from_mins(1));

/// Files that container runtimes put into every container of theirs.
const CONTAINER_MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// Set in every container of a kubelet.
const KUBELET_MARK: &str = "KUBERNETES_SERVICE_HOST";

/// The inputs of the check.
pub(super) struct HostLook {
    root: PathBuf,
    docker: String,
    host_root: Option<PathBuf>,
    network: String,
    engine: SharedEngine,
    files: HostFiles,
    telemetry: Telemetry,
    published: watch::Sender<Vec<MissingAccessReport>>,
    missing: Vec<MissingAccess>,
    owner: String,
    /// The pods of an earlier agent whose owner id was lost or replaced, until they were searched for.
    orphans: BTreeSet<PodUid>,
    /// The report of containers that are no longer ours for it.
    lost: Option<MissingAccessReport>,
}

/// The process at the other end of the Engine's socket, and what is shared with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Peer {
    /// Whether it is among our processes.
    is_seen: Option<bool>,
    /// Whether it has our mounts.
    shares_mounts: Option<bool>,
    /// Whether it has our network.
    shares_network: Option<bool>,
}

impl HostLook {
    /// Makes a first check, without the Engine, and returns the reader of its results.
    pub(super) async fn new(
        config: &Config,
        engine: SharedEngine,
        files: HostFiles,
        telemetry: Telemetry,
    ) -> (Self, watch::Receiver<Vec<MissingAccessReport>>) {
        let (published, reports) = watch::channel(Vec::new());
        let look = Self {
            root: config.root.clone(),
            docker: config.docker.clone(),
            host_root: config.host_root.clone(),
            network: network_of(config),
            engine,
            files,
            telemetry,
            published,
            missing: Vec::new(),
            owner: String::new(),
            orphans: BTreeSet::new(),
            lost: None,
        };
        look.files.set_apart(is_apart_from(&look.docker).await);
        (look, reports)
    }

    /// Sets the current owner id, and the pods of an earlier agent whose owner id was lost or replaced.
    pub(super) fn looking_for(mut self, owner: &str, orphans: BTreeSet<PodUid>) -> Self {
        owner.clone_into(&mut self.owner);
        self.orphans = orphans;
        self
    }

    /// Checks whenever the Engine begins to answer, and retries until a check succeeds, until
    /// cancelled.
    pub(super) async fn run(mut self, mut reach: watch::Receiver<RuntimeReach>) {
        self.publish(&HostAccess {
            socket: self.socket(),
            ..HostAccess::default()
        });
        let mut failures = FAILED_PAUSES;
        loop {
            let is_up = matches!(&*reach.borrow_and_update(), RuntimeReach::Up);
            let mut pause = None;
            if is_up {
                let looked = async {
                    self.find_lost().await?;
                    self.keep_engine().await?;
                    self.look().await
                };
                match looked.await {
                    Ok(access) => {
                        failures.reset();
                        self.publish(&access);
                    }
                    Err(error) => {
                        occurrences::host_access_unknown(&error.to_string());
                        pause = Some(failures.pause());
                    }
                }
            }
            let network_is_missing = |missing: &MissingAccess| missing.need == Need::PodNetwork;
            if pause.is_none() && self.missing.iter().any(network_is_missing) {
                pause = Some(NETWORK_PERIOD);
            }
            tokio::select! {
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => {}
                changed = reach.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Whether the Engine's socket exists.
    fn socket(&self) -> Found {
        match self.docker.strip_prefix("unix://") {
            Some(path) if !Path::new(path).exists() => Found::No(format!("no socket at {path}")),
            _ => Found::Unknown,
        }
    }

    /// Looks once for containers of an agent whose owner id was lost or replaced, and reports them.
    async fn find_lost(&mut self) -> Result<(), RuntimeError> {
        if self.orphans.is_empty() {
            return Ok(());
        }
        let listed = self.engine.list_agents_containers().await?;
        let labels = listed.into_iter().filter_map(|container| container.labels);
        let owners = owners_before(&self.owner, &std::mem::take(&mut self.orphans), labels);
        self.lost = (!owners.is_empty()).then(|| lost_owner(&self.root, &self.owner, &owners));
        if let Some(lost) = &self.lost {
            occurrences::owner_lost(&lost.message, &lost.help);
        }
        Ok(())
    }

    /// Keeps which Engine has the agent's containers, for `mirrorlet cleanup`.
    async fn keep_engine(&self) -> Result<(), RuntimeError> {
        // Those of another owner id are to be reported by the next agent, too.
        if self.lost.is_some() {
            return Ok(());
        }
        let used = UsedEngine {
            address: self.docker.clone(),
            id: self.engine.info().await?.id.unwrap_or_default(),
            owner: self.owner.clone(),
        };
        let root = self.root.clone();
        if let Err(error) = disk::blocking(move || used.keep(&root)).await {
            occurrences::engine_not_kept(&error.to_string());
        }
        Ok(())
    }

    async fn look(&self) -> Result<HostAccess, RuntimeError> {
        let peer = peer(&self.docker).await;
        let mut access = HostAccess {
            is_apart: is_apart(peer),
            socket: Found::Yes,
            processes: peer.is_seen.map_or(Found::Unknown, |seen| {
                Found::from_bool(seen, "the agent can't see the Engine's processes")
            }),
            ..HostAccess::default()
        };
        self.files.set_apart(access.is_apart);
        let side = match self.engine.network_host_side(&self.network).await {
            Ok(side) => Some(side),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        let why = format!("the Engine has no network {}", self.network);
        access.pod_network = Found::from_bool(side.is_some(), &why);
        let is_inside = peer.shares_network;
        let is_inside = is_inside.or_else(|| side.as_ref().and_then(has_host_side));
        access.network = is_inside.map_or(Found::Unknown, |is_inside| {
            Found::from_bool(is_inside, "the agent is not in the host's network")
        });
        access.port_rules = port_rules().await;
        if peer.shares_mounts == Some(true) {
            return Ok(HostAccess {
                root: Found::Yes,
                propagation: Found::Yes,
                host_root: Found::Yes,
                ..access
            });
        }
        let mark = self.root.join(format!("seen-{}", std::process::id()));
        let looked = self.look_from_apart(&mark, access).await;
        // It lies in the agent's own root, where the next one of the same process id overwrites it.
        let _ = std::fs::remove_file(&mark);
        looked
    }

    /// Asks the Engine which of the agent's files it sees.
    async fn look_from_apart(
        &self,
        mark: &Path,
        mut access: HostAccess,
    ) -> Result<HostAccess, RuntimeError> {
        let failed = |error: std::io::Error| RuntimeError::Unavailable(error.to_string());
        std::fs::write(mark, "").map_err(failed)?;
        let root = self.root.display();
        let is_shared = engine_sees(&*self.engine, mark).await?;
        access.root = Found::from_bool(
            is_shared,
            &format!("the Engine can't see the agent's root directory {root}"),
        );
        access.host_root = match &self.host_root {
            None => Found::Unknown,
            Some(named) => {
                let seen = self.files.path(mark).ok().flatten();
                let has_mark = seen.is_some_and(|seen| seen.exists());
                let why = format!("{} is not the host's file system", named.display());
                // Without a root in common there is nothing to compare.
                Found::from_bool(has_mark || (!is_shared && named.is_dir()), &why)
            }
        };
        if is_shared {
            access.propagation = self.propagation().await?;
        }
        Ok(access)
    }

    /// Whether the Engine sees a mount that is made below the root.
    async fn propagation(&self) -> Result<Found, RuntimeError> {
        let root = self.root.clone();
        let trial = match disk::blocking(move || TrialMount::make(&root)).await {
            Ok(trial) => trial,
            Err(error) => return Ok(Found::No(format!("the agent can't mount ({error})"))),
        };
        let seen = engine_sees(&*self.engine, &trial.file()).await;
        // Unmounting blocks, shortly.
        disk::blocking(move || drop(trial)).await;
        Ok(Found::from_bool(
            seen?,
            "the Engine can't see mounts below the agent's root directory",
        ))
    }

    /// Reports newly missing access to the host, and access that is available again.
    fn publish(&mut self, access: &HostAccess) {
        let now = missing_access(access, &self.root, &self.docker);
        let was =
            |need: Need, all: &[MissingAccess]| all.iter().any(|missing| missing.need == need);
        for missing in now
            .iter()
            .filter(|missing| !was(missing.need, &self.missing))
        {
            occurrences::host_access_missing(&self.telemetry, missing);
        }
        for missing in self
            .missing
            .iter()
            .filter(|missing| !was(missing.need, &now))
        {
            occurrences::host_access_had(missing.need);
        }
        let reports = now.iter().map(report).chain(self.lost.clone());
        let reports: Vec<_> = reports.collect();
        // A repeated result is not a change.
        self.published.send_if_modified(|known| {
            let is_new = *known != reports;
            *known = reports;
            is_new
        });
        self.missing = now;
    }
}

/// Whether the kernel takes rules for host ports from this process, and those that hold them.
async fn port_rules() -> Found {
    let table = format!("mirrorlet-check-{}", std::process::id());
    let checked = disk::blocking(move || nat::check(&table).and_then(|()| nat::check_hold(&table)));
    match checked.await {
        Ok(()) => Found::Yes,
        Err(error) => Found::No(format!(
            "the kernel rejects the agent's rules for host ports ({error})"
        )),
    }
}

/// The other owner ids that containers of these pods have, by their labels.
fn owners_before(
    owner: &str,
    orphans: &BTreeSet<PodUid>,
    labels: impl Iterator<Item = HashMap<String, String>>,
) -> BTreeSet<String> {
    let other = |labels: HashMap<String, String>| {
        let uid = PodUid::from(labels.get(keys::POD_UID)?.as_str());
        let theirs = labels.get(keys::OWNER)?;
        (theirs != owner && orphans.contains(&uid)).then(|| theirs.clone())
    };
    labels.filter_map(other).collect_set()
}

fn lost_owner(root: &Path, owner: &str, before: &BTreeSet<String>) -> MissingAccessReport {
    let file = root.join("owner");
    let file = file.display();
    let before: Vec<&str> = before.iter().map(String::as_str).collect();
    let before = before.join(" or ");
    MissingAccessReport {
        need: "Owner".to_owned(),
        message: format!(
            "the file {file} was lost or replaced: containers with the owner id {before} are not recognised, and the agent starts their pods a second time"
        ),
        help: format!(
            "stop the agent, remove its new containers (docker rm -fv $(docker ps -aq --filter name=^k8s_ --filter label={}={owner})), write {before} to {file}, and start it again",
            keys::OWNER
        ),
    }
}

fn report(missing: &MissingAccess) -> MissingAccessReport {
    MissingAccessReport {
        need: missing.need.as_str().to_owned(),
        message: missing.message.clone(),
        help: missing.help.clone(),
    }
}

/// The Engine's network of pods.
pub(super) fn network_of(config: &Config) -> String {
    let network = config.network.as_deref();
    network.unwrap_or(DEFAULT_NETWORK).to_owned()
}

/// Whether the Engine at that address sees other files than this process.
pub(super) async fn is_apart_from(docker: &str) -> bool {
    is_apart(peer(docker).await)
}

/// Whether the Engine has other files than the agent; if its process can't be examined, files that
/// runtimes create in containers are the evidence.
fn is_apart(peer: Peer) -> bool {
    match (peer.is_seen, peer.shares_mounts) {
        (_, Some(shares)) => !shares,
        (Some(false), None) => true,
        (_, None) => {
            CONTAINER_MARKS.iter().any(|mark| Path::new(mark).exists())
                || std::env::var_os(KUBELET_MARK).is_some()
        }
    }
}

/// Whether this network namespace has the host's side of a network; unknown if the Engine reported
/// nothing about it. The bridge is looked up by name because the Engine often reports no gateway: not
/// for a `docker0` that it has created since its last start, and not for a network that was created
/// with a subnet only.
fn has_host_side(side: &HostSide) -> Option<bool> {
    if side.bridge.is_none() && side.gateways.is_empty() {
        return None;
    }
    let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    let has_bridge = side
        .bridge
        .as_deref()
        .is_some_and(|name| has_interface(&interfaces, name));
    Some(has_bridge || side.gateways.iter().any(|address| is_own(*address)))
}

/// Whether `/proc/net/dev` lists an interface of that name.
fn has_interface(interfaces: &str, name: &str) -> bool {
    let names = interfaces.lines().filter_map(|line| line.split_once(':'));
    names.into_iter().any(|(listed, _)| listed.trim() == name)
}

/// The process that listens on the Engine's socket. All fields are unknown if there is none, or the
/// socket is not on this machine.
async fn peer(docker: &str) -> Peer {
    let Some(path) = docker.strip_prefix("unix://") else {
        return Peer::default();
    };
    let connecting = tokio::time::timeout(CONNECT_DEADLINE, UnixStream::connect(path));
    let Ok(Ok(stream)) = connecting.await else {
        return Peer::default();
    };
    let Some(pid) = stream.peer_cred().ok().and_then(|peer| peer.pid()) else {
        return Peer::default();
    };
    // The kernel says 0 for a process that is not among ours.
    if pid <= 0 {
        return Peer {
            is_seen: Some(false),
            ..Peer::default()
        };
    }
    let shares = |namespace: &str| {
        let of = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/{namespace}"));
        Some(of(&pid.to_string()).ok()? == of("self").ok()?)
    };
    Peer {
        is_seen: Some(true),
        shares_mounts: shares("mnt"),
        shares_network: shares("net"),
    }
}
