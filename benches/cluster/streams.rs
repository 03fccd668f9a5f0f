//! Costs of `kubectl exec`, `logs -f` and `port-forward` on a pod of ours, through the API server.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::AsyncBufReadExt as _;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess, LogParams};
use kube::client::ConfigExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use mirrorlet_docker::BollardEngine;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tower::ServiceBuilder;

use crate::Settings;
use crate::common::IMAGE;
use crate::common::cluster::Cluster;
use crate::node::{Agent, Watching};
use crate::raw;
use crate::report::{Figure, Report, median};

/// Most time that the way through the API server and the agent may add to a command, in
/// milliseconds.
const WAY: f64 = 30.0;
/// The least of the throughput of the raw way that ours must have.
const THROUGHPUT_SHARE: f64 = 0.8;
/// Rounds of the figures about large transfers.
const ROUNDS: usize = 3;
/// Followers of a log, and commands that wait for input, all at once.
const IDLE_STREAMS: usize = 50;
/// Most resident memory with all of them, in MiB.
const IDLE_RSS: f64 = 45.0;
/// How long they are left alone before memory is looked at.
const SETTLE: Duration = Duration::from_secs(5);
/// Requests of strangers, each with a token of its own, and how many are under way at a time.
const STRANGERS: usize = 50_000;
const STRANGERS_AT_ONCE: usize = 64;
/// The longest that a log may take to answer meanwhile, in milliseconds.
const FLOODED: f64 = 1000.0;
/// The pod and its container.
const POD: &str = "streams";
/// Where the container writes to whoever connects.
const PORT: u16 = 7000;

/// Measures everything of this module.
pub async fn measure(
    settings: &Settings,
    cluster: &Cluster,
    report: &mut Report,
) -> anyhow::Result<()> {
    let (agent, recorder) = Agent::serving(settings, cluster, "bench-streams").await?;
    let watching = Watching::start(cluster, &agent.node).await;
    let bytes = settings.stream_mb * 1_000_000;
    agent.bed.write(&format!("{POD}.yaml"), &server(bytes));
    let mirror = format!("{POD}-{}", agent.node);
    let id = recorder
        .until("start", &format!("k8s_{POD}_"))
        .await
        .container;
    watching
        .until(&format!("{mirror} to run"), |told| {
            told.name == mirror && told.runs
        })
        .await;
    let stand = Stand {
        settings,
        cluster,
        docker: &agent.bed.docker,
        api: Api::namespaced(client(cluster).await?, "default"),
        mirror,
        id,
        bytes,
    };
    report.found([stand.idle(&agent).await?]);
    report.found([stand.flooded(&agent).await?]);
    report.found([stand.latency().await?]);
    report.found([stand.exec_out()?]);
    report.found([stand.forwarded().await?]);
    Ok(())
}

struct Stand<'a> {
    settings: &'a Settings,
    cluster: &'a Cluster,
    docker: &'a str,
    api: Api<Pod>,
    mirror: String,
    id: String,
    bytes: u64,
}

impl Stand<'_> {
    /// Memory of the agent while many follow a log and many commands wait.
    async fn idle(&self, agent: &Agent) -> anyhow::Result<Figure> {
        let before = agent.rss_mib()?;
        let follow = LogParams {
            follow: true,
            ..LogParams::default()
        };
        let mut logs = Vec::new();
        let mut commands = Vec::new();
        for _ in 0..IDLE_STREAMS {
            let mut log = Box::pin(self.api.log_stream(&self.mirror, &follow).await?);
            let mut line = String::new();
            log.read_line(&mut line).await?;
            anyhow::ensure!(line == "ready\n", "a log begins with {line:?}");
            logs.push(log);
            let params = AttachParams::default().stdin(true).stderr(false);
            let command = self.api.exec(&self.mirror, ["cat"], &params).await?;
            let mut command = Echo::of(command)?;
            command.answers().await?;
            commands.push(command);
        }
        tokio::time::sleep(SETTLE).await;
        let rss = agent.rss_mib()?;
        // Not one of them had ended.
        for command in &mut commands {
            command.answers().await?;
        }
        Ok(Figure {
            name: "50 log followers and 50 idle execs: RSS",
            value: rss,
            unit: "MiB",
            floor: None,
            target: "below 45 MiB",
            limit: IDLE_RSS,
            note: format!("{before:.1} MiB without them"),
        })
    }

    /// How long the log takes at most while strangers ask the node API.
    async fn flooded(&self, agent: &Agent) -> anyhow::Result<Figure> {
        let tail = LogParams {
            tail_lines: Some(1),
            ..LogParams::default()
        };
        self.api.logs(&self.mirror, &tail).await?;
        let before = agent.rss_mib()?;
        let url = format!("https://127.0.0.1:{}", agent.port).parse()?;
        let mut config = kube::Config::new(url);
        config.accept_invalid_certs = true;
        let stranger = kube::Client::try_from(config)?;
        let next = Arc::new(AtomicUsize::new(0));
        let mut flood = JoinSet::new();
        for _ in 0..STRANGERS_AT_ONCE {
            let (stranger, next) = (stranger.clone(), Arc::clone(&next));
            flood.spawn(async move {
                let mut refused = 0_usize;
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= STRANGERS {
                        return refused;
                    }
                    let request = http::Request::get("/pods")
                        .header("authorization", format!("Bearer forged-{n}"))
                        .body(Vec::new())
                        .unwrap();
                    let answer = stranger.request_text(request).await;
                    let busy = http::StatusCode::TOO_MANY_REQUESTS.as_u16();
                    if matches!(answer, Err(kube::Error::Api(status)) if status.code == busy) {
                        refused += 1;
                    }
                }
            });
        }
        let (mut times, mut rss) = (Vec::new(), before);
        while next.load(Ordering::Relaxed) < STRANGERS {
            let began = Instant::now();
            self.api.logs(&self.mirror, &tail).await?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
            rss = rss.max(agent.rss_mib()?);
        }
        let mut refused = 0;
        while let Some(ended) = flood.join_next().await {
            refused += ended?;
        }
        Ok(Figure {
            name: "a log while 50,000 strangers ask: the slowest",
            value: times.iter().copied().fold(0.0, f64::max),
            unit: "ms",
            floor: None,
            target: "below 1 s",
            limit: FLOODED,
            note: format!(
                "median {:.0} ms of {}; {refused} strangers got 429; RSS {before:.1} → {rss:.1} MiB",
                median(&times),
                times.len()
            ),
        })
    }

    /// How long `true` takes, beside `docker exec`.
    async fn latency(&self) -> anyhow::Result<Figure> {
        let engine = BollardEngine::connect(self.docker)?;
        let (mut values, mut floors, mut raw) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.settings.rounds {
            raw.push(raw::exec_of_true(&engine, &self.id).await?);
            let began = Instant::now();
            let mut docker = Command::new("docker");
            docker.args(["-H", self.docker, "exec", &self.id, "true"]);
            anyhow::ensure!(docker.status()?.success(), "docker exec failed");
            floors.push(began.elapsed().as_secs_f64() * 1e3);
            let began = Instant::now();
            let params = AttachParams::default();
            let mut command = self.api.exec(&self.mirror, ["true"], &params).await?;
            let status = command.take_status().context("no status")?.await;
            values.push(began.elapsed().as_secs_f64() * 1e3);
            anyhow::ensure!(
                status.as_ref().and_then(|s| s.status.as_deref()) == Some("Success"),
                "true ended with {status:?}"
            );
            command.join().await?;
        }
        let floor = median(&floors);
        Ok(Figure {
            name: "exec of `true` through the API server",
            value: median(&values),
            unit: "ms",
            floor: Some(floor),
            target: "docker exec + 30 ms",
            limit: floor + WAY,
            note: format!(
                "median of {}; the raw calls take {:.0} ms",
                values.len(),
                median(&raw)
            ),
        })
    }

    /// Measures the output of a command by kubectl, beside `docker exec`.
    fn exec_out(&self) -> anyhow::Result<Figure> {
        let script = format!("head -c {} /dev/zero", self.bytes);
        let (mut values, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut docker = Command::new("docker");
            docker.args(["-H", self.docker, "exec", &self.id, "sh", "-c", &script]);
            floors.push(self.all_of(docker)?);
            let mut kubectl = self.kubectl();
            kubectl.args(["exec", &self.mirror, "--", "sh", "-c", &script]);
            values.push(self.all_of(kubectl)?);
        }
        Ok(self.transfer(
            "a command's output through the API server",
            "0.8 × the throughput of docker exec",
            &values,
            &floors,
        ))
    }

    /// Measures the bytes that a port of the pod sends through `kubectl port-forward`, beside a
    /// connection to the pod.
    async fn forwarded(&self) -> anyhow::Result<Figure> {
        let mut kubectl = self.kubectl();
        kubectl.args(["port-forward", &self.mirror, &format!(":{PORT}")]);
        let forwarder = Forwarder::start(kubectl)?;
        let pod_ip = self.pod_ip().await?;
        let (mut values, mut floors) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            floors.push(self.received(&format!("{pod_ip}:{PORT}")).await?);
            values.push(self.received(&forwarder.address).await?);
        }
        Ok(self.transfer(
            "a forwarded port through the API server",
            "0.8 × the throughput of TCP to the pod",
            &values,
            &floors,
        ))
    }

    fn transfer(
        &self,
        name: &'static str,
        target: &'static str,
        values: &[f64],
        floors: &[f64],
    ) -> Figure {
        let floor = median(floors);
        Figure {
            name,
            value: median(values),
            unit: "s",
            floor: Some(floor),
            target,
            limit: floor / THROUGHPUT_SHARE,
            note: format!(
                "{} MB; all: {values:.2?} {floors:.2?}",
                self.settings.stream_mb
            ),
        }
    }

    fn kubectl(&self) -> Command {
        self.cluster
            .kubectl_command(&self.cluster.admin_kubeconfig())
    }

    async fn pod_ip(&self) -> anyhow::Result<String> {
        let status = self.api.get(&self.mirror).await?.status;
        status.and_then(|status| status.pod_ip).context("no pod IP")
    }

    /// Seconds until a program has written all bytes and ended.
    fn all_of(&self, mut command: Command) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdout = child.stdout.take().context("no output")?;
        let got = std::io::copy(&mut stdout, &mut std::io::sink())?;
        let status = child.wait()?;
        anyhow::ensure!(status.success(), "{command:?}: {status}");
        anyhow::ensure!(got == self.bytes, "{command:?} gave {got} bytes");
        Ok(began.elapsed().as_secs_f64())
    }

    /// Seconds until that address has sent all bytes.
    async fn received(&self, address: &str) -> anyhow::Result<f64> {
        let began = Instant::now();
        let mut connection = TcpStream::connect(address).await?;
        let got = drain(&mut connection).await?;
        anyhow::ensure!(got == self.bytes, "{address} sent {got} bytes");
        Ok(began.elapsed().as_secs_f64())
    }
}

/// A client that holds nothing back, as kubectl's doesn't.
async fn client(cluster: &Cluster) -> anyhow::Result<kube::Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.admin_kubeconfig())?;
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .service(HyperClient::builder(TokioExecutor::new()).build(connector));
    Ok(kube::Client::new(service, "default"))
}

/// Reads to the end; how many bytes that were.
async fn drain(from: &mut (impl AsyncRead + Unpin)) -> anyhow::Result<u64> {
    let (mut block, mut got) = (vec![0; 256 << 10], 0);
    loop {
        let read = from.read(&mut block).await?;
        if read == 0 {
            return Ok(got);
        }
        got += u64::try_from(read)?;
    }
}

/// A command that sends back what it is told.
struct Echo {
    process: AttachedProcess,
    input: Box<dyn AsyncWrite + Unpin>,
    output: Box<dyn AsyncRead + Unpin>,
}

impl Echo {
    fn of(mut process: AttachedProcess) -> anyhow::Result<Self> {
        let input = Box::new(process.stdin().context("no input")?);
        let output = Box::new(process.stdout().context("no output")?);
        Ok(Self {
            process,
            input,
            output,
        })
    }

    /// Says a word, and hears it back.
    async fn answers(&mut self) -> anyhow::Result<()> {
        const WORD: &[u8] = b"hello\n";
        self.input.write_all(WORD).await?;
        self.input.flush().await?;
        let mut heard = [0; WORD.len()];
        self.output.read_exact(&mut heard).await?;
        anyhow::ensure!(heard == *WORD, "a command said {heard:?}");
        Ok(())
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.process.abort();
    }
}

/// `kubectl port-forward`; killed when dropped.
struct Forwarder {
    child: Child,
    address: String,
    /// It ends when it can't say any more what it does.
    _words: BufReader<ChildStdout>,
}

impl Forwarder {
    fn start(mut kubectl: Command) -> anyhow::Result<Self> {
        let mut child = kubectl
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let mut words = BufReader::new(child.stdout.take().context("no output")?);
        words.read_line(&mut line)?;
        // Forwarding from 127.0.0.1:40001 -> 7000
        let address = line
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .to_owned();
        Ok(Self {
            child,
            address,
            _words: words,
        })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Gone already is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pod that says when it serves, and writes so many bytes to whoever connects.
fn server(bytes: u64) -> String {
    format!(
        r#"apiVersion: v1
kind: Pod
metadata:
  name: {POD}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: {POD}
    image: {IMAGE}
    command: ["sh", "-c", "nc -ll -p {PORT} -e head -c {bytes} /dev/zero & echo ready; wait"]
"#
    )
}
