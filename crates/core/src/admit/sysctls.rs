//! The sysctls that an API pod may set: those that only affect the pod itself. The author of a manifest
//! controls this machine, and may set any sysctl that the Engine accepts.
//!
//! Upstream: `pkg/kubelet/sysctl/allowlist.go`, `pkg/kubelet/sysctl/safe_sysctls.go`. The kernel
//! versions that are required there (4.15 at most) are older than any that a supported Engine runs on.

use crate::api::Pod;
use crate::spec;

/// A namespace of the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// The safe ones, and what they are in.
const SAFE: [(&str, Namespace); 12] = [
    ("kernel.shm_rmid_forced", Namespace::Ipc),
    ("net.ipv4.ip_local_port_range", Namespace::Net),
    ("net.ipv4.ip_local_reserved_ports", Namespace::Net),
    ("net.ipv4.ip_unprivileged_port_start", Namespace::Net),
    ("net.ipv4.ping_group_range", Namespace::Net),
    ("net.ipv4.tcp_fin_timeout", Namespace::Net),
    ("net.ipv4.tcp_keepalive_intvl", Namespace::Net),
    ("net.ipv4.tcp_keepalive_probes", Namespace::Net),
    ("net.ipv4.tcp_keepalive_time", Namespace::Net),
    ("net.ipv4.tcp_rmem", Namespace::Net),
    ("net.ipv4.tcp_syncookies", Namespace::Net),
    ("net.ipv4.tcp_wmem", Namespace::Net),
];

/// The problem with the first forbidden sysctl of the pod; `None` if all are allowed.
pub(super) fn forbidden(pod: &Pod) -> Option<String> {
    let spec = spec::spec(pod);
    let sysctls = spec.security_context.as_ref()?.sysctls.as_ref()?;
    sysctls.iter().find_map(|sysctl| {
        let name = spec::normalized_sysctl(&sysctl.name);
        let Some((_, namespace)) = SAFE.iter().find(|(safe, _)| *safe == name) else {
            return Some(format!("forbidden sysctl: {name:?} not allowlisted"));
        };
        let (shared, word) = match namespace {
            Namespace::Ipc => (spec.host_ipc, "IPC"),
            Namespace::Net => (spec.host_network, "Net"),
        };
        (shared == Some(true))
            .then(|| format!("forbidden sysctl: {name:?} not allowed with host {word} enabled"))
    })
}
