//! Arguments, environment and file → one resolved [`Config`].
//!
//! [`key`] is the table of everything that can be set: each row has a flag, an environment name
//! and a config-file key, and every rung speaks the same text form, so there is one parser a
//! value. [`resolve`] is pure: what the process sees comes in as [`resolve::Ambient`].

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use mirrorlet_core::api::NodeName;
use mirrorlet_core::api::core::Taint;

pub mod args;
pub mod duration;
pub mod file;
pub mod key;
pub mod node;
pub mod parse;
pub mod resolve;
pub mod shown;

pub use file::{ConfigFile, ConfigFileError};
pub use key::{Key, Setting, SettingRow};
pub use node::{ApiAccess, SystemReserved};
pub use resolve::{Ambient, ConfigFaults, Origin, Resolved, resolve};

/// Default of [`Config::root`].
pub const DEFAULT_ROOT: &str = "/var/lib/mirrorlet";
/// Default of [`Config::resolv_conf`], which is what the Engine goes by.
pub const DEFAULT_RESOLV_CONF: &str = "/etc/resolv.conf";

/// What the agent runs with: every value decided, nothing optional that has a default.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Root directory: owner id, lock, socket, last-good manifests, pod directories.
    pub root: PathBuf,
    /// Manifest directory.
    pub manifests: PathBuf,
    /// Manifest URLs.
    pub manifest_urls: Vec<String>,
    /// Headers sent with every request to a manifest URL. Values may be secret.
    pub manifest_url_headers: Vec<(String, String)>,
    /// PEM file of the CAs trusted for https manifest URLs, beside the system's.
    pub manifest_url_ca: Option<PathBuf>,
    /// How often a URL is asked.
    pub url_period: Duration,
    /// How often the manifest directory is read though nothing changed.
    pub rescan_period: Duration,
    /// How long the manifest directory must be quiet before it is read.
    pub settle: Duration,
    /// Address of the Engine, for example `unix:///var/run/docker.sock`.
    pub docker: String,
    /// Name of the Node.
    pub node_name: NodeName,
    /// Addresses of the node, primary first; found out when empty.
    pub node_ips: Vec<IpAddr>,
    /// How the API server is reached.
    pub kubeconfig: ApiAccess,
    /// The kubeconfig that a first client certificate is requested with. Only with a kubeconfig
    /// that can be written.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Labels of our Node beside its own.
    pub node_labels: BTreeMap<String, String>,
    /// Taints our Node is registered with.
    pub register_with_taints: Vec<Taint>,
    /// What of the machine is not for pods.
    pub system_reserved: SystemReserved,
    /// Most pods the Node takes.
    pub max_pods: usize,
    /// Image of the sandbox; our own when none.
    pub pod_infra_image: Option<String>,
    /// DNS servers of the cluster, for `dnsPolicy: ClusterFirst`.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// Resolver settings that pods have from the node.
    pub resolv_conf: PathBuf,
    /// Docker network of the pods; the Engine's default bridge when none.
    pub network: Option<String>,
    /// cgroup under which pods live, or empty for the Engine's own default.
    pub cgroup_root: String,
    /// Where links to the containers' logs are made in kubelet's layout; nowhere when none.
    pub pod_logs_dir: Option<PathBuf>,
    /// Where the host's file system is mounted for an agent in a container; none where it is the
    /// agent's own, or isn't seen.
    pub host_root: Option<PathBuf>,
    /// Where metrics, health and readiness are served; nowhere when none.
    pub metrics_address: Option<SocketAddr>,
    /// How `kubectl logs`, `exec` and `top` get here.
    pub node_api: NodeApi,
    /// Longest crash-loop back-off.
    pub max_container_backoff: Duration,
    /// How many dead containers are kept, and for how long.
    pub container_gc: ContainerGc,
    /// Most Engine calls that change something at a time.
    pub engine_concurrency: usize,
    /// Most image pulls at a time.
    pub pull_concurrency: usize,
    /// Whether images are pulled one after the other.
    pub serialize_image_pulls: bool,
    /// Directory of a Docker client's configuration, whose credentials are the node's.
    pub docker_config: Option<PathBuf>,
    /// Which images are removed when nobody needs them.
    pub image_gc: ImageGcMode,
    /// From which share of the Engine's disk on, in percent.
    pub image_gc_high_threshold: u8,
    /// Down to which share, in percent.
    pub image_gc_low_threshold: u8,
    /// An image known for less is not removed for its space.
    pub minimum_image_ttl: Duration,
    /// An image unused for longer is removed, however empty the disk is; zero for no such age.
    pub maximum_image_gc_age: Duration,
    /// How often everything is listed though the event stream is whole.
    pub sweep_period: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which log lines are written: a level, or `target=level` directives.
    pub log_level: String,
}

impl Config {
    /// Most image pulls at a time, all said.
    #[must_use]
    pub fn pulls(&self) -> usize {
        if self.serialize_image_pulls {
            1
        } else {
            self.pull_concurrency
        }
    }

    /// Path of the agent's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket_path(&self.root)
    }
}

/// Path of the socket of the agent that runs on `root`.
#[must_use]
pub fn socket_path(root: &std::path::Path) -> PathBuf {
    root.join("mirrorlet.sock")
}

/// Which images are removed when nobody needs them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum ImageGcMode {
    /// Those that this agent pulled.
    #[default]
    Pulled,
    /// All on the Engine, whoever brought them.
    All,
    /// None.
    Off,
}

impl ImageGcMode {
    /// The mode as written in a flag or file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::All => "all",
            Self::Off => "off",
        }
    }
}

/// The HTTPS server that the API server calls. Without an API server there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeApi {
    /// Address it listens at.
    pub address: IpAddr,
    /// Its port; nothing is served when none. The system chooses one for 0, which only tests ask
    /// for: as a setting, 0 is none.
    pub port: Option<u16>,
    /// PEM file of the CAs whose client certificates are believed; those that the API server
    /// publishes when none.
    pub client_ca_file: Option<PathBuf>,
    /// What it shows for itself.
    pub certificate: ServingCertificate,
}

impl NodeApi {
    /// Where to listen; nowhere when none.
    #[must_use]
    pub fn listen(&self) -> Option<SocketAddr> {
        self.port.map(|port| SocketAddr::new(self.address, port))
    }
}

/// Where the node API's certificate is from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ServingCertificate {
    /// Made by the agent itself at each start.
    #[default]
    SelfSigned,
    /// PEM files, read again when they change.
    Files {
        /// Certificate and intermediates.
        certificate: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// Requested from the cluster; self-signed until somebody has approved it.
    Requested,
}

/// How many dead containers are kept, and for how long, in the kubelet's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerGc {
    /// Least age of one that is removed.
    pub minimum_container_ttl_duration: Duration,
    /// Most kept of each container of a pod; negative for any number.
    pub maximum_dead_containers_per_container: i32,
    /// Most kept on the node; negative for any number.
    pub maximum_dead_containers: i32,
}

/// How log lines look.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// One human-readable line an occurrence.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// The format as written in a flag or file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}
