//! The program itself with the embedded API and no cluster, to be asked by many clients and killed.

use std::net::SocketAddr;
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

impl Alone {
    /// Starts that program on a bed, as the Node `bench`. `address` is that of its API, or `none`.
    pub fn start(binary: &Path, bed: &Bed, address: &str) -> Self {
        let root = bed.path().to_owned();
        // That of an agent before may name another port.
        let _ = std::fs::remove_file(root.join("kubeconfig"));
        let level = std::env::var("BENCH_LOG").unwrap_or("warn".into());
        let mut command = Command::new(binary);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MIRRORLET_") {
                command.env_remove(name);
            }
        }
        let child = command
            .args(["run", "--node-name", "bench", "--docker", &bed.docker])
            .args(["--metrics-address", "none", "--api-address", address])
            .args(["--eviction-hard", "none", "--log-level", &level, "--root"])
            .arg(&root)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, root }
    }

    /// Starts it with the API at an address of its own.
    pub fn serve(binary: &Path, bed: &Bed) -> Self {
        Self::start(binary, bed, "127.0.0.1:0")
    }

    /// Starts it with the API at that address.
    pub fn serve_at(binary: &Path, bed: &Bed, address: SocketAddr) -> Self {
        Self::start(binary, bed, &address.to_string())
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
        let path = self.kubeconfig();
        eventually("a kubeconfig", || path.exists().then_some(())).await;
        let read = Kubeconfig::read_from(path).unwrap();
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(read, &options).await;
        Client::try_from(config.unwrap()).unwrap()
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
