//! A child process, and the lines that it prints.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::eventually;

/// Lines that a child prints; it is killed when dropped.
pub struct Said {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Said {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let read = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                read.lock().unwrap().push(line);
            }
        });
        Self { child, lines }
    }

    /// Ends its standard input.
    pub fn close(&mut self) {
        drop(self.child.stdin.take());
    }

    /// The number of lines that begin so.
    pub fn count(&self, begin: &str) -> usize {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter(|line| line.starts_with(begin)).count()
    }

    /// Waits for a line that begins so.
    pub async fn until(&self, begin: &str) {
        eventually(begin, || (self.count(begin) > 0).then_some(())).await;
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
