//! A server, its clients, and a server to forward to.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, SOA, SRV, TXT};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use mirrorlet_dns::{Options, ServeError, Table, serve};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};

/// Longest wait for anything that is expected; far more than it takes.
const WAIT: Duration = Duration::from_secs(20);
/// Pause before a query is repeated.
const AGAIN: Duration = Duration::from_millis(20);

pub(crate) fn name(text: &str) -> Name {
    Name::from_ascii(format!("{text}.")).unwrap()
}

/// A table with one name, which the client uses as one of its namespace.
pub(crate) fn table() -> Table {
    let entry = |name: &str, namespace: Option<&str>| mirrorlet_dns::Name {
        name: name.to_owned(),
        namespace: namespace.map(str::to_owned),
        addresses: ["10.9.0.7", "10.9.0.3", "fd00::7"]
            .map(|address| address.parse().unwrap())
            .into(),
    };
    Table {
        domain: "cluster.local".to_owned(),
        names: vec![
            entry("cache.default.svc.cluster.local", None),
            entry("cache", Some("default")),
            entry("single", Some("test")),
        ],
        ports: vec![mirrorlet_dns::Port {
            name: "_redis._tcp.cache.default.svc.cluster.local".to_owned(),
            target: "cache.default.svc.cluster.local".to_owned(),
            port: 6379,
        }],
        clients: [(Ipv4Addr::LOCALHOST.into(), "default".to_owned())].into(),
        servers: Vec::new(),
    }
}

/// An address of the loopback interface that no other test uses.
pub(crate) fn free_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = Ipv4Addr::new(127, high | 0x80, low, count);
    std::net::UdpSocket::bind((ip, 0))
        .unwrap()
        .local_addr()
        .unwrap()
}

/// A running server with its table.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) table: PathBuf,
    dir: TempDir,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServeError>>,
}

impl Running {
    pub(crate) fn start(table: &Table) -> Self {
        Self::start_at(free_address(), table)
    }

    pub(crate) fn start_at(address: SocketAddr, table: &Table) -> Self {
        Self::start_from(address, "127.0.0.0/8", table)
    }

    pub(crate) fn start_from(address: SocketAddr, from: &str, table: &Table) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("table.json");
        fs::write(&path, serde_json::to_vec(table).unwrap()).unwrap();
        let options = Options {
            table: path.clone(),
            listen: vec![address],
            from: vec![from.parse().unwrap()],
        };
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(serve(options, async {
            let _ = stopped.await;
        }));
        Self {
            address,
            table: path,
            dir,
            stop,
            task,
        }
    }

    /// Renames a file with these bytes over the table.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let new = self.dir.path().join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, &self.table).unwrap();
    }

    /// A client, once the server answers.
    pub(crate) async fn client(&self) -> Client {
        let client = Client {
            ip: Ipv4Addr::LOCALHOST,
            address: self.address,
        };
        client.ask("cluster.local", RecordType::SOA, false).await;
        client
    }

    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        timeout(WAIT, self.task).await.unwrap().unwrap().unwrap();
    }

    /// The result of a server that ends by itself.
    pub(crate) async fn ended(self) -> Result<(), ServeError> {
        timeout(WAIT, self.task).await.unwrap().unwrap()
    }
}

/// A client.
pub(crate) struct Client {
    /// Its own address: 127.0.0.1, unless it is changed.
    pub(crate) ip: Ipv4Addr,
    /// That of the server.
    pub(crate) address: SocketAddr,
}

impl Client {
    /// Asks until there is an answer.
    pub(crate) async fn ask(&self, asked: &str, kind: RecordType, is_tcp: bool) -> Message {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name(asked), kind));
        let query = message.to_vec().unwrap();
        let deadline = Instant::now() + WAIT;
        loop {
            let reply = if is_tcp {
                self.by_tcp(&query).await
            } else {
                self.by_udp(&query).await
            };
            if let Ok(reply) = reply {
                let reply = Message::from_vec(&reply).unwrap();
                assert_eq!(reply.metadata.id, message.metadata.id);
                return reply;
            }
            assert!(Instant::now() < deadline, "no answer about {asked}");
            sleep(AGAIN).await;
        }
    }

    /// Asks for so many names below this one at once. Returns how many are answered at once.
    pub(crate) async fn ask_all(&self, below: &str, count: u16) -> u16 {
        let socket = UdpSocket::bind((self.ip, 0)).await.unwrap();
        socket.connect(self.address).await.unwrap();
        let mut answered = 0;
        for id in 0..count {
            let mut message = Message::query();
            message.metadata.id = id;
            let (first, rest) = below.split_once('.').unwrap();
            let asked = name(&format!("{first}.{id}.{rest}"));
            message.add_query(Query::query(asked, RecordType::A));
            socket.send(&message.to_vec().unwrap()).await.unwrap();
            // One at a time is in the socket of the server, which may be small.
            message.queries[0].name = name("cluster.local");
            message.metadata.id = u16::MAX;
            socket.send(&message.to_vec().unwrap()).await.unwrap();
            loop {
                let mut reply = [0; 512];
                let size = timeout(WAIT, socket.recv(&mut reply)).await.unwrap();
                let reply = Message::from_vec(&reply[..size.unwrap()]).unwrap();
                if reply.metadata.id == u16::MAX {
                    break;
                }
                assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
                answered += 1;
            }
        }
        answered
    }

    /// Asks until the answer has these addresses.
    pub(crate) async fn wait_for(&self, asked: &str, expected: &[IpAddr]) {
        let deadline = Instant::now() + WAIT;
        loop {
            let reply = self.ask(asked, RecordType::A, false).await;
            let found: Vec<IpAddr> = reply
                .answers
                .iter()
                .filter_map(|record| record.data.ip_addr())
                .collect();
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{asked} has {found:?}");
            sleep(AGAIN).await;
        }
    }

    async fn by_udp(&self, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let socket = UdpSocket::bind((self.ip, 0)).await?;
        // Connected: a port without a server is an error at once.
        socket.connect(self.address).await?;
        socket.send(query).await?;
        let mut reply = vec![0; 65535];
        let size = timeout(WAIT, socket.recv(&mut reply)).await??;
        reply.truncate(size);
        Ok(reply)
    }

    async fn by_tcp(&self, query: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(self.address).await?;
        write(&mut stream, query).await?;
        timeout(WAIT, read(&mut stream)).await?
    }
}

async fn read(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn write(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream
        .write_u16(u16::try_from(bytes.len()).unwrap())
        .await?;
    stream.write_all(bytes).await
}

/// A server of other names. It answers as the first label says.
pub(crate) struct Upstream {
    pub(crate) address: SocketAddr,
    /// Queries that have arrived.
    pub(crate) asked: Arc<AtomicUsize>,
    /// Ends with it.
    _tasks: JoinSet<()>,
}

impl Upstream {
    /// A server that gives names this address.
    pub(crate) async fn start(ip: &str) -> Self {
        let ip: Ipv4Addr = ip.parse().unwrap();
        let address = free_address();
        let asked = Arc::new(AtomicUsize::new(0));
        let udp = Arc::new(UdpSocket::bind(address).await.unwrap());
        let tcp = TcpListener::bind(address).await.unwrap();
        let mut tasks = JoinSet::new();
        let count = Arc::clone(&asked);
        tasks.spawn(async move {
            let mut buffer = vec![0; 4096];
            loop {
                let (size, client) = udp.recv_from(&mut buffer).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                let query = buffer[..size].to_vec();
                let udp = Arc::clone(&udp);
                tokio::spawn(async move {
                    let reply = answer(&query, ip, false).await;
                    let _ = udp.send_to(&reply, client).await;
                });
            }
        });
        let count = Arc::clone(&asked);
        tasks.spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    while let Ok(query) = read(&mut stream).await {
                        count.fetch_add(1, Ordering::Relaxed);
                        let reply = answer(&query, ip, true).await;
                        let _ = write(&mut stream, &reply).await;
                    }
                });
            }
        });
        Self {
            address,
            asked,
            _tasks: tasks,
        }
    }
}

async fn answer(query: &[u8], ip: Ipv4Addr, is_tcp: bool) -> Vec<u8> {
    let query = Message::from_vec(query).unwrap();
    let asked = query.queries[0].clone();
    let mut reply = Message::response(query.metadata.id, OpCode::Query);
    reply.metadata.recursion_available = true;
    reply.add_query(asked.clone());
    let record = |data| Record::from_rdata(asked.name().clone(), 60, data);
    let text = asked.name().to_ascii().to_ascii_lowercase();
    let label = text.split('.').next().unwrap_or_default();
    let code = match label {
        "none" | "gone" => ResponseCode::NXDomain,
        "fails" if text.contains(&ip.to_string()) || text.contains("example") => {
            ResponseCode::ServFail
        }
        "refused" => ResponseCode::Refused,
        _ => ResponseCode::NoError,
    };
    reply.metadata.response_code = code;
    // Aliases of a name that does not exist, and of one without records of this type.
    let alias = match label {
        "gone" => Some("none.example"),
        "bare" => Some("empty.example"),
        _ => None,
    };
    if let Some(alias) = alias {
        reply.add_answer(record(RData::CNAME(CNAME(name(alias)))));
    }
    match (label, asked.query_type()) {
        ("none" | "empty" | "gone" | "bare", _) => {
            let soa = SOA::new(name("ns.example"), name("host.example"), 1, 2, 3, 4, 60);
            let soa = Record::from_rdata(name("example"), 60, RData::SOA(soa));
            reply.add_authority(soa);
        }
        _ if code != ResponseCode::NoError => {}
        ("large", _) if !is_tcp => reply.metadata.truncation = true,
        ("large", _) => {
            reply.add_answers((0..100).map(|i| record(RData::A(A::new(192, 0, 2, i)))));
        }
        ("alias", RecordType::A) => {
            reply.add_answer(record(RData::CNAME(CNAME(name("a.example")))));
            let target = Record::from_rdata(name("a.example"), 60, RData::A(A(ip)));
            reply.add_answer(target);
        }
        (_, RecordType::TXT) => {
            reply.add_answer(record(RData::TXT(TXT::new(vec!["text".to_owned()]))));
        }
        (_, RecordType::SRV) => {
            let srv = SRV::new(1, 1, 80, name("a.example"));
            reply.add_answer(record(RData::SRV(srv)));
        }
        _ => {
            reply.add_answer(record(RData::A(A(ip))));
        }
    }
    if label == "silent" {
        std::future::pending::<()>().await;
    }
    if label == "slow" {
        sleep(Duration::from_millis(300)).await;
    }
    reply.to_vec().unwrap()
}
