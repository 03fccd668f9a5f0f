//! Requests to a web server that are made without a pause, and the server.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::ask;

/// The end of a web server on SIGTERM: it accepts the connections that were made before, then closes
/// its port, and finishes the answers that it has begun. The port must be closed within two seconds of
/// the signal: connections to a container that accepts them for longer don't wait any more.
pub const END: &str = "sleep 1; kill $server; sleep 2; exit 0";

/// The script of a web server on port 8080 that answers `says`.
pub fn server(says: &str) -> String {
    format!(
        "mkdir -p /w; echo {says} > /w/x; trap '{END}' TERM; httpd -f -p 8080 -h /w & server=$!; wait $server; wait"
    )
}

/// Asks the server at `at` without a pause.
pub struct Traffic {
    stop: Arc<AtomicBool>,
    failures: Arc<Mutex<Vec<String>>>,
    asking: JoinHandle<usize>,
}

impl Traffic {
    pub fn to(at: SocketAddr) -> Self {
        Self::from(None, at)
    }

    /// From the network namespace of a process, if one is given.
    pub fn from(network: Option<File>, at: SocketAddr) -> Self {
        let (stop, failures) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (stopped, failed) = (
            Arc::clone(&stop),
            Arc::<Mutex<Vec<String>>>::clone(&failures),
        );
        let asking = std::thread::spawn(move || {
            if let Some(network) = network {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(network.as_fd(), kind).unwrap();
            }
            let (mut asked, start) = (0, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                asked += 1;
                let began = Instant::now();
                if let Err(error) = ask(at) {
                    let (after, took) = (began - start, began.elapsed());
                    let what = format!("{error}, {took:.3?} after it was asked, at {after:.3?}");
                    failed.lock().unwrap().push(what);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            asked
        });
        Self {
            stop,
            failures,
            asking,
        }
    }

    /// The failures so far; at least one question was asked.
    pub fn failures(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.asking.join().unwrap() > 0);
        std::mem::take(&mut self.failures.lock().unwrap())
    }
}
