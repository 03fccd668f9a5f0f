//! `mirrorlet port-forward`: forwards local ports to a pod.

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::channels::{self, Received, Receiver, Sender};
use super::{Failure, Outcome, client, status};
use crate::config::args::PortForwardArgs;
use crate::server::admin::STREAMS_MAX;
use mirrorlet_core::api::report::PodReport;
use mirrorlet_core::select::find_one_of;

/// Maximum number of connections; further ones wait, all but one per listener in its queue. The agent
/// accepts a few more.
const CONNECTIONS_MAX: usize = 60;
const _: () = assert!(CONNECTIONS_MAX < STREAMS_MAX);

/// Bytes read from a local connection at a time.
const READ_BYTES: usize = 32 << 10;

/// A local port and the pod's behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    /// 0 for any.
    local: u16,
    remote: u16,
}

/// `REMOTE`, `LOCAL:REMOTE` or `:REMOTE`.
fn parse_ports(text: &str) -> Result<Ports, Failure> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok();
    let local = if local.is_empty() {
        Some(0)
    } else {
        port(local)
    };
    match (local, port(remote).filter(|port| *port > 0)) {
        (Some(local), Some(remote)) => Ok(Ports { local, remote }),
        _ => Err(Failure::Usage(anyhow::anyhow!(
            "{text:?} is not a valid port: expected REMOTE, LOCAL:REMOTE or :REMOTE, each from 1 to 65535"
        ))),
    }
}

/// The addresses a text means: its own, or both of `localhost`.
fn parse_address(text: &str) -> Result<Vec<IpAddr>, Failure> {
    if text == "localhost" {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    let address = text.trim_matches(['[', ']']).parse().map_err(|_| {
        Failure::Usage(anyhow::anyhow!(
            "{text:?} is not an address to listen on: expected an IP address or localhost"
        ))
    })?;
    Ok(vec![address])
}

/// Forwards until it is interrupted.
pub async fn port_forward(args: &PortForwardArgs, root: &Path) -> Outcome {
    let ports: Vec<Ports> = args
        .ports
        .iter()
        .map(|p| parse_ports(p))
        .collect::<Result<_, _>>()?;
    let addresses: Vec<Vec<IpAddr>> = args
        .address
        .iter()
        .map(|a| parse_address(a))
        .collect::<Result<_, _>>()?;
    let report = status::fetch(root, false).await?;
    let pod = find_one_of(&report.pods, &args.pod)?;
    if pod.phase != "Running" {
        return Err(not_running(pod));
    }
    let uid = pod.uid.to_string();
    let target = Arc::new(Target {
        root: root.to_owned(),
        uid,
        room: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    });
    let mut listening = JoinSet::new();
    for ports in ports {
        for (listener, remote) in listen(ports, &addresses).await? {
            listening.spawn(Arc::clone(&target).accept(listener, remote));
        }
    }
    match listening.join_next().await {
        Some(Ok(error)) => Err(anyhow::Error::from(error)
            .context("failed to listen")
            .into()),
        Some(Err(error)) => Err(error.into()),
        None => Ok(()),
    }
}

/// Upstream: `k8s.io/kubectl/pkg/cmd/portforward/portforward.go` (`RunPortForwardContext`).
fn not_running(pod: &PodReport) -> Failure {
    Failure::Failed(anyhow::anyhow!(
        "unable to forward port because pod {}/{} is not running: its phase is {}",
        pod.namespace,
        pod.name,
        pod.phase
    ))
}

/// Listens on a port of each address. Of the two of localhost one is enough.
async fn listen(
    ports: Ports,
    addresses: &[Vec<IpAddr>],
) -> Result<Vec<(TcpListener, u16)>, Failure> {
    let mut listeners = Vec::new();
    let mut local = ports.local;
    for group in addresses {
        let mut failed = None;
        let had = listeners.len();
        for address in group {
            match TcpListener::bind(SocketAddr::new(*address, local)).await {
                Ok(listener) => {
                    let bound = listener.local_addr().context("failed to listen")?;
                    // Any free port is the same one on every address.
                    local = bound.port();
                    say(&format!("Forwarding from {bound} -> {}", ports.remote))?;
                    listeners.push((listener, ports.remote));
                }
                Err(error) => failed = Some((*address, error)),
            }
        }
        if let Some((address, error)) = failed.filter(|_| listeners.len() == had) {
            return Err(anyhow::Error::from(error)
                .context(format!(
                    "failed to listen on {}; choose another local port with LOCAL:{}",
                    SocketAddr::new(address, local),
                    ports.remote
                ))
                .into());
        }
    }
    Ok(listeners)
}

fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// The pod behind the ports.
struct Target {
    root: PathBuf,
    uid: String,
    room: Arc<Semaphore>,
}

impl Target {
    /// Accepts connections, and forwards each on its own; ends only with an error.
    async fn accept(self: Arc<Self>, listener: TcpListener, remote: u16) -> io::Error {
        let local = listener.local_addr().map_or(0, |address| address.port());
        let mut connections = JoinSet::new();
        loop {
            let stream = loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => break stream,
                        Err(error) => return error,
                    },
                    Some(_) = connections.join_next() => {}
                }
            };
            // Acquired only now: a port without connections takes no room. The semaphore is never
            // closed, so a permit always comes.
            let permit = Arc::clone(&self.room).acquire_owned().await.ok();
            let printed = say(&format!("Handling connection for {local}"));
            if let Err(error) = printed {
                return error;
            }
            let target = Arc::clone(&self);
            connections.spawn(async move {
                target.forward(stream, remote).await;
                drop(permit);
            });
        }
    }

    /// Forwards one connection. A failure is reported and affects only this connection.
    async fn forward(&self, stream: TcpStream, remote: u16) {
        let path = format!("/v1/pods/{}/portforward?port={remote}", self.uid);
        let (sender, receiver) = match client::upgrade(&self.root, &path).await {
            Ok(channels) => channels,
            Err(failure) => {
                if let Some(error) = failure.error() {
                    // If standard error is closed, the error is not read.
                    let _ = writeln!(anstream::stderr(), "mirrorlet: {error:#}");
                }
                return;
            }
        };
        let _ = stream.set_nodelay(true);
        let (read, write) = stream.into_split();
        // The agent closes the connection once both sides have said their last.
        tokio::select! {
            () = upwards(read, sender) => {}
            () = downwards(receiver, write) => {}
        }
    }
}

/// Passes on a local client's data, and its end. Returns only when the receiver is gone.
async fn upwards(mut read: OwnedReadHalf, mut sender: Sender) {
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    loop {
        buffer.clear();
        match read.read_buf(&mut buffer).await {
            Ok(0) => break,
            Ok(_) => {
                if sender.send(channels::STDIN, &buffer).await.is_err() {
                    return;
                }
            }
            Err(_) => return,
        }
    }
    if sender.close(channels::STDIN).await.is_ok() {
        std::future::pending::<()>().await;
    }
}

/// Passes on what a pod sends, and its end, until the agent closes the connection.
async fn downwards(mut receiver: Receiver, mut write: OwnedWriteHalf) {
    // A channel begins with its port, in two bytes.
    let mut begun = false;
    while let Ok(Some(received)) = receiver.next().await {
        let written = match received {
            Received::Data(channels::STDIN, bytes) if begun => write.write_all(&bytes).await,
            Received::Closed(channels::STDIN) => write.shutdown().await,
            Received::Data(channel, _) => {
                begun |= channel == channels::STDIN;
                Ok(())
            }
            Received::Closed(_) => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Longest wait for the end of a connection; reached only when it never comes.
    const PATIENCE: Duration = Duration::from_mins(2);

    #[test]
    fn ports_are_read_as_kubectl_reads_them() {
        for (text, local, remote) in [
            ("80", 80, 80),
            ("8080:80", 8080, 80),
            (":80", 0, 80),
            ("0:80", 0, 80),
        ] {
            assert_eq!(
                parse_ports(text).unwrap(),
                Ports { local, remote },
                "{text}"
            );
        }
        for bad in [
            "", ":", "0", "80:", "80:0", "a", "1:b", "65536", "1:2:3", "-1",
        ] {
            assert!(matches!(parse_ports(bad), Err(Failure::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn addresses_are_ips_or_localhost() {
        assert_eq!(parse_address("localhost").unwrap().len(), 2);
        assert_eq!(
            parse_address("[::1]").unwrap(),
            [IpAddr::from(Ipv6Addr::LOCALHOST)]
        );
        assert!(matches!(
            parse_address("example.com"),
            Err(Failure::Usage(_))
        ));
    }

    #[tokio::test]
    async fn any_free_port_is_the_same_on_all_addresses() {
        let ports = Ports {
            local: 0,
            remote: 80,
        };
        let addresses = [
            vec![Ipv4Addr::LOCALHOST.into()],
            vec![Ipv4Addr::new(127, 0, 0, 2).into()],
        ];
        let listeners = listen(ports, &addresses).await.unwrap();
        let bound: Vec<u16> = listeners
            .iter()
            .map(|(listener, _)| listener.local_addr().unwrap().port())
            .collect();
        assert!(bound[0] != 0 && bound[0] == bound[1], "{bound:?}");
        let taken = Ports {
            local: bound[0],
            remote: 80,
        };
        let error = listen(taken, &addresses).await.unwrap_err();
        let words = format!("{:#}", error.error().unwrap());
        assert!(words.contains("choose another local port"), "{words}");
    }

    #[tokio::test]
    async fn a_port_to_which_nobody_connects_takes_no_room() {
        let root = tempfile::tempdir().unwrap();
        let target = Arc::new(Target {
            root: root.path().to_owned(),
            uid: "u".to_owned(),
            room: Arc::new(Semaphore::new(1)),
        });
        let mut listening = JoinSet::new();
        let mut addresses = Vec::new();
        for _ in 0..2 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            listening.spawn(Arc::clone(&target).accept(listener, 80));
        }
        for at in [1, 1, 0] {
            let mut stream = TcpStream::connect(addresses[at]).await.unwrap();
            // There is no agent: a connection ends once it was its turn.
            let ended = tokio::time::timeout(PATIENCE, stream.read(&mut [0; 1])).await;
            // docker 55
            assert!(matches!(ended, Ok(Ok(0))), "{at}: {ended:?}");
        }
    }
}
