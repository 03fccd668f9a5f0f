//! Requests at a steady rate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::http;

/// How long a client waits for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Stack of a client, of which hundreds may wait.
const STACK: usize = 128 << 10;

/// The answer of the server at `at`, on a connection of its own.
pub fn ask(at: SocketAddr) -> Result<String, String> {
    http::ask(at, PATIENCE)
}

/// The answers to the requests of one edit.
pub struct Seen {
    /// The longest time without an answer, in seconds.
    pub silent: f64,
    /// The longest time that one answer took, in seconds.
    pub longest: f64,
    /// How many requests failed, and why.
    pub failed: u32,
    pub causes: Vec<String>,
}

/// A request: when it began and ended, and why it failed.
type Request = (Instant, Instant, Option<String>);

/// Requests that go on until [`end`](Self::end).
pub struct Traffic {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Request>>,
}

impl Traffic {
    pub fn to(at: SocketAddr, rate: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let asking = std::thread::spawn(move || {
            let mut clients = Vec::new();
            let mut next = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let client = std::thread::Builder::new().stack_size(STACK);
                let asked = client.spawn(move || {
                    let began = Instant::now();
                    let failed = ask(at).err();
                    (began, Instant::now(), failed)
                });
                clients.extend(asked);
                next += Duration::from_secs(1) / rate;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            let ended = clients.into_iter().filter_map(|client| client.join().ok());
            ended.collect()
        });
        Self { stop, asking }
    }

    /// Waits for the answers that are under way.
    pub fn end(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        let requests = self.asking.join().unwrap_or_default();
        let mut answers: Vec<Instant> = Vec::new();
        let mut longest = Duration::ZERO;
        let mut causes = Vec::new();
        for (began, ended, failed) in requests {
            match failed {
                None => {
                    answers.push(ended);
                    longest = longest.max(ended - began);
                }
                Some(cause) => causes.push(cause),
            }
        }
        answers.sort_unstable();
        let pauses = answers.iter().zip(answers.iter().skip(1));
        let silent = pauses.map(|(a, b)| *b - *a).max().unwrap_or_default();
        Seen {
            silent: silent.as_secs_f64(),
            longest: longest.as_secs_f64(),
            failed: u32::try_from(causes.len()).unwrap_or(u32::MAX),
            causes,
        }
    }
}
