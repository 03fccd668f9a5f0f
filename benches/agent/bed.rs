//! A root directory, its manifests, and the sweep at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// The image of the pods; made by `hack/images.sh` from local files.
pub const IMAGE: &str = "mirrorlet.test/busybox:1";

/// A root directory for one agent.
pub struct Bed {
    root: TempDir,
    docker: String,
}

impl Bed {
    /// A fresh one.
    pub fn new(docker: &str) -> anyhow::Result<Self> {
        let root = tempfile::Builder::new()
            .prefix("mirrorlet-bench-")
            .tempdir()?;
        fs::create_dir(root.path().join("manifests"))?;
        Ok(Self {
            root,
            docker: docker.to_owned(),
        })
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Where manifests go.
    pub fn manifests(&self) -> PathBuf {
        self.root().join("manifests")
    }

    /// The agent's ownership label; there once the agent has started.
    pub fn owner(&self) -> std::io::Result<String> {
        Ok(fs::read_to_string(self.root().join("owner"))?
            .trim()
            .to_owned())
    }

    /// Saves the manifest of a pod next door, ready to be renamed in.
    pub fn prepare(&self, pod: &str) -> std::io::Result<()> {
        self.prepare_of(pod, 1)
    }

    /// The same for a pod of that many containers: `app`, `app1`, `app2`, …
    pub fn prepare_of(&self, pod: &str, containers: usize) -> std::io::Result<()> {
        self.prepare_as(pod, &manifest(pod, containers))
    }

    /// Saves that manifest of a pod next door, ready to be renamed in.
    pub fn prepare_as(&self, pod: &str, manifest: &str) -> std::io::Result<()> {
        fs::write(self.root().join(format!("{pod}.yaml")), manifest)
    }

    /// Renames a prepared manifest in.
    pub fn save(&self, pod: &str) -> std::io::Result<()> {
        let file = format!("{pod}.yaml");
        fs::rename(self.root().join(&file), self.manifests().join(&file))
    }

    /// Removes a manifest.
    pub fn remove(&self, pod: &str) -> std::io::Result<()> {
        fs::remove_file(self.manifests().join(format!("{pod}.yaml")))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Ok(owner) = self.owner() {
            sweep(&self.docker, &owner);
        }
    }
}

/// Removes every container with that owner label.
pub fn sweep(docker: &str, owner: &str) {
    let client = |args: &[&str]| {
        Command::new("docker")
            .args(["-H", docker])
            .args(args)
            .output()
    };
    let filter = format!("label=mirrorlet.dev/owner={owner}");
    let Ok(listed) = client(&["ps", "-aq", "--filter", &filter]) else {
        return;
    };
    let ids = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut args = vec!["rm", "-fv"];
    args.extend(ids.split_whitespace());
    if args.len() > 2 {
        // A container that can't be removed now keeps the label: the next sweep by hand finds it.
        let _ = client(&args);
    }
}

/// A pod whose containers run until they are told to stop, and then stop at once.
fn manifest(pod: &str, containers: usize) -> String {
    let of = |number: usize| {
        let number = if number > 0 {
            number.to_string()
        } else {
            String::new()
        };
        format!(
            r#"  - name: app{number}
    image: {IMAGE}
    command: ["sh", "-c", "trap 'exit 0' TERM; sleep 1000000 & wait"]
"#
        )
    };
    let containers: String = (0..containers).map(of).collect();
    format!(
        r"apiVersion: v1
kind: Pod
metadata:
  name: {pod}
spec:
  terminationGracePeriodSeconds: 1
  containers:
{containers}"
    )
}
