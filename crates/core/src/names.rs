//! Names by which the pods of manifests resolve each other, without a DNS server.
//!
//! [`Names`] is a table of names and addresses: each pod by its own names, and each `Service` of a
//! manifest by the pods that it selects. Pods' hosts files contain the part of it that a pod in their
//! namespace may use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::core::{Service, ServicePort};
use crate::api::{Code, Diagnostic, FullName, Pod, Severity};
use crate::ending::is_api_pod;
use crate::path::Path;
use crate::small::{SmallCollect, SmallSort};
use crate::spec;

/// Most bytes of a line: musl reads hosts files in pieces of 511 bytes, and forgets what follows.
const LINE_MAX: usize = 500;
/// The comment above the names.
const HEADER: &str = "\n# Pods and Services of manifests.\n";
/// The protocol of a port that names none.
const DEFAULT_PROTOCOL: &str = "TCP";
/// The `clusterIP` of a headless Service.
const HEADLESS: &str = "None";
/// Most named ports of a Service in DNS: of a headless one, each has a record for each pod, and the size of
/// the DNS server's table is limited for all Services together.
const NAMED_PORTS_MAX: usize = 100;

/// A pod of a manifest that can be reached.
#[derive(Debug, Clone)]
pub struct NamedPod {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it is Ready.
    pub ready: bool,
}

/// The claim to a name that holds, of several: the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Name of a `Service`.
    Service,
    /// `hostname` of a pod, in the `Service` that its `subdomain` names.
    Record,
    /// Name of a pod as its manifest has it.
    Manifest,
    /// Name of a pod, with the node's name.
    Pod,
    /// Name of an address of a headless `Service`; only in DNS.
    Address,
}

/// The addresses that names resolve to, and their namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    namespace: String,
    addresses: Vec<IpAddr>,
}

/// One name of a target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    class: Class,
    /// Whether it is known outside the target's namespace, too.
    is_global: bool,
    name: String,
    target: usize,
}

/// A name with its addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownName<'a> {
    /// The name.
    pub name: &'a str,
    /// The only namespace whose pods can resolve it; none if all can.
    pub namespace: Option<&'a str>,
    /// Its addresses; empty if a Service has no Ready pod.
    pub addresses: &'a [IpAddr],
}

/// A named port of a `Service`, as DNS has it.
///
/// Upstream: `docs/specification.md` of `kubernetes/dns`, 2.3.2 and 2.4.2.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedPort {
    /// Its name, such as `_http._tcp.api.default.svc.cluster.local`.
    pub name: String,
    /// The name that leads to the addresses: the Service's, or that of one pod of a headless Service.
    pub target: String,
    /// The port.
    pub port: u16,
}

/// The names of all pods and Services of manifests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    targets: Vec<Target>,
    /// In the order in which they hold.
    claims: Vec<Claim>,
    /// Sorted.
    ports: Vec<NamedPort>,
}

impl Names {
    /// Returns the names of these pods and Services. Their longest form ends with `cluster_domain`.
    pub fn new<'a>(
        pods: &[NamedPod],
        services: impl Iterator<Item = &'a Service>,
        cluster_domain: &str,
    ) -> Self {
        let mut pods: Vec<&NamedPod> = pods.iter().collect();
        pods.small_sort_by_key(|named| FullName::of(&named.pod));
        let mut names = Self::default();
        for service in services {
            names.add_service(service, &pods, cluster_domain);
        }
        for named in &pods {
            names.add_pod(named, cluster_domain);
        }
        names.claims.small_sort();
        names.ports.small_sort();
        // Pods in the host's network share its addresses.
        names.ports.dedup();
        names
    }

    /// The named ports of all Services.
    pub fn ports(&self) -> &[NamedPort] {
        &self.ports
    }

    /// All names. Of several that are alike, the first that a pod knows is the one that holds for it.
    pub fn all(&self) -> impl Iterator<Item = KnownName<'_>> {
        self.claims.iter().filter_map(|claim| {
            let target = self.targets.get(claim.target)?;
            Some(KnownName {
                name: &claim.name,
                namespace: (!claim.is_global).then_some(&*target.namespace),
                addresses: &target.addresses,
            })
        })
    }

    /// The lines for the hosts file of a pod in `namespace`, with a comment above them; empty if there
    /// are none. Names in `text`, the rest of the file, are skipped.
    pub fn lines(&self, namespace: &str, text: &str) -> String {
        let written: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.split('#').next())
            .flat_map(|line| line.split_whitespace().skip(1))
            .collect_set();
        let mut held: BTreeMap<&str, usize> = BTreeMap::new();
        let mut of_target: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        let in_files = self.claims.iter();
        for claim in in_files.filter(|claim| claim.class != Class::Address) {
            let target = self.targets.get(claim.target);
            let is_known = claim.is_global || target.is_some_and(|t| t.namespace == namespace);
            let name = claim.name.as_str();
            if is_known && !written.contains(name) && !held.contains_key(name) {
                held.insert(name, claim.target);
                of_target.entry(claim.target).or_default().push(name);
            }
        }
        let mut lines = String::new();
        for (target, names) in of_target {
            for address in self.targets.get(target).iter().flat_map(|t| &t.addresses) {
                write_lines(&mut lines, *address, &names);
            }
        }
        if lines.is_empty() {
            return lines;
        }
        format!("{HEADER}{lines}")
    }

    fn add_service(&mut self, service: &Service, pods: &[&NamedPod], cluster_domain: &str) {
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let unready = service
            .spec
            .as_ref()
            .and_then(|spec| spec.publish_not_ready_addresses);
        let selected = pods.iter().filter(|named| selects(service, &named.pod));
        let reached = selected.filter(|named| named.ready || unready == Some(true));
        let reached: Vec<&NamedPod> = reached.copied().collect();
        let mut addresses = Vec::new();
        for named in &reached {
            if let Some(hostname) = hostname_in(&named.pod, name) {
                let record = format!("{hostname}.{name}");
                let target = self.add_target(&namespace, named.addresses.clone());
                self.claim(Class::Record, &record, &namespace, cluster_domain, target);
            }
            addresses.extend(&named.addresses);
        }
        let target = self.add_target(&namespace, addresses);
        self.claim(Class::Service, name, &namespace, cluster_domain, target);
        let full = format!("{name}.{namespace}.svc.{cluster_domain}");
        let spec = service.spec.as_ref();
        if spec.and_then(|spec| spec.cluster_ip.as_deref()) == Some(HEADLESS) {
            self.add_headless(service, &reached, &full);
            return;
        }
        for (port, record) in named_ports(service, &full) {
            // Ports are not translated: clients reach the port that the pods serve it at.
            let numbers = reached.iter();
            let mut numbers = numbers.filter_map(|named| port_of_pod(port, &named.pod));
            let first = numbers.next();
            let same = first.filter(|first| numbers.all(|number| number == *first));
            self.add_port(record, full.clone(), same.unwrap_or(port.port));
        }
    }

    /// Adds the named ports of a headless Service of this full name, for each pod that it leads to, and
    /// names for the addresses of pods without a `hostname` in it.
    fn add_headless(&mut self, service: &Service, pods: &[&NamedPod], full: &str) {
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        for named in pods {
            let mut hosts = Vec::new();
            if let Some(hostname) = hostname_in(&named.pod, name) {
                hosts.push(format!("{hostname}.{full}"));
            } else {
                for address in &named.addresses {
                    let label = address.to_string().replace(['.', ':'], "-");
                    let host = format!("{label}.{full}");
                    let target = self.add_target(namespace, vec![*address]);
                    self.claims.push(Claim {
                        class: Class::Address,
                        is_global: true,
                        name: host.clone(),
                        target,
                    });
                    hosts.push(host);
                }
            }
            for (port, record) in named_ports(service, full) {
                if let Some(number) = port_of_pod(port, &named.pod) {
                    for host in &hosts {
                        self.add_port(record.clone(), host.clone(), number);
                    }
                }
            }
        }
    }

    fn add_port(&mut self, name: String, target: String, port: i32) {
        // Another number is no port, and was refused.
        if let Ok(port) = u16::try_from(port) {
            self.ports.push(NamedPort { name, target, port });
        }
    }

    fn add_pod(&mut self, named: &NamedPod, cluster_domain: &str) {
        let name = FullName::of(&named.pod);
        let target = self.add_target(&name.namespace, named.addresses.clone());
        let manifest = manifest_name(&named.pod);
        self.claim(
            Class::Manifest,
            manifest,
            &name.namespace,
            cluster_domain,
            target,
        );
        self.claims.push(Claim {
            class: Class::Pod,
            is_global: false,
            name: name.name.to_string(),
            target,
        });
    }

    fn add_target(&mut self, namespace: &str, addresses: Vec<IpAddr>) -> usize {
        self.targets.push(Target {
            namespace: namespace.to_owned(),
            addresses,
        });
        self.targets.len() - 1
    }

    /// Claims a name in its short form and in those with the namespace.
    fn claim(&mut self, class: Class, name: &str, namespace: &str, domain: &str, target: usize) {
        let forms = [
            (false, name.to_owned()),
            (true, format!("{name}.{namespace}")),
            (true, format!("{name}.{namespace}.svc")),
            (true, format!("{name}.{namespace}.svc.{domain}")),
        ];
        let claims = forms.into_iter().map(|(is_global, name)| Claim {
            class,
            is_global,
            name,
            target,
        });
        self.claims.extend(claims);
    }
}

/// The `hostname` of a pod whose `subdomain` is this Service.
fn hostname_in<'a>(pod: &'a Pod, service: &str) -> Option<&'a str> {
    let spec = spec::spec(pod);
    let hostname = spec.hostname.as_deref().filter(|host| !host.is_empty());
    hostname.filter(|_| spec.subdomain.as_deref() == Some(service))
}

/// The ports of a Service that have a name, each with its name in DNS.
fn named_ports<'a>(
    service: &'a Service,
    full: &str,
) -> impl Iterator<Item = (&'a ServicePort, String)> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let named = ports.into_iter().flatten().filter_map(move |port| {
        let name = port.name.as_deref().filter(|name| !name.is_empty())?;
        let protocol = port.protocol.as_deref().unwrap_or(DEFAULT_PROTOCOL);
        let protocol = protocol.to_lowercase();
        Some((port, format!("_{name}._{protocol}.{full}")))
    });
    named.take(NAMED_PORTS_MAX)
}

/// Writes an address with its names, on as many lines as that takes.
fn write_lines(into: &mut String, address: IpAddr, names: &[&str]) {
    let mut line = String::new();
    for name in names {
        if !line.is_empty() && line.len() + 1 + name.len() > LINE_MAX {
            into.push_str(&line);
            into.push('\n');
            line.clear();
        }
        if line.is_empty() {
            // Writing to a String can't fail.
            let _ = write!(line, "{address}");
        }
        line.push('\t');
        line.push_str(name);
    }
    into.push_str(&line);
    into.push('\n');
}

/// The name of a pod in its manifest: without the node's suffix of a static pod. A pod of which only
/// containers are left, without its source, counts as static.
pub fn manifest_name(pod: &Pod) -> &str {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let node = spec::spec(pod).node_name.as_deref().unwrap_or_default();
    let bare = name
        .strip_suffix(&node.to_lowercase())
        .and_then(|start| start.strip_suffix('-'));
    match bare {
        Some(bare) if !node.is_empty() && !is_api_pod(pod) => bare,
        Some(_) | None => name,
    }
}

/// Whether a Service of a manifest selects a pod.
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.as_ref());
    let labels = pod.metadata.labels.as_ref();
    let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
    let in_namespace = service.metadata.namespace == pod.metadata.namespace;
    in_namespace && selector.is_some_and(|all| !all.is_empty() && all.iter().all(has))
}

/// The ports of a Service that its pods don't serve under the Service's number: a `targetPort` that
/// names another port of a container, or no port.
pub fn port_problems<'a>(
    service: &Service,
    location: &str,
    pods: impl Iterator<Item = &'a Pod>,
) -> Vec<Diagnostic> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let ports: Vec<_> = ports.into_iter().flatten().enumerate().collect();
    let mut found = BTreeMap::new();
    for pod in pods.filter(|pod| selects(service, pod)) {
        for (index, port) in &ports {
            let Some(target) = named_port(port.target_port.as_ref()) else {
                continue;
            };
            let protocol = port.protocol.as_deref().unwrap_or(DEFAULT_PROTOCOL);
            let number = container_port(pod, target, protocol);
            if number != Some(port.port) {
                let pod = FullName::of(pod);
                let message = match number {
                    Some(number) => format!(
                        "port \"{target}\" of pod {}/{} is {number}, not {}; names resolve to the addresses of pods, and ports are not translated: set port: {number}",
                        pod.namespace, pod.name, port.port
                    ),
                    None => format!(
                        "pod {}/{} has no {protocol} port named \"{target}\"; names resolve to the addresses of pods, and ports are not translated: set port to the port that a container listens on, and remove targetPort",
                        pod.namespace, pod.name
                    ),
                };
                found.entry(*index).or_insert(message);
            }
        }
    }
    let diagnostic = |(index, message): (usize, String)| {
        Diagnostic::new(Severity::Warning, Code::UnsupportedField, location, message)
            .field(target_port(index).to_string())
    };
    found.into_iter().map(diagnostic).collect()
}

/// The fields of a Service in problems of [`port_problems`].
pub(crate) fn target_ports(service: &Service) -> Vec<Path> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    let named = ports.into_iter().flatten().enumerate();
    let named = named.filter(|(_, port)| named_port(port.target_port.as_ref()).is_some());
    named.map(|(index, _)| target_port(index)).collect()
}

fn target_port(index: usize) -> Path {
    Path::of("spec").key("ports").index(index).key("targetPort")
}

fn named_port(port: Option<&IntOrString>) -> Option<&str> {
    match port? {
        IntOrString::String(name) => Some(name),
        IntOrString::Int(_) => None,
    }
}

/// The port of a pod behind a port of a Service: the number of its `targetPort`, which may be the name
/// of a container's port; none if the pod has no port with that name.
///
/// Upstream: `FindPort` of `pkg/api/v1/pod/util.go`.
pub fn port_of_pod(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match port.target_port.as_ref() {
        Some(IntOrString::String(name)) if !name.is_empty() => {
            let protocol = port.protocol.as_deref().unwrap_or(DEFAULT_PROTOCOL);
            container_port(pod, name, protocol)
        }
        Some(IntOrString::Int(number)) if *number != 0 => Some(*number),
        Some(_) | None => Some(port.port),
    }
}

fn container_port(pod: &Pod, name: &str, protocol: &str) -> Option<i32> {
    let containers =
        spec::containers(pod).flat_map(|(_, container)| container.ports.iter().flatten());
    let mut named = containers.filter(|port| {
        port.name.as_deref() == Some(name)
            && port.protocol.as_deref().unwrap_or(DEFAULT_PROTOCOL) == protocol
    });
    named.next().map(|port| port.container_port)
}

#[cfg(test)]
mod tests;
