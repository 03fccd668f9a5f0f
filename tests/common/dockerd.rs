//! A Docker Engine of a test's own, beside the machine's: own directories, socket, bridge and
//! containerd. What it starts it ends, by process id, however the test ends.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{IMAGE, IMAGE_2, PATIENCE, engine};

/// A dockerd that is started and ended at will.
pub struct Dockerd {
    dir: TempDir,
    /// Its number among those of this program.
    number: u32,
    bridge: String,
    live_restore: bool,
    /// The content of its `daemon.json` at its next start.
    pub config: &'static str,
    child: Option<Child>,
}

/// Runs a program that has to succeed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Dockerd {
    /// One that runs and has the tests' images.
    pub fn new(live_restore: bool) -> Self {
        let mut dockerd = Self::prepared(live_restore);
        let number = dockerd.number % 56;
        let address = format!("10.{}.{}.1/24", 200 + number, std::process::id() % 256);
        run("ip", &["addr", "add", &address, "dev", &dockerd.bridge]);
        dockerd.start();
        dockerd.load_images();
        dockerd
    }

    /// One that chose the subnet of its bridge itself when it started, as every dockerd does whose
    /// `docker0` was not there before. Until its next start `docker network inspect bridge` has a
    /// Subnet and no Gateway.
    pub fn first_start() -> Self {
        let mut dockerd = Self::prepared(false);
        dockerd.start();
        dockerd.load_images();
        dockerd
    }

    /// One with a bridge that has no address, not started.
    fn prepared(live_restore: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::Builder::new()
            .prefix("mirrorlet-dockerd-")
            .tempdir()
            .unwrap();
        // Unlike those of other test programs, and within the 15 bytes of an interface's name.
        let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
        let bridge = format!("mlt{pid}n{number}");
        super::reaper::remember("dockerd", &[&dir.path().display().to_string()]);
        super::reaper::remember("link", &[&bridge]);
        run("ip", &["link", "add", &bridge, "type", "bridge"]);
        run("ip", &["link", "set", &bridge, "up"]);
        Self {
            dir,
            number,
            bridge,
            live_restore,
            config: "{}",
            child: None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("sock")
    }

    /// Its address.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self) {
        assert!(self.child.is_none(), "it runs already");
        std::fs::write(self.path("daemon.json"), self.config).unwrap();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let text = |name: &str| self.path(name).display().to_string();
        let mut command = Command::new("dockerd");
        command
            .args(["--config-file", &text("daemon.json")])
            .args(["--host", &self.host()])
            .args(["--data-root", &text("data"), "--exec-root", &text("exec")])
            .args(["--pidfile", &text("pid"), "--bridge", &self.bridge])
            .args(["--iptables=false", "--ip-masq=false", "--ip-forward=false"])
            .env("GOGC", "400")
            .env("GOMEMLIMIT", "1GiB")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if self.live_restore {
            command.arg("--live-restore");
        }
        self.child = Some(command.spawn().unwrap());
        let end = Instant::now() + PATIENCE;
        while !self.answers() {
            let gone = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(
                gone.is_none() && Instant::now() < end,
                "dockerd does not come up ({gone:?}): {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answers(&self) -> bool {
        engine::get(&self.host(), "/version", Duration::from_secs(10)).is_ok()
    }

    fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut log) = File::open(self.path("log")) {
            let _ = log.read_to_string(&mut text);
        }
        let start = text.len().saturating_sub(4000);
        text.get(start..).unwrap_or(&text).to_owned()
    }

    fn load_images(&self) {
        let mut save = Command::new("docker")
            .args(["save", IMAGE, IMAGE_2])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = Command::new("docker")
            .args(["-H", &self.host(), "load"])
            .stdin(save.stdout.take().unwrap())
            .output()
            .unwrap();
        assert!(save.wait().unwrap().success(), "hack/images.sh makes them");
        assert!(output.status.success(), "{output:?}");
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        run("kill", &[&format!("-{signal}"), &pid]);
    }

    /// Sends it a signal that ends it, and waits for its end.
    pub fn end(&mut self, signal: &str) {
        self.signal(signal);
        self.child.take().unwrap().wait().unwrap();
        if signal == "KILL" {
            // Its containerd dies with it, and may stay a zombie where nobody adopts orphans: the
            // next dockerd would take that for one that runs.
            let _ = std::fs::remove_file(self.path("exec/containerd/containerd.pid"));
        }
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let pid = child.id().to_string();
            for signal in ["-CONT", "-TERM"] {
                let _ = Command::new("kill").args([signal, &pid]).output();
            }
            let end = Instant::now() + Duration::from_secs(20);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        // Its containerd and their shims, should they outlive it: only they name this directory.
        // A second time for what an ending shim leaves.
        for _ in 0..2 {
            for pid in processes_of(self.dir.path()) {
                let _ = Command::new("kill").args(["-KILL", &pid]).output();
            }
        }
        super::unmount_all(self.dir.path());
        let _ = Command::new("ip")
            .args(["link", "del", &self.bridge])
            .output();
    }
}

/// Ids of the daemons that were started for that directory.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        let program = command.split('\0').next().unwrap_or_default();
        if program.contains("containerd") && command.contains(&dir) {
            found.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    found
}
