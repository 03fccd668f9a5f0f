//! The pods' network, which is one of the Engine's.
//!
//! The Engine connects a sandbox to its network at its start, and disconnects it at its end; the agent
//! checks that the network exists and that the sandbox has an address. A pod's `resolv.conf` is the
//! same in every network; if the Engine writes its own resolver into it, it is rewritten in place, so
//! that the containers that share the file see it.
//!
//! Upstream: `pkg/kubelet/dockershim/network/plugins.go`, cri-dockerd `core/sandbox_run.go`.

mod holds;
mod host_ports;
mod ports;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;

use super::containers::Containers;
use super::engine::{EngineError, SharedEngine};
use super::files::PodFiles;
use super::index::{Record, sandbox_mode};
use super::translate::{HostFacts, asks_cluster, compute_dns};
pub use holds::HeldPorts;
pub(crate) use host_ports::HostPorts;
pub use host_ports::LedPorts;
pub use host_ports::table_name;
use mirrorlet_core::api::Pod;
use mirrorlet_core::spec;
use mirrorlet_runtime::{RuntimeError, SyncError, SyncErrorReason};

/// Drivers of networks that give a pod no address of its own.
const NO_NETWORKS: [&str; 2] = ["host", "null"];

/// The name of the network where none is chosen.
const DEFAULT_BRIDGE: &str = "bridge";

/// Why a pod can't have its network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NetworkError {
    /// The Docker network is not there.
    #[error(
        "the Docker network {0:?} does not exist: create it with \"docker network create {0}\", or choose another with --network"
    )]
    Missing(String),
    /// It gives pods no address.
    #[error(
        "the Docker network {name:?} has driver {driver:?}, which does not assign addresses to pods"
    )]
    Unsuitable {
        /// Its name.
        name: String,
        /// Its driver.
        driver: String,
    },
    /// It gave a pod no address.
    #[error(
        "the Docker network {0:?} did not assign an address to the pod: check its driver and address range with \"docker network inspect {0}\", or choose another with --network"
    )]
    WithoutAddress(String),
    /// The Engine did not answer, or refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a sandbox did not start, in words.
pub(crate) struct FailedStart {
    /// All there is to say.
    pub(crate) message: String,
    /// The holder of a required host port, if that is the cause.
    pub(crate) conflict: Option<String>,
}

/// The Engine's network for pods that are not in the host's network.
pub(crate) struct EngineNetwork {
    engine: SharedEngine,
    /// The network; the default bridge when none.
    name: Option<String>,
    /// Whether the network was seen to be there.
    is_there: Mutex<bool>,
}

impl EngineNetwork {
    pub(crate) fn new(engine: SharedEngine, name: Option<String>) -> Self {
        Self {
            engine,
            name,
            is_there: Mutex::default(),
        }
    }

    fn mark(&self, is_there: bool) {
        *self.is_there.lock() = is_there;
    }

    /// The network mode that sandboxes are created with.
    pub(crate) fn sandbox_mode(&self) -> &str {
        sandbox_mode(self.name.as_deref())
    }

    /// Whether the Engine points a container's `resolv.conf` to a resolver of its own.
    fn has_own_resolver(&self) -> bool {
        self.name.is_some()
    }

    /// Whether pods can be given a network. Cheap once that is known.
    pub(crate) async fn status(&self) -> Result<(), NetworkError> {
        // The default bridge exists whenever the Engine runs.
        let Some(name) = &self.name else {
            return Ok(());
        };
        if *self.is_there.lock() {
            return Ok(());
        }
        let driver = match self.engine.network_driver(name).await {
            Ok(driver) => driver,
            Err(error) if error.is_not_found() => {
                return Err(NetworkError::Missing(name.clone()));
            }
            Err(error) => return Err(error.into()),
        };
        if NO_NETWORKS.contains(&driver.as_str()) {
            let name = name.clone();
            return Err(NetworkError::Unsuitable { name, driver });
        }
        self.mark(true);
        Ok(())
    }

    /// Drops cached facts about the Engine, which was away.
    pub(crate) fn forget(&self) {
        self.mark(false);
    }

    /// Checks the addresses that the Engine gave a sandbox that runs: it needs one.
    fn set_up_pod(&self, ips: &[IpAddr]) -> Result<(), NetworkError> {
        if ips.is_empty() {
            let name = self.name.as_deref().unwrap_or(DEFAULT_BRIDGE);
            return Err(NetworkError::WithoutAddress(name.to_owned()));
        }
        Ok(())
    }
}

/// The networks of pods.
pub(super) struct Networks {
    pub(super) network: EngineNetwork,
    pub(super) containers: Arc<Containers>,
    pub(super) files: Arc<PodFiles>,
    /// Host ports that rules of ours forward to pods.
    pub(super) host_ports: HostPorts,
}

impl Networks {
    pub(super) fn new(
        containers: &Arc<Containers>,
        files: &Arc<PodFiles>,
        network: Option<String>,
    ) -> Self {
        let host_ports = HostPorts::new(Arc::clone(containers), network.as_deref());
        Self {
            network: EngineNetwork::new(Arc::clone(&containers.engine), network),
            containers: Arc::clone(containers),
            files: Arc::clone(files),
            host_ports,
        }
    }

    /// Forgets everything about the Engine's networks and the host's rules: both may have changed.
    pub(super) fn forget(&self) {
        self.network.forget();
        self.host_ports.forget();
        self.host_ports.look_at_rules();
    }

    /// The node's facts for a pod, as they are now: with the address of our DNS server, if the pod
    /// queries it. A network in which the host has no address has no such server.
    pub(super) async fn node_now(&self, pod: &Pod) -> Result<HostFacts, SyncError> {
        let mut node = self.files.node_now().await;
        if node.dns_at_gateway && asks_cluster(pod) {
            let address = self.host_ports.host_address().await?;
            node.cluster_dns = address.map(IpAddr::V4).into_iter().collect();
        }
        Ok(node)
    }

    /// Sets up the network of a running sandbox: its addresses, and the content of its `resolv.conf`.
    /// Idempotent.
    pub(super) async fn set_up_network(
        &self,
        pod: &Arc<Pod>,
        id: &str,
    ) -> Result<Vec<IpAddr>, SyncError> {
        if spec::is_host_network(pod) {
            return Ok(Vec::new());
        }
        let failed = |error: &dyn std::fmt::Display| {
            SyncError::new(SyncErrorReason::SetupNetworkError, error.to_string())
        };
        self.containers
            .freshen(id)
            .await
            .map_err(|error| match error {
                RuntimeError::Unavailable(_) => {
                    SyncError::new(SyncErrorReason::RuntimeUnavailable, error.to_string())
                }
                error => failed(&error),
            })?;
        let record = self.containers.index.get(id);
        let ips = record.as_ref().map(Record::ips).unwrap_or_default();
        self.network
            .set_up_pod(ips)
            .map_err(|error| failed(&error))?;
        self.ensure_resolv_conf(pod, id).await?;
        Ok(ips.to_vec())
    }

    /// Ensures the content of a running sandbox's `resolv.conf`; an earlier agent may have been killed
    /// before it was written.
    pub(super) async fn ensure_resolv_conf(
        &self,
        pod: &Arc<Pod>,
        id: &str,
    ) -> Result<(), SyncError> {
        if spec::is_host_network(pod) || !self.network.has_own_resolver() {
            return Ok(());
        }
        let record = self.containers.index.get(id);
        let path = record.and_then(|record| record.resolv_conf);
        self.write_resolv_conf(pod, path).await
    }

    /// Replaces the Engine's `resolv.conf` with the pod's name resolution. If the pod only uses the
    /// node's servers, the file stays as the Engine wrote it: its resolver reaches them, wherever they
    /// listen, and searches and options are in the sandbox's request.
    async fn write_resolv_conf(
        &self,
        pod: &Arc<Pod>,
        path: Option<PathBuf>,
    ) -> Result<(), SyncError> {
        let (dns, _) = compute_dns(pod, &self.node_now(pod).await?);
        if dns.inherited || dns.conf.servers.is_empty() {
            return Ok(());
        }
        let content = dns.conf.to_string();
        let failed = |cause: &str| {
            let message = format!("failed to write the pod's resolv.conf: {cause}");
            SyncError::new(SyncErrorReason::SetupNetworkError, message)
        };
        let Some(path) = path else {
            return Err(failed("the Engine does not report its path"));
        };
        self.files
            .on_disk(move |_| mirrorlet_host::volume::overwrite(&path, &content))
            .await
            .map_err(|error| failed(&error.to_string()))
    }

    /// Fails with advice while the pod network is not ready.
    pub(super) async fn check_network(&self, pod: &Pod) -> Result<(), SyncError> {
        if spec::is_host_network(pod) {
            return Ok(());
        }
        self.network.status().await.map_err(|error| {
            let reason = match &error {
                NetworkError::Engine(EngineError::Unavailable { .. }) => {
                    SyncErrorReason::RuntimeUnavailable
                }
                NetworkError::Missing(_)
                | NetworkError::Unsuitable { .. }
                | NetworkError::WithoutAddress(_)
                | NetworkError::Engine(_) => SyncErrorReason::CreatePodSandboxError,
            };
            SyncError::new(reason, error.to_string())
        })
    }

    /// Explains the failed start of a sandbox, and names the holder of a required host port.
    pub(super) async fn explain_start(&self, error: &EngineError) -> FailedStart {
        let message = error.to_string();
        let Some(port) = ports::conflict(&message) else {
            return FailedStart {
                message,
                conflict: None,
            };
        };
        let conflict = self.in_use(&port).await;
        FailedStart {
            message: format!("{conflict}: {message}"),
            conflict: Some(conflict),
        }
    }

    /// Reports that a host port is in use, and by which container or process. The protocol is that of a
    /// pod's port.
    pub(super) async fn port_in_use(&self, number: u16, protocol: &str) -> String {
        let protocol = match protocol {
            "UDP" => "udp",
            "SCTP" => "sctp",
            _ => "tcp",
        };
        let protocol = Some(protocol);
        self.in_use(&ports::HostPort { number, protocol }).await
    }

    async fn in_use(&self, port: &ports::HostPort) -> String {
        let holder = self.port_holder(port).await;
        format!("host port {port} is in use by {holder}")
    }

    /// Describes the holder of a host port.
    async fn port_holder(&self, port: &ports::HostPort) -> String {
        let publishers = self.containers.engine.list_publishers(port.number).await;
        if let Some(holder) = ports::publisher(
            &publishers.unwrap_or_default(),
            port,
            &self.containers.owner,
        ) {
            return holder;
        }
        let port = port.clone();
        let process = self.files.on_disk(move |_| Ok(ports::process(&port))).await;
        match process {
            Ok(Some(process)) => process,
            Ok(None) | Err(_) => "a process on this machine".to_owned(),
        }
    }
}
