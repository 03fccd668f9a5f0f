//! The program itself with the embedded API and no cluster, to be asked by many clients and killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::{Bed, eventually};

/// A running program; killed when dropped.
pub struct Alone {
    child: Child,
    root: PathBuf,
}

/// The arguments of such a program on a bed.
pub fn arguments(bed: &Bed, address: &str) -> Vec<String> {
    let level = std::env::var("BENCH_LOG").unwrap_or("warn".into());
    let root = bed.path().display().to_string();
    [
        ("--node-name", "bench"),
        ("--docker", &bed.docker),
        ("--metrics-address", "none"),
        ("--api-address", address),
        ("--eviction-hard", "none"),
        ("--log-level", &level),
        ("--root", &root),
    ]
    .into_iter()
    .fold(vec!["run".to_owned()], |mut args, (flag, value)| {
        args.push(format!("{flag}={value}"));
        args
    })
}

/// A client of the program with that root directory, once its API is served.
pub async fn client_of(root: &Path) -> Client {
    Client::try_from(access_to(root).await).unwrap()
}

/// How to reach the API of the program with that root directory, once it is served.
pub async fn access_to(root: &Path) -> kube::Config {
    let path = root.join("kubeconfig");
    eventually("a kubeconfig", || path.exists().then_some(())).await;
    let read = Kubeconfig::read_from(path).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read, &options).await;
    config.unwrap()
}

impl Alone {
    /// Starts that program on a bed, as the Node `bench`. `address` is that of its API, or `none`.
    pub fn start(binary: &Path, bed: &Bed, address: &str) -> Self {
        let root = bed.path().to_owned();
        // That of an agent before may name another port.
        let _ = std::fs::remove_file(root.join("kubeconfig"));
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MIRRORLET_") {
                command.env_remove(name);
            }
        }
        let child = command
            .args(arguments(bed, address))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, root }
    }

    /// Starts it with the API at an address of its own.
    pub fn serve(binary: &Path, bed: &Bed) -> Self {
        Self::start(binary, bed, "127.0.0.1:0")
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The kubeconfig that it writes.
    pub fn kubeconfig(&self) -> PathBuf {
        self.root.join("kubeconfig")
    }

    /// A client, once the API is served.
    pub async fn client(&self) -> Client {
        client_of(&self.root).await
    }

    /// Ends it by SIGKILL, whatever it does.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        self.end();
    }
}
