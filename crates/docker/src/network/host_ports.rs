//! Host ports that change pods while both run.
//!
//! The Engine publishes a host port for the sandbox that it was created with. A pod that runs beside
//! the one that it is to replace has its ports published on loopback alone, and rules of ours
//! lead the host ports to it once it takes the other's place ([`mirrorlet_host::nat`]). Which ports
//! those are is a label of the sandbox, so that everything here can be found out again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bollard::models::PortMap;
use tokio::sync::{Mutex, Notify, watch};

mod flows;
mod kept;

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
/// Longest name of a table, well below the kernel's limit.
const TABLE_NAME_MAX: usize = 100;

/// The rules that lead host ports to pods, and who they lead to.
pub(crate) struct HostPorts {
    containers: Arc<Containers>,
    /// Name of the pods' network.
    network: String,
    /// Name of our table.
    table: String,
    state: Mutex<State>,
    /// Host ports whose connections wait for another version.
    pub(crate) holds: Arc<Holds>,
    /// The host's side of the network, once it was asked for.
    side: parking_lot::Mutex<Option<HostSide>>,
    /// Whether it was said that flows can't be forgotten.
    is_told: AtomicBool,
    /// Whether there are rules of ours, which somebody else may remove.
    are_led: watch::Sender<bool>,
    /// A look at the rules in the kernel is asked for.
    asked: Notify,
}

#[derive(Default)]
struct State {
    /// The pods that the host ports are to lead to.
    pods: ServingPods,
    /// The rules that were made; unknown at first.
    applied: Option<BTreeSet<Forward>>,
    /// The same as the kernel names them, if that was read.
    rules: Option<Rules>,
    /// Ids of the sandboxes that ran at the last look.
    seen: BTreeSet<Arc<str>>,
}

/// A sandbox whose host ports can be led to it.
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
            is_told: AtomicBool::new(false),
            are_led: watch::Sender::new(false),
            asked: Notify::new(),
        }
    }

    /// See [`Runtime::serve_host_ports`](mirrorlet_runtime::Runtime::serve_host_ports).
    pub(crate) async fn serve(&self, pods: ServingPods) -> Result<(), SyncError> {
        self.holds.serve(&pods);
        let mut state = self.state.lock().await;
        if state.pods.has_same_versions(&pods) && state.applied.is_some() {
            return Ok(());
        }
        let before = std::mem::replace(&mut state.pods, pods);
        let applied = self.apply(&mut state).await;
        if applied.is_err() {
            state.pods = before;
        }
        applied
    }

    /// Takes the rules of sandboxes that have ended out of the kernel, before another sandbox may get
    /// their addresses or ports.
    pub(crate) async fn refresh(&self) -> Result<(), SyncError> {
        let mut state = self.state.lock().await;
        if state.applied.as_ref().is_none_or(BTreeSet::is_empty) {
            return Ok(());
        }
        self.apply(&mut state).await
    }

    /// Fails where the host ports of a pod can't be handed over on this machine.
    pub(crate) async fn check(&self, pod: &Pod) -> Result<(), SyncError> {
        if forwarded_ports(pod).is_empty() {
            return Ok(());
        }
        self.gateway().await?;
        let table = format!("{}-check", self.table);
        let checked = disk::blocking(move || nat::check(&table)).await;
        checked.map_err(|error| {
            refused(&format!(
                "the kernel takes no rules for it from this agent ({error})"
            ))
        })
    }

    /// The host's address in the pods' network.
    pub(crate) async fn gateway(&self) -> Result<Ipv4Addr, SyncError> {
        let side = self.host_side().await?;
        // An address can be bound only where it is one's own.
        let own = |address: &Ipv4Addr| UdpSocket::bind((*address, 0)).is_ok();
        let mut addresses = side.gateways.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        let gateway = addresses.find(own).filter(|_| side.bridge.is_some());
        gateway.ok_or_else(|| {
            self.forget();
            let network = &self.network;
            refused(&format!(
                "the agent does not see the host's side of the Docker network {network}"
            ))
        })
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

    /// Asks the Engine for the host's side anew next time: a sandbox did not start, so it may have
    /// changed.
    pub(crate) fn forget(&self) {
        *self.side.lock() = None;
    }

    async fn apply(&self, state: &mut State) -> Result<(), SyncError> {
        let records = self.containers.index.led_sandboxes();
        let sandboxes = self.look(&mut state.seen, &records).await?;
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
        state.rules = replaced.map_err(|error| refused(&format!("the kernel says: {error}")))?;
        self.are_led.send_replace(!forwards.is_empty());
        let which = match state.applied.replace(forwards.clone()) {
            // An agent before this one may have been killed before it came to it.
            None => Flows::ClosedAndUdp,
            Some(_) => Flows::Closed,
        };
        self.forget_flows(forwards, which).await;
        Ok(())
    }

    /// Returns the sandboxes that host ports can be led to, as they were last inspected. The Engine is
    /// asked only where that would show something new.
    async fn look(
        &self,
        seen: &mut BTreeSet<Arc<str>>,
        records: &[Record],
    ) -> Result<Vec<ForwardedSandbox>, SyncError> {
        let runs = |record: &Record| record.state == ContainerState::Running;
        seen.retain(|id| records.iter().any(|r| r.id == *id && runs(r) && !r.stale));
        if seen.is_empty() {
            // A network that one of them is in can't be made anew; else names of interfaces, which
            // go into the rules, are asked for as they are now.
            self.forget();
        }
        let mut sandboxes = Vec::new();
        // One that was not started has no address.
        for record in records
            .iter()
            .filter(|r| r.state != ContainerState::Created)
        {
            // On the heap: it is seldom needed, and large.
            let freshened = Box::pin(self.containers.freshen(&record.id)).await;
            freshened.map_err(|error| runtime_error(&error))?;
            let Some(record) = self.containers.index.get(&record.id).filter(runs) else {
                continue;
            };
            let side = self.host_side().await?;
            sandboxes.extend(led_sandbox(&record, &side));
            seen.insert(record.id);
        }
        Ok(sandboxes)
    }
}

/// Whether a sandbox of a pod runs whose ports the Engine publishes.
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

/// Name of the table of an owner's rules, as `nft` takes it.
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

/// The rules: of each full name, those of the pod that serves, unless the Engine publishes its ports.
/// Where that one has no sandbox yet, or nobody serves any more, the ports stay with the sandbox that
/// they lead to as long as it runs.
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use bollard::models::PortBinding;
    use mirrorlet_host::nat::Protocol;

    fn sandbox(name: &str, uid: &str, created: i64) -> ForwardedSandbox {
        let address = Ipv4Addr::new(172, 17, 0, u8::try_from(created).unwrap());
        ForwardedSandbox {
            full_name: FullName::new(name, "default"),
            uid: uid.into(),
            created_at: Timestamp::from_second(created).unwrap(),
            forwards: vec![Forward {
                protocol: Protocol::Tcp,
                host_ip: None,
                host_port: 80,
                pod: SocketAddrV4::new(address, 8080),
                detour: Detour::None,
                comment: uid.to_owned(),
            }],
        }
    }

    /// The sandbox that the rules lead to, of `a` (older) and `b` of one pod.
    fn led(serving: Option<&str>, beside: &[&str], there: &[&str]) -> Vec<String> {
        led_beside(None, serving, beside, there)
    }

    /// The same where the Engine publishes the ports of `published`.
    fn led_beside(
        published: Option<&str>,
        serving: Option<&str>,
        beside: &[&str],
        there: &[&str],
    ) -> Vec<String> {
        let pod = |uid: &str| {
            let mut pod = Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            Arc::new(pod)
        };
        let pods = ServingPods {
            serving: serving
                .map(|uid| (FullName::new("web", "default"), pod(uid)))
                .into_iter()
                .collect(),
            beside: beside.iter().copied().map(PodUid::from).collect(),
            successors: BTreeSet::new(),
        };
        let all = [sandbox("web", "a", 1), sandbox("web", "b", 2)];
        let there = all.into_iter().filter(|s| there.contains(&s.uid.as_str()));
        let is_published = |pod: &Pod| published == Some(PodUid::of(pod).as_str());
        let rules = forwards(&pods, is_published, there.collect());
        rules.into_iter().map(|forward| forward.comment).collect()
    }

    #[test]
    fn ports_lead_to_what_serves_or_stay_where_they_are() {
        assert_eq!(led(Some("a"), &["b"], &["a", "b"]), ["a"], "judged");
        assert_eq!(led(Some("b"), &[], &["a", "b"]), ["b"], "handed over");
        assert_eq!(
            led(Some("a"), &["b"], &["b"]),
            [""; 0],
            "the Engine publishes a's"
        );
        assert_eq!(
            led(Some("c"), &[], &["b"]),
            ["b"],
            "its successor waits for its end"
        );
        assert_eq!(
            led_beside(Some("a"), Some("a"), &[], &["b"]),
            [""; 0],
            "it has failed beside a"
        );
        assert_eq!(led(None, &[], &["b"]), ["b"], "it ends in its grace");
        assert_eq!(led(Some("a"), &[], &[]), [""; 0]);
    }

    #[test]
    fn the_detour_is_the_proxy_of_the_sandbox() {
        let binding = |ip: &str, port: &str| PortBinding {
            host_ip: Some(ip.to_owned()),
            host_port: Some(port.to_owned()),
        };
        let port: ForwardedPort = "80/tcp=8080".parse().unwrap();
        let both = vec![
            binding("172.17.0.1", "32769"),
            binding("127.0.0.1", "32768"),
        ];
        let published: HashMap<_, _> = [("8080/tcp".to_owned(), Some(both))].into();
        let side = |bridge: Option<&str>| HostSide {
            bridge: bridge.map(str::to_owned),
            gateways: Vec::new(),
        };
        let by_proxy = Detour::Proxy {
            loopback: 32768,
            bridge: "no-such-bridge".to_owned(),
            port: 32769,
        };
        assert_eq!(
            detour(Some(&published), &port, &side(Some("no-such-bridge"))),
            by_proxy
        );
        assert_eq!(detour(Some(&published), &port, &side(None)), Detour::None);
        // The loopback interface takes what is the machine's own, whatever the switch says.
        assert_eq!(detour(None, &port, &side(Some("lo"))), Detour::None);
    }

    #[test]
    fn a_table_has_a_name_that_can_be_typed() {
        assert_eq!(table_name("0a1b"), "mirrorlet-0a1b");
        assert_eq!(table_name("a b/c"), "mirrorlet-a_b_c");
        assert_eq!(table_name(&"x".repeat(300)).len(), TABLE_NAME_MAX);
    }
}
