//! The handlers of probes and hooks, with all defaults resolved: the host, the
//! port, the headers.
//!
//! Upstream: `pkg/probe/util.go`, `pkg/probe/http/request.go`, `pkg/kubelet/prober/prober.go`
//! (`runProbe`) and `pkg/kubelet/lifecycle/handlers.go`.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::core::{Container, HTTPGetAction, LifecycleHandler, Probe};
use crate::expand::{Budget, ExpandError, expand_words};
use crate::node::KUBERNETES_VERSION;
use crate::small::SmallCollect;

/// Largest port number.
const PORT_MAX: i64 = 65535;

/// The action of a probe or a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handler {
    /// Run a command in the container.
    Exec(Vec<String>),
    /// Send a GET request.
    HttpGet(HttpGet),
    /// Open a TCP connection.
    TcpSocket {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Ask the gRPC health service.
    Grpc(GrpcCheck),
    /// Wait.
    Sleep(Duration),
}

/// The purpose of a request, which its user agent contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A probe.
    Probe,
    /// A lifecycle hook.
    Lifecycle,
}

impl Purpose {
    /// The user agent of its requests: `kube-probe/1.35`.
    #[must_use]
    pub fn user_agent(self) -> String {
        let version = KUBERNETES_VERSION.trim_start_matches('v');
        let minor = version.rsplit_once('.').map_or(version, |(minor, _)| minor);
        match self {
            Self::Probe => format!("kube-probe/{minor}"),
            Self::Lifecycle => format!("kube-lifecycle/{minor}"),
        }
    }
}

crate::words! {
    /// The protocol of an HTTP server.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Scheme {
        /// In plain text.
        Http = "http",
        /// Over TLS; certificates are not verified.
        Https = "https",
    }
    /// As URLs spell it.
    pub fn as_str;
}

/// A GET request.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpGet {
    /// The protocol.
    pub scheme: Scheme,
    /// Name or address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path, perhaps with a query.
    pub path: String,
    /// Headers to send. Their values may be secret.
    pub headers: Vec<(String, String)>,
}

impl fmt::Debug for HttpGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpGet")
            .field("url", &self.to_string())
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// Its URL in loggable form: a query may contain secrets.
impl fmt::Display for HttpGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.split(['?', '#']).next().unwrap_or_default();
        let slash = if path.starts_with('/') { "" } else { "/" };
        let authority = authority(&self.host, self.port);
        write!(f, "{}://{authority}{slash}{path}", self.scheme.as_str())
    }
}

/// A question to the gRPC health service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcCheck {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The service to check; empty for the whole server.
    pub service: String,
    /// Whether to use TLS; certificates are not verified.
    pub tls: bool,
}

/// Why there is nothing to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandlerError {
    /// It is empty.
    #[error("missing handler: none of exec, httpGet, tcpSocket, grpc and sleep is set")]
    Missing,
    /// A hook can no longer be a TCP connection; upstream accepts it, and fails.
    #[error("tcpSocket is not supported for lifecycle hooks")]
    TcpSocketHook,
    /// No port of the container has that name.
    #[error("container {container} has no port named {port:?}")]
    NoSuchPort {
        /// The port's name.
        port: String,
        /// The container.
        container: String,
    },
    /// A number that no port has.
    #[error("invalid port number: {0}")]
    InvalidPort(i64),
    /// The command of a probe exceeds the length limit.
    #[error(transparent)]
    Expand(#[from] ExpandError),
    /// The pod has no address yet.
    #[error("the pod has no address")]
    NoAddress,
}

/// Returns the action of a probe. `$(VAR)` in a command is replaced by the literal values of the
/// container's `env`.
///
/// # Errors
/// The handler of the probe is invalid.
pub fn of_probe(
    probe: &Probe,
    container: &Container,
    pod_ip: Option<IpAddr>,
) -> Result<Handler, HandlerError> {
    if let Some(exec) = &probe.exec {
        let (literals, words) = (literals(container), exec.command.as_deref());
        let value_of = |name: &str| literals.get(name).copied();
        let command = expand_words(words, "command", &mut Budget::default(), value_of)?;
        return Ok(Handler::Exec(command));
    }
    if let Some(get) = &probe.http_get {
        return http_get(get, container, pod_ip, Purpose::Probe).map(Handler::HttpGet);
    }
    if let Some(socket) = &probe.tcp_socket {
        return Ok(Handler::TcpSocket {
            port: port(&socket.port, container)?,
            host: host(socket.host.as_deref(), pod_ip)?,
        });
    }
    if let Some(grpc) = &probe.grpc {
        return Ok(Handler::Grpc(GrpcCheck {
            port: number(grpc.port.into())?,
            host: host(None, pod_ip)?,
            service: grpc.service.clone().unwrap_or_default(),
            tls: grpc.mode.as_deref() == Some("TLS"),
        }));
    }
    Err(HandlerError::Missing)
}

/// Returns the action of a hook.
///
/// # Errors
/// The handler of the hook is invalid.
pub fn of_hook(
    hook: &LifecycleHandler,
    container: &Container,
    pod_ip: Option<IpAddr>,
) -> Result<Handler, HandlerError> {
    if let Some(exec) = &hook.exec {
        return Ok(Handler::Exec(exec.command.clone().unwrap_or_default()));
    }
    if let Some(get) = &hook.http_get {
        return http_get(get, container, pod_ip, Purpose::Lifecycle).map(Handler::HttpGet);
    }
    if let Some(sleep) = &hook.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        return Ok(Handler::Sleep(Duration::from_secs(seconds)));
    }
    if hook.tcp_socket.is_some() {
        return Err(HandlerError::TcpSocketHook);
    }
    Err(HandlerError::Missing)
}

/// The request of an `httpGet`, with the headers that its author left to us.
fn http_get(
    get: &HTTPGetAction,
    container: &Container,
    pod_ip: Option<IpAddr>,
    purpose: Purpose,
) -> Result<HttpGet, HandlerError> {
    let mut headers: Vec<(String, String)> = get
        .http_headers
        .iter()
        .flatten()
        .map(|header| (header.name.clone(), header.value.clone()))
        .collect();
    let value_of = |name: &str| {
        let found = get.http_headers.iter().flatten();
        found
            .filter(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| header.value.as_str())
            .next()
    };
    if value_of("User-Agent").is_none() {
        headers.push(("User-Agent".to_owned(), purpose.user_agent()));
    }
    match value_of("Accept") {
        None => headers.push(("Accept".to_owned(), "*/*".to_owned())),
        Some("") => headers.retain(|(name, _)| !name.eq_ignore_ascii_case("Accept")),
        Some(_) => {}
    }
    let is_tls = get
        .scheme
        .as_deref()
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("HTTPS"));
    Ok(HttpGet {
        scheme: if is_tls { Scheme::Https } else { Scheme::Http },
        port: port(&get.port, container)?,
        host: host(get.host.as_deref(), pod_ip)?,
        path: get.path.clone().unwrap_or_default(),
        headers,
    })
}

fn host(given: Option<&str>, pod_ip: Option<IpAddr>) -> Result<String, HandlerError> {
    match given.filter(|host| !host.is_empty()) {
        Some(host) => Ok(host.to_owned()),
        None => pod_ip
            .map(|ip| ip.to_string())
            .ok_or(HandlerError::NoAddress),
    }
}

/// A port by number, by the name that the container gives it, or by a number written as text.
///
/// Upstream: `ResolveContainerPort` of `pkg/probe/util.go`.
fn port(port: &IntOrString, container: &Container) -> Result<u16, HandlerError> {
    let name = match port {
        IntOrString::Int(value) => return number((*value).into()),
        IntOrString::String(name) => name,
    };
    let named = container
        .ports
        .iter()
        .flatten()
        .find(|port| port.name.as_ref() == Some(name));
    if let Some(port) = named {
        return number(port.container_port.into());
    }
    let value: i64 = name.parse().map_err(|_| HandlerError::NoSuchPort {
        port: name.clone(),
        container: container.name.clone(),
    })?;
    number(value)
}

fn number(port: i64) -> Result<u16, HandlerError> {
    let valid = (1..=PORT_MAX).contains(&port);
    u16::try_from(port)
        .ok()
        .filter(|_| valid)
        .ok_or(HandlerError::InvalidPort(port))
}

/// Returns the literal values of a container's `env`. A variable from elsewhere counts as empty, as
/// upstream.
fn literals(container: &Container) -> BTreeMap<&str, &str> {
    let all = container.env.iter().flatten();
    all.map(|variable| {
        let value = variable.value.as_deref().unwrap_or_default();
        (variable.name.as_str(), value)
    })
    .collect_map()
}

/// `host:port`, an IPv6 address in brackets.
pub fn authority(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
