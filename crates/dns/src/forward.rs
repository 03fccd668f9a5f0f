//! Forwards queries to other servers, and caches their answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::Record;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use tokio::time::Instant;
use tracing::warn;

use crate::shares::{Bounds, Shares};

/// Answers that are cached for each server; a guess. One that fits into a packet takes 30 kB at most.
const CACHE_SIZE: u64 = 512;
/// Limits of forwarded lookups over TCP: a parsed answer takes up to 1.5 MB, and is not cached for the
/// same reason. Further lookups fail.
const LARGE: Bounds = Bounds {
    all: 16,
    each: 8,
    in_use: 8,
};
/// Time for the servers together; below the deadline of a query, so that the last one still counts.
const ALL_SERVERS: Duration = Duration::from_secs(8);
/// Longest and shortest time for one server. The longest is that of glibc.
const SERVER_MAX: Duration = Duration::from_secs(5);
const SERVER_MIN: Duration = Duration::from_secs(2);
/// A server that did not answer is asked after the others for this long.
const AVOIDED: Duration = Duration::from_secs(30);
/// Longest time for which it is cached that a name does not exist: it may be created soon.
const NEGATIVE_TTL_MAX: Duration = Duration::from_secs(30);

/// The answer of another server.
#[derive(Debug)]
pub(crate) struct Forwarded {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

impl Forwarded {
    /// An answer without records.
    pub(crate) fn of_code(code: ResponseCode) -> Self {
        Self {
            code,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }
}

/// The servers that queries are forwarded to.
///
/// Each has a resolver of its own: a single resolver would spend its whole time on the first server and
/// not reach the second.
pub(crate) struct Forwarder {
    servers: Vec<Server>,
    large: Arc<Shares>,
}

struct Server {
    address: SocketAddr,
    udp: TokioResolver,
    /// For answers that do not fit into a packet.
    tcp: TokioResolver,
    health: Mutex<Health>,
}

/// Whether a server answers.
#[derive(Debug, Clone, Copy, Default)]
struct Health {
    answered: Option<Instant>,
    avoided_until: Option<Instant>,
}

impl Forwarder {
    /// A forwarder to these servers, in this order.
    pub(crate) fn new(servers: &[SocketAddr]) -> Self {
        let count = u32::try_from(servers.len()).unwrap_or(u32::MAX).max(1);
        let timeout = (ALL_SERVERS / count).clamp(SERVER_MIN, SERVER_MAX);
        let servers = servers.iter().filter_map(|address| {
            let server = Server::new(*address, timeout);
            server
                .inspect_err(|error| warn!("cannot ask {address}: {error}"))
                .ok()
        });
        Self {
            servers: servers.collect(),
            large: Shares::new(LARGE),
        }
    }

    /// Returns the answer of the first server that has one. If none has, returns the error that the
    /// first of them reported, or `SERVFAIL`.
    pub(crate) async fn ask(&self, query: &Query, client: IpAddr) -> Forwarded {
        let now = Instant::now();
        let (avoided, servers): (Vec<&Server>, Vec<&Server>) = self
            .servers
            .iter()
            .partition(|server| server.health().is_avoided(now));
        let mut reported = None;
        for server in servers.into_iter().chain(avoided) {
            let started = Instant::now();
            let result = server.lookup(query, client, &self.large).await;
            server.health().record(&result, started, Instant::now());
            match result {
                Ok(lookup) => {
                    return Forwarded {
                        code: ResponseCode::NoError,
                        answers: lookup.answers().to_vec(),
                        authorities: Vec::new(),
                        additionals: lookup.additionals().to_vec(),
                    };
                }
                Err(NetError::Dns(DnsError::NoRecordsFound(none))) => {
                    let soa = none.soa.map(|soa| soa.into_record_of_rdata());
                    return Forwarded {
                        authorities: soa.into_iter().collect(),
                        ..Forwarded::of_code(passed_on(none.response_code))
                    };
                }
                Err(NetError::Dns(DnsError::ResponseCode(code))) => {
                    reported.get_or_insert(passed_on(code));
                }
                Err(error) => tracing::debug!("{} did not answer: {error}", server.address),
            }
        }
        Forwarded::of_code(reported.unwrap_or(ResponseCode::ServFail))
    }
}

impl Server {
    fn new(address: SocketAddr, timeout: Duration) -> Result<Self, NetError> {
        let udp = ConnectionConfig::udp();
        let tcp = ConnectionConfig::tcp();
        Ok(Self {
            address,
            udp: resolver(address, udp, CACHE_SIZE, timeout)?,
            tcp: resolver(address, tcp, 0, timeout)?,
            health: Mutex::default(),
        })
    }

    async fn lookup(
        &self,
        query: &Query,
        client: IpAddr,
        large: &Arc<Shares>,
    ) -> Result<Lookup, NetError> {
        let name = query.name().clone();
        let lookup = self.udp.lookup(name.clone(), query.query_type()).await;
        if !matches!(lookup, Err(NetError::Truncated)) {
            return lookup;
        }
        let Some(_share) = large.take(client) else {
            return Err(NetError::Busy);
        };
        self.tcp.lookup(name, query.query_type()).await
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Health {
    fn is_avoided(self, now: Instant) -> bool {
        self.avoided_until.is_some_and(|until| now < until)
    }

    /// Records the result of a lookup that was started then. Names that no server answers don't cause a
    /// server to be avoided that answers others in the meantime.
    fn record<T>(&mut self, result: &Result<T, NetError>, started: Instant, now: Instant) {
        match result {
            Ok(_) | Err(NetError::Dns(_)) => {
                self.answered = Some(now);
                self.avoided_until = None;
            }
            Err(NetError::Timeout | NetError::Io(_) | NetError::NoConnections) => {
                if self.answered.is_none_or(|answered| answered < started) {
                    self.avoided_until = Some(now + AVOIDED);
                }
            }
            Err(_) => {}
        }
    }
}

/// The code for the client. Those that need EDNS are about our query, not about that of the client.
fn passed_on(code: ResponseCode) -> ResponseCode {
    if code.high() == 0 {
        code
    } else {
        ResponseCode::ServFail
    }
}

fn resolver(
    server: SocketAddr,
    mut connection: ConnectionConfig,
    cache_size: u64,
    timeout: Duration,
) -> Result<TokioResolver, NetError> {
    connection.port = server.port();
    let server = NameServerConfig::new(server.ip(), true, vec![connection]);
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut options = ResolverOpts::default();
    options.timeout = timeout;
    // The resolver repeats a UDP query within this one attempt.
    options.attempts = 0;
    options.cache_size = cache_size;
    options.use_hosts_file = ResolveHosts::Never;
    options.negative_max_ttl = Some(NEGATIVE_TTL_MAX);
    options.preserve_intermediates = true;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
}

/// Whether queries to `server` would return to this server, which listens on these addresses.
pub(crate) fn is_loop(server: SocketAddr, listen: &[SocketAddr]) -> bool {
    let ip = server.ip().to_canonical();
    listen.iter().any(|own| {
        let own_ip: IpAddr = own.ip().to_canonical();
        let is_own = own_ip == ip
            || own_ip.is_unspecified()
                && own_ip.is_ipv4() == ip.is_ipv4()
                && (ip.is_loopback() || ip.is_unspecified());
        own.port() == server.port() && is_own
    })
}

#[cfg(test)]
mod tests;
