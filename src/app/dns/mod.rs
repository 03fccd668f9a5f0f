//! The DNS server of the pods: its pod, and the upstream servers.
//!
//! The agent runs it as a static pod of its own, from a manifest that it writes itself, so that it is
//! probed, updated and shown like all pods, and outlives the agent.

mod pod;
mod used;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::facts::text;
use super::host::{is_apart_from, network_of};
use super::parts::{Parts, spawn_until};
use super::sources::make_private;
use crate::config::Config;
use crate::names::DnsTable;
use crate::source::{SourceReader, SourceWriter, source};
use crate::store::cell::{Writer, cell};
use mirrorlet_core::api::{Code, Diagnostic, NodeName, Pod, Timestamp};
use mirrorlet_core::desired::{Origin, PodSource, SourcePod, SourceSet};
use mirrorlet_core::merge::SourceName;
use mirrorlet_core::node::RuntimeReach;
use mirrorlet_docker::engine::{SharedEngine, is_own};
use mirrorlet_docker::image::SANDBOX_IMAGE;
use mirrorlet_docker::translate::ResolvConf;
use mirrorlet_host::disk;
use mirrorlet_host::telemetry::occurrences;
use pod::{DnsPod, PORT, pod_of};

/// Directory of the table and the manifest under the root.
const DIRECTORY: &str = "dns";
/// The table's file.
const TABLE: &str = "table.json";
/// The manifest's file.
const MANIFEST: &str = "pod.yaml";
/// Most MiB of it.
const MANIFEST_MIB_MAX: u64 = 1;

/// Pause after an attempt that failed. It doesn't grow: an attempt is cheap, pods have no DNS until then,
/// and a failure that repeats is reported once.
const RETRY: Duration = Duration::from_secs(10);
/// How often the node's servers are read.
const FORWARDERS_PERIOD: Duration = Duration::from_secs(10);
/// How often the agent looks for the network's address, and for pods that query another.
const LOOK_PERIOD: Duration = Duration::from_mins(5);
/// How often the source counts as read: there is nothing to read that could be gone.
const ALIVE_PERIOD: Duration = Duration::from_mins(1);

/// The DNS server.
pub(super) struct Dns {
    directory: PathBuf,
    node_name: NodeName,
    network: String,
    engine: SharedEngine,
    owner: String,
    writer: SourceWriter,
    pod: DnsPod,
    /// The addresses and subnets of the manifest that was written last.
    written: Served,
    /// Whether it is wanted; otherwise it stays as long as pods use it.
    is_wanted: bool,
    /// Whether the agent has other files than the host, and maybe another network: it can't determine
    /// then whether the server is used.
    is_apart: bool,
}

/// Creates the parts for the DNS server if it is enabled or was before: the task, the source of its pod
/// and its table.
///
/// # Errors
/// It can't run on this machine.
pub(super) async fn start(
    config: &Config,
    (engine, owner): (&SharedEngine, &str),
    parts: &mut Parts,
    cancel: &CancellationToken,
) -> anyhow::Result<Option<(Dns, SourceReader, DnsTable)>> {
    let directory = config.root.join(DIRECTORY);
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    if !config.dns && !directory.join(MANIFEST).exists() {
        return Ok(None);
    }
    let is_apart = is_apart_from(&config.docker).await;
    if config.dns && is_apart {
        anyhow::bail!(
            "--dns: the agent runs in a container, and the DNS server needs the program's file on the host: run mirrorlet on the host, or leave --dns out"
        );
    }
    make_private(&directory)?;
    let image = config.pod_infra_image.clone();
    let image = image.unwrap_or_else(|| SANDBOX_IMAGE.to_owned());
    let table = (directory.clone(), TABLE);
    let pod = disk::blocking(move || DnsPod::of_this_program(table, image)).await?;
    let (forwarders, forwarders_now) = cell(forwarders_of(&text(&config.resolv_conf)));
    let keeping = keep_forwarders(config.resolv_conf.clone(), forwarders);
    spawn_until(parts, cancel, "DNS forwarders", keeping);
    let location = directory.join(MANIFEST).to_string_lossy().into_owned();
    let (mut writer, reader) = source(SourceName::new(PodSource::File, location.as_str()));
    // An earlier agent's manifest is wanted until more is known, without any wait.
    let path = directory.join(MANIFEST);
    let text = disk::blocking(move || disk::read_small(&path, MANIFEST_MIB_MAX)).await;
    let text = text.unwrap_or_default();
    let set = set_of(&text, &location, &config.node_name).unwrap_or_default();
    let written = set.pods.first().map(|known| Served::of(&known.pod));
    writer.publish(set);
    let table = DnsTable {
        path: directory.join(TABLE),
        domain: config.cluster_domain.clone(),
        forwarders: forwarders_now,
    };
    let dns = Dns {
        directory,
        node_name: config.node_name.clone(),
        network: network_of(config),
        engine: Arc::clone(engine),
        owner: owner.to_owned(),
        writer,
        pod,
        written: written.unwrap_or_default(),
        is_wanted: config.dns,
        is_apart,
    };
    Ok(Some((dns, reader, table)))
}

impl Dns {
    /// Maintains the server's pod until cancelled.
    pub(super) async fn run(mut self, mut reach: watch::Receiver<RuntimeReach>) {
        if self.is_apart {
            return self.rest().await;
        }
        let (mut reported, mut due) = (None, Instant::now());
        loop {
            let is_up = matches!(&*reach.borrow_and_update(), RuntimeReach::Up);
            if is_up && due <= Instant::now() {
                let problem = match self.provide().await {
                    Ok(true) => None,
                    Ok(false) => return self.rest().await,
                    Err(problem) => Some(problem),
                };
                if let Some(problem) = problem.as_ref().filter(|_| reported != problem) {
                    occurrences::dns_failed(&problem.message);
                    self.writer.failed(problem.clone());
                }
                due = Instant::now() + problem.as_ref().map_or(LOOK_PERIOD, |_| RETRY);
                reported = problem;
            }
            if reported.is_none() {
                self.writer.succeeded(Timestamp::now());
            }
            let alive = Instant::now() + ALIVE_PERIOD;
            tokio::select! {
                () = sleep_until(if is_up { due.min(alive) } else { alive }) => {}
                changed = reach.changed() => match changed {
                    Ok(()) => due = Instant::now(),
                    Err(_) => return,
                },
            }
        }
    }

    /// Leaves all as it is.
    async fn rest(mut self) {
        loop {
            self.writer.succeeded(Timestamp::now());
            sleep(ALIVE_PERIOD).await;
        }
    }

    /// Provides the pod once; false once it is no longer needed.
    async fn provide(&mut self) -> Result<bool, Diagnostic> {
        let mut next = if self.is_wanted {
            self.in_network().await?
        } else {
            Served::default()
        };
        let earlier = self.written.listen.iter().copied();
        let earlier: Vec<Ipv4Addr> = earlier
            .filter(|address| !next.listen.contains(address) && is_own(IpAddr::V4(*address)))
            .collect();
        if !earlier.is_empty() {
            let queried = used::queried(&self.engine, &self.owner, &earlier).await;
            let queried = queried.map_err(|error| self.problem(&error.to_string(), None))?;
            next.add(queried, &self.written.subnets);
        }
        if next.listen.is_empty() {
            self.writer.publish(SourceSet::default());
            let directory = self.directory.clone();
            let removed = disk::blocking(move || std::fs::remove_dir_all(directory)).await;
            let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
            let failed = removed.err().filter(|error| !is_gone(error));
            return match failed {
                None => Ok(false),
                Some(error) => Err(self.problem(&error.to_string(), None)),
            };
        }
        // Our own server may listen on those of before.
        let is_held = |address: &Ipv4Addr| self.written.listen.contains(address);
        for address in next.listen.iter().filter(|address| !is_held(address)) {
            is_free(*address).map_err(|error| self.taken(*address, &error))?;
        }
        let failed = |error: anyhow::Error| self.problem(&format!("{error:#}"), None);
        let set = self.write(&next).await.map_err(failed)?;
        self.writer.publish(set);
        self.written = next;
        Ok(true)
    }

    /// The host's addresses in the pods' network, and its subnets.
    async fn in_network(&self) -> Result<Served, Diagnostic> {
        let side = self.engine.network_host_side(&self.network).await;
        let side = side.map_err(|error| self.problem(&error.to_string(), None))?;
        let listen: Vec<Ipv4Addr> = side.own_addresses().collect();
        if listen.is_empty() {
            let network = &self.network;
            let message = format!(
                "the agent can't find the host's address in the Docker network {network}, where the DNS server would listen; pods query the node's servers"
            );
            let help = "use a network of the driver bridge, or leave --dns out";
            return Err(self.problem(&message, Some(help)));
        }
        Ok(Served {
            listen,
            subnets: side.subnets,
        })
    }

    /// Writes the manifest; the set that has its pod.
    async fn write(&self, next: &Served) -> anyhow::Result<SourceSet> {
        let path = self.directory.join(MANIFEST);
        let text = serde_json::to_string_pretty(&self.pod.manifest(&next.listen, &next.subnets))?;
        let location = path.to_string_lossy().into_owned();
        let set = set_of(text.as_bytes(), &location, &self.node_name)?;
        let written = disk::blocking(move || disk::replace(&path, text.as_bytes())).await;
        written.with_context(|| format!("failed to write {location}"))?;
        Ok(set)
    }

    fn problem(&self, message: &str, help: Option<&str>) -> Diagnostic {
        let location = self.directory.join(MANIFEST).to_string_lossy().into_owned();
        let problem = Diagnostic::error(Code::SourceUnavailable, location, message);
        match help {
            Some(help) => problem.help(help),
            None => problem,
        }
    }

    fn taken(&self, address: Ipv4Addr, error: &io::Error) -> Diagnostic {
        if error.kind() != io::ErrorKind::AddrInUse {
            return self.problem(&format!("failed to bind {address}:{PORT}: {error}"), None);
        }
        let message =
            format!("port {PORT} of {address} is in use, so the DNS server can't listen there");
        let help = format!(
            "find the other server with ss -lntup 'sport = :{PORT}', and have it not listen on {address}"
        );
        self.problem(&message, Some(&help))
    }
}

/// The addresses of a server, and the subnets of its clients.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Served {
    listen: Vec<Ipv4Addr>,
    subnets: Vec<String>,
}

impl Served {
    /// Those of a pod.
    fn of(pod: &Pod) -> Self {
        let (listen, subnets) = pod::served_by(pod);
        Self { listen, subnets }
    }

    /// Adds addresses that pods query, with the subnets that these pods may be in.
    fn add(&mut self, queried: BTreeSet<Ipv4Addr>, subnets: &[String]) {
        if queried.is_empty() {
            return;
        }
        self.listen.extend(queried);
        for subnet in subnets {
            if !self.subnets.contains(subnet) {
                self.subnets.push(subnet.clone());
            }
        }
    }
}

/// The set of a manifest with the pod of the server.
fn set_of(manifest: &[u8], location: &str, node_name: &NodeName) -> anyhow::Result<SourceSet> {
    let pod = pod_of(manifest, location, node_name)?;
    let origin = Origin::whole(PodSource::File, location);
    Ok(SourceSet {
        pods: vec![SourcePod::new(pod, origin)],
        ..SourceSet::default()
    })
}

/// Whether the port is free. Two servers could share a port, and would each get half of the queries.
fn is_free(address: Ipv4Addr) -> io::Result<()> {
    let at = SocketAddr::from((address, PORT));
    UdpSocket::bind(at)?;
    TcpListener::bind(at)?;
    Ok(())
}

/// The servers of a `resolv.conf`.
fn forwarders_of(resolv_conf: &str) -> Vec<IpAddr> {
    let servers = ResolvConf::parse(resolv_conf).servers;
    servers
        .iter()
        .filter_map(|server| server.parse().ok())
        .collect()
}

/// Updates the upstream servers from the file until cancelled. A file without any, as while it is being
/// written, changes nothing.
async fn keep_forwarders(path: PathBuf, mut forwarders: Writer<Vec<IpAddr>>) {
    loop {
        sleep(FORWARDERS_PERIOD).await;
        let path = path.clone();
        let now = disk::blocking(move || forwarders_of(&text(&path))).await;
        if !now.is_empty() {
            forwarders.publish(now);
        }
    }
}
