//! The create request of a pod's sandbox.
//!
//! Upstream: cri-dockerd `core/sandbox_helpers.go` (`makeSandboxDockerConfig`).

use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;

use bollard::models::{
    ContainerCreateBody, EndpointSettings, HealthConfig, HostConfig, NetworkingConfig, PortBinding,
    PortMap, RestartPolicy, RestartPolicyNameEnum,
};

use mirrorlet_core::api::core::Container;
use mirrorlet_core::api::{FullName, Pod, PodUid};
use mirrorlet_core::observed::Role;
use mirrorlet_core::resources::SHARES_MIN;
use mirrorlet_core::rollout::is_beside;
use mirrorlet_core::spec;

use super::dns::PodDns;
use super::forwarded_ports::forwarded_ports;
use super::{
    ConfigError, EngineFacts, HostFacts, Request, compute_dns, compute_hostname, labels, names,
    resources, security,
};
use mirrorlet_core::small::SmallCollect;

/// Size of `/dev/shm`, regardless of the daemon's default.
pub const SHM_SIZE: i64 = 64 << 20;
/// The Engine's value for "no search domains".
const NO_SEARCH: &str = ".";
/// The first API version that refuses sysctls of a network interface among those of a container, and
/// takes them as an option of the container's endpoint. Versions 1.46 and 1.47 turn them into that
/// option themselves; older Engines set them as they are.
const API_ENDPOINT_SYSCTLS: (u16, u16) = (1, 48);
/// The option of an endpoint for the sysctls of its interface, separated by commas.
const ENDPOINT_SYSCTLS: &str = "com.docker.network.endpoint.sysctls";

/// The inputs of a sandbox's creation request.
#[derive(Debug, Clone, Copy)]
pub struct SandboxInput<'a> {
    /// Our owner id.
    pub owner: &'a str,
    /// The pod.
    pub pod: &'a Pod,
    /// How many sandboxes the pod had before.
    pub attempt: u32,
    /// Network mode of a pod that is not in the host's network.
    pub network_mode: &'a str,
    /// The host's address in that network. If the pod runs beside the one that it will replace, its
    /// ports are published there and on 127.0.0.1, with numbers that the Engine chooses.
    pub gateway: Option<Ipv4Addr>,
    /// Image of the sandbox.
    pub image: &'a str,
    /// The node.
    pub node: &'a HostFacts,
    /// The Engine.
    pub engine: &'a EngineFacts,
}

/// Makes the create request of a pod's sandbox.
pub fn sandbox_request(input: &SandboxInput<'_>) -> Result<Request, ConfigError> {
    let pod = input.pod;
    let pod_spec = spec::spec(pod);
    if pod_spec.host_users == Some(false) {
        return Err(ConfigError::UserNamespace);
    }
    let driver = input.engine.cgroup_driver;
    resources::pod_cgroup_limits(pod, &input.node.cgroup_root, driver)?;
    let host_network = spec::is_host_network(pod);
    let hostname = if host_network {
        None
    } else {
        Some(compute_hostname(pod, &input.node.cluster_domain)?.kernel)
    };
    let (dns, notes) = compute_dns(pod, input.node);
    let (exposed_ports, port_bindings) = if is_beside(pod) {
        ports_beside(pod, input.gateway)
    } else {
        ports(pod)
    };
    let has_endpoint = !host_network && input.engine.api_version >= API_ENDPOINT_SYSCTLS;
    let (sysctls, of_endpoint) = sysctls(pod, has_endpoint);
    let mut host_config = HostConfig {
        network_mode: Some(mode(host_network, input.network_mode)),
        ipc_mode: Some(mode(pod_spec.host_ipc == Some(true), "shareable")),
        pid_mode: (pod_spec.host_pid == Some(true)).then(|| "host".to_owned()),
        sysctls,
        cgroup_parent: resources::cgroup_parent(
            pod,
            &input.node.cgroup_root,
            input.engine.cgroup_driver,
        ),
        oom_score_adj: Some(resources::allowed_oom_score(
            resources::OOM_SANDBOX,
            input.engine,
        )),
        cpu_shares: Some(SHARES_MIN),
        shm_size: Some(SHM_SIZE),
        security_opt: Some(security::sandbox_security_opts(pod)),
        group_add: security::group_add(pod),
        privileged: Some(spec::containers(pod).any(|(_, c)| security::is_privileged(c))),
        port_bindings,
        restart_policy: Some(never_restart()),
        ..HostConfig::default()
    };
    apply_dns(&mut host_config, dns);
    let body = ContainerCreateBody {
        hostname,
        user: security::sandbox_user(pod),
        image: Some(input.image.to_owned()),
        exposed_ports,
        healthcheck: Some(no_healthcheck()),
        labels: Some(labels::sandbox_labels(input.owner, pod, input.attempt)),
        host_config: Some(host_config),
        networking_config: of_endpoint.map(|sysctls| endpoint(input.network_mode, sysctls)),
        ..ContainerCreateBody::default()
    };
    let name = names::sandbox_name(&FullName::of(pod), &PodUid::of(pod), input.attempt);
    Ok(Request { name, body, notes })
}

/// The Engine never restarts our containers: the agent does.
pub(super) fn never_restart() -> RestartPolicy {
    RestartPolicy {
        name: Some(RestartPolicyNameEnum::NO),
        maximum_retry_count: None,
    }
}

/// Disables an image's health check: probes replace it.
pub(super) fn no_healthcheck() -> HealthConfig {
    HealthConfig {
        test: Some(vec!["NONE".to_owned()]),
        ..HealthConfig::default()
    }
}

/// Leaves what the pod inherits from the node to the Engine, which finds a way round resolvers
/// on the node's loopback.
fn apply_dns(host_config: &mut HostConfig, dns: PodDns) {
    if dns.inherited {
        return;
    }
    let mut conf = dns.conf;
    if conf.searches.is_empty() {
        conf.searches.push(NO_SEARCH.to_owned());
    }
    host_config.dns = (!conf.servers.is_empty()).then_some(conf.servers);
    host_config.dns_search = Some(conf.searches);
    host_config.dns_options = (!conf.options.is_empty()).then_some(conf.options);
}

/// The mode of a namespace: the host's or another one.
fn mode(is_host: bool, other: &str) -> String {
    let mode = if is_host { "host" } else { other };
    mode.to_owned()
}

/// The sysctls of the container, and those of its endpoint as the value of [`ENDPOINT_SYSCTLS`].
///
/// Upstream: moby `daemon/server/router/container/container_routes.go` (`handleSysctlBC`).
fn sysctls(pod: &Pod, has_endpoint: bool) -> (Option<HashMap<String, String>>, Option<String>) {
    let context = spec::spec(pod).security_context.as_ref();
    let all = context.and_then(|context| context.sysctls.as_ref());
    let (mut of_container, mut of_endpoint) = (HashMap::new(), Vec::new());
    for sysctl in all.into_iter().flatten() {
        let name = spec::normalized_sysctl(&sysctl.name);
        match of_own_interface(&name).filter(|_| has_endpoint) {
            Some(name) => of_endpoint.push(format!("{name}={}", sysctl.value)),
            None => {
                of_container.insert(name, sysctl.value.clone());
            }
        }
    }
    (
        (!of_container.is_empty()).then_some(of_container),
        (!of_endpoint.is_empty()).then(|| of_endpoint.join(",")),
    )
}

/// The name of a sysctl of the pod's own interface, with the Engine's placeholder for the interface.
fn of_own_interface(name: &str) -> Option<String> {
    let parts: Vec<&str> = name.splitn(5, '.').collect();
    let ["net", family, group, "eth0", rest] = parts.as_slice() else {
        return None;
    };
    Some(format!("net.{family}.{group}.IFNAME.{rest}"))
}

/// The endpoint in that network, with sysctls of its interface.
fn endpoint(network_mode: &str, sysctls: String) -> NetworkingConfig {
    let settings = EndpointSettings {
        driver_opts: Some(HashMap::from([(ENDPOINT_SYSCTLS.to_owned(), sysctls)])),
        ..EndpointSettings::default()
    };
    NetworkingConfig {
        endpoints_config: Some(HashMap::from([(network_mode.to_owned(), settings)])),
    }
}

/// The containers with host ports: app containers and sidecars.
pub(crate) fn with_host_ports(pod: &Pod) -> impl Iterator<Item = &Container> {
    let containers = spec::containers(pod).filter(|(role, _)| match role {
        Role::App | Role::Sidecar => true,
        Role::Init | Role::Ephemeral => false,
    });
    containers.map(|(_, container)| container)
}

/// The host ports of a pod. In the host's network there is nothing to publish.
fn ports(pod: &Pod) -> (Option<Vec<String>>, Option<PortMap>) {
    if spec::is_host_network(pod) {
        return (None, None);
    }
    let mut exposed = BTreeSet::new();
    let mut bindings = PortMap::new();
    for port in with_host_ports(pod).flat_map(|c| c.ports.iter().flatten()) {
        let Some(host_port) = port.host_port.filter(|port| *port != 0) else {
            continue;
        };
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => "udp",
            Some("SCTP") => "sctp",
            _ => "tcp",
        };
        let key = format!("{}/{protocol}", port.container_port);
        exposed.insert(key.clone());
        let binding = PortBinding {
            host_ip: port.host_ip.clone().filter(|ip| !ip.is_empty()),
            host_port: Some(host_port.to_string()),
        };
        let list = bindings.entry(key).or_default().get_or_insert_default();
        if !list.contains(&binding) {
            list.push(binding);
        }
    }
    if exposed.is_empty() {
        return (None, None);
    }
    (Some(exposed.into_iter().collect()), Some(bindings))
}

/// The ports that are led to a pod by rules of ours, published where only this host and its pods
/// reach them. The Engine forwards packets to none that it doesn't publish.
fn ports_beside(pod: &Pod, gateway: Option<Ipv4Addr>) -> (Option<Vec<String>>, Option<PortMap>) {
    let mut bindings = PortMap::new();
    for port in forwarded_ports(pod) {
        let addresses = std::iter::once(Ipv4Addr::LOCALHOST).chain(gateway);
        let chosen = addresses.map(|address| PortBinding {
            host_ip: Some(address.to_string()),
            host_port: None,
        });
        bindings
            .entry(port.exposed())
            .or_insert_with(|| Some(chosen.collect()));
    }
    if bindings.is_empty() {
        return (None, None);
    }
    let exposed: BTreeSet<String> = bindings.keys().cloned().collect_set();
    (Some(exposed.into_iter().collect()), Some(bindings))
}
