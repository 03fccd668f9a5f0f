//! The program as a child process, as a Node of the cluster.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use tokio::task::JoinHandle;

use crate::Settings;
use crate::common::cluster::Cluster;
use crate::common::recorder::Recorder;
use crate::common::{Bed, eventually};

/// A running agent; killed when dropped.
pub struct Agent {
    child: Child,
    /// Its root and manifests.
    pub bed: Bed,
    /// Name of its Node.
    pub node: String,
    /// Port of its node API.
    pub port: u16,
}

impl Agent {
    /// Starts it as that Node without a node API, and waits until its Node is ready.
    pub async fn start(
        settings: &Settings,
        cluster: &Cluster,
        node: &str,
    ) -> anyhow::Result<(Self, Recorder)> {
        Self::start_at(settings, cluster, node, 0).await
    }

    /// The same with a node API.
    pub async fn serving(
        settings: &Settings,
        cluster: &Cluster,
        node: &str,
    ) -> anyhow::Result<(Self, Recorder)> {
        // Free a moment ago: good enough for one process.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        Self::start_at(settings, cluster, node, port).await
    }

    async fn start_at(
        settings: &Settings,
        cluster: &Cluster,
        node: &str,
        port: u16,
    ) -> anyhow::Result<(Self, Recorder)> {
        let bed = Bed::new();
        let log = std::env::var("BENCH_LOG").unwrap_or("warn".into());
        let child = Command::new(&settings.binary)
            .args(["run", "--node-name", node, "--docker", &bed.docker])
            // As agents of tests: the machine's disk may be nearly full.
            .args(["--eviction-hard", "none"])
            .args([
                "--metrics-address",
                "none",
                "--node-api-port",
                &port.to_string(),
                "--log-level",
                &log,
            ])
            .arg("--kubeconfig")
            .arg(cluster.node_kubeconfig(node))
            .arg("--client-ca-file")
            .arg(cluster.authority())
            .arg("--root")
            .arg(bed.path())
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("can't run {}", settings.binary.display()))?;
        eventually(&format!("Node {node} to be ready"), || {
            let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            let told = cluster.try_kubectl(&["get", "node", node, "-o", ready]);
            told.is_ok_and(|ready| ready == "True").then_some(())
        })
        .await;
        let recorder = bed.record();
        let node = node.to_owned();
        let agent = Self {
            child,
            bed,
            node,
            port,
        };
        Ok((agent, recorder))
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Its resident memory, in MiB.
    pub fn rss_mib(&self) -> anyhow::Result<f64> {
        self.memory_mib("VmRSS")
    }

    /// A field of its memory in `/proc/PID/status`, in MiB.
    pub fn memory_mib(&self, field: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kilobytes: f64 = line
            .and_then(|line| line.trim().strip_suffix(" kB"))
            .with_context(|| format!("no {field}"))?
            .trim()
            .parse()?;
        Ok(kilobytes / 1024.0)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A change of a pod that the API server reported, and when it arrived (nanoseconds since 1970).
#[derive(Debug, Clone)]
pub struct Told {
    /// When.
    pub at: i64,
    /// Name of the pod.
    pub name: String,
    /// Its UID in the API.
    pub uid: String,
    /// Whether its phase is Running.
    pub runs: bool,
}

/// Everything a watch of a Node's pods tells.
pub struct Watching {
    told: Arc<Mutex<Vec<Told>>>,
    task: JoinHandle<()>,
}

impl Watching {
    /// Watches from now on.
    pub async fn start(cluster: &Cluster, node: &str) -> Self {
        let api: Api<Pod> = Api::all(cluster.admin().await);
        let config = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&told);
        let task = tokio::spawn(async move {
            let _ = watcher::watcher(api, config)
                .try_for_each(|event| {
                    if let Event::Apply(pod) | Event::InitApply(pod) = event {
                        sink.lock().unwrap().push(told_of(&pod));
                    }
                    std::future::ready(Ok(()))
                })
                .await;
        });
        Self { told, task }
    }

    /// Waits for the first word that fits.
    pub async fn until(&self, what: &str, fits: impl Fn(&Told) -> bool) -> Told {
        eventually(what, || {
            let told = self.told.lock().unwrap();
            told.iter().find(|told| fits(told)).cloned()
        })
        .await
    }

    /// How many pods run, by the newest word of each.
    pub fn running(&self) -> usize {
        let told = self.told.lock().unwrap();
        let newest: BTreeMap<&str, bool> = told.iter().map(|t| (t.name.as_str(), t.runs)).collect();
        newest.values().filter(|runs| **runs).count()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn told_of(pod: &Pod) -> Told {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    Told {
        at: now_nanos(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        runs: phase == Some("Running"),
    }
}

/// Nanoseconds since 1970 by this machine's clock, which is the Engine's too.
pub fn now_nanos() -> i64 {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
