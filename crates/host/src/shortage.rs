//! System errors that mean that this machine lacks a resource. They say nothing about the remote side
//! of a connection.

use std::io;

use rustix::io::Errno;

/// The text about a shortage in status, log and events.
pub const WORDS: &str =
    "the node has run out of open files, threads, ports or memory for new connections";

/// Whether a connection failed because the machine lacks a resource, so that the other side was not
/// contacted.
pub fn is_shortage(error: &io::Error) -> bool {
    let short = [
        // Open files: of the agent, and of the machine.
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        // Threads, the kernel's memory for routes, and the queue of a Unix socket.
        Errno::AGAIN,
        // Watches of epoll.
        Errno::NOSPC,
        // Ports to connect from.
        Errno::ADDRNOTAVAIL,
    ];
    Errno::from_io_error(error).is_some_and(|errno| short.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_the_machines_and_all_else_the_other_sides() {
        for (errno, expected) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::NOBUFS, true),
            (Errno::NOMEM, true),
            (Errno::AGAIN, true),
            (Errno::NOSPC, true),
            (Errno::ADDRNOTAVAIL, true),
            (Errno::CONNREFUSED, false),
            (Errno::CONNRESET, false),
            (Errno::TIMEDOUT, false),
            (Errno::HOSTUNREACH, false),
            (Errno::NETUNREACH, false),
            (Errno::NOENT, false),
            (Errno::ACCESS, false),
            (Errno::PERM, false),
        ] {
            // pods 56a
            assert_eq!(is_shortage(&errno.into()), expected, "{errno:?}");
        }
        assert!(!is_shortage(&io::Error::other("no number")));
    }
}
