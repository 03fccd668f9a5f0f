//! Programs on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::{PATIENCE, eventually};

/// A child that is killed when a test ends before it does.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Guarded {
    /// Its exit code, once it has ended.
    pub async fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the command's end", || {
            status = self.0.try_wait().unwrap();
            status.map(drop)
        })
        .await;
        status.unwrap().code()
    }
}

/// A terminal with a program on it.
pub struct Terminal {
    master: File,
    slave: File,
    pub child: Guarded,
    shown: Arc<Mutex<Vec<u8>>>,
    before: Termios,
}

impl Terminal {
    fn size(width: u16, height: u16) -> Winsize {
        Winsize {
            ws_row: height,
            ws_col: width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        }
    }

    /// A terminal of 80 to 24, with a command in its foreground.
    pub fn with(program: &Command) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = File::options()
            .read(true)
            .write(true)
            .open(name.to_str().unwrap())
            .unwrap();
        tcsetwinsize(&master, Self::size(80, 24)).unwrap();
        let before = tcgetattr(&slave).unwrap();
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "--wait"])
            .arg(program.get_program());
        command.args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end());
        let child = Guarded(child.spawn().unwrap());
        let master = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut reading, sink) = (master.try_clone().unwrap(), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = reading.read(&mut buffer) {
                sink.lock().unwrap().extend(&buffer[..read]);
            }
        });
        Self {
            master,
            slave,
            child,
            shown,
            before,
        }
    }

    pub fn resize(&self, width: u16, height: u16) {
        tcsetwinsize(&self.master, Self::size(width, height)).unwrap();
    }

    pub fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub fn shows(&self, wanted: &[u8]) -> bool {
        let shown = self.shown.lock().unwrap();
        shown.windows(wanted.len()).any(|part| part == wanted)
    }

    pub async fn until_shown(&self, wanted: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while !self.shows(wanted) {
            let shown = String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned();
            assert!(
                Instant::now() < end,
                "waited for {:?} in {shown:?}",
                String::from_utf8_lossy(wanted)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Whether the terminal is as it was before the program.
    pub fn is_restored(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap();
        now.local_modes == self.before.local_modes
            && now.input_modes == self.before.input_modes
            && now.output_modes == self.before.output_modes
    }
}
