//! Probes and lifecycle hooks.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`validateProbe`, `validateLivenessProbe`,
//! `validateReadinessProbe`, `validateStartupProbe`, `validateHandler`, `validateLifecycle`).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::core::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, PodSpec, Probe,
    SleepAction, TCPSocketAction,
};
use crate::manifest::problems::At;
use crate::probe::ProbeKind;

use super::containers::PORT_MAX;
use super::names;

/// Checks a container's probes and hooks. `ends` says that it is a regular init container, which can
/// have neither.
pub(super) fn check_handlers(container: &Container, spec: &PodSpec, ends: bool, at: &At<'_>) {
    for kind in ProbeKind::ALL {
        let Some(probe) = kind.of(container) else {
            continue;
        };
        let at = at.key(match kind {
            ProbeKind::Liveness => "livenessProbe",
            ProbeKind::Readiness => "readinessProbe",
            ProbeKind::Startup => "startupProbe",
        });
        if ends {
            at.invalid("is not allowed for init containers that run to completion");
            at.help("set restartPolicy: Always to make it a sidecar");
        } else {
            check_probe(kind, probe, container, &at);
        }
    }
    let Some(lifecycle) = container.lifecycle.as_ref().filter(|_| !ends) else {
        return;
    };
    let at = at.key("lifecycle");
    for (key, hook) in [
        ("postStart", &lifecycle.post_start),
        ("preStop", &lifecycle.pre_stop),
    ] {
        if let Some(hook) = hook {
            check_hook(hook, container, spec, &at.key(key));
        }
    }
}

fn check_probe(kind: ProbeKind, probe: &Probe, container: &Container, at: &At<'_>) {
    Handlers {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    }
    .check("exec, httpGet, tcpSocket, grpc", container, at);
    for (key, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if value.is_some_and(|value| value < 0) {
            at.key(key).invalid("must not be negative");
        }
    }
    let is_readiness = kind == ProbeKind::Readiness;
    if !is_readiness && probe.success_threshold.is_some_and(|n| n > 1) {
        at.key("successThreshold")
            .invalid("must be 1 for liveness and startup probes");
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        let path = at.key("terminationGracePeriodSeconds");
        if is_readiness {
            path.invalid("is not allowed for readiness probes, which don't stop containers");
        } else if grace <= 0 {
            path.invalid("must be greater than 0");
        }
    }
}

fn check_hook(hook: &LifecycleHandler, container: &Container, spec: &PodSpec, at: &At<'_>) {
    Handlers {
        exec: hook.exec.as_ref(),
        http_get: hook.http_get.as_ref(),
        tcp_socket: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    }
    .check("exec, httpGet, sleep", container, at);
    if hook.tcp_socket.is_some() {
        at.key("tcpSocket")
            .warn("tcpSocket is not supported for hooks: it always fails");
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    if let Some(sleep) = &hook.sleep
        && !(0..=grace).contains(&sleep.seconds)
    {
        at.dotted("sleep.seconds").invalid(format!(
            "must be between 0 and the pod's terminationGracePeriodSeconds ({grace})"
        ));
    }
}

/// The handlers of one probe or hook, of which one must be set.
struct Handlers<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

impl Handlers<'_> {
    fn check(&self, which: &str, container: &Container, at: &At<'_>) {
        let given = usize::from(self.exec.is_some())
            + usize::from(self.http_get.is_some())
            + usize::from(self.tcp_socket.is_some())
            + usize::from(self.grpc.is_some())
            + usize::from(self.sleep.is_some());
        match given {
            0 => at.required(format!("needs one of: {which}")),
            1 => {}
            _ => at.invalid(format!("must have only one of: {which}")),
        }
        if let Some(exec) = self.exec
            && exec.command.as_ref().is_none_or(Vec::is_empty)
        {
            at.dotted("exec.command").required("a command is needed");
        }
        if let Some(get) = self.http_get {
            check_http_get(get, container, &at.key("httpGet"));
        }
        if let Some(socket) = self.tcp_socket {
            check_port(&socket.port, container, &at.dotted("tcpSocket.port"));
        }
        if let Some(grpc) = self.grpc {
            let at = at.key("grpc");
            check_number(grpc.port, &at.key("port"));
            at.key("mode")
                .one_of(grpc.mode.as_deref(), &["", "Plaintext", "TLS"]);
        }
    }
}

fn check_http_get(get: &HTTPGetAction, container: &Container, at: &At<'_>) {
    check_port(&get.port, container, &at.key("port"));
    at.key("scheme")
        .one_of(get.scheme.as_deref(), &["", "HTTP", "HTTPS"]);
    for (index, header) in get.http_headers.iter().flatten().enumerate() {
        if !names::is_header_name(&header.name) {
            at.key("httpHeaders")
                .index(index)
                .key("name")
                .invalid("this is not the name of an HTTP header");
        }
    }
}

/// Checks a port by number or name. A name that the container gives no port of its own is a
/// fault that the API server does not find, and no probe gets over.
fn check_port(port: &IntOrString, container: &Container, at: &At<'_>) {
    let name = match port {
        IntOrString::Int(number) => return check_number(*number, at),
        IntOrString::String(name) => name,
    };
    if let Ok(number) = name.parse() {
        return check_number(number, at);
    }
    let mut ports = container.ports.iter().flatten();
    if !names::is_port_name(name) {
        at.invalid(format!(
            "must be a number between 1 and {PORT_MAX}, or the name of a port"
        ));
    } else if !ports.any(|port| port.name.as_ref() == Some(name)) {
        at.invalid("no port of this container has that name");
    }
}

/// Checks the number of a port.
pub(super) fn check_number(port: i32, at: &At<'_>) {
    if !(1..=PORT_MAX).contains(&port) {
        at.invalid(format!("must be between 1 and {PORT_MAX}"));
    }
}
