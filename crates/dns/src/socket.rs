//! Binds the sockets of the server.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, UdpSocket};
use tracing::debug;

use crate::{ServeError, Transport};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// The UDP sockets of an address. Queries arrive at both.
///
/// A packet to an unused address of the network stays in its socket for three seconds, and a few
/// hundred fill the socket. Any container can send queries from such addresses, so answers to known
/// pods have a socket of their own.
pub(crate) struct Sockets {
    pub(crate) known: UdpSocket,
    pub(crate) others: UdpSocket,
}

impl Sockets {
    /// Waits until answers can be sent.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        self.known.writable().await?;
        self.others.writable().await
    }

    /// Sends an answer, or drops it if the socket is full: the client asks again.
    pub(crate) fn send(&self, reply: &[u8], client: SocketAddr, is_known: bool) {
        let socket = if is_known { &self.known } else { &self.others };
        if let Err(error) = socket.try_send_to(reply, client) {
            debug!("cannot answer {client}: {error}");
        }
    }
}

/// Binds an address for UDP and TCP. Another server of the same user that was started by this crate
/// may be bound to it at the same time.
pub(crate) fn bind(address: SocketAddr) -> Result<(Sockets, TcpListener), ServeError> {
    let failed = |transport| move |cause| ServeError::bind(address, transport, cause);
    let known = udp(address).map_err(failed(Transport::Udp))?;
    // The kernel may have chosen the port.
    let address = known.local_addr().map_err(failed(Transport::Udp))?;
    let others = udp(address).map_err(failed(Transport::Udp))?;
    let tcp = tcp(address).map_err(failed(Transport::Tcp))?;
    Ok((Sockets { known, others }, tcp))
}

fn udp(address: SocketAddr) -> io::Result<UdpSocket> {
    // Without `SO_REUSEADDR`, which would take the address from any server that has set it, too.
    let socket = bound(address, Type::DGRAM, Protocol::UDP, false)?;
    UdpSocket::from_std(socket.into())
}

fn tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = bound(address, Type::STREAM, Protocol::TCP, true)?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

fn bound(
    address: SocketAddr,
    kind: Type,
    protocol: Protocol,
    reuse_address: bool,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(reuse_address)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
