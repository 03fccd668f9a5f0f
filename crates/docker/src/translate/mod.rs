//! PURE: converts a pod's spec to the Engine's create requests, and names and labels back.
//!
//! Nothing here does I/O, reads a clock or logs. Facts about the node and the Engine are passed as
//! values, warnings are returned as [`Note`]s, and an untranslatable spec is a [`ConfigError`].

use std::net::IpAddr;
use std::path::PathBuf;

use bollard::models::{ContainerCreateBody, SystemInfoCgroupDriverEnum as Named};

use crate::node_ips::NodeIps;
use mirrorlet_core::amounts::Amounts;
use mirrorlet_core::env::EnvError;
use mirrorlet_core::log_limits::LogLimits;

pub mod container;
mod devices;
pub mod dns;
mod forwarded_ports;
pub mod hosts;
pub mod labels;
pub mod mounts;
pub mod names;
pub mod resources;
pub mod sandbox;
pub mod security;

pub use container::{ContainerInput, ImageFacts, container_request};
pub(crate) use dns::asks_cluster;
pub use dns::{MISSING_CLUSTER_DNS, PodDns, ResolvConf, compute_dns};
pub use forwarded_ports::ForwardedPort;
pub(crate) use forwarded_ports::{forwarded_ports, led_ports_of};
pub use hosts::{Hostname, compute_hostname, hosts_file};
pub(crate) use labels::DEFAULT_TERMINATION_PATH;
pub use labels::{HookLabels, Kind, OurContainer, parse_ours};
pub(crate) use mounts::{check_image_volume, volume_request};
pub use names::{ContainerName, container_name, sandbox_name};
pub(crate) use resources::pod_cgroup_limits;
pub(crate) use sandbox::with_host_ports;
pub use sandbox::{SandboxInput, sandbox_request};
pub use security::{SeccompWanted, seccomp_wanted};

/// Facts about the host, and settings for all pods, from which requests for containers are made.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Addresses of the node, primary first.
    pub node_ips: Vec<IpAddr>,
    /// Reads them again for each container; `None` to use the stored ones.
    pub node_ips_now: Option<NodeIps>,
    /// Memory of the machine in bytes, which OOM scores are relative to.
    pub memory_bytes: u64,
    /// The values of absent resource limits.
    pub allocatable: Amounts,
    /// The node's `resolv.conf`.
    pub resolv_conf: ResolvConf,
    /// Its path, read again for each pod; `None` to use the stored content.
    pub resolv_conf_path: Option<PathBuf>,
    /// Whether it is a different file than the Engine's.
    pub own_resolv_conf: bool,
    /// Content of the node's `/etc/hosts`.
    pub hosts_file: String,
    /// Its path, read again for each pod; `None` to use the stored content.
    pub hosts_path: Option<PathBuf>,
    /// The Docker network of the pods; the Engine's default bridge if none.
    pub network: Option<String>,
    /// DNS servers of the cluster; empty on a box.
    pub cluster_dns: Vec<IpAddr>,
    /// Whether the cluster's DNS server is ours, at the host's address in the pods' network.
    pub dns_at_gateway: bool,
    /// Domain of the cluster.
    pub cluster_domain: String,
    /// Parent cgroup of all pods; empty to leave it to the Engine.
    pub cgroup_root: String,
    /// Whether containers without a seccomp profile get the Engine's default one.
    pub seccomp_default: bool,
    /// Limits of each container's log; the Engine's own if none.
    pub log_limits: Option<LogLimits>,
}

/// The facts about the Engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineFacts {
    /// Its cgroup driver.
    pub cgroup_driver: CgroupDriver,
    /// API version agreed on.
    pub api_version: (u16, u16),
    /// Whether containers may have an OOM score below 0; false once the Engine refused one.
    pub negative_oom_score: bool,
    /// Its default log driver, if that has files and rotates them by `max-size` and `max-file`.
    pub log_driver: Option<&'static str>,
    /// Whether it enforces `AppArmor` profiles. It would ignore them otherwise.
    pub app_armor: bool,
    /// Whether it supports CDI devices, in which case it reports where it looks for them.
    pub cdi: bool,
}

/// The log drivers that rotate files by `max-size` and `max-file`.
pub(super) const ROTATING: [&str; 2] = ["json-file", "local"];

/// The cgroup driver of an Engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The Engine itself, as paths.
    Cgroupfs,
    /// systemd, as slices.
    Systemd,
    /// None: a rootless Engine without delegation.
    None,
}

impl CgroupDriver {
    /// The driver named by the Engine; no name means cgroupfs. An Engine that names another one can't be
    /// used: its answer isn't understood.
    pub fn of(named: Option<Named>) -> Self {
        match named {
            None | Some(Named::EMPTY | Named::CGROUPFS) => Self::Cgroupfs,
            Some(Named::SYSTEMD) => Self::Systemd,
            Some(Named::NONE) => Self::None,
        }
    }
}

/// A create request, ready to be sent.
#[derive(Clone, PartialEq)]
pub struct Request {
    /// Name of the container, which ensures that it is created only once.
    pub name: String,
    /// Body of the request. Holds env values, so it is never printed.
    pub body: ContainerCreateBody,
    /// Skipped and defaulted fields, for events.
    pub notes: Vec<Note>,
}

mirrorlet_core::partial_debug!(Request, name, notes);

/// Something that is done differently than requested, and is worth an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Event reason, for example `DNSConfigForming`.
    pub reason: &'static str,
    /// For users.
    pub message: String,
}

/// Why a pod or container can't be translated. Reported as `CreatePodSandboxError` for a sandbox and
/// `CreateContainerConfigError` for a container. Contains no env values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The host name, made a fully qualified one, is too long for the kernel.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({} is the max length)",
        hosts::FQDN_MAX
    )]
    FqdnTooLong {
        /// The name.
        fqdn: String,
    },
    /// `hostUsers: false`.
    #[error("hostUsers: false is not supported: Docker can map users only for the whole daemon")]
    UserNamespace,
    /// The environment can't be made.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// `runAsNonRoot` can't be shown to hold.
    #[error("{0}")]
    RunAsNonRoot(String),
    /// `supplementalGroupsPolicy: Strict` of a container without a group.
    #[error(
        "supplementalGroupsPolicy: Strict is not supported without runAsGroup: the Docker Engine adds the groups of the image's /etc/group (container: {0})"
    )]
    GroupsOfImage(String),
    /// A seccomp profile is missing or isn't JSON.
    #[error("seccomp profile {profile:?}: {problem}")]
    Seccomp {
        /// Path of the profile below the seccomp directory.
        profile: String,
        /// The problem.
        problem: &'static str,
    },
    /// A profile that the Engine would ignore.
    #[error("Cannot enforce AppArmor: AppArmor is not enabled on the host")]
    AppArmor,
    /// An annotation about CDI devices has an invalid value.
    #[error("{0}")]
    CdiAnnotation(String),
    /// A pod requests a CDI device, which the Engine doesn't have.
    #[error("CDI device {device:?}: {}", devices::no_cdi(*api))]
    NoCdi {
        /// The device.
        device: String,
        /// The API version agreed on.
        api: (u16, u16),
    },
    /// An annotation about logs has an invalid value.
    #[error("{0}")]
    LogLimits(String),
    /// A mount names a volume the pod does not have.
    #[error("volume {volume:?} of mount {path:?} not found in the pod")]
    NoSuchVolume {
        /// Volume named.
        volume: String,
        /// Mount path.
        path: String,
    },
    /// A device refers to a volume that is not a device.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoSuchDevice {
        /// Volume named.
        volume: String,
        /// Name of the container.
        container: String,
    },
    /// The path of a device in the container is relative.
    #[error("error DevicePath `{0}` must be an absolute path")]
    RelativeDevice(String),
    /// A mount's sub-path was not prepared.
    #[error("sub-path of volume {volume:?} at mount {path:?} is not prepared")]
    NoSubPath {
        /// Volume named.
        volume: String,
        /// Mount path.
        path: String,
    },
    /// The pod has resources of its own, and the Engine doesn't manage cgroups.
    #[error(
        "spec.resources: this Engine does not manage cgroups, so it can't limit the resources of a whole pod; set them on its containers"
    )]
    NoPodCgroup,
    /// A volume is made of an image, which the Engine can't mount.
    #[error(
        "volume {volume:?} is an image volume, which needs Docker Engine 28 or newer (API 1.48); this Engine has API {}.{}",
        api.0, api.1
    )]
    NoImageVolumes {
        /// The volume.
        volume: String,
        /// The API version agreed on.
        api: (u16, u16),
    },
    /// A mount is to be recursively read-only, which the Engine doesn't know.
    #[error(
        "mount {path:?}: recursiveReadOnly: Enabled needs Docker Engine 25 or newer (API 1.44); this one has API {}.{}",
        api.0, api.1
    )]
    NoRecursiveReadOnly {
        /// Mount path.
        path: String,
        /// The API version agreed on.
        api: (u16, u16),
    },
    /// A mount's options contradict each other or are unsupported.
    #[error("mount {path:?}: {problem}")]
    Mount {
        /// Mount path.
        path: String,
        /// The problem.
        problem: &'static str,
    },
}

#[cfg(test)]
mod tests;
