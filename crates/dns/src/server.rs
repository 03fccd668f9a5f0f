//! The sockets and their tasks.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use ipnet::IpNet;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::Table;
use crate::forward::{Forwarded, Forwarder};
use crate::reply::{Asked, Limit, Parsed, parse};
use crate::shares::{Bounds, Share, Shares};
use crate::socket::Sockets;

/// Limits of queries that are forwarded. Further ones get `SERVFAIL` at once: that makes the client ask
/// another server or retry, whereas `REFUSED` would mean that this server never answers.
///
/// A client that asks for names that no server answers delays only its own queries. Programs that look
/// up many names at once get all their answers, some of them later.
const QUERIES: Bounds = Bounds {
    all: 1024,
    each: 64,
    in_use: 16,
};
/// Maximum number of queries that are forwarded at the same time. Each has up to three sockets, and
/// 1,024 open files are a common limit.
const FORWARDED_MAX: usize = 256;
/// Time for the answer to a forwarded query; a client has asked again by then.
const QUERY_DEADLINE: Duration = Duration::from_secs(10);
/// Time for which a TCP connection may be silent, or leave an answer unread.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// TCP connections. Further ones are closed at once.
const CONNECTIONS: Bounds = Bounds {
    all: 128,
    each: 16,
    in_use: 16,
};
/// Longest query that is read; those of real clients are below 512 bytes.
const QUERY_MAX: usize = 4096;
/// Queries that wait in the kernel and are read at once on stop.
const LAST_QUERIES_MAX: usize = 256;
/// Pause after an error of a socket, for example when there are no more open files.
const PAUSE: Duration = Duration::from_millis(200);

/// The table and the data derived from it.
pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) forwarder: Arc<Forwarder>,
}

/// The part that all sockets share.
pub(crate) struct Server {
    from: Vec<IpNet>,
    state: watch::Receiver<Arc<State>>,
    queries: Arc<Shares>,
    forwarded: Semaphore,
    connections: Arc<Shares>,
    stopping: CancellationToken,
}

/// The way on with a query.
enum Reply {
    /// There is no reply.
    None,
    Ready(Vec<u8>),
    Forward(Box<Asked>, Share),
}

impl Server {
    pub(crate) fn new(
        from: Vec<IpNet>,
        state: watch::Receiver<Arc<State>>,
        stopping: CancellationToken,
    ) -> Self {
        Self {
            from,
            state,
            queries: Shares::new(QUERIES),
            forwarded: Semaphore::new(FORWARDED_MAX),
            connections: Shares::new(CONNECTIONS),
            stopping,
        }
    }

    fn is_allowed(&self, client: IpAddr) -> bool {
        self.from.iter().any(|net| net.contains(&client))
    }

    /// Whether a pod has this address.
    fn is_known(&self, client: IpAddr) -> bool {
        self.state.borrow().table.clients.contains_key(&client)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.borrow())
    }

    /// Answers a query from the table, or prepares to forward it.
    fn reply(&self, bytes: &[u8], client: IpAddr, limit: Limit) -> Reply {
        let asked = match parse(bytes, self.is_allowed(client)) {
            Parsed::Ignored => return Reply::None,
            Parsed::Reply(reply) => return Reply::Ready(reply),
            Parsed::Query(asked) => asked,
        };
        if let Some(reply) = asked.by_table(&self.state().table, client) {
            return Reply::Ready(asked.encode(reply, limit));
        }
        match self.queries.take(client) {
            Some(share) => Reply::Forward(Box::new(asked), share),
            None => Reply::Ready(asked.failure(ResponseCode::ServFail)),
        }
    }

    async fn forward(&self, asked: &Asked, share: &Share, limit: Limit) -> Vec<u8> {
        let answer = async {
            // In this order: a client that waits for its own queries blocks no other one.
            let _own = share.turn().await;
            let _turn = self.forwarded.acquire().await;
            let state = self.state();
            state.forwarder.ask(&asked.query, share.client()).await
        };
        let answer = timeout(QUERY_DEADLINE, answer).await;
        let answer = answer.unwrap_or_else(|_| Forwarded::of_code(ResponseCode::ServFail));
        asked.encode(asked.by_server(answer), limit)
    }

    /// Answers queries over UDP. On stop, it continues until no forwarded query is pending: until the
    /// socket is closed, the kernel delivers a share of the queries to it.
    pub(crate) async fn udp(self: Arc<Self>, sockets: Sockets) {
        let sockets = Arc::new(sockets);
        if let Err(error) = sockets.ready().await {
            warn!("cannot send answers: {error}");
        }
        let mut buffers = [vec![0; QUERY_MAX], vec![0; QUERY_MAX]];
        let mut queries = JoinSet::new();
        let mut is_stopping = false;
        loop {
            let [first, second] = &mut buffers;
            let received = tokio::select! {
                received = sockets.known.recv_from(first) => Some((received, &*first)),
                received = sockets.others.recv_from(second) => Some((received, &*second)),
                Some(_) = queries.join_next() => None,
                () = self.stopping.cancelled(), if !is_stopping => {
                    is_stopping = true;
                    None
                }
            };
            match received {
                Some((Ok((size, client)), buffer)) => {
                    let query = buffer.get(..size).unwrap_or_default();
                    self.datagram(&sockets, query, client, &mut queries);
                }
                Some((Err(error), _)) => {
                    warn!("cannot receive queries: {error}");
                    sleep(PAUSE).await;
                }
                None => {}
            }
            if is_stopping {
                self.last_datagrams(&sockets, first, &mut queries);
                if queries.is_empty() {
                    return;
                }
            }
        }
    }

    /// Answers the queries that have arrived.
    fn last_datagrams(
        self: &Arc<Self>,
        sockets: &Arc<Sockets>,
        buffer: &mut [u8],
        queries: &mut JoinSet<()>,
    ) {
        for socket in [&sockets.known, &sockets.others] {
            for _ in 0..LAST_QUERIES_MAX {
                let Ok((size, client)) = socket.try_recv_from(buffer) else {
                    break;
                };
                let query = buffer.get(..size).unwrap_or_default();
                self.datagram(sockets, query, client, queries);
            }
        }
    }

    fn datagram(
        self: &Arc<Self>,
        sockets: &Arc<Sockets>,
        query: &[u8],
        client: SocketAddr,
        queries: &mut JoinSet<()>,
    ) {
        let ip = client.ip().to_canonical();
        match self.reply(query, ip, Limit::Packet) {
            Reply::None => {}
            Reply::Ready(reply) => sockets.send(&reply, client, self.is_known(ip)),
            Reply::Forward(asked, share) => {
                let (server, sockets) = (Arc::clone(self), Arc::clone(sockets));
                queries.spawn(async move {
                    let reply = server.forward(&asked, &share, Limit::Packet).await;
                    sockets.send(&reply, client, server.is_known(ip));
                });
            }
        }
    }

    /// Answers queries over TCP. On stop, it accepts no more connections, and closes each one after the
    /// query that is being answered.
    pub(crate) async fn tcp(self: Arc<Self>, listener: TcpListener) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, client)) => {
                        let client = client.ip().to_canonical();
                        let share = self.is_allowed(client).then(|| self.connections.take(client));
                        if let Some(share) = share.flatten() {
                            connections.spawn(Arc::clone(&self).connection(stream, client, share));
                        }
                    }
                    Err(error) => {
                        warn!("cannot accept connections: {error}");
                        sleep(PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = self.stopping.cancelled() => break,
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }

    /// Answers the queries of a connection, one after another.
    async fn connection(self: Arc<Self>, mut stream: TcpStream, client: IpAddr, _share: Share) {
        let ended = self.exchange(&mut stream, client).await;
        if let Err(error) = ended {
            debug!("a connection of {client} ended: {error}");
        }
    }

    async fn exchange(&self, stream: &mut TcpStream, client: IpAddr) -> io::Result<()> {
        loop {
            let query = tokio::select! {
                biased;
                query = timeout(IDLE_MAX, read(stream)) => query??,
                () = self.stopping.cancelled() => return Ok(()),
            };
            let reply = match self.reply(&query, client, Limit::Message) {
                Reply::None => return Ok(()),
                Reply::Ready(reply) => reply,
                Reply::Forward(asked, share) => self.forward(&asked, &share, Limit::Message).await,
            };
            timeout(IDLE_MAX, write(stream, &reply)).await??;
        }
    }
}

/// Reads a message, which follows its length.
async fn read(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let size = usize::from(stream.read_u16().await?);
    if size > QUERY_MAX {
        return Err(io::Error::other("the query is too long"));
    }
    let mut bytes = vec![0; size];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// Writes a message after its length, in one packet if it fits.
async fn write(stream: &mut TcpStream, reply: &[u8]) -> io::Result<()> {
    let size = u16::try_from(reply.len()).map_err(io::Error::other)?;
    let bytes = [&size.to_be_bytes(), reply].concat();
    stream.write_all(&bytes).await
}
