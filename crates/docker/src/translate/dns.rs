//! Computes a pod's name resolution: policy, cluster and node settings → servers, searches, options.
//!
//! Upstream: `pkg/kubelet/network/dns/dns.go`.

use std::fmt;
use std::net::IpAddr;

use mirrorlet_core::api::Pod;
use mirrorlet_core::spec;

use super::{HostFacts, Note};

/// Most servers the C library's resolver asks.
const SERVERS_MAX: usize = 3;
/// Most search domains.
const SEARCHES_MAX: usize = 32;
/// Most bytes of the search line.
const SEARCH_LINE_MAX: usize = 2048;
/// Most bytes of one search domain (RFC 1035).
const SEARCH_MAX: usize = 255;
/// Option of pods that ask the cluster's servers.
const CLUSTER_OPTION: &str = "ndots:5";

/// Reason of the note that a pod requires the cluster's DNS, which does not exist.
pub const MISSING_CLUSTER_DNS: &str = "MissingClusterDNS";

/// The content of a `resolv.conf`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvConf {
    /// `nameserver` lines.
    pub servers: Vec<String>,
    /// The last `search` line.
    pub searches: Vec<String>,
    /// All `options`.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Parses a `resolv.conf`. Invalid lines are ignored, as the resolver does.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => conf.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    conf.searches = words
                        .filter(|domain| *domain != ".")
                        .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                        .collect();
                }
                Some("options") => {
                    for option in words {
                        set_option(&mut conf.options, option.to_owned());
                    }
                }
                _ => {}
            }
        }
        conf
    }
}

/// The DNS settings of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodDns {
    /// Servers, search domains and options.
    pub conf: ResolvConf,
    /// Whether all of it is the node's own: then it is left to the Engine, which can reach a resolver
    /// that listens on the node's loopback.
    pub inherited: bool,
}

/// The file's content, as cri-dockerd's `rewriteResolvFile` writes it; empty if there are no settings.
impl fmt::Display for ResolvConf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for server in &self.servers {
            writeln!(f, "nameserver {server}")?;
        }
        for (keyword, words) in [("search", &self.searches), ("options", &self.options)] {
            if !words.is_empty() {
                writeln!(f, "{keyword} {}", words.join(" "))?;
            }
        }
        Ok(())
    }
}

/// Whether a pod queries the cluster's DNS servers, if there are some.
pub(crate) fn asks_cluster(pod: &Pod) -> bool {
    let policy = spec::spec(pod).dns_policy.as_deref();
    match policy.unwrap_or("ClusterFirst") {
        "None" | "Default" => false,
        "ClusterFirst" => !spec::is_host_network(pod),
        _ => true,
    }
}

enum Base {
    Cluster,
    Node,
    Nothing,
}

/// Computes a pod's name resolution.
pub fn compute_dns(pod: &Pod, node: &HostFacts) -> (PodDns, Vec<Note>) {
    let mut notes = Vec::new();
    let base = base(pod, node, &mut notes);
    let mut dns = match base {
        Base::Nothing => PodDns::default(),
        Base::Node => PodDns {
            conf: ResolvConf {
                servers: reachable_servers(pod, node),
                ..node.resolv_conf.clone()
            },
            inherited: !node.own_resolv_conf,
        },
        Base::Cluster => PodDns {
            conf: cluster_dns(pod, node),
            inherited: false,
        },
    };
    let conf = &mut dns.conf;
    if let Some(config) = &spec::spec(pod).dns_config {
        append_new(&mut conf.servers, config.nameservers.iter().flatten());
        append_new(&mut conf.searches, config.searches.iter().flatten());
        for option in config.options.iter().flatten() {
            let Some(name) = &option.name else { continue };
            let text = match option.value.as_deref() {
                None | Some("") => name.clone(),
                Some(value) => format!("{name}:{value}"),
            };
            set_option(&mut conf.options, text);
        }
        dns.inherited = false;
    }
    limit_servers(&mut dns, &mut notes);
    limit_searches(&mut dns, &mut notes);
    (dns, notes)
}

fn base(pod: &Pod, node: &HostFacts, notes: &mut Vec<Note>) -> Base {
    let policy = spec::spec(pod)
        .dns_policy
        .as_deref()
        .unwrap_or("ClusterFirst");
    match policy {
        "None" => Base::Nothing,
        _ if !asks_cluster(pod) => Base::Node,
        _ if node.cluster_dns.is_empty() => {
            notes.push(Note {
                reason: MISSING_CLUSTER_DNS,
                message: format!(
                    "no cluster DNS servers are configured, so the pod can't be created with the \
                     {policy:?} policy; falling back to the \"Default\" policy"
                ),
            });
            Base::Node
        }
        _ => Base::Cluster,
    }
}

/// The node's servers without those on its loopback, which a pod in a network of its own can't
/// reach. What a pod names itself may be there: one of its containers may be the server.
fn reachable_servers(pod: &Pod, node: &HostFacts) -> Vec<String> {
    let is_loopback = |server: &String| server.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let servers = node.resolv_conf.servers.iter();
    servers
        .filter(|server| spec::is_host_network(pod) || !is_loopback(server))
        .cloned()
        .collect()
}

fn cluster_dns(pod: &Pod, node: &HostFacts) -> ResolvConf {
    let mut searches = Vec::new();
    if !node.cluster_domain.is_empty() {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let domain = &node.cluster_domain;
        searches.push(format!("{namespace}.svc.{domain}"));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.clone());
    }
    append_new(&mut searches, &node.resolv_conf.searches);
    ResolvConf {
        servers: node.cluster_dns.iter().map(ToString::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTION.to_owned()],
    }
}

fn append_new<'a>(list: &mut Vec<String>, more: impl IntoIterator<Item = &'a String>) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Adds an option, or replaces the one of that name.
fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    match options.iter_mut().find(|o| name(o) == name(&option)) {
        Some(slot) => *slot = option,
        None => options.push(option),
    }
}

fn limit_servers(dns: &mut PodDns, notes: &mut Vec<Note>) {
    if dns.conf.servers.len() <= SERVERS_MAX {
        return;
    }
    dns.conf.servers.truncate(SERVERS_MAX);
    dns.inherited = false;
    notes.push(Note {
        reason: "DNSConfigForming",
        message: format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: {}",
            dns.conf.servers.join(" ")
        ),
    });
}

fn limit_searches(dns: &mut PodDns, notes: &mut Vec<Note>) {
    let mut kept: Vec<String> = Vec::new();
    let mut line_len = 0;
    let mut exceeded = false;
    for search in &dns.conf.searches {
        if search.len() > SEARCH_MAX {
            exceeded = true;
            continue;
        }
        let separator_len = usize::from(!kept.is_empty());
        if kept.len() == SEARCHES_MAX || line_len + separator_len + search.len() > SEARCH_LINE_MAX {
            exceeded = true;
            break;
        }
        line_len += separator_len + search.len();
        kept.push(search.clone());
    }
    if exceeded {
        notes.push(Note {
            reason: "DNSConfigForming",
            message: format!(
                "Search Line limits were exceeded, some search paths have been omitted, the \
                 applied search line is: {}",
                kept.join(" ")
            ),
        });
        dns.conf.searches = kept;
        dns.inherited = false;
    }
}
