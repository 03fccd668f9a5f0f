//! Containers, init containers and their ports.

use std::collections::HashSet;

use crate::api::core::{Container, PodSpec};
use crate::manifest::problems::At;
use crate::observed::Role;
use crate::reference::Reference;
use crate::restart;
use crate::spec::init_role;

use super::{check_label_name, env, handlers, names, network, resources, security, volumes};

/// Largest port number.
pub(super) const PORT_MAX: i32 = 65535;
/// Most restart rules of a container, and most exit codes of one.
const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;

/// Checks all containers. `volumes` are the names of the pod's volumes.
pub(super) fn check_containers(spec: &PodSpec, volumes: &HashSet<&str>, at: &At<'_>) {
    if spec.containers.is_empty() {
        at.key("containers")
            .required("a pod needs at least one container");
    }
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let all: HashSet<&str> = init
        .iter()
        .chain(&spec.containers)
        .map(|container| container.name.as_str())
        .collect();
    let empty_dirs = spec
        .volumes
        .iter()
        .flatten()
        .filter(|volume| volume.empty_dir.is_some());
    let images = spec.volumes.iter().flatten();
    let images = images.filter(|volume| volume.image.is_some());
    let claims = spec.volumes.iter().flatten();
    let claims = claims.filter(|v| v.persistent_volume_claim.is_some() || v.ephemeral.is_some());
    let pod = PodNames {
        volumes,
        containers: &all,
        empty_dirs: &empty_dirs.map(|volume| volume.name.as_str()).collect(),
        images: &images.map(|volume| volume.name.as_str()).collect(),
        claims: &claims.map(|volume| volume.name.as_str()).collect(),
        host_network: spec.host_network == Some(true),
    };
    let mut seen = HashSet::new();
    let mut host_ports = HashSet::new();
    let lists = [("initContainers", init), ("containers", &*spec.containers)];
    for (key, list) in lists {
        for (index, container) in list.iter().enumerate() {
            let path = at.key(key).index(index);
            let name = &container.name;
            check_label_name(name, "a container", &path.key("name"));
            path.key("name").unique(name, "a container", &mut seen);
            check_container(container, &pod, &path);
            check_restart(container, &path);
            let ends = key == "initContainers" && init_role(container) == Role::Init;
            check_stop_signal(container, spec, ends, &path);
            handlers::check_handlers(container, spec, ends, &path);
            // Init containers that end free their ports for the others.
            let holds = key == "containers" || init_role(container) == Role::Sidecar;
            check_ports(container, pod.host_network, &path);
            if holds {
                check_host_ports(container, &path, &mut host_ports);
            }
        }
    }
}

/// The names that a container may refer to.
struct PodNames<'a> {
    volumes: &'a HashSet<&'a str>,
    containers: &'a HashSet<&'a str>,
    empty_dirs: &'a HashSet<&'a str>,
    images: &'a HashSet<&'a str>,
    claims: &'a HashSet<&'a str>,
    host_network: bool,
}

/// The words of `imagePullPolicy`.
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

fn check_container(container: &Container, pod: &PodNames<'_>, at: &At<'_>) {
    let image = container.image.as_deref();
    check_image(image, "a container needs an image", &at.key("image"));
    at.key("imagePullPolicy")
        .one_of(container.image_pull_policy.as_deref(), &PULL_POLICIES);
    at.key("terminationMessagePolicy").one_of(
        container.termination_message_policy.as_deref(),
        &["File", "FallbackToLogsOnError"],
    );
    for (index, resize) in container.resize_policy.iter().flatten().enumerate() {
        let path = at.key("resizePolicy").index(index);
        let (name, policy) = (&resize.resource_name, &resize.restart_policy);
        path.key("resourceName")
            .one_of(Some(name), &["cpu", "memory"]);
        path.key("restartPolicy")
            .one_of(Some(policy), &["NotRequired", "RestartContainer"]);
    }
    env::check_env(container, pod.containers, pod.empty_dirs, at);
    volumes::check_mounts(container, pod.volumes, pod.images, at);
    volumes::check_devices(container, pod.volumes, pod.claims, at);
    if let Some(resources) = &container.resources {
        resources::check_resources(resources, &at.key("resources"));
    }
    if let Some(context) = &container.security_context {
        security::check_container_security(context, &at.key("securityContext"));
    }
}

/// Checks the name of an image; `required` is the error for a missing one.
pub(super) fn check_image(name: Option<&str>, required: &str, at: &At<'_>) {
    let text = name.unwrap_or_default();
    if text.is_empty() {
        at.required(required);
    } else if text.trim() != text {
        at.invalid("must not begin or end with white space");
    } else if let Err(error) = Reference::parse(text) {
        at.invalid(error.to_string());
        at.help("an image is [registry[:port]/]name[:tag][@digest], with the name in lower case");
    }
}

/// Checks a container's own restart policy, and the rules that come before it.
///
/// Upstream: `pkg/apis/core/validation/validation.go` (`validateContainerRestartPolicy`).
fn check_restart(container: &Container, at: &At<'_>) {
    let path = at.key("restartPolicy");
    let rules = container
        .restart_policy_rules
        .as_deref()
        .unwrap_or_default();
    match container.restart_policy.as_deref() {
        Some("Always" | "OnFailure" | "Never") => {}
        Some(_) => path.invalid("must be Always, OnFailure or Never"),
        None if rules.is_empty() => {}
        None => path.required("is required together with restartPolicyRules"),
    }
    let at = at.key("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        at.invalid(format!("must have {RESTART_RULES_MAX} rules at most"));
    }
    for (index, rule) in rules.iter().enumerate() {
        let at = at.index(index);
        if ![restart::ACTION_RESTART, restart::ACTION_RESTART_ALL].contains(&&*rule.action) {
            let text = "must be Restart or RestartAllContainers";
            at.key("action").invalid(text);
        }
        let at = at.key("exitCodes");
        let Some(codes) = &rule.exit_codes else {
            at.required("a rule needs the exit codes that it applies to");
            continue;
        };
        if ![restart::IN, restart::NOT_IN].contains(&codes.operator.as_str()) {
            at.key("operator").invalid("must be In or NotIn");
        }
        if codes
            .values
            .as_ref()
            .is_some_and(|v| v.len() > EXIT_CODES_MAX)
        {
            let text = format!("must have {EXIT_CODES_MAX} codes at most");
            at.key("values").invalid(text);
        }
    }
}

/// Checks `lifecycle.stopSignal`; the hooks beside it are checked elsewhere.
fn check_stop_signal(container: &Container, spec: &PodSpec, ends: bool, at: &At<'_>) {
    let Some(lifecycle) = &container.lifecycle else {
        return;
    };
    let at = at.key("lifecycle");
    if ends {
        at.invalid("is not allowed for init containers that run to completion");
    }
    let Some(signal) = lifecycle.stop_signal.as_deref() else {
        return;
    };
    let path = at.key("stopSignal");
    let of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || "+-".contains(c);
    if !signal.starts_with("SIG") || !signal.chars().all(of_name) {
        path.invalid("must be the name of a signal, for example SIGTERM");
    }
    if spec.os.is_none() {
        path.invalid("requires spec.os.name");
        path.help("set spec.os.name to linux");
    }
}

fn check_ports(container: &Container, host_network: bool, at: &At<'_>) {
    let mut seen = HashSet::new();
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let path = at.key("ports").index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            if !names::is_port_name(name) {
                path.key("name").invalid("a port's name has at most 15 lower-case letters, digits and `-`, and at least one letter");
            }
            path.key("name").unique(name, "a port", &mut seen);
        }
        path.key("protocol")
            .one_of(port.protocol.as_deref(), &["TCP", "UDP", "SCTP"]);
        if port.container_port == 0 {
            path.key("containerPort").required("a port needs a number");
        } else if !(1..=PORT_MAX).contains(&port.container_port) {
            path.key("containerPort")
                .invalid(format!("must be between 1 and {PORT_MAX}"));
        }
        let host_port = port.host_port.unwrap_or(0);
        if !(0..=PORT_MAX).contains(&host_port) && host_port != port.container_port {
            path.key("hostPort")
                .invalid(format!("must be between 1 and {PORT_MAX}"));
        } else if host_network && host_port != port.container_port {
            path.key("hostPort")
                .invalid("must be equal to containerPort in a pod with hostNetwork");
        }
        if let Some(ip) = port.host_ip.as_deref().filter(|ip| !ip.is_empty()) {
            network::check_ip(ip, &path.key("hostIP"));
        }
    }
}

fn check_host_ports<'a>(
    container: &'a Container,
    at: &At<'_>,
    seen: &mut HashSet<(&'a str, &'a str, i32)>,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let number = port.host_port.unwrap_or(0);
        let address = port.host_ip.as_deref().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or_default();
        if number != 0 && !seen.insert((address, protocol, number)) {
            let path = at.key("ports").index(index).key("hostPort");
            path.duplicate("another port of this pod already has this host port");
        }
    }
}
