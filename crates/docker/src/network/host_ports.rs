//! Host ports that move from one pod to another while both run.
//!
//! The Engine publishes a host port for the sandbox that it was created with. A pod that runs beside
//! the one that it will replace has its ports published on loopback only, and rules of ours forward the
//! host ports to it once it replaces the other one ([`mirrorlet_host::nat`]). A label of the sandbox
//! lists these ports, so that all state here can be rebuilt.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bollard::models::PortMap;
use futures::future::join_all;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::timeout;

mod flows;
mod kept;
#[cfg(test)]
mod tests;

use super::super::containers::{Containers, runtime_error};
use super::super::engine::HostSide;
use super::super::index::Record;
use super::super::translate::{ForwardedPort, Kind, forwarded_ports};
use super::holds::Holds;
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::small::{SmallCollect, SmallSort};
use mirrorlet_host::disk;
use mirrorlet_host::nat::{self, Detour, Flows, Forward, Rules};
use mirrorlet_runtime::{ServingPods, SyncError, SyncErrorReason};

pub use kept::LedPorts;

/// Prefix of the names of our tables.
const TABLE: &str = "mirrorlet-";
/// Time limit for inspects of sandboxes with an uncertain state. Starts and stops of all pods wait for
/// them, and the last known state of one that hangs is good enough.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Longest name of a table, well below the kernel's limit.
const TABLE_NAME_MAX: usize = 100;

/// The rules that forward host ports to pods, and their targets.
pub(crate) struct HostPorts {
    containers: Arc<Containers>,
    /// Name of the pods' network.
    network: String,
    /// Name of our table.
    table: String,
    /// Locked while rules are applied in the kernel, never during a call to the Engine.
    state: Mutex<State>,
    /// Host ports whose connections wait for another version.
    pub(crate) holds: Arc<Holds>,
    /// The host's side of the network, once it was read.
    side: parking_lot::Mutex<Option<HostSide>>,
    /// Whether it was logged that flows can't be forgotten.
    flow_failure_logged: AtomicBool,
    /// Whether there are rules of ours, which another program may remove.
    are_led: watch::Sender<bool>,
    /// Notified when a check of the rules in the kernel is requested.
    asked: Notify,
}

#[derive(Default)]
struct State {
    /// The pods to which host ports are forwarded.
    pods: ServingPods,
    /// The rules that were made; unknown at first.
    applied: Option<BTreeSet<Forward>>,
    /// The same as the kernel names them, if that was read.
    rules: Option<Rules>,
    /// Ids of the sandboxes that ran at the last look.
    seen: BTreeSet<Arc<str>>,
}

/// A sandbox to which host ports can be forwarded.
#[derive(Debug, Clone)]
struct ForwardedSandbox {
    full_name: FullName,
    uid: PodUid,
    created_at: Timestamp,
    forwards: Vec<Forward>,
}

impl HostPorts {
    pub(super) fn new(containers: Arc<Containers>, network: Option<&str>) -> Self {
        let table = table_name(&containers.owner);
        let holds = Holds::new(Arc::clone(&containers), table.clone());
        Self {
            holds: Arc::new(holds),
            containers,
            network: network.unwrap_or("bridge").to_owned(),
            table,
            state: Mutex::default(),
            side: parking_lot::Mutex::default(),
            flow_failure_logged: AtomicBool::new(false),
            are_led: watch::Sender::new(false),
            asked: Notify::new(),
        }
    }

    /// See [`Runtime::serve_host_ports`](mirrorlet_runtime::Runtime::serve_host_ports).
    pub(crate) async fn serve(&self, pods: ServingPods) -> Result<(), SyncError> {
        self.holds.serve(&pods);
        if self.state.lock().await.leads_to(&pods) {
            return Ok(());
        }
        let side = self.look().await?;
        let mut state = self.state.lock().await;
        let before = std::mem::replace(&mut state.pods, pods);
        let applied = match self.check_known(&state) {
            Ok(()) => self.apply(&mut state, side.as_ref()).await,
            Err(error) => Err(error),
        };
        if applied.is_err() {
            state.pods = before;
        }
        applied
    }

    /// Removes the rules of ended sandboxes from the kernel, before another sandbox may get their
    /// addresses or ports.
    pub(crate) async fn refresh(&self) -> Result<(), SyncError> {
        if self.state.lock().await.leads_nowhere() {
            return Ok(());
        }
        let side = self.look().await?;
        let mut state = self.state.lock().await;
        self.apply(&mut state, side.as_ref()).await
    }

    /// Fails if the host ports of a pod can't be switched between versions on this machine.
    pub(crate) async fn check(&self, pod: &Pod) -> Result<(), SyncError> {
        if forwarded_ports(pod).is_empty() {
            return Ok(());
        }
        self.gateway().await?;
        let table = format!("{}-check", self.table);
        let checked = disk::blocking(move || nat::check(&table)).await;
        checked.map_err(|error| {
            refused(&format!(
                "the kernel rejects the agent's rules for host ports ({error})"
            ))
        })
    }

    /// The host's address in the pods' network.
    pub(crate) async fn gateway(&self) -> Result<Ipv4Addr, SyncError> {
        self.host_address().await?.ok_or_else(|| {
            let network = &self.network;
            refused(&format!(
                "the agent can't find the host's address in the Docker network {network}"
            ))
        })
    }

    /// The host's address in the pods' network, if it has one.
    pub(crate) async fn host_address(&self) -> Result<Option<Ipv4Addr>, SyncError> {
        let found = self.host_side().await?.own_addresses().next();
        if found.is_some() {
            return Ok(found);
        }
        // It may have been another network when it was read.
        self.forget();
        let found = self.host_side().await?.own_addresses().next();
        if found.is_none() {
            self.forget();
        }
        Ok(found)
    }

    /// The host's side of the pods' network, as it was last seen.
    async fn host_side(&self) -> Result<HostSide, SyncError> {
        let known = self.side.lock().clone();
        if let Some(side) = known {
            return Ok(side);
        }
        let engine = &self.containers.engine;
        let side = engine.network_host_side(&self.network).await;
        let side = side.map_err(|error| runtime_error(&error.into()))?;
        *self.side.lock() = Some(side.clone());
        Ok(side)
    }

    /// Forgets the host's side of the network: a sandbox did not start, so it may have changed.
    pub(crate) fn forget(&self) {
        *self.side.lock() = None;
    }

    /// Makes the rules those of the sandboxes as they are known, with the host's side of their network
    /// where there are some.
    async fn apply(&self, state: &mut State, side: Option<&HostSide>) -> Result<(), SyncError> {
        let running = self.running();
        let sandboxes = side.map_or_else(Vec::new, |side| {
            let led = running
                .iter()
                .filter_map(|record| led_sandbox(record, side));
            led.collect()
        });
        let index = &self.containers.index;
        let published = |pod: &Pod| is_published(&index.of_pod(&PodUid::of(pod)));
        let forwards = forwards(&state.pods, published, sandboxes);
        if state.applied.as_ref() == Some(&forwards) {
            return Ok(());
        }
        let (table, wanted) = (self.table.clone(), forwards.clone());
        let replaced = disk::blocking(move || {
            if wanted.is_empty() {
                nat::remove(&table).map(|()| None)
            } else {
                nat::replace(&table, &wanted)
            }
        });
        let replaced = replaced.await;
        state.rules =
            replaced.map_err(|error| refused(&format!("the kernel rejects the rules: {error}")))?;
        self.are_led.send_replace(!forwards.is_empty());
        let which = match state.applied.replace(forwards.clone()) {
            // An agent before this one may have been killed before it came to it.
            None => Flows::ClosedAndUdp,
            Some(_) => Flows::Closed,
        };
        self.forget_flows(forwards, which).await;
        Ok(())
    }

    /// Inspects the uncertain sandboxes to which host ports can be forwarded, and returns the host's
    /// side of their network if some run. If an inspect fails or hangs, the last known state is used,
    /// so that it blocks no other pod.
    async fn look(&self) -> Result<Option<HostSide>, SyncError> {
        let records = self.containers.index.led_sandboxes();
        let mut state = self.state.lock().await;
        let runs = |record: &Record| record.state == ContainerState::Running && !record.stale;
        state
            .seen
            .retain(|id| records.iter().any(|r| r.id == *id && runs(r)));
        if state.seen.is_empty() {
            // A network with a running sandbox can't be created again; otherwise the names of
            // interfaces, which the rules contain, are read again.
            self.forget();
        }
        drop(state);
        // One that was not started has no address.
        let doubted = records
            .iter()
            .filter(|record| record.stale && record.state != ContainerState::Created);
        // On the heap: it is seldom needed, and large.
        let looks = doubted.map(|record| Box::pin(self.containers.freshen(&record.id)));
        let _ = timeout(LOOK_MAX, join_all(looks)).await;
        let running = self.running();
        if running.is_empty() {
            return Ok(None);
        }
        let side = self.host_side().await?;
        let known = running.into_iter().filter(|record| !record.stale);
        let mut state = self.state.lock().await;
        state.seen.extend(known.map(|record| record.id));
        Ok(Some(side))
    }

    /// The sandboxes that run and that host ports can be led to.
    fn running(&self) -> Vec<Record> {
        let mut records = self.containers.index.led_sandboxes();
        records.retain(|record| record.state == ContainerState::Running);
        records
    }

    /// Fails if the address of a sandbox is unknown to which host ports must be forwarded.
    fn check_known(&self, state: &State) -> Result<(), SyncError> {
        let is_unknown = |record: &Record| record.stale && record.ips().is_empty();
        let is_needed = |record: &Record| {
            let serving = state.pods.serving.get(&record.ours.full_name);
            let serves = serving.is_some_and(|pod| PodUid::of(pod) == record.ours.uid);
            // An earlier agent's rules may forward ports to it.
            let may_be_led =
                state.applied.is_none() && !state.pods.beside.contains(&record.ours.uid);
            serves || may_be_led
        };
        let running = self.running();
        let unknown = running.iter().find(|r| is_unknown(r) && is_needed(r));
        let Some(record) = unknown else {
            return Ok(());
        };
        let name = &record.ours.full_name;
        Err(SyncError::new(
            SyncErrorReason::RuntimeUnavailable,
            format!("the Docker Engine did not report the address of pod {name}"),
        ))
    }
}

impl State {
    /// Whether host ports are forwarded to these pods.
    fn leads_to(&self, pods: &ServingPods) -> bool {
        self.pods.has_same_versions(pods) && self.applied.is_some()
    }

    /// Whether there are no rules, as far as is known.
    fn leads_nowhere(&self) -> bool {
        self.applied.as_ref().is_none_or(BTreeSet::is_empty)
    }
}

/// Whether a running sandbox of a pod has ports that the Engine publishes.
fn is_published(records: &[Record]) -> bool {
    records.iter().any(|record| {
        let by_engine =
            matches!(&record.ours.kind, Kind::Sandbox { forwarded_ports, .. } if forwarded_ports.is_empty());
        by_engine && record.state == ContainerState::Running
    })
}

fn refused(cause: &str) -> SyncError {
    let message = format!("host ports can't be handed over: {cause}");
    SyncError::new(SyncErrorReason::CreatePodSandboxError, message)
}

/// Name of the `nft` table with an owner's rules.
pub fn table_name(owner: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name = format!("{TABLE}{}", owner.chars().map(plain).collect::<String>());
    name.truncate(TABLE_NAME_MAX);
    name
}

/// Returns where host ports can be led to in a sandbox that runs.
fn led_sandbox(record: &Record, side: &HostSide) -> Option<ForwardedSandbox> {
    let Kind::Sandbox {
        forwarded_ports, ..
    } = &record.ours.kind
    else {
        return None;
    };
    let address = record.ips().iter().find_map(|address| match address {
        IpAddr::V4(address) => Some(*address),
        IpAddr::V6(_) => None,
    })?;
    let published = record.published();
    let full_name = &record.ours.full_name;
    let forward = |port: &ForwardedPort| Forward {
        protocol: port.protocol,
        host_ip: port.host_ip,
        host_port: port.host_port,
        pod: SocketAddrV4::new(address, port.container_port),
        detour: detour(published, port, side),
        comment: full_name.to_string(),
    };
    Some(ForwardedSandbox {
        full_name: full_name.clone(),
        uid: record.ours.uid.clone(),
        created_at: record.created_at,
        forwards: forwarded_ports.iter().map(forward).collect(),
    })
}

/// How a sandbox is reached from where packets can't be routed to it: through the Engine's proxy,
/// unless the Engine runs without one and lets the bridge take packets from loopback addresses.
fn detour(published: Option<&PortMap>, port: &ForwardedPort, side: &HostSide) -> Detour {
    let Some(bridge) = side.bridge.clone().filter(|bridge| !takes_loopback(bridge)) else {
        return Detour::None;
    };
    let bindings = published.and_then(|ports| ports.get(&port.exposed())?.as_ref());
    let at = |is_loopback: bool| {
        let mut bindings = bindings.into_iter().flatten();
        bindings.find_map(|binding| {
            let address: Ipv4Addr = binding.host_ip.as_deref()?.parse().ok()?;
            let number = binding.host_port.as_deref()?.parse().ok()?;
            (address.is_loopback() == is_loopback).then_some(number)
        })
    };
    match (at(true), at(false)) {
        (Some(loopback), Some(port)) => Detour::Proxy {
            loopback,
            bridge,
            port,
        },
        _ => Detour::None,
    }
}

/// Whether packets from loopback addresses may pass an interface: the Engine allows that where it
/// runs without its proxy.
fn takes_loopback(interface: &str) -> bool {
    let path = format!("/proc/sys/net/ipv4/conf/{interface}/route_localnet");
    disk::read_small(Path::new(&path), 1).is_ok_and(|text| text.starts_with(b"1"))
}

/// Computes the rules: for each full name those of the pod that serves, unless the Engine publishes its
/// ports. If that pod has no sandbox yet, or none serves any more, the ports stay with their current
/// sandbox while it runs.
fn forwards(
    pods: &ServingPods,
    is_published: impl Fn(&Pod) -> bool,
    mut sandboxes: Vec<ForwardedSandbox>,
) -> BTreeSet<Forward> {
    sandboxes.retain(|sandbox| {
        let serving = pods.serving.get(&sandbox.full_name);
        !pods.beside.contains(&sandbox.uid) && !serving.is_some_and(|pod| is_published(pod))
    });
    sandboxes.small_sort_by(|a, b| {
        (&a.full_name, a.created_at, &a.uid).cmp(&(&b.full_name, b.created_at, &b.uid))
    });
    let mut chosen: BTreeMap<&FullName, &ForwardedSandbox> = BTreeMap::new();
    for sandbox in &sandboxes {
        let serving = pods.serving.get(&sandbox.full_name);
        let serves = serving.is_some_and(|pod| PodUid::of(pod) == sandbox.uid);
        let known = chosen.entry(&sandbox.full_name).or_insert(sandbox);
        if serves {
            *known = sandbox;
        }
    }
    chosen
        .into_values()
        .flat_map(|sandbox| sandbox.forwards.clone())
        .collect_set()
}
