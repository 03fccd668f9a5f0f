//! Options of connections over TCP.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Has the kernel find out that the other side of a silent connection is gone: nothing came for `idle`,
/// and then `probes` questions, `interval` apart, got no answer. The connection ends with an error
/// then. Both times are whole seconds.
///
/// # Errors
/// The socket is not one of TCP, or the kernel takes no such value.
pub fn keep_alive(
    socket: impl AsFd,
    idle: Duration,
    interval: Duration,
    probes: u32,
) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_keepidle(socket, idle)?;
    sockopt::set_tcp_keepintvl(socket, interval)?;
    sockopt::set_tcp_keepcnt(socket, probes)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_silent_connection_is_probed_as_asked() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(!sockopt::socket_keepalive(&stream).unwrap());
        let (idle, interval) = (Duration::from_secs(7), Duration::from_secs(5));
        keep_alive(&stream, idle, interval, 3).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), idle);
        assert_eq!(sockopt::tcp_keepintvl(&stream).unwrap(), interval);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), 3);
    }
}
