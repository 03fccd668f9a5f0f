//! Commands on a terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::common::{Bed, PATIENCE};
use super::{Guarded, SLEEPS, fed, mirrorlet, pod, started, text};

/// A terminal with a program on it.
pub(super) struct Terminal {
    master: File,
    slave: File,
    pub(super) child: Guarded,
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

    /// A terminal of 80 to 24, with a command of ours in its foreground.
    pub(super) fn with(bed: &Bed, args: &[&str]) -> Self {
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
        let ours = mirrorlet(bed, args);
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(ours.get_program());
        command.args(ours.get_args());
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

    pub(super) fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub(super) fn shows(&self, wanted: &[u8]) -> bool {
        let shown = self.shown.lock().unwrap();
        shown.windows(wanted.len()).any(|part| part == wanted)
    }

    pub(super) async fn until_shown(&self, wanted: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while !self.shows(wanted) {
            let shown = text(&self.shown.lock().unwrap());
            assert!(
                Instant::now() < end,
                "waited for {:?} in {shown:?}",
                text(wanted)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Everything shown so far.
    pub(super) fn screen(&self) -> String {
        text(&self.shown.lock().unwrap())
    }

    /// Whether the terminal is as it was before the program.
    pub(super) fn is_restored(&self) -> bool {
        let now = tcgetattr(&self.slave).unwrap();
        now.local_modes == self.before.local_modes
            && now.input_modes == self.before.input_modes
            && now.output_modes == self.before.output_modes
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_byte_exact_at_once_and_follows_its_size() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let script = r"printf '\001\000\002at once'; while read line; do stty size; done; exit 5";
    let args = ["exec", "web", "-it", "--", "sh", "-c", script];
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"\x01\0\x02at once").await;
    assert!(!terminal.is_restored(), "it is raw meanwhile");
    terminal.types("\r");
    terminal.until_shown(b"24 80\r\n").await;
    tcsetwinsize(&terminal.master, Terminal::size(101, 33)).unwrap();
    // The news travels on its own way: asked again until it has come.
    let end = Instant::now() + PATIENCE;
    while !terminal.shows(b"33 101\r\n") {
        assert!(Instant::now() < end, "the size never changed");
        terminal.types("\r");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Ctrl-D goes to the other side, and is the end of input there.
    terminal.types("\x04");
    assert_eq!(terminal.child.ended().await, Some(5));
    assert!(terminal.is_restored());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_put_back_however_the_session_ends() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = [
        "exec",
        "web",
        "-it",
        "--",
        "sh",
        "-c",
        "echo ready; exec cat",
    ];
    // Ctrl-C is the command's.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    terminal.types("\x03");
    assert_eq!(terminal.child.ended().await, Some(130));
    assert!(terminal.is_restored());
    // A signal is ours.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    let pid = terminal.child.0.id().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    assert_eq!(terminal.child.ended().await, Some(128 + 15));
    assert!(terminal.is_restored());
    // And the agent may go.
    let mut terminal = Terminal::with(&bed, &args);
    terminal.until_shown(b"ready").await;
    agent.stop().await;
    assert_eq!(terminal.child.ended().await, Some(1));
    assert!(terminal.is_restored());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_none_is_told_and_done_without() {
    let bed = Bed::new();
    let agent = started(&bed, &pod("web", "", SLEEPS), "web").await;
    let args = ["exec", "web", "-it", "--", "sh", "-c", "cat; tty"];
    let done = fed(&bed, &args, b"piped\n".to_vec());
    assert_eq!(text(&done.stdout), "piped\nnot a tty\n");
    let said = text(&done.stderr);
    assert!(
        said.contains("Unable to use a TTY - input is not a terminal"),
        "{said}"
    );
    agent.stop().await;
}
