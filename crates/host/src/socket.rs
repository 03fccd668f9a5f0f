//! Options of connections over TCP.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

/// Enables TCP keep-alive: after `idle` without data, the kernel sends up to `probes` probes,
/// `interval` apart; without an answer the connection ends with an error. Both times are whole seconds.
///
/// # Errors
/// The socket is not a TCP socket, or the kernel refuses a value.
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
