//! Probes and lifecycle hooks.
//!
//! Upstream: `pkg/apis/core/validation/validation.go` (`validateProbe`, `validateLivenessProbe`,
//! `validateReadinessProbe`, `validateStartupProbe`, `validateHandler`, `validateLifecycle`).

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::core::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, PodSpec, Probe,
    SleepAction, TCPSocketAction,
};
use crate::manifest::problems::Problems;
use crate::path::Path;
use crate::probe::ProbeKind;

use super::containers::PORT_MAX;
use super::{names, one_of};

/// Checks a container's probes and hooks. `ends` says that it is an init container that ends by
/// itself, which can have neither.
pub(super) fn check_handlers(
    container: &Container,
    spec: &PodSpec,
    ends: bool,
    at: &Path,
    problems: &mut Problems<'_>,
) {
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
            problems.invalid(
                &at,
                "is not allowed for init containers that run to completion",
            );
            problems.help("set restartPolicy: Always to make it a sidecar");
        } else {
            check_probe(kind, probe, container, &at, problems);
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
            check_hook(hook, container, spec, &at.key(key), problems);
        }
    }
}

fn check_probe(
    kind: ProbeKind,
    probe: &Probe,
    container: &Container,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    Handlers {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    }
    .check("exec, httpGet, tcpSocket, grpc", container, at, problems);
    for (key, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if value.is_some_and(|value| value < 0) {
            problems.invalid(&at.key(key), "must not be negative");
        }
    }
    let is_readiness = kind == ProbeKind::Readiness;
    if !is_readiness && probe.success_threshold.is_some_and(|n| n > 1) {
        problems.invalid(
            &at.key("successThreshold"),
            "must be 1 for liveness and startup probes",
        );
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        let path = at.key("terminationGracePeriodSeconds");
        if is_readiness {
            problems.invalid(
                &path,
                "is not allowed for readiness probes, which stop no container",
            );
        } else if grace <= 0 {
            problems.invalid(&path, "must be greater than 0");
        }
    }
}

fn check_hook(
    hook: &LifecycleHandler,
    container: &Container,
    spec: &PodSpec,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    Handlers {
        exec: hook.exec.as_ref(),
        http_get: hook.http_get.as_ref(),
        tcp_socket: hook.tcp_socket.as_ref(),
        grpc: None,
        sleep: hook.sleep.as_ref(),
    }
    .check("exec, httpGet, sleep", container, at, problems);
    if hook.tcp_socket.is_some() {
        problems.warn(
            &at.key("tcpSocket"),
            "tcpSocket is not supported for hooks: it always fails",
        );
    }
    let grace = spec.termination_grace_period_seconds.unwrap_or_default();
    if let Some(sleep) = &hook.sleep
        && !(0..=grace).contains(&sleep.seconds)
    {
        problems.invalid(
            &at.dotted("sleep.seconds"),
            format!("must be between 0 and the pod's terminationGracePeriodSeconds ({grace})"),
        );
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
    fn check(&self, which: &str, container: &Container, at: &Path, problems: &mut Problems<'_>) {
        let given = usize::from(self.exec.is_some())
            + usize::from(self.http_get.is_some())
            + usize::from(self.tcp_socket.is_some())
            + usize::from(self.grpc.is_some())
            + usize::from(self.sleep.is_some());
        match given {
            0 => problems.required(at, format!("needs one of: {which}")),
            1 => {}
            _ => problems.invalid(at, format!("must have only one of: {which}")),
        }
        if let Some(exec) = self.exec
            && exec.command.as_ref().is_none_or(Vec::is_empty)
        {
            problems.required(&at.dotted("exec.command"), "a command is needed");
        }
        if let Some(get) = self.http_get {
            check_http_get(get, container, &at.key("httpGet"), problems);
        }
        if let Some(socket) = self.tcp_socket {
            check_port(
                &socket.port,
                container,
                &at.dotted("tcpSocket.port"),
                problems,
            );
        }
        if let Some(grpc) = self.grpc {
            let at = at.key("grpc");
            check_number(grpc.port, &at.key("port"), problems);
            one_of(
                grpc.mode.as_deref(),
                &["", "Plaintext", "TLS"],
                &at.key("mode"),
                problems,
            );
        }
    }
}

fn check_http_get(
    get: &HTTPGetAction,
    container: &Container,
    at: &Path,
    problems: &mut Problems<'_>,
) {
    check_port(&get.port, container, &at.key("port"), problems);
    one_of(
        get.scheme.as_deref(),
        &["", "HTTP", "HTTPS"],
        &at.key("scheme"),
        problems,
    );
    for (index, header) in get.http_headers.iter().flatten().enumerate() {
        if !names::is_header_name(&header.name) {
            problems.invalid(
                &at.key("httpHeaders").index(index).key("name"),
                "this is not the name of an HTTP header",
            );
        }
    }
}

/// Checks a port by number or name. A name that the container gives no port of its own is a
/// fault that the API server does not find, and no probe gets over.
fn check_port(port: &IntOrString, container: &Container, at: &Path, problems: &mut Problems<'_>) {
    let name = match port {
        IntOrString::Int(number) => return check_number(*number, at, problems),
        IntOrString::String(name) => name,
    };
    if let Ok(number) = name.parse() {
        return check_number(number, at, problems);
    }
    let mut ports = container.ports.iter().flatten();
    if !names::is_port_name(name) {
        problems.invalid(
            at,
            format!("must be a number between 1 and {PORT_MAX}, or the name of a port"),
        );
    } else if !ports.any(|port| port.name.as_ref() == Some(name)) {
        problems.invalid(at, "no port of this container has that name");
    }
}

/// Checks the number of a port.
pub(super) fn check_number(port: i32, at: &Path, problems: &mut Problems<'_>) {
    if !(1..=PORT_MAX).contains(&port) {
        problems.invalid(at, format!("must be between 1 and {PORT_MAX}"));
    }
}
