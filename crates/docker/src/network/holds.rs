//! Holds connections to host ports while one version of a pod replaces another.
//!
//! Between the end of the old version's container and the moment at which the new one accepts
//! connections, no process would answer. Meanwhile the kernel drops the first packets of such
//! connections ([`nat::hold`]), so that clients send them again; for [`LEASE`] at a time, which
//! [`HeldPorts`] renews. [`Gap`] decides whether a port is held. An agent that finds a version stopped,
//! or about to be, and its successor not accepting connections yet continues the hold.

#[cfg(test)]
mod tests;

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

use super::super::containers::Containers;
use super::super::index::Record;
use super::super::translate::{ForwardedPort, Kind, led_ports_of};
use mirrorlet_core::api::{FullName, Pod, PodUid, Timestamp};
use mirrorlet_core::observed::ContainerState;
use mirrorlet_core::rollout::Gap;
use mirrorlet_core::small::SmallCollect;
use mirrorlet_core::spec;
use mirrorlet_host::disk;
use mirrorlet_host::nat::{self, HeldPort, Protocol};
use mirrorlet_runtime::ServingPods;

/// How long the kernel holds a port without a renewal, as after the agent was killed.
const LEASE: Duration = Duration::from_secs(5);
/// When a lease is renewed.
const RENEWAL: Duration = Duration::from_secs(2);
/// Interval of checks of a held port. It adds to the time without an answer.
const LOOK_PERIOD: Duration = Duration::from_millis(20);
/// Interval of checks of a container that continues to serve though it was signalled to end.
const OVERDUE_PERIOD: Duration = Duration::from_millis(250);
/// How long a pod of this machine may take to accept a connection.
const CONNECT_DEADLINE: Duration = Duration::from_millis(200);

/// The host ports that are held, or may be.
pub(crate) struct Holds {
    containers: Arc<Containers>,
    table: String,
    state: Mutex<State>,
    begun: Notify,
    /// Whether [`HeldPorts`] runs: only it would end a hold in time.
    is_kept: AtomicBool,
    kernel: sync::Mutex<Kernel>,
}

#[derive(Default)]
struct State {
    /// The version of each pod that serves, or is to.
    serving: BTreeMap<FullName, Arc<Pod>>,
    /// Whether that was noted once.
    is_noted: bool,
    ports: BTreeMap<HeldPort, Between>,
}

/// A host port between two versions.
#[derive(Debug, Clone)]
struct Between {
    full_name: FullName,
    began: Instant,
    /// The container that was signalled to end; none if this agent has signalled none.
    stop: Option<Stop>,
    /// When the old container ended; when the new version's network and sandbox were ready.
    ended: Option<Instant>,
    connected: Option<(Instant, Arc<str>)>,
    /// Whether the old one accepted connections when it was last asked, and when.
    accepts: Option<(Instant, bool)>,
    waits: bool,
}

/// A container that was signalled to end.
#[derive(Debug, Clone)]
struct Stop {
    id: Arc<str>,
    uid: PodUid,
    /// The port of it, where it is known.
    port: Option<u16>,
    kill_at: Instant,
    /// When the Engine said that it could not be stopped.
    failed: Option<Instant>,
}

/// The ports that the kernel was last asked to hold, and when.
#[derive(Default)]
struct Kernel {
    held: BTreeSet<HeldPort>,
    renewed: Option<Instant>,
}

/// Ports whose container is being stopped; dropping this means that it has ended, unless the stop
/// [failed](Self::failed).
pub(crate) struct Stopping<'a> {
    holds: &'a Holds,
    ports: Vec<HeldPort>,
    has_failed: bool,
}

impl Stopping<'_> {
    /// The Engine could not stop the container. If it runs, it may continue to serve.
    pub(crate) fn failed(mut self) {
        self.has_failed = true;
    }
}

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        let now = Some(Instant::now());
        self.holds.with(|state| {
            for port in &self.ports {
                match state.ports.get_mut(port) {
                    Some(Between {
                        stop: Some(stop), ..
                    }) if self.has_failed => stop.failed = now,
                    Some(between) => between.ended = now,
                    None => {}
                }
            }
        });
    }
}

impl Between {
    /// A port whose hold begins, unless the old container has not been signalled yet.
    fn new(full_name: &FullName, stop: Option<Stop>) -> Self {
        Self {
            full_name: full_name.clone(),
            began: Instant::now(),
            waits: stop.is_some(),
            stop,
            ended: None,
            connected: None,
            accepts: None,
        }
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

    /// Records which version of each pod serves, or will. On the first call, ports of versions that
    /// have replaced others are held until they accept connections, unless they have run for long: an
    /// earlier agent was killed in between.
    pub(super) fn serve(&self, pods: &ServingPods) {
        let left = |name: &FullName, new: &Pod| {
            pods.successors.contains(name) && !self.has_settled(&PodUid::of(new))
        };
        let is_held = self.with(|state| {
            state.serving.clone_from(&pods.serving);
            if std::mem::replace(&mut state.is_noted, true) {
                return false;
            }
            for (name, new) in pods.serving.iter().filter(|(name, new)| left(name, new)) {
                for port in tcp_ports(new, |_| true).iter().map(held_port) {
                    let between = Between::new(name, None);
                    state.ports.insert(port, between);
                }
            }
            !state.ports.is_empty()
        });
        if is_held {
            self.begun.notify_one();
        }
    }

    /// Whether a version of a pod serves, or will, according to the last [`serve`](Self::serve).
    pub(crate) fn serves(&self, name: &FullName, uid: &PodUid) -> bool {
        let serving = self.with(|state| state.serving.get(name).cloned());
        serving.is_some_and(|pod| PodUid::of(&pod) == *uid)
    }

    /// Holds the host ports of a container that is about to be signalled, if a version of its pod will
    /// replace it: another one, or its own if that is wanted again though its stop had begun. `pod` is
    /// absent for a pod that an earlier agent started.
    pub(crate) async fn begin(
        &self,
        record: &Record,
        pod: Option<&Arc<Pod>>,
        name: &str,
        left: Duration,
    ) -> Option<Stopping<'_>> {
        if !self.is_kept.load(Ordering::Relaxed) {
            return None;
        }
        let container = &record.ours;
        let new = self.with(|state| state.serving.get(&container.full_name).cloned())?;
        let new_uid = PodUid::of(&new);
        if new_uid != container.uid && self.runs(&new_uid) {
            return None;
        }
        let old_ports = pod.map(|pod| tcp_ports(pod, |of| of == name));
        let kill_at = kill_at(left);
        let mut ports = Vec::new();
        self.with(|state| {
            for port in tcp_ports(&new, |_| true).iter().map(held_port) {
                let old_port = old_ports.as_ref().and_then(|old| find(old, port));
                if old_ports.is_some() && old_port.is_none() {
                    // Another container's, or no client connects to it yet.
                    continue;
                }
                ports.push(port);
                let stop = Stop {
                    id: Arc::clone(&record.id),
                    uid: container.uid.clone(),
                    port: old_port,
                    kill_at,
                    failed: None,
                };
                let between = Between::new(&container.full_name, Some(stop));
                state.ports.insert(port, between);
            }
        });
        if ports.is_empty() {
            return None;
        }
        self.apply().await;
        self.begun.notify_one();
        Some(Stopping {
            holds: self,
            ports,
            has_failed: false,
        })
    }

    /// Whether a container of a version runs.
    fn runs(&self, uid: &PodUid) -> bool {
        let index = &self.containers.index;
        index.any_runs(|record| record.ours.uid == *uid && is_running(record))
    }

    /// Whether a container of a version has run for long enough to accept connections.
    fn has_settled(&self, uid: &PodUid) -> bool {
        let now = Timestamp::now();
        let is_late = |at| Duration::try_from(now.duration_since(at)).is_ok_and(Gap::is_late);
        let index = &self.containers.index;
        index.any_runs(|record| {
            record.ours.uid == *uid && is_running(record) && record.started_at.is_some_and(is_late)
        })
    }

    /// Applies the holds in the kernel. If it refuses, connections are refused, too: the check of the
    /// host reports the missing capability.
    async fn apply(&self) {
        let mut kernel = self.kernel.lock().await;
        let wanted: BTreeSet<HeldPort> = self.with(|state| {
            let waiting = state.ports.iter().filter(|(_, between)| between.waits);
            waiting.map(|(port, _)| *port).collect_set()
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

    /// Checks every port that may be held.
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
                known.ended = known.ended.or(seen.ended);
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
        let serving = self.with(|state| state.serving.get(&between.full_name).cloned());
        let ended = match (between.ended, between.stop.clone()) {
            (Some(ended), _) => ended,
            (None, Some(stop)) => match stop.failed {
                None => {
                    let since = self.since_signal(between.began, &stop.id);
                    let now = Instant::now();
                    return Gap::Stopping {
                        since,
                        left: stop.kill_at.saturating_duration_since(now),
                        overdue: now.saturating_duration_since(stop.kill_at),
                        accepts: Gap::is_overdue(since) && self.old_accepts(between, &stop).await,
                    };
                }
                Some(failed) if self.runs(&stop.uid) => {
                    // For an unknown port it can't be determined that no process listens there.
                    let accepts = stop.port.is_none() || self.old_accepts(between, &stop).await;
                    let since = failed.elapsed();
                    return Gap::Unstopped { since, accepts };
                }
                Some(_) => *between.ended.insert(Instant::now()),
            },
            (None, None) if serving.as_ref().is_some_and(|new| self.another_runs(new)) => {
                return Gap::Serving;
            }
            (None, None) => *between.ended.insert(Instant::now()),
        };
        let Some(new) = serving else {
            return Gap::Over;
        };
        let Some(new_port) = find(&tcp_ports(&new, |_| true), port) else {
            return Gap::Over;
        };
        let Some((id, ip)) = self.address(&PodUid::of(&new)) else {
            return Gap::Starting {
                since: ended.elapsed(),
            };
        };
        let connected = match &between.connected {
            Some((connected, known)) if *known == id => *connected,
            _ => between.connected.insert((Instant::now(), id)).0,
        };
        if accepts(ip, new_port).await {
            Gap::Over
        } else {
            Gap::Starting {
                since: connected.elapsed(),
            }
        }
    }

    /// How long ago a container was signalled: counted from the order to stop it, or from the Engine's
    /// report of the signal, which a busy Engine may send much later.
    fn since_signal(&self, ordered: Instant, id: &str) -> Duration {
        let record = self.containers.index.get(id);
        let signalled = record.and_then(|record| record.signalled);
        signalled.map_or(ordered, |at| at.max(ordered)).elapsed()
    }

    async fn old_accepts(&self, between: &mut Between, stop: &Stop) -> bool {
        if let Some((at, accepts)) = between.accepts
            && at.elapsed() < OVERDUE_PERIOD
        {
            return accepts;
        }
        let accepts = match (self.address(&stop.uid), stop.port) {
            (Some((_, ip)), Some(port)) => accepts(ip, port).await,
            _ => false,
        };
        between.accepts = Some((Instant::now(), accepts));
        accepts
    }

    /// Whether a container of another version of a pod runs.
    fn another_runs(&self, new: &Pod) -> bool {
        let (name, uid) = (FullName::of(new), PodUid::of(new));
        let is_another = |record: &Record| record.ours.full_name == name && record.ours.uid != uid;
        let index = &self.containers.index;
        index.any_runs(|record| is_another(record) && is_running(record))
    }

    /// A version's sandbox that runs, and its address.
    fn address(&self, uid: &PodUid) -> Option<(Arc<str>, IpAddr)> {
        let records = self.containers.index.of_pod(uid);
        let mut running = records.iter().filter(|record| {
            record.state == ContainerState::Running
                && matches!(record.ours.kind, Kind::Sandbox { .. })
        });
        running.find_map(|record| Some((Arc::clone(&record.id), *record.ips().first()?)))
    }
}

/// The task that renews and ends the holds of host ports; run it beside a manager.
pub struct HeldPorts {
    holds: Arc<Holds>,
}

impl HeldPorts {
    pub(crate) fn new(holds: Arc<Holds>) -> Self {
        Self { holds }
    }

    /// Runs until cancelled. Remaining holds end with their lease.
    pub async fn run(self) {
        let holds = &self.holds;
        holds.is_kept.store(true, Ordering::Relaxed);
        // Left by a previous agent.
        let lapsed = tokio::time::sleep(LEASE);
        let mut lapsed = std::pin::pin!(lapsed);
        let mut is_lapsed = false;
        loop {
            let is_idle = holds.with(|state| state.ports.is_empty());
            tokio::select! {
                () = holds.begun.notified(), if is_idle => {}
                () = tokio::time::sleep(LOOK_PERIOD), if !is_idle => {}
                () = &mut lapsed, if !is_lapsed && is_idle => {
                    is_lapsed = true;
                    let table = holds.table.clone();
                    let _ = disk::blocking(move || nat::release(&table)).await;
                }
            }
            holds.look().await;
        }
    }
}

/// When a container with that much of its grace period left is killed.
pub(super) fn kill_at(left: Duration) -> Instant {
    Instant::now() + left.min(spec::GRACE_MAX)
}

fn is_running(record: &Record) -> bool {
    record.state == ContainerState::Running && matches!(record.ours.kind, Kind::Container { .. })
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

/// The port of the container behind a host port.
fn find(ports: &[ForwardedPort], wanted: HeldPort) -> Option<u16> {
    let port = ports.iter().find(|port| held_port(port) == wanted)?;
    Some(port.container_port)
}

/// Whether a process of a pod accepts connections. The process sees a connection that closes at once,
/// like a TCP probe.
async fn accepts(ip: IpAddr, port: u16) -> bool {
    let connecting = TcpStream::connect(SocketAddr::new(ip, port));
    matches!(
        tokio::time::timeout(CONNECT_DEADLINE, connecting).await,
        Ok(Ok(_))
    )
}
