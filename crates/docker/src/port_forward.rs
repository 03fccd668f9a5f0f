//! Connections into a pod's network.
//!
//! A dedicated thread enters the network namespace of the sandbox, creates the sockets there and ends;
//! a socket stays in the namespace in which it was created, so everything else happens outside. No
//! thread of the async runtime ever enters a namespace: its next task would run there. Upstream ran
//! `nsenter` and `socat` for every connection, on IPv4 only.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::containers::Containers;
use super::exec::process::is_of_container;
use super::index::pod_status;
use mirrorlet_core::api::PodUid;
use mirrorlet_core::observed::ContainerState;
use mirrorlet_runtime::{DuplexStream, Result, RuntimeError};

/// How long a connection within a pod may take: its listener's queue is full, if it takes longer.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Sockets of a network namespace; none for a disabled address family.
struct Sockets {
    v4: io::Result<TcpSocket>,
    v6: io::Result<TcpSocket>,
}

impl Containers {
    /// See [`ContainerAccess::port_forward`](mirrorlet_runtime::ContainerAccess::port_forward).
    pub(super) async fn forward(&self, uid: &PodUid, port: u16) -> Result<DuplexStream> {
        let status = pod_status(uid, self.index.of_pod(uid));
        let sandbox = status
            .sandboxes
            .first()
            .ok_or_else(|| RuntimeError::NotFound(format!("pod {uid} has no sandbox")))?;
        let id = &sandbox.id.id;
        let not_running = || RuntimeError::Conflict(format!("container not running ({id})"));
        if sandbox.state != ContainerState::Running {
            return Err(not_running());
        }
        let found = self.engine.inspect_container(id).await?;
        let pid = found
            .state
            .filter(|state| state.running == Some(true))
            .and_then(|state| i32::try_from(state.pid?).ok())
            .filter(|pid| *pid > 0)
            .ok_or_else(not_running)?;
        let sockets = sockets_within(pid, id.to_string()).await?;
        let stream = connect(sockets, port).await?;
        // Small writes are sent immediately: the user may be typing.
        let _ = stream.set_nodelay(true);
        Ok(Box::new(stream))
    }
}

/// Makes sockets in the network namespace of a container's process.
async fn sockets_within(pid: i32, container: String) -> Result<Sockets> {
    let (sender, receiver) = oneshot::channel();
    let made = std::thread::Builder::new()
        .name("port-forward".to_owned())
        .spawn(move || {
            // A socket that is no longer needed is closed.
            let _ = sender.send(enter(pid, &container));
        });
    made.map_err(|error| RuntimeError::Local(format!("failed to start a thread: {error}")))?;
    receiver.await.unwrap_or_else(|_| {
        Err(RuntimeError::Local(
            "the thread in the pod's network failed".to_owned(),
        ))
    })
}

/// Enters the network of a process and makes sockets there. Only for a thread that ends with it.
fn enter(pid: i32, container: &str) -> Result<Sockets> {
    let path = format!("/proc/{pid}/ns/net");
    // Opened first and checked then: the network entered is that of the process that has the id now.
    let namespace = File::open(&path).ok();
    let Some(namespace) = namespace.filter(|_| is_of_container(pid, container)) else {
        return Err(RuntimeError::Local(
            "can't enter the pod's network: the Docker Engine's processes are not visible; mirrorlet must run on the Engine's machine, in its process namespace (hostPID)".to_owned(),
        ));
    };
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(
        |error| {
            RuntimeError::Local(format!(
                "can't enter the pod's network ({path}): {error}; this requires root with CAP_SYS_ADMIN"
            ))
        },
    )?;
    Ok(Sockets {
        v4: TcpSocket::new_v4(),
        v6: TcpSocket::new_v6(),
    })
}

/// Connects to the loopback address, IPv4 first.
async fn connect(sockets: Sockets, port: u16) -> Result<TcpStream> {
    let v4 = dial(sockets.v4, (Ipv4Addr::LOCALHOST, port).into()).await;
    let first = match v4 {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let v6 = dial(sockets.v6, (Ipv6Addr::LOCALHOST, port).into()).await;
    v6.map_err(|second| RuntimeError::Refused {
        status: 0,
        message: format!(
            "failed to connect to localhost:{port} inside the pod: IPv4: {first}, IPv6: {second}"
        ),
    })
}

async fn dial(socket: io::Result<TcpSocket>, address: SocketAddr) -> io::Result<TcpStream> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
    timeout(CONNECT_DEADLINE, socket?.connect(address))
        .await
        .map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_is_not_the_containers_is_not_entered() {
        for pid in [1, i32::MAX] {
            let refused = sockets_within(pid, "no-such-container".to_owned()).await;
            let error = refused.err().unwrap().to_string();
            // docker 55
            assert!(error.contains("are not visible"), "{error}");
        }
    }

    #[tokio::test]
    async fn both_families_are_tried_and_both_failures_told() {
        let sockets = || Sockets {
            v4: TcpSocket::new_v4(),
            v6: Err(io::ErrorKind::Unsupported.into()),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        connect(sockets(), port).await.unwrap();
        // Taken, so that no other test listens there.
        let taken = TcpSocket::new_v4().unwrap();
        taken.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = connect(sockets(), port).await.unwrap_err().to_string();
        assert!(error.contains("IPv4: Connection refused"), "{error}");
        assert!(error.contains("IPv6: unsupported"), "{error}");
    }
}
