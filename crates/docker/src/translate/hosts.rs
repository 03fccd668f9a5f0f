//! The host name of a pod, and the hosts file of its containers.
//!
//! Upstream: `GeneratePodHostNameAndDomain` and `managedHostsFileContent` of
//! `pkg/kubelet/kubelet_pods.go`.

use std::fmt::Write as _;
use std::net::IpAddr;

use mirrorlet_core::api::Pod;
use mirrorlet_core::spec;

use super::{ConfigError, HostFacts};

/// Longest host name label, and what longer pod names are cut to.
const HOSTNAME_MAX: usize = 63;
/// Longest host name the kernel takes, in bytes.
pub const FQDN_MAX: usize = 64;

const POD_HEADER: &str = "# Kubernetes-managed hosts file.\n\
    127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";
const HOST_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const ALIASES_HEADER: &str = "\n# Entries added by HostAliases.\n";

/// A pod's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hostname {
    /// The pod's own label.
    pub host: String,
    /// Its domain; empty without `spec.subdomain`.
    pub domain: String,
    /// The kernel's host name: the host, or with `setHostnameAsFQDN` host and domain.
    pub kernel: String,
}

/// Computes a pod's names.
pub fn compute_hostname(pod: &Pod, cluster_domain: &str) -> Result<Hostname, ConfigError> {
    let spec = spec::spec(pod);
    let name = match spec.hostname.as_deref() {
        None | Some("") => pod.metadata.name.as_deref().unwrap_or_default(),
        Some(hostname) => hostname,
    };
    let mut end = name.len().min(HOSTNAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let host = name[..end].trim_end_matches(['-', '.']).to_owned();
    let domain = match spec.subdomain.as_deref() {
        None | Some("") => String::new(),
        Some(subdomain) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            format!("{subdomain}.{namespace}.svc.{cluster_domain}")
        }
    };
    let kernel = if spec.set_hostname_as_fqdn == Some(true) && !domain.is_empty() {
        format!("{host}.{domain}")
    } else {
        host.clone()
    };
    if kernel.len() > FQDN_MAX {
        return Err(ConfigError::FqdnTooLong { fqdn: kernel });
    }
    Ok(Hostname {
        host,
        domain,
        kernel,
    })
}

/// Content of the file mounted at `/etc/hosts` into every container of the pod. `pod_ips` are
/// the pod's own addresses, unused in the host's network.
pub fn hosts_file(pod: &Pod, pod_ips: &[IpAddr], node: &HostFacts) -> Result<String, ConfigError> {
    let mut out = String::new();
    if spec::is_host_network(pod) {
        out.push_str(HOST_HEADER);
        out.push_str(&node.hosts_file);
    } else {
        let Hostname { host, domain, .. } = compute_hostname(pod, &node.cluster_domain)?;
        out.push_str(POD_HEADER);
        for ip in pod_ips {
            let written = if domain.is_empty() {
                writeln!(out, "{ip}\t{host}")
            } else {
                writeln!(out, "{ip}\t{host}.{domain}\t{host}")
            };
            // Writing to a String can't fail.
            debug_assert!(written.is_ok());
        }
    }
    let mut aliases = spec::spec(pod).host_aliases.iter().flatten().peekable();
    if aliases.peek().is_some() {
        out.push_str(ALIASES_HEADER);
    }
    for alias in aliases {
        out.push_str(&alias.ip);
        for name in alias.hostnames.iter().flatten() {
            out.push('\t');
            out.push_str(name);
        }
        out.push('\n');
    }
    Ok(out)
}
