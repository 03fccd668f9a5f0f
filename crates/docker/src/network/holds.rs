//! Connections to host ports wait while one version of a pod takes another's place.
//!
//! Between the end of the old version's container and the moment at which the new one accepts
//! connections nobody would answer. The kernel drops the first packets of such connections
//! meanwhile ([`nat::hold`]), so that clients send them again; it does so for [`LEASE`] at a time,
//! which [`HeldPorts`] renews. Whether a port is held is decided by [`Gap`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{self, Notify};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::super::containers::Containers;
use super::super::translate::{ForwardedPort, Kind, OurContainer, led_ports_of};
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::rollout::Gap;
use mirrorlet_core::spec;
use mirrorlet_host::disk;
use mirrorlet_host::nat::{self, HeldPort, Protocol};

/// How long the kernel holds a port without being asked again: what an agent leaves that is killed.
const LEASE: Duration = Duration::from_secs(5);
/// When a lease is renewed.
const RENEWAL: Duration = Duration::from_secs(2);
/// How often a held port is looked at. It adds to the time without an answer.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// How often a container that serves on though it was told to end is asked.
const OVERDUE_PERIOD: Duration = Duration::from_millis(250);
/// How long a pod of this machine may take to accept a connection.
const CONNECT_DEADLINE: Duration = Duration::from_millis(200);

/// The host ports that are held, or may be.
pub(crate) struct Holds {
    containers: Arc<Containers>,
    table: String,
    state: Mutex<State>,
    begun: Notify,
    /// Whether [`HeldPorts`] runs: nobody else would end a hold in time.
    is_kept: AtomicBool,
    kernel: sync::Mutex<Kernel>,
}

#[derive(Default)]
struct State {
    /// The version of each pod that serves, or is to.
    serving: BTreeMap<FullName, Arc<Pod>>,
    ports: BTreeMap<HeldPort, Between>,
}

/// A host port between two versions.
#[derive(Debug, Clone)]
struct Between {
    full_name: FullName,
    old: PodUid,
    /// The port of the old version's container, where it is known.
    old_port: Option<u16>,
    began: Instant,
    kill_at: Instant,
    /// When the old container ended; when the new version's network was there.
    ended: Option<Instant>,
    connected: Option<Instant>,
    /// Whether the old one accepted connections when it was last asked, and when.
    accepts: Option<(Instant, bool)>,
    waits: bool,
}

/// The ports that the kernel was last asked to hold, and when.
#[derive(Default)]
struct Kernel {
    held: BTreeSet<HeldPort>,
    renewed: Option<Instant>,
}

/// Ports whose container is being stopped; it has ended when this is dropped.
pub(crate) struct Stopping<'a> {
    holds: &'a Holds,
    ports: Vec<HeldPort>,
}

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.holds.with(|state| {
            for port in &self.ports {
                if let Some(between) = state.ports.get_mut(port) {
                    between.ended = Some(Instant::now());
                }
            }
        });
    }
}

impl Holds {
    pub(super) fn new(containers: Arc<Containers>, table: String) -> Self {
        Self {
            containers,
            table,
            state: Mutex::default(),
            begun: Notify::new(),
            is_kept: AtomicBool::new(false),
            kernel: sync::Mutex::default(),
        }
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock())
    }

    /// Notes which version of each pod serves, or is to.
    pub(super) fn serve(&self, serving: &BTreeMap<FullName, Arc<Pod>>) {
        self.with(|state| state.serving.clone_from(serving));
    }

    /// Holds the host ports of a container that is about to be told to end, if another version of
    /// its pod is to take its place. `pod` is absent of one that an agent before this one started.
    pub(crate) async fn begin(
        &self,
        container: &OurContainer,
        pod: Option<&Arc<Pod>>,
        name: &str,
        left: Duration,
    ) -> Option<Stopping<'_>> {
        if !self.is_kept.load(Ordering::Relaxed) {
            return None;
        }
        let new = self.with(|state| state.serving.get(&container.full_name).cloned())?;
        let new_uid = PodUid::of(&new);
        if new_uid == container.uid || self.serves(&new_uid) {
            return None;
        }
        let old_ports = pod.map(|pod| tcp_ports(pod, |of| of == name));
        let began = Instant::now();
        let mut ports = Vec::new();
        self.with(|state| {
            for port in tcp_ports(&new, |_| true).iter().map(held_port) {
                let old_port = old_ports.as_ref().and_then(|old| find(old, port));
                if old_ports.is_some() && old_port.is_none() {
                    // Another container's, or nobody connects to it yet.
                    continue;
                }
                ports.push(port);
                let between = Between {
                    full_name: container.full_name.clone(),
                    old: container.uid.clone(),
                    old_port,
                    began,
                    kill_at: began + left,
                    ended: None,
                    connected: None,
                    accepts: None,
                    waits: true,
                };
                state.ports.insert(port, between);
            }
        });
        if ports.is_empty() {
            return None;
        }
        self.apply().await;
        self.begun.notify_one();
        Some(Stopping { holds: self, ports })
    }

    /// Whether a container of a version runs: it has taken the other's place.
    fn serves(&self, uid: &PodUid) -> bool {
        let records = self.containers.index.of_pod(uid);
        records.iter().any(|record| {
            record.state == ContainerState::Running
                && matches!(record.ours.kind, Kind::Container { .. })
        })
    }

    /// Has the kernel hold what is to be held. Where it refuses, connections are refused, too: what
    /// the agent lacks is reported by its look at the host.
    async fn apply(&self) {
        let mut kernel = self.kernel.lock().await;
        let wanted: BTreeSet<HeldPort> = self.with(|state| {
            let waiting = state.ports.iter().filter(|(_, between)| between.waits);
            waiting.map(|(port, _)| *port).collect()
        });
        let is_fresh = kernel.renewed.is_some_and(|at| at.elapsed() < RENEWAL);
        if wanted == kernel.held && (wanted.is_empty() || is_fresh) {
            return;
        }
        let (table, ports) = (self.table.clone(), wanted.clone());
        let held = disk::blocking(move || {
            if ports.is_empty() {
                nat::release(&table)
            } else {
                nat::hold(&table, &ports, LEASE)
            }
        });
        if let Err(error) = held.await {
            tracing::debug!(error = %error, "failed to hold host ports");
        }
        *kernel = Kernel {
            held: wanted,
            renewed: Some(Instant::now()),
        };
    }

    /// Looks at every port that may be held.
    async fn look(&self) {
        let ports: Vec<(HeldPort, Between)> =
            self.with(|state| state.ports.iter().map(|(k, v)| (*k, v.clone())).collect());
        let looks = ports.into_iter().map(|(port, mut between)| async move {
            let gap = self.look_at(port, &mut between).await;
            (port, between, gap)
        });
        let looked = join_all(looks).await;
        self.with(|state| {
            for (port, seen, gap) in looked {
                let same = |known: &&mut Between| known.began == seen.began;
                let Some(known) = state.ports.get_mut(&port).filter(same) else {
                    continue;
                };
                known.waits = gap.waits();
                known.connected = seen.connected;
                known.accepts = seen.accepts;
                if gap.is_over() {
                    state.ports.remove(&port);
                }
            }
        });
        self.apply().await;
    }

    async fn look_at(&self, port: HeldPort, between: &mut Between) -> Gap {
        let Some(ended) = between.ended else {
            let since = between.began.elapsed();
            return Gap::Stopping {
                since,
                left: between.kill_at.saturating_duration_since(Instant::now()),
                accepts: Gap::is_overdue(since) && self.old_accepts(between).await,
            };
        };
        let serving = self.with(|state| state.serving.get(&between.full_name).cloned());
        let Some(new) = serving else {
            return Gap::Over;
        };
        let Some(new_port) = find(&tcp_ports(&new, |_| true), port) else {
            return Gap::Over;
        };
        let Some(ip) = self.address(&PodUid::of(&new)) else {
            return Gap::Starting {
                since: ended.elapsed(),
            };
        };
        let connected = *between.connected.get_or_insert_with(Instant::now);
        if accepts(ip, new_port).await {
            Gap::Over
        } else {
            Gap::Starting {
                since: connected.elapsed(),
            }
        }
    }

    async fn old_accepts(&self, between: &mut Between) -> bool {
        if let Some((at, accepts)) = between.accepts
            && at.elapsed() < OVERDUE_PERIOD
        {
            return accepts;
        }
        let accepts = match (self.address(&between.old), between.old_port) {
            (Some(ip), Some(port)) => accepts(ip, port).await,
            _ => false,
        };
        between.accepts = Some((Instant::now(), accepts));
        accepts
    }

    /// The address of a version's sandbox that runs.
    fn address(&self, uid: &PodUid) -> Option<IpAddr> {
        let records = self.containers.index.of_pod(uid);
        let mut running = records.iter().filter(|record| {
            record.state == ContainerState::Running
                && matches!(record.ours.kind, Kind::Sandbox { .. })
        });
        running.find_map(|record| record.ips().first().copied())
    }
}

/// The task that renews and ends the holds of host ports; to be run beside a manager.
pub struct HeldPorts {
    holds: Arc<Holds>,
}

impl HeldPorts {
    pub(crate) fn new(holds: Arc<Holds>) -> Self {
        Self { holds }
    }

    /// Runs until cancelled. What is held then ends with its lease.
    pub async fn run(self, cancel: CancellationToken) {
        let holds = &self.holds;
        holds.is_kept.store(true, Ordering::Relaxed);
        // Left by a previous agent.
        let lapsed = tokio::time::sleep(LEASE);
        let mut lapsed = std::pin::pin!(lapsed);
        let mut is_lapsed = false;
        loop {
            let is_idle = holds.with(|state| state.ports.is_empty());
            tokio::select! {
                () = cancel.cancelled() => return,
                () = holds.begun.notified(), if is_idle => {}
                () = tokio::time::sleep(LOOK_PERIOD), if !is_idle => {}
                () = &mut lapsed, if !is_lapsed => {
                    is_lapsed = true;
                    if is_idle {
                        let table = holds.table.clone();
                        let _ = disk::blocking(move || nat::release(&table)).await;
                    }
                }
            }
            holds.look().await;
        }
    }
}

/// The TCP ports of the host that containers of some names have, of a pod with a network of its own.
fn tcp_ports(pod: &Pod, is_meant: impl Fn(&str) -> bool) -> Vec<ForwardedPort> {
    if spec::is_host_network(pod) {
        return Vec::new();
    }
    let mut ports = led_ports_of(pod, is_meant);
    ports.retain(|port| port.protocol == Protocol::Tcp);
    ports
}

fn held_port(port: &ForwardedPort) -> HeldPort {
    HeldPort {
        host_ip: port.host_ip,
        host_port: port.host_port,
    }
}

/// The port of the container that a host port leads to.
fn find(ports: &[ForwardedPort], wanted: HeldPort) -> Option<u16> {
    let port = ports.iter().find(|port| held_port(port) == wanted)?;
    Some(port.container_port)
}

/// Whether a process of a pod accepts connections. It sees one that ends at once, as of a TCP probe.
async fn accepts(ip: IpAddr, port: u16) -> bool {
    let connecting = TcpStream::connect(SocketAddr::new(ip, port));
    matches!(
        tokio::time::timeout(CONNECT_DEADLINE, connecting).await,
        Ok(Ok(_))
    )
}
