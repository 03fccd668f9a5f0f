//! A real registry on loopback, which an Engine trusts without TLS: Debian's `docker-registry`,
//! with users and passwords where a test asks for them, and images that no other test has.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mirrorlet_docker::image::digest;
use tempfile::TempDir;

use super::cluster::process::Program;
use super::cluster::unique;
use super::{IMAGE, PATIENCE, docker_host, reaper, tempdir};

/// Where Debian's package puts it; installed by `hack/registry.sh`.
const PROGRAM: &str = "/usr/bin/docker-registry";
/// The registry's only user.
pub const USER: &str = "me";
/// Her password.
pub const PASSWORD: &str = "s3cret~~~";
/// The same as the registry keeps it.
const HTPASSWD: &str = "me:$2b$05$mirrorletmirrorletmiresF3k5tYheyP85Rl8Y3UPisJW2/dRxTW\n";

/// Blocks of 71 bytes in the layer of a large image; compressed, about half remains.
const LARGE_BLOCKS: usize = 100_000;

/// A running registry. It, and the tags of its images on the Engine, end with it.
pub struct Registry {
    /// Host and port: what its images' names begin with.
    pub host: String,
    home: TempDir,
    program: Program,
    is_private: bool,
    /// Images that are removed with it: their tags, and what was made from nothing.
    made: Mutex<BTreeSet<String>>,
}

impl Registry {
    /// One that anybody may read and write.
    pub async fn open() -> Self {
        Self::start(false).await
    }

    /// One that only [`USER`] with [`PASSWORD`] may read and write.
    pub async fn private() -> Self {
        Self::start(true).await
    }

    async fn start(is_private: bool) -> Self {
        assert!(
            Path::new(PROGRAM).exists(),
            "there is no {PROGRAM}; run hack/registry.sh"
        );
        let home = tempdir();
        std::fs::write(home.path().join("htpasswd"), HTPASSWD).unwrap();
        // A port that was free a moment ago may be taken by now: then it ends, and another is tried.
        for _ in 0..10 {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let host = listener.local_addr().unwrap().to_string();
            drop(listener);
            let dir = home.path();
            std::fs::write(dir.join("config.yml"), config(dir, &host, is_private)).unwrap();
            let args = ["serve".to_owned(), "config.yml".to_owned()];
            let program = Program::start(Path::new(PROGRAM), &args, dir);
            if answers(&host, &program).await {
                return Self {
                    host,
                    home,
                    program,
                    is_private,
                    made: Mutex::default(),
                };
            }
        }
        panic!("no registry could be started");
    }

    /// The full name of an image of this registry.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.host)
    }

    /// Makes an image that runs what [`IMAGE`] runs, with an id of its own, pushes it, and removes
    /// it from the Engine. Returns its full name.
    pub fn push(&self, name: &str) -> String {
        let container = docker(&["create", IMAGE], None);
        reaper::remember("container", &[&docker_host(), &container]);
        self.push_container(name, &container)
    }

    /// The same with a layer of its own, of several megabytes, which the Engine has to fetch.
    pub fn push_large(&self, name: &str) -> String {
        let container = docker(&["create", IMAGE], None);
        reaper::remember("container", &[&docker_host(), &container]);
        // Of no use to a compressor.
        let seed = unique("large");
        let blocks = (0..LARGE_BLOCKS).flat_map(|n| {
            let block = digest(format!("{seed} {n}").as_bytes());
            block.into_bytes()
        });
        let file = self.home.path().join("large");
        std::fs::write(&file, blocks.collect::<Vec<u8>>()).unwrap();
        let target = format!("{container}:/large");
        docker(&["cp", file.to_str().unwrap(), &target], None);
        self.push_container(name, &container)
    }

    fn push_container(&self, name: &str, container: &str) -> String {
        let image = self.image(name);
        let label = format!("LABEL mirrorlet.test/unique={}", unique("image"));
        self.removes(&image);
        let id = docker(&["commit", "--change", &label, container, &image], None);
        // One that loses its tag to a later push stays under its digest.
        self.removes(&id);
        docker(&["rm", container], None);
        let config = self.home.path().join("client");
        std::fs::create_dir_all(&config).unwrap();
        std::fs::write(config.join("config.json"), self.config_json(PASSWORD)).unwrap();
        docker(&["push", "--quiet", &image], Some(&config));
        docker(&["rmi", &image], None);
        image
    }

    /// A `config.json` with the credentials of [`USER`] and that password.
    pub fn config_json(&self, password: &str) -> String {
        if !self.is_private {
            return "{}".to_owned();
        }
        let auth = STANDARD.encode(format!("{USER}:{password}"));
        serde_json::json!({"auths": {&self.host: {"auth": auth}}}).to_string()
    }

    /// A pull secret with that password, to be applied.
    pub fn secret(&self, namespace: &str, name: &str, password: &str) -> String {
        let config = STANDARD.encode(self.config_json(password));
        serde_json::json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": namespace},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": config},
        })
        .to_string()
    }

    /// Everything it was asked for so far, one line a request.
    pub fn words(&self) -> String {
        self.program.words()
    }
}

impl Registry {
    /// Has another name of an image of ours, one that came through a proxy say, removed with it.
    pub fn removes(&self, image: &str) {
        reaper::remember("image", &[&docker_host(), image]);
        self.made.lock().unwrap().insert(image.to_owned());
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        for image in self.made.lock().unwrap().iter() {
            let mut remove = Command::new("timeout");
            remove.args(["30", "docker", "-H", &docker_host(), "rmi", image]);
            let _ = remove.output();
        }
    }
}

fn config(home: &Path, host: &str, is_private: bool) -> String {
    let home = home.display();
    let auth = if is_private {
        format!("auth:\n  htpasswd:\n    realm: test\n    path: {home}/htpasswd\n")
    } else {
        String::new()
    };
    format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {home}/data\nhttp:\n  addr: {host}\n{auth}"
    )
}

/// Whether it has begun to answer; not, once it has ended.
async fn answers(host: &str, program: &Program) -> bool {
    let end = std::time::Instant::now() + PATIENCE;
    while std::time::Instant::now() < end {
        if program.last_words().contains("address already in use") {
            return false;
        }
        if tokio::net::TcpStream::connect(host).await.is_ok() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the registry doesn't answer: {}", program.last_words());
}

/// Runs the docker client; fails when it fails.
fn docker(args: &[&str], config: Option<&Path>) -> String {
    let mut command = Command::new("docker");
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let output = command
        .args(["-H", &docker_host()])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {args:?} failed: {words}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
