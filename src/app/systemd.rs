//! Notifications to systemd: the agent is ready, alive, or stopping. Without systemd they do nothing.
//!
//! They never block: a hanging systemd accepts no notification once its queue is full, and would block
//! a thread that all tasks share.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

/// Pause before a notification is sent again that systemd had no room for.
const AGAIN: Duration = Duration::from_secs(1);

/// Whether a notification is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// systemd has received it, or there is none.
    Done,
    /// Systemd had no room for it.
    NoRoom,
}

/// Reports that the sources are read and the socket is served.
pub(super) fn ready() -> Sent {
    notify("READY=1")
}

/// Reports that the agent is stopping. Its containers keep running.
pub(super) fn stopping() {
    notify("STOPPING=1");
}

/// Reports again that the agent is ready if systemd's queue was full; then feeds the watchdog twice per
/// period until cancelled. It runs as a task, so that a stuck async runtime misses the deadline.
pub(super) async fn keep_alive(readiness: Sent) {
    until_sent(readiness, AGAIN, ready).await;
    match watchdog_period() {
        Some(period) => feed(period, || notify("WATCHDOG=1")).await,
        None => std::future::pending().await,
    }
}

/// Feeds the watchdog twice per period, and retries while systemd's queue is full: a lost notification
/// may cause a restart of the agent.
async fn feed(period: Duration, mut send: impl FnMut() -> Sent) {
    let mut half = tokio::time::interval((period / 2).max(Duration::from_millis(1)));
    half.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        half.tick().await;
        until_sent(send(), AGAIN.min(half.period()), &mut send).await;
    }
}

/// Sends a notification again until systemd has room for it.
async fn until_sent(mut sent: Sent, pause: Duration, mut send_again: impl FnMut() -> Sent) {
    while sent == Sent::NoRoom {
        tokio::time::sleep(pause).await;
        sent = send_again();
    }
}

/// The period of the watchdog of this process, if it has one.
fn watchdog_period() -> Option<Duration> {
    let number = |name: &str| -> Option<u64> { env::var(name).ok()?.parse().ok() };
    let own = u64::from(std::process::id());
    if number("WATCHDOG_PID").is_some_and(|pid| pid != own) {
        return None;
    }
    let period = number("WATCHDOG_USEC").map(Duration::from_micros);
    period.filter(|period| !period.is_zero())
}

fn notify(state: &str) -> Sent {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else {
        return Sent::Done;
    };
    let Err(error) = send(&socket, state) else {
        return Sent::Done;
    };
    tracing::debug!(error = %error, state, "failed to notify systemd");
    if error.kind() == io::ErrorKind::WouldBlock {
        Sent::NoRoom
    } else {
        Sent::Done
    }
}

/// Sends to a socket with a path, or to an abstract one (`@` and a name). Fails at once if its queue is
/// full.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::Instant;

    /// Longest queue that a machine may reasonably have.
    const QUEUE_MAX: usize = 100_000;

    fn received(systemd: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        let length = systemd.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    }

    #[test]
    fn a_systemd_that_reads_nothing_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let mut sent = (0..QUEUE_MAX).map(|_| send(path.as_os_str(), "WATCHDOG=1"));
        let refused = sent.find_map(Result::err).unwrap();
        // installed 6
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        // Once it reads again, it is told.
        assert_eq!(received(&systemd), "WATCHDOG=1");
        send(path.as_os_str(), "STOPPING=1").unwrap();
    }

    #[test]
    fn a_socket_of_systemds_may_have_a_name_without_a_path() {
        let name = format!("mirrorlet-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        // installed 6
        assert_eq!(received(&systemd), "READY=1");
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_is_reported_until_systemd_has_room_for_it() {
        for (first, later, expected) in [
            (Sent::Done, vec![], 0),
            (Sent::NoRoom, vec![Sent::Done], 1),
            (Sent::NoRoom, vec![Sent::NoRoom, Sent::Done], 2),
        ] {
            let (mut again, mut later) = (0, later.into_iter());
            let send_again = || {
                again += 1;
                later.next().unwrap()
            };
            until_sent(first, AGAIN, send_again).await;
            // installed 6
            assert_eq!(again, expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_watchdog_is_fed_again_until_systemd_has_room_for_it() {
        for (fates, expected) in [
            (vec![], vec![0, 30, 60]),
            (vec![Sent::NoRoom], vec![0, 1, 30, 60]),
            (vec![Sent::NoRoom, Sent::NoRoom], vec![0, 1, 2, 30, 60]),
        ] {
            let (began, mut seconds, mut fates) = (Instant::now(), vec![], fates.into_iter());
            let send = || {
                seconds.push(began.elapsed().as_secs());
                fates.next().unwrap_or(Sent::Done)
            };
            let feeding = feed(Duration::from_mins(1), send);
            let ended = tokio::time::timeout(Duration::from_secs(70), feeding).await;
            assert!(ended.is_err(), "it goes on");
            // installed 6
            assert_eq!(seconds, expected);
        }
    }
}
