//! Programs that end with the test that started them, however it ends.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, mpsc};

use rustix::process::{Pid, Signal, kill_process};

/// A running program.
#[derive(Debug)]
pub struct Program {
    name: String,
    log: PathBuf,
    child: Child,
}

type Job = (Command, mpsc::SyncSender<std::io::Result<Child>>);

/// Starts all programs: the kernel ends them when the *thread* that started them ends, so that has
/// to be one that lives as long as the process.
static KEEPER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
    let (jobs, next) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        while let Ok((mut command, started)) = next.recv() {
            let _ = started.send(command.spawn());
        }
    });
    jobs
});

impl Program {
    /// Starts `path`; its words go to `<dir>/<name>.log`, after those of earlier runs.
    pub fn start(path: &Path, args: &[String], dir: &Path) -> Self {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let log = dir.join(format!("{name}.log"));
        let sink = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(path)
            .args(args)
            .current_dir(dir)
            .env_remove("KUBECONFIG")
            // Servers in Go collect garbage half as often as by default: tests wait for processors. From
            // some size on as often as it takes, or hundreds of Pods of 1.3 MB have an API server take all
            // memory of the machine.
            .env("GOGC", "200")
            .env("GOMEMLIMIT", "5GiB")
            .stdin(Stdio::null())
            .stdout(sink.try_clone().unwrap())
            .stderr(sink);
        let (started, child) = mpsc::sync_channel(1);
        KEEPER.send((command, started)).unwrap();
        let child = child.recv().unwrap().unwrap();
        Self { name, log, child }
    }

    /// Fails with its last words when it has ended.
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("{} ended ({status}):\n{}", self.name, self.last_words());
        }
    }

    /// Its whole log.
    pub fn words(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub fn last_words(&self) -> String {
        let text = self.words();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    /// The most memory that it has had, in MiB.
    pub fn peak_mib(&self) -> u64 {
        self.status_mib("VmHWM:")
    }

    /// Has [`Self::peak_mib`] count from now on.
    pub fn forget_peak(&self) {
        /// To the kernel: the peak is what the process has now.
        const RESET_PEAK: &str = "5";
        let file = format!("/proc/{}/clear_refs", self.child.id());
        std::fs::write(file, RESET_PEAK).unwrap();
    }

    /// The memory that it has now, in MiB, without what is read from its file.
    pub fn resident_mib(&self) -> u64 {
        self.status_mib("RssAnon:")
    }

    fn status_mib(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(key));
        let kib: u64 = value
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib >> 10
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
