//! A small DNS server. It answers from a [`Table`] in a file, which it follows, and forwards all
//! other queries to the servers that the table lists.
//!
//! - [`Table::answer`] decides what the table answers to a client; it is a pure function, and so is
//!   [`reply`], which does the same with bytes.
//! - [`serve`] answers over UDP and TCP.
//!
//! ```no_run
//! # async fn run() -> Result<(), mirrorlet_dns::ServeError> {
//! let options = mirrorlet_dns::Options {
//!     table: "/run/names/table.json".into(),
//!     listen: vec!["172.20.0.1:53".parse().unwrap()],
//!     from: vec!["172.20.0.0/16".parse().unwrap()],
//! };
//! mirrorlet_dns::serve(options, std::future::pending()).await
//! # }
//! ```

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::warn;

mod follow;
mod forward;
mod reply;
mod server;
mod shares;
mod socket;
mod table;

pub use ipnet::IpNet;
pub use reply::reply;
pub use table::{Answer, Kind, Name, Port, Table};

use follow::Follower;
use forward::{Forwarder, is_loop};
use server::{Server, State};

/// Time for queries that are being answered when the server is stopped.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file with the [`Table`]. Its directory is watched.
    pub table: PathBuf,
    /// Addresses to listen on, over UDP and TCP. An unspecified one (`0.0.0.0`) only works where
    /// the host has a single address, because the reply must come from the address that was asked.
    pub listen: Vec<SocketAddr>,
    /// Clients that are answered. All others get `REFUSED`; their TCP connections are closed at once.
    pub from: Vec<IpNet>,
}

/// The transport of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// The reason why a server can't start, or has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address can't be bound.
    #[error("cannot listen on {address} ({transport}): {cause}{}", hint(cause))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The transport that failed.
        transport: Transport,
        /// The error of the system.
        cause: io::Error,
    },
    /// The table exists but can't be read, or is not a table.
    #[error("cannot read the table {}: {cause}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// The error of the system or of the parser.
        cause: io::Error,
    },
    /// A task of the server has panicked.
    #[error("the server has ended by itself, which is a bug; start it again")]
    Ended,
}

impl ServeError {
    fn bind(address: SocketAddr, transport: Transport, cause: io::Error) -> Self {
        Self::Bind {
            address,
            transport,
            cause,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
        })
    }
}

/// Advice for an address that can't be bound.
fn hint(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::AddrInUse => {
            "; another server uses this address (`ss -lnup` and `ss -lntp` show it): stop it, make it listen on \
             other addresses only, or choose another address here"
        }
        io::ErrorKind::AddrNotAvailable => "; no network interface of this host has this address",
        io::ErrorKind::PermissionDenied => {
            "; ports below 1024 need root or the capability CAP_NET_BIND_SERVICE"
        }
        _ => "",
    }
}

/// Serves until `stop` completes, and then finishes the queries that are being answered, for at most
/// 2 seconds.
///
/// It first waits for the table to exist and binds its addresses afterwards: a server that is being
/// replaced answers until then, as both can listen on the same address if the same user runs them.
///
/// # Errors
/// When the table exists but can't be read, or when an address can't be bound. Later errors of the
/// table are logged, and the last table stays in use.
pub async fn serve(options: Options, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
    let mut stop = pin!(stop);
    let mut follower = Follower::new(options.table.clone());
    let table = tokio::select! {
        table = follower.first() => table,
        () = &mut stop => return Ok(()),
    };
    let table = table.map_err(|cause| ServeError::Table {
        path: options.table,
        cause,
    })?;
    let sockets: Result<Vec<_>, _> = options.listen.iter().map(|a| socket::bind(*a)).collect();
    let mut states = States::new(options.listen);
    let (sender, state) = watch::channel(Arc::new(states.next(table, None)));
    let stopping = CancellationToken::new();
    let server = Arc::new(Server::new(options.from, state, stopping.clone()));
    // Dropping them ends all tasks.
    let mut tasks = JoinSet::new();
    for (udp, tcp) in sockets? {
        tasks.spawn(Arc::clone(&server).udp(udp));
        tasks.spawn(Arc::clone(&server).tcp(tcp));
    }
    loop {
        tokio::select! {
            table = follower.next() => {
                let last = Arc::clone(&sender.borrow());
                sender.send_replace(Arc::new(states.next(table, Some(&last))));
            }
            Some(_) = tasks.join_next() => return Err(ServeError::Ended),
            () = &mut stop => break,
        }
    }
    stopping.cancel();
    let ended = async { while tasks.join_next().await.is_some() {} };
    // Queries that take longer end with their tasks.
    if timeout(STOP_MAX, ended).await.is_err() {
        tasks.shutdown().await;
    }
    Ok(())
}

/// Makes states of tables.
struct States {
    listen: Vec<SocketAddr>,
    /// Servers that were left out and reported.
    reported: BTreeSet<SocketAddr>,
}

impl States {
    fn new(listen: Vec<SocketAddr>) -> Self {
        Self {
            listen,
            reported: BTreeSet::new(),
        }
    }

    /// The state with this table. The forwarder, and thus its cache, stays the same if its servers do.
    fn next(&mut self, table: Table, last: Option<&State>) -> State {
        let same = last.filter(|last| last.table.servers == table.servers);
        let forwarder = if let Some(last) = same {
            Arc::clone(&last.forwarder)
        } else {
            let is_loop = |server: &&SocketAddr| is_loop(**server, &self.listen);
            let (own, others): (Vec<_>, Vec<_>) = table.servers.iter().partition(is_loop);
            for server in own {
                if self.reported.insert(server) {
                    warn!("queries are not forwarded to {server}: this server listens there");
                }
            }
            Arc::new(Forwarder::new(&others))
        };
        State { table, forwarder }
    }
}
