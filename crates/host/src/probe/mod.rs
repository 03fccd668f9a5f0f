//! Checks servers over HTTP, TCP and gRPC, for probes and hooks.
//!
//! The requests are sent from the node, as a kubelet's are, and cost the Engine nothing. Each uses its
//! own connection, goes through no proxy, accepts every certificate, and ends by its deadline, whatever
//! the server does.
//!
//! Upstream: `pkg/probe/http`, `pkg/probe/tcp`, `pkg/probe/grpc`.

mod grpc;
mod http;
mod names;
#[cfg(test)]
mod tests;
mod tls;

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{Either, select};
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::shortage::{WORDS, is_shortage};
use mirrorlet_core::handler::{GrpcCheck, HttpGet, authority};

pub use grpc::Health;
pub use http::HttpAnswer;
use names::Names;

/// The reason why a server could not be reached, or gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// The connection was not accepted.
    #[error("dial tcp {address}: {why}")]
    Connect {
        /// Where to.
        address: String,
        /// The system's words.
        why: String,
    },
    /// The machine had no resources for a connection: the server was not contacted. A server that
    /// redirected the request was.
    #[error("dial tcp {address}: {}: {why}", WORDS)]
    Exhausted {
        /// Where to.
        address: String,
        /// The system's words.
        why: String,
    },
    /// The connection ended without an answer, or with an invalid one.
    #[error("{0}")]
    Broken(String),
    /// A server that should use TLS answered in plain text.
    #[error("server gave HTTP response to HTTPS client")]
    PlainAnswer,
    /// It sent us on and on.
    #[error("stopped after {0} redirects")]
    TooManyRedirects(usize),
    /// The request is invalid: names the part, never its value.
    #[error("invalid request: {0}")]
    Request(String),
    /// It did not answer in time.
    #[error("context deadline exceeded: no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// Sends requests to servers. Created once: all requests share the TLS configuration. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    names: Names,
    /// For HTTP over TLS.
    tls: TlsConnector,
    /// For gRPC over TLS.
    tls_h2: TlsConnector,
}

impl Default for Client {
    fn default() -> Self {
        Self::new()
    }
}

mirrorlet_core::partial_debug!(Client);

impl Client {
    /// One that is ready to ask.
    pub fn new() -> Self {
        Self {
            names: Names::of_system(),
            tls: tls::connector(&[]),
            tls_h2: tls::connector(&[b"h2"]),
        }
    }

    /// Returns a client that resolves names by that function, which may block. For tests.
    pub fn resolving_by(
        look_up: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            names: Names::new(look_up),
            ..Self::new()
        }
    }

    /// Returns the client for probes and hooks of the pods of that namespace: their name lookups leave
    /// capacity for those of others.
    #[must_use]
    pub fn of_namespace(&self, namespace: &Arc<str>) -> Self {
        Self {
            names: self.names.of_namespace(namespace),
            ..self.clone()
        }
    }

    /// Sends a GET request and returns the status of the answer: of the last one after redirects to the
    /// same host, and of the redirect itself if it is to another host.
    ///
    /// # Errors
    /// There was no complete answer within `timeout`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn http_get(
        &self,
        get: &HttpGet,
        timeout: Duration,
    ) -> Result<HttpAnswer, ProbeError> {
        self.http_get_again(get, timeout, || None).await
    }

    /// Sends a GET request as [`http_get`](Self::http_get) does. If this machine had no resources for
    /// the connection, the request is retried after a `pause`, as long as there is one; after a
    /// redirect, only the redirected request is retried.
    ///
    /// # Errors
    /// There was no complete answer within `timeout`, or no more pause.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn http_get_again(
        &self,
        get: &HttpGet,
        timeout: Duration,
        pause: impl FnMut() -> Option<Duration>,
    ) -> Result<HttpAnswer, ProbeError> {
        within(timeout, self.follow(get, pause)).await
    }

    /// Opens a TCP connection and closes it.
    ///
    /// # Errors
    /// The connection was not accepted within `timeout`.
    pub async fn tcp_socket(
        &self,
        host: &str,
        port: u16,
        timeout: Duration,
    ) -> Result<(), ProbeError> {
        within(timeout, self.connect(host, port)).await.map(drop)
    }

    /// Opens a TCP connection to the first address of a host that takes one.
    async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, ProbeError> {
        let failed = |error: &io::Error, is_short: bool| {
            let (address, why) = (authority(host, port), why(error));
            if is_short {
                ProbeError::Exhausted { address, why }
            } else {
                ProbeError::Connect { address, why }
            }
        };
        let found = self.names.resolve(host).await;
        let found = found.map_err(|error| failed(&error, is_shortage(&error)))?;
        let mut last = None;
        for ip in found.iter() {
            let address = SocketAddr::new(*ip, port);
            let error = match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let is_short = is_of_machine(&error, || has_source(address));
            last = Some(of_both(last.take(), failed(&error, is_short)));
        }
        let none = || failed(&io::Error::other("the host has no address"), false);
        Err(last.unwrap_or_else(none))
    }

    /// Calls the gRPC health service, and returns the status of the service asked about.
    ///
    /// # Errors
    /// There was no answer of a health service within `timeout`.
    pub async fn grpc(&self, check: &GrpcCheck, timeout: Duration) -> Result<Health, ProbeError> {
        within(timeout, self.check(check)).await
    }
}

async fn within<T>(
    timeout: Duration,
    attempt: impl Future<Output = Result<T, ProbeError>>,
) -> Result<T, ProbeError> {
    // On the heap: a worker that waits for its next turn should not hold the state of a request.
    let attempt = Box::pin(attempt);
    tokio::time::timeout(timeout, attempt)
        .await
        .unwrap_or(Err(ProbeError::Timeout(timeout)))
}

/// Combines the errors of two addresses of a host: this error and that of an address before. An address
/// that was not tried might have accepted the connection.
fn of_both(before: Option<ProbeError>, error: ProbeError) -> ProbeError {
    match before {
        Some(before @ ProbeError::Exhausted { .. }) => before,
        Some(_) | None => error,
    }
}

/// Whether a connection failed because this machine lacks a resource that it has at other times. If it
/// has no source address (`has_source`), as for IPv6 where that is disabled, it has no port either, and
/// never will.
fn is_of_machine(error: &io::Error, has_source: impl FnOnce() -> bool) -> bool {
    let is_address = Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL);
    is_shortage(error) && (!is_address || has_source())
}

/// Whether this machine has an address to reach that one from.
fn has_source(address: SocketAddr) -> bool {
    let any: SocketAddr = if address.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    // A socket of UDP takes its address when it is connected, and sends nothing.
    match UdpSocket::bind(any) {
        Ok(socket) => socket.connect(address).is_ok(),
        Err(error) => is_shortage(&error),
    }
}

/// Returns the system's error in the words that upstream's users know.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

/// Runs an exchange while driving its connection. Data that the connection received before it ended
/// still counts.
async fn drive<T>(exchange: impl Future<Output = T>, connection: impl Future) -> T {
    match select(pin!(exchange), pin!(connection)).await {
        Either::Left((done, _)) => done,
        Either::Right((_, exchange)) => exchange.await,
    }
}
