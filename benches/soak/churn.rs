//! The churn: pods, execs, logs, port-forwards and API server restarts, as long as the soak lasts.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, DeleteParams, LogParams, PostParams};
use tokio::io::AsyncReadExt as _;

use crate::common::IMAGE;
use crate::common::cluster::Cluster;
use crate::node::Agent;

/// Static pods that are edited and removed in turn.
const SLOTS: usize = 4;
/// Rounds between two edits of the pod that crashes.
const CRASH_EVERY: usize = 5;
/// Rounds between two pods that the node refuses.
const REFUSED_EVERY: usize = 3;
/// Rounds between two stops of the API server.
const STOP_EVERY: usize = 12;
/// Where a container writes to whoever connects.
const PORT: u16 = 7000;
/// Longest wait for a pod, a stream or a request.
const PATIENCE: Duration = Duration::from_mins(2);
/// How often a pod is looked at.
const POLL: Duration = Duration::from_millis(200);

/// The churn, with what was done so far.
pub struct Churn<'a> {
    agent: &'a Agent,
    cluster: &'a Cluster,
    api: Api<Pod>,
    round: usize,
    commands: usize,
    logs: usize,
    connections: usize,
    refused: usize,
    stops: usize,
}

/// The number of things done.
pub struct Done(String);

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'a> Churn<'a> {
    /// Starts the pods that stay.
    pub async fn begin(agent: &'a Agent, cluster: &'a Cluster) -> anyhow::Result<Self> {
        let churn = Self {
            agent,
            cluster,
            api: Api::namespaced(cluster.admin().await, "default"),
            round: 0,
            commands: 0,
            logs: 0,
            connections: 0,
            refused: 0,
            stops: 0,
        };
        agent.bed.write("steady.yaml", &server("steady", 0));
        churn.until_round("steady", 0).await?;
        Ok(churn)
    }

    /// The operations so far.
    pub fn done(&self) -> Done {
        Done(format!(
            "{} edits, {} commands, {} logs, {} connections, {} refused pods, {} stops of the API server",
            self.round, self.commands, self.logs, self.connections, self.refused, self.stops
        ))
    }

    /// Goes on until then.
    pub async fn until(&mut self, end: Instant) -> anyhow::Result<()> {
        while Instant::now() < end {
            let round = self.round + 1;
            let work = tokio::time::timeout(PATIENCE * 2, self.turn(round));
            let done = work.await.context("it takes too long").flatten();
            done.with_context(|| format!("round {round}"))?;
            self.round = round;
        }
        Ok(())
    }

    /// Removes everything that doesn't stay, and waits until it is gone.
    pub async fn rest(&self) -> anyhow::Result<()> {
        for slot in 0..SLOTS {
            self.remove(&format!("churn-{slot}.yaml"));
        }
        self.remove("crash.yaml");
        let wanted = format!("steady-{}", self.agent.node);
        self.eventually("only the steady pod to be left", async || {
            let pods = self
                .api
                .list(&kube::api::ListParams::default())
                .await
                .ok()?;
            let mut names = pods.items.iter().map(|pod| pod.metadata.name.as_deref());
            names.all(|name| name == Some(&wanted)).then_some(())
        })
        .await
    }

    fn remove(&self, file: &str) {
        // Not there already is what is wanted.
        let _ = std::fs::remove_file(self.agent.bed.manifest(file));
    }

    async fn turn(&mut self, round: usize) -> anyhow::Result<()> {
        let pod = format!("churn-{}", round % SLOTS);
        let file = format!("{pod}.yaml");
        let stops = round.is_multiple_of(STOP_EVERY);
        if stops {
            self.cluster.stop_apiserver();
            self.stops += 1;
        }
        self.agent.bed.write(&file, &server(&pod, round));
        if round.is_multiple_of(CRASH_EVERY) {
            self.agent.bed.write("crash.yaml", &crashing(round));
        }
        if stops {
            self.cluster.start_apiserver().await;
        }
        self.until_round(&pod, round).await?;
        let mirror = format!("{pod}-{}", self.agent.node);
        self.command(&mirror).await?;
        self.log(&mirror).await?;
        self.connection(&mirror).await?;
        if round.is_multiple_of(REFUSED_EVERY) {
            self.refused(round).await?;
        }
        if round.is_multiple_of(2) {
            self.agent.bed.remove(&file);
        }
        Ok(())
    }

    /// Waits until that version of a pod is ready in the API.
    async fn until_round(&self, pod: &str, round: usize) -> anyhow::Result<()> {
        let mirror = format!("{pod}-{}", self.agent.node);
        self.eventually(&format!("{mirror} to be ready"), async || {
            let found = self.api.get_opt(&mirror).await.ok()??;
            let version = found.metadata.labels.as_ref()?.get("round")?;
            let conditions = found.status?.conditions?;
            let is_ready = |ready: &&_| {
                let ready: &k8s_openapi::api::core::v1::PodCondition = ready;
                ready.type_ == "Ready" && ready.status == "True"
            };
            conditions.iter().find(is_ready)?;
            (*version == round.to_string()).then_some(())
        })
        .await
    }

    async fn eventually(
        &self,
        what: &str,
        mut found: impl AsyncFnMut() -> Option<()>,
    ) -> anyhow::Result<()> {
        let looking = async {
            while found().await.is_none() {
                tokio::time::sleep(POLL).await;
            }
        };
        let waited = tokio::time::timeout(PATIENCE, looking).await;
        waited.with_context(|| format!("waited in vain for {what}"))
    }

    /// Runs a command that repeats its input.
    async fn command(&mut self, mirror: &str) -> anyhow::Result<()> {
        let params = AttachParams::default().stderr(false);
        let mut process = self.api.exec(mirror, ["echo", "hello"], &params).await?;
        let mut text = String::new();
        let mut output = process.stdout().context("no output")?;
        output.read_to_string(&mut text).await?;
        process.join().await?;
        anyhow::ensure!(text == "hello\n", "a command said {text:?}");
        self.commands += 1;
        Ok(())
    }

    /// Follows a log for a line, and goes away.
    async fn log(&mut self, mirror: &str) -> anyhow::Result<()> {
        let follow = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let mut log = Box::pin(self.api.log_stream(mirror, &follow).await?);
        let mut line = String::new();
        log.read_line(&mut line).await?;
        anyhow::ensure!(line == "ready\n", "a log begins with {line:?}");
        self.logs += 1;
        Ok(())
    }

    /// Connects to a forwarded port, and reads all that comes.
    async fn connection(&mut self, mirror: &str) -> anyhow::Result<()> {
        let mut forwarder = self.api.portforward(mirror, &[PORT]).await?;
        let mut stream = forwarder.take_stream(PORT).context("no stream")?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await?;
        drop(stream);
        forwarder.abort();
        anyhow::ensure!(bytes == b"hello\n", "{} bytes came", bytes.len());
        self.connections += 1;
        Ok(())
    }

    /// Binds a pod to the node that it refuses, and deletes it.
    async fn refused(&mut self, round: usize) -> anyhow::Result<()> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("refused-{round}"), "annotations": {"large": "x".repeat(100_000)}},
            "spec": {
                "nodeName": self.agent.node,
                "nodeSelector": {"no": "such-label"},
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "c", "image": IMAGE}],
            },
        }))?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.api.create(&PostParams::default(), &pod).await?;
        self.eventually(&format!("{name} to be refused"), async || {
            let found = self.api.get_opt(&name).await.ok()??;
            (found.status?.phase? == "Failed").then_some(())
        })
        .await?;
        self.api.delete(&name, &DeleteParams::default()).await?;
        self.refused += 1;
        Ok(())
    }
}

/// A pod that says when it serves, greets whoever connects, and has probes that are commands.
fn server(name: &str, round: usize) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{round: "{round}"}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: {name}
    image: {IMAGE}
    command: ["sh", "-c", "nc -ll -p {PORT} -e echo hello & echo ready; wait"]
    env: [{{name: ROUND, value: "{round}"}}]
    readinessProbe: {{exec: {{command: ["true"]}}, periodSeconds: 1, timeoutSeconds: 10}}
    livenessProbe: {{exec: {{command: ["true"]}}, periodSeconds: 2, timeoutSeconds: 10}}
"#
    )
}

/// A pod that fails again and again.
fn crashing(round: usize) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: crash
  labels: {{round: "{round}"}}
  annotations: {{mirrorlet.dev/rollout-restore: "false"}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: crash
    image: {IMAGE}
    command: ["sh", "-c", "sleep 1; exit 3"]
    env: [{{name: ROUND, value: "{round}"}}]
"#
    )
}
