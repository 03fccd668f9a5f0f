//! Validation of a `Service`; its name is supported, and resolves to the selected pods.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`ValidateService`).

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::core::{Service, ServicePort, ServiceSpec};
use crate::manifest::problems::At;

use super::handlers::check_number;
use super::{meta, names};

/// Help for a field that requests an address of the Service's own.
const NO_ADDRESS: &str =
    "remove the field: the Service's name resolves to the addresses of the pods that it selects";
/// Help for a field that publishes a port of the node.
const HOST_PORT: &str = "publish the port with hostPort in the pod";
/// Help for a field that names a server outside the node's pods.
const OTHER_NAME: &str = "use the external name itself, or hostAliases in the pod";
/// Help for a field that sends a client to the same pod each time.
const NO_AFFINITY: &str = "remove the field: each client chooses one of the pods' addresses";
/// Why a field is refused.
const NOT_HERE: &str = "a Service of a manifest can't have this field";

/// Checks a `Service`.
pub(in crate::manifest) fn check_service(object: &Service, root: &At<'_>) {
    meta::check_object_metadata(&object.metadata, root);
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if names::is_subdomain(name) && !names::is_service_name(name) {
        let at = root.dotted("metadata.name");
        at.invalid("must be a DNS-1035 label");
        at.help(names::SERVICE_RULE);
    }
    let at = root.key("spec");
    let Some(spec) = &object.spec else {
        at.required("a Service needs a spec");
        return;
    };
    check_type(spec, &at);
    check_fields(spec, &at);
    let selector = at.key("selector");
    if spec.selector.as_ref().is_none_or(BTreeMap::is_empty) && spec.external_name.is_none() {
        selector.required("a Service needs a selector of its pods");
        selector.help("mirrorlet doesn't read Endpoints: a Service's name resolves to the pods that it selects");
    }
    meta::check_label_map(spec.selector.as_ref(), &selector);
    check_ports(spec, &at.key("ports"));
}

fn check_type(spec: &ServiceSpec, at: &At<'_>) {
    let path = at.key("type");
    let (what, help) = match spec.type_.as_deref() {
        None | Some("" | "ClusterIP") => return,
        Some("NodePort") => ("NodePort", HOST_PORT),
        Some("LoadBalancer") => ("LoadBalancer", HOST_PORT),
        Some("ExternalName") => ("ExternalName", OTHER_NAME),
        Some(_) => {
            path.invalid("this is not a Service type");
            path.help("remove it, or use ClusterIP");
            return;
        }
    };
    let message = format!("Services of type {what} are not supported");
    unsupported(&path, message, help);
}

/// Refuses what a name can't do.
fn check_fields(spec: &ServiceSpec, at: &At<'_>) {
    let is_own = |address: &String| !address.is_empty() && address != "None";
    let is_external = spec.external_name.as_ref().is_some_and(|n| !n.is_empty())
        && spec.type_.as_deref() != Some("ExternalName");
    let has_affinity = !matches!(spec.session_affinity.as_deref(), None | Some("" | "None"));
    let cluster_ips = spec.cluster_ips.as_deref().unwrap_or_default();
    let external_ips = spec.external_ips.as_deref().unwrap_or_default();
    for (field, is_set, help) in [
        (
            "clusterIP",
            spec.cluster_ip.as_ref().is_some_and(is_own),
            NO_ADDRESS,
        ),
        ("clusterIPs", cluster_ips.iter().any(is_own), NO_ADDRESS),
        ("externalIPs", !external_ips.is_empty(), HOST_PORT),
        ("externalName", is_external, OTHER_NAME),
        (
            "externalTrafficPolicy",
            spec.external_traffic_policy.is_some(),
            HOST_PORT,
        ),
        (
            "healthCheckNodePort",
            spec.health_check_node_port.is_some(),
            HOST_PORT,
        ),
        (
            "loadBalancerClass",
            spec.load_balancer_class.is_some(),
            HOST_PORT,
        ),
        ("loadBalancerIP", spec.load_balancer_ip.is_some(), HOST_PORT),
        (
            "loadBalancerSourceRanges",
            spec.load_balancer_source_ranges.is_some(),
            HOST_PORT,
        ),
        ("sessionAffinity", has_affinity, NO_AFFINITY),
        (
            "sessionAffinityConfig",
            spec.session_affinity_config.is_some(),
            NO_AFFINITY,
        ),
    ] {
        if is_set {
            unsupported(&at.key(field), NOT_HERE, help);
        }
    }
}

fn check_ports(spec: &ServiceSpec, at: &At<'_>) {
    let ports = spec.ports.as_deref().unwrap_or_default();
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = at.index(index);
        check_port(port, &path);
        let name = port.name.as_deref().unwrap_or_default();
        if name.is_empty() && ports.len() > 1 {
            let message = "a Service with several ports needs a name for each port";
            path.key("name").required(message);
        } else if !name.is_empty() && !names::is_label(name) {
            path.key("name").invalid("must be a DNS-1123 label");
            path.help(names::LABEL_RULE);
        } else if !name.is_empty() && !seen.insert(name) {
            path.key("name").duplicate("another port has this name");
        }
    }
}

fn check_port(port: &ServicePort, at: &At<'_>) {
    check_number(port.port, &at.key("port"));
    at.key("protocol")
        .one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"]);
    if port.node_port.is_some_and(|port| port != 0) {
        unsupported(&at.key("nodePort"), NOT_HERE, HOST_PORT);
    }
    if matches!(port.target_port, Some(IntOrString::Int(target)) if target != port.port) {
        unsupported(
            &at.key("targetPort"),
            "must equal port: a Service is only a name for its pods here, and ports are not translated",
            "set port to the port that the container listens on",
        );
    }
}

fn unsupported(at: &At<'_>, message: impl Into<String>, help: &str) {
    at.unsupported(message);
    at.help(help);
}
