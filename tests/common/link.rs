//! A cable between an agent and its API server, which a test can pull: to that agent the server is
//! away, while others go on with it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How many connections may wait to be taken.
const BACKLOG: u32 = 128;

/// How the link treats bytes and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// Everything waits.
    Held,
    /// Everything is lost, and nobody is told.
    Cut,
    /// Connections end, and new ones are refused.
    Refused,
}

/// Passes connections on to a server, until it is told otherwise.
pub struct Link {
    address: SocketAddr,
    way: watch::Sender<Way>,
    /// Whether somebody listens at the address.
    listens: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// A link to `server`, `https://HOST:PORT`.
    pub async fn to(server: &str) -> Self {
        let target = server.trim_start_matches("https://").to_owned();
        // It never listens: it keeps the port from others while connections are refused.
        let keeper = bound(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = keeper.local_addr().unwrap();
        let (way, ways) = watch::channel(Way::Open);
        let (listening, listens) = watch::channel(false);
        let task = tokio::spawn(async move {
            take(address, &target, ways, &listening).await;
            drop(keeper);
        });
        let link = Self {
            address,
            way,
            listens,
            task,
        };
        link.until_listens(true).await;
        link
    }

    /// Where connections are taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing gets through, and nobody is told: what is connected stays so and hears
    /// nothing, and who connects hears nothing either.
    pub fn cut(&self) {
        self.way.send_replace(Way::Cut);
    }

    /// New connections get through from now on. Connections that were cut are lost.
    pub fn mend(&self) {
        self.way.send_replace(Way::Open);
    }

    /// Nothing is answered from now on, as by a server that is stopped in its tracks.
    pub fn hold(&self) {
        self.way.send_replace(Way::Held);
    }

    /// Passes on the bytes that were held, and all that follow, as if a stopped server continued.
    pub fn release(&self) {
        self.way.send_replace(Way::Open);
    }

    /// Connections end and new ones are refused from now on, as by a server that was killed.
    pub async fn refuse(&self) {
        self.way.send_replace(Way::Refused);
        self.until_listens(false).await;
    }

    /// New connections get through from now on.
    pub async fn accept(&self) {
        self.way.send_replace(Way::Open);
        self.until_listens(true).await;
    }

    async fn until_listens(&self, wanted: bool) {
        let mut listens = self.listens.clone();
        let found = listens.wait_for(|listens| *listens == wanted).await;
        drop(found.expect("the link's task lives as long as the link"));
    }

    /// The kubeconfig of somebody whose way leads over this link, in a file beside it.
    pub fn kubeconfig(&self, kubeconfig: &Path) -> PathBuf {
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        let cluster = &mut config["clusters"][0]["cluster"];
        let server = cluster["server"].as_str().unwrap();
        let host = server
            .trim_start_matches("https://")
            .split(':')
            .next()
            .unwrap()
            .to_owned();
        cluster["tls-server-name"] = host.into();
        cluster["server"] = format!("https://{}", self.address).into();
        let path = kubeconfig.with_extension(format!("linked-{}", self.address.port()));
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

/// A socket that is bound to that address and doesn't listen. Others may be bound to it, too, and
/// one of them may listen.
pub fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// Ends the listening, also where others hold a copy of the socket: a program that another thread starts
/// has one between fork and exec.
pub fn end_listening(listener: TcpListener) {
    shutdown(&listener, Shutdown::Both).unwrap();
    drop(listener);
}

/// Takes connections whenever they are not to be refused.
async fn take(
    address: SocketAddr,
    target: &str,
    mut ways: watch::Receiver<Way>,
    listening: &watch::Sender<bool>,
) {
    loop {
        until(&mut ways, |way| way != Way::Refused).await;
        let listener = bound(address).listen(BACKLOG).unwrap();
        listening.send_replace(true);
        let given = ways.clone();
        tokio::select! {
            biased;
            _ = until(&mut ways, |way| way == Way::Refused) => {}
            () = take_from(&listener, target, &given) => {}
        }
        end_listening(listener);
        listening.send_replace(false);
    }
}

async fn take_from(listener: &TcpListener, target: &str, ways: &watch::Receiver<Way>) {
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(pass_on(near, target.to_owned(), ways.clone()));
    }
}

async fn pass_on(near: TcpStream, target: String, mut ways: watch::Receiver<Way>) {
    let passes = |way: Way| matches!(way, Way::Open | Way::Refused);
    if until(&mut ways, passes).await == Way::Refused {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    tokio::join!(
        carry(near_in, far_out, ways.clone()),
        carry(far_in, near_out, ways)
    );
}

/// Carries bytes one way until the end, or until there is no way any more.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut ways: watch::Receiver<Way>) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        tokio::select! {
            biased;
            way = until(&mut ways, |way| way != Way::Open) => {
                // Held open and dumb: the peer's own deadlines have to find out.
                let ends = |next: Way| match way {
                    Way::Cut => next == Way::Refused,
                    _ => next != Way::Held,
                };
                if until(&mut ways, ends).await == Way::Refused {
                    return;
                }
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => {
                    let _ = to.shutdown().await;
                    return;
                }
                Ok(count) => {
                    let bytes = buffer.get(..count).unwrap_or_default();
                    if to.write_all(bytes).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// The first way that is as wanted; none, when the link is gone.
async fn until(ways: &mut watch::Receiver<Way>, wanted: impl Fn(Way) -> bool) -> Way {
    let found = ways.wait_for(|way| wanted(*way)).await.map(|way| *way);
    match found {
        Ok(way) => way,
        Err(_) => std::future::pending().await,
    }
}
