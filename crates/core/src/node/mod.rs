//! Our Node in the API server: its content, its updates, and its ownership.
//!
//! Upstream: `pkg/kubelet/nodestatus/setters.go`, `pkg/kubelet/kubelet_node_status.go`.

mod addresses;
mod claim;
mod conditions;
mod describe;
mod edits;
#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::amounts::Amounts;
use crate::api::NodeName;
use crate::api::core::Taint;
use crate::pressure::Pressures;

pub use addresses::next_addresses;
pub use claim::{Claim, LeaseSeen, LeaseWatch, claim, still_claimed};
pub use conditions::{PodProblems, believed_conditions, compute_conditions};
pub use describe::{compute_node, compute_node_status, initial_node};
pub use edits::NodeEdits;
pub use write::{
    NodeEvent, NodeEventKind, REPORT_PERIOD, decide_metadata, decide_write, transitions,
};

/// The Kubernetes version of the kubelet that the agent behaves like.
pub const KUBERNETES_VERSION: &str = "v1.35.4";
/// The mark in the kubelet version of our Nodes, which no kubelet has.
pub const VERSION_MARK: &str = "mirrorlet";

/// Returns the kubelet version of our Node: a semantic version, as the scheduler and kubectl
/// expect.
pub fn kubelet_version() -> String {
    format!(
        "{KUBERNETES_VERSION}-{VERSION_MARK}.{}",
        env!("CARGO_PKG_VERSION")
    )
}

/// Converts an architecture in Rust's `std::env::consts::ARCH` to its name in Go, and hence Kubernetes.
pub fn go_arch(arch: &str) -> &str {
    match arch {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// An image on the Engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageSeen {
    /// Names by digest, then by tag.
    pub names: Vec<String>,
    /// Size, in bytes.
    pub size_bytes: u64,
}

/// The facts about the machine and the agent in our Node; they seldom change.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeFacts {
    /// Name of the Node.
    pub name: NodeName,
    /// Our owner id: distinguishes our Node from that of another mirrorlet.
    pub owner: String,
    /// Name of the machine; published as an address unless empty.
    pub hostname: String,
    /// Architecture as Go names it, for example `amd64`.
    pub arch: String,
    /// Addresses, primary first.
    pub addresses: Vec<IpAddr>,
    /// Port of the node API; none if it isn't served.
    pub node_api_port: Option<u16>,
    /// Labels that were configured.
    pub labels: BTreeMap<String, String>,
    /// Taints it is registered with.
    pub taints: Vec<Taint>,
    /// Resources of the machine.
    pub capacity: Amounts,
    /// Resources that are reserved, and not for pods.
    pub reserved: Amounts,
    /// Most pods.
    pub max_pods: usize,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// UUID of the machine's firmware.
    pub system_uuid: String,
    /// Changes with each boot.
    pub boot_id: String,
    /// Version of the kernel.
    pub kernel_version: String,
    /// Name of the operating system, for example `Debian GNU/Linux 12`.
    pub os_image: String,
    /// Version of the Engine, once known.
    pub engine_version: Option<String>,
    /// The images on the Engine.
    pub images: Vec<ImageSeen>,
}

impl NodeFacts {
    /// The resources for pods: those of the machine without the reserved ones.
    pub fn allocatable(&self) -> Amounts {
        self.capacity.less(&self.reserved)
    }
}

/// Whether the container runtime is within reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RuntimeReach {
    /// Not tried yet.
    #[default]
    Unknown,
    /// Subscribed and listed.
    Up,
    /// Away, and why.
    Down(String),
}

/// The latest readings of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Readings {
    /// The Engine.
    pub engine: RuntimeReach,
    /// The pressures that the machine is under.
    pub pressures: Pressures,
}
